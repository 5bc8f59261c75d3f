"""The neurons that can be written to NIR, and the nodes that can be read from it."""

from typing import Any

from neurolsc.export.neurons import Neurons
from neurolsc.export.nir.alif import NirAlif, NirLi
from neurolsc.export.nir.lif import NirLif
from neurolsc.export.nir.mapping import NirNeuron
from neurolsc.neurons import ALIF, LI, LIF, CubaLIF

__all__ = ["NEURONS"]

NEURONS = Neurons[NirNeuron[Any]]("written to NIR", {LIF: NirLif(), CubaLIF: NirLif(), ALIF: NirAlif(), LI: NirLi()})
"""class that defines the step -> its mapping; your own neuron is one entry more"""
