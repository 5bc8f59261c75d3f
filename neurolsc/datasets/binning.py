"""Events into bins: flat spikes in, batches (T, B, N) out, dense or sparse."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from neurolsc.datasets.events import UNITS, Events
from neurolsc.datasets.latency import count_bins
from neurolsc.validation import positive, whole

MOST = 255
"""Largest count of a bin: counts are uint8."""


class Frames(NamedTuple):
    """Binned utterances."""

    x: Tensor
    """counts (T, B, N), uint8, dense or sparse"""
    mask: Tensor | None
    """(T, B), bool, True while an utterance lasts; None if all last for the window"""
    left_out: Tensor
    """spikes of each utterance at the end of the window or later (B,), int64"""


@dataclass(frozen=True)
class Binning:
    r"""How spikes become frames: that of unit u at time t counts in bin floor(t / dt) of a channel.

    .. math:: x[k, b, n] = \#\{\text{spikes of } b : \lfloor t / dt \rfloor = k,\;
              \lfloor u N / 700 \rfloor = n\}

    The grid is the same for all utterances. A spike at the end of the window or later is left out
    and counted, never moved into another bin. Each frame then stands ``repeat`` times in a row.

    Attributes:
        dt: width of a bin, in seconds.
        window: length of the recording, in seconds, a whole number of bins; None: every utterance
            lasts until the bin of its last spike, and a batch as long as its longest, with a mask.
        channels: N, a divisor of 700; neighbouring units are counted together.
        binary: give 1 for every count above 0.
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
        """Refuse settings that no events would fit."""
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
        resolution = float(np.spacing(last))
        if self.dt < resolution:
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
        # An utterance in one piece of memory, (B, T, N): its spikes then stay within the
        # processor's cache, which is twice as fast as (T, B, N). The spikes left out fall into a
        # bin behind the last one.
        frames = np.zeros((B, bins + 1, self.repeat, N), np.uint8)
        shape = (bins + 1) * self.repeat * N
        flat = step * (self.repeat * N)
        flat += channel
        flat += np.repeat(np.arange(B) * shape, events.counts)
        if not self.binary:
            self._check_counts(flat, step, bins, channel, events)
        for _ in range(self.repeat):
            if self.binary:
                frames.reshape(-1)[flat] = 1
            else:
                np.add.at(frames.reshape(-1), flat, np.uint8(1))
            flat += N
        x = torch.from_numpy(frames)[:, :bins].reshape(B, bins * self.repeat, N).transpose(0, 1)
        return Frames(x, self._mask(bins, step, events), self._left_out(bins, step, events))

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
        elif counts.max(initial=0) > MOST:
            raise ValueError(self._too_many(int(counts.max())))
        size = (bins * self.repeat, B, N)
        at = torch.from_numpy(np.stack(np.unravel_index(place[first], size)))
        values = torch.from_numpy(counts.astype(np.uint8))
        x = torch.sparse_coo_tensor(at, values, size, is_coalesced=True, check_invariants=False)
        return Frames(x, self._mask(bins, step, events), self._left_out(bins, step, events))

    def _grid(self, events: Events) -> tuple[int, np.ndarray, np.ndarray]:
        """Number of bins, and bin and channel of each spike; those left out are in one bin more."""
        times = events.times
        if self.window is None:
            bins = self._bins(times.max()[None], np.iinfo(np.int64).max).item() + 1 if len(times) else 1
            step = self._bins(times, bins)
        else:
            bins = count_bins(self.dt, self.window, unit="s")
            # half precision has 65,536 numbers: looking their bins up is exact, and faster than the
            # division
            step = self._table.take(times.view(np.uint16)) if times.dtype == np.float16 else self._bins(times, bins)
        group = UNITS // self.channels
        return bins, step, events.units if group == 1 else events.units // np.uint16(group)

    def _bins(self, times: np.ndarray, late: int) -> np.ndarray:
        """floor(t / dt), at most late: also the bin of times at the window's end or after it."""
        seconds = times.astype(np.float64)
        step = np.minimum(np.floor(seconds / self.dt), late).astype(np.int64)
        if self.window is not None:
            # a time just below the window belongs to its last bin though the division rounds up,
            # and the reverse
            step[(seconds < self.window) & (step == late)] = late - 1
            step[seconds >= self.window] = late
        return step

    @cached_property
    def _table(self) -> np.ndarray:
        """The bin of every half-precision number."""
        assert self.window is not None
        every = np.arange(2**16, dtype=np.uint16).view(np.float16)
        return self._bins(np.nan_to_num(every, nan=np.inf, neginf=np.inf), count_bins(self.dt, self.window, unit="s"))

    def _mask(self, bins: int, step: np.ndarray, events: Events) -> Tensor | None:
        if self.window is not None:
            return None
        lasts = np.zeros(len(events.offsets) - 1, np.int64)  # steps; an utterance that lost all its spikes has one
        np.maximum.at(lasts, events.owners, step)
        return torch.arange(bins).repeat_interleave(self.repeat)[:, None] <= torch.from_numpy(lasts)

    def _left_out(self, bins: int, step: np.ndarray, events: Events) -> Tensor:
        late = np.flatnonzero(step == bins)
        owners = np.searchsorted(events.offsets, late, "right") - 1
        return torch.from_numpy(np.bincount(owners, minlength=len(events.offsets) - 1))

    def _check_counts(self, flat: np.ndarray, step: np.ndarray, bins: int, channel: np.ndarray, events: Events) -> None:
        """Refuse counts that do not fit into a byte; costly only where two bounds leave it open."""
        if not (step[MOST:] == step[:-MOST]).any():
            return  # steps ascend in each utterance: no 256 spikes of one fall into a bin, let alone into one channel
        per_channel = events.owners * self.channels + channel
        if np.bincount(per_channel).max() > MOST:
            most = int(np.unique(flat[step < bins], return_counts=True)[1].max(initial=0))
            if most > MOST:
                raise ValueError(self._too_many(most))

    def _too_many(self, count: int) -> str:
        return (
            f"a bin of {self.dt * 1e3:g} ms and {UNITS // self.channels} units holds {count} spikes, at most {MOST} fit: "
            "take a smaller dt, more channels, or binary=True."
        )
