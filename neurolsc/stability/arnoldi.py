r"""Spectral radii of linear operators from their products with vectors, many operators at once.

`radii` takes a square operator at P points. A small operator becomes a matrix (:mod:`neurolsc.stability.eigen`). An
LRU states its radius, and single neurons often tell that of their layer (:mod:`neurolsc.stability.isolated`). All other
points go by Arnoldi's process: products with the operator build a basis at each point, from a random start and without
restarts. A point that does not settle, as where hundreds of eigenvalues are about as large as the largest, becomes a
matrix, whose radius repeated squaring bounds from both sides. Where these bounds do not meet, LAPACK finds the radius,
which then counts as exact.

**Arnoldi's value is accepted** if no larger eigenvalue is left out, and if it is an eigenvalue itself.

*Nothing larger is left out.* On the basis v_0 = q, v_1, ... each vector is a polynomial of the matrix applied to the
start, :math:`v_k = \varphi_k(M) q`, and of all polynomials of degree m with p(μ) = 1 the smallest has

.. math:: \min_p \|p(M) q\| = K_m(\mu)^{-1/2}, \qquad K_m(\mu) = \sum_{k \le m} |\varphi_k(\mu)|^2.

If μ is an eigenvalue of M with left eigenvector y of norm 1, :math:`y^H p(M) q = p(\mu) y^H q`, so
:math:`|y^H q| \le K_m(\mu)^{-1/2}`, whether M is normal or not. For a random q (n,) of norm 1,
:math:`\sqrt n |y^H q|` is about 1. It is below a small z with a probability of about z for a real y, and of z² for a
complex one. So an eigenvalue at μ is excluded, but for one start in four hundred, where :math:`z^2 K_m(\mu) \ge n`.
That is checked at some angles on a circle around 0, whose radius is the modulus of the value enlarged by the tolerance.

*It is an eigenvalue* if its residual times the condition number of the eigenvalue is small. The condition number is
taken from the basis, and is too low as long as the left eigenvector does not lie in the basis; so the product may be at
most a fifth of the tolerance. Rounding counts like a residual: a nilpotent matrix, whose radius is 0, has eigenvalues
of :math:`\sqrt[k]{\epsilon}\,\|M\|` when it is rounded. So no value is accepted below 1 % of the norm, nor where
products are smaller than 7e-16, since squares of their entries underflow in float32. A radius below 1e-4 of the norm is
lost in float32: errors of radii are relative to the radius, or to 1e-4 of the norm if that is more.

Source: Arnoldi 1951; Saad, Numerical Methods for Large Eigenvalue Problems (2011), ch. 6; two passes of
orthogonalisation after Giraud et al. 2005; Kuczynski and Wozniakowski, SIAM J. Matrix Anal. Appl. 13 (1992), for
excluding in the symmetric case (K is the Christoffel-Darboux kernel).
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from neurolsc.stability.eigen import (
    FEW,
    SMALLEST_MISS,
    Dominant,
    bounded_radius,
    dominant_pairs,
    leading_pair,
    norm,
    rows_times,
    spectral_radius,
    start,
    unit,
)
from neurolsc.stability.isolated import pairs_of_blocks, radii_of_blocks
from neurolsc.stability.transitions import OperatorProduct

Method = Literal["krylov", "exact"]  # by products with vectors where that pays, or always dense
METHODS: tuple[Method, ...] = ("krylov", "exact")

DENSE_BELOW = 75  # size up to which dense eigenvalues cost no more than a basis (benchmarks/radii.py)
# size up to which matrices are squared, and up to which eigenvectors come from factorisations, one point at a time
FACTORED_BELOW = 1024
TOLERANCE = 0.01  # largest relative error of a radius that is not from dense eigenvalues
# largest relative residual of an eigenvalue
RESIDUAL_TOL = 0.5 * TOLERANCE
GRAD_RESIDUAL_TOL = 0.3 * TOLERANCE  # the same where the gradient of the eigenvalue is wanted, too
TWO_SIDED_RESIDUAL_TOL = 0.1 * TOLERANCE  # the same where left and right eigenvector come from two bases
CONDITIONED_RESIDUAL_TOL = 0.2 * TOLERANCE  # largest relative residual times condition number
SMALLEST_MODULUS = 0.01  # modulus relative to the norm of the matrix below which no value is accepted
# Norms of products below this power of the dtype's smallest number (7e-16 in float32) are too small: squares of entries
# underflow.
SQUARES = 0.4
FIRST = 36  # size of the first basis
FIRST_OF_FEW = 60  # of at most FEW points: the eigenvalues on their bases take as long as fifty products
LAST = 108  # size of the last basis, or three quarters of the matrix if that is less
SETTLED_FRACTION = 0.3  # share of the points expected to settle at the next size
# One pass of orthogonalisation will do if the part of a product outside the basis is at least half the part within it.
ONE_PASS_FRACTION = 0.5
# Eigenvalues are excluded at the ends of so many parts of the half circle, and at the angle of the value itself; those
# of real matrices are symmetric.
ANGLES = 16
# z of the module's text: a left eigenvector has so small a share of a random start in one of 400 cases.
CHANCE_REAL = 0.003  # of a real eigenvalue
CHANCE_COMPLEX = 0.05  # of one of a complex pair
QUOTIENT_STEPS = 6  # of Rayleigh quotient iteration, whose error is cubed at each: more do not help

Array = np.ndarray[Any, Any]
# Given the indices of points (p,), returns the function that multiplies vectors (p, n) with the matrices there.
Products = Callable[[Tensor], Callable[[Tensor], Tensor]]


class Radii(NamedTuple):
    """Radii of a batch of derivatives."""

    radius: Tensor  # (P,) largest eigenvalue modulus
    exact: Tensor  # (P,) bool: True if it is from dense eigenvalues, or from the blocks of single neurons

    def at(self, index: Tensor) -> "Radii":
        """The radii at some points, in the order of their indices."""
        return Radii(self.radius[index], self.exact[index])


class Pairs(NamedTuple):
    """An eigenvalue of each of P matrices with its eigenvectors, scaled so that y^H x = 1."""

    value: Tensor  # (P,) complex
    right: Tensor  # x (P, n) complex
    left: Tensor  # y (P, n) complex
    found: Tensor  # (P,) bool: the iteration has converged


def radii(operator: OperatorProduct, like: Tensor, method: Method = "krylov") -> Radii:
    """Return the spectral radii of an operator at all P points, differentiable by the parameters behind its products.

    Where several eigenvalues share the largest modulus, or lie within the tolerance of it, the gradient is that of one
    of them. The gradient of the radius 0 is 0. For nearly defective matrices LAPACK finds the eigenvalue, and their
    gradient is capped.

    Args:
        operator: the operator, square.
        like: a tensor of the operator's dtype and device.
        method: as in :func:`neurolsc.radius_profile`.

    Returns:
        The radii (P,), and which of them are exact.

    Raises:
        FloatingPointError: if a product is NaN or infinite.
    """
    blocks = operator.blocks()
    if blocks is not None and method != "exact":
        finite(blocks.k)
        return _all_exact(radii_of_blocks(blocks))
    if method == "exact" or operator.size <= DENSE_BELOW:
        points_at_once = points_with_matrices(operator.size)
        radii_of = _dense_radii
    else:
        points_at_once = points_with_bases(like, operator.size)
        radii_of = _radii_without_gradient
        if torch.is_grad_enabled():
            radii_of = _radii_with_gradient
    indices = torch.arange(operator.points, device=like.device).split(points_at_once)
    if len(indices) == 1:  # without the copies of `take`
        return radii_of(operator, like)
    parts = [radii_of(operator.take(index), like) for index in indices]
    return Radii(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _all_exact(radius: Tensor) -> Radii:
    return Radii(radius, torch.ones_like(radius, dtype=torch.bool))


def _dense_radii(operator: OperatorProduct, like: Tensor) -> Radii:
    """Radii by the eigenvalues of the matrices, differentiable."""
    return _all_exact(spectral_radius(finite(operator.matrices(like))))


def _radii_without_gradient(operator: OperatorProduct, like: Tensor) -> Radii:
    """Radii by products; by LAPACK, one point after the other, where products do not settle a point."""
    largest = _dominant(operator, like, RESIDUAL_TOL)
    radius = largest.value.abs()
    for i in (~largest.settled).nonzero().flatten().tolist():
        radius[i] = spectral_radius(finite(operator.matrix(i, like)))
    return Radii(radius, ~largest.settled)


def _radii_with_gradient(operator: OperatorProduct, like: Tensor) -> Radii:
    """Radii with a gradient, from the eigenvectors of the largest eigenvalue."""
    with torch.no_grad():
        radius, pairs, exact = _pairs(operator, like)
    # With x, y and the eigenvalue l fixed, Re(conj(l) y^H M x) / |l| is the radius, and has its gradient by M.
    x = pairs.right
    y = pairs.left
    by_real = operator.rmatvec(y.real.contiguous())
    by_imaginary = operator.rmatvec(y.imag.contiguous())
    real = (by_real * x.real + by_imaginary * x.imag).sum(1)
    imaginary = (by_real * x.imag - by_imaginary * x.real).sum(1)
    phase = torch.where(pairs.value == 0, 0, pairs.value / pairs.value.abs())
    with_gradient = phase.real * real + phase.imag * imaginary
    # the value is `radius`, the gradient that of `with_gradient`
    return Radii(radius + (with_gradient - with_gradient.detach()), exact)


@torch.no_grad()
def leading_pairs(operator: OperatorProduct, like: Tensor) -> Pairs:
    """Return the largest eigenvalue and its eigenvectors at every point, without gradient.

    They are found as in :func:`radii`: by blocks of single neurons, by products, or by LAPACK for small matrices.
    """
    blocks = operator.blocks()
    if blocks is None and operator.size > DENSE_BELOW:
        _, pairs, _ = _pairs(operator, like)
        return pairs
    if blocks is not None:
        finite(blocks.k)
        value, right, left = pairs_of_blocks(blocks)
    else:
        found = [leading_pair(finite(m)) for m in operator.matrices(like)]
        kind = like.dtype.to_complex()
        value, right, left = (torch.stack(part).to(like.device, kind) for part in zip(*found, strict=True))
    return Pairs(value, right, left, torch.ones_like(value, dtype=torch.bool))


def safe_sqrt(radius: Tensor) -> Tensor:
    """The square root, whose gradient at 0 is 0."""
    positive = torch.where(radius > 0, radius, 1)  # the derivative at 0 is infinite, and infinity times 0 is NaN
    return torch.where(radius > 0, positive.sqrt(), 0)


def points_with_bases(like: Tensor, size: int) -> int:
    """Return how many points are done at a time, so that bases of vectors of this size fit into memory."""
    if like.device.type == "cpu":
        numbers = 2**17  # in one vector of every basis: LAST + 1 vectors take 57 MB in float32
    else:
        numbers = 2**20  # 460 MB
    return max(1, numbers // size)


def points_with_matrices(size: int) -> int:
    """Return how many points are done at a time, so that matrices of this size fit into memory."""
    return max(1, 2**23 // size**2)  # 64 MiB in float64


def finite(m: Tensor) -> Tensor:
    """The matrices, if no entry is NaN or infinite."""
    if not m.isfinite().all():
        raise FloatingPointError("a derivative holds NaN or infinity.")
    return m


def _dominant(operator: OperatorProduct, like: Tensor, residual: float, *, right: bool = False) -> Dominant:
    """Find the largest eigenvalue of each point with its left eigenvector, or with ``right=True`` its right one.

    Left ones take products with the transpose, which are cheaper by autograd. The methods are tried from the cheapest
    on: hints of isolated neurons or of an LRU, Arnoldi, squaring. Where none of them settles a point, its value and
    vector are a guess: the caller takes LAPACK there. `residual` is the largest relative residual of Arnoldi's
    eigenvalues.
    """
    points = operator.points
    hint = operator.eigenpair_hint(right, TOLERANCE)
    if hint is None:
        value = like.new_zeros(points, dtype=like.dtype.to_complex())
        found = Dominant(value, value.new_zeros(points, operator.size), torch.zeros_like(value, dtype=torch.bool))
        known = value.clone()  # eigenvalues that exist, 0 where none is known
    else:
        found = Dominant(hint.value.clone(), hint.vector.clone(), hint.largest.clone())
        known = torch.where(hint.exists, hint.value, 0)
    rest = (~found.settled).nonzero().squeeze(1)
    if not len(rest):
        return found
    if len(rest) == points:
        unsettled = operator
    else:
        unsettled = operator.take(rest)

    def products(index: Tensor) -> Callable[[Tensor], Tensor]:
        """The products with M, or its transpose, at some of the unsettled points."""
        if len(index) == unsettled.points:
            part = unsettled
        else:
            part = unsettled.take(index)
        if right:
            return part.matvec
        return part.rmatvec

    new = arnoldi(products, start(operator.size, like).expand(len(rest), -1), known[rest], residual)
    if not right:  # M is real, so M^T y = l y means y^H M = conj(l) y^H
        new = new._replace(value=new.value.conj())
    found.settled[rest] = new.settled
    larger = new.value.abs() > known[rest].abs()  # elsewhere the pair of the hint stands
    found.value[rest[larger]] = new.value[larger]
    found.vector[rest[larger]] = new.vector[larger]
    rest = rest[~new.settled]
    if operator.size <= FACTORED_BELOW and len(rest):
        # Try one point first: if squaring does not settle it, it hardly settles the others, and costs half of LAPACK.
        settles = _by_squaring(operator, like, rest[:1], found, right=right)
        if settles and len(rest) > 1:
            _by_squaring(operator, like, rest[1:], found, right=right)
    return found


def _by_squaring(operator: OperatorProduct, like: Tensor, points: Tensor, found: Dominant, *, right: bool) -> bool:
    """Square the matrices at the points with some indices (p,), and write the pairs that settle into `found`.

    `found` has all points. Its vectors are left ones, or with ``right=True`` right ones.

    Returns:
        True if any settles.
    """
    kind = like.dtype.to_complex()
    for index in points.split(points_with_matrices(operator.size)):
        m = finite(operator.take(index).matrices(like))
        if not right:
            m = m.mT
        value, vector, settled = bounded_radius(m, TOLERANCE)
        where = index[settled]
        value = value[settled].to(kind)
        found.value[where] = value if right else value.conj()  # M is real: M^T y = l y means y^H M = conj(l) y^H
        found.vector[where] = vector[settled].to(kind)
        found.settled[where] = True
    return bool(found.settled[points].any())


# ---- Arnoldi's process


class Basis:
    r"""Orthonormal bases of P matrices M: the next vector is M times the last one, made orthogonal to all before.

    .. math:: M V_m = V_{m+1} H_m

    Args:
        products: for the indices of points (p,), the function that multiplies vectors (p, n) with the matrices there.
        first: the first vectors (P, n), of any norm.
        most: largest number of products m.

    Attributes:
        count: m, the number of products so far.
        points: indices of the points that are left (p,); `select` drops the others.
        vectors: V at these points (p, m + 1, n), a vector in each row.
        h: H at these points (p, m + 1, m).
    """

    def __init__(self, products: Products, first: Tensor, most: int) -> None:
        self.products = products
        self.count = 0
        self.points = torch.arange(len(first), device=first.device)
        self._vectors = first.new_empty(len(first), most + 1, first.shape[1])
        self._columns = first.new_zeros(len(first), most, most + 1)  # H by its columns
        self._vectors[:, 0] = first / norm(first).unsqueeze(1)

    @property
    def vectors(self) -> Tensor:
        return self._vectors[:, : self.count + 1]

    @property
    def h(self) -> Tensor:
        return self._columns[:, : self.count, : self.count + 1].mT

    def select(self, index: Tensor) -> None:
        """Keep only some of the points, by their places (k,) among those left."""
        if len(index) == len(self.points):
            return
        kept = self.vectors[index]
        self.points = self.points[index]
        self._columns = self._columns[index]
        self._vectors = self._vectors[: len(index)]  # the same memory, to allocate no second one
        self.vectors.copy_(kept)

    def extend(self, count: int) -> None:
        """Go on until there are `count` products; after a product that lies in the basis all vectors are 0."""
        points_at_once = len(self.points)
        if self.points.device.type == "cpu":  # so few that their vectors, 4 MiB in float32, stay in the cache
            points_at_once = max(8, 2**20 // (count * self._vectors.shape[2]))  # at least 8: calls cost too
        for first in range(0, len(self.points), points_at_once):
            some = slice(first, first + points_at_once)
            product = self.products(self.points[some])
            vectors = self._vectors[some]
            columns = self._columns[some]
            for m in range(self.count, count):
                orthogonalise(vectors, columns, m + 1, product(vectors[:, m]))
        self.count = count
        if not self.h.sum().isfinite():  # as soon as one entry is not
            raise FloatingPointError("a product with a derivative holds NaN or infinity.")


def _has_loops(like: Tensor) -> bool:
    """True if a tensor has the device and dtype that the compiled loops read."""
    return like.device.type == "cpu" and like.dtype in (torch.float32, torch.float64)


def orthogonalise(vectors: Tensor, columns: Tensor, m: int, product: Tensor) -> None:
    """Make a product orthogonal to the basis, and write it as the next vector, with its column of H, in place.

    Args:
        vectors: V (p, most + 1, n), of which vectors 0 to m - 1 are known; vector m is written: 0 if the product lies
            in the basis.
        columns: H by its columns (p, most, most + 1), of which column m - 1, zero so far, is written.
        m: number of vectors so far.
        product: M times vector m - 1 at each point (p, n).
    """
    eps = 10 * torch.finfo(vectors.dtype).eps  # rounding leaves a smaller share of a product that lies in the basis
    if _has_loops(vectors):
        number = vectors.numpy().dtype.type  # with Python's own numbers the loops would compute in float64
        arrays = (vectors.numpy(), columns.numpy(), product.detach().contiguous().numpy())
        compiled(_widen)(*arrays, m, number(ONE_PASS_FRACTION), number(eps), number(0), number(1))
        return
    basis = vectors[:, :m]
    column = columns[:, m - 1, : m + 1]
    rest = norm(product)  # norm of the part outside the basis
    for _ in range(2):  # once is not enough where a product lies nearly in the basis
        # a row times a matrix: ten times as fast in torch as a matrix times a column
        along = product.unsqueeze(1) @ basis.mT
        product = torch.baddbmm(product.unsqueeze(1), along, basis, alpha=-1).squeeze(1)
        column[:, :-1] += along.squeeze(1)
        size = norm(along.squeeze(1))
        rest = norm(product)
        if (rest > ONE_PASS_FRACTION * size).all():
            break
    new = rest > eps * norm(column[:, :-1])  # elsewhere the product lies in the basis, and what is left is rounding
    column[:, -1] = torch.where(new, rest, 0)
    torch.mul(product, torch.where(new, 1 / rest, 0).unsqueeze(1), out=vectors[:, m])


def arnoldi(products: Products, first: Tensor, least: Tensor, residual: float) -> Dominant:
    """Find the eigenvalue of largest modulus of P matrices, with a right eigenvector.

    A point is one of the matrices. Bases of all points grow together, from FIRST or FIRST_OF_FEW to at most LAST
    vectors; a point that settles leaves.

    Args:
        products: for the indices of points (p,), the function that multiplies vectors (p, n) with the matrices there.
        first: random vectors to start from (P, n).
        least: an eigenvalue of each matrix that is known (P,), complex; 0 if none is. A value found whose modulus
            exceeds that of the known one by less than half the tolerance is not checked to be an eigenvalue itself.
        residual: largest norm of M x - value x, relative to the modulus of the value.

    Returns:
        Values, vectors, and which of them are settled; the others are those of the last basis. Where a settled value is
        below that of `least`, the largest eigenvalue is that of `least`.
    """
    n = first.shape[1]
    count = min(FIRST if len(first) > FEW else FIRST_OF_FEW, n)
    last = max(count, min(LAST, 3 * n // 4))
    eps = torch.finfo(first.dtype).eps
    tiny = torch.finfo(first.dtype).tiny
    basis = Basis(products, first, last)
    vector = torch.zeros_like(first, dtype=first.dtype.to_complex())
    found = Dominant(vector[:, 0].clone(), vector, torch.zeros(len(first), dtype=torch.bool, device=first.device))
    zero = ~products(basis.points)(first).any(1)  # a matrix that maps a random vector to 0 is 0
    found.settled[zero] = True
    basis.select((~zero).nonzero().squeeze(1))
    while len(basis.points):
        basis.extend(count)
        # Eigenpairs of the square part of H, to a third of the residual: an eigenvector of M has the `weights` (p, m)
        # on the basis.
        value, weights, condition = dominant_pairs(basis.h[:, :-1], min(SMALLEST_MISS, residual / 3))
        modulus = value.abs()
        known = least[basis.points]

        # The value is an eigenvalue of M if its residual is small, by itself and times the condition number: then
        # `excess` is at most 1.
        image = rows_times(weights, basis.h.mT)
        image[:, :-1] -= value.unsqueeze(1) * weights
        miss = norm(image) / torch.where(value == 0, 1, modulus)  # the relative residual
        columns = norm(basis.h.mT)  # norms of M times each vector
        largest = columns.amax(1)
        # The norm of M: at least the largest product. The Frobenius norm is about sqrt(n) times the product with the
        # random first vector.
        size = torch.maximum(largest, n**0.5 * columns[:, 0])
        error = (miss + eps * size / modulus) * condition  # bounds the relative error of the value, with its rounding
        excess = torch.maximum(miss / residual, error / CONDITIONED_RESIDUAL_TOL)
        lost = (modulus < SMALLEST_MODULUS * largest) | (largest < tiny**SQUARES)  # rounding or underflow hides them
        excess[lost] = torch.inf
        excess[modulus <= (1 + TOLERANCE / 2) * known.abs()] = 0  # the known value stands

        # `share` is z² K / n of the module's text: where it is at least 1, nothing larger is left out. `rate` is by how
        # much its logarithm grows with a product.
        share, rate = excluded(basis.h, torch.where(modulus < known.abs(), known, value), n)
        settled = (excess <= 1) & (share >= 1)
        ends = settled | (count == last)
        leave = ends.nonzero().squeeze(1)
        stay = (~ends).nonzero().squeeze(1)
        where = basis.points[leave]
        found.value[where] = value[leave]
        found.settled[where] = settled[leave]
        found.vector[where] = rows_times(weights[leave], basis.vectors[leave, :-1])
        basis.select(stay)
        if not len(stay):
            break
        # As many more products as SETTLED_FRACTION of the points need, but at least a tenth of `count`, and at most
        # `count`. With each product the logarithm of `share` rises by the rate, and that of the residual falls by half
        # the rate. NaN and infinity, where nothing is known, ask for `count` more.
        more = torch.maximum(-share.log(), 2 * excess.log()) / rate
        step = math.ceil(more[stay].nan_to_num(count, count, count).quantile(SETTLED_FRACTION).item())
        count = min(last, count + max(2 + count // 10, min(step, count)))
    return found


def excluded(h: Tensor, value: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Measure how safely bases exclude eigenvalues that are larger than given values by the tolerance.

    Args:
        h: H of the bases (P, m + 1, m).
        value: the values (P,), complex.
        n: size of the matrices.

    Returns:
        Two tensors (P,). The first is z² K / n at the worst of the angles: eigenvalues are excluded where it is at
        least 1. It is 0 for the value 0. The second is the growth of its logarithm with each product.
    """
    radius = (1 + TOLERANCE) * value.abs()
    around = torch.arange(ANGLES + 1, device=h.device, dtype=h.dtype) * (math.pi / ANGLES)
    angle = torch.cat((around.expand(len(h), -1), value.angle().unsqueeze(1)), 1)
    k = kernel(h, torch.polar(radius.unsqueeze(1).expand_as(angle), angle))
    chance = torch.where(angle.sin().abs() < 1e-6, CHANCE_REAL, CHANCE_COMPLEX)  # the sine of a rounded pi is not 0
    share, worst = (chance.square() * k[:, -1] / n).min(1)
    quarter = max(1, h.shape[2] // 4)  # the growth is taken over the last quarter of the products
    at_worst = k.take_along_dim(worst[:, None, None], 2).squeeze(2)
    growth = (at_worst[:, -1] / at_worst[:, -1 - quarter]).log() / quarter
    return torch.where(radius > 0, share, 0), growth


def kernel(h: Tensor, at: Tensor) -> Tensor:
    """The kernels K_0 to K_m of the module's text at complex numbers (P, k), from H (P, m + 1, m): (P, m + 1, k)."""
    kind = torch.promote_types(h.dtype, torch.float32)
    columns, real, imaginary = (part.to("cpu", kind).contiguous() for part in (h.mT, at.real, at.imag))
    kernels = columns.new_empty(len(columns), columns.shape[1] + 1, at.shape[1])
    compiled(_write_kernel)(columns.numpy(), real.numpy(), imaginary.numpy(), kernels.numpy())
    # After a product that lies in the basis, H divides by 0: K is infinite, which 1e30 stands for.
    return kernels.nan_to_num_(1e30, 1e30).to(h)


# ---- compiled loops over the points of bases: the vectors of a point are read while they are in the cache


@cache
def compiled(loop: Callable[..., None]) -> Callable[..., None]:
    """A loop compiled by Numba, once: it may reorder sums, but treats NaN and infinity as usual."""
    from neurolsc.neurons.fast import cpu_kernels  # the import of Numba takes half a second

    return cpu_kernels.compiled(fastmath={"reassoc", "contract", "nsz", "arcp"})(loop)


def _widen(
    vectors: Array, columns: Array, products: Array, m: int, again: float, eps: float, zero: float, one: float
) -> None:
    """:func:`orthogonalise` in loops, over four vectors at a time: the product is read and written a quarter as often.

    `rest` is the norm of the part of a product outside the basis; `whole` is that of the part within it, from the first
    pass.

    Args:
        vectors: V (P, most + 1, n), of which vector m is written.
        columns: H by its columns (P, most, most + 1), of which column m - 1 is written.
        products: the products M v of vector m - 1 (P, n).
        m: number of vectors so far.
        again: one pass will do if the part outside the basis is more than this times the part within it.
        eps: the part outside is rounding if it is at most this times the part within.
        zero: 0 in the dtype of the vectors, so that sums have that dtype, too.
        one: 1, likewise.
    """
    points, n = products.shape
    product = np.empty(n, vectors.dtype)
    along = np.empty(m, vectors.dtype)
    fours = m // 4 * 4
    for p in range(points):
        product[:] = products[p]
        basis = vectors[p]
        column = columns[p, m - 1]
        whole = rest = zero
        for turn in range(2):  # once is not enough where a product lies nearly in the basis
            for i in range(0, fours, 4):
                a = b = c = d = zero  # scalar products of the product with vectors i to i + 3
                for k in range(n):
                    a += basis[i, k] * product[k]
                    b += basis[i + 1, k] * product[k]
                    c += basis[i + 2, k] * product[k]
                    d += basis[i + 3, k] * product[k]
                along[i] = a
                along[i + 1] = b
                along[i + 2] = c
                along[i + 3] = d
            for i in range(fours, m):
                a = zero
                for k in range(n):
                    a += basis[i, k] * product[k]
                along[i] = a
            for i in range(0, fours, 4):
                a = along[i]
                b = along[i + 1]
                c = along[i + 2]
                d = along[i + 3]
                for k in range(n):
                    product[k] -= a * basis[i, k] + b * basis[i + 1, k] + c * basis[i + 2, k] + d * basis[i + 3, k]
            for i in range(fours, m):
                a = along[i]
                for k in range(n):
                    product[k] -= a * basis[i, k]
            size = rest = zero
            for i in range(m):
                column[i] += along[i]
                size += along[i] * along[i]
            for k in range(n):
                rest += product[k] * product[k]
            size = np.sqrt(size)
            rest = np.sqrt(rest)
            if turn == 0:
                whole = size
            if rest > again * size:
                break
        scale = zero
        column[m] = zero
        if rest > eps * whole:
            scale = one / rest
            column[m] = rest
        for k in range(n):
            basis[m, k] = product[k] * scale


def _write_kernel(columns: Array, real: Array, imaginary: Array, kernels: Array) -> None:
    r"""Write the kernels K (P, m + 1, k) at numbers (P, k) into `kernels`, from the columns of H (P, m, m + 1).

    .. math:: \varphi_{j+1}(\mu) = \Big(\mu\, \varphi_j(\mu) - \sum_{r \le j} H_{rj}\, \varphi_r(\mu)\Big) / H_{j+1,j},
              \qquad K_{j+1} = K_j + |\varphi_{j+1}|^2
    """
    points, steps, _ = columns.shape
    k = real.shape[1]
    a = np.empty((steps + 1, k), columns.dtype)  # real part of each vector's polynomial at the numbers
    b = np.empty_like(a)  # imaginary part
    for p in range(points):
        a[0] = 1
        b[0] = 0
        kernels[p, 0] = 1
        for j in range(steps):
            for i in range(k):
                a[j + 1, i] = real[p, i] * a[j, i] - imaginary[p, i] * b[j, i]
                b[j + 1, i] = real[p, i] * b[j, i] + imaginary[p, i] * a[j, i]
            for r in range(j + 1):
                h = columns[p, j, r]
                for i in range(k):
                    a[j + 1, i] -= h * a[r, i]
                    b[j + 1, i] -= h * b[r, i]
            h = columns[p, j, j + 1]
            for i in range(k):
                a[j + 1, i] /= h
                b[j + 1, i] /= h
                kernels[p, j + 1, i] = kernels[p, j, i] + a[j + 1, i] ** 2 + b[j + 1, i] ** 2


# ---- gradients


def _pairs(operator: OperatorProduct, like: Tensor) -> tuple[Tensor, Pairs, Tensor]:
    """Find the largest eigenvalue of each point with both eigenvectors: by products, or else by LAPACK.

    Returns:
        The radii (P,), the eigenpairs, and which of them are from LAPACK (P,).
    """
    largest = _dominant(operator, like, GRAD_RESIDUAL_TOL)
    radius = largest.value.abs()
    if operator.size <= FACTORED_BELOW:
        pairs = pairs_near(operator, largest.value, largest.vector)
    else:
        pairs = _pairs_of_two_bases(operator, like)
    modulus = pairs.value.abs()
    # The iteration may have gone to a smaller eigenvalue than that from which it started.
    good = largest.settled & pairs.found & (modulus >= (1 - TOLERANCE / 2) * radius)
    radius = torch.where(good, torch.maximum(radius, modulus), radius)  # a larger eigenvalue may have been found
    for i in (~good).nonzero().flatten().tolist():
        value, right, left = leading_pair(finite(operator.matrix(i, like)))
        radius[i] = value.abs()
        pairs.value[i] = value
        pairs.right[i] = right
        pairs.left[i] = left
    return radius, pairs, ~good


def _pairs_of_two_bases(operator: OperatorProduct, like: Tensor) -> Pairs:
    """Find right and left eigenvectors of large matrices on two bases; they are a pair where the eigenvalues agree."""
    right = _dominant(operator, like, TWO_SIDED_RESIDUAL_TOL, right=True)
    left = _dominant(operator, like, TWO_SIDED_RESIDUAL_TOL)
    value = right.value
    # If the bases have found the two eigenvalues of a complex pair, the left one is conjugated.
    swap = (left.value.conj() - value).abs() < (left.value - value).abs()
    other = torch.where(swap, left.value.conj(), left.value)
    y = torch.where(swap.unsqueeze(1), left.vector.conj(), left.vector)
    overlap = (right.vector.conj() * y).sum(1)
    agree = (other - value).abs() <= TWO_SIDED_RESIDUAL_TOL * value.abs()
    # Nearly defective matrices are left to LAPACK. The value 0 has vectors of 0, which do not overlap.
    sound = (overlap.abs() > torch.finfo(y.dtype).eps ** 0.5) | (value == 0)
    y = y / torch.where(overlap == 0, 1, overlap).unsqueeze(1)
    return Pairs(value, right.vector, y, right.settled & left.settled & agree & sound)


def pairs_near(operator: OperatorProduct, values: Tensor, lefts: Tensor) -> Pairs:
    """Refine eigenvalues (P,) and left vectors (P, n) to eigenpairs, by two-sided Rayleigh quotient iteration.

    Each step cubes the error. One matrix is factorised at a time. ``found`` of the result is False where the iteration
    does not converge. A value of 0 has vectors of 0.

    Source: Ostrowski 1959; Parlett, Math. Comp. 28 (1974).
    """
    pairs = Pairs(values.clone(), torch.zeros_like(lefts), lefts.clone(), values == 0)
    pairs.left[pairs.found] = 0  # so the gradient of a zero matrix is 0
    for i in (values != 0).nonzero().flatten().tolist():
        pair = _pair_near(operator, i, values[i], lefts[i])
        if pair is not None:
            pairs.value[i], pairs.right[i], pairs.left[i] = pair
            pairs.found[i] = True
    return pairs


def _pair_near(operator: OperatorProduct, point: int, value: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """Refine an eigenvalue and a left vector y (n,) of one point.

    Returns:
        The eigenvalue, its right and its left vector (n,), scaled to y^H x = 1; None if the matrix is nearly defective,
        or the iteration does not converge.
    """
    like = y.real
    if value.imag == 0:  # real factorisations cost a quarter
        value = value.real
        y = unit(like)
    eps = torch.finfo(y.dtype).eps
    one = operator.take(torch.tensor([point], device=y.device))
    x = start(len(y), y)
    miss = math.inf
    for step in range(QUOTIENT_STEPS):
        factors = operator.factors(point, value * (1 + 4 * eps), like)  # at the value itself M - value I is singular
        x = unit(factors.solve(x))
        if step == 0:  # x is random, y comes near already
            x = unit(factors.solve(x))
        y = unit(factors.solve_adjoint(y))
        overlap = torch.vdot(y, x)
        if not overlap.abs() > eps**0.5:  # nearly defective, or NaN
            return None
        m_x = _image(one.matvec, x)
        m_y = _image(one.rmatvec, y)
        value = torch.vdot(y, m_x) / overlap
        miss = torch.maximum((m_x - value * x).norm(), (m_y - value.conj() * y).norm()) / value.abs()
        if miss <= eps**0.75:  # 6e-6 in float32, 2e-12 in float64: another step gains next to nothing
            break
    if not miss <= eps**0.5:  # not converged, or NaN
        return None
    return value, x, y / torch.vdot(x, y)


def _image(product: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """A real matrix times one vector (n,), real or complex."""
    if not x.is_complex():
        return product(x.unsqueeze(0)).squeeze(0)
    return torch.complex(product(x.real.unsqueeze(0)), product(x.imag.unsqueeze(0))).squeeze(0)
