"""What a reader of NIR files fires beside the network that wrote the file."""

import copy
import importlib.metadata
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from neurolsc.export.nir.read import read_nir
from neurolsc.export.nir.readers import ReaderName, check_reader
from neurolsc.export.nir.table import NEURONS
from neurolsc.export.nir.write import to_nir
from neurolsc.export.simulators.agreement import Opinion
from neurolsc.network import Network

if TYPE_CHECKING:
    import nir

__all__ = ["ask"]


def ask(
    reader: ReaderName, network: Network, x: Tensor, dt: float, module: Callable[["nir.NIRGraph", float], nn.Module]
) -> Opinion:
    """Write a network to a file, let a program step it, and compare; all in float64.

    Layers of NIR read the one below in the same step: with ``layer_delay=1`` layer l is compared l
    steps later. An integrator at the end, which no reader knows, is left out.

    Args:
        reader: the program; its package is called so.
        network: the float network.
        x: input (T, B, n_in).
        dt: seconds per time step in the file.
        module: what the program makes of a graph and dt; called with a frame and a state, as are
            its nodes, whose outputs come first.
    """
    network = copy.deepcopy(network).cpu().double()
    if network.cells[-1].integrator:
        below = list(network.cells[:-1])
        with torch.random.fork_rng(devices=[]):
            network = Network(below, 1, layer_delay=1 if network.layer_delay else 0).double()
    x = (x.to_dense() if x.is_sparse else x).cpu().double()
    with torch.no_grad():
        ours = network.run(x).spikes
    names = []
    try:
        check_reader(network, reader, dt)
        names = [NEURONS.of(f"layer {i}", cell).name(i) for i, cell in enumerate(network.cells, start=1)]
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            path = Path(folder, "network.nir")
            to_nir(network, path, dt=dt)
            theirs = _spikes(module(read_nir(path), dt), names, x)
    except (ValueError, TypeError, ImportError) as error:
        return Opinion(reader, reason=str(error))
    versions = [f"{name} {importlib.metadata.version(name)}" for name in (reader, "nir")]
    return Opinion.of(f"{' through '.join(versions)} beside the floats", ours, theirs, network.layer_delay)


def _spikes(module: Any, names: list[str], x: Tensor) -> list[Tensor]:
    """What the named nodes of a module send on x (T, B, n_in), each (T, B, M)."""
    spikes: dict[str, list[Tensor]] = {name: [] for name in names}
    for name, seen in spikes.items():
        module.get_submodule(name).register_forward_hook(lambda _m, _x, out, seen=seen: seen.append(out[0]))
    state = None
    for frame in x:
        _, state = module(frame, state)
    return [torch.stack(seen) for seen in spikes.values()]
