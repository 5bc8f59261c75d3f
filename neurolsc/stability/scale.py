"""Radii and firing rates set by scales alone, found as roots, layer by layer from the bottom up.

`scale_to_radius` gives each layer two scales. Through depth the derivative is linear in w_in, so its scale follows from
one measurement. The radius through time depends on the states, which the scale itself changes, so its scale is found as
a root on a logarithmic axis. Layers above do not act on those below, so one sweep is enough. `match_firing_rates`
scales thresholds, the control for pre-training. `layer_inputs`, `steps_from_rest` and `solve` serve initialisers as
well.
"""

import copy
import math
import time as clock
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from neurolsc.display import progress_bar
from neurolsc.interop.prepared import prepare
from neurolsc.interop.ranks import on_rank_0
from neurolsc.interop.saved import values_outside
from neurolsc.network import Network, eval_mode
from neurolsc.neurons.cell import Cell, State, Thresholds
from neurolsc.stability.pretrain import CLOSER, InputStream, Meter, PretrainResult, restored_on_error
from neurolsc.stability.profile import depth_radius, time_radius
from neurolsc.stability.rules import PretrainOptions, Target, as_rule, radius_target
from neurolsc.stability.transitions import Transitions, draw_steps, stacked
from neurolsc.surroundings import in_full_precision
from neurolsc.validation import shown

# ---- radii

OPTIONS = ("rule", "direction", "samples", "steps", "include_input", "non_square", "criteria")
TURNS = 4  # most turns of a layer, each through depth and time
LARGEST_SCALE = 1e4  # and one over the smallest
# Shares of the tolerance: what a root is found to, and where a scale stays near a target that is only a limit.
ROOT_TOLERANCE = 0.05
LIMIT_TOLERANCE = 0.4


@on_rank_0
@in_full_precision
def scale_to_radius(
    net: nn.Module, x: Any, *, target: Target = 0.5, seed: int = 0, progress: bool = True, **options: Any
) -> PretrainResult:
    """Bring the spectral radii of a network to a target, in place, by two scales per layer and nothing else.

    Layers are scaled from the bottom up. Each scale moves the other radius, so a layer is scaled through depth and
    through time in turns, at most four, until both radii are on target. If a radius only tends to the target, as to 1
    while a gate closes, the scale stops within the tolerance. If no scale from 1e-4 to 1e4 brings a radius to the
    target, the radius ends as near as it goes.

    Args:
        net: a network, or a module of snnTorch, norse, spikingjelly or PyTorch; its cells are changed, its readout is
            not.
        x: one batch of inputs (T, B, n_in) of a network, or what the module takes, as
            :func:`neurolsc.interop.prepared.prepare` reads it. Scales are found on twice ``samples`` samples, at four
            times ``steps`` time steps, and confirmed on the other samples of x, if there are any.
        target: the spectral radius through time and depth, as in :func:`neurolsc.pretrain`.
        seed: seed of the draws of time steps, samples and sub-matrices.
        progress: show a progress bar.
        options: ``rule``, ``direction``, ``samples``, ``steps``, ``include_input``, ``non_square`` and ``criteria`` of
            :class:`~neurolsc.stability.PretrainOptions`; the third criterion, over several steps, always holds.

    Returns:
        The result. Its ``steps`` count measurements; its history has a row for each measurement: layer, scale, and the
        mean radius through time at that scale.

    Raises:
        FloatingPointError: if a radius is NaN; the message names the layer, and the network is as it was.

    Example:
        >>> import torch
        >>> from neurolsc import ALIFPlus
        >>> _ = torch.manual_seed(0)
        >>> network = Network([ALIFPlus(32, 16), ALIFPlus(16, 16)], n_out=3)
        >>> x = (torch.rand(20, 16, 32) < 0.2).float()  # 20 steps of 16 samples
        >>> result = scale_to_radius(network, x, target=0.5, progress=False)
        >>> result.converged, result.profile.time_mean.round(decimals=1).tolist()
        (True, [0.5, 0.5])
    """
    if unknown := options.keys() - set(OPTIONS):
        raise TypeError(f"scale_to_radius() takes the options {', '.join(OPTIONS)}; got {', '.join(sorted(unknown))}.")
    chosen = PretrainOptions(target=target, **options)
    started = clock.perf_counter()
    history: list[dict[str, Any]] = []
    prepared = prepare(net, x)
    network = prepared.network
    x = prepared.without_padding()
    before = values_outside(net)
    with (
        restored_on_error(network),
        eval_mode(network),
        torch.no_grad(),
        progress_bar(None, unit="measurement", desc="scale", shown=progress) as bar,
    ):
        total = InputStream([x]).steps
        goal = radius_target(target, total, len(network.cells), chosen.direction)
        meter = Meter(network, goal, chosen, seed)
        order = torch.randperm(x.shape[1], generator=meter.generator(0))
        count = 2 * chosen.samples
        some = x[:, order[:count]]
        others = x[:, order[count:]]
        times = draw_steps(total, meter.count(x, CLOSER), meter.generator(0))

        def record(layer: int, scale: float, radius: float) -> None:
            history.append({"layer": layer + 1, "scale": scale, "time": radius})
            bar.set_postfix_str(f"layer {layer + 1} scale {scale:.3g} time {radius:.3f}")
            bar.update()

        every = torch.arange(some.shape[1], device=some.device)
        for layer, points in enumerate(layer_points(network, some, every, times)):
            _scale_layer(layer, points, meter, record)
        if not others.shape[1]:
            others = some
        profile = meter.fresh(InputStream([others]), 0)
        seconds = clock.perf_counter() - started
        criteria = chosen.of_loop().criteria
        met = criteria.met(meter.counted(profile, total), smoothed=0.0)  # of one draw there is nothing to smooth over
        result = meter.conclude(profile, total, met, len(history), history, seconds)
    return result.of(net, prepared.layout, before)


