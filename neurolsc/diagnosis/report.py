"""The diagnosis: from a network and a batch to findings, as text, JSON and picture; and its cures."""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from neurolsc.diagnosis.faults import (
    AXES,
    EXPLODING,
    FROZEN,
    NEURONS,
    OFTEN,
    RARE,
    SATURATED,
    SCALE,
    SYNCHRONOUS,
    TOO_FAST,
    VANISHING,
    layer_faults,
    missing_classes,
    too_fast,
)
from neurolsc.diagnosis.measurements import Batch, Measurements, batch_first, measure
from neurolsc.display import Displayed, Table, or_dash
from neurolsc.network import Network, as_network, eval_mode
from neurolsc.neurons.cell import owner_of
from neurolsc.neurons.spiking import Reset
from neurolsc.positive import stored_parameter
from neurolsc.stability import TransitionRule, match_firing_rates
from neurolsc.stability.findings import DEAD, Finding, finite_distances, main_term, surrogate_fault
from neurolsc.stability.rules import assign
from neurolsc.tasks import Classification, Task
from neurolsc.training.optim import adabelief_lookahead
from neurolsc.validation import positive, whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MakeOptimizer = Callable[[Iterable[nn.Parameter], float], Optimizer]


def diagnose(
    network: Network,
    batch: Tensor | Sequence[Tensor],
    *,
    task: Task = Classification(),
    labels: Tensor | None = None,
    history: Sequence[Mapping[str, Any]] = (),
    lr: float | None = None,
    optimizer: MakeOptimizer = adabelief_lookahead,
    epsilon: float = 1e-8,
    samples: int = 8,
    steps: int = 16,
    seed: int = 0,
) -> "Diagnosis":
    """Say what is wrong with a network that does not learn, or before it is to learn.

    Measured are what the neurons of each layer do, radii and what holds them, Lyapunov exponents, singular values,
    usable derivatives, and what is left of the input; with targets also the gradients of the loss, how far back and
    down they reach, and how much batches agree on them. Found are layers that are dead, saturated, synchronous or out
    of scale, gradients that explode through time or vanish through depth, time constants that are frozen or cannot
    move, classes that are missing, a learning rate that is too high, an input whose axes are swapped, and a surrogate
    whose derivative is NaN or infinite somewhere (all else is then measured as if it were 0 there). A radius through
    time just below 1 is a memory and no fault.

    Args:
        network: the network; it stays as it is. :func:`neurolsc.wrap` makes one of models of snnTorch, norse and
            PyTorch.
        batch: x (T, B, n_in), or (x, targets) or (x, targets, mask) as :func:`neurolsc.datasets.collate` makes them. A
            few dozen samples are enough.
        task: the task of the network.
        labels: classes of more samples than the batch holds (n,), in which missing ones are sought; by default those of
            the batch.
        history: rows with ``train_loss``, an epoch each: ``TrainResult.history``.
        lr: learning rate; with one and fewer than three epochs of history, copies of the network are trained on the
            batch for 10 updates, at this rate, a tenth and a hundredth of it.
        optimizer: makes the optimizer from parameters and learning rate.
        epsilon: of the optimizer, with which entries of the gradient are compared: 1e-8 in Adam.
        samples: number of samples of the batch at which derivatives are measured,
        steps: and of steps, drawn at random.
        seed: of what is drawn.

    Returns:
        The diagnosis, a sequence of its findings: empty where nothing was found.

    Raises:
        TypeError: if network is not one, or the batch is of another kind.
        ValueError: if the batch does not fit the network or the task, or a number is out of range.
        FloatingPointError: if a state or derivative is NaN or infinite.

    Cost: about that of 50 training steps on the batch in the fast loop, of layers of 64 neurons
    and 40 samples; with a learning rate that is tried twice as much.
    """
    as_network(network)
    for name, value in (("samples", samples), ("steps", steps)):
        whole(name, value)
    for name, value in (("epsilon", epsilon), *((("lr", lr),) if lr is not None else ())):
        positive(name, value)
    data, found = Batch.of(batch, network), list[Finding]()
    if turned := batch_first(data):  # all that follows is said of the input as it should be
        problem = "the input looks batch first, (B, T, n_in) in place of (T, B, n_in)"
        found.append(Finding(None, problem, "give x.transpose(0, 1)", turned, AXES))
        data = data.turned()
    unfit = [fault for layer, cell in enumerate(network.cells) if (fault := surrogate_fault(cell, layer))]
    if unfit:  # the rest is said of the network with other surrogates
        found, network = found + unfit, _finite(network)
    measured = measure(network, data, task, samples=samples, steps=steps, epsilon=epsilon, seed=seed)
    judged = len(history) >= 3  # long enough to say how a loss goes
    learnt = judged and history[-1]["train_loss"] < 0.9 * history[0]["train_loss"]
    found += layer_faults(network, measured, learnt=learnt)
    known = data.targets if labels is None else labels
    if known is not None and known.ndim == 1:
        found += missing_classes(known, network.n_out)
    losses, updates = {}, 10  # after which the loss of a batch has moved if it moves at all
    if lr is not None and data.targets is not None and not judged:
        for rate in (lr, lr / 10, lr / 100):
            trained = _updated(copied(network), data, task, optimizer, rate, updates)
            losses[rate] = _loss_of(trained, data, task)
    found += too_fast(history, updates, losses)
    return Diagnosis(tuple(found), measured, epsilon)


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
    helped: bool  # whether the treated one ends lower by more than half a hundredth

    def __str__(self) -> str:
        where = f" of layer {', '.join(map(str, self.layers))}" if self.layers else ""
        helped = "helped" if self.helped else "did not help"
        losses = f"loss {self.before:.4g} -> {self.after:.4g}, untreated {self.untreated:.4g}"
        return f"tried for {self.name}{where}: {self.cure}; {helped}: {losses}"

    def __repr__(self) -> str:
        return f"Trial({self})"


