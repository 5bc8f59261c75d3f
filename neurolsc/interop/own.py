"""A cell of ours inside somebody's network, with the modules before it."""

import dataclasses
from collections.abc import Iterable

from torch import Tensor, nn

from neurolsc.interop.foreign import ForeignCell
from neurolsc.neurons.cell import Answer, Cell, Membrane, State, Thresholds


class PrecededCell(ForeignCell):
    """A cell of ours, with the modules without state that its input goes through first.

    Its own input weights answer for the depth; a Linear before it stays as it is.
    """

    layer: Cell  # type: ignore[assignment]

    def find_answers(self) -> Iterable[Answer]:
        """Those of the cell."""
        return [dataclasses.replace(answer, parameter=f"layer.{answer.parameter}") for answer in self.layer.answers]

    def thresholds(self) -> Thresholds | None:
        """Those of the cell."""
        return self.layer.thresholds()

    def membrane(self) -> Membrane | None:
        """That of the cell."""
        return self.layer.membrane()

    def gains(self) -> dict[str, float]:
        """Those of the cell."""
        return {f"layer.{name}": gain for name, gain in self.layer.gains().items()}

    @property
    def recurrent_synapses(self) -> int | None:  # type: ignore[override]
        """Those of the cell; None where the modules before it have synapses, too."""
        return self.layer.recurrent_synapses if self.dense_input(weights=1) else None

    def initial_state(self, batch: int) -> State:
        return self.layer.initial_state(batch)

    def first_step(self, current: Tensor) -> State:
        state = self.layer.initial_state(len(current))
        return self.layer.update(current, self.layer.output(state), state)

    def advance(self, current: Tensor, z: Tensor, state: State) -> State:
        return self.layer.update(current, z, state)

    def emitted(self, state: State) -> Tensor:
        return self.layer.output(state)


def own_cell(layer: Cell, before: list[nn.Module], input_shape: tuple[int, ...]) -> Cell:
    """The cell itself, with its closed form, unless there are modules before it."""
    if before or input_shape != (layer.n_in,):
        return PrecededCell(layer, before, input_shape)
    return layer
