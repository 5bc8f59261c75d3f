"""Eq. 49, the step of LIF and ALIF, as a function of numbers alone."""

from typing import NamedTuple

from torch import Tensor

from neurolsc.neurons.reset import Reset


class Constants(NamedTuple):
    """What all steps of a layer have in common."""

    w_in: Tensor
    """(n_hidden, n_in)"""
    w_rec: Tensor
    """(n_hidden, n_hidden)"""
    decay_v: Tensor
    """(n_hidden,), as all that follow"""
    b_v: Tensor
    threshold: Tensor | None = None
    """the threshold of a LIF, or the resting one that the static reset of an ALIF subtracts; else
    None"""
    decay_theta: Tensor | None = None
    """None, as the next two, where the threshold is fixed"""
    b_theta: Tensor | None = None
    adaptation: Tensor | None = None


def advance(
    reset: Reset, c: Constants, x: Tensor, z: Tensor, v: Tensor, theta: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """The next voltage and threshold (B, n_hidden), from input, last spikes and last state.

    Source: arXiv:2308.12075, eq. 49.
    """
    subtracted = theta if c.threshold is None else c.threshold
    assert subtracted is not None
    after = reset.carry(c.decay_v * v, z, subtracted) + x @ c.w_in.T + z @ c.w_rec.T + c.b_v
    if theta is None:
        return after, None
    assert c.decay_theta is not None
    assert c.b_theta is not None
    assert c.adaptation is not None
    return after, next_threshold(theta, z, c.decay_theta, c.b_theta, c.adaptation)


def next_threshold(theta: Tensor, z: Tensor, decay: Tensor, b_theta: Tensor, adaptation: Tensor) -> Tensor:
    """theta[t] from the last threshold and spikes (B, n_hidden).

    Its decay, constant input and adaptation are (n_hidden,).
    """
    return decay * theta + b_theta + adaptation * z
