"""Floats to integers of so many bits: rounding, scales, and which numbers cannot be held.

Rounding lets gradients pass and scales are constants to them: fine-tuning trains through these
functions.
"""

import math

from torch import Tensor

__all__ = [
    "LONGEST",
    "W_MAX",
    "check_matrix",
    "check_threshold",
    "decay_bits",
    "even",
    "exponent",
    "extreme",
    "largest",
    "nearest",
    "time_constant",
]

W_MAX = 254
"""largest weight: 8 signed bits times 2"""
THRESHOLD_MAX = 2**17 - 1
LONGEST = 4095 / 4096
"""largest share of a state that is kept from one step to the next, a time constant of 4096 steps"""


def nearest(x: Tensor) -> Tensor:
    """The nearest integer; the gradient passes."""
    return x + (x.round() - x).detach()


def even(x: Tensor) -> Tensor:
    """The nearest even integer; the gradient passes."""
    return x + (2 * (x / 2).round() - x).detach()


def decay_bits(kept: Tensor) -> Tensor:
    """The decay in 12 bits of which a share is kept, 4096 (1 - kept); the gradient passes."""
    return nearest(4096 * (1 - kept))


def time_constant(decay: Tensor) -> Tensor:
    """The time constant in steps that a decay stands for; no memory at all, 4096, is 0.05 steps.

    Of 0.05 steps e^-20 is left after one.
    """
    return -1 / (1 - decay / 4096).clamp(min=2e-9).log()


def exponent(value: float, limit: int) -> int:
    """The fewest bits by which a value must be shifted right to lie within a limit."""
    return max(0, math.ceil(math.log2(value / limit))) if value else 0


def extreme(x: Tensor) -> float:
    """The entry of the largest modulus, with its sign."""
    return x.detach().flatten()[x.detach().abs().argmax()].item()


def largest(name: str, *weights: Tensor) -> float:
    """The largest modulus.

    Raises:
        ValueError: if all weights are zero.
    """
    peak = max(w.detach().abs().max().item() for w in weights)
    if not peak:
        raise ValueError(f"{name}: all weights are zero.")
    return peak


def check_threshold(name: str, units: int, fewest: int, force: bool) -> int:
    """The units of a threshold, if they fit 17 bits and are enough for rounding not to decide.

    Raises:
        ValueError: if they do not, or are.
    """
    if units > THRESHOLD_MAX:
        raise ValueError(
            f"{name}: a threshold of {units} weight units does not fit 17 bits: its weights are too small to fire."
        )
    if units < (1 if force else fewest):
        raise ValueError(
            f"{name}: large weights leave {units} weight units per threshold, and below {fewest} rounding decides "
            "what fires: train with smaller weights, or give force=True."
        )
    return units


def check_matrix(name: str, *weights: Tensor) -> None:
    """Refuse integer matrices that share synapse memory and that a reader of the file would change.

    Raises:
        ValueError: if all are zero, or none is positive and the smallest entry is minus a power of
            2.
    """
    low, high = min(int(w.min()) for w in weights), max(int(w.max()) for w in weights)
    if low == high == 0:
        raise ValueError(f"{name}: all weights are zero.")
    if high <= 0 and (-low).bit_count() == 1:
        raise ValueError(
            f"{name}: no weight is positive and the smallest is {low}, a power of 2, which readers change silently."
        )
