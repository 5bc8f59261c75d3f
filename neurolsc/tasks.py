"""What is asked of a network: which targets it gets, how wrong it is, and how well it does.

:func:`neurolsc.train` and :func:`neurolsc.evaluate` take a task; another one is another object with
the attribute and the two methods of :class:`Task`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from torch import Tensor, nn

from neurolsc import metrics
from neurolsc.measure import SHARE, Measure
from neurolsc.validation import whole

__all__ = ["BinaryPerStep", "ClassPerStep", "Classification", "Task", "cross_entropy", "measure_of"]

Kinds = Mapping[str, Measure]
"""What the measures of a task are, by name."""
NLL = Measure(lower_is_better=True, of_steps=True, share=False)
PERPLEXITY = Measure(lower_is_better=True, of_steps=True, geometric=True, share=False)


class Task(Protocol):
    """A task: logits (T, B, C) and targets in, a loss and named measures out.

    Both are means over samples, and of a sample over its own steps (T, B), True in the mask; so
    those of a data set follow from those of its batches. A dataclass is best: its ``repr`` is
    compared where a training goes on from a checkpoint.

    A measure is taken for such a mean, from 0 to 1 and the higher the better. Where it is none, an
    attribute ``kinds`` says what it is: a mapping from names of measures to
    :class:`neurolsc.measure.Measure`. A mean over all steps, in which longer samples count more,
    or a measure that is the better the lower it is, needs no more than that.
    """

    @property
    def score(self) -> str:
        """The name of the measure that is shown and noted while a network trains."""
        ...

    def loss(self, logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """A number with a gradient, in nats; refuses targets that do not fit."""
        ...

    def measures(self, logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> dict[str, float]:
        """How well the network does, by name; the score is among them."""
        ...


@dataclass(frozen=True)
class Classification:
    """A label for a whole sample, asked for at every step; the targets are classes (B,).

    The loss is :func:`cross_entropy`; the measures are :func:`neurolsc.metrics.mode_accuracy`,
    which is the score, and :func:`neurolsc.metrics.mean_accuracy`.

    Attributes:
        last: ask at the last so many steps of a sample only, or at all of a shorter one; None: at
            all.

    Raises:
        ValueError: if last is below 1.
        TypeError: if it is no int.

    Source: arXiv:2308.12075, Sec. II-G.
    """

    last: int | None = None
    score = "mode_accuracy"
    kinds = MappingProxyType({"mode_accuracy": SHARE, "mean_accuracy": SHARE})

    def __post_init__(self) -> None:
        if self.last is not None:
            whole("last", self.last)

    def loss(self, logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """Cross-entropy at every step that is asked."""
        return cross_entropy(*self._asked(logits, targets, mask))

    def measures(self, logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> dict[str, float]:
        """Mode and mean accuracy; outside the mask logits are 0 and vote for nobody."""
        logits, targets, _ = self._asked(logits, targets, mask)
        return {
            "mode_accuracy": metrics.mode_accuracy(logits, targets),
            "mean_accuracy": metrics.mean_accuracy(logits, targets),
        }

    def _asked(self, logits: Tensor, targets: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
        """Logits, targets and mask of the steps that are asked."""
        if self.last is None:
            return logits, targets, mask
        if mask is None:
            return logits[-self.last :], targets, None
        left = mask.flip(0).cumsum(0).flip(0)  # steps to the end, this one counted
        asked = mask & (left <= self.last)
        return logits * asked.unsqueeze(-1), targets, asked


@dataclass(frozen=True)
class ClassPerStep:
    r"""A class for every step, such as the next letter of a text; the targets are classes (T, B).

    The loss is the cross-entropy,

    .. math:: -\frac{1}{B} \sum_b \frac{1}{T_b} \sum_{t < T_b}
        \log \mathrm{softmax}(o[t, b])_{y[t, b]},

    the score :func:`neurolsc.metrics.perplexity`, the lower the better: of a data set that of all
    its steps together, however it is cut into batches. :func:`neurolsc.metrics.step_accuracy` is
    told as well.
    """

    score = "perplexity"
    kinds = MappingProxyType({"perplexity": PERPLEXITY, "step_accuracy": SHARE})

    def loss(self, logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """Cross-entropy at every step."""
        if mask is None:
            metrics.check_classes(targets, logits, per_step=True)
            return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten().long())
        return _mean(metrics.class_losses(logits, targets), mask)

    def measures(self, logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> dict[str, float]:
        """The perplexity, and the share of steps that vote for their class."""
        return {
            "perplexity": metrics.perplexity(logits, targets, mask),
            "step_accuracy": metrics.step_accuracy(logits, targets, mask),
        }


@dataclass(frozen=True)
class BinaryPerStep:
    r"""Several yes or no at every step, such as the 88 keys of a piano; targets 0 or 1 (T, B, C).

    The loss is the negative log-likelihood of a step, summed over its C targets,

    .. math:: -\frac{1}{B} \sum_b \frac{1}{T_b} \sum_{t < T_b} \sum_c
        \log \sigma\big((2 y[t, b, c] - 1)\, o[t, b, c]\big),

    the score :func:`neurolsc.metrics.nll`, the same in a mean over all steps of a data set, in
    which longer pieces count more: that of the literature, the lower the better. Told as well is
    :func:`neurolsc.metrics.step_overlap`.

    Source: N. Boulanger-Lewandowski, Y. Bengio, P. Vincent, "Modeling temporal dependencies in
    high-dimensional sequences", ICML 2012 (log-likelihood of a time step of polyphonic music).
    """

    score = "nll"
    kinds = MappingProxyType({"nll": NLL, "step_overlap": SHARE})

    def loss(self, logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        """Negative log-likelihood of a step."""
        return _mean(metrics.binary_losses(logits, targets), mask)

    def measures(self, logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> dict[str, float]:
        """The mean over steps, and how much what is told and what is true have in common."""
        return {
            "nll": metrics.nll(logits, targets, mask),
            "step_overlap": metrics.step_overlap(logits, targets, mask),
        }


def measure_of(task: Task, name: str) -> Measure:
    """What a measure of a task is; a share of samples if the task does not say."""
    kinds: Kinds = getattr(task, "kinds", {})
    return kinds.get(name, SHARE)


def cross_entropy(logits: Tensor, labels: Tensor, mask: Tensor | None = None) -> Tensor:
    r"""Cross-entropy at every time step that a sample lasts.

    .. math:: -\frac{1}{B} \sum_b \frac{1}{T_b} \sum_{t < T_b} \log \mathrm{softmax}(o[t, b])_{y_b}

    A sample counts the same however long it is, and a set the same however it is cut into batches.

    Args:
        logits: readout at every step (T, B, C).
        labels: classes (B,), int64.
        mask: (T, B), bool, with T_b steps of sample b; None: all last for T steps.

    Returns:
        A number with a gradient, in nats.

    Raises:
        ValueError: if labels are not (B,) or out of range, or the mask is not bool (T, B) or leaves
            a sample without a step.
        TypeError: if labels are not integers.

    Example:
        >>> import torch
        >>> cross_entropy(torch.zeros(5, 2, 4), torch.tensor([0, 3])).exp().round(decimals=3)
        tensor(4.)

    Source: arXiv:2308.12075, Sec. II-G (the network predicts the target at every time step).
    """
    metrics.check_classes(labels, logits)
    return ClassPerStep().loss(logits, labels.expand(logits.shape[:2]), mask)


def _mean(losses: Tensor, mask: Tensor | None) -> Tensor:
    """Mean of losses (T, B) over the steps of each sample and then over samples."""
    if mask is None:
        return losses.mean()
    return (losses * metrics.step_weights(mask, losses).to(losses.dtype)).sum()
