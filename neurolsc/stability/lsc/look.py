"""How radii are measured during pre-training: where, on which samples, and on how many."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from neurolsc.metrics import firing_rate, is_binary
from neurolsc.network import Network
from neurolsc.stability.lsc.criteria import Measured
from neurolsc.stability.lsc.inputs import Fresh, InputStream, pick
from neurolsc.stability.lsc.lower import lower_bound
from neurolsc.stability.lsc.options import Options
from neurolsc.stability.lsc.targets import Aim
from neurolsc.stability.profile import RadiusProfile, depth_radius, radius_profile, time_radius
from neurolsc.stability.transitions import draw_steps, follow
from neurolsc.training.fingerprint import network_fingerprint

CLOSER = 4
"""Time steps of a closer look, as a multiple of a step's: radii differ more along a run than from
sample to sample."""

MOST, MOST_FRESH = 4, 16
"""Most samples of a closer look and of one at fresh inputs, as multiples of a step's."""

CLOSE_DOUBT, FRESH_DOUBT = 0.5, 0.25
"""Standard errors of the means, in tolerances, that a closer look and one at fresh inputs may have:
a look takes as many samples as that needs."""

Rates = list[float | None]
"""Spikes per neuron and step of each layer; None of one that does not send spikes."""


@dataclass(frozen=True)
class Look:
    """A network, and how it is looked at.

    Every step draws from a generator of its own, so that a resumed run draws what an uninterrupted
    one does.

    Attributes:
        network: the network.
        goal: radii aimed at.
        options: all else.
    """

    network: Network
    goal: Aim
    options: Options

    def __post_init__(self) -> None:
        if self.goal.time is None and len(self.network.cells) == 1 and not self.options.include_input:
            raise ValueError(
                "one layer has a radius through depth from its input alone: with include_input=False there is none to set."
            )

    def settings(self) -> dict[str, Any]:
        """What the steps of a run depend on besides its inputs, as a checkpoint keeps it."""
        return self.options.settings(self.goal) | network_fingerprint(self.network)

    def generator(self, step: int) -> torch.Generator:
        """Where a step draws from."""
        return torch.Generator().manual_seed(self.options.seed * 1_000_003 + step)

    def measure(self, x: Tensor, step: int) -> tuple[Measured, Rates]:
        """Radii at the steps and samples drawn for a step, with gradient, and the firing rates."""
        return self._measure(self._sample(x, step, self.options.samples), step, self.count(x))

    def closer(self, x: Tensor, step: int) -> tuple[Measured, Rates]:
        """The same without gradient: `CLOSER` times the steps, samples enough for the means."""
        count, steps = self.options.samples, self.count(x, CLOSER)
        with torch.no_grad():
            seen = self._measure(self._sample(x, step, count), step, steps)
            wanted = self.enough(seen[0], len(x), CLOSE_DOUBT, MOST)
            if min(wanted, x.shape[1]) > count:
                seen = self._measure(self._sample(x, step, wanted), step, steps)
        return seen

    def fresh(self, inputs: InputStream, last: Tensor, step: int) -> RadiusProfile:
        """Radii on the inputs that come next, at `CLOSER` times as many steps and enough samples.

        Where the first samples already show that a mean misses its target, no more are looked at.

        Args:
            inputs: inputs that no step has looked at, if there are such.
            last: the input to look at if none comes.
            step: the pre-training step, which seeds the draw.
        """
        drawn = Fresh(inputs, last, self.generator(-2 - step))
        x = drawn.upto(2 * self.options.samples)
        profile = self._profile(x, step)
        measured = Measured.of(profile)
        wanted = self.enough(measured, len(x), FRESH_DOUBT, MOST_FRESH)
        lost = self.options.criteria.lost(measured, self.goal, len(x), self.options.include_input)
        if wanted > x.shape[1] and not lost:
            more = drawn.upto(wanted)
            profile = self._profile(more, step) if more.shape[1] > x.shape[1] else profile
        return profile

    def count(self, x: Tensor, times: int = 1) -> int | None:
        """How many time steps of an input are looked at, or so many times as many; None: all."""
        steps = self.options.steps
        return None if steps is None else min(times * steps, x.shape[0])

    def enough(self, measured: Measured, total: int, doubt: float, most: int) -> int:
        """How many samples bring every mean's standard error to a share of the tolerance.

        No more than `most`.
        """
        now = self.options.criteria.doubt(measured, self.goal, total, self.options.include_input)
        seen, most = measured.time[0].shape[1], most * self.options.samples
        return most if now == math.inf else min(math.ceil(seen * (now / doubt) ** 2), most)

    def _sample(self, x: Tensor, step: int, count: int) -> Tensor:
        """Samples of an input, drawn at random."""
        return pick(x, torch.randperm(x.shape[1], generator=self.generator(step))[:count])

    def _measure(self, x: Tensor, step: int, count: int | None) -> tuple[Measured, Rates]:
        generator = self.generator(step)
        transitions, outputs = follow(self.network, x, draw_steps(x.shape[0], count, generator))
        across = self.options.non_square
        time = [time_radius(t, i).radius for i, t in enumerate(transitions)]
        depth = [depth_radius(t, i, across, generator).radius for i, t in enumerate(transitions)]
        along, across_layers = (tuple(r.view(-1, x.shape[1]) for r in radii) for radii in (time, depth))
        measured = Measured(along, across_layers)
        if self.options.lower_bound and torch.is_grad_enabled():
            measured = measured._replace(lower=lower_bound(transitions, self.options.include_input))
        return measured, [firing_rate(z) if is_binary(z) else None for z in outputs]

    def _profile(self, x: Tensor, step: int) -> RadiusProfile:
        return radius_profile(
            self.network,
            x,
            steps=self.count(x, CLOSER),
            non_square=self.options.non_square,
            target=self.goal,
            seed=self.options.seed * 1_000_003 - 2 - step,
            progress=False,
        )
