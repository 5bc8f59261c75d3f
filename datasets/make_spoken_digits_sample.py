"""Make the sample of spoken digits in neurolsc/datasets/samples.

    python make_spoken_digits_sample.py DIGITS OUT

DIGITS is the folder of the synthetic spoken digits, train.h5 and test.h5. Of every class the recipe
draws four utterances of train.h5 in voices 0 to 7, no voice twice, and two of test.h5, one in
voices 0 to 7 and one in voices 10 and 11, which are in no training utterance. Spikes at the same
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
KNOWN, NEW = range(8), (10, 11)
VOICES = {"train": (KNOWN,) * 4, "test": (KNOWN, NEW)}


def draw(labels: np.ndarray, speakers: np.ndarray, voices: tuple) -> np.ndarray:
    """Indices: for every class one utterance for each entry of voices, in ascending order."""
    random = np.random.RandomState(SEED)
    chosen = []
    for label in np.unique(labels):
        used: list[int] = []
        for group in voices:
            allowed = (labels == label) & np.isin(speakers, group) & ~np.isin(speakers, used)
            chosen.append(int(random.choice(np.flatnonzero(allowed))))
            used.append(int(speakers[chosen[-1]]))
    return np.sort(chosen)


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
    for part, voices in VOICES.items():
        with h5py.File(arguments.digits / f"{part}.h5") as source:
            content = copy(source, draw(source["labels"][()], source["extra/speaker"][()], voices))
        packed = lzma.compress(content, preset=9 | lzma.PRESET_EXTREME)
        (arguments.out / f"{part}.h5.xz").write_bytes(packed)
        print(f"| {part}.h5.xz | {len(packed)} | {hashlib.sha256(content).hexdigest()} |")


if __name__ == "__main__":
    main()
