r"""Resonate-and-fire neurons: a damped oscillation (u, v) of frequency omega, which spikes where u is high.

With a damping b < 0, both per unit of time, a step dt and :math:`I = W_{in} x[t] + W_{rec} z[t-1]`, an Euler step is

.. math::
    u[t] &= u[t-1] + dt\,(b\, u[t-1] - \omega v[t-1] + I), \quad z[t] = H(u[t] - \vartheta) \\
    v[t] &= v[t-1] + dt\,(\omega u[t-1] + b\, v[t-1])

A neuron is stable below threshold if and only if :math:`(1 + dt\,b)^2 + (dt\,\omega)^2 \le 1`, that is, if
:math:`dt\,\omega \le 1` and b is between :math:`p_- = (-1 - \sqrt{1 - (dt\,\omega)^2}) / dt` and the divergence
boundary

.. math:: p(\omega) = \frac{-1 + \sqrt{1 - (dt\,\omega)^2}}{dt}.

The cells here run step by step, and have derivatives in closed form.

Source: Izhikevich 2001; Higuchi et al., ICML 2024, arXiv:2402.14603; github.com/AdaptiveAILab/brf-neurons.
"""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from neurolsc.display import state_repr
from neurolsc.neurons.blocks import RESET, NeuronCell, Range, matrix_of
from neurolsc.neurons.cell import Bound, Membrane, ScaledParameter, register
from neurolsc.neurons.derivatives import Term
from neurolsc.neurons.parameters import LogParameter
from neurolsc.validation import finite, number

ROTATION = Term("rotation", "raise the damping", "lower the damping", "#0072b2")
EULER_ROTATION = replace(ROTATION, too_large="raise the damping, to 1 / dt at most, or lower omega")
REFRACTORY = Term("refractory", "lower the thresholds", "lower the damping", "#d55e00")
HIGHEST = 1 - 1e-6  # dt omega at most: at 1 the gradient of the divergence boundary is infinite
Q_DECAY = 0.9  # of the refractory term of BRF, in the paper


class ResonatorState(NamedTuple):
    """State of a resonate-and-fire cell."""

    u: Tensor  # oscillation, its real part, before the reset of its spike (B, n_hidden)
    v: Tensor  # its imaginary part (B, n_hidden)
    __repr__ = state_repr


class BRFState(NamedTuple):
    """State of a balanced resonate-and-fire cell."""

    u: Tensor  # oscillation, its real part (B, n_hidden)
    v: Tensor  # its imaginary part (B, n_hidden)
    q: Tensor  # refractory term, without the spike of this state (B, n_hidden)
    __repr__ = state_repr


class EulerResonator(NeuronCell):
    """Base of RF and BRF: their parameters, and an Euler step of the oscillation."""

    omega: nn.Parameter
    damping: nn.Parameter

    settings = ("omega_range", "damping_range", "dt")
    scaled_parameters = (
        *NeuronCell.scaled_parameters,
        ScaledParameter("damping", "time", sign=-1, limit="most_damping"),
    )

    def __init__(
        self,
        n_in: int,
        n_hidden: int,
        *,
        omega_range: Range = (5.0, 10.0),
        damping_range: Range = (2.0, 3.0),
        dt: float = 0.01,
        **settings: Any,
    ) -> None:
        super().__init__(n_in, n_hidden, **settings)
        # each draws a parameter and returns its range, checked
        self.omega_range = self.draw("omega", omega_range, positive=True)
        self.damping_range = self.draw("damping", damping_range)
        self.dt = number("dt", dt)
        if self.dt * self.omega_range[1] > 1:
            raise ValueError(
                f"dt omega must be at most 1, or no damping keeps a neuron stable; got omega_range up to "
                f"{self.omega_range[1]:g} with dt {self.dt:g}."
            )
        if self.damping_range[0] < 0:
            raise ValueError(f"damping_range must not be negative, got {self.damping_range}: a damping d makes b = -d.")
        # Glorot of w_in and w_rec side by side, a matrix (n_hidden, n_in + n_hidden)
        bound = (6 / (n_in + 2 * n_hidden)) ** 0.5
        nn.init.uniform_(self.w_in, -bound, bound)
        nn.init.uniform_(self.w_rec, -bound, bound)

    def angle(self) -> Tensor:
        """dt omega (n_hidden,), at most 1."""
        return (self.dt * self.omega.abs()).clamp(max=HIGHEST)

    def boundary(self) -> Tensor:
        """The divergence boundary p(omega), (n_hidden,)."""
        return (torch.sqrt(1 - self.angle() ** 2) - 1) / self.dt

    def most_damping(self) -> Tensor:
        """The damping at which the radius of a step is smallest, dt omega: b = -1 / dt, where 1 + dt b is 0."""
        return torch.full_like(self.damping, 1 / self.dt)

    def rotation(self, b: Tensor) -> tuple[Tensor, Tensor]:
        """Return 1 + dt b and dt omega, the entries of the step of (u, v) on and off its diagonal; b is the damping."""
        return 1 + self.dt * b, self.angle()

    def shares(self) -> Tensor:
        return self.dt * super().shares()  # u takes dt times a current

    def euler_step(self, x: Tensor, z: Tensor, state: Any, b: Tensor) -> tuple[Tensor, Tensor]:
        """Return the new u and v, each (B, n_hidden), after a step with the damping b, which is negative."""
        diagonal, angle = self.rotation(b)
        u = diagonal * state.u - angle * state.v + self.dt * self.current(x, z)
        return u, angle * state.u + diagonal * state.v


