"""Cells: one recurrent layer each, as a pure step, and what others may ask about it.

Map: `cell` is what all have, `offers` what a subclass keeps of what its base says about its step,
and `registry` the table of names. `derivatives`, `thresholds` and `membrane` are kinds of offers;
`synapses` are the matrices that a cell names in its answers. `spiking` is what spiking cells share
(`reset`); `lif` and `alif` are the cells of eq. 49 (`equations`), and `cuba` is a LIF with a
current, and an integrator that never fires. Their offers stand in `leaky`: derivatives from
`linearised`, as products in `linear_maps`, with what each neuron does `alone`; and the run over all
steps at once in `scan/`. `alif_low_pass` is the cell of the paper's released code.

The paper's other cells send numbers: `feedforward`, `rnn`, `gru` and `lstm` (what these three share
is `gated`, with derivatives in `gate_maps`), and `lru` with `lru_maps`, whose run is a
`linear_scan`. `activations` are theirs, and `all_steps` has the kernels of PyTorch that run them.
"""

from neurolsc.neurons.alif import ALIF, ALIFPlus, ALIFPlusMinus, ALIFPositive, ALIFState
from neurolsc.neurons.alif_low_pass import ALIFLowPass
from neurolsc.neurons.cell import Answer, Cell, State
from neurolsc.neurons.cuba import LI, CubaLIF
from neurolsc.neurons.derivatives import Derivatives, StepMap, Term
from neurolsc.neurons.feedforward import FeedForward
from neurolsc.neurons.gated import HiddenState
from neurolsc.neurons.gru import GRU
from neurolsc.neurons.lif import LIF, LIFState
from neurolsc.neurons.lru import LRU, LRUState
from neurolsc.neurons.lstm import LSTM, LSTMState
from neurolsc.neurons.membrane import Membrane
from neurolsc.neurons.registry import register
from neurolsc.neurons.rnn import RNN
from neurolsc.neurons.spiking import SpikingCell
from neurolsc.neurons.thresholds import Thresholds
from neurolsc.positive import Positive

__all__ = [
    "ALIF",
    "GRU",
    "LI",
    "LIF",
    "LRU",
    "LSTM",
    "RNN",
    "ALIFLowPass",
    "ALIFPlus",
    "ALIFPlusMinus",
    "ALIFPositive",
    "ALIFState",
    "Answer",
    "Cell",
    "CubaLIF",
    "Derivatives",
    "FeedForward",
    "HiddenState",
    "LIFState",
    "LRUState",
    "LSTMState",
    "Membrane",
    "Positive",
    "SpikingCell",
    "State",
    "StepMap",
    "Term",
    "Thresholds",
    "register",
]
