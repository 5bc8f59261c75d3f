"""How sizes of derivatives at distant steps go together: the paper's decaying covariance."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class CovarianceDecay(NamedTuple):
    """How a size at each step goes together with that at one step; all (..., K)."""

    covariance: Tensor
    correlation: Tensor
    """Pearson's, -1 to 1; NaN where one of the two steps is the same for all samples"""
    p_value: Tensor
    """chance of a correlation as far from 0 between independent Gaussian variables; NaN likewise"""


def covariance_decay(sizes: Tensor, *, step: int = 0) -> CovarianceDecay:
    r"""Tell how the size of a derivative at each step goes together with that at one step.

    .. math:: \mathrm{cov}(a_t, a_s), \qquad
              r_t = \frac{\mathrm{cov}(a_t, a_s)}{\sqrt{\mathrm{var}\, a_t\; \mathrm{var}\, a_s}},
              \qquad p_t = \mathrm{P}(|r| \ge |r_t|)

    over samples, with the chance p for independent Gaussian variables. Theorem 2 assumes that the
    covariance tends to 0 with the distance of any two steps. A p above 0.05 says that the
    correlation could be chance, not that there is none: over B samples one below about
    :math:`2 / \sqrt B` cannot be told from 0. And of independent sizes one step in twenty has a p
    below 0.05.

    A network that starts at rest has the same state, and where its derivative does not depend on
    the input the same derivative, in all samples at its first step; with ``layer_delay=1`` layer l
    has it for l more steps. A covariance with such a step is 0 whatever the network does later:
    look at one at which samples differ.

    Args:
        sizes: over steps and samples (..., K, B), as of :func:`neurolsc.stability.singular_values`,
            the paper's, or of :attr:`neurolsc.RadiusProfile.time`.
        step: s, its index among the K; the paper's 0.

    Returns:
        Covariance, correlation and p-value (..., K), in float64.

    Raises:
        ValueError: if sizes are not (..., K, B) with B >= 3, not finite, or step is not in
            0 ... K-1.

    Cost: O(K B) for each row.

    Example:
        >>> from neurolsc import LIF, Network
        >>> from neurolsc.stability import singular_values
        >>> network = Network([LIF(6, 8, tau_v=5.0)], n_out=2)
        >>> sizes, _ = singular_values(network, torch.rand(10, 20, 6))
        >>> covariance_decay(sizes, step=2).correlation.shape
        torch.Size([1, 10])

    Source: arXiv:2308.12075, App. A and I, Fig. S2 and S3.
    """
    if sizes.ndim < 2 or sizes.shape[-1] < 3:
        raise ValueError(f"sizes must have shape (..., K, B) with B >= 3 samples, got {tuple(sizes.shape)}.")
    if not sizes.isfinite().all():
        raise ValueError(f"sizes must be finite, got NaN or infinity in {tuple(sizes.shape)}.")
    if not 0 <= step < sizes.shape[-2]:
        raise ValueError(f"step must be in 0 ... {sizes.shape[-2] - 1}, got {step}.")
    samples, dtype = sizes.shape[-1], sizes.dtype if sizes.is_floating_point() else torch.float64
    a = sizes.detach().cpu().double()
    apart = a - a.mean(-1, keepdim=True)
    # what rounding alone makes of equal sizes is no variance
    alike = apart.abs().amax(-1) <= 8 * torch.finfo(dtype).eps * a.abs().amax(-1)
    apart = apart.masked_fill(alike.unsqueeze(-1), 0)
    covariance = (apart * apart[..., step : step + 1, :]).sum(-1) / (samples - 1)
    deviation = apart.square().sum(-1).div(samples - 1).sqrt()
    correlation = (covariance / (deviation * deviation[..., step : step + 1])).clamp(-1, 1)
    return CovarianceDecay(covariance, correlation, pearson_p(correlation, samples))


def pearson_p(correlation: Tensor, samples: int) -> Tensor:
    r"""The chance of a correlation as far from 0 between B independent Gaussian variables.

    .. math:: p = I_{1 - r^2}\Big(\frac B2 - 1, \frac12\Big)

    with the regularised incomplete beta function I.

    Args:
        correlation: r in -1 ... 1, of any shape.
        samples: B, from 3.

    Returns:
        p, in the shape of r, float64; NaN where r is.
    """
    from scipy.special import betainc  # takes 0.1 s to import, and few ask for this

    r = correlation.double()
    p = betainc(samples / 2 - 1, 0.5, ((1 - r) * (1 + r)).clamp(min=0).numpy())
    return torch.from_numpy(np.asarray(p))
