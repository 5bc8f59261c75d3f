"""Cells: one recurrent layer each, as a pure step."""

from neurolsc.neurons.alif import ALIF, ALIFPlus, ALIFPlusMinus, ALIFPositive, ALIFState
from neurolsc.neurons.cell import Answer, Cell, State
from neurolsc.neurons.derivatives import Derivatives, StepMap, Term
from neurolsc.neurons.lif import LIF, LIFState
from neurolsc.neurons.positive import Positive
from neurolsc.neurons.registry import register
from neurolsc.neurons.spiking import SpikingCell
from neurolsc.neurons.thresholds import Thresholds

__all__ = [
    "ALIF",
    "LIF",
    "ALIFPlus",
    "ALIFPlusMinus",
    "ALIFPositive",
    "ALIFState",
    "Answer",
    "Cell",
    "Derivatives",
    "LIFState",
    "Positive",
    "SpikingCell",
    "State",
    "StepMap",
    "Term",
    "Thresholds",
    "register",
]
