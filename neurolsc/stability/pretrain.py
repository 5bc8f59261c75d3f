r"""LSC pre-training: set the radii of all transition derivatives before training.

Each step takes one batch of inputs (labels are not used), runs the network, and then, as in arXiv:2308.12075, Sec. II-D
and II-G,

1. takes one optimizer step on the mean of :math:`(\rho(M_k) - \rho_t)^2` over the measured derivatives (eq. 2 sums);
2. multiplies what a rule names by :math:`\kappa = \mathrm{clip}(\rho_t / \bar\rho, 0.85, 1.15)`, per layer and
   direction;
3. shuffles every learnable tensor of the cells;

until the radii have converged. The optimizer, Lookahead, averages with a slow copy of the parameters. Unless 2 and 3
act on that copy too, it averages unrelated tensors, whose deviations shrink; so here they do.
"""

import copy
import math
import time as clock
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from itertools import chain
from os import PathLike
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from neurolsc.display import Displayed, Table, progress_bar
from neurolsc.interop.prepared import as_batches, prepare_batches, without_padding
from neurolsc.interop.saved import left_out, values_outside
from neurolsc.io import data_fingerprint, locked, network_fingerprint, read_checkpoint, write_tree
from neurolsc.metrics import firing_rate, is_binary
from neurolsc.network import Network, eval_mode
from neurolsc.stability.conditions import DEAD, Finding
from neurolsc.stability.profile import RadiusProfile, depth_radius, radius_profile, time_radius
from neurolsc.stability.rules import (
    LayerRadii,
    PretrainOptions,
    RadiusTarget,
    Target,
    as_rule,
    errors,
    radius_target,
    standard_error,
)
from neurolsc.stability.transitions import draw_steps, follow
from neurolsc.validation import as_batch, positive, swapped_axes, whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pytorch_optimizer import Lookahead

WAYS = ("time", "depth")
WEIGHT_DECAY = 1e-4
# Time steps of a closer measurement in those of a step: radii differ more along a run than among samples.
CLOSER = 4
MAY_DIFFER = ("max_steps", "criteria", "direction")  # from those of a checkpoint; direction is in the target


