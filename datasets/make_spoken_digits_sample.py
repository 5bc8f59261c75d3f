"""Make the sample of spoken digits in neurolsc/datasets/samples.

    python make_spoken_digits_sample.py DIGITS OUT

DIGITS is the folder of the Free Spoken Digit Dataset as spikes, train.h5 and test.h5. The recipe
draws two utterances of train.h5 and one of test.h5 of every word in every voice. Spikes at the same
time are sorted by unit, which changes no spike and helps the packing. The result is two HDF5 files
in the same layout, packed by xz.
"""

import argparse
import hashlib
import io
import lzma
from pathlib import Path

import h5py
import numpy as np

SEED = 0
EACH = {"train": 2, "test": 1}
"""utterances of a word in a voice"""
PACKING = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lp": 1, "pb": 1}]
"""xz at its best, told that numbers have two bytes"""


def draw(labels: np.ndarray, speakers: np.ndarray, each: int) -> np.ndarray:
    """Indices: so many utterances of every word in every voice, in ascending order."""
    random = np.random.RandomState(SEED)
    chosen = [
        random.choice(np.flatnonzero((labels == label) & (speakers == speaker)), each, replace=False)
        for label in np.unique(labels)
        for speaker in np.unique(speakers)
    ]
    return np.sort(np.concatenate(chosen))


def copy(source: h5py.File, chosen: np.ndarray) -> bytes:
    """An HDF5 file of the chosen utterances."""
    content = io.BytesIO()
    with h5py.File(content, "w") as file:
        for name in ("spikes/times", "spikes/units"):
            file.create_dataset(name, (len(chosen),), source[name].dtype)
        for i, index in enumerate(chosen):
            times, units = (source[f"spikes/{name}"][index] for name in ("times", "units"))
            order = np.lexsort((units, times))
            file["spikes/times"][i], file["spikes/units"][i] = times[order], units[order]
        for name in ("labels", "extra/speaker"):
            file[name] = source[name][()][chosen]
        file["extra/keys"] = source["extra/keys"][()]
    return content.getvalue()


def main() -> None:
    """Read, draw, write, and print the lines of the card."""
    parser = argparse.ArgumentParser(description="Draw a small sample of the spoken digits.")
    parser.add_argument("digits", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for part, each in EACH.items():
        with h5py.File(arguments.digits / f"{part}.h5") as source:
            content = copy(source, draw(source["labels"][()], source["extra/speaker"][()], each))
        packed = lzma.compress(content, filters=PACKING)
        (arguments.out / f"{part}.h5.xz").write_bytes(packed)
        print(f"| {part}.h5.xz | {len(packed)} | {hashlib.sha256(content).hexdigest()} |")


if __name__ == "__main__":
    main()
