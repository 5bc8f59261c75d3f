"""Scores of a network on a data set, and the batches of one."""

import math
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, default_collate

from neurolsc import metrics
from neurolsc.datasets import Batch, collate
from neurolsc.display import Displayed, Table, or_dash
from neurolsc.metrics import SHARE, BatchMetric, MetricSpec
from neurolsc.network import Network, NetworkState, Run, as_network, eval_mode
from neurolsc.tasks import Classification, Task, metric_spec
from neurolsc.validation import as_batch, swapped_axes, whole


class Samples(Protocol):
    """A map-style data set: item i is a pair (x, label) with x of shape (T, N).

    Instead of a label an item may have a tensor (T, ...) of targets, one for every step. A data set with
    ``__getitems__`` reads a whole batch at once, and may return a :class:`neurolsc.datasets.Batch`, which can carry a
    mask for samples of unequal length.

    If it has an attribute ``streams`` (int), its items are pieces of that many long sequences, and item i + streams
    continues item i. They are read in order, ``streams`` at a time whatever the batch size, and the state of the
    network, without its history, goes on from each batch to the next: truncated backpropagation through time.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[Tensor, int | Tensor]: ...


# Items; or a loader of batches (x (T, B, N), labels) in its own order and batch size.
Data = Samples | DataLoader[Any]


@dataclass(frozen=True, repr=False)
class Scores(Displayed):
    """Result of :func:`evaluate`: means over samples, shares from 0 to 1.

    Of samples of unequal length each counts its own steps only, and samples count equally.

    Attributes:
        loss: the task's loss, in nats.
        measures: the task's measures by name; they are attributes, too, such as ``scores.mode_accuracy``.
        share_without_vote: :func:`neurolsc.metrics.share_without_vote`.
        firing_rate: spikes per neuron and step of every layer; None where outputs are not binary.
        silent_steps: share of (step, sample) pairs in which the last layer is silent; None as above.
        synops: synaptic operations per sample, with those of input events; None if they are not known.
        kinds: the kind of each measure, as of its task.
    """

    loss: float
    measures: dict[str, float]
    share_without_vote: float
    firing_rate: list[float | None]
    silent_steps: float | None
    synops: float | None
    kinds: dict[str, MetricSpec] = field(default_factory=dict)

    def __getattr__(self, name: str) -> float:
        measures = self.__dict__.get("measures", {})
        if name not in measures:
            raise AttributeError(f"there is no score {name!r}; the measures are {', '.join(measures)}.")
        return measures[name]

    def to_dict(self) -> dict[str, Any]:
        names = ("share_without_vote", "firing_rate", "silent_steps", "synops")
        return {"loss": self.loss} | self.measures | {name: getattr(self, name) for name in names}

    def parts(self) -> list[Table]:
        shown = {name.replace("_", " "): self.kinds.get(name, SHARE).text(v) for name, v in self.measures.items()}
        shown |= {"loss": f"{self.loss:.3f}", "no vote": f"{self.share_without_vote:.1%}"}
        shown["silent last layer"] = or_dash(self.silent_steps, ".1%")
        shown["spikes/neuron/step"] = " ".join(or_dash(rate, ".4f") for rate in self.firing_rate)
        shown["synops/sample"] = or_dash(self.synops, ",.0f")
        return [Table(tuple(shown), [tuple(shown.values())])]


def evaluate(network: Network, dataset: Data, *, task: Task = Classification(), batch_size: int = 256) -> Scores:
    """Run a network over a data set, in evaluation mode and without gradients.

    Args:
        network: the network; it stays as it is.
        dataset: items (x, label), see :class:`Samples`; or a ``DataLoader`` of time-first batches.
        task: the task; by default the label of the sample at every step.
        batch_size: samples run at once; the scores depend on it by rounding only.

    Raises:
        ValueError: if the data set is empty or does not fit the network or the task.
        TypeError: if network or data set are of another kind.
        FloatingPointError: if the loss or a measure is NaN or infinite.
    """
    network = as_network(network)
    device = network.dtype_and_device["device"]
    states = None
    sizes: list[tuple[int, int]] = []
    measured: list[dict[str, float]] = []
    others: list[dict[str, Any]] = []
    with eval_mode(network), torch.no_grad():
        for batch in batches("dataset", dataset, batch_size):
            x, targets, mask = unpack(batch, device)
            run = network.run(x, states, mask=mask)
            states, size = carry_state(dataset, run, mask)
            sizes.append(size)
            spikes = [layer if metrics.is_binary(layer) else None for layer in run.spikes]
            measured.append({"loss": task.loss(run.logits, targets, mask).item()})
            if math.isfinite(measured[-1]["loss"]):
                measured[-1] |= task.measures(run.logits, targets, mask)
            if bad := {name: value for name, value in measured[-1].items() if not math.isfinite(value)}:
                name, value = next(iter(bad.items()))
                raise FloatingPointError(f"the {name} is {value} in an evaluation: see neurolsc.diagnose, or lower lr.")
            others.append(
                {
                    "share_without_vote": metrics.share_without_vote(run.logits, mask),
                    "firing_rate": [None if z is None else metrics.firing_rate(z, mask) for z in spikes],
                    "silent_steps": None if spikes[-1] is None else metrics.silent_steps(spikes[-1], mask),
                    "synops": _synops(network, x, spikes),
                }
            )

    def mean(values: list[Any], kind: MetricSpec = SHARE) -> Any:
        if isinstance(values[0], list):
            return [mean(list(layer)) for layer in zip(*values, strict=True)]
        if None in values:
            return None
        return kind.mean([BatchMetric(value, *size) for value, size in zip(values, sizes, strict=True)])

    kinds = {name: metric_spec(task, name) for name in measured[0] if name != "loss"}
    measures = {name: mean([one[name] for one in measured], kind) for name, kind in kinds.items()}
    means = {name: mean([other[name] for other in others]) for name in others[0]}
    return Scores(loss=mean([one["loss"] for one in measured]), measures=measures, kinds=kinds, **means)


def _synops(network: Network, x: Tensor, spikes: list[Tensor | None]) -> float | None:
    """Operations per sample of the whole network; None if some number of synapses is not known."""
    without = (nn.Sequential, nn.Identity, nn.Flatten, nn.Dropout)
    match [part for part in network.readout.modules() if not isinstance(part, without)]:
        case []:
            outputs = 0
        case [nn.Linear(out_features=outputs)]:
            pass
        case _:
            return None
    above = [*(cell.n_hidden for cell in network.cells[1:]), outputs]
    events = int(x.count_nonzero())
    total = events * network.cells[0].n_hidden / x.shape[1]
    for cell, z, onward in zip(network.cells, spikes, above, strict=True):
        if cell.recurrent_synapses is None or z is None:
            return None
        synapses = cell.recurrent_synapses + onward
        if synapses:
            total += metrics.synops(z, synapses)
    return total


def batches(
    name: str, dataset: Data, batch_size: int, generator: torch.Generator | None = None
) -> DataLoader[tuple[Tensor, ...]]:
    """The batches of a data set, in order or, without ``streams``, shuffled by a generator; a loader as it is."""
    if isinstance(dataset, DataLoader):
        if isinstance(dataset.dataset, IterableDataset) and not hasattr(dataset.dataset, "__len__"):
            raise TypeError(f"{name} is a DataLoader of an IterableDataset without a length: give it a __len__.")
        if len(dataset) == 0:
            raise ValueError(f"{name} is an empty DataLoader; at least one batch is needed.")
        if hasattr(dataset.dataset, "streams"):
            raise ValueError(f"{name} has streams, whose order a DataLoader does not respect: give its data set.")
        if dataset.collate_fn is default_collate:
            raise ValueError(
                f"{name} is a DataLoader with torch's default collate_fn, which makes batches (B, T, N), wanted are "
                "(T, B, N): DataLoader(..., collate_fn=neurolsc.datasets.collate)."
            )
        return dataset
    if isinstance(dataset, Tensor) or not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        wanted = "a data set with a length and items (x (T, N), label)"
        raise TypeError(f"{name} must be {wanted}, got {type(dataset).__name__}.")
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
        generator=generator if shuffled else torch.Generator(),  # else it would draw from the global one
    )


def unpack(batch: Any, device: torch.device) -> tuple[Tensor, Tensor, Tensor | None]:
    """Input (T, B, N), targets, and mask (T, B) or None, on a device; an error for a batch of other kind or shape."""
    x, targets, mask = as_batch(batch)
    if not isinstance(targets, Tensor):
        raise TypeError(
            f"a batch must have targets, tensors x (T, B, N) and labels (B,), got {type(targets).__name__}: "
            "neurolsc.datasets.collate makes such."
        )
    if swapped := swapped_axes(x, targets):
        raise ValueError(f"{swapped}.")
    Batch(x, targets)  # refuses shapes that do not fit
    return x.to(device), targets.to(device), None if mask is None else mask.to(device)


def carry_state(dataset: Data, run: Run, mask: Tensor | None) -> tuple[NetworkState | None, tuple[int, int]]:
    """The state with which the next batch begins, None if that is at rest; and numbers of samples and of steps.

    Only batches of a data set with streams continue each other.
    """
    steps, samples = run.logits.shape[:2]
    state = None
    if hasattr(dataset, "streams"):
        state = run.states.detach()
    if mask is None:
        return state, (samples, steps * samples)
    return state, (samples, int(mask.sum()))
