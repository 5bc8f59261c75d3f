"""Learning rates over a training: by the share of it that is done, or by torch's schedulers."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from neurolsc.validation import number, one_of

__all__ = ["Constant", "Cosine", "CosineTo", "FromTorch", "Schedule"]


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
    r"""A linear rise to the learning rate, then half a cosine down to 0.

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
        if done < self.warmup:
            return done / self.warmup
        return 0.5 * (1 + math.cos(math.pi * (done - self.warmup) / (1 - self.warmup)))


@dataclass(frozen=True)
class CosineTo:
    r"""Half a cosine from the learning rate down to a share of it.

    .. math:: f(s) = e + \frac{1 - e}{2} (1 + \cos \pi s)

    Attributes:
        end: e, the share at the end, in [0, 1].

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
        return self.end + (1 - self.end) * 0.5 * (1 + math.cos(math.pi * done))


@dataclass(frozen=True)
class FromTorch:
    """A scheduler of ``torch.optim.lr_scheduler``.

    A checkpoint holds its ``state_dict``, so that a resumed training goes on bit by bit; functions
    in it, such as those of ``LambdaLR``, are not compared. ``ReduceLROnPlateau`` gets the
    validation loss.

    Parameters with a gain have a learning rate of their own
    (:func:`neurolsc.training.optim.parameter_groups`). Schedulers that multiply rates preserve
    their ratios; ``OneCycleLR`` and ``CyclicLR`` set equal rates: use ``by_gain=False``.

    Attributes:
        make: makes the scheduler from the optimizer.
        every: step it after every ``"epoch"`` or every ``"update"``.

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
        if not callable(self.make):
            raise TypeError(
                f"make must make a scheduler from an optimizer, got {type(self.make).__name__}; "
                "such as lambda optimizer: StepLR(optimizer, 10)."
            )
        one_of("every", self.every, ("epoch", "update"))

    def scheduler(self, optimizer: Optimizer) -> LRScheduler:
        """The scheduler of an optimizer.

        Raises:
            TypeError: if make returns something else.
            ValueError: if it is of another optimizer, or needs a loss after every update.
        """
        scheduler = self.make(optimizer)
        if not isinstance(scheduler, LRScheduler):
            raise TypeError(f"make must return a scheduler of torch.optim, got {type(scheduler).__name__}.")
        if scheduler.optimizer is not optimizer:
            raise ValueError(f"make must give the {type(scheduler).__name__} the optimizer that it is called with.")
        if self.every == "update" and isinstance(scheduler, ReduceLROnPlateau):
            raise ValueError("ReduceLROnPlateau needs the validation loss, known once an epoch: every='epoch'.")
        return scheduler

    def describe(self, scheduler: LRScheduler) -> str:
        """Settings of a scheduler as text, without what changes in a training."""
        changing = ("base_lrs", "last_epoch", "_step_count", "_is_initial", "_last_lr")

        def settings(state: Any) -> Any:
            if isinstance(state, dict):
                fixed = {k: v for k, v in state.items() if k not in changing and not str(k).startswith("_get")}
                return {k: settings(v) for k, v in fixed.items()}
            return [settings(v) for v in state] if isinstance(state, list) else state

        return f"{type(scheduler).__name__}({settings(scheduler.state_dict())}), every {self.every}"
