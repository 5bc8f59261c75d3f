"""How the learning rate goes over a training: a factor of it, by the share of the training done."""

import math
from dataclasses import dataclass
from typing import Protocol

from neurolsc.validation import number

__all__ = ["Constant", "Cosine", "Schedule"]


class Schedule(Protocol):
    """A schedule: a function of how much of the training is done, so that a resumed one goes on.

    A dataclass is best: its ``repr`` is compared where a training goes on from a checkpoint.
    """

    def __call__(self, done: float) -> float:
        """The factor of the learning rate after a share of all epochs, in 0 ... 1."""
        ...


@dataclass(frozen=True)
class Constant:
    """The learning rate stays."""

    def __call__(self, done: float) -> float:
        """1."""
        return 1.0


@dataclass(frozen=True)
class Cosine:
    r"""Up to the learning rate in a line, and down to 0 in half a cosine.

    .. math:: f(s) = \begin{cases} s / w & s < w \\
        \tfrac12 \big(1 + \cos \pi \tfrac{s - w}{1 - w}\big) & s \ge w \end{cases}

    Attributes:
        warmup: w, the share of the training in which it rises, in [0, 1).

    Raises:
        ValueError: if it is not.

    Source: Loshchilov & Hutter, arXiv:1608.03983, eq. 5 (one period); Goyal et al.,
    arXiv:1706.02677, Sec. 2.2 (the warm-up).
    """

    warmup: float = 0.05

    def __post_init__(self) -> None:
        if not number("warmup", self.warmup, zero_allowed=True) < 1:
            raise ValueError(f"warmup must be a share of the training, in [0, 1), got {self.warmup}.")

    def __call__(self, done: float) -> float:
        """f(done)."""
        if done < self.warmup:
            return done / self.warmup
        return 0.5 * (1 + math.cos(math.pi * (done - self.warmup) / (1 - self.warmup)))
