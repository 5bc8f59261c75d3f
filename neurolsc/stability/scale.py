"""Radii and firing rates set by scales alone, found as roots, layer by layer from the bottom up.

`scale_to_radius` gives each layer two scales. Through depth the derivative is linear in w_in, so its scale follows from
one measurement. The radius through time depends on the states, which the scale itself changes, so its scale is found as
a root on a logarithmic axis. Layers above do not act on those below, so one sweep is enough. `match_firing_rates`
scales thresholds, the control for pre-training. `layer_inputs`, `steps` and `settle` serve initialisers as well.
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
from neurolsc.stability.pretrain import CLOSER, InputStream, Meter, PretrainResult, put_back
from neurolsc.stability.profile import depth_radius, time_radius
from neurolsc.stability.rules import PretrainOptions, Target, as_rule, radius_target
from neurolsc.stability.transitions import Transitions, draw_steps, stacked
from neurolsc.surroundings import in_full_precision
from neurolsc.validation import shown

# ---- radii

OPTIONS = ("rule", "direction", "samples", "steps", "include_input", "non_square", "criteria")


@on_rank_0
@in_full_precision
def scale_to_radius(
    net: nn.Module, x: Any, *, target: Target = 0.5, seed: int = 0, progress: bool = True, **options: Any
) -> PretrainResult:
    """Bring the radii of a network to a target, in place, by two scales per layer and nothing else.

    Layers are scaled from the bottom up, through depth and time in turns, at most four, until both are on target: each
    scale moves the other radius. Where the target is only a limit, as 1 is for a gate that closes, the scale stays at
    the near side of the tolerance. A radius that no scale from 1e-4 to 1e4 brings to the target stays at the nearest.

    Args:
        net: a network, or a module of snnTorch, norse, spikingjelly or PyTorch; its cells are changed, its readout is
            not.
        x: one batch of inputs (T, B, n_in) of a network, or what the module takes, as
            :func:`neurolsc.interop.prepared.prepare` reads it. Scales are found on twice ``samples`` of it, at four
            times ``steps`` time steps, and confirmed on other samples of it, if there are.
        target: the radius through time and depth, as in :func:`neurolsc.pretrain`.
        seed: of the steps, samples and sub-matrices that are drawn.
        progress: show a progress bar.
        options: ``rule``, ``direction``, ``samples``, ``steps``, ``include_input``, ``non_square`` and ``criteria`` of
            :class:`~neurolsc.stability.PretrainOptions`; the third criterion, over several steps, always holds.

    Returns:
        The result. Its steps are measurements made, its history has a row for each: layer, scale, and the mean radius
        through time at that scale.

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
    chosen, started, history = PretrainOptions(target=target, **options), clock.perf_counter(), list[dict[str, Any]]()
    rule, criteria, scale = as_rule(chosen.rule, target), chosen.of_loop().criteria, 1.0
    prepared = prepare(net, x)
    network, x = prepared.network, prepared.without_padding()
    before = values_outside(net)
    with (
        put_back(network),
        eval_mode(network),
        torch.no_grad(),
        progress_bar(None, unit="measurement", desc="scale", shown=progress) as bar,
    ):
        total, cells = InputStream([x]).steps, network.cells
        goal = radius_target(target, total, len(cells), chosen.direction)
        meter = Meter(network, goal, chosen, seed)
        order, count = torch.randperm(x.shape[1], generator=meter.generator(0)), 2 * chosen.samples
        some, others = x[:, order[:count]], x[:, order[count:]]
        at = draw_steps(total, meter.count(x, CLOSER), meter.generator(0))

        every = torch.arange(some.shape[1], device=some.device)
        for layer, points in enumerate(layer_points(network, some, every, at)):
            cell = cells[layer]
            depth = goal.depth if layer or chosen.include_input else None
            for turn in range(4):
                if depth is not None:
                    radius = depth_radius(points.now(), layer, chosen.non_square, meter.generator(0)).radius
                    mean = radius.mean().item()
                    met = abs(mean - depth) <= criteria.allowed(goal, depth) / 2
                    if not met and mean > 0:
                        rule.apply(cell, time=1.0, depth=depth / mean)
                    if (met or mean == 0) and turn:
                        break  # the last turn has set the radius through time
                if goal.time is None:
                    break
                start = copy.deepcopy(cell.state_dict())

                def set_to(log: float, cell: Cell = cell, start: dict[str, Tensor] = start) -> None:
                    nonlocal scale
                    cell.load_state_dict(start)
                    scale = math.exp(log)
                    rule.apply(cell, time=scale, depth=1.0)

                def measure(layer: int = layer, points: Points = points) -> float:
                    radius = time_radius(points.now(), layer).radius.mean().item()
                    history.append({"layer": layer + 1, "scale": scale, "time": radius})
                    bar.set_postfix_str("layer {layer} scale {scale:.3g} time {time:.3f}".format(**history[-1]))
                    bar.update()
                    return radius

                close, near = (part * criteria.allowed(goal, goal.time) for part in (0.05, 0.4))
                if turn:  # a layer that is scaled again may stay near the target
                    set_to(0.0)
                    if abs(measure() - goal.time) <= near:
                        continue
                settle(set_to, measure, goal.time, reach=math.log(1e4), close=close, limit=near)
                if depth is None:
                    break
        others = others if others.shape[1] else some
        profile, seconds = meter.fresh(InputStream([others]), 0), clock.perf_counter() - started
        met = criteria.met(meter.counted(profile, total), smoothed=0.0)  # of one draw there is nothing to smooth over
        result = meter.conclude(profile, total, met, len(history), history, seconds)
    return result.of(net, prepared.layout, before)


