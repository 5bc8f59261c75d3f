"""The grid file: the product, the choice, and what is refused."""

import csv
import itertools
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from neurolsc.experiment import Experiment, NetworkSettings, read_grid
from neurolsc.experiment.grid import Choice
from neurolsc.experiment.table import visible
from tests.sweeps.grids import CHOOSING, grid, write_grid

ROOT = Path(__file__).parents[2]


def test_the_trials_are_the_product_of_the_lists_with_the_first_seed_first(tmp_path: Path):
    made = grid(tmp_path, fixed={"width": 7}, grid={"seed": [5, 2], "layers": [1, 3], "cell": ["LIF", "ALIFPlus"]})
    points = [(t.settings["seed"], t.settings["layers"], t.settings["cell"]) for t in made.trials]
    assert points == list(itertools.product([5, 2], [1, 3], ["LIF", "ALIFPlus"]))
    assert {t.settings["width"] for t in made.trials} == {7}
    assert (made.arm_settings, made.total(), made.choice, made.test) == (("layers", "cell"), 8, None, False)
    assert made.wanted({}) == dict.fromkeys(made.trials, True)
    (trial,) = grid(tmp_path).trials
    assert trial.network == NetworkSettings()


def test_alternatives_are_a_factor_of_the_product_each(tmp_path: Path):
    initialisers = [{}, {"target": "0.5", "rule": "hold-threshold"}, {"target": "balanced"}]
    words = [{"data": "shd", "dt": 0.02}, {"data": "sl-mnist"}]
    one = grid(tmp_path, grid={"seed": [0, 1]}, either=initialisers)
    assert [t.settings["target"] for t in one.trials] == ["none", "0.5", "balanced"] * 2
    both = grid(tmp_path, grid={"seed": [0, 1]}, either={"init": initialisers, "data": words})
    assert len(set(both.trials)) == 12
    assert both.arm_settings == ("target", "rule", "data", "dt")


def test_a_trial_is_named_by_what_differs_from_the_defaults_alone():
    named = Experiment.from_settings
    odd = named({"layers": 5, "cell": "a.b:C", "root": "/secret/place"})
    assert named({"seed": 0, "layers": 2}).name == named({}).name
    assert re.fullmatch(r"cell=a\.b-C,layers=5,init=Identity-[0-9a-f]{12}", odd.name)
    assert odd.name != named({"layers": 5, "cell": "a.b:C", "root": "/other/place"}).name
    assert visible(odd)["root"] == "place"
    assert len(named({"cell": "m:" + "x" * 300}).name) < 100


@pytest.mark.parametrize(
    ("data", "choose", "by", "best"),
    [
        ("sl-mnist", {}, "validation_mode_accuracy", 1e-2),
        ("sl-mnist", {"by": "validation_loss"}, "validation_loss", 1e-3),
        ("jsb", {}, "validation_nll", 1e-3),  # of which the lower is better
    ],
)
def test_the_second_stage_is_of_the_best_value_of_each_arm(
    tmp_path: Path, data: str, choose: dict[str, str], by: str, best: float
):
    chosen_by = {"fixed": {"data": data}, "choose": {"setting": "lr", "seeds": [4]} | choose}
    made = grid(tmp_path, **(CHOOSING | chosen_by))
    assert (made.choice, made.test, made.arm_settings) == (
        Choice("lr", by, (4,), by != "validation_mode_accuracy"),
        True,
        ("layers",),
    )
    first = made.wanted({})
    assert {t.settings["seed"] for t in first} == {4}
    assert (len(first), any(first.values())) == (4, False)
    second = made.wanted({t: t.settings["lr"] for t in first if t.settings["layers"] == 1})
    new = [t for t in second if t not in first]
    assert [(t.settings["layers"], t.settings["lr"], t.settings["seed"]) for t in new] == [(1, best, 3), (1, best, 5)]
    chosen = [t.settings for t, is_chosen in second.items() if is_chosen]
    assert sorted((s["seed"], s["lr"]) for s in chosen) == [(3, best), (4, best), (5, best)]
    assert made.total() == 8


def test_seeds_that_choose_together_do_so_by_their_mean(tmp_path: Path):
    made = grid(tmp_path, **(CHOOSING | {"choose": {"setting": "lr", "seeds": [5, 3]}}))
    low, high = 1e-3, 1e-2
    scores = {(low, 3): 0.6, (high, 3): 0.9, (low, 5): 0.7, (high, 5): 0.3}  # one seed alone takes the high rate
    deciding = [t for t in made.wanted({}) if t.settings["layers"] == 1]
    found: dict[Experiment, float | None] = {t: scores[t.settings["lr"], t.settings["seed"]] for t in deciding}
    assert not any(made.wanted(dict(list(found.items())[:3])).values())
    chosen = [t for t, is_chosen in made.wanted(found).items() if is_chosen]
    assert sorted((t.settings["seed"], t.settings["lr"]) for t in chosen) == [(3, low), (4, low), (5, low)]
    assert made.total() == 2 * (2 * 2 + 1)
    failed = {t: None if (t.settings["lr"], t.settings["seed"]) == (low, 5) else value for t, value in found.items()}
    assert {t.settings["lr"] for t, is_chosen in made.wanted(failed).items() if is_chosen} == {high}


