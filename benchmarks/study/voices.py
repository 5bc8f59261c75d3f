"""One voice left out: relays and woken networks on speakers that training never heard (registration.md, section 7).

    python benchmarks/study/voices.py FOLDER [--minutes 100]

FOLDER holds real_digits' train.h5 and test.h5. Appends a row for each finished trial to
results/study_voices.csv and passes over those that are there. Four minutes of one core a trial.
"""

import itertools
import tempfile
from pathlib import Path

import h5py
import numpy as np
from headline import CELLS, STARTS, Arm, Trial, command_line, finish, run

RESULTS = Path(__file__).parents[1] / "results" / "study_voices.csv"
LR = {"ALIFPlus": (4e-3, 4e-3), "ALIFPlusMinus": (4e-3, 2e-3)}  # chosen in section 1, by cell and start
VOICES, SEEDS = range(5), (12, 13)


def leave_out(voice: int, root: Path, folder: Path) -> None:
    """Write train.h5, all utterances of the other voices, and test.h5, those of one."""
    with h5py.File(root / "train.h5") as train, h5py.File(root / "test.h5") as test:
        said_by = [np.asarray(file["extra/speaker"]) == voice for file in (train, test)]
        for name, own in (("train", False), ("test", True)):
            with h5py.File(folder / f"{name}.h5", "w") as out:
                for key in ("spikes/times", "spikes/units", "labels", "extra/speaker"):
                    parts = [file[key][here == own] for file, here in zip((train, test), said_by, strict=True)]
                    out.create_dataset(key, data=np.concatenate(parts), dtype=train[key].dtype)
                train.copy("extra/keys", out["extra"])


def trial(cell: str, seed: int, voice: int, start: int, root: Path) -> dict:
    """Train on the other voices and score on this one; its row."""
    arm = Arm(5, cell, STARTS[start].format(rate=CELLS[cell]))
    with tempfile.TemporaryDirectory() as folder:
        leave_out(voice, root, Path(folder))
        return {"voice": voice} | run(Trial(arm, LR[cell][start], seed), folder)


def main() -> None:
    args = command_line(__doc__, RESULTS).parse_args()
    trials = ((*at, start) for at in itertools.product(LR, SEEDS, VOICES) for start in range(2))

    def key(row: dict) -> tuple:
        start = [s.format(rate=CELLS[row["cell"]]) for s in STARTS].index(row["start"])
        return row["cell"], int(row["seed"]), int(row["voice"]), start

    finish(args.out, trials, key, lambda t: trial(*t, root=args.folder), args.minutes)


if __name__ == "__main__":
    main()
