r"""The curse of memory: how sensitive a leaky integrator is to its own memory, and what keeps the sensitivity level.

.. math:: h[t] = \lambda h[t-1] + x[t], \qquad |\lambda| < 1

As λ tends to 1 the second moment of :math:`\mathrm{d}h/\mathrm{d}\lambda` grows like :math:`(1-\lambda)^{-3}`, or, if
inputs are constant, like :math:`(1-\lambda)^{-4}`, although nothing is unstable. An input scale
:math:`\gamma(\lambda)` keeps h level, and a parameter ω that moves λ less the nearer λ is to 1 keeps
:math:`\mathrm{d}h/\mathrm{d}\omega` level.

The voltage and the threshold of spiking neurons are such integrators, with :math:`\lambda = e^{-1/\tau}`. So log τ,
which this package trains, is up to its sign the parameter ω of the LRU, with :math:`\lambda = e^{-e^{\omega}}`, and
the derivative by it is level under an input scale only.

Source: Zucchet & Orvieto, arXiv:2405.21064. Its eq. 34, 53, 57, 59, 81 to 83, 92 and 111 have errors; the corrected
forms, which docs/theory.md lists, are used.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
from numpy.polynomial.legendre import leggauss
from torch import Tensor, nn
from torch.nn.utils import parametrize

from neurolsc.network import Network, as_network
from neurolsc.neurons.lru import linear_scan
from neurolsc.neurons.spiking import ALIF, LIF, SpikingCell
from neurolsc.surroundings import eval_mode, in_full_precision
from neurolsc.validation import finite, one_of, shown, tensor, whole

Number = float | complex | Tensor
Correlation = float | Tensor
"""Autocorrelation of real inputs, R(Δ): a number ρ for :math:`\\rho^{|\\Delta|}`, or a tensor of R(0), R(1), ... after
whose end it is 0: (K,), or (K, N) where each of N eigenvalues has its own."""

ROUNDING = 1e-6  # share by which R(Δ) may exceed R(0), or a power be negative: estimates come in float32
STILL = 1e-12  # relative deviation up to which a drive counts as constant: float64's rounding over a run
EDGE = 18.0  # largest artanh ν: 1 - tanh(18) is four times the spacing of float64 below 1
HALVINGS = 64  # of the range -EDGE to EDGE, to below float64's rounding
NODES = 96  # of an integral by the rule of Gauss and Legendre: up to EDGE and |ρ| = 1 - 1e-6 it is right to 1e-11

# ---- autocorrelations


def autocorrelation(x: Tensor, lags: int, *, centred: bool = False, unbiased: bool = False) -> Tensor:
    r"""Estimate the autocorrelation of inputs.

    .. math:: \hat R(\Delta) = \frac{1}{T B} \sum_{b} \sum_{t=1}^{T-\Delta} x[t]_b\, x[t+\Delta]_b

    The estimate is positive semi-definite, as moments need it, and too small by the factor :math:`1 - \Delta/T`. If
    inputs are a mean plus deviations from it, R is the sum of the autocorrelations of both, and so moments are sums of
    two; the autocorrelation of the mean does not decay.

    Args:
        x: inputs (T, B, N), real.
        lags: the largest Δ, below T.
        centred: subtract each unit's mean first.
        unbiased: divide by the number of pairs, T - Δ, as eq. 75; the estimate may then not be positive semi-definite.

    Returns:
        R(0) to R(lags) of each unit (lags + 1, N).

    Source: arXiv:2405.21064, eq. 75.
    """
    if tensor("x", x).ndim != 3 or x.is_complex():
        raise ValueError(f"x must be real, of shape (T, B, N), got {x.dtype}, {tuple(x.shape)}.")
    steps = len(x)
    if whole("lags", lags, at_least=0) >= steps:
        raise ValueError(f"lags must be fewer than the {steps} steps, got {lags}.")
    x = x.detach().double()
    if centred:
        x = x - x.mean((0, 1))
    # By the power spectrum (Wiener-Khinchin), with zeros up to twice the length: a Fourier transform is periodic.
    power = torch.fft.rfft(x, n=2 * steps, dim=0).abs().square().mean(1)
    found = torch.fft.irfft(power, n=2 * steps, dim=0)[: lags + 1] / steps
    if unbiased:
        pairs = steps - torch.arange(lags + 1, dtype=found.dtype, device=found.device)
        found = found * (steps / pairs).unsqueeze(1)
    return found


def _checked_correlation(correlation: Correlation) -> float | Tensor:
    """Return a correlation, a number ρ or R(0), R(1), ... in float64; ValueError if no real input has it."""
    if not isinstance(correlation, Tensor) or correlation.ndim == 0:
        rho = finite("correlation", correlation)
        if not -1 <= rho <= 1:
            raise ValueError(f"a correlation between steps must be in [-1, 1], got {rho}.")
        return rho
    if correlation.is_complex():
        raise ValueError(f"an autocorrelation must be that of real inputs, got {correlation.dtype}.")
    r = correlation.detach().double()
    if not (r.isfinite().all() and (r[0] > 0).all()):
        raise ValueError(f"an autocorrelation must be finite, with R(0) > 0, got R(0) = {r[0].min().item():g}.")
    if (r.abs() > r[0] * (1 + ROUNDING)).any():
        raise ValueError(f"no |R(Δ)| of an autocorrelation exceeds R(0), got {(r.abs() / r[0]).max().item():g} R(0).")
    # The power, R(0) + 2 sum over Δ of R(Δ) cos, is checked at four frequencies for each value.
    spectrum = 2 * torch.fft.rfft(r, n=8 * len(r), dim=0).real - r[0]
    if (spectrum < -ROUNDING * r.abs().sum(0)).any():
        raise ValueError(
            f"an autocorrelation has no negative power at any frequency, got {spectrum.min().item():g}: it is 0 after "
            f"the {len(r)} values, so give enough of them, or estimate it without unbiased=True."
        )
    return r


def _eigenvalues(eigenvalue: Number) -> Tensor:
    """Return eigenvalues as a float or complex tensor; ValueError if one does not lie inside the unit circle."""
    found = eigenvalue
    if not isinstance(found, Tensor):
        if isinstance(found, complex):
            dtype = torch.complex128
        else:
            dtype = torch.double
        try:
            found = torch.tensor(found, dtype=dtype)
        except (TypeError, ValueError, RuntimeError) as error:  # which of them depends on the value
            raise TypeError(f"an eigenvalue must be a number, or a tensor of such, got {shown(eigenvalue)}.") from error
    elif not (found.is_floating_point() or found.is_complex()):
        found = found.double()
    outside = ~(found.abs() < 1)  # NaN is outside, too
    if outside.any():
        raise ValueError(f"an eigenvalue must have a modulus below 1, got {found[outside].flatten()[0].item()}.")
    return found


def _sums(eigenvalue: Tensor, r: float | Tensor) -> tuple[Tensor | float, Tensor, Tensor]:
    r"""Return R(0) and two sums over lags for eigenvalues λ of any shape, with a checked correlation r.

    .. math:: \sum_{\Delta \ge 1} \lambda^\Delta R(\Delta), \qquad \sum_{\Delta \ge 1} \Delta \lambda^\Delta R(\Delta)

    The sums have the shape of the eigenvalues, broadcast with that of R(0).
    """
    if not isinstance(r, Tensor):  # R(Δ) = ρ^Δ: geometric series
        u = r * eigenvalue
        return 1.0, u / (1 - u), u / (1 - u) ** 2
    r = r.to(eigenvalue.device)
    lags = torch.arange(1, len(r), device=r.device).view(-1, *[1] * eigenvalue.ndim)
    # Lags come first, then the axes of the eigenvalues; those that R lacks are 1.
    inner = [1] * max(eigenvalue.ndim - r.ndim + 1, 0)
    terms = eigenvalue**lags * r[1:].reshape(len(r) - 1, *inner, *r.shape[1:])
    return r[0], terms.sum(0), (lags * terms).sum(0)


# ---- second moments


def state_covariance(first: Number, second: Number | None = None, *, correlation: Correlation = 0.0) -> Tensor:
    r"""Return the mean product of the states of two integrators of the same input, in the long run.

    .. math:: \mathrm{E}[h_\alpha h_\beta] = \sum_{n, m \ge 0} \alpha^n \beta^m R(n - m) = \frac{1}{1 - \alpha\beta}
              \Big(R(0) + \sum_{\Delta \ge 1} (\alpha^\Delta + \beta^\Delta) R(\Delta)\Big)

    It is differentiable by both. With one argument it is :math:`\mathrm{E}|h|^2`, real.

    Args:
        first: α, real or complex, of modulus below 1; any shape.
        second: β, broadcast with α; by default the conjugate of α.
        correlation: of the input, ρ for ρ^|Δ| or R(0), R(1), ...

    Raises:
        TypeError: if an eigenvalue or the correlation is no number.
        ValueError: if a modulus is not below 1, or the correlation is that of no input.

    Example:
        >>> print(*(f"{value:.4g}" for value in state_covariance(torch.tensor([0.9, 0.99], dtype=torch.float64))))
        5.263 50.25

    Source: arXiv:2405.21064, Lemma 1, eq. 5 and 45.
    """
    r = _checked_correlation(correlation)
    a = _eigenvalues(first)
    b = a.conj() if second is None else _eigenvalues(second)
    at_zero, sum_a, _ = _sums(a, r)
    _, sum_b, _ = _sums(b, r)
    found = (at_zero + sum_a + sum_b) / (1 - a * b)
    if second is None:  # b is the conjugate of a: the imaginary part is rounding
        found = found.real
    return found


def sensitivity_covariance(first: Number, second: Number | None = None, *, correlation: Correlation = 0.0) -> Tensor:
    r"""Return the mean product of the derivatives of two states by their own eigenvalues, in the long run.

    .. math:: \mathrm{E}\Big[\frac{\mathrm{d}h_\alpha}{\mathrm{d}\alpha} \frac{\mathrm{d}h_\beta}{\mathrm{d}\beta}\Big]
              = \frac{1 + \alpha\beta}{(1 - \alpha\beta)^3} \Big(R(0) + \sum_{\Delta \ge 1} (\alpha^\Delta +
              \beta^\Delta) R(\Delta)\Big) + \frac{1}{(1 - \alpha\beta)^2} \sum_{\Delta \ge 1} \Delta (\alpha^\Delta +
              \beta^\Delta) R(\Delta)

    With one argument it is :math:`\mathrm{E}|\mathrm{d}h/\mathrm{d}\lambda|^2`, real; with two it is S of the Hessian,
    eq. 134. Arguments and errors are those of :func:`state_covariance`.

    Example:
        >>> found = sensitivity_covariance(torch.tensor([0.9, 0.99], dtype=torch.float64), correlation=0.0)
        >>> print(*(f"{value:.6g}" for value in found))
        263.887 251263

    Source: arXiv:2405.21064, Lemma 2, eq. 6; eq. 57 with :math:`(1 - |\lambda|^2)^3`.
    """
    r = _checked_correlation(correlation)
    a = _eigenvalues(first)
    b = a.conj() if second is None else _eigenvalues(second)
    at_zero, sum_a, lag_sum_a = _sums(a, r)
    _, sum_b, lag_sum_b = _sums(b, r)
    ab = a * b
    found = (1 + ab) / (1 - ab) ** 3 * (at_zero + sum_a + sum_b) + (lag_sum_a + lag_sum_b) / (1 - ab) ** 2
    if second is None:  # b is the conjugate of a: the imaginary part is rounding
        found = found.real
    return found


def input_scale(eigenvalue: Number, *, correlation: Correlation = 0.0) -> Tensor:
    r"""Return the factor γ of an integrator's input with which the state has a second moment of 1 in the long run.

    .. math:: \gamma(\lambda) = \mathrm{E}\big[|h|^2\big]^{-1/2}, \qquad
              \sqrt{1 - |\lambda|^2} \text{ of uncorrelated inputs}

    Here h is the state with a factor of 1. On inputs of another correlation the second moment is not 1.

    Source: arXiv:2405.21064, Sec. 3.1 (B.3.1 lacks the root).
    """
    return state_covariance(eigenvalue, correlation=correlation).rsqrt()


def eigenvalue_hessian(eigenvalues: Tensor, into: Tensor, out: Tensor, *, correlation: Correlation = 0.0) -> Tensor:
    r"""Return the Hessian of the loss of a diagonal linear network by its eigenvalues, where the loss is 0.

    .. math:: y[t] = \Re \sum_i c_i h_i[t], \quad h_i[t] = \lambda_i h_i[t-1] + b_i x[t], \quad L = \frac12 \mathrm{E}
              (y - y^*)^2

    With S of :func:`sensitivity_covariance`, :math:`A_{ij} = b_i b_j c_i c_j S(\lambda_i, \lambda_j)` and
    :math:`B_{ij} = b_i \bar b_j c_i \bar c_j S(\lambda_i, \bar\lambda_j)`, the Hessian is as below. Its first n rows
    and columns are the real parts of the eigenvalues, the others their imaginary parts.

    .. math:: \frac12 \begin{pmatrix} \Re(A + B) & \Im(B - A) \\ -\Im(A + B) & \Re(B - A) \end{pmatrix}

    Args:
        eigenvalues: λ (n,), complex, of modulus below 1.
        into: b (n,).
        out: c (n,).
        correlation: of the input, which is real: ρ for ρ^|Δ| or R(0), R(1), ...

    Returns:
        The Hessian, a real symmetric matrix (2 n, 2 n).

    Source: arXiv:2405.21064, eq. 133 to 143.
    """
    scale = into * out
    column = eigenvalues.unsqueeze(1)
    a = scale.unsqueeze(1) * scale * sensitivity_covariance(column, eigenvalues, correlation=correlation)
    b = scale.unsqueeze(1) * scale.conj() * sensitivity_covariance(column, eigenvalues.conj(), correlation=correlation)
    by_real = torch.cat([(a + b).real, (b - a).imag], 1)
    by_imaginary = torch.cat([-(a + b).imag, (b - a).real], 1)
    return torch.cat([by_real, by_imaginary]) / 2


# ---- parametrisations


class Magnitude(Protocol):
    r"""A modulus ν below 1 as a function of a free real parameter ω.

    The derivative of a state by ω has the second moment :math:`\nu'(\omega)^2\, \mathrm{E}|\mathrm{d}h /
    \mathrm{d}\lambda|^2`, times γ² where inputs are scaled by γ, taken as a constant.
    """

    def value(self, free: Tensor) -> Tensor:
        """ν(ω)."""
        ...

    def derivative(self, free: Tensor) -> Tensor:
        """The derivative of ν by ω."""
        ...

    def inverse(self, modulus: Tensor) -> Tensor:
        """The ω of a ν."""
        ...


@dataclass(frozen=True)
class DoubleExponential:
    r""":math:`\nu = e^{-e^\omega}`, that of the LRU; with :math:`\omega = -\log\tau` the decay of a time constant τ.

    Under the input scale :math:`\sqrt{1 - \nu^2}` the second moment of dh/dω tends to 1/2; without it, it grows as τ/4.

    Source: arXiv:2405.21064, eq. 21.
    """

    def value(self, free: Tensor) -> Tensor:
        return torch.exp(-torch.exp(free))

    def derivative(self, free: Tensor) -> Tensor:
        return -torch.exp(free - torch.exp(free))

    def inverse(self, modulus: Tensor) -> Tensor:
        return torch.log(-torch.log(modulus))


@dataclass(frozen=True)
class Tanh:
    r""":math:`\nu = \tanh\omega`: under the scale :math:`\sqrt{1 - \nu^2}` the moment of dh/dω is :math:`1 + \nu^2`.

    If the gradient goes through the scale as well, the second moment is exactly 1 (eq. 98).

    Source: arXiv:2405.21064, eq. 84 and 108.
    """

    def value(self, free: Tensor) -> Tensor:
        return torch.tanh(free)

    def derivative(self, free: Tensor) -> Tensor:
        return torch.cosh(free) ** -2

    def inverse(self, modulus: Tensor) -> Tensor:
        return torch.atanh(modulus)


@dataclass(frozen=True)
class RootTime:
    r""":math:`\nu = e^{-1/\omega^2}`, so that :math:`\tau = \omega^2`: without a scale the second moment tends to 1."""

    def value(self, free: Tensor) -> Tensor:
        return torch.exp(-(free**-2))

    def derivative(self, free: Tensor) -> Tensor:
        return 2 * free**-3 * torch.exp(-(free**-2))

    def inverse(self, modulus: Tensor) -> Tensor:
        return (-torch.log(modulus)).rsqrt()


@dataclass(frozen=True)
class Level:
    r"""The function ν(ω) with which the second moment of dh/dω is 1 for every ω, for inputs of one correlation.

    .. math:: \gamma(\nu)^2\, \nu'(\omega)^2\, \mathrm{E}\Big[\Big(\frac{\mathrm{d}h}{\mathrm{d}\lambda}\Big)^2\Big]
              = 1, \qquad \omega = \int_0^\nu \gamma(u) \sqrt{S(u, u)}\, \mathrm{d}u

    with S of :func:`sensitivity_covariance`. The integral is taken numerically, and inverted by bisection.

    With a correlation of 1 or -1 there is no such function: the integral to ν = -1 or ν = 1 is then finite, and an ω
    beyond it has no ν.

    Attributes:
        correlation: ρ of the inputs, in (-1, 1).
        scaled: True: γ is :func:`input_scale` of that correlation; False: γ is 1.

    Source: arXiv:2405.21064, Sec. 3.1.
    """

    correlation: float = 0.0
    scaled: bool = True

    def __post_init__(self) -> None:
        rho = _checked_correlation(self.correlation)
        if isinstance(rho, Tensor) or abs(rho) == 1:
            raise ValueError(
                f"a level modulus needs a correlation between -1 and 1, one number, got {self.correlation}."
            )

    def value(self, free: Tensor) -> Tensor:
        return torch.tanh(self._artanh(free)).to(free.dtype)

    def derivative(self, free: Tensor) -> Tensor:
        a = self._artanh(free)
        return (torch.cosh(a) ** -2 / self._integrand(a)).to(free.dtype)

    def inverse(self, modulus: Tensor) -> Tensor:
        return self._integral(torch.atanh(modulus.double())).to(modulus.dtype)

    def _artanh(self, free: Tensor) -> Tensor:
        """The artanh ν of an ω, by bisection: the integral is an increasing function of it."""
        low = torch.full_like(free, -EDGE).double()
        high = -low
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            below = self._integral(middle) < free
            low = torch.where(below, middle, low)
            high = torch.where(below, high, middle)
        return (low + high) / 2

    def _integrand(self, a: Tensor) -> Tensor:
        """The derivative of ω by a = artanh ν, in a form without the difference 1 - ν, which rounding would spoil."""
        nu = torch.tanh(a)
        gap = torch.cosh(a) ** -2  # 1 - ν², which is also the derivative of ν by a
        u = self.correlation * nu
        squared = 1 + nu**2 + 2 * u * gap / (1 - u**2)  # γ² S gap², with γ of input_scale
        if not self.scaled:
            squared = squared * (1 + u) / (1 - u) / gap  # divided by γ²
        return squared.sqrt()

    def _integral(self, end: Tensor) -> Tensor:
        """ω of ν = tanh(end), by the rule of Gauss and Legendre over artanh ν from 0 to `end`."""
        nodes, weights = map(torch.as_tensor, leggauss(NODES))  # on the interval from -1 to 1
        a = end.unsqueeze(-1) * (nodes + 1) / 2
        return (weights * self._integrand(a)).sum(-1) * end / 2


@dataclass(frozen=True)
class Polar:
    r""":math:`\lambda = \nu(\omega_\nu) e^{i\theta}`, a modulus and an angle.

    The moments of the derivatives by the two parameters are

    .. math:: \mathrm{E}\Big|\frac{\mathrm{d}h}{\mathrm{d}\omega_\nu}\Big|^2 = \nu'^2\, \mathrm{E}\Big|
              \frac{\mathrm{d}h}{\mathrm{d}\lambda}\Big|^2, \qquad \mathrm{E}\Big|
              \frac{\mathrm{d}h}{\mathrm{d}\omega_\theta}\Big|^2 = \nu^2 \theta'^2\, \mathrm{E}\Big|
              \frac{\mathrm{d}h}{\mathrm{d}\lambda}\Big|^2

    without the factor 1/4 of eq. 81 to 83. So the longer the memory, the more sensitive is an angle, unless its scale
    :math:`\theta'` shrinks with :math:`1 - \nu^2`. With a scale that shrinks, losses are flat far from the minimum, and
    the angle is hard to learn.

    Attributes:
        magnitude: the function ν of its parameter.
        angle: ``"plain"``: θ = ω; ``"exponential"``, of the LRU: θ = exp ω (eq. 111 has log); ``"level"``:
            :math:`\theta = \omega (1 - \nu^2) / (\nu \sqrt{1 + \nu^2})`, where ν counts as a constant.

    Source: arXiv:2405.21064, eq. 80 to 83 and 107 to 112.
    """

    magnitude: Magnitude = Tanh()
    angle: Literal["plain", "exponential", "level"] = "level"

    def __post_init__(self) -> None:
        one_of("angle", self.angle, ("plain", "exponential", "level"))

    def value(self, free_modulus: Tensor, free_angle: Tensor) -> Tensor:
        """λ, complex."""
        nu = self.magnitude.value(free_modulus)
        return torch.polar(nu, self._angle(nu, free_angle))

    def derivatives(self, free_modulus: Tensor, free_angle: Tensor) -> tuple[Tensor, Tensor]:
        """The derivatives of λ by the parameter of the modulus, and by that of the angle."""
        nu = self.magnitude.value(free_modulus)
        unit = torch.polar(torch.ones_like(nu), self._angle(nu, free_angle))  # λ / ν, where ν may be negative or 0
        if self.angle == "exponential":
            slope = free_angle.exp()
        else:
            slope = self._angle_scale(nu)
        return self.magnitude.derivative(free_modulus) * unit, 1j * nu * slope * unit

    def inverse(self, eigenvalue: Tensor) -> tuple[Tensor, Tensor]:
        """The parameters of the modulus and the angle of λ; ``"exponential"`` needs an angle above 0."""
        nu = eigenvalue.abs()
        angle = eigenvalue.angle()
        if self.angle == "exponential":
            free = angle.log()
        else:
            free = angle / self._angle_scale(nu)
        return self.magnitude.inverse(nu), free

    def _angle(self, nu: Tensor, free: Tensor) -> Tensor:
        """θ of its parameter."""
        if self.angle == "exponential":
            return free.exp()
        return free * self._angle_scale(nu)

    def _angle_scale(self, nu: Tensor) -> Tensor:
        """θ / ω of an angle that is not exponential; ν counts as a constant."""
        nu = nu.detach()
        if self.angle == "plain":
            return torch.ones_like(nu)
        return (1 - nu**2) / (nu * (1 + nu**2).sqrt())


# ---- time constants of a network


class TimeConstantSensitivity(NamedTuple):
    """How far the states of a layer's neurons move with the logarithm of one of their time constants."""

    layer: int  # from 0
    name: str  # of the time constant, such as tau_theta
    tau: Tensor  # in steps (N,)
    state: Tensor  # E[h²] over the run (N,)
    measured: Tensor  # E[(dh / d log tau)²] over the run (N,)
    stationary: Tensor  # the same by the closed form, of a run without an end (N,)


