"""Trained networks for neuromorphic chips, and the proof that both spike alike.

- ``fixed_point.py``: Loihi's integer neurons, CUBA and ATRLIF;
- ``wrapped.py``: what can be exported, networks of other libraries in our cells, and the chip's delay between layers;
- ``quantize.py``: networks in integers, back in floats, and trained through their rounding;
- ``netx.py``: from a network to Lava's file, with a report; such files read;
- ``nir.py``: graphs of NIR, written and read;
- ``verify.py``: a file's golden samples replayed, and simulators (``simulator.py``) run on it.
"""

from neurolsc.export.fixed_point import AtrlifLayer, CubaLayer, Extremes, IntegerLayer
from neurolsc.export.netx import (
    Decisions,
    ExportReport,
    LayerActivity,
    LayerReport,
    read_netx,
    to_netx,
    write_netx,
)
from neurolsc.export.nir import from_nir, to_nir
from neurolsc.export.quantize import IntegerRun, QuantizationAware, QuantizedNetwork, dequantize, quantize
from neurolsc.export.verify import LayerAgreement, Verification, verify
from neurolsc.export.wrapped import delayed, from_wrapped, refusals

__all__ = [
    "AtrlifLayer",
    "CubaLayer",
    "Decisions",
    "ExportReport",
    "Extremes",
    "IntegerLayer",
    "IntegerRun",
    "LayerActivity",
    "LayerAgreement",
    "LayerReport",
    "QuantizationAware",
    "QuantizedNetwork",
    "Verification",
    "delayed",
    "dequantize",
    "from_nir",
    "from_wrapped",
    "quantize",
    "read_netx",
    "refusals",
    "to_netx",
    "to_nir",
    "verify",
    "write_netx",
]
