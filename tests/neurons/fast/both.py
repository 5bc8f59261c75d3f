"""A cell's own run next to plain steps: values, gradients, and whether it was at once."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from neurolsc import Cell, Network
from neurolsc.neurons.fast import sequence
from neurolsc.neurons.spiking import SpikingCell
from neurolsc.stability import match_firing_rates
from tests.neurons.steps import by_steps

BATCH, STEPS, INPUTS, HIDDEN = 3, 7, 12, 8
own = Cell.run


def firing(kind: type[SpikingCell], n_in: int = INPUTS, n_hidden: int = HIDDEN, **settings: Any) -> Any:
    """A cell that fires in about a quarter of all steps."""
    torch.manual_seed(0)
    cell = kind(n_in, n_hidden, tau_v=2.0, **settings)
    cell.b_v.normal_(0, 0.1)
    with torch.no_grad():
        cell.w_in.mul_(5)
        cell.w_rec.mul_(2)
        match_firing_rates(Network([cell], 1), spikes(40, 8, n_in).to(cell.w_in), [0.25], tolerance=math.inf)
    return cell


def spikes(steps: int = STEPS, batch: int = BATCH, width: int = INPUTS) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return (torch.rand(steps, batch, width, generator=generator) < 0.4).to(torch.get_default_dtype())


def moving(cell: Cell, batch: int = BATCH) -> Any:
    """A state in the middle of a run, to be differentiated by; it lies in memory neuron by neuron."""
    start = cell.initial_state(batch)
    with torch.no_grad():
        _, state = by_steps(cell, spikes(4, batch, cell.n_in).to(start[0]), start)
    return type(state)(*(leaf.T.contiguous().T.requires_grad_() for leaf in state))


@contextmanager
def counted() -> Iterator[list[int]]:
    """A list that grows with each run at once."""
    calls: list[int] = []
    real = sequence.forward
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequence, "forward", lambda *args: (calls.append(1), real(*args))[1])
        yield calls


def loss_of(z: Tensor, state: Any) -> Tensor:
    """A loss that sees every spike and every state, each by another weight."""
    parts = [z, *state]
    return sum((part * torch.linspace(-1, 1, part.numel()).view_as(part).to(part)).sum() for part in parts)  # type: ignore[return-value]


def gradients(loss: Tensor, by: list[Tensor], **settings: Any) -> list[Tensor | None]:
    return list(torch.autograd.grad(loss, by, allow_unused=True, retain_graph=True, **settings))


def assert_same(ones: Any, others: Any, rtol: float = 1e-10) -> None:
    """Tensors equal up to rounding, where None stands for zeros."""
    for one, other in zip(ones, others, strict=True):
        if one is None or other is None:
            assert all(t is None or not t.any() for t in (one, other))
            continue
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert torch.equal(one.isnan(), other.isnan())
        one, other = one.nan_to_num().double(), other.nan_to_num().double()
        assert (one - other).norm() <= rtol * other.norm() + 1e-300


def assert_as_plain_steps(
    cell: Cell, x: Tensor, state: Any = None, *, at_once: bool = True, by: tuple[Tensor, ...] = ()
) -> None:
    """Spikes equal, states and gradients up to rounding; and the run is at once, or is not."""
    outcomes = []
    with counted() as calls:
        for way in (own, by_steps):
            z, after = way(cell, x, cell.initial_state(x.shape[1]) if state is None else state)
            wanted = [*(p for p in cell.parameters() if p.requires_grad), *by]
            outcomes.append((z, [*after, *gradients(loss_of(z, after), wanted)]))
    (z, found), (plain_z, plain_found) = outcomes
    assert bool(calls) == at_once
    assert torch.equal(z.nan_to_num(2), plain_z.nan_to_num(2))
    assert plain_z.isnan().any() or 0.01 < (plain_z != 0).double().mean() < 0.95
    assert_same(found, plain_found)


def assert_both(f: Callable[[Callable[..., Any]], Any]) -> None:
    """What a function makes of the cell's own run is what it makes of plain steps, and not nothing."""
    found, plain = f(own), f(by_steps)
    assert any(part is not None and part.any() for part in plain)
    assert_same(found, plain)
