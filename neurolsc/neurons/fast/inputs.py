"""The arguments of the loop, by name."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from neurolsc.neurons.equations import Constants
from neurolsc.neurons.reset import Reset
from neurolsc.surrogate import Surrogate


class Inputs(NamedTuple):
    """All tensors that a run depends on; or something about each of them, as a gradient."""

    x: Any
    """input (T, B, n_in)"""
    first: Any
    """what the first step reads (B, n_in), x then being read one step late; or None"""
    z: Any
    """spikes before the first step (B, n_hidden)"""
    v: Any
    """voltage before it (B, n_hidden)"""
    theta: Any
    """threshold before it (B, n_hidden); None where it is fixed"""
    c: Constants
    """the constants"""
    spike: tuple[Any, ...]
    """what the surrogate holds, as :func:`~neurolsc.neurons.fast.surrogates.held` lists it"""


@dataclass(frozen=True)
class Plan:
    """What a run is besides its tensors.

    Attributes:
        spike: a copy of the surrogate, which nobody changes.
        known: whether it is one of ours, whose derivative is known as a formula.
        reset: the reset.
        lengths: steps after which the state of each sample is wanted (B,); None: all.
        keep: what the reverse pass can build on: nothing, if there will be none; the state every
            few steps; or every voltage.
        kernels: whether the GPU's kernels take all steps.
        half: the dtype of weights in products under autocast, which the kernels alone can do; None
            without it.
    """

    spike: Surrogate
    known: bool
    reset: Reset
    lengths: Tensor | None
    keep: Literal["nothing", "some", "all"]
    kernels: bool
    half: torch.dtype | None = None


def pack(inputs: Inputs) -> tuple[Any, ...]:
    """One after the other, as a function of autograd takes and returns them."""
    *own, c, spike = inputs
    return (*own, *c, *spike)


def unpack(flat: Sequence[Any]) -> Inputs:
    """The inverse of :func:`pack`."""
    x, first, z, v, theta, *rest = flat
    constants = len(Constants._fields)
    return Inputs(x, first, z, v, theta, Constants(*rest[:constants]), tuple(rest[constants:]))


def end_samples(lengths: Tensor | None, steps: int) -> dict[int, Any]:
    """The samples whose state is wanted after a number of steps, as an index, by that number."""
    if lengths is None:
        return {steps: slice(None)}
    lengths = lengths.clamp(0, steps)
    return {int(n): (lengths == n).nonzero().squeeze(1) for n in lengths.unique()}


def rows_of(c: Constants) -> Tensor:
    """The constants of each neuron (6, n_hidden), in the order of their fields.

    A fixed threshold is one that moves by nothing; where no constant one is subtracted, it is 0.
    """
    zero = torch.zeros_like(c.decay_v)
    fixed = (torch.ones_like(zero), zero, zero)
    moving = fixed if c.decay_theta is None else (c.decay_theta, c.b_theta, c.adaptation)
    return torch.stack([c.decay_v, c.b_v, zero if c.threshold is None else c.threshold, *moving])  # type: ignore[list-item]
