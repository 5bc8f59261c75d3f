r"""The loops of pre-training: ours, the one that the paper prints, and the one of its released code.

All three measure radii, take one optimizer step on :math:`(\rho(M_k) - \rho_t)^2`, multiply the parameters that a rule
names by :math:`\kappa = \mathrm{clip}(\rho_t / \bar\rho, 0.85, 1.15)`, per layer and direction, and shuffle learnable
tensors (arXiv:2308.12075, Sec. II-D and II-G). They differ in where they measure and in when they stop:

- ours (:class:`OurLoop`) draws samples and time steps of a batch, and requires every layer and direction to meet its
  target;
- the printed one (:class:`TimeStepLoop`) goes through a batch time step by time step, takes all samples, and requires
  the mean over layers and directions to meet the target;
- the released one measures likewise, requires every layer and direction to meet its target in 21 steps in a row, and
  keeps the best weights.

Lookahead averages with a slow copy of the parameters. Here multipliers and shuffle act on that copy too: else Lookahead
would average unrelated tensors, whose deviations shrink.
"""

import copy
import math
from collections.abc import Callable, Iterable
from statistics import fmean
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from neurolsc.network import NetworkState
from neurolsc.stability.profile import RadiusProfile
from neurolsc.stability.rules import LayerRadii, as_rule, errors
from neurolsc.validation import positive

if TYPE_CHECKING:
    from pytorch_optimizer import Lookahead

    from neurolsc.stability.pretrain import InputStream, Measurement, Meter

DIRECTIONS = ("time", "depth")
WEIGHT_DECAY = 1e-4
SMOOTHING = 0.1  # the weight of a step in exponential means
# Polishing begins once the root mean square of all misses is at most NEAR tolerances, or after PATIENCE steps without a
# better miss.
NEAR = 3
PATIENCE = 15


def adabelief_lookahead(
    parameters: Iterable[nn.Parameter] | list[dict[str, Any]], lr: float, weight_decay: float = 0.0
) -> "Lookahead":
    r"""Make AdaBelief inside Lookahead: every 6 steps weights w go half the way back to a slow copy of them.

    .. math:: \phi \leftarrow \phi + 0.5\,(w - \phi), \quad w \leftarrow \phi
        \quad \text{every 6 steps}

    The slow copy :math:`\phi` of each parameter p is ``optimizer.state[p]["slow_params"]``. Code that sets parameters
    between two steps has to set that copy as well: else Lookahead pulls them back.

    Args:
        parameters: the parameters, or groups of them.
        lr: learning rate; in the paper 1e-3 for the training of ALIF, 3.14e-3 for its pre-training.
        weight_decay: decoupled from the gradient; in the paper 0 for training, 1e-4 for pre-training.

    Source: arXiv:2308.12075, Sec. II-G; Zhuang et al. 2020 (AdaBelief); Zhang et al. 2019 (Lookahead).
    """
    from pytorch_optimizer import AdaBelief, Lookahead  # takes a second to import, and only training needs it

    positive("lr", lr)
    positive("weight_decay", weight_decay, zero_allowed=True)
    return Lookahead(AdaBelief(parameters, lr=lr, weight_decay=weight_decay), k=6, alpha=0.5)


def shuffled(p: Tensor, order: Tensor) -> Tensor:
    """A tensor p with its entries other than 0 in the order of a permutation (p.numel(),); zeros stay in place."""
    entries = p.flatten()
    nonzero = entries != 0
    order_of_nonzero = order[nonzero[order]]
    return entries.masked_scatter(nonzero, entries[order_of_nonzero]).view_as(p)


