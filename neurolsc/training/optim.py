"""Updates of a training: optimizer, learning rates of parameters and over epochs, gradients, bounds."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from neurolsc.network import Network
from neurolsc.neurons.cell import Cell
from neurolsc.neurons.weights import weight_matrices
from neurolsc.validation import one_of


def parameter_groups(network: Network, lr: float, *, by_gain: bool) -> list[dict[str, Any]]:
    r"""Return the parameters of a network in groups for a torch optimizer, each group with its learning rate.

    An optimizer such as Adam moves every parameter by about its learning rate. The gain g of a parameter is how far a
    threshold or voltage then moves, in learning rates. A parameter with a gain gets the learning rate

    .. math:: \mathrm{lr} / g, \qquad
        g(b_\vartheta) = \frac{1}{n} \sum_i \frac{1}{1 - e^{-1/\tau_{\vartheta,i}}}

    since an ALIF of n neurons adds :math:`b_\vartheta` to its thresholds at every step: by default these move 100 times
    as far as :math:`b_\vartheta`.

    Args:
        network: the network; gains of its parameters are :meth:`neurolsc.Cell.gains`.
        lr: learning rate of all parameters without a gain.
        by_gain: divide by the gains; else all parameters are in one group.

    Returns:
        The parameters without a gain in one group, then a group for each parameter with one.

    Source: ours.
    """
    gains: dict[nn.Parameter, float] = {}
    if by_gain:
        for cell in network.cells:
            named = dict(cell.named_parameters())
            # a cell may store the logarithm of such a parameter instead, under another name: that keeps lr
            gains |= {named[name]: gain for name, gain in cell.gains().items() if name in named}
    plain = [p for p in network.parameters() if p not in gains]
    scaled = [{"params": [p], "lr": lr / gain} for p, gain in gains.items()]
    return [{"params": plain, "lr": lr}, *scaled]


# ---- learning rates over a training


def cosine(done: float, *, warmup: float = 0.05, end: float = 0.0) -> float:
    r"""Return the factor of the learning rate when a share s of all updates is done, 0 to 1.

    It rises linearly from 0 to 1, then falls as half a cosine to a share e. Before the first update s is 0: with a
    warm-up that update changes nothing.

    .. math:: f(s) = \begin{cases} s / w & s < w \\
        e + \tfrac{1 - e}{2} \big(1 + \cos \pi \tfrac{s - w}{1 - w}\big) & s \ge w \end{cases}

    Args:
        done: s.
        warmup: w, the share of the updates in which it rises.
        end: e.

    Source: Loshchilov & Hutter, arXiv:1608.03983, eq. 5 (one period); Goyal et al., arXiv:1706.02677, Sec. 2.2 (the
    warm-up); with w = 0 and e = 0.1: arXiv:2308.12075v2, App. H.
    """
    if done < warmup:
        return done / warmup
    fall = 0.5 * (1 + math.cos(math.pi * (done - warmup) / (1 - warmup)))
    return end + (1 - end) * fall


@dataclass(frozen=True)
class FromTorch:
    """A scheduler of ``torch.optim.lr_scheduler``.

    A checkpoint holds its ``state_dict``, without functions such as those of ``LambdaLR``: a training that goes on is
    not tested for the same functions. ``ReduceLROnPlateau`` gets the validation loss. ``OneCycleLR`` and ``CyclicLR``
    set equal rates for all parameters, and are refused without ``by_gain=False``.

    Attributes:
        make: makes the scheduler from the optimizer.
        every: step it after every ``"epoch"`` or every ``"update"``.

    Example:
        >>> from torch.optim.lr_scheduler import StepLR
        >>> course = FromTorch(lambda optimizer: StepLR(optimizer, step_size=10))
    """

    make: Callable[[Optimizer], LRScheduler]
    every: Literal["epoch", "update"] = "epoch"

    def __post_init__(self) -> None:
        if not callable(self.make):
            got = type(self.make).__name__
            raise TypeError(f"make must make a scheduler from an optimizer, got {got}: lambda o: StepLR(o, 10).")
        one_of("every", self.every, ("epoch", "update"))

    def scheduler(self, optimizer: Optimizer) -> LRScheduler:
        """Make the scheduler of an optimizer.

        Raises:
            ValueError: if it sets equal rates for groups of parameters that had different ones.
        """
        before = {group["lr"] for group in optimizer.param_groups}
        made = self.make(optimizer)
        # schedulers that multiply the rates keep the first ones there; ReduceLROnPlateau keeps none
        after = {group["initial_lr"] for group in optimizer.param_groups if "initial_lr" in group}
        if len(before) > 1 and len(after) == 1:
            raise ValueError(
                f"{type(made).__name__} sets one learning rate for all parameters, but by_gain gives b_theta another one: "
                "give by_gain=False."
            )
        return made


COURSES = {"cosine": cosine, "cosine-to-tenth": partial(cosine, warmup=0.0, end=0.1)}


def scheduled(schedule: str | FromTorch, updates: int) -> FromTorch | None:
    """Return the scheduler of a schedule, for a training of so many updates; None for a constant learning rate.

    A single update has no course: it gets the learning rate itself, where a warm-up would begin with 0.
    """
    if isinstance(schedule, FromTorch):
        return schedule
    if schedule == "constant" or updates == 1:
        return None
    factor = COURSES[schedule]
    return FromTorch(lambda optimizer: LambdaLR(optimizer, lambda update: factor(update / updates)), every="update")


# ---- before and after the optimizer's step


def condition_gradients(network: Network, *, centralize: bool, clip: float) -> Tensor:
    r"""Centralize gradients and clip their norm, before the optimizer's step; return the norm before it is clipped.

    Spikes are never negative. If all n weights of a neuron change by d, its mean current therefore changes by n d r,
    where r is the firing rate of its inputs. Updates that share a sign let layers fall silent, or fire at every step. A
    centralized gradient leaves the mean of a neuron's weights as it is.

    Args:
        network: the network, with gradients.
        centralize: subtract from the gradient of every matrix of a cell the mean of its row, :math:`g_{ij} \leftarrow
            g_{ij} - \tfrac1n \sum_k g_{ik}`. Gradients of vectors and of the readout stay as they are.
        clip: the largest norm c of the whole gradient, :math:`g \leftarrow g \min(1, c / \Vert g \Vert)`; 0: it is not
            clipped. A gradient whose norm is not finite is never clipped.

    Source: Pascanu et al., arXiv:1211.5063, algorithm 1 (clipping); Yong et al., arXiv:2004.01461, eq. 1
    (centralization; its use for spikes is ours).
    """
    if centralize:
        from pytorch_optimizer.optimizer.gradient_centralization import centralize_gradient  # slow to import

        parameters = (p for cell in network.cells for p in cell.parameters())
        centralize_gradient([p.grad for p in parameters if p.grad is not None])
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    norm = nn.utils.get_total_norm(gradients)
    if not norm.isfinite():  # perhaps only the squares of gradients above 1e19 overflow float32: again in float64
        norm = nn.utils.get_total_norm([gradient.double() for gradient in gradients]).to(norm)
    if clip and norm.isfinite():
        nn.utils.clip_grads_with_norm_(network.parameters(), clip, norm)
    return norm


def bound_weights(network: Network, *, weight: float, spectrum: float) -> None:
    """Bound the weights of all cells and the singular values of their recurrent matrices, in place.

    Args:
        network: the network; its readout is left as it is.
        weight: largest weight, in resting thresholds (:func:`clip_weights`); 0: not bounded.
        spectrum: largest singular value (:func:`clip_singular_values`); 0: not bounded.
    """
    for cell in network.cells:
        if weight:
            clip_weights(cell, weight)
        if spectrum:
            for matrix in weight_matrices(cell, "time"):
                matrix.set(clip_singular_values(matrix.weights, spectrum))


def clip_weights(cell: Cell, most: float) -> None:
    r"""Bound the weights of a cell in place by a multiple of the resting thresholds of their neurons.

    .. math:: |w_{ij}| \le c\, \vartheta_i

    A chip stores weights and thresholds as integers on one scale, and the largest weight sets the scale: to 254 on
    Loihi. With c = 3 a threshold is then at least 84, where an export of a LIF needs 62.

    Args:
        cell: the cell.
        most: c. In a convolution the bound is c times the lowest threshold, as neurons share the weights.

    Raises:
        TypeError: if the cell does not name its voltage (:class:`neurolsc.neurons.Membrane`).
    """
    membrane = cell.membrane()
    if membrane is None:
        raise TypeError(f"clip_weight needs a cell that names its voltage, got {type(cell).__name__}.")
    with torch.no_grad():
        threshold = membrane.thresholds(cell.initial_state(1))[0].clamp(min=0)
        for matrix in dict.fromkeys((*weight_matrices(cell, "depth"), *weight_matrices(cell, "time"))):
            weights = matrix.weights
            bound = most * threshold.min()
            if weights.ndim == 2 and len(weights) == len(threshold):  # else a convolution
                bound = most * threshold.unsqueeze(1)  # a row for each neuron
            if (weights.abs() > bound).any():
                matrix.set(weights.clamp(-bound, bound))


def clip_singular_values(weights: Tensor, most: float) -> Tensor:
    r"""Return the nearest weights whose singular values are at most c.

    .. math:: U \min(S, c) V^\top \quad \text{of weights } U S V^\top

    Args:
        weights: (N, ...); axes after the first are taken as columns of one matrix.
        most: c.

    Source: Miller & Hardt, arXiv:1805.10369, Sec. 4.2 (projection onto the ball of the norm).
    """
    rows = weights.flatten(1)
    if torch.linalg.matrix_norm(rows) <= most:  # the Frobenius norm is no smaller than the largest singular value
        return weights
    u, s, vh = torch.linalg.svd(rows, full_matrices=False)
    return ((u * s.clamp(max=most)) @ vh).view_as(weights)
