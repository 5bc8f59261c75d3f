r"""Gradient paths through the grid of time and depth, and what they sum up to.

A path leads from (t, l) back to (t - n, l - k), one arrow a derivative. In which grid depends on
the wiring:

- ``layer_delay=1`` (eq. 1): an arrow goes one step back, in the same layer or to the one below. Of
  n arrows k go down: :math:`\binom{n}{k}` paths.
- ``layer_delay=0`` (stacks of other libraries; Lemma 2 and Fig. 1 of the paper): an arrow goes one
  step back or one layer down, n + k of them: :math:`\binom{n+k}{n}` paths.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from neurolsc.validation import number, whole

Delay = Literal[0, 1]
Count = int | Tensor
"""A whole number from 0, or a tensor of such, of any dtype."""


def paths(steps: int, layers: int, *, layer_delay: Delay) -> int:
    r"""Count the gradient paths over n steps and k layers, exactly.

    .. math:: \binom{n}{k} \;\; (\mathrm{layer\_delay} = 1), \qquad
              \binom{n+k}{n} \;\; (\mathrm{layer\_delay} = 0)

    Args:
        steps: n, from 0.
        layers: k, from 0.
        layer_delay: whether an arrow down also goes a step back, as of a :class:`neurolsc.Network`.

    Returns:
        Their number, 0 where there is none.

    Raises:
        TypeError: if steps or layers is not an int.
        ValueError: if one is negative, or layer_delay neither 0 nor 1.

    Example:
        >>> paths(3, 2, layer_delay=1), paths(3, 2, layer_delay=0)
        (3, 10)

    Source: arXiv:2308.12075, Sec. III-B and App. C.
    """
    whole("steps", steps, at_least=0)
    whole("layers", layers, at_least=0)
    return math.comb(steps if checked(layer_delay) else steps + layers, layers)


def log_paths(steps: Count, layers: Count, *, layer_delay: Delay) -> Tensor:
    """The natural logarithm of :func:`paths`, of many at once.

    Args:
        steps: n, from 0: a number, or a tensor.
        layers: k, likewise; the two broadcast.
        layer_delay: as in :func:`paths`.

    Returns:
        Logarithms in float64, in the shape of both; ``-inf`` where there is no path. Absolute error
        below 1e-9 up to 10,000 steps and layers.

    Raises:
        ValueError: if one is negative or no whole number, or layer_delay neither 0 nor 1.

    Example:
        >>> log_paths(torch.tensor([0, 3, 6]), 5, layer_delay=0).exp().round().tolist()
        [1.0, 56.0, 462.0]

    Source: arXiv:2308.12075, Fig. 1 b.
    """
    n, k = counts("steps", steps), counts("layers", layers)
    return log_choose(n if checked(layer_delay) else n + k, k)


def log_derivative(steps: Count, layers: Count, *, time: float = 1.0, depth: float = 1.0, layer_delay: Delay) -> Tensor:
    r"""The logarithm of what all paths sum up to where every arrow is a number.

    .. math:: \binom{n}{k}\, \mathrm{time}^{n-k}\, \mathrm{depth}^k
              \;\; (\mathrm{layer\_delay} = 1), \qquad
              \binom{n+k}{n}\, \mathrm{time}^{n}\, \mathrm{depth}^k
              \;\; (\mathrm{layer\_delay} = 0)

    Exactly the derivative of the :class:`PascalRNN`, and a bound of the norm of that of any network
    whose derivatives have norms of at most ``time`` and ``depth``. With both 1 it is the number of
    paths. Where time + depth = 1 it is a binomial probability, and so at most 1; over a fixed
    number of layers it then vanishes with the steps.

    Args:
        steps: n, from 0: a number, or a tensor.
        layers: k, likewise; the two broadcast.
        time: size of the derivatives through time, from 0.
        depth: likewise through depth.
        layer_delay: as in :func:`paths`.

    Returns:
        Logarithms in float64, in the shape of steps and layers; ``-inf`` where it is 0.

    Raises:
        ValueError: as in :func:`log_paths`, or if time or depth is negative or not finite.

    Example:
        >>> one = log_derivative(40, torch.tensor([1, 20]), time=0.5, depth=0.5, layer_delay=1)
        >>> print(*(f"{value:.2g}" for value in one.exp()))
        3.6e-11 0.13

    Source: arXiv:2308.12075, Sec. III-B; for two radii version 2, Theorem 3.
    """
    n, k = counts("steps", steps), counts("layers", layers)
    across = (n - k).clamp(min=0) if layer_delay else n
    weights = torch.xlogy(across, _size("time", time)) + torch.xlogy(k, _size("depth", depth))
    return log_paths(n, k, layer_delay=layer_delay) + weights


def counts(name: str, value: Count) -> Tensor:
    """The value in float64 if it holds whole numbers from 0.

    Raises:
        ValueError: if it does not.
    """
    found = torch.as_tensor(value).to(torch.float64)
    if not ((found >= 0) & (found == found.floor()) & found.isfinite()).all():
        raise ValueError(f"{name} must be whole numbers from 0, got {value!r}.")
    return found


def log_choose(n: Tensor, k: Tensor) -> Tensor:
    """The logarithm of the binomial coefficient, ``-inf`` where k > n."""
    rest = n - k
    found = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(rest.clamp(min=0) + 1)
    return torch.where(rest < 0, -torch.inf, found)


def checked(layer_delay: Delay) -> Delay:
    """The delay if it is one.

    Raises:
        ValueError: if it is neither 0 nor 1.
    """
    if layer_delay not in (0, 1):
        raise ValueError(f"layer_delay must be 0 or 1, got {layer_delay!r}.")
    return layer_delay


def _size(name: str, value: float) -> Tensor:
    return torch.tensor(number(name, value, zero_allowed=True), dtype=torch.float64)
