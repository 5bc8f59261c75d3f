"""Measured on a network: a change forward and a gradient back (App. E), and covariance (App. I)."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from neurolsc.network import Network, StepRecord, as_network, eval_mode
from neurolsc.stability.indicators import Loss, state_gradients
from neurolsc.stability.transitions import Transitions, depth_operators, flat, follow, time_operator
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
    the same paths of products of the same derivatives, taken from one end and from the other (App. E): with
    ``layer_delay=1`` the loss changes by :math:`g \cdot \delta h` summed over the layers, at every step. Of spikes a
    small change moves none, or whole ones, while the tangent and the gradient have the surrogate's derivative. So what
    the paper says of the forward pass is there true of the tangent only.

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
        like, generator = network.dtype_and_device, torch.Generator().manual_seed(seed)
        change, last = (_directions(x.shape[1], n, generator).to(**like) for n in (network.n_in, network.n_out))
        changed = x.to(**like, copy=True)
        changed[step] += size * change
        with torch.no_grad():
            pairs = zip(network.records(x), network.records(changed), strict=True)
            difference = torch.stack([_apart(*pair) for pair in pairs], 1) / size
            tangent = _tangent(transitions, change, step, network.layer_delay)
        gradient = state_gradients(network, x, loss or (lambda logits: (logits[-1] * last).sum()))
    return Growth(difference, tangent, gradient)


def _directions(batch: int, width: int, generator: torch.Generator) -> Tensor:
    """Vectors of norm 1 (B, width)."""
    drawn = torch.randn(batch, width, generator=generator, dtype=torch.float64)
    return drawn / drawn.norm(dim=1, keepdim=True)


def _apart(one: StepRecord, other: StepRecord) -> Tensor:
    """How far the states after a step of two runs are apart (L, B)."""
    layers = zip(one.after.layers, other.after.layers, strict=True)
    return torch.stack([(flat(a) - flat(b)).norm(dim=1) for a, b in layers])


def _tangent(transitions: list[Transitions], change: Tensor, step: int, layer_delay: int) -> Tensor:
    """Norms of the change of the first order (L, T, B)."""
    batch, norms = len(change), []
    steps = len(transitions[0].x) // batch
    now = [torch.zeros_like(flat(t.before)[:batch]) for t in transitions]
    for i in range(steps):
        before, now = now, []
        for layer, t in enumerate(transitions):
            points = t.at(slice(i * batch, (i + 1) * batch))
            if layer:
                below = (before if layer_delay else now)[layer - 1]
            else:
                below = change if i == step + layer_delay else torch.zeros_like(change)
            for part in depth_operators(points):
                below = part.matvec(below)
            now.append(time_operator(points).matvec(before[layer]) + below)
        norms.append(torch.stack([change.norm(dim=1) for change in now]))
    return torch.stack(norms, 1)


class CovarianceDecay(NamedTuple):
    """How a size at each step goes together with that at one step; all (..., K)."""

    covariance: Tensor
    correlation: Tensor  # Pearson's, -1 to 1; NaN where one of the two steps is the same for all samples
    p_value: Tensor  # chance of a correlation as far from 0 between independent Gaussian variables; NaN likewise


def covariance_decay(sizes: Tensor, *, step: int = 0) -> CovarianceDecay:
    r"""Measure how the size of a derivative at each step goes together with that at one step.

    .. math:: \mathrm{cov}(a_t, a_s), \qquad
              r_t = \frac{\mathrm{cov}(a_t, a_s)}{\sqrt{\mathrm{var}\, a_t\; \mathrm{var}\, a_s}},
              \qquad p_t = \mathrm{P}(|r| \ge |r_t|)

    over samples, with the chance p for independent Gaussian variables. Theorem 2 assumes that the covariance tends to 0
    with the distance of any two steps. A p above 0.05 says that the correlation could be chance, not that there is
    none: over B samples one below about :math:`2 / \sqrt B` cannot be distinguished from 0. And of independent sizes
    one step in twenty has a p below 0.05.

    A network that starts at rest has the same state, and where its derivative does not depend on the input the same
    derivative, in all samples at its first step; with ``layer_delay=1`` layer l has it for l more steps. A covariance
    with such a step is 0 whatever the network does later: choose a step at which samples differ.

    Args:
        sizes: over steps and samples (..., K, B), as of :func:`neurolsc.stability.singular_values`, the paper's, or of
            :attr:`neurolsc.RadiusProfile.time`.
        step: s, its index among the K; the paper's 0.

    Returns:
        Covariance, correlation and p-value (..., K), in float64.

    Raises:
        ValueError: if sizes are not (..., K, B) with B >= 3, not finite, or step is not in 0 ... K-1.

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

    with the regularised incomplete beta function I, r in -1 ... 1 and B from 3; NaN where r is.
    """
    from scipy.special import betainc  # takes 0.1 s to import

    r = correlation.double()
    p = betainc(samples / 2 - 1, 0.5, ((1 - r) * (1 + r)).clamp(min=0).numpy())
    return torch.from_numpy(np.asarray(p))
