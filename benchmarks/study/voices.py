"""Five folds over all utterances: identity and rate-matched networks on new voices, or new utterances of known ones.

    python benchmarks/study/voices.py FOLDER [--by utterance] [--minutes 100]

FOLDER holds real_digits' train.h5 and test.h5. By voice one speaker is the test (registration.md, sections 7, 12), by
utterance a fifth of what each speaker says of each digit (section 11). Appends a row for each finished trial to
results/study_voices.csv or study_folds.csv and passes over those that are there. One to four minutes of a core each.
"""

import itertools
import tempfile
from pathlib import Path

import h5py
import numpy as np
from headline import Arm, Trial, command_line, finish, run, trial_of

RESULTS = Path(__file__).parents[1] / "results"
FILES = {"voice": "study_voices.csv", "utterance": "study_folds.csv"}
LR = {  # chosen in section 1
    Arm(5, "ALIFPlus", "FiringRate(0.15)"): 4e-3,
    Arm(5, "ALIFPlus", "Relay(rate=0.15)"): 4e-3,
    Arm(5, "ALIFPlusMinus", "FiringRate(0.15)"): 4e-3,
    Arm(5, "ALIFPlusMinus", "Relay(rate=0.15)"): 2e-3,
    Arm(5, "LIF", "FiringRate(0.1)"): 1e-3,
    Arm(5, "LIF", "Relay(rate=0.1)"): 2e-3,
    Arm(2, "ALIFPlus", "Relay(rate=0.15)"): 8e-3,
    Arm(2, "ALIFPlusMinus", "Relay(rate=0.15)"): 8e-3,
}
GROUPS = {"voice": [(5, "ALIFPlus"), (5, "ALIFPlusMinus"), (2, "ALIFPlus"), (2, "ALIFPlusMinus")]}
GROUPS["utterance"] = [(5, "ALIFPlus"), (5, "LIF")]
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


def trial(arm: Arm, seed: int, fold: int, root: Path, by: str) -> dict:
    """Train on the other folds and score on this one; its row."""
    with tempfile.TemporaryDirectory() as folder:
        leave_out(fold, root, Path(folder), by)
        return {by: fold} | run(Trial(arm, LR[arm], seed), folder)


def main() -> None:
    parser = command_line(__doc__, RESULTS)
    parser.add_argument("--by", choices=FILES, default="voice")
    args = parser.parse_args()
    out = RESULTS / FILES[args.by] if args.out == RESULTS else args.out
    trials = [
        (arm, seed, fold)
        for group in GROUPS[args.by]
        for seed, fold in itertools.product(SEEDS, VOICES)
        for arm in LR
        if arm[:2] == group
    ]

    def key(row: dict) -> tuple:
        return trial_of(row).arm, int(row["seed"]), int(row[args.by])

    finish(out, trials, key, lambda t: trial(*t, root=args.folder, by=args.by), args.minutes)


if __name__ == "__main__":
    main()
