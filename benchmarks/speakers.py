"""How well does the shipped speech network know voices that its training did not hear?

    python benchmarks/speakers.py --digits FOLDER [--epochs 40]

FOLDER has train.h5 of the Free Spoken Digit Dataset as spikes. The network and the training are
those of the card of spoken-digits-alif; five times, each without one of the five speakers, who is
then the test; a tenth of the others' utterances, drawn at random, chooses the epoch. Writes
results/speakers.json.
"""

import argparse
import os
from datetime import date
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch.utils.data import Subset
from tqdm import tqdm

import neurolsc
from neurolsc.datasets import SHD, ChannelJitter, SpikeDrop, TimeStretch, input_batches
from neurolsc.init import LayerwiseScaling
from neurolsc.io import write_json

FORM = {"dt": 0.02, "window": 1.0, "channels": 140, "repeat": 1, "binary": True}
CHANGES = (ChannelJitter(10.0), TimeStretch(0.9, 1.1), SpikeDrop(0.1))
CELL = {"reset": "static", "tau_v": 2.0, "b_theta": 0.003, "adaptation": 0.3}
RESULTS = Path(__file__).parent / "results" / "speakers.json"
SEED, WIDTH = 0, 128


def scores(file: Path, speaker: int, epochs: int) -> dict:
    """Of a network that never heard a speaker, on that speaker and on some of the others."""
    changed = SHD.from_file(file, **FORM, augment=CHANGES)
    plain = SHD.from_file(file, **FORM)
    others = np.flatnonzero(plain.speakers.numpy() != speaker)
    order = np.random.RandomState(SEED).permutation(others)
    chosen, heard = np.split(order, [len(order) // 10])
    training, validation = Subset(changed, heard.tolist()), Subset(plain, chosen.tolist())
    torch.manual_seed(SEED)
    cells = [neurolsc.ALIFPositive(n_in, WIDTH, **CELL) for n_in in (plain.n_in, WIDTH)]
    network = neurolsc.Network(cells, plain.n_classes)
    LayerwiseScaling().apply(network, input_batches(training, 32, seed=SEED), seed=SEED)
    result = neurolsc.train(network, training, validation, epochs=epochs, patience=epochs, seed=SEED, progress=False)
    new = neurolsc.evaluate(network, Subset(plain, np.flatnonzero(plain.speakers.numpy() == speaker).tolist()))
    return {
        "speaker": speaker,
        "new": new.mode_accuracy,
        "known": result.best["validation_mode_accuracy"],
        "firing_rate": list(new.firing_rate),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    data = os.environ.get("NEUROLSC_DATA")
    parser.add_argument("--digits", type=Path, default=Path(data, "real_digits") if data else None)
    parser.add_argument("--epochs", type=int, default=40)
    args = parser.parse_args()
    if args.digits is None:
        parser.error("needs --digits, or NEUROLSC_DATA with real_digits in it")
    runs = [scores(args.digits / "train.h5", speaker, args.epochs) for speaker in tqdm(range(5))]
    about = {"date": str(date.today()), "epochs": args.epochs, "torch": torch.__version__}
    write_json(RESULTS, {"about": about, "runs": runs})
    print("\n".join(f"speaker {run['speaker']}: new {run['new']:.1%}, known {run['known']:.1%}" for run in runs))
