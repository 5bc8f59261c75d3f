"""Event data sets of tonic as items (x (T, N), label)."""

import math
import operator
import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from neurolsc.datasets.batches import Batch, BatchDataset, collate, count_bins
from neurolsc.datasets.speech import MOST
from neurolsc.validation import number, one_of, whole


def from_tonic(
    dataset: Any,
    *,
    dt: float | None = None,
    window: float | None = None,
    start: Literal["zero", "first"] = "zero",
    sensor_size: Sequence[int] | None = None,
    classes: Sequence[str] | None = None,
    binary: bool = False,
) -> "TonicFrames":
    r"""Take a data set of tonic, or one with items like tonic's, as items (x (T, N), label).

    Events are counted in bins of dt seconds, one grid for all items; polarity, row and column of
    the sensor of size (W, H, P) become the input

    .. math:: n = (p H + y) W + x, \qquad N = P H W,

    which is the order of tonic's frames (T, P, H, W), read one value after the other. Where
    ``ToFrame(sensor_size, time_window=1e6 * dt, start_time=0, end_time=1e6 * window)`` gives all
    frames, they are equal bin for bin. With one polarity, p is not used.

    The data set's own transforms run first: those on events, such as ``Denoise`` or ``Downsample``
    (which needs the new sensor_size here), and also ``ToFrame``, with any of its slicings. Leave
    out dt where they make frames. Those that draw do so from NumPy's global random numbers, which
    no seed of :func:`neurolsc.train` reaches: a resumed training then draws others.

    Args:
        dataset: items (events, label); events a structured array with fields t in microseconds, x,
            y where H > 1, and p where P > 1; or frames (T, ...).
        dt: width of a bin, in seconds; None if items are frames already.
        window: length, in seconds, a whole number of bins; later events are left out. None: every
            item lasts until its last event, and a batch until that of its longest, with a mask.
        start: where time begins: ``"zero"`` of the clock, or the ``"first"`` event of an item.
        sensor_size: (W, H, P); by default the data set's own.
        classes: their names, in the order of their numbers; by default the data set's own
            ``classes``, else all ``targets`` in order. Labels may be numbers or names.
        binary: 1 for any count above 0.

    Returns:
        A map-style data set.

    Raises:
        TypeError: if dataset is none, or its items or labels are of another kind.
        ValueError: if a setting is out of range, classes or sensor_size are needed and not known,
            or an event or label lies outside.

    Example:
        >>> fields = [("t", int), ("x", int), ("p", int)]
        >>> recording = np.array([(0, 1, 0), (9_000, 2, 0)], dtype=fields)
        >>> about = {"sensor_size": (3, 1, 1), "classes": ["yes", "no"]}
        >>> from_tonic([(recording, "no")], dt=4e-3, window=0.012, **about)[0]
        (tensor([[0, 1, 0],
                [0, 0, 0],
                [0, 0, 1]], dtype=torch.uint8), 1)
    """
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise TypeError(f"dataset must have a length and items (events, label), got {type(dataset).__name__}.")
    if dt is None and window is not None:
        raise ValueError(f"window needs dt, the width of a bin in seconds, got window={window} alone.")
    size = getattr(dataset, "sensor_size", None) if sensor_size is None else sensor_size
    if size is not None and (not isinstance(size, tuple | list) or len(size) != 3):
        raise ValueError(f"sensor_size must be (W, H, P), got {size!r}.")
    if dt is not None and size is None:
        raise ValueError("the data set has no sensor_size: give one, (W, H, P).")
    # labels in memory; none where a target is yet to be changed
    changed = getattr(dataset, "target_transform", None) or getattr(dataset, "transforms", None)
    targets = getattr(dataset, "targets", None)
    targets = [] if changed or targets is None else list(targets)
    known = getattr(dataset, "classes", None) if classes is None else classes
    if isinstance(known, dict):  # numbers by name
        known = sorted(known, key=known.__getitem__)
    if known is None or len(known) == 0:
        texts = bool(targets) and isinstance(targets[0], str | bytes)
        known = sorted(set(targets)) if texts else range(max(map(int, targets)) + 1) if targets else ()
    if len(known) == 0:
        raise ValueError("the data set does not say which classes there are: give classes, their names in order.")
    return TonicFrames(
        dataset,
        dt=None if dt is None else number("dt", dt),
        window=window,
        start=one_of("start", start, ("zero", "first")),
        sensor_size=None if size is None else tuple(whole("a size of the sensor", int(part)) for part in size),
        names=[name.decode() if isinstance(name, bytes) else str(name) for name in known],
        binary=binary,
        targets=targets,
    )