def pretrain(
    net: nn.Module,
    x: Any,
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
        net: a network, or a module of snnTorch, norse, spikingjelly or PyTorch; its cells are changed, its readout is
            not.
        x: a list or a loader of batches, repeated as often as needed, or one batch: inputs (T, B, n_in) of a network,
            or what the module takes, as :func:`neurolsc.interop.prepared.prepare` reads it; or tuples (x, labels) or
            (x, targets, mask). Labels and targets are ignored. Of a batch with a mask the samples of at least median
            length are used, cut to that length.
        target: the radius, as in :class:`PretrainOptions`.
        seed: of the steps, samples, sub-matrices and shuffles that are drawn.
        checkpoint: file for the state. If it exists, pre-training continues from it, and ends in the same weights as
            without the interruption if the batches come in the same order. Only ``max_steps``, ``criteria`` and the
            weights of the network may differ from those that it began with. If it had ended, its last step is repeated.
        checkpoint_every: steps between two writes of that file.
        progress: show a progress bar with the mean radii.
        options: more fields of :class:`PretrainOptions`, such as ``rule``, ``max_steps``, ``samples``, ``steps``,
            ``kappa``, ``shuffle``, ``criteria`` and ``lr``.

    Returns:
        The result. A target that was not reached is a result too: see ``findings``.

    Raises:
        TypeError: if net or x is none of these, or parameters are not float32 or float64.
        ValueError: for an option out of range, a batch that is batch first or does not fit the network, or a checkpoint
            of other settings.
        FloatingPointError: if a radius is NaN; the message names the layer, and the network is as it was.
        BlockingIOError: if another process uses the checkpoint.

    Cost of a step: one run over T steps, and ``samples * steps`` radii per layer and direction, each with a gradient
    that takes up to six factorisations of an n_hidden x n_hidden matrix.

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
    network, batches, layout = prepare_batches(net, x)
    before_outside = values_outside(net)
    with put_back(network), eval_mode(network), locked(checkpoint):
        inputs = InputStream(batches)
        goal = radius_target(target, inputs.steps, len(network.cells), chosen.direction)
        run = Pretraining(Meter(network, goal, chosen, seed), inputs)
        settings = {f.name: getattr(chosen, f.name) for f in fields(PretrainOptions) if f.name not in MAY_DIFFER}
        settings |= {"rule": run.rule.name, "target": tuple(goal), "seed": seed, "steps of the inputs": inputs.steps}
        if checkpoint is not None:
            settings |= network_fingerprint(network) | data_fingerprint("inputs", as_batches(x))
            if state := read_checkpoint(checkpoint, run.state(), settings, "pre-training"):
                run.restore(state)
        before: dict[str, Any] = {}
        with progress_bar(chosen.max_steps, initial=run.step, unit="step", desc="pretrain", shown=progress) as bar:
            while True:
                if checkpoint is not None:
                    before = run.state() | {"settings": settings}
                    if run.step and run.step % checkpoint_every == 0:
                        write_tree(checkpoint, before)
                started = clock.perf_counter()
                profile = run.advance()
                row = run.history[-1]
                row["seconds"] = clock.perf_counter() - started
                if profile is not None:
                    break
                means = (f"{way} " + " ".join(f"{r:.2f}" for r in row[way]) for way in WAYS)
                bar.set_postfix_str(" ".join(means), refresh=False)
                bar.update()
        if checkpoint is not None:  # the state before the last step, for runs with more steps or other criteria
            write_tree(checkpoint, before)
        seconds = sum(row["seconds"] for row in run.history)
        result = run.meter.conclude(profile, inputs.steps, run.smoothed, run.step, run.history, seconds)
    return result.of(net, layout, before_outside)


@contextmanager
def put_back(network: Network) -> Iterator[None]:
    """Put the weights back as they were, if the block ends in a FloatingPointError."""
    before = {name: value.detach().clone() for name, value in network.state_dict().items()}
    try:
        yield
    except FloatingPointError:
        network.load_state_dict(before)
        raise


def adabelief_lookahead(
    parameters: Iterable[nn.Parameter] | list[dict[str, Any]], lr: float, weight_decay: float = 0.0
) -> "Lookahead":
    r"""AdaBelief inside Lookahead: every 6 steps weights go half the way back to where they were.

    .. math:: \phi \leftarrow \phi + 0.5\,(w - \phi), \quad w \leftarrow \phi
        \quad \text{every 6 steps}

    The slow copy :math:`\phi` of each parameter p is ``optimizer.state[p]["slow_params"]``. Code that sets parameters
    between two steps has to set that copy as well, or it pulls them back.

    Args:
        parameters: the parameters, or groups of them.
        lr: learning rate; 1e-3 trains the ALIF of the paper, 3.14e-3 is its pre-training.
        weight_decay: decoupled from the gradient; 0 in the paper's training, 1e-4 in its pre-training.

    Source: arXiv:2308.12075, Sec. II-G; Zhuang et al. 2020 (AdaBelief); Zhang et al. 2019 (Lookahead).
    """
    from pytorch_optimizer import AdaBelief, Lookahead  # takes a second to import, and only training needs it

    positive("lr", lr)
    positive("weight_decay", weight_decay, zero_allowed=True)
    return Lookahead(AdaBelief(parameters, lr=lr, weight_decay=weight_decay), k=6, alpha=0.5)


class Pretraining:
    """A pre-training in progress; :meth:`state` has everything that its next steps depend on."""

    STATE = ("step", "smoothed", "met_in_a_row", "polishing", "turns", "history", "best_miss", "best_step", "best")

    def __init__(self, meter: "Meter", inputs: "InputStream") -> None:
        self.meter, self.inputs, self.network = meter, inputs, meter.network
        options = meter.options
        self.rule = as_rule(options.rule, options.target)
        named = dict.fromkeys(p for cell in self.network.cells for p in cell.pretrained())  # cells may share some
        self.parameters = [p for p in named if p.requires_grad]
        self.optimizer = adabelief_lookahead(self.parameters, lr=options.lr, weight_decay=WEIGHT_DECAY)
        self.step, self.met_in_a_row, self.smoothed = 0, 0, math.nan
        self.polishing = False
        # per direction and layer: True if kappa was above 1 last, and how often that has changed
        self.turns: dict[tuple[str, int], tuple[bool, int]] = {}
        self.history: list[dict[str, Any]] = []
        self.best_miss, self.best_step, self.best = [math.inf, math.inf], 0, self._weights()

    def advance(self) -> RadiusProfile | None:
        """Take one step of the algorithm; return the final profile if pre-training has ended, else None."""
        meter, options, criteria = self.meter, self.meter.options, self.meter.options.criteria
        x, polish = self.inputs.take(), options.polish and options.kappa is not False

        # Draw samples and steps, and measure. Polishing (multipliers alone) begins once the means are near their
        # targets, or from the best weights if these have not improved for 15 steps: then shuffles and optimizer only
        # undo what kappa does. Its measurements, at more points, are not compared with the earlier ones.
        seen = meter.measure(x, self.step, closer=self.polishing)
        counted = meter.counted(seen, len(x))
        if polish and not self.polishing:
            near = criteria.tolerance > 0 and math.sqrt(fmean((m.miss / m.allowed) ** 2 for m in counted)) <= 3
            if near or self.step - self.best_step >= 15:
                if not near:
                    self.network.load_state_dict(self.best)
                self.polishing, self.best_miss = True, [math.inf, math.inf]
                seen = meter.measure(x, self.step, closer=True)
                counted = meter.counted(seen, len(x))

        # Record the loss and the means; the weights too, if they are the best so far.
        deviations = errors(counted)
        loss, spread = deviations.square().mean(), deviations.std(correction=0).item()
        self.smoothed = spread if not self.history else self.smoothed + 0.1 * (spread - self.smoothed)
        means = {way: [r.mean().item() for r in getattr(seen, way)] for way in WAYS}
        row: dict[str, Any] = {"step": self.step, "loss": loss.item(), **means, "deviation": spread}
        self.history.append(row | {"smoothed_deviation": self.smoothed, "firing_rate": seen.rates})
        misses = [abs(m.mean / m.target - 1) for m in counted]
        miss = [max(misses), sum(misses)]  # the sum decides if one radius cannot be reached at all
        if miss < self.best_miss:
            self.best_miss, self.best_step, self.best = miss, self.step, self._weights()

        # Judge by the criteria, first at this step's points, then on the inputs that come next.
        profile, done = None, False
        met = self.polishing == polish and criteria.met(counted, self.smoothed)
        self.met_in_a_row = self.met_in_a_row + 1 if met else 0
        if self.met_in_a_row >= criteria.hold:
            profile = meter.fresh(self.inputs, self.step)
            # a dead layer on target has kappa = 1: while polishing nothing would change any more
            done = criteria.met(meter.counted(profile, len(x)), self.smoothed)
            done = done and (self.polishing or not (profile.firing_rate == 0).any())
        if not done and self.step == options.max_steps:
            self.network.load_state_dict(self.best)
            profile, done = meter.fresh(self.inputs, self.step), True
        if done:
            return profile

        # 1. One optimizer step on the loss.
        if options.gradient and not self.polishing:
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

        # 2. The multipliers: kappa = clip(target / mean), the upper bound if the mean is 0. While polishing it is
        # kappa^(1/(1+n)), where n counts how often kappa has crossed 1: by then a miss is mostly noise of the
        # measurement, over which the damped steps average.
        if profile is not None and self.polishing:
            means = {"time": profile.time_mean.tolist(), "depth": profile.depth_mean.tolist()}
        kappas = {way: [1.0] * len(self.network.cells) for way in WAYS}
        low, high = options.kappa or (1.0, 1.0)
        for way, target in zip(WAYS, meter.goal, strict=True):
            for layer, mean in enumerate(means[way] if target is not None else ()):
                kappa = min(max(target / mean if mean > 0 else high, low), high)
                if self.polishing:
                    up, turns = self.turns.get((way, layer), (kappa > 1, 0))
                    turns += up != (kappa > 1)
                    self.turns[way, layer] = kappa > 1, turns
                    kappa **= 1 / (1 + turns)
                kappas[way][layer] = kappa
        if not options.include_input:
            kappas["depth"][0] = 1.0

        # 3. The shuffle of the entries of every learnable tensor. Their distribution, which the multipliers set, stays;
        # so do zeros, which are connections that do not exist.
        generator = meter.generator(self.step)
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
        if options.gradient and not self.polishing:
            slow = [self.optimizer.state[p]["slow_params"] for p in self.parameters]
            fast = self._weights()  # all of them: buffers, which the slow copy lacks, are to move only once
            with torch.no_grad():
                for p, s in zip(self.parameters, slow, strict=True):
                    p.copy_(s)
                move()
                for p, s in zip(self.parameters, slow, strict=True):
                    s.copy_(p)
            self.network.load_state_dict(fast)
        self.step += 1
        return None

    def _weights(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.network.state_dict().items()}

    def state(self) -> dict[str, Any]:
        """What the next steps depend on besides the settings, as a tree."""
        own = {"taken": self.inputs.taken, "network": self._weights(), "optimizer": self.optimizer.state_dict()}
        return {name: copy.copy(getattr(self, name)) for name in self.STATE} | own

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        for _ in range(state["taken"]):
            self.inputs.take()
        for name in self.STATE:
            setattr(self, name, state[name])
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])


