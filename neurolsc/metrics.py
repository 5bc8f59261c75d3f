r"""Scores of a run: accuracies over time, steps without a vote, and how much neurons fire.

Logits have shape (T, B, C), spikes (T, B, N): time steps, samples, classes or neurons. A step *votes* for the class of
its largest logit; a step whose largest logits tie does not vote. A silent layer under a readout without bias therefore
scores 0, and not the share of class 0.

A mask (T, B), bool, True where a sample lasts, is for samples of unequal length. A share of steps counts only steps
inside the mask. It is a mean over the steps of each sample, then over samples. Only :func:`nll` and :func:`perplexity`
are means over the steps of all samples together, as in the literature.

Every function raises ValueError if shapes do not fit each other, logits hold NaN, targets are out of range, spikes are
not 0 or 1, or a mask leaves a sample without a step; TypeError if classes are not integers.

Source: arXiv:2308.12075, Sec. II-G (mode accuracy: the class chosen at most steps).
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from neurolsc.validation import BATCH_FIRST, whole

__all__ = [
    "SHARE", "BatchMetric", "MetricSpec", "firing_rate", "mean_accuracy", "mode_accuracy", "mode_vote", "nll",
    "perplexity", "share_without_vote", "silent_steps", "span_f1", "step_accuracy", "step_overlap", "synops",
]  # fmt: skip


class BatchMetric(NamedTuple):
    """A metric of one batch, with its number of samples and its number of steps in the mask."""

    value: float
    samples: int
    steps: int


@dataclass(frozen=True)
class MetricSpec:
    r"""How a data set's metric follows from the metrics of its batches, and how it is compared.

    With weights w, the samples or the steps of the batches, and their metrics m:

    .. math:: \frac{\sum w m}{\sum w}, \quad
        \text{or } \exp \frac{\sum w \log m}{\sum w} \text{ where it is geometric}
    """

    lower_is_better: bool = False
    of_steps: bool = False  # True: a mean over all steps of a data set, so that longer samples count more
    geometric: bool = False  # a geometric mean, such as that of a perplexity
    share: bool = True  # from 0 to 1, shown in per cent

    def mean(self, batches: Iterable[BatchMetric]) -> float:
        """Return the metric of all batches together."""
        total = size = 0.0
        for value, samples, steps in batches:
            weight = steps if self.of_steps else samples
            size += weight
            total += weight * (math.log(value) if self.geometric else value)
        if self.geometric:
            return math.exp(total / size)
        return total / size

    def better(self, value: float, other: float) -> bool:
        """Return True if a value is strictly better than another."""
        if self.lower_is_better:
            return value < other
        return value > other

    def text(self, value: float) -> str:
        """Return a value as text."""
        if self.share:
            return f"{value:.1%}"
        return f"{value:.4g}"


SHARE = MetricSpec()
"""A share of samples, such as an accuracy: between 0 and 1, higher is better."""


def mode_vote(logits: Tensor) -> Tensor:
    """Return the class (B,), int64, that most steps vote for: the lowest of a tie; -1 if no step votes.

    Example:
        >>> mode_vote(torch.tensor([[[0.0, 2.0], [1.0, 1.0]], [[0.0, 3.0], [0.0, 0.0]]]))
        tensor([ 1, -1])
    """
    votes = _votes(logits)
    classes = logits.shape[2]
    counts = torch.zeros(logits.shape[1], classes + 1, dtype=torch.int64, device=logits.device)
    counts.scatter_add_(1, votes.T, torch.ones_like(votes.T))
    counts = counts[:, :classes]  # the last column counts steps without a vote
    return counts.argmax(1).where(counts.any(1), -1)


def mode_accuracy(logits: Tensor, labels: Tensor) -> float:
    """Return the share of samples whose :func:`mode_vote` is their label (B,)."""
    votes = mode_vote(logits)
    check_classes(labels, logits)
    return (votes == labels).double().mean().item()


def mean_accuracy(logits: Tensor, labels: Tensor) -> float:
    """Return the share of samples whose label (B,), and no other class, has the largest mean logit over steps."""
    _check("logits", logits)
    check_classes(labels, logits)
    mean = logits.double().mean(0, keepdim=True)
    return (_votes(mean)[0] == labels).double().mean().item()


def step_accuracy(logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> float:
    """Return the share of steps that vote for their class; targets are classes (T, B)."""
    votes = _votes(logits)
    check_classes(targets, logits, per_step=True)
    return _share(votes == targets, mask)


def share_without_vote(logits: Tensor, mask: Tensor | None = None) -> float:
    """Return the share of (step, sample) pairs without a vote."""
    return _share(_votes(logits) == logits.shape[2], mask)


def step_overlap(logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> float:
    r"""Return the mean over steps, then over samples, of the overlap of predictions and binary targets y (T, B, C).

    A positive logit o predicts 1. The overlap of a step is

    .. math:: |\{o > 0\} \cap \{y = 1\}| \,/\, |\{o > 0\} \cup \{y = 1\}|,
        \quad 1 \text{ where both are empty}

    Example:
        >>> step_overlap(torch.tensor([[[1.0, 1.0, -1.0]]]), torch.tensor([[[0, 1, 0]]]))
        0.5

    Source: P. Jaccard, New Phytologist 11 (1912) (the index), taken here at every step.
    """
    _check("logits", logits)
    _check("targets", targets, like=logits)
    predicted = logits > 0
    true = targets == 1
    both = (predicted & true).sum(-1)
    either = (predicted | true).sum(-1)
    return _share(torch.where(either > 0, both.double() / either.clamp(min=1), 1.0), mask)


def perplexity(logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> float:
    r"""Return the number of equally likely classes that would give the mean loss; targets are classes (T, B).

    .. math:: \exp\Big(-\frac{1}{\sum_b T_b} \sum_b \sum_{t < T_b}
        \log \mathrm{softmax}(o[t, b])_{y[t, b]}\Big)

    It is infinite if the mean loss, the exponent, is above 709.
    """
    _check("logits", logits)
    return _mean_of_steps(class_losses(logits, targets), mask).exp().item()


def nll(logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> float:
    r"""Return the mean negative log-likelihood of a step, in nats, of binary targets (T, B, C).

    .. math:: -\frac{1}{\sum_b T_b} \sum_b \sum_{t < T_b} \sum_c
        \log \sigma\big((2 y[t, b, c] - 1)\, o[t, b, c]\big)

    Source: N. Boulanger-Lewandowski, Y. Bengio, P. Vincent, "Modeling temporal dependencies in high-dimensional
    sequences", ICML 2012, table 1.
    """
    _check("logits", logits)
    return _mean_of_steps(binary_losses(logits, targets), mask).item()


def span_f1(predicted: Sequence[Sequence[str]], true: Sequence[Sequence[str]]) -> float:
    r"""Return the F1 score of spans in sequences of tags, the spans of all sequences together.

    .. math:: F_1 = \frac{2\, |P \cap Q|}{|P| + |Q|}, \quad 1 \text{ where there are none}

    with P the predicted and Q the true spans. Two spans are equal if they have the same begin, end and name. A span
    begins at ``B-name``, or at an ``I-name`` that follows no tag of that name, and goes on over each ``I-name``; ``O``
    is outside of all spans.

    Args:
        predicted: tags of each sequence.
        true: as many tags of as many sequences.

    Raises:
        ValueError: if numbers of sequences or tags differ.

    Example:
        >>> span_f1([["B-city", "I-city", "O"]], [["B-city", "I-city", "B-day"]])
        0.6666666666666666

    Source: E. Tjong Kim Sang, S. Buchholz, "Introduction to the CoNLL-2000 shared task: chunking".
    """
    lengths = [[len(tags) for tags in sequences] for sequences in (predicted, true)]
    if lengths[0] != lengths[1]:
        raise ValueError(f"predicted and true tags must have the same lengths, got {lengths[0]} and {lengths[1]}.")
    guessed = set(_spans(predicted))
    wanted = set(_spans(true))
    total = len(guessed) + len(wanted)
    if total == 0:
        return 1.0
    return 2 * len(guessed & wanted) / total


def _spans(sequences: Sequence[Sequence[str]]) -> Iterator[tuple[int, int, int, str]]:
    """Yield for each span its sequence, the place of its first tag, the place after its last tag, and its name."""
    for number, tags in enumerate(sequences):
        start = 0
        open_name = ""  # of the span that goes on; empty outside of all spans
        for i, tag in enumerate([*tags, "O"]):  # the added "O" ends a span that goes on until the end
            kind, _, name = tag.partition("-")
            if kind == "I" and name == open_name:  # the span goes on
                continue
            if open_name:
                yield number, start, i, open_name
            start = i
            open_name = name  # empty for O


def class_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy of every step (T, B), in nats; targets are classes (T, B)."""
    check_classes(targets, logits, per_step=True)
    losses = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten().long(), reduction="none")
    return losses.view(targets.shape)


