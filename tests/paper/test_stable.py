"""Figures of Stable recurrent models: what is measured at the small size, and what is read from it."""

import csv
from pathlib import Path

import pytest
import torch

from examples.paper import Scale, find, reproduce
from examples.paper.stable import (
    stretches,
)
from neurolsc.datasets import JSBChorales
from tests.sweeps.grids import Here


def made(name: str, out: Path, *, epochs: int = 1) -> str:
    return reproduce(find(name), out, Scale(epochs=epochs), Here(), progress=False)


def test_lemma_1_holds_in_a_grid_of_20_cells(tmp_path: Path):
    line = made("stable-lemma", tmp_path)
    assert "reproduced: no cell exceeds the bound (20 of 20; error over bound" in line
    assert (tmp_path / "figure.png").stat().st_size > 20_000


def test_truncated_training_stays_near_full_training_as_the_context_grows(tmp_path: Path):
    assert "; not" not in made("stable-5", tmp_path)
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_the_table_trains_projected_models_that_are_certified(tmp_path: Path):
    assert "projected models are certified (2 of 2)" in made("stable-1", tmp_path)
    with open(tmp_path / "table.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["model"], row[""]) for row in rows] == [
        (m, s) for m in ("RNN", "LSTM") for s in ("unstable", "stable")
    ]
    assert all(10 < float(row["nll"]) < 40 for row in rows)
    assert float(rows[1]["certified rate"]) == float(rows[3]["certified rate"]) == 0.99


@pytest.mark.slow
def test_the_price_of_stability_is_measured_and_drawn(tmp_path: Path):
    assert "the iterated RNN is stable on data" in made("stable-2", tmp_path)
    assert (tmp_path / "figure.png").stat().st_size > 20_000


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


@pytest.mark.slow
def test_windows_of_spiking_networks_are_measured_and_drawn(tmp_path: Path):
    line = made("stable-spikes", tmp_path)
    assert "LIF: at a radius of 0.5 the window is shorter (2 of 2)" in line
    with open(tmp_path / "table.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 9
    assert all(float(row["spikes/step"]) > 0.02 for row in rows)
