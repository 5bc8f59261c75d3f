r"""Gradient paths through time and depth, their sums, a network with exactly these derivatives, and covariances.

A path leads from step t of layer l back to step t - n of layer l - k. Each of its arrows is one derivative. The wiring
decides which arrows there are:

- ``layer_delay=1`` (eq. 1): an arrow goes one step back, in the same layer or to the one below. Of n arrows k go down,
  which makes :math:`\binom{n}{k}` paths.
- ``layer_delay=0`` (stacks of other libraries; Lemma 2 and Fig. 1 of the paper): an arrow goes one step back or one
  layer down. Of n + k arrows n go back, which makes :math:`\binom{n+k}{n}` paths.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from neurolsc.neurons.cell import Cell
from neurolsc.neurons.rate import HiddenState
from neurolsc.validation import number, shown, whole

Delay = Literal[0, 1]
Count = int | Tensor  # a whole number from 0, or a tensor of such, of any dtype
ROUNDINGS = 8  # sizes that differ by at most so many eps count as equal: one size computed in two ways differs so


def log_paths(steps: Count, layers: Count, *, time: float = 1.0, depth: float = 1.0, layer_delay: Delay) -> Tensor:
    r"""Return the logarithm of the sum of all gradient paths over n steps and k layers.

    A path weighs the product of its arrows, ``time`` for each through time and ``depth`` for each through depth:

    .. math:: \binom{n}{k}\, \mathrm{time}^{n-k}\, \mathrm{depth}^k
              \;\; (\mathrm{layer\_delay} = 1), \qquad
              \binom{n+k}{n}\, \mathrm{time}^{n}\, \mathrm{depth}^k
              \;\; (\mathrm{layer\_delay} = 0)

    This is the derivative of the :class:`PascalRNN` over n steps and k layers. In any network whose derivatives through
    time and depth have norms of at most ``time`` and ``depth``, it bounds the norm of the derivative.

    Args:
        steps: n, from 0.
        layers: k, from 0.
        time: size of a derivative through time, from 0.
        depth: size of a derivative through depth, from 0.
        layer_delay: of the :class:`neurolsc.Network`.

    Returns:
        Logarithms in float64, with an absolute error below 1e-9 up to 10,000 steps and layers; ``-inf`` where the sum
        is 0.

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
    time = number("time", time, zero_allowed=True)
    depth = number("depth", depth, zero_allowed=True)
    n = _counts("steps", steps)
    k = _counts("layers", layers)
    if layer_delay:  # an arrow through depth goes a step back, too
        arrows = n
    else:
        arrows = n + k
    across = (arrows - k).clamp(min=0)  # arrows that go through time alone
    paths = torch.lgamma(arrows + 1) - torch.lgamma(k + 1) - torch.lgamma(across + 1)
    paths = torch.where(arrows < k, -torch.inf, paths)  # too few steps for k layers
    return paths + torch.xlogy(across, time) + torch.xlogy(k, depth)


def _counts(name: str, counts: Count) -> Tensor:
    """Return counts in float64; ValueError if they are no whole numbers from 0, TypeError if no real numbers."""
    try:
        found = torch.as_tensor(counts)
    except (TypeError, ValueError, RuntimeError) as error:  # which of them depends on the value
        raise TypeError(f"{name} must be whole numbers from 0, got {shown(counts)}.") from error
    if found.is_complex():
        raise TypeError(f"{name} must be whole numbers from 0, got {shown(counts)}.")
    found = found.to(torch.float64)
    if not ((found >= 0) & (found == found.floor()) & found.isfinite()).all():
        raise ValueError(f"{name} must be whole numbers from 0, got {found.tolist()}.")
    return found


