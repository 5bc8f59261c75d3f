r"""LSC pre-training: set the radii of all transition derivatives before training.

Each step takes one batch of inputs (labels are not used), runs the network, and then, as in arXiv:2308.12075, Sec. II-D
and II-G,

1. takes one optimizer step on the mean of :math:`(\rho(M_k) - \rho_t)^2` over the measured
derivatives (eq. 2 sums);
2. multiplies what a rule names by :math:`\kappa = \mathrm{clip}(\rho_t / \bar\rho, 0.85, 1.15)`,
per layer and
   direction;
3. shuffles every learnable tensor of the cells;

until the radii have converged. The optimizer, Lookahead, averages with a slow copy of the parameters. Unless 2 and 3
act on that copy too, it averages unrelated tensors; so here they do.

This file has the whole of it: options; inputs; the radii that a step measures, and on how many
points; the step (:meth:`Pretraining.advance`); the result. :mod:`neurolsc.stability.rules` has targets, criteria and
rules.
"""

import math
import time as clock
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from os import PathLike
from pathlib import Path
from statistics import fmean
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from neurolsc.display import Displayed, Table
from neurolsc.frames import lasting
from neurolsc.io import locked, read_tree, write_tree
from neurolsc.metrics import firing_rate, is_binary
from neurolsc.network import Network, as_network, eval_mode
from neurolsc.progress import progress_bar
from neurolsc.stability.findings import DEAD, Finding, main_term
from neurolsc.stability.profile import RadiusProfile, depth_radius, radius_profile, time_radius
from neurolsc.stability.rules import (
    Criteria,
    Direction,
    LayerRadii,
    PaperRule,
    RadiusTarget,
    Rule,
    Target,
    as_rule,
    errors,
    radius_target,
    standard_error,
)
from neurolsc.stability.transitions import NON_SQUARE, NonSquare, draw_steps, follow
from neurolsc.training.fingerprint import data_fingerprint, differences, network_fingerprint
from neurolsc.training.optim import adabelief_lookahead
from neurolsc.validation import number, one_of, setting, whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# ---------------------------------------------------------------- options


@dataclass(frozen=True)
class PretrainOptions:
    """The settings of pre-training, for :func:`pretrain`, ``LSC()``, command lines and grids.

    Raises:
        TypeError: if a value is of another kind.
        ValueError: if a value cannot be used.
    """

    target: Target = setting(
        0.5,
        "radius to pre-train to, above 0: a number, 'balanced' (T/(T+L) through time, L/(T+L) through depth), or in "
        "Python a function of (steps, layers) that returns both",
    )
    rule: Rule | str = setting(
        "default",
        "what the multipliers move: transition, hold-threshold, paper, in Python also an object with name and apply; "
        "default: paper for balanced, else transition",
    )
    direction: Direction = setting("both", "set the radii through time, depth or both; the other is left as it is")
    max_steps: int = setting(200, "give up after this many pre-training steps")
    # Convergence is judged on the batches that follow, at twice to 16 times as many samples and four times as many time
    # steps: so many that the standard error of each mean is below a quarter of the tolerance.
    samples: int = setting(4, "samples, drawn at random, at which each pre-training step measures radii")
    steps: int | None = setting(
        8, "time steps at which it does, one at random from each of so many stretches of the run; None: all"
    )
    gradient: bool = setting(True, "take optimizer steps")
    kappa: tuple[float, float] | Literal[False] = setting(
        (0.85, 1.15), "bounds that the multipliers are clipped to; False: no multipliers"
    )
    shuffle: bool | float = setting(True, "shuffle learnable tensors after each step, or after this share of them")
    slow_copy: bool = setting(
        True, "multipliers and shuffle act on Lookahead's slow copy too; False: the paper's literal order"
    )
    # A shuffle moves the radius of 64 x 64 weights by some per cent: many layers would rarely be on target at once.
    polish: bool = setting(
        True,
        "once the means are within three tolerances of their targets, or no nearer for 15 steps, only the multipliers "
        "act, from four times as many time steps; False: the paper's literal order",
    )
    include_input: bool = setting(True, "count the first layer's derivative by the input")
    non_square: NonSquare = setting("submatrix", "what stands for the radius between unequal widths")
    criteria: Criteria = setting(Criteria(), "when the radii have converged; the paper's three by default")
    lr: float = setting(3.14e-3, "learning rate of AdaBelief in pre-training")
    weight_decay: float = setting(1e-4, "its weight decay")

    def __post_init__(self) -> None:
        one_of("direction", self.direction, ("both", "time", "depth"))
        if not callable(self.target):
            radius_target(self.target, 1, 1)
        as_rule(self.rule, self.target)
        whole("samples", self.samples)
        whole("max_steps", self.max_steps, at_least=0)
        if self.steps is not None:
            whole("steps", self.steps)
        one_of("non_square", self.non_square, NON_SQUARE)
        number("lr", self.lr)
        number("weight_decay", self.weight_decay, zero_allowed=True)
        if not isinstance(self.shuffle, bool | int | float) or not 0 <= self.shuffle <= 1:
            raise ValueError(f"shuffle must be True, False or a share of the steps from 0 to 1, got {self.shuffle!r}.")
        if self.kappa is not False:
            low, high = self.kappa
            if not 0 < low <= 1 <= high < math.inf:
                raise ValueError(f"kappa must be bounds (low, high) with 0 < low <= 1 <= high, got {self.kappa!r}.")


