"""A second opinion: norse reads the NIR file of a network and steps it."""

import copy
import importlib.metadata
import tempfile
import warnings
from pathlib import Path

import torch
from torch import Tensor

from neurolsc.export.nir.read import read_nir
from neurolsc.export.nir.readers import check_reader
from neurolsc.export.nir.table import NEURONS
from neurolsc.export.nir.write import to_nir
from neurolsc.export.simulators.agreement import Opinion
from neurolsc.network import Network

__all__ = ["ask_norse"]


def ask_norse(network: Network, x: Tensor, *, dt: float = 1e-4) -> Opinion:
    """Let norse read a network through NIR and step it, and compare spike by spike.

    Both run in float64; norse's reader rounds parameters to float32, so that a voltage closer than
    that to its threshold may decide otherwise. Layers of norse read the one below in the same step:
    with ``layer_delay=1`` layer l is compared l steps later.

    Args:
        network: the float network.
        x: input (T, B, n_in).
        dt: seconds per time step in the file; the spikes do not depend on it.

    Returns:
        The agreement per layer; or, for networks that norse or NIR cannot hold and where a package
        is missing, the reason.

    Raises:
        ValueError: if x does not fit.

    Example:
        >>> from neurolsc import ALIFPlus
        >>> network = Network([ALIFPlus(3, 2, reset="static")], n_out=2)
        >>> print(ask_norse(network, torch.zeros(5, 1, 3)))
        norse: not run: layer 1 is an ALIF, whose sub-graph of LI and Threshold nodes the NIR reader
            of norse cannot hold: ...
    """
    network = copy.deepcopy(network).cpu().double()
    x = (x.to_dense() if x.is_sparse else x).cpu().double()
    with torch.no_grad():
        ours = network.run(x).spikes
    try:
        check_reader(network, "norse", dt)
        theirs = _run(network, x, dt)
    except (ValueError, TypeError, ImportError) as error:
        return Opinion("norse", reason=str(error))
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("norse", "nir")]
    return Opinion.of(f"{' through '.join(versions)} beside the floats", ours, theirs, network.layer_delay)


def _run(network: Network, x: Tensor, dt: float) -> list[Tensor]:
    """Spikes of every layer as norse sends them, each (T, B, M)."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # norse's import uses torch.jit
            import norse.torch
    except ImportError as error:
        raise ImportError("the package norse is missing: pip install 'neurolsc[norse]'.") from error
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "network.nir")
        to_nir(network, path, dt=dt)
        graph = read_nir(path)
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # norse's reader uses a function that nirtorch means to replace
        module = norse.torch.from_nir(graph, dt=dt).double()
    names = [NEURONS.of(f"layer {i}", cell).name(i) for i, cell in enumerate(network.cells, start=1)]
    state, spikes = None, []
    with torch.no_grad():
        for frame in x:
            _, state = module(frame, state)
            spikes.append([state.cache[name] for name in names])
    return [torch.stack(layer) for layer in zip(*spikes, strict=True)]
