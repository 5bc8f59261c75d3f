"""Tasks: targets of a network, its loss, and metrics of how well it does."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from torch import Tensor

from neurolsc import metrics
from neurolsc.metrics import SHARE, MetricSpec
from neurolsc.validation import shown, whole

__all__ = ["BinaryPerStep", "ClassPerStep", "Classification", "Task", "cross_entropy", "metric_spec"]


class Task(Protocol):
    """A task of :func:`neurolsc.train` and :func:`neurolsc.evaluate`: logits (T, B, C) and targets in, numbers out.

    The numbers are means over samples, and within a sample over its own time steps, which are True in the mask (T, B).
    Make a task a dataclass: its ``repr`` is compared when a training continues from a checkpoint. A measure is by
    default a share of samples, the higher the better; the attribute ``kinds`` maps the name of any other measure to a
    :class:`neurolsc.metrics.MetricSpec`.
    """

    @property
    def score(self) -> str:
        """The name of the measure that is shown and noted while a network trains."""
        ...

    def loss(self, logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the loss, a number with a gradient, in nats; refuse targets that do not fit."""
        ...

    def measures(self, logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> dict[str, float]:
        """Return metrics by name; the score is among them."""
        ...


@dataclass(frozen=True)
class Classification:
    """One label for a whole sample, which is the target of every step; targets are classes (B,).

    The loss is :func:`cross_entropy`; the measures are :func:`neurolsc.metrics.mode_accuracy` (the score) and
    :func:`neurolsc.metrics.mean_accuracy`.

    Attributes:
        last: number of time steps at the end of a sample that count, 1 or more; None: all steps.

    Source: arXiv:2308.12075, Sec. II-G.
    """

    last: int | None = None
    score = "mode_accuracy"
    kinds = MappingProxyType({"mode_accuracy": SHARE, "mean_accuracy": SHARE})

    def __post_init__(self) -> None:
        if self.last is not None:
            whole("last", self.last)

    def loss(self, logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        return cross_entropy(*self._counted(logits, targets, mask))

    def measures(self, logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> dict[str, float]:
        logits, targets, _ = self._counted(logits, targets, mask)
        return {name: getattr(metrics, name)(logits, targets) for name in self.kinds}

    def _counted(self, logits: Tensor, targets: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Keep the last `last` steps of each sample: cut off the others; with a mask, mask them and zero the logits."""
        if self.last is None:
            return logits, targets, mask
        if mask is None:
            return logits[-self.last :], targets, None
        to_end = mask.flip(0).cumsum(0).flip(0)  # (T, B), steps to the end of the sample, this step included
        counted = mask & (to_end <= self.last)
        return logits * counted.unsqueeze(-1), targets, counted  # a step of zeros casts no vote


class _PerStep:
    """A task with targets at every step; a subclass defines `kinds` and `_losses`."""

    kinds: Mapping[str, MetricSpec]  # of each measure, by the name of its function in neurolsc.metrics
    _losses: Callable[[Tensor, Tensor], Tensor]  # from logits and targets to the loss of each step (T, B)

    def loss(self, logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        losses = self._losses(logits, targets)
        if mask is None:
            return losses.mean()
        return (losses * metrics.step_weights(mask, losses).to(losses.dtype)).sum()

    def measures(self, logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> dict[str, float]:
        return {name: getattr(metrics, name)(logits, targets, mask) for name in self.kinds}


@dataclass(frozen=True)
class ClassPerStep(_PerStep):
    r"""A class for every step, such as the next letter of a text; targets are classes (T, B).

    The loss is that of :func:`cross_entropy` with classes :math:`y[t, b]`; the measures are
    :func:`neurolsc.metrics.perplexity` (the score, over all steps of a data set) and
    :func:`neurolsc.metrics.step_accuracy`.
    """

    score = "perplexity"
    kinds = MappingProxyType(
        {
            "perplexity": MetricSpec(lower_is_better=True, of_steps=True, geometric=True, share=False),
            "step_accuracy": SHARE,
        }
    )
    _losses = staticmethod(metrics.class_losses)


@dataclass(frozen=True)
class BinaryPerStep(_PerStep):
    r"""Several binary targets (T, B, C) at every step, such as the 88 keys of a piano.

    The loss is the negative log-likelihood of a step, summed over its C targets,

    .. math:: -\frac{1}{B} \sum_b \frac{1}{T_b} \sum_{t < T_b} \sum_c
        \log \sigma\big((2 y[t, b, c] - 1)\, o[t, b, c]\big),

    the measures are :func:`neurolsc.metrics.nll` (the score, over all steps of a data set, as in
    the literature) and :func:`neurolsc.metrics.step_overlap`.

    Source: N. Boulanger-Lewandowski, Y. Bengio, P. Vincent, "Modeling temporal dependencies in
    high-dimensional sequences", ICML 2012 (log-likelihood of a time step of polyphonic music).
    """

    score = "nll"
    kinds = MappingProxyType(
        {"nll": MetricSpec(lower_is_better=True, of_steps=True, share=False), "step_overlap": SHARE}
    )
    _losses = staticmethod(metrics.binary_losses)


def refuse_no_task(task: object) -> None:
    """Raise a TypeError for a class, and for an object without score, loss or measures."""
    if isinstance(task, type):
        raise TypeError(f"task must be an object, got the class {task.__name__}: give {task.__name__}().")
    if missing := [name for name in ("score", "loss", "measures") if not hasattr(task, name)]:
        wanted = "task must have score, loss and measures, as neurolsc.tasks.Classification() does"
        raise TypeError(f"{wanted}; {shown(task)} has no {', '.join(missing)}.")


def loss_of(task: Task, logits: Tensor, targets: Tensor, mask: Tensor | None) -> Tensor:
    """Return a task's loss, one number, with a gradient if the logits have one; else raise TypeError or ValueError."""
    name = type(task).__name__
    value = task.loss(logits, targets, mask)
    if not isinstance(value, Tensor):
        raise TypeError(f"{name}.loss must return a tensor of one number, got {shown(value)}.")
    if value.numel() != 1:
        raise ValueError(f"{name}.loss must return one number, got a tensor {tuple(value.shape)}.")
    if logits.requires_grad and not value.requires_grad:
        raise ValueError(f"{name}.loss must have a gradient by the logits, got a number without one.")
    return value


def measures_of(task: Task, logits: Tensor, targets: Tensor, mask: Tensor | None) -> Mapping[str, float]:
    """Return a task's measures; TypeError if they are no dict by name, with the score among them."""
    measures = task.measures(logits, targets, mask)
    if not isinstance(measures, Mapping) or task.score not in measures:
        wanted = f"a dict of numbers by name, the score {task.score!r} among them"
        raise TypeError(f"{type(task).__name__}.measures must return {wanted}, got {shown(measures)}.")
    return measures


def metric_spec(task: Task, name: str) -> MetricSpec:
    """Return the specification of a task's measure; that of a share of samples if the task gives none."""
    return getattr(task, "kinds", {}).get(name, SHARE)


def cross_entropy(logits: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""Return the mean cross-entropy over the time steps of each sample, averaged over samples.

    .. math:: -\frac{1}{B} \sum_b \frac{1}{T_b} \sum_{t < T_b} \log \mathrm{softmax}(o[t, b])_{y_b}

    Args:
        logits: readout at every step (T, B, C).
        labels: classes (B,), int64.
        mask: (T, B), bool, with T_b steps of sample b; None: all last for T steps.

    Returns:
        A number with a gradient, in nats.

    Raises:
        ValueError: if labels or mask do not fit the logits.

    Example:
        >>> import torch
        >>> cross_entropy(torch.zeros(5, 2, 4), torch.tensor([0, 3])).exp().round(decimals=3)
        tensor(4.)

    Source: arXiv:2308.12075, Sec. II-G (the network predicts the target at every time step).
    """
    metrics.check_classes(labels, logits)
    return ClassPerStep().loss(logits, labels.expand(logits.shape[:2]), mask)
