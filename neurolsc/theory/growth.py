"""A small change on its way forward through a network, and a gradient on its way back."""

from typing import NamedTuple

import torch
from torch import Tensor

from neurolsc.modes import evaluating
from neurolsc.network import Moment, Network, as_network
from neurolsc.stability.cycles import depth_maps, time_map
from neurolsc.stability.gradients import Loss, state_gradients
from neurolsc.stability.measure import at_points
from neurolsc.stability.transition import Transitions, flat, follow
from neurolsc.validation import number


class Growth(NamedTuple):
    """Norms of changes and of gradients of every layer, step and sample; all (L, T, B)."""

    difference: Tensor
    """of the change between two runs, over that of the input"""
    tangent: Tensor
    """the same of the first order: products of transition derivatives"""
    gradient: Tensor
    """of the gradient of a loss by the state"""


def perturbation_growth(
    network: Network, x: Tensor, *, step: int = 0, size: float = 1e-3, loss: Loss | None = None, seed: int = 0
) -> Growth:
    r"""Follow a small change of one input frame forward, and a gradient back, through a network.

    .. math:: \delta h[t, l] = M^{time}_{t,l}\, \delta h[t-1, l] + M^{depth}_{t,l}\, \delta h[t',
              l-1], \qquad g[t, l] = \frac{\mathrm{d} L}{\mathrm{d} h[t, l]}

    with t' = t-1 or t by the network's delay, and :math:`\delta h[\cdot, 0]` the change of the
    input. Both are sums over the same paths of products of the same derivatives, taken from one end
    and from the other (App. E): with ``layer_delay=1`` what the loss changes by is
    :math:`g \cdot \delta h` summed over the layers, at whichever step one looks. Of spikes the
    change between two runs is not that of the first order: a small one moves no spike, or whole
    ones, while the tangent and the gradient have the surrogate's derivative. So what the paper says
    of the forward pass is there true of the tangent only.

    Args:
        network: the network; its parameters are not changed.
        x: input (T, B, n_in).
        step: which frame is changed, by a random vector of norm ``size`` for each sample.
        size: small enough for the first order, large enough not to drown in rounding.
        loss: of the logits; by default those of the last step in a random direction of norm 1 for
            each sample.
        seed: of the directions.

    Returns:
        The three norms. Before the change arrives they are 0.

    Raises:
        TypeError: if network is not one.
        ValueError: if x does not fit it, step is not in 0 ... T-1, or size is not positive.

    Cost: two runs, one product of either derivative for each of L T B points, and a run with a
    backward pass by plain steps.

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
    with evaluating(as_network(network)):
        transitions, _ = follow(network, x, torch.arange(len(x)))
        if not 0 <= step < len(x):
            raise ValueError(f"step must be in 0 ... {len(x) - 1}, got {step}.")
        like, generator = network.dtype_and_device, torch.Generator().manual_seed(seed)
        change, last = (_directions(x.shape[1], n, generator).to(**like) for n in (network.n_in, network.n_out))
        changed = (x.to_dense() if x.is_sparse else x).to(**like, copy=True)
        changed[step] += size * change
        with torch.no_grad():
            pairs = zip(network.moments(x), network.moments(changed), strict=True)
            difference = torch.stack([_apart(*pair) for pair in pairs], 1) / size
            tangent = _tangent(transitions, change, step, network.layer_delay)
        gradient = state_gradients(network, x, loss or (lambda logits: (logits[-1] * last).sum()))
    return Growth(difference, tangent, gradient)


def _directions(batch: int, width: int, generator: torch.Generator) -> Tensor:
    """Vectors of norm 1 (B, width)."""
    drawn = torch.randn(batch, width, generator=generator, dtype=torch.float64)
    return drawn / drawn.norm(dim=1, keepdim=True)


def _apart(one: Moment, other: Moment) -> Tensor:
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
            points = at_points(t, slice(i * batch, (i + 1) * batch))
            if layer:
                below = (before if layer_delay else now)[layer - 1]
            else:
                below = change if i == step + layer_delay else torch.zeros_like(change)
            for part in depth_maps(points):
                below = part.matvec(below)
            now.append(time_map(points).matvec(before[layer]) + below)
        norms.append(torch.stack([change.norm(dim=1) for change in now]))
    return torch.stack(norms, 1)