@dataclass(frozen=True, repr=False)
class Diagnosis(Displayed, Sequence[Finding]):
    """What :func:`neurolsc.diagnose` found: a sequence of findings, with the measurements.

    As text it is a table with a line per layer and the findings below: spikes per neuron and step,
    shares of dead and saturated ("busy") neurons, synchrony, mean radii through time and depth, largest Lyapunov
    exponent, largest singular values through time and depth, shares of usable derivatives and of the input that is
    left; of the loss's gradient its norm, signal to noise, and the share of entries below the optimizer's epsilon.

    Attributes:
        findings: what is wrong.
        measurements: what was measured.
        epsilon: the optimizer's, with which gradients were compared.
        trials: what :func:`neurolsc.try_cures` made of the findings.
    """

    findings: tuple[Finding, ...]
    measurements: Measurements
    epsilon: float = 1e-8
    trials: tuple[Trial, ...] = ()

    def __len__(self) -> int:
        return len(self.findings)

    def __getitem__(self, index: Any) -> Any:
        return self.findings[index]

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is no fault: a loss of guessing, small gradients, an input that depth loses."""
        layers, notes = self.measurements.layers, []
        loss, classes = self.measurements.loss, self.measurements.classes or 0
        # within 2 % of ln(classes) nothing is learnt yet: a silent network is there exactly
        if loss is not None and classes > 1 and abs(loss - math.log(classes)) < 0.02 * math.log(classes):
            notes.append(f"loss {loss:.3g} is that of guessing among {classes} classes ({math.log(classes):.3g})")
        if low := [str(i) for i, layer in enumerate(layers, start=1) if (layer.below_epsilon or 0) > 0.5]:
            notes.append(
                f"most of the gradient of layer {', '.join(low)} is below the optimizer's epsilon of "
                f"{self.epsilon:g}; such entries move more slowly than by the learning rate"
            )
        # Over the starts of the study this share goes with the score more closely than any other number: woken layers
        # lose it, and learn less: five of ALIF+ by 7 points than relays, ten of ALIF± by 13, ten of ALIF+ nothing at
        # all.
        lost = [str(i) for i, m in enumerate(layers, start=1) if m.survives < 0.05 and m.activity.rate > 0]
        if lost and layers[0].survives > 0.2:
            cure = "; a network that starts as relays keeps it (initialisers.Relay)" if self.measurements.relays else ""
            notes.append(
                f"of what tells samples apart {layers[0].survives:.0%} is left in layer 1, and less than 5% "
                f"in layer {', '.join(lost)}{cure}"
            )
        return tuple(f"note: {note}" for note in notes)

    def parts(self) -> list[str | Table]:
        """A table with a line for each layer, and what was found."""
        head = ("layer", "spikes", "dead", "busy", "sync", "time r.", "depth r.", "exponent", "sing. t, d", "usable")
        profile, rows = self.measurements.profile, []
        for i, layer in enumerate(self.measurements.layers):
            forms = zip(layer.activity, (".3f", ".0%", ".0%", ".2f"), strict=True)
            row = [str(i + 1), *(or_dash(value, form) for value, form in forms)]
            row += [f"{profile.time_mean[i]:.3f}", f"{profile.depth_mean[i]:.3f}", f"{layer.exponent:+.3f}"]
            row += [f"{layer.singular_time:.2f} {layer.singular_depth:.2f}", or_dash(layer.usable, ".0%")]
            row += [or_dash(layer.survives, ".0%"), or_dash(layer.gradient, ".2e"), or_dash(layer.noise, ".3g")]
            rows.append((*row, or_dash(layer.below_epsilon, ".0%")))
        shown: list[str | Table] = [Table((*head, "input", "gradient", "SNR", "< eps"), rows)]
        loss = self.measurements.loss
        shown += [] if loss is None else [f"loss {loss:.4g}"]
        return [*shown, *map(str, self.findings or ["nothing found"]), *self.notes, *map(str, self.trials)]

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values; None where a number is not known."""
        measured = self.measurements
        profile, back = measured.profile.to_dict(), measured.back

        def plain(node: Any) -> Any:  # None in place of numbers that JSON has not
            if isinstance(node, dict):
                return {key: plain(value) for key, value in node.items()}
            if isinstance(node, list | tuple):
                return [plain(value) for value in node]
            return None if isinstance(node, float) and not math.isfinite(node) else node

        return plain(
            {
                "findings": [asdict(finding) for finding in self.findings],
                "trials": [asdict(trial) for trial in self.trials],
                "notes": list(self.notes),
                "loss": measured.loss,
                "steps": measured.steps,
                "epsilon": self.epsilon,
                "layers": [asdict(layer) | {"activity": layer.activity._asdict()} for layer in measured.layers],
                "radii": {name: profile[name] for name in ("time_mean", "depth_mean", "sources")},
                "gradient_back": None if back is None else back.tolist(),
            }
        )

    def plot(self, path: str | PathLike[str] | None = None, *, title: str = "") -> "Figure":
        """Draw the measurements on one page, findings below.

        Args:
            path: a file to write as well, whose suffix chooses the format.
            title: of the whole.

        Returns:
            The figure, which a notebook shows.
        """
        from neurolsc.plots import plot_diagnosis  # matplotlib is slow to import and few runs draw

        layers, profile = self.measurements.layers, self.measurements.profile
        back, known = self.measurements.back, all(layer.gradient is not None for layer in layers)
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
            passed={
                "usable derivatives": [layer.usable for layer in layers],
                "input that is left": [layer.survives for layer in layers],
            },
            back=None if back is None else back.numpy(),
            gradient=[layer.gradient for layer in layers] if known else None,  # type: ignore[misc]
            noise=[m.noise for m in layers] if all(m.noise is not None for m in layers) else None,  # type: ignore[misc]
            findings=[*map(str, self.findings or ["nothing found"]), *map(str, self.trials)],
            title=title,
        )


