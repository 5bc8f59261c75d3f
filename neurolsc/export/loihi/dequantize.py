"""What a quantised network stands for, as a float network: rounded parameters, exact states."""

import copy

import torch

from neurolsc.export.loihi.quantize import QuantizedNetwork
from neurolsc.export.loihi.table import NEURONS
from neurolsc.export.wrapped import delayed, from_wrapped
from neurolsc.network import Network

__all__ = ["dequantize"]


def dequantize(network: Network, quantized: QuantizedNetwork) -> Network:
    """The float network whose parameters are those that the integers stand for.

    Its radii are those of the exported network, and its parameters minus the original's are the
    rounding errors. Only the rounding of the states is left out.

    Args:
        network: what was quantised.
        quantized: its integers.

    Returns:
        A copy in float64.

    Example:
        >>> from neurolsc import LIF
        >>> from neurolsc.export import quantize
        >>> network = Network([LIF(3, 2, reset="zero")], n_out=2)
        >>> rounded = dequantize(network, quantize(network))
        >>> bool((rounded.cells[0].w_in - network.cells[0].w_in).abs().max() < 0.01)
        True
    """
    rounded = copy.deepcopy(delayed(from_wrapped(network))).double()
    with torch.no_grad():
        for i, (cell, layer) in enumerate(zip(rounded.cells, quantized.layers, strict=True), start=1):
            NEURONS.of(f"layer {i}", cell).restore(cell, layer)
        if not quantized.integrates:
            readout = quantized.readout[:, : rounded.cells[-1].n_hidden] / quantized.readout_scale
            rounded.readout.get_parameter("weight").copy_(readout)
    return rounded
