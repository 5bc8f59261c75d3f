"""Event data sets of tonic as items (x (T, N), label)."""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from neurolsc.datasets.batches import Batch, BatchDataset, collate, count_bins
from neurolsc.datasets.speech import MOST
from neurolsc.io import stable_repr
from neurolsc.validation import number, one_of

LARGEST = 2**32  # most numbers in an item, 4 GiB as uint8


@dataclass(eq=False, repr=False)
class TonicFrames(BatchDataset):
    """Items of :func:`from_tonic`, with the arguments of that function as attributes.

    Attributes:
        names: name of each class.
        numbers: class of each item (n,), where the data set's targets are in memory; else empty.
    """

    _dataset: Any
    names: list[str]
    dt: float | None
    window: float | None
    start: str
    sensor_size: tuple[int, ...] | None
    binary: bool

    split = None
    n_in: Any = field(init=False)  # None of frames, unless a sensor_size is known

    def __post_init__(self) -> None:
        if self.dt is None or self.window is None:
            self.steps = None
        else:
            self.steps = count_bins(self.dt, self.window, unit="s")
        self.n_in = None
        if self.sensor_size is not None:
            self.n_in = math.prod(self.sensor_size)
        self.n_classes = len(self.names)
        # the next three are not read here: they are compared when a training is resumed from a checkpoint
        self.source = type(self._dataset).__name__
        transforms = [getattr(self._dataset, name, None) for name in ("transform", "target_transform", "transforms")]
        self.changes = stable_repr(transforms)
        self.numbers = np.array([self._label(i, t) for i, t in enumerate(_targets(self._dataset))])

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        return Batch(*collate([self[i] for i in indices]))

    def item(self, index: int) -> tuple[Tensor, int]:
        """Return one item: x (T, N) and the number of its class."""
        data, target = self._dataset[index]
        if self.dt is not None:
            return self._binned(index, data, self.dt), self._label(index, target)
        if _fields(data):
            raise ValueError("items are events: give dt, the width of a bin in seconds.")
        x = torch.as_tensor(data).flatten(1)
        if self.n_in not in (None, x.shape[1]):
            raise ValueError(
                f"frames have {x.shape[1]} values, and the sensor {self.sensor_size} has {self.n_in}, in item {index}: "
                "give the sensor_size of the frames."
            )
        if self.binary:
            x = (x > 0).to(torch.uint8)
        return x, self._label(index, target)

    def _binned(self, index: int, events: Any, dt: float) -> Tensor:
        """Return the counts (T, N), uint8, of an item's events in bins of dt seconds; `index` is for messages."""
        assert self.sensor_size is not None and self.n_in is not None
        W, H, P = self.sensor_size
        wanted = ["t", "x"]
        if H > 1:
            wanted.append("y")
        if P > 1:
            wanted.append("p")
        fields = _fields(events)
        if not set(wanted) <= set(fields):
            if fields:
                got = f"fields {fields}"
            else:
                got = f"{type(events).__name__}; of frames leave out dt"
            raise TypeError(
                f"events of a sensor {self.sensor_size} must be a structured array with {', '.join(wanted)}, got {got} "
                f"in item {index}."
            )
        times = events["t"]
        if len(times) and self.start == "first":
            times = times - times.min()
        if len(times) and not ((times >= 0) & (times < np.inf)).all():  # NaN fails both comparisons
            raise ValueError(
                f"times must be microseconds from 0, got {times.min()} to {times.max()} in item {index}; start='first' "
                "counts from the first event."
            )
        width = dt * 1e6
        if math.isclose(width, round(width), rel_tol=1e-9):
            width = round(width)  # whole microseconds divide without rounding
        # Steps are cut off at `late`, as a float beyond int64 would become any integer. Half of int64 is far beyond
        # memory, and float64 holds it without rounding it up to where int64 ends.
        if self.steps is None:
            late = np.iinfo(np.int64).max // 2
        else:
            late = self.steps
        step = np.minimum(times // width, late).astype(np.int64)
        place = np.zeros(len(events), np.int64)
        for name, size in (("p", P), ("y", H), ("x", W)):
            if size > 1:
                values = events[name].astype(np.int64)
                if len(values) and (values.min() < 0 or values.max() >= size):
                    raise ValueError(
                        f"{name} of events must be from 0 to {size - 1} on a sensor {self.sensor_size}, got {values.min()} "
                        f"to {values.max()} in item {index}: give the sensor_size that the transforms leave."
                    )
                place = place * size + values
        if self.steps is None:
            steps = int(step.max(initial=0)) + 1
        else:
            steps = self.steps
        if steps * self.n_in > LARGEST and self.steps is not None:
            raise ValueError(
                f"{steps:,} steps of {dt * 1e3:g} ms do not fit into memory: take a shorter window, or a larger dt."
            )
        if steps * self.n_in > LARGEST:
            raise ValueError(
                f"the last event of item {index} is at {times.max() * 1e-6:.4g} s: {steps:,} steps of {dt * 1e3:g} ms do "
                "not fit into memory; times are microseconds, and window cuts items."
            )
        counts = np.bincount((step * self.n_in + place)[step < steps], minlength=steps * self.n_in)
        if self.binary:
            counts = counts > 0
        elif counts.max(initial=0) > MOST:
            raise ValueError(
                f"a bin of {dt * 1e3:g} ms holds {counts.max()} events in item {index}, at most {MOST} fit: take a smaller "
                "dt, or binary=True."
            )
        return torch.from_numpy(counts.astype(np.uint8)).view(steps, self.n_in)

    def _label(self, index: int, target: Any) -> int:
        """Return the number of an item's class, which the data set gives by name or by number."""
        if isinstance(target, bytes):
            target = target.decode()
        if isinstance(target, str) and target in self.names:
            return self.names.index(target)
        if isinstance(target, str) or not 0 <= operator.index(target) < self.n_classes:
            names = ", ".join(self.names[:8])
            raise ValueError(f"the label {target!r} of item {index} is none of the {self.n_classes} classes {names}.")
        return operator.index(target)


def from_tonic(
    dataset: Any,
    *,
    dt: float | None = None,
    window: float | None = None,
    start: Literal["zero", "first"] = "zero",
    sensor_size: Sequence[int] | None = None,
    classes: Sequence[str] | None = None,
    binary: bool = False,
) -> TonicFrames:
    r"""Take a data set of tonic, or one with items like tonic's, as items (x (T, N), label).

    Events are counted in bins of dt seconds, on one grid for all items. Polarity p, row y and column x on the sensor of
    size (W, H, P) become the input

    .. math:: n = (p H + y) W + x, \qquad N = P H W,

    which is the order of tonic's frames (T, P, H, W) when each is flattened. Where ``ToFrame(sensor_size,
    time_window=1e6 * dt, start_time=0, end_time=1e6 * window)`` returns as many frames, they are equal to these bins.
    With one polarity, p is not read.

    The data set's own transforms run first. Random transforms draw from NumPy's global random numbers, which no seed of
    :func:`neurolsc.train` reaches: a resumed training then draws other numbers.

    Args:
        dataset: items (events, label); events a structured array with fields t in microseconds, x, y where H > 1, and p
            where P > 1; or frames (T, ...).
        dt: width of a bin, in seconds; None if items are frames already.
        window: length of an item, in seconds, a whole number of bins; later events are left out. None: every item lasts
            until its last event, and a batch as long as its longest item, with a mask.
        start: where time begins: ``"zero"``, at 0 of the clock, or ``"first"``, at the first event of an item.
        sensor_size: (W, H, P); by default the data set's own.
        classes: names of the classes, in the order of their numbers; by default the data set's own ``classes``, else
            all ``targets`` in order. Labels may be numbers or names.
        binary: True: an entry is 1 for any count above 0.

    Raises:
        TypeError: if items or labels are of another kind.
        ValueError: if a setting is out of range, classes or sensor_size are needed and not known, or an event or label
            lies outside.

    Example:
        >>> fields = [("t", int), ("x", int), ("p", int)]
        >>> recording = np.array([(0, 1, 0), (9_000, 2, 0)], dtype=fields)
        >>> about = {"sensor_size": (3, 1, 1), "classes": ["yes", "no"]}
        >>> from_tonic([(recording, "no")], dt=4e-3, window=0.012, **about)[0]
        (tensor([[0, 1, 0],
                [0, 0, 0],
                [0, 0, 1]], dtype=torch.uint8), 1)
    """
    size = sensor_size
    if sensor_size is None:
        size = getattr(dataset, "sensor_size", None)
    if size is None and dt is not None:
        raise ValueError("the data set has no sensor_size: give one, (W, H, P).")
    if size is not None and len(size) != 3:
        raise ValueError(f"sensor_size must be (W, H, P), got {size!r}.")
    if dt is None and window is not None:
        raise ValueError(f"window needs dt, the width of a bin in seconds, got window={window} alone.")
    known: Any = classes  # in the order of their numbers
    if classes is None:
        known = getattr(dataset, "classes", None)
    if isinstance(known, dict):  # from names to numbers
        known = sorted(known, key=known.__getitem__)
    elif known is not None:
        known = list(known)
    if not known and (targets := _targets(dataset)):
        if isinstance(targets[0], str | bytes):
            known = sorted(set(targets))
        else:
            known = range(max(map(int, targets)) + 1)
    if not known:
        raise ValueError("the data set does not say which classes there are: give classes, their names in order.")
    names = [name.decode() if isinstance(name, bytes) else str(name) for name in known]
    if dt is not None:
        dt = number("dt", dt)
    if size is not None:
        size = tuple(map(int, size))
    one_of("start", start, ("zero", "first"))
    return TonicFrames(dataset, names, dt, window, start, size, binary)


def _fields(data: Any) -> tuple[str, ...]:
    """Return the names of the fields of a structured array; empty for anything else."""
    dtype = getattr(data, "dtype", None)
    return getattr(dtype, "names", None) or ()


def _targets(dataset: Any) -> list[Any]:
    """Return the labels that a data set holds in memory; empty if it has none, or if a transform still changes them."""
    changed = getattr(dataset, "target_transform", None) or getattr(dataset, "transforms", None)
    targets = getattr(dataset, "targets", None)
    if changed or targets is None:
        return []
    return list(targets)
