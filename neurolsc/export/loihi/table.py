"""The neurons that the chip's integers know, and what holds for all of them."""

from typing import Any

import torch
from torch import Tensor

from neurolsc.export.loihi.alif import LoihiAlif
from neurolsc.export.loihi.fixed_point import UNIT, IntegerLayer
from neurolsc.export.loihi.lif import LoihiLi, LoihiLif
from neurolsc.export.loihi.mapping import LoihiNeuron
from neurolsc.export.loihi.rounding import LONGEST, check_matrix, decay_bits
from neurolsc.export.neurons import Neurons
from neurolsc.neurons import ALIF, LI, LIF, Cell, CubaLIF

__all__ = ["NEURONS", "integer_layer"]

NEURONS = Neurons[LoihiNeuron[Any]](
    "exported to Loihi's integers", {LIF: LoihiLif(), CubaLIF: LoihiLif(), ALIF: LoihiAlif(), LI: LoihiLi()}
)
"""class that defines the step -> its mapping; your own neuron is one entry more"""


def integer_layer(name: str, cell: Cell, force: bool, halvings: int = 0) -> tuple[IntegerLayer, list[str]]:
    """The integers of a cell, and remarks on them.

    Arguments and errors are those of :func:`neurolsc.export.quantize`.
    """
    neuron = NEURONS.of(name, cell)
    tau = neuron.floats(cell).tau_v.detach().double()
    kept = torch.exp(-1 / tau)
    if (kept > LONGEST).any():
        raise ValueError(f"{name}: tau_v is {tau.max():g} steps, but a decay has 12 bits, for at most 4096 steps.")
    layer = neuron.integers(name, cell, force=force, halvings=halvings)
    check_matrix(name, *(w for w in (layer.weight, layer.weight_rec) if w is not None))
    return layer, [f"{name}: {remark}" for remark in _remarks(layer, tau, decay_bits(kept), neuron.leak(cell, layer))]


def _remarks(layer: IntegerLayer, tau: Tensor, wanted: Tensor, leak: Tensor) -> list[str]:
    """What is worth knowing but no error; the decays that were wanted, and those that are."""
    remarks = []
    if wanted.min() != wanted.max():
        remarks.append(
            "decays differ between neurons; the simulator takes them, the file format documents one per layer."
        )
    if wanted.max() == 4096 and leak.max() < 4096:
        remarks.append("a voltage without memory keeps 1/4096 of itself (vDecay 4095, the largest).")
    if layer.taken is not None:
        off = ((layer.taken - layer.threshold) / layer.threshold).abs().max().item()
        if off > 0.05:
            remarks.append(
                f"resting thresholds differ so much that 8 bits leave a reset {off:.0%} beside its threshold."
            )
    lost, units = tau.max().item() / UNIT, int(layer.threshold.min())
    if lost > 0.02 * units:
        remarks.append(
            f"at tau_v = {tau.max():.0f} steps rounding loses up to {lost:.1f} of the threshold's {units} units."
        )
    return remarks
