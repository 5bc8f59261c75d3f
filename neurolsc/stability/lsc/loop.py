"""The paper's pre-training loop, one step at a time."""

import time as clock
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from neurolsc.optimizer import adabelief_lookahead
from neurolsc.stability.lsc.look import Look
from neurolsc.stability.lsc.rules import Rule
from neurolsc.stability.lsc.targets import Criteria, Measured
from neurolsc.stability.profile import RadiusProfile

_NEAR = 3  # tolerances: means that miss their targets by less, in root mean square, are near
_STALLED = 15  # steps without a smaller miss after which shuffles and the optimizer only undo what kappa does
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
        self.best_error, self.best_step, self.best = [float("inf")] * 2, 0, self._copy()
        self.polishing = False
        self.up: dict[str, list[bool]] = {}  # whether the last multipliers, by direction, were above 1 in each layer
        self.turns = {"time": [0] * len(self.cells), "depth": [0] * len(self.cells)}  # how often that changed

    def advance(self, x: Tensor, *, last: bool) -> bool:
        """Measure, and unless the radii have converged or this is the last look, move the parameters. True: done."""
        started = clock.perf_counter()
        measured, rates = self.look.measure(x, self.step, closer=self.polishing)
        if self.polish and not self.polishing and self._begins(measured):
            self.polishing, self.best_error = True, [float("inf")] * 2  # closer looks are not compared with the others
            measured, rates = self.look.measure(x, self.step, closer=True)
        errors = measured.errors(self.look.goal, self.look.include_input)
        deviation = errors.std(correction=0).item()
        self.smoothed = deviation if not self.history else self.smoothed + _SMOOTHING * (deviation - self.smoothed)
        time, depth = measured.means()
        self._keep_best(measured)
        row: dict[str, Any] = {"step": self.step, "loss": errors.square().mean().item(), "time": time, "depth": depth}
        row |= {"deviation": deviation, "smoothed_deviation": self.smoothed, "firing_rate": rates}
        self.history.append(row)
        if self.polishing == self.polish and self._met(measured):
            self.profile = self.look.larger(x)
            self.converged = self._met(Measured.of(self.profile))
        if self.converged or last:
            if not self.converged:
                self._load(self.best)
        else:
            if self.gradient and not self.polishing:
                self.optimizer.zero_grad()
                errors.square().mean().backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
            self._on_both_copies(self._move(time, depth))
            self.step += 1
        row["seconds"] = clock.perf_counter() - started
        return self.converged or last

    def _begins(self, measured: Measured) -> bool:
        """Whether to polish from now on: the means are near, or come no nearer; then from the nearest there was."""
        if self._distance(measured) <= _NEAR:
            return True
        if self.step - self.best_step < _STALLED:
            return False
        self._load(self.best)
        return True

    def _distance(self, measured: Measured) -> float:
        return self.criteria.distance(measured, self.look.goal, self.look.include_input)

    def _met(self, measured: Measured) -> bool:
        return self.criteria.met(measured, self.look.goal, self.smoothed, self.look.include_input)

    def _keep_best(self, measured: Measured) -> None:
        goal = self.look.goal
        time, depth = measured.means()
        depth = depth if self.look.include_input else depth[1:]
        errors = [abs(m / goal.time - 1) for m in time] + [abs(m / goal.depth - 1) for m in depth]
        error = [max(errors), sum(errors)]  # the sum where one radius is out of reach at all steps
        if error < self.best_error:
            self.best_error, self.best_step, self.best = error, self.step, self._copy()

    def _move(self, time: list[float], depth: list[float]) -> Callable[[], None]:
        """The move of steps 2 and 3 with its factors and orders fixed, so that it can act on two copies alike."""
        generator = self.look.generator(self.step)
        orders = [torch.randperm(p.numel(), generator=generator).to(p.device) for p in self.parameters]
        by_time, by_depth = self._kappas("time", time), self._kappas("depth", depth)
        if not self.look.include_input:
            by_depth[0] = 1.0

        def move() -> None:
            if self.multiplier is not None:
                for cell, through_time, through_depth in zip(self.cells, by_time, by_depth, strict=True):
                    self.rule.apply(cell, time=through_time, depth=through_depth)
            if self.shuffle and not self.polishing:
                with torch.no_grad():
                    for p, order in zip(self.parameters, orders, strict=True):
                        p.copy_(_shuffled(p, order))

        return move

    def _kappas(self, direction: str, means: list[float]) -> list[float]:
        """The multipliers through one direction. While polishing, each is damped as often as its miss changed sign.

        Full steps on noisy looks would never settle; steps that shrink in any case would not arrive (Kesten 1958).
        """
        if self.multiplier is None:
            return [1.0] * len(means)
        low, high = self.multiplier
        target = getattr(self.look.goal, direction)
        kappas = [min(max(target / mean if mean > 0 else high, low), high) for mean in means]
        if not self.polishing:
            return kappas
        up = [kappa > 1 for kappa in kappas]
        turns = [n + (a != b) for n, a, b in zip(self.turns[direction], up, self.up.get(direction, up), strict=True)]
        self.up[direction], self.turns[direction] = up, turns
        return [kappa ** (1 / (1 + n)) for kappa, n in zip(kappas, turns, strict=True)]

    def _on_both_copies(self, move: Callable[[], None]) -> None:
        move()
        if self.polishing or not (self.gradient and self.slow_copy):
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
            "polishing": self.polishing,
            "up": self.up,
            "turns": self.turns,
            "best_error": self.best_error,
            "best_step": self.best_step,
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
        self.polishing, self.up, self.turns = state["polishing"], state["up"], state["turns"]
        self.best_error, self.best_step, self.best = state["best_error"], state["best_step"], state["best"]
        self._load(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])


def _shuffled(p: Tensor, order: Tensor) -> Tensor:
    """The entries of p in another order; zeros, which are connections that do not exist, stay where they are."""
    entries = p.flatten()
    there = entries != 0
    return entries.masked_scatter(there, entries[order[there[order]]]).view_as(p)
