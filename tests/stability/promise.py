"""What is promised of radii, checked at the points of random layers: within 1 % of LAPACK in
float64, or dense.

The reference is of the matrix as it stands in float32: where a surrogate jumps, the same states in
float64 may give another matrix. Dense radii must be right too, but where rounding alone may move
the eigenvalue by 1 %, at condition numbers of some 1e5. ``python benchmarks/radii_layers.py``
prints the worst points.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tests.stability.random_layers import FAMILIES, KINDS, Points, layer

NOTHING = 1e-4  # share of the norm below which a radius is lost in float32: errors are relative to no less
ALL = 2 * len(KINDS) * len(FAMILIES)  # layers in the whole suite


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
