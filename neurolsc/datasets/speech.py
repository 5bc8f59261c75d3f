"""Spoken words: files in SHD's layout, random changes of their spikes, and spikes as frames."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple

import h5py
import numpy as np
import torch
from torch import Tensor

from neurolsc.datasets.batches import SAMPLES, SPLITS, Batch, BatchDataset, By, Split, count_bins, generator, hold_out
from neurolsc.datasets.download import fetch, read_unpacked
from neurolsc.hdf5 import HDF5
from neurolsc.io import clean, refusing
from neurolsc.validation import number, one_of, probability, shown, whole

UNITS = 700  # input units of the layout, 0 to 699
CLASSES = 20  # of a file that does not name them: those of SHD
MOST = 255  # largest count of a bin: counts are uint8

# ---- files


class Events(NamedTuple):
    """S spikes of B utterances, one utterance after the other."""

    times: np.ndarray  # (S,), in seconds, floating point, ascending within an utterance
    units: np.ndarray  # (S,), uint16, below 700
    offsets: np.ndarray  # (B + 1,), int64: spikes offsets[i] to offsets[i + 1] belong to utterance i

    @property
    def counts(self) -> np.ndarray:
        """Number of spikes of each utterance (B,)."""
        return np.diff(self.offsets)

    @property
    def owners(self) -> np.ndarray:
        """Index of the utterance of each spike (S,), int64."""
        return np.repeat(np.arange(len(self.offsets) - 1), self.counts)

    def take(self, indices: np.ndarray) -> "Events":
        """Return the spikes of the utterances with these indices (n,), int64, in that order."""
        starts = self.offsets[indices]
        ends = self.offsets[indices + 1]
        places = [slice(a, b) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
        times = np.concatenate([self.times[place] for place in places])
        units = np.concatenate([self.units[place] for place in places])
        return Events(times, units, np.concatenate([[0], np.cumsum(ends - starts)]))


class EventFile:
    """An HDF5 file in SHD's layout, plain or packed by gzip or xz, read whole and checked.

    The layout: ``spikes/times`` (n,), variable-length floats in seconds, ascending; ``spikes/units`` (n,),
    variable-length integers from 0 to 699; ``labels`` (n,), integers from 0 on. These may be missing:
    ``extra/speaker`` (n,), integers from 0 on; ``extra/keys``, the name of each class (else there are 20 classes).

    Args:
        path: the file.

    Attributes:
        path: the file.
        labels: class of each utterance (n,), int64.
        speakers: speaker of each utterance (n,), int64; -1 where the file does not say.
        names: name of each class.
        events: spikes of all utterances; times in the file's own dtype.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not an HDF5 file, is damaged, or does not fit the layout.

    Source: B. Cramer, Y. Stradmann, J. Schemmel, F. Zenke, "The Heidelberg Spiking Data Sets for the Systematic
    Evaluation of Spiking Neural Networks", IEEE TNNLS 33 (2022).
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = Path(path)
        with self.path.open("rb") as opened:
            plain = opened.read(4) == b"\x89HDF"
        if plain:
            source = self.path
        else:
            source = read_unpacked(self.path)
        with refusing(self.path, "not a whole HDF5 file"), HDF5(source) as file:
            names = ["spikes/times", "spikes/units", "labels"]
            if file.has("extra/speaker"):
                names.append("extra/speaker")
            for name in names:
                if not file.has(name):
                    raise ValueError(f"it holds no {name}; SHD's layout is in docs/data.md, under 'Files of your own'.")
            parts = {name: file.dataset(name) for name in names}
            shapes = {part.shape for part in parts.values()}
            if len(shapes) != 1 or len(shape := shapes.pop()) != 1 or shape[0] == 0:
                got = ", ".join(f"{part.shape} in {name}" for name, part in parts.items())
                raise ValueError(f"all parts must have one entry for each utterance, got {got}")
            for name, kinds, word in (("spikes/times", "f", "floats"), ("spikes/units", "iu", "integers")):
                entry = h5py.check_vlen_dtype(parts[name].dtype)  # dtype of the entries; None without variable length
                # h5py does not swap the bytes of another byte order
                if not isinstance(entry, np.dtype) or entry.kind not in kinds or not entry.isnative:
                    got = entry or parts[name].dtype
                    raise ValueError(f"{name} must hold {word} of variable length in native byte order, got {got}.")
            if file.has("extra/keys"):
                keys = file.values("extra/keys", 1, "SO")
            else:
                keys = np.arange(CLASSES).astype("S")
            self.names = [clean(key.decode("utf-8", "replace")) for key in keys]
            numbers: dict[str, np.ndarray] = {}
            # labels, and speakers if any; speakers may have any number of 31 bits
            for name, end in zip(names[2:], (len(self.names), 2**31), strict=False):
                values = file.values(name, 1, "iu")
                if (wrong := (values < 0) | (values >= end)).any():
                    i = int(wrong.argmax())
                    raise ValueError(f"{name} must lie in 0 ... {end - 1}, got {values[i]} for utterance {i}.")
                numbers[name] = values.astype(np.int64)
            self.labels = numbers["labels"]
            self.speakers = numbers.get("extra/speaker", np.full(len(self.labels), -1))
            self.events = _join(list(parts["spikes/times"][()]), list(parts["spikes/units"][()]))

    def __len__(self) -> int:
        return len(self.labels)


