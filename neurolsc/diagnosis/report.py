"""The diagnosis: from a network and a batch to findings, as text, JSON and picture."""

import json
import math
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from neurolsc.diagnosis import cures
from neurolsc.diagnosis.case import Case, listed
from neurolsc.diagnosis.causes import fresh_batch_norms, set_statistics
from neurolsc.diagnosis.faults import BOUNDS, findings
from neurolsc.diagnosis.losses import Loss, check, objective, output_of
from neurolsc.diagnosis.measurements import Batch, Measurements, measure
from neurolsc.diagnosis.rules import too_large_once_initialised
from neurolsc.display import Displayed, Table, in_80_columns, or_dash
from neurolsc.interop.prepared import Prepared, prepare
from neurolsc.network import Network, copied
from neurolsc.stability.conditions import Finding, finite_distances, surrogate_fault
from neurolsc.surroundings import eval_mode, in_full_precision
from neurolsc.validation import positive, whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HIGHEST_RATE = 1e37  # learning rate; a higher one overflows in Adam


@in_full_precision
def diagnose(
    net: nn.Module,
    x: Any,
    y: Tensor | None = None,
    *,
    loss: Loss = "step",
    lr: float | None = None,
    history: Sequence[Mapping[str, Any]] = (),
    samples: int = 8,
    steps: int = 16,
    seed: int = 0,
) -> "Diagnosis":
    """Find what keeps a network from learning in the user's own loop, before or after it is trained.

    All faults, how each is found and what is to be done are in the table of `docs/diagnose.md`. A cure is advised if
    the layer can take it, and the initialisation if it takes the fault away on a copy. Where the derivative of a
    surrogate is NaN or infinite, the rest is measured as if it were 0 there; fresh batch norms are measured with the
    statistics of the batch.

    Args:
        net: a :class:`neurolsc.Network`, or a module of snnTorch, norse, spikingjelly or PyTorch; it stays as it is.
        x: one batch of inputs, as net takes it; a few dozen samples are enough. Without y it may be (x, y) or
            (x, y, mask), as :func:`neurolsc.datasets.collate` makes them.
        y: targets, of samples (B, ...) or of steps (T, B, ...). Loss and gradients need them.
        loss: what is trained: ``"count"``, cross-entropy of spike counts; ``"membrane"``, of the mean over time of what
            the network sends, the membrane of its last layer where it returns that; ``"step"``, of every step; a task
            of :mod:`neurolsc.tasks`; or a function of what the network sends (T, B, classes) and of y, which returns a
            number.
        lr: learning rate. If it and y are given, a copy of the network is trained on the batch by Adam for 10 updates.
        history: rows with ``train_loss``, an epoch each: ``TrainResult.history``. In a network that has learnt,
            gradients and lost signals are not judged; with three epochs or more no copy is trained.
        samples: number of samples, the first of the batch, at which derivatives are measured.
        steps: number of time steps, drawn at random, at which they are measured.
        seed: seed of that draw.

    Returns:
        The diagnosis, a sequence of its findings: empty where nothing was found.

    Raises:
        TypeError: if net cannot be wrapped, x, y or lr is of another kind, or loss is no loss or returns no tensor.
        ValueError: if x or y does not fit, loss cannot read what the network sends or returns no number with a
            gradient, or a number is out of range.
        FloatingPointError: if a state or derivative is NaN or infinite.

    Cost: for layers of 64 neurons and 40 samples about that of 50 training steps on the batch in the fast loop; with a
    learning rate and targets 10 to 20 steps more; and, to test whether the initialisation helps, that of one.
    """
    case = examined(net, x, y, loss=loss, lr=lr, history=history, samples=samples, steps=steps, seed=seed)
    found = findings(case)
    return Diagnosis(found, case.measured, notes=tuple(notes_on(case, found, counts_spikes=loss == "count")))


def examined(
    net: nn.Module,
    x: Any,
    y: Tensor | None = None,
    *,
    loss: Loss = "step",
    lr: float | None = None,
    history: Sequence[Mapping[str, Any]] = (),
    samples: int = 8,
    steps: int = 16,
    seed: int = 0,
    measured: Measurements | None = None,
) -> Case:
    """Make the case that the rules read: prepare network and batch, check the loss, and measure.

    Arguments and errors are those of :func:`diagnose`. `measured` are the measurements of an earlier diagnosis, which
    are then not made again.
    """
    if lr is not None:
        lr = learning_rate(lr)
    whole("samples", samples)
    whole("seed", seed, at_least=0)
    check_history(history)
    chosen = objective(loss)
    prepared = prepare(net, x, y, turn=True, prefers=output_of(loss))
    batch = Batch.of(prepared)
    substitute = measurable(prepared.network, batch)
    if batch.targets is not None:
        with eval_mode(substitute), torch.no_grad():
            out = substitute.run(batch.x, mask=batch.mask).logits
        check(loss, out, batch.targets, batch.mask)
    if measured is None:
        measured = measure(substitute, batch, chosen, samples=samples, steps=steps, seed=seed)
    return Case(
        network=prepared.network,
        measurable=substitute,
        batch=batch,
        turned=prepared.turned,
        taken_batch_first=taken_batch_first(prepared),
        measured=measured,
        loss=chosen,
        bounds=BOUNDS,
        lr=lr,
        history=history,
        samples=samples,
        steps=steps,
        seed=seed,
    )