def _scale_layer(layer: int, points: "Points", meter: Meter, record: Callable[[int, float, float], None]) -> None:
    """Scale a layer through depth and through time in turns; record each scale and the radius through time there."""
    cell = points.transitions.cell
    options = meter.options
    goal = meter.goal
    rule = as_rule(options.rule, options.target)
    criteria = options.of_loop().criteria
    depth = None
    if layer or options.include_input:
        depth = goal.depth
    scale = 1.0
    start: dict[str, Tensor] = {}  # parameters at the start of a turn, where the scale is 1

    def set_to(log: float) -> None:
        nonlocal scale
        scale = math.exp(log)
        cell.load_state_dict(start)
        rule.apply(cell, time=scale, depth=1.0)

    def measure() -> float:
        radius = time_radius(points.now(), layer).radius.mean().item()
        record(layer, scale, radius)
        return radius

    for turn in range(TURNS):
        if depth is not None:
            mean = depth_radius(points.now(), layer, options.non_square, meter.generator(0)).radius.mean().item()
            met = abs(mean - depth) <= criteria.allowed(goal, depth) / 2
            if not met and mean > 0:
                rule.apply(cell, time=1.0, depth=depth / mean)
            if turn and (met or mean == 0):
                return  # the last turn has set the radius through time
        if goal.time is None:
            return
        start = copy.deepcopy(cell.state_dict())
        allowed = criteria.allowed(goal, goal.time)
        near = LIMIT_TOLERANCE * allowed
        if turn:  # a layer that is scaled again may stay near the target
            set_to(0.0)
            if abs(measure() - goal.time) <= near:
                continue
        reach = math.log(LARGEST_SCALE)
        solve(set_to, measure, goal.time, reach=reach, tolerance=ROOT_TOLERANCE * allowed, limit=near)
        if depth is None:
            return


# ---- firing rates

# Largest scale of thresholds, and one over the least: beyond, the threshold means nothing, or everything.
REACH = 1e3


