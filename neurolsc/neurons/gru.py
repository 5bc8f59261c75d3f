"""The gated recurrent unit."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from neurolsc.neurons.all_steps import by_kernel, one_by_one, read_by
from neurolsc.neurons.cell import Answer
from neurolsc.neurons.gate_maps import GatedStep, Gates, ResetBefore, ResetBeforeStep
from neurolsc.neurons.gated import KEPT, WEIGHTS, GatedCell, HiddenState
from neurolsc.neurons.registry import register


@register
class GRU(GatedCell):
    r"""Gated recurrent units.

    .. math::
        r &= \sigma(W_r x[t] + U_r h[t-1] + b_r) \\
        z &= \sigma(W_z x[t] + U_z h[t-1] + b_z) \\
        \hat h &= \tanh(W_h x[t] + U_h (r \circ h[t-1]) + b_h) \\
        h[t] &= (1 - z) \circ h[t-1] + z \circ \hat h

    Args:
        n_in: number of inputs.
        n_hidden: number of neurons.
        reset_after: False: as above, the paper's eq. 48, with one bias a gate. True: what
            ``torch.nn.GRU`` does: the reset acts after the recurrent weights, which have a bias of
            their own, :math:`r \circ (U_h h[t-1] + b'_h)` and likewise in the other gates, and z
            is the share that is kept, :math:`h[t] = z \circ h[t-1] + (1 - z) \circ \hat h`. This
            form is what the paper's Table S1 counts, and PyTorch's own kernels run it.

    Attributes:
        w_in: W of r, z and h (3 n_hidden, n_in), Glorot uniform.
        w_rec: U, likewise (3 n_hidden, n_hidden), orthogonal.
        bias: b (3 n_hidden,), zero.
        recurrent_bias: b' (3 n_hidden,), zero; None where the reset acts before.
        kept: share of the state that is kept at input and state 0 (n_hidden,): 1 - sigmoid(b_z),
            and sigmoid(b_z + b'_z) with ``reset_after``; settable, by ``bias``.

    Raises:
        ValueError: if a size is below 1.

    Example:
        >>> cell = GRU(3, 2)
        >>> z, state = cell.step(torch.ones(5, 3), cell.initial_state(5))
        >>> z.shape, cell.kept
        (torch.Size([5, 2]), tensor([0.5000, 0.5000], grad_fn=<SigmoidBackward0>))

    Source: arXiv:2308.12075, eq. 48.
    """

    answers: tuple[Answer, ...] = (*WEIGHTS, KEPT)
    recurrent_bias: nn.Parameter | None

    def __init__(self, n_in: int, n_hidden: int, *, reset_after: bool = False) -> None:
        super().__init__(n_in, n_hidden, gates=3)
        self.reset_after = reset_after
        self.register_parameter("recurrent_bias", nn.Parameter(torch.zeros(3 * n_hidden)) if reset_after else None)

    def update(self, x: Tensor, z: Tensor, state: HiddenState) -> HiddenState:
        if self.recurrent_bias is None:
            return HiddenState(self._after(linear(x, self.w_in, self.bias), z, *self._heard_by()))
        return HiddenState(torch.gru_cell(x, z, self.w_in, self.w_rec, self.bias, self.recurrent_bias))

    def _heard_by(self) -> tuple[Tensor, Tensor]:
        """U of r and z (n_hidden, 2 n_hidden), and of h, turned for products from the right."""
        both, last = self.w_rec.split_with_sizes((2 * self.n_hidden, self.n_hidden))
        return both.t(), last.t()

    def _after(self, current: Tensor, h: Tensor, by_both: Tensor, by_last: Tensor) -> Tensor:
        """The next state by equation 48, from what the input does (B, 3 n_hidden) and the state."""
        _, z, candidate = self._gates(current, h, by_both, by_last)
        if candidate.dtype != h.dtype:  # under autocast
            z, candidate = z.to(h.dtype), candidate.to(h.dtype)
        return torch.lerp(h, candidate, z)

    def _gates(self, current: Tensor, h: Tensor, by_both: Tensor, by_last: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """r, z and the candidate of equation 48."""
        both, last = current.split_with_sizes((2 * self.n_hidden, self.n_hidden), 1)
        r, z = torch.addmm(both, h, by_both).sigmoid_().chunk(2, 1)
        return r, z, torch.addmm(last, r * h, by_last).tanh_()

    @property
    def kept(self) -> Tensor:
        """Share of the state that is kept at input and state 0 (n_hidden,)."""
        own = self.bias[self._z]
        return torch.sigmoid(-own if self.recurrent_bias is None else own + self.recurrent_bias[self._z])

    @kept.setter
    def kept(self, value: Tensor) -> None:
        with torch.no_grad():
            more = torch.logit(value) - torch.logit(self.kept)
            self.bias[self._z] += more if self.reset_after else -more

    @property
    def _z(self) -> slice:
        return slice(self.n_hidden, 2 * self.n_hidden)

    def linearised(self, x: Tensor, state: HiddenState) -> GatedStep:
        h, current = state.h, linear(x, self.w_in, self.bias)
        if self.reset_after:
            heard = linear(h, self.w_rec, self.recurrent_bias)
            r, z = torch.sigmoid(current + heard)[:, : 2 * self.n_hidden].chunk(2, 1)
            last, own = (part[:, 2 * self.n_hidden :] for part in (current, heard))
            candidate = torch.tanh(last + r * own)
            of_z, of_h = (h - candidate) * z * (1 - z), (1 - z) * (1 - candidate.square())
            of_r = of_h * own * r * (1 - r)
            gates, read = (Gates(torch.stack((of_r, of_z, by), 1).unsqueeze(1)) for by in (of_h * r, of_h))
            return GatedStep(z[:, None, None], gates, self.w_rec, read)
        r, z, candidate = self._gates(current, h, *self._heard_by())
        k = torch.stack((torch.zeros_like(h), (candidate - h) * z * (1 - z), z * (1 - candidate.square())), 1)
        before = ResetBefore(k.unsqueeze(1), h * r * (1 - r), self.w_rec[2 * self.n_hidden :])
        return ResetBeforeStep((1 - z)[:, None, None], before, self.w_rec, r)

    def run(
        self,
        x: Tensor,
        state: HiddenState,
        *,
        first: Tensor | None = None,
        lengths: Tensor | None = None,
        recompute: bool = False,
    ) -> tuple[Tensor, HiddenState]:
        if recompute:
            return super().run(x, state, first=first, lengths=lengths, recompute=True)
        read = read_by(x, first, state.h.dtype)
        if self.recurrent_bias is None:
            by_both, by_last = self._heard_by()
            after = partial(self._after, by_both=by_both, by_last=by_last)
            outputs, h = one_by_one(after, linear(read, self.w_in, self.bias), state.h, lengths)
        else:
            weights = (self.w_in, self.w_rec, self.bias, self.recurrent_bias)
            outputs, (h,) = by_kernel(torch.gru, read, state, weights, lengths)
        return outputs, HiddenState(h)

    def config(self) -> dict[str, object]:
        return super().config() | {"reset_after": self.reset_after}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, reset_after={self.reset_after}"
