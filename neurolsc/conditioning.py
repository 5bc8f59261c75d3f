"""What keeps a training from running away: centralized and clipped gradients, clipped matrices."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from neurolsc.network import Network
from neurolsc.neurons.synapses import synapses
from neurolsc.validation import number


@dataclass(frozen=True)
class Conditioning:
    r"""What is done to the gradient before every update of a training, and to weights after it.

    Spikes are never negative, so what all weights of a neuron have in common moves its mean current
    by their number times the rate below; an optimizer that moves every weight by about its learning
    rate shifts it by whole thresholds within some updates, and layers fall silent or fire at every
    step, the more of them, the sooner. Centralized gradients leave that to the threshold.

    Attributes:
        clip_gradient: the largest norm of the whole gradient g; a larger one is scaled down to it,
            :math:`g \leftarrow g \min(1, c / \Vert g \Vert)`. 0: not clipped.
        clip_spectrum: the largest singular value of every recurrent matrix; after each update
            :math:`U S V^\top` becomes :math:`U \min(S, c) V^\top`, the nearest matrix within the
            bound. Matrices are those that the cells name in their ``answers``; frozen ones stay.
            0: not clipped.
        centralize: take from the gradient of every matrix of a cell the mean of its row,
            :math:`g_{ij} \leftarrow g_{ij} - \tfrac1n \sum_k g_{ik}`, before it is clipped. The
            readout keeps its own.

    Raises:
        ValueError: if a bound is negative or not finite.

    Source: Pascanu et al., arXiv:1211.5063, algorithm 1 (gradient); Miller & Hardt,
    arXiv:1805.10369, Sec. 4.2 (spectrum: projection onto the ball of the spectral norm); Yong et
    al., arXiv:2004.01461, eq. 1 (centralization; for spikes: ours).
    """

    clip_gradient: float = 0.0
    clip_spectrum: float = 0.0
    centralize: bool = False

    def __post_init__(self) -> None:
        number("clip_gradient", self.clip_gradient, zero_allowed=True)
        number("clip_spectrum", self.clip_spectrum, zero_allowed=True)

    def before_update(self, network: Network) -> None:
        """Centralize and clip the gradient, before the optimizer's step."""
        if self.centralize:
            from pytorch_optimizer.optimizer.gradient_centralization import centralize_gradient

            parameters = (p for cell in network.cells for p in cell.parameters())
            centralize_gradient([p.grad for p in parameters if p.grad is not None])
        if self.clip_gradient:
            nn.utils.clip_grad_norm_(network.parameters(), self.clip_gradient)

    def after_update(self, network: Network) -> None:
        """Clip the recurrent matrices, after the optimizer's step."""
        if self.clip_spectrum:
            for matrix in (s for cell in network.cells for s in synapses(cell, "time")):
                matrix.set(clip_singular_values(matrix.weights, self.clip_spectrum))


def clip_singular_values(weights: Tensor, most: float) -> Tensor:
    r""":math:`U \min(S, c) V^\top` of a matrix :math:`U S V^\top`; more axes are taken as columns.

    It is the nearest matrix with no singular value above c.
    """
    rows = weights.flatten(1)
    if torch.linalg.matrix_norm(rows) <= most:  # the Frobenius norm, which is no smaller than the largest
        return weights
    u, s, vh = torch.linalg.svd(rows, full_matrices=False)
    return ((u * s.clamp(max=most)) @ vh).view_as(weights)
