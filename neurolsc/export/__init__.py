"""Trained networks for neuromorphic chips: integers, Lava's file format, and the proof that both spike alike."""

from neurolsc.export.convert import to_netx
from neurolsc.export.dequantize import dequantize
from neurolsc.export.extremes import Extremes
from neurolsc.export.finetune import QuantizationAware
from neurolsc.export.netx import read_netx, write_netx
from neurolsc.export.quantize import IntegerRun, QuantizedNetwork, fit_scales, quantize
from neurolsc.export.report import Decisions, ExportReport, LayerActivity, LayerReport
from neurolsc.export.verify import LayerAgreement, Verification, verify

__all__ = [
    "Decisions",
    "ExportReport",
    "Extremes",
    "IntegerRun",
    "LayerActivity",
    "LayerAgreement",
    "LayerReport",
    "QuantizationAware",
    "QuantizedNetwork",
    "Verification",
    "dequantize",
    "fit_scales",
    "quantize",
    "read_netx",
    "to_netx",
    "verify",
    "write_netx",
]
