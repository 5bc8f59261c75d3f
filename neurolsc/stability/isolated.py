r"""Eigenvalues of single neurons: all of a layer whose neurons do not read each other, and hints on the others.

The derivative of a step by the state has a block of V x V for each neuron, V being the number of its state variables,
and a part through weights that couples neurons. Without the second the radius of the layer is the largest radius of a
block, and its largest singular value that of a block. Of a LIF or an ALIF the isolated neurons often say what the
radius of the whole layer is (:func:`isolated_hint`).

Shapes: P points (step, sample), V state variables of a neuron, n neurons. Blocks (P, V, V, n) have a row for each
variable of the next state, and a column for each of the last one.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from neurolsc.neurons.blocks import SpikingStep
from neurolsc.neurons.derivatives import (
    EigenpairHint,
    Factors,
    LinearOperator,
    lu_factors,
)
from neurolsc.neurons.neuronwise import BlockStep
from neurolsc.stability.eigen import leading_pair, spectral_radius

# ---- blocks of single neurons


def radii_of_blocks(step: BlockStep) -> Tensor:
    """The largest radius of a block at each point (P,), differentiable once."""
    if not torch.is_grad_enabled():
        return block_radii(step.k).amax(1)
    largest, _ = _largest_block(step)
    if largest.shape[1] == 1:
        return largest.flatten().abs()
    return spectral_radius(largest)


def norms_of_blocks(step: BlockStep) -> Tensor:
    """The largest singular value of a block at each point (P,)."""
    return block_norms(step.k).amax(1)


def pairs_of_blocks(step: BlockStep) -> tuple[Tensor, Tensor, Tensor]:
    """The eigenvalue of largest modulus (P,), with right and left vectors (P, V n) scaled to y^H x = 1."""
    blocks, which = _largest_block(step)
    kind = blocks.dtype.to_complex()
    value = blocks.new_zeros(len(blocks), dtype=kind)
    right = blocks.new_zeros(len(blocks), *step.k.shape[2:], dtype=kind)
    left = torch.zeros_like(right)
    for point, (block, neuron) in enumerate(zip(blocks, which.tolist(), strict=True)):
        found, x, y = leading_pair(block)
        value[point] = found
        right[point, :, neuron] = x.to(kind)
        left[point, :, neuron] = y.to(kind)
    return value, right.flatten(1), left.flatten(1)


def _largest_block(step: BlockStep) -> tuple[Tensor, Tensor]:
    """The block of largest radius at each point (P, V, V), and its neuron (P,)."""
    with torch.no_grad():
        which = block_radii(step.k).argmax(1)
    points = torch.arange(len(which), device=which.device)
    return step.k[points, :, :, which], which


def block_radii(k: Tensor) -> Tensor:
    r"""Spectral radii (P, n) of the blocks k (P, V, V, n) of single neurons, without gradient.

    The diagonal entry of a variable that depends on no other one, or on which no other one depends, is an eigenvalue.
    Of two variables that are left, with :math:`m = (a + d)/2` and :math:`q = ((a - d)/2)^2 + bc`,

    .. math:: \rho = |m| + \sqrt{q} \;\text{ if }\; q \ge 0, \quad\text{else}\quad \rho = \sqrt{m^2 - q},

    and only three or more that depend on one another need numeric eigenvalues.
    """
    k = k.detach()
    left = list(range(k.shape[1]))
    radius = torch.zeros_like(k[:, 0, 0])
    alone = _variable_alone(k, left)
    while alone is not None:
        left.remove(alone)
        radius = torch.maximum(radius, k[:, alone, alone].abs())
        alone = _variable_alone(k, left)
    if not left:
        return radius
    if len(left) == 2:
        first, second = left
        a = k[:, first, first]
        b = k[:, first, second]
        c = k[:, second, first]
        d = k[:, second, second]
        middle = (a + d) / 2
        square = ((a - d) / 2).square() + b * c  # without cancellation
        root = square.abs().sqrt()
        modulus = torch.where(square >= 0, middle.abs() + root, torch.hypot(middle, root))
        return torch.maximum(radius, modulus)
    rest = k[:, left][:, :, left].permute(0, 3, 1, 2)
    return torch.maximum(radius, spectral_radius(rest))


def _variable_alone(k: Tensor, left: list[int]) -> int | None:
    """A variable among those left that has no part in another one, or in which no other one has a part."""
    for variable in left:
        others = [other for other in left if other != variable]
        if not k[:, variable, others].any() or not k[:, others, variable].any():
            return variable
    return None


def block_norms(k: Tensor) -> Tensor:
    r"""Largest singular values (P, n) of the blocks k (P, V, V, n) of single neurons.

    Of two variables, without cancellation,

    .. math:: \sigma = \tfrac12 \Big( \sqrt{(a + d)^2 + (b - c)^2} + \sqrt{(a - d)^2 + (b + c)^2} \Big)
    """
    variables = k.shape[1]
    if variables == 1:
        return k[:, 0, 0].abs()
    if variables == 2:
        a = k[:, 0, 0]
        b = k[:, 0, 1]
        c = k[:, 1, 0]
        d = k[:, 1, 1]
        outer = torch.hypot(a + d, b - c)
        inner = torch.hypot(a - d, b + c)
        return (outer + inner) / 2
    return torch.linalg.matrix_norm(k.permute(0, 3, 1, 2), 2)


# ---- LIF and ALIF: what isolated neurons say about a layer whose neurons do read each other

PRODUCTS = 12  # with a matrix, at most, to show that its norm is below 1; for norms above about 0.95 they do not do
# With a probability of 0.8 times this, a random start of norm 1 has less than this / sqrt(n) of an eigenvector.
CHANCE = 0.003


def eigenpair_hint(operator: LinearOperator, right: bool, tolerance: float) -> EigenpairHint | None:
    """The largest eigenvalue of an operator with a right or left eigenvector, if it is known without products."""
    if isinstance(operator, SpikingStep):
        return isolated_hint(operator, right, tolerance)
    return operator.eigenpair_hint(right, tolerance)


def isolated_hint(step: SpikingStep, right: bool, tolerance: float) -> EigenpairHint:
    r"""The largest eigenvalue of an isolated neuron, and where it is the radius within a relative tolerance.

    Where leaks hold the radius of a LIF (v) or an ALIF (v, theta), no product with the derivative is needed. Without
    the weights between neurons, each has a matrix of 2 x 2 for (v, theta); of a LIF the first entry counts, and the
    others are 0:

    .. math::
        D_i = \begin{pmatrix} d_i + o_i & e_i - o_i \\ \beta_i s_i & e^{-1/\tau_{\vartheta,i}} - \beta_i
        s_i \end{pmatrix}, \qquad o_i = (W_{rec,ii} - r_i) s_i,

    and its spikes follow a current of frequency μ with the gain :math:`g_i(\mu) = s_i (1, -1) (\mu - D_i)^{-1} (1,
    0)^T`. A μ that is no eigenvalue of D is one of the whole derivative only if the loop through the weights, :math:`W
    G(\mu)` with W without its diagonal, has the eigenvalue 1. It has none where :math:`\|\hat G^{1/2} W \hat G^{1/2}\|
    < 1` with :math:`\hat g_i \ge |g_i|`. As g falls off outside the circle around all eigenvalues of D, bounds on a
    circle are bounds outside it; if they hold on the circle larger by the tolerance, no eigenvalue lies beyond. That
    the norm is below 1 is shown by three to eight products, with an error probability of about 0.2 %: in a Krylov
    process from a random start x, an eigenvector of an eigenvalue of 1 or more has at most the share :math:`(\sum_k
    p_k(1)^2)^{-1/2}` of x, with the orthonormal polynomials p of the process.
    How far the loop moves the largest eigenvalue itself is estimated at second order: by the residue of g_i times the
    path to the neuron and back.
    """
    # The largest eigenvalue of an isolated neuron at each point, and that neuron (P, 1).
    alone = IsolatedNeurons.of(step)
    n = len(step.w_rec)
    tiny = torch.finfo(alone.s.dtype).tiny
    largest, which = alone.modulus.max(1, keepdim=True)
    middle = alone.middle.gather(1, which)
    root = alone.root.gather(1, which)
    value = torch.where(middle < 0, middle - root, middle + root)

    # How far the loop through the weights moves it, at second order.
    gain = alone.gain((1 + tolerance) * largest)
    between = step.w_rec - torch.diag(step.w_rec.diagonal())
    slow = (value - alone.decay.gather(1, which)).abs()
    residue = alone.s.abs().gather(1, which) * (slow / (2 * root).clamp(min=tiny))
    there = (between[which.squeeze(1)].square() * gain).sum(1).sqrt()
    back = (between.T[which.squeeze(1)].square() * gain).sum(1).sqrt()
    moved = residue.squeeze(1) * there * back
    largest = largest.squeeze(1)
    exists = (largest > 0) & alone.real.gather(1, which).squeeze(1) & gain.isfinite().all(1)
    exists &= moved <= tolerance / 2 * largest
    proven = torch.zeros_like(exists)
    some = exists.nonzero().squeeze(1)
    if len(some):  # the radius if no other eigenvalue is larger
        proven[some] = norm_below_one(between, gain[some].sqrt())

    # The eigenvector (v, theta) of D, or of its transpose: orthogonal to the larger row of D - value.
    a, b, c, d = (entry.gather(1, which) for entry in alone.entries)
    if not right:
        b, c = c, b
    first = (a - value).abs() + b.abs() >= c.abs() + (d - value).abs()
    v = torch.where(first, b, d - value)
    theta = torch.where(first, value - a, -c)
    size = torch.hypot(v, theta)
    v = torch.where(size > 0, v / size, 1)
    theta = torch.where(size > 0, theta / size, 0)
    vector = torch.zeros_like(gain[:, :1]).expand(-1, step.columns).scatter(1, which, v)
    if step.columns > n:
        vector = vector.scatter(1, which + n, theta)
    kind = vector.dtype.to_complex()
    return EigenpairHint(value.squeeze(1).to(kind), vector.to(kind), exists, proven)


class IsolatedNeurons(NamedTuple):
    """The matrices D of all neurons at P points and their two eigenvalues; all (P, N), real."""

    s: Tensor  # derivative of the spikes by the voltage
    decay: Tensor  # retention of the threshold, 0 without one
    entries: tuple[Tensor, Tensor, Tensor, Tensor]  # of D, by rows
    middle: Tensor  # mean of the two eigenvalues
    root: Tensor  # half of their distance, or its imaginary part
    real: Tensor  # bool: True where they are real
    modulus: Tensor  # of the larger one

    @classmethod
    def of(cls, step: SpikingStep) -> "IsolatedNeurons":
        s = step.slopes[:, 0]
        k = step.k
        own = step.w_rec.diagonal() * s
        a = k[:, 0, 0] + own
        b = c = d = torch.zeros_like(own)
        if k.shape[1] == 2:
            b = k[:, 0, 1] - own
            c = k[:, 1, 0]
            d = k[:, 1, 1]
        middle = (a + d) / 2
        square = ((a - d) / 2).square() + b * c
        root = square.abs().sqrt()
        real = square >= 0
        modulus = torch.where(real, middle.abs() + root, torch.hypot(middle, root))
        return cls(s, c + d, (a, b, c, d), middle, root, real, modulus)

    def gain(self, radius: Tensor) -> Tensor:
        r"""The largest \|g\| (P, N) on and outside circles (P, 1) that hold all eigenvalues of D.

        At :math:`\mu = r e^{i\phi}`, with :math:`c = \cos\phi`, the decay d of the threshold, and trace and determinant
        of D,

        .. math:: |g|^2 = s^2\, \frac{r^2 + d^2 - 2 r d c}{|\mu^2 - \mathrm{tr}\, \mu + \det|^2},

        a linear by a quadratic function of c: largest at an end, or where the derivative, a quadratic function, is 0.
        """
        r = radius.double()
        decay = self.decay.double()
        trace = 2 * self.middle.double()
        square = self.root.double().square()
        determinant = self.middle.double().square() - torch.where(self.real, square, -square)
        # (above - slope c) / (const + linear c + quadratic c^2)
        above = r.square() + decay.square()
        slope = 2 * r * decay
        const = (r.square() - determinant).square() + (trace * r).square()
        linear = -2 * trace * r * (r.square() + determinant)
        quadratic = 4 * determinant * r.square()
        # The derivative is 0 where slope quadratic c^2 - 2 half c - rest = 0; both roots without cancellation.
        half = above * quadratic
        rest = slope * const + above * linear
        root = (half.square() + slope * quadratic * rest).clamp(min=0).sqrt()
        far = half + torch.where(half < 0, -root, root)
        one = torch.ones_like(far)
        largest = torch.zeros_like(far)
        for cosine in (one, -one, far / (slope * quadratic), -rest / far):
            c = cosine.nan_to_num(1).clamp(-1, 1)
            real = (2 * c.square() - 1) * r.square() - c * trace * r + determinant
            imaginary_squared = (1 - c.square()) * (2 * c * r - trace).square() * r.square()
            largest = torch.maximum(largest, (above - slope * c) / (real.square() + imaginary_squared))
        return self.s.abs() * largest.sqrt().to(self.s)


def norm_below_one(w: Tensor, root: Tensor) -> Tensor:
    """True where the norm of A = diag(root) w diag(root), root (P, N), is shown to be below 1 (P,).

    By Golub-Kahan bidiagonalisation from a random start; see :func:`isolated_hint` for what is summed.
    """
    n = len(w)
    tiny = torch.finfo(w.dtype).tiny
    shown = torch.zeros(len(root), dtype=torch.bool, device=w.device)
    left = torch.arange(len(root), device=w.device)
    x = torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64).to(w)
    x = (x / x.norm()).expand(len(root), -1)
    y = torch.zeros_like(x)
    back = off = x.new_zeros(len(x))  # entries beside the diagonal of the bidiagonal, and of the tridiagonal matrix
    last = x.new_zeros(len(x))  # the polynomials before phi, at 1
    phi = total = torch.ones_like(last)  # the polynomial at 1, and the sum of the squares of all so far
    for _ in range(PRODUCTS):
        y = root * ((root * x) @ w.T) - back.unsqueeze(1) * y
        ahead = y.norm(dim=1)
        y = y / ahead.clamp(min=tiny).unsqueeze(1)
        z = root * ((root * y) @ w) - ahead.unsqueeze(1) * x
        new = z.norm(dim=1)
        # the next orthonormal polynomial of A^T A at 1, by the three-term recurrence of its tridiagonal matrix
        value = (1 - ahead.square() - back.square()) * phi - off * last
        off = ahead * new
        last = phi
        phi = value / off.clamp(min=tiny)
        total = total + phi.square()
        x = z / new.clamp(min=tiny).unsqueeze(1)
        back = new
        done = CHANCE**2 * total >= n
        above_one = value <= 0  # a change of sign: some eigenvalue is above 1
        shown[left[done & ~above_one]] = True
        stay = (~done & ~above_one).nonzero().squeeze(1)
        if not len(stay):
            break
        left = left[stay]
        root = root[stay]
        x = x[stay]
        y = y[stay]
        back = back[stay]
        last = last[stay]
        phi = phi[stay]
        total = total[stay]
        off = off[stay]
    return shown


def shifted_factors(operator: LinearOperator, shift: Tensor) -> Factors | None:
    r"""M - shift I of the only point, factorised, where that is cheaper than densely: of a LIF or an ALIF.

    An ALIF has an n x n factorisation, though its state has 2 n variables: the threshold rows are diagonal. With
    :math:`u = v - \vartheta` they read :math:`\beta s\,u + (e^{-1/\tau_\vartheta} - \lambda)\,\vartheta = b`, so (u,
    theta) of a neuron is one unknown w times a unit vector (p, q) that solves them for b = 0, and what is left is an n
    x n system in w.
    """
    if not isinstance(operator, SpikingStep):
        return None
    s = operator.slopes[0, 0].detach()
    k = operator.k[0].detach()
    coupling = operator.w_rec.detach().to(shift.dtype)
    if len(k) == 1:
        return lu_factors(coupling * s + torch.diag(k[0, 0] - shift))
    feedback = k[1, 0]
    decay = k[1, 0] + k[1, 1]
    slow = decay - shift
    norm = (slow.abs().square() + feedback.square()).sqrt().clamp(min=torch.finfo(s.dtype).tiny ** 0.5)
    p = slow / norm
    q = -feedback / norm
    fast = k[0, 0] - feedback - shift
    cross = k[0, 0] + k[0, 1] - decay
    inner = lu_factors(coupling * (s * p) + torch.diag(fast * p + cross * q))

    def solve(rhs: Tensor) -> Tensor:
        a, b = rhs.chunk(2)
        a = a - b  # the row of v becomes that of u = v - theta
        u = b * feedback / norm**2
        theta = b * slow.conj() / norm**2
        w = inner.solve(a - (fast * u + coupling @ (s * u)) - cross * theta)
        u = w * p + u
        theta = w * q + theta
        return torch.cat((u + theta, theta))

    def solve_adjoint(rhs: Tensor) -> Tensor:
        a, b = rhs.chunk(2)
        b = a + b  # the adjoint of v = u + theta
        y = inner.solve_adjoint(p.conj() * a + q.conj() * b)
        a = a - fast.conj() * y - s * (coupling.mH @ y)
        b = b - cross * y
        z = (feedback * a + slow * b) / norm**2
        return torch.cat((y, z - y))

    return Factors(solve, solve_adjoint)