class Loop:
    """A pre-training in progress; :meth:`state` has everything that its next steps depend on.

    Attributes:
        settings: the settings of this loop: its own, or those that were given.
        parameters: the trainable parameters of the cells, each once.
        step: steps taken so far.
        max_steps: steps after which it gives up.
        met: whether the criteria held where it ended.
        met_in_a_row: steps in a row, up to now, that have met the criteria.
        smoothed: exponential mean of the deviation of radii from their targets; NaN before the first step.
        history: a row for each step.
        best: the weights with the smallest miss so far.
        best_row: the row of the step at which these were the weights.
        judged: the row of the weights that the network has when it is judged.
        STATE: names of the attributes that :meth:`state` saves.
    """

    STATE: tuple[str, ...] = ("step", "smoothed", "met_in_a_row", "history", "best", "best_row")

    def __init__(self, meter: "Meter", inputs: "InputStream") -> None:
        self.meter = meter
        self.inputs = inputs
        self.network = meter.network
        self.rule = as_rule(meter.options.rule, meter.options.target, meter.options.loop)
        self.settings = meter.options.of_loop()
        if self.settings.max_steps is None:  # the released loop: one step at each time step of two batches
            self.max_steps = 2 * inputs.steps
        else:
            self.max_steps = self.settings.max_steps
        distinct = dict.fromkeys(p for cell in self.network.cells for p in cell.pretrained())  # cells may share them
        self.parameters = [p for p in distinct if p.requires_grad]
        if not self.parameters:
            raise ValueError("pretrain needs parameters to move: all that set radii are frozen (requires_grad=False).")
        self.optimizer = self.new_optimizer()
        self.step = 0
        self.met = False
        self.met_in_a_row = 0
        self.smoothed = math.nan
        self.history: list[dict[str, Any]] = []
        self.best = self.weights()
        self.best_row: dict[str, Any] = {"step": 0}
        self.judged = self.best_row

    def advance(self) -> RadiusProfile | None:
        """Take one step of the algorithm; return the final profile if pre-training has ended, else None."""
        raise NotImplementedError

    def new_optimizer(self) -> "Lookahead":
        return adabelief_lookahead(self.parameters, lr=self.settings.lr, weight_decay=WEIGHT_DECAY)

    def weights(self) -> dict[str, Tensor]:
        """A copy of the network's parameters and buffers."""
        return {name: value.detach().clone() for name, value in self.network.state_dict().items()}

    def keep_as_best(self) -> None:
        """Keep the present weights, and the row that was recorded of them."""
        self.best = self.weights()
        self.best_row = self.history[-1]

    def return_to_best(self) -> None:
        """Give the network the best weights."""
        self.network.load_state_dict(self.best)
        self.judged = self.best_row

    def record(self, seen: "Measurement", counted: list[LayerRadii]) -> Tensor:
        """Append what a step has measured to the history; return the loss, with its gradient.

        Args:
            seen: the measurement.
            counted: its radii that have a target.
        """
        spread = self.settings.criteria.spread(counted)
        if not self.history:  # the mean starts at the first value
            self.smoothed = spread
        self.smoothed += SMOOTHING * (spread - self.smoothed)
        loss = errors(counted).square().mean()
        if seen.lower is not None:
            loss = loss + seen.lower.to(loss)
        row: dict[str, Any] = {"step": self.step, "loss": loss.item()}
        row |= {direction: [radii.mean().item() for radii in getattr(seen, direction)] for direction in DIRECTIONS}
        row |= {"deviation": spread, "smoothed_deviation": self.smoothed, "firing_rate": seen.rates}
        if seen.log_determinants is not None:
            row["log_determinant"] = seen.log_determinants
        self.history.append(row)
        self.judged = row
        return loss

    def meets(self, counted: list[LayerRadii]) -> bool:
        """Judge this step by its `counted` radii; True if enough steps in a row have met the criteria.

        Called once a step: it counts them.
        """
        criteria = self.settings.criteria
        met = criteria.met(counted, self.smoothed) and self.lower_bound_met()
        if met:
            self.met_in_a_row += 1
        else:
            self.met_in_a_row = 0
        return self.met_in_a_row >= criteria.hold

    def lower_bound_met(self) -> bool:
        """True if the weights' mean log-determinants are near the target's logarithm, or were not asked for."""
        return not self.meter.missed_determinants(self.judged)

    def descend(self, loss: Tensor) -> None:
        """One optimizer step on the loss; ValueError if it depends on no parameter."""
        if not loss.requires_grad:
            kinds = ", ".join(dict.fromkeys(type(cell).__name__ for cell in self.network.cells))
            raise ValueError(
                f"no radius depends on a parameter that is trained, in the steps of {kinds}: let update and output compute "
                "without detach(), .data or no_grad(), or give gradient=False."
            )
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def multipliers(self, means: dict[str, list[float]]) -> dict[str, list[float]]:
        """Return kappa = clip(target / mean) of each layer, by direction; `means` has the mean radii likewise.

        A mean of 0 gets the upper bound. Without a target, or with ``kappa=False``, kappa is 1: the layer stays.
        """
        kappas = {direction: [1.0] * len(self.network.cells) for direction in DIRECTIONS}
        if self.meter.options.kappa is False:
            return kappas
        low, high = self.meter.options.kappa
        for direction, target in zip(DIRECTIONS, self.meter.goal, strict=True):
            if target is None:
                continue
            for layer, mean in enumerate(means[direction]):
                kappa = high
                if mean > 0:
                    kappa = min(max(target / mean, low), high)
                kappas[direction][layer] = kappa
        if not self.meter.options.include_input:  # the derivative by the input has no target
            kappas["depth"][0] = 1.0
        return kappas

    def multiply(self, kappas: dict[str, list[float]]) -> None:
        """Multiply the parameters of the cells in place, as the rule says."""
        if self.meter.options.kappa is False:
            return
        for cell, time, depth in zip(self.network.cells, kappas["time"], kappas["depth"], strict=True):
            self.rule.apply(cell, time=time, depth=depth)

    def drawn_shuffle(self, tensors: list[nn.Parameter]) -> Callable[[], None]:
        """Draw an order for the entries of each tensor; return the function that puts them into that order, in place.

        :meth:`move` calls the function twice, on the parameters and on Lookahead's copy of them: both get the same
        order. At a step without a shuffle the function does nothing. The distribution of the entries, which the
        multipliers set, stays; so do zeros, which are connections that do not exist.
        """
        generator = self.meter.generator(self.step)
        orders = [torch.randperm(p.numel(), generator=generator).to(p.device) for p in tensors]
        happens = torch.rand((), generator=generator).item() < self.settings.shuffle

        @torch.no_grad()
        def shuffle() -> None:
            if happens:
                for p, order in zip(tensors, orders, strict=True):
                    p.copy_(shuffled(p, order))

        return shuffle

    def move(self, change: Callable[[], None], *, optimized: bool) -> None:
        """Change the network's parameters, and Lookahead's slow copy of them.

        Args:
            change: changes the network in place.
            optimized: True if the optimizer has acted, so that there is such a copy.
        """
        change()
        if not optimized:
            return
        # A change acts on the network: put the slow copy there, change it, and put the parameters back.
        slow = [self.optimizer.state[p]["slow_params"] for p in self.parameters]
        changed = self.weights()  # with the buffers, which the second change must not reach
        with torch.no_grad():
            for parameter, copied in zip(self.parameters, slow, strict=True):
                parameter.copy_(copied)
            change()
            for parameter, copied in zip(self.parameters, slow, strict=True):
                copied.copy_(parameter)
        self.network.load_state_dict(changed)

    def state(self) -> dict[str, Any]:
        """What the next steps depend on besides the settings, for :func:`neurolsc.io.write_tree`."""
        parts = {"taken": self.inputs.taken, "network": self.weights(), "optimizer": self.optimizer.state_dict()}
        return {name: copy.copy(getattr(self, name)) for name in self.STATE} | parts

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a state of :meth:`state`."""
        for _ in range(state["taken"]):  # the inputs that the steps so far have used
            self.inputs.take()
        for name in self.STATE:
            setattr(self, name, state[name])
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])


class OurLoop(Loop):
    """Samples and time steps drawn from every batch, a target for each layer and direction; polished at the end."""

    STATE = (*Loop.STATE, "polishing", "turns", "best_miss")

    def __init__(self, meter: "Meter", inputs: "InputStream") -> None:
        super().__init__(meter, inputs)
        self.polishing = False  # True while the multipliers alone act
        # by direction and layer, while polishing: whether kappa was above 1 last, and how often that has changed
        self.turns: dict[tuple[str, int], tuple[bool, int]] = {}
        self.best_miss = [math.inf, math.inf]  # largest relative miss of a mean radius, and the sum of all

    def advance(self) -> RadiusProfile | None:
        meter = self.meter
        options = meter.options
        criteria = self.settings.criteria
        # The lower bound needs the gradient: multipliers move determinants and radii together.
        polish = options.polish and options.kappa is not False and options.bounds == "upper"
        x = self.inputs.take()

        # Draw samples and steps, and measure. Polishing (multipliers alone) begins once the means are near their
        # targets. It also begins, from the best weights, if these have not improved for long: then shuffles and
        # optimizer undo what kappa does. Polishing measures at more points, so its misses are not compared with earlier
        # ones.
        seen = meter.measure(x, self.step, closer=self.polishing)
        counted = meter.counted(seen, len(x))
        if polish and not self.polishing:
            near = False
            if criteria.tolerance > 0:  # else no miss is a finite number of tolerances
                near = math.sqrt(fmean((m.miss / m.allowed) ** 2 for m in counted)) <= NEAR
            if near or self.step - self.best_row["step"] >= PATIENCE:
                if not near:
                    self.return_to_best()
                self.polishing = True
                self.best_miss = [math.inf, math.inf]
                seen = meter.measure(x, self.step, closer=True)
                counted = meter.counted(seen, len(x))

        # Record the loss and the means; the weights too, if they are the best so far.
        loss = self.record(seen, counted)
        meter.refuse_singular(self.history[-1:], "that were drawn")
        misses = [abs(m.mean / m.target - 1) for m in counted]
        # If the largest miss stays the same, as that of a radius that cannot move, the sum decides.
        miss = [max(misses), sum(misses)]
        if miss < self.best_miss:
            self.best_miss = miss
            self.keep_as_best()

        # Judge by the criteria, first at this step's points, then on the inputs that come next.
        profile = None
        if self.polishing != polish:  # with `polish`, convergence is judged while polishing only
            self.met_in_a_row = 0
        elif self.meets(counted):
            profile = meter.fresh(self.inputs, self.step)
            # With a dead layer the loop goes on, as shuffles may make the layer fire. While polishing it ends, as there
            # are no shuffles.
            dead = bool((profile.firing_rate == 0).any())
            met = criteria.met(meter.counted(profile, len(x)), self.smoothed)
            if met and (self.polishing or not dead):
                return self.end(profile, len(x))
        if self.step == self.max_steps:  # give up, with the best weights
            self.return_to_best()
            return self.end(meter.fresh(self.inputs, self.step), len(x))

        # 1. One optimizer step on the loss.
        optimized = options.gradient and not self.polishing
        if optimized:
            self.descend(loss)

        # 2. The multipliers. While polishing a miss is mostly noise of measuring, over which damped steps average.
        means = {direction: self.history[-1][direction] for direction in DIRECTIONS}
        if profile is not None and self.polishing:  # the profile's means are of more points, and so more exact
            means = {"time": profile.time_mean.tolist(), "depth": profile.depth_mean.tolist()}
        kappas = self.multipliers(means)
        if self.polishing:
            self.damp(kappas)

        # 3. The shuffle.
        shuffle = self.drawn_shuffle([] if self.polishing else self.parameters)

        def change() -> None:
            self.multiply(kappas)
            shuffle()

        self.move(change, optimized=optimized)
        self.step += 1
        return None

    def end(self, profile: RadiusProfile, total: int) -> RadiusProfile:
        """Judge the final profile, of inputs of `total` steps, by the criteria; return it."""
        self.met = (
            self.settings.criteria.met(self.meter.counted(profile, total), self.smoothed) and self.lower_bound_met()
        )
        return profile

    def damp(self, kappas: dict[str, list[float]]) -> None:
        """Replace each multiplier by kappa^(1/(1+n)), in place; n counts how often it has crossed 1 while polishing."""
        for direction, target in zip(DIRECTIONS, self.meter.goal, strict=True):
            if target is None:
                continue
            for layer, kappa in enumerate(kappas[direction]):
                above = kappa > 1
                was_above, turns = self.turns.get((direction, layer), (above, 0))
                turns += was_above != above
                self.turns[direction, layer] = above, turns
                kappas[direction][layer] = kappa ** (1 / (1 + turns))


class TimeStepLoop(Loop):
    """The printed loop, and the released one: one time step of a batch after the other, measured at all samples.

    A pre-training step advances the run of a batch by one time step, with the weights as they are by then, and measures
    there. After the last time step the next batch begins from rest.
    """

    STATE = (*Loop.STATE, "time", "best_miss")

    def __init__(self, meter: "Meter", inputs: "InputStream") -> None:
        super().__init__(meter, inputs)
        self.released = meter.options.loop == "released"
        self.x: Tensor | None = None  # the batch in progress (T, B, n_in); None before the first
        self.states: NetworkState | None = None  # after the last step taken on x; None: at rest
        self.time = 0  # the step of x that comes next
        self.best_miss = math.inf  # smallest distance of the pooled mean radius from its target
        cells = {p for cell in self.network.cells for p in cell.parameters()}
        # the trainable parameters of readout and embedding
        self.outside = [p for p in self.network.parameters() if p.requires_grad and p not in cells]

    def advance(self) -> RadiusProfile | None:
        # Run one time step, and measure there.
        if self.x is None or self.time == len(self.x):
            self.x = self.inputs.take()
            self.states = None
            self.time = 0
        with torch.no_grad():
            moment = next(self.network.records(self.x[self.time : self.time + 1], self.states))
        self.time += 1
        self.states = moment.after
        seen = self.meter.measure_moment(moment, self.step)
        counted = self.meter.counted(seen, len(self.x))

        # Record the loss and the means; the weights too, if their pooled mean is the nearest so far.
        loss = self.record(seen, counted)
        if len(self.history) == self.inputs.steps:
            self.meter.refuse_singular(self.history, "of the first batch")
        miss = abs(fmean(m.mean - m.target for m in counted))
        if miss < self.best_miss:
            self.best_miss = miss
            self.keep_as_best()

        # Judge by the criteria, at this time step.
        self.met = self.meets(counted)
        if self.met or self.step == self.max_steps:
            # If the criteria hold, the printed loop ends with the weights for which they do.
            if self.released or not self.met:
                self.return_to_best()
            return self.meter.fresh(self.inputs, self.step)

        # 1. One optimizer step on the loss. The released code makes a new model, and so a new optimizer, in every step.
        gradient = self.meter.options.gradient
        if self.released:
            self.optimizer = self.new_optimizer()
        if gradient:
            self.descend(loss)

        # 2. The multipliers. 3. The shuffle: in the text of every learnable tensor, in the released code of matrices.
        kappas = self.multipliers({direction: self.history[-1][direction] for direction in DIRECTIONS})
        tensors = [*self.parameters, *self.outside]
        if self.released:
            tensors = [p for p in tensors if p.ndim > 1]
        shuffle = self.drawn_shuffle(tensors)

        def change() -> None:
            self.multiply(kappas)
            shuffle()

        # The released code has no slow copy to move: its optimizer is new in every step.
        self.move(change, optimized=gradient and not self.released)
        if self.released and self.meter.options.kappa is not False:
            self.scale_readout(*self.meter.options.kappa)
        self.step += 1
        return None

    @torch.no_grad()
    def scale_readout(self, low: float, high: float) -> None:
        r"""Scale the matrices W (n, m) of readout and embedding to bring :math:`\mathrm{std}(W) \sqrt m` towards 1.

        Each factor is clipped to low ... high, as the multipliers are.
        """
        for p in self.outside:
            if p.ndim < 2:
                continue
            size = (p.std(correction=0) * math.sqrt(p.shape[1])).item()
            if size:  # a matrix of equal entries has no deviation to scale
                p.mul_(min(max(1 / size, low), high))

    def state(self) -> dict[str, Any]:
        states = None  # of the network in the batch in progress, as lists of tensors
        if self.states is not None:
            states = {"layers": [list(layer) for layer in self.states.layers], "x": self.states.x}
        return super().state() | {"states": states}

    def restore(self, state: dict[str, Any]) -> None:
        for _ in range(state["taken"]):
            self.x = self.inputs.take()  # the last one is the batch in progress
        super().restore(state | {"taken": 0})  # the inputs are taken
        if self.x is None or state["states"] is None:
            return
        device = self.network.dtype_and_device["device"]
        rest = self.network.initial_states(self.x.shape[1])
        saved = zip(rest.layers, state["states"]["layers"], strict=True)
        layers = tuple(type(layer)(*(leaf.to(device) for leaf in leaves)) for layer, leaves in saved)
        x = state["states"]["x"]
        self.states = NetworkState(layers, None if x is None else x.to(device))


LOOPS: dict[str, type[Loop]] = {"neurolsc": OurLoop, "paper": TimeStepLoop, "released": TimeStepLoop}
