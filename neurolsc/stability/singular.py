"""Largest singular values of the transition derivatives, through time and through depth."""

from collections.abc import Sequence

import torch
from torch import Tensor

from neurolsc.eigen.radii import TOLERANCE, radii, root
from neurolsc.modes import evaluating
from neurolsc.network import Network, as_network
from neurolsc.neurons.derivatives import LinearOperator
from neurolsc.stability.cycles import depth_maps, squared, time_map
from neurolsc.stability.profile import draw_steps
from neurolsc.stability.transition import Transitions, follow


def singular_values(
    network: Network, x: Tensor, *, steps: int | None = None, seed: int = 0, tolerance: float = TOLERANCE
) -> tuple[Tensor, Tensor]:
    r"""Measure the largest singular value of every transition derivative of a network.

    .. math:: \sigma_{\max}(M) = \max_{|u| = 1} |M u| = \sqrt{\rho(M^T M)}

    It bounds what one step can do to a gradient, the radius what many steps of the same kind do;
    a derivative whose radius is far below it stretches some gradients before they fade. Between
    layers of unequal widths it needs no sub-matrix.

    Args:
        network: the network; its parameters are not changed.
        x: input (T, B, n_in).
        steps: how many steps to measure, drawn at random; by default all T.
        seed: of the steps.
        tolerance: relative error of the squares, as in :func:`neurolsc.radius_profile`.

    Returns:
        Through time and through depth, each (L, K, B): layer, step, sample. Depth row 0 is that of
        the derivative by the input.

    Raises:
        TypeError: if network is not one.
        ValueError: if x does not fit it, or steps or tolerance are out of range.
        FloatingPointError: if a derivative is NaN or infinite.

    Cost: as that of radii, with two products in place of one.

    Source: Pascanu, Mikolov & Bengio 2013, arXiv:1211.5063 (singular values and gradients).
    """
    generator = torch.Generator().manual_seed(seed)
    chosen = draw_steps(x.shape[0], steps, generator)
    with evaluating(as_network(network)), torch.no_grad():
        transitions, _ = follow(network, x, chosen)
        shape = (len(chosen), x.shape[1])
        time = [through_time(t, tolerance).view(shape) for t in transitions]
        depth = [through_depth(t, tolerance).view(shape) for t in transitions]
    return torch.stack(time), torch.stack(depth)


def through_time(t: Transitions, tolerance: float = TOLERANCE) -> Tensor:
    """The largest singular values through time at the points of a layer (P,)."""
    return _largest([time_map(t)], t.x, tolerance)


def through_depth(t: Transitions, tolerance: float = TOLERANCE) -> Tensor:
    """Likewise through depth."""
    return _largest(depth_maps(t), t.x, tolerance)


def _largest(maps: Sequence[LinearOperator], like: Tensor, tolerance: float) -> Tensor:
    """That of a product of maps at all points of a layer (P,)."""
    points = 1 if all(part.same for part in maps) else len(like)
    return root(radii(squared(maps, points), like, tolerance).radius).expand(len(like))
