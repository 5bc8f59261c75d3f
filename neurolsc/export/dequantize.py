"""What a quantised network stands for, as a float network: rounded parameters, exact states."""

import copy

import torch
from torch import Tensor

from neurolsc.export.fixed_point import UNIT, AlifLayer, CubaLayer
from neurolsc.export.quantize import QuantizedNetwork
from neurolsc.network import Network
from neurolsc.neurons import LIF
from neurolsc.neurons.alif import ALIF
from neurolsc.neurons.positive import set_value

__all__ = ["dequantize"]


def dequantize(network: Network, quantized: QuantizedNetwork) -> Network:
    """The float network whose parameters are those that the integers stand for.

    Its radii are those of the exported network, and its parameters minus the original's are the rounding errors. Only the rounding
    of the states is left out.

    Args:
        network: what was quantised.
        quantized: its integers.

    Returns:
        A copy in float64.

    Example:
        >>> from neurolsc.export import quantize
        >>> network = Network([LIF(3, 2, reset="zero")], n_out=2)
        >>> rounded = dequantize(network, quantize(network))
        >>> bool((rounded.cells[0].w_in - network.cells[0].w_in).abs().max() < 0.01)
        True
    """
    rounded = copy.deepcopy(network).double()
    with torch.no_grad():
        for cell, layer in zip(rounded.cells, quantized.layers, strict=True):
            if isinstance(layer, AlifLayer):
                assert isinstance(cell, ALIF)
                _alif(cell, layer)
            else:
                assert isinstance(cell, LIF)
                _lif(cell, layer)
        readout = quantized.readout[:, : rounded.cells[-1].n_hidden] / quantized.readout_scale
        rounded.readout.get_parameter("weight").copy_(readout)
    return rounded


def _lif(cell: LIF, layer: CubaLayer) -> None:
    n, m = cell.n_in, cell.n_hidden
    scale = layer.unit[:m] / UNIT
    rows = scale.unsqueeze(1)
    rec = torch.zeros_like(cell.w_rec) if layer.weight_rec is None else layer.weight_rec
    cell.theta.copy_(layer.threshold[:m] / scale)
    cell.w_in.copy_(layer.weight[:m, :n] / rows)
    cell.w_rec.copy_(rec[:m, :m] / rows)
    if cell.reset_name == "zero":
        cell.b_v.copy_(layer.bias / scale)
        cell.tau_v = _tau(layer.v_decay)
        return
    cell.w_rec.add_(torch.diag(cell.theta))
    cell.b_v.copy_(rec[:m, m:].sum(1) / scale)
    cell.tau_v = _tau(layer.i_decay[:m])


def _alif(cell: ALIF, layer: AlifLayer) -> None:
    scale = layer.unit / UNIT
    rows = scale.unsqueeze(1)
    cell.w_in.copy_(layer.weight[:, : cell.n_in] * 2**layer.weight_exp / rows)
    cell.w_rec.copy_(layer.weight_rec * 2**layer.weight_rec_exp / rows)
    cell.b_v.copy_(layer.bias * 2**layer.bias_exp / layer.unit)
    cell.tau_v = _tau(layer.v_decay)
    cell.tau_theta = _tau(layer.theta_decay)
    cell.theta_rest = layer.threshold / scale
    set_value(cell, "adaptation", layer.theta_step * (1 - layer.theta_decay / 4096) / scale)


def _tau(decay: Tensor) -> Tensor:
    """Time constants in steps; no memory at all, 4096, is 0.05 steps, of which e^-20 is left after one."""
    return -1 / (1 - decay / 4096).clamp(min=2e-9).log()
