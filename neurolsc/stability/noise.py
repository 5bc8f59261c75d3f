"""How much of a gradient is the same in every batch."""

from torch import Tensor


def signal_to_noise(gradients: Tensor) -> float:
    r"""Squared norm of the mean gradient of K batches over its variance between them.

    .. math:: \mathrm{SNR} = \frac{\lVert \bar g \rVert^2}{\sum_p \mathrm{var}_k\, g_{k,p}},
        \qquad \bar g = \frac{1}{K} \sum_k g_k, \quad
        \mathrm{var}_k\, g_k = \frac{1}{K-1} \sum_k (g_k - \bar g)^2

    Noise of mean 0 alone gives 1 / K on the average, and batches m times as large give m times as
    much.

    Args:
        gradients: of K batches of equal size (K, P), all entries side by side.

    Returns:
        A number from 0; ``inf`` where all batches agree, ``nan`` where all gradients are 0.

    Raises:
        ValueError: if gradients are not (K, P) with K >= 2.

    Cost: O(K P).

    Source: McCandlish et al. 2018, arXiv:1812.06162 (the reciprocal of its simple noise scale, in
    units of the batch).

    Example:
        >>> import torch
        >>> signal_to_noise(torch.tensor([[1.0, 0.0], [3.0, 0.0]]))
        2.0
    """
    if gradients.ndim != 2 or len(gradients) < 2:
        raise ValueError(f"gradients must have shape (K, P) with K >= 2 batches, got {tuple(gradients.shape)}.")
    signal, noise = gradients.mean(0).square().sum(), gradients.var(0).sum()
    return (signal / noise).item()
