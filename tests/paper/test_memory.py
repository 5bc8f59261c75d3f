"""Figures of the curse of memory: what is computed, and what is found at the small size."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from examples.paper import Scale, find, reproduce
from examples.paper.landscapes import loss
from examples.paper.propagation import DECAY, SLOW, WHITE, sentences
from examples.paper.students import RATES, hessian, pair_of_networks, participation, students
from examples.paper.teacher import Best, connected, diagonal, relative_loss, response, train
from examples.paper.time_constants import ARMS, cues, network
from examples.paper.time_constants import train as train_spiking
from examples.paper.trials import of_row
from neurolsc import theory
from tests.sweeps.grids import Here

EPOCHS = {"memory-11": 150}
"""iterations that are enough for the claims, where the small size takes more"""


def made(name: str, out: Path) -> str:
    line = reproduce(find(name), out, Scale(epochs=EPOCHS.get(name)), Here(), progress=False)
    assert (out / "figure.png").stat().st_size > 5000
    return line


QUICK = [f"memory-{n}" for n in (1, 2, 6, 8, 10, 15)]  # without a training
TRAINED = [pytest.param(f"memory-{n}", marks=pytest.mark.long) for n in (4, 5, 7, 9, 11, 14)]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*QUICK, *TRAINED])
def test_figures_are_reproduced(name: str, tmp_path: Path):
    line = made(name, tmp_path)
    assert ": reproduced: " in line and "not reproduced" not in line


# ---- the teacher and its students


@pytest.mark.parametrize(
    "parameters",
    [
        connected(4, [0, 1], memory=0.9),
        connected(4, [0, 1], heads=2, memory=0.9),
        diagonal(4, [0, 1], memory=0.9),
        diagonal(4, [0, 1], memory=0.9, form="lru"),
        diagonal(4, [0, 1], memory=0.9, form="s4", delta=0.1),
    ],
    ids=["connected", "blocks", "diagonal", "lru", "s4"],
)
def test_a_response_is_that_of_the_recurrence(parameters: dict[str, Tensor]):
    steps, p = 40, {name: value[1].double() for name, value in parameters.items()}
    if "a" in p:
        matrix, into, out = torch.block_diag(*p["a"]), p["b"], p["c"]
    else:
        into, out = torch.view_as_complex(p["b"]), torch.view_as_complex(p["c"])
        if "nu" in p:
            z = torch.polar((-p["nu"].exp()).exp(), p["theta"].exp())
            into = into * p["gamma"].exp()
        elif "delta" in p:
            torch.testing.assert_close(p["delta"].exp().log1p(), torch.full((4,), 0.1, dtype=torch.float64))
            z = torch.exp(torch.complex(p["a_re"], p["a_im"]) * 0.1)
            into = into * 0.1
        else:
            z = torch.complex(p["re"], p["im"])
        matrix = torch.diag(z)
        assert (z.abs() >= 0.9 - 1e-6).all() and (z.abs() < 1).all()
    h, found = into, []
    for _ in range(steps):
        found.append((out @ h).real)
        h = matrix @ h
    found[0] = found[0] + p["d"][0]
    torch.testing.assert_close(response(parameters, steps)[1].double(), torch.stack(found), rtol=1e-3, atol=1e-4)


def test_the_relative_loss_is_that_of_runs_on_uncorrelated_inputs():
    student, teacher = torch.randn(2, 30), torch.randn(2, 30)
    x = torch.eye(30)  # over impulses the sum is the mean over uncorrelated inputs
    errors, power = torch.zeros(2), torch.zeros(2)
    for t in range(30):
        past = x[:, : t + 1].flip(1)
        errors += (past @ (student - teacher)[:, : t + 1].T).square().sum(0)
        power += (past @ teacher[:, : t + 1].T).square().sum(0)
    torch.testing.assert_close(relative_loss(student, teacher), errors / power)


def test_each_student_is_trained_as_torchs_adam_would_at_its_rate():
    start, wanted = diagonal(3, [0, 1], memory=0.5), response(connected(4, [0, 1], memory=0.5), 20)
    rates = torch.tensor([0.01, 0.1])
    found = train(start, wanted, rates, 15, cosine=False)
    for i, rate in enumerate(rates.tolist()):
        own = {name: nn.Parameter(value[i : i + 1].clone()) for name, value in start.items()}
        adam = torch.optim.Adam(own.values(), rate)
        for _ in range(15):
            adam.zero_grad()
            (relative_loss(response(own, 20), wanted[i : i + 1]).sum() / 2).backward()
            adam.step()
        for name, value in own.items():
            torch.testing.assert_close(found.parameters[name][i : i + 1], value.detach(), rtol=1e-3, atol=1e-5)


@pytest.mark.long
def test_a_linear_rnn_learns_long_memories_far_worse_than_an_lru():
    size = {"width": 16, "iterations": 300, "seeds": 2, "rates": RATES[3:8]}
    linear, lru = (of_row(Best, students(kind, 0.99, 1.0, **size)) for kind in ("linear RNN", "LRU"))
    assert linear.mean > 5 * lru.mean
    assert linear.mean < 1


def test_students_learn_within_the_angle_of_their_teacher():
    for kind in ("linear RNN", "complex diagonal"):
        found = students(kind, 0.9, 0.1 / math.pi, width=4, iterations=5, seeds=1, rates=[0.01])
        assert 0 < of_row(Best, found).mean < math.inf
    for p in (connected(6, [0], memory=0.9, angle=0.1), diagonal(6, [0], memory=0.9, angle=0.1)):
        z = torch.linalg.eigvals(p["a"].double()) if "a" in p else torch.complex(p["re"], p["im"])
        assert 0.01 < z.angle().abs().max() < 0.1 + 1e-4


def test_curvature_of_s4_goes_from_the_angle_to_its_step_size():
    parts = []
    for delta in (0.01, 1.0):
        p = {k: v.double() for k, v in diagonal(4, [0], memory=0.99, form="s4", delta=delta).items()}
        names = [name for name, value in p.items() for _ in range(value.numel())]
        by_name = zip(names, hessian(p).diagonal().tolist(), strict=True)
        parts.append({"a_im": 0.0, "delta": 0.0})
        for name, value in by_name:
            parts[-1][name] = parts[-1].get(name, 0.0) + value
    small, one = parts
    assert small["delta"] > 100 * small["a_im"]
    assert small["a_im"] == pytest.approx(1e-4 * one["a_im"], rel=1e-2)  # dλ/da is Δ λ


def test_the_same_network_has_a_sparser_hessian_when_it_is_diagonal():
    spread = []
    for seed in range(4):
        real, turned = pair_of_networks(seed)
        torch.testing.assert_close(response(real), response(turned))
        both = [hessian(p) for p in (real, turned)]
        for h in both:
            values = torch.linalg.eigvalsh(h)
            assert len(h) == 25 and (values[:-9].abs() < 1e-9 * values[-1]).all() and values[-8] > 1e-4
        spread.append([participation(h).mean() for h in both])
    dense, sparse = torch.tensor(spread).mean(0)
    assert sparse < 0.8 * dense


# ---- landscapes and propagation


@pytest.mark.parametrize("scaled", [False, True])
def test_the_loss_of_one_integrator_is_the_power_of_the_difference_of_kernels(scaled: bool):
    student, teacher = (torch.tensor([z], dtype=torch.complex128) for z in (0.7 + 0.4j, 0.85 - 0.2j))
    kernels = [(theory.input_scale(z) if scaled else 1) * z ** torch.arange(300) for z in (student, teacher)]
    wanted = (kernels[0] - kernels[1]).abs().square().sum() / 2
    torch.testing.assert_close(loss(student, teacher, scaled=scaled).squeeze(), wanted)


def test_inputs_have_the_autocorrelation_of_the_papers_sentences():
    found = theory.autocorrelation(sentences(2000, 16, 64), 20, unbiased=True).mean(1)
    wanted = SLOW * DECAY ** torch.arange(21.0)
    wanted[0] += WHITE
    torch.testing.assert_close(found.float(), wanted, rtol=0.15, atol=1e-3)


# ---- time constants of spiking networks


@pytest.mark.slow
def test_all_arms_start_as_the_same_network():
    x, labels = cues(8, 20, torch.Generator().manual_seed(0))
    assert x.shape == (60, 8, 50) and set(labels.tolist()) <= set(range(4))
    shown = x[:20].view(20, 8, 5, 10).mean((0, 3))
    assert (shown.argmax(1) == labels).all() and (x[-20:].view(20, 8, 5, 10).mean((0, 3)).argmax(1) == 4).all()
    runs = {arm: network(arm, 0, 16).run(3 * x) for arm in ARMS}
    assert runs["log tau"].spikes[0].any()
    for run in runs.values():
        assert torch.equal(run.spikes[0], runs["log tau"].spikes[0])


@pytest.mark.slow
def test_an_arm_trains_its_time_constants():
    run = train_spiking("log tau, scaled by mean", "Adam", 3e-3, 0, width=8, updates=10, delay=20)
    assert len(run["curve"]) == 1 and 0 <= run["curve"][0] <= 1
    assert 0 < run["moved"] < 0.1 and 0 < run["rate"] < 1
