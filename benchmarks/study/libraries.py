"""Networks of snnTorch as built, rate-matched and with `Relay()`: comparisons (registration.md, sections 19, 20).

    python benchmarks/study/libraries.py [--minutes 100]

Chooses learning rates with seeds 0 to 3 and runs seeds 4 to 11, all networks of an arm at once, as in
benchmarks/initialisations.py. Appends to results/study_libraries.csv and goes on from the rows that are there.
One to four minutes of a core an arm.
"""

import csv
import itertools
import sys
import time
import warnings
from pathlib import Path

from apart import part
from headline import Trial, append, command_line, left
from tqdm import tqdm

import neurolsc

sys.path.append(str(Path(__file__).parents[1]))
from initialisations import COMMON, WIDE, Arm, arm_of, digits, train_arm

RESULTS = Path(__file__).parents[1] / "results" / "study_libraries.csv"
GRID = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
NETWORKS = [
    (*kind, n) for n in (4, 8) for kind in itertools.product(("RLeaky", "Leaky"), ("subtract",), (COMMON, WIDE))
]
OF_ALL, OF_RECURRENT = ("built", "rate-matched", "Relay()"), (part("recurrence"), "LayerwiseScaling(depth=0)")
ARMS = [
    Arm(*network, initialiser)
    for network in NETWORKS
    for initialiser in OF_ALL + OF_RECURRENT * (network[0] == "RLeaky")
]


def in_grid(lr: float, up: bool) -> float | None:
    """The learning rate that follows one at an edge; none after the last."""
    at = GRID.index(lr) + (1 if up else -1)
    return GRID[at] if 0 <= at < len(GRID) else None


def main() -> None:
    args = command_line(__doc__, RESULTS, folder=False).parse_args()
    warnings.simplefilter("ignore", neurolsc.WrappedNeuronWarning)
    end, (data, batches) = time.monotonic() + 60 * args.minutes, digits()
    rows = csv.DictReader(args.out.open()) if args.out.exists() else ()
    validation = {Trial(arm_of(r), float(r["lr"]), int(r["seed"])): float(r["validation"]) for r in rows}
    for arm in tqdm(ARMS, unit="arm"):
        while (todo := left(arm, validation, GRID[3:7], in_grid)) and time.monotonic() < end:
            for row in train_arm(arm, 5, data, batches, sorted((trial.seed, trial.lr) for trial in todo)):
                append(args.out, row)
                validation[Trial(arm, row["lr"], row["seed"])] = row["validation"]


if __name__ == "__main__":
    main()
