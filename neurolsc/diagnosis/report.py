"""What a diagnosis says: as a sequence of findings, as text, as JSON and as a picture."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

from neurolsc.diagnosis.figures import Figures, LayerFigures
from neurolsc.display import Displayed, Table, or_dash
from neurolsc.stability.findings import Finding

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEAD = (
    *("layer", "spikes", "dead", "busy", "sync", "time r.", "depth r.", "exponent", "sing. t, d", "usable", "input"),
    *("gradient", "SNR", "< eps"),
)


CHANCE = 0.02
"""distance of a loss from ln(classes), as a share, within which nothing is learnt yet: a silent
network is there exactly"""
HEARD, LOST = 0.2, 0.05
"""shares of what tells samples apart: where the first layer keeps more than the one and a later one
less than the other, depth is what loses it. Over the starts of the study what is kept goes with the
score more closely than any other figure; woken layers lose it, and learn less: five of ALIF+ by 7
points than relays, ten of ALIF± by 13, ten of ALIF+ nothing at all"""


@dataclass(frozen=True)
class Trial:
    """What a cure did, next to an untreated copy of the network."""

    name: str
    """which kinds of fault were treated"""
    layers: tuple[int, ...]
    """in which layers, counted from 1; none where it is not one of layers"""
    cure: str
    """what was done"""
    before: float
    """loss of the treated copy before its updates"""
    after: float
    """and after them"""
    untreated: float
    """loss of the untreated copy after as many"""
    helped: bool
    """whether the treated one ends lower by more than half a hundredth"""

    def __str__(self) -> str:
        where = f" of layer {_listed(self.layers)}" if self.layers else ""
        told = "helped" if self.helped else "did not help"
        return (
            f"tried for {self.name}{where}: {self.cure}; {told}: loss {self.before:.4g} -> {self.after:.4g}, "
            f"untreated {self.untreated:.4g}"
        )

    def __repr__(self) -> str:
        return f"Trial({self})"


@dataclass(frozen=True, repr=False)
class Diagnosis(Displayed, Sequence[Finding]):
    """What :func:`neurolsc.diagnose` found: a sequence of findings, with the figures behind them.

    As text it is a table with a line per layer and the findings below: spikes per neuron and step,
    shares of dead and saturated ("busy") neurons, synchrony, mean radii through time and depth,
    largest Lyapunov exponent, largest singular values through time and depth, shares of usable
    derivatives and of the input that is left; of the loss's gradient its norm, signal to noise, and
    the share of entries below the optimizer's epsilon.

    Attributes:
        findings: what is wrong.
        figures: what was measured.
        epsilon: the optimizer's, with which gradients were compared.
        trials: what :func:`neurolsc.try_cures` made of the findings.
    """

    findings: tuple[Finding, ...]
    figures: Figures
    epsilon: float = 1e-8
    trials: tuple[Trial, ...] = ()

    def __len__(self) -> int:
        """Number of findings."""
        return len(self.findings)

    def __getitem__(self, index: Any) -> Any:
        """A finding."""
        return self.findings[index]

    def __iter__(self) -> Iterator[Finding]:
        """The findings."""
        return iter(self.findings)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is no fault: a loss of guessing, small gradients, an input that depth loses."""
        layers = self.figures.layers
        low = [i for i, layer in enumerate(layers, start=1) if (layer.below_epsilon or 0) > 0.5]
        lost = [i for i, layer in enumerate(layers, start=1) if layer.survives < LOST and layer.activity.rate > 0]
        loss, classes = self.figures.loss, self.figures.classes or 0
        told = []
        if loss is not None and classes > 1 and abs(loss - math.log(classes)) < CHANCE * math.log(classes):
            told.append(f"loss {loss:.3g} is that of guessing among {classes} classes ({math.log(classes):.3g})")
        if low:
            told.append(
                f"most of the gradient of layer {_listed(low)} is below the optimizer's epsilon of "
                f"{self.epsilon:g}; such entries move more slowly than by the learning rate"
            )
        if lost and layers[0].survives > HEARD:
            told.append(
                f"of what tells samples apart {layers[0].survives:.0%} is left in layer 1, and less than {LOST:.0%} "
                f"in layer {_listed(lost)}"
                + ("; a network that starts as relays keeps it (initialisers.Relay)" if self.figures.relays else "")
            )
        return tuple(f"note: {note}" for note in told)

    def parts(self) -> list[str | Table]:
        """What is shown: a table with a line for each layer, and what was found."""
        rows = zip(self.figures.layers, self.figures.profile.time_mean, self.figures.profile.depth_mean, strict=True)
        told: list[str | Table] = [
            Table(HEAD, [_row(i, layer, t.item(), d.item()) for i, (layer, t, d) in enumerate(rows, start=1)])
        ]
        if self.figures.loss is not None:
            told.append(f"loss {self.figures.loss:.4g}")
        told += [str(finding) for finding in self.findings] or ["nothing found"]
        return [*told, *self.notes, *map(str, self.trials)]

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values; None where a number is not known."""
        profile = self.figures.profile.to_dict()
        back = self.figures.back
        told = {
            "findings": [asdict(finding) for finding in self.findings],
            "trials": [asdict(trial) for trial in self.trials],
            "notes": list(self.notes),
            "loss": self.figures.loss,
            "steps": self.figures.steps,
            "epsilon": self.epsilon,
            "layers": [asdict(layer) | {"activity": layer.activity._asdict()} for layer in self.figures.layers],
            "radii": {name: profile[name] for name in ("time_mean", "depth_mean", "sources")},
            "gradient_back": None if back is None else back.tolist(),
        }
        return _plain(told)

    def plot(self, path: str | PathLike[str] | None = None, *, title: str = "") -> "Figure":
        """Draw the figures on one page, findings below.

        Args:
            path: a file to write as well, whose suffix chooses the format.
            title: of the whole.

        Returns:
            The figure, which a notebook shows.
        """
        from neurolsc.plots import plot_diagnosis  # matplotlib is slow to import and few runs draw

        layers, profile = self.figures.layers, self.figures.profile
        return plot_diagnosis(
            path,
            activity={
                "spikes per step": [layer.activity.rate for layer in layers],
                "dead neurons": [layer.activity.dead for layer in layers],
                "saturated": [layer.activity.saturated for layer in layers],
                "synchrony": [layer.activity.synchrony for layer in layers],
            },
            stretch={
                "radius, time": profile.time_mean.tolist(),
                "radius, depth": profile.depth_mean.tolist(),
                "exp of the exponent": [math.exp(layer.exponent) for layer in layers],
            },
            kept={
                "usable derivatives": [layer.usable for layer in layers],
                "input that is left": [layer.survives for layer in layers],
            },
            back=None if self.figures.back is None else self.figures.back.numpy(),
            gradient=_series(layer.gradient for layer in layers),
            noise=_series(layer.noise for layer in layers),
            findings=[*map(str, self.findings or ["nothing found"]), *map(str, self.trials)],
            title=title,
        )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


def _series(values: Any) -> list[float] | None:
    """Numbers of all layers, or None where there are none."""
    found = list(values)
    return None if None in found else found


def _row(number: int, layer: LayerFigures, time: float, depth: float) -> tuple[str, ...]:
    spikes, dead, busy, synchrony = layer.activity
    return (
        str(number),
        or_dash(spikes, ".3f"),
        or_dash(dead, ".0%"),
        or_dash(busy, ".0%"),
        or_dash(synchrony, ".2f"),
        f"{time:.3f}",
        f"{depth:.3f}",
        f"{layer.exponent:+.3f}",
        f"{layer.singular_time:.2f} {layer.singular_depth:.2f}",
        or_dash(layer.usable, ".0%"),
        or_dash(layer.survives, ".0%"),
        or_dash(layer.gradient, ".2e"),
        or_dash(layer.noise, ".3g"),
        or_dash(layer.below_epsilon, ".0%"),
    )


def _plain(node: Any) -> Any:
    """The same with None in place of numbers that JSON has not."""
    match node:
        case dict():
            return {key: _plain(value) for key, value in node.items()}
        case list() | tuple():
            return [_plain(value) for value in node]
        case float():
            return node if math.isfinite(node) else None
    return node
