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
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from tqdm.auto import tqdm

from neurolsc.checkpoint import read_tree, write_tree
from neurolsc.network import Network
from neurolsc.optimizer import adabelief_lookahead
from neurolsc.stability.findings import Finding, dead_layers, missed_targets
from neurolsc.stability.profile import (
    NON_SQUARE,
    NonSquare,
    RadiusProfile,
    depth_radius,
    draw_steps,
    radius_profile,
    time_radius,
)
from neurolsc.stability.rules import Rule, TransitionRule
from neurolsc.stability.scale import scale_layers
from neurolsc.stability.targets import Aim, Criteria, Measured, Target, aim
from neurolsc.stability.transition import follow
from neurolsc.validation import one_of, whole

_LARGER = 4  # samples of the confirming look, as a multiple of a step's
_SMOOTHING = 0.1  # weight of the newest deviation in its exponential mean, "10 steps" in the paper


@dataclass(frozen=True)
class PretrainResult:
    """What pre-training did; the network itself holds the best weights.

    Attributes:
        converged: whether the criteria held, on the step's own radii and again on a larger fresh sample.
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
        rule: what the multipliers move; ``TransitionRule()`` by default, ``PaperRule()`` for the paper's.
        method: ``"gradient"``: the paper's loop; ``"scale"``: root finding on each layer's scales, without gradients,
            shuffling or clipping, on the first batch.
        seed: of the steps, samples, sub-matrices and shuffles that are drawn.
        max_steps: give up after this many; with 0 nothing changes.
        samples: samples of a batch that are looked at in each step, drawn at random. When their radii are on target and
            those of four times as many are not, steps go on with twice as many.
        steps: time steps at which radii are taken, one at random from each of so many stretches of the run; None: all.
        gradient: take optimizer steps.
        multiplier: the bounds that kappa is clipped to; None: no multiplier.
        shuffle: shuffle every learnable tensor after each step.
        slow_copy: let multiplier and shuffle act on Lookahead's slow copy too; False is the paper's literal order.
        include_input: count the first layer's derivative by the input.
        non_square: what stands for the radius between unequal widths.
        criteria: when to stop; the paper's three by default.
        lr: learning rate of AdaBelief.
        weight_decay: its weight decay.
        checkpoint: file to keep the state in; if it exists, pre-training goes on from it, and ends in the same weights as
            one that was never interrupted. Only ``max_steps`` and ``criteria`` may differ from those it began with.
        checkpoint_every: steps between two writes of that file.
        progress: show a progress bar with the mean radii.

    Returns:
        The result. A target that was not reached is a result too: see ``findings``.

    Raises:
        ValueError: for a target outside (0, inf), no batches, a batch that does not fit the network, or a checkpoint of
            other settings.
        FloatingPointError: if a radius is NaN; the message names the layer.

    Cost of a step: one run over T steps, and ``samples * steps`` eigenvalue problems per layer and direction, O(S^3) each.

    Example:
        >>> result = pretrain(network, [x], target=0.5)                              # doctest: +SKIP
        >>> print(result)                                                            # doctest: +SKIP

    Source: arXiv:2308.12075, Sec. II-D and II-G.
    """
    one_of("method", method, ("gradient", "scale"))
    one_of("non_square", non_square, NON_SQUARE)
    whole("samples", samples)
    whole("max_steps", max_steps, at_least=0)
    whole("checkpoint_every", checkpoint_every)
    rule, criteria = rule or TransitionRule(), criteria or Criteria()
    stream, started = _inputs(batches), clock.perf_counter()
    x = next(stream)
    goal = aim(target, x.shape[0], len(network.cells))
    look = _Look(network, goal, seed, samples, steps, include_input, non_square)
    if method == "scale":
        history = _scale(look, look.sample(x, 0, _LARGER), rule, progress) if max_steps else []
        converged, taken = False, len(history)
    else:
        loop = _Loop(look, rule, criteria, gradient, multiplier, shuffle, slow_copy, lr, weight_decay)
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
        converged, taken, history = loop.converged, loop.step, loop.history
    profile = look.profile(x)
    measured = Measured(tuple(profile.time.flatten(1)), tuple(profile.depth.flatten(1)))
    misses = criteria.misses(measured, goal, include_input)
    if method == "scale":
        converged = criteria.met(measured, goal, 0.0, include_input)
    findings = (*dead_layers(profile), *(() if converged else missed_targets(profile, misses)))
    return PretrainResult(converged, taken, history, profile, findings, clock.perf_counter() - started)


