"""What `diagnose` says beforehand of the networks that users.py trains, and what became of them.

    python benchmarks/diagnoses.py

Networks are built and initialised as users.py does. `docs/tables/diagnosis.py` compares both.

Each finished diagnosis is a row of results/diagnoses.csv; diagnoses that are there are passed over.
"""

import argparse
import csv
import datetime
import time
import warnings
from dataclasses import replace
from pathlib import Path

import torch
from _users_networks import KINDS, data, frames
from tqdm import tqdm
from users import RATES, RESULTS, initialise, read, wrapped

from neurolsc.diagnosis.faults import findings
from neurolsc.diagnosis.report import examined

FOUND = Path(__file__).parent / "results" / "diagnoses.csv"
ARMS = ("built", "by hand", "kaiming", "Identity()")
COLUMNS = ("network", "family", "loss", "arm", "lr", "seed", "findings", "seconds", "date")


def diagnosed(network: str, loss: str, arm: str, seed: int, root: Path) -> list[dict]:
    """A row for every learning rate."""
    kind = KINDS[network]
    samples, labels = data(kind.data, root)["train"]
    torch.manual_seed(seed)
    net = kind.build(loss)
    chosen = torch.randperm(len(samples), generator=torch.Generator().manual_seed(seed))[: kind.batch]
    x = frames(kind.data, samples[chosen], torch.Generator().manual_seed(seed))
    initialise(net, arm, x, seed)
    began = time.process_time()
    case = examined(wrapped(net, x), x.flatten(2), labels[chosen], loss=loss)
    measuring = time.process_time() - began
    rows = []
    for lr in RATES:
        began = time.process_time()
        names = dict.fromkeys(finding.name for finding in findings(replace(case, lr=lr)))
        rows.append(
            {
                "network": network,
                "family": kind.family,
                "loss": loss,
                "arm": arm,
                "lr": lr,
                "seed": seed,
                "findings": "; ".join(names),
                "seconds": round(measuring + time.process_time() - began, 1),
                "date": datetime.date.today().isoformat(),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[20, 21])
    parser.add_argument("--root", type=Path, default=Path("real_digits"), help="train.h5 and test.h5, in SHD's layout")
    parser.add_argument("--out", type=Path, default=FOUND)
    parser.add_argument("--scores", type=Path, nargs="+", default=[RESULTS])
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    scored = [row for path in args.scores for row in read(path)]
    done = {(row["network"], row["loss"], row["arm"], row["seed"]) for row in read(args.out)}
    trained = dict.fromkeys((row["network"], row["loss"]) for row in scored)
    wanted = [(*cell, arm, seed) for seed in args.seeds for cell in trained for arm in ARMS]
    left = [each for each in wanted if (*each[:3], str(each[3])) not in done]
    for network, loss, arm, seed in tqdm(left):
        rows = diagnosed(network, loss, arm, seed, args.root)
        new = not args.out.exists()
        with args.out.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
