"""Radii and firing rates set by scales alone, found as roots, layer by layer from the bottom up.

`scale_to_radius` gives each layer two scales. Through depth the derivative is linear in w_in, so its scale follows from
one measurement. The radius through time depends on the states, which the scale itself changes, so its scale is found as
a root on a logarithmic axis. Layers above do not act on those below, so one sweep is enough. `match_firing_rates`
scales thresholds to wanted firing rates, as a control for pre-training. `layer_inputs`, `steps_from_rest` and `solve`
serve initialisers as well.
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
from neurolsc.interop.saved import restored_on_error, values_outside
from neurolsc.interop.sharing import refuse_shared, shared_kept
from neurolsc.network import Network
from neurolsc.neurons.cell import Cell, State, Thresholds
from neurolsc.stability.pretrain import CLOSER, InputStream, Meter, PretrainResult
from neurolsc.stability.profile import depth_radius, time_radius
from neurolsc.stability.rules import PretrainOptions, Target, as_rule, radius_target
from neurolsc.stability.transitions import Transitions, draw_steps, stacked
from neurolsc.surroundings import eval_mode, in_full_precision
from neurolsc.validation import known_options, shown

# ---- radii

OPTIONS = ("rule", "direction", "samples", "steps", "include_input", "non_square", "criteria")
TURNS = 4  # most turns of a layer; in each it is scaled through depth and then through time
LARGEST_SCALE = 1e4  # the smallest scale is one over it
# Distances of a mean radius from its target, as shares of its tolerance: below 1, as other samples confirm the radius.
ROOT_TOLERANCE = 0.05  # at which the search for a root ends
LIMIT_TOLERANCE = 0.4  # at which the scale stays if the radius only tends to the target


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
    known_options("scale_to_radius", options, OPTIONS)
    chosen = PretrainOptions(target=target, **options)
    started = clock.perf_counter()
    history: list[dict[str, Any]] = []
    prepared = prepare(net, x)
    network = prepared.network
    refuse_shared(network, net)
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
        some = x[:, order[:count]]  # the scales are found on these
        others = x[:, order[count:]]  # and confirmed on these
        times = draw_steps(total, meter.count(x, CLOSER), meter.generator(0))

        def record(layer: int, scale: float, radius: float) -> None:
            """Append a measurement of a layer (from 0) to the history, and show it."""
            history.append({"layer": layer + 1, "scale": scale, "time": radius})
            bar.set_postfix_str(f"layer {layer + 1} scale {scale:.3g} time {radius:.3f}")
            bar.update()

        samples = torch.arange(some.shape[1], device=some.device)
        # A layer's points are computed when the loop comes to it, with the layers below as they are scaled by then.
        for layer, points in enumerate(layer_points(network, some, samples, times)):
            _scale_layer(layer, points, meter, record)
        if not others.shape[1]:
            others = some
        profile = meter.fresh(InputStream([others]), 0)
        seconds = clock.perf_counter() - started
        criteria = chosen.of_loop().criteria
        # The profile is a single measurement, with nothing to smooth over steps: 0 always meets the third criterion.
        met = criteria.met(meter.counted(profile, total), smoothed=0.0)
        result = meter.conclude(profile, total, met, len(history), history, seconds, judged={})
    return result.of(net, prepared.layout, before)


def _scale_layer(layer: int, points: "Points", meter: Meter, record: Callable[[int, float, float], None]) -> None:
    """Scale a layer (from 0), in place, until its mean radii through depth and time are on target.

    Each scale moves the other radius, so depth and time are scaled in turns, at most TURNS. `record` is called with
    (layer, scale, mean radius through time) after each measurement through time.
    """
    cell = points.transitions.cell
    options = meter.options
    goal = meter.goal
    rule = as_rule(options.rule, options.target)
    criteria = options.of_loop().criteria
    depth = None  # target through depth; None: that radius is left as it is
    if layer or options.include_input:
        depth = goal.depth
    scale = 1.0  # of the derivative through time, in this turn
    start: dict[str, Tensor] = {}  # the cell's parameters at the start of a turn, where the scale is 1

    def set_to(log_scale: float) -> None:
        nonlocal scale
        scale = math.exp(log_scale)
        cell.load_state_dict(start)
        rule.apply(cell, time=scale, depth=1.0)

    def measure() -> float:
        """The mean radius through time at the scale that is set."""
        radius = time_radius(points.now(), layer).radius.mean().item()
        record(layer, scale, radius)
        return radius

    for turn in range(TURNS):
        if depth is not None:
            mean = depth_radius(points.now(), layer, options.non_square, meter.generator(0)).radius.mean().item()
            # Half the tolerance: the other samples, on which the radii are confirmed, give a slightly different mean.
            met = abs(mean - depth) <= criteria.allowed(goal, depth) / 2
            if not met and mean > 0:
                rule.apply(cell, time=1.0, depth=depth / mean)
            if turn and (met or mean == 0):  # no scale moves a radius of 0
                return  # the turn before has set the radius through time, and nothing has moved it since
        if goal.time is None:
            return
        start = copy.deepcopy(cell.state_dict())
        allowed = criteria.allowed(goal, goal.time)
        near = LIMIT_TOLERANCE * allowed
        if turn:  # a layer that is near the target after an earlier turn stays as it is
            set_to(0.0)
            if abs(measure() - goal.time) <= near:
                continue
        reach = math.log(LARGEST_SCALE)
        solve(set_to, measure, goal.time, reach=reach, tolerance=ROOT_TOLERANCE * allowed, limit=near)
        if depth is None:  # no other scale has moved the radius through time
            return


# ---- firing rates

# Largest scale of thresholds; the smallest is one over it. Beyond these a neuron never fires, or fires at every step.
REACH = 1e3


@on_rank_0
@in_full_precision
def match_firing_rates(net: nn.Module, x: Any, rates: Sequence[float], *, tolerance: float = 0.1) -> list[float]:
    r"""Scale the thresholds of each layer, in place, until it fires at a wanted rate; bottom up.

    In an ALIF :math:`b_\vartheta` and :math:`\beta` are multiplied, so that the whole threshold :math:`\vartheta[t]`
    scales; its time constants and all weights stay. An untrained network with the firing rates of a pre-trained one is
    the control for pre-training. Cost: about six runs of each layer alone; a wide layer takes these on a few samples,
    and two runs on all.

    Args:
        net: a network, or a module of snnTorch, norse, spikingjelly or PyTorch, whose cells have thresholds to scale
            (:meth:`neurolsc.Cell.thresholds`).
        x: input (T, B, n_in) of a network, or what the module takes, as :func:`neurolsc.interop.prepared.prepare`
            reads it.
        rates: wanted firing rate of each layer, in spikes per neuron and step; the number given for an integrator, such
            as norse's LI, is not used.
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
        of_layer = cells[layer].thresholds()
        if of_layer is None:
            raise TypeError(no_thresholds(f"layer {layer + 1}, a {type(cells[layer]).__name__},"))
        thresholds[layer] = of_layer
    if not thresholds:
        raise TypeError("no layer spikes: all are integrators, whose thresholds nothing can scale.")
    reached = []
    with shared_kept(network, net), eval_mode(network):
        # A layer's input is computed when the loop comes to it, from the layers below with the thresholds set by then.
        for layer, (layer_input, wanted) in enumerate(zip(layer_inputs(network, x), rates, strict=True)):
            if layer not in thresholds:  # an integrator
                reached.append(math.nan)
                continue
            found = scale_to_rate(cells[layer], thresholds[layer], layer_input, wanted, reach=REACH)
            if tolerance < math.inf and abs(found - wanted) > tolerance * wanted:
                for changed in thresholds.values():
                    changed.scale(1.0)  # a scale is relative to the thresholds that the network came with
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


