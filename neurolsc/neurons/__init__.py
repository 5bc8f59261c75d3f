"""Cells: one recurrent layer each, as a pure step, and what a cell says about that step.

Map: `cell` is what every cell has, the guard of its closed forms, and the table of names; `parameters` sets parameters
of any module; `weights` finds a cell's weight matrices, and says which of its parameters are frozen. `spiking` has eq.
49: its reset, LIF and ALIF; `variants` a LIF with a synaptic current, an integrator, the ALIF of the paper's code, PLIF
and TC-LIF; `adaptive` EF-adLIF, SE-adLIF, RadLIF and SiLIF; `resonate` resonate-and-fire. All of these but the
integrator are built on `blocks`, which differentiates any neuron of a few variables; `neuronwise` has the derivatives
of layers whose neurons do not read each other. `rate` has the cells that send numbers (feed-forward, RNN, GRU, LSTM),
`lru` the LRU, and its recurrence alone. `derivatives` has closed forms as linear operators. `fast/` runs LIF, ALIF and
neurons of other libraries over all steps at once.
"""

from neurolsc.neurons.adaptive import AdLIFState, EFAdLIF, RadLIF, SEAdLIF
from neurolsc.neurons.blocks import NeuronCell
from neurolsc.neurons.cell import Bound, Cell, Membrane, ScaledParameter, State, Thresholds, register
from neurolsc.neurons.derivatives import Derivatives, StepMap, Term
from neurolsc.neurons.lru import LRU, DiagonalRNN, LRUState
from neurolsc.neurons.parameters import LogParameter
from neurolsc.neurons.rate import GRU, LSTM, RNN, FeedForward, HiddenState, LSTMState
from neurolsc.neurons.resonate import BRF, RF, BRFState, ExactRF, ResonatorState
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
from neurolsc.neurons.variants import LI, PLIF, TCLIF, ALIFLowPass, CubaLIF, TCLIFState

__all__ = [
    "ALIF", "BRF", "GRU", "LI", "LIF", "LRU", "LSTM", "PLIF", "RF", "RNN", "TCLIF", "ALIFLowPass", "ALIFPlus",
    "ALIFPlusMinus", "ALIFPositive", "ALIFState", "AdLIFState", "BRFState", "Bound", "Cell", "CubaLIF",
    "Derivatives", "DiagonalRNN", "EFAdLIF", "ExactRF", "FeedForward", "HiddenState", "LIFState", "LRUState",
    "LSTMState", "LogParameter", "Membrane", "NeuronCell", "RadLIF", "ResonatorState", "SEAdLIF", "ScaledParameter",
    "SpikingCell", "State", "StepMap", "TCLIFState", "Term", "Thresholds", "register",
]  # fmt: skip
