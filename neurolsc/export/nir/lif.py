r"""LIF as NIR's ``CubaLIF``, both ways; from other programs ``LIF``, too.

With one of its two time constants equal to dt, that node *is* our LIF:

- reset to zero, the voltage in the voltage: tau_syn = dt, w_in = 1, tau_mem = dt / (1 - a),
  r = 1 / (1 - a), v_reset = 0;
- reset by subtraction, the voltage in the current: tau_mem = dt, r = 1, tau_syn = dt / (1 - a),
  w_in = 1 / (1 - a), and minus the threshold on the diagonal of the recurrent weights.

With two longer ones and a reset to zero it is our CubaLIF: tau_syn = dt / (1 - a_i) with
w_in = 1 / (1 - a_i), and tau_mem = dt / (1 - a) with r = 1 / (1 - a).
"""

import numpy as np

from neurolsc.export.neurons import RESET_NAMES, find_reset
from neurolsc.export.nir.graph import ChainLayer
from neurolsc.export.nir.mapping import NirNeuron
from neurolsc.export.nir.nodes import CLOSE, array, check_constant, linear, load_nir, lost_share, values
from neurolsc.export.nir.voltage import check_voltage, fill, fill_tau, fill_voltage, gain, recurrent, width
from neurolsc.neurons import LIF, CubaLIF
from neurolsc.neurons.reset import ResetName, ZeroReset
from neurolsc.positive import raw

__all__ = ["NirLif"]


class NirLif(NirNeuron[LIF]):
    """LIF with any reset, CubaLIF with reset to zero."""

    word = "lif"
    starts = ("LIF", "CubaLIF")

    def check(self, layer: str, cell: LIF, layer_delay: int) -> None:
        reset = find_reset(layer, cell, RESET_NAMES)
        decays = {"tau_v": cell.decay_v}
        if isinstance(cell, CubaLIF):
            decays["tau_i"] = cell.decay_i
            if reset != "zero":
                raise ValueError(
                    f'{layer}: NIR resets a voltage to a constant; a CubaLIF needs reset="zero", got {reset!r}.'
                )
        check_voltage(layer, cell, decays, cell.theta, layer_delay)

    def check_reader(self, layer: str, cell: LIF, reader: str) -> None:
        if reader == "norse":  # reads all of them
            return
        reset = find_reset(layer, cell, RESET_NAMES)
        if reader == "snntorch" and reset != "zero":
            raise ValueError(
                f'{layer} has reset="{reset}", a recurrent connection in NIR, which snnTorch\'s reader fails on: '
                'use reset="zero".'
            )
        if reader == "snntorch" and cell.w_rec.any():
            raise ValueError(
                f"{layer} has recurrent weights up to {cell.w_rec.abs().max():.4g}, which snnTorch's reader fails "
                "on: set w_rec to 0, or read it with norse."
            )
        for name, value in (("theta", cell.theta), ("tau_v", cell.tau_v)):
            if value.min() != value.max():
                raise ValueError(
                    f"{layer} has {name} from {value.min():.4g} to {value.max():.4g}; the NIR reader of {reader} "
                    "holds one per layer."
                )

    def write(self, name: str, cell: LIF, dt: float) -> ChainLayer:
        kept = gain(cell.decay_v)
        fast, slow, one, zero = np.full_like(kept, dt), dt * kept, np.ones_like(kept), np.zeros_like(kept)
        in_voltage = isinstance(cell.reset, ZeroReset)
        if isinstance(cell, CubaLIF):
            kept_i = gain(cell.decay_i)
            constants = {"tau_syn": dt * kept_i, "w_in": kept_i, "tau_mem": slow, "r": kept}
        elif in_voltage:
            constants = {"tau_syn": fast, "w_in": one, "tau_mem": slow, "r": kept}
        else:
            constants = {"tau_syn": slow, "w_in": kept, "tau_mem": fast, "r": one}
        about = {"reset": RESET_NAMES[type(cell.reset)], raw("tau_v"): array(cell.get_parameter(raw("tau_v")))}
        if isinstance(cell, CubaLIF):
            about[raw("tau_i")] = array(cell.get_parameter(raw("tau_i")))
        node = load_nir().CubaLIF(
            **constants, v_leak=zero, v_threshold=array(cell.theta), v_reset=zero, metadata={"neurolsc": about}
        )
        loop = None if in_voltage and not cell.w_rec.any() else recurrent(cell, cell.theta)
        return ChainLayer(name, linear(cell.w_in, cell.b_v), node, loop)

    def read(self, layer: ChainLayer, dt: float) -> LIF:
        n, n_in = width(layer)
        for name in ("v_leak", "v_reset"):
            check_constant(layer.name, layer.neuron, name, 0.0, n)
        reset, lost, gained, lost_i = (_lif if hasattr(layer.neuron, "tau") else _cuba)(layer, dt, n)
        cell = (LIF if lost_i is None else CubaLIF)(n_in, n, reset=reset).to(layer.dtype)
        fill(cell.theta, values(layer.neuron, "v_threshold", (n,)))
        fill_voltage(cell, layer, lost, gained, cell.theta)
        if lost_i is not None:
            fill_tau(cell, "tau_i", lost_i, layer.about)
        return cell


Steps = tuple[ResetName, np.ndarray, np.ndarray, np.ndarray | None]
"""the reset, the share of its voltage that a step loses, what a unit of input adds to it, and the
share that a current besides loses"""


def _lif(layer: ChainLayer, dt: float, n: int) -> Steps:
    lost = lost_share(layer.name, layer.neuron, "tau", dt, n)
    return "zero", lost, lost * values(layer.neuron, "r", (n,)), None


def _cuba(layer: ChainLayer, dt: float, n: int) -> Steps:
    node = layer.neuron
    mem, syn = (lost_share(layer.name, node, name, dt, n) for name in ("tau_mem", "tau_syn"))
    gained = mem * syn * values(node, "r", (n,)) * values(node, "w_in", (n,))
    in_current, in_voltage = np.allclose(mem, 1, rtol=CLOSE), np.allclose(syn, 1, rtol=CLOSE)
    noted = str(layer.about.get("reset", "zero"))
    if in_current and (not in_voltage or noted != "zero"):
        return ("static" if noted == "static" else "subtract"), syn, gained, None
    if in_voltage:
        return "zero", mem, gained, None
    return "zero", mem, gained, syn
