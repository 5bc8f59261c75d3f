"""Trained networks for neuromorphic chips: integers, Lava's file format, and the proof that both spike alike."""

from neurolsc.export.netx import read_netx, write_netx
from neurolsc.export.quantize import IntegerRun, QuantizedNetwork, quantize
from neurolsc.export.verify import LayerAgreement, Verification, verify

__all__ = [
    "IntegerRun",
    "LayerAgreement",
    "QuantizedNetwork",
    "Verification",
    "quantize",
    "read_netx",
    "verify",
    "write_netx",
]
