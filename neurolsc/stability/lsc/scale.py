"""Set the radii directly: find each layer's two scales by root finding, without gradients.

Bottom up, one layer after the other. Through depth the derivative is linear in w_in, so its scale
follows from one measurement; the radius through time depends on the states, which the scale itself
changes, so its scale is found as a root on a logarithmic axis. Layers above do not act on those
below, so one sweep is enough.
"""

import math
import time as clock
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from neurolsc.io import locked, read_tree, write_tree
from neurolsc.network import Network, as_network, eval_mode
from neurolsc.progress import progress_bar
from neurolsc.stability.lsc.criteria import Criteria
from neurolsc.stability.lsc.inputs import InputStream, pick
from neurolsc.stability.lsc.kept import checked, finished, restored
from neurolsc.stability.lsc.look import CLOSER, Look
from neurolsc.stability.lsc.options import Options
from neurolsc.stability.lsc.result import PretrainResult, concluded
from neurolsc.stability.lsc.rules import Rule, default_rule
from neurolsc.stability.lsc.targets import Target, aim
from neurolsc.stability.one_layer import Bracket, bracket, root
from neurolsc.stability.profile import depth_radius, time_radius
from neurolsc.stability.transitions import NonSquare, draw_steps, follow
from neurolsc.training.fingerprint import data_fingerprint

_REACH = math.log(1e4)
_TURNS = 4  # at most, of the two scales of a layer: each moves the radius that the other sets
_NEAR = 0.4  # tolerances from a target that is only a limit, at which to stay
_WIDTH = 1e-4  # of the bracket in the end, on the logarithmic axis
_CLOSE = 0.05  # tolerances from the target at which a scale will do


