"""Skips, GRU, LSTM, normalised currents and other initialisations: the registered arms that are compared
with networks initialised by `Relay()` (registration.md, sections 6, 10, 14, 16, 17, 20).

    python benchmarks/study/baselines.py FOLDER [--workers 1] [--minutes 100]

FOLDER holds real_digits' train.h5 and test.h5. Appends a row for each finished trial to
results/study_baselines.csv and goes on from those that are there, as headline.py does.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import headline
import torch
from apart import part
from headline import Arm, listed
from torch import Tensor, nn

from neurolsc import ALIFPlus, Network, init, match_firing_rates, register
from neurolsc.experiment import Experiment
from neurolsc.init import Initialiser
from neurolsc.init.base import first_input
from neurolsc.stability.conditions import Finding

RESULTS = Path(__file__).parents[1] / "results" / "study_baselines.csv"
ARMS = [
    Arm(5, "LIF", "LayerwiseScaling(depth=0, rate=0.1)"),
    Arm(5, "SkipALIFPlus", "RateMatchedBranches(0.15)"),
    Arm(2, "GRU", "Default()"),
    Arm(5, "ALIFPlus", "WeakAdaptation(0.01) + FiringRate(0.15)"),
    Arm(2, "ALIFPlus", "WeakAdaptation(0.01) + FiringRate(0.15)"),
    Arm(2, "LSTM", "Default()"),
    Arm(5, "NormedALIFPlus", "RateMatchedNorms(0.15)"),
    Arm(5, "LIF", part("all but w_in", rate=0.1)),
    Arm(10, "ALIFPlus", "WeakAdaptation(0.01) + FiringRate(0.15)"),
    Arm(10, "ALIFPlus", part("all but w_in")),
    Arm(5, "LIF", "Orthogonal() + FiringRate(0.1)"),
    Arm(5, "LIF", "FluctuationDriven() + FiringRate(0.1)"),
]


@register
class SkipALIFPlus(ALIFPlus):
    """ALIF+ that sends its spikes plus what it reads, where widths allow (SEW-ADD, arXiv:2102.04159)."""

    def run(self, x: Tensor, state: Any, **settings: Any) -> tuple[Tensor, Any]:
        z, last = super().run(x, state, **settings)
        return (z + x if self.n_in == self.n_hidden else z), last


@init.register
@dataclass(frozen=True)
class RateMatchedBranches(Initialiser):
    """The thresholds of each layer scaled until its own spikes have a rate, whatever the skip adds to them."""

    rate: float

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        read = first_input(network, inputs)
        for cell in network.cells:
            branch = ALIFPlus(cell.n_in, cell.n_hidden)
            branch.__dict__ = cell.__dict__  # the same parameters, without the skip
            match_firing_rates(Network([branch], 1, layer_delay=0), read, [self.rate], tolerance=math.inf)
            with torch.no_grad():
                read = cell.run(read, cell.initial_state(read.shape[1]))[0]
        return ()


@register
class NormedALIFPlus(ALIFPlus):
    """ALIF+ whose input currents are normalised over samples and steps, as in sparch and tdBN (arXiv:2011.05280)."""

    def __init__(self, *sizes: int, **settings: Any) -> None:
        super().__init__(*sizes, **settings)
        self.norm = nn.BatchNorm1d(self.n_hidden)

    def current(self, x: Tensor) -> Tensor:
        current = x.to(self.w_in.dtype) @ self.w_in.T
        return self.norm(current.flatten(0, -2)).view_as(current)

    def plain(self) -> ALIFPlus:
        """The same neurons, which read one current each."""
        cell = ALIFPlus(self.n_hidden, self.n_hidden)
        cell.__dict__ = self.__dict__ | {"n_in": self.n_hidden}
        cell.__dict__["_parameters"] = self._parameters | {"w_in": torch.eye(self.n_hidden)}
        return cell

    def run(self, x: Tensor, state: Any, **settings: Any) -> tuple[Tensor, Any]:
        return self.plain().run(self.current(x), state, **settings)

    def update(self, x: Tensor, z: Tensor, state: Any) -> Any:
        return self.plain().update(self.current(x), z, state)


@init.register
@dataclass(frozen=True)
class RateMatchedNorms(Initialiser):
    """Running statistics of the first inputs, then thresholds that fire at a rate, layer by layer."""

    rate: float

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        read = first_input(network, inputs)
        for cell in network.cells:
            cell.train().norm.momentum = 1.0
            cell.current(read)
            cell.eval().norm.momentum = 0.1
            match_firing_rates(Network([cell], 1, layer_delay=0), read, [self.rate], tolerance=math.inf)
            with torch.no_grad():
                read = cell.run(read, cell.initial_state(read.shape[1]))[0]
        network.train()
        return ()


@torch.no_grad()
def branches(network: Network, experiment: Experiment) -> dict:
    """What each layer itself fires, on training samples; nothing of layers that send numbers."""
    if not isinstance(network.cells[0], SkipALIFPlus):
        return {"branch_rates": ""}
    sent = network.eval().run(experiment.first_samples("train", 32)[0]).spikes
    own = [sent[0], *(above - below for below, above in pairwise(sent))]
    return {"branch_rates": listed([z.mean().item() for z in own])}


if __name__ == "__main__":
    headline.main(ARMS, partial(headline.run, also=branches), RESULTS, __doc__)