def check_history(history: object) -> None:
    """Raise a TypeError if a history is no sequence of rows with a ``train_loss``, a number."""
    if not isinstance(history, Sequence) or isinstance(history, str):
        raise TypeError(f"history must be rows, an epoch each, such as {{'train_loss': 2.3}}, got {history!r}.")
    for row in history:
        if not isinstance(row, Mapping) or not isinstance(row.get("train_loss"), int | float):
            raise TypeError(f"history must be rows, an epoch each, such as {{'train_loss': 2.3}}, got {row!r}.")


def taken_batch_first(prepared: Prepared) -> str:
    """Say that y alone shows x to be batch first, which the user's loop may contradict; empty where that is not so.

    A module that takes one step a call reads x either way.
    """
    words = prepared.layout  # such as "batch first (B, T, 784), one step a call"
    if prepared.targets is None or not (words.startswith("batch first") and words.endswith("one step a call")):
        return ""
    reason = "y has as many labels as its first axis is long"
    if prepared.targets.ndim > 1:
        reason = "y has as many samples, along its second axis, as its first axis is long"
    return f"x is read batch first, as {reason}; if your loop goes along that axis, give it x.transpose(0, 1)"


def learning_rate(lr: object) -> float:
    """Return a learning rate as a float; TypeError if it is no number, ValueError if it is out of range."""
    if isinstance(lr, bool) or not isinstance(lr, numbers.Real):
        raise TypeError(f"lr must be a number, got {type(lr).__name__} ({lr!r}).")
    rate = float(positive("lr", float(lr)))
    if rate > HIGHEST_RATE:
        raise ValueError(f"lr must be at most {HIGHEST_RATE:g}, got {rate:g}.")
    return rate


def notes_on(case: Case, found: Sequence[Finding], *, counts_spikes: bool) -> Iterator[str]:
    """Yield observations that are no faults, in sentences.

    They are an x that is read batch first because of y, a loss as high as that of guessing, an output without spikes,
    updates that hardly lower the loss, and a learning rate that is too high once the network is initialised as advised.

    Args:
        case: the case.
        found: its findings.
        counts_spikes: True if the loss is "count", which a user may have given in place of "membrane".
    """
    if case.taken_batch_first:
        yield f"note: {case.taken_batch_first}"
    loss = case.measured.loss
    classes = case.measured.classes or 0  # 0: there is no loss of guessing
    guessing = math.log(max(classes, 1))
    # within 2 % the network has learnt nothing yet; the loss of a silent one is exactly that of guessing
    if loss is not None and classes > 1 and abs(loss - guessing) < 0.02 * guessing:
        yield f"note: loss {loss:.3g} is that of guessing among {classes} classes ({guessing:.3g})"
    last = len(case.measured.layers)
    named = any(finding.layer == last for finding in found)
    if case.measured.layers[-1].activity.rate == 0 and not named:
        silent = f"note: the output, layer {last}, sends no spikes yet"
        if counts_spikes:
            silent += '; if your loss reads its membrane, give loss="membrane"'
        yield silent
    if not found and case.undecided:
        yield f"note: {case.undecided}"
    if any(cures.ADVICE in finding.cure for finding in found):
        once_initialised = too_large_once_initialised(case)
        if once_initialised:
            yield f"note: {once_initialised}"


# ---------------------------------------------------------------- the network that is measured


def measurable(network: Network, batch: Batch) -> Network:
    """Return the network if it can be measured as it is, else a copy that can.

    The copy has finite derivatives of surrogates, and statistics of the batch in batch norms that have seen none.
    """
    unfit = any(surrogate_fault(cell, layer) is not None for layer, cell in enumerate(network.cells))
    fresh = bool(fresh_batch_norms(network)) and batch.x.shape[1] > 1  # one sample has no deviation
    if not unfit and not fresh:
        return network
    network = copied(network)
    if unfit:
        make_finite(network)
    if fresh:
        set_statistics(network, batch.x)
    return network


class Clamped(nn.Module):
    """A surrogate whose argument, the distance from the threshold, is clamped to a range.

    Outside the range its derivative is 0.
    """

    def __init__(self, spike: Callable[[Tensor], Tensor], low: float, high: float) -> None:
        super().__init__()
        self.spike = spike
        self.low = low
        self.high = high

    def forward(self, v: Tensor) -> Tensor:
        return self.spike(v.clamp(self.low, self.high))


