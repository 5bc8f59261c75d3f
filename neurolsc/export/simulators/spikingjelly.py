"""A second opinion: spikingjelly reads the NIR file of a network and steps it."""

from typing import Any

import torch
from torch import Tensor, nn

from neurolsc.export.simulators.agreement import Opinion
from neurolsc.export.simulators.through_nir import ask
from neurolsc.network import Network

__all__ = ["ask_spikingjelly"]


def ask_spikingjelly(network: Network, x: Tensor, *, dt: float = 1e-4) -> Opinion:
    """Let spikingjelly read a network through NIR and step it, and compare spike by spike.

    Both run in float64. spikingjelly fires *at* the threshold as well, we only above it. Its layers
    read the one below in the same step: with ``layer_delay=1`` layer l is compared l steps later.

    Args:
        network: the float network.
        x: input (T, B, n_in).
        dt: seconds per time step in the file; the spikes do not depend on it.

    Returns:
        The agreement per layer; or, for networks that spikingjelly or NIR cannot hold, such as
        layers with several thresholds or time constants, and where a package is missing, the
        reason.

    Raises:
        ValueError: if x does not fit.

    Example:
        >>> from neurolsc import ALIFPlus
        >>> network = Network([ALIFPlus(3, 2, reset="static")], n_out=2)
        >>> print(ask_spikingjelly(network, torch.zeros(5, 1, 3)))
        spikingjelly: not run: layer 1 is an ALIF, whose sub-graph of LI and Threshold nodes the NIR
            reader of spikingjelly cannot hold: ...
    """
    return ask("spikingjelly", network, x, dt, _module)


def _module(graph: Any, dt: float) -> nn.Module:
    """What spikingjelly makes of a graph."""
    try:
        from spikingjelly.activation_based.nir_exchange import import_from_nir
    except ImportError as error:
        raise ImportError(
            "spikingjelly or what its reader needs is missing: pip install 'spikingjelly[nir]>=2'."
        ) from error
    return import_from_nir(graph, dt=dt, dtype=torch.float64)
