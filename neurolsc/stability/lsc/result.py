"""What came of setting the radii of a network."""

from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

from neurolsc.display import Displayed, Table
from neurolsc.stability.findings import Finding, dead_layers, missed_targets, wide_spread
from neurolsc.stability.lsc.criteria import Measured
from neurolsc.stability.lsc.look import Look
from neurolsc.stability.lsc.options import Options
from neurolsc.stability.profile import RadiusProfile

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, repr=False)
class PretrainResult(Displayed):
    """What setting the radii did; the network itself holds the best weights.

    Attributes:
        converged: whether the criteria hold for the profile, and every layer fires.
        steps: pre-training steps taken (of :func:`neurolsc.scale_to_radius`: measurements made).
        history: one row per step: loss, mean radii through time and depth, deviation, firing rates
            (None of a layer that does not send spikes), seconds.
        profile: radii of the network as it is now, on inputs that the last step did not look at, if
            there were such.
        time_error: standard error of the profile's mean radii through time, per layer.
        depth_error: standard error of those through depth.
        findings: dead layers and missed targets by name, and what to change.
        options: the settings.
        seconds: wall time.
    """

    converged: bool
    steps: int
    history: list[dict[str, Any]]
    profile: RadiusProfile
    time_error: list[float]
    depth_error: list[float]
    findings: tuple[Finding, ...]
    options: Options
    seconds: float

    @property
    def points(self) -> tuple[int, int]:
        """On how many points the radii of each layer rest: (time steps, samples)."""
        return self.profile.time.shape[1], self.profile.time.shape[2]

    def plot(self, path: str | PathLike[str] | None = None, *, title: str = "") -> "Figure":
        """Draw mean radii and firing rates over the steps; no rates of layers that send no spikes.

        Args:
            path: a file to write as well, whose suffix chooses the format.
            title: of the whole.

        Returns:
            The figure, which a notebook shows.

        Raises:
            ValueError: if this is of :func:`neurolsc.scale_to_radius`, whose measurements are of
                single layers; its profile can be drawn.
        """
        from neurolsc.plots import plot_pretraining  # matplotlib is slow to import and few runs draw

        return plot_pretraining(self.history, self.profile.target, path, title=title)

    def parts(self) -> list[str | Table]:
        """What is shown: how it ended, the profile, how sure its means are, and the findings."""
        reached = "converged" if self.converged else "not converged"
        steps, samples = self.points
        sure = (
            f"means over {steps} steps of {samples} samples, standard errors at most {max(self.time_error):.3f} "
            f"through time and {max(self.depth_error):.3f} through depth"
        )
        ended = f"{reached} after {self.steps} steps, {self.seconds:.1f} s"
        return [ended, *self.profile.parts(), sure, *map(str, self.findings)]


def concluded(
    look: Look,
    profile: RadiusProfile,
    *,
    total: int,
    smoothed: float,
    steps: int,
    history: list[dict[str, Any]],
    seconds: float,
) -> PretrainResult:
    """Judge a network by a profile of it, of inputs of so many steps."""
    options, measured = look.options, Measured.of(profile)
    findings = [*dead_layers(profile)]
    met = options.criteria.met(measured, look.goal, smoothed, options.include_input)
    time_error, depth_error = measured.standard_errors(total)
    if not met:
        misses = options.criteria.misses(measured, look.goal, options.include_input)
        missed = missed_targets(profile, misses, (time_error, depth_error))
        findings += missed if misses else [wide_spread(profile, options.include_input)]
    converged = met and not dead(profile)
    return PretrainResult(
        converged, steps, history, profile, time_error, depth_error, tuple(findings), options, seconds
    )


def dead(profile: RadiusProfile) -> bool:
    """Whether a layer of spikes sent none."""
    return bool((profile.firing_rate == 0).any())