# ---- firing rates

# Largest scale of thresholds, and one over the least: beyond, the threshold means nothing, or everything.
REACH = 1e3


@on_rank_0
@in_full_precision
def match_firing_rates(net: nn.Module, x: Any, rates: Sequence[float], *, tolerance: float = 0.1) -> list[float]:
    r"""Scale the thresholds of each layer, in place, until it fires at a wanted rate; bottom up.

    Of an ALIF :math:`b_\vartheta` and :math:`\beta` are multiplied, so that the whole threshold :math:`\vartheta[t]`
    scales; its time constants and all weights stay. The control for pre-training. Cost: about six runs of each layer
    alone; of a wide one on a few samples, and two on all.

    Args:
        net: a network, or a module of snnTorch, norse, spikingjelly or PyTorch, whose cells have thresholds to scale
            (:meth:`neurolsc.Cell.thresholds`).
        x: input (T, B, n_in) of a network, or what the module takes, as :func:`neurolsc.interop.prepared.prepare`
            reads it.
        rates: wanted spikes per neuron and step, one per layer; that of an integrator, such as norse's LI, is not used.
        tolerance: how far a rate may end from the wanted one, as a share of that. A rate moves in jumps where a network
            is small or its spikes feed on each other. ``math.inf`` takes the nearest rate, whatever it is.

    Returns:
        The rates reached; NaN of an integrator.

    Raises:
        ValueError: if the number of rates is not that of the layers, a rate is outside [0, 1], or no scale in that
            range brings a layer within the tolerance; the network is then as before.
        TypeError: if a cell has no thresholds, all are integrators, or net or x is of another kind.
    """
    prepared = prepare(net, x)
    network, x = prepared.network, prepared.without_padding()
    cells, reached = network.cells, list[float]()
    if not isinstance(rates, Sequence):
        raise TypeError(f"rates must be one number for each layer, here {[0.1] * len(cells)}, got {shown(rates)}.")
    if len(rates) != len(cells) or not all(0 <= rates[i] <= 1 for i in network.spiking):
        raise ValueError(f"rates must be {len(cells)} numbers in [0, 1], got {list(rates)}.")
    thresholds: dict[int, Thresholds] = {}
    for layer in network.spiking:
        if (own := cells[layer].thresholds()) is None:
            raise TypeError(no_thresholds(f"layer {layer + 1}, a {type(cells[layer]).__name__},"))
        thresholds[layer] = own
    if not thresholds:
        raise TypeError("no layer spikes: all are integrators, whose thresholds nothing can scale.")
    with eval_mode(network):
        for layer, (read, wanted) in enumerate(zip(layer_inputs(network, x), rates, strict=True)):
            found = math.nan
            if layer in thresholds:
                found = scale_to_rate(cells[layer], thresholds[layer], read, wanted, reach=REACH)
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


