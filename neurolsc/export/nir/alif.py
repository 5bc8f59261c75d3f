r"""ALIF with a static reset as a sub-graph of NIR's own primitives, and LI as one, both ways.

With A the rise of the threshold above its rest,

.. math::
    v[t] &= a\, v[t-1] + W_{in} x[t] + b_v + (W_{rec} - \mathrm{diag}\,\vartheta_0)\, z[t-1] \\
    -A[t] &= -a_\vartheta A[t-1] - \beta z[t-1], \quad z[t] = H(v[t] - A[t] - \vartheta_0)

are a leaky integrator ``LI`` each for v and for -A, summed in a ``Threshold``. Our LI, the readout,
is a ``CubaLI`` with tau_syn = dt / (1 - a_i), w_in = 1 / (1 - a_i), tau_mem = dt / (1 - a) and
r = 1 / (1 - a), without a current an ``LI``; it is the last node before the output.
"""

from typing import Any

import numpy as np
import torch

from neurolsc.export.neurons import RESET_NAMES, find_reset
from neurolsc.export.nir.graph import ChainLayer, Walk
from neurolsc.export.nir.mapping import NirNeuron
from neurolsc.export.nir.nodes import array, check_constant, linear, load_nir, lost_share, values
from neurolsc.export.nir.voltage import agree, check_voltage, fill, fill_tau, fill_voltage, gain, recurrent, width
from neurolsc.neurons import ALIF, LI, ALIFPlus, SpikingCell
from neurolsc.neurons.cell import CELLS, step_of
from neurolsc.neurons.reset import StaticReset
from neurolsc.positive import raw, set_value

__all__ = ["NirAlif", "NirLi"]


class NirAlif(NirNeuron[ALIF]):
    """ALIF with ``reset="static"``."""

    word = "alif"
    starts = ()  # an LI, which NirLi hands over

    def check(self, layer: str, cell: ALIF, layer_delay: int) -> None:
        if type(cell.reset) is not StaticReset:
            name = find_reset(layer, cell, RESET_NAMES)
            raise ValueError(
                f"{layer}: NIR cannot say an ALIF with reset={name!r}, as its nodes reset to a constant: "
                'train with reset="static", or keep the network with neurolsc.save.'
            )
        decays = {"tau_v": cell.decay_v, "tau_theta": cell.decay_theta}
        check_voltage(layer, cell, decays, cell.theta_rest, layer_delay)

    def check_reader(self, layer: str, cell: ALIF, reader: str) -> None:
        raise ValueError(
            f"{layer} is an ALIF, whose sub-graph of LI and Threshold nodes the NIR reader of {reader} cannot hold: "
            "read it with neurolsc.export.from_nir, or use LIF."
        )

    def write(self, name: str, cell: ALIF, dt: float) -> ChainLayer:
        nir = load_nir()
        size = np.array([cell.n_hidden])
        kept, kept_theta = gain(cell.decay_v), gain(cell.decay_theta)
        zero = np.zeros_like(kept)
        nodes = {
            "input": nir.Input(size),
            "membrane": nir.LI(tau=dt * kept, r=kept, v_leak=zero),
            "adaptation": nir.LI(tau=dt * kept_theta, r=-array(cell.adaptation) * kept_theta, v_leak=zero),
            "threshold": nir.Threshold(array(cell.theta_rest)),
            "w_rec": recurrent(cell, cell.theta_rest),
            "output": nir.Output(size),
        }
        edges = [
            ("input", "membrane"),
            ("membrane", "threshold"),
            ("adaptation", "threshold"),
            ("threshold", "adaptation"),
            ("threshold", "w_rec"),
            ("w_rec", "membrane"),
            ("threshold", "output"),
        ]
        about: dict[str, Any] = {"cell": type(cell).__name__}
        for quantity in ("tau_v", "tau_theta", "b_theta", "adaptation"):
            stored = _stored(cell, quantity)
            about[stored] = array(cell.get_parameter(stored))
        graph = nir.NIRGraph(nodes, edges, metadata={"neurolsc": about})
        return ChainLayer(name, linear(cell.w_in, cell.b_v), graph)

    def inside(self, walk: Walk, start: str) -> tuple[str, dict[str, str]]:
        threshold = walk.only(f"node after {walk.named(start)}", walk.after(start))
        walk.expect(threshold, ("Threshold",))
        others = walk.before(threshold) - {start}
        adaptation = walk.only(f"node beside {walk.named(start)} before {walk.named(threshold)}", others)
        walk.expect(adaptation, ("LI",))
        walk.expect_loop(threshold, adaptation, threshold)
        return threshold, {"adaptation": adaptation, "threshold": threshold}

    def read(self, layer: ChainLayer, dt: float) -> ALIF:
        n, n_in = width(layer)
        adaptation, threshold = layer.parts["adaptation"], layer.parts["threshold"]
        for node in (layer.neuron, adaptation):
            check_constant(layer.name, node, "v_leak", 0.0, n)
        lost = lost_share(layer.name, layer.neuron, "tau", dt, n)
        kind = _class(str(layer.about.get("cell")))
        cell = kind(n_in, n, reset="static").to(layer.dtype)
        lost_theta = lost_share(layer.name, adaptation, "tau", dt, n)
        fill_tau(cell, "tau_theta", lost_theta, layer.about)
        set_value(cell, "adaptation", torch.tensor(-lost_theta * values(adaptation, "r", (n,))))
        cell.theta_rest = torch.tensor(values(threshold, "threshold", (n,)))
        for quantity, said in (("adaptation", "adaptation"), ("b_theta", "theta_rest")):
            _prefer_noted(cell, quantity, said, layer.about)
        fill_voltage(cell, layer, lost, lost * values(layer.neuron, "r", (n,)), cell.theta_rest)
        return cell


