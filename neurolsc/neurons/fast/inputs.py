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
    """The parameters of a LIF or ALIF layer, the same in all steps: its weights, and vectors of a number per neuron."""

    w_in: Tensor  # (n_hidden, n_in)
    w_rec: Tensor  # (n_hidden, n_hidden)
    decay_v: Tensor  # (n_hidden,), as all that follow
    b_v: Tensor
    threshold: Tensor | None = None  # of a LIF; of an ALIF the resting one, if a static reset subtracts it, else None
    decay_theta: Tensor | None = None  # None, as the next two, where the threshold is fixed
    b_theta: Tensor | None = None
    adaptation: Tensor | None = None


class Inputs(NamedTuple):
    """All tensors that a run depends on; or, in the same places, their gradients, or True where one is needed."""

    x: Any  # input (T, B, n_in)
    late: Any  # input of the first step (B, n_in), after which x is read one step late; None: x is not late
    z: Any  # spikes before the first step (B, n_hidden)
    v: Any  # voltage before it (B, n_hidden)
    theta: Any  # threshold before it (B, n_hidden); None where it is fixed
    c: Constants
    spike: tuple[Any, ...]  # the tensors of the surrogate, in the order of :func:`tensors_of`

    def flat(self) -> tuple[Any, ...]:
        """Return all of them one after the other, as a function of autograd takes and returns them."""
        return (*self[:5], *self.c, *self.spike)

    @classmethod
    def of(cls, flat: Sequence[Any]) -> Inputs:
        """Put tensors in the order of :meth:`flat` back in their places."""
        x, late, z, v, theta = flat[:5]
        end = 5 + len(Constants._fields)
        return cls(x, late, z, v, theta, Constants(*flat[5:end]), tuple(flat[end:]))

    def of_layer(self) -> list[Tensor]:
        """Return the tensors of the state and the parameters, without None; the kernels want them in one dtype."""
        return [t for t in (self.z, self.v, self.theta, *self.c) if t is not None]

    def read(self, a: int, b: int) -> Tensor:
        """Return what steps a to b - 1 read, flattened to ((b - a) B, n_in), in the dtype of v.

        With `late`, step t reads x[t - 1], and the first step reads `late`.
        """
        if self.late is None:
            return self.x[a:b].flatten(0, 1).to(self.v.dtype)
        before = self.x[max(a - 1, 0) : b - 1].flatten(0, 1).to(self.v.dtype)
        if a:
            return before
        return torch.cat([self.late.to(self.v.dtype), before])


@dataclass(frozen=True)
class Plan:
    """The settings of a run: all but its tensors."""

    spike: Surrogate  # a copy, which the user cannot change before the backward pass
    reset: Any  # a neurolsc.neurons.spiking.Reset
    lengths: Tensor  # steps after which the state of each sample is wanted (B,)
    backward: bool  # a gradient is wanted, and states are saved for it
    gpu: bool  # the GPU's kernels take all steps
    half: torch.dtype | None  # dtype of weights in products under autocast, which GPU kernels alone read; else None

    def ends(self) -> dict[int, Tensor]:
        """Return {k: indices of the samples whose state is wanted after k steps}."""
        return {int(n): (self.lengths == n).nonzero().squeeze(1) for n in self.lengths.unique()}


def rows_of(c: Constants) -> Tensor:
    """Return decay_v, b_v, the threshold, decay_theta, b_theta and adaptation as rows (6, n_hidden).

    The threshold is what a static reset subtracts; zero where there is none.
    """
    zero = torch.zeros_like(c.decay_v)
    moving = c[5:]  # decay_theta, b_theta, adaptation
    if c.decay_theta is None:  # a fixed threshold keeps its value
        moving = (torch.ones_like(zero), zero, zero)
    if c.threshold is None:
        subtracted = zero
    else:
        subtracted = c.threshold
    return torch.stack([c.decay_v, c.b_v, subtracted, *moving])  # type: ignore[list-item]


def tensors_of(spike: Surrogate) -> dict[str, Tensor]:
    """Return the tensors of a surrogate by name: parameters, buffers, and plain attributes, in this order."""
    places = (spike._parameters, spike._buffers, vars(spike))
    return {name: value for place in places for name, value in place.items() if isinstance(value, Tensor)}


def with_tensors(spike: Surrogate, tensors: Iterable[Tensor]) -> Surrogate:
    """Return a copy of a surrogate with other tensors in the place of its own, in the order of :func:`tensors_of`."""
    others = dict(zip(tensors_of(spike), tensors, strict=True))
    copied = copy.copy(spike)
    for place in ("_parameters", "_buffers"):
        vars(copied)[place] = {name: others.pop(name, None) for name in vars(copied)[place]}
    vars(copied).update(others)
    return copied


def learnable(spike: Surrogate, tensors: Sequence[Tensor], needed: Sequence[bool]) -> tuple[Surrogate, list[Tensor]]:
    """Return a copy of a surrogate with new leaves for autograd, and those of them whose gradient is needed.

    `tensors` are the surrogate's, in the order of :func:`tensors_of`; `needed` is True for those to differentiate by.
    """
    leaves = [t.detach().requires_grad_() if wants else t for t, wants in zip(tensors, needed, strict=True)]
    return with_tensors(spike, leaves), [leaf for leaf, wants in zip(leaves, needed, strict=True) if wants]


def by_primitive(
    spike: Surrogate, learnt: list[Tensor], distance: Tensor, back: Tensor, sums: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Add the gradients by a surrogate's tensors through some spikes, with primitive(v - theta) for the spikes.

    Args:
        spike: the surrogate.
        learnt: its tensors by which a gradient is needed.
        distance: v - theta of the spikes.
        back: the gradient by the spikes, of the same shape.
        sums: the gradients so far, one for each of `learnt`, None for 0.

    Returns:
        `sums` plus the gradients through these spikes, None for 0.
    """
    if not learnt:
        return [*sums]
    with torch.enable_grad():
        smooth = spike.primitive(distance)
    if not smooth.requires_grad:  # the primitive reads none of them
        return [*sums]
    more = torch.autograd.grad(smooth, learnt, back.to(smooth.dtype), allow_unused=True)
    return [_plus(old, new) for old, new in zip(sums, more, strict=True)]


def _plus(old: Tensor | None, new: Tensor | None) -> Tensor | None:
    """Return the sum of two gradients, where None is 0."""
    if old is None:
        return new
    if new is None:
        return old
    return old + new


def gradients_of(
    inputs: Inputs, needed: Inputs, by_read: Tensor | None, by_state: Sequence[Tensor], by_c: Constants, by_learnt: Any
) -> Inputs:
    """Put the gradients of a run in the places of its inputs.

    Args:
        inputs: what the run read.
        needed: its ``spike`` is True for the tensors of the surrogate whose gradients are wanted.
        by_read: gradient by what each step reads, then a row of zeros (T + 1, B, n_in); None if not wanted.
        by_state: gradients by z, v and theta before the first step, each (B, n_hidden).
        by_c: gradients by the constants.
        by_learnt: gradients by the tensors of the surrogate that are wanted.
    """
    by_x = None
    by_late = None
    if by_read is not None and inputs.late is None:
        by_x = by_read[:-1]
    elif by_read is not None:  # step 0 read `late`, step t x[t - 1]; no step read the last frame: it gets the zeros
        by_x = by_read[1:]
        by_late = by_read[0]
    remaining = iter(by_learnt)
    by_spike = tuple(next(remaining) if wants else None for wants in needed.spike)
    return Inputs(by_x, by_late, *by_state, by_c, by_spike)  # type: ignore[call-arg]
