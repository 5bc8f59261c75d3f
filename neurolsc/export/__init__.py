"""Trained networks for neuromorphic chips, and the proof that both spike alike.

- ``fixed_point.py``: Loihi's integer neurons, CUBA and ATRLIF, and the rounding to their bits;
- ``neurons.py``: each neuron that can be exported, as integers and as NIR nodes, both ways, in one
  table;
- ``quantize.py``: networks in integers, back in floats, and trained through their rounding;
- ``netx.py``: Lava's files, written and read; ``nir.py``: graphs of NIR, written and read;
- ``report.py``: errors, activity and resources of an export;
- ``verify.py``: a file's golden samples replayed, and simulators (``lava_runner.py``,
  ``nengo_runner.py``) run on it;
- ``wrapped.py``: networks of other libraries in our cells, and the chip's delay between layers.
"""

from neurolsc.export.fixed_point import AtrlifLayer, CubaLayer, Extremes, IntegerLayer
from neurolsc.export.netx import read_netx, to_netx, write_netx
from neurolsc.export.neurons import NEURONS, ExportedNeuron, NirLayer
from neurolsc.export.nir import from_nir, to_nir
from neurolsc.export.quantize import (
    IntegerRun,
    QuantizationAware,
    QuantizedNetwork,
    dequantize,
    fit_scales,
    quantize,
)
from neurolsc.export.report import Decisions, ExportReport, LayerActivity, LayerReport, make_report
from neurolsc.export.verify import LayerAgreement, Verification, verify, verify_nir
from neurolsc.export.wrapped import delayed, from_wrapped

__all__ = [
    "NEURONS",
    "AtrlifLayer",
    "CubaLayer",
    "Decisions",
    "ExportReport",
    "ExportedNeuron",
    "Extremes",
    "IntegerLayer",
    "IntegerRun",
    "LayerActivity",
    "LayerAgreement",
    "LayerReport",
    "NirLayer",
    "QuantizationAware",
    "QuantizedNetwork",
    "Verification",
    "delayed",
    "dequantize",
    "fit_scales",
    "from_nir",
    "from_wrapped",
    "make_report",
    "quantize",
    "read_netx",
    "to_netx",
    "to_nir",
    "verify",
    "verify_nir",
    "write_netx",
]
