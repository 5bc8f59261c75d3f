"""Finite-time Lyapunov exponents of every layer through time."""

import torch
from torch import Tensor

from neurolsc.modes import evaluating
from neurolsc.network import Network, as_network
from neurolsc.stability.cycles import time_map
from neurolsc.stability.measure import at_points, states
from neurolsc.stability.transition import Transitions, follow
from neurolsc.validation import whole


def lyapunov_exponents(network: Network, x: Tensor, *, count: int = 1, seed: int = 0) -> Tensor:
    r"""Measure how fast small changes of a layer's state grow or fade along a run.

    With the derivatives :math:`M_t = \partial h[t, l] / \partial h[t-1, l]` along the run of a
    sample and orthonormal columns :math:`Q_0` drawn at random,

    .. math:: Q_t R_t = M_t Q_{t-1}, \qquad
              \lambda_i = \frac{1}{T} \sum_{t=1}^{T} \log |(R_t)_{ii}|

    The radius of one step says nothing about a product of steps whose directions differ; these do.
    A change across layers adds none: the derivative of the whole network is block triangular, so
    that as T grows its exponents become those of its layers, all together.

    Args:
        network: the network; its parameters are not changed.
        x: input (T, B, n_in).
        count: how many exponents of each layer, at most its number of state variables.
        seed: of the first directions.

    Returns:
        Exponents (L, B, count), in nats per step; above 0 gradients through time explode.
        ``-inf`` where a direction is lost altogether. The first is the largest as T grows; over T
        steps each is uncertain by about 1 / T times the logarithm of how well the first directions
        met theirs.

    Raises:
        TypeError: if network is not one.
        ValueError: if x does not fit it, or count is not in 1 ... the smallest state.

    Cost: ``count`` products of the derivative and a QR of (S, count) for each of L T B points: of
    LIF and ALIF O(count n_hidden^2 + count^2 n_hidden) each. The states of all steps are kept.

    Source: Benettin et al., Meccanica 15 (1980) (the QR method); arXiv:2006.02427, Engelken,
    Wolf & Abbott (of recurrent networks); for the link to gradients Vogt et al., arXiv:2006.14123.
    """
    whole("count", count)
    with evaluating(as_network(network)), torch.no_grad():
        transitions, _ = follow(network, x, torch.arange(x.shape[0]))
        smallest = min(states(t) for t in transitions)
        if count > smallest:
            raise ValueError(
                f"count must be at most the {smallest} state variables of the smallest layer, got {count}."
            )
        return torch.stack([layer_exponents(t, x.shape[1], count, seed) for t in transitions])


def layer_exponents(t: Transitions, batch: int, count: int, seed: int) -> Tensor:
    """Exponents (B, count) of one layer at all steps of a run, points ordered (step, sample)."""
    size, like = states(t), t.x
    steps = len(like) // batch
    start = torch.randn(size, count, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    q = torch.linalg.qr(start)[0].to(like).expand(batch, -1, -1)
    copies = torch.arange(batch, device=like.device).repeat_interleave(count)
    total = like.new_zeros(batch, count)
    for step in range(steps):
        derivative = time_map(at_points(t, slice(step * batch, (step + 1) * batch))).take(copies)
        moved = derivative.matvec(q.mT.reshape(batch * count, size)).view(batch, count, size).mT
        q, r = torch.linalg.qr(moved)
        total += r.diagonal(dim1=1, dim2=2).abs().log()
    return total / steps