def scale_to_radius(
    network: Network,
    x: Tensor,
    *,
    target: Target = 0.5,
    rule: Rule | None = None,
    seed: int = 0,
    samples: int = 4,
    steps: int | None = 8,
    include_input: bool = True,
    non_square: NonSquare = "submatrix",
    criteria: Criteria | None = None,
    checkpoint: str | PathLike[str] | None = None,
    progress: bool = True,
) -> PretrainResult:
    """Bring the radii of a network to a target, in place, by two scales per layer and nothing else.

    Layers are scaled from the bottom up, through depth and time in turns, at most four, until both
    are on target: each scale moves the other radius. Where the target is only a limit, as 1 is for
    a gate that closes, the scale stays at the near side of the tolerance. No gradient, no shuffle,
    no clipping: each layer's weights stay multiples of what they were, and so do its decays under
    the default rule. A radius whose root is not bracketed by scales of 1e-4 to 1e4 is left at the
    scale that came closest.

    Args:
        network: the network; its cells are changed, its readout is not.
        x: one batch of inputs (T, B, n_in).
        target: the radius through time and depth, as in :func:`neurolsc.pretrain`.
        rule: what the scales multiply; by default as in :func:`neurolsc.pretrain`.
        seed: of the steps, samples and sub-matrices that are drawn.
        samples: as in :func:`neurolsc.pretrain`, whose closer look is used here: scales are found
            on twice as many samples of x, and confirmed on others of it, if there are.
        steps: scales are found at four times as many time steps; None: all.
        include_input: scale the first layer's w_in too.
        non_square: what stands for the radius between unequal widths.
        criteria: what the radii must meet; the paper's by default, of which the third, over several
            steps, has nothing to ask here.
        checkpoint: file to keep weights and result in; if it exists, they are taken from it.
        progress: show a progress bar.

    Returns:
        The result. Its steps are measurements made, its history has a row for each: layer, scale,
        and the mean radius through time at that scale.

    Raises:
        TypeError: if network is not one, or x not a tensor.
        ValueError: for a target outside (0, inf), an x that does not fit the network, or a
            checkpoint of other settings.
        FloatingPointError: if a radius is NaN; the message names the layer.
        BlockingIOError: if somebody else is at work with the checkpoint; the message names it.
        OSError: if the checkpoint cannot be read or written.

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
    options = Options(
        target=target,
        rule=default_rule(target) if rule is None else rule,
        seed=seed,
        samples=samples,
        steps=steps,
        include_input=include_input,
        non_square=non_square,
        criteria=criteria or Criteria(),
    )
    with eval_mode(as_network(network)), locked(checkpoint):
        inputs = InputStream([x])
        look = Look(network, aim(options.target, inputs.steps, len(network.cells)), options)
        if checkpoint is None:
            return _scaled(look, x, progress)
        settings = look.settings() | data_fingerprint("inputs", [x])
        if Path(checkpoint).exists():
            state = checked(read_tree(checkpoint), {"settings", "finished"}, settings, checkpoint)
            if (result := restored(network, state["finished"], options)) is not None:
                return result
        result = _scaled(look, x, progress)
        write_tree(checkpoint, {"settings": settings, "finished": finished(network, result)})
        return result


def _scaled(look: Look, x: Tensor, progress: bool) -> PretrainResult:
    started = clock.perf_counter()
    order, count = torch.randperm(x.shape[1], generator=look.generator(0)), 2 * look.options.samples
    chosen, others = pick(x, order[:count]), pick(x, order[count:])
    with progress_bar(None, unit="measurement", desc="scale", shown=progress) as bar:
        history = _sweep(look, chosen, bar)
    profile = look.fresh(InputStream([others if others.shape[1] else chosen]), chosen, 0)
    return concluded(
        look,
        profile,
        total=len(x),
        smoothed=0.0,  # of one draw there is no deviation to smooth over
        steps=len(history),
        history=history,
        seconds=clock.perf_counter() - started,
    )


def _sweep(look: Look, x: Tensor, bar: tqdm) -> list[dict[str, Any]]:
    """Scale every layer, from the bottom up; what was measured on the way."""
    history: list[dict[str, Any]] = []
    steps = draw_steps(x.shape[0], look.count(x, CLOSER), look.generator(0))

    def note(layer: int, scale: float, radius: float) -> None:
        history.append({"layer": layer + 1, "scale": scale, "time": radius})
        bar.set_postfix_str(f"layer {layer + 1} scale {scale:.3g} time {radius:.3f}", refresh=False)
        bar.update()

    for layer in range(len(look.network.cells)):
        through_depth = look.goal.depth if layer or look.options.include_input else None
        for turn in range(_TURNS):
            if through_depth is not None and _scale_depth(look, layer, through_depth, x, steps) and turn:
                break  # and that through time is on target as well
            if look.goal.time is not None:
                _scale_time(look, layer, look.goal.time, x, steps, note, again=turn > 0)
            if look.goal.time is None or through_depth is None:
                break
    return history


def _scale_depth(look: Look, layer: int, target: float, x: Tensor, steps: Tensor) -> bool:
    """Scale a layer by its radius through depth; tell if that is on target, or there is none."""
    options, t = look.options, follow(look.network, x, steps)[0][layer]
    with torch.no_grad():
        mean = depth_radius(t, layer, options.non_square, look.generator(0)).radius.mean().item()
    if abs(mean - target) <= options.criteria.allowed(look.goal, target) / 2:
        return True
    if mean > 0:
        options.rule.apply(look.network.cells[layer], time=1.0, depth=target / mean)
    return mean == 0


def _scale_time(
    look: Look,
    layer: int,
    target: float,
    x: Tensor,
    steps: Tensor,
    note: Callable[[int, float, float], None],
    *,
    again: bool,
) -> None:
    """Scale a layer until its radius through time is the target, or as near as it gets.

    Where it is scaled again, it may stay near the target.
    """
    cell = look.network.cells[layer]
    start = {name: value.clone() for name, value in cell.state_dict().items()}
    tried: list[tuple[float, float]] = []

    def miss(log_scale: float) -> float:
        cell.load_state_dict(start)
        look.options.rule.apply(cell, time=math.exp(log_scale), depth=1.0)
        with torch.no_grad():
            radius = time_radius(follow(look.network, x, steps)[0][layer], layer).radius.mean().item()
        tried.append((abs(radius - target), log_scale))
        note(layer, math.exp(log_scale), radius)
        return radius - target

    allowed = look.options.criteria.allowed(look.goal, target)
    near, first = _NEAR * allowed, miss(0.0)
    here = abs(first)
    if again and here <= near:
        return
    between = bracket(lambda scale: miss(scale) if scale else first, _REACH)
    missed, at = min(tried)
    if missed <= _CLOSE * allowed < near < here:  # at once: it is flat there, as where a gate closes; no nearer
        (low, a), (high, b) = sorted([(0.0, near - here), (at, near - missed)])
        at = root(lambda scale: near - abs(miss(scale)), Bracket(low, high, a, b), width=_WIDTH, close=near / 4)
    elif between.low < between.high:
        root(miss, between, width=_WIDTH, close=_CLOSE * allowed)
        at = min(tried)[1]
    miss(at)
