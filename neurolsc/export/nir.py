r"""Networks as graphs of NIR, the neuromorphic intermediate representation.

NIR writes neurons as differential equations in seconds. Its readers take one Euler step of dt per time step, and add up all that
arrives at a node, so that a node with time constant tau keeps the share

.. math:: a = 1 - \frac{dt}{\tau} \qquad\text{of its state, hence}\qquad \tau = \frac{dt}{1 - a}, \quad a = e^{-1/\tau_v}.

With one of the two time constants of NIR's ``CubaLIF`` equal to dt, that node *is* our LIF:

- reset to zero, the voltage in the voltage: tau_syn = dt, w_in = 1, tau_mem = dt / (1 - a), r = 1 / (1 - a), v_reset = 0;
- reset by subtraction, the voltage in the current: tau_mem = dt, r = 1, tau_syn = dt / (1 - a), w_in = 1 / (1 - a), and minus the
  threshold on the diagonal of the recurrent weights.

An ALIF with a static reset is a sub-graph of NIR's own primitives. With A the rise of the threshold above its rest,

.. math:: v[t] = a\, v[t-1] + W_{in} x[t] + b_v + (W_{rec} - \mathrm{diag}\,\vartheta_0)\, z[t-1], \quad
          -A[t] = -a_\vartheta A[t-1] - \beta z[t-1], \quad z[t] = H(v[t] - A[t] - \vartheta_0)

are a leaky integrator ``LI`` each for v and for -A, summed in a ``Threshold``.

Source: Pedersen et al., "Neuromorphic intermediate representation", Nature Communications 15, 8122 (2024), for the primitives; the
equations of nir 1.0 and of norse 1.1's reader for the steps.
"""

import io
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from neurolsc.export.nir_package import load_nir
from neurolsc.export.nir_readers import ReaderName, check_reader
from neurolsc.files import atomic_write
from neurolsc.network import Network
from neurolsc.neurons import LIF, Cell
from neurolsc.neurons.alif import ALIF
from neurolsc.neurons.spiking import SpikingCell
from neurolsc.validation import number

if TYPE_CHECKING:
    import nir

__all__ = ["to_nir"]


def to_nir(
    network: Network, path: str | PathLike[str] | None = None, *, dt: float, reader: ReaderName | None = None
) -> "nir.NIRGraph":
    """Describe a network as a graph of NIR, and write it to a file if one is named.

    Nodes are ``w_in_1``, ``lif_1`` (or the sub-graph ``alif_1``), ``w_rec_1`` and so on, ``readout``; layers without recurrent
    weights and with reset to zero have no ``w_rec``. Connections between layers have no latency in NIR, recurrent ones one step:
    of a network with ``layer_delay=1`` other readers send the spikes of layer l, counted from 1, l steps earlier. Metadata keep
    what :func:`neurolsc.export.from_nir` needs to restore every bit; surrogates are left out.

    Args:
        network: LIF layers with any reset, ALIF layers with ``reset="static"``, and a linear readout.
        path: a file to write, usually ``*.nir``; written whole or not at all.
        dt: seconds per time step. snnTorch's reader supposes 1e-4.
        reader: ``"norse"`` or ``"snntorch"``: refuse what this program's reader cannot hold, such as an ALIF.

    Returns:
        The graph.

    Raises:
        TypeError: if a layer is neither LIF nor ALIF, or the readout not linear.
        ValueError: if something cannot be expressed; the message names the layer and the number.
        ImportError: if nir is not installed.
        OSError: if the file cannot be written.

    Example:
        >>> graph = to_nir(Network([LIF(30, 8, reset="zero")], n_out=4), dt=1e-4)
        >>> list(graph.nodes)
        ['input', 'w_in_1', 'lif_1', 'w_rec_1', 'readout', 'output']
    """
    nir = load_nir()
    dt = number("dt", dt)
    if reader is not None:
        check_reader(network, reader, dt)
    readout = _readout(network)
    nodes: dict[str, Any] = {"input": nir.Input(np.array([network.n_in]))}
    edges: list[tuple[str, str]] = []
    source = "input"
    for i, cell in enumerate(network.cells, start=1):
        cell = _checked(f"layer {i}", cell, network.layer_delay)
        w_in, w_rec, kind = f"w_in_{i}", f"w_rec_{i}", "lif" if isinstance(cell, LIF) else "alif"
        neuron = f"{kind}_{i}"
        nodes[w_in] = _linear(cell.w_in, cell.b_v)
        nodes[neuron] = _lif(cell, dt) if isinstance(cell, LIF) else _alif(cell, dt)
        edges += [(source, w_in), (w_in, neuron)]
        if isinstance(cell, LIF) and (cell.reset_name != "zero" or cell.w_rec.any()):
            nodes[w_rec] = _recurrent(cell, cell.theta)
            # before the edge to the next layer: norse's reader takes the node that it comes to last for the output
            edges += [(neuron, w_rec), (w_rec, neuron)]
        source = neuron
    nodes["readout"] = _linear(readout.weight, readout.bias)
    nodes["output"] = nir.Output(np.array([network.n_out]))
    edges += [(source, "readout"), ("readout", "output")]
    about = {"neurolsc": {"dt": dt, "layer_delay": network.layer_delay}}
    graph = nir.NIRGraph(nodes, edges, metadata=about)
    if path is not None:
        buffer = io.BytesIO()
        nir.write(buffer, graph)
        atomic_write(path, lambda file: file.write(buffer.getvalue()))
    return graph


