"""Arms put together over seeds, and the commands that print and draw them."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from neurolsc.cli import app
from neurolsc.sweeps import Grid, figures, run_sweep
from neurolsc.sweeps.figures import draw
from neurolsc.sweeps.row import best_so_far
from neurolsc.sweeps.summary import groups, markdown
from tests.sweeps.grids import CHOOSING, FIXED, SMALL, Here, grid, write_grid

pytestmark = pytest.mark.usefixtures("quick")


def call(*words: str | Path) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def rows_of(made: Grid, accuracy: Any = lambda trial: 0.5, **more: Any) -> list[dict[str, Any]]:
    """A row for every trial, with a score made of its settings."""
    rows = []
    for trial in made.trials:
        row = {"trial": trial.name, "chosen": True, "error": None} | trial.shown()
        rows.append(row | {"validation_mode_accuracy": accuracy(trial.settings)} | more)
    return rows


def test_an_arm_is_told_by_mean_and_deviation_over_its_seeds(tmp_path: Path):
    made = grid(tmp_path, grid={"layers": [5, 2], "seed": [0, 1, 2]})
    rows = rows_of(made, lambda s: {5: 0.4, 2: 0.8}[s["layers"]] + 0.1 * s["seed"], learns=True, epochs_to_reach=None)
    rows[0] |= {"epochs_to_reach": 8, "learns": False, "start_firing_rate_1": 0.25, "start_firing_rate_2": 0.01}
    first, second = groups(made, rows)
    assert [group.name for group in (first, second)] == ["layers 5", "layers 2"]  # as in the file
    text = markdown(made, [first, second])
    header, line, *lines = [[cell.strip() for cell in row.strip("|").split("|")] for row in text.splitlines()]
    assert set(line) == {"---"}
    assert [dict(zip(header, cells, strict=True)) for cells in lines] == [
        {
            "layers": "5",
            "seeds": "3",
            "validation": "50.0 ± 8.2 %",  # the deviation of 40, 50, 60, divided by their number: 8.165
            "above 50%": "2 of 3",
            "epochs to 80%": "8 (1 of 3)",
            "rate at start": "0.01 to 0.25",
        },
        {
            "layers": "2",
            "seeds": "3",
            "validation": "90.0 ± 8.2 %",
            "above 50%": "3 of 3",
            "epochs to 80%": "never",
            "rate at start": "-",
        },
    ]


def test_an_error_counts_as_a_seed_that_did_not_learn(tmp_path: Path):
    made = grid(tmp_path, grid={"seed": [0, 1, 2]})
    rows = rows_of(made, lambda s: 0.8, learns=True)
    rows[1] |= {"error": "FloatingPointError: the loss is nan", "validation_mode_accuracy": 0.1, "learns": False}
    text = markdown(made, groups(made, rows))
    assert "| 3 (1 failed) | 80.0 ± 0.0 % | 2 of 3 |" in text


def test_only_chosen_trials_count_and_what_was_chosen_is_told(tmp_path: Path):
    made = grid(tmp_path, **CHOOSING)
    rows = rows_of(made, lambda s: s["lr"])
    for row in rows:
        row["chosen"] = row["lr"] == 1e-2
    first, _ = groups(made, rows)
    assert [row["seed"] for row in first.rows] == [3, 4, 5]
    assert markdown(made, [first]).splitlines()[2].startswith("| 1 | 0.01 | 3 | 1.0 ± 0.0 % |")


def test_arms_can_be_made_by_fewer_settings(tmp_path: Path):
    made = grid(tmp_path, grid={"layers": [2, 5], "cell": ["LIF", "ALIFPlus"], "seed": [0, 1]})
    assert [group.name for group in groups(made, rows_of(made), ["cell"])] == ["cell LIF", "cell ALIFPlus"]
    assert [len(group.rows) for group in groups(made, rows_of(made), ["cell"])] == [4, 4]
    with pytest.raises(ValueError, match="there is no setting depth; those that vary are layers, cell, seed"):
        groups(made, rows_of(made), ["depth"])


def test_the_best_so_far_is_the_row_of_the_lowest_loss():
    history = [{"epoch": i, "validation_loss": loss} for i, loss in enumerate((3.0, 1.0, 2.0, 1.0, 0.5), start=1)]
    assert [row["epoch"] for row in best_so_far(history)] == [1, 2, 2, 2, 5]


@pytest.mark.slow
def test_pictures_say_what_all_trials_share_and_how_many_seeds_they_have(tmp_path: Path, monkeypatch):
    small = grid(tmp_path / "g", **SMALL)
    rows = run_sweep(small, tmp_path / "s", Here(), progress=False)
    titles: list[str] = []
    monkeypatch.setattr("neurolsc.plots.sweep.finish", lambda figure, path, title: titles.append(title))
    draw(small, rows, tmp_path / "s")
    settings = small.trials[0].settings
    about = f"{small.name}: cell ALIFPlus, width {settings['width']}, {small.trials[0].experiment.data.title}, 2 seeds"
    assert titles == [f"{about}; bands from lowest to highest", about]
    one = grid(tmp_path / "h", **(SMALL | {"grid": SMALL["grid"] | {"seed": [0]}}))
    chosen = [row for row in rows if row["seed"] == 0]
    draw(one, chosen, tmp_path / "s")
    assert titles[-1].endswith(", 1 seed")


@pytest.mark.slow
def test_where_arms_differ_in_their_seeds_the_legend_tells_how_many_each_has(tmp_path: Path, monkeypatch):
    made = grid(tmp_path / "g", **(SMALL | {"grid": {"layers": [1, 2], "reset": ["static", "zero"], "seed": [0, 1]}}))
    rows = run_sweep(made, tmp_path / "s", Here(), progress=False)
    found: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(
        "neurolsc.plots.sweep.finish",
        lambda figure, path, title: found.append((title, [text.get_text() for text in figure.legends[0].get_texts()])),
    )
    draw(made, [row for row in rows if (row["layers"], row["reset"], row["seed"]) != (2, "zero", 1)], tmp_path / "s")
    assert [names for _, names in found] == [["reset static (2 seeds)", "reset zero (2, 1 seeds)"]] * 2
    assert not any("seed" in title for title, _ in found)
    draw(made, [row for row in rows if row["seed"] == 0], tmp_path / "s")
    assert [names for _, names in found[2:]] == [["reset static", "reset zero"]] * 2
    assert all(", 1 seed" in title for title, _ in found[2:])


@pytest.mark.slow
def test_table_and_figure_tell_of_a_sweep(tmp_path: Path):
    file = write_grid(tmp_path / "grid.toml", **(SMALL | CHOOSING))
    run_sweep(grid(tmp_path / "g", **(SMALL | CHOOSING)), tmp_path / "s", Here(), progress=False)
    result = call("sweep", file, "--out", tmp_path / "s", "--workers", "1")  # nothing is left to be done
    assert result.exit_code == 0, result.output
    assert f"8 trials in {tmp_path / 's' / 'table.csv'}" in result.output
    result = call("table", tmp_path / "s")
    assert result.exit_code == 0, result.output
    assert result.output == (tmp_path / "s" / "table.md").read_text()
    assert result.output.count("\n") == 4
    assert "| layers | lr (chosen) | seeds | validation | test |" in result.output
    assert call("table", tmp_path / "s", "--by", "width").output.count("\n") == 3
    result = call("figure", tmp_path / "s")
    assert result.exit_code == 0, result.output
    for name in ("learning.png", "scores.png"):
        assert (tmp_path / "s" / name).stat().st_size > 5000
    result = call("figure", tmp_path / "s", "--over", "width")
    assert "over must be a setting that varies from arm to arm, layers, got 'width'" in result.output


def test_table_and_figure_of_a_sweep_that_has_just_begun(tmp_path: Path):
    write_grid(tmp_path / "grid.toml", **SMALL)
    result = call("table", tmp_path)
    assert "4 of 4 trials are not over" in result.output
    assert "there is nothing to draw" in call("figure", tmp_path).output
    assert "is not the folder of a sweep" in call("table", tmp_path.parent).output


def test_a_sweep_without_ray_says_what_to_install(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    file = write_grid(tmp_path / "grid.toml", **SMALL)
    result = call("sweep", file, "--out", tmp_path / "s", "--ray")
    assert result.exit_code == 1
    assert "pip install 'ray>=2.40,<3'" in result.output
    assert not (tmp_path / "s").exists()


def test_curves_of_a_measure_without_bounds_are_shown_where_they_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[float, float] | None] = []
    monkeypatch.setattr(figures, "plot_bands", lambda *_, limits, **__: asked.append(limits))
    monkeypatch.setattr(figures, "_curve", lambda *_: [60.0, 10.0, 9.0, 8.0])
    music = {"cell": "RNN", "width": 4, "epochs": 1, "data": "jsb", "layer_delay": 0, "readout_bias": True}
    for fixed, limits in ((FIXED, None), (music, (7.9, 10.1))):
        made = grid(tmp_path / "grids", fixed=fixed, grid={"seed": [0]})
        row = {"trial": made.trials[0].name, "chosen": True, "error": None, f"validation_{made.score}": 0.5}
        figures.draw(made, [row | made.trials[0].shown()], tmp_path)
        assert asked.pop() == (None if limits is None else pytest.approx(limits))


def test_a_setting_that_the_axis_decides_is_not_named_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    drawn: list[dict[str, dict[str, list[float]]]] = []
    monkeypatch.setattr(figures, "plot_scores", lambda runs, *_, **__: drawn.append(runs))
    starts = {"start": ["Default", "Relay()"], "seed": [0, 1]}
    lif, alif = {"cell": "LIF", "tau_v": 20.0}, {"cell": "ALIFPlus", "tau_v": 2.0}
    for arms, names in (([lif, alif], ["start Default", "start Relay()"]), ([lif, lif | {"tau_v": 2.0}, alif], None)):
        made = grid(tmp_path / "grids", grid=starts, either={"neuron": arms})
        figures.draw(made, rows_of(made), tmp_path, "cell")
        runs = drawn.pop()
        if names is None:
            assert any("tau_v 20" in name for name in runs)  # two of one cell: which is which has to be said
        else:
            assert list(runs) == names
            assert all(list(values) == ["LIF", "ALIFPlus"] for values in runs.values())
