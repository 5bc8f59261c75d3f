r"""LSC pre-training: set the radii of all transition derivatives before training.

Each step runs the network on inputs (labels are not used), measures radii, and then, as in arXiv:2308.12075, Sec. II-D
and II-G,

1. takes one optimizer step on the mean of :math:`(\rho(M_k) - \rho_t)^2` over the measured derivatives
   (eq. 2: the sum);
2. multiplies the parameters that a rule names by :math:`\kappa = \mathrm{clip}(\rho_t / \bar\rho, 0.85, 1.15)`,
   per layer and direction;
3. shuffles the entries of learnable tensors;

until the radii have converged. Which inputs a step takes, and when radii have converged, is up to the loop
(:mod:`neurolsc.stability.loops`): ours, the one that the paper prints, or the one of its released code.
"""

import math
import time as clock
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import chain
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from neurolsc.display import Displayed, Table, in_80_columns, progress_bar
from neurolsc.interop.prepared import as_batches, prepare_batches, without_padding
from neurolsc.interop.ranks import on_rank_0
from neurolsc.interop.saved import left_out, restored_on_error, values_outside
from neurolsc.interop.sharing import refuse_shared
from neurolsc.io import data_fingerprint, locked, network_fingerprint, read_checkpoint, write_tree
from neurolsc.metrics import firing_rate, is_binary
from neurolsc.network import Network, StepRecord
from neurolsc.neurons.cell import Cell
from neurolsc.stability.conditions import DEAD, Finding
from neurolsc.stability.determinants import (
    lower_bound_loss,
    mean_log_determinant,
    refuse_without_memory,
    time_matrices,
)
from neurolsc.stability.loops import DIRECTIONS, LOOPS
from neurolsc.stability.profile import RadiusProfile, depth_radius, radius_profile, time_radius
from neurolsc.stability.rules import (
    LayerRadii,
    PretrainOptions,
    RadiusTarget,
    Target,
    radius_target,
    standard_error,
)
from neurolsc.stability.transitions import Transitions, draw_steps, follow, transitions_of
from neurolsc.surroundings import eval_mode, in_full_precision
from neurolsc.validation import as_batch, known_options, swapped_axes, whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# A closer measurement takes this many times the time steps of a usual one: radii differ more along a run than among
# samples.
CLOSER = 4
# Options that are not compared with those of a checkpoint. The target is compared; it is None for a direction that is
# not set, so a change of `direction` is noticed there.
MAY_DIFFER = ("max_steps", "criteria", "direction")
# Distance between the first generators of two seeds: more steps than a run takes, so that no two seeds share one.
SEEDS_APART = 1_000_003