def _join(times_of: list[np.ndarray], units_of: list[np.ndarray]) -> Events:
    """Check the spikes of all utterances, and join them one after the other.

    Args:
        times_of: times of each utterance.
        units_of: units of each utterance.

    Raises:
        ValueError: if an utterance has no spike, or not as many times as units; or if a time or unit is wrong.
    """
    counts = np.array(list(map(len, times_of)))
    unit_counts = np.array(list(map(len, units_of)))
    wrong_counts = (counts != unit_counts) | (counts == 0)
    if wrong_counts.any():
        i = int(wrong_counts.argmax())
        raise ValueError(
            f"utterance {i} has {counts[i]} times in spikes/times and {unit_counts[i]} units in spikes/units; each needs "
            "spikes, and a unit for every time."
        )
    times = np.concatenate(times_of)
    units = np.concatenate(units_of)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    # Times are compared by their bits, as integers, which is several times as fast for half precision. The bits of
    # floats that are not negative ascend as the floats do; then come infinity, NaN, and negative floats.
    bits = times.view(f"u{times.itemsize}")
    falls = np.zeros(len(times), bool)
    np.less(bits[1:], bits[:-1], out=falls[1:])
    falls[offsets[:-1]] = False  # the first time of an utterance may be below the last time of the one before
    for wrong, values, wanted in (
        ((units < 0) | (units >= UNITS), units, f"spikes/units must lie in 0 ... {UNITS - 1}"),
        (bits >= np.array(np.inf, times.dtype).view(bits.dtype), times, "spikes/times must be finite and not negative"),
        (falls, times, "spikes/times must ascend"),
    ):
        if wrong.any():
            spike = int(wrong.argmax())
            utterance = np.searchsorted(offsets, spike, "right") - 1
            raise ValueError(f"{wanted}, got {values[spike]} in utterance {utterance}.")
    return Events(times, units.astype(np.uint16, copy=False), offsets)


# ---- random changes

Augmentation = Callable[[Events, np.random.Generator], Events]  # changed events of the same utterances


@dataclass(frozen=True)
class ChannelJitter:
    r"""Move each spike to a neighbouring unit; one moved beyond units 0 to 699 is dropped.

    .. math:: u' = \mathrm{round}(u + \sigma \xi), \quad \xi \sim N(0, 1) \text{ for every spike}

    Args:
        sigma: deviation, in units.

    Source: Cramer et al., IEEE TNNLS 33 (2022) (noise on the index of the unit).
    """

    sigma: float = 20.0

    def __post_init__(self) -> None:
        number("sigma", self.sigma, zero_allowed=True)

    def __call__(self, events: Events, random: np.random.Generator) -> Events:
        units = np.rint(events.units + self.sigma * random.standard_normal(len(events.units), np.float32))
        keep = (units >= 0) & (units < UNITS)
        return _subset(events._replace(units=units.clip(0, UNITS - 1).astype(np.uint16)), keep)


@dataclass(frozen=True)
class TimeStretch:
    r"""Speak faster or slower; tonic calls it ``TimeSkew(coefficient=(low, high))``.

    .. math:: t' = a\, t, \quad a \sim U(\mathrm{low}, \mathrm{high}) \text{ for every utterance}

    Args:
        low: smallest factor.
        high: largest factor.

    Source: T. Nowotny, J. P. Turner, J. C. Knight, Neuromorphic Computing and Engineering 5 (2025), for SHD, with a
    uniform in its logarithm.
    """

    low: float = 0.8
    high: float = 1.2

    def __post_init__(self) -> None:
        if number("low", self.low) > number("high", self.high):
            raise ValueError(f"low must not be above high, got {self.low} and {self.high}.")

    def __call__(self, events: Events, random: np.random.Generator) -> Events:
        factors = random.uniform(self.low, self.high, len(events.offsets) - 1).astype(np.float32)
        return events._replace(times=events.times.astype(np.float32) * np.repeat(factors, events.counts))


