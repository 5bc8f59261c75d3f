"""Figures of trained networks: which trials there are, what is read from them, that they run."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from examples.paper import Figure, Result, Scale, find, reproduce, trials_of
from examples.paper.figure import ALWAYS, Count
from examples.paper.lru import LRUTable
from neurolsc.experiment import Experiment, Grid
from neurolsc.experiment.run import Stopped
from neurolsc.experiment.sweep import Job
from neurolsc.experiment.table import visible
from tests.sweeps.grids import Here

PAPER = Scale("paper", root="data")


def results(
    figure: Figure[Any], scale: Scale, score: Callable[[Mapping[str, Any]], float | str], folder: Path = Path("nowhere")
) -> list[Result]:
    """The table of every grid of a figure, with these scores; a text is an error."""
    return [
        Result(grid, tuple(_row(grid, visible(trial), trial.name, score) for trial in grid.trials), folder)
        for grid in figure.grids(scale)
    ]


def _row(
    grid: Grid, settings: dict[str, Any], name: str, score: Callable[[Mapping[str, Any]], float | str]
) -> dict[str, Any]:
    value = score(settings)
    row = {"trial": name, "error": value if isinstance(value, str) else None} | settings
    if isinstance(value, str):
        return row
    return row | {f"{split}_{grid.score}": value for split in ("validation", "test")} | {"validation_loss": value}


def judged(figure: Figure[Any], scale: Scale, rows: list[Result]) -> dict[str, tuple[bool | None, str]]:
    """What a figure finds in results: by claim whether it holds, and the numbers."""
    return {j.claim: (j.holds, j.found) for j in figure.judge(figure.measure(scale, rows))}


@pytest.mark.parametrize(
    ("name", "count"),
    [("2", 7 * 4 * 3 * 3 * 3), ("3", 6 * 3 * 2 * 4 * 3), ("4", 16 * 4), ("table-I", 16 * 4), ("S1", 7 * 2 * 4 * 3)],
)
def test_the_papers_grids_have_all_its_trials(name: str, count: int):
    trials = trials_of(find(name), PAPER)
    assert len(trials) == len(set(trials)) == count
    assert count == {"2": 756, "3": 432, "4": 64, "table-I": 64, "S1": 168}[name]
    for trial in trials:
        training = trial.training
        assert training is not None
        assert (training.optimizer, training.by_gain, training.centralize) == ("adabelief-lookahead", False, False)
        # Table I averages its weights, for which all epochs have to run
        averages = name == "table-I"
        assert (training.average, training.patience) == ((0.5, training.epochs) if averages else (0.0, 10))
        assert trial.settings["root"].startswith("data/")


def test_the_papers_recurrent_networks_are_those_of_table_s1():
    trials = {
        (t.settings["cell"], t.settings["activation"], t.settings["data"]): t.settings
        for t in trials_of(find("3"), PAPER)
    }
    assert len(trials) == 18
    assert ("RNN", "swish", "ptb") in trials  # App. H: ReLU "gave errors pre-training"
    assert (trials["LSTM", "relu", "shd"]["width"], trials["LSTM", "relu", "shd"]["lr"]) == (94, 1e-3)
    assert (trials["GRU", "relu", "sl-mnist"]["width"], trials["GRU", "relu", "sl-mnist"]["lr"]) == (53, 1e-2)
    assert trials["ALIFPlus", "relu", "shd"]["tau_theta"] == 250
    assert [trials["LSTM", "relu", task]["batch_size"] for task in ("sl-mnist", "shd", "ptb")] == [256, 100, 32]
    assert {t["clip_gradient"] for t in trials.values()} == {0.0}


def one(score: float | str, by: Mapping[str, float | str]) -> Any:
    """Scores by what the text of an initialiser begins with."""
    return lambda settings: next((v for name, v in by.items() if settings["init"].startswith(name)), score)


def test_figure_2_chooses_rates_by_validation_and_compares_tests():
    def score(settings: Mapping[str, Any]) -> float | str:
        if settings["lr"] == 1e-2:
            return "FloatingPointError: the loss is inf" if settings["init"] != "Default" else 0.3
        best = {"Default": 1e-3, "He()": 1e-4, "He": 1e-4}.get(settings["init"], 3.16e-4)
        level = {"Default": 0.5, "He": 0.6}.get(settings["init"], 0.7 if settings["activation"] != "cosine" else 0.4)
        return level - 0.1 * (settings["lr"] != best)

    found = judged(find("2"), PAPER, results(find("2"), PAPER, score))
    assert found["LSC always beats the Glorot initialisation that it began from"] == (False, "6 of 9")
    assert found["LSC is the best of three in most panels"] == (None, "6 of 9")
    holds, numbers = found["with ReLU, LSC takes a higher learning rate than He"]
    assert numbers.count("0.000316 against 0.0001, test 70.0% against 60.0%") == 3
    assert holds is None  # three data sets decide nothing


def test_an_initialisation_that_always_diverges_loses_and_does_not_vanish():
    diverged = one(0.5, {"LSC": "FloatingPointError: the loss is nan"})
    found = judged(find("2"), PAPER, results(find("2"), PAPER, diverged))
    assert found["LSC always beats the Glorot initialisation that it began from"] == (False, "0 of 9")
    missing = one("ValueError: there is no such file", {})
    found = judged(find("2"), PAPER, results(find("2"), PAPER, missing))
    assert {holds for holds, _ in found.values()} == {None}


@pytest.mark.parametrize(
    ("yes", "total", "share", "found"),
    [
        (5, 6, 0.63, None),  # 36 to 100 %
        (6, 6, 0.63, True),  # 54 to 100 %
        (16, 24, 0.63, None),  # 45 to 84 %
        (17, 24, 0.63, None),  # 49 to 87 %
        (18, 24, 0.63, True),  # 53 to 90 %
        (8, 24, 0.63, False),  # 16 to 55 %
        (8, 24, 0.5, None),
        (5, 24, 0.5, False),  # 7 to 42 %
        (23, 24, ALWAYS, False),
        (24, 24, ALWAYS, True),
    ],
)
def test_a_share_of_pairs_is_judged_by_its_exact_interval(yes: int, total: int, share: float, found: bool | None):
    assert Count(yes, total).above(share) is found
    assert Count(yes, total, least=total + 1).above(share) is None


def test_figure_3_counts_pairs_of_the_same_network_and_seed(tmp_path: Path):
    def score(settings: Mapping[str, Any]) -> float | str:
        good = {"Default": 0.5, "LSC(1.0": 0.4 if settings["cell"] == "LSTM" else 0.6, "LSC(0.5": 0.55}
        value = next(v for name, v in good.items() if settings["init"].startswith(name))
        return 1 / value if settings["data"] == "ptb" else value  # of perplexities the lower is better

    rows = results(find("3"), PAPER, score, tmp_path)
    for result in rows:
        for row in result.rows:
            if row["cell"].startswith("ALIF") and row["init"].startswith("LSC(0.5"):
                (tmp_path / row["trial"]).mkdir()
                missed = [] if row["cell"] == "ALIFPlus" else ["layer 1: radius 0.9"]
                (tmp_path / row["trial"] / "init.json").write_text(json.dumps({"findings": missed}))
    found = judged(find("3"), PAPER, rows)
    assert found["0.5 beats 1 more than 63 % of the times, 2 layers"] == (False, "12 of 48")
    assert found["0.5 beats no pre-training at least 70 % of the times, 5 layers"] == (True, "48 of 48")
    assert found["pre-training beats none in most scenarios"] == (True, "168 of 192")
    assert found["spiking networks gain by 1"] == (True, "48 of 48")
    assert found["spiking networks often miss 0.5"] == (None, "24 of 48")
    assert found["differentiable networks reach their radii"] == (None, "no such pair")
    small = judged(find("3"), Scale(), results(find("3"), Scale(), score, tmp_path))
    assert small["0.5 beats no pre-training at least 70 % of the times, 5 layers"] == (None, "no such pair")
    assert small["0.5 beats 1 more than 63 % of the times, 2 layers"] == (None, "0 of 2")  # two pairs decide nothing


def test_the_lru_is_judged_by_the_test_perplexity_of_every_seed():
    def score(settings: Mapping[str, Any]) -> float | str:
        initialiser = {"Default": 100.0, "LSC(1": 400.0, "LSC(0": 90.0, "LSC('": 95.0}
        value = next(v for name, v in initialiser.items() if settings["init"].startswith(name))
        return 80.0 if settings["layers"] == 6 and not settings["clip_gradient"] and value == 100 else value

    rows = results(find("table-I"), PAPER, score)
    rows = [
        replace(
            r,
            rows=tuple(
                row | {f"init_{s}_radius_{n}": v for n in range(1, 7) for s, v in (("time", 0.7), ("depth", 0.3))}
                for row in r.rows
            ),
        )
        for r in rows
    ]
    found = judged(find("table-I"), PAPER, rows)
    assert found["0.5 beats 1"] == (True, "16 of 16")
    assert found["1 is the worst initialisation"] == (True, "16 of 16")
    assert found["0.5 is usually the best initialisation"] == (None, "12 of 16")
    assert found["the initialisation matters more than clipping"][0] is True
    assert found["the default's mean radius is near 0.5, time above depth"][0] is True
    turned = judged(find("table-I"), PAPER, results(find("table-I"), PAPER, one(100.0, {"LSC(1": 50.0})))
    assert turned["0.5 beats 1"] == (False, "0 of 16")
    assert turned["1 is the worst initialisation"][0] is False
    assert turned["the default's mean radius is near 0.5, time above depth"][0] is None


def test_table_i_shows_means_deviations_and_the_papers_numbers(tmp_path: Path):
    def score(settings: Mapping[str, Any]) -> float | str:
        if settings["init"].startswith("LSC(1"):
            return "FloatingPointError: the loss is inf" if settings["seed"] < 2 else 300.0
        return 100.0 + 2 * settings["seed"]

    table = LRUTable()
    table.draw(table.measure(PAPER, results(table, PAPER, score)), tmp_path)
    text = (tmp_path / "table.md").read_text()
    assert "| 3 | default | no | 103 ± 2.24 | 103 ± 2.24 | 110.95 |" in text
    assert "300 ± 0 (2 diverged)" in text
    assert text.count("\n") == 16 + 2


TINY: dict[str, dict[str, Any]] = {
    "mnist": {"data": "mnist"},
    "cifar10": {"data": "mnist"},
    "cifar100": {"data": "mnist"},
    "sl-mnist": {"data": "sl-mnist"},
    "shd": {"data": "shd", "dt": 0.05},
    "ptb": {"data": "text", "words": 10},
}
"""What stands for a whole data set, in the package."""


@pytest.mark.long
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(("name", "grid"), [("2", 0), ("3", 0), ("3", 1), ("3", 2), ("table-I", 0)])
def test_a_trial_of_the_papers_grid_runs_on_tiny_data(name: str, grid: int, tmp_path: Path):
    settings = find(name).grids(PAPER)[grid].trials[-1].settings
    initialiser = settings["init"]
    if initialiser.startswith("LSC"):
        initialiser = f"{initialiser[:-1]}, max_steps=1)"
    settings = (
        {n: v for n, v in settings.items() if n != "root"} | TINY[settings["data"]] | {"epochs": 1, "init": initialiser}
    )
    settings |= {name: min(settings[name], most) for name, most in (("layers", 6), ("width", 32), ("embedding", 32))}
    settings["batch_size"] = 256
    job = Job(Experiment.from_settings(settings), tmp_path, test=True)
    assert (job.run(), job.folder.exists()) == (True, True)


@pytest.mark.long
@pytest.mark.parametrize("name", ["2", "S1"])
def test_scores_are_drawn(name: str, tmp_path: Path):
    rows = results(find(name), PAPER, lambda settings: 0.5 if settings["lr"] < 1e-2 else "FloatingPointError: nan")
    find(name).draw(find(name).measure(PAPER, rows), tmp_path)
    assert (tmp_path / "figure.png").stat().st_size > 5000


@pytest.mark.long
@pytest.mark.usefixtures("quick")
def test_the_small_version_runs_from_trial_to_picture_and_goes_on_after_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    figure, scale, left = find("3"), Scale(epochs=1), [3]
    # as many trials, but of narrow networks on spoken digits in few bins, after two steps of pre-training
    narrow = {"width": 8, "batch_size": 256, "data": "shd", "dt": 0.05, "channels": 70, "repeat": 1}
    of = Experiment.from_settings.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        Experiment, "from_settings", classmethod(lambda cls, point, **more: of(cls, point | narrow, **more))
    )
    few = tuple(text.replace("max_steps=100", "max_steps=2") for text in figure.initialisers(scale))
    monkeypatch.setattr(figure, "initialisers", lambda _: few)

    class Impatient(Here):
        def submit(self, job: Job) -> Any:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return super().submit(job)

    with pytest.raises(Stopped, match="3 of "):
        reproduce(figure, tmp_path, scale, Impatient(), progress=False)
    assert not (tmp_path / "reading.txt").exists()
    pool = Here()
    line = reproduce(figure, tmp_path, scale, pool, progress=False)
    assert len(pool.jobs) == len(trials_of(figure, scale)) - 3
    assert line.startswith(f"{figure.title}, size small: ")
    assert f"the paper's grid has {len(trials_of(figure, Scale('paper')))}" in line
    assert (tmp_path / "figure.png").stat().st_size > 500