@on_rank_0
@in_full_precision
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
    r"""Bring the spectral radii of all transition derivatives of a network to a target, in place.

    Args:
        net: a network, or a module of snnTorch, norse, spikingjelly or PyTorch. Its cells are changed. Its readout and
            embedding change only with ``loop="paper"`` or ``"released"``, the loops of the paper.
        x: a list or a loader of batches, repeated as often as needed, or one batch: inputs (T, B, n_in) of a network,
            or what the module takes, as :func:`neurolsc.interop.prepared.prepare` reads it; or tuples (x, labels) or
            (x, targets, mask). Labels and targets are ignored. Of a batch with a mask the samples of at least median
            length are used, cut to that length.
        target: the spectral radius, as in :class:`PretrainOptions`.
        seed: seed of the draws of time steps, samples, sub-matrices and shuffles.
        checkpoint: file for the state. If it exists, pre-training continues from it, and ends in the same weights as
            without the interruption if the batches come in the same order. The settings must be those of the run
            that wrote it, except ``max_steps`` and ``criteria``; the network's weights are replaced by the file's. If
            that run had ended, its last step is repeated.
        checkpoint_every: pre-training steps between two writes of that file.
        progress: show a progress bar with the mean radii.
        options: more fields of :class:`PretrainOptions`, such as ``loop``, ``rule``, ``max_steps``, ``samples``,
            ``steps``, ``kappa``, ``shuffle``, ``criteria`` and ``lr``.

    Returns:
        The result. A target that was not reached is a result too: see ``findings``.

    Raises:
        TypeError: if net or x is none of these, parameters are not float32 or float64, or with ``bounds="both"`` a
            layer has no memory.
        ValueError: for an option out of range, a batch that is batch first or does not fit the network, weights that
            several layers share, a checkpoint of other settings, or with ``bounds="both"`` a layer whose derivative
            through time is singular at all points of a step or, in the paper's loops, of the first batch.
        FloatingPointError: if a radius is NaN; the message names the layer, and the network is as it was.
        BlockingIOError: if another process uses the checkpoint.

    Cost of a pre-training step: one run over T time steps, and ``samples * steps`` radii per layer and direction, each
    with a gradient that takes up to six factorisations of an n_hidden x n_hidden matrix. A layer of 500 that reads 784
    inputs takes 5 s a step on one core. In the paper's loops a pre-training step runs one time step and measures one
    radius per sample of the batch, layer and direction.

    Example:
        >>> import torch
        >>> from neurolsc import ALIFPlus, Network
        >>> _ = torch.manual_seed(0)
        >>> network = Network([ALIFPlus(20, 16), ALIFPlus(16, 16)], n_out=3)
        >>> x = (torch.rand(20, 8, 20) < 0.2).float()  # 20 steps of 8 samples
        >>> result = pretrain(network, [x], target=0.5, progress=False)
        >>> result.converged, result.profile.time_mean.round(decimals=1).tolist()
        (True, [0.5, 0.5])

    Source: arXiv:2308.12075, Sec. II-D and II-G, and its released code (``loop``).
    """
    began = clock.perf_counter()
    whole("checkpoint_every", checkpoint_every)
    whole("seed", seed, at_least=0)
    known_options("pretrain", options, [f.name for f in fields(PretrainOptions) if f.name != "target"])
    chosen = PretrainOptions(target=target, **options)
    network, batches, layout, _ = prepare_batches(net, x)
    refuse_shared(network, net)
    values_before = values_outside(net)  # thresholds and the like, to say in the result which have changed
    # `network` shares its parameters with `net`.
    with restored_on_error(network), eval_mode(network), locked(checkpoint), torch.enable_grad():
        inputs = InputStream(batches, network.n_in)
        asked = options.get("steps")  # the default is cut to the steps of a short input
        if asked is not None and asked > inputs.steps:
            raise ValueError(f"steps must be at most the {inputs.steps} steps of batch 1, got {asked}.")
        goal = radius_target(target, inputs.steps, len(network.cells), chosen.direction)
        run = LOOPS[chosen.loop](Meter(network, goal, chosen, seed), inputs)
        settings = {f.name: getattr(chosen, f.name) for f in fields(PretrainOptions) if f.name not in MAY_DIFFER}
        settings |= {"rule": run.rule.name, "target": tuple(goal), "seed": seed, "steps of the inputs": inputs.steps}
        if checkpoint is not None:
            settings |= network_fingerprint(network) | data_fingerprint("inputs", as_batches(x))
            if state := read_checkpoint(checkpoint, run.state(), settings, "pre-training"):
                run.restore(state)
        seconds_before = sum(row["seconds"] for row in run.history)  # of the steps that the checkpoint has
        before: dict[str, Any] = {}  # the state before the step that is being taken, as the checkpoint has it
        with progress_bar(run.max_steps, initial=run.step, unit="step", desc="pretrain", shown=progress) as bar:
            while True:
                if checkpoint is not None:
                    before = run.state() | {"settings": settings}
                    if run.step and run.step % checkpoint_every == 0:
                        write_tree(checkpoint, before)
                started = clock.perf_counter()
                profile = run.advance()  # None until the run ends; then of the pre-trained network
                row = run.history[-1]
                row["seconds"] = clock.perf_counter() - started
                if profile is not None:
                    break
                means = (f"{direction} " + " ".join(f"{r:.2f}" for r in row[direction]) for direction in DIRECTIONS)
                bar.set_postfix_str(" ".join(means), refresh=False)
                bar.update()
        # The state before the last step, so that a run with more steps or other criteria can go on from there.
        if checkpoint is not None:
            write_tree(checkpoint, before)
        seconds = seconds_before + clock.perf_counter() - began
        result = run.meter.conclude(profile, inputs.steps, run.met, run.step, run.history, seconds, run.judged)
    return result.of(net, layout, values_before)