def log_path_sums(steps: int, layers: int, *, time: float = 1.0, depth: float = 1.0, layer_delay: Delay) -> Tensor:
    r"""Return the logarithm of the paper's bound B(T) of the update of the k-th layer below the top, for every T.

    .. math:: B(T) = \frac1T \sum_{t=0}^{T} \sum_{n=0}^{t} D(n, k)

    with D of :func:`log_paths`. With ``time`` and ``depth`` 1 it is Lemma 2,

    .. math:: \frac1T \binom{T+k+2}{T} \;\; (\mathrm{layer\_delay} = 0), \qquad
              \frac1T \binom{T+2}{k+2} \;\; (\mathrm{layer\_delay} = 1),

    which grows as :math:`T^{k+1} / (k+2)!` with k fixed, and exponentially with T/k fixed. Where time + depth = 1 every
    D is at most 1, and so B(T) at most :math:`(T+1)(T+2) / 2T`: linear, as Theorem 3 says, which prints
    :math:`(T+1) / 2` because its sums begin at 1. B(T) itself tends to a constant.

    B(T) bounds the variance of an entry of the update, up to a constant, if all derivatives have norms of at most
    ``time`` and ``depth``. It need not if norms are as small only on average (Theorem 1): the law of large numbers is
    about the mean of n norms, not about the n-th power of that mean: its expectation is about :math:`e^{n s^2 / 2}` if
    norms have the mean 1 and the deviation s. Nor if only spectral radii are: for each matrix some norm is near its
    radius, but no one norm serves all matrices, and two matrices of radius 0.5 can have a product of any radius.

    Args:
        steps: the largest T.
        layers: k, how far the layer is below the top.
        time: size of the derivatives through time, from 0.
        depth: size of the derivatives through depth, from 0.
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
    of_length_n = log_paths(n, whole("layers", layers, at_least=0), time=time, depth=depth, layer_delay=layer_delay)
    up_to_t = of_length_n.logcumsumexp(0)
    return up_to_t.logcumsumexp(0)[1:] - n[1:].log()


def log_input_derivatives(
    steps: int, layers: int, *, time: float = 1.0, depth: float = 1.0, layer_delay: Delay
) -> Tensor:
    r"""Return the logarithm of the derivative of a :class:`PascalRNN`'s outputs, summed over time, by each input.

    .. math:: \sum_{n=0}^{T-1-t} \mathrm{depth}\; D(n - \mathrm{layer\_delay},\; L - 1)

    with D of :func:`log_paths`, which is 0 for a negative number of steps. If time + depth = 1 the derivative is the
    probability that at least L arrows go down, each with the probability ``depth``, of T - 1 - t with a layer delay and
    of T - 1 - t + L without. It is near 1 only for inputs far from the end.

    Args:
        steps: T, the steps of the run, from 1.
        layers: L, from 1.
        time: derivative through time, from 0.
        depth: derivative through depth, from 0.
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
    after_n = log_paths(n, whole("layers", layers) - 1, time=time, depth=depth, layer_delay=layer_delay)
    if layer_delay:  # an input reaches the lowest layer one step later, so no path has n = 0
        after_n = torch.cat([after_n.new_full((1,), -torch.inf), after_n[:-1]])
    into_the_lowest = torch.tensor(float(depth), dtype=torch.float64).log()
    return (after_n.logcumsumexp(0) + into_the_lowest).flip(0)  # the last input has n = 0 only


class PascalRNN(Cell):
    r"""A layer of the paper's PascalRNN, in which every derivative is a number.

    .. math:: h[t, l] = \mathrm{time}\; h[t-1, l] + \mathrm{depth}\; h[t-1, l-1]

    That is ``layer_delay=1``; in a network with ``layer_delay=0`` the last term is :math:`h[t, l-1]`. Neurons are not
    connected to each other, nothing is learnt, and the radii are ``time`` and ``depth`` exactly, at every step.

    Args:
        width: number of inputs and of neurons.
        time: the derivative through time, from 0; the paper has one number for both derivatives, rho.
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
    """How the size of a derivative at each of K steps varies with that at one step, over samples; all (..., K)."""

    covariance: Tensor
    correlation: Tensor  # Pearson's, -1 to 1; NaN where the size at one of the two steps is the same for all samples
    p_value: Tensor  # chance of a correlation as far from 0 between independent Gaussian variables; NaN likewise


def covariance_decay(sizes: Tensor, *, step: int = 0) -> CovarianceDecay:
    r"""Correlate the size of a derivative at each step with that at one step, over the samples of a batch.

    .. math:: \mathrm{cov}(a_t, a_s), \qquad
              r_t = \frac{\mathrm{cov}(a_t, a_s)}{\sqrt{\mathrm{var}\, a_t\; \mathrm{var}\, a_s}},
              \qquad p_t = I_{1 - r_t^2}\Big(\frac B2 - 1, \frac12\Big)

    over B samples, with the regularised incomplete beta function I. Theorem 2 assumes that the covariance tends to 0
    with the distance of any two steps; a correlation below about :math:`2 / \sqrt B` cannot be distinguished from 0.
    A network at rest has the same derivatives in all samples, and so no covariance: choose a step where samples differ.

    Args:
        sizes: sizes at K steps of B samples (..., K, B): those of :func:`neurolsc.stability.singular_values`, as in the
            paper, or :attr:`neurolsc.RadiusProfile.time`.
        step: index of the step s among the K; the paper takes 0.

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
    samples = sizes.shape[-1]
    a = sizes.detach().cpu().double()
    deviations = a - a.mean(-1, keepdim=True)
    # Sizes that differ by rounding alone count as equal: deviations of 0 make the correlation NaN.
    rounding = ROUNDINGS * torch.finfo(sizes.dtype).eps * a.abs().amax(-1)
    alike = deviations.abs().amax(-1) <= rounding
    deviations = deviations.masked_fill(alike.unsqueeze(-1), 0)
    covariance = (deviations * deviations[..., step : step + 1, :]).sum(-1) / (samples - 1)
    standard = deviations.square().sum(-1).div(samples - 1).sqrt()  # standard deviations (..., K)
    r = (covariance / (standard * standard[..., step : step + 1])).clamp(-1, 1)
    # 1 - r² of independent Gaussian variables has a beta distribution: its lower tail is the p-value of Student's t
    unexplained = (1 - r) * (1 + r)
    p = betainc(samples / 2 - 1, 0.5, unexplained.numpy())
    return CovarianceDecay(covariance, r, torch.as_tensor(p))