def shuffled(p: Tensor, order: Tensor) -> Tensor:
    """The entries of p in another order; zeros stay where they are."""
    entries = p.flatten()
    there = entries != 0
    return entries.masked_scatter(there, entries[order[there[order]]]).view_as(p)


# ---- measuring and judging radii


class Measurement(NamedTuple):
    """Radii of every layer at some steps and samples, each (K, B), and firing rates."""

    time: list[Tensor]
    depth: list[Tensor]
    rates: list[float | None]  # None for a layer that does not spike


@dataclass(frozen=True)
class Meter:
    """Measures the radii of a network at steps and samples drawn anew each time, and judges them."""

    network: Network
    goal: RadiusTarget
    options: PretrainOptions
    seed: int

    def __post_init__(self) -> None:
        if self.goal.time is None and len(self.network.cells) == 1 and not self.options.include_input:
            raise ValueError(
                "one layer has a radius through depth from its input alone: with include_input=False there is none to set."
            )

    def generator(self, step: int) -> torch.Generator:
        """A generator for each step, so that a resumed run draws the same as an uninterrupted one."""
        return torch.Generator().manual_seed(self.seed * 1_000_003 + step)

    def count(self, x: Tensor, times: int = 1) -> int | None:
        """Time steps of an input to measure: times * options.steps, at most T; None for all."""
        return None if self.options.steps is None else min(times * self.options.steps, x.shape[0])

    def counted(self, measured: Measurement | RadiusProfile, total: int) -> list[LayerRadii]:
        """The measured radii of all layers and directions that have a target; inputs have `total` steps."""
        found = []
        for direction, target in zip(WAYS, self.goal, strict=True):
            for layer, radii in enumerate(getattr(measured, direction)):
                if target is not None and (self.options.include_input or direction == "time" or layer):
                    allowed = self.options.criteria.allowed(self.goal, target)
                    found.append(LayerRadii(layer, direction, radii, standard_error(radii, total), target, allowed))
        return found

    def measure(self, x: Tensor, step: int, *, closer: bool = False) -> Measurement:
        """Radii at the steps and samples drawn for a step; closer: at `CLOSER` times the steps, without gradient."""
        x = x[:, torch.randperm(x.shape[1], generator=self.generator(step))[: self.options.samples]]
        generator = self.generator(step)
        steps = draw_steps(len(x), self.count(x, CLOSER if closer else 1), generator)
        transitions, outputs = follow(self.network, x, steps)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not closer):
            time = [time_radius(t, i).radius for i, t in enumerate(transitions)]
            depth = [depth_radius(t, i, self.options.non_square, generator).radius for i, t in enumerate(transitions)]
        along, across = ([r.view(-1, x.shape[1]) for r in radii] for radii in (time, depth))
        return Measurement(along, across, [firing_rate(z) if is_binary(z) else None for z in outputs])

    def fresh(self, inputs: "InputStream", step: int) -> RadiusProfile:
        """Radii on the next inputs, each used at most once; those of another length than the first of them are skipped.

        At twice a step's samples; if no mean clearly misses its target, again at so many (at most 16 times a step's)
        that the standard error of every mean is a quarter of the tolerance.
        """
        generator = self.generator(-2 - step)

        def mixed(following: Tensor) -> Tensor:
            return following[:, torch.randperm(following.shape[1], generator=generator)]

        x, taken = mixed(inputs.take()), 1

        def measured(samples: int) -> RadiusProfile:
            nonlocal x, taken
            while x.shape[1] < samples and taken < inputs.size:
                following, taken = inputs.take(), taken + 1
                if len(following) == len(x):
                    x = torch.cat([x, mixed(following)], 1)
            return radius_profile(
                self.network,
                x[:, :samples],
                steps=self.count(x, CLOSER),
                non_square=self.options.non_square,
                target=self.goal,
                seed=self.seed * 1_000_003 - 2 - step,
                progress=False,
            )

        profile = measured(2 * self.options.samples)
        found, seen = self.counted(profile, len(x)), profile.time.shape[2]
        if any(m.miss > m.allowed + 3 * m.error for m in found):
            return profile
        error, most = max(m.error / m.allowed if m.allowed else math.inf for m in found), 16 * self.options.samples
        samples = most if error == math.inf else min(math.ceil(seen * (error / 0.25) ** 2), most)
        more = samples > seen and (x.shape[1] > seen or taken < inputs.size)
        return measured(samples) if more else profile

    def conclude(
        self,
        profile: RadiusProfile,
        total: int,
        smoothed: float,
        steps: int,
        history: list[dict[str, Any]],
        seconds: float,
    ) -> "PretrainResult":
        """Judge the network by a profile of it, on inputs of `total` steps."""
        measured = self.counted(profile, total)
        too_dead = "lower the thresholds or raise the input weights; a target met by a dead layer says nothing"
        silent = (profile.firing_rate == 0).nonzero().flatten().tolist()
        found = [Finding(i + 1, "never fires", too_dead, name=DEAD) for i in silent]
        missed = [m for m in measured if not m.miss <= m.allowed]
        for m in missed:
            problem = f"radius {m.mean:.3f} ± {m.error:.3f} through {m.direction} against a target of {m.target:.3g}"
            cure = f"scale the input weights {'down' if m.mean > m.target else 'up'}"
            cure += ", or move the thresholds of the layer below" * (m.layer > 0)
            if all(scaled.radius != "depth" for scaled in self.network.cells[m.layer].scaled_parameters):
                cure = "no parameter that rules scale moves it; set direction='time'"
            if m.direction == "time":
                term = profile.main_term(m.layer)
                problem += f", due to the {term.name}" if profile.contributions[m.layer] else ""
                cure = term.too_large if m.mean > m.target else term.too_small
                if not profile.time[m.layer].any():
                    cure = "it has no memory; set direction='depth'"
            elif m.mean == 0:
                cure = "at exactly 0 no scale moves it: its input does not reach its output within a step"
            found.append(Finding(m.layer + 1, problem, cure))
        met = self.options.criteria.met(measured, smoothed)
        if not met and not missed:
            widest = max(measured, key=lambda m: m.radii.std(correction=0).item())
            spread = widest.radii.std(correction=0).item()
            problem = f"mean radii are on target, but those through {widest.direction} spread by {spread:.2f}"
            cure = "take more steps, soften the surrogate (sharpness), or allow a wider deviation"
            found.append(Finding(widest.layer + 1, problem, cure))
        time, depth = ([standard_error(r, total) for r in getattr(profile, way)] for way in WAYS)
        converged = met and not silent
        return PretrainResult(converged, steps, history, profile, time, depth, tuple(found), self.options, seconds)


