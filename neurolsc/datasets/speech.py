"""Spoken words as frames: SHD, and other recordings in its layout."""

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neurolsc.datasets.batches import SAMPLES, SPLITS, Batch, BatchDataset, By, Split, count_bins, generator, hold_out
from neurolsc.datasets.download import fetch
from neurolsc.datasets.events import UNITS, Augmentation, EventFile, Events
from neurolsc.validation import number, one_of, whole

MOST = 255  # largest count of a bin: counts are uint8


@dataclass(frozen=True)
class Binning:
    r"""The grid on which spikes are counted, the same for all utterances.

    .. math:: x[k, b, n] = \#\{\text{spikes of } b : \lfloor t / dt \rfloor = k,\;
              \lfloor u N / 700 \rfloor = n\}

    A spike at the end of the window or later is left out, never moved into another bin.

    Args:
        dt: width of a bin, in seconds.
        window: length of the recording, in seconds, a whole number of bins; None: every utterance lasts until the bin
            of its last spike, and a batch as long as its longest, with a mask.
        channels: N, a divisor of 700; neighbouring units are counted together.
        binary: 1 for every count above 0.
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
        return None if self.window is None else self.repeat * count_bins(self.dt, self.window, unit="s")

    def frames(self, events: Events) -> tuple[Tensor, Tensor | None]:
        """Count spikes, in time proportional to spikes + T B N.

        Returns:
            Counts (T, B, N), uint8, and without a window a mask (T, B), bool, True while an utterance lasts, else None.

        Raises:
            ValueError: if a bin holds more than 255 spikes (not if binary).
        """
        B, N = len(events.offsets) - 1, self.channels
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
        # An utterance in one piece of memory, (B, T, N): its spikes then stay within the processor
        # cache, twice as fast as (T, B, N). Spikes left out fall into a bin behind the last.
        frames = np.zeros((B, bins + 1, self.repeat, N), np.uint8)
        flat = (step * self.repeat * N + channel) + np.repeat(
            np.arange(B) * ((bins + 1) * self.repeat * N), events.counts
        )
        # steps ascend in each utterance, so that counts above 255 take 256 spikes of one step in a row
        many = not self.binary and ((step[MOST:] == step[:-MOST]) & (step[MOST:] < bins)).any()
        if many and (most := np.bincount(flat[step < bins], minlength=1).max()) > MOST:
            raise ValueError(
                f"a bin of {self.dt * 1e3:g} ms and {group} units holds {most} spikes, at most {MOST} fit: take a smaller "
                "dt, more channels, or binary=True."
            )
        for _ in range(self.repeat):
            if self.binary:
                frames.reshape(-1)[flat] = 1
            else:
                np.add.at(frames.reshape(-1), flat, np.uint8(1))
            flat += N
        x = torch.from_numpy(frames)[:, :bins].reshape(B, bins * self.repeat, N).transpose(0, 1)
        if self.window is not None:
            return x, None
        last = np.zeros(B, np.int64)  # an utterance without spikes has one step
        np.maximum.at(last, events.owners, step)
        return x, torch.arange(bins).repeat_interleave(self.repeat)[:, None] <= torch.from_numpy(last)


class SHD(BatchDataset):
    """Spoken words as spike counts of 700 units: the Spiking Heidelberg Digits.

    Item i is a pair (x, label): x of shape (T, N), uint8, and the word as an int. Validation is drawn from the training
    file; the test file is opened for ``split="test"`` only.

    Args:
        root: folder of shd_train.h5 and shd_test.h5, of these in a folder SHD, or of train.h5 and test.h5; if there is
            none of them SHD is downloaded into it. None: the sample in the package.
        split: ``"train"``, ``"validation"`` or ``"test"``.
        by: how validation is drawn, ``"random"`` or ``"speaker"`` (:func:`hold_out`).
        share: of the training utterances or speakers that go to validation.
        seed: of that draw.
        **options: ``dt``, ``window``, ``channels``, ``binary`` and ``repeat``, as of :class:`Binning`, and ``augment``:
            changes of events, in this order, drawn from torch's random numbers, in :func:`neurolsc.train` from its
            seed, the epoch and the items.

    Attributes:
        path: the HDF5 file.
        binning: the numbers of the grid.
        indices: place of every item in the file (n,).
        labels: classes (n,), int64.
        speakers: speaker of every item (n,), int64; -1 where the file does not say.
        names: name of each class.

    Raises:
        ValueError: if an argument is out of range, dt is finer than the times are, or the file is damaged
            (:class:`EventFile`).
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
        part = "test" if one_of("split", split, SPLITS) == "test" else "train"
        if root is None:
            path = SAMPLES / "spoken_digits" / f"{part}.h5.xz"
        else:
            path = fetch(root, f"shd_{part}.h5", f"SHD/shd_{part}.h5", f"{part}.h5")
        self._open(path, split, **options)
        if split != "test":
            train, validation = hold_out(self.speakers.numpy(), by, share=share, seed=seed)
            self.indices = train if split == "train" else validation
            self.labels, self.speakers = self.labels[self.indices], self.speakers[self.indices]
            self._events = self._events.take(self.indices)

    @classmethod
    def from_file(cls, path: str | PathLike[str], **options: Any) -> "SHD":
        """All utterances of one file in SHD's layout, plain or packed by xz, such as those of SSC."""
        self = cls.__new__(cls)
        self._open(path, None, **options)
        return self

    @classmethod
    def embedded(cls, split: Split, *, share: float = 0.2, **options: Any) -> "SHD":
        """Return the sample in the package: 150 spoken digits in SHD's layout, none of SHD.

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
        self.binning = Binning(**binning)
        file = EventFile(path)
        self._events, dtype = file.events, file.events.times.dtype
        last = np.nextafter(dtype.type(self.binning.window or 1.0), dtype.type(0))
        if self.binning.dt < (resolution := float(np.spacing(last))):
            raise ValueError(
                f"dt must not be below the resolution of the times, {resolution * 1e3:.3g} ms in {dtype} below "
                f"{float(last):g} s, got {self.binning.dt * 1e3:g} ms."
            )
        self.augment, self.split = tuple(augment), split
        self.path, self.names = file.path, file.names
        self.indices = np.arange(len(file))
        self.labels, self.speakers = torch.from_numpy(file.labels), torch.from_numpy(file.speakers)
        self.n_in, self.n_classes, self.steps = self.binning.channels, len(file.names), self.binning.steps

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        events = self.events(indices)
        if self.augment:
            random = generator(indices)
            for change in self.augment:
                events = change(events, random)
        x, mask = self.binning.frames(events)
        return Batch(x, self.labels[torch.as_tensor(indices, dtype=torch.long)], mask)

    def events(self, indices: Sequence[int]) -> Events:
        """The spikes of several items, as the file has them."""
        return self._events.take(np.asarray(indices, dtype=np.int64))

    @property
    def left_out(self) -> int:
        """How many spikes of all items stand at the end of the window or later."""
        late = np.inf if self.binning.window is None else self.binning.window
        return int((self._events.times.astype(np.float64) >= late).sum())
