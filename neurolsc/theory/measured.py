"""Measured on a network: a change forward and a gradient back (App. E), and covariance (App. I)."""

from typing import NamedTuple

import torch
from torch import Tensor

from neurolsc.network import Network, as_network, eval_mode
from neurolsc.stability.indicators import Loss, state_gradients
from neurolsc.stability.transitions import depth_operators, flat, follow, time_operator
from neurolsc.validation import number


class Growth(NamedTuple):
    """Norms of changes and of gradients of every layer, step and sample; all (L, T, B)."""

    difference: Tensor  # of the change between two runs, over that of the input
    tangent: Tensor  # the same of the first order: products of transition derivatives
    gradient: Tensor  # of the gradient of a loss by the state


def perturbation_growth(
    network: Network, x: Tensor, *, step: int = 0, size: float = 1e-3, loss: Loss | None = None, seed: int = 0
) -> Growth:
    r"""Follow a small change of one input frame forward, and a gradient back, through a network.

    .. math:: \delta h[t, l] = M^{time}_{t,l}\, \delta h[t-1, l] + M^{depth}_{t,l}\, \delta h[t',
              l-1], \qquad g[t, l] = \frac{\mathrm{d} L}{\mathrm{d} h[t, l]}

    with t' = t-1 or t by the network's delay, and :math:`\delta h[\cdot, 0]` the input's change. Both are sums over
    the same paths, taken from one end and from the other. Of spikes a small change moves none, or whole ones, while the
    tangent and the gradient have the surrogate's derivative.

    Args:
        network: the network; its parameters are not changed.
        x: input (T, B, n_in).
        step: which frame is changed, by a random vector of norm ``size`` for each sample.
        size: small enough for the first order, large enough not to drown in rounding.
        loss: of the logits; by default those of the last step in a random direction of norm 1 for each sample.
        seed: of the directions.

    Raises:
        TypeError: if network is not one.
        ValueError: if x does not fit it, step is not in 0 ... T-1, or size is not positive.

    Example:
        >>> from torch import nn
        >>> from neurolsc import Network
        >>> from neurolsc.theory import PascalRNN
        >>> network = Network([PascalRNN(time=1.0, depth=1.0) for _ in range(2)], nn.Identity())
        >>> growth = perturbation_growth(network, torch.zeros(6, 1, 1))
        >>> growth.tangent[1, :, 0].tolist(), growth.gradient[0, :, 0].tolist()
        ([0.0, 0.0, 1.0, 2.0, 3.0, 4.0], [5.0, 4.0, 3.0, 2.0, 1.0, 0.0])

    Source: arXiv:2308.12075, App. E, eq. 45.
    """
    number("size", size)
    with eval_mode(as_network(network)):
        transitions, _ = follow(network, x, torch.arange(len(x)))
        if not 0 <= step < len(x):
            raise ValueError(f"step must be in 0 ... {len(x) - 1}, got {step}.")
        like, batch, generator = network.dtype_and_device, x.shape[1], torch.Generator().manual_seed(seed)
        drawn = [torch.randn(batch, n, generator=generator, dtype=torch.float64) for n in (network.n_in, network.n_out)]
        change, last = ((d / d.norm(dim=1, keepdim=True)).to(**like) for d in drawn)
        changed = x.to(**like, copy=True)
        changed[step] += size * change
        difference, tangent = [], []
        with torch.no_grad():
            for one, other in zip(network.records(x), network.records(changed), strict=True):
                layers = zip(one.after.layers, other.after.layers, strict=True)
                difference.append(torch.stack([(flat(a) - flat(b)).norm(dim=1) / size for a, b in layers]))
            now = [torch.zeros_like(flat(t.before)[:batch]) for t in transitions]
            for i in range(len(x)):
                before, now = now, []
                for layer, t in enumerate(transitions):
                    points = t.at(slice(i * batch, (i + 1) * batch))
                    if layer:
                        below = (before if network.layer_delay else now)[layer - 1]
                    else:
                        below = change if i == step + network.layer_delay else torch.zeros_like(change)
                    for part in depth_operators(points):
                        below = part.matvec(below)
                    now.append(time_operator(points).matvec(before[layer]) + below)
                tangent.append(torch.stack([moved.norm(dim=1) for moved in now]))
        gradient = state_gradients(network, x, loss or (lambda logits: (logits[-1] * last).sum()))
    return Growth(torch.stack(difference, 1), torch.stack(tangent, 1), gradient)


class CovarianceDecay(NamedTuple):
    """Covariance and correlation of a size at each step with that at one step; all (..., K)."""

    covariance: Tensor
    correlation: Tensor  # Pearson's, -1 to 1; NaN where one of the two steps is the same for all samples
    p_value: Tensor  # chance of a correlation as far from 0 between independent Gaussian variables; NaN likewise


def covariance_decay(sizes: Tensor, *, step: int = 0) -> CovarianceDecay:
    r"""Covariance, correlation and its p-value of the size of a derivative at each step with that at one step.

    .. math:: \mathrm{cov}(a_t, a_s), \qquad
              r_t = \frac{\mathrm{cov}(a_t, a_s)}{\sqrt{\mathrm{var}\, a_t\; \mathrm{var}\, a_s}},
              \qquad p_t = I_{1 - r_t^2}\Big(\frac B2 - 1, \frac12\Big)

    over B samples, with the regularised incomplete beta function I. Theorem 2 assumes that the covariance tends to 0
    with the distance of any two steps; a correlation below about :math:`2 / \sqrt B` cannot be distinguished from 0.
    A network at rest has the same derivatives in all samples, and so no covariance: choose a step where samples differ.

    Args:
        sizes: over steps and samples (..., K, B), as of :func:`neurolsc.stability.singular_values`, the paper's, or of
            :attr:`neurolsc.RadiusProfile.time`.
        step: s, its index among the K; the paper's 0.

    Returns:
        Covariance, correlation and p-value (..., K), in float64.

    Raises:
        ValueError: if sizes are not (..., K, B) with B >= 3, or step is not in 0 ... K-1.

    Source: arXiv:2308.12075, App. A and I, Fig. S2 and S3.
    """
    from scipy.special import betainc  # takes 0.1 s to import

    if sizes.ndim < 2 or sizes.shape[-1] < 3:
        raise ValueError(f"sizes must have shape (..., K, B) with B >= 3 samples, got {tuple(sizes.shape)}.")
    if not 0 <= step < sizes.shape[-2]:
        raise ValueError(f"step must be in 0 ... {sizes.shape[-2] - 1}, got {step}.")
    samples, a = sizes.shape[-1], sizes.detach().cpu().double()
    apart = a - a.mean(-1, keepdim=True)
    # what rounding alone makes of equal sizes is no variance
    alike = apart.abs().amax(-1) <= 8 * torch.finfo(sizes.dtype).eps * a.abs().amax(-1)
    apart = apart.masked_fill(alike.unsqueeze(-1), 0)
    covariance = (apart * apart[..., step : step + 1, :]).sum(-1) / (samples - 1)
    deviation = apart.square().sum(-1).div(samples - 1).sqrt()
    r = (covariance / (deviation * deviation[..., step : step + 1])).clamp(-1, 1)
    p = betainc(samples / 2 - 1, 0.5, ((1 - r) * (1 + r)).clamp(min=0).numpy())
    return CovarianceDecay(covariance, r, torch.as_tensor(p))
