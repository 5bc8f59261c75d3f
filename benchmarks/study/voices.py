"""Five folds over all utterances: relays and woken networks on new voices, or new utterances of known ones.

    python benchmarks/study/voices.py FOLDER [--by utterance] [--minutes 100]

FOLDER holds real_digits' train.h5 and test.h5. By voice one speaker is the test (registration.md, section 7), by
utterance a fifth of what each speaker says of each digit (section 11). Appends a row for each finished trial to
results/study_voices.csv or study_folds.csv and passes over those that are there. Two to four minutes of a core each.
"""

import itertools
import tempfile
from pathlib import Path

import h5py
import numpy as np
from headline import CELLS, STARTS, Arm, Trial, command_line, finish, run

RESULTS = Path(__file__).parents[1] / "results"
FILES = {"voice": "study_voices.csv", "utterance": "study_folds.csv"}
RUN = {"voice": ("ALIFPlus", "ALIFPlusMinus"), "utterance": ("ALIFPlus", "LIF")}
LR = {"ALIFPlus": (4e-3, 4e-3), "ALIFPlusMinus": (4e-3, 2e-3), "LIF": (1e-3, 2e-3)}  # chosen in section 1, by start
VOICES, SEEDS = range(5), (12, 13)


def folds(files: tuple[h5py.File, h5py.File], by: str) -> np.ndarray:
    """The fold, 0 to 4, of each utterance of both files."""
    voice, digit = (np.concatenate([file[key] for file in files]) for key in ("extra/speaker", "labels"))
    if by == "voice":
        return voice
    fold = np.empty(len(voice), int)
    for same in itertools.product(range(5), range(10)):
        at = np.flatnonzero((voice == same[0]) & (digit == same[1]))
        fold[at] = np.arange(len(at)) % 5  # the files are shuffled
    return fold


def leave_out(fold: int, root: Path, folder: Path, by: str = "voice") -> None:
    """Write test.h5, all utterances of a fold, and train.h5, those of the others."""
    with h5py.File(root / "train.h5") as train, h5py.File(root / "test.h5") as test:
        left = folds((train, test), by) == fold
        for name, chosen in (("train", ~left), ("test", left)):
            with h5py.File(folder / f"{name}.h5", "w") as out:
                for key in ("spikes/times", "spikes/units", "labels", "extra/speaker"):
                    values = np.concatenate([train[key], test[key]])[chosen]
                    out.create_dataset(key, data=values, dtype=train[key].dtype)
                train.copy("extra/keys", out["extra"])


def trial(cell: str, seed: int, fold: int, start: int, root: Path, by: str) -> dict:
    """Train on the other folds and score on this one; its row."""
    arm = Arm(5, cell, STARTS[start].format(rate=CELLS[cell]))
    with tempfile.TemporaryDirectory() as folder:
        leave_out(fold, root, Path(folder), by)
        return {by: fold} | run(Trial(arm, LR[cell][start], seed), folder)


def main() -> None:
    parser = command_line(__doc__, RESULTS)
    parser.add_argument("--by", choices=FILES, default="voice")
    args = parser.parse_args()
    out = RESULTS / FILES[args.by] if args.out == RESULTS else args.out
    trials = ((*at, start) for at in itertools.product(RUN[args.by], SEEDS, VOICES) for start in range(2))

    def key(row: dict) -> tuple:
        start = [s.format(rate=CELLS[row["cell"]]) for s in STARTS].index(row["start"])
        return row["cell"], int(row["seed"]), int(row[args.by]), start

    finish(out, trials, key, lambda t: trial(*t, root=args.folder, by=args.by), args.minutes)


if __name__ == "__main__":
    main()
