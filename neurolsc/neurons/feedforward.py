"""The feed-forward layer: no memory, depth alone."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from neurolsc.eigen.maps import Map
from neurolsc.neurons.activations import activation as named
from neurolsc.neurons.all_steps import last_of, read_by
from neurolsc.neurons.cell import Answer, Cell
from neurolsc.neurons.derivatives import Derivatives, Term
from neurolsc.neurons.gate_maps import First, Scaled
from neurolsc.neurons.gated import HiddenState
from neurolsc.neurons.linear_maps import Weights
from neurolsc.neurons.registry import register


@register
class FeedForward(Cell):
    r"""A fully connected layer without memory.

    .. math:: h[t] = a(W x[t] + b)

    Its radius through time is 0 and nothing moves it: pre-train with ``target=Along(1.0, "depth")``
    (:class:`neurolsc.stability.lsc.targets.Along`). A network of it sees an image in one step, x
    (1, B, n_in), with ``layer_delay=0``.

    Args:
        n_in: number of inputs.
        n_hidden: number of neurons.
        activation: a, by name (:data:`neurolsc.neurons.activations.ACTIVATIONS`); the paper's are
            ``"relu"``, ``"sine"`` and ``"cosine"``.

    Attributes:
        w_in: W (n_hidden, n_in), Glorot uniform.
        bias: b (n_hidden,), zero.

    Raises:
        ValueError: if a size is below 1, or the activation is not known.

    Example:
        >>> from neurolsc import Network
        >>> network = Network([FeedForward(784, 32), FeedForward(32, 32)], 10, layer_delay=0)
        >>> network(torch.rand(1, 5, 784)).shape
        torch.Size([1, 5, 10])

    Source: arXiv:2308.12075, Sec. II-E.
    """

    answers = (Answer("w_in", "depth"),)
    paper_answers = answers

    def __init__(self, n_in: int, n_hidden: int, *, activation: str = "relu") -> None:
        super().__init__(n_in, n_hidden)
        self.activation = activation
        self._a = named(activation)
        self.w_in = nn.Parameter(nn.init.xavier_uniform_(torch.empty(n_hidden, n_in)))
        self.bias = nn.Parameter(torch.zeros(n_hidden))

    def initial_state(self, batch: int) -> HiddenState:
        """All zero; the first step forgets it."""
        return HiddenState(torch.zeros(batch, self.n_hidden, **self.dtype_and_device))

    def output(self, state: HiddenState) -> Tensor:
        return state.h

    def update(self, x: Tensor, z: Tensor, state: HiddenState) -> HiddenState:
        return HiddenState(self._a.value(linear(x, self.w_in, self.bias)))

    def slope(self, x: Tensor) -> Tensor:
        """a' at inputs (P, n_in), (P, n_hidden)."""
        return self._a.slope(linear(x, self.w_in, self.bias))

    def derivatives(self) -> Derivatives:
        return _FeedForwardDerivatives(self)

    def run(
        self,
        x: Tensor,
        state: HiddenState,
        *,
        first: Tensor | None = None,
        lengths: Tensor | None = None,
        recompute: bool = False,
    ) -> tuple[Tensor, HiddenState]:
        outputs = self._a.value(linear(read_by(x, first, state.h.dtype), self.w_in, self.bias))
        return outputs, HiddenState(last_of(outputs, state.h, lengths))

    def config(self) -> dict[str, object]:
        return super().config() | {"activation": self.activation}

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, activation={self.activation!r}"


_NOTHING = Term("nothing", "it has no memory", "it has no memory: take target=Along(radius, 'depth')", "#999999")


class _FeedForwardDerivatives(Derivatives):
    """The derivatives of a layer without memory."""

    terms = (_NOTHING,)
    reads_input = False  # by the state

    def __init__(self, cell: FeedForward) -> None:
        self.cell = cell

    def by_state(self, x: Tensor, state: HiddenState) -> dict[str, Tensor]:
        n = self.cell.n_hidden
        return {"nothing": state.h.new_zeros(len(state.h), n, n)}

    def by_input(self, x: Tensor, state: HiddenState) -> Tensor:
        return self.cell.slope(x).unsqueeze(2) * self.cell.w_in

    def of_output(self, state: HiddenState) -> Tensor:
        n = self.cell.n_hidden
        return torch.eye(n, dtype=state.h.dtype, device=state.h.device).unsqueeze(0)

    def input_maps(self, x: Tensor, state: HiddenState) -> Sequence[Map]:
        return [Weights(self.cell.w_in), Scaled(self.cell.slope(x))]

    def output_maps(self, state: HiddenState) -> Sequence[Map]:
        return [First(self.cell.n_hidden, self.cell.n_hidden)]