@dataclass(frozen=True)
class SpikeDrop:
    r"""Leave each spike out with probability p.

    tonic's ``DropEvent(p)`` drops exactly round(p n) of the n spikes of an utterance.

    Source: Gu et al., "EventDrop: Data Augmentation for Event-based Learning", IJCAI 2021.
    """

    p: float = 0.1

    def __post_init__(self) -> None:
        probability("p", self.p)

    def __call__(self, events: Events, random: np.random.Generator) -> Events:
        return _subset(events, random.random(len(events.times), np.float32) >= self.p)


def _subset(events: Events, keep: np.ndarray) -> Events:
    """Return the spikes where keep (S,), bool, is True; an utterance that loses all its spikes stays, without any."""
    before = np.concatenate([[0], np.cumsum(keep)])  # (S + 1,), how many are kept before each spike
    return Events(events.times[keep], events.units[keep], before[events.offsets])


# ---- frames


@dataclass(frozen=True)
class Binning:
    r"""The grid on which spikes are counted, the same for all utterances.

    With b an utterance, and t and u the time and the unit of a spike, bin k of channel n holds the count

    .. math:: x[k, b, n] = \#\{\text{spikes of } b : \lfloor t / dt \rfloor = k,\;
              \lfloor u N / 700 \rfloor = n\}

    A spike at the end of the window or later is left out, never moved into another bin.

    Args:
        dt: width of a bin, in seconds.
        window: length of the recording, in seconds, a whole number of bins. None: every utterance lasts until the bin
            of its last spike, and a batch as long as its longest utterance, with a mask.
        channels: N, a divisor of 700; neighbouring units are counted together.
        binary: True: an entry is 1 for any count above 0.
        repeat: how often in a row each frame is shown.

    Raises:
        ValueError: if a number is out of range.

    Source: Herranz-Celotti & Rouat, arXiv:2308.12075 (time step repeat 2); their released code bins SHD at 4 ms over
    1 s.

    Example:
        >>> Binning(dt=4e-3, window=1.0).steps
        500
    """

    dt: float = 4e-3
    window: float | None = 1.0
    channels: int = UNITS
    binary: bool = False
    repeat: int = 2

    def __post_init__(self) -> None:
        number("dt", self.dt)
        if self.window is not None:
            count_bins(self.dt, self.window, unit="s")
        if UNITS % whole("channels", self.channels):
            raise ValueError(f"channels must divide {UNITS} (700, 350, 140, 70, ...), got {self.channels}.")
        whole("repeat", self.repeat)

    @property
    def steps(self) -> int | None:
        """Number of time steps T; None if every utterance has its own."""
        if self.window is None:
            return None
        return self.repeat * count_bins(self.dt, self.window, unit="s")

    def frames(self, events: Events) -> tuple[Tensor, Tensor | None]:
        """Count the spikes of B utterances; the work grows with the number of spikes plus T B N.

        Returns:
            Counts (T, B, N), uint8; and a mask (T, B), bool, True while an utterance lasts, or None with a window.

        Raises:
            ValueError: if a bin holds more than 255 spikes (not if binary).
        """
        B = len(events.offsets) - 1
        N = self.channels
        seconds = events.times.astype(np.float64)
        step = np.floor(seconds / self.dt).astype(np.int64)
        if self.window is None:
            bins = int(step.max(initial=0)) + 1
        else:
            bins = count_bins(self.dt, self.window, unit="s")
            # the division may round a time just below the end of the window up to it
            step = np.where(seconds >= self.window, bins, np.minimum(step, bins - 1))
        group = UNITS // N
        channel = events.units // np.uint16(group)
        # An utterance lies in one piece of memory, (B, T, N): its counts then stay within the processor
        # cache, twice as fast as (T, B, N). Spikes left out are counted in a bin behind the last.
        frames = np.zeros((B, bins + 1, self.repeat, N), np.uint8)
        # the place of each spike in the flat frames, in the first showing of its bin
        start = np.repeat(np.arange(B) * ((bins + 1) * self.repeat * N), events.counts)
        flat = (step * self.repeat * N + channel) + start
        # steps ascend in each utterance, so that a count above 255 needs 256 spikes of one step in a row
        may_overflow = not self.binary and ((step[MOST:] == step[:-MOST]) & (step[MOST:] < bins)).any()
        if may_overflow and (most := np.bincount(flat[step < bins], minlength=1).max()) > MOST:
            raise ValueError(
                f"a bin of {self.dt * 1e3:g} ms and {group} units holds {most} spikes, at most {MOST} fit: take a smaller "
                "dt, more channels, or binary=True."
            )
        for _ in range(self.repeat):
            if self.binary:
                frames.reshape(-1)[flat] = 1
            else:
                np.add.at(frames.reshape(-1), flat, np.uint8(1))
            flat += N  # the next showing
        x = torch.from_numpy(frames)[:, :bins].reshape(B, bins * self.repeat, N).transpose(0, 1)
        if self.window is not None:
            return x, None
        last = np.zeros(B, np.int64)  # an utterance without spikes has one step
        np.maximum.at(last, events.owners, step)  # the bin of each utterance's last spike (B,)
        return x, torch.arange(bins).repeat_interleave(self.repeat)[:, None] <= torch.from_numpy(last)