@dataclass(frozen=True)
class _Look:
    """How radii are measured during pre-training: where, on which sample, against what."""

    network: Network
    goal: Aim
    seed: int
    samples: int
    steps: int | None
    include_input: bool
    non_square: NonSquare

    def generator(self, step: int) -> torch.Generator:
        # one generator a step, so that a resumed run draws what an uninterrupted one does
        return torch.Generator().manual_seed(self.seed * 1_000_003 + step)

    def sample(self, x: Tensor, step: int, times: int = 1) -> Tensor:
        """Columns of a batch, drawn at random; so many times as many as the settings say."""
        count = min(self.samples * times, x.shape[1])
        drawn = torch.randperm(x.shape[1], generator=self.generator(step))[:count].to(x.device)
        return x.index_select(1, drawn)  # of dense and sparse inputs alike

    def measure(self, x: Tensor, step: int, times: int) -> tuple[Measured, list[float]]:
        """Radii at the steps and samples drawn for a step, with their graph, and the firing rates."""
        generator = self.generator(step)
        x = self.sample(x, step, times)
        steps = draw_steps(x.shape[0], self.steps, generator)
        transitions, outputs = follow(self.network, x, steps)
        time = tuple(time_radius(t, i) for i, t in enumerate(transitions))
        depth = tuple(depth_radius(t, i, self.non_square, generator) for i, t in enumerate(transitions))
        return Measured(time, depth), [z.ne(0).float().mean().item() for z in outputs]

    def profile(self, x: Tensor) -> RadiusProfile:
        """The radii on a larger sample, drawn apart from all steps."""
        steps = None if self.steps is None else min(2 * self.steps, x.shape[0])
        x = self.sample(x, -1, _LARGER)
        return radius_profile(
            self.network, x, steps=steps, non_square=self.non_square, target=self.goal, seed=self.seed + 1
        )


