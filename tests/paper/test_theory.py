"""Figures without a training: what is computed, and what is read from it."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from scipy import stats

from examples.paper import Scale, find, reproduce
from examples.paper.covariance import CovarianceFigure, Decay
from examples.paper.figure import Judgement
from examples.paper.paths import Derivative, GridFigure, PascalFigure, growth, walks
from examples.paper.recurrent import Counted, ParametersTable
from neurolsc import theory
from tests.sweeps.grids import Here


def made(name: str, out: Path) -> str:
    """The reading of a figure that takes no training, at the small size."""
    line = reproduce(find(name), out, Scale(), Here(), progress=False)
    assert (out / "reading.txt").read_text() == f"{line}\n"
    assert "\n" not in line
    apart = json.loads((out / "reading.json").read_text())
    assert (apart["figure"], apart["size"]) == (find(name).title, "small")
    assert all(str(Judgement(**one)) in line for one in apart["judged"])
    return line


def test_figure_1a_counts_what_it_walks(tmp_path: Path):
    assert "reproduced: walked paths are as many as the binomial coefficient (15 of 15)" in made("1a", tmp_path)
    assert (tmp_path / "figure.png").stat().st_size > 5000
    wrong = {(1, 1): walks(1, 1), (2, 1): walks(1, 1)}
    assert [(j.holds, j.found) for j in GridFigure().judge(wrong)] == [(False, "1 of 2")]


def test_figure_1b_reads_powers_and_exponentials_from_the_numbers(tmp_path: Path):
    line = made("1b", tmp_path)
    assert "; not" not in line
    assert "degree 4.93 after 200 steps" in line
    decades = (math.lgamma(2021) - math.lgamma(2001) - math.lgamma(21)) - (
        math.lgamma(1920) - math.lgamma(1901) - math.lgamma(20)
    )
    assert f"{decades / math.log(10):.2f} decades for each layer" in line
    assert (tmp_path / "figure.png").stat().st_size > 5000


def test_figure_1c_reads_growth_from_the_derivative():
    steps = 100
    flat, bound = torch.zeros(steps), theory.log_paths(torch.arange(steps - 1, -1, -1), 3, layer_delay=0)
    outputs = torch.zeros(steps, 2)
    half, one = Derivative("a", 0.5, outputs, flat, flat), Derivative("a", 1.0, outputs, bound, bound)
    assert (growth(half.logs), half.drift) == (0, 0)
    assert growth(one.logs) == pytest.approx(float((bound[:10].mean() - bound[-10:].mean()) / math.log(10)))
    assert [j.holds for j in PascalFigure().judge([half, one])] == [True, True, True]
    swapped = [Derivative("a", 0.5, outputs, bound, bound), Derivative("a", 1.0, outputs, flat, bound)]
    assert [j.holds for j in PascalFigure().judge(swapped)] == [False, False, False]
    swapped[1] = replace(swapped[1], reached=False)  # its pre-training has missed the mean: nothing is decided
    judged = PascalFigure().judge(swapped)
    assert [j.holds for j in judged] == [None, None, None]
    assert judged[0].found.endswith("; mean radius not reached at 1")


def test_the_pascal_rnns_derivative_by_autograd_is_the_closed_form():
    half, one = PascalFigure().measure(Scale(), [])
    for found in (half, one):
        exact = theory.log_input_derivatives(100, 10, time=found.radius, depth=found.radius, layer_delay=0)
        assert torch.allclose(found.logs, exact, atol=1e-6)
    assert torch.allclose(one.logs, one.bound, atol=1e-6)  # the paper: exactly the binomial coefficient


@pytest.mark.long
def test_figure_1c_sets_the_radii_of_a_gru(tmp_path: Path):
    line = made("1c", tmp_path)
    assert (
        "PascalRNN, 10 layers at 1: as far as the number of paths (+10.5 decades over all steps, paths +10.5)" in line
    )
    assert "GRU, 7 x 24 at 0.5: the derivative stays through time" in line.split("not reproduced")[0]
    assert (tmp_path / "figure.png").stat().st_size > 20_000


def decay(
    correlation: float, *, covariance: float = 1e-4, mean: float = 1.0, steps: int = 40, samples: int = 24
) -> Decay:
    """Sizes that go together so far, except with the first step, which is the one."""
    r = torch.full((steps,), correlation, dtype=torch.float64)
    r[0] = 1.0
    c = r * covariance
    shape = samples / 2 - 1
    p = torch.from_numpy(2 * stats.beta(shape, shape, loc=-1, scale=2).sf(r.abs().numpy()))
    return Decay("data", "LSTM", 0, samples, mean, theory.CovarianceDecay(c, r, p))


def test_figure_s2_reads_significance_at_distant_steps():
    small, far = CovarianceFigure().judge([decay(0.1), decay(0.2)])
    assert (small.holds, far.holds) == (True, True)
    small, far = CovarianceFigure().judge([decay(0.1), decay(0.9)])
    assert (small.holds, far.holds) == (True, False)
    assert far.found.startswith("1 of 2; steps with p > 0.05: LSTM on data 100%, LSTM on data 0%")
    small, far = CovarianceFigure().judge([decay(0.5, covariance=1.0)])
    assert (small.holds, small.found) == (False, "0 of 1")
    silent = decay(math.nan)
    assert CovarianceFigure().judge([silent])[1].holds is None


@pytest.mark.long
def test_covariances_of_all_tasks_are_drawn(tmp_path: Path):
    line = made("S3", tmp_path)
    assert "far covariances are below 0.01" in line
    for data in ("spike-latency MNIST", "spoken digits", "text"):
        assert f"ALIF+ on {data}" in line


def test_table_s1_is_counted_in_networks_and_says_what_differs(tmp_path: Path):
    line = made("table-S1", tmp_path)
    assert "not reproduced: all numbers are the printed ones (14 of 21; GRU on sl-mnist -318" in line
    with open(tmp_path / "table.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    found = {(row["cell"], row["task"]): int(row["ours"]) for row in rows}
    assert found["LSTM", "ptb"] == 10_000 * 300 + 4 * 500 * (300 + 500 + 1) + 4 * 300 * (500 + 300 + 1) == 5_563_200
    assert found["GRU, two biases a gate", "ptb"] == 5_572_425
    assert all(int(row["ours"]) - int(row["paper"]) == int(row["difference"]) for row in rows)
    assert (tmp_path / "table.md").read_text().count("\n") == len(rows) + 2
    same = [Counted("GRU", task, 7, 7) for task in ("sl-mnist", "shd", "ptb")]
    assert [j.holds for j in ParametersTable().judge(same)] == [True, True]
    apart = [*same, Counted("LSTM", "shd", 9, 9)]
    assert [j.holds for j in ParametersTable().judge(apart)] == [True, False]
