"""With recomputation the steps between are run again: each in the way in which the run took it, so
that it rounds alike."""

import pytest
import torch
from torch import Tensor

from neurolsc import LIF, ALIFPlus

STEPS, BATCH, N = 36, 4, 512
"""more inputs of a neuron than a dense product sums in one go: it rounds unlike a sum by events"""
BURSTS = (7, 20, 29)
"""steps in which nearly all neurons fire, so that their spikes go by the dense product; the others
go by events"""


def input_with_bursts() -> Tensor:
    x = torch.randn(STEPS, BATCH, N, generator=torch.Generator().manual_seed(3))
    x[list(BURSTS)] += 6.0
    x[[step + 1 for step in BURSTS]] -= 12.0
    return x


@pytest.mark.parametrize("reset", ["subtract", "zero"])
@pytest.mark.parametrize("kind", [LIF, ALIFPlus])
def test_steps_with_few_and_with_many_spikes_are_run_again_as_they_were(kind, reset):
    cell, x = kind(N, N, reset=reset, tau_v=5.0), input_with_bursts()
    with torch.no_grad():
        cell.w_in.copy_(torch.eye(N))
    gradients, spikes = [], []
    for recompute in (False, True):
        z, state = cell.run(x, cell.initial_state(BATCH), recompute=recompute)
        loss = (z * torch.linspace(-1, 1, N)).sum() + state.v.square().sum()
        gradients.append(torch.autograd.grad(loss, list(cell.parameters())))
        spikes.append(z.detach())
    rates = spikes[0].mean((1, 2))
    many = rates > 0.25
    assert many[list(BURSTS)].all() and 0 < many.float().mean() < 0.25
    assert 0 < rates.mean() < 0.25
    assert torch.equal(*spikes)
    assert all(torch.equal(kept, again) for kept, again in zip(*gradients, strict=True))
    assert all(gradient.any() for gradient in gradients[0])
