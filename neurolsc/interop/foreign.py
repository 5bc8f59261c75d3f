"""A recurrent layer of another library as a cell over the same parameters."""

import math
import warnings
from abc import abstractmethod
from collections import namedtuple
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor, nn

from neurolsc.modes import evaluating
from neurolsc.neurons.cell import Answer, Cell, State


class ForeignNeuronWarning(UserWarning):
    """A wrapped layer whose derivatives are not what its user may expect."""


_WITHOUT_SYNAPSES = (nn.Linear, nn.Flatten, nn.Unflatten, nn.Identity, nn.Dropout)
"""modules after which each input still reaches what it reached; a Linear is counted apart"""


@cache
def state_type(*names: str) -> type:
    """The NamedTuple of a layer's state variables."""
    return namedtuple("State", names)


@contextmanager
def borrowed(layer: nn.Module, **values: object) -> Iterator[None]:
    """Give a layer other attributes and buffers for a while; then all are as they were."""
    attributes = dict(vars(layer))
    inner = [attributes[name] for name in ("_buffers", "_memories") if name in attributes]  # the second: spikingjelly's
    before = [dict(values) for values in inner]
    try:
        for name, value in values.items():
            setattr(layer, name, value)
        yield
    finally:
        vars(layer).clear()
        vars(layer).update(attributes)
        for now, then in zip(inner, before, strict=True):
            now.clear()
            now.update(then)


class ForeignCell(Cell):
    """A recurrent layer of another library, with the modules without state before it, as a cell.

    Parameters are shared with the layer, and nothing else of it is touched: not its hidden state,
    not its flags. Between cells everything is flat, x (B, n_in) and the output (B, n_hidden);
    inside, tensors have the shapes that the modules want, such as (B, channels, height, width).

    Args:
        layer: the recurrent layer.
        before: modules without state that the input goes through first: Linear, Conv2d, pooling,
            ...
        input_shape: shape of one sample of the input.

    Attributes:
        layer: the layer itself, not a copy.
        before: the modules before it, likewise.
        input_shape: shape of one sample of the input.
        output_shape: shape of one sample of the output.
        reset_gradient: whether the layer's reset carries gradient; None where there is no reset.
        answers: what a rule may move, by name. Of a layer about whose decays nothing is known these
            are its weights only.

    Warns:
        ForeignNeuronWarning: if the next state depends neither on the state nor on the input.
    """

    reset_gradient: bool | None = None
    cause: ClassVar[str] = "nothing is known about the cause"

    def __init__(self, layer: nn.Module, before: Iterable[nn.Module], input_shape: tuple[int, ...]) -> None:
        super().__init__(math.prod(input_shape), 1)  # the width comes out of a first step
        self.layer = layer
        self.before = nn.Sequential(*before)
        self.input_shape = tuple(input_shape)
        self.answers = self.paper_answers = tuple(self.find_answers())
        with torch.no_grad(), evaluating(self):
            x = torch.zeros(1, self.n_in, **self.dtype_and_device)
            first = self.current(x)
            self.current_shape = tuple(first.shape[1:])
            state = self.first_step(first)
            self.leaf_shapes = tuple(tuple(leaf.shape[1:]) for leaf in state)
            z = self.emitted(state)
        self.output_shape = tuple(z.shape[1:])
        self.n_hidden = math.prod(self.output_shape)
        self._warn_of_cut_derivatives()

    # what a library's layers have in common is told by these
    @abstractmethod
    def find_answers(self) -> Iterable[Answer]:
        """The parameters that answer for the radii."""

    @abstractmethod
    def first_step(self, current: Tensor) -> State:
        """The state after a step from the layer's own start, whatever shapes that start has."""

    @abstractmethod
    def advance(self, current: Tensor, z: Tensor, state: State) -> State:
        """The next state from the current, the last output and the last state, in its shapes."""

    @abstractmethod
    def emitted(self, state: State) -> Tensor:
        """What the layer sends in a state, in its shape."""

    def current(self, x: Tensor) -> Tensor:
        """What the layer reads: a flat input in its shape, through the modules before."""
        return self.before(x.view(-1, *self.input_shape))

    @abstractmethod
    def initial_state(self, batch: int) -> State:
        """The state from which the layer starts."""

    def output(self, state: State) -> Tensor:
        return self.emitted(state).flatten(1)

    def update(self, x: Tensor, z: Tensor, state: State) -> State:
        return self.advance(self.current(x), z.view(-1, *self.output_shape), state)

    def dense_input(self, weights: int) -> bool:
        """Whether an input reaches every neuron once, as counts of synaptic operations assume.

        Args:
            weights: matrices of input weights that the layer itself has.
        """
        modules = [m for m in self.before.modules() if not isinstance(m, nn.Sequential)]
        linear = sum(isinstance(m, nn.Linear) for m in modules)
        return linear + weights == 1 and all(isinstance(m, _WITHOUT_SYNAPSES) for m in modules)

    def weight_before(self) -> list[Answer]:
        """The weight nearest before the layer, if any, which answers for the depth."""
        weighted = [
            name for name, m in self.before.named_modules() if isinstance(m, nn.Linear | nn.modules.conv._ConvNd)
        ]
        return [Answer(f"before.{weighted[-1]}.weight", "depth")] if weighted else []

    def pretrained(self) -> Iterable[nn.Parameter]:
        """The parameters that the answers name; biases, norms and the like stay as they are."""
        for answer in self.answers:
            path, _, name = answer.parameter.rpartition(".")
            parameter = self.get_submodule(path)._parameters.get(name)
            if parameter is not None:
                yield parameter

    def extra_repr(self) -> str:
        moved = {
            d: ", ".join(a.parameter for a in self.answers if a.radius == d) or "nothing" for d in ("time", "depth")
        }
        return f"{super().extra_repr()}, time: {moved['time']}, depth: {moved['depth']}"

    def _warn_of_cut_derivatives(self) -> None:
        # one product with a random vector shows whether a matrix is zero, at the cost of a single
        # backward pass
        generator = torch.Generator().manual_seed(0)

        def random(like: Tensor) -> Tensor:
            return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)

        with torch.enable_grad(), evaluating(self):
            start = self.initial_state(1)
            state = type(start)(*((leaf + 0.1 * random(leaf)).detach().requires_grad_() for leaf in start))
            x = random(torch.empty(1, self.n_in, **self.dtype_and_device)).requires_grad_()
            after = self.update(x, self.output(state), state)
            product = torch.stack([(leaf * random(leaf)).sum() for leaf in after]).sum()
            by_x, *by_state = torch.autograd.grad(product, (x, *state), allow_unused=True, materialize_grads=True)
        for what, gradients in (("state", by_state), ("input", [by_x])):
            if not any(g.any() for g in gradients):
                warnings.warn(
                    f"{type(self.layer).__name__}: the derivative of the next state by the {what} is identically zero "
                    f"({self.cause}); no pre-training can move its radius.",
                    ForeignNeuronWarning,
                    stacklevel=4,
                )
