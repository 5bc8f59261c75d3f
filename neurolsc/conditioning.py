"""What keeps a training from running away: centralized and clipped gradients, clipped matrices."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from neurolsc.network import Network
from neurolsc.neurons.cell import Cell, Membrane, synapses
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
        clip_weight: the largest weight of a cell's matrices, in resting thresholds of the neuron
            that it acts on, :math:`|w_{ij}| \le c\, \vartheta_i`; of a convolution in those of the
            neuron with the lowest. Integers of a chip have so many steps between none and the
            largest weight: with 8 bits and 3 thresholds, 62 or more of them are a threshold. Of
            cells that name voltage and threshold (:class:`neurolsc.neurons.Membrane`). 0: not
            clipped.
        centralize: take from the gradient of every matrix of a cell the mean of its row,
            :math:`g_{ij} \leftarrow g_{ij} - \tfrac1n \sum_k g_{ik}`, before it is clipped. The
            readout keeps its own.

    Raises:
        ValueError: if a bound is negative or not finite.
        TypeError: in :meth:`check`, which a training begins with, if weights are to be clipped of a
            cell that does not name its voltage.

    Source: Pascanu et al., arXiv:1211.5063, algorithm 1 (gradient); Miller & Hardt,
    arXiv:1805.10369, Sec. 4.2 (spectrum: projection onto the ball of the spectral norm); Yong et
    al., arXiv:2004.01461, eq. 1 (centralization; for spikes: ours).
    """

    clip_gradient: float = 0.0
    clip_spectrum: float = 0.0
    centralize: bool = False
    clip_weight: float = 0.0

    def __post_init__(self) -> None:
        for name in ("clip_gradient", "clip_spectrum", "clip_weight"):
            number(name, getattr(self, name), zero_allowed=True)

    def check(self, network: Network) -> None:
        """Refuse a network whose weights cannot be clipped, before it is trained.

        Raises:
            TypeError: if weights are to be clipped of a cell that does not name its voltage.
        """
        for cell in network.cells if self.clip_weight else ():
            _membrane_of(cell)

    def before_update(self, network: Network) -> None:
        """Centralize and clip the gradient, before the optimizer's step."""
        if self.centralize:
            from pytorch_optimizer.optimizer.gradient_centralization import centralize_gradient

            parameters = (p for cell in network.cells for p in cell.parameters())
            centralize_gradient([p.grad for p in parameters if p.grad is not None])
        if self.clip_gradient:
            nn.utils.clip_grad_norm_(network.parameters(), self.clip_gradient)

    def after_update(self, network: Network) -> None:
        """Clip the matrices, after the optimizer's step."""
        if self.clip_weight:
            for cell in network.cells:
                clip_weights(cell, self.clip_weight)
        if self.clip_spectrum:
            for matrix in (s for cell in network.cells for s in synapses(cell, "time")):
                matrix.set(clip_singular_values(matrix.weights, self.clip_spectrum))


def _membrane_of(cell: Cell) -> Membrane:
    if (of := cell.membrane()) is None:
        raise TypeError(f"clip_weight needs a cell that names its voltage, which a {type(cell).__name__} does not.")
    return of


def clip_weights(cell: Cell, most: float) -> None:
    """Bound the weights of a cell, in place, to so many resting thresholds of their neurons.

    Raises:
        TypeError: if the cell does not name its voltage.
    """
    of = _membrane_of(cell)
    with torch.no_grad():
        threshold = of.thresholds(cell.initial_state(1))[0].clamp(min=0)
        for matrix in dict.fromkeys((*synapses(cell, "depth"), *synapses(cell, "time"))):
            weights = matrix.weights
            dense = weights.ndim == 2 and len(weights) == len(threshold)
            bound = most * (threshold.unsqueeze(1) if dense else threshold.min())
            if (weights.abs() > bound).any():
                matrix.set(weights.clamp(-bound, bound))


def clip_singular_values(weights: Tensor, most: float) -> Tensor:
    r""":math:`U \min(S, c) V^\top` of a matrix :math:`U S V^\top`; more axes are taken as columns.

    It is the nearest matrix with no singular value above c.
    """
    rows = weights.flatten(1)
    if torch.linalg.matrix_norm(rows) <= most:  # the Frobenius norm, which is no smaller than the largest
        return weights
    u, s, vh = torch.linalg.svd(rows, full_matrices=False)
    return ((u * s.clamp(max=most)) @ vh).view_as(weights)