# A layer whose step has so many numbers takes as long as they are many: its scale is sought on some samples first.
MANY, SOME = 2**15, 16
# the logarithm of a rate falls about so much faster than that of the thresholds rises; a first guess
STEEPNESS = 1.5
CLOSE = 5e-3  # relative error of a rate that will do: spikes that feed on each other move it by as much
FAR = -2.0  # logarithm of a rate over the wanted one below which it counts a tenth


def scale_to_rate(cell: Cell, thresholds: Thresholds, read: Tensor, wanted: float, *, reach: float) -> float:
    """Scale thresholds, by `reach` at most, until a cell's rate is nearest to a wanted one; return its rate.

    The rate is found to half a hundredth, if it does not move in jumps, as a root by the logarithms of both, in which
    a layer is nearly a line. A layer that fires takes four to six runs, a silent one up to ten.
    """
    if wanted == 0:  # which has no logarithm
        return settle(
            lambda log: thresholds.scale(math.exp(-log)),
            lambda: rate(cell, read),
            0.0,
            reach=math.log(reach),
            close=0.0,
        )
    most = math.log(reach)
    here = 0.0

    def search(part: Tensor, close: float) -> float:
        """Set the scale on some samples, from where it is; the rate there."""
        nonlocal here
        start = here
        rates: dict[float, float] = {}  # by their logarithms
        least = 0.5 / (part.shape[0] * part.shape[1] * cell.n_hidden)  # stands for a rate of 0

        def set_to(log: float) -> None:
            nonlocal here
            here = min(max(start + log, -most), most)
            thresholds.scale(math.exp(-here))

        def log_rate() -> float:
            fires = rate(cell, part)
            log = math.log(max(fires, least) / wanted)
            if log < FAR:  # a silent layer says little about how far it is: roots would be sought by halving
                log = FAR + 0.1 * (log - FAR)
            rates[log] = fires
            return log

        return rates[settle(set_to, log_rate, 0.0, reach=2 * most, close=close, slope=STEEPNESS)]

    samples = read.shape[1]
    if samples >= 2 * SOME and samples * max(cell.n_in, cell.n_hidden) >= MANY:
        spaced = torch.arange(SOME, device=read.device) * samples // SOME
        search(read[:, spaced], 0.01)
    return search(read, CLOSE)


# ---- a layer by itself


def layer_inputs(network: Network, x: Tensor) -> Iterator[Tensor]:
    """Yield the input (T, B, n_in) of each layer, from a run with the layers below as already modified."""
    with torch.no_grad():
        below = network.embedded(x.to(network.dtype_and_device["device"]))
        start = network.initial_states(below.shape[1])
    for layer, cell in enumerate(network.cells):
        if network.layer_delay:
            with torch.no_grad():
                first = network.cells[layer - 1].output(start.layers[layer - 1]) if layer else start.x
                below = torch.cat([first.unsqueeze(0), below[:-1]])  # type: ignore[union-attr]
        yield below
        with torch.no_grad():
            below = cell.run(below, cell.initial_state(below.shape[1]))[0]


def steps(cell: Cell, read: Tensor) -> Iterator[tuple[Tensor, State, State]]:
    """The run of a cell from rest: of every step its input, its state before and after."""
    with torch.no_grad():
        state = cell.initial_state(read.shape[1])
    for x in read:
        with torch.no_grad():
            after = cell.update(x, cell.output(state), state)
        yield x, state, after
        state = after


