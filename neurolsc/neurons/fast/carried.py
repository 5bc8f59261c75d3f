"""What the reverse pass of the loop carries from step to step, and how a step changes it."""

from collections.abc import Sequence

import torch
from torch import Tensor

from neurolsc.neurons.equations import Constants
from neurolsc.neurons.fast.resets import in_place
from neurolsc.neurons.fast.slopes import Slopes
from neurolsc.neurons.fast.steps import Replay, Trace
from neurolsc.neurons.reset import Reset


class Carried:
    """The gradients by a state, which one step hands to the one before.

    Args:
        reset: the reset.
        c: the constants.
        trace: the forward pass.
        sums: where the sums over time go that need the state of each step, by constant, each
            (rows, n_hidden).
        given: the gradients given from outside, as in
            :func:`~neurolsc.neurons.fast.reverse.reverse`.

    Attributes:
        g_v: by the voltage (B, n_hidden).
        minus_g_theta: by the threshold, times -1.
        back: by the spikes.
        rows: rows of the sums of each constant; None: one per sample.
    """

    rows: int | None = None

    def __init__(
        self, reset: Reset, c: Constants, trace: Trace, sums: dict[str, Tensor], given: Sequence[Tensor | None]
    ) -> None:
        g_z, *self.g_ends = given
        self.g_v, self.minus_g_theta, self.back, nothing = trace.z0.new_zeros(4, *trace.z0.shape).unbind(0)
        self.c, self.sums, self.reset = c, sums, in_place(reset)
        self.moves, self.ends, self.steps = trace.theta is not None, trace.ends, len(trace.z)
        self.spikes = (trace.z0, *trace.z.unbind(0))
        self.given = (nothing, *([nothing] * self.steps if g_z is None else g_z.unbind(0)))

    def block(self, slopes: Slopes, a: int, v: Tensor, theta: Tensor, made: Tensor) -> None:
        """Go back over a block of steps, from a on.

        Args:
            slopes: the way through the surrogate.
            a: steps before the block.
            v: the voltages before and after each step (steps + 1, B, n_hidden).
            theta: the thresholds likewise, or the fixed ones (n_hidden,).
            made: the gradients by the voltages after each step (steps, B, n_hidden), to be filled.
        """
        moving = theta.ndim > 1
        v_at, theta_at = v.unbind(0), theta.unbind(0) if moving else (theta,) * len(v)
        slopes.enter(v[1:] - (theta[1:] if moving else theta))
        places = made.unbind(0)
        for i in range(len(made), 0, -1):
            back = self.to_spikes(a + i, v_at[i], theta_at[i])
            self.to_state(a + i, slopes.times_(i - 1, back), places[i - 1])
        slopes.leave()

    def to_spikes(self, k: int, v: Tensor, theta: Tensor) -> Tensor:
        """The gradient by the spikes after k steps; what step k + 1 adds to the sums is added.

        It is the bracket of the first equation: what is given from outside, and what step k + 1,
        which reads these spikes, the voltage v and the threshold theta, hands back.
        """
        if k == self.steps:
            return self.back.copy_(self.given[k])
        c, back, sums, z = self.c, self.back, self.sums, self.spikes[k]
        if self.moves:
            torch.addcmul(self.given[k], self.minus_g_theta, c.adaptation, value=-1, out=back)  # type: ignore[call-overload]
        else:
            back.copy_(self.given[k])
        back.addmm_(self.g_v, c.w_rec)
        subtracted = theta if c.threshold is None else c.threshold
        self.reset.to_spikes_(back, sums.get("decay_v"), self.g_v, v, z, subtracted, c.decay_v)
        if "b_v" in sums:
            sums["b_v"].add_(self.g_v)
        if "threshold" in sums:
            self.reset.to_subtracted_(sums["threshold"], self.g_v, z, 1)
        if self.moves:
            self._sum_threshold(theta, z)
        return back

    def _sum_threshold(self, theta: Tensor, z: Tensor) -> None:
        """What a step adds to the sums of the moving threshold's constants."""
        sums, minus = self.sums, self.minus_g_theta
        if "decay_theta" in sums:
            sums["decay_theta"].addcmul_(minus, theta, value=-1)
        if "b_theta" in sums:
            sums["b_theta"].sub_(minus)
        if "adaptation" in sums:
            sums["adaptation"].addcmul_(minus, z, value=-1)

    def to_state(self, k: int, q: Tensor, out: Tensor) -> None:
        """The gradients by the state after k steps: the last two equations.

        The gradient by the voltage is written to a place of its own, where it is left for the
        weights.
        """
        c, z = self.c, self.spikes[k]
        if self.moves:
            torch.addcmul(q, self.minus_g_theta, c.decay_theta, out=self.minus_g_theta)  # type: ignore[call-overload]
            if c.threshold is None:
                self.reset.to_subtracted_(self.minus_g_theta, self.g_v, z, -1)
        elif "threshold" in self.sums and k:
            self.sums["threshold"].sub_(q)
        torch.addcmul(q, self.g_v, c.decay_v, out=out)
        self.reset.to_voltage_(out, self.g_v, z, c.decay_v)
        self.leave(k, out)

    def leave(self, k: int, g_v: Tensor) -> None:
        """Go from the state after k steps, whose gradient by the voltage is this and its end's."""
        if k in self.ends:
            self._end(self.ends[k], g_v)
        self.g_v = g_v

    def _end(self, which: slice | Tensor, g_v: Tensor) -> None:
        """Add what is given by the last state of the samples that end here."""
        by_v, by_theta = self.g_ends
        if by_v is not None:
            g_v[which] += by_v[which]
        if by_theta is not None:
            self.minus_g_theta[which] -= by_theta[which]

    def to_start(self, replay: Replay) -> None:
        """Go from the state after one step to that before it, whose spikes are given."""
        v, theta = replay.first()
        self.to_spikes(0, v, theta)
        self.to_state(0, torch.zeros_like(self.g_v), torch.empty_like(self.g_v))

    def found(self) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients by the first spikes, voltage and threshold."""
        return self.back, self.g_v, -self.minus_g_theta