# names of the files of SHD, as published and as others rename them
OF_SHD = {f"{name}{part}.h5{end}" for name in ("shd_", "") for part in ("train", "test") for end in ("", ".gz")}
OF_SHD |= {f"shd_{part}.h5.zip" for part in ("train", "test")}
# pairs of such files: as published, as tonic leaves them, and with names of one's own, which come last
PAIRS = ("shd_{}.h5", "SHD/shd_{}.h5", "{}.h5")


def _find_words(root: str | PathLike[str], part: Literal["train", "test"]) -> Path:
    """Return the training or the test file in a folder; where the folder has neither, SHD's own, downloaded.

    Both are of one pair of :data:`PAIRS`, so that no network is trained on one data set and tested on another: the
    first pair that is whole; else one's own of which a file is there; else SHD's own, of which a missing file is
    downloaded. A file may be packed by gzip, with ``.gz`` at the end of its name.

    Args:
        root: the folder, or one of the files in it.
        part: which of the two files.

    Raises:
        FileNotFoundError: if of one's own pair the other file alone is there, or the folder's parent is missing.
        ConnectionError: if a file could not be downloaded.
    """
    folder = Path(root)
    if folder.is_file():
        folder = folder.parent
    pairs = []  # of each pair the files that are there, by part
    for pattern in PAIRS:
        names = {each: pattern.format(each) for each in ("train", "test")}
        candidates = [(each, folder / f"{name}{end}") for each, name in names.items() for end in (".gz", "")]
        pairs.append({each: path for each, path in candidates if path.exists()})  # plain ones come later, and win
    *published, own = pairs
    for pair in pairs:
        if len(pair) == 2:
            return pair[part]
    if own and part not in own:
        (there,) = own.values()
        raise FileNotFoundError(
            f"{folder} has {there.name} but no {part}.h5: put {part}.h5 next to it. SHD's own file is not taken in its "
            f"place, as it does not belong to {there.name}."
        )
    for pair in (own, *published):
        if part in pair:
            return pair[part]
    return fetch(folder, f"shd_{part}.h5")


