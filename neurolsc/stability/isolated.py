r"""Eigenvalues of single neurons: those of a layer whose neurons do not read each other, and hints on other layers.

The derivative of a step by the state has a block of V x V for each neuron, V being the number of its state variables,
and a part through weights that couples neurons. Without that part the radius of the layer is the largest radius of a
block, and its largest singular value is the largest one of a block. In a LIF or an ALIF the isolated neurons often tell
the radius of the whole layer (:func:`isolated_hint`).

Shapes: P points (step, sample), V state variables of a neuron, n neurons. Blocks (P, V, V, n) have a row for each
variable of the next state, and a column for each variable of the last state.
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
    """The largest radius of all blocks at each point (P,), differentiable once."""
    if not torch.is_grad_enabled():
        return block_radii(step.k).amax(1)
    largest, _ = _largest_block(step)
    if largest.shape[1] == 1:  # blocks are numbers, whose radius is their absolute value
        return largest.flatten().abs()
    return spectral_radius(largest)


def norms_of_blocks(step: BlockStep) -> Tensor:
    """The largest singular value of all blocks at each point (P,)."""
    return block_norms(step.k).amax(1)


def pairs_of_blocks(step: BlockStep) -> tuple[Tensor, Tensor, Tensor]:
    """The eigenvalue of largest modulus at each point (P,), with its right and left eigenvectors x, y (P, V n).

    The vectors are scaled to y^H x = 1, and 0 outside the neuron whose block has the eigenvalue.
    """
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
    """The block of largest radius at each point (P, V, V), and the index of its neuron (P,)."""
    with torch.no_grad():
        which = block_radii(step.k).argmax(1)
    points = torch.arange(len(which), device=which.device)
    return step.k[points, :, :, which], which  # indices at both ends: the axis of points comes first


def block_radii(k: Tensor) -> Tensor:
    r"""Spectral radii (P, n) of the blocks k (P, V, V, n) of single neurons, without gradient.

    The diagonal entry of a variable that depends on no other one, or on which no other one depends, is an eigenvalue;
    the other eigenvalues are those of the block without this variable. If two variables are left, with the matrix (a,
    b; c, d), :math:`m = (a + d)/2` and :math:`q = ((a - d)/2)^2 + bc`, their radius is

    .. math:: \rho = |m| + \sqrt{q} \;\text{ if }\; q \ge 0, \quad\text{else}\quad \rho = \sqrt{m^2 - q}.

    Only three or more variables need numeric eigenvalues.
    """
    k = k.detach()
    left = list(range(k.shape[1]))  # variables whose eigenvalues are still to be found
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
        square = ((a - d) / 2).square() + b * c  # unlike middle^2 - det, without cancellation
        root = square.abs().sqrt()
        modulus = torch.where(square >= 0, middle.abs() + root, torch.hypot(middle, root))
        return torch.maximum(radius, modulus)
    rest = k[:, left][:, :, left].permute(0, 3, 1, 2)  # (P, n, V', V') of the V' variables that are left
    return torch.maximum(radius, spectral_radius(rest))


def _variable_alone(k: Tensor, left: list[int]) -> int | None:
    """A variable of those left that depends on no other one, or on which no other one depends, in all blocks.

    None if there is none. The blocks are k (P, V, V, n).
    """
    for variable in left:
        others = [other for other in left if other != variable]
        if not k[:, variable, others].any() or not k[:, others, variable].any():
            return variable
    return None


def block_norms(k: Tensor) -> Tensor:
    r"""Largest singular values (P, n) of the blocks k (P, V, V, n) of single neurons, at P points.

    For a block of two variables with the entries (a, b; c, d) it is computed without cancellation:

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
        sum_of_both = torch.hypot(a + d, b - c)  # of the two singular values
        difference = torch.hypot(a - d, b + c)
        return (sum_of_both + difference) / 2
    return torch.linalg.matrix_norm(k.permute(0, 3, 1, 2), 2)