@register
class RF(EulerResonator):
    r"""Resonate-and-fire by Euler steps, with b = -|damping| and no reset (:mod:`neurolsc.neurons.resonate`).

    Args:
        omega_range: range of the initial frequencies, drawn uniformly. dt times the upper end must be at most 1.
        damping_range: likewise of the damping. The two defaults are those published for SHD, with which no neuron is
            unstable; with those for permuted sequential MNIST, (15, 85) and (0.1, 1), **all** are, up to a radius of
            1.31 a step.
        dt: length of a step.
        **settings: ``spike`` and ``threshold`` of :class:`neurolsc.neurons.NeuronCell`.

    Attributes:
        omega: frequencies (n_hidden,), trainable; read by magnitude, at most 1 / dt.
        damping: (n_hidden,), trainable; read by magnitude.
        w_in: input weights, Glorot uniform over the columns of both matrices. Likewise ``w_rec``.
    """

    state_type = ResonatorState
    block_terms = (EULER_ROTATION,)

    def update(self, x: Tensor, z: Tensor, state: ResonatorState) -> ResonatorState:
        return ResonatorState(*self.euler_step(x, z, state, -self.damping.abs()))

    def blocks(self, state: ResonatorState, s: Tensor, z: Tensor) -> dict[str, Tensor]:
        diagonal, angle = self.rotation(-self.damping.abs())
        return {"rotation": matrix_of([[diagonal, -angle], [angle, diagonal]], z)}

    def bounds(self) -> tuple[Bound, ...]:
        """Return the two conditions of stability; each is named by its violation."""
        p = self.boundary()
        b = -self.damping.abs()  # as a step reads it
        # p_- = -2 / dt - p is the other root of |1 + dt (b + i omega)| = 1
        return (
            Bound("b > p(omega), the divergence boundary", p - b, "take BRF, or raise the damping above -p(omega)"),
            Bound("b < p_-(omega)", b + 2 / self.dt + p, "lower the damping"),
        )


@register
class BRF(EulerResonator):
    r"""Balanced resonate-and-fire: the damping starts at the divergence boundary (:mod:`neurolsc.neurons.resonate`).

    .. math::
        b[t] = p(\omega) - |\mathrm{damping}| - q[t], \quad q[t] = 0.9\, q[t-1] + z[t], \quad
        z[t] = H(u[t] - \vartheta - q[t-1])

    without a reset. A neuron is stable below threshold whatever its damping is, up to
    :math:`2 \sqrt{1 - (dt\,\omega)^2} / dt`: with the published initialisations no neuron is unstable.

    Arguments and attributes are those of :class:`RF`. Published for permuted sequential MNIST:
    ``omega_range=(15, 85)``, ``damping_range=(0.1, 1)``.
    """

    state_type = BRFState
    block_terms = (EULER_ROTATION, REFRACTORY)

    def most_damping(self) -> Tensor:
        return super().most_damping() + self.boundary()  # b = p(omega) - damping = -1 / dt

    def distance(self, state: BRFState) -> Tensor:
        return state.u - self.theta - state.q

    def update(self, x: Tensor, z: Tensor, state: BRFState) -> BRFState:
        q = Q_DECAY * state.q + z
        u, v = self.euler_step(x, z, state, self.boundary() - self.damping.abs() - q)
        return BRFState(u, v, q)

    def slopes(self, s: Tensor) -> Tensor:
        return torch.stack([s, torch.zeros_like(s), -s], 1)  # spikes follow u - theta - q

    def blocks(self, state: BRFState, s: Tensor, z: Tensor) -> dict[str, Tensor]:
        diagonal, angle = self.rotation(self.boundary() - self.damping.abs() - Q_DECAY * state.q - z)
        zero = torch.zeros_like(s)
        # of_q: derivatives by (u, v, q) of the new q, which adds z = H(u - theta - q). An increase of the new q by 1
        # lowers b by 1, and so adds -dt u to the new u and -dt v to the new v.
        of_q = (s, zero, Q_DECAY - s)
        of_u = [-self.dt * state.u * by for by in of_q]
        of_v = [-self.dt * state.v * by for by in of_q]
        return {
            "rotation": matrix_of([[diagonal, -angle, zero], [angle, diagonal, zero], [zero, zero, zero]], z),
            "refractory": matrix_of([of_u, of_v, of_q], z),
        }

    def membrane(self) -> Membrane:
        return Membrane("u", lambda state: self.theta + state.q, self.spike)

    def bounds(self) -> tuple[Bound, ...]:
        margin = 2 / self.dt + 2 * self.boundary() - self.damping.abs()
        return (Bound("b < p_-(omega)", margin, "lower the damping"),)


