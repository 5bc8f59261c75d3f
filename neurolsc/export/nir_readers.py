"""Which networks the NIR readers of other programs run as they are: found by running them, and asked before a file is made."""

from typing import Literal

from neurolsc.network import Network
from neurolsc.neurons import LIF
from neurolsc.neurons.alif import ALIF
from neurolsc.validation import one_of

__all__ = ["ReaderName", "check_reader"]

ReaderName = Literal["norse", "snntorch"]

SNNTORCH_DT = 1e-4
"""seconds, fixed in its reader"""


def check_reader(network: Network, reader: ReaderName, dt: float) -> None:
    """Refuse what a program cannot read.

    norse 1.1 reads every LIF network. snnTorch 1.0 reads LIF that reset to zero, without recurrence, with one threshold and one
    time constant per layer.

    Raises:
        ValueError: if the reader is unknown, or a layer is beyond it; the message names both.
    """
    one_of("reader", reader, ("norse", "snntorch"))
    if reader == "snntorch" and abs(dt - SNNTORCH_DT) > 1e-9 * dt:
        raise ValueError(f"snnTorch's NIR reader supposes dt = {SNNTORCH_DT:g} s, got {dt:g} s.")
    for i, cell in enumerate(network.cells, start=1):
        if isinstance(cell, ALIF):
            raise ValueError(
                f"layer {i} is an ALIF, whose sub-graph of LI and Threshold nodes the NIR reader of {reader} cannot hold: read it "
                "with neurolsc.export.from_nir, or use LIF."
            )
        if reader == "norse" or not isinstance(cell, LIF):
            continue
        if cell.reset_name != "zero":
            raise ValueError(
                f'layer {i} has reset="{cell.reset_name}", a recurrent connection in NIR, which snnTorch\'s reader fails on: '
                'use reset="zero".'
            )
        if cell.w_rec.any():
            raise ValueError(
                f"layer {i} has recurrent weights up to {cell.w_rec.abs().max():.4g}, which snnTorch's reader fails on: "
                "set w_rec to 0, or read it with norse."
            )
        for name, value in (("theta", cell.theta), ("tau_v", cell.tau_v)):
            if value.min() != value.max():
                raise ValueError(
                    f"layer {i} has {name} from {value.min():.4g} to {value.max():.4g}; snnTorch's reader holds one per layer."
                )
