"""The loop on a CPU: its steps, and those back, by compiled kernels beside the products.

The same as :mod:`~neurolsc.neurons.fast.steps` and :mod:`~neurolsc.neurons.fast.carried`, rounded
alike but for sums over samples; the kernels are those of
:mod:`~neurolsc.neurons.fast.compiled_kernels`.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from neurolsc.neurons.equations import Constants
from neurolsc.neurons.fast.carried import Carried
from neurolsc.neurons.fast.compiled import kernels
from neurolsc.neurons.fast.entries import Entries, by_events, most, spikes_in, tile
from neurolsc.neurons.fast.inputs import rows_of
from neurolsc.neurons.fast.reading import Reading
from neurolsc.neurons.fast.slopes import Slopes
from neurolsc.neurons.fast.steps import Replay, Steps, Trace
from neurolsc.neurons.fast.totals import VECTORS
from neurolsc.neurons.reset import Reset


def suits(like: Tensor) -> bool:
    """Whether the kernels can run layers on the device of a tensor."""
    return like.device.type == "cpu"


def steps_of(reset: Reset, c: Constants, reading: Reading) -> Steps:
    """The steps of a layer."""
    return (StepsOnCpu if suits(c.w_rec) else Steps)(reset, c, reading)


def carried_of(like: Tensor) -> type[Carried]:
    """What carries gradients back on the device of a tensor."""
    return CarriedOnCpu if suits(like) else Carried


class StepsOnCpu(Steps):
    """The steps of a layer, which go by its spikes' events where they are few."""

    def __init__(self, reset: Reset, c: Constants, reading: Reading) -> None:
        super().__init__(reset, c, reading)
        batch, hidden = self.recurrent.shape
        sparse = by_events(c.w_rec, batch, hidden, hidden)
        # rows are added from contiguous ones; a product keeps the plain step's layout and rounding
        self.w_rec_rows = c.w_rec.detach().T.contiguous() if sparse else c.w_rec.new_empty(0, 0)
        self.most = most(batch * hidden) if sparse else -1
        self.constants = rows_of(c).detach().numpy()

    def events(self, z: Tensor) -> Entries:
        return spikes_in(z)

    def run(
        self, v: Tensor, theta: Tensor | None, before: Tensor, events: Entries | None, drive: Tensor, z: Tensor
    ) -> Entries:
        assert events is not None
        batch, steps = len(before), len(z)
        last = events.rows(len(events) - batch)
        column = np.empty(len(last.column) + z.numel() + 1, np.int32)
        start = np.empty((steps + 1) * batch + 1, np.int64)
        column[: len(last.column)], start[: batch + 1] = last.column, last.start
        fixed = None if self.c.threshold is None else _array(self.c.threshold)[None, None]
        limit = fixed if theta is None else _array(theta)
        given = (
            *(_array(v), limit, limit if fixed is None else fixed, column, start, _array(drive)),
            *(self.recurrent.numpy(), _array(self.w_rec_rows), tile(self.w_rec_rows), self.constants),
            *(self.reset.zero, theta is not None, _array(z)),
        )
        t = 0
        while t < steps:
            if start[(t + 1) * batch] - start[t * batch] <= self.most:
                now = Entries(column, start[t * batch : (t + 1) * batch + 1], None, last.width)
                now.times(self.w_rec_rows, out=self.recurrent)
            else:
                torch.mm(z[t - 1] if t else before, self.c.w_rec.T, out=self.recurrent)
            t = kernels().steps(*given, t, self.most)
        found = slice(start[batch], start[-1])
        return Entries(column[found].copy(), start[batch:] - start[batch], None, last.width)

    def thresholds(self, theta: Tensor, before: Tensor, z: Tensor) -> None:
        kernels().thresholds(_array(theta), _array(before), _array(z), self.constants)


class CarriedOnCpu(Carried):
    """The gradients by a state; in the sums over time there is one row for all samples."""

    rows = 1

    def __init__(
        self, reset: Reset, c: Constants, trace: Trace, sums: dict[str, Tensor], given: Sequence[Tensor | None]
    ) -> None:
        super().__init__(reset, c, trace, sums, given)
        self.constants, self.fixed = rows_of(c).detach().numpy(), c.threshold is not None
        self.needed = np.array([name in sums for name in VECTORS])
        self.made = np.zeros_like(self.constants)
        self.of_back, self.of_theta = self.back.numpy(), self.minus_g_theta.numpy()
        self.of_spikes, self.w_rec = [_array(z) for z in self.spikes], c.w_rec.detach()

    def block(self, slopes: Slopes, a: int, v: Tensor, theta: Tensor, made: Tensor) -> None:
        moving = theta.ndim > 1
        slopes.enter(v[1:] - (theta[1:] if moving else theta))
        v_at, theta_at, made_at = _array(v), _array(theta), made.numpy()
        for i in range(len(made), 0, -1):
            if a + i == self.steps:
                self.back.copy_(self.given[a + i])
            else:
                self._to_spikes(a + i, v_at[i], theta_at[i] if moving else theta_at[None])
            q = slopes.times_(i - 1, self.back)
            self._to_state(a + i, _array(q), made_at[i - 1])
            self.leave(a + i, made[i - 1])
        slopes.leave()

    def _to_spikes(self, k: int, v: np.ndarray, theta: np.ndarray) -> None:
        torch.mm(self.g_v, self.w_rec, out=self.back)
        kernels().to_spikes(
            *(self.of_back, _array(self.given[k]), self.g_v.numpy(), self.of_theta, v, theta),
            *(self.constants[2:3] if self.fixed else theta, self.of_spikes[k], self.constants),
            *(self.reset.zero, self.reset.gradient, self.moves, self.needed, self.made),
        )

    def _to_state(self, k: int, q: np.ndarray, out: np.ndarray) -> None:
        through = self.reset.gradient and not self.fixed and not self.reset.zero
        of_distance = bool(self.needed[2]) and not self.moves and k > 0
        kernels().to_state(
            *(q, self.g_v.numpy(), self.of_theta, self.of_spikes[k], self.constants),
            *(self.reset.zero, through, self.moves, of_distance, self.made, out),
        )

    def to_spikes(self, k: int, v: Tensor, theta: Tensor) -> Tensor:
        self._to_spikes(k, _rows(v), _rows(theta))
        return self.back

    def to_state(self, k: int, q: Tensor, out: Tensor) -> None:
        self._to_state(k, _array(q), out.numpy())
        self.leave(k, out)

    def to_start(self, replay: Replay) -> None:
        super().to_start(replay)
        for i, name in enumerate(VECTORS):
            if name in self.sums:
                self.sums[name].copy_(torch.from_numpy(self.made[i]))


def _rows(state: Tensor) -> np.ndarray:
    """A state (B, n), or what all samples share (n,), as the kernels take it."""
    return _array(state if state.ndim > 1 else state[None])


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().contiguous().numpy()
