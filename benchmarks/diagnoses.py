"""What `diagnose` says beforehand of the networks that users.py trains, and what became of them.

    python benchmarks/diagnoses.py                     diagnose networks as users.py builds them
    python benchmarks/diagnoses.py --table             hits and false alarms

A cell is a network, a loss, an initialisation and a learning rate. By the scores of users.py it *fails* if it ends
below half of the best mean score of that network and loss, *learns* if it reaches nine tenths of it, and lies between
otherwise. A cell that fails is a hit if `diagnose` finds anything. A cell that learns is a false alarm if it is told to
change something other than its learning rate. Rules were set on the families of SET; the others are held back.

Each finished diagnosis is a row of results/diagnoses.csv; diagnoses that are there are passed over.
"""

import argparse
import csv
import datetime
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

import torch
from _users_networks import KINDS, data, frames
from tqdm import tqdm
from users import RATES, RESULTS, initialise, read, wrapped

from neurolsc.diagnosis.faults import findings
from neurolsc.diagnosis.report import examined

FOUND = Path(__file__).parent / "results" / "diagnoses.csv"
SET = ("Leaky", "RLeaky")  # families on which the rules were set
ARMS = ("built", "by hand", "kaiming", "Identity()")
OF_THE_RATE = ("learning rate too high", "learning rate too high for a layer")
COLUMNS = ("network", "family", "loss", "arm", "lr", "seed", "findings", "seconds", "date")
FAILS, LEARNS = 0.5, 0.9  # shares of the best score


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


# ---------------------------------------------------------------- the table


def outcomes(rows: Sequence[dict[str, str]]) -> dict[tuple[str, str, str, float], str]:
    """What became of each cell by the scores of users.py: "fails", "learns" or "between"."""
    scores: dict[tuple[str, str, str, float], list[float]] = {}
    for row in rows:
        cell = (row["network"], row["loss"], row["arm"], float(row["lr"]))
        scores.setdefault(cell, []).append(float(row["test"]))
    means = {cell: mean(each) for cell, each in scores.items()}
    found = {}
    for cell, score in means.items():
        best = max(other for (network, loss, *_), other in means.items() if (network, loss) == cell[:2])
        found[cell] = "between"
        if score < FAILS * best:
            found[cell] = "fails"
        elif score >= LEARNS * best:
            found[cell] = "learns"
    return found


def told_to_change(row: dict[str, str]) -> bool:
    """True if something other than the learning rate is to be changed."""
    return any(name not in OF_THE_RATE for name in row["findings"].split("; ") if name)


def counts(rows: Sequence[dict[str, str]], became: dict[tuple[str, str, str, float], str]) -> list[list[str]]:
    """A line for each family: cells that fail, hits; cells that learn, false alarms; cells between, named."""
    lines = []
    halves = {"set": [r for r in rows if r["family"] in SET], "held back": [r for r in rows if r["family"] not in SET]}
    groups = dict(halves)
    for row in rows:
        groups.setdefault(row["family"], []).append(row)
    for name, of_group in groups.items():
        by_end: dict[str, list[dict[str, str]]] = {"fails": [], "learns": [], "between": []}
        for row in of_group:
            end = became.get((row["network"], row["loss"], row["arm"], float(row["lr"])))
            if end is not None:
                by_end[end].append(row)
        hits = sum(bool(row["findings"]) for row in by_end["fails"])
        alarms = sum(told_to_change(row) for row in by_end["learns"])
        named = sum(bool(row["findings"]) for row in by_end["between"])
        lines.append(
            [
                name,
                f"{hits} of {len(by_end['fails'])}",
                f"{alarms} of {len(by_end['learns'])}",
                f"{named} of {len(by_end['between'])}",
            ]
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=[20, 21])
    parser.add_argument("--root", type=Path, default=Path("real_digits"), help="train.h5 and test.h5, in SHD's layout")
    parser.add_argument("--out", type=Path, default=FOUND)
    parser.add_argument("--scores", type=Path, nargs="+", default=[RESULTS])
    parser.add_argument("--table", action="store_true", help="print the table and diagnose nothing")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    scored = [row for path in args.scores for row in read(path)]
    if not args.table:
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
    for line in counts(read(args.out), outcomes(scored)):
        print("| " + " | ".join(line) + " |")


if __name__ == "__main__":
    main()