# ---------------------------------------------------------------- cures

RATE = 0.15  # spikes per neuron and step to which thresholds are scaled, in the middle of rates that learn
DEPTH = 0.5  # radius through depth to which input weights are scaled, in the middle of those that learn


@dataclass(frozen=True)
class Cure:
    """What is done about a fault."""

    words: str
    treat: Callable[[Network, Tensor], object] = lambda network, x: None  # in place, on an input (T, B, n_in)
    lr: float = 1.0  # factor on the learning rate


def cure_for(name: str, layers: Sequence[int], network: Network, measured: Measurements) -> Cure | None:
    """The cure of a kind of fault; None where the package can try none.

    Args:
        name: of the findings.
        layers: theirs, counted from 0.
        network: the network in which they were found.
        measured: what was measured of it.
    """
    cells = network.cells
    if name == TOO_FAST:
        return Cure("a tenth of the learning rate", lr=0.1)
    if name in (DEAD, SATURATED, SCALE, NEURONS):
        return _to_rates(layers, network, measured)
    if name == SYNCHRONOUS:  # half of the recurrence
        values = [
            (i, a.parameter)
            for i in layers
            for a in cells[i].scaled_parameters
            if (a.radius, a.through) == ("time", "value")
        ]

        def halve(network: Network, x: Tensor) -> None:
            for i, parameter in values:
                owner, last = owner_of(network.cells[i], parameter)
                assign(network.cells[i], parameter, getattr(owner, last) * 0.5)

        return Cure("what neurons of a layer send each other halved", halve) if values else None
    if name == EXPLODING:  # the reset detached where it holds the radius; else all that the radius follows scaled
        resets = {i: reset for i in layers if isinstance(reset := getattr(cells[i], "reset", None), Reset)}
        by_reset = [i for i, r in resets.items() if r.gradient and main_term(measured.profile, i).name == "reset"]
        factors = {i: min(1 / measured.profile.time_mean[i].item(), 0.95) for i in layers if i not in by_reset}
        factors = {i: k for i, k in factors.items() if any(a.radius == "time" for a in cells[i].scaled_parameters)}
        scaled = ", ".join(f"{k:.2f}" for k in factors.values())
        words = ["the reset detached"] if by_reset else []
        words += [f"all that the radius through time follows scaled by {scaled}"] if factors else []

        def calm(network: Network, x: Tensor) -> None:
            for i in by_reset:
                network.cells[i].reset = replace(resets[i], gradient=False)  # type: ignore[assignment]
            for i, factor in factors.items():
                TransitionRule(hold_threshold=True).apply(network.cells[i], time=factor, depth=1.0)

        return Cure("; ".join(words), calm) if words else None
    if name == VANISHING:  # input weights up, then the thresholds to the rates of before, or to good ones
        radii = {i: measured.profile.depth_mean[i].item() for i in layers}
        follows = [
            i for i in layers if any((a.radius, a.through) == ("depth", "value") for a in cells[i].scaled_parameters)
        ]
        factors = {i: DEPTH / radii[i] for i in follows if radii[i] > 1e-6}  # less is no radius at all
        rates = _to_rates((), network, measured)

        def open_up(network: Network, x: Tensor) -> None:
            for i, factor in factors.items():
                TransitionRule().apply(network.cells[i], time=1.0, depth=factor)
            if rates is not None:
                rates.treat(network, x)

        words = f"input weights scaled by {', '.join(f'{k:.3g}' for k in factors.values())}"
        return Cure(words if rates is None else f"{words}; {rates.words}", open_up) if factors else None
    if name == FROZEN:
        shortest, longest = 0.1, 1e4  # steps, of time constants that an optimizer can move

        def free(network: Network, x: Tensor) -> None:
            for cell in (network.cells[i] for i in layers):
                thresholds = cell.thresholds()
                rest = None if thresholds is None else thresholds.rest()
                for scaled in cell.scaled_parameters:
                    owner, last = owner_of(cell, scaled.parameter)
                    parameter = stored_parameter(owner, last)
                    if scaled.through == "value" or parameter is None:
                        continue
                    parameter.requires_grad_()
                    if scaled.through == "decay":
                        assign(cell, scaled.parameter, getattr(owner, last).detach().clamp(shortest, longest))
                if thresholds is not None and rest is not None:
                    thresholds.set_rest(rest)

        return Cure(f"time constants unfrozen, and within {shortest:g} to {longest:g} steps", free)
    return None