@in_full_precision
def time_constant_sensitivity(network: Network, x: Tensor) -> list[TimeConstantSensitivity]:
    r"""Measure how sensitive voltages, thresholds and currents of a network are to its time constants, on inputs.

    A state variable h with the time constant τ is an integrator of a drive u,

    .. math:: u[t] = h[t] - \lambda h[t-1], \quad \lambda = e^{-1/\tau}, \qquad
              \frac{\mathrm{d}h[t]}{\mathrm{d}\lambda} = \lambda \frac{\mathrm{d}h[t-1]}{\mathrm{d}\lambda} + h[t-1],
              \qquad \frac{\mathrm{d}h}{\mathrm{d}\log\tau} = \frac{\lambda}{\tau} \frac{\mathrm{d}h}{\mathrm{d}\lambda}

    The drive (input, recurrence, constant input and reset) is that of the run and counts as fixed: that a changed h
    changes spikes, which change h again, is left out. So is a factor 1 - λ of the input, as adaptive LIF have: their
    sensitivity is overstated. A state starts at rest, so its derivative by λ starts as h / (1 - λ). In a run without an
    end, the mean square of dh/dλ is the sum of two :func:`sensitivity_covariance`: that of the drive's mean, which has
    the correlation 1, and that of its centred :func:`autocorrelation` at all lags. A run shorter than τ does not reach
    it.

    Args:
        network: the network; its parameters are not changed.
        x: inputs (T, B, n_in).

    Returns:
        One entry for each time constant ``tau_h`` of a state variable ``h``, layer by layer.

    Raises:
        TypeError: if no layer has such a time constant.

    Source: arXiv:2405.21064, eq. 6, carried to eq. 49 of arXiv:2308.12075.
    """
    with eval_mode(as_network(network)), torch.no_grad():
        records = list(network.records(x))
        before = network.initial_states(x.shape[1]).layers
        found = []
        for layer, cell in enumerate(network.cells):
            states = [before[layer], *(record.after.layers[layer] for record in records)]
            for scaled in cell.scaled_parameters:
                variable = scaled.parameter.removeprefix("tau_")  # of the state, such as v or theta
                if scaled.through != "decay" or not hasattr(states[0], variable):
                    continue
                tau = getattr(cell, scaled.parameter).double()
                decay = torch.exp(-1 / tau)
                h = torch.stack([getattr(state, variable) for state in states]).double()
                # dh / d decay at each step (T, B, N); before the first it is h / (1 - decay), as of a state at rest
                slope = linear_scan(decay, h[:-1], h[0] / -torch.expm1(-1 / tau))
                drive = h[1:] - decay * h[:-1]
                centred = autocorrelation(drive, len(x) - 1, centred=True)
                # A constant drive has a centred R of 0, which is refused: R(0) is raised by 1, and its moment set to 0.
                still = centred[0] <= STILL**2 * drive.square().mean((0, 1))
                centred[0] += still
                around = sensitivity_covariance(decay, correlation=centred).masked_fill(still, 0)
                # (1 - decay) ** -4 is the sensitivity_covariance at the correlation 1
                stationary = around + drive.mean((0, 1)).square() * (1 - decay) ** -4
                # (d decay / d log tau) squared takes both moments to those by log tau
                by_log = (decay / tau).square()
                state = h[1:].square().mean((0, 1))
                measured = by_log * slope.square().mean((0, 1))
                entry = TimeConstantSensitivity(layer, scaled.parameter, tau, state, measured, by_log * stationary)
                found.append(entry)
    if not found:
        raise TypeError("no layer has a time constant tau_h of a state variable h, as LIF and ALIF have.")
    return found