# If a step has at least MANY numbers (samples times width), the scale is first sought on FEW samples, which is faster.
MANY = 2**15
FEW = 16
# Relative errors of rates at which a search ends.
ROUGH = 0.01  # on FEW samples
CLOSE = 5e-3  # on all: spikes that feed on each other move a rate by as much
STEEPNESS = 1.5  # a first guess of d log(rate) / d log(1 / threshold)
FAR = -2.0  # log(rate / wanted), below which ...
NEARER = 0.1  # ... the rest of the distance counts as so much


def scale_to_rate(cell: Cell, thresholds: Thresholds, x: Tensor, wanted: float, *, reach: float) -> float:
    """Scale a cell's thresholds, in place, so that its firing rate on x (T, B, n_in) is nearest to a wanted one.

    A root is searched of log(rate / wanted) as a function of log(scale), since this function is nearly a line. A layer
    that fires takes four to six runs, a silent one up to ten.

    Args:
        cell: the cell.
        thresholds: its thresholds.
        x: its input (T, B, n_in).
        wanted: spikes per neuron and step, from 0.
        reach: the largest scale; the smallest is one over it.

    Returns:
        The firing rate at the scale that is set. It is within 0.5 % of the wanted one, unless it moves in jumps or the
        wanted one is out of reach.
    """
    most = math.log(reach)
    # log(1 / scale of the thresholds): the rate rises with it
    sensitivity = 0.0

    def set_sensitivity(value: float) -> None:
        nonlocal sensitivity
        sensitivity = min(max(value, -most), most)
        thresholds.scale(math.exp(-sensitivity))

    if wanted == 0:  # has no logarithm: the search is for a root in the rate itself
        return solve(set_sensitivity, lambda: rate(cell, x), 0.0, reach=most, tolerance=0.0)

    def search(part: Tensor, tolerance: float) -> float:
        """Search on some samples (T, b, n_in), from the present scale, and set the scale; return their firing rate."""
        start = sensitivity
        rates: dict[float, float] = {}  # from each result of log_rate to the firing rate
        # a rate of 0 has no logarithm: the rate of half a spike in the whole run stands for it
        least = 0.5 / (part.shape[0] * part.shape[1] * cell.n_hidden)

        def log_rate() -> float:
            """log(rate / wanted) at the scale that is set; values below FAR are raised towards it."""
            fires = rate(cell, part)
            log = math.log(max(fires, least) / wanted)
            if log < FAR:
                # A silent layer lies far below the line. The search would then halve its interval many times instead
                # of following the line through the ends.
                log = FAR + NEARER * (log - FAR)
            rates[log] = fires
            return log

        nearest = solve(
            lambda log: set_sensitivity(start + log),
            log_rate,
            0.0,
            reach=2 * most,  # from one end of the range to the other
            tolerance=tolerance,
            slope=STEEPNESS,
        )
        return rates[nearest]

    samples = x.shape[1]
    # On few samples of a wide layer first: the search on all then starts near its root.
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
        if network.layer_delay:  # a step reads the output below of the step before; the first one, the output at rest
            with torch.no_grad():
                first: Any = start.x
                if layer:
                    first = network.cells[layer - 1].output(start.layers[layer - 1])
                below = torch.cat([first.unsqueeze(0), below[:-1]])
        yield below
        with torch.no_grad():
            below = cell.run(below, cell.initial_state(below.shape[1]))[0]