@register
class ExactRF(NeuronCell):
    r"""Resonate-and-fire by exact steps, as in S5-RF and C-SiLIF (:mod:`neurolsc.neurons.resonate`).

    .. math:: u[t] + i v[t] = e^{(-b + i \omega)\, dt} (u[t-1] - \vartheta z[t-1] + i v[t-1]) + I

    with a gradient through the reset. Below threshold the radius is :math:`e^{-b\,dt}`: always stable.

    Args:
        damping: initial damping b, positive.
        omega: initial frequency.
        dt_range: range of the initial dt, whose logarithms are drawn uniformly.
        **settings: ``spike`` and ``threshold`` of :class:`neurolsc.neurons.NeuronCell`.

    Attributes:
        damping: (n_hidden,), trainable, positive.
        omega: (n_hidden,), trainable.
        dt: length of a step (n_hidden,), trainable, positive.
        w_in: input weights, uniform in ±1/sqrt(n_in), each row times a number drawn uniformly from 0 to 2.

    Source: the defaults are those of C-SiLIF, Fabre et al. 2025 (github.com/Maxtimer97/SSM-inspired-LIF), which spikes
    where 2 u > 1: u here is its 2 u. Recurrent weights are ours.
    """

    damping = LogParameter()
    dt = LogParameter()
    settings = ("dt_range",)
    scaled_parameters = (*NeuronCell.scaled_parameters, ScaledParameter("damping", "time", sign=-1))
    state_type = ResonatorState
    block_terms = (ROTATION, RESET)

    def __init__(
        self,
        n_in: int,
        n_hidden: int,
        *,
        damping: float = 0.5,
        omega: float = math.pi,
        dt_range: Range = (0.01, 0.5),
        **settings: Any,
    ) -> None:
        super().__init__(n_in, n_hidden, **settings)
        self.damping = torch.full((n_hidden,), number("damping", damping))  # a LogParameter makes it trainable
        self.omega = nn.Parameter(torch.full((n_hidden,), finite("omega", omega)))
        self.dt_range = self.draw("dt", dt_range, positive=True, in_log=True)
        with torch.no_grad():
            self.w_in.mul_(2 * torch.rand(n_hidden, 1))  # each neuron's row by one number, uniform from 0 to 2

    def rotation(self) -> tuple[Tensor, Tensor]:
        """Return the real and the imaginary part of exp((-b + i omega) dt), each (n_hidden,)."""
        radius = torch.exp(-self.damping * self.dt)
        angle = self.omega * self.dt
        return radius * torch.cos(angle), radius * torch.sin(angle)

    def update(self, x: Tensor, z: Tensor, state: ResonatorState) -> ResonatorState:
        cosine, sine = self.rotation()
        r = state.u - self.theta * z
        u = cosine * r - sine * state.v + self.current(x, z)
        return ResonatorState(u, sine * r + cosine * state.v)

    def blocks(self, state: ResonatorState, s: Tensor, z: Tensor) -> dict[str, Tensor]:
        cosine, sine = self.rotation()
        by_reset = -self.theta * s  # derivative by u of what the reset adds to r
        return {
            "rotation": matrix_of([[cosine, -sine], [sine, cosine]], z),
            "reset": matrix_of([[cosine * by_reset, 0.0], [sine * by_reset, 0.0]], z),
        }