class NirLi(NirNeuron[LI]):
    """A leaky integrator as the readout."""

    word = "li"
    starts = ("LI", "CubaLI")

    def check(self, layer: str, cell: LI, layer_delay: int) -> None:
        decays = {"tau_v": cell.decay_v, "tau_i": cell.decay_i}
        check_voltage(layer, cell, decays, torch.ones(1), layer_delay)

    def check_reader(self, layer: str, cell: LI, reader: str) -> None:
        raise ValueError(f"{layer} is an LI, and the NIR reader of {reader} knows no node LI or CubaLI.")

    def write(self, name: str, cell: LI, dt: float) -> ChainLayer:
        nir = load_nir()
        kept, kept_i = gain(cell.decay_v), gain(cell.decay_i)
        about = {raw(tau): array(cell.get_parameter(raw(tau))) for tau in ("tau_v", "tau_i")}
        rest: dict[str, Any] = {"r": kept, "v_leak": np.zeros_like(kept), "metadata": {"neurolsc": about}}
        if (kept_i == 1).all():
            node = nir.LI(tau=dt * kept, **rest)
        else:
            node = nir.CubaLI(tau_mem=dt * kept, tau_syn=dt * kept_i, w_in=kept_i, **rest)
        return ChainLayer(name, linear(cell.w_in, cell.b_v), node)

    def inside(self, walk: Walk, start: str) -> tuple[str, dict[str, str]]:
        if walk.after(start) == {walk.output}:
            return start, {}
        if type(walk.nodes[start]).__name__ == "LI":
            return NirAlif().inside(walk, start)
        raise ValueError(f"{walk.named(start)} sends a voltage: it can only stand before the output.")

    def read(self, layer: ChainLayer, dt: float) -> ALIF | LI:
        if layer.parts:
            return NirAlif().read(layer, dt)
        n, n_in = width(layer)
        node, cuba = layer.neuron, hasattr(layer.neuron, "tau_syn")
        check_constant(layer.name, node, "v_leak", 0.0, n)
        if layer.recurrent is not None:
            raise ValueError(f"node {layer.name} ({type(node).__name__}) is the readout, and reads itself.")
        lost = lost_share(layer.name, node, "tau_mem" if cuba else "tau", dt, n)
        lost_i = lost_share(layer.name, node, "tau_syn", dt, n) if cuba else np.ones(n)
        gained = lost * lost_i * values(node, "r", (n,)) * (values(node, "w_in", (n,)) if cuba else 1)
        cell = LI(n_in, n).to(layer.dtype)
        fill_tau(cell, "tau_i", lost_i, layer.about)
        fill_voltage(cell, layer, lost, gained, torch.ones(1))
        return cell


def _class(name: str) -> type[ALIF]:
    """The class of that name, if its step is that of an ALIF: what is trained differs."""
    known: type[Any] = CELLS.get(name, ALIFPlus)
    return known if step_of(known) is ALIF else ALIFPlus


def _prefer_noted(cell: ALIF, quantity: str, said: str, about: dict[str, Any]) -> None:
    """Set a quantity to what we noted of it, if the graph still says the same, but for rounding."""
    stored = _stored(cell, quantity)
    if stored not in about:
        return
    parameter, wanted = cell.get_parameter(stored), array(getattr(cell, said))
    from_graph = parameter.clone()
    fill(parameter, about[stored])
    if not agree(array(getattr(cell, said)), wanted, from_graph):
        parameter.copy_(from_graph)


def _stored(cell: SpikingCell, quantity: str) -> str:
    """The name of the parameter behind a quantity: its own, or that of its logarithm."""
    return quantity if quantity in cell._parameters else raw(quantity)