def make_finite(network: Network) -> None:
    """Give surrogates the derivative 0 where theirs is NaN or infinite, in place."""
    for cell in network.cells:
        # at 0.8 of the distance a derivative stays finite also when it is multiplied with a large gradient
        low, high = (0.8 * end for end in finite_distances(cell))
        if low == -math.inf and high == math.inf:  # the derivative is finite everywhere
            continue
        for module in (cell, getattr(cell, "layer", None)):  # a wrapped cell holds the other library's layer
            for name in ("spike", "spike_grad"):  # the surrogate's name in our cells, and in snnTorch
                spike: Any = getattr(module, name, None)
                if spike is not None:
                    setattr(module, name, Clamped(spike, low, high))


# ---------------------------------------------------------------- the report


@dataclass(frozen=True)
class Trial:
    """What a cure did, next to an untreated copy of the network."""

    name: str  # which kinds of fault were treated
    layers: tuple[int, ...]  # in which layers, counted from 1; empty for faults of the whole network
    cure: str  # what was done
    before: float  # loss of the treated copy before its updates
    after: float  # and after them
    untreated: float  # loss of the untreated copy after as many updates
    helped: bool  # True if the treated copy ends lower than the untreated one by more than 0.5 %

    def __str__(self) -> str:
        where = ""
        if self.layers:
            where = f" of layer {', '.join(map(str, self.layers))}"
        helped = "helped" if self.helped else "did not help"
        losses = f"loss {self.before:.4g} -> {self.after:.4g}, untreated {self.untreated:.4g}"
        return f"tried for {self.name}{where}: {self.cure}; {helped}: {losses}"


COLUMNS = (
    "layer", "spikes", "dead", "busy", "sync", "time", "depth", "exp.", "sing. t,d", "active", "input", "grad.", "SNR",
    "<eps",
)  # fmt: skip


@dataclass(frozen=True, repr=False)
class Diagnosis(Displayed, Sequence[Finding]):
    """Findings of :func:`neurolsc.diagnose`, a sequence, with the measurements; as text a line per layer and findings.

    Attributes:
        findings: what is wrong.
        measurements: what was measured.
        trials: what :func:`neurolsc.try_cures` made of the findings.
        notes: observations that are no faults, each in a sentence.
    """

    findings: tuple[Finding, ...]
    measurements: Measurements
    trials: tuple[Trial, ...] = ()
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.findings)

    def __getitem__(self, index: Any) -> Any:
        return self.findings[index]

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def parts(self) -> list[str | Table]:
        """Return a table with a line for each layer; then the loss, findings, notes and trials."""
        profile = self.measurements.profile
        rows = []
        for i, layer in enumerate(self.measurements.layers):
            rows.append(
                (
                    str(i + 1),
                    or_dash(layer.activity.rate, ".3f"),
                    or_dash(layer.activity.dead, ".0%"),
                    or_dash(layer.activity.saturated, ".0%"),
                    or_dash(layer.activity.synchrony, ".2f"),
                    f"{profile.time_mean[i]:.2f}",
                    f"{profile.depth_mean[i]:.2f}",
                    f"{layer.exponent:+.3f}",
                    f"{layer.singular_time:.2f} {layer.singular_depth:.2f}",
                    or_dash(layer.active_surrogate_fraction, ".0%"),
                    or_dash(layer.similarity_to_input, ".0%"),
                    or_dash(layer.gradient, ".1e"),
                    or_dash(layer.noise, ".2g"),
                    or_dash(layer.below_epsilon, ".0%"),
                )
            )
        shown: list[str | Table] = [Table(COLUMNS, rows)]
        if self.measurements.loss is not None:
            shown.append(f"loss {self.measurements.loss:.4g}")
        return [*shown, *map(in_80_columns, (*self.lines, *self.notes, *self.trials))]

    @property
    def lines(self) -> list[str]:
        """A line for each finding, one for several layers of which the same is said; "nothing found" without any."""
        layers: dict[Finding, list[int]] = {}  # by a finding without its layer
        lines: dict[Finding, str] = {}
        for finding in self.findings:
            said = replace(finding, layer=None)
            lines[said] = str(finding)
            if finding.layer is not None:
                layers.setdefault(said, []).append(finding.layer)
        for said, numbered in layers.items():
            if len(numbered) > 1:
                lines[said] = str(said).replace("network", f"each of {listed(numbered)}", 1)
        return list(lines.values()) or ["nothing found"]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON values; None where a number is not known."""
        measured = self.measurements
        profile = measured.profile.to_dict()
        back = measured.back
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
        """Draw the measurements and findings on one page; with a path, save it in the format that the suffix names."""
        from neurolsc.plots import plot_diagnosis  # matplotlib is slow to import and few runs draw

        layers = self.measurements.layers
        profile = self.measurements.profile
        back = self.measurements.back
        gradients = [layer.gradient for layer in layers if layer.gradient is not None]  # drawn if all layers have one
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
            gradient=gradients if len(gradients) == len(layers) else None,
            findings=[*self.lines, *map(str, self.trials)],
            title=title,
        )
