"""A second opinion: norse reads the NIR file of a network and steps it."""

import warnings
from typing import Any

from torch import Tensor, nn

from neurolsc.export.simulators.agreement import Opinion
from neurolsc.export.simulators.through_nir import ask
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
        >>> import torch
        >>> from neurolsc import ALIFPlus
        >>> network = Network([ALIFPlus(3, 2, reset="static")], n_out=2)
        >>> print(ask_norse(network, torch.zeros(5, 1, 3)))
        norse: not run: layer 1 is an ALIF, whose sub-graph of LI and Threshold nodes the NIR reader
            of norse cannot hold: ...
    """
    return ask("norse", network, x, dt, _module)


def _module(graph: Any, dt: float) -> nn.Module:
    """What norse makes of a graph."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # norse's import uses torch.jit
            import norse.torch
    except ImportError as error:
        raise ImportError("the package norse is missing: pip install 'norse>=1.1'.") from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it uses what nirtorch means to replace
        return norse.torch.from_nir(graph, dt=dt).double()
