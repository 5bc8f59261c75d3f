r"""Gradient paths through the grid of time and depth, and what they sum up to.

A path leads from (t, l) back to (t - n, l - k), one arrow a derivative. In which grid depends on
the wiring:

- ``layer_delay=1`` (eq. 1): an arrow goes one step back, in the same layer or to the one below. Of
  n arrows k go down: :math:`\binom{n}{k}` paths.
- ``layer_delay=0`` (stacks of other libraries; Lemma 2 and Fig. 1 of the paper): an arrow goes one
  step back or one layer down, n + k of them: :math:`\binom{n+k}{n}` paths.

The update of layer k below the top is a sum over steps t, earlier steps t' and the paths between
(eq. 5 and 11). With the norm of every derivative on a path replaced by its mean, the paper bounds
the variance of each entry, up to a constant of network and task, by

.. math:: B(T) = \frac1T \sum_{t=0}^{T} \sum_{n=0}^{t} D(n, k)

with D of :func:`log_derivative`. Each bound states its assumptions.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from neurolsc.validation import number, whole

Delay = Literal[0, 1]
Count = int | Tensor  # a whole number from 0, or a tensor of such, of any dtype


def paths(steps: int, layers: int, *, layer_delay: Delay) -> int:
    r"""Count the gradient paths over n steps and k layers, exactly; from 0 each.

    .. math:: \binom{n}{k} \;\; (\mathrm{layer\_delay} = 1), \qquad
              \binom{n+k}{n} \;\; (\mathrm{layer\_delay} = 0)

    with the ``layer_delay`` of a :class:`neurolsc.Network`.

    Example:
        >>> paths(3, 2, layer_delay=1), paths(3, 2, layer_delay=0)
        (3, 10)

    Source: arXiv:2308.12075, Sec. III-B and App. C.
    """
    whole("steps", steps, at_least=0)
    whole("layers", layers, at_least=0)
    return math.comb(steps if checked(layer_delay) else steps + layers, layers)


def log_paths(steps: Count, layers: Count, *, layer_delay: Delay) -> Tensor:
    """The natural logarithm of :func:`paths`, of many at once: numbers or tensors, which broadcast.

    ``-inf`` where there is no path. In float64, with an absolute error below 1e-9 up to 10,000 steps and layers.

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

    Exactly the derivative of the :class:`PascalRNN`, and a bound of the norm of that of any network whose derivatives
    have norms of at most ``time`` and ``depth``. Where time + depth = 1 it is a binomial probability, and so at most 1;
    over a fixed number of layers it then vanishes with the steps. ``-inf`` where it is 0.

    Raises:
        ValueError: as :func:`log_paths`, or if time or depth is negative or not finite.

    Example:
        >>> one = log_derivative(40, torch.tensor([1, 20]), time=0.5, depth=0.5, layer_delay=1)
        >>> print(*(f"{value:.2g}" for value in one.exp()))
        3.6e-11 0.13

    Source: arXiv:2308.12075, Sec. III-B; for two radii version 2, Theorem 3.
    """
    n, k = counts("steps", steps), counts("layers", layers)
    across = (n - k).clamp(min=0) if layer_delay else n
    along, down = (number(name, value, zero_allowed=True) for name, value in (("time", time), ("depth", depth)))
    weights = torch.xlogy(across, along) + torch.xlogy(k, down)
    return log_paths(n, k, layer_delay=layer_delay) + weights


def counts(name: str, value: Count, at_least: int = 0) -> Tensor:
    """The value in float64 if it holds whole numbers that are large enough."""
    found = torch.as_tensor(value).to(torch.float64)
    if not ((found >= at_least) & (found == found.floor()) & found.isfinite()).all():
        raise ValueError(f"{name} must be whole numbers from {at_least}, got {value!r}.")
    return found


def log_choose(n: Tensor, k: Tensor) -> Tensor:
    """The logarithm of the binomial coefficient, ``-inf`` where k > n."""
    rest = n - k
    found = torch.lgamma(n + 1) - torch.lgamma(k + 1) - torch.lgamma(rest.clamp(min=0) + 1)
    return torch.where(rest < 0, -torch.inf, found)


def checked(layer_delay: Delay) -> Delay:
    """The delay if it is 0 or 1."""
    if layer_delay not in (0, 1):
        raise ValueError(f"layer_delay must be 0 or 1, got {layer_delay!r}.")
    return layer_delay


def log_path_sums(steps: int, layers: int, *, time: float = 1.0, depth: float = 1.0, layer_delay: Delay) -> Tensor:
    r"""The logarithm of the bound B(T), for every T from 1 to a number of steps.

    .. math:: B(T) = \frac1T \sum_{t=0}^{T} \sum_{n=0}^{t} D(n, k)

    Exact, by two cumulative sums, in O(steps). It holds for the norm of the update wherever all derivatives have norms
    of at most ``time`` and ``depth``; with these as mere *means* it needs what :func:`log_bound_at_one` and
    :func:`log_bound_at_half` say.

    Args:
        steps: the largest T.
        layers: k, how far the layer is below the top.
        time: size of the derivatives through time, from 0.
        depth: likewise through depth.
        layer_delay: as in :func:`paths`.

    Returns:
        Logarithms (steps,) in float64, of T = 1 first.

    Example:
        >>> half = log_path_sums(10_000, 10, time=0.5, depth=0.5, layer_delay=0)
        >>> print(*(f"{value:.2f}" for value in half[[99, 999, 9999]].exp()))
        1.80 1.98 2.00

    Source: arXiv:2308.12075, eq. 11 to 14.
    """
    whole("steps", steps)
    whole("layers", layers, at_least=0)
    n = torch.arange(steps + 1, dtype=torch.float64)
    each = log_derivative(n, layers, time=time, depth=depth, layer_delay=layer_delay)
    return each.logcumsumexp(0).logcumsumexp(0)[1:] - n[1:].log()


def log_bound_at_one(steps: Count, layers: Count, *, layer_delay: Delay) -> Tensor:
    r"""Theorem 1 for a mean radius of 1: the logarithm of Lemma 2's sum over all paths.

    .. math:: \frac1T \binom{T+k+2}{T} \;\; (\mathrm{layer\_delay} = 0), \qquad
              \frac1T \binom{T+2}{k+2} \;\; (\mathrm{layer\_delay} = 1)

    The sum is exact for every T and k, with T + 1 steps and the factor 1/T as in the paper. Its binomial coefficient is
    that of ``layer_delay=0``, while its eq. 1 is ``layer_delay=1``. Over T with k fixed both grow as
    :math:`T^{k+1} / (k+2)!`. With T/k fixed both are exponential, but with the delay only for T > k: no path leads
    through more layers than steps. ``-inf`` where no path is that long.

    *What is bounded*: the variance of an entry of the update, up to a constant, by the mean of a norm of the update
    (for updates of norm at most 1), and this by norms of products, with one sub-additive and sub-multiplicative norm
    for all derivatives.

    *Under which assumptions*: (1) the mean over a path of the n norms, to the power n, is put as its limit 1, by the
    weak law of large numbers, for which the covariance of distant norms has to die out. But the law is about the mean,
    not about its n-th power: :func:`log_mean_power` says by how much that is off. The bound holds as it stands where
    all norms are 1 or less, and where those of a path are independent: the mean of their product is then 1. Else it is
    asymptotic, where their deviation falls faster than :math:`n^{-1/2}`. The *typical* product fades where the norms
    vary at all. (2) A norm within any epsilon of the radius exists for each matrix, not one for all: two matrices of
    radius 0.5 can have a product of any radius. :func:`neurolsc.stability.singular_values` and ``lyapunov_exponents``
    measure what radii do not.

    Raises:
        ValueError: if one is no whole number, T is below 1 or k below 0, or layer_delay neither 0 nor 1.

    Example:
        >>> f"{log_bound_at_one(10_000, 10_000, layer_delay=0):.1f}"
        '13849.9'

    Source: arXiv:2308.12075, Theorems 1 and 2, Lemma 2 (App. A and C).
    """
    T, k = counts("steps", steps, 1), counts("layers", layers)
    return log_choose(T + 2 if checked(layer_delay) else T + k + 2, k + 2) - T.log()


def log_bound_at_half(steps: Count) -> Tensor:
    r"""Theorem 1 for mean radii of 0.5, and for any two with the sum 1: a logarithm.

    .. math:: \frac1T \sum_{t=1}^{T} \sum_{t'=1}^{t} 1 = \frac{T+1}{2}

    Linear in T, whatever the depth: the derivative over any steps and layers is at most 1 (Theorem 3, in version 2 for
    time + depth = 1). The sum has T steps here, as in eq. 19, and T + 1 in Lemma 2, with which it is
    (T+1)(T+2) / 2T.

    *Under which assumptions*: the proof bounds the mean of a norm, one arrow after the other, by the largest value of
    the norm that follows. To take the next step it needs the mean again: it holds where every two norms that meet sum
    to at most 1 (surely, not in the mean), or where each derivative is independent of all that come after it. Radii
    stand for norms as in :func:`log_bound_at_one`.

    :func:`log_path_sums` with the same sizes tends to a constant: linear is the bound, not the growth.

    Example:
        >>> f"{log_bound_at_half(99).exp():.3f}"
        '50.000'

    Source: arXiv:2308.12075, Theorem 3 (App. A), eq. 19.
    """
    return ((counts("steps", steps, 1) + 1) / 2).log()


def log_mean_power(factors: Count, deviation: float) -> Tensor:
    r"""The logarithm of what Theorem 2 sets to 1: the mean of its bound of one path.

    .. math:: \log \mathrm{E} \Big(\frac1n \sum_{i=1}^{n} a_i\Big)^{\!n}
              = \log \frac{\Gamma(n\kappa + n)}{\Gamma(n\kappa)\, (n\kappa)^n},
              \qquad \kappa = \frac{1}{s^2}

    Exact for n independent norms of Gamma distributions of mean 1 and deviation s: the kindest case, as their
    covariance is 0. It grows by about :math:`s^2 / 2` a factor, exponentially, while the mean of the norms converges to
    1 as the theorem says; the mean of their *product* is 1.

    Args:
        factors: n, from 1: a number, or a tensor.
        deviation: s, from 0; at 0 the result is 0.

    Example:
        >>> print(*(f"{log_mean_power(n, 0.1).exp():.3g}" for n in (100, 1000)))
        1.64 145

    Source: the exact moments of a Gamma distribution; arXiv:2308.12075, eq. 11 and 12.
    """
    n, s = counts("factors", factors, 1), number("deviation", deviation, zero_allowed=True)
    if s == 0:
        return torch.zeros_like(n)
    shape = n / s**2
    return torch.lgamma(shape + n) - torch.lgamma(shape) - n * shape.log()