# For each time constant, the parameters by which its integrator takes its input: weights, or what a spike adds.
_FED = {"tau_v": ("w_in", "w_rec"), "tau_theta": ("b_theta", "adaptation")}
InputScale = Literal["variance", "mean"]


@in_full_precision
def level_time_constants(network: Network, *, scale: InputScale | None = "variance") -> None:
    r"""Reparametrise LIF and ALIF layers so that long and short time constants are about equally sensitive in training.

    The network computes the same as before; only the trained parameters change. ``"variance"`` and ``"mean"`` train log
    τ as before, and w_in, w_rec, b_theta and adaptation as multiples of an input scale that follows τ:

    .. math:: \gamma = \sqrt{1 - \lambda^2} \text{ (variance)}, \qquad \gamma = 1 - \lambda \text{ (mean)}, \qquad
              \lambda = e^{-1/\tau}

    When τ moves, ``"variance"`` keeps the variance of a state that uncorrelated inputs drive; ``"mean"`` keeps the mean
    of a state, and so a threshold at rest. None leaves inputs as they are and trains :math:`\sqrt\tau`
    (:class:`RootTime`).

    These are parametrisations of :mod:`torch.nn.utils.parametrize` on the cells. :func:`plain_time_constants` removes
    them, as saving and exports need.

    Raises:
        TypeError: if a layer is no LIF or ALIF that trains these parameters as they are.

    Source: arXiv:2405.21064, Sec. 3.1, carried to eq. 49 of arXiv:2308.12075.
    """
    for i, cell in enumerate(as_network(network).cells):
        names = [name for tau, fed in _FED.items() if hasattr(cell, tau) for name in fed]
        if not isinstance(cell, LIF | ALIF) or not all(name in cell._parameters for name in names):
            raise TypeError(f"layer {i + 1} must be a LIF or ALIF with its own parameters, got {type(cell).__name__}.")
    if scale is not None:
        one_of("scale", scale, ("variance", "mean"))
    for cell in network.cells:
        for tau, names in _FED.items():
            if not hasattr(cell, tau):
                continue
            if scale is None:
                parametrize.register_parametrization(cell, f"log_{tau}", _Root())
                continue
            for name in names:
                parametrize.register_parametrization(cell, name, _Scaled(cell, tau, scale))  # type: ignore[arg-type]