@given(st.data())
@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_ends_first_the_same_trials_are_run_in_the_end(tmp_path: Path, data: st.DataObject):
    made = grid(tmp_path, **CHOOSING)
    values: dict[Experiment, float | None] = {trial: (hash(trial.name[-4:]) % 7) / 7 for trial in made.trials}
    found: dict[Experiment, float | None] = {}
    while open_ := [trial for trial in made.wanted(found) if trial not in found]:
        before = set(made.wanted(found))
        trial = data.draw(st.sampled_from(open_))
        found[trial] = values[trial]
        assert before <= set(made.wanted(found))  # what was begun stays wanted
    assert made.wanted(found) == made.wanted(values)
    assert len(found) == made.total()


RATE = {"lr": [1.0]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"fixd": {}, "grid": {"lr": [1]}}, "unknown key fixd; known are name, fixed, grid, either, choose, test, bu"),
        ({"fixed": {"widht": 8}}, "init; did you mean width?"),
        ({"fixed": {"epoch": 8}, "grid": {"seed": [0, 1]}}, "unknown setting epoch; known are"),
        ({"grid": {"lr": []}}, "grid: lr must be a list of at least one value, got []"),
        ({"grid": {"lr": [0.1, 1e-1]}}, "two points of the grid are the same trial"),
        ({"fixed": {"lr": 0.1}, "grid": {"lr": [0.1]}}, "lr: more than once"),
        ({"name": "a/b"}, "name must be a text that can be a folder's, got 'a/b'"),
        ({"grid": {"seed": [1]}, "choose": {"setting": "seed"}}, "choose: setting must be one that varies"),
        ({"grid": RATE, "choose": {"setting": "lr", "seeds": [4]}}, "choose: seeds must be a list of [0], got [4]"),
        (
            {"fixed": {"data": "jsb"}, "grid": RATE, "choose": {"setting": "lr", "by": "validation_mode_accuracy"}},
            "choose: by must be one of 'validation_nll'",
        ),
        ({"grid": {"data": ["jsb", "sl-mnist"]}}, "must have one score, got tasks with nll, mode"),
        ({"budgets": [0]}, "budgets must be a list of numbers of epochs, got [0]"),
        ({"budgets": 3}, "budgets must be a list of numbers of epochs, got 3"),
        ({"fixed": 3}, "fixed must be a table of settings, got 3"),
        ({"grid": [3]}, "grid must be a table of settings, got [3]"),
        ({"grid": RATE, "choose": 3}, "choose must be a table of settings, got 3"),
        ({"grid": RATE, "choose": {"setting": "lr", "seeds": 0}}, "choose: seeds must be a list of [0], got 0"),
        ({"name": 3}, "name must be a text that can be a folder's, got 3"),
        ({"either": {"a": 3}}, "either must be tables [[either]] or [[either.NAME]], got 3"),
        ({"either": [3]}, "either must be tables [[either]] or [[either.NAME]], got [3]"),
        ({"fixed": {"width": -4}}, "width must be at least 1, got -4"),
        ({"grid": {"seed": [0, -1]}}, "seed must be at least 0, got -1"),
    ],
)
def test_a_bad_grid_is_refused_by_name(tmp_path: Path, content: dict, words: str):
    file = write_grid(tmp_path / "bad.toml", **content)
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        read_grid(file)
    assert str(error.value).startswith(str(file))


def test_the_grids_in_the_docs_can_be_read(tmp_path: Path):
    text = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")
    for block in re.findall(r"^```toml\n(.*?)^```", text, re.M | re.S):
        (tmp_path / "grid.toml").write_text(block)
        assert read_grid(tmp_path / "grid.toml").trials


@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks" / "study").glob("*.toml")), ids=lambda file: file.stem)
def test_the_trials_of_the_study_are_those_of_its_tables(file: Path):
    names = {trial.name for trial in read_grid(file).trials}
    table = ROOT / "benchmarks" / "results" / f"study_{file.stem.replace('-', '_')}.csv"
    if table.exists():
        with table.open(newline="") as opened:
            assert {row["trial"] for row in csv.DictReader(opened)} <= names
