"""How the learning rate goes over a training: a factor of it, by the share of the training done.

Or as a scheduler of torch says.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from neurolsc.validation import number, one_of

__all__ = ["Constant", "Cosine", "CosineTo", "FromTorch", "Schedule"]


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


@dataclass(frozen=True)
class CosineTo:
    r"""From the learning rate down to a share of it in half a cosine, without a warm-up.

    .. math:: f(s) = e + \frac{1 - e}{2} (1 + \cos \pi s)

    Attributes:
        end: e, the share that is left at the end, in [0, 1].

    Raises:
        ValueError: if it is not.

    Source: Loshchilov & Hutter, arXiv:1608.03983, eq. 5 (one period); with e = 0.1:
    Herranz-Celotti & Rouat, arXiv:2308.12075v2, App. H.
    """

    end: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= number("end", self.end, zero_allowed=True) <= 1:
            raise ValueError(f"end must be a share of the learning rate, in [0, 1], got {self.end}.")

    def __call__(self, done: float) -> float:
        """f(done)."""
        return self.end + (1 - self.end) * 0.5 * (1 + math.cos(math.pi * done))


@dataclass(frozen=True)
class FromTorch:
    """Learning rates by a scheduler of ``torch.optim.lr_scheduler``.

    It is stepped at the end of every epoch, as in PyTorch's own examples, or after every update.
    ``ReduceLROnPlateau`` is given the validation loss. A checkpoint holds the scheduler's
    ``state_dict``, so that a resumed training goes on bit by bit; functions in it, such as those of
    ``LambdaLR``, are not compared with those of before.

    Parameters with a gain are groups with a learning rate of their own
    (:func:`neurolsc.optimizer.parameter_groups`). Schedulers that multiply rates keep their ratio;
    ``OneCycleLR`` and ``CyclicLR`` set rates, the same for all groups: give ``by_gain=False``.

    Attributes:
        make: makes the scheduler from the optimizer.
        every: when it is stepped, ``"epoch"`` or ``"update"``.

    Raises:
        TypeError: if make is not callable, such as a scheduler itself.
        ValueError: if every is something else.

    Example:
        >>> from torch.optim.lr_scheduler import StepLR
        >>> course = FromTorch(lambda optimizer: StepLR(optimizer, step_size=10))
    """

    make: Callable[[Optimizer], LRScheduler]
    every: Literal["epoch", "update"] = "epoch"

    def __post_init__(self) -> None:
        """Refuse what makes nothing."""
        if not callable(self.make):
            raise TypeError(
                f"make must make a scheduler from an optimizer, got {type(self.make).__name__}; "
                "such as lambda optimizer: StepLR(optimizer, 10)."
            )
        one_of("every", self.every, ("epoch", "update"))

    def of(self, optimizer: Optimizer) -> LRScheduler:
        """The scheduler of an optimizer.

        Raises:
            TypeError: if make returns something else.
            ValueError: if it is of another optimizer, or wants a loss after every update.
        """
        scheduler = self.make(optimizer)
        if not isinstance(scheduler, LRScheduler):
            raise TypeError(f"make must return a scheduler of torch.optim, got {type(scheduler).__name__}.")
        if scheduler.optimizer is not optimizer:
            raise ValueError(f"make must give the {type(scheduler).__name__} the optimizer that it is called with.")
        if self.every == "update" and isinstance(scheduler, ReduceLROnPlateau):
            raise ValueError("ReduceLROnPlateau looks at the validation loss, known once an epoch: every='epoch'.")
        return scheduler

    def told(self, scheduler: LRScheduler) -> str:
        """What tells one from another, the rates left out, as text."""
        return f"{type(scheduler).__name__}({_settings(scheduler.state_dict())}), every {self.every}"


def _settings(state: Any) -> Any:
    """A state without what is not set but reached, or is a learning rate."""
    if isinstance(state, dict):
        kept = {k: v for k, v in state.items() if k not in _REACHED and not str(k).startswith("_get")}
        return {k: _settings(v) for k, v in kept.items()}
    return [_settings(v) for v in state] if isinstance(state, list) else state


_REACHED = ("base_lrs", "last_epoch", "_step_count", "_is_initial", "_last_lr")