def steps_from_rest(cell: Cell, x: Tensor) -> Iterator[tuple[Tensor, State, State]]:
    """Run a cell on x (T, B, n_in) from rest; yield each step's input (B, n_in), state before and state after it."""
    with torch.no_grad():
        before = cell.initial_state(x.shape[1])
    for now in x:
        with torch.no_grad():
            after = cell.update(now, cell.output(before), before)
        yield now, before, after
        before = after


class Points(NamedTuple):
    """A layer's input, and the points at which its derivatives are taken: all given steps of all given samples."""

    x: Tensor  # the input (T, B, n_in)
    transitions: Transitions  # at the points, but with one state at rest for those before the steps: see `now`
    samples: Tensor  # indices of the samples (b,)
    times: Tensor  # indices of the steps (k,), increasing

    def now(self, *, after: bool = False) -> Transitions:
        """Run the layer, with its present parameters, and return the transitions at the points.

        Their ``before`` holds the states before the steps, or, with ``after=True``, those after the steps.
        """
        wanted = set(self.times.tolist())
        states = []
        steps = steps_from_rest(self.transitions.cell, self.x[:, self.samples])
        for time, (_, state_before, state_after) in enumerate(steps):
            if time in wanted:
                states.append(state_after if after else state_before)
        return self.transitions._replace(before=stacked(states))