class TonicFrames(BatchDataset):
    """Items of :func:`from_tonic`.

    Attributes:
        n_in: number of inputs N; None of frames, unless a sensor_size is known.
        n_classes: number of classes.
        names: name of each class.
        steps: number of time steps T; None if items have their own.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        dt: float | None,
        window: float | None,
        start: str,
        sensor_size: tuple[int, ...] | None,
        names: list[str],
        binary: bool,
        targets: list[Any],
    ) -> None:
        self._dataset, self.dt, self.window, self.start, self.binary = dataset, dt, window, start, binary
        self.steps = None if dt is None or window is None else count_bins(dt, window, unit="s")
        self.sensor_size, self.n_in = sensor_size, sensor_size and math.prod(sensor_size)
        self.names, self.n_classes = names, len(names)
        # these three are compared when a training is resumed
        self.source = type(dataset).__name__
        transforms = [getattr(dataset, name, None) for name in ("transform", "target_transform", "transforms")]
        self.changes = re.sub(r" at 0x[0-9a-f]+", "", repr(transforms))  # without the addresses of functions
        self.numbers = np.array([self._label(i, t) for i, t in enumerate(targets)])

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Several items: what a ``DataLoader`` calls for a batch."""
        return Batch(*collate([self[i] for i in indices]))

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """One item: x (T, N) and the number of its class."""
        item = self._dataset[index]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise TypeError(f"items must be pairs (events, label), got {_kind(item)} in item {index}.")
        data, target = item
        fields = getattr(getattr(data, "dtype", None), "names", None)
        if self.dt is not None:
            x = self._binned(index, data, fields, self.dt)
        elif fields is not None:
            raise ValueError(f"items are events, fields {fields}: give dt, the width of a bin in seconds.")
        elif not isinstance(data, np.ndarray | Tensor) or data.ndim < 2 or 0 in data.shape:
            raise TypeError(f"items must be events or frames (T, P, H, W), got {_kind(data)} in item {index}.")
        else:
            x = torch.as_tensor(data)
            x = x.flatten(1)
            if self.n_in not in (None, x.shape[1]):
                raise ValueError(
                    f"frames have {x.shape[1]} values, and the sensor {self.sensor_size} has {self.n_in}, in item {index}: "
                    "give the sensor_size of the frames."
                )
            x = (x > 0).to(torch.uint8) if self.binary else x
        return x, self._label(index, target)

    def _binned(self, index: int, events: Any, fields: Sequence[str] | None, dt: float) -> Tensor:
        """Counts of events, (T, N), uint8."""
        if not isinstance(events, np.ndarray) or fields is None:
            hint = "; items are frames already: leave out dt" if isinstance(events, np.ndarray | Tensor) else ""
            raise TypeError(
                f"items must be events, a structured array with t, x, y, p, got {_kind(events)} in item {index}{hint}."
            )
        assert self.sensor_size is not None
        W, H, P = self.sensor_size
        wanted = ["t", "x"] + ["y"] * (H > 1) + ["p"] * (P > 1)
        if missing := [name for name in wanted if name not in fields]:
            raise TypeError(
                f"events of a sensor {self.sensor_size} must have {', '.join(wanted)}, got {', '.join(fields)} in item "
                f"{index}: {missing[0]} is missing."
            )
        times = events["t"]
        if len(times) and self.start == "first":
            times = times - times.min()
        if len(times) and not (times >= 0).all():  # NaN as well
            raise ValueError(
                f"times must be microseconds from 0, got {times.min()} in item {index}; start='first' counts from the "
                "first event."
            )
        width = dt * 1e6
        if math.isclose(width, round(width), rel_tol=1e-9):
            width = round(width)  # whole microseconds divide without rounding
        late = np.iinfo(np.int64).max // 2 if self.steps is None else self.steps
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
        steps = int(step.max(initial=0)) + 1 if self.steps is None else self.steps
        N = W * H * P
        counts = np.bincount((step * N + place)[step < steps], minlength=steps * N)
        if self.binary:
            counts = counts > 0
        elif counts.max(initial=0) > MOST:
            raise ValueError(
                f"a bin of {dt * 1e3:g} ms holds {counts.max()} events in item {index}, at most {MOST} fit: take a smaller "
                "dt, or binary=True."
            )
        return torch.from_numpy(counts.astype(np.uint8)).view(steps, N)

    def _label(self, index: int, target: Any) -> int:
        """The number of a class."""
        if isinstance(target, bytes):
            target = target.decode()
        if isinstance(target, str):
            if target not in self.names:
                raise ValueError(f"the label {target!r} of item {index} is none of the classes {self.names[:8]}.")
            return self.names.index(target)
        try:
            label = operator.index(target)
        except TypeError as error:
            raise TypeError(
                f"a label must be a number or a name, got {_kind(target)} in item {index}; a target_transform makes one."
            ) from error
        if not 0 <= label < self.n_classes:
            raise ValueError(
                f"the label of item {index} must be a class from 0 to {self.n_classes - 1}, got {label}; classes= names all."
            )
        return label

    def __repr__(self) -> str:
        grid = "frames" if self.dt is None else f"dt={self.dt:g}, window={self.window}"
        return (
            f"{type(self).__name__}({self.source}, {len(self)} items, N={self.n_in}, {self.n_classes} classes, {grid})"
        )


def _kind(value: Any) -> str:
    shape = f" {tuple(value.shape)}" if isinstance(value, np.ndarray | Tensor) else ""
    return f"{type(value).__name__}{shape}"
