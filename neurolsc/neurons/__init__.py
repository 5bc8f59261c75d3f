"""Cells: one recurrent layer each, as a pure step."""

from neurolsc.neurons.alif import ALIF, ALIFPlus, ALIFPlusMinus, ALIFPositive, ALIFState
from neurolsc.neurons.cell import Answer, Cell, State
from neurolsc.neurons.lif import LIF, LIFState
from neurolsc.neurons.spiking import SpikingCell

__all__ = [
    "ALIF",
    "LIF",
    "ALIFPlus",
    "ALIFPlusMinus",
    "ALIFPositive",
    "ALIFState",
    "Answer",
    "Cell",
    "LIFState",
    "SpikingCell",
    "State",
]
