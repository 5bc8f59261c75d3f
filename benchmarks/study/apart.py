"""Which part of an identity initialisation is worth what? The registered arms (registration.md, sections 9, 15, 18).

    python benchmarks/study/apart.py FOLDER [--minutes 100]

FOLDER holds real_digits' train.h5 and test.h5. Appends a row for each finished trial to
results/study_apart.csv and passes over those that are there. Four minutes of one core a trial.
"""

import copy
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch
from headline import NEW, Arm, Trial, command_line, finish, run, trial_of
from torch import Tensor

from neurolsc import Network, init
from neurolsc.init import FiringRate, Initialiser, Relay
from neurolsc.stability.conditions import Finding

RESULTS = Path(__file__).parents[1] / "results" / "study_apart.csv"
LR = 4e-3  # chosen in section 1 by identity and by rate-matched networks
PARTS = {  # what `Relay` sets, by layer and parameter; the rest is as drawn
    "recurrence of layers 1 and 2": r"[01]\.w_rec",
    "all but w_in": r"[01]\..*|[2-9]\.(?!w_in).*",
    "w_in": r"[2-9]\.w_in",
    "w_rec": r"[2-9]\.w_rec",
    "all but adaptation": r"[01]\..*|[2-9]\.(?!adaptation).*",
    "adaptation": r"[2-9]\.adaptation",
    "recurrence": r".*(w_rec|recurrent\.weight)",  # of all layers, and of snnTorch's; libraries.py
}


@init.register
@dataclass(frozen=True)
class PartOfRelay(Initialiser):
    """Some parts of a network as `Relay` sets them, the others as drawn; then all are scaled to a rate."""

    part: str
    rate: float

    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        drawn = copy.deepcopy(network.state_dict())
        Relay(rate=self.rate).apply(network, inputs, seed=seed)
        kept = re.compile(rf"cells\.({PARTS[self.part]})")
        network.load_state_dict(
            {name: value if kept.fullmatch(name) else drawn[name] for name, value in network.state_dict().items()}
        )
        return FiringRate(self.rate).apply(network, inputs)


@init.register
@dataclass(frozen=True)
class Scaled(Initialiser):
    """Weights and thresholds of layers 3 and up times a factor: spikes stay, derivatives of the surrogate do not."""

    factor: float
    lowest: ClassVar[int] = 2
    names: ClassVar[tuple[str, ...]] = ("w_in", "w_rec", "b_theta", "adaptation")

    @torch.no_grad()
    def apply(self, network: Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        for cell in network.cells[self.lowest :]:
            for name in self.names:
                getattr(cell, name).mul_(self.factor)
        return ()


@init.register
@dataclass(frozen=True)
class WeakAdaptation(Scaled):
    """What spikes add to the thresholds of all layers, times a factor."""

    lowest, names = 0, ("adaptation",)


def part(name: str, rate: float = 0.15) -> str:
    """The text of an initialiser that keeps one part of what `Relay` sets."""
    return f"PartOfRelay({name!r}, rate={rate})"


def main() -> None:
    args = command_line(__doc__, RESULTS).parse_args()
    initialisers = [
        *map(part, list(PARTS)[:-1]),
        "FiringRate(0.15) + Scaled(8)",
        f"{part('adaptation')} + Scaled(0.125)",
    ]
    arms = [Arm(5, "ALIFPlus", initialiser) for initialiser in initialisers]
    trials = [Trial(arm, LR, seed) for arm, seed in itertools.product(arms, NEW)]
    finish(args.out, trials, trial_of, lambda trial: run(trial, str(args.folder)), args.minutes)


if __name__ == "__main__":
    main()