RELEASED: Mapping[str, Any] = MappingProxyType(
    {
        "rule": PaperRule(),
        "criteria": Criteria(tolerance=0.08, deviation=None, smoothed_deviation=None, hold=21),
        "shuffle": 0.34,
        "polish": False,
        "lr": 7.2e-3,
    }
)
"""Options of :func:`neurolsc.pretrain` for the loop of the paper's released code.

It stops when every mean has been within 0.08 of its target for more than 20 steps in a row. (A
third condition, on a running variance, follows from that but for a network on target from the
start.) It shuffles in one step of three. As it builds its model anew in every step, its optimizer
begins anew as well, and Lookahead's slow copy is never an old one; here multipliers and shuffle act
on both copies, which comes closest. Left out: it takes the radius of the readout to 1 as well, and
measures all samples of a batch at one time step after the other; its weights are those of the best
pooled mean, ours of the smallest miss.

Source: the released code of arXiv:2308.12075 (LuCeHe/stable_drnn, neural_models/recLSC.py).
"""

# ---------------------------------------------------------------- inputs


class InputStream:
    """The inputs of batches, again and again; `taken` counts them, `steps` are the T of the first.

    Raises:
        TypeError: if batches is not an iterable, for any number of rounds, of inputs x (T, B, n_in) or of tuples that
            begin with one.
        ValueError: if there is none, or x of a pair (x, labels) has the batch first.
    """

    def __init__(self, batches: Iterable[Any]) -> None:
        if isinstance(batches, Tensor | Iterator) or not isinstance(batches, Iterable):
            got = (
                f"one tensor {tuple(batches.shape)}: give [x]"
                if isinstance(batches, Tensor)
                else type(batches).__name__
            )
            got += ", which can be used only once: give a list" if isinstance(batches, Iterator) else ""
            raise TypeError(f"batches must be an iterable of inputs (T, B, n_in), got {got}.")
        self.batches, self.taken = batches, 0
        self.size = len(batches) if isinstance(batches, Sequence) else math.inf  # then known after one round
        rounds = self._rounds()
        first = next(rounds)
        self.steps, self._inputs = len(first), chain([first], rounds)

    def _rounds(self) -> Iterator[Tensor]:
        while True:
            place = 0
            for place, batch in enumerate(self.batches, start=1):
                yield input_of(batch, place)
            self.size = place
            if not place:
                raise ValueError("pretrain needs at least one batch of inputs, got none.")

    def take(self) -> Tensor:
        """The next input."""
        self.taken += 1
        return next(self._inputs)


