"""Scores of a network on a data set."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, default_collate

from neurolsc import metrics
from neurolsc.datasets import Batch, collate
from neurolsc.display import Displayed, Table, or_dash
from neurolsc.measure import SHARE, Measure, Part
from neurolsc.network import Network, NetworkState, Run, as_network
from neurolsc.tasks import Classification, Task, measure_of
from neurolsc.validation import whole

__all__ = ["Data", "Samples", "Scores", "evaluate"]


class Samples(Protocol):
    """A map-style data set: item i is a pair (x, label) with x of shape (T, N).

    Instead of a label an item may have a tensor (T, ...) of targets, one for every step, as the
    task wants it. If the data set has ``__getitems__`` it is asked for a batch at once, and may
    answer with a :class:`neurolsc.datasets.Batch`, which costs no copy and can carry a mask for
    samples of unequal length.

    If it has an attribute ``streams`` (int), its items are pieces of that many long sequences, and
    item i + streams goes on where item i ends. They are then taken in order, ``streams`` at a time
    whatever the batch size, and the state of the network, without its history, goes on from each
    batch to the next: truncated backpropagation through time.
    """

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def __getitem__(self, index: int, /) -> tuple[Tensor, int | Tensor]:
        """Input and label, or input and targets."""
        ...


Data = Samples | DataLoader[Any]
"""Items; or a loader of batches (x (T, B, N), labels), with :func:`neurolsc.datasets.collate` as
its ``collate_fn``, taken in its own order and batch size."""


@dataclass(frozen=True, repr=False)
class Scores(Displayed):
    """What :func:`evaluate` finds: means over samples, shares from 0 to 1.

    Measures of a task may be other means: :class:`neurolsc.measure.Measure`.

    A measure of the task is an attribute as well: ``scores.mode_accuracy``.
    """

    loss: float
    """of the task, in nats"""
    measures: dict[str, float]
    """those of the task by name, of :class:`neurolsc.tasks.Classification` mode_accuracy and
    mean_accuracy"""
    share_without_vote: float
    """:func:`neurolsc.metrics.share_without_vote`"""
    firing_rate: list[float | None]
    """spikes per neuron and step of every layer; None where outputs are not all 0 or 1"""
    silent_steps: float | None
    """share of (step, sample) pairs in which the last layer is silent; None as above. Of samples of
    unequal length this, the rates and the share without a vote count each sample's own steps only,
    and samples equally"""
    synops: float | None
    """synaptic operations per sample, those of the input's events included; None if a layer does
    not spike or does not say how many neurons of its own hear one, or if the readout is neither
    dense nor empty"""
    sparsity: list[float | None]
    """1 - firing_rate"""
    kinds: dict[str, Measure] = field(default_factory=dict)
    """what the measures are, by name; of one that is not there a share of samples"""

    def __getattr__(self, name: str) -> float:
        """A measure of the task."""
        measures = self.__dict__.get("measures", {})
        if name in measures:
            return measures[name]
        known = ", ".join([f.name for f in fields(self)[:-1]] + list(measures))
        raise AttributeError(f"there is no score {name!r}; there are {known}.")

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON values, the measures of the task beside the others."""
        rest = {f.name: getattr(self, f.name) for f in fields(self)[2:-1]}
        return {"loss": self.loss} | self.measures | rest

    def parts(self) -> list[Table]:
        """What is shown: every score below its name."""
        told = {
            name.replace("_", " "): self.kinds.get(name, SHARE).text(value) for name, value in self.measures.items()
        }
        told |= {"loss": f"{self.loss:.3f}", "no vote": f"{self.share_without_vote:.1%}"}
        told["silent last layer"] = or_dash(self.silent_steps, ".1%")
        told["spikes/neuron/step"] = rates(self.firing_rate)
        told["synops/sample"] = or_dash(self.synops, ",.0f")
        return [Table(tuple(told), [tuple(told.values())])]


def rates(layers: Sequence[float | None]) -> str:
    """Firing rates of layers, side by side."""
    return " ".join(or_dash(rate, ".4f") for rate in layers)


