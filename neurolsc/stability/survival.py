"""How much of what tells the samples of an input apart still tells them apart in a layer."""

import math

import torch
from torch import Tensor


def surviving_share(x: Tensor, layer: Tensor, *, windows: int = 10) -> float:
    r"""The share of the variance between samples of an input that a layer has kept.

    Every sample is its sums over windows of time. What tells samples apart are their pairwise
    similarities, the scalar products :math:`K = X X^T` of the input and :math:`L` of the layer.
    With both centred so that chance gives 0 on the average (U-centred: without diagonal, every row
    summing to 0),

    .. math:: s = \max\Big(0, \frac{\langle \tilde K, \tilde L \rangle}
        {\lVert \tilde K \rVert\, \lVert \tilde L \rVert}\Big)^2,

    the share of the variance of the input's similarities that those of the layer predict by a
    line. It is 1 for an identity, a rotation and any scale, 0 for a layer that is silent or the
    same for all samples, and about 0, :math:`O(1 / B^2)`, for noise that knows nothing of the
    input. A regression from the layer would need more samples than neurons.

    It counts what moves most: a layer that keeps a small but telling difference and drops the rest
    has a low share, and so has one that tells apart more than the input does. What is needed for a
    task may be less than all of it; it is a figure, not a fault.

    Args:
        x: the input (T, B, N).
        layer: what a layer sent (T, B, M).
        windows: equal stretches of time that are summed over; a layer may answer late by a small
            part of one.

    Returns:
        A share from 0 to 1; NaN for fewer than 4 samples, or where the input tells none apart.

    Raises:
        ValueError: if the two differ in steps or samples.

    Cost: O(B^2 windows (N + M)).

    Source: Song et al. 2012, JMLR 13 (unbiased HSIC); Székely & Rizzo 2014, arXiv:1310.2926
    (U-centring); Kornblith et al. 2019, arXiv:1905.00414 (CKA, of which s is the debiased square).
    """
    if x.ndim != 3 or layer.ndim != 3 or x.shape[:2] != layer.shape[:2]:
        raise ValueError(
            f"x and layer must be (T, B, N) of the same steps and samples, got {tuple(x.shape)} and {tuple(layer.shape)}."
        )
    if x.shape[1] < 4:
        return math.nan
    of_x, of_layer = (_similarities(part, min(windows, len(x))) for part in (x, layer))
    if not of_x.norm() > 0:
        return math.nan
    if not of_layer.norm() > 0:
        return 0.0
    alike = (of_x * of_layer).sum() / (of_x.norm() * of_layer.norm())
    return alike.clamp(min=0).square().item()


def _similarities(x: Tensor, windows: int) -> Tensor:
    """U-centred scalar products of samples (B, B), in double precision."""
    x = (x.to_dense() if x.is_sparse else x).detach()
    sums = torch.cat([part.double().sum(0) for part in x.tensor_split(windows)], 1)
    sums = sums - sums.mean(0)  # changes nothing but rounding: U-centring takes it off as well
    size = len(sums)
    products = sums @ sums.T
    if products.diagonal().max() <= 1e-12 * sums.shape[1] * max(1.0, x.abs().max().item()) ** 2:
        return torch.zeros_like(products)  # all alike but for rounding
    products.fill_diagonal_(0)
    rows = products.sum(1)
    centred = products - (rows[:, None] + rows[None]) / (size - 2) + rows.sum() / ((size - 1) * (size - 2))
    return centred.fill_diagonal_(0)
