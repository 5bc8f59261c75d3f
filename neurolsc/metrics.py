r"""What a run is judged by: accuracies over time, votes not cast, and how much neurons fire.

Axes are (T, B, C) for logits and (T, B, N) for spikes: time steps, samples, classes or neurons. A
step *votes* for the class of its largest logit; a step whose largest logits tie votes for nobody. A
silent layer under a readout without bias therefore scores nothing, instead of the share of class 0.

Where samples are of unequal length a mask (T, B), bool, says which steps belong to each. Outside it
the logits and spikes of :meth:`neurolsc.Network.run` are 0, so such steps vote for nobody and fire
nothing. What is a share of steps takes the mask and counts those inside it only, first within each
sample, then over samples. :func:`nll` and :func:`perplexity` alone, as in the literature, are means
over all steps together.

Source: arXiv:2308.12075, Sec. II-G (mode accuracy: the class chosen at most steps).
"""

import torch
from torch import Tensor, nn

from neurolsc.validation import whole

__all__ = [
    "binary_losses",
    "check_binary",
    "check_classes",
    "class_losses",
    "firing_rate",
    "is_binary",
    "mean_accuracy",
    "mode_accuracy",
    "mode_vote",
    "nll",
    "perplexity",
    "share_without_vote",
    "silent_steps",
    "sparsity",
    "step_accuracy",
    "step_overlap",
    "step_vote",
    "step_weights",
    "synops",
]


def step_vote(logits: Tensor) -> Tensor:
    """The class that each step votes for, that of its largest logit.

    Args:
        logits: readout at every step (T, B, C).

    Returns:
        Classes (T, B), int64; -1 where the largest logits tie.

    Raises:
        ValueError: if logits are not (T, B, C) with T, B, C >= 1, or hold NaN.

    Example:
        >>> step_vote(torch.tensor([[[0.0, 2.0], [1.0, 1.0]]]))
        tensor([[ 1, -1]])
    """
    votes = _votes(logits)
    return votes.where(votes < logits.shape[2], -1)


def mode_vote(logits: Tensor) -> Tensor:
    """The class that most steps vote for.

    Args:
        logits: readout at every step (T, B, C).

    Returns:
        Classes (B,), int64. A tie between modes takes the lowest class; -1 where no step votes.

    Raises:
        ValueError: if logits are not (T, B, C) with T, B, C >= 1, or hold NaN.

    Example:
        >>> mode_vote(torch.tensor([[[0.0, 2.0], [1.0, 1.0]], [[0.0, 3.0], [0.0, 0.0]]]))
        tensor([ 1, -1])
    """
    votes = _votes(logits)
    classes = logits.shape[2]
    counts = torch.zeros(logits.shape[1], classes + 1, dtype=torch.int64, device=logits.device)
    counts.scatter_add_(1, votes.T, torch.ones_like(votes.T))  # last column: steps without a vote
    counts = counts[:, :classes]
    return counts.argmax(1).where(counts.any(1), -1)


def mode_accuracy(logits: Tensor, labels: Tensor) -> float:
    """Share of samples whose :func:`mode_vote` is their label; without a vote it is wrong.

    Args:
        logits: readout at every step (T, B, C).
        labels: classes (B,), integers from 0 to C - 1.

    Returns:
        A share from 0 to 1.

    Raises:
        ValueError: as :func:`mode_vote`, or if labels are not (B,) or out of range.
        TypeError: if labels are not integers.

    Example:
        >>> mode_accuracy(torch.tensor([[[0.0, 2.0], [1.0, 1.0]]]), torch.tensor([1, 0]))
        0.5
    """
    _check_logits(logits)
    check_classes(labels, logits)
    return (mode_vote(logits) == labels).double().mean().item()