def evaluate(network: Network, dataset: Data, *, task: Task = Classification(), batch_size: int = 256) -> Scores:
    """Run a network over a data set, in evaluation mode and without gradients.

    Args:
        network: the network; it stays as it is.
        dataset: items (x, label), as :func:`neurolsc.datasets.collate` takes them; see
            :class:`Samples`. Or a ``DataLoader`` of time-first batches, with its own batch size.
        task: what is asked of the network; by default the label of the sample at every step.
        batch_size: samples run at once; the scores depend on it by rounding only.

    Returns:
        Scores over all samples.

    Raises:
        ValueError: if the data set is empty or does not fit the network or the task.
        TypeError: if network or data set are of another kind.
        FloatingPointError: if the loss or a measure is NaN or infinite.
    """
    as_network(network)
    device = network.dtype_and_device["device"]
    parts: list[tuple[int, int, Scores]] = []
    states = None
    was_training = network.training
    network.eval()
    try:
        with torch.no_grad():
            for batch in batches("dataset", dataset, batch_size):
                x, targets, mask = unpack(batch, device)
                run = network.run(x, states, mask=mask)
                states = carried(dataset, run)
                parts.append((*sizes(x, mask), _scores(network, task, x, run, targets, mask)))
    finally:
        network.train(was_training)
    return _mean(parts, task)


def sizes(x: Tensor, mask: Tensor | None) -> tuple[int, int]:
    """Samples of a batch (T, B, N), and the steps of all of them together."""
    return x.shape[1], x.shape[0] * x.shape[1] if mask is None else int(mask.sum())


def batches(
    name: str, dataset: Data, batch_size: int, generator: torch.Generator | None = None
) -> DataLoader[tuple[Tensor, ...]]:
    """The batches of a data set, by :func:`collate`, in order or shuffled by a generator.

    Those of a data set with ``streams`` are never shuffled. A loader is returned as it is.

    Raises:
        ValueError: if the data set is empty, not all its streams are equally long, or a loader's
            batches are not time-first; the message calls it by the name.
        TypeError: if it is not a data set, or a loader without a length.
    """
    if isinstance(dataset, DataLoader):
        return _checked(name, dataset)
    wanted = f"{name} must be a data set with a length and items (x (T, N), label)"
    if isinstance(dataset, Tensor) or not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise TypeError(f"{wanted}, got {type(dataset).__name__}.")
    if len(dataset) == 0:
        raise ValueError(f"{name} is empty; at least one sample (x, label) is needed.")
    whole("batch_size", batch_size)
    streams = getattr(dataset, "streams", None)
    if streams is not None and len(dataset) % whole("streams", streams):
        raise ValueError(f"{name} must have equally long streams, got {len(dataset)} items of {streams} streams.")
    shuffled = generator is not None and streams is None
    return DataLoader(
        cast("Dataset[Any]", dataset),
        batch_size=batch_size if streams is None else streams,
        shuffle=shuffled,
        collate_fn=collate,
        # a loader without a generator would draw from the global one
        generator=generator if shuffled else torch.Generator(),
    )


def _checked(name: str, loader: DataLoader[Any]) -> DataLoader[Any]:
    """A loader, if it has a length and its batches can be time-first."""
    try:
        length = len(loader)
    except TypeError as error:
        raise TypeError(f"{name} must be a DataLoader with a length, got one of an iterable without.") from error
    if length == 0:
        raise ValueError(f"{name} is an empty DataLoader; at least one batch is needed.")
    if hasattr(loader.dataset, "streams"):
        raise ValueError(f"{name} has streams, whose order a DataLoader does not keep: give its data set.")
    if loader.collate_fn is default_collate:
        raise ValueError(
            f"{name} is a DataLoader with torch's default collate_fn, which makes batches (B, T, N), wanted are (T, B, N): "
            "DataLoader(..., collate_fn=neurolsc.datasets.collate)."
        )
    return loader


def unpack(batch: Sequence[Tensor], device: torch.device) -> tuple[Tensor, Tensor, Tensor | None]:
    """Input (T, B, N), targets and mask (T, B) or None, on a device.

    Raises:
        TypeError: if it is no such batch, which a loader may give.
        ValueError: if shapes do not fit, such as those of a batch (B, T, N).
    """
    whole = isinstance(batch, tuple | list) and len(batch) in (2, 3) and all(isinstance(p, Tensor) for p in batch)
    if not whole:
        kinds = ", ".join(type(p).__name__ for p in batch) if isinstance(batch, tuple | list) else type(batch).__name__
        raise TypeError(
            f"a batch must be tensors x (T, B, N), labels (B,) and perhaps a mask (T, B), got {kinds}: "
            "neurolsc.datasets.collate makes such."
        )
    x, targets, *mask = (part.to(device) for part in batch)
    Batch(x, targets)  # refuses shapes that do not fit
    return x, targets, mask[0] if mask else None