@on_rank_0
@in_full_precision
def match_firing_rates(net: nn.Module, x: Any, rates: Sequence[float], *, tolerance: float = 0.1) -> list[float]:
    r"""Scale the thresholds of each layer, in place, until it fires at a wanted rate; bottom up.

    In an ALIF :math:`b_\vartheta` and :math:`\beta` are multiplied, so that the whole threshold :math:`\vartheta[t]`
    scales; its time constants and all weights stay. This is the control for pre-training. Cost: about six runs of each
    layer alone; a wide layer takes these on a few samples, and two runs on all.

    Args:
        net: a network, or a module of snnTorch, norse, spikingjelly or PyTorch, whose cells have thresholds to scale
            (:meth:`neurolsc.Cell.thresholds`).
        x: input (T, B, n_in) of a network, or what the module takes, as :func:`neurolsc.interop.prepared.prepare`
            reads it.
        rates: wanted firing rate of each layer, in spikes per neuron and step; the number of an integrator, such as
            norse's LI, is not used.
        tolerance: how far a firing rate may end from the wanted one, as a share of the wanted one. Firing rates move in
            jumps if a network is small or its spikes feed on each other. ``math.inf`` accepts the nearest, whatever it
            is.

    Returns:
        The firing rates reached; NaN for an integrator.

    Raises:
        ValueError: if there are not as many rates as layers, a rate is outside [0, 1], or no scale from 1e-3 to 1e3
            brings a layer within the tolerance; the network is then as before.
        TypeError: if a cell has no thresholds, all cells are integrators, or net or x is none of these.
    """
    prepared = prepare(net, x)
    network = prepared.network
    x = prepared.without_padding()
    cells = network.cells
    if not isinstance(rates, Sequence):
        raise TypeError(f"rates must be one number for each layer, here {[0.1] * len(cells)}, got {shown(rates)}.")
    if len(rates) != len(cells) or not all(0 <= rates[i] <= 1 for i in network.spiking):
        raise ValueError(f"rates must be {len(cells)} numbers in [0, 1], got {list(rates)}.")
    thresholds: dict[int, Thresholds] = {}
    for layer in network.spiking:
        own = cells[layer].thresholds()
        if own is None:
            raise TypeError(no_thresholds(f"layer {layer + 1}, a {type(cells[layer]).__name__},"))
        thresholds[layer] = own
    if not thresholds:
        raise TypeError("no layer spikes: all are integrators, whose thresholds nothing can scale.")
    reached = []
    with eval_mode(network):
        for layer, (layer_input, wanted) in enumerate(zip(layer_inputs(network, x), rates, strict=True)):
            found = math.nan
            if layer in thresholds:
                found = scale_to_rate(cells[layer], thresholds[layer], layer_input, wanted, reach=REACH)
            if abs(found - wanted) > tolerance * wanted:
                for changed in thresholds.values():
                    changed.scale(1.0)
                raise ValueError(
                    f"layer {layer + 1}: no scale of its thresholds from {1 / REACH:g} to {REACH:g} gives {wanted:g} "
                    f"spikes per neuron and step; the nearest that was found is {found:.4g}. Give a larger tolerance "
                    f"than {tolerance:g} to take that."
                )
            reached.append(found)
    return reached


def no_thresholds(layer: str) -> str:
    """The message for a layer without thresholds."""
    return (
        f"{layer} does not say how its thresholds scale: use an initialiser of weights alone, Glorot(), Orthogonal() or LSC(), "
        "or write its thresholds()."
    )


# From so many numbers in a step on (samples times width) the scale is first sought on a few samples, which is faster.
MANY = 2**15
FEW = 16  # samples
# relative errors of rates
ROUGH = 0.01  # on a few samples
CLOSE = 5e-3  # on all: spikes that feed on each other move a rate by as much
STEEPNESS = 1.5  # a first guess of d log(rate) / d log(1 / threshold)
FAR = -2.0  # log(rate / wanted) below which its distance counts a tenth


