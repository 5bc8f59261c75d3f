"""Are radii what is promised?  python benchmarks/radii_layers.py [--layers 900] [--first 0]
[--gradient] [--no-results]

More than 10,000 points of random layers, the same as in tests/stability/test_arnoldi.py, each against
LAPACK in float64. Prints a table by families and the worst points; writes results/radii_layers.json
and .md. Set OMP_NUM_THREADS=1: small eigenvalue problems are many times slower with more threads.
Two or three minutes of one core.
"""

import argparse
import json
import sys
import time
from collections import defaultdict
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # the layers are those of the tests

from tests.stability.promise import Worst, survey

RESULTS = Path(__file__).parent / "results" / "radii_layers"


def by_family(rows: list[Worst]) -> str:
    """A table of the families in each direction."""
    groups = defaultdict(list)
    for row in rows:
        groups[row.direction, row.family].append(row)
        groups["all", ""].append(row)
    lines = [
        "| direction | recurrence or input weights | points | wrong | ill | dense | error p99 | worst |",
        "| --- " * 8 + "|",
    ]
    for (direction, family), some in sorted(groups.items()):
        points, wrong, ill, dense = (sum(getattr(r, k) for r in some) for k in ("points", "wrong", "ill", "dense"))
        errors = torch.tensor([e for r in some for e in r.errors] or [0.0], dtype=torch.float64)
        p99, worst = errors.quantile(0.99), errors.max()
        lines.append(
            f"| {direction} | {family} | {points} | {wrong} | {ill} | {dense / points:.0%} | {p99:.2%} | {worst:.3g} |"
        )
    return "\n".join(lines)


def worst(rows: list[Worst], count: int = 25) -> str:
    """The layers whose points are furthest off, wrong ones first."""
    lines = ["| layer | direction | wrong | error | found | LAPACK | by | rounding | what |", "| --- " * 9 + "|"]
    for r in sorted(rows, key=lambda r: (r.wrong == 0, -r.error))[:count]:
        by = "dense" if r.exact else "products"
        lines.append(
            f"| {r.number} | {r.direction} | {r.wrong} of {r.points} | {r.error:.3g} | {r.found:.5g} | {r.reference:.5g} "
            f"| {by} | {r.rounding:.1g} | {r.what}; rate {r.rate:.3f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Check, print and write down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=720)
    parser.add_argument("--first", type=int, default=0, help="number of the first layer")
    parser.add_argument("--gradient", action="store_true", help="all radii with a gradient, not every fifth layer's")
    parser.add_argument("--no-results", action="store_true", help="print only")
    arguments = parser.parse_args()
    started = time.process_time()
    numbers = range(arguments.first, arguments.first + arguments.layers)
    rows = survey(numbers, arguments.gradient or None)
    points, wrong = sum(r.points for r in rows), sum(r.wrong for r in rows)
    text = f"{points} points of {arguments.layers} layers, {wrong} wrong. "
    text += "ill: float32 cannot say, see tests/stability/promise.py; counted apart from errors.\n\n"
    text += f"{by_family(rows)}\n\n{worst(rows)}\n"
    print(text, f"{time.process_time() - started:.0f} s")
    if not arguments.no_results:
        about = {"torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
        kept = [{k: v for k, v in vars(r).items() if k != "errors"} for r in rows]
        RESULTS.with_suffix(".json").write_text(json.dumps({"about": about, "layers": kept}, indent=1) + "\n")
        RESULTS.with_suffix(".md").write_text(text)


if __name__ == "__main__":
    main()
