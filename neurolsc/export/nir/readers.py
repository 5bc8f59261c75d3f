"""Which networks the NIR readers of other programs run as they are: found by running them."""

from typing import Literal, get_args

from neurolsc.export.nir.table import NEURONS
from neurolsc.network import Network
from neurolsc.validation import one_of

__all__ = ["ReaderName", "check_reader"]

ReaderName = Literal["norse", "snntorch", "spikingjelly", "rockpool"]
READERS: tuple[ReaderName, ...] = get_args(ReaderName)

SNNTORCH_DT = 1e-4
"""seconds, fixed in its reader"""

ROCKPOOL = (
    "rockpool's NIR reader makes another network of every file of ours: it takes dt from the nodes, as the smallest "
    "tau_mem / (1 + r), and decays by exp(-dt / tau), where other readers take one Euler step; it leaves out w_in "
    "and v_reset, and recurrence outside of sub-graphs; and its neurons fire floor(v / threshold) times in a step."
)
"""of version 3.1: with these rules a simulation by hand gives its spikes, all of them"""


def check_reader(network: Network, reader: ReaderName, dt: float) -> None:
    """Refuse what a program cannot read.

    norse 1.1 reads every LIF network. snnTorch 1.0 reads LIF that reset to zero, without
    recurrence, with one threshold and one time constant per layer. spikingjelly 2.0 reads LIF with
    one threshold and one time constant per layer. rockpool 3.1 reads the files, and makes other
    networks of them.

    Raises:
        TypeError: if a layer is neither LIF nor ALIF.
        ValueError: if the reader is unknown, or a layer is beyond it; the message names both.
    """
    if one_of("reader", reader, READERS) == "rockpool":
        raise ValueError(ROCKPOOL)
    if reader == "snntorch" and abs(dt - SNNTORCH_DT) > 1e-9 * dt:
        raise ValueError(f"snnTorch's NIR reader supposes dt = {SNNTORCH_DT:g} s, got {dt:g} s.")
    for i, cell in enumerate(network.cells, start=1):
        NEURONS.of(f"layer {i}", cell).check_reader(f"layer {i}", cell, reader)
