"""Spoken words as frames: SHD, and other recordings in its layout."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from neurolsc.datasets.batches import SAMPLES, SPLITS, Batch, BatchDataset, By, Split, count_bins, generator, hold_out
from neurolsc.datasets.download import fetch
from neurolsc.datasets.events import CHUNK, UNITS, Augmentation, EventCache, EventFile, Events
from neurolsc.display import Displayed, Table
from neurolsc.io import clean
from neurolsc.validation import one_of, positive, whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 255  # largest count of a bin: counts are uint8


class Frames(NamedTuple):
    """Binned utterances.

    Attributes:
        x: counts (T, B, N), uint8, dense or sparse.
        mask: (T, B), bool, True while an utterance lasts; None if all last for the window.
        left_out: spikes of each utterance at the end of the window or later (B,), int64.
    """

    x: Tensor
    mask: Tensor | None
    left_out: Tensor


@dataclass(frozen=True)
class Binning:
    r"""The grid on which spikes are counted, floor(t / dt) by floor(u N / 700).

    .. math:: x[k, b, n] = \#\{\text{spikes of } b : \lfloor t / dt \rfloor = k,\;
              \lfloor u N / 700 \rfloor = n\}

    The grid is the same for all utterances. A spike at the end of the window or later is left out
    and counted, never moved into another bin. Each frame then stands ``repeat`` times in a row.

    Args:
        dt: width of a bin, in seconds.
        window: length of the recording, in seconds, a whole number of bins; None: every utterance
            lasts until the bin of its last spike, and a batch as long as its longest, with a mask.
        channels: N, a divisor of 700; neighbouring units are counted together.
        binary: 1 for every count above 0.
        repeat: how often each frame is shown.

    Raises:
        TypeError: if channels or repeat is not an int.
        ValueError: if dt, window, channels or repeat is out of range.

    Source: Herranz-Celotti & Rouat, arXiv:2308.12075 (time step repeat 2); their released code bins
    SHD at 4 ms over 1 s.

    Example:
        >>> Binning(dt=4e-3, window=1.0).steps
        500
        >>> times, units = np.float32([0.0, 0.001, 0.009, 0.03]), np.uint16([0, 9, 699, 3])
        >>> events = Events(times, units, np.array([0, 4]))
        >>> frames = Binning(dt=5e-3, window=0.02, channels=70, repeat=1).dense(events)
        >>> frames.x[:, 0].nonzero().tolist(), int(frames.x.max()), frames.left_out
        ([[0, 0], [1, 69]], 2, tensor([1]))
    """

    dt: float = 4e-3
    window: float | None = 1.0
    channels: int = UNITS
    binary: bool = False
    repeat: int = 2

    def __post_init__(self) -> None:
        positive("dt", self.dt)
        if self.window is not None:
            count_bins(self.dt, self.window, unit="s")
        if UNITS % whole("channels", self.channels):
            raise ValueError(f"channels must divide {UNITS} (700, 350, 140, 70, ...), got {self.channels}.")
        whole("repeat", self.repeat)

    @property
    def steps(self) -> int | None:
        """Number of time steps T; None if every utterance has its own."""
        return None if self.window is None else self.repeat * count_bins(self.dt, self.window, unit="s")

    def check_resolution(self, dtype: np.dtype) -> None:
        """Refuse bins that are finer than the times themselves.

        Raises:
            ValueError: if dt is below the distance of neighbouring numbers of the dtype at the end
                of the window (at 1 s without one): 0.5 ms for float16 and a window of 1 s.
        """
        last = np.nextafter(dtype.type(1.0 if self.window is None else self.window), dtype.type(0))
        if self.dt < (resolution := float(np.spacing(last))):
            raise ValueError(
                f"dt must not be below the resolution of the times, {resolution * 1e3:.3g} ms in {dtype} below {float(last):g} s, "
                f"got {self.dt * 1e3:g} ms."
            )

    def dense(self, events: Events) -> Frames:
        """Frames of events, in time proportional to spikes + T B N.

        Raises:
            ValueError: if a bin holds more than 255 spikes (not if binary).
        """
        bins, step, channel = self._grid(events)
        B, N = len(events.offsets) - 1, self.channels
        # An utterance in one piece of memory, (B, T, N): its spikes then stay within the processor
        # cache, twice as fast as (T, B, N). Spikes left out fall into a bin behind the last.
        frames = np.zeros((B, bins + 1, self.repeat, N), np.uint8)
        flat = step * (self.repeat * N)
        flat += channel
        flat += np.repeat(np.arange(B) * ((bins + 1) * self.repeat * N), events.counts)
        # Counts above 255 take 256 spikes of one step in a row, as steps ascend in each utterance,
        # and 256 of one channel: only then are spikes counted bin by bin.
        if (
            not self.binary
            and (step[MOST:] == step[:-MOST]).any()
            and np.bincount(events.owners * N + channel).max() > MOST
        ):
            self._check_count(int(np.unique(flat[step < bins], return_counts=True)[1].max(initial=0)))
        for _ in range(self.repeat):
            if self.binary:
                frames.reshape(-1)[flat] = 1
            else:
                np.add.at(frames.reshape(-1), flat, np.uint8(1))
            flat += N
        x = torch.from_numpy(frames)[:, :bins].reshape(B, bins * self.repeat, N).transpose(0, 1)
        return Frames(x, *self._mask_and_left_out(bins, step, events))

    def sparse(self, events: Events) -> Frames:
        """The same as a sparse COO tensor, coalesced, in time proportional to spikes · log(spikes).

        Raises:
            ValueError: if a bin holds more than 255 spikes (not if binary).
        """
        bins, step, channel = self._grid(events)
        B, N = len(events.offsets) - 1, self.channels
        place = (step * (self.repeat * B) + events.owners) * N + channel
        place = place[step < bins]
        place = np.sort(np.concatenate([place + k * (B * N) for k in range(self.repeat)]))
        first = np.flatnonzero(np.diff(place, prepend=-1))
        counts = np.diff(first, append=len(place))
        if self.binary:
            counts = np.ones_like(counts)
        self._check_count(int(counts.max(initial=0)))
        size = (bins * self.repeat, B, N)
        at = torch.from_numpy(np.stack(np.unravel_index(place[first], size)))
        values = torch.from_numpy(counts.astype(np.uint8))
        x = torch.sparse_coo_tensor(at, values, size, is_coalesced=True, check_invariants=False)
        return Frames(x, *self._mask_and_left_out(bins, step, events))

    def _grid(self, events: Events) -> tuple[int, np.ndarray, np.ndarray]:
        """Number of bins, and bin and channel of each spike; the bin after the last is left out."""
        times = events.times
        if self.window is None:
            bins = self._bins(times.max()[None], np.iinfo(np.int64).max).item() + 1 if len(times) else 1
        else:
            bins = count_bins(self.dt, self.window, unit="s")
        if self.window is not None and times.dtype == np.float16:
            step = self._table.take(times.view(np.uint16))  # exact, and faster than the division
        else:
            step = self._bins(times, bins)
        group = UNITS // self.channels
        return bins, step, events.units if group == 1 else events.units // np.uint16(group)

    def _bins(self, times: np.ndarray, late: int) -> np.ndarray:
        """floor(t / dt), at most late, which is also the bin of times outside of the window."""
        seconds = times.astype(np.float64)
        step = np.minimum(np.floor(seconds / self.dt), late).astype(np.int64)
        if self.window is not None:  # the division may round a time to the other side of the window's end
            step[(seconds < self.window) & (step == late)] = late - 1
            step[seconds >= self.window] = late
        return step

    @cached_property
    def _table(self) -> np.ndarray:
        """The bin of each of the 65,536 half-precision numbers."""
        every = np.arange(2**16, dtype=np.uint16).view(np.float16)
        assert self.window is not None
        return self._bins(np.nan_to_num(every, nan=np.inf, neginf=np.inf), count_bins(self.dt, self.window, unit="s"))

    def _mask_and_left_out(self, bins: int, step: np.ndarray, events: Events) -> tuple[Tensor | None, Tensor]:
        late = np.searchsorted(events.offsets, np.flatnonzero(step == bins), "right") - 1
        left_out = torch.from_numpy(np.bincount(late, minlength=len(events.offsets) - 1))
        if self.window is not None:
            return None, left_out
        last = np.zeros(len(events.offsets) - 1, np.int64)  # an utterance without spikes has one step
        np.maximum.at(last, events.owners, step)
        return torch.arange(bins).repeat_interleave(self.repeat)[:, None] <= torch.from_numpy(last), left_out

    def _check_count(self, count: int) -> None:
        if count > MOST:
            raise ValueError(
                f"a bin of {self.dt * 1e3:g} ms and {UNITS // self.channels} units holds {count} spikes, at most {MOST} "
                "fit: take a smaller dt, more channels, or binary=True."
            )


class SHDOptions(TypedDict, total=False):
    """How items are made of spikes: keywords of :class:`SHD` and of its class methods."""

    dt: float
    window: float | None
    channels: int
    binary: bool
    repeat: int
    sparse: bool
    augment: Sequence[Augmentation]
    cache: str | PathLike[str] | None


class SHD(BatchDataset):
    """Spoken digits as spikes of 700 units, in bins: SHD, or a set in its layout.

    Item i is a pair (x, label): x of shape (T, N), uint8 spike counts, and the class as an int. A
    ``DataLoader`` asks for a batch at once, which is binned without a loop over spikes.

    SHD has 8,156 training and 2,264 test utterances and no validation set: it is drawn from the
    training file, at random or by speaker. The test file is opened for ``split="test"`` only.

    Args:
        root: folder with SHD's files; a missing one is downloaded into it. None: the sample in the
            package.
        split: ``"train"``, ``"validation"`` or ``"test"``.
        by: how validation is drawn from the training file, ``"random"`` or ``"speaker"``
            (:func:`hold_out`).
        share: of the training utterances or speakers that go to validation.
        seed: of that draw.
        **options: ``dt`` (4e-3; width of a bin, in seconds), ``window`` (1.0; length of the
            recording, in seconds, later spikes are left out; None: every utterance lasts until its
            last spike, and a batch is padded with zeros to its longest, with a mask), ``channels``
            (700; a divisor of it counts neighbouring units together), ``binary`` (False; 1 for any
            count above 0), ``repeat`` (2, as in the paper; how often each frame is shown),
            ``sparse`` (False; batches as sparse COO tensors), ``augment``
            (none; changes of events, in this order, drawn from torch's random numbers, in
            :func:`neurolsc.train` from its seed, the epoch and the items) and ``cache`` (None; a
            folder for copies that are read without HDF5, :class:`EventCache`).

    Attributes:
        split: name of the split; None for a whole file.
        path: the HDF5 file.
        binning: the numbers of the grid.
        indices: place of every item in the file (n,).
        labels: classes (n,), int64.
        speakers: speaker of every item (n,), int64; -1 where the file does not say.
        names: name of each class.
        n_in: number of inputs N.
        n_classes: number of classes.
        steps: number of time steps T, by default 500; None without a window.

    Raises:
        TypeError: if an argument is of the wrong kind.
        ValueError: if an argument is out of range, dt is finer than the times are, or the file is
            damaged (at once or when a damaged utterance is read).
        ConnectionError: if a file could not be downloaded.

    Source: B. Cramer et al., IEEE TNNLS 33 (2022), for the data; Herranz-Celotti & Rouat,
    arXiv:2308.12075, and their released code for the grid (4 ms over 1 s, every step twice).

    Example:
        >>> words = SHD.embedded("test", channels=70)
        >>> x, label = words[0]
        >>> len(words), x.shape, words.names[label]
        (50, torch.Size([500, 70]), 'one')
    """

    def __init__(
        self,
        root: str | PathLike[str] | None,
        split: Split,
        *,
        by: By = "random",
        share: float = 0.1,
        seed: int = 0,
        **options: Unpack[SHDOptions],
    ) -> None:
        part = "test" if one_of("split", split, SPLITS) == "test" else "train"
        if root is None:
            path = SAMPLES / "spoken_digits" / f"{part}.h5.xz"
        else:
            path = fetch(root, f"shd_{part}.h5", f"SHD/shd_{part}.h5", f"{part}.h5")
        self._open(path, options)
        self.split = split
        if split != "test":
            parts = hold_out(self.speakers.numpy(), by, share=share, seed=seed)
            self.indices = parts.train if split == "train" else parts.validation
            self.labels, self.speakers = self.labels[self.indices], self.speakers[self.indices]

    @classmethod
    def from_file(cls, path: str | PathLike[str], **options: Unpack[SHDOptions]) -> "SHD":
        """All utterances of one file in SHD's layout, such as those of SSC.

        Args:
            path: the HDF5 file, plain or packed by xz.
            **options: as of :class:`SHD`.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: as :class:`SHD`.
        """
        self = cls.__new__(cls)
        self._open(path, options)
        return self

    @classmethod
    def embedded(cls, split: Split, *, share: float = 0.2, **options: Any) -> "SHD":
        """Return the sample in the package: 150 spoken digits in SHD's layout, none of SHD.

        They are recordings of five people from the Free Spoken Digit Dataset: 100 for training and
        validation, 50 others for the test. Arguments and errors are those of :class:`SHD`.
        """
        return cls(None, split, share=share, **options)

    def _open(self, path: str | PathLike[str], options: SHDOptions) -> None:
        options = options.copy()
        self.augment = tuple(options.pop("augment", ()))
        self.sparse = options.pop("sparse", False)
        cache = options.pop("cache", None)
        self.binning = Binning(**options)  # type: ignore[arg-type]  # refuses unknown ones, too
        file = EventFile(path)
        self.binning.check_resolution(file.times_dtype)
        self.split: Split | None = None
        self.path, self.names = file.path, file.names
        self.indices = np.arange(len(file))
        self.labels, self.speakers = torch.from_numpy(file.labels), torch.from_numpy(file.speakers)
        self.n_in, self.n_classes, self.steps = self.binning.channels, len(file.names), self.binning.steps
        self._source = file if cache is None else EventCache(file, cache)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Several items, binned together: what a ``DataLoader`` calls for a batch."""
        frames = self.frames(indices)
        return Batch(frames.x, self.labels[torch.as_tensor(indices, dtype=torch.long)], frames.mask)

    def frames(self, indices: Sequence[int]) -> Frames:
        """The frames of several items, and how many spikes the window left out of each."""
        events = self.events(indices)
        if self.augment:
            random = generator(indices)
            for change in self.augment:
                events = change(events, random)
        return self.binning.sparse(events) if self.sparse else self.binning.dense(events)

    def events(self, indices: Sequence[int]) -> Events:
        """The spikes of several items, as the file has them."""
        return self._source.read(self.indices[np.asarray(indices, dtype=np.int64)])

    @property
    def left_out(self) -> int:
        """How many spikes of all items stand at the end of the window or later: a pass over all."""
        if self.binning.window is None:
            return 0
        parts = (self.events(range(a, min(a + CHUNK, len(self)))) for a in range(0, len(self), CHUNK))
        return sum(int((part.times.astype(np.float64) >= self.binning.window).sum()) for part in parts)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.path.name}, split={self.split!r}, {len(self)} items, x ({self.steps}, {self.n_in}), "
            f"{self.n_classes} classes, {self.binning})"
        )