def _to_rates(layers: Sequence[int], network: Network, measured: Measurements) -> Cure | None:
    """Thresholds of all layers, as what one fires another reads."""
    if not network.spiking or any(network.cells[i].thresholds() is None for i in network.spiking):
        return None
    found = [layer.activity.rate for layer in measured.layers]
    wanted = [RATE if i in layers or rate < RARE or rate > OFTEN else rate for i, rate in enumerate(found)]
    words = f"thresholds scaled to rates of {', '.join(f'{wanted[i]:.2g}' for i in network.spiking)}"
    return Cure(words, lambda network, x: match_firing_rates(network, x, wanted, tolerance=math.inf))


def try_cures(
    network: Network,
    batch: Tensor | Sequence[Tensor],
    diagnosis: Diagnosis,
    *,
    task: Task = Classification(),
    lr: float = 1e-3,
    optimizer: MakeOptimizer = adabelief_lookahead,
    updates: int = 20,
) -> tuple[Trial, ...]:
    """Try the cure of each finding on a copy of the network, and see whether it then learns faster.

    Each copy is trained on the batch itself, without dropout, from the same weights but for its cure; an untreated copy
    as well. So few updates say whether a cure sets something in motion, not what a whole training becomes.

    Args:
        network: the network; it stays as it is.
        batch: (x, targets) or (x, targets, mask), as for :func:`neurolsc.diagnose`.
        diagnosis: what was found with that batch.
        task: the task of the network.
        lr: learning rate.
        optimizer: makes the optimizer from parameters and learning rate.
        updates: of each copy.

    Returns:
        A trial for every kind of fault that the package can do something about, of all layers that have it at once;
        kinds with the same cure are one. A missing class is none of those, nor are swapped axes: there the batch is
        turned before all trials.

    Raises:
        TypeError: if network is not one, or the batch is of another kind.
        ValueError: if there are no targets, or the batch or a number does not fit.

    Cost: ``updates`` training steps on the batch per cure and for the untreated copy.
    """
    data = Batch.of(batch, as_network(network))
    if data.targets is None:
        raise ValueError("trials need targets: give the batch as (x, targets).")
    whole("updates", updates)
    positive("lr", lr)
    data = data.turned() if batch_first(data) else data

    def layers_of(names: Sequence[str]) -> tuple[int, ...]:
        return tuple(sorted({f.layer for f in diagnosis if f.name in names and f.layer is not None}))

    cures: dict[str, tuple[Cure, list[str]]] = {}
    for name in dict.fromkeys(finding.name for finding in diagnosis):
        cure = cure_for(name, [layer - 1 for layer in layers_of([name])], network, diagnosis.measurements)
        if cure is not None:
            cures.setdefault(cure.words, (cure, []))[1].append(name)
    if not cures:
        return ()
    untreated = _loss_of(_updated(copied(network), data, task, optimizer, lr, updates), data, task)
    trials = []
    for words, (cure, names) in cures.items():
        patient = copied(network)
        cure.treat(patient, data.x)
        before = _loss_of(patient, data, task)
        after = _loss_of(_updated(patient, data, task, optimizer, lr * cure.lr, updates), data, task)
        helped = math.isfinite(after) and not after >= 0.995 * untreated  # orders of summation move it by 0.001
        trials.append(Trial(", ".join(names), layers_of(names), words, before, after, untreated, helped))
    return tuple(trials)


