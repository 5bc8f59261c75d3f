"""The simple recurrent layer."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from neurolsc.neurons.activations import activation as named
from neurolsc.neurons.all_steps import by_kernel, one_by_one, read_by
from neurolsc.neurons.gate_maps import GatedStep, Gates
from neurolsc.neurons.gated import GatedCell, HiddenState
from neurolsc.neurons.registry import register

_KERNELS = {"relu": torch.rnn_relu, "tanh": torch.rnn_tanh}


@register
class RNN(GatedCell):
    r"""A fully connected recurrent layer.

    .. math:: h[t] = a(W_{rec}\, h[t-1] + W_{in}\, x[t] + b)

    Args:
        n_in: number of inputs.
        n_hidden: number of neurons.
        activation: a, by name (:data:`neurolsc.neurons.activations.ACTIVATIONS`); the paper's are
            ``"relu"`` and ``"sigmoid"``, and ``"swish"`` on words.

    Attributes:
        w_in: input weights (n_hidden, n_in), Glorot uniform.
        w_rec: recurrent weights (n_hidden, n_hidden), orthogonal.
        bias: (n_hidden,), Glorot uniform, "to make sure the neurons are not off when the input is
            zero": within :math:`\sqrt{3 / n_{hidden}}`.

    Raises:
        ValueError: if a size is below 1, or the activation is not known.

    Example:
        >>> cell = RNN(3, 2)
        >>> z, state = cell.step(torch.ones(5, 3), cell.initial_state(5))
        >>> torch.equal(z, state.h), z.shape
        (True, torch.Size([5, 2]))

    Source: arXiv:2308.12075, Sec. II-E and App. H.
    """

    def __init__(self, n_in: int, n_hidden: int, *, activation: str = "relu") -> None:
        super().__init__(n_in, n_hidden)
        self.activation = activation
        self._a = named(activation)
        bound = math.sqrt(3 / n_hidden)  # fan in and fan out of a vector are both its length
        nn.init.uniform_(self.bias, -bound, bound)

    def update(self, x: Tensor, z: Tensor, state: HiddenState) -> HiddenState:
        return HiddenState(self._after(linear(x, self.w_in, self.bias), z))

    def _after(self, current: Tensor, h: Tensor) -> Tensor:
        """The next state, from what the input does (B, n_hidden) and the state."""
        return self._a.value(torch.addmm(current, h, self.w_rec.T))

    def linearised(self, x: Tensor, state: HiddenState) -> GatedStep:
        slope = self._a.slope(torch.addmm(linear(x, self.w_in, self.bias), state.h, self.w_rec.T))[:, None, None]
        return GatedStep(torch.zeros_like(slope), Gates(slope), self.w_rec)

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
        if self.activation in _KERNELS:
            weights = (self.w_in, self.w_rec, self.bias, torch.zeros_like(self.bias))
            outputs, (h,) = by_kernel(_KERNELS[self.activation], read, state, weights, lengths)
            return outputs, HiddenState(h)
        outputs, h = one_by_one(self._after, linear(read, self.w_in, self.bias), state.h, lengths)
        return outputs, HiddenState(h)

    def config(self) -> dict[str, object]:
        return super().config() | {"activation": self.activation}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation!r}"