class _Loop:
    """The paper's loop, one step at a time; everything that changes is in `state`."""

    def __init__(
        self,
        look: _Look,
        rule: Rule,
        criteria: Criteria,
        gradient: bool,
        multiplier: tuple[float, float] | None,
        shuffle: bool,
        slow_copy: bool,
        lr: float,
        weight_decay: float,
    ) -> None:
        self.look, self.rule, self.criteria = look, rule, criteria
        self.gradient, self.multiplier, self.shuffle, self.slow_copy = gradient, multiplier, shuffle, slow_copy
        self.cells = look.network.cells
        self.parameters = [p for p in self.cells.parameters() if p.requires_grad]  # type: ignore[attr-defined]
        self.optimizer = adabelief_lookahead(self.parameters, lr=lr, weight_decay=weight_decay)
        self.settings = {
            "target": tuple(look.goal),
            "rule": rule.name,
            "seed": look.seed,
            "samples": look.samples,
            "steps": look.steps,
            "include_input": look.include_input,
            "non_square": look.non_square,
            "gradient": gradient,
            "multiplier": None if multiplier is None else tuple(multiplier),
            "shuffle": shuffle,
            "slow_copy": slow_copy,
            "lr": lr,
            "weight_decay": weight_decay,
        }
        self.step, self.smoothed, self.converged = 0, float("nan"), False
        self.times = 1  # doubled whenever a step's radii were on target and those of a larger sample were not
        self.history: list[dict[str, Any]] = []
        self.best_error, self.best = float("inf"), self._copy()

    def advance(self, x: Tensor, *, last: bool) -> bool:
        """Measure, and unless the radii have converged or this is the last look, move the parameters. True: done."""
        started = clock.perf_counter()
        measured, rates = self.look.measure(x, self.step, self.times)
        errors = measured.errors(self.look.goal, self.look.include_input)
        deviation = errors.std(correction=0).item()
        self.smoothed = deviation if not self.history else self.smoothed + _SMOOTHING * (deviation - self.smoothed)
        time, depth = measured.means()
        self._keep_best(measured)
        row: dict[str, Any] = {"step": self.step, "loss": errors.square().mean().item(), "time": time, "depth": depth}
        row |= {"deviation": deviation, "smoothed_deviation": self.smoothed, "firing_rate": rates}
        self.history.append(row)
        self.converged = self._confirmed(x, measured)
        if self.converged or last:
            if not self.converged:
                self._load(self.best)
        else:
            if self.gradient:
                self.optimizer.zero_grad()
                errors.square().mean().backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
            self._on_both_copies(self._multiply_and_shuffle(time, depth))
            self.step += 1
        row["seconds"] = clock.perf_counter() - started
        return self.converged or last

    def _confirmed(self, x: Tensor, measured: Measured) -> bool:
        """Whether the criteria hold on this step's radii, and again on a larger sample."""
        look, met = self.look, self.criteria.met
        if not met(measured, look.goal, self.smoothed, look.include_input):
            return False
        profile = look.profile(x)
        again = Measured(tuple(profile.time.flatten(1)), tuple(profile.depth.flatten(1)))
        confirmed = met(again, look.goal, self.smoothed, look.include_input)
        if not confirmed:
            self.times = min(2 * self.times, _LARGER)
        return confirmed

    def _keep_best(self, measured: Measured) -> None:
        goal = self.look.goal
        time, depth = measured.means()
        depth = depth if self.look.include_input else depth[1:]
        error = max([abs(m / goal.time - 1) for m in time] + [abs(m / goal.depth - 1) for m in depth])
        if error < self.best_error:
            self.best_error, self.best = error, self._copy()

    def _multiply_and_shuffle(self, time: list[float], depth: list[float]) -> Callable[[], None]:
        """The move of steps 2 and 3 with its factors and orders fixed, so that it can act on two copies alike."""
        goal, generator = self.look.goal, self.look.generator(self.step)
        orders = [torch.randperm(p.numel(), generator=generator).to(p.device) for p in self.parameters]

        def kappa(target: float, mean: float) -> float:
            assert self.multiplier is not None
            low, high = self.multiplier
            return min(max(target / mean if mean > 0 else high, low), high)

        def move() -> None:
            if self.multiplier is not None:
                for i, cell in enumerate(self.cells):
                    by_depth = kappa(goal.depth, depth[i]) if i or self.look.include_input else 1.0
                    self.rule.apply(cell, time=kappa(goal.time, time[i]), depth=by_depth)
            if self.shuffle:
                with torch.no_grad():
                    for p, order in zip(self.parameters, orders, strict=True):
                        p.copy_(p.flatten()[order].view_as(p))

        return move

    def _on_both_copies(self, move: Callable[[], None]) -> None:
        move()
        if not (self.gradient and self.slow_copy):
            return
        slow = [self.optimizer.state[p]["slow_params"] for p in self.parameters]
        fast = self._copy()  # with what the optimizer does not hold: no move acts on it twice
        with torch.no_grad():
            for p, s in zip(self.parameters, slow, strict=True):
                p.copy_(s)
            move()
            for p, s in zip(self.parameters, slow, strict=True):
                s.copy_(p)
        self._load(fast)

    def summary(self) -> str:
        """Mean radii of the newest step, for the progress bar."""
        row = self.history[-1]
        return (
            "time " + " ".join(f"{r:.2f}" for r in row["time"]) + " depth " + " ".join(f"{r:.2f}" for r in row["depth"])
        )

    def _copy(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.look.network.state_dict().items()}

    def _load(self, weights: dict[str, Tensor]) -> None:
        self.look.network.load_state_dict(weights)

    def state(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on."""
        return {
            "settings": self.settings,
            "step": self.step,
            "smoothed": self.smoothed,
            "times": self.times,
            "history": self.history,
            "best_error": self.best_error,
            "best": self.best,
            "network": self._copy(),
            "optimizer": self.optimizer.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state.

        Raises:
            ValueError: if it began with other settings.
        """
        before, now = state["settings"], self.settings
        changed = [f"{name} was {before[name]!r}, is now {now[name]!r}" for name in now if before[name] != now[name]]
        if changed:
            raise ValueError(
                f"the checkpoint began with other settings ({'; '.join(changed)}). Use the same settings, another file, "
                "or remove it."
            )
        self.step, self.smoothed, self.history = state["step"], state["smoothed"], state["history"]
        self.times = state["times"]
        self.best_error, self.best = state["best_error"], state["best"]
        self._load(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])


def _scale(look: _Look, x: Tensor, rule: Rule, progress: bool) -> list[dict[str, Any]]:
    history: list[dict[str, Any]] = []
    steps = draw_steps(x.shape[0], None if look.steps is None else min(2 * look.steps, x.shape[0]), look.generator(0))
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
