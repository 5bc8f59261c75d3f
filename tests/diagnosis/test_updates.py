"""The updates on copies that a diagnosis makes."""

import math
import subprocess
import sys

import pytest
import torch
from torch import nn

import neurolsc
from neurolsc.diagnosis.cures import adam_step
from neurolsc.diagnosis.report import examined


def losses_of(net: nn.Module, step, x: torch.Tensor, count: int) -> list[float]:
    found = []
    for _ in range(count):
        loss = net(x).square().mean()
        step(loss)
        found.append(loss.item())
    return found


def test_a_step_is_that_of_torchs_adam_also_where_a_parameter_gets_no_gradient():
    torch.manual_seed(0)
    x = torch.randn(16, 5, dtype=torch.float64)
    net = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    net.register_parameter("unused", nn.Parameter(torch.ones(2)))
    start = {name: value.clone() for name, value in net.state_dict().items()}
    ours = losses_of(net, adam_step(list(net.parameters()), 0.01), x, 6)
    net.load_state_dict(start)
    optimizer = torch.optim.Adam(net.parameters(), 0.01)

    def step(loss: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    assert ours == pytest.approx(losses_of(net, step, x, 6), rel=1e-12)
    assert torch.equal(net.unused, torch.ones(2))


@pytest.mark.parametrize(("samples", "words"), [(64, "on this batch"), (65, "on 64 samples of this batch")])
def test_copies_are_trained_on_64_samples_and_the_report_says_so(samples: int, words: str):
    torch.manual_seed(0)
    net = neurolsc.Network([neurolsc.LIF(12, 32)], 4)
    x = (torch.rand(10, samples, 12) < 0.3).float()
    found = neurolsc.diagnose(net, x, torch.arange(samples) % 4, lr=10.0)
    (fast,) = [each for each in found if each.name == "learning rate too high"]
    assert f"10 updates {words} at 10 bring its loss to" in fast.problem


def likelihood(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A loss that refuses NaN."""
    return -torch.distributions.Categorical(logits=out.mean(0)).log_prob(y).mean()


def test_a_loss_that_refuses_nan_ends_updates_that_leave_it():
    torch.manual_seed(0)
    net, x, y = neurolsc.Network([neurolsc.LIF(12, 32)], 4), (torch.rand(10, 8, 12) < 0.3).float(), torch.arange(8) % 4
    for loss in ("membrane", likelihood):
        outcome = examined(net, x, y, loss=loss, lr=1e37).outcomes[1e37]
        assert outcome.first == pytest.approx(likelihood(net(x), y).item(), rel=1e-5)
        assert math.isnan(outcome.loss)


def test_a_loss_that_refuses_the_samples_of_the_updates_says_so():
    def of_all(out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if len(y) == 64:
            raise ValueError("not 64")
        return likelihood(out, y)

    net, x, y = neurolsc.Network([neurolsc.LIF(12, 32)], 4), torch.rand(10, 65, 12), torch.arange(65) % 4
    with pytest.raises(ValueError, match="not 64"):
        neurolsc.diagnose(net, x, y, loss=of_all, lr=1e-3)


@pytest.mark.parametrize(
    ("call", "arguments", "error", "message"),
    [
        (neurolsc.try_cures, {"updates": -5}, ValueError, "updates must be at least 1, got -5"),
        (neurolsc.try_cures, {"updates": 2.5}, TypeError, r"updates must be an int, got float \(2.5\)"),
        (neurolsc.try_cures, {"seed": 2.5}, TypeError, "seed must be an int, got float"),
        (neurolsc.diagnose, {"samples": 0}, ValueError, "samples must be at least 1, got 0"),
        (neurolsc.diagnose, {"samples": -1}, ValueError, "samples must be at least 1, got -1"),
    ],
)
def test_numbers_that_count_nothing_are_refused(call, arguments, error, message):
    net, x, y = neurolsc.Network([neurolsc.LIF(12, 32)], 4), torch.rand(10, 8, 12), torch.arange(8) % 4
    with pytest.raises(error, match=message):
        call(net, x, y, **arguments)


@pytest.mark.long
def test_a_diagnosis_does_not_wait_for_torchs_compiler():
    code = """
import sys, torch, neurolsc
net = neurolsc.Network([neurolsc.LIF(12, 32)], 4)
neurolsc.diagnose(net, torch.rand(10, 8, 12), torch.arange(8) % 4, lr=1e-3)
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