# ---- LIF and ALIF: what isolated neurons say about a layer whose neurons do read each other

# Largest number of steps, each of two products with a matrix, to show that its norm is below 1; they are not enough for
# norms above about 0.95.
PRODUCTS = 12
# A random start of norm 1 has a share of an eigenvector below CHANCE / sqrt(n) with a probability of 0.8 CHANCE.
CHANCE = 0.003


def eigenpair_hint(operator: LinearOperator, right: bool, tolerance: float) -> EigenpairHint | None:
    """The largest eigenvalue of an operator with its right or left eigenvector, as far as it is known without products.

    `tolerance` is the largest relative error of a radius. None if the operator has no hint.
    """
    if isinstance(operator, SpikingStep):
        return isolated_hint(operator, right, tolerance)
    return operator.eigenpair_hint(right, tolerance)


def isolated_hint(step: SpikingStep, right: bool, tolerance: float) -> EigenpairHint:
    r"""Take the largest eigenvalue of all isolated neurons, and say where it is that of the whole layer.

    Where leaks set the radius of a LIF (v) or an ALIF (v, theta), no product with the derivative is needed. Without the
    weights between neurons, neuron i has a matrix of 2 x 2 for (v, theta); in that of a LIF all but the first entry are
    0:

    .. math::
        D_i = \begin{pmatrix} d_i + o_i & e_i - o_i \\ \beta_i s_i & e^{-1/\tau_{\vartheta,i}} - \beta_i
        s_i \end{pmatrix}, \qquad o_i = (W_{rec,ii} - r_i) s_i,

    with the surrogate's slope s and the adaptation β. The derivatives of the voltage by v and θ are d and e, and that
    by the spike is -r. The spikes follow a current of frequency μ with the gain
    :math:`g_i(\mu) = s_i (1, -1) (\mu - D_i)^{-1} (1, 0)^T`.

    *No eigenvalue is larger.* A μ that is no eigenvalue of any D is one of the whole derivative only if the loop
    through the weights, :math:`W G(\mu)` with :math:`G = \mathrm{diag}(g)` and W without its diagonal, has the
    eigenvalue 1. It has none where :math:`\|\hat G^{1/2} W \hat G^{1/2}\| < 1` with :math:`\hat g_i \ge |g_i|`. As g
    falls off outside the circle around all eigenvalues of D, bounds on a circle are bounds outside it. If they hold on
    the circle larger by the tolerance, no eigenvalue lies beyond. :func:`norm_below_one` shows that the norm is below 1
    by three to eight products, with an error probability of about 0.2 %.

    *It exists.* The loop moves the largest eigenvalue of D. How far it moves is estimated at second order: the residue
    of :math:`g_i` times the paths from neuron i to the others and back.

    Args:
        step: the derivative by the state at P points.
        right: return right eigenvectors; else left ones.
        tolerance: largest relative error of a radius.

    Returns:
        Values and vectors. ``exists`` is True where the eigenvalue is real, not 0, and moves by at most half the
        tolerance; ``largest`` where in addition no larger one is left out.
    """
    # The largest eigenvalue of all isolated neurons at each point, and its neuron, both (P, 1).
    alone = IsolatedNeurons.of(step)
    n = len(step.w_rec)
    tiny = torch.finfo(alone.s.dtype).tiny
    largest, which = alone.modulus.max(1, keepdim=True)
    middle = alone.middle.gather(1, which)
    root = alone.root.gather(1, which)
    value = torch.where(middle < 0, middle - root, middle + root)

    # How far the loop through the weights moves this eigenvalue (P,). The sum of w_ij g_j w_ji over the other neurons j
    # is bounded by Cauchy-Schwarz.
    gain = alone.gain((1 + tolerance) * largest)
    between = step.w_rec - torch.diag(step.w_rec.diagonal())
    above_decay = (value - alone.decay.gather(1, which)).abs()
    residue = alone.s.abs().gather(1, which) * (above_decay / (2 * root).clamp(min=tiny))
    from_others = (between[which.squeeze(1)].square() * gain).sum(1).sqrt()
    to_others = (between.T[which.squeeze(1)].square() * gain).sum(1).sqrt()
    moved = residue.squeeze(1) * from_others * to_others
    largest = largest.squeeze(1)
    exists = (largest > 0) & alone.real.gather(1, which).squeeze(1) & gain.isfinite().all(1)
    exists &= moved <= tolerance / 2 * largest
    is_radius = torch.zeros_like(exists)  # True where no other eigenvalue is larger
    some = exists.nonzero().squeeze(1)
    if len(some):
        is_radius[some] = norm_below_one(between, gain[some].sqrt())

    # The eigenvector (v, theta) of D, or of its transpose, is orthogonal to the rows of D - value: take the larger row.
    a, b, c, d = (entry.gather(1, which) for entry in alone.entries)
    if not right:
        b, c = c, b
    first = (a - value).abs() + b.abs() >= c.abs() + (d - value).abs()
    v = torch.where(first, b, d - value)
    theta = torch.where(first, value - a, -c)
    size = torch.hypot(v, theta)
    v = torch.where(size > 0, v / size, 1)  # where D - value is 0, any vector is an eigenvector
    theta = torch.where(size > 0, theta / size, 0)
    vector = torch.zeros_like(gain[:, :1]).expand(-1, step.columns).scatter(1, which, v)
    if step.columns > n:  # an ALIF has theta behind v
        vector = vector.scatter(1, which + n, theta)
    kind = vector.dtype.to_complex()
    return EigenpairHint(value.squeeze(1).to(kind), vector.to(kind), exists, is_radius)


