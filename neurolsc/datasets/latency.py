"""Spike latency: a brightness becomes the time of one spike, the brighter the sooner."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from neurolsc.validation import number, whole


def spike_latency(pixels: Tensor, *, tau: float = 50.0, threshold: float = 0.2) -> Tensor:
    r"""Return when a leaky membrane driven by each pixel first reaches its threshold.

    .. math::

        T(x) = \tau \log \frac{x}{x - \vartheta} \text{ for } x > \vartheta,
               \quad \infty \text{ otherwise}

    The membrane starts at rest and tends to x, :math:`v(t) = x (1 - e^{-t/\tau})`, so a pixel that
    equals the threshold never crosses it. The comparison is made in the precision of the pixels,
    the logarithm in float64: a rounding error would move a spike into another bin.

    Args:
        pixels: brightness in [0, 1], any floating-point dtype, any shape.
        tau: time constant of the membrane, in ms.
        threshold: spike threshold, in units of brightness, in [0, 1).

    Returns:
        Time of each pixel's only spike, in ms, infinite where it stays silent; float64, shaped like
        pixels.

    Raises:
        TypeError: if the pixels are not floating point.
        ValueError: if a pixel is NaN or outside [0, 1], tau is not positive, or the threshold is
            outside [0, 1).

    Source: Herranz-Celotti & Rouat, arXiv:2308.12075 (sl-MNIST), after Zenke & Vogels, Neural
    Computation 33 (2021).

    Example:
        >>> spike_latency(torch.tensor([0.1, 0.2, 0.5, 1.0]))
        tensor([    inf,     inf, 25.5413, 11.1572], dtype=torch.float64)
    """
    tau = number("tau", tau)
    if not 0 <= threshold < 1:
        raise ValueError(f"threshold must be a brightness in [0, 1), got {threshold}.")
    if not pixels.is_floating_point():
        raise TypeError(f"pixels must be floats in [0, 1], got {pixels.dtype}; divide grey levels by 255.")
    inside = (pixels >= 0) & (pixels <= 1)
    if not inside.all():
        raise ValueError(f"pixels must lie in [0, 1], got {pixels[~inside][0].item():g}.")
    x = pixels.double()
    return torch.where(pixels > threshold, tau * torch.log(x / (x - threshold)), math.inf)


def latency_frames(times: Tensor, *, dt: float = 1.0, window: float = 50.0, repeat: int = 2) -> Tensor:
    """Put spike times into bins, one frame a time step.

    A spike at time t falls into bin floor(t / dt). One at the end of the window or later is left
    out, never moved into another bin. Each frame then stands ``repeat`` times in a row ("time step
    repeat").

    Args:
        times: one spike time per neuron, in ms, at least 0, infinite for none; shape (..., N).
        dt: width of a bin, in ms.
        window: length of the recording, in ms, a whole number of bins.
        repeat: how often each frame is shown.

    Returns:
        Zeros and ones, uint8, shape (T, ..., N) with T = repeat * window / dt.

    Raises:
        TypeError: if repeat is not an int.
        ValueError: if a time is negative or NaN, dt, window or repeat is not positive, or the
            window is not a whole number of bins.

    Source: Herranz-Celotti & Rouat, arXiv:2308.12075 (sl-MNIST: 1 ms bins over 50 ms, every step
    twice).

    Example:
        >>> latency_frames(torch.tensor([0.5, 1.0, 2.0]), dt=1.0, window=2.0, repeat=2)
        tensor([[1, 0, 0],
                [1, 0, 0],
                [0, 1, 0],
                [0, 1, 0]], dtype=torch.uint8)
    """
    bins = count_bins(dt, window)
    whole("repeat", repeat)
    check_times(times)
    late_or_silent = ~(times < window)
    # The clamp keeps a time just below the window in its last bin when the division rounds up.
    index = (times.double() / dt).floor().clamp(max=bins - 1).masked_fill(late_or_silent, bins).long()
    frames = torch.zeros(bins + 1, *times.shape, dtype=torch.uint8, device=times.device)
    return frames.scatter_(0, index.unsqueeze(0), 1)[:bins].repeat_interleave(repeat, dim=0)


def check_times(times: Tensor) -> None:
    """Refuse what cannot be the times of spikes.

    Raises:
        ValueError: if a time is negative or NaN.
    """
    valid = times >= 0
    if not valid.all():
        bad = times[~valid][0].item()
        raise ValueError(f"times must be zero or positive, infinite for no spike, got {bad:g} ms.")


def count_bins(dt: float, window: float, *, unit: str = "ms") -> int:
    """Return how many bins of dt fill a window, both in the unit.

    Raises:
        ValueError: if one of them is not positive or the window is not a whole number of bins.
    """
    ratio = number("window", window) / number("dt", dt)
    bins = round(ratio)
    if bins < 1 or not math.isclose(ratio, bins, rel_tol=1e-9):
        raise ValueError(f"window must be a whole number of bins, got {window} {unit} with bins of {dt} {unit}.")
    return bins


@dataclass(frozen=True)
class LatencyEncoding:
    """The five numbers of a spike-latency code, by default those of sl-MNIST.

    Attributes:
        tau: time constant of the membrane, in ms.
        threshold: its spike threshold, in units of brightness.
        dt: width of a bin, in ms.
        window: length of the recording, in ms; later spikes are left out.
        repeat: how often each frame is shown.

    Raises:
        TypeError: if repeat is not an int.
        ValueError: as :func:`spike_latency` and :func:`latency_frames`.

    Example:
        >>> LatencyEncoding().steps
        100
    """

    tau: float = 50.0
    threshold: float = 0.2
    dt: float = 1.0
    window: float = 50.0
    repeat: int = 2

    def __post_init__(self) -> None:
        """Refuse at once what the two functions would refuse later."""
        self.frames(self.times(torch.zeros(1)))

    @property
    def steps(self) -> int:
        """Number of time steps T."""
        return self.repeat * count_bins(self.dt, self.window)

    def times(self, pixels: Tensor) -> Tensor:
        """Spike times in ms of pixels in [0, 1], by :func:`spike_latency`."""
        return spike_latency(pixels, tau=self.tau, threshold=self.threshold)

    def shown(self, times: Tensor) -> Tensor:
        """Whether spikes at these times, in ms, stand in the frames."""
        return times < self.window

    def frames(self, times: Tensor) -> Tensor:
        """Frames (T, ..., N) of spike times (..., N) in ms, by :func:`latency_frames`."""
        return latency_frames(times, dt=self.dt, window=self.window, repeat=self.repeat)
