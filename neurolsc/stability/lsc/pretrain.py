r"""LSC pre-training: set the radii of all transition derivatives before training.

Each step takes one batch of inputs (labels are not used), runs the network, and then, as in arXiv:2308.12075, Sec. II-D
and II-G,

1. takes one optimizer step on the mean of :math:`(\rho(M_k) - \rho_t)^2` over the measured derivatives (eq. 2 sums);
2. multiplies what a rule names by :math:`\kappa = \mathrm{clip}(\rho_t / \bar\rho, 0.85, 1.15)`, per layer and direction;
3. shuffles every learnable tensor of the cells;

until the radii have converged. The optimizer, Lookahead, averages with a slow copy of the parameters; unless 2 and 3 act
on that copy too it averages unrelated tensors, so here they do.
"""

import time as clock
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from torch import Tensor
from tqdm.auto import tqdm

from neurolsc.files import read_tree, write_tree
from neurolsc.modes import evaluated
from neurolsc.network import Network
from neurolsc.stability.cycles import NonSquare
from neurolsc.stability.findings import Finding, dead_layers, missed_targets, wide_spread
from neurolsc.stability.lsc.look import CLOSER, Look
from neurolsc.stability.lsc.loop import Loop
from neurolsc.stability.lsc.rules import Rule, default_rule
from neurolsc.stability.lsc.scale import scale_layers
from neurolsc.stability.lsc.targets import Criteria, Measured, Target, aim
from neurolsc.stability.measure import NON_SQUARE
from neurolsc.stability.profile import RadiusProfile, draw_steps
from neurolsc.validation import one_of, whole


@dataclass(frozen=True)
class PretrainResult:
    """What pre-training did; the network itself holds the best weights.

    Attributes:
        converged: whether the criteria hold on a larger sample: that of the profile.
        steps: pre-training steps taken (for ``method="scale"``: measurements made).
        history: one row per step: loss, mean radii through time and depth, deviation, firing rates, seconds.
        profile: radii of the network as it is now, on a larger sample.
        findings: dead layers and missed targets by name, and what to change.
        seconds: wall time.
    """

    converged: bool
    steps: int
    history: list[dict[str, Any]]
    profile: RadiusProfile
    findings: tuple[Finding, ...]
    seconds: float

    def __str__(self) -> str:
        reached = "converged" if self.converged else "not converged"
        lines = [f"{reached} after {self.steps} steps, {self.seconds:.1f} s", str(self.profile)]
        return "\n".join([*lines, *map(str, self.findings)])


