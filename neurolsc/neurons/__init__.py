"""Cells: one recurrent layer each, as a pure step, and what a cell says about that step.

Map: `cell` is what every cell has, the guard of its closed forms, and the table of names. `spiking` has eq. 49: its
reset, LIF and ALIF; `variants` a LIF with a synaptic current, an integrator and the ALIF of the paper's code. `rate`
has the cells that send numbers (feed-forward, RNN, GRU, LSTM), `lru` the LRU. `derivatives` has closed forms as linear
operators, `spiking_derivatives` those of LIF and ALIF. `fast/` runs LIF and ALIF over all steps at once.
"""

from neurolsc.neurons.cell import Cell, Membrane, ScaledParameter, State, Thresholds, register
from neurolsc.neurons.derivatives import Derivatives, StepMap, Term
from neurolsc.neurons.lru import LRU, LRUState
from neurolsc.neurons.rate import GRU, LSTM, RNN, FeedForward, HiddenState, LSTMState
from neurolsc.neurons.spiking import (
    ALIF,
    LIF,
    ALIFPlus,
    ALIFPlusMinus,
    ALIFPositive,
    ALIFState,
    LIFState,
    SpikingCell,
)
from neurolsc.neurons.variants import LI, ALIFLowPass, CubaLIF
from neurolsc.validation import LogParameter

__all__ = [
    "ALIF", "GRU", "LI", "LIF", "LRU", "LSTM", "RNN", "ALIFLowPass", "ALIFPlus", "ALIFPlusMinus", "ALIFPositive",
    "ALIFState", "Cell", "CubaLIF", "Derivatives", "FeedForward", "HiddenState", "LIFState", "LRUState",
    "LSTMState", "LogParameter", "Membrane", "ScaledParameter", "SpikingCell", "State", "StepMap", "Term",
    "Thresholds", "register",
]  # fmt: skip
