"""Learning rates over a training: by the share of it that is done, or by torch's schedulers."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from neurolsc.validation import number, one_of

__all__ = ["Constant", "Cosine", "FromTorch", "Schedule"]


class Schedule(Protocol):
    """A function of the share of the training that is done.

    Make it a dataclass: its ``repr`` is compared when a training goes on from a checkpoint.
    """

    def __call__(self, done: float) -> float:
        """The factor of the learning rate after a share of all epochs, in 0 ... 1."""
        ...


@dataclass(frozen=True)
class Constant:
    """A factor of 1 throughout."""

    def __call__(self, done: float) -> float:
        return 1.0


@dataclass(frozen=True)
class Cosine:
    r"""A linear rise to the learning rate, then half a cosine down to a share of it.

    .. math:: f(s) = \begin{cases} s / w & s < w \\
        e + \tfrac{1 - e}{2} \big(1 + \cos \pi \tfrac{s - w}{1 - w}\big) & s \ge w \end{cases}

    Attributes:
        warmup: w, the share of the training in which it rises, in [0, 1).
        end: e, the share of the learning rate at the end, in [0, 1].

    Source: Loshchilov & Hutter, arXiv:1608.03983, eq. 5 (one period); Goyal et al., arXiv:1706.02677, Sec. 2.2 (the
    warm-up); with w = 0 and e = 0.1: arXiv:2308.12075v2, App. H.
    """

    warmup: float = 0.05
    end: float = 0.0

    def __post_init__(self) -> None:
        if not number("warmup", self.warmup, zero_allowed=True) < 1:
            raise ValueError(f"warmup must be a share of the training, in [0, 1), got {self.warmup}.")
        if not number("end", self.end, zero_allowed=True) <= 1:
            raise ValueError(f"end must be a share of the learning rate, in [0, 1], got {self.end}.")

    def __call__(self, done: float) -> float:
        if done < self.warmup:
            return done / self.warmup
        fall = 0.5 * (1 + math.cos(math.pi * (done - self.warmup) / (1 - self.warmup)))
        return self.end + (1 - self.end) * fall


@dataclass(frozen=True)
class FromTorch:
    """A scheduler of ``torch.optim.lr_scheduler``.

    A checkpoint holds its ``state_dict``; functions in it, such as those of ``LambdaLR``, are not compared.
    ``ReduceLROnPlateau`` gets the validation loss. ``OneCycleLR`` and ``CyclicLR`` set equal rates for all parameters:
    use ``by_gain=False``.

    Attributes:
        make: makes the scheduler from the optimizer.
        every: step it after every ``"epoch"`` or every ``"update"``.

    Example:
        >>> from torch.optim.lr_scheduler import StepLR
        >>> course = FromTorch(lambda optimizer: StepLR(optimizer, step_size=10))
    """

    make: Callable[[Optimizer], LRScheduler]
    every: Literal["epoch", "update"] = "epoch"

    def __post_init__(self) -> None:
        if not callable(self.make):
            got = type(self.make).__name__
            raise TypeError(f"make must make a scheduler from an optimizer, got {got}: lambda o: StepLR(o, 10).")
        one_of("every", self.every, ("epoch", "update"))