@dataclass(frozen=True, repr=False)
class Summary(Displayed):
    """Numbers about a file in SHD's layout.

    Attributes:
        title: name of the file.
        names: name of each class.
        labels: class of each utterance (n,).
        speakers: speaker of each utterance (n,).
        spikes: spikes of each utterance (n,).
        duration: last spike of each utterance (n,), in seconds.
        activity: spikes of each unit per utterance (700,).
        resolution: distance of neighbouring times at the latest spike, in seconds.
    """

    title: str
    names: list[str]
    labels: np.ndarray
    speakers: np.ndarray
    spikes: np.ndarray
    duration: np.ndarray
    activity: np.ndarray
    resolution: float

    def plot(
        self,
        path: str | PathLike[str] | None = None,
        *,
        example: Events | None = None,
        example_title: str = "",
        title: str = "",
    ) -> "Figure":
        """Draw it.

        Args:
            path: a file to write as well, whose suffix chooses the format.
            example: the spikes of one utterance.
            example_title: its title.
            title: of the whole; the name of the file if empty.
        """
        from neurolsc.plots import plot_summary  # matplotlib is slow to import and few runs draw

        return plot_summary(
            path,
            title=title or self.title,
            spikes=self.spikes,
            duration=self.duration,
            classes=np.bincount(self.labels, minlength=len(self.names)),
            speakers=np.unique(self.speakers[self.speakers >= 0], return_counts=True),
            activity=self.activity,
            example=None if example is None else (example.times, example.units),
            example_title=example_title,
        )

    def parts(self) -> list[str | Table]:
        """Lines for the whole, and a table of its classes and speakers."""
        silent = int((self.activity == 0).sum())
        speakers = np.unique(self.speakers[self.speakers >= 0])
        groups = [(f"{label:>3} {name}", self.labels == label) for label, name in enumerate(self.names)]
        groups += [(f"speaker {speaker}", self.speakers == speaker) for speaker in speakers]
        rows = [
            (name, str(of.sum()), f"{self.spikes[of].mean():.0f}", f"{self.duration[of].mean():.3f} s")
            if of.any()
            else (name, "0", "", "")
            for name, of in groups
        ]
        return [
            f"{self.title}: {len(self.labels)} utterances, {len(self.names)} classes, {len(speakers) or 'unnamed'} speakers",
            f"spikes per utterance  mean {self.spikes.mean():.0f}, {self.spikes.min()} to {self.spikes.max()}",
            f"last spike            mean {self.duration.mean():.3f} s, {self.duration.min():.3f} to {self.duration.max():.3f} s, "
            f"{(self.duration >= 1).mean():.1%} at 1 s or later; times are {self.resolution * 1e3:.2g} ms apart there",
            f"units                 {UNITS - silent} of {UNITS} fire",
            "",
            Table(("", "utterances", "spikes", "last spike"), rows),
        ]


def summarize(file: EventFile) -> Summary:
    """Read a whole file, some utterances at a time, and count.

    Raises:
        ValueError: if an utterance is damaged.
    """
    duration, activity = [], np.zeros(UNITS)
    for events in file.chunks():
        duration.append(events.times[events.offsets[1:] - 1])
        activity += np.bincount(events.units, minlength=UNITS)
    last = np.concatenate(duration)
    return Summary(
        clean(file.path.name),
        file.names,
        file.labels,
        file.speakers,
        file.counts,
        last.astype(np.float64),
        activity / len(file),
        float(np.spacing(last.max())),
    )