def binary_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the negative log-likelihood of every step (T, B), in nats, of binary targets (T, B, C)."""
    _check("targets", targets, like=logits)
    losses = nn.functional.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none")
    return losses.sum(-1)


def firing_rate(spikes: Tensor, mask: Tensor | None = None) -> float:
    """Return the number of spikes per neuron and time step."""
    _check("spikes", spikes)
    if mask is None:
        return int(spikes.count_nonzero()) / spikes.numel()
    return _share(spikes.count_nonzero(-1), mask) / spikes.shape[2]


def silent_steps(spikes: Tensor, mask: Tensor | None = None) -> float:
    """Return the share of (step, sample) pairs without a spike."""
    _check("spikes", spikes)
    return _share((spikes == 0).all(-1), mask)


def synops(spikes: Tensor, fan_out: int) -> float:
    """Return a layer's synaptic operations per sample: `fan_out` synapses, here and in the next layer, read a spike."""
    _check("spikes", spikes)
    return int(spikes.count_nonzero()) * whole("fan_out", fan_out) / spikes.shape[1]


def step_weights(mask: Tensor, like: Tensor) -> Tensor:
    """Return weights (T, B) that sum to 1: 1 / (B T_b) at the T_b steps of sample b, 0 outside the mask.

    Raises:
        ValueError: if the mask is not bool (T, B), the first axes of `like`, or leaves a sample without a step.
    """
    if mask.dtype != torch.bool or mask.shape != like.shape[:2] or not mask.any(0).all():
        wanted = f"mask must be bool {tuple(like.shape[:2])} with a step for every sample"
        raise ValueError(f"{wanted}, got {mask.dtype} {tuple(mask.shape)}.")
    return mask.double() / (mask.sum(0) * mask.shape[1])


