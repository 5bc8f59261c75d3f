"""What is promised of radii, checked at the points of random layers: within 1 % of LAPACK in
float64, or dense.

The reference is of the matrix as it stands in float32: where a surrogate jumps, the same states in
float64 may give another matrix. Dense radii must be right too, but where rounding alone may move
the eigenvalue by 1 %, at condition numbers of some 1e5. ``python benchmarks/radii_layers.py``
prints the worst points.
"""

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from tests.stability.random_layers import Points, layer

NOTHING = 1e-4
"""share of the norm below which a radius is lost in the rounding of float32: errors are relative to
no less"""
ALL = 900
"""layers in the whole suite: more than 10,000 points"""
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "radii_layers"


class Checked(NamedTuple):
    """Radii of some points next to LAPACK's, all (P,)."""

    radius: Tensor
    exact: Tensor  # by dense eigenvalues, as they say
    reference: Tensor  # by LAPACK in float64, of the matrix as it stands in float32
    error: Tensor  # relative to the reference, or to 1e-4 of the norm if that is more
    rounding: Tensor  # what float32 may do to the largest eigenvalue: eps |M| kappa / |lambda|, where error > 1 %

    @property
    def ill(self) -> Tensor:
        """Off, where rounding the entries of the matrix to float32 may move its largest eigenvalue
        by as much."""
        return (self.error > 0.01) & (self.rounding > 0.01)

    @property
    def wrong(self) -> Tensor:
        """Off by more than 1 %, and either not dense, or not beyond what float32 can say."""
        return (self.error > 0.01) & ~(self.exact & self.ill)


def check(points: Points, gradient: bool = False) -> Checked:
    """Compare radii, found with or without a gradient, which are two ways, with LAPACK."""
    with torch.set_grad_enabled(gradient):
        found = points.radii()
    m = points.matrices(torch.float32).double()
    reference = _radii(m, points.squared)
    norm = (m.abs().sum(1).amax(1) * m.abs().sum(2).amax(1)).sqrt()  # at least the largest singular value
    norm = norm.sqrt() if points.squared else norm
    radius, size = found.radius.detach().double(), torch.maximum(reference, NOTHING * norm)
    size = size.clamp(min=torch.finfo(torch.float32).tiny)
    error = (radius - reference).abs() / size
    rounding = torch.zeros_like(error)
    for i in (error > 0.01).nonzero().flatten().tolist():
        rounding[i] = _rounding(m[i])
    return Checked(radius, found.exact, reference, error, rounding)


def _radii(m: Tensor, squared: bool) -> Tensor:
    m = torch.where(m.abs() < torch.finfo(m.dtype).tiny, 0, m)  # with subnormal numbers LAPACK may fail to converge
    radius = torch.linalg.eigvals(m).abs().amax(1).double()
    return radius.sqrt() if squared else radius


def _rounding(m: Tensor) -> Tensor:
    values, right = torch.linalg.eig(m)
    largest = values.abs().argmax()
    left = torch.linalg.pinv(right, rtol=1e-14)[largest]
    kappa = left.norm() * right[:, largest].norm()
    rounding = torch.finfo(torch.float32).eps * torch.linalg.matrix_norm(m, 2) * kappa / values[largest].abs()
    return rounding.nan_to_num(torch.inf)


@dataclass(frozen=True)
class Worst:
    """The worst point of a layer in a direction."""

    number: int
    family: str
    direction: str
    what: str
    rate: float
    points: int
    wrong: int
    ill: int
    dense: int
    error: float
    found: float
    reference: float
    exact: bool
    rounding: float
    errors: list[float]


def survey(numbers: Iterable[int], gradient: bool | None = None) -> list[Worst]:
    """Check the layers with these numbers; every fifth with a gradient, or all, or none."""
    rows = []
    for number in numbers:
        for p in layer(number):
            c = check(p, number // 7 % 5 == 0 if gradient is None else gradient)
            i = int((c.error + c.wrong * 1e30).argmax())
            about = (number, p.family, p.direction, p.what, p.rate, len(c.error))
            counts = (int(c.wrong.sum()), int(c.ill.sum()), int(c.exact.sum()))
            worst = (
                c.error[i].item(),
                c.radius[i].item(),
                c.reference[i].item(),
                bool(c.exact[i]),
                c.rounding[i].item(),
            )
            rows.append(Worst(*about, *counts, *worst, c.error[~c.ill].tolist()))
    return rows


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
    parser.add_argument("--layers", type=int, default=ALL)
    parser.add_argument("--start", type=int, default=0, help="number of the first layer")
    parser.add_argument("--gradient", action="store_true", help="all radii with a gradient, not every fifth layer's")
    parser.add_argument("--no-results", action="store_true", help="print only")
    arguments = parser.parse_args()
    started = time.process_time()
    numbers = range(arguments.start, arguments.start + arguments.layers)
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
