"""Trained networks for neuromorphic chips: integers, Lava's file format, and the proof that both spike alike."""

from neurolsc.export.convert import to_netx
from neurolsc.export.dequantize import dequantize
from neurolsc.export.extremes import Extremes
from neurolsc.export.finetune import QuantizationAware
from neurolsc.export.nengo_emulator import ask_nengo_loihi
from neurolsc.export.netx import read_netx, write_netx
from neurolsc.export.nir import to_nir
from neurolsc.export.nir_norse import ask_norse
from neurolsc.export.nir_read import from_nir
from neurolsc.export.opinions import LayerOpinion, Opinion
from neurolsc.export.quantize import IntegerRun, QuantizedNetwork, quantize
from neurolsc.export.report import Decisions, ExportReport, LayerActivity, LayerReport
from neurolsc.export.verify import LayerAgreement, Verification, verify

__all__ = [
    "Decisions",
    "ExportReport",
    "Extremes",
    "IntegerRun",
    "LayerActivity",
    "LayerAgreement",
    "LayerOpinion",
    "LayerReport",
    "Opinion",
    "QuantizationAware",
    "QuantizedNetwork",
    "Verification",
    "ask_nengo_loihi",
    "ask_norse",
    "dequantize",
    "from_nir",
    "quantize",
    "read_netx",
    "to_netx",
    "to_nir",
    "verify",
    "write_netx",
]
