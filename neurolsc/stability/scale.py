"""Radii and firing rates set by scales alone, found as roots, layer by layer from the bottom up.

`scale_to_radius` gives each layer two scales. Through depth the derivative is linear in w_in, so its scale follows from
one measurement. The radius through time depends on the states, which the scale itself changes, so its scale is found as
a root on a logarithmic axis. Layers above do not act on those below, so one sweep is enough. `match_firing_rates`
scales thresholds, the control for pre-training.
"""

import math
import time as clock
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from neurolsc.display import progress_bar
from neurolsc.network import Network, as_network, eval_mode
from neurolsc.neurons.cell import Cell, Thresholds
from neurolsc.stability.meter import CLOSER, InputStream, Meter, pick
from neurolsc.stability.one_layer import bracket, next_reads, reads, scale_to_rate
from neurolsc.stability.pretrain import PretrainResult, conclude
from neurolsc.stability.profile import depth_radius, time_radius
from neurolsc.stability.rules import PretrainOptions, Target, as_rule, radius_target
from neurolsc.stability.transitions import Transitions, draw_steps, follow
from neurolsc.validation import tensor

# ---------------------------------------------------------------- radii

OPTIONS = ("rule", "direction", "samples", "steps", "include_input", "non_square", "criteria")


def scale_to_radius(
    network: Network, x: Tensor, *, target: Target = 0.5, seed: int = 0, progress: bool = True, **options: Any
) -> PretrainResult:
    """Bring the radii of a network to a target, in place, by two scales per layer and nothing else.

    Layers are scaled from the bottom up, through depth and time in turns, at most four, until both are on target: each
    scale moves the other radius. Where the target is only a limit, as 1 is for a gate that closes, the scale stays at
    the near side of the tolerance. A radius that no scale from 1e-4 to 1e4 brings to the target stays at the nearest.

    Args:
        network: the network; its cells are changed, its readout is not.
        x: one batch of inputs (T, B, n_in). Scales are found on twice ``samples`` of it, at four times ``steps`` time
            steps, and confirmed on other samples of it, if there are.
        target: the radius through time and depth, as in :func:`neurolsc.pretrain`.
        seed: of the steps, samples and sub-matrices that are drawn.
        progress: show a progress bar.
        options: ``rule``, ``direction``, ``samples``, ``steps``, ``include_input``, ``non_square`` and ``criteria`` of
            :class:`~neurolsc.stability.PretrainOptions`; the third criterion, over several steps, always holds.

    Returns:
        The result. Its steps are measurements made, its history has a row for each: layer, scale, and the mean radius
        through time at that scale.

    Raises:
        FloatingPointError: if a radius is NaN; the message names the layer.

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
    chosen, started = PretrainOptions(target=target, **options), clock.perf_counter()
    with eval_mode(as_network(network)):
        steps = InputStream([x]).steps
        meter = Meter(network, radius_target(target, steps, len(network.cells), chosen.direction), chosen, seed)
        order, count = torch.randperm(x.shape[1], generator=meter.generator(0)), 2 * chosen.samples
        some, others = pick(x, order[:count]), pick(x, order[count:])
        history = _scale_layers(meter, some, progress)
        profile = meter.fresh(InputStream([others if others.shape[1] else some]), 0)
        smoothed = 0.0  # of one draw there is no deviation to smooth over
        return conclude(meter, profile, steps, smoothed, len(history), history, clock.perf_counter() - started)


def _scale_layers(meter: Meter, x: Tensor, progress: bool) -> list[dict[str, Any]]:
    """Scale all layers, from the bottom up; a row for each measured radius through time."""
    network, options, goal = meter.network, meter.options, meter.goal
    rule, history = as_rule(options.rule, options.target), list[dict[str, Any]]()
    at = draw_steps(x.shape[0], meter.count(x, CLOSER), meter.generator(0))

    def points(layer: int) -> Transitions:
        return follow(network, x, at)[0][layer]

    with progress_bar(None, unit="measurement", desc="scale", shown=progress) as bar, torch.no_grad():
        for layer, cell in enumerate(network.cells):
            depth = goal.depth if layer or options.include_input else None
            for turn in range(4):
                if depth is not None:
                    radius = depth_radius(points(layer), layer, options.non_square, meter.generator(0)).radius
                    mean = radius.mean().item()
                    met = abs(mean - depth) <= options.criteria.allowed(goal, depth) / 2
                    if not met and mean > 0:
                        rule.apply(cell, time=1.0, depth=depth / mean)
                    if (met or mean == 0) and turn:
                        break  # the last turn has set the radius through time
                if goal.time is None:
                    break
                start = {name: value.clone() for name, value in cell.state_dict().items()}

                def radius_at(log_scale: float, layer: int = layer, cell: Cell = cell, start: Any = start) -> float:
                    cell.load_state_dict(start)
                    rule.apply(cell, time=math.exp(log_scale), depth=1.0)
                    radius = time_radius(points(layer), layer).radius.mean().item()
                    history.append({"layer": layer + 1, "scale": math.exp(log_scale), "time": radius})
                    text = f"layer {layer + 1} scale {math.exp(log_scale):.3g} time {radius:.3f}"
                    bar.set_postfix_str(text, refresh=False)
                    bar.update()
                    return radius

                _scale_time(radius_at, goal.time, options.criteria.allowed(goal, goal.time), again=turn > 0)
                if depth is None:
                    break
    return history


def _scale_time(radius_at: Callable[[float], float], target: float, allowed: float, *, again: bool) -> None:
    """Leave a layer at the scale whose radius through time is the target, or the nearest.

    Where the layer is scaled again, it may stay near the target: within 0.4 of what is allowed.
    """
    from scipy.optimize import brentq  # takes 0.2 s to import

    near, close = 0.4 * allowed, 0.05 * allowed
    tried: list[tuple[float, float]] = []

    @cache
    def miss(log_scale: float) -> float:
        missed = radius_at(log_scale) - target
        tried.append((abs(missed), log_scale))
        return missed if abs(missed) > close else 0.0

    first = abs(miss(0.0))
    if again and first <= near:
        return
    low, high = bracket(miss, math.log(1e4))
    missed, at = min(tried)
    if missed <= close < near < first:  # at once: it is flat there, as where a gate closes; no nearer

        def nearly(log_scale: float) -> float:
            apart = near - abs(miss(log_scale))
            return apart if abs(apart) > near / 4 else 0.0

        at = float(brentq(nearly, 0.0, at, xtol=1e-4))  # type: ignore[arg-type]
    elif low < high:
        brentq(miss, low, high, xtol=1e-4)
        at = min(tried)[1]
    radius_at(at)


# ---------------------------------------------------------------- firing rates

# Largest scale of thresholds, and one over the least: beyond, the threshold means nothing, or everything.
REACH = 1e3


def match_firing_rates(network: Network, x: Tensor, rates: Sequence[float], *, tolerance: float = 0.1) -> list[float]:
    r"""Scale the thresholds of each layer, in place, until it fires at a wanted rate; bottom up.

    Of an ALIF :math:`b_\vartheta` and :math:`\beta` are multiplied, so that the whole threshold :math:`\vartheta[t]`
    scales; its time constants and all weights stay. The control for pre-training. Cost: ten to twenty runs of each
    layer alone.

    Args:
        network: layers whose cells have thresholds to scale (:meth:`neurolsc.Cell.thresholds`).
        x: input (T, B, n_in).
        rates: wanted spikes per neuron and step, one per layer; that of an integrator, such as norse's LI, is not used.
        tolerance: how far a rate may end from the wanted one, as a share of that. A rate moves in jumps where a network
            is small or its spikes feed on each other. ``math.inf`` takes the nearest rate, whatever it is.

    Returns:
        The rates reached; NaN of an integrator.

    Raises:
        ValueError: if the number of rates is not that of the layers, a rate is outside [0, 1], or no scale in that
            range brings a layer within the tolerance; the network is then as before.
        TypeError: if a cell has no thresholds, all are integrators, or network is not one.
    """
    cells, x = as_network(network).cells, tensor("x", x)
    if len(rates) != len(cells) or not all(0 <= rates[i] <= 1 for i in network.spiking):
        raise ValueError(f"rates must be {len(cells)} numbers in [0, 1], got {list(rates)}.")
    thresholds: dict[int, Thresholds] = {}
    for layer in network.spiking:
        if (own := cells[layer].thresholds()) is None:
            raise TypeError(no_thresholds(f"layer {layer + 1}, a {type(cells[layer]).__name__},"))
        thresholds[layer] = own
    if not thresholds:
        raise TypeError("no layer spikes: all are integrators, whose thresholds nothing can scale.")
    reached: list[float] = []
    with eval_mode(network):
        read = reads(network, x, 0)
        for layer, (cell, wanted) in enumerate(zip(cells, rates, strict=True)):
            found = math.nan
            if layer in thresholds:
                found = scale_to_rate(cell, thresholds[layer], read, wanted, reach=REACH)
            if abs(found - wanted) > tolerance * wanted:
                for changed in thresholds.values():
                    changed.scale(1.0)
                raise ValueError(
                    f"layer {layer + 1}: no scale of its thresholds from {1 / REACH:g} to {REACH:g} gives {wanted:g} "
                    f"spikes per neuron and step; the nearest that was found is {found:.4g}. Give a larger tolerance "
                    f"than {tolerance:g} to take that."
                )
            reached.append(found)
            read = next_reads(network, read, layer)
    return reached


def no_thresholds(layer: str) -> str:
    """The message for a layer without thresholds."""
    return (
        f"{layer} does not say how its thresholds scale: use a start of weights alone, Glorot(), Orthogonal() or LSC(), "
        "or write its thresholds()."
    )
