"""Trained networks for neuromorphic chips, and the proof that both spike alike.

- ``loihi/``: integers and NetX files (``to_netx``, ``quantize``, ``QuantizationAware``,
  ``ExportReport``).
- ``nir/``: graphs of NIR, written and read (``to_nir``, ``from_nir``).
- ``simulators/``: others that step what was written, each in a process of its own, and how they
  agree.
- ``verify.py``: what a file still does: its golden samples through its integers, and simulators.
- ``wrapped.py``: networks of other libraries in our cells, and the chip's delay between layers.
- ``neurons.py``: a target's table of neurons, by the class that defines their step.

A target of your own is a file with such a table and a function of a network and a path.
"""

from neurolsc.export.loihi.convert import to_netx
from neurolsc.export.loihi.dequantize import dequantize
from neurolsc.export.loihi.extremes import Extremes
from neurolsc.export.loihi.finetune import QuantizationAware
from neurolsc.export.loihi.netx import read_netx, write_netx
from neurolsc.export.loihi.quantize import IntegerRun, QuantizedNetwork, fit_scales, quantize
from neurolsc.export.loihi.report import Decisions, ExportReport, LayerActivity, LayerReport
from neurolsc.export.neurons import Neurons
from neurolsc.export.nir.read import from_nir
from neurolsc.export.nir.write import to_nir
from neurolsc.export.simulators.agreement import LayerAgreement, Opinion, Verification
from neurolsc.export.simulators.norse import ask_norse
from neurolsc.export.simulators.spikingjelly import ask_spikingjelly
from neurolsc.export.verify import ask_nengo_loihi, verify, verify_nir
from neurolsc.export.wrapped import delayed, from_wrapped

__all__ = [
    "Decisions",
    "ExportReport",
    "Extremes",
    "IntegerRun",
    "LayerActivity",
    "LayerAgreement",
    "LayerReport",
    "Neurons",
    "Opinion",
    "QuantizationAware",
    "QuantizedNetwork",
    "Verification",
    "ask_nengo_loihi",
    "ask_norse",
    "ask_spikingjelly",
    "delayed",
    "dequantize",
    "fit_scales",
    "from_nir",
    "from_wrapped",
    "quantize",
    "read_netx",
    "to_netx",
    "to_nir",
    "verify",
    "verify_nir",
    "write_netx",
]
