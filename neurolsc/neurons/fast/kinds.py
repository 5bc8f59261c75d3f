"""The kinds of other libraries' neurons that the kernels know, and numbers for their resets and derivatives."""

from dataclasses import dataclass
from typing import Any, NamedTuple

# Formulas of the derivative of a spike by its voltage, each with one number a.
GIVEN, NOTHING, ATAN, FAST_SIGMOID, SIGMOID, SIGN, QUADRATIC = range(7)

# Resets, numbered as snnTorch does. ZERO sets the voltage to 0, or to the neuron's reset value. In Leaky, ZERO does so
# before the input of the step is added, and ALL after it. The other neurons have no ALL: their ZERO is after the input.
SUBTRACT, ZERO, NONE, ALL = range(4)

# What a step adds to a voltage: as norse's LIFBox; spikingjelly's LIF with decay_input, and without it; its IFNode.
BOX, LEAK_OF_ALL, LEAK_OF_STATE, NO_LEAK = range(4)


class Slope(NamedTuple):
    """The derivative of a spike by its distance from the threshold, voltage - threshold."""

    kind: int  # a formula of the kernels, such as ATAN; GIVEN: by `derivative`
    a: float = 1.0  # the number in the formula
    derivative: Any = None  # a function of the distances (T, M); None: a formula, or, if GIVEN, zero everywhere


@dataclass(frozen=True)
class Neuron:
    """A kind of neuron that the kernels know.

    Attributes:
        name: name of its kernel in `snntorch_kernels` or `reset_kernels`.
        states: number of its states.
        voltage: index of the state that its spikes follow.
        threshold: index of its threshold among its parameters.
        flags: the settings of its kernel, such as the reset, in the kernel's order.
        saves_voltage: True if a spike resets the voltage within its own step. The voltage before the reset is then
            saved, since the state does not hold it.
    """

    name: str
    states: int
    voltage: int
    threshold: int
    flags: tuple[Any, ...]
    saves_voltage: bool

    @property
    def divides(self) -> bool:
        """True if the first of its parameters is a time constant, by which the kernel divides."""
        return self.name == "voltage_lif" and self.flags[1]