def scale_to_rate(cell: Cell, thresholds: Thresholds, x: Tensor, wanted: float, *, reach: float) -> float:
    """Scale thresholds, by `reach` at most, until a cell's rate on x (T, B, n_in) is nearest to a wanted one.

    Returns the firing rate, exact to 0.5 % if it does not move in jumps. The search is for a root in the logarithms of
    rate and scale, where a layer is nearly a line. A layer that fires takes four to six runs, a silent one up to ten.
    """
    most = math.log(reach)
    sensitivity = 0.0  # log(1 / scale of the thresholds)

    def set_sensitivity(log: float) -> None:
        nonlocal sensitivity
        sensitivity = min(max(log, -most), most)
        thresholds.scale(math.exp(-sensitivity))

    if wanted == 0:  # which has no logarithm
        return solve(set_sensitivity, lambda: rate(cell, x), 0.0, reach=most, tolerance=0.0)

    def search(part: Tensor, tolerance: float) -> float:
        """Set the scale on some samples, starting where it is; the rate there."""
        start = sensitivity
        rates: dict[float, float] = {}  # by what log_rate returns
        least = 0.5 / (part.shape[0] * part.shape[1] * cell.n_hidden)  # stands for a rate of 0

        def log_rate() -> float:
            fires = rate(cell, part)
            log = math.log(max(fires, least) / wanted)
            if log < FAR:  # a silent layer says little about how far it is: roots would be sought by halving
                log = FAR + 0.1 * (log - FAR)
            rates[log] = fires
            return log

        found = solve(
            lambda log: set_sensitivity(start + log),
            log_rate,
            0.0,
            reach=2 * most,
            tolerance=tolerance,
            slope=STEEPNESS,
        )
        return rates[found]

    samples = x.shape[1]
    if samples >= 2 * FEW and samples * max(cell.n_in, cell.n_hidden) >= MANY:
        evenly = torch.arange(FEW, device=x.device) * samples // FEW
        search(x[:, evenly], ROUGH)
    return search(x, CLOSE)


# ---- a layer by itself


def layer_inputs(network: Network, x: Tensor) -> Iterator[Tensor]:
    """Yield the input (T, B, n_in) of each layer; each layer is run only when the next input is asked for.

    So a caller may change a layer before it goes on, and the layers above read the changed one.
    """
    with torch.no_grad():
        below = network.embedded(x.to(network.dtype_and_device["device"]))
        start = network.initial_states(below.shape[1])
    for layer, cell in enumerate(network.cells):
        if network.layer_delay:
            with torch.no_grad():
                first: Any = network.cells[layer - 1].output(start.layers[layer - 1]) if layer else start.x
                below = torch.cat([first.unsqueeze(0), below[:-1]])
        yield below
        with torch.no_grad():
            below = cell.run(below, cell.initial_state(below.shape[1]))[0]


def steps_from_rest(cell: Cell, x: Tensor) -> Iterator[tuple[Tensor, State, State]]:
    """Run a cell on x (T, B, n_in) from rest; yield the input, the state before and the state after each step."""
    with torch.no_grad():
        before = cell.initial_state(x.shape[1])
    for now in x:
        with torch.no_grad():
            after = cell.update(now, cell.output(before), before)
        yield now, before, after
        before = after


class Points(NamedTuple):
    """A layer's input, and the points (step, sample) at which its derivatives are taken."""

    x: Tensor  # the input (T, B, n_in)
    transitions: Transitions  # with the state at rest in the place of those before the steps: see `now`
    samples: Tensor
    times: Tensor

    def now(self, *, after: bool = False) -> Transitions:
        """The transitions at these points, with the states before (or after) the steps, as the layer is now."""
        wanted = set(self.times.tolist())
        states = []
        steps = steps_from_rest(self.transitions.cell, self.x[:, self.samples])
        for time, (_, state_before, state_after) in enumerate(steps):
            if time in wanted:
                states.append(state_after if after else state_before)
        return self.transitions._replace(before=stacked(states))