def input_of(batch: Any, place: int) -> Tensor:
    """The input of a batch x, (x, labels) or (x, targets, mask).

    Of a batch with a mask (T, B) the samples that last at least as long as the middle one are taken, cut to its length,
    so that no step is padding.

    Raises:
        TypeError: if it is none of these.
        ValueError: if x is not (T, B, n_in), or the number of labels is that of its first axis only.
    """
    x, labels, mask, *_ = *(batch if isinstance(batch, tuple | list) else (batch,)), None, None, None
    if not isinstance(x, Tensor):
        cure = ": give torch.from_numpy(x)" if type(x).__module__ == "numpy" else ""
        inside = f" of {type(x).__name__}" if x is not batch and batch else ""
        raise TypeError(
            f"batch {place} must be an input (T, B, n_in) or a tuple (input, labels), got {type(batch).__name__}{inside}{cure}."
        )
    if x.ndim != 3:
        raise ValueError(f"inputs must be (T, B, n_in), got {tuple(x.shape)} in batch {place}.")
    if isinstance(labels, Tensor) and labels.ndim == 1 and x.shape[0] == len(labels) != x.shape[1]:
        raise ValueError(
            f"inputs must be (T, B, n_in), but batch {place} has {len(labels)} labels and x {tuple(x.shape)}, which "
            "is batch first: give (x.transpose(0, 1), labels)."
        )
    if mask is None:
        return x
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != x.shape[:2]:
        got = f"{mask.dtype} {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"the mask of batch {place} must be bool {tuple(x.shape[:2])}, got {got}.")
    lengths = mask.long().cumprod(0).sum(0)
    if not lengths.any():
        raise ValueError(f"the mask of batch {place} leaves no sample a first step.")
    return lasting(x, lengths, max(int(lengths.median()), 1))


def pick(x: Tensor, samples: Tensor) -> Tensor:
    """Some samples of an input (T, B, n_in), dense or sparse."""
    return x.index_select(1, samples.to(x.device))


# ---------------------------------------------------------------- measuring

CLOSER = 4  # time steps of a closer measurement in those of a step: radii differ more along a run than among samples


class Measurement(NamedTuple):
    """Radii of every layer at the points (step, sample), each (K, B), and firing rates."""

    time: list[Tensor]
    depth: list[Tensor]
    rates: list[float | None]  # None of a layer that does not send spikes