# ---------------------------------------------------------------- copies and updates


def copied(network: Network) -> Network:
    """An independent copy, also of layers of others that hold states with a history."""
    tensors = [tensor for module in network.modules() for tensor in (*module._buffers.values(), *vars(module).values())]
    memo = {id(t): t.detach().clone() for t in tensors if isinstance(t, Tensor) and not t.is_leaf}
    return copy.deepcopy(network, memo)


class _Clamped(nn.Module):
    """A surrogate that sees no distance from the threshold beyond a range."""

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


def _updated(network: Network, data: Batch, task: Task, optimizer: MakeOptimizer, lr: float, updates: int) -> Network:
    """The same network after some updates on one batch; it stops where the loss is no number."""
    trained = [p for p in network.parameters() if p.requires_grad]
    if not trained:
        return network
    with eval_mode(network), torch.enable_grad():  # without dropout, so that treatments can be compared
        steps = optimizer(trained, lr)
        for _ in range(updates):
            loss = _loss(network, data, task)
            if not loss.isfinite() or not loss.requires_grad:
                break
            steps.zero_grad()
            loss.backward()
            steps.step()
    return network


def _loss_of(network: Network, data: Batch, task: Task) -> float:
    """The loss of a batch; NaN where a state is."""
    with eval_mode(network), torch.no_grad():
        return _loss(network, data, task).item()


def _loss(network: Network, data: Batch, task: Task) -> Tensor:
    assert data.targets is not None
    return task.loss(network.run(data.x, mask=data.mask).logits, data.targets, data.mask)
