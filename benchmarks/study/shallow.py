"""What do models without a network make of the study's digits and spoken digits?

    python benchmarks/study/shallow.py FOLDER

Digits: scikit-learn's logistic regression on the latency of every pixel (1 minus the share of the
recording until its spike; 0 without one) and whether it spikes. Spoken digits of FOLDER (train.h5,
test.h5): a support vector machine with a Gaussian kernel on spike counts in ten bins of 0.1 s and
140 channels; and one for each voice, on which it is scored, and which it did not learn from
(voices.py). All learn from what the networks of the study learn from, choose their strength of
regularization on the same validation items, and are scored on the test once. Writes
results/study_shallow.json.
"""

import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import sklearn
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.svm import SVC
from voices import VOICES, leave_out

from neurolsc.datasets import SHD, SpikeLatencyMNIST, collate
from neurolsc.datasets.batches import fetch
from neurolsc.io import write_json

OUT = Path(__file__).parents[1] / "results" / "study_shallow.json"
SPLITS = ("train", "validation", "test")


def latencies(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Latencies and spikes of every pixel (n, 2 x 784), and labels."""
    data = SpikeLatencyMNIST.embedded(split)
    x, labels = collate(fetch(data, range(len(data))))
    spikes = x.bool().any(0)
    latency = torch.where(spikes, 1 - x.int().argmax(0) / len(x), torch.zeros(()))
    return torch.cat([spikes.float(), latency], 1), labels


def counts(folder: str | Path, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Spike counts (n, 10 x 140), and labels."""
    data = SHD(folder, split, dt=0.1, channels=140, repeat=1, binary=False)
    x, labels = collate(fetch(data, range(len(data))))
    return x.float().movedim(0, 1).flatten(1), labels


def new_voices(folder: str, machines: list) -> list[dict[str, float]]:
    """Scores on each voice of models that learnt from the others."""
    found = []
    for voice in VOICES:
        with tempfile.TemporaryDirectory() as temporary:
            leave_out(voice, Path(folder), Path(temporary))
            found.append(best_of(machines, {split: counts(temporary, split) for split in SPLITS}))
    return found


def best_of(models: list, parts: dict) -> dict[str, float]:
    """Scores of the model that does best on validation."""
    fits = [model.fit(*parts["train"]) for model in models]
    best = max(fits, key=lambda fit: fit.score(*parts["validation"]))
    return {"model": str(best), "trained on": len(parts["train"][1])} | {s: best.score(*parts[s]) for s in SPLITS}


if __name__ == "__main__":
    regressions = [LogisticRegression(C=c, max_iter=2000) for c in (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)]
    machines = [SVC(C=c) for c in (1.0, 3.0, 10.0, 30.0, 100.0)]
    about = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "scikit-learn": sklearn.__version__}
    digits = best_of(regressions, {split: latencies(split) for split in SPLITS})
    speech = best_of(machines, {split: counts(sys.argv[1], split) for split in SPLITS})
    voices = new_voices(sys.argv[1], machines)
    write_json(OUT, {"about": about, "digits": digits, "speech": speech, "voices": voices})
    print(OUT.read_text())