@dataclass(frozen=True)
class Meter:
    """Measures the radii of a network, at drawn points.

    Every step draws from a generator of its own, so that a resumed run draws what an uninterrupted one does.
    """

    network: Network
    goal: RadiusTarget
    options: PretrainOptions
    seed: int

    def __post_init__(self) -> None:
        if self.goal.time is None and len(self.network.cells) == 1 and not self.options.include_input:
            raise ValueError(
                "one layer has a radius through depth from its input alone: with include_input=False there is none to set."
            )

    def settings(self) -> dict[str, Any]:
        """What the steps depend on besides inputs, max_steps and criteria."""
        of_options = {f.name: getattr(self.options, f.name) for f in fields(PretrainOptions)}
        del of_options["max_steps"], of_options["criteria"], of_options["direction"]
        rule = as_rule(self.options.rule, self.options.target).name
        of_options |= {"target": tuple(self.goal), "rule": rule, "seed": self.seed}
        return of_options | network_fingerprint(self.network)

    def generator(self, step: int) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed * 1_000_003 + step)

    def count(self, x: Tensor, times: int = 1) -> int | None:
        """How many time steps of an input are measured, or `times` as many; None: all."""
        return None if self.options.steps is None else min(times * self.options.steps, x.shape[0])

    def counted(self, time: Iterable[Tensor], depth: Iterable[Tensor], total: int) -> list[LayerRadii]:
        """The layers and directions that have a target, with their radii."""
        options, found = self.options, []
        for direction, radii, target in (("time", time, self.goal.time), ("depth", depth, self.goal.depth)):
            for layer, r in enumerate(radii):
                if target is not None and (options.include_input or direction == "time" or layer):
                    allowed = options.criteria.allowed(self.goal, target)
                    error = standard_error(r, total)
                    found.append(LayerRadii(layer, direction, r, r.mean().item(), error, target, allowed))
        return found

    def measure(self, x: Tensor, step: int) -> Measurement:
        """Radii at the steps and samples drawn for a step, with gradient."""
        return self._measure(x, step, self.options.samples, self.count(x))

    def closer(self, x: Tensor, step: int) -> Measurement:
        """The same without gradient, at `CLOSER` times the steps and up to 4 times the samples.

        As many samples as bring the standard error of every mean to half a tolerance.
        """
        samples, steps = self.options.samples, self.count(x, CLOSER)
        with torch.no_grad():
            seen = self._measure(x, step, samples, steps)
            wanted = self._enough(self.counted(seen.time, seen.depth, len(x)), 0.5, most=4)
            return self._measure(x, step, wanted, steps) if min(wanted, x.shape[1]) > samples else seen

    def fresh(self, inputs: InputStream, step: int) -> RadiusProfile:
        """Radii on the inputs that come next, each taken once, if they are as long as the first.

        As many samples as bring the standard error of every mean to a quarter of the tolerance, at most 16 times a
        step's; the first few only if these already show that a mean misses its target.
        """
        generator, count = self.generator(-2 - step), 1

        def mixed(x: Tensor) -> Tensor:
            return pick(x, torch.randperm(x.shape[1], generator=generator))

        def upto(samples: int, x: Tensor) -> Tensor:
            nonlocal count
            while x.shape[1] < samples and count < inputs.size:
                following, count = inputs.take(), count + 1
                x = torch.cat([x, mixed(following)], 1) if len(following) == len(x) else x
            return x

        def profile(x: Tensor, samples: int) -> RadiusProfile:
            return radius_profile(
                self.network,
                pick(x, torch.arange(min(samples, x.shape[1]))),
                steps=self.count(x, CLOSER),
                non_square=self.options.non_square,
                target=self.goal,
                seed=self.seed * 1_000_003 - 2 - step,
                progress=False,
            )

        few = 2 * self.options.samples
        x = upto(few, mixed(inputs.take()))
        found = profile(x, few)
        measured = self.counted(found.time, found.depth, len(x))
        wanted = self._enough(measured, 0.25, most=16)
        if wanted > found.time.shape[2] and not any(m.miss > m.allowed + 3 * m.error for m in measured):
            x = upto(wanted, x)
            found = profile(x, wanted) if x.shape[1] > found.time.shape[2] else found
        return found

    def _enough(self, measured: list[LayerRadii], doubt: float, most: int) -> int:
        """Samples that bring the standard errors of all means to `doubt` tolerances."""
        now = max(m.error / m.allowed if m.allowed else math.inf for m in measured)
        most = most * self.options.samples
        return most if now == math.inf else min(math.ceil(measured[0].radii.shape[1] * (now / doubt) ** 2), most)

    def _measure(self, x: Tensor, step: int, samples: int, count: int | None) -> Measurement:
        x = pick(x, torch.randperm(x.shape[1], generator=self.generator(step))[:samples])
        generator = self.generator(step)
        transitions, outputs = follow(self.network, x, draw_steps(x.shape[0], count, generator))
        time = [time_radius(t, i).radius for i, t in enumerate(transitions)]
        depth = [depth_radius(t, i, self.options.non_square, generator).radius for i, t in enumerate(transitions)]
        along, across = ([r.view(-1, x.shape[1]) for r in radii] for radii in (time, depth))
        return Measurement(along, across, [firing_rate(z) if is_binary(z) else None for z in outputs])


# ---------------------------------------------------------------- the algorithm


