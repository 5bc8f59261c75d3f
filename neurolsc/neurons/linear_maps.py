"""The linear maps of which the derivatives of LIF and ALIF are made, in closed form."""

import torch
from torch import Tensor

from neurolsc.eigen.known import Known
from neurolsc.eigen.maps import Factors, Map, lu_factors
from neurolsc.neurons.alone import hears_few, held_alone
from neurolsc.neurons.derivatives import StepMap
from neurolsc.neurons.linearised import Linearised


class SpikingStep(StepMap):
    """d h[t] / d h[t-1] of a LIF or ALIF cell in closed form."""

    def __init__(self, step: Linearised) -> None:
        self.step = step
        self.rows = self.columns = step.s.shape[1] * (1 if step.adaptation is None else 2)

    def times(self, x: Tensor) -> Tensor:
        w_rec, s, d, e, r, adaptation, decay_theta = self.step
        if adaptation is None or decay_theta is None:
            q = s * x
            return d * x - r * q + q @ w_rec.T
        v, theta = x.chunk(2, 1)
        q = s * (v - theta)
        return torch.cat((d * v + e * theta - r * q + q @ w_rec.T, decay_theta * theta + adaptation * q), 1)

    def transposed(self, y: Tensor) -> Tensor:
        w_rec, s, d, e, r, adaptation, decay_theta = self.step
        if adaptation is None or decay_theta is None:
            return d * y + s * (y @ w_rec - r * y)
        v, theta = y.chunk(2, 1)
        q = s * (v @ w_rec - r * v + adaptation * theta)
        return torch.cat((d * v + q, e * v + decay_theta * theta - q), 1)

    def terms(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        """The sums y^T (term) x of the named terms of the derivative, at real vectors.

        Each is (P,).
        """
        w_rec, s, d, e, r, adaptation, decay_theta = self.step
        if adaptation is None or decay_theta is None:
            q = s * x
            parts = {"leak": y * d * x, "reset": -y * r * q, "recurrence": y * (q @ w_rec.T)}
        else:
            v, theta = x.chunk(2, 1)
            to_v, to_theta = y.chunk(2, 1)
            q = s * (v - theta)
            parts = {
                "leak": to_v * d * v + to_theta * decay_theta * theta,
                "reset": to_v * (e * theta - r * q),
                "feedback": to_theta * adaptation * q,
                "recurrence": to_v * (q @ w_rec.T),
            }
        return {name: part.sum(1) for name, part in parts.items()}

    def take(self, index: Tensor) -> "SpikingStep":
        w_rec, s, d, e, r, adaptation, decay_theta = self.step
        return SpikingStep(Linearised(w_rec, s[index], d[index], e[index], r[index], adaptation, decay_theta))

    @property
    def splits(self) -> bool:  # type: ignore[override]
        """Where some neuron hears few others: small circles may hold the largest eigenvalue."""
        return hears_few(self.step.w_rec)

    def known(self, right: bool, tolerance: float) -> Known:
        """Where neurons alone hold the radius."""
        return held_alone(self.step, right, tolerance)

    def factors(self, shift: Tensor) -> Factors | None:
        r"""A factorisation of an n x n matrix, also where the state has 2 n variables.

        The threshold rows are diagonal: with :math:`u = v - \vartheta` they read
        :math:`\beta s\,u + (e^{-1/\tau_\vartheta} - \lambda)\,\vartheta = b`, so (u, theta) of a
        neuron is one unknown w times a unit vector (p, q) that solves them for b = 0, and what is
        left is an n x n system in w.
        """
        w_rec, s, d, e, r, adaptation, decay_theta = (None if a is None else a.detach() for a in self.step)
        assert w_rec is not None and s is not None and d is not None and e is not None and r is not None
        s, d, e, r = s[0], d[0], e[0], r[0]
        coupling = w_rec.to(shift.dtype)
        if adaptation is None or decay_theta is None:
            return lu_factors(coupling * s + torch.diag(d - r * s - shift))
        feedback, slow = adaptation * s, decay_theta - shift
        norm = (slow.abs().square() + feedback.square()).sqrt().clamp(min=torch.finfo(s.dtype).tiny ** 0.5)
        p, q = slow / norm, -feedback / norm
        fast, cross = d - r * s - feedback - shift, d + e - decay_theta
        inner = lu_factors(coupling * (s * p) + torch.diag(fast * p + cross * q))

        def solve(rhs: Tensor) -> Tensor:
            a, b = rhs.chunk(2)
            a = a - b  # the row of v becomes that of u = v - theta
            u, theta = b * feedback / norm**2, b * slow.conj() / norm**2
            w = inner.solve(a - (fast * u + coupling @ (s * u)) - cross * theta)
            u, theta = w * p + u, w * q + theta
            return torch.cat((u + theta, theta))

        def solve_adjoint(rhs: Tensor) -> Tensor:
            a, b = rhs.chunk(2)
            b = a + b  # the adjoint of v = u + theta
            y = inner.solve_adjoint(p.conj() * a + q.conj() * b)
            a = a - fast.conj() * y - s * (coupling.mH @ y)
            b = b - cross * y
            z = (feedback * a + slow * b) / norm**2
            return torch.cat((y, z - y))

        return Factors(solve, solve_adjoint)


class Spikes(Map):
    """d z / d h of a LIF or ALIF cell: s dv, or s (dv - dtheta)."""

    splits = False

    def __init__(self, s: Tensor, threshold: bool) -> None:
        self.s, self.threshold = s, threshold
        self.rows = s.shape[1]
        self.columns = self.rows * (2 if threshold else 1)

    def times(self, x: Tensor) -> Tensor:
        if not self.threshold:
            return self.s * x
        v, theta = x.chunk(2, 1)
        return self.s * (v - theta)

    def transposed(self, y: Tensor) -> Tensor:
        return torch.cat((self.s * y, -self.s * y), 1) if self.threshold else self.s * y

    def take(self, index: Tensor) -> "Spikes":
        return Spikes(self.s[index], self.threshold)


class Weights(Map):
    """d v / d x of a LIF or ALIF cell: w_in, the same at all points."""

    same = True

    def __init__(self, weights: Tensor) -> None:
        self.weights = weights
        self.rows, self.columns = weights.shape

    @property
    def splits(self) -> bool:  # type: ignore[override]
        """As of recurrent weights."""
        return hears_few(self.weights)

    def times(self, x: Tensor) -> Tensor:
        return x @ self.weights.T

    def transposed(self, y: Tensor) -> Tensor:
        return y @ self.weights

    def take(self, index: Tensor) -> "Weights":
        return self


class Voltage(Map):
    """Where the voltage stands in the state (v, theta): dv becomes (dv, 0)."""

    same, splits = True, False

    def __init__(self, n: int) -> None:
        self.rows, self.columns = 2 * n, n

    def times(self, x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, self.columns))

    def transposed(self, y: Tensor) -> Tensor:
        return y[:, : self.columns]

    def take(self, index: Tensor) -> "Voltage":
        return self
