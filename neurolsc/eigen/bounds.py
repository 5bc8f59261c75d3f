r"""The radius of whole matrices between two bounds, by squaring each of them again and again.

With k = 2, 4, 8, ... and N rows any matrix has

.. math:: \Big(\frac{|\mathrm{tr}\, M^k|}{N}\Big)^{1/k} \le \rho(M) \le \|M^k\|_F^{1/k},

as the trace is the sum of the k-th powers of the eigenvalues. Nothing is asked of the spectrum, so
hundreds of eigenvalues near the largest do no harm: after ten squarings a factor of 10,000 between
trace and norm is 0.9 % of the radius. Where the trace is lost, as that of a cycle through all
neurons, or the digits, as those of powers of a Jordan block, the bounds do not meet.

The rounding is followed, too: with :math:`\|M^k\|_F` scaled to 1, A what is computed and D its
error, :math:`c = \|A^2\|_F`, and all of it in float64,

.. math:: \|D'\|_F \le (2 \|A\|_2 \|D\|_F + \|D\|_F^2 + N \epsilon) / c, \qquad
          \|A\|_2^2 \le \|A A^\top\|_F.

That takes a fifth to a half of the time of eigenvalues by LAPACK (``benchmarks/rate_cells.py``).

Source: I. M. Gelfand 1941, for the norms; N. J. Higham, Accuracy and Stability of Numerical
Algorithms (2002), ch. 3, for the rounding of a product.
"""

import math

import torch
from torch import Tensor

from neurolsc.eigen.krylov import Dominant
from neurolsc.eigen.powers import pairs_of

FIRST, LAST = 8, 12
"""numbers of squarings between which bounds are looked at"""
CLOSEST = 2e-3
"""tolerance below which bounds seldom meet in so many"""
ROUNDED = 2**-9
"""more than products in float32, or in TF32 on a GPU, are off, where the factors have norm 1"""


def between(m: Tensor, tolerance: float) -> Dominant:
    """Eigenvalues of largest modulus of real matrices (P, N, N), settled where bounds meet.

    Their moduli are the radii to a relative tolerance. Vectors are what the power makes of a start.
    """
    like, n, width = m.double(), m.shape[1], math.log1p(tolerance)
    vector = torch.zeros_like(like[:, 0], dtype=torch.complex128)
    found = Dominant(vector[:, 0].clone(), vector, torch.zeros(len(m), dtype=torch.bool, device=m.device))
    left, size = torch.arange(len(m), device=m.device), torch.linalg.matrix_norm(like)
    power, log = like / size[:, None, None], size.log()  # of the norm of M^k, its k-th root
    error = torch.zeros_like(log)
    for i in range(1, LAST + 1):
        half = power.float()
        stretch = (torch.linalg.matrix_norm(half @ half.mT) + ROUNDED).sqrt()
        power = power @ power
        size = torch.linalg.matrix_norm(power)
        power, log = power / size[:, None, None], log + size.log() / 2**i
        error = (2 * stretch * error + error.square() + n * torch.finfo(error.dtype).eps) / size
        if i < FIRST:
            continue
        trace = power.diagonal(dim1=1, dim2=2).sum(1).abs()
        upper = log + error.log1p() / 2**i
        lower = log + ((trace - n**0.5 * error) / n).log() / 2**i  # NaN where the trace is lost
        near = torch.minimum(log + trace.log() / 2**i, upper).exp()  # where one eigenvalue is left, this one
        shown = upper - lower <= width
        where = left[shown]
        value, found.vector[where], _ = pairs_of(like[where], power[shown])
        found.value[where], found.settled[where] = torch.polar(near[shown], value.angle()), True
        # what is between them halves at best
        more = (~shown & (upper - lower <= 2 ** (LAST - i) * width)).nonzero().squeeze(1)
        left, power, log, error = left[more], power[more], log[more], error[more]
        if not len(left):
            break
    return found
