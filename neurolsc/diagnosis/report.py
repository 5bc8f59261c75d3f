"""The diagnosis: from a network and a batch to findings, as text, JSON and picture."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from neurolsc.diagnosis.measurements import EPSILON, Batch, Measurements, batch_first, copied, loss_after, measure
from neurolsc.display import Displayed, Table, or_dash
from neurolsc.network import Network, as_network
from neurolsc.stability.conditions import (
    DEAD,
    Finding,
    below_threshold,
    finite_distances,
    states_stability,
    surrogate_fault,
)
from neurolsc.tasks import Classification, Task
from neurolsc.validation import positive

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SATURATED, SCALE, NEURONS = "saturated layer", "threshold out of scale", "dead neurons"
SYNCHRONOUS, EXPLODING, VANISHING = "synchronous layer", "exploding through time", "vanishing through depth"
BLOWN_UP = "exploding through depth"
UNSTABLE = "unstable below threshold"
FROZEN, MISSING, TOO_FAST, AXES = "frozen time constant", "missing class", "learning rate too high", "input batch first"

BUSY = 0.9  # spikes per neuron and step above which a layer says little but yes
# Rates outside of which a threshold is out of scale. Networks scaled to 0.06 to 0.25 learn, those at 0.0002 to 0.04
# hardly. A threshold of no size fires at every voltage above 0, half of the steps.
RARE, OFTEN = 0.01, 0.4
RATE = 0.15  # spikes per neuron and step to which thresholds are scaled, in the middle of rates that learn
DEPTH = 0.5  # radius through depth to which input weights are scaled, in the middle of those that learn
MOST_DEAD = 0.5  # share of silent neurons above which it is no sparse code any more
# Synchrony above which all neurons do more than half of what they do together; layers that speech or digits drive have
# 0.1 to 0.3.
COMMON = 0.5
# Growth over a whole run above which gradients explode. A mean radius above 1 alone is none, where a few points have
# large ones and products shrink; nor is the growth of a few steps, by as much as the largest singular value, which is 1
# to 3.
TENFOLD = math.log(10.0)
# Largest singular value through depth below which a layer passes less than a tenth of any gradient; five such layers
# leave less than 1e-5. Rate-matched networks have 0.7, good ones 2 to 4.
LITTLE = 0.1
# Over all layers: the largest gradient over the smallest, and the product of singular values through depth, above which
# gradients vanish or explode. Networks of the study that learn have up to 1e6 (ten rate-matched layers of ALIF±, behind
# identity layers) and 40, ill ones from 3e6 and from 80 on (docs/study_tables.md).
FADED, BLOWN = 1e6, 80.0
SOME_UNSTABLE = 0.01  # share of neurons that grow without a spike or a weight from which on it is a fault
MOST_STUCK = 0.5  # share of a layer's time constants that no step moves above which it is a fault


def diagnose(
    network: Network,
    batch: Tensor | Sequence[Tensor],
    *,
    task: Task = Classification(),
    labels: Tensor | None = None,
    history: Sequence[Mapping[str, Any]] = (),
    lr: float | None = None,
    samples: int = 8,
    steps: int = 16,
    seed: int = 0,
) -> "Diagnosis":
    """Find what keeps a network from learning, before or after it is trained.

    All faults and their conditions are in `docs/diagnose.md`. Where the derivative of a surrogate is NaN or infinite,
    the rest is measured as if it were 0 there.

    Args:
        network: the network; it stays as it is. :func:`neurolsc.wrap` makes one of models of snnTorch, norse and
            PyTorch.
        batch: x (T, B, n_in), or (x, targets) or (x, targets, mask) as :func:`neurolsc.datasets.collate` makes them; a
            few dozen samples are enough. Loss and gradients need targets.
        task: the task of the network.
        labels: classes of more samples than the batch holds (n,), in which missing ones are sought; by default those of
            the batch.
        history: rows with ``train_loss``, an epoch each: ``TrainResult.history``.
        lr: learning rate; with one and fewer than three epochs of history, copies of the network are trained on the
            batch for 10 updates, at this rate, a tenth and a hundredth of it.
        samples: how many samples of the batch derivatives are measured on, the first ones.
        steps: at how many time steps, drawn at random.
        seed: of that draw.

    Returns:
        The diagnosis, a sequence of its findings: empty where nothing was found.

    Raises:
        TypeError: if network is not one, or the batch is of another kind.
        ValueError: if the batch does not fit the network or the task, or a number is out of range.
        FloatingPointError: if a state or derivative is NaN or infinite.

    Cost: about that of 50 training steps on the batch in the fast loop, of layers of 64 neurons and 40 samples; with a
    learning rate that is tried twice as much.
    """
    as_network(network)
    if lr is not None:
        positive("lr", lr)
    data, found = Batch.of(batch, network), list[Finding]()
    if turned := batch_first(data):  # all that follows is said of the input as it should be
        problem = "the input looks batch first, (B, T, n_in) in place of (T, B, n_in)"
        found.append(Finding(None, problem, "give x.transpose(0, 1)", turned, AXES))
        data = data.turned()
    unfit = [fault for layer, cell in enumerate(network.cells) if (fault := surrogate_fault(cell, layer))]
    if unfit:  # the rest is said of the network with other surrogates
        found, network = found + unfit, _finite(network)
    measured = measure(network, data, task, samples=samples, steps=steps, seed=seed)
    judged = len(history) >= 3  # long enough to say how a loss goes
    learnt = judged and history[-1]["train_loss"] < 0.9 * history[0]["train_loss"]
    found += layer_faults(network, measured, learnt=learnt)
    known = data.targets if labels is None else labels
    if known is not None and known.ndim == 1:
        found += missing_classes(known, network.n_out)
    # the learning rate is too high if the loss only grew over epochs, or smaller rates bring it lower in a few updates
    epochs = [row["train_loss"] for row in history]
    if judged and min(epochs[1:]) > epochs[0]:
        problem = f"the training loss only grew, from {epochs[0]:.3g} to {epochs[-1]:.3g} in {len(epochs)} epochs"
        cure = "lower the learning rate tenfold"
        found.append(Finding(None, problem, cure, "steps that are small enough lower it", TOO_FAST))
    if lr is not None and data.targets is not None and not judged:
        updates = 10  # after which the loss of a batch has moved if it moves at all
        losses = {rate: loss_after(copied(network), data, task, rate, updates) for rate in (lr, lr / 10, lr / 100)}
        best = min(losses, key=lambda rate: losses[rate] if math.isfinite(losses[rate]) else math.inf)
        if not losses[lr] <= 1.005 * losses[best]:
            problem = f"{updates} updates on one batch at {lr:g} bring its loss to {losses[lr]:.4g}"
            cause = f"at {best:g} they bring it to {losses[best]:.4g}"
            found.append(Finding(None, problem, f"lower the learning rate to {best:g}", cause, TOO_FAST))
    return Diagnosis(tuple(found), measured)


class _Clamped(nn.Module):
    """A surrogate whose argument, the distance from the threshold, is clamped to a range."""

    def __init__(self, spike: Callable[[Tensor], Tensor], low: float, high: float) -> None:
        super().__init__()
        self.spike, self.low, self.high = spike, low, high

    def forward(self, v: Tensor) -> Tensor:
        return self.spike(v.clamp(self.low, self.high))


def _finite(network: Network) -> Network:
    """A copy whose surrogates have derivative 0 where they have none that is finite."""
    network = copied(network)
    for cell in network.cells:
        # of the finite derivatives those at 0.8 of the distance are so also times a large gradient
        low, high = (0.8 * end for end in finite_distances(cell))
        for module in (cell, getattr(cell, "layer", None)):
            for name in ("spike", "spike_grad") if (low, high) != (-math.inf, math.inf) else ():  # ours, snnTorch's
                spike: Any = getattr(module, name, None)
                if spike is not None:
                    setattr(module, name, _Clamped(spike, low, high))
    return network


# ---------------------------------------------------------------- faults


def layer_faults(network: Network, measured: Measurements, *, learnt: bool) -> Iterator[Finding]:
    """What is wrong with the layers, from the first to the last.

    Of a network that has learnt, layers may fire often, and gradients grow.
    """
    scaled = all(network.cells[i].thresholds() is not None for i in network.spiking)
    to_rate = (
        f"scale its thresholds to a rate of {RATE:g} (match_firing_rates)" if scaled else "scale its input weights"
    )
    often, silent_below = BUSY if learnt else OFTEN, False
    for i, layer in enumerate(measured.layers):
        rate, dead, saturated, synchrony = layer.activity

        def fault(name: str, problem: str, cause: str, cure: str = to_rate, i: int = i) -> Finding:
            return Finding(i + 1, problem, cure, cause, name)

        if not network.cells[i].integrator and not math.isnan(rate):
            fires, gets = f"fires {rate:.2g} spikes per neuron and step", "its thresholds are too {} for what it gets"
            if rate == 0:
                cause = "the layer below is silent" if silent_below else "its thresholds lie above all that it gets"
                yield fault(DEAD, "never fires", cause)
            elif rate > BUSY:
                yield fault(SATURATED, fires, "its thresholds lie below what it gets")
            elif not RARE <= rate <= often:
                yield fault(SCALE, fires, gets.format("high" if rate < RARE else "low"))
            elif saturated > 0.5:
                problem = f"{saturated:.0%} of its neurons fire at nearly all steps"
                yield fault(SATURATED, problem, "their thresholds lie below what they get")
            elif dead > MOST_DEAD:
                problem = f"{dead:.0%} of its neurons never fire"
                yield fault(NEURONS, problem, "their thresholds lie above all that they get")
            if synchrony > COMMON and rate > 0:
                problem = f"its neurons fire together, {synchrony:.0%} of their variance is common"
                cause = "one drive or their own recurrence moves them all"
                yield fault(SYNCHRONOUS, problem, cause, "halve the recurrent weights")
        alone = below_threshold(network.cells[i]) if states_stability(network.cells[i]) else None
        stabilise = ""
        if alone is not None and alone.outside > SOME_UNSTABLE:
            broken, radius = alone.main_bound(), f"radii up to {alone.radius.max():.2f}"
            cause = radius if broken is None else f"{broken.violated}; {radius}"
            stabilise = "bring its parameters back" if broken is None else broken.cure
            yield fault(UNSTABLE, f"{alone.outside:.0%} of its neurons are unstable below threshold", cause, stabilise)
        if not learnt and layer.exponent * measured.steps > TENFOLD:
            term, radius = measured.profile.main_term(i), measured.profile.time_mean[i].item()
            beyond = measured.profile.main_term(i, but="leak") if term.name == "leak" else term
            less = stabilise or beyond.too_large + "; no leak is above 1 by itself" * (term.name == "leak")
            problem = f"gradients grow {math.exp(min(layer.exponent, 700)):.2f}-fold at every step back in time"
            yield fault(EXPLODING, problem, f"mean radius {radius:.2f}, due to the {term.name}", less)
        if i and not silent_below and layer.singular_depth < LITTLE:
            small = layer.singular_depth
            problem = f"lets no gradient through to the layer below, largest singular value {small:.2g}"
            cause = "its input weights are small, or spikes below have hardly a derivative"
            cure = f"scale w_in up to a radius of {DEPTH:g} through depth, and the thresholds to the rate"
            yield fault(VANISHING, problem, cause, cure)
        for c in (c for c in layer.constants if not c.fixed):
            if not c.trained:
                cure = f"unfreeze it: {c.name} is to have requires_grad=True"
                yield fault(FROZEN, f"{c.name} is frozen", "its requires_grad is False", cure)
            elif c.stuck > MOST_STUCK:
                cause, cure = (
                    f"a decay of {c.decay:.6g} has no derivative left",
                    f"set {c.name} to between 0.1 and 1e4 steps",
                )
                yield fault(FROZEN, f"no step of an optimizer can move {c.name}", cause, cure)
        silent_below = rate == 0
    cure = "initialise the upper layers as identity (init.Relay)"
    sizes = [layer.gradient or 0.0 for layer in measured.layers]
    if not learnt and 0 < FADED * min(sizes) < max(sizes):
        small, large = sizes.index(min(sizes)) + 1, sizes.index(max(sizes)) + 1
        problem = f"the gradient of layer {small} is {min(sizes) / max(sizes):.0e} of that of layer {large}"
        yield Finding(None, problem, cure, "every layer between takes a part of it", VANISHING)
    across = math.prod(layer.singular_depth for layer in measured.layers[1:])
    if not learnt and across > BLOWN:
        problem = f"gradients grow up to {across:.2g}-fold from the last layer to the first"
        cause = "largest singular values through depth are above 1 in most layers"
        yield Finding(None, problem, cure, cause, BLOWN_UP)


def missing_classes(labels: Tensor, classes: int) -> Iterator[Finding]:
    """Classes that no label (n,) names, unless n labels drawn evenly leave one out with a chance of 1 %.

    The chance is at most :math:`C (1 - 1/C)^n`.
    """
    absent = (torch.bincount(labels.flatten().long().cpu(), minlength=classes) == 0).nonzero().flatten().tolist()
    if absent and classes * (1 - 1 / classes) ** labels.numel() < 0.01:
        which = f"class {absent[0]} is" if len(absent) == 1 else f"classes {', '.join(map(str, absent))} are"
        cure = "give samples of every class, or a readout of as many classes as there are"
        yield Finding(None, f"{which} missing from {labels.numel()} labels", cure, "the data lack it", MISSING)


# ---------------------------------------------------------------- the report


@dataclass(frozen=True)
class Trial:
    """What a cure did, next to an untreated copy of the network."""

    name: str  # which kinds of fault were treated
    layers: tuple[int, ...]  # in which layers, counted from 1; none where it is not one of layers
    cure: str  # what was done
    before: float  # loss of the treated copy before its updates
    after: float  # and after them
    untreated: float  # loss of the untreated copy after as many
    helped: bool  # True if the treated one ends lower by more than half a hundredth

    def __str__(self) -> str:
        where = f" of layer {', '.join(map(str, self.layers))}" if self.layers else ""
        helped = "helped" if self.helped else "did not help"
        losses = f"loss {self.before:.4g} -> {self.after:.4g}, untreated {self.untreated:.4g}"
        return f"tried for {self.name}{where}: {self.cure}; {helped}: {losses}"


@dataclass(frozen=True, repr=False)
class Diagnosis(Displayed, Sequence[Finding]):
    """Findings of :func:`neurolsc.diagnose`, a sequence, with the measurements; as text a line per layer and findings.

    Attributes:
        findings: what is wrong.
        measurements: what was measured.
        trials: what :func:`neurolsc.try_cures` made of the findings.
    """

    findings: tuple[Finding, ...]
    measurements: Measurements
    trials: tuple[Trial, ...] = ()

    def __len__(self) -> int:
        return len(self.findings)

    def __getitem__(self, index: Any) -> Any:
        return self.findings[index]

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    @property
    def notes(self) -> tuple[str, ...]:
        """Observations that are not faults: a loss of guessing, small gradients, an input that depth loses."""
        layers, notes = self.measurements.layers, []
        loss, classes = self.measurements.loss, self.measurements.classes or 0
        # within 2 % of ln(classes) nothing is learnt yet: a silent network is there exactly
        if loss is not None and classes > 1 and abs(loss - math.log(classes)) < 0.02 * math.log(classes):
            notes.append(f"loss {loss:.3g} is that of guessing among {classes} classes ({math.log(classes):.3g})")
        if low := [str(i) for i, layer in enumerate(layers, start=1) if (layer.below_epsilon or 0) > 0.5]:
            notes.append(
                f"most of the gradient of layer {', '.join(low)} is below the optimizer's epsilon of "
                f"{EPSILON:g}; such entries move more slowly than by the learning rate"
            )
        # Over the initialisations of the study this similarity goes with the score more closely than any other number:
        # rate-matched layers lose it, and learn less: five of ALIF+ by 7 points than identity layers, ten of ALIF± by
        # 13, ten of ALIF+ nothing at all.
        lost = [str(i) for i, m in enumerate(layers, start=1) if m.similarity_to_input < 0.05 and m.activity.rate > 0]
        if lost and layers[0].similarity_to_input > 0.2:
            notes.append(
                f"of what tells samples apart {layers[0].similarity_to_input:.0%} is left in layer 1, and less than 5% in layer "
                f"{', '.join(lost)}; identity layers keep it (init.Relay)"
            )
        return tuple(f"note: {note}" for note in notes)

    def parts(self) -> list[str | Table]:
        """A table with a line for each layer, and what was found."""
        head = (
            "layer",
            "spikes",
            "dead",
            "busy",
            "sync",
            "time r.",
            "depth r.",
            "exponent",
            "sing. t, d",
            "active sur.",
        )
        profile, rows = self.measurements.profile, []
        for i, layer in enumerate(self.measurements.layers):
            forms = zip(layer.activity, (".3f", ".0%", ".0%", ".2f"), strict=True)
            row = [str(i + 1), *(or_dash(value, form) for value, form in forms)]
            row += [f"{profile.time_mean[i]:.3f}", f"{profile.depth_mean[i]:.3f}", f"{layer.exponent:+.3f}"]
            row += [
                f"{layer.singular_time:.2f} {layer.singular_depth:.2f}",
                or_dash(layer.active_surrogate_fraction, ".0%"),
            ]
            row += [
                or_dash(layer.similarity_to_input, ".0%"),
                or_dash(layer.gradient, ".2e"),
                or_dash(layer.noise, ".3g"),
            ]
            rows.append((*row, or_dash(layer.below_epsilon, ".0%")))
        shown: list[str | Table] = [Table((*head, "input", "gradient", "SNR", "< eps"), rows)]
        loss = self.measurements.loss
        shown += [] if loss is None else [f"loss {loss:.4g}"]
        return [*shown, *map(str, self.findings or ["nothing found"]), *self.notes, *map(str, self.trials)]

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values; None where a number is not known."""
        measured = self.measurements
        profile, back = measured.profile.to_dict(), measured.back
        values = {
            "findings": [asdict(finding) for finding in self.findings],
            "trials": [asdict(trial) for trial in self.trials],
            "notes": self.notes,
            "loss": measured.loss,
            "steps": measured.steps,
            "layers": [asdict(layer) | {"activity": layer.activity._asdict()} for layer in measured.layers],
            "radii": {name: profile[name] for name in ("time_mean", "depth_mean", "contributions")},
            "gradient_back": None if back is None else back.tolist(),
        }
        return json.loads(json.dumps(values), parse_constant=lambda name: None)  # JSON has no NaN

    def plot(self, path: str | PathLike[str] | None = None, *, title: str = "") -> "Figure":
        """Draw the measurements on one page, findings below; write it to a file, whose suffix chooses the format."""
        from neurolsc.plots import plot_diagnosis  # matplotlib is slow to import and few runs draw

        layers, profile, back = self.measurements.layers, self.measurements.profile, self.measurements.back
        known = all(layer.gradient is not None for layer in layers)
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
            back=None if back is None else back.numpy(),
            gradient=[layer.gradient for layer in layers] if known else None,  # type: ignore[misc]
            findings=[*map(str, self.findings or ["nothing found"]), *map(str, self.trials)],
            title=title,
        )