@in_full_precision
def plain_time_constants(network: Network) -> None:
    """Undo :func:`level_time_constants`: parameters keep their values, and are trained as the cells define them."""
    for cell in as_network(network).cells:
        for name in list(getattr(cell, "parametrizations", ())):
            if isinstance(cell.parametrizations[name][0], _Root | _Scaled):  # type: ignore[index, union-attr]
                parametrize.remove_parametrizations(cell, name)


class _Root(nn.Module):
    """A parametrisation of log τ by ω, with τ = ω²."""

    def forward(self, root: Tensor) -> Tensor:
        return 2 * root.abs().log()

    def right_inverse(self, log: Tensor) -> Tensor:
        return torch.exp(log / 2)


class _Scaled(nn.Module):
    """A parametrisation of the parameters by which an integrator takes its input: multiples of its input scale γ(τ).

    Args:
        cell: the cell.
        tau: name of the integrator's time constant on the cell.
        scale: which γ, as in :func:`level_time_constants`.
    """

    def __init__(self, cell: SpikingCell, tau: str, scale: InputScale) -> None:
        super().__init__()
        self.cell = [cell]  # in a list, so that the cell does not become a part of this module
        self.tau = tau
        self.scale = scale

    def _units(self, like: Tensor) -> Tensor:
        """γ of each neuron (N, 1, ...), with as many axes as a parameter (N, ...)."""
        tau = getattr(self.cell[0], self.tau)
        units = -torch.expm1(-1 / tau)
        if self.scale == "variance":
            units = (-torch.expm1(-2 / tau)).sqrt()
        return units.view(-1, *[1] * (like.ndim - 1))

    def forward(self, free: Tensor) -> Tensor:
        return free * self._units(free)

    def right_inverse(self, value: Tensor) -> Tensor:
        return value / self._units(value).detach()