def layer_points(network: Network, x: Tensor, samples: Tensor, times: Tensor) -> Iterator[Points]:
    """Yield the points of each layer at steps (k,) of samples (b,) of the input x (T, B, n_in).

    A caller may change a layer before it asks for the next one (:func:`layer_inputs`).
    """
    below: tuple[Cell, State] | tuple[None, None] = (None, None)
    for index, (cell, layer_input) in enumerate(zip(network.cells, layer_inputs(network, x), strict=True)):
        at_points = layer_input[times][:, samples].flatten(0, 1)
        points = Points(layer_input, Transitions(cell, at_points, cell.initial_state(1), *below), samples, times)
        yield points
        if index + 1 < len(network.cells):
            # The layer above reads the output of the step before if there is a layer delay, else that of the same step.
            below = (cell, points.now(after=not network.layer_delay).before)


def rate(cell: Cell, x: Tensor) -> float:
    """Spikes per neuron and step in a run on x (T, B, n_in) from rest."""
    with torch.no_grad():
        return cell.run(x, cell.initial_state(x.shape[1]))[0].ne(0).double().mean().item()


NOT_FINITE = 1e12  # stands for measure minus target where the measure is not finite
# Error of a value at which a bracketed search ends. Values are mostly logarithms of scales: 0.01 % of a scale.
VALUE_TOLERANCE = 1e-4


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
    """Search for the value whose measure is nearest to a target, and set it; return its measure.

    The measure increases with the value, up to noise. The search first widens from 0 until the measure has passed the
    target, then finds the root between. Of the values tried with the same measure the nearest to 0 is set.

    Args:
        set_to: sets a value. The search starts at 0.
        measure: returns the measure at the value that is set.
        target: target of the measure.
        reach: the largest distance of the value from 0.
        tolerance: distance of the measure from the target at which the search ends.
        limit: if the measure only tends to the target, as while a gate closes, the distance from the target at which
            the value stays; nearer to the target it would grow without end. 0: it goes as near as the tolerance.
        slope: a guess of the measure's derivative by the value, for the first step; None: the first step is 0.25.
    """
    from scipy.optimize import brentq  # takes 0.2 s to import

    tried: list[tuple[float, float, float, float]] = []  # (distance, |value|, value, measure): the least is the best

    @cache  # the ends of an interval are asked for again
    def miss(value: float) -> float:
        """Measure minus target at a value; 0 within the tolerance, where a search ends."""
        set_to(value)
        found = measure()
        missed = NOT_FINITE  # positive: a measure runs away where the value is too large
        if math.isfinite(found):
            missed = found - target
        tried.append((abs(missed), abs(value), value, found))
        if abs(missed) > tolerance:
            return missed
        return 0.0

    # Widen away from 0 until the sign changes: `far` is the next value, `near` the last one on this side of the target.
    at_zero = miss(0.0)
    first = 0.25
    if slope is not None and abs(at_zero) < NOT_FINITE:
        # a little beyond the root of the line; not too near or far, as the slope is a guess
        first = min(max(1.1 * abs(at_zero) / slope, 1e-3), 2.0, reach)
    near = 0.0
    far = -math.copysign(first, at_zero)  # down if the measure is above the target
    while at_zero and abs(near) < reach:
        there = miss(far)
        if there == 0 and 0 < limit < abs(at_zero):
            # On target to the tolerance, which may be far along a limit: go back to where the distance is `limit`.

            def beyond_limit(value: float) -> float:
                """Limit minus distance; 0 within a quarter of the limit, which need not be met more closely."""
                distance = limit - abs(miss(value))
                if abs(distance) > limit / 4:
                    return distance
                return 0.0

            value = float(brentq(beyond_limit, 0.0, far, xtol=VALUE_TOLERANCE))  # type: ignore[arg-type]
            set_to(value)
            return measure()
        if there * at_zero <= 0:
            brentq(miss, min(near, far), max(near, far), xtol=VALUE_TOLERANCE)  # its result is in `tried`
            break
        # Go on a little beyond the root of the line through `near` and `far`: as the measure is no line, at least 1.2
        # times and at most eight times as far. If the last step came no closer, go twice as far.
        farther = 2 * abs(far)
        closer = abs(miss(near)) - abs(there)
        if closer > 0:
            root = abs(far) + abs(there) / closer * abs(far - near)
            farther = min(max(1.1 * root, 1.2 * abs(far)), 8 * abs(far))
        near = far
        far = math.copysign(min(farther, reach), far)
    _, _, value, found = min(tried)
    set_to(value)
    return found