def _readout(network: Network) -> torch.nn.Linear:
    if not isinstance(network.readout, torch.nn.Linear):
        raise TypeError(f"the readout must be linear, got {type(network.readout).__name__}.")
    for name, value in network.readout.named_parameters():
        _finite("readout", name, value)
    return network.readout


def _checked(layer: str, cell: Cell, layer_delay: int) -> LIF | ALIF:
    if not isinstance(cell, LIF | ALIF):
        raise TypeError(f"{layer} is a {type(cell).__name__}; only LIF and ALIF can be written to NIR.")
    if isinstance(cell, ALIF) and cell.reset_name != "static":
        raise ValueError(
            f"{layer}: NIR cannot say an ALIF with reset={cell.reset_name!r}, as its nodes reset to a constant: train with "
            'reset="static", or keep the network with neurolsc.save.'
        )
    for name, value in cell.state_dict().items():
        _finite(layer, name, value)
    if cell.w_in.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"{layer} has the dtype {cell.w_in.dtype}; wanted torch.float32 or torch.float64.")
    decays = {"tau_v": cell.decay_v} | ({"tau_theta": cell.decay_theta} if isinstance(cell, ALIF) else {})
    for name, decay in decays.items():
        if (decay == 1).any():
            raise ValueError(
                f"{layer}: {name} reaches {getattr(cell, name).max():.3g} steps, of which {decay.dtype} makes a decay of 1: "
                "the time constant in seconds would be infinite."
            )
    threshold = cell.theta_rest if isinstance(cell, ALIF) else cell.theta
    if not (threshold > 0).all():
        raise ValueError(f"{layer}: thresholds must be positive, got {threshold.min():.4g}.")
    if layer_delay and cell.b_v.any():
        raise ValueError(
            f"{layer}: its bias (up to {cell.b_v.abs().max():.4g}) acts from the first step on, before the delayed input arrives, "
            "and NIR's readers have no latency between layers: use layer_delay=0, or no bias."
        )
    return cell


def _finite(layer: str, name: str, value: Tensor) -> None:
    if not value.isfinite().all():
        raise ValueError(f"{layer}: {name} must be finite, got {value[~value.isfinite()][0].item()}.")


def _linear(weight: Tensor, bias: Tensor | None) -> Any:
    nir = load_nir()
    if bias is None or not bias.any():
        return nir.Linear(array(weight))
    return nir.Affine(array(weight), array(bias))


def _recurrent(cell: SpikingCell, threshold: Tensor) -> Any:
    """The recurrent weights with the reset by subtraction in them, and beside them the diagonal that they had."""
    nir = load_nir()
    if cell.reset_name == "zero":
        return nir.Linear(array(cell.w_rec))
    return nir.Linear(
        array(cell.w_rec - torch.diag(threshold)), metadata={"neurolsc": {"diagonal": array(cell.w_rec.diagonal())}}
    )


def _lif(cell: LIF, dt: float) -> Any:
    gain = 1 / (1 - array(cell.decay_v).astype(np.float64))
    fast, slow, one, zero = np.full_like(gain, dt), dt * gain, np.ones_like(gain), np.zeros_like(gain)
    if cell.reset_name == "zero":
        constants = {"tau_syn": fast, "w_in": one, "tau_mem": slow, "r": gain}
    else:
        constants = {"tau_syn": slow, "w_in": gain, "tau_mem": fast, "r": one}
    about = {"reset": cell.reset_name, "log_tau_v": array(cell.get_parameter("log_tau_v"))}
    return load_nir().CubaLIF(
        **constants, v_leak=zero, v_threshold=array(cell.theta), v_reset=zero, metadata={"neurolsc": about}
    )


def _alif(cell: ALIF, dt: float) -> Any:
    nir = load_nir()
    size = np.array([cell.n_hidden])
    gain, gain_theta = (1 / (1 - array(decay).astype(np.float64)) for decay in (cell.decay_v, cell.decay_theta))
    zero = np.zeros_like(gain)
    nodes = {
        "input": nir.Input(size),
        "membrane": nir.LI(tau=dt * gain, r=gain, v_leak=zero),
        "adaptation": nir.LI(tau=dt * gain_theta, r=-array(cell.adaptation) * gain_theta, v_leak=zero),
        "threshold": nir.Threshold(array(cell.theta_rest)),
        "w_rec": _recurrent(cell, cell.theta_rest),
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
    for name in ("tau_v", "tau_theta", "b_theta", "adaptation"):
        stored = parameter_name(cell, name)
        about[stored] = array(cell.get_parameter(stored))
    return nir.NIRGraph(nodes, edges, metadata={"neurolsc": about})


def parameter_name(cell: SpikingCell, name: str) -> str:
    """The name of the parameter behind a quantity: its own, or that of its logarithm."""
    return name if name in cell._parameters else f"log_{name}"


def array(value: Tensor) -> np.ndarray:
    """A tensor's values as a contiguous array of its own."""
    return np.ascontiguousarray(value.detach().cpu().numpy()).copy()
