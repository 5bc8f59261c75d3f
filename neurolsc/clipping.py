"""What keeps a training from running away: clipped gradients, clipped singular values."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from neurolsc.network import Network
from neurolsc.neurons.synapses import synapses
from neurolsc.validation import number


@dataclass(frozen=True)
class Clipping:
    r"""What is clipped at every step of a training; 0 clips nothing.

    Attributes:
        gradient: the largest norm of the whole gradient g; a larger one is scaled down to it,
            :math:`g \leftarrow g \min(1, c / \Vert g \Vert)`.
        spectrum: the largest singular value of every recurrent matrix; after each update
            :math:`U S V^\top` becomes :math:`U \min(S, c) V^\top`, the nearest matrix within the
            bound. Matrices are those that the cells name in their ``answers``; frozen ones stay.

    Raises:
        ValueError: if one is negative or not finite.

    Source: Pascanu et al., arXiv:1211.5063, algorithm 1 (gradient); Miller & Hardt,
    arXiv:1805.10369, Sec. 4.2 (spectrum: projection onto the ball of the spectral norm).
    """

    gradient: float = 0.0
    spectrum: float = 0.0

    def __post_init__(self) -> None:
        number("gradient", self.gradient, zero_allowed=True)
        number("spectrum", self.spectrum, zero_allowed=True)

    def before_update(self, network: nn.Module) -> None:
        """Clip the gradient of all parameters, before the optimizer's step."""
        if self.gradient:
            nn.utils.clip_grad_norm_(network.parameters(), self.gradient)

    def after_update(self, network: Network) -> None:
        """Clip the recurrent matrices, after the optimizer's step."""
        if self.spectrum:
            for matrix in (s for cell in network.cells for s in synapses(cell, "time")):
                matrix.set(clip_singular_values(matrix.weights, self.spectrum))


def clip_singular_values(weights: Tensor, most: float) -> Tensor:
    r""":math:`U \min(S, c) V^\top` of a matrix :math:`U S V^\top`; more axes are taken as columns.

    It is the nearest matrix with no singular value above c.
    """
    rows = weights.flatten(1)
    if torch.linalg.matrix_norm(rows) <= most:  # the Frobenius norm, which is no smaller than the largest
        return weights
    u, s, vh = torch.linalg.svd(rows, full_matrices=False)
    return ((u * s.clamp(max=most)) @ vh).view_as(weights)
