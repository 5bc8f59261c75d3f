r"""Expected radii of random matrices: the paper's Lemma 1 and Corollary 1, and what is exact.

Lemma 1 gives the k-th eigenvalue of a *real* Gaussian matrix a modulus of the chi distribution with
k degrees of freedom. Kostlan's theorem, which it cites, is about *complex* Gaussian matrices of
entries with E|m|^2 = 1, and about the set of the squared moduli: it is distributed as independent
Gamma(k, 1), k = 1 ... n, which is :math:`\chi^2_{2k} / 2`. The two means,
:math:`\sqrt2\, \Gamma((k+1)/2) / \Gamma(k/2)` and :math:`\Gamma(k + 1/2) / \Gamma(k)`, are both
:math:`\sqrt k\,(1 + O(1/k))`. The radius is no one's modulus but the largest, whose mean is above
:math:`\sqrt n` (Lemma 1 at k = n: below). No set of independent moduli is known of real matrices:
their radii are sampled here.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from neurolsc.stability.eigen import spectral_radius
from neurolsc.validation import whole

# Draws matrices: of their size n, their number and a source of chance, shape (number, n, n).
Draw = Callable[[int, int, torch.Generator], Tensor]
TOGETHER = 2**22  # entries of matrices that are drawn at once
# How far from sqrt(n) the distribution of a radius reaches, and a modulus of it from its mean: their deviation is about
# a half.
BELOW, ABOVE, AROUND = 4.0, 6.0, 5.0


class MeanRadius(NamedTuple):
    """The mean radius of a sample of matrices."""

    mean: float
    error: float  # standard error of the mean


def chi_mean(k: int) -> float:
    r"""Lemma 1 of the paper: the mean modulus of the k-th eigenvalue, k from 1, of a real Gaussian matrix.

    .. math:: \sqrt2\, \frac{\Gamma((k+1)/2)}{\Gamma(k/2)}

    Right only to leading order, :math:`\sqrt k`: see :func:`ginibre_modulus` for what is exact of
    complex matrices, and :func:`expected_radius` for real ones. The lemma's "vanishing variance" is
    none: that of a chi variable tends to 1/2. It vanishes relative to the square of the mean.

    Example:
        >>> f"{chi_mean(8):.3f}"
        '2.742'

    Source: arXiv:2308.12075, Lemma 1, eq. 25 and 26.
    """
    whole("k", k)
    return math.sqrt(2) * math.exp(math.lgamma((k + 1) / 2) - math.lgamma(k / 2))


def ginibre_modulus(k: int) -> float:
    r"""The mean of the k-th, from 1, of the independent moduli of a complex Gaussian matrix: exact.

    .. math:: \frac{\Gamma(k + 1/2)}{\Gamma(k)}

    The mean of these over k = 1 ... n is the mean modulus of all eigenvalues. Its square deviation
    is k minus the square of the mean, which tends to 1/4.

    Example:
        >>> f"{sum(ginibre_modulus(k) for k in range(1, 9)) / 8:.3f}"
        '1.972'

    Source: Kostlan 1992, Linear Algebra and its Applications 162: 385-388.
    """
    whole("k", k)
    return math.exp(math.lgamma(k + 0.5) - math.lgamma(k))


def ginibre_radius(n: int) -> float:
    r"""The expected radius of a complex Gaussian matrix with E|m|^2 = 1: exact.

    .. math:: \mathrm{E} \max_{k \le n} \sqrt{G_k}
              = \int_0^\infty \Big(1 - \prod_{k=1}^{n} P(k, r^2)\Big)\, \mathrm{d} r,
              \qquad G_k \sim \mathrm{Gamma}(k, 1)

    with the regularised incomplete gamma function P. It is above :math:`\sqrt n`, by the share
    :math:`O(\sqrt{\log n / n})`.

    The size n is at least 1, the result right to 1e-9, as torch's incomplete gamma function is.

    Example:
        >>> print(*(f"{ginibre_radius(n) / n**0.5:.4f}" for n in (1, 8, 128, 10_000)))
        0.8862 1.0915 1.0553 1.0107

    Source: Kostlan 1992, as above.
    """
    whole("n", n)
    low, high = max(math.sqrt(n) - BELOW, 0.0), math.sqrt(n) + ABOVE
    first = math.floor(max(low - AROUND, 0.0) ** 2)  # those below are surely smaller
    k = torch.arange(first + 1, n + 1, dtype=torch.float64)
    r = torch.linspace(low, high, 401, dtype=torch.float64)
    below = torch.special.gammainc(k, r.square().unsqueeze(1)).log().sum(1).exp()
    # flat at both ends and even about 0: there the trapezoidal rule errs by less than any power
    return low + torch.trapezoid(1 - below, r).item()


def expected_radius(draw: Draw, n: int, *, samples: int = 100, seed: int = 0) -> MeanRadius:
    """Estimate the expected radius of random matrices.

    Args:
        draw: what draws them: :func:`gaussian`, :func:`glorot`, :func:`he_relu`, :func:`orthogonal`
            or one of your own.
        n: their size, from 1.
        samples: their number, from 2.
        seed: of the draws.

    Cost: a dense eigenvalue problem of size n for each.

    Example:
        >>> mean, error = expected_radius(glorot, 32, samples=200)
        >>> 1 + 10 * error < mean < 1.1
        True

    Source: arXiv:2308.12075, Corollary 1 (App. B).
    """
    whole("n", n)
    whole("samples", samples, at_least=2)
    generator = torch.Generator().manual_seed(seed)
    pieces = torch.arange(samples).split(max(TOGETHER // n**2, 1))
    radii = torch.cat([spectral_radius(draw(n, len(piece), generator)) for piece in pieces])
    return MeanRadius(radii.mean().item(), (radii.std() / math.sqrt(samples)).item())


def gaussian(n: int, count: int, generator: torch.Generator) -> Tensor:
    """Real matrices (count, n, n) of independent Gaussian entries of variance 1, as in Lemma 1."""
    return torch.randn(count, n, n, generator=generator, dtype=torch.float64)


def glorot(n: int, count: int, generator: torch.Generator) -> Tensor:
    """Derivatives of linear layers after Glorot: uniform entries of variance 1/n."""
    return (2 * torch.rand(count, n, n, generator=generator, dtype=torch.float64) - 1) * math.sqrt(3 / n)


def he_relu(n: int, count: int, generator: torch.Generator) -> Tensor:
    """Derivatives of ReLU layers after He: variance 2/n, each column 0 with probability 1/2.

    The radius is that of the columns and rows of the neurons that are on.
    """
    on = torch.rand(count, 1, n, generator=generator, dtype=torch.float64) < 0.5
    return gaussian(n, count, generator) * math.sqrt(2 / n) * on


def orthogonal(n: int, count: int, generator: torch.Generator) -> Tensor:
    """Derivatives of linear layers with orthogonal weights: all eigenvalues have modulus 1."""
    return torch.linalg.qr(gaussian(n, count, generator))[0]
