"""The paper's pre-training loop, one step at a time."""

import time as clock
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from neurolsc.stability.lsc.criteria import Measured, deviation
from neurolsc.stability.lsc.inputs import InputStream
from neurolsc.stability.lsc.kappa import Damping, kappa
from neurolsc.stability.lsc.look import Look, Rates
from neurolsc.stability.lsc.loss import loss
from neurolsc.stability.lsc.result import dead
from neurolsc.stability.lsc.shuffle import draw_orders, shuffled
from neurolsc.stability.lsc.targets import Direction
from neurolsc.stability.profile import RadiusProfile
from neurolsc.training.optim import adabelief_lookahead

_NEAR = 3  # tolerances: means that miss their targets by less, in root mean square, are near
_STALLED = 15  # steps without a smaller miss after which shuffles and the optimizer only undo what kappa does
_SMOOTHING = 0.1  # weight of the newest deviation in its exponential mean, "10 steps" in the paper


class Loop:
    """The paper's loop, one step at a time; everything that changes is in `state`."""

    def __init__(self, look: Look, inputs: InputStream) -> None:
        self.look, self.inputs, self.options = look, inputs, look.options
        self.polish = self.options.polish and self.options.multiplier is not None
        self.cells = look.network.cells
        named = dict.fromkeys(p for cell in self.cells for p in cell.pretrained())  # cells may share some
        self.parameters = [p for p in named if p.requires_grad]
        self.optimizer = adabelief_lookahead(
            self.parameters, lr=self.options.lr, weight_decay=self.options.weight_decay
        )
        self.step, self.smoothed, self.held = 0, float("nan"), 0
        self.history: list[dict[str, Any]] = []
        self.best_error, self.best_step, self.best = [float("inf")] * 2, 0, self._copy()
        self.polishing = False
        self.damping = {"time": Damping(len(self.cells)), "depth": Damping(len(self.cells))}

    def advance(self) -> RadiusProfile | None:
        """Measure, and move the parameters; or, if nothing is left to do, the radii they have."""
        started, x = clock.perf_counter(), self.inputs.take()
        measured, rates = self._measure(x)
        self._note(measured, rates)
        profile = self._confirm(measured, x)
        # where a dead layer is on target, kappa is 1 and wakes none: nothing moves any more while
        # polishing
        done = profile is not None and self._met(Measured.of(profile)) and (self.polishing or not dead(profile))
        if not done and self.step == self.options.max_steps:
            self._load(self.best)
            profile, done = self.look.fresh(self.inputs, x, self.step), True
        if not done:
            self._move(measured if profile is None or not self.polishing else Measured.of(profile))
            self.step += 1
        self.history[-1]["seconds"] = clock.perf_counter() - started
        return profile if done else None

    def _measure(self, x: Tensor) -> tuple[Measured, Rates]:
        if not self.polishing:
            seen = self.look.measure(x, self.step)
            if not (self.polish and self._begins(seen[0])):
                return seen
            self.polishing, self.best_error = True, [float("inf")] * 2  # closer looks are not compared with the others
        return self.look.closer(x, self.step)

    def _note(self, measured: Measured, rates: Rates) -> None:
        """Keep what a look found, and the weights if they are the best so far."""
        options, goal = self.options, self.look.goal
        spread = deviation(measured, goal, options.include_input)
        self.smoothed = spread if not self.history else self.smoothed + _SMOOTHING * (spread - self.smoothed)
        time, depth = measured.means()
        row: dict[str, Any] = {"step": self.step, "loss": loss(measured, goal, options.include_input).item()}
        row |= {"time": time, "depth": depth, "deviation": spread, "smoothed_deviation": self.smoothed}
        row |= {} if measured.lower is None else {"lower_bound": measured.lower.item()}
        self.history.append(row | {"firing_rate": rates})
        compared = ((time, goal.time), (depth if options.include_input else depth[1:], goal.depth))
        errors = [abs(mean / wanted - 1) for means, wanted in compared if wanted for mean in means]
        error = [max(errors), sum(errors)]  # the sum where one radius is out of reach at all steps
        if error < self.best_error:
            self.best_error, self.best_step, self.best = error, self.step, self._copy()

    def _confirm(self, measured: Measured, x: Tensor) -> RadiusProfile | None:
        """A look at fresh inputs, where those of the step meet the criteria."""
        if self.polishing != self.polish or not self._met(measured):
            self.held = 0
            return None
        self.held += 1
        if self.held < self.options.criteria.hold:
            return None
        return self.look.fresh(self.inputs, x, self.step)

    def _begins(self, measured: Measured) -> bool:
        """Whether to polish from now on: the means are near, or come no nearer.

        If they come no nearer, it starts from the nearest there was.
        """
        criteria, include_input = self.options.criteria, self.options.include_input
        if criteria.distance(measured, self.look.goal, include_input) <= _NEAR:
            return True
        if self.step - self.best_step < _STALLED:
            return False
        self._load(self.best)
        return True

    def _met(self, measured: Measured) -> bool:
        return self.options.criteria.met(measured, self.look.goal, self.smoothed, self.options.include_input)

    def _move(self, measured: Measured) -> None:
        """One step of the optimizer, then multipliers and shuffle on both copies."""
        if self.options.gradient and not self.polishing:
            self.optimizer.zero_grad()
            whole = loss(measured, self.look.goal, self.options.include_input)
            if measured.lower is not None:
                whole = whole + self.options.lower_bound * measured.lower
            whole.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        self._on_both_copies(self._by_hand(*measured.means()))

    def _by_hand(self, time: list[float], depth: list[float]) -> Callable[[], None]:
        """Multipliers and shuffle, factors and orders drawn, to act on two copies alike."""
        generator = self.look.generator(self.step)
        orders = draw_orders(self.parameters, generator)
        shuffles = torch.rand((), generator=generator).item() < self.options.shuffle  # all steps of 1, none of 0
        by_time, by_depth = self._kappas("time", time), self._kappas("depth", depth)
        if not self.options.include_input:
            by_depth[0] = 1.0

        def move() -> None:
            if self.options.multiplier is not None:
                for cell, through_time, through_depth in zip(self.cells, by_time, by_depth, strict=True):
                    self.options.rule.apply(cell, time=through_time, depth=through_depth)
            if shuffles and not self.polishing:
                with torch.no_grad():
                    for p, order in zip(self.parameters, orders, strict=True):
                        p.copy_(shuffled(p, order))

        return move

    def _kappas(self, direction: Direction, means: list[float]) -> list[float]:
        """The multipliers of one direction; damped while polishing."""
        target: float | None = getattr(self.look.goal, direction)
        if self.options.multiplier is None or target is None:
            return [1.0] * len(means)
        kappas = [kappa(mean, target, self.options.multiplier) for mean in means]
        return self.damping[direction](kappas) if self.polishing else kappas

    def _on_both_copies(self, move: Callable[[], None]) -> None:
        move()
        if self.polishing or not (self.options.gradient and self.options.slow_copy):
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
        return " ".join(f"{name} " + " ".join(f"{r:.2f}" for r in row[name]) for name in ("time", "depth"))

    def _copy(self) -> dict[str, Tensor]:
        return {name: value.detach().clone() for name, value in self.look.network.state_dict().items()}

    def _load(self, weights: dict[str, Tensor]) -> None:
        self.look.network.load_state_dict(weights)

    def state(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on besides its settings."""
        return {
            "taken": self.inputs.taken,
            "step": self.step,
            "smoothed": self.smoothed,
            "held": self.held,
            "history": list(self.history),
            "polishing": self.polishing,
            "damping": {direction: damping.state() for direction, damping in self.damping.items()},
            "best_error": self.best_error,
            "best_step": self.best_step,
            "best": self.best,
            "network": self._copy(),
            "optimizer": self.optimizer.state_dict(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self.inputs.skip(state["taken"])
        self.step, self.smoothed, self.history = state["step"], state["smoothed"], state["history"]
        self.polishing, self.held = state["polishing"], state["held"]
        for direction, damping in self.damping.items():
            damping.restore(state["damping"][direction])
        self.best_error, self.best_step, self.best = state["best_error"], state["best_step"], state["best"]
        self._load(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])