class Points(NamedTuple):
    """A layer's input, and the points at which its derivatives are taken."""

    read: Tensor  # the input (T, B, n_in)
    transitions: Transitions  # states of the layer left out
    some: Tensor  # the samples
    times: Tensor  # the steps

    def now(self, *, after: bool = False) -> Transitions:
        """The points, with the states of the layer as it is now before (or after) the steps."""
        wanted = set(self.times.tolist())
        states = []
        for i, (_, before, then) in enumerate(steps(self.transitions.cell, self.read[:, self.some])):
            if i in wanted:
                states.append(then if after else before)
        return self.transitions._replace(before=stacked(states))


def layer_points(network: Network, x: Tensor, some: Tensor, times: Tensor) -> Iterator[Points]:
    """The points of each layer on some samples at some steps, run with the layers below as already modified.

    A layer that is changed and measured again runs alone.
    """
    below: tuple[Cell, State] | tuple[None, None] = (None, None)
    for index, (cell, read) in enumerate(zip(network.cells, layer_inputs(network, x), strict=True)):
        at = Transitions(cell, read[times][:, some].flatten(0, 1), cell.initial_state(1), *below)
        points = Points(read, at, some, times)
        yield points
        if index + 1 < len(network.cells):
            below = (cell, points.now(after=not network.layer_delay).before)


def rate(cell: Cell, read: Tensor) -> float:
    """Spikes per neuron and step in a run from rest."""
    with torch.no_grad():
        return cell.run(read, cell.initial_state(read.shape[1]))[0].ne(0).double().mean().item()


def settle(
    set_to: Callable[[float], object],
    measure: Callable[[], float],
    target: float,
    *,
    reach: float,
    close: float,
    limit: float = 0.0,
    slope: float | None = None,
) -> float:
    """Set a value so that its measure is nearest to a target, of all values tried; return the measure.

    Of values that measure the same it is the one nearest to 0. The measure increases with the value, up to noise; the
    value goes no farther than `reach` from 0, where it starts. A difference of `close` from the target will do. Where
    the measure tends to the target, as a gate closes, the value stays where it is so far from it as `limit`. A `slope`
    is about how much the measure grows with the value: the first step goes to where the target then is.
    """
    from scipy.optimize import brentq  # takes 0.2 s to import

    tried: list[tuple[float, float, float, float]] = []

    @cache
    def miss(value: float) -> float:
        set_to(value)
        found = measure()
        missed = found - target if math.isfinite(found) else 1e12  # stands for what is not finite
        tried.append((abs(missed), abs(value), value, found))
        return missed if abs(missed) > close else 0.0

    # widen away from 0 until the sign changes
    here = miss(0.0)
    near = 0.0
    first = 0.25
    if slope is not None and abs(here) < 1e12:
        first = min(max(1.1 * abs(here) / slope, 1e-3), 2.0, reach)
    far = -math.copysign(first, here)
    while here and abs(near) < reach:
        there = miss(far)
        if there == 0 and 0 < limit < abs(here):

            def nearly(value: float) -> float:
                apart = limit - abs(miss(value))
                return apart if abs(apart) > limit / 4 else 0.0

            value = float(brentq(nearly, 0.0, far, xtol=1e-4))  # type: ignore[arg-type]
            set_to(value)
            return measure()
        if there * here <= 0:
            brentq(miss, min(near, far), max(near, far), xtol=1e-4)
            break
        near, far = far, _farther(near, far, miss(near), there, reach)
    _, _, value, found = min(tried)
    set_to(value)
    return found


def _farther(near: float, far: float, miss_near: float, miss_far: float, reach: float) -> float:
    """Where to look beyond `far`: a little behind the root of the line through both, two to eight times as far."""
    size = 2 * abs(far)
    closer = abs(miss_near) - abs(miss_far)
    if closer > 0:
        root = abs(far) + abs(miss_far) / closer * abs(far - near)
        size = min(max(1.1 * root, 1.2 * abs(far)), 8 * abs(far))
    return math.copysign(min(size, reach), far)
