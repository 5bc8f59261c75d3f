"""Updates of a training: the paper's optimizer, learning rates of parameters, gradients, bounds."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from neurolsc.network import Network
from neurolsc.neurons.cell import Cell, weight_matrices
from neurolsc.validation import positive

if TYPE_CHECKING:
    from pytorch_optimizer import Lookahead

__all__ = [
    "adabelief_lookahead",
    "bound_weights",
    "clip_singular_values",
    "clip_weights",
    "condition_gradients",
    "parameter_groups",
]


def adabelief_lookahead(
    parameters: Iterable[nn.Parameter] | list[dict[str, Any]], lr: float, weight_decay: float = 0.0
) -> "Lookahead":
    r"""AdaBelief inside Lookahead: every 6 steps weights go half the way back to where they were.

    .. math:: \phi \leftarrow \phi + 0.5\,(w - \phi), \quad w \leftarrow \phi
        \quad \text{every 6 steps}

    The slow copy :math:`\phi` of each parameter p is ``optimizer.state[p]["slow_params"]``. Code that sets parameters
    between two steps has to set that copy as well, or it pulls them back.

    Args:
        parameters: the parameters, or groups of them.
        lr: learning rate; 1e-3 trains the ALIF of the paper, 3.14e-3 is its pre-training.
        weight_decay: decoupled from the gradient; 0 in the paper's training, 1e-4 in its pre-training.

    Source: arXiv:2308.12075, Sec. II-G; Zhuang et al. 2020 (AdaBelief); Zhang et al. 2019 (Lookahead).
    """
    from pytorch_optimizer import AdaBelief, Lookahead  # takes a second to import, and only training needs it

    positive("lr", lr)
    positive("weight_decay", weight_decay, zero_allowed=True)
    return Lookahead(AdaBelief(parameters, lr=lr, weight_decay=weight_decay), k=6, alpha=0.5)


def parameter_groups(network: Network, lr: float, *, by_gain: bool) -> list[dict[str, Any]]:
    r"""The parameters of a network in groups for a torch optimizer, each with its learning rate.

    An optimizer such as Adam moves every parameter by about its learning rate. By gain that is

    .. math:: \mathrm{lr} / g, \qquad
        g(b_\vartheta) = \frac{1}{n} \sum_i \frac{1}{1 - e^{-1/\tau_{\vartheta,i}}}

    so that the state at rest moves by about as much as weights do: :math:`b_\vartheta` of an ALIF is added at every
    step and moves the threshold 100-fold by default.

    Args:
        network: the network; gains of its parameters are :meth:`neurolsc.Cell.gains`.
        lr: learning rate of all whose gain is 1.
        by_gain: divide by the gains; else there is one group.

    Source: ours.
    """
    gains = {}
    for cell in network.cells if by_gain else ():
        named = dict(cell.named_parameters())
        gains |= {id(named[name]): gain for name, gain in cell.gains().items() if name in named}
    plain = [p for p in network.parameters() if id(p) not in gains]
    scaled = [{"params": [p], "lr": lr / gains[id(p)]} for p in network.parameters() if id(p) in gains]
    return [{"params": plain, "lr": lr}, *scaled]


def condition_gradients(network: Network, *, centralize: bool, clip: float) -> Tensor:
    r"""Centralize gradients and clip their norm, before the optimizer's step; return the norm before it is clipped.

    Spikes are never negative, so a change that all weights of a neuron share moves its mean current by their number
    times the rate below: within some updates layers fall silent or fire at every step, the more layers, the sooner. A
    centralized gradient leaves that to the threshold.

    Args:
        network: the network, with gradients.
        centralize: subtract from the gradient of every matrix of a cell the mean of its row, :math:`g_{ij} \leftarrow
            g_{ij} - \tfrac1n \sum_k g_{ik}`; not that of the readout.
        clip: the largest norm c of the whole gradient, :math:`g \leftarrow g \min(1, c / \Vert g \Vert)`; 0: not
            clipped.

    Source: Pascanu et al., arXiv:1211.5063, algorithm 1 (clipping); Yong et al., arXiv:2004.01461, eq. 1
    (centralization; for spikes: ours).
    """
    if centralize:
        from pytorch_optimizer.optimizer.gradient_centralization import centralize_gradient

        parameters = (p for cell in network.cells for p in cell.parameters())
        centralize_gradient([p.grad for p in parameters if p.grad is not None])
    norm = nn.utils.get_total_norm([p.grad for p in network.parameters() if p.grad is not None])
    if clip and norm.isfinite():
        nn.utils.clip_grads_with_norm_(network.parameters(), clip, norm)
    return norm


def bound_weights(network: Network, *, weight: float, spectrum: float) -> None:
    """Bound the matrices of the cells, after the optimizer's step; frozen ones stay.

    Args:
        network: the network.
        weight: bound of :func:`clip_weights`; 0: none.
        spectrum: bound of :func:`clip_singular_values` of every recurrent matrix; 0: none.
    """
    for cell in network.cells:
        if weight:
            clip_weights(cell, weight)
        for matrix in weight_matrices(cell, "time") if spectrum else ():
            matrix.set(clip_singular_values(matrix.weights, spectrum))


def clip_weights(cell: Cell, most: float) -> None:
    r"""Bound the weights of a cell in place, in resting thresholds of their neurons.

    .. math:: |w_{ij}| \le c\, \vartheta_i

    Of a convolution the lowest threshold counts. Integers of a chip have so many steps between zero and the largest
    weight: with 8 bits and c = 3, a threshold is 62 steps or more.

    Raises:
        TypeError: if the cell does not name its voltage (:class:`neurolsc.neurons.Membrane`).
    """
    if (membrane := cell.membrane()) is None:
        raise TypeError(f"clip_weight needs a cell that names its voltage, got {type(cell).__name__}.")
    with torch.no_grad():
        threshold = membrane.thresholds(cell.initial_state(1))[0].clamp(min=0)
        for matrix in dict.fromkeys((*weight_matrices(cell, "depth"), *weight_matrices(cell, "time"))):
            weights = matrix.weights
            dense = weights.ndim == 2 and len(weights) == len(threshold)
            bound = most * (threshold.unsqueeze(1) if dense else threshold.min())
            if (weights.abs() > bound).any():
                matrix.set(weights.clamp(-bound, bound))


def clip_singular_values(weights: Tensor, most: float) -> Tensor:
    r""":math:`U \min(S, c) V^\top` of a matrix :math:`U S V^\top`, the nearest with the bound c.

    Further axes of the weights are taken as columns.

    Source: Miller & Hardt, arXiv:1805.10369, Sec. 4.2 (projection onto the ball of the norm).
    """
    rows = weights.flatten(1)
    if torch.linalg.matrix_norm(rows) <= most:  # the Frobenius norm is no smaller than the largest singular value
        return weights
    u, s, vh = torch.linalg.svd(rows, full_matrices=False)
    return ((u * s.clamp(max=most)) @ vh).view_as(weights)
