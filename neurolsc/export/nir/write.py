r"""Networks written as graphs of NIR, the neuromorphic intermediate representation.

NIR writes neurons as differential equations in seconds. Its readers take one Euler step of dt per
time step, and add up all that arrives at a node, so that a node with time constant tau keeps the
share

.. math::
    a = 1 - \frac{dt}{\tau} \qquad\text{of its state, hence}\qquad
    \tau = \frac{dt}{1 - a}, \quad a = e^{-1/\tau_v}.

Source: Pedersen et al., "Neuromorphic intermediate representation", Nature Communications 15, 8122
(2024), for the primitives; the equations of nir 1.0 and of norse 1.1's reader for the steps.
"""

import io
from os import PathLike
from typing import TYPE_CHECKING, Any

import h5py
import torch
from torch import Tensor

from neurolsc.export.nir.graph import Chain, ChainLayer, write_chain
from neurolsc.export.nir.nodes import linear, load_nir
from neurolsc.export.nir.readers import ReaderName, check_reader
from neurolsc.export.nir.table import NEURONS
from neurolsc.export.nir.voltage import check_finite
from neurolsc.export.wrapped import from_wrapped, integrates
from neurolsc.files import atomic_write
from neurolsc.metrics import is_binary
from neurolsc.network import Network
from neurolsc.neurons import Cell
from neurolsc.validation import number

if TYPE_CHECKING:
    import nir

__all__ = ["to_nir"]


def to_nir(
    network: Network,
    path: str | PathLike[str] | None = None,
    *,
    dt: float,
    reader: ReaderName | None = None,
    golden: Tensor | None = None,
) -> "nir.NIRGraph":
    """Describe a network as a graph of NIR, and write it to a file if one is named.

    Nodes are ``w_in_1``, ``lif_1`` (or the sub-graph ``alif_1``), ``w_rec_1`` and so on,
    ``readout`` (or ``li_3``); layers without recurrent weights and with reset to zero have no
    ``w_rec``.
    Connections between layers have no latency in NIR, recurrent ones one step: of a network with
    ``layer_delay=1`` other readers send the spikes of layer l, counted from 1, l steps earlier.
    Metadata keep what :func:`neurolsc.export.from_nir` needs to restore every bit; surrogates are
    left out.

    Args:
        network: LIF layers with any reset, CubaLIF with reset to zero, ALIF layers with
            ``reset="static"``, and a linear readout or an LI at the end; or what
            :func:`neurolsc.wrap` made of such.
        path: a file to write, usually ``*.nir``; written whole or not at all.
        dt: seconds per time step. snnTorch's reader supposes 1e-4.
        reader: ``"norse"``, ``"snntorch"`` or ``"spikingjelly"``: refuse what this program's reader
            cannot hold, such as an ALIF; ``"rockpool"`` is refused, with the reason.
        golden: samples (T, B, n_in) that the file holds with the spikes of every layer and the
            readout, where no layer has a delay; ``nir.read_data`` (nir 1.0.8) gives them, and
            :func:`neurolsc.export.verify_nir` replays them.

    Returns:
        The graph.

    Raises:
        TypeError: if a layer is neither LIF nor ALIF, or the readout neither linear nor an LI.
        ValueError: if something cannot be expressed; the message names the layer and the number;
            or if there are golden samples and no path.
        ImportError: if nir is not installed.
        OSError: if the file cannot be written.

    Example:
        >>> from neurolsc import LIF
        >>> graph = to_nir(Network([LIF(30, 8, reset="zero")], n_out=4), dt=1e-4)
        >>> list(graph.nodes)
        ['input', 'w_in_1', 'lif_1', 'w_rec_1', 'readout', 'output']
    """
    nir = load_nir()
    dt = number("dt", dt)
    if golden is not None and path is None:
        raise ValueError("golden samples are written to a file: give its path.")
    network = from_wrapped(network)
    if reader is not None:
        check_reader(network, reader, dt)
    for name, value in network.readout.named_parameters():
        check_finite("readout", name, value)
    readout: Any = None if integrates(network) else network.readout
    layers = [_layer(i, cell, network.layer_delay, dt) for i, cell in enumerate(network.cells, start=1)]
    about = {"dt": dt, "layer_delay": network.layer_delay}
    graph = write_chain(Chain(tuple(layers), readout and linear(readout.weight, readout.bias)), about)
    if path is not None:
        buffer = io.BytesIO()
        nir.write(buffer, graph)
        if golden is not None:
            data = io.BytesIO()
            nir.write_data(data, _golden(network, [layer.name for layer in layers], golden, dt))
            with h5py.File(data) as source, h5py.File(buffer, "r+") as file:  # they share no name
                source.copy("nodes", file)
                file.attrs.update(source.attrs)
        atomic_write(path, lambda file: file.write(buffer.getvalue()))
    return graph


def _golden(network: Network, names: list[str], x: Tensor, dt: float) -> "nir.NIRGraphData":
    """What nodes send on samples (T, B, n_in)."""
    nir = load_nir()
    if not hasattr(nir, "write_data"):
        raise ImportError(f"golden samples need nir 1.0.8 or later, got {nir.__version__}: pip install 'nir>=1.0.8'.")
    network = Network(list(network.cells), network.readout, layer_delay=0)
    x = (x.to_dense() if x.is_sparse else x).to(**network.dtype_and_device)
    with torch.no_grad():
        run = network.run(x)
    nodes = {}
    for name, sent in zip(("input", *names, "output"), (x, *run.spikes, run.logits), strict=True):
        values, binary = sent.transpose(0, 1).cpu().numpy(), is_binary(sent)
        grid = nir.TimeGriddedData(values.astype(bool) if binary else values, dt)
        nodes[name] = nir.NIRNodeData({"spikes" if binary else "values": grid})
    return nir.NIRGraphData(nodes)


def _layer(i: int, cell: Cell, layer_delay: int, dt: float) -> ChainLayer:
    neuron = NEURONS.of(f"layer {i}", cell)
    neuron.check(f"layer {i}", cell, layer_delay)
    return neuron.write(neuron.name(i), cell, dt)
