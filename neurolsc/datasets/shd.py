"""SHD, and other spoken words in its layout, as frames."""

from collections.abc import Sequence
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Literal, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from neurolsc.datasets.augment import Augmentation, generator
from neurolsc.datasets.binning import Binning, Frames
from neurolsc.datasets.cache import CHUNK
from neurolsc.datasets.collate import Batch
from neurolsc.datasets.event_cache import EventCache
from neurolsc.datasets.events import EventFile, Events
from neurolsc.datasets.frame_cache import FrameCache
from neurolsc.datasets.shd_files import fetch_shd
from neurolsc.datasets.splits import By, hold_out
from neurolsc.validation import one_of

Split = Literal["train", "validation", "test"]
SPLITS = ("train", "validation", "test")
Cached = Literal["spikes", "frames"]
CACHED: tuple[Cached, ...] = ("spikes", "frames")


class SHDOptions(TypedDict, total=False):
    """How items are made of spikes: keywords of :class:`SHD` and of its class methods."""

    channels: int
    binary: bool
    repeat: int
    sparse: bool
    augment: Sequence[Augmentation]
    cache: str | PathLike[str] | None
    cached: Cached


class SHD(Dataset[tuple[Tensor, int]]):
    """Spoken digits as spikes of 700 units, in bins: SHD, or a set in its layout.

    Item i is a pair (x, label): x of shape (T, N), uint8 spike counts, and the class as an int. A
    ``DataLoader`` asks for a batch at once, which is binned without a loop over spikes.

    SHD has 8,156 training and 2,264 test utterances and no validation set: it is carved from the
    training file, at random or by speaker. The test file is opened for ``split="test"`` only.

    Args:
        root: folder with SHD's files; a missing one is downloaded into it (by tonic: the extra
            ``shd``).
        split: ``"train"``, ``"validation"`` or ``"test"``.
        dt: width of a bin, in seconds.
        window: length of the recording, in seconds; later spikes are left out. None: every
            utterance lasts until its last spike; a batch is padded with zeros to its longest, and
            :func:`collate` gives a mask as well.
        by: how validation is drawn from the training file, ``"random"`` or ``"speaker"``
            (:func:`hold_out`).
        share: of the training utterances or speakers that go to validation.
        seed: of that draw.
        **options: how items are made: ``channels`` (700; a divisor of it counts neighbouring units
            together), ``binary`` (False; 1 for any count above 0), ``repeat`` (2, as in the paper;
            how often each frame is shown), ``sparse`` (False; batches as sparse COO tensors),
            ``augment`` (none; applied to events in this order, drawn from torch's random numbers,
            so that a seed repeats them; in :func:`neurolsc.train` from its seed, the epoch and the
            items, whatever other threads draw), ``cache`` (None; a folder for
            copies that are read without HDF5) and ``cached`` (``"spikes"``, for any grid and
            augmentation: :class:`EventCache`; ``"frames"``, faster and larger: :class:`FrameCache`,
            dense, with a window and without augmentation).

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
        ImportError: if a file is missing and tonic is not installed.
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
        root: str | PathLike[str],
        split: Split,
        *,
        dt: float = 4e-3,
        window: float | None = 1.0,
        by: By = "random",
        share: float = 0.1,
        seed: int = 0,
        **options: Unpack[SHDOptions],
    ) -> None:
        part = "test" if one_of("split", split, SPLITS) == "test" else "train"
        self._hold(EventFile(fetch_shd(Path(root), part)), dt, window, options)
        self._take(split, by, share, seed)

    @classmethod
    def from_file(
        cls, path: str | PathLike[str], *, dt: float = 4e-3, window: float | None = 1.0, **options: Unpack[SHDOptions]
    ) -> "SHD":
        """All utterances of one file in SHD's layout, such as those of SSC.

        Args:
            path: the HDF5 file, plain or packed by xz.
            dt: width of a bin, in seconds.
            window: length of the recording, in seconds, or None.
            **options: as of :class:`SHD`.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: as :class:`SHD`.
        """
        self = cls.__new__(cls)
        self._hold(EventFile(path), dt, window, options)
        return self

    @classmethod
    def embedded(
        cls,
        split: Split,
        *,
        dt: float = 4e-3,
        window: float | None = 1.0,
        by: By = "random",
        share: float = 0.2,
        seed: int = 0,
        **options: Unpack[SHDOptions],
    ) -> "SHD":
        """Return the sample in the package: 150 spoken digits in SHD's layout, none of SHD.

        They are recordings of five people from the Free Spoken Digit Dataset: 100 for training and
        validation, 50 others for the test.

        Args:
            split: ``"train"``, ``"validation"`` or ``"test"``.
            dt: width of a bin, in seconds.
            window: length of the recording, in seconds, or None.
            by: how validation is drawn.
            share: of the utterances or speakers that go to validation.
            seed: of that draw.
            **options: as of :class:`SHD`.

        Raises:
            ValueError: as :class:`SHD`.
        """
        part = "test" if one_of("split", split, SPLITS) == "test" else "train"
        folder = resources.files("neurolsc.datasets") / "samples" / "spoken_digits"
        with resources.as_file(folder / f"{part}.h5.xz") as path:
            self = cls.from_file(path, dt=dt, window=window, **options)
        self._take(split, by, share, seed)
        return self

    def _hold(self, file: EventFile, dt: float, window: float | None, options: SHDOptions) -> None:
        options = options.copy()
        self.augment = tuple(options.pop("augment", ()))
        self.sparse = options.pop("sparse", False)
        cache = options.pop("cache", None)
        cached = one_of("cached", options.pop("cached", "spikes"), CACHED)
        self.binning = Binning(dt, window, **options)  # type: ignore[arg-type]  # refuses unknown ones, too
        self.binning.check_resolution(file.times_dtype)
        self.split: Split | None = None
        self.path = file.path
        self.indices = np.arange(len(file))
        self.labels, self.speakers = torch.from_numpy(file.labels), torch.from_numpy(file.speakers)
        self.names = file.names
        self.n_in, self.n_classes, self.steps = self.binning.channels, len(file.names), self.binning.steps
        as_frames = cached == "frames"
        if as_frames and (cache is None or self.sparse or self.augment):
            raise ValueError(
                f"cached='frames' needs a cache folder, dense batches and no augmentation, got cache={cache!r}, "
                f"sparse={self.sparse} and {len(self.augment)} augmentations."
            )
        self._source = file if cache is None or as_frames else EventCache(file, cache)
        self._frames = FrameCache(file, cache, self.binning) if as_frames and cache is not None else None

    def _take(self, split: Split, by: By, share: float, seed: int) -> None:
        """Keep the utterances of a split."""
        self.split = split
        if split != "test":
            parts = hold_out(self.speakers.numpy(), by, share=share, seed=seed)
            self.indices = parts.train if split == "train" else parts.validation
            self.labels, self.speakers = self.labels[self.indices], self.speakers[self.indices]

    def __len__(self) -> int:
        """Number of items."""
        return len(self.indices)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """One item: x (T, N) and the class."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"items run from 0 to {len(self) - 1}, asked for {index}.")
        x, label = self.__getitems__([index])[0]
        return x, int(label)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Return several items, binned together: what a ``DataLoader`` calls for a batch."""
        frames = self.frames(indices)
        return Batch(frames.x, self.labels[torch.as_tensor(indices, dtype=torch.long)], frames.mask)

    def frames(self, indices: Sequence[int]) -> Frames:
        """The frames of several items, and the spikes that the window left out of each."""
        if self._frames is not None:
            return self._frames.read(self.indices[np.asarray(indices, dtype=np.int64)])
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
        """How many spikes of all items stand at the end of the window or later.

        Without cached frames this is a pass over all spikes.
        """
        if self.binning.window is None:
            return 0
        if self._frames is not None:
            return int(self._frames.left_out[self.indices].sum())
        starts = range(0, len(self), CHUNK)
        parts = (self.events(range(a, min(a + CHUNK, len(self)))) for a in starts)
        return sum(int((part.times.astype(np.float64) >= self.binning.window).sum()) for part in parts)

    def __repr__(self) -> str:
        """What a log needs to tell this set from another."""
        return (
            f"{type(self).__name__}({self.path.name}, split={self.split!r}, {len(self)} items, x ({self.steps}, {self.n_in}), "
            f"{self.n_classes} classes, {self.binning})"
        )