class IsolatedNeurons(NamedTuple):
    """The matrices D of all N neurons at P points, and their two eigenvalues; all tensors are (P, N), and real."""

    s: Tensor  # derivative of the spikes by the voltage
    decay: Tensor  # decay of the threshold; 0 for a LIF
    entries: tuple[Tensor, Tensor, Tensor, Tensor]  # a, b, c, d of D = (a, b; c, d)
    middle: Tensor  # mean of the two eigenvalues
    root: Tensor  # half of their distance if they are real, else their imaginary part
    real: Tensor  # bool: True where the eigenvalues are real
    modulus: Tensor  # of the larger eigenvalue

    @classmethod
    def of(cls, step: SpikingStep) -> "IsolatedNeurons":
        """The neurons of a step of LIF or ALIF, without the weights between them."""
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
        r"""The largest \|g\| of each neuron (P, N) on and outside circles of radii (P, 1) around all eigenvalues.

        At :math:`\mu = r e^{i\phi}`, with :math:`c = \cos\phi`, the decay d of the threshold, and trace and determinant
        of D,

        .. math:: |g|^2 = s^2\, \frac{r^2 + d^2 - 2 r d c}{|\mu^2 - \mathrm{tr}\, \mu + \det|^2},

        a linear over a quadratic function of c: it is largest at an end of [-1, 1], or where the numerator of its
        derivative, a quadratic function, is 0.
        """
        r = radius.double()
        decay = self.decay.double()
        trace = 2 * self.middle.double()
        square = self.root.double().square()
        determinant = self.middle.double().square() - torch.where(self.real, square, -square)
        # |g|^2 / s^2 = (above - slope c) / (const + linear c + quadratic c^2)
        above = r.square() + decay.square()
        slope = 2 * r * decay
        const = (r.square() - determinant).square() + (trace * r).square()
        linear = -2 * trace * r * (r.square() + determinant)
        quadratic = 4 * determinant * r.square()
        # The derivative is 0 where slope quadratic c^2 - 2 half c - rest = 0. Its two roots far / (slope quadratic) and
        # -rest / far have no cancellation.
        half = above * quadratic
        rest = slope * const + above * linear
        root = (half.square() + slope * quadratic * rest).clamp(min=0).sqrt()
        far = half + torch.where(half < 0, -root, root)
        one = torch.ones_like(far)
        largest = torch.zeros_like(far)
        for cosine in (one, -one, far / (slope * quadratic), -rest / far):
            c = cosine.nan_to_num(1).clamp(-1, 1)  # roots that do not exist, or lie outside, count as an end
            real = (2 * c.square() - 1) * r.square() - c * trace * r + determinant
            imaginary_squared = (1 - c.square()) * (2 * c * r - trace).square() * r.square()
            largest = torch.maximum(largest, (above - slope * c) / (real.square() + imaginary_squared))
        return self.s.abs() * largest.sqrt().to(self.s)