@evaluated
def pretrain(
    network: Network,
    batches: Iterable[Any],
    *,
    target: Target = 1.0,
    rule: Rule | None = None,
    method: Literal["gradient", "scale"] = "gradient",
    seed: int = 0,
    max_steps: int = 200,
    samples: int = 4,
    steps: int | None = 8,
    gradient: bool = True,
    multiplier: tuple[float, float] | None = (0.85, 1.15),
    shuffle: bool = True,
    slow_copy: bool = True,
    polish: bool = True,
    include_input: bool = True,
    non_square: NonSquare = "submatrix",
    criteria: Criteria | None = None,
    lr: float = 3.14e-3,
    weight_decay: float = 1e-4,
    checkpoint: str | PathLike[str] | None = None,
    checkpoint_every: int = 10,
    progress: bool = True,
) -> PretrainResult:
    r"""Bring the radii of all transition derivatives of a network to a target, in place.

    Args:
        network: the network; its cells are changed, its readout is not.
        batches: inputs x (T, B, n_in), or pairs (x, labels) whose labels are ignored; gone through again and again.
        target: the radius through time and depth, in (0, inf), or ``"balanced"``: T/(T+L) and L/(T+L).
        rule: what the multipliers move; by default the one that reaches the target with firing layers,
            ``PaperRule()`` for balanced and ``TransitionRule()`` else.
        method: ``"gradient"``: the paper's loop; ``"scale"``: root finding on each layer's scales, without gradients,
            shuffling or clipping, on the first batch.
        seed: of the steps, samples, sub-matrices and shuffles that are drawn.
        max_steps: give up after this many; with 0 nothing changes.
        samples: samples of a batch that are looked at in each step, drawn at random. Whether the radii have converged is
            decided on twice as many, at four times as many time steps.
        steps: time steps at which radii are taken, one at random from each of so many stretches of the run, no more than it
            has; None: all.
        gradient: take optimizer steps.
        multiplier: the bounds that kappa is clipped to; None: no multiplier.
        shuffle: shuffle every learnable tensor after each step.
        slow_copy: let multiplier and shuffle act on Lookahead's slow copy too; False is the paper's literal order.
        polish: once the means are near their targets (three tolerances in root mean square), or have come no nearer for 15
            steps, leave out optimizer and shuffle and let kappa alone act, set by four times as many time steps: a
            shuffle moves the radius of 64 x 64 weights by some per cent, and many layers would rarely be on target at
            once. False is the paper's literal order.
        include_input: count the first layer's derivative by the input.
        non_square: what stands for the radius between unequal widths.
        criteria: when to stop; the paper's three by default.
        lr: learning rate of AdaBelief.
        weight_decay: its weight decay.
        checkpoint: file to keep the state in; if it exists, pre-training goes on from it, and ends in the same weights as
            one that was never interrupted, if the batches come in the same order. Only ``max_steps`` and ``criteria`` may
            differ from those it began with.
        checkpoint_every: steps between two writes of that file.
        progress: show a progress bar with the mean radii.

    Returns:
        The result. A target that was not reached is a result too: see ``findings``.

    Raises:
        ValueError: for a target outside (0, inf), no batches, a batch that does not fit the network, or a checkpoint of
            other settings.
        FloatingPointError: if a radius is NaN; the message names the layer.

    Cost of a step: one run over T steps, and ``samples * steps`` radii per layer and direction (:func:`radius_profile`), each
    with a gradient that costs up to six factorisations of an n_hidden x n_hidden matrix.

    Example:
        >>> import torch
        >>> from neurolsc import ALIFPlus
        >>> _ = torch.manual_seed(0)
        >>> network = Network([ALIFPlus(20, 16), ALIFPlus(16, 16)], n_out=3)
        >>> x = (torch.rand(20, 8, 20) < 0.2).float()  # 20 steps of 8 samples
        >>> result = pretrain(network, [x], target=0.5, progress=False)
        >>> result.converged, result.profile.time_mean.round(decimals=1).tolist()
        (True, [0.5, 0.5])

    Source: arXiv:2308.12075, Sec. II-D and II-G.
    """
    one_of("method", method, ("gradient", "scale"))
    one_of("non_square", non_square, NON_SQUARE)
    whole("samples", samples)
    whole("max_steps", max_steps, at_least=0)
    whole("checkpoint_every", checkpoint_every)
    rule, criteria = rule or default_rule(target), criteria or Criteria()
    stream, started = _inputs(batches), clock.perf_counter()
    x = next(stream)
    goal = aim(target, x.shape[0], len(network.cells))
    look = Look(network, goal, seed, samples, steps, include_input, non_square)
    if method == "scale":
        history = _scale(look, look.sample(x, 0, 2), rule, progress) if max_steps else []
        profile, smoothed, taken = None, 0.0, len(history)  # one draw: there is no deviation to smooth over
    else:
        loop = Loop(look, rule, criteria, gradient, multiplier, shuffle, slow_copy, polish, lr, weight_decay)
        if checkpoint is not None and Path(checkpoint).exists():
            loop.restore(read_tree(checkpoint))
            stream = _skip(stream, loop.step)
            x = next(stream) if loop.step else x
        with tqdm(total=max_steps, initial=loop.step, unit="step", desc="pretrain", disable=not progress) as bar:
            while not loop.advance(x, last=loop.step >= max_steps):
                bar.update()
                bar.set_postfix_str(loop.summary())
                if checkpoint is not None and loop.step % checkpoint_every == 0:
                    write_tree(checkpoint, loop.state())
                x = next(stream)
        profile = loop.profile if loop.converged else None
        smoothed, taken, history = loop.smoothed, loop.step, loop.history
    profile = profile or look.larger(x)
    measured = Measured.of(profile)
    converged = criteria.met(measured, goal, smoothed, include_input)
    findings = [*dead_layers(profile)]
    if not converged:
        misses = criteria.misses(measured, goal, include_input)
        findings += missed_targets(profile, misses) if misses else [wide_spread(profile, include_input)]
    return PretrainResult(converged, taken, history, profile, tuple(findings), clock.perf_counter() - started)


def _scale(look: Look, x: Tensor, rule: Rule, progress: bool) -> list[dict[str, Any]]:
    history: list[dict[str, Any]] = []
    steps = draw_steps(x.shape[0], look.count(x, CLOSER), look.generator(0))
    with tqdm(unit="measurement", desc="pretrain", disable=not progress) as bar:

        def note(layer: int, scale: float, radius: float) -> None:
            history.append({"layer": layer + 1, "scale": scale, "time": radius})
            bar.update()
            bar.set_postfix_str(f"layer {layer + 1} scale {scale:.3g} time {radius:.3f}")

        scale_layers(
            look.network,
            x,
            steps,
            look.goal,
            rule,
            non_square=look.non_square,
            include_input=look.include_input,
            seed=look.seed,
            on_measure=note,
        )
    return history


def _inputs(batches: Iterable[Any]) -> Iterator[Tensor]:
    """The inputs of a set of batches, again and again."""
    while True:
        count = 0
        for batch in batches:
            count += 1
            yield batch[0] if isinstance(batch, tuple | list) else batch
        if not count:
            raise ValueError(
                "pretrain needs at least one batch of inputs, got none (an iterator can be used only once)."
            )


def _skip(stream: Iterator[Tensor], count: int) -> Iterator[Tensor]:
    # the first batch has been taken already
    for _ in range(count - 1):
        next(stream)
    return stream