# ---- measuring and judging radii


# Largest distance of a layer's mean log|eigenvalue| from the logarithm of its target: from the points of one step that
# mean is known to some hundredths.
ALLOWED_LOG = 0.1


class Measurement(NamedTuple):
    """Radii of every layer at some steps and samples, and firing rates."""

    time: list[Tensor]  # radii through time of each layer (K, B)
    depth: list[Tensor]  # radii through depth of each layer (K, B)
    rates: list[float | None]  # spikes per neuron and step of each layer; None for one that does not spike
    lower: Tensor | None = None  # loss of the lower bound, mean over layers; None unless bounds="both"
    # mean of log|det M| / n of each layer's derivatives through time, None if all are singular; the whole field is None
    # unless bounds="both"
    log_determinants: list[float | None] | None = None


@dataclass(frozen=True)
class Meter:
    """Measures the radii of a network at steps and samples drawn anew each time, and judges them.

    Attributes:
        network: the network, in evaluation mode.
        goal: its target radii.
        options: the settings.
        seed: seed of the draws.
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
        if self.options.bounds == "both":
            refuse_without_memory(self.network.cells)
            if self.goal.time is None:
                raise ValueError(f"bounds='both' needs a target through time: give one, got {self.goal}.")

    def generator(self, step: int) -> torch.Generator:
        """A generator for each step, so that a resumed run draws the same as an uninterrupted one."""
        return torch.Generator().manual_seed(self.seed * SEEDS_APART + step)

    def count(self, x: Tensor, times: int = 1) -> int | None:
        """The number of time steps to measure of an input (T, ...): times * options.steps, at most T; None for all."""
        if self.options.steps is None:
            return None
        return min(times * self.options.steps, x.shape[0])

    def counted(self, measured: Measurement | RadiusProfile, total: int) -> list[LayerRadii]:
        """The measured radii that count: those of all layers, in each direction that has a target.

        With ``include_input=False`` the first layer's radii through depth do not count. The inputs have `total` steps.
        """
        found = []
        for direction, target in zip(DIRECTIONS, self.goal, strict=True):
            for layer, radii in enumerate(getattr(measured, direction)):
                if target is not None and (self.options.include_input or direction == "time" or layer > 0):
                    # largest distance of the mean from the target, by the criteria given or else the loop's
                    allowed = self.options.of_loop().criteria.allowed(self.goal, target)
                    found.append(LayerRadii(layer, direction, radii, standard_error(radii, total), target, allowed))
        return found

    def measure(self, x: Tensor, step: int, *, closer: bool = False) -> Measurement:
        """Measure an input x (T, B, n_in) at the time steps and samples drawn for a pre-training step.

        ``closer=True`` measures at CLOSER times the steps, without gradient.
        """
        x = x[:, torch.randperm(x.shape[1], generator=self.generator(step))[: self.options.samples]]
        generator = self.generator(step)  # a new one: the steps that it draws do not depend on the batch size
        steps = draw_steps(len(x), self.count(x, CLOSER if closer else 1), generator)
        transitions, outputs = follow(self.network, x, steps)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not closer):
            return self._measured(transitions, outputs, x.shape[1], generator)

    def measure_moment(self, moment: StepRecord, step: int) -> Measurement:
        """Measure all samples at one time step of a run; `step` is the pre-training step, which seeds the draws."""
        outputs = tuple(z.unsqueeze(0) for z in moment.outputs)  # (1, B, n_hidden)
        samples = len(moment.outputs[0])
        return self._measured(transitions_of(self.network, [moment]), outputs, samples, self.generator(step))

    def _measured(
        self, transitions: list[Transitions], outputs: Sequence[Tensor], samples: int, generator: torch.Generator
    ) -> Measurement:
        """Measure the radii of the layers' transitions at their points, `samples` of them at each time step.

        Firing rates are those of the outputs (T, B, n_hidden); the generator draws the sub-matrices.
        """
        time = []
        depth = []
        for layer, t in enumerate(transitions):
            time.append(time_radius(t, layer).radius.view(-1, samples))
            depth.append(depth_radius(t, layer, self.options.non_square, generator).radius.view(-1, samples))
        rates = [firing_rate(z) if is_binary(z) else None for z in outputs]
        if self.options.bounds == "upper":
            return Measurement(time, depth, rates)
        assert self.goal.time is not None  # __post_init__ sees to it
        matrices = [time_matrices(t) for t in transitions]
        lower = torch.stack([lower_bound_loss(m, self.goal.time) for m in matrices]).mean()
        return Measurement(time, depth, rates, lower, [mean_log_determinant(m) for m in matrices])

    def refuse_singular(self, history: Sequence[dict[str, Any]], points: str) -> None:
        """Raise a ValueError that names a layer whose derivative through time was singular at all points of some steps.

        Args:
            history: the rows of these steps.
            points: which points they measured, in words that end the message.
        """
        if self.options.bounds == "upper":
            return
        for layer, cell in enumerate(self.network.cells):
            if any(row["log_determinant"][layer] is not None for row in history):
                continue
            cure = "take the upper bound alone (bounds='upper')"
            if getattr(cell, "activation", None) == "relu":
                cure = "a ReLU's derivative is 0 where a neuron is inactive: give activation='tanh'"
            raise ValueError(
                f"bounds='both' needs determinants, and layer {layer + 1} ({type(cell).__name__}) has none: its "
                f"derivative through time is singular at all points {points}; {cure}."
            )

    def fresh(self, inputs: "InputStream", step: int) -> RadiusProfile:
        """Measure the radii on the next inputs, at more points, to judge whether they have converged.

        The first measurement takes twice the samples of a pre-training step. If no mean clearly misses its target, a
        second one takes so many samples (at most 16 times those of a step) that the standard error of every mean is a
        quarter of the tolerance. Each input is used at most once; an input of another length than the first is skipped.
        """
        generator = self.generator(-2 - step)  # the steps have the generators from 0 on
        taken = 0

        def next_input() -> Tensor:
            """The next input, its samples in a random order."""
            nonlocal taken
            taken += 1
            following = inputs.take()
            return following[:, torch.randperm(following.shape[1], generator=generator)]

        x = next_input()

        def measured(samples: int) -> RadiusProfile:
            """The profile at so many samples; if x has fewer, the next inputs are joined to it first."""
            nonlocal x
            while x.shape[1] < samples and taken < inputs.size:
                following = next_input()
                if len(following) == len(x):
                    x = torch.cat([x, following], 1)
            return radius_profile(
                self.network,
                x[:, :samples],
                steps=self.count(x, CLOSER) or len(x),  # no count: all steps
                non_square=self.options.non_square,
                target=self.goal,
                seed=self.seed * SEEDS_APART - 2 - step,
                progress=False,
            )

        profile = measured(2 * self.options.samples)
        found = self.counted(profile, len(x))
        if any(m.miss > m.allowed + 3 * m.error for m in found):  # off target by more than noise
            return profile
        measured_samples = profile.time.shape[2]
        samples = 16 * self.options.samples
        if all(m.allowed for m in found):  # with a tolerance of 0 no number of samples is enough
            error = max(m.error / m.allowed for m in found)
            # an error falls with the root of the number of samples
            samples = min(math.ceil(measured_samples * (error / 0.25) ** 2), samples)
        none_left = x.shape[1] == measured_samples and taken >= inputs.size
        if samples <= measured_samples or none_left:
            return profile
        return measured(samples)

    def missed_determinants(self, row: dict[str, Any]) -> dict[int, float | None]:
        """Mean log|det M| / n in a row of the history where it is not near the target's logarithm, by layer from 0.

        A layer whose derivative M (n, n) is singular at all points has None, which counts as a miss. With
        ``bounds="upper"`` determinants are not measured, and there is none.
        """
        if self.options.bounds == "upper" or self.goal.time is None:
            return {}
        wanted = math.log(self.goal.time)
        found = enumerate(row["log_determinant"])
        return {layer: mean for layer, mean in found if mean is None or not abs(mean - wanted) <= ALLOWED_LOG}

    def conclude(
        self,
        profile: RadiusProfile,
        total: int,
        met: bool,
        steps: int,
        history: list[dict[str, Any]],
        seconds: float,
        judged: dict[str, Any],
    ) -> "PretrainResult":
        """The result of setting the radii, with findings on what the network misses.

        Args:
            profile: radii of the network as it is now.
            total: time steps of the inputs.
            met: True if the criteria hold.
            steps: pre-training steps taken, or measurements made.
            history: a row for each of them.
            seconds: wall time.
            judged: the row of the step at which the network had the weights that it has now.
        """
        measured = self.counted(profile, total)
        too_dead = "lower the thresholds or raise the input weights; a target met by a dead layer says nothing"
        silent = (profile.firing_rate == 0).nonzero().flatten().tolist()
        found = [Finding(i + 1, "never fires", too_dead, name=DEAD) for i in silent]
        missed = [m for m in measured if not m.miss <= m.allowed]  # NaN is a miss, too
        for m in missed:
            problem = f"radius {m.mean:.3f} ± {m.error:.3f} through {m.direction} against a target of {m.target:.3g}"
            if m.direction == "time":
                cure = _cure_through_time(m, profile)
                if profile.contributions[m.layer]:
                    problem += f", due to the {profile.main_term(m.layer).name}"
            else:
                cure = _cure_through_depth(m, self.network.cells[m.layer])
            found.append(Finding(m.layer + 1, problem, cure))
        missed_logs = self.missed_determinants(judged)
        for layer, mean_log in missed_logs.items():
            problem = "the derivative through time is singular at all measured points"
            if mean_log is not None:
                size = f"the geometric mean of |eigenvalues| through time is {math.exp(mean_log):.3g}"
                problem = f"{size} against a target of {self.goal.time:.3g}"
            found.append(Finding(layer + 1, problem, "take more steps, or the upper bound alone (bounds='upper')"))
        of_paper = self.options.loop != "neurolsc"
        if not met and not missed and not missed_logs:  # in our loop, then the deviation is too wide
            widest = max(measured, key=lambda m: m.radii.std(correction=0).item())
            spread = widest.radii.std(correction=0).item()
            problem = f"mean radii are on target, but those through {widest.direction} spread by {spread:.2f}"
            cure = "take more steps, soften the surrogate (sharpness), or allow a wider deviation"
            if of_paper:
                problem = "mean radii are on target here, but the criteria did not hold at the loop's last time steps"
                cure = "take more steps"
            found.append(Finding(widest.layer + 1, problem, cure))
        return PretrainResult(
            converged=met and (of_paper or not silent),  # the paper's criteria do not ask whether layers fire
            steps=steps,
            history=history,
            profile=profile,
            time_error=[standard_error(radii, total) for radii in profile.time],
            depth_error=[standard_error(radii, total) for radii in profile.depth],
            findings=tuple(found),
            options=self.options,
            seconds=seconds,
        )


def _cure_through_time(missed: LayerRadii, profile: RadiusProfile) -> str:
    """Return what to change in a layer whose mean radius through time misses its target; its largest term decides."""
    if not profile.time[missed.layer].any():  # all radii are zero
        return "it has no memory; set direction='depth'"
    term = profile.main_term(missed.layer)
    if missed.mean > missed.target:
        return term.too_large
    return term.too_small


def _cure_through_depth(missed: LayerRadii, cell: Cell) -> str:
    """What to change where the mean radius through depth of a cell misses its target."""
    if missed.mean == 0:
        return "at exactly 0 no scale moves it: its input does not reach its output within a step"
    if all(scaled.radius != "depth" for scaled in cell.scaled_parameters):
        return "no parameter that rules scale moves it; set direction='time'"
    cure = f"scale the input weights {'down' if missed.mean > missed.target else 'up'}"
    if missed.layer > 0:
        cure += ", or move the thresholds of the layer below"
    return cure


# ---- the result


@dataclass(frozen=True, repr=False)
class PretrainResult(Displayed):
    """The outcome of setting the radii; the weights are in the network itself.

    Attributes:
        converged: True if the criteria hold for the profile, and every layer fires; of the paper's loops, if their own
            criteria held in the last step. There `findings` may still name single layers that miss the target.
        steps: pre-training steps taken (of :func:`neurolsc.scale_to_radius`: measurements made).
        history: one row per step: loss, mean radii through time and depth, deviation, firing rates (None of a layer
            that does not send spikes), seconds; of :func:`neurolsc.scale_to_radius` the rows that it describes.
        profile: spectral radii of the network as it is now, if possible on inputs that the last step did not use.
        time_error: standard error of the profile's mean radii through time, per layer.
        depth_error: standard error of those through depth.
        findings: dead layers and missed targets by name, and what to change.
        options: the settings.
        seconds: wall time of the call, and of the steps before it if it went on from a checkpoint.
        left_out: values of a module that were set and are not in its state_dict, and what keeps them; else empty.
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
        """The result for the user's module `net`: with the layout of its input, and what its state_dict leaves out.

        Args:
            net: the module, as given.
            layout: where time and batch were found in its input.
            before: what :func:`neurolsc.interop.saved.values_outside` gave for it before the radii were set.
        """
        result = replace(self, profile=replace(self.profile, layout=layout))
        if isinstance(net, Network):
            return result
        return replace(result, left_out=left_out(net, before))

    @property
    def points(self) -> tuple[int, int]:
        """Points at which the radii of each layer were measured: (time steps, samples)."""
        return self.profile.time.shape[1], self.profile.time.shape[2]

    def plot(self, path: str | PathLike[str] | None = None, *, title: str = "") -> "Figure":
        """Draw mean radii and firing rates over the steps; write them to a file, whose suffix chooses the format.

        Raises:
            ValueError: if the result is of :func:`neurolsc.scale_to_radius`, whose measurements are of single layers.
        """
        from neurolsc.plots import plot_pretraining  # matplotlib is slow to import and few runs draw

        return plot_pretraining(self.history, self.profile.target, path, title=title)

    def parts(self) -> list[str | Table]:
        reached = "not converged"
        if self.converged:
            reached = "converged"
        steps, samples = self.points
        accuracy = (
            f"means over {steps} steps of {samples} samples, standard errors at most {max(self.time_error):.3f} "
            f"through time and {max(self.depth_error):.3f} through depth"
        )
        ended = f"{reached} after {self.steps} steps, {self.seconds:.1f} s"
        notes = map(in_80_columns, filter(None, [*self.findings, self.left_out]))
        return [ended, *self.profile.parts(), accuracy, *notes]