def pretrain(
    network: Network,
    batches: Iterable[Any],
    *,
    target: Target = 0.5,
    seed: int = 0,
    checkpoint: str | PathLike[str] | None = None,
    checkpoint_every: int = 10,
    progress: bool = True,
    **options: Any,
) -> "PretrainResult":
    r"""Bring the radii of all transition derivatives of a network to a target, in place.

    Args:
        network: the network; its cells are changed, its readout is not.
        batches: inputs x (T, B, n_in), or tuples (x, labels), whose labels are ignored, or (x, targets, mask): of
            samples of unequal length those that last at least as long as the middle one are taken, cut to its length.
            Gone through again and again.
        target: the radius, as in :class:`PretrainOptions`.
        seed: of the steps, samples, sub-matrices and shuffles that are drawn.
        checkpoint: file for the state; if it exists, pre-training goes on from it, and ends in the same weights as an
            uninterrupted one, if the batches come in the same order. Only ``max_steps``, ``criteria`` and the weights
            of the network may differ from those it began with. Of a finished one the last step is repeated.
        checkpoint_every: steps between two writes of that file.
        progress: show a progress bar with the mean radii.
        options: more fields of :class:`PretrainOptions`, such as ``rule``, ``max_steps``, ``samples``, ``steps``,
            ``kappa``, ``shuffle``, ``criteria`` and ``lr``.

    Returns:
        The result. A target that was not reached is a result too: see ``findings``.

    Raises:
        TypeError: if network is not one (:func:`neurolsc.wrap` makes one of other modules), batches are not batches,
            such as one tensor, or an option is unknown.
        ValueError: for an option out of range, no batches, a batch that is batch first or does not fit the network, or
            a checkpoint of other settings.
        FloatingPointError: if a radius is NaN; the message names the layer.
        BlockingIOError: if another process is at work with the checkpoint.
        OSError: if the checkpoint cannot be read or written.

    Cost of a step: one run over T steps, and ``samples * steps`` radii per layer and direction,
    each with a gradient that costs up to six factorisations of an n_hidden x n_hidden matrix.

    Example:
        >>> import torch
        >>> from neurolsc import ALIFPlus
        >>> _ = torch.manual_seed(0)
        >>> network = Network([ALIFPlus(20, 16), ALIFPlus(16, 16)], n_out=3)
        >>> x = (torch.rand(20, 8, 20) < 0.2).float()  # 20 steps of 8 samples
        >>> result = pretrain(network, [x], target=0.5, progress=False)
        >>> result.converged, result.profile.time_mean.round(decimals=1).tolist()
        (True, [0.5, 0.5])

    Source: arXiv:2308.12075, Sec. II-D and II-G; its released code: :data:`RELEASED`.
    """
    whole("checkpoint_every", checkpoint_every)
    chosen = PretrainOptions(target=target, **options)
    with eval_mode(as_network(network)), locked(checkpoint):
        inputs = InputStream(batches)
        goal = radius_target(target, inputs.steps, len(network.cells), chosen.direction)
        run = Pretraining(Meter(network, goal, chosen, seed), inputs)
        settings = run.meter.settings() | {"steps of the inputs": inputs.steps} | data_fingerprint("inputs", batches)
        if checkpoint is not None and Path(checkpoint).exists():
            run.restore(read_state(checkpoint, settings, set(run.state())))
        with progress_bar(chosen.max_steps, initial=run.step, unit="step", desc="pretrain", shown=progress) as bar:
            while True:
                before = run.state() if checkpoint is not None else {}
                if run.step and run.step % checkpoint_every == 0 and checkpoint is not None:
                    write_tree(checkpoint, before | {"settings": settings})
                profile = run.advance()
                if profile is not None:
                    break
                row = run.history[-1]
                means = (f"{way} " + " ".join(f"{r:.2f}" for r in row[way]) for way in ("time", "depth"))
                bar.set_postfix_str(" ".join(means), refresh=False)
                bar.update()
        if checkpoint is not None:  # with more steps, or other criteria, it goes on from before its end
            write_tree(checkpoint, before | {"settings": settings})
        return concluded(
            run.meter,
            profile,
            total=inputs.steps,
            smoothed=run.smoothed,
            steps=run.step,
            history=run.history,
            seconds=run.seconds,
        )


