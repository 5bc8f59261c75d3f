"""Which networks the NIR readers of other programs run as they are: found by running them."""

from typing import Literal

from neurolsc.export.nir.table import NEURONS
from neurolsc.network import Network
from neurolsc.validation import one_of

__all__ = ["ReaderName", "check_reader"]

ReaderName = Literal["norse", "snntorch"]

SNNTORCH_DT = 1e-4
"""seconds, fixed in its reader"""


def check_reader(network: Network, reader: ReaderName, dt: float) -> None:
    """Refuse what a program cannot read.

    norse 1.1 reads every LIF network. snnTorch 1.0 reads LIF that reset to zero, without
    recurrence, with one threshold and one time constant per layer.

    Raises:
        TypeError: if a layer is neither LIF nor ALIF.
        ValueError: if the reader is unknown, or a layer is beyond it; the message names both.
    """
    one_of("reader", reader, ("norse", "snntorch"))
    if reader == "snntorch" and abs(dt - SNNTORCH_DT) > 1e-9 * dt:
        raise ValueError(f"snnTorch's NIR reader supposes dt = {SNNTORCH_DT:g} s, got {dt:g} s.")
    for i, cell in enumerate(network.cells, start=1):
        NEURONS.of(f"layer {i}", cell).check_reader(f"layer {i}", cell, reader)
