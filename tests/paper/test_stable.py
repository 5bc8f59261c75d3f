"""Figures of Stable recurrent models: what is measured at the small size, and what is read from it."""

import csv
import math
from pathlib import Path

import pytest
import torch

from examples.paper import Scale, find, reproduce
from examples.paper.stable_tasks import available, data_of, input_bound, score, stretches, trained
from neurolsc import evaluate
from neurolsc.datasets import JSBChorales
from neurolsc.stability import certificate
from neurolsc.tasks import ClassPerStep
from tests.datasets.test_slots import write
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


MODELS = [(kind, sort) for kind in ("RNN", "LSTM") for sort in ("unstable", "stable")]


def test_the_table_trains_projected_models_that_are_certified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("examples.paper.stable_tasks.available", lambda scale: ["jsb", "wikitext-2"])
    assert "projected models are certified (4 of 4)" in made("stable-1", tmp_path)
    with open(tmp_path / "table.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["data"], row["model"], row[""]) for row in rows] == [
        (data, *model) for data in ("JSB Chorales (sample)", "sample text for WikiText-2") for model in MODELS
    ]
    assert all(10 < float(row["score"]) < 40 for row in rows[:4]) and float(rows[4]["score"]) > 50
    assert all(float(row["certified rate"]) <= 0.99 for row in rows if row[""] == "stable")
    assert (tmp_path / "figure.png").stat().st_size > 20_000


def test_the_rows_are_those_whose_data_are_at_hand(tmp_path: Path):
    assert available(Scale()) == ["jsb", "wikitext-2", "ptb-characters"]
    (tmp_path / "atis").mkdir()
    assert available(Scale(root=str(tmp_path))) == ["atis"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["RNN", "LSTM"])
def test_slots_are_filled_by_stable_models(kind: str, tmp_path: Path):
    write(tmp_path / "atis")
    parts = data_of("atis", str(tmp_path))
    fitted = trained(kind, parts, of="atis", stable=True, width=16, epochs=60)
    reader, count = fitted.network.cells[0], parts["train"].n_in
    words, _ = reader.step(torch.eye(count), reader.initial_state(count))
    bound = (words.norm(dim=1) if kind == "RNN" else words.abs()).max().item()
    assert input_bound(fitted.network, kind) == pytest.approx(bound)
    assert certificate(fitted.cell, bound).rate < 1
    assert 80 < score("atis", fitted.network, parts["test"]) <= 100


def test_characters_are_scored_in_bits():
    parts = data_of("ptb-characters", "")
    network = trained("RNN", parts, of="ptb-characters", width=16, epochs=1).network
    loss = evaluate(network, parts["test"], task=ClassPerStep()).loss
    assert score("ptb-characters", network, parts["test"]) == pytest.approx(loss / math.log(2), rel=1e-5)


@pytest.mark.long
def test_the_effect_of_truncation_is_measured_and_drawn(tmp_path: Path):
    assert "jsb, RNN: more inputs gain less and less" in made("stable-4", tmp_path)
    assert (tmp_path / "figure.png").stat().st_size > 20_000


@pytest.mark.long
def test_the_price_of_stability_is_measured_and_drawn(tmp_path: Path):
    assert "the iterated RNN is stable on data" in made("stable-2", tmp_path)
    assert (tmp_path / "figure.png").stat().st_size > 20_000


def test_stretches_are_all_of_a_piece():
    data = JSBChorales.embedded("test")
    parts = stretches(data, 7)
    x, y = data[0]
    assert torch.equal(torch.cat([part for part, _ in parts[: -(-len(x) // 7)]]), x)
    assert torch.equal(parts[0][1], y[:7])


@pytest.mark.long
def test_the_decay_of_gradients_is_measured_and_drawn(tmp_path: Path):
    assert "RNN, drawn" in made("stable-3", tmp_path)
    assert (tmp_path / "figure.png").stat().st_size > 20_000


@pytest.mark.long
def test_windows_of_spiking_networks_are_measured_and_drawn(tmp_path: Path):
    line = made("stable-spikes", tmp_path)
    assert "LIF: at a radius of 0.5 the window is shorter (2 of 2)" in line
    with open(tmp_path / "table.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 9
    assert all(float(row["spikes/step"]) > 0.02 for row in rows)
