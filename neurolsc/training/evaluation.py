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
from neurolsc.network import Network, NetworkState, Run, as_network
from neurolsc.surroundings import eval_mode
from neurolsc.tasks import Classification, Task, loss_of, measures_of, metric_spec, refuse_no_task
from neurolsc.validation import as_batch, swapped_axes, whole


class Samples(Protocol):
    """A map-style data set: item i is a pair (x, label) with x of shape (T, N).

    Instead of a label an item may have a tensor (T, ...) of targets, one for every step. A data set with
    ``__getitems__`` reads a whole batch at once, and may return a :class:`neurolsc.datasets.Batch`, which can carry a
    mask for samples of unequal length.

    If it has an attribute ``streams`` (int), its items are pieces of that many long sequences, and item i + streams
    continues item i. They are read in order, ``streams`` at a time whatever the batch size. The network begins a batch
    with the detached state in which it ended the one before: truncated backpropagation through time.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> tuple[Tensor, int | Tensor]: ...


# Items; or a loader of batches (x (T, B, N), labels) in its own order and batch size.
Data = Samples | DataLoader[Any]


@dataclass(frozen=True, repr=False)
class Scores(Displayed):
    """Result of :func:`evaluate`: means over samples, shares from 0 to 1.

    Of a sample only the steps within the mask count. Samples count equally, however long they are, but for measures
    that are a mean over all steps (``of_steps`` of their specification).

    Attributes:
        loss: the task's loss, in nats.
        measures: the task's measures by name; they are attributes, too, such as ``scores.mode_accuracy``.
        share_without_vote: share of (step, sample) pairs in which several logits are the largest: such a step does not
            vote for a class (:func:`neurolsc.metrics.share_without_vote`).
        firing_rate: spikes per neuron and step of every layer; None where outputs are not binary.
        silent_steps: share of (step, sample) pairs in which the last layer is silent; None if its output is not binary.
        synops: synaptic operations per sample, those of input events among them; None if they are not known.
        kinds: the specification of each measure, which the task gives.
    """

    loss: float
    measures: dict[str, float]
    share_without_vote: float
    firing_rate: list[float | None]
    silent_steps: float | None
    synops: float | None
    kinds: dict[str, MetricSpec] = field(default_factory=dict)

    def __getattr__(self, name: str) -> float:
        measures = self.__dict__.get("measures", {})  # self.measures would end here again while a copy is unpickled
        if name not in measures:
            raise AttributeError(f"there is no score {name!r}; the measures are {', '.join(measures)}.")
        return measures[name]

    def to_dict(self) -> dict[str, Any]:
        names = ("share_without_vote", "firing_rate", "silent_steps", "synops")
        return {"loss": self.loss} | self.measures | {name: getattr(self, name) for name in names}

    def parts(self) -> list[Table]:
        shown = {
            name.replace("_", " "): self.kinds.get(name, SHARE).text(value) for name, value in self.measures.items()
        }
        shown |= {"loss": f"{self.loss:.3f}", "no vote": f"{self.share_without_vote:.1%}"}
        shown["silent last layer"] = or_dash(self.silent_steps, ".1%")
        shown["spikes/neuron/step"] = " ".join(or_dash(rate, ".4f") for rate in self.firing_rate)
        shown["synops/sample"] = or_dash(self.synops, ",.0f")
        return [Table(tuple(shown), [tuple(shown.values())])]


def evaluate(network: Network, dataset: Data, *, task: Task = Classification(), batch_size: int = 256) -> Scores:
    """Run a network over a data set, in evaluation mode and without gradients.

    Every batch begins with the network at rest. Only if the data set has ``streams`` does it begin with the state in
    which the batch before ended.

    Args:
        network: the network; it stays as it is.
        dataset: items (x, label), see :class:`Samples`; or a ``DataLoader`` of time-first batches.
        task: the task; by default classification, with the sample's label as the target of every step.
        batch_size: samples run at once; the scores depend on it by rounding only.

    Returns:
        Loss and measures of the task, and how much the layers fire, over the whole data set.

    Raises:
        ValueError: if the data set is empty or does not fit the network or the task.
        TypeError: if network, data set or task are of another kind.
        FloatingPointError: if the loss or a measure is NaN or infinite.
    """
    network = as_network(network)
    refuse_no_task(task)
    device = network.dtype_and_device["device"]
    states = None  # at rest
    # each with an entry per batch:
    sizes: list[tuple[int, int]] = []  # number of samples, and of the steps of all samples within the mask
    task_rows: list[dict[str, float]] = []  # loss and measures
    activity_rows: list[dict[str, Any]] = []  # votes and spikes, whatever the task
    with eval_mode(network), torch.no_grad():
        for batch in batches("dataset", dataset, batch_size):
            x, targets, mask = unpack(batch, device)
            run = network.run(x, states, mask=mask)
            states, size = carry_state(dataset, run, mask)
            sizes.append(size)
            spikes = [layer if metrics.is_binary(layer) else None for layer in run.spikes]  # None: numbers, no spikes
            row = {"loss": loss_of(task, run.logits, targets, mask).item()}
            if math.isfinite(row["loss"]):  # measures refuse NaN with an error that does not name the loss
                row |= measures_of(task, run.logits, targets, mask)
            for name, value in row.items():
                if not math.isfinite(value):
                    raise FloatingPointError(
                        f"the {name} is {value} in an evaluation: see neurolsc.diagnose, or lower lr."
                    )
            task_rows.append(row)
            activity_rows.append(
                {
                    "share_without_vote": metrics.share_without_vote(run.logits, mask),
                    "firing_rate": [None if z is None else metrics.firing_rate(z, mask) for z in spikes],
                    "silent_steps": None if spikes[-1] is None else metrics.silent_steps(spikes[-1], mask),
                    "synops": _synops(network, x, spikes),
                }
            )

    def over_batches(values: list[Any], kind: MetricSpec = SHARE) -> Any:
        """The mean of one value per batch, weighted as its kind asks; None if a batch has none."""
        if isinstance(values[0], list):  # a value for each layer
            return [over_batches(list(layer)) for layer in zip(*values, strict=True)]
        if None in values:  # a layer's output is not binary in some batch, or its synapses are not known
            return None
        return kind.mean([BatchMetric(value, *size) for value, size in zip(values, sizes, strict=True)])

    kinds = {name: metric_spec(task, name) for name in task_rows[0] if name != "loss"}
    loss = over_batches([row["loss"] for row in task_rows])
    measures = {name: over_batches([row[name] for row in task_rows], kind) for name, kind in kinds.items()}
    activity = {name: over_batches([row[name] for row in activity_rows]) for name in activity_rows[0]}
    return Scores(loss=loss, measures=measures, kinds=kinds, **activity)


def _synops(network: Network, x: Tensor, spikes: list[Tensor | None]) -> float | None:
    """Count the synaptic operations per sample of a whole network on a batch, those of input events among them.

    Args:
        network: the network.
        x: input (T, B, n_in); each entry other than zero is an event.
        spikes: output (T, B, n_hidden) of every layer, None where it is not binary.

    Returns:
        The number of operations; None if the output of a layer is not binary, or the number of synapses of a layer or
        of the readout is not known.
    """
    without_weights = (nn.Sequential, nn.Identity, nn.Flatten, nn.Dropout)
    match [part for part in network.readout.modules() if not isinstance(part, without_weights)]:
        case []:  # the readout passes the last layer's output on, by no synapse
            outputs = 0
        case [nn.Linear(out_features=outputs)]:  # a spike is read by as many synapses as there are logits
            pass
        case _:  # another readout, whose synapses are not known
            return None
    above = [*(cell.n_hidden for cell in network.cells[1:]), outputs]  # synapses that read a spike in the layer above
    events = int(x.count_nonzero())  # each is read by every neuron of the first layer
    total = events * network.cells[0].n_hidden / x.shape[1]
    for cell, z, onward in zip(network.cells, spikes, above, strict=True):
        if cell.recurrent_synapses is None or z is None:
            return None
        synapses = cell.recurrent_synapses + onward
        if synapses:  # metrics.synops refuses a fan-out of 0
            total += metrics.synops(z, synapses)
    return total


def batches(
    name: str, dataset: Data, batch_size: int, generator: torch.Generator | None = None
) -> DataLoader[tuple[Tensor, ...]]:
    """Return a loader of the time-first batches of a data set.

    Args:
        name: name of the data set in messages.
        dataset: the data set. A ``DataLoader`` is checked and returned as it is: its own order and batch size hold.
        batch_size: samples in a batch; with ``streams`` a batch has one piece of each stream instead.
        generator: shuffles the items anew in every epoch; those of a data set with ``streams`` keep their order. None:
            all keep it.

    Raises:
        ValueError: if the data set is empty, or its batches would have another layout or order.
        TypeError: if it is of another kind.
    """
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
    if streams is not None:
        batch_size = streams
    shuffled = generator is not None and streams is None
    if not shuffled:
        generator = torch.Generator()  # with None the loader would draw a seed from torch's global generator
    return DataLoader(
        cast("Dataset[Any]", dataset),
        batch_size=batch_size,
        shuffle=shuffled,
        collate_fn=collate,
        generator=generator,
    )


def unpack(batch: Any, device: torch.device) -> tuple[Tensor, Tensor, Tensor | None]:
    """Take a batch apart, check its shapes, and move it to a device.

    Returns:
        Input (T, B, N); targets, (B,) or (T, B, ...); and mask (T, B), None if all samples last for T steps.

    Raises:
        TypeError: if the batch is no tuple of x, targets and perhaps a mask, or its targets are no tensor.
        ValueError: if its shapes do not fit each other.
    """
    x, targets, mask = as_batch(batch)
    if not isinstance(targets, Tensor):
        raise TypeError(
            f"targets of a batch must be a tensor, labels (B,) or (T, B, ...), got {type(targets).__name__}: "
            "neurolsc.datasets.collate makes such batches."
        )
    if swapped := swapped_axes(x, targets):
        raise ValueError(f"{swapped}.")
    Batch(x, targets)  # refuses shapes that do not fit; as_batch has checked the mask
    return x.to(device), targets.to(device), None if mask is None else mask.to(device)


def carry_state(dataset: Data, run: Run, mask: Tensor | None) -> tuple[NetworkState | None, tuple[int, int]]:
    """Return the state with which the next batch begins, and the size of this one.

    Returns:
        The state: the detached last one of the run if the data set has ``streams``, whose batches continue each other;
        else None, so that the next batch begins at rest. The size: the number of samples, and the number of steps of
        all samples within the mask.
    """
    steps, samples = run.logits.shape[:2]
    state = None
    if hasattr(dataset, "streams"):
        state = run.states.detach()
    if mask is None:
        return state, (samples, steps * samples)
    return state, (samples, int(mask.sum()))