class Pretraining:
    """A pre-training under way: what its later steps depend on is in :meth:`state`."""

    def __init__(self, meter: Meter, inputs: InputStream) -> None:
        self.meter, self.inputs, self.network = meter, inputs, meter.network
        self.rule = as_rule(meter.options.rule, meter.options.target)
        named = dict.fromkeys(p for cell in self.network.cells for p in cell.pretrained())  # cells may share some
        self.parameters = [p for p in named if p.requires_grad]
        self.optimizer = adabelief_lookahead(
            self.parameters, lr=meter.options.lr, weight_decay=meter.options.weight_decay
        )
        self.step, self.seconds, self.smoothed = 0, 0.0, math.nan
        self.met_in_a_row = 0  # steps
        self.polishing = False
        self.turns = {way: [0] * len(self.network.cells) for way in ("time", "depth")}  # of kappa around 1
        self.up: dict[str, list[bool]] = {}  # whether kappa was above 1 last
        self.history: list[dict[str, Any]] = []
        self.best_miss, self.best_step, self.best = [math.inf, math.inf], 0, self._weights()

    def advance(self) -> RadiusProfile | None:
        """One step of the algorithm; the final profile if nothing is left to do."""
        options, goal, criteria = self.meter.options, self.meter.goal, self.meter.options.criteria
        started, x = clock.perf_counter(), self.inputs.take()
        polish = options.polish and options.kappa is not False

        # Draw samples and steps, and measure. Polishing begins once the means are near their targets, or from the
        # nearest weights once they have come no nearer for 15 steps: then shuffles and optimizer only undo what kappa
        # does. Its closer measurements are not compared with the others.
        seen = self.meter.closer(x, self.step) if self.polishing else self.meter.measure(x, self.step)
        counted = self.meter.counted(seen.time, seen.depth, len(x))
        if polish and not self.polishing:
            near = criteria.tolerance > 0 and math.sqrt(fmean((m.miss / m.allowed) ** 2 for m in counted)) <= 3
            if near or self.step - self.best_step >= 15:
                if not near:
                    self.network.load_state_dict(self.best)
                self.polishing, self.best_miss = True, [math.inf, math.inf]
                seen = self.meter.closer(x, self.step)
                counted = self.meter.counted(seen.time, seen.depth, len(x))

        # Note the loss and the means; the weights too, if they are the best so far.
        deviations = errors(counted)
        loss, spread = deviations.square().mean(), deviations.std(correction=0).item()
        self.smoothed = spread if not self.history else self.smoothed + 0.1 * (spread - self.smoothed)
        means = {way: [r.mean().item() for r in getattr(seen, way)] for way in ("time", "depth")}
        row: dict[str, Any] = {"step": self.step, "loss": loss.item(), **means, "deviation": spread}
        self.history.append(row | {"smoothed_deviation": self.smoothed, "firing_rate": seen.rates})
        misses = [abs(m.mean / m.target - 1) for m in counted]
        miss = [max(misses), sum(misses)]  # the sum decides where one radius is out of reach at all steps
        if miss < self.best_miss:
            self.best_miss, self.best_step, self.best = miss, self.step, self._weights()

        # Judge, by the criteria at this step's points, and then at inputs that no step has seen.
        profile, done = None, False
        self.met_in_a_row = (
            self.met_in_a_row + 1 if self.polishing == polish and criteria.met(counted, self.smoothed) else 0
        )
        if self.met_in_a_row >= criteria.hold:
            profile = self.meter.fresh(self.inputs, self.step)
            fresh = self.meter.counted(profile.time, profile.depth, len(x))
            # where a dead layer is on target, kappa is 1 and wakes none: nothing moves any more while polishing
            done = criteria.met(fresh, self.smoothed) and (self.polishing or not dead(profile))
        if not done and self.step == options.max_steps:
            self.network.load_state_dict(self.best)
            profile, done = self.meter.fresh(self.inputs, self.step), True
        if done:
            self._tick(started)
            return profile

        # 1. One optimizer step on the loss.
        if options.gradient and not self.polishing:
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

        # 2. The multipliers: kappa = clip(target / mean); of mean 0, which no ratio tells, the highest. While polishing
        # kappa^(1/(1+n)) after n turns (above 1 after below, or the reverse): what is left of a miss is then mostly the
        # noise of the measurement, over which the damped steps average.
        if profile is not None and self.polishing:
            means = {"time": profile.time_mean.tolist(), "depth": profile.depth_mean.tolist()}
        kappas = {way: [1.0] * len(self.network.cells) for way in means}
        for way, target in zip(("time", "depth"), goal, strict=True):
            if options.kappa is False or target is None:
                continue
            low, high = options.kappa
            kappa = [min(max(target / mean if mean > 0 else high, low), high) for mean in means[way]]
            if self.polishing:
                up = [k > 1 for k in kappa]
                before = self.up.get(way, up)
                self.turns[way] = [n + (a != b) for n, a, b in zip(self.turns[way], up, before, strict=True)]
                self.up[way] = up
                kappa = [k ** (1 / (1 + n)) for k, n in zip(kappa, self.turns[way], strict=True)]
            kappas[way] = kappa
        if not options.include_input:
            kappas["depth"][0] = 1.0

        # 3. The shuffle, of the entries of every learnable tensor. It keeps what the multipliers set, the distribution
        # of the entries. Zeros, which are connections that do not exist, stay.
        generator = self.meter.generator(self.step)
        orders = [torch.randperm(p.numel(), generator=generator).to(p.device) for p in self.parameters]
        shuffles = torch.rand((), generator=generator).item() < options.shuffle and not self.polishing

        def move() -> None:
            if options.kappa is not False:
                for cell, time, depth in zip(self.network.cells, kappas["time"], kappas["depth"], strict=True):
                    self.rule.apply(cell, time=time, depth=depth)
            if shuffles:
                with torch.no_grad():
                    for p, order in zip(self.parameters, orders, strict=True):
                        p.copy_(shuffled(p, order))

        # 2 and 3 act on the parameters, and on Lookahead's slow copy of them.
        move()
        if options.gradient and options.slow_copy and not self.polishing:
            slow = [self.optimizer.state[p]["slow_params"] for p in self.parameters]
            fast = self._weights()  # with what the optimizer does not hold: no move acts on it twice
            with torch.no_grad():
                for p, s in zip(self.parameters, slow, strict=True):
                    p.copy_(s)
                move()
                for p, s in zip(self.parameters, slow, strict=True):
                    s.copy_(p)
            self.network.load_state_dict(fast)
        self.step += 1
        self._tick(started)
        return None

    def _tick(self, started: float) -> None:
        self.history[-1]["seconds"] = clock.perf_counter() - started
        self.seconds += self.history[-1]["seconds"]

    def _weights(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.network.state_dict().items()}

    def state(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on besides its settings, as a tree."""
        plain = {name: getattr(self, name) for name in _STATE}
        lists = {"history": list(self.history), "turns": dict(self.turns), "up": dict(self.up)}
        own = {"taken": self.inputs.taken, "network": self._weights(), "optimizer": self.optimizer.state_dict()}
        return plain | lists | own

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        for _ in range(state["taken"]):
            self.inputs.take()
        for name in (*_STATE, "history", "turns", "up"):
            setattr(self, name, state[name])
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])


_STATE = ("step", "seconds", "smoothed", "met_in_a_row", "polishing", "best_miss", "best_step", "best")


def shuffled(p: Tensor, order: Tensor) -> Tensor:
    """The entries of p in another order; zeros stay where they are."""
    entries = p.flatten()
    there = entries != 0
    return entries.masked_scatter(there, entries[order[there[order]]]).view_as(p)


def read_state(path: str | PathLike[str], settings: dict[str, Any], keys: set[str]) -> dict[str, Any]:
    """The content of a checkpoint with these keys, of a run with these settings.

    Raises:
        ValueError: if it is another; the message names the settings that differ.
    """
    state = read_tree(path)
    if not isinstance(state, dict) or state.keys() != keys | {"settings"} or not isinstance(state["settings"], dict):
        raise ValueError(f"{path} is not the checkpoint of such a pre-training.")
    if changed := differences(state["settings"], settings):
        raise ValueError(
            f"the checkpoint began with other settings ({changed}). Use the same settings, another file than {path}, "
            "or remove it."
        )
    return state


# ---------------------------------------------------------------- the result


@dataclass(frozen=True, repr=False)
class PretrainResult(Displayed):
    """What setting the radii did; the network itself holds the best weights.

    Attributes:
        converged: whether the criteria hold for the profile, and every layer fires.
        steps: pre-training steps taken (of :func:`neurolsc.scale_to_radius`: measurements made).
        history: one row per step: loss, mean radii through time and depth, deviation, firing rates (None of a layer
            that does not send spikes), seconds.
        profile: radii of the network as it is now, on inputs that the last step did not use, if there were such.
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
    options: PretrainOptions
    seconds: float

    @property
    def points(self) -> tuple[int, int]:
        """Number of points on which the radii of each layer rest: (time steps, samples)."""
        return self.profile.time.shape[1], self.profile.time.shape[2]

    def plot(self, path: str | PathLike[str] | None = None, *, title: str = "") -> "Figure":
        """Draw mean radii and firing rates over the steps; no rates of layers that send no spikes.

        Args:
            path: a file to write as well, whose suffix chooses the format.
            title: of the whole.

        Returns:
            The figure, which a notebook shows.

        Raises:
            ValueError: if this is of :func:`neurolsc.scale_to_radius`, whose measurements are of single layers; its
                profile can be drawn.
        """
        from neurolsc.plots import plot_pretraining  # matplotlib is slow to import and few runs draw

        return plot_pretraining(self.history, self.profile.target, path, title=title)

    def parts(self) -> list[str | Table]:
        """How it ended, the profile, the standard errors of its means, and the findings."""
        reached = "converged" if self.converged else "not converged"
        steps, samples = self.points
        sure = (
            f"means over {steps} steps of {samples} samples, standard errors at most {max(self.time_error):.3f} "
            f"through time and {max(self.depth_error):.3f} through depth"
        )
        ended = f"{reached} after {self.steps} steps, {self.seconds:.1f} s"
        return [ended, *self.profile.parts(), sure, *map(str, self.findings)]


def concluded(
    meter: Meter,
    profile: RadiusProfile,
    *,
    total: int,
    smoothed: float,
    steps: int,
    history: list[dict[str, Any]],
    seconds: float,
) -> PretrainResult:
    """Judge a network by a profile of it, on inputs of `total` steps."""
    measured = meter.counted(profile.time, profile.depth, total)
    error = {way: [standard_error(r, total) for r in getattr(profile, way)] for way in ("time", "depth")}
    too_dead = "lower the thresholds or raise the input weights; a target met by a dead layer says nothing"
    rates = profile.firing_rate.tolist()
    found = [Finding(i, "never fires", too_dead, name=DEAD) for i, rate in enumerate(rates, start=1) if rate == 0]
    met = meter.options.criteria.met(measured, smoothed)
    missed = [m for m in measured if not m.miss <= m.allowed]
    for m in missed:
        problem = f"radius {m.mean:.3f} ± {m.error:.3f} through {m.direction} against a target of {m.target:.3g}"
        cure = f"scale w_in {'down' if m.mean > m.target else 'up'}, or move the thresholds of the layer below"
        if m.direction == "time":
            term = main_term(profile, m.layer)
            share = profile.sources[m.layer].get(term.name)
            problem += f", due to the {term.name} at {share:.0%} of the points" if share is not None else ""
            cure = term.too_large if m.mean > m.target else term.too_small
            if not profile.time[m.layer].any():
                cure = "it has no memory; set direction='depth'"
        elif m.mean == 0:
            cure = "at exactly 0 no scale moves it: its input does not reach its output within a step"
        found.append(Finding(m.layer + 1, problem, cure))
    if not met and not missed:
        widest = max(measured, key=lambda m: m.radii.std(correction=0).item())
        spread = widest.radii.std(correction=0).item()
        problem = f"mean radii are on target, but those through {widest.direction} spread by {spread:.2f}"
        cure = "take more steps, soften the surrogate (sharpness), or allow a wider deviation"
        found.append(Finding(widest.layer + 1, problem, cure))
    converged = met and not dead(profile)
    return PretrainResult(
        converged, steps, history, profile, error["time"], error["depth"], tuple(found), meter.options, seconds
    )


def dead(profile: RadiusProfile) -> bool:
    """Whether a layer of spikes sent none."""
    return bool((profile.firing_rate == 0).any())