def layer_points(network: Network, x: Tensor, samples: Tensor, times: Tensor) -> Iterator[Points]:
    """Yield the points of each layer; a caller may change it before it asks for the next (:func:`layer_inputs`)."""
    below: tuple[Cell, State] | tuple[None, None] = (None, None)
    for index, (cell, layer_input) in enumerate(zip(network.cells, layer_inputs(network, x), strict=True)):
        at_points = layer_input[times][:, samples].flatten(0, 1)
        points = Points(layer_input, Transitions(cell, at_points, cell.initial_state(1), *below), samples, times)
        yield points
        if index + 1 < len(network.cells):
            below = (cell, points.now(after=not network.layer_delay).before)


def rate(cell: Cell, x: Tensor) -> float:
    """Spikes per neuron and step in a run on x (T, B, n_in) from rest."""
    with torch.no_grad():
        return cell.run(x, cell.initial_state(x.shape[1]))[0].ne(0).double().mean().item()


NOT_FINITE = 1e12  # stands for the distance of a measure that is not finite


def solve(
    set_to: Callable[[float], object],
    measure: Callable[[], float],
    target: float,
    *,
    reach: float,
    tolerance: float,
    limit: float = 0.0,
    slope: float | None = None,
) -> float:
    """Set the value, of all that are tried, whose measure is nearest to a target; return the measure.

    The measure increases with the value, up to noise. Of values with the same measure the nearest to 0 is set.

    Args:
        set_to: sets the value. The search starts at 0.
        measure: measures at the value that is set.
        target: target of the measure.
        reach: the largest distance of the value from 0.
        tolerance: distance of the measure from the target at which the search ends.
        limit: if the measure only tends to the target, as while a gate closes, the distance from the target at which
            the value stays; nearer to the target it would grow without end. 0: it goes as near as the tolerance.
        slope: a guess of the measure's derivative by the value, for the first step.
    """
    from scipy.optimize import brentq  # takes 0.2 s to import

    tried: list[tuple[float, float, float, float]] = []  # distance, size, value and measure: the least is the best

    @cache
    def miss(value: float) -> float:
        set_to(value)
        found = measure()
        missed = NOT_FINITE
        if math.isfinite(found):
            missed = found - target
        tried.append((abs(missed), abs(value), value, found))
        if abs(missed) > tolerance:
            return missed
        return 0.0

    # Widen away from 0 until the sign changes.
    at_zero = miss(0.0)
    first = 0.25
    if slope is not None and abs(at_zero) < NOT_FINITE:
        first = min(max(1.1 * abs(at_zero) / slope, 1e-3), 2.0, reach)  # a little beyond the root of the line
    near = 0.0
    far = -math.copysign(first, at_zero)
    while at_zero and abs(near) < reach:
        there = miss(far)
        if there == 0 and 0 < limit < abs(at_zero):

            def beyond_limit(value: float) -> float:
                distance = limit - abs(miss(value))
                if abs(distance) > limit / 4:
                    return distance
                return 0.0

            value = float(brentq(beyond_limit, 0.0, far, xtol=1e-4))  # type: ignore[arg-type]
            set_to(value)
            return measure()
        if there * at_zero <= 0:
            brentq(miss, min(near, far), max(near, far), xtol=1e-4)  # all that it tries is in `tried`
            break
        # Go on a little beyond the root of the line through both, but no more than eight times as far.
        size = 2 * abs(far)
        closer = abs(miss(near)) - abs(there)
        if closer > 0:
            root = abs(far) + abs(there) / closer * abs(far - near)
            size = min(max(1.1 * root, 1.2 * abs(far)), 8 * abs(far))
        near = far
        far = math.copysign(min(size, reach), far)
    _, _, value, found = min(tried)
    set_to(value)
    return found
