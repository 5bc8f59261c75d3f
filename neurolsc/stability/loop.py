"""The paper's pre-training loop, one step at a time."""

import dataclasses
import time as clock
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from neurolsc.optimizer import adabelief_lookahead
from neurolsc.stability.look import LARGER, Look
from neurolsc.stability.profile import RadiusProfile
from neurolsc.stability.rules import Rule
from neurolsc.stability.targets import Criteria, Measured

_NEAR = 3  # means within so many tolerances of their targets are looked at on a larger sample
_SMOOTHING = 0.1  # weight of the newest deviation in its exponential mean, "10 steps" in the paper


class Loop:
    """The paper's loop, one step at a time; everything that changes is in `state`."""

    def __init__(
        self,
        look: Look,
        rule: Rule,
        criteria: Criteria,
        gradient: bool,
        multiplier: tuple[float, float] | None,
        shuffle: bool,
        slow_copy: bool,
        polish: bool,
        lr: float,
        weight_decay: float,
    ) -> None:
        self.look, self.rule, self.criteria = look, rule, criteria
        self.gradient, self.multiplier, self.shuffle, self.slow_copy = gradient, multiplier, shuffle, slow_copy
        self.polish = polish and multiplier is not None
        self.cells = look.network.cells
        named = dict.fromkeys(p for cell in self.cells for p in cell.pretrained())  # cells may share some
        self.parameters = [p for p in named if p.requires_grad]
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
            "polish": self.polish,
            "lr": lr,
            "weight_decay": weight_decay,
        }
        self.step, self.smoothed, self.converged = 0, float("nan"), False
        self.profile: RadiusProfile | None = None  # of the larger sample that confirmed the radii
        self.history: list[dict[str, Any]] = []
        self.best_error, self.best = [float("inf")] * 2, self._copy()

    def advance(self, x: Tensor, *, last: bool) -> bool:
        """Measure, and unless the radii have converged or this is the last look, move the parameters. True: done."""
        started = clock.perf_counter()
        measured, rates = self.look.measure(x, self.step)
        errors = measured.errors(self.look.goal, self.look.include_input)
        deviation = errors.std(correction=0).item()
        self.smoothed = deviation if not self.history else self.smoothed + _SMOOTHING * (deviation - self.smoothed)
        time, depth = measured.means()
        self._keep_best(measured)
        row: dict[str, Any] = {"step": self.step, "loss": errors.square().mean().item(), "time": time, "depth": depth}
        row |= {"deviation": deviation, "smoothed_deviation": self.smoothed, "firing_rate": rates}
        self.history.append(row)
        near = self.polish and self._near(measured)
        if near:
            with torch.no_grad():
                # drawn anew in each step: two fixed draws that disagree would take turns for ever
                measured, _ = self.look.measure(x, self.step, LARGER)
        if (near or not self.polish) and self._met(measured):
            self.profile = self.look.larger(x)
            measured = Measured.of(self.profile)
            self.converged = self._met(measured)
        if near:
            time, depth = measured.means()
        if self.converged or last:
            if not self.converged:
                self._load(self.best)
        else:
            if self.gradient and not near:
                self.optimizer.zero_grad()
                errors.square().mean().backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
            self._on_both_copies(self._move(time, depth, shuffle=self.shuffle and not near))
            self.step += 1
        row["seconds"] = clock.perf_counter() - started
        return self.converged or last

    def _near(self, measured: Measured) -> bool:
        """Whether all mean radii are close enough to their targets for a larger sample to be worth its time."""
        wider = dataclasses.replace(self.criteria, tolerance=_NEAR * self.criteria.tolerance)
        return not wider.misses(measured, self.look.goal, self.look.include_input)

    def _met(self, measured: Measured) -> bool:
        return self.criteria.met(measured, self.look.goal, self.smoothed, self.look.include_input)

    def _keep_best(self, measured: Measured) -> None:
        goal = self.look.goal
        time, depth = measured.means()
        depth = depth if self.look.include_input else depth[1:]
        errors = [abs(m / goal.time - 1) for m in time] + [abs(m / goal.depth - 1) for m in depth]
        error = [max(errors), sum(errors)]  # the sum where one radius is out of reach at all steps
        if error < self.best_error:
            self.best_error, self.best = error, self._copy()

    def _move(self, time: list[float], depth: list[float], *, shuffle: bool) -> Callable[[], None]:
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
            if shuffle:
                for p, order in zip(self.parameters, orders, strict=True):
                    _shuffle(p, order)

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
        self.best_error, self.best = state["best_error"], state["best"]
        self._load(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])


@torch.no_grad()
def _shuffle(p: Tensor, order: Tensor) -> None:
    """Shuffle a tensor in place. Exact zeros stay where they are: a connection that is left out is no weight."""
    flat = p.flatten()
    filled = flat.nonzero().squeeze(1)
    flat[filled] = flat[order[flat[order] != 0]]
    p.copy_(flat.view_as(p))