def _share(values: Tensor, mask: Tensor | None) -> float:
    """Return the mean of values (T, B) over steps and samples, in which samples count equally."""
    if mask is None:
        return values.double().mean().item()
    return (values * step_weights(mask, values)).sum().item()


def _mean_of_steps(losses: Tensor, mask: Tensor | None) -> Tensor:
    """Return the mean of losses (T, B) over all steps inside the mask."""
    if mask is not None:
        step_weights(mask, losses)  # refuses a mask that does not fit
        losses = losses[mask]
    return losses.double().mean()


def _votes(logits: Tensor) -> Tensor:
    """Return the class of the largest logit at each step (T, B); C, the number of classes, where the largest tie."""
    _check("logits", logits)
    top, votes = logits.max(-1)
    alone = (logits == top.unsqueeze(-1)).sum(-1) == 1
    return votes.where(alone, logits.shape[2])


def is_binary(spikes: Tensor) -> bool:
    """Return True if all entries are 0 or 1."""
    return bool(((spikes == 0) | (spikes == 1)).all())


def check_classes(targets: Tensor, logits: Tensor, *, per_step: bool = False) -> None:
    """Refuse classes (B,), or (T, B) per step, that do not fit logits (T, B, C).

    Raises:
        TypeError: if they are not integers.
        ValueError: if shapes do not fit, or a class is out of range.
    """
    if per_step:
        wanted = logits.shape[:2]
    else:
        wanted = logits.shape[1:2]
    classes = logits.shape[2]
    name = "targets" if per_step else "labels"
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise TypeError(f"{name} must be integers, got {targets.dtype}.")
    if targets.shape != wanted:
        first = ""
        if targets.shape == logits.shape[:1]:
            first = f"; {BATCH_FIRST}"
        raise ValueError(f"{name} must have shape {tuple(wanted)}, got {tuple(targets.shape)}{first}.")
    bad = targets[(targets < 0) | (targets >= classes)]
    if len(bad):
        raise ValueError(f"{name} must lie in 0 ... {classes - 1}, as there are {classes} logits, got {bad[0]}.")


def _check(name: str, x: Tensor, like: Tensor | None = None) -> None:
    """Raise a ValueError if x is not what its name says.

    Args:
        name: ``"logits"`` (T, B, C), without NaN; ``"spikes"`` (T, B, N) or ``"targets"`` (T, B, C), zeros and ones.
        x: the tensor.
        like: logits, whose shape targets must have.
    """
    letters = "(T, B, N)"
    if name == "logits":
        letters = "(T, B, C)"
    if like is not None and x.shape != like.shape:
        raise ValueError(f"{name} must have shape {tuple(like.shape)}, as logits have, got {tuple(x.shape)}.")
    if x.ndim != 3 or 0 in x.shape:
        raise ValueError(f"{name} must have shape {letters} with no axis empty, got {tuple(x.shape)}.")
    if name == "logits" and x.isnan().any():
        raise ValueError("logits must be numbers, got NaN.")
    if name != "logits" and not is_binary(x):
        raise ValueError(f"{name} must be 0 or 1, got {x[(x != 0) & (x != 1)][0].item():g}.")
