"""Skips, GRU and LSTM beside relays: the registered baselines (registration.md, section 6).

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
from headline import Arm, listed
from torch import Tensor

from neurolsc import ALIFPlus, Network, initialisers, match_firing_rates, register
from neurolsc.experiment import Experiment
from neurolsc.initialisers import Initialiser
from neurolsc.initialisers.base import first_input
from neurolsc.stability.conditions import Finding

RESULTS = Path(__file__).parents[1] / "results" / "study_baselines.csv"
ARMS = [
    Arm(5, "SkipALIFPlus", "WokenBranches(0.15)"),
    Arm(2, "GRU", "Default()"),
    Arm(2, "LSTM", "Default()"),
]


@register
class SkipALIFPlus(ALIFPlus):
    """ALIF+ that sends its spikes plus what it reads, where widths allow (SEW-ADD, arXiv:2102.04159)."""

    def run(self, x: Tensor, state: Any, **settings: Any) -> tuple[Tensor, Any]:
        z, last = super().run(x, state, **settings)
        return (z + x if self.n_in == self.n_hidden else z), last


@initialisers.register
@dataclass(frozen=True)
class WokenBranches(Initialiser):
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
