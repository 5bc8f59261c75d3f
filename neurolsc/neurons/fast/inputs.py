"""The arguments of a run over all steps at once, and their gradients."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neurolsc.surrogate import Surrogate


class Constants(NamedTuple):
    """The parameters of a layer, which are the same in all steps."""

    w_in: Tensor  # (n_hidden, n_in)
    w_rec: Tensor  # (n_hidden, n_hidden)
    decay_v: Tensor  # (n_hidden,), as all that follow
    b_v: Tensor
    threshold: Tensor | None = None  # of a LIF, or the resting one that a static reset subtracts; else None
    decay_theta: Tensor | None = None  # None, as the next two, where the threshold is fixed
    b_theta: Tensor | None = None
    adaptation: Tensor | None = None


class Inputs(NamedTuple):
    """All tensors that a run depends on; or for each its gradient, or True if one is needed."""

    x: Any  # input (T, B, n_in)
    late: Any  # input of the first step (B, n_in), after which x is read one step late; None where it is not
    z: Any  # spikes before the first step (B, n_hidden)
    v: Any  # voltage before it (B, n_hidden)
    theta: Any  # threshold before it (B, n_hidden); None where it is fixed
    c: Constants
    spike: tuple[Any, ...]  # the tensors of the surrogate, in the order of :func:`tensors_of`

    def flat(self) -> tuple[Any, ...]:
        """All of them one after the other, as a function of autograd takes and returns them."""
        return (*self[:5], *self.c, *self.spike)

    @classmethod
    def of(cls, flat: Sequence[Any]) -> Inputs:
        """The inverse of :meth:`flat`."""
        x, late, z, v, theta = flat[:5]
        end = 5 + len(Constants._fields)
        return cls(x, late, z, v, theta, Constants(*flat[5:end]), tuple(flat[end:]))

    def of_layer(self) -> list[Tensor]:
        """The state and the parameters, which are of one dtype."""
        return [t for t in (self.z, self.v, self.theta, *self.c) if t is not None]

    def read(self, a: int, b: int) -> Tensor:
        """The input of steps a to b, flattened to ((b - a) B, n_in)."""
        if self.late is None:
            return self.x[a:b].flatten(0, 1).to(self.v.dtype)
        before = self.x[max(a - 1, 0) : b - 1].flatten(0, 1).to(self.v.dtype)
        if a:
            return before
        return torch.cat([self.late.to(self.v.dtype), before])


@dataclass(frozen=True)
class Plan:
    """The settings of a run: all but its tensors."""

    spike: Surrogate  # a copy, which nobody changes
    reset: Any  # a neurolsc.neurons.spiking.Reset
    lengths: Tensor  # steps after which the state of each sample is wanted (B,)
    backward: bool  # a gradient is wanted, and states are saved for it
    gpu: bool  # the GPU's kernels take all steps
    half: torch.dtype | None  # dtype of weights in products under autocast, which the GPU's kernels alone can do

    def ends(self) -> dict[int, Tensor]:
        """The samples whose state is wanted, by the number of steps after which it is."""
        return {int(n): (self.lengths == n).nonzero().squeeze(1) for n in self.lengths.unique()}


def rows_of(c: Constants) -> Tensor:
    """decay_v, b_v, what a reset subtracts, decay_theta, b_theta and adaptation (6, n_hidden)."""
    zero = torch.zeros_like(c.decay_v)
    moving = c[5:]
    if c.decay_theta is None:  # a fixed threshold keeps its value
        moving = (torch.ones_like(zero), zero, zero)
    if c.threshold is None:
        subtracted = zero
    else:
        subtracted = c.threshold
    return torch.stack([c.decay_v, c.b_v, subtracted, *moving])  # type: ignore[list-item]


def tensors_of(spike: Surrogate) -> dict[str, Tensor]:
    """The tensors of a surrogate by name: parameters, buffers, and plain attributes."""
    places = (spike._parameters, spike._buffers, vars(spike))
    return {name: value for place in places for name, value in place.items() if isinstance(value, Tensor)}


def with_tensors(spike: Surrogate, tensors: Iterable[Tensor]) -> Surrogate:
    """A copy of a surrogate around other tensors than its own."""
    others = dict(zip(tensors_of(spike), tensors, strict=True))
    copied = copy.copy(spike)
    for place in ("_parameters", "_buffers"):
        vars(copied)[place] = {name: others.pop(name, None) for name in vars(copied)[place]}
    vars(copied).update(others)
    return copied


def learnable(spike: Surrogate, tensors: Sequence[Tensor], needed: Sequence[bool]) -> tuple[Surrogate, list[Tensor]]:
    """A copy of the surrogate to differentiate by its tensors, and the tensors whose gradient is needed."""
    leaves = [t.detach().requires_grad_() if wants else t for t, wants in zip(tensors, needed, strict=True)]
    return with_tensors(spike, leaves), [leaf for leaf, wants in zip(leaves, needed, strict=True) if wants]


def by_primitive(
    spike: Surrogate, learnt: list[Tensor], distance: Tensor, back: Tensor, sums: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Add the gradients by the tensors of a surrogate to sums: its spikes are differentiated as its primitive is.

    Args:
        spike: the surrogate.
        learnt: its tensors by which a gradient is needed.
        distance: v - theta of the spikes.
        back: the gradient by the spikes.
        sums: the gradients so far, None for 0.
    """
    if not learnt:
        return [*sums]
    with torch.enable_grad():
        smooth = spike.primitive(distance)
    if not smooth.requires_grad:
        return [*sums]
    more = torch.autograd.grad(smooth, learnt, back.to(smooth.dtype), allow_unused=True)
    return [_plus(old, new) for old, new in zip(sums, more, strict=True)]


def _plus(old: Tensor | None, new: Tensor | None) -> Tensor | None:
    """The sum of two gradients, of which None is 0."""
    if old is None or new is None:
        return new if old is None else old
    return old + new


def gradients_of(
    inputs: Inputs, needed: Inputs, by_read: Tensor | None, by_state: Sequence[Tensor], by_c: Constants, by_learnt: Any
) -> Inputs:
    """The gradients as :class:`Inputs`, for autograd.

    by_read (T + 1, B, n_in) is the gradient by the input of each step, with a row of zeros at the end: where the first
    step reads `late`, row t belongs to x[t - 1].
    """
    by_x = by_late = None
    if by_read is not None and inputs.late is None:
        by_x = by_read[:-1]
    elif by_read is not None:
        by_x = by_read[1:]
        by_late = by_read[0]
    found = iter(by_learnt)
    by_spike = tuple(next(found) if wants else None for wants in needed.spike)
    return Inputs(by_x, by_late, *by_state, by_c, by_spike)  # type: ignore[call-arg]