def norm_below_one(w: Tensor, root: Tensor) -> Tensor:
    r"""True where the norm of A = diag(root) w diag(root) is shown to be below 1 (P,); False where it is not shown.

    Golub-Kahan bidiagonalisation of A from a random start x has orthonormal polynomials p. An eigenvector of
    :math:`A^T A` with an eigenvalue of 1 or more has at most the share :math:`(\sum_k p_k(1)^2)^{-1/2}` of x. The norm
    counts as below 1 once this share is improbably small (CHANCE).

    Args:
        w: a matrix (N, N).
        root: a diagonal for each point (P, N), with entries of at least 0.
    """
    n = len(w)
    tiny = torch.finfo(w.dtype).tiny
    shown = torch.zeros(len(root), dtype=torch.bool, device=w.device)
    left = torch.arange(len(root), device=w.device)  # points that are not decided
    x = torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64).to(w)
    x = (x / x.norm()).expand(len(root), -1)
    y = torch.zeros_like(x)
    back = off = x.new_zeros(len(x))  # newest entries beside the diagonals of the bidiagonal and the tridiagonal matrix
    last = x.new_zeros(len(x))  # the polynomial before phi, at 1
    phi = total = torch.ones_like(last)  # the newest polynomial at 1, and the sum of the squares of all so far
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
        above_one = value <= 0  # at 1 a polynomial is 0 or negative only if an eigenvalue is at least 1
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
    r"""Factorise M - shift I of the only point of a LIF or an ALIF; None for other operators, whose matrix is needed.

    An ALIF has 2 n variables, but needs a factorisation of n x n only, as the rows of the thresholds couple no neurons.
    With :math:`u = v - \vartheta` the threshold's row of a neuron reads
    :math:`\beta s\,u + (e^{-1/\tau_\vartheta} - \lambda)\,\vartheta = b`. Its solutions (u, θ) are one of them plus
    any multiple w (p, q) of a unit vector (p, q) that solves the row for b = 0. The rows of the voltages then are an
    n x n system in the w of all neurons.
    """
    if not isinstance(operator, SpikingStep):
        return None
    s = operator.slopes[0, 0].detach()
    k = operator.k[0].detach()
    coupling = operator.w_rec.detach().to(shift.dtype)
    if len(k) == 1:  # a LIF
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
        # one solution of the thresholds' rows
        u = b * feedback / norm**2
        theta = b * slow.conj() / norm**2
        w = inner.solve(a - (fast * u + coupling @ (s * u)) - cross * theta)
        u = w * p + u
        theta = w * q + theta
        return torch.cat((u + theta, theta))

    def solve_adjoint(rhs: Tensor) -> Tensor:
        """The adjoints of the steps of `solve`, in reverse order."""
        a, b = rhs.chunk(2)
        b = a + b  # of v = u + theta
        y = inner.solve_adjoint(p.conj() * a + q.conj() * b)
        a = a - fast.conj() * y - s * (coupling.mH @ y)
        b = b - cross * y
        z = (feedback * a + slow * b) / norm**2
        return torch.cat((y, z - y))

    return Factors(solve, solve_adjoint)
