"""Spike latency as the paper's released code has it: other numbers, and time and place mixed."""

from dataclasses import dataclass

import torch
from torch import Tensor

from neurolsc.datasets.latency import check_times, spike_latency
from neurolsc.validation import whole

TAU = 50.0
"""time constant of the membrane, in ms; pixels are multiplied by the same number"""
THRESHOLD = 0.2
"""of pixels after that"""
BINS = 100
PER_MS = 10


@dataclass(frozen=True)
class ReleasedEncoding:
    r"""The sl-MNIST of the paper's released code, which is not that of its text.

    There brightness in [0, 1] is multiplied by tau before it meets the threshold, and a
    millisecond has ten bins,

    .. math::

        T(x) = 10\, \tau \log \frac{\tau x}{\tau x - 0.2} \text{ for } \tau x > 0.2, \quad \tau =
               50,

    rounded to whole bins, halves to even. Pixels of bin 100 or later stay silent, so that grey
    level 6 is the darkest that spikes, and the brightest spikes in bin 2. These spikes are put into
    an array of N pixels times 100 bins, which then is *read* as one of 100 steps times N channels,
    without being transposed: a spike of pixel p in bin T is shown

    .. math:: \text{at step } \lfloor (100 p + T) / N \rfloor, \quad \text{in channel } (100 p + T)
        \bmod N.

    Of 784 pixels a step shows about 7.84, one behind the other: what is called time is the place in
    the image, from the top to the bottom, and brightness moves a spike by less than 100 channels.
    Use it to compare figures with the released code's; the text's is :class:`LatencyEncoding`.

    Attributes:
        repeat: how often each step is shown.

    Raises:
        TypeError: if repeat is not an int.
        ValueError: if repeat is not positive.

    Source: the released code of Herranz-Celotti & Rouat, arXiv:2308.12075.

    Example:
        >>> code = ReleasedEncoding(repeat=1)
        >>> times = code.times(torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64))
        >>> times
        tensor([   inf, 0.4016, 0.2004], dtype=torch.float64)
        >>> code.frames(times).nonzero().tolist()  # at 104 = 34 * 3 + 2 and 202 = 67 * 3 + 1
        [[34, 2], [67, 1]]
    """

    repeat: int = 2

    def __post_init__(self) -> None:
        """Refuse at once what no frame can follow."""
        whole("repeat", self.repeat)

    @property
    def steps(self) -> int:
        """Number of time steps T."""
        return self.repeat * BINS

    def times(self, pixels: Tensor) -> Tensor:
        """Spike times in ms of pixels in [0, 1], infinite where none, float64."""
        return spike_latency(pixels, tau=TAU, threshold=THRESHOLD / TAU)

    def shown(self, times: Tensor) -> Tensor:
        """Whether spikes at these times, in ms, stand in the frames."""
        return _bins(times) < BINS

    def frames(self, times: Tensor) -> Tensor:
        """Frames (T, ..., N) of spike times (..., N) in ms, zeros and ones, uint8.

        Raises:
            ValueError: if a time is negative or NaN.
        """
        check_times(times)
        *batch, n = times.shape
        bins, none = _bins(times), n * BINS
        place = torch.arange(n, device=times.device) * BINS + bins
        flat = torch.zeros(*batch, none + 1, dtype=torch.uint8, device=times.device)
        flat.scatter_(-1, place.masked_fill(bins >= BINS, none).long(), 1)
        frames = flat[..., :none].view(*batch, BINS, n).movedim(-2, 0)
        return frames.repeat_interleave(self.repeat, dim=0)


def _bins(times: Tensor) -> Tensor:
    """The bin of each time in ms, rounded, halves to even."""
    return (times.double() * PER_MS).round()