class SHD(BatchDataset):
    """Spoken words as spike counts of 700 units: the Spiking Heidelberg Digits.

    Item i is a pair (x, label): x of shape (T, N), uint8, and the word as an int. Validation is drawn from the training
    file; the test file is opened for ``split="test"`` only.

    Args:
        root: folder that holds shd_train.h5 and shd_test.h5, directly or in a folder SHD, or train.h5 and test.h5,
            or these packed by gzip (``.h5.gz``); both are of one pair. If none is there, SHD's own are downloaded into
            it. Or a file of another name in this layout, for training and validation. None: the sample in the package.
        split: ``"train"``, ``"validation"`` or ``"test"``.
        by: how validation is drawn, ``"random"`` or ``"speaker"`` (:func:`hold_out`).
        share: share of the training utterances or speakers that go to validation.
        seed: seed of that draw.
        **options: ``dt``, ``window``, ``channels``, ``binary`` and ``repeat``, as in :class:`Binning`, and ``augment``:
            random changes of events, such as :class:`ChannelJitter`, made one after the other. They are drawn from
            torch's random numbers; in :func:`neurolsc.train` from its seed, the epoch and the items.

    Attributes:
        path: the HDF5 file.
        binning: the grid on which spikes are counted.
        indices: place of every item in the file (n,).
        labels: classes (n,), int64.
        speakers: speaker of every item (n,), int64; -1 where the file does not say.
        names: name of each class.

    Raises:
        ValueError: if an argument is out of range, dt is below the resolution of the times, or the file is damaged
            (:class:`EventFile`).
        FileNotFoundError: if of train.h5 and test.h5 the other one alone is there.
        ConnectionError: if a file could not be downloaded.

    Source: B. Cramer et al., IEEE TNNLS 33 (2022), for the data; Herranz-Celotti & Rouat, arXiv:2308.12075, and their
    released code for the grid (4 ms over 1 s, every step twice).

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
        **options: Any,
    ) -> None:
        part: Literal["train", "test"] = "train"
        if one_of("split", split, SPLITS) == "test":
            part = "test"
        if root is None:
            path = SAMPLES / "spoken_digits" / f"{part}.h5.xz"
        elif Path(root).is_file() and Path(root).name not in OF_SHD:
            if part == "test":
                raise ValueError(
                    f"{root} is for training and validation: a test takes a folder of train.h5 and test.h5."
                )
            path = Path(root)
        else:
            path = _find_words(root, part)
        self._open(path, split, **options)
        if split != "test":
            train, validation = hold_out(self.speakers.numpy(), by, share=share, seed=seed)
            self.indices = validation
            if split == "train":
                self.indices = train
            self.labels = self.labels[self.indices]
            self.speakers = self.speakers[self.indices]
            self._events = self._events.take(self.indices)

    @classmethod
    def from_file(cls, path: str | PathLike[str], **options: Any) -> "SHD":
        """Return all utterances of one file in SHD's layout, plain or packed by gzip or xz, such as one of SSC."""
        self = cls.__new__(cls)
        self._open(path, None, **options)
        return self

    @classmethod
    def embedded(cls, split: Split, *, share: float = 0.2, **options: Any) -> "SHD":
        """Return the sample in the package: 150 spoken digits in SHD's layout, which are not from SHD.

        They are recordings of five people from the Free Spoken Digit Dataset: 100 for training and validation, 50
        others for the test.
        """
        return cls(None, split, share=share, **options)

    def _open(
        self,
        path: str | PathLike[str],
        split: Split | None,
        *,
        augment: Sequence[Augmentation] = (),
        **binning: Any,
    ) -> None:
        """Set all attributes to those of a whole file; the constructor then keeps the items of the split."""
        self.binning = Binning(**binning)
        file = EventFile(path)
        self._events = file.events
        dtype = file.events.times.dtype
        # floats are coarsest at the end of the window; if there is no window, one second stands for its end
        latest = np.nextafter(dtype.type(self.binning.window or 1.0), dtype.type(0))
        if self.binning.dt < (resolution := float(np.spacing(latest))):
            raise ValueError(
                f"dt must not be below the resolution of the times, {resolution * 1e3:.3g} ms in {dtype} below "
                f"{float(latest):g} s, got {self.binning.dt * 1e3:g} ms."
            )
        if not isinstance(augment, Sequence):
            raise TypeError(f"augment must be a tuple of augmentations, got {shown(augment)}.")
        self.augment = tuple(augment)
        self.split = split
        self.path = file.path
        self.names = file.names
        self.indices = np.arange(len(file))
        self.labels = torch.from_numpy(file.labels)
        self.speakers = torch.from_numpy(file.speakers)
        self.n_in = self.binning.channels
        self.n_classes = len(file.names)
        self.steps = self.binning.steps
        # if times are in milliseconds, nearly all of them lie after the window, as some 10,000 of them show
        some = file.events.times[:: max(1, len(file.events.times) // 10_000)]
        if len(some) and (late := (some >= (self.binning.window or np.inf)).mean()) > 0.9:
            warnings.warn(
                f"{self.path}: {late:.0%} of the spikes stand at the end of the window of {self.binning.window:g} s or later, "
                "and are left out. Times are in seconds.",
                stacklevel=3,
            )

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        events = self.events(indices)
        if self.augment:
            random = generator(indices)
            for change in self.augment:
                events = change(events, random)
        x, mask = self.binning.frames(events)
        return Batch(x, self.labels[torch.as_tensor(indices, dtype=torch.long)], mask)

    def events(self, indices: Sequence[int]) -> Events:
        """Return the spikes of several items as the file has them, before random changes."""
        return self._events.take(np.asarray(indices, dtype=np.int64))

    @property
    def left_out(self) -> int:
        """Number of spikes, of all items, that stand at the end of the window or later."""
        if self.binning.window is None:
            late = np.inf
        else:
            late = self.binning.window
        return int((self._events.times.astype(np.float64) >= late).sum())