# ---- the result


@dataclass(frozen=True, repr=False)
class PretrainResult(Displayed):
    """What setting the radii did; the network itself holds the best weights.

    Attributes:
        converged: True if the criteria hold for the profile, and every layer fires.
        steps: pre-training steps taken (of :func:`neurolsc.scale_to_radius`: measurements made).
        history: one row per step: loss, mean radii through time and depth, deviation, firing rates (None of a layer
            that does not send spikes), seconds.
        profile: radii of the network as it is now, on inputs that the last step did not use, if there were such.
        time_error: standard error of the profile's mean radii through time, per layer.
        depth_error: standard error of those through depth.
        findings: dead layers and missed targets by name, and what to change.
        options: the settings.
        seconds: wall time.
        left_out: which values of a module were set that its state_dict leaves out, and what keeps them; else empty.
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
    left_out: str = ""

    @property
    def layout(self) -> str:
        """Where time and batch were found in the x that was given."""
        return self.profile.layout

    def of(self, net: nn.Module, layout: str, before: Mapping[str, Tensor]) -> "PretrainResult":
        """The result of a user's module, on an input of a layout, from values outside of its state_dict before."""
        left = "" if isinstance(net, Network) else left_out(net, before)
        return replace(self, profile=replace(self.profile, layout=layout), left_out=left)

    @property
    def points(self) -> tuple[int, int]:
        """Points at which the radii of each layer were measured: (time steps, samples)."""
        return self.profile.time.shape[1], self.profile.time.shape[2]

    def plot(self, path: str | PathLike[str] | None = None, *, title: str = "") -> "Figure":
        """Draw mean radii and firing rates over the steps; write them to a file, whose suffix chooses the format.

        Raises:
            ValueError: if this is of :func:`neurolsc.scale_to_radius`, whose measurements are of single layers.
        """
        from neurolsc.plots import plot_pretraining  # matplotlib is slow to import and few runs draw

        return plot_pretraining(self.history, self.profile.target, path, title=title)

    def parts(self) -> list[str | Table]:
        reached = "converged" if self.converged else "not converged"
        steps, samples = self.points
        sure = (
            f"means over {steps} steps of {samples} samples, standard errors at most {max(self.time_error):.3f} "
            f"through time and {max(self.depth_error):.3f} through depth"
        )
        ended = f"{reached} after {self.steps} steps, {self.seconds:.1f} s"
        return [ended, *self.profile.parts(), sure, *map(str, self.findings), *filter(None, [self.left_out])]


# ---- inputs


class InputStream:
    """The inputs of batches, repeated without end; `taken` counts them, `steps` is the T of the first."""

    def __init__(self, batches: Iterable[Any]) -> None:
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
        self.taken += 1
        return next(self._inputs)


def input_of(batch: Any, place: int) -> Tensor:
    """The input of a batch x, (x, labels) or (x, targets, mask).

    Of a batch with a mask (T, B) the samples that last at least as long as the middle one are taken, cut to its length,
    so that no step is padding.
    """
    x, targets, mask = as_batch(batch, f"batch {place}")
    if x.ndim != 3:
        cure = ": give x.flatten(2)" if x.ndim > 3 else ""
        raise ValueError(f"inputs must be (T, B, n_in), got {tuple(x.shape)} in batch {place}{cure}.")
    if swapped := swapped_axes(x, targets):
        raise ValueError(f"batch {place}: {swapped}.")
    if mask is not None and (mask.dtype != torch.bool or mask.shape != x.shape[:2]):
        raise ValueError(
            f"the mask of batch {place} must be bool {tuple(x.shape[:2])}, got {mask.dtype} {tuple(mask.shape)}."
        )
    return without_padding(x, mask)