# ---- inputs


class InputStream:
    """The inputs x of batches, which are repeated without end.

    Args:
        batches: the batches.
        n_in: the width that every x must have; None: any.

    Attributes:
        taken: number of inputs taken so far.
        size: number of batches; of a loader infinite until it has ended once.
        steps: T of the first input.
    """

    def __init__(self, batches: Iterable[Any], n_in: int | None = None) -> None:
        self.batches = batches
        self.n_in = n_in
        self.taken = 0
        self.size = math.inf
        if isinstance(batches, Sequence):
            self.size = len(batches)
        rounds = self._rounds()
        first = next(rounds)  # read now for its length; `take` returns it first
        self.steps = len(first)
        self._inputs = chain([first], rounds)

    def _rounds(self) -> Iterator[Tensor]:
        """Yield the inputs of all batches, round after round."""
        while True:
            place = 0
            for place, batch in enumerate(self.batches, start=1):
                yield input_of(batch, place, self.n_in)
            self.size = place
            if not place:
                raise ValueError("pretrain needs at least one batch of inputs, got none.")

    def take(self) -> Tensor:
        """The next input (T, B, n_in)."""
        self.taken += 1
        return next(self._inputs)


def input_of(batch: Any, place: int, n_in: int | None = None) -> Tensor:
    """The input (T, B, n_in) of a batch x, (x, labels) or (x, targets, mask); errors name its place, from 1.

    With an `n_in` of None it may have any width. From a batch with a mask (T, B) the samples of at least median length
    are taken, cut to that length, so that no step is padding.
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
    if 0 in x.shape or n_in not in (None, x.shape[2]):
        wanted = f"(T, B, {n_in or 'n_in'}) with T, B >= 1"
        raise ValueError(f"inputs must be {wanted}, got {tuple(x.shape)} in batch {place}.")
    return without_padding(x, mask)
