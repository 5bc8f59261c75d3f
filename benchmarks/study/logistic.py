"""What does logistic regression make of the digits that the demo's networks learn?

    python benchmarks/study/logistic.py

1,800 spike-latency digits of the package, as latencies (1 minus the share of the recording until
the pixel's spike; 0 without one) and whether the pixel spikes at all; scikit-learn's regression
with the strength of regularization that does best on the 200 validation digits. Writes
results/study_logistic.json.
"""

from datetime import UTC, datetime
from pathlib import Path

import sklearn
import torch
from sklearn.linear_model import LogisticRegression

from neurolsc.datasets import SpikeLatencyMNIST, collate
from neurolsc.datasets.batches import fetch
from neurolsc.io import write_json

OUT = Path(__file__).parents[1] / "results" / "study_logistic.json"
STRENGTHS = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)


def features(split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Latencies and spikes of every pixel (n, 2 x 784), and labels."""
    data = SpikeLatencyMNIST.embedded(split)
    x, labels = collate(fetch(data, range(len(data))))
    spikes = x.bool().any(0)
    latency = torch.where(spikes, 1 - x.int().argmax(0) / len(x), torch.zeros(()))
    return torch.cat([spikes.float(), latency], 1), labels


if __name__ == "__main__":
    parts = {split: features(split) for split in ("train", "validation", "test")}
    fits = [LogisticRegression(C=strength, max_iter=2000).fit(*parts["train"]) for strength in STRENGTHS]
    best = max(fits, key=lambda fit: fit.score(*parts["validation"]))
    scores = {split: best.score(*parts[split]) for split in parts}
    about = {"date": f"{datetime.now(UTC):%Y-%m-%d}", "scikit-learn": sklearn.__version__, "C": best.C}
    write_json(OUT, {"about": about, **scores})
    print(OUT.read_text())
