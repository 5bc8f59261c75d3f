r"""Gradient paths through time and depth, their sums, a network with exactly these derivatives, and covariances.

A path leads from (t, l) back to (t - n, l - k), one arrow a derivative. In which grid depends on the wiring:

- ``layer_delay=1`` (eq. 1): an arrow goes one step back, in the same layer or to the one below. Of n arrows k go down:
  :math:`\binom{n}{k}` paths.
- ``layer_delay=0`` (stacks of other libraries; Lemma 2 and Fig. 1 of the paper): an arrow goes one step back or one
  layer down, n + k of them: :math:`\binom{n+k}{n}` paths.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from neurolsc.neurons.cell import Cell
from neurolsc.neurons.rate import HiddenState
from neurolsc.validation import number, whole

Delay = Literal[0, 1]
Count = int | Tensor  # a whole number from 0, or a tensor of such, of any dtype


def log_paths(steps: Count, layers: Count, *, time: float = 1.0, depth: float = 1.0, layer_delay: Delay) -> Tensor:
    r"""The logarithm of the number of gradient paths over n steps and k layers, each weighted by its arrows.

    .. math:: \binom{n}{k}\, \mathrm{time}^{n-k}\, \mathrm{depth}^k
              \;\; (\mathrm{layer\_delay} = 1), \qquad
              \binom{n+k}{n}\, \mathrm{time}^{n}\, \mathrm{depth}^k
              \;\; (\mathrm{layer\_delay} = 0)

    Exactly the derivative of the :class:`PascalRNN`, and a bound of the norm of that of any network whose derivatives
    have norms of at most ``time`` and ``depth``. ``-inf`` where it is 0. In float64, with an absolute error below 1e-9
    up to 10,000 steps and layers.

    Raises:
        ValueError: if steps or layers are negative or no whole numbers, time or depth is negative or not finite, or
            layer_delay neither 0 nor 1.

    Example:
        >>> log_paths(torch.tensor([0, 3, 6]), 5, layer_delay=0).exp().round().tolist()
        [1.0, 56.0, 462.0]
        >>> one = log_paths(40, torch.tensor([1, 20]), time=0.5, depth=0.5, layer_delay=1)
        >>> print(*(f"{value:.2g}" for value in one.exp()))
        3.6e-11 0.13

    Source: arXiv:2308.12075, Fig. 1 b and Sec. III-B; for two radii version 2, Theorem 3.
    """
    if layer_delay not in (0, 1):
        raise ValueError(f"layer_delay must be 0 or 1, got {layer_delay!r}.")
    n, k = (torch.as_tensor(count).to(torch.float64) for count in (steps, layers))
    for name, count in (("steps", n), ("layers", k)):
        if not ((count >= 0) & (count == count.floor()) & count.isfinite()).all():
            raise ValueError(f"{name} must be whole numbers from 0, got {count.tolist()}.")
    total = n if layer_delay else n + k
    across = (total - k).clamp(min=0)
    choices = torch.lgamma(total + 1) - torch.lgamma(k + 1) - torch.lgamma(across + 1)
    along, down = (number(name, value, zero_allowed=True) for name, value in (("time", time), ("depth", depth)))
    return torch.where(total < k, -torch.inf, choices) + torch.xlogy(across, along) + torch.xlogy(k, down)


def log_path_sums(steps: int, layers: int, *, time: float = 1.0, depth: float = 1.0, layer_delay: Delay) -> Tensor:
    r"""The logarithm of the paper's bound B(T) of the update of layer k below the top, for every T.

    .. math:: B(T) = \frac1T \sum_{t=0}^{T} \sum_{n=0}^{t} D(n, k)

    with D of :func:`log_paths`, by two cumulative sums. At sizes of 1 it is Lemma 2,

    .. math:: \frac1T \binom{T+k+2}{T} \;\; (\mathrm{layer\_delay} = 0), \qquad
              \frac1T \binom{T+2}{k+2} \;\; (\mathrm{layer\_delay} = 1),

    which grows as :math:`T^{k+1} / (k+2)!` with k fixed, and exponentially with T/k fixed. Where time + depth = 1 it
    stays below Theorem 3's linear bound, :math:`(T+1)(T+2) / 2T`, and tends to a constant.

    It bounds the variance of an entry of the update, up to a constant, wherever all derivatives have norms of at most
    ``time`` and ``depth``. Not so with means (Theorem 1): the law of large numbers is about the mean of n norms, not
    its n-th power, which grows by about :math:`s^2 / 2` a factor where norms have the deviation s. Nor with radii: a
    norm near the radius exists for each matrix, not one for all; two matrices of radius 0.5 can have a product of any.

    Args:
        steps: the largest T.
        layers: k, how far the layer is below the top.
        time: size of the derivatives through time, from 0.
        depth: likewise through depth.
        layer_delay: of the :class:`neurolsc.Network`.

    Returns:
        Logarithms (steps,) in float64, of T = 1 first; ``-inf`` where no path is that long.

    Example:
        >>> half = log_path_sums(10_000, 10, time=0.5, depth=0.5, layer_delay=0)
        >>> print(*(f"{value:.2f}" for value in half[[99, 999, 9999]].exp()))
        1.80 1.98 2.00

    Source: arXiv:2308.12075, eq. 11 to 14 and 19, Theorems 1 to 3, Lemma 2 (App. A and C).
    """
    n = torch.arange(whole("steps", steps) + 1, dtype=torch.float64)
    each = log_paths(n, layers, time=time, depth=depth, layer_delay=layer_delay)
    return each.logcumsumexp(0).logcumsumexp(0)[1:] - n[1:].log()


def log_input_derivatives(
    steps: int, layers: int, *, time: float = 1.0, depth: float = 1.0, layer_delay: Delay
) -> Tensor:
    r"""The logarithm of the derivative of the top outputs of a :class:`PascalRNN`, summed over time, by each input.

    .. math:: \sum_{n=0}^{T-1-t} \mathrm{depth}\; D(n - \mathrm{layer\_delay},\; L - 1)

    with D of :func:`log_paths`, 0 where n is too small. Where time + depth = 1 it is the probability that of the arrows
    that there is time for at least L go down: near 1 far from the end only.

    Args:
        steps: T, the steps of the run, from 1.
        layers: L, from 1.
        time: derivative through time, from 0.
        depth: likewise through depth.
        layer_delay: of the :class:`neurolsc.Network`.

    Returns:
        Logarithms (T,) in float64, of t = 0 first; ``-inf`` where it is 0.

    Example:
        >>> found = log_input_derivatives(100, 10, time=0.5, depth=0.5, layer_delay=0).exp()
        >>> print(*(f"{found[t]:.7f}" for t in (0, 80, 99)))
        1.0000000 0.9692858 0.0009766

    Source: arXiv:2308.12075, Fig. 1 c.
    """
    n = torch.arange(whole("steps", steps))
    each = log_paths(n, whole("layers", layers) - 1, time=time, depth=depth, layer_delay=layer_delay)
    if layer_delay:
        each = torch.cat([each.new_full((1,), -torch.inf), each[:-1]])
    return (each.logcumsumexp(0) + torch.tensor(float(depth), dtype=torch.float64).log()).flip(0)


class PascalRNN(Cell):
    r"""A layer of the paper's PascalRNN, in which every derivative is a number.

    .. math:: h[t, l] = \mathrm{time}\; h[t-1, l] + \mathrm{depth}\; h[t-1, l-1]

    That is ``layer_delay=1``; in a network with ``layer_delay=0`` the last term is :math:`h[t, l-1]`. Neurons are not
    connected to each other, nothing is learnt, and the radii are ``time`` and ``depth`` exactly, at every step.

    Args:
        width: number of inputs and of neurons.
        time: the derivative through time, from 0; the paper's rho, which it has for both.
        depth: the derivative through depth, from 0.

    Example:
        >>> from torch import nn
        >>> from neurolsc import Network
        >>> network = Network([PascalRNN(time=1.0, depth=1.0) for _ in range(3)], nn.Identity())
        >>> x = torch.zeros(8, 1, 1)
        >>> x[0] = 1
        >>> network(x).flatten().tolist()  # paths to the top
        [0.0, 0.0, 0.0, 1.0, 3.0, 6.0, 10.0, 15.0]

    Source: arXiv:2308.12075, Sec. III-B and Fig. 1 c.
    """

    state_type = HiddenState
    time: Tensor
    depth: Tensor

    def __init__(self, width: int = 1, *, time: float = 0.5, depth: float = 0.5) -> None:
        super().__init__(width, width)
        self.register_buffer("time", torch.tensor(number("time", time, zero_allowed=True)))
        self.register_buffer("depth", torch.tensor(number("depth", depth, zero_allowed=True)))

    def output(self, state: HiddenState) -> Tensor:
        return state.h

    def update(self, x: Tensor, z: Tensor, state: HiddenState) -> HiddenState:
        return HiddenState(self.time * state.h + self.depth * x)

    def config(self) -> dict[str, object]:
        return {"width": self.n_hidden, "time": self.time.item(), "depth": self.depth.item()}


# ---- the assumption of Theorem 2


class CovarianceDecay(NamedTuple):
    """Covariance and correlation of a size at each step with that at one step; all (..., K)."""

    covariance: Tensor
    correlation: Tensor  # Pearson's, -1 to 1; NaN where one of the two steps is the same for all samples
    p_value: Tensor  # chance of a correlation as far from 0 between independent Gaussian variables; NaN likewise


def covariance_decay(sizes: Tensor, *, step: int = 0) -> CovarianceDecay:
    r"""Covariance, correlation and its p-value of the size of a derivative at each step with that at one step.

    .. math:: \mathrm{cov}(a_t, a_s), \qquad
              r_t = \frac{\mathrm{cov}(a_t, a_s)}{\sqrt{\mathrm{var}\, a_t\; \mathrm{var}\, a_s}},
              \qquad p_t = I_{1 - r_t^2}\Big(\frac B2 - 1, \frac12\Big)

    over B samples, with the regularised incomplete beta function I. Theorem 2 assumes that the covariance tends to 0
    with the distance of any two steps; a correlation below about :math:`2 / \sqrt B` cannot be distinguished from 0.
    A network at rest has the same derivatives in all samples, and so no covariance: choose a step where samples differ.

    Args:
        sizes: over steps and samples (..., K, B), as of :func:`neurolsc.stability.singular_values`, the paper's, or of
            :attr:`neurolsc.RadiusProfile.time`.
        step: s, its index among the K; the paper's 0.

    Returns:
        Covariance, correlation and p-value (..., K), in float64.

    Raises:
        ValueError: if sizes are not (..., K, B) with B >= 3, or step is not in 0 ... K-1.

    Source: arXiv:2308.12075, App. A and I, Fig. S2 and S3.
    """
    from scipy.special import betainc  # takes 0.1 s to import

    if sizes.ndim < 2 or sizes.shape[-1] < 3:
        raise ValueError(f"sizes must have shape (..., K, B) with B >= 3 samples, got {tuple(sizes.shape)}.")
    if not 0 <= step < sizes.shape[-2]:
        raise ValueError(f"step must be in 0 ... {sizes.shape[-2] - 1}, got {step}.")
    samples, a = sizes.shape[-1], sizes.detach().cpu().double()
    apart = a - a.mean(-1, keepdim=True)
    # what rounding alone makes of equal sizes is no variance
    alike = apart.abs().amax(-1) <= 8 * torch.finfo(sizes.dtype).eps * a.abs().amax(-1)
    apart = apart.masked_fill(alike.unsqueeze(-1), 0)
    covariance = (apart * apart[..., step : step + 1, :]).sum(-1) / (samples - 1)
    deviation = apart.square().sum(-1).div(samples - 1).sqrt()
    r = (covariance / (deviation * deviation[..., step : step + 1])).clamp(-1, 1)
    p = betainc(samples / 2 - 1, 0.5, ((1 - r) * (1 + r)).clamp(min=0).numpy())
    return CovarianceDecay(covariance, r, torch.as_tensor(p))