def carried(dataset: Data, run: Run) -> NetworkState | None:
    """Where the next batch of a data set starts: where this run ended, or None, at rest."""
    return run.states.detach() if hasattr(dataset, "streams") else None


def _scores(network: Network, task: Task, x: Tensor, run: Run, targets: Tensor, mask: Tensor | None) -> Scores:
    """Scores of one batch."""
    loss = task.loss(run.logits, targets, mask).item()
    if not math.isfinite(loss):
        raise FloatingPointError(f"the loss is {loss} in an evaluation, the weights have diverged: train with less lr.")
    return Scores(
        loss=loss,
        measures=task.measures(run.logits, targets, mask),
        share_without_vote=metrics.share_without_vote(run.logits, mask),
        firing_rate=[_of_spikes(metrics.firing_rate, layer, mask) for layer in run.spikes],
        silent_steps=_of_spikes(metrics.silent_steps, run.spikes[-1], mask),
        synops=_synops(network, x, run),
        sparsity=[_of_spikes(metrics.sparsity, layer, mask) for layer in run.spikes],
    )


def _of_spikes(metric: Callable[[Tensor, Tensor | None], float], layer: Tensor, mask: Tensor | None) -> float | None:
    return metric(layer, mask) if metrics.is_binary(layer) else None


_SENDING_ON = (nn.Identity, nn.Flatten, nn.Dropout)
"""modules in which nothing is multiplied"""


def _synops(network: Network, x: Tensor, run: Run) -> float | None:
    """Operations per sample of the whole network; a neuron may also feed those of its own layer."""
    within = [cell.recurrent_synapses for cell in network.cells]
    above = [*(cell.n_hidden for cell in network.cells[1:]), _read_by(network.readout)]
    if not all(metrics.is_binary(layer) for layer in run.spikes) or None in (*within, *above):
        return None
    events = int((x.coalesce().values() if x.is_sparse else x).count_nonzero())
    total = events * network.cells[0].n_hidden / x.shape[1]
    for own, layer, onward in zip(within, run.spikes, above, strict=True):
        synapses = (own or 0) + (onward or 0)
        total += metrics.synops(layer, synapses) if synapses else 0
    return total


def _read_by(readout: nn.Module) -> int | None:
    """The synapses from a neuron to a readout, None if it does not say."""
    parts = [part for part in readout.modules() if type(part) not in _SENDING_ON]
    containers = [part for part in parts if isinstance(part, nn.Sequential)]
    match [part for part in parts if part not in containers]:
        case []:
            return 0
        case [nn.Linear(out_features=outputs)]:
            return outputs
    return None


def _mean(parts: list[tuple[int, int, Scores]], task: Task) -> Scores:
    """Scores of all batches together; None where one of them is None.

    Raises:
        FloatingPointError: if a measure of the task is NaN or infinite.
    """
    samples = sum(size for size, _, _ in parts)

    def mean(values: list[Any]) -> Any:
        if isinstance(values[0], list):
            return [mean(list(layer)) for layer in zip(*values, strict=True)]
        if any(value is None for value in values):
            return None
        return sum(size * value for (size, _, _), value in zip(parts, values, strict=True)) / samples

    kinds = {name: measure_of(task, name) for name in parts[0][2].measures}
    measures = {
        name: kind.mean(Part(scores.measures[name], *size) for *size, scores in parts) for name, kind in kinds.items()
    }
    if odd := [name for name, value in measures.items() if not math.isfinite(value)]:
        raise FloatingPointError(
            f"the {odd[0]} is {measures[odd[0]]} in an evaluation, the weights have diverged: train with less lr."
        )
    rest = [f.name for f in fields(Scores) if f.name not in ("measures", "kinds")]
    return Scores(
        **{name: mean([getattr(scores, name) for _, _, scores in parts]) for name in rest},
        measures=measures,
        kinds=kinds,
    )
