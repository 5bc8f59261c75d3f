"""What is in a file of spoken words."""

from dataclasses import dataclass
from os import PathLike

import numpy as np

from neurolsc.datasets.cache import CHUNK
from neurolsc.datasets.events import UNITS, EventFile, Events
from neurolsc.untrusted.words import clean


@dataclass(frozen=True)
class Summary:
    """Numbers about a file in SHD's layout; printed, they are a table."""

    title: str
    """name of the file"""
    names: list[str]
    """name of each class"""
    labels: np.ndarray
    """class of each utterance (n,)"""
    speakers: np.ndarray
    """speaker of each utterance (n,)"""
    spikes: np.ndarray
    """spikes of each utterance (n,)"""
    duration: np.ndarray
    """last spike of each utterance (n,), in seconds"""
    activity: np.ndarray
    """spikes of each unit per utterance (700,)"""
    resolution: float
    """distance of neighbouring times at the latest spike, in seconds"""

    def plot(self, path: str | PathLike[str], example: Events, title: str) -> None:
        """Draw it to a file, with an example, the spikes of one utterance, and what that is."""
        from neurolsc.plots import plot_summary  # matplotlib is slow to import and few runs draw

        plot_summary(
            path,
            title=self.title,
            spikes=self.spikes,
            duration=self.duration,
            classes=np.bincount(self.labels, minlength=len(self.names)),
            speakers=np.unique(self.speakers, return_counts=True),
            activity=self.activity,
            example=(example.times, example.units),
            example_title=title,
        )

    def __str__(self) -> str:
        """Give a line for the whole, one for each class and one for each speaker."""
        silent = int((self.activity == 0).sum())
        lines = [
            f"{self.title}: {len(self.labels)} utterances, {len(self.names)} classes, {len(np.unique(self.speakers))} speakers",
            f"spikes per utterance  mean {self.spikes.mean():.0f}, {self.spikes.min()} to {self.spikes.max()}",
            f"last spike            mean {self.duration.mean():.3f} s, {self.duration.min():.3f} to {self.duration.max():.3f} s, "
            f"{(self.duration >= 1).mean():.1%} at 1 s or later; times are {self.resolution * 1e3:.2g} ms apart there",
            f"units                 {UNITS - silent} of {UNITS} fire",
            "",
            f"{'':16}utterances  spikes  last spike",
        ]
        for label, name in enumerate(self.names):
            lines.append(self._line(f"{label:>3} {name}", self.labels == label))
        for speaker in np.unique(self.speakers):
            lines.append(self._line(f"speaker {speaker}", self.speakers == speaker))
        return "\n".join(lines)

    def _line(self, name: str, of: np.ndarray) -> str:
        if not of.any():
            return f"{name:16}{0:>10}"
        return f"{name:16}{of.sum():>10}  {self.spikes[of].mean():>6.0f}  {self.duration[of].mean():>8.3f} s"


def summarize(file: EventFile) -> Summary:
    """Read a whole file, some utterances at a time, and count.

    Args:
        file: the file; every utterance is checked.

    Returns:
        Its numbers.

    Raises:
        ValueError: if an utterance is damaged.
    """
    spikes, duration, activity = [], [], np.zeros(UNITS)
    for start in range(0, len(file), CHUNK):
        events = file.read(range(start, min(start + CHUNK, len(file))))
        spikes.append(events.counts)
        duration.append(events.times[events.offsets[1:] - 1])
        activity += np.bincount(events.units, minlength=UNITS)
    last = np.concatenate(duration)
    resolution = float(np.spacing(last.max()))
    return Summary(
        clean(file.path.name),
        file.names,
        file.labels,
        file.speakers,
        np.concatenate(spikes),
        last.astype(np.float64),
        activity / len(file),
        resolution,
    )
