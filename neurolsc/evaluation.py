"""Scores of a network on a data set."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from neurolsc import metrics
from neurolsc.datasets import collate
from neurolsc.network import Network, Run
from neurolsc.validation import whole

__all__ = ["Samples", "Scores", "cross_entropy", "evaluate"]


class Samples(Protocol):
    """A map-style data set: item i is a pair (x, label) with x of shape (T, N).

    If it has ``__getitems__`` it is asked for a batch at once, and may answer with a
    :class:`neurolsc.datasets.Batch`, which costs no copy and can carry a mask for samples of unequal length.
    """

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def __getitem__(self, index: int, /) -> tuple[Tensor, int]:
        """Input and label."""
        ...


@dataclass(frozen=True)
class Scores:
    """What :func:`evaluate` finds: means over samples, accuracies and shares from 0 to 1."""

    loss: float
    """:func:`cross_entropy`, in nats"""
    mode_accuracy: float
    """:func:`neurolsc.metrics.mode_accuracy`"""
    mean_accuracy: float
    """:func:`neurolsc.metrics.mean_accuracy`"""
    share_without_vote: float
    """:func:`neurolsc.metrics.share_without_vote`"""
    firing_rate: list[float | None]
    """spikes per neuron and step of every layer; None for a layer whose outputs are not all 0 or 1"""
    silent_steps: float | None
    """share of (step, sample) pairs in which the last layer is silent; None as above. Of samples of unequal length this,
    the rates and the share without a vote count each sample's own steps only, and samples equally"""
    synops: float | None
    """synaptic operations per sample, those of the input's events included; None if a layer does not spike,
    or does not say how many neurons of its own hear one"""
    sparsity: list[float | None]
    """1 - firing_rate"""


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
        ValueError: if labels are not (B,) or out of range, or the mask is not bool (T, B) or leaves a sample without a
            step.
        TypeError: if labels are not integers.

    Example:
        >>> cross_entropy(torch.zeros(5, 2, 4), torch.tensor([0, 3])).exp().round(decimals=3)
        tensor(4.)

    Source: arXiv:2308.12075, Sec. II-G (the network predicts the target at every time step).
    """
    metrics.check_labels(labels, logits)
    if mask is None:
        return nn.functional.cross_entropy(logits.flatten(0, 1), labels.repeat(logits.shape[0]))
    weights = metrics.step_weights(mask, logits).to(logits.dtype)
    losses = nn.functional.cross_entropy(logits.flatten(0, 1), labels.repeat(logits.shape[0]), reduction="none")
    return (losses.view_as(mask) * weights).sum()


def evaluate(network: Network, dataset: Samples, *, batch_size: int = 256) -> Scores:
    """Run a network over a data set, in evaluation mode and without gradients.

    Args:
        network: the network; it stays as it is.
        dataset: items (x, label), as :func:`neurolsc.datasets.collate` takes them.
        batch_size: samples run at once; the scores depend on it by rounding only.

    Returns:
        Scores over all samples.

    Raises:
        ValueError: if the data set is empty or does not fit the network.
        TypeError: if it has no length.
        FloatingPointError: if the loss is NaN or infinite.
    """
    device = network.dtype_and_device["device"]
    parts: list[tuple[int, Scores]] = []
    was_training = network.training
    network.eval()
    try:
        with torch.no_grad():
            for batch in batches("dataset", dataset, batch_size):
                x, labels, mask = unpack(batch, device)
                parts.append((len(labels), _scores(network, x, labels, mask)))
    finally:
        network.train(was_training)
    return _mean(parts)


def batches(
    name: str, dataset: Samples, batch_size: int, generator: torch.Generator | None = None
) -> DataLoader[tuple[Tensor, ...]]:
    """The batches of a data set as :func:`collate` gives them, in its order, or shuffled by a generator.

    Raises:
        ValueError: if the data set is empty; the message calls it by the name.
        TypeError: if it has no length.
    """
    if not hasattr(dataset, "__len__"):
        raise TypeError(f"{name} must be a data set with a length and items, got {type(dataset).__name__}.")
    if len(dataset) == 0:
        raise ValueError(f"{name} is empty; at least one sample (x, label) is needed.")
    return DataLoader(
        cast("Dataset[Any]", dataset),
        batch_size=whole("batch_size", batch_size),
        shuffle=generator is not None,
        collate_fn=collate,
        # a loader without a generator would draw from the global one
        generator=torch.Generator() if generator is None else generator,
    )


def unpack(batch: tuple[Tensor, ...], device: torch.device) -> tuple[Tensor, Tensor, Tensor | None]:
    """Input (T, B, N), labels (B,) and mask (T, B), None if all samples last for T steps, on a device."""
    x, labels, *mask = (part.to(device) for part in batch)
    return x, labels, mask[0] if mask else None


def _scores(network: Network, x: Tensor, labels: Tensor, mask: Tensor | None) -> Scores:
    """Scores of one batch."""
    run = network.run(x, mask=mask)
    loss = cross_entropy(run.logits, labels, mask).item()
    if not math.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss} in an evaluation, the weights have diverged: train with less lr.")
    silent = _of_spikes(metrics.silent_steps, run.spikes[-1], mask)
    return Scores(
        loss=loss,
        mode_accuracy=metrics.mode_accuracy(run.logits, labels),
        mean_accuracy=metrics.mean_accuracy(run.logits, labels),
        share_without_vote=metrics.share_without_vote(run.logits, mask),
        firing_rate=[_of_spikes(metrics.firing_rate, layer, mask) for layer in run.spikes],
        silent_steps=silent,
        synops=_synops(network, x, run),
        sparsity=[_of_spikes(metrics.sparsity, layer, mask) for layer in run.spikes],
    )


def _of_spikes(metric: Callable[[Tensor, Tensor | None], float], layer: Tensor, mask: Tensor | None) -> float | None:
    return metric(layer, mask) if metrics.is_binary(layer) else None


def _synops(network: Network, x: Tensor, run: Run) -> float | None:
    """Operations per sample of the whole network; a recurrent neuron also feeds those of its own layer."""
    within = [cell.recurrent_synapses for cell in network.cells]
    if not all(metrics.is_binary(layer) for layer in run.spikes) or None in within:
        return None
    events = int((x.coalesce().values() if x.is_sparse else x).count_nonzero())
    total = events * network.cells[0].n_hidden / x.shape[1]
    above = [cell.n_hidden for cell in network.cells[1:]] + [network.n_out]
    for own, layer, onward in zip(within, run.spikes, above, strict=True):
        total += metrics.synops(layer, (own or 0) + onward)
    return total


def _mean(parts: list[tuple[int, Scores]]) -> Scores:
    """The mean of scores weighted by their samples; None where one of them is None."""
    samples = sum(size for size, _ in parts)

    def mean(values: list[Any]) -> Any:
        if isinstance(values[0], list):
            return [mean(list(layer)) for layer in zip(*values, strict=True)]
        if any(value is None for value in values):
            return None
        return sum(size * value for (size, _), value in zip(parts, values, strict=True)) / samples

    rows = [asdict(scores) for _, scores in parts]
    return Scores(**{key: mean([row[key] for row in rows]) for key in rows[0]})
