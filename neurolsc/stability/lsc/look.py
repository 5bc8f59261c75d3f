"""How radii are measured during pre-training: where, on which sample, against what."""

from dataclasses import dataclass

import torch
from torch import Tensor

from neurolsc.network import Network
from neurolsc.stability.cycles import NonSquare
from neurolsc.stability.lsc.targets import Aim, Measured
from neurolsc.stability.measure import depth_radius, time_radius
from neurolsc.stability.profile import RadiusProfile, draw_steps, radius_profile
from neurolsc.stability.transition import follow

CLOSER = 4
"""Time steps of a closer look, as a multiple of a step's: radii differ more along a run than from sample to sample."""


@dataclass(frozen=True)
class Look:
    """A network, its target, and how much of a batch is looked at.

    Attributes:
        network: the network.
        goal: radii aimed at.
        seed: of everything that is drawn; every step draws from a generator of its own, so that a resumed run draws what
            an uninterrupted one does.
        samples: samples of a batch that a step looks at.
        steps: time steps that it looks at, no more than there are; None: all.
        include_input: whether the first layer's derivative by the input counts.
        non_square: what stands for the radius between unequal widths.
    """

    network: Network
    goal: Aim
    seed: int
    samples: int
    steps: int | None
    include_input: bool
    non_square: NonSquare

    def generator(self, step: int) -> torch.Generator:
        """Where a step draws from."""
        return torch.Generator().manual_seed(self.seed * 1_000_003 + step)

    def sample(self, x: Tensor, step: int, times: int = 1) -> Tensor:
        """Columns of a batch, drawn at random; so many times as many as the settings say."""
        count = min(self.samples * times, x.shape[1])
        drawn = torch.randperm(x.shape[1], generator=self.generator(step))[:count].to(x.device)
        return x.index_select(1, drawn)  # of dense and sparse inputs alike

    def count(self, x: Tensor, times: int = 1) -> int | None:
        """How many time steps of an input are looked at, or so many times as many."""
        return None if self.steps is None else min(times * self.steps, x.shape[0])

    def measure(self, x: Tensor, step: int, *, closer: bool = False) -> tuple[Measured, list[float]]:
        """Radii at the steps and samples drawn for a step, and the firing rates.

        Args:
            x: the batch (T, B, n_in).
            step: the pre-training step, which seeds the draw.
            closer: look at `CLOSER` times as many steps and drop the gradient by the parameters.
        """
        generator = self.generator(step)
        x = self.sample(x, step)
        steps = draw_steps(x.shape[0], self.count(x, CLOSER if closer else 1), generator)
        transitions, outputs = follow(self.network, x, steps)
        with torch.set_grad_enabled(not closer and torch.is_grad_enabled()):
            time = tuple(time_radius(t, i).radius for i, t in enumerate(transitions))
            depth = tuple(depth_radius(t, i, self.non_square, generator).radius for i, t in enumerate(transitions))
        return Measured(time, depth), [z.ne(0).float().mean().item() for z in outputs]

    def larger(self, x: Tensor) -> RadiusProfile:
        """The radii of a closer look at twice as many samples, drawn apart from all others."""
        return radius_profile(
            self.network,
            self.sample(x, -2, 2),
            steps=self.count(x, CLOSER),
            non_square=self.non_square,
            target=self.goal,
            seed=self.seed + 1,
        )
