"""Eq. 49 in plain torch, ten steps at a time compiled by torch.compile, for layers.py.

What a user with a C++ compiler can write. The input of all steps is projected at once. The
surrogate is a custom function that keeps v - theta alone; the straight-through trick took the same
time. Each kind of layer is compiled once forward and once with its derivative, a minute or two the
first time; inductor keeps what it compiled.
"""

from functools import partial
from typing import Any

import torch
from _layers import Ours
from torch import Tensor
from torch.nn.functional import linear

from neurolsc import LIF

STEPS = 10


class Spike(torch.autograd.Function):
    """A step whose derivative is that of neurolsc's default surrogate, 0.5 / (1 + |d|)^2."""

    @staticmethod
    def forward(ctx: Any, distance: Tensor) -> Tensor:
        ctx.save_for_backward(distance)
        return (distance > 0).to(distance.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        (distance,) = ctx.saved_tensors
        return g * 0.5 / (1 + distance.abs()) ** 2


@torch.compile(dynamic=False)
def alif(drive: Tensor, state: tuple[Tensor, ...], w: Tensor, *constants: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Spikes of a few steps (T, B, N) and the state after them."""
    (z, v, theta), (decay, decay_theta, b_theta, adaptation), sent = state, constants, []
    for now in drive.unbind(0):
        v = decay * v + now + z @ w - (theta * z).detach()
        theta = decay_theta * theta + b_theta + adaptation * z
        z = Spike.apply(v - theta)
        sent.append(z)
    return torch.stack(sent), (z, v, theta)


@torch.compile(dynamic=False)
def lif(drive: Tensor, state: tuple[Tensor, ...], w: Tensor, *constants: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The same with a fixed threshold."""
    (z, v), (decay, theta), sent = state, constants, []
    for now in drive.unbind(0):
        v = decay * v + now + z @ w - theta * z.detach()
        z = Spike.apply(v - theta)
        sent.append(z)
    return torch.stack(sent), (z, v)


class Inductor(Ours):
    """The same networks as ours, with the same weights, whose layers run by these blocks."""

    def spikes(self, x: Tensor) -> list[Tensor]:
        sent = []
        for cell in self.cells:
            x = run(cell, x)
            sent.append(x)
        return sent

    def forward(self, x: Tensor) -> Tensor:
        return self.network.readout(self.spikes(x)[-1])


def run(cell: Any, x: Tensor) -> Tensor:
    """All steps of a layer."""
    if hasattr(cell, "adaptation"):
        step, constants = alif, (cell.decay_v, cell.decay_theta, cell.b_theta, cell.adaptation)
    else:
        step, constants = lif, (cell.decay_v, cell.theta)
    start = [part.contiguous() for part in cell.initial_state(x.shape[1])]
    state = (Spike.apply(start[0] - (start[1] if len(start) > 1 else cell.theta)), *start)
    if torch.is_grad_enabled():  # one graph for all blocks: the first one's state wants gradients like the next ones'
        state = tuple(part if part.requires_grad else part.requires_grad_() for part in state)
    sent = []
    for drive in linear(x, cell.w_in, cell.b_v).split(STEPS):
        spikes, state = step(drive, state, cell.w_rec.T, *constants)
        sent.append(spikes)
    return torch.cat(sent)


INDUCTOR = {"inductor ALIF+": Inductor, "inductor LIF": partial(Inductor, cell=LIF)}
