"""The updates on copies that a diagnosis makes."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import neurolsc
from neurolsc.diagnosis.cures import adam_step


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


@pytest.mark.long
def test_a_diagnosis_does_not_wait_for_torchs_compiler():
    code = """
import sys, torch, neurolsc
net = neurolsc.Network([neurolsc.LIF(12, 32)], 4)
neurolsc.diagnose(net, torch.rand(10, 8, 12), torch.arange(8) % 4, lr=1e-3)
assert "torch._dynamo" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
