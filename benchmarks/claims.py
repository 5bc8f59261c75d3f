"""What of the paper is found: every figure and table at the small size, judged claim by claim.

    python benchmarks/claims.py [--seeds 3] [--out runs/claims] [--workers 2]

Runs `neurolsc reproduce` on all figures, on the data in the package, and writes
results/claims.json after each; whatever stops it, the same command goes on. Three seeds take
about three quarters of an hour of two cores.
"""

import argparse
import json
import os
import platform
from datetime import date
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import neurolsc
from neurolsc.reproduce import FIGURES, Asked, reproduce
from neurolsc.sweeps import Processes

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/claims"))
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()
    told: dict[str, object] = {
        "date": date.today().isoformat(),
        "neurolsc": neurolsc.__version__,
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "seeds": asked.seeds,
        "size": "small",
    }
    figures = {}
    for name, figure in FIGURES.items():
        folder = asked.out / name
        print(reproduce(figure, folder, Asked(seeds=asked.seeds), Processes(asked.workers)))
        found = json.loads((folder / "reading.json").read_text(encoding="utf-8"))
        figures[found["figure"]] = found["judged"]
        (RESULTS / "claims.json").write_text(json.dumps(told | {"figures": figures}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
