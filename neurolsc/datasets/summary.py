"""What is in a file of spoken words."""

from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np

from neurolsc.datasets.cache import CHUNK
from neurolsc.datasets.events import UNITS, EventFile, Events
from neurolsc.display import Displayed, Table
from neurolsc.io import clean

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class Summary(Displayed):
    """Numbers about a file in SHD's layout."""

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
            example_title: what that is.
            title: of the whole; the name of the file if empty.

        Returns:
            The figure, which a notebook shows.
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
        """What is shown: lines for the whole, and a table of its classes and speakers."""
        silent = int((self.activity == 0).sum())
        speakers = np.unique(self.speakers[self.speakers >= 0])
        rows = [self._row(f"{label:>3} {name}", self.labels == label) for label, name in enumerate(self.names)]
        rows += [self._row(f"speaker {speaker}", self.speakers == speaker) for speaker in speakers]
        return [
            f"{self.title}: {len(self.labels)} utterances, {len(self.names)} classes, {len(speakers) or 'unnamed'} speakers",
            f"spikes per utterance  mean {self.spikes.mean():.0f}, {self.spikes.min()} to {self.spikes.max()}",
            f"last spike            mean {self.duration.mean():.3f} s, {self.duration.min():.3f} to {self.duration.max():.3f} s, "
            f"{(self.duration >= 1).mean():.1%} at 1 s or later; times are {self.resolution * 1e3:.2g} ms apart there",
            f"units                 {UNITS - silent} of {UNITS} fire",
            "",
            Table(("", "utterances", "spikes", "last spike"), rows),
        ]

    def _row(self, name: str, of: np.ndarray) -> tuple[str, str, str, str]:
        if not of.any():
            return name, "0", "", ""
        return name, str(of.sum()), f"{self.spikes[of].mean():.0f}", f"{self.duration[of].mean():.3f} s"


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
