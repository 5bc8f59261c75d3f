r"""The maps of which the derivatives of an LRU block are made, in closed form.

A state (x, u) has the real and imaginary part of every x side by side, then u. A complex number a
+ ib multiplies such a pair as :math:`\begin{pmatrix} a & -b \\ b & a \end{pmatrix}`, so the moduli
of its eigenvalues are those of λ, each twice.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from neurolsc.eigen.known import Known
from neurolsc.eigen.maps import Map
from neurolsc.neurons.derivatives import StepMap, Term

MEMORY = Term("memory", "make lambda smaller", "make lambda larger", "#0072b2")


def parts(x: Tensor) -> Tensor:
    """Complex (..., n) as real and imaginary parts side by side (..., 2 n)."""
    return torch.view_as_real(x).flatten(-2)


def whole(x: Tensor) -> Tensor:
    """The inverse of :func:`parts`."""
    return torch.complex(*x.unflatten(-1, (-1, 2)).unbind(-1))


class Rotated(StepMap):
    """d (x', u') / d (x, u): x is multiplied by lambda, and u is read anew in every step."""

    splits = True  # into pairs

    def __init__(self, eigenvalues: Tensor, beside: int, points: int) -> None:
        self.eigenvalues, self.beside, self.points = eigenvalues, beside, points
        self.rows = self.columns = 2 * len(eigenvalues) + beside

    def times(self, x: Tensor) -> Tensor:
        return self._by(self.eigenvalues, x)

    def transposed(self, y: Tensor) -> Tensor:
        return self._by(self.eigenvalues.conj(), y)

    def _by(self, factor: Tensor, x: Tensor) -> Tensor:
        memory = x[:, : self.rows - self.beside]
        return pad(parts(factor * whole(memory)), (0, self.beside))

    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {"memory": (y * self.times(x)).sum(1)}

    def take(self, index: Tensor) -> "Rotated":
        return Rotated(self.eigenvalues, self.beside, len(index))

    def known(self, right: bool, tolerance: float) -> Known:
        """Lambda itself is known, and so is the largest."""
        eigenvalues = self.eigenvalues.detach()
        i = eigenvalues.abs().argmax()
        vector = torch.zeros(self.rows, dtype=eigenvalues.dtype, device=eigenvalues.device)
        vector[2 * i] = 0.5**0.5
        vector[2 * i + 1] = (-1j if right else 1j) * 0.5**0.5
        sure = torch.ones(self.points, dtype=torch.bool, device=eigenvalues.device)
        return Known(eigenvalues[i].expand(self.points), vector.expand(self.points, -1), sure, sure)


class Entering(Map):
    """d (x', u') / d u: through norm and B into the memory, and u itself.

    With ``beside=False`` only into the memory.
    """

    splits = False

    def __init__(self, norm: "Norm", into: Tensor, beside: bool) -> None:
        self.norm, self.into, self.beside = norm, into, beside  # into: (2 n_state, n_hidden)
        self.columns = into.shape[1]
        self.rows = len(into) + self.columns

    def times(self, x: Tensor) -> Tensor:
        return torch.cat((self.norm.times(x) @ self.into.T, x if self.beside else torch.zeros_like(x)), 1)

    def transposed(self, y: Tensor) -> Tensor:
        memory, beside = y.split([len(self.into), self.columns], 1)
        back = self.norm.transposed(memory @ self.into)
        return back + beside if self.beside else back

    def take(self, index: Tensor) -> "Entering":
        return Entering(self.norm.take(index), self.into, self.beside)


class Leaving(Map):
    """d o / d (x, u): through C, D, GELU and GLU, and u itself.

    With ``beside=False`` only through C.
    """

    splits = False

    def __init__(self, at: "Sending", beside: bool) -> None:
        self.at, self.beside = at, beside
        self.rows = len(at.d)
        self.columns = at.out.shape[1] + self.rows

    def times(self, x: Tensor) -> Tensor:
        at = self.at
        memory, u = x.split([at.out.shape[1], self.rows], 1)
        y = memory @ at.out.T
        if self.beside:
            y = y + at.d * at.norm.times(u)
        sent = (at.glu * ((at.gelu * y) @ at.weight.T).view(-1, 2, self.rows)).sum(1)
        return sent + u if self.beside else sent

    def transposed(self, y: Tensor) -> Tensor:
        at = self.at
        inner = at.gelu * ((at.glu * y.unsqueeze(1)).flatten(1) @ at.weight)
        u = y + at.norm.transposed(at.d * inner) if self.beside else torch.zeros_like(y)
        return torch.cat((inner @ at.out, u), 1)

    def take(self, index: Tensor) -> "Leaving":
        return Leaving(self.at.take(index), self.beside)


class Norm(NamedTuple):
    """A layer norm at P points, differentiated."""

    weight: Tensor
    """(n,)"""
    unit: Tensor
    """u without its mean, of variance 1 (P, n)"""
    scale: Tensor
    """1 / deviation (P, 1)"""

    @classmethod
    def at(cls, weight: Tensor, u: Tensor, eps: float = 1e-5) -> "Norm":
        """That of :func:`torch.nn.functional.layer_norm`."""
        centred = u - u.mean(1, keepdim=True)
        scale = (centred.square().mean(1, keepdim=True) + eps).rsqrt()
        return cls(weight, centred * scale, scale)

    def times(self, x: Tensor) -> Tensor:
        return self.weight * self._projected(x)

    def transposed(self, y: Tensor) -> Tensor:
        return self._projected(self.weight * y)

    def _projected(self, x: Tensor) -> Tensor:
        x = x - x.mean(1, keepdim=True)
        return self.scale * (x - self.unit * (self.unit * x).mean(1, keepdim=True))

    def take(self, index: Tensor) -> "Norm":
        return Norm(self.weight, self.unit[index], self.scale[index])


class Sending(NamedTuple):
    """What a block sends, differentiated at P points."""

    out: Tensor
    """C on pairs of parts (n_hidden, 2 n_state)"""
    d: Tensor
    """(n_hidden,)"""
    norm: Norm
    gelu: Tensor
    """slope of GELU (P, n_hidden)"""
    weight: Tensor
    """of GLU (2 n_hidden, n_hidden)"""
    glu: Tensor
    """what its two halves do to the product (P, 2, n_hidden)"""

    def take(self, index: Tensor) -> "Sending":
        return self._replace(norm=self.norm.take(index), gelu=self.gelu[index], glu=self.glu[index])


def gelu_slope(y: Tensor) -> Tensor:
    r"""The derivative of GELU, :math:`\Phi(y) + y \varphi(y)`."""
    density = torch.exp(-y.square() / 2) / (2 * torch.pi) ** 0.5
    return torch.special.ndtr(y) + y * density


def as_matrices(maps: Sequence[Map], points: int, like: Tensor) -> Tensor:
    """The product of maps as matrices (P, rows, columns)."""
    columns = maps[0].columns
    at = torch.arange(points, device=like.device).repeat_interleave(columns)
    x = torch.eye(columns, dtype=like.dtype, device=like.device).repeat(points, 1)
    for part in maps:
        x = part.take(at).times(x)
    return x.view(points, columns, -1).mT