def mean_accuracy(logits: Tensor, labels: Tensor) -> float:
    """Share of samples whose label alone has the largest mean logit; a tie counts as wrong.

    Args:
        logits: readout at every step (T, B, C).
        labels: classes (B,), integers from 0 to C - 1.

    Returns:
        A share from 0 to 1.

    Raises:
        ValueError: as :func:`mode_accuracy`.
        TypeError: if labels are not integers.

    Example:
        >>> mean_accuracy(torch.tensor([[[0.0, 1.0]], [[9.0, 0.0]]]), torch.tensor([0]))
        1.0
    """
    _check_logits(logits)
    check_classes(labels, logits)
    mean = logits.double().mean(0, keepdim=True)
    return (_votes(mean)[0] == labels).double().mean().item()


def step_accuracy(logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> float:
    """Share of steps that vote for their class; a step without a vote counts as wrong.

    Args:
        logits: readout at every step (T, B, C).
        targets: classes (T, B), integers from 0 to C - 1.
        mask: (T, B), bool, the steps that count; None: all.

    Returns:
        A share from 0 to 1.

    Raises:
        ValueError: as :func:`mode_vote`, or if targets are not (T, B) or out of range, or the mask
            is not bool (T, B) or leaves a sample without a step.
        TypeError: if targets are not integers.

    Example:
        >>> step_accuracy(torch.tensor([[[0.0, 2.0]], [[1.0, 1.0]]]), torch.tensor([[1], [0]]))
        0.5
    """
    votes = _votes(logits)
    check_classes(targets, logits, per_step=True)
    return _share(votes == targets, mask)


def step_overlap(logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> float:
    r"""Mean over steps of the overlap of what is told, the positive logits, with what is true.

    .. math:: |\{o > 0\} \cap \{y = 1\}| \,/\, |\{o > 0\} \cup \{y = 1\}|,
        \quad 1 \text{ where both are empty}

    Args:
        logits: readout at every step (T, B, C).
        targets: 0 or 1 (T, B, C), any dtype.
        mask: (T, B), bool, the steps that count; None: all.

    Returns:
        A share from 0 to 1.

    Raises:
        ValueError: as :func:`mode_vote`, or if targets are not (T, B, C) or not 0 or 1, or the mask
            is not bool (T, B) or leaves a sample without a step.

    Example:
        >>> step_overlap(torch.tensor([[[1.0, 1.0, -1.0]]]), torch.tensor([[[0, 1, 0]]]))
        0.5

    Source: P. Jaccard, New Phytologist 11 (1912) (the index); here of every step.
    """
    _check_logits(logits)
    check_binary(targets, logits)
    told, true = logits > 0, targets == 1
    both, either = (told & true).sum(-1), (told | true).sum(-1)
    return _share(torch.where(either > 0, both.double() / either.clamp(min=1), 1.0), mask)


def perplexity(logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> float:
    r"""Between how many equally likely classes a step leaves the choice.

    .. math:: \exp\Big(-\frac{1}{\sum_b T_b} \sum_b \sum_{t < T_b}
        \log \mathrm{softmax}(o[t, b])_{y[t, b]}\Big)

    Args:
        logits: readout at every step (T, B, C).
        targets: classes (T, B), integers from 0 to C - 1.
        mask: (T, B), bool, the steps that count; None: all.

    Returns:
        A number from 1; infinite where the mean of the logarithms is above 709.

    Raises:
        ValueError: as :func:`step_accuracy`.
        TypeError: if targets are not integers.

    Example:
        >>> round(perplexity(torch.zeros(5, 2, 4), torch.zeros(5, 2, dtype=torch.int64)), 3)
        4.0
    """
    _check_logits(logits)
    losses = class_losses(logits, targets)
    return _mean_of_steps(losses, mask).exp().item()


def nll(logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> float:
    r"""Negative log-likelihood of a step, in nats: the mean over all steps of all samples.

    .. math:: -\frac{1}{\sum_b T_b} \sum_b \sum_{t < T_b} \sum_c
        \log \sigma\big((2 y[t, b, c] - 1)\, o[t, b, c]\big)

    Args:
        logits: readout at every step (T, B, C).
        targets: 0 or 1 (T, B, C), any dtype.
        mask: (T, B), bool, the steps that count; None: all.

    Raises:
        ValueError: as :func:`step_overlap`.

    Example:
        >>> round(nll(torch.zeros(5, 2, 88), torch.zeros(5, 2, 88)), 3)
        60.997

    Source: N. Boulanger-Lewandowski, Y. Bengio, P. Vincent, "Modeling temporal dependencies in
    high-dimensional sequences", ICML 2012, table 1.
    """
    _check_logits(logits)
    losses = binary_losses(logits, targets)
    return _mean_of_steps(losses, mask).item()


def class_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of every step (T, B), of logits (T, B, C) and classes (T, B), in nats.

    Raises:
        ValueError: if targets are of another shape or out of range.
        TypeError: if they are not integers.
    """
    check_classes(targets, logits, per_step=True)
    losses = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten().long(), reduction="none")
    return losses.view(targets.shape)


def binary_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Negative log-likelihood (T, B) of every step, in nats; logits and binary targets (T, B, C).

    Raises:
        ValueError: if targets are of another shape, or some entry is neither 0 nor 1.
    """
    check_binary(targets, logits)
    losses = nn.functional.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype), reduction="none")
    return losses.sum(-1)


def share_without_vote(logits: Tensor, mask: Tensor | None = None) -> float:
    """Share of (step, sample) pairs in the mask (T, B) at which logits (T, B, C) vote for nobody.

    Raises:
        ValueError: as :func:`mode_vote`.

    Example:
        >>> share_without_vote(torch.tensor([[[0.0, 2.0], [1.0, 1.0]]]))
        0.5
    """
    return _share(_votes(logits) == logits.shape[2], mask)


def firing_rate(spikes: Tensor, mask: Tensor | None = None) -> float:
    """Spikes per neuron and time step, of spikes (T, B, N) in any dtype, inside the mask (T, B).

    Raises:
        ValueError: if spikes are not (T, B, N) with T, B, N >= 1, some entry is neither 0 nor 1, or
            the mask is not bool (T, B) or leaves a sample without a step.

    Example:
        >>> firing_rate(torch.tensor([[[0.0, 1.0]], [[0.0, 0.0]]]))
        0.25
    """
    _check_spikes(spikes)
    if mask is None:
        return int(spikes.count_nonzero()) / spikes.numel()
    return _share(spikes.count_nonzero(-1), mask) / spikes.shape[2]


def silent_steps(spikes: Tensor, mask: Tensor | None = None) -> float:
    """Share of (step, sample) pairs in the mask (T, B) with no spike in spikes (T, B, N).

    Raises:
        ValueError: as :func:`firing_rate`.

    Example:
        >>> silent_steps(torch.tensor([[[0.0, 1.0]], [[0.0, 0.0]]]))
        0.5
    """
    _check_spikes(spikes)
    return _share((spikes == 0).all(-1), mask)


def synops(spikes: Tensor, fan_out: int) -> float:
    """Synaptic operations per sample: a spike is read once by each synapse that its neuron feeds.

    Args:
        spikes: spikes of one layer (T, B, N).
        fan_out: synapses that each neuron feeds; in a recurrent layer its own N, and those above.

    Returns:
        Operations per sample, over all its time steps.

    Raises:
        ValueError: as :func:`firing_rate`, or if fan_out is below 1.
        TypeError: if fan_out is not an int.

    Example:
        >>> synops(torch.tensor([[[1, 1]], [[0, 1]]]), fan_out=10)
        30.0
    """
    _check_spikes(spikes)
    return int(spikes.count_nonzero()) * whole("fan_out", fan_out) / spikes.shape[1]


def sparsity(spikes: Tensor, mask: Tensor | None = None) -> float:
    """Share of (step, sample, neuron) triples without a spike, 1 - :func:`firing_rate`.

    Raises:
        ValueError: as :func:`firing_rate`.

    Example:
        >>> sparsity(torch.tensor([[[0.0, 1.0]], [[0.0, 0.0]]]))
        0.75
    """
    return 1 - firing_rate(spikes, mask)


def _share(values: Tensor, mask: Tensor | None) -> float:
    """Mean of values (T, B) over the steps in the mask of each sample, and then over samples."""
    if mask is None:
        return values.double().mean().item()
    return (values * step_weights(mask, values)).sum().item()


def _mean_of_steps(losses: Tensor, mask: Tensor | None) -> Tensor:
    """Mean of losses (T, B) over all steps in the mask."""
    if mask is None:
        return losses.double().mean()
    step_weights(mask, losses)  # refuses a mask that does not fit
    return losses[mask].double().mean()


def step_weights(mask: Tensor, like: Tensor) -> Tensor:
    """Weights (T, B) that sum to 1: 1 / (B T_b) at the T_b steps of sample b, 0 outside the mask.

    Args:
        mask: (T, B), bool.
        like: what shall be weighted, of shape (T, B, ...).

    Raises:
        ValueError: if the mask is not bool (T, B) or leaves a sample without a step.
    """
    if mask.dtype != torch.bool or mask.shape != like.shape[:2] or not mask.any(0).all():
        wanted = f"mask must be bool {tuple(like.shape[:2])} with a step for every sample"
        raise ValueError(f"{wanted}, got {mask.dtype} {tuple(mask.shape)}.")
    return mask.double() / (mask.sum(0) * mask.shape[1])


def _votes(logits: Tensor) -> Tensor:
    """The class that each step votes for (T, B); C where the largest logits tie."""
    _check_logits(logits)
    top, votes = logits.max(-1)
    alone = (logits == top.unsqueeze(-1)).sum(-1) == 1
    return votes.where(alone, logits.shape[2])


def _check_logits(logits: Tensor) -> None:
    if logits.ndim != 3 or 0 in logits.shape:
        raise ValueError(f"logits must have shape (T, B, C) with T, B, C >= 1, got {tuple(logits.shape)}.")
    if logits.isnan().any():
        raise ValueError("logits must be numbers, got NaN.")


def check_classes(targets: Tensor, logits: Tensor, *, per_step: bool = False) -> None:
    """Refuse classes (B,), or (T, B) per step, that do not fit logits (T, B, C).

    Raises:
        ValueError: if they are of another shape or out of range.
        TypeError: if they are not integers.
    """
    wanted, classes = logits.shape[0 if per_step else 1 : 2], logits.shape[2]
    name = "targets" if per_step else "labels"
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise TypeError(f"{name} must be integers, got {targets.dtype}.")
    if targets.shape != wanted:
        per = "sample and step" if per_step else "sample"
        raise ValueError(f"{name} must have shape {tuple(wanted)}, one per {per}, got {tuple(targets.shape)}.")
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= classes:
        bad = low if low < 0 else high
        raise ValueError(f"{name} must lie in 0 ... {classes - 1}, as there are {classes} logits, got {bad}.")


def check_binary(targets: Tensor, logits: Tensor) -> None:
    """Refuse targets that are not 0 or 1, one for each of the logits (T, B, C).

    Raises:
        ValueError: if they are of another shape, or some entry is neither 0 nor 1.
    """
    if targets.shape != logits.shape:
        raise ValueError(f"targets must have shape {tuple(logits.shape)}, as logits have, got {tuple(targets.shape)}.")
    if not is_binary(targets):
        raise ValueError(f"targets must be 0 or 1, got {targets[(targets != 0) & (targets != 1)][0].item():g}.")


def is_binary(spikes: Tensor) -> bool:
    """Whether all entries are 0 or 1."""
    return bool(((spikes == 0) | (spikes == 1)).all())


def _check_spikes(spikes: Tensor) -> None:
    if spikes.ndim != 3 or 0 in spikes.shape:
        raise ValueError(f"spikes must have shape (T, B, N) with T, B, N >= 1, got {tuple(spikes.shape)}.")
    if not is_binary(spikes):
        other = spikes[(spikes != 0) & (spikes != 1)][0].item()
        raise ValueError(f"spikes must be 0 or 1, got {other:g}.")
