"""Figures of Stable recurrent models: what is measured at the small size, and what is read from it."""

import csv
from pathlib import Path

import pytest
import torch

from examples.paper import Scale, find, reproduce
from examples.paper.figure import Figure
from examples.paper.stable import (
    DecayFigure,
    LemmaFigure,
    Price,
    PriceFigure,
    ProximityFigure,
    Reach,
    Scores,
    SpikesFigure,
    StableTable,
    Truncated,
    stretches,
)
from neurolsc.datasets import JSBChorales
from tests.sweeps.grids import Here


def made(name: str, out: Path, *, epochs: int = 1) -> str:
    return reproduce(find(name), out, Scale(epochs=epochs), Here(), progress=False)


def holds(figure: Figure, found: object) -> list[bool | None]:
    return [one.holds for one in figure.judge(found)]


def test_lemma_1_holds_in_a_grid_of_20_cells(tmp_path: Path):
    line = made("stable-lemma", tmp_path)
    assert "reproduced: no cell exceeds the bound (20 of 20; error over bound" in line
    assert (tmp_path / "figure.png").stat().st_size > 20_000
    assert holds(LemmaFigure(), [Truncated("tanh", 0.5, [0.2, 0.1], [0.3, 0.2])]) == [True]
    assert holds(LemmaFigure(), [Truncated("tanh", 0.5, [0.2, 0.3], [0.3, 0.2])]) == [False]


def test_truncated_training_stays_near_full_training_as_the_context_grows(tmp_path: Path):
    assert "; not" not in made("stable-5", tmp_path)
    assert (tmp_path / "figure.png").stat().st_size > 10_000
    assert holds(ProximityFigure(), {1: [0.1, 0.2], 2: [0.1, 0.3]}) == [False]


def test_the_table_trains_projected_models_that_are_certified(tmp_path: Path):
    assert "projected models are certified (2 of 2)" in made("stable-1", tmp_path)
    with open(tmp_path / "table.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["model"], row[""]) for row in rows] == [
        (m, s) for m in ("RNN", "LSTM") for s in ("unstable", "stable")
    ]
    assert all(10 < float(row["nll"]) < 40 for row in rows)
    assert float(rows[1]["certified rate"]) == float(rows[3]["certified rate"]) == 0.99


def test_the_table_compares_stable_models_with_unstable_and_printed_ones():
    nll = {("RNN", False): 8.85, ("RNN", True): 8.99, ("LSTM", False): 8.6, ("LSTM", True): 8.5}
    found = [Scores(kind, stable, (value - 0.1, value + 0.1), 0.9) for (kind, stable), value in nll.items()]
    assert holds(StableTable(), found) == [False, True, True, True, True]
    found[0] = Scores("RNN", False, (8.7,), 2.0)
    found[3] = Scores("LSTM", True, (8.69,), 1.0)
    assert holds(StableTable(), found) == [False, False, True, False, False]


@pytest.mark.slow
def test_the_price_of_stability_is_measured_and_drawn(tmp_path: Path):
    assert "the iterated RNN is stable on data" in made("stable-2", tmp_path)
    assert (tmp_path / "figure.png").stat().st_size > 20_000


def test_the_price_is_read_from_rates_and_scores():
    iterated = {"RNN": {1: 2.0, 8: 0.9, 32: 0.1}, "LSTM": {1: 2.0, 8: 2.0, 32: 1.5}}
    figure = PriceFigure()
    by_context = {2: (8.5, 3.5), 32: (8.9, 1.5)}
    judged = figure.judge(Price(iterated, by_context))
    assert [one.holds for one in judged] == [True, False, True, True]
    assert judged[0].found == "2.00 at r = 1, 0.1 at 32; below 1 from r = 8"
    assert holds(figure, Price(iterated, {2: (8.9, 1.5), 32: (8.5, 3.5)})) == [True, False, False, False]


def test_stretches_are_all_of_a_piece():
    data = JSBChorales.embedded("test")
    parts = stretches(data, 7)
    x, y = data[0]
    assert torch.equal(torch.cat([part for part, _ in parts[: -(-len(x) // 7)]]), x)
    assert torch.equal(parts[0][1], y[:7])


@pytest.mark.slow
def test_the_decay_of_gradients_is_measured_and_drawn(tmp_path: Path):
    assert "RNN, drawn" in made("stable-3", tmp_path)
    assert (tmp_path / "figure.png").stat().st_size > 20_000


def test_the_decay_is_read_ten_steps_away():
    names = [f"{kind}, {sort}" for kind in ("RNN", "LSTM") for sort in ("drawn", "trained", "stable")]
    slow, fast = 0.85 ** torch.arange(12), 0.5 ** torch.arange(12)
    found = dict.fromkeys(names, fast)
    assert holds(DecayFigure(), found | {"LSTM, trained": 0.7 ** torch.arange(12), "RNN, stable": slow}) == [True, True]
    assert holds(DecayFigure(), found | {"RNN, trained": slow}) == [False, False]


@pytest.mark.slow
def test_windows_of_spiking_networks_are_measured_and_drawn(tmp_path: Path):
    line = made("stable-spikes", tmp_path)
    assert "LIF: at a radius of 0.5 the window is shorter (2 of 2)" in line
    with open(tmp_path / "table.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 9
    assert all(float(row["spikes/step"]) > 0.02 for row in rows)


def test_windows_are_read_by_time_constant_and_start():
    steps = {("LIF", "woken"): (20, 40), ("LIF", "radius 0.5"): (10, 30), ("ALIFPlus", "woken"): (30, 20)}
    steps["ALIFPlus", "radius 0.5"] = (31, 10)
    found = [
        Reach(f"{cell}, {start}", tau, [None, k], [k, k], 50, 1.0, 0.1)
        for (cell, start), ends in steps.items()
        for tau, k in zip((2.0, 20.0), ends, strict=True)
    ]
    found.append(Reach("trained", None, [20, 24], [50, 50], 50, 1.0, 0.1))
    assert holds(SpikesFigure(), found) == [True, True, False, False, True]
