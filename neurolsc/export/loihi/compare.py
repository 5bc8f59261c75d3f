"""A float network beside its integers: errors of the parameters, and of what they do on data."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from neurolsc.export.loihi.dequantize import dequantize
from neurolsc.export.loihi.extremes import Extremes
from neurolsc.export.loihi.fixed_point import UNIT, IntegerLayer
from neurolsc.export.loihi.mapping import LayerFloats
from neurolsc.export.loihi.quantize import IntegerRun, QuantizedNetwork
from neurolsc.export.loihi.report import ExportReport, LayerActivity, LayerReport, decisions
from neurolsc.export.loihi.table import NEURONS
from neurolsc.export.wrapped import delayed, from_wrapped
from neurolsc.network import Network
from neurolsc.stability import radius_profile

__all__ = ["make_report"]

RADIUS_STEPS, RADIUS_SAMPLES = 8, 4
"""how much of the calibration data the radii are measured on: as many eigenvalue problems as
that"""


def make_report(
    network: Network,
    quantized: QuantizedNetwork,
    calibration: Tensor | None = None,
    labels: Tensor | None = None,
    run: IntegerRun | None = None,
) -> ExportReport:
    """Compare a network with its integers.

    Args:
        network: what was quantised.
        quantized: its integers.
        calibration: samples (T, B, n_in) to run both on; without them only parameters are compared.
        labels: their classes (B,), for accuracies.
        run: the integers' run on them, if it is known already.

    Raises:
        ValueError: if samples or labels do not fit.
    """
    given = from_wrapped(network)
    network = delayed(given)
    rounded = dequantize(network, quantized)
    layers = []
    for i, (cell, other, layer) in enumerate(zip(network.cells, rounded.cells, quantized.layers, strict=True), start=1):
        neuron = NEURONS.of(f"layer {i}", cell)
        layers.append(_layer(neuron.describe(cell), neuron.floats(cell), neuron.floats(other), layer))
    report = ExportReport(tuple(layers), quantized.readout_scale, quantized.remarks, None, None, None, None)
    if calibration is None:
        return report
    run = quantized.run(calibration) if run is None else run
    with torch.no_grad():
        exact = given.run(calibration)
    readout_error = None
    if quantized.integrates:
        off = run.logits / quantized.readout_scale - exact.logits
        readout_error = (off.square().mean() / exact.logits.double().square().mean()).sqrt().item()
    return replace(
        report,
        activity=tuple(_activity(exact.spikes[i], run.spikes[i], run.extremes[i]) for i in network.spiking),
        readout=run.extremes[-1],
        readout_error=readout_error,
        radii=_radii("float", network, calibration) | _radii("integer", rounded, calibration),
        decisions=decisions(exact.logits, run.logits, labels),
    )


def _radii(name: str, network: Network, calibration: Tensor) -> dict[str, list[float]]:
    x = calibration.to_dense() if calibration.is_sparse else calibration
    some = x[:, :RADIUS_SAMPLES].to(network.cells[0].dtype_and_device["dtype"])
    profile = radius_profile(network, some, steps=min(RADIUS_STEPS, len(x)))
    return {f"{name}_time": profile.time_mean.tolist(), f"{name}_depth": profile.depth_mean.tolist()}


def _layer(neuron: str, floats: LayerFloats, rounded: LayerFloats, layer: IntegerLayer) -> LayerReport:
    theta, theta_int = (f.threshold.detach().double() for f in (floats, rounded))
    scale = (layer.unit / UNIT)[: len(theta)]
    taken = 0.0 if layer.taken is None else ((layer.taken / scale - theta) / theta).abs().max().item()
    kept, kept_int = (torch.exp(-1 / f.tau_v) for f in (floats, rounded))
    return LayerReport(
        neuron=neuron,
        scale=_span(scale),
        threshold=(int(layer.threshold.min()), int(layer.threshold.max())),
        theta_step=layer.rise,
        threshold_error=((theta_int - theta) / theta).abs().max().item(),
        reset_error=taken,
        bias_error=((rounded.bias - floats.bias) / theta).abs().max().item(),
        decay_error=(kept_int - kept).abs().max().item(),
        tau_v=_span(floats.tau_v),
        tau_v_integer=_span(rounded.tau_v),
        tau_theta=None if floats.tau_theta is None else _span(floats.tau_theta),
        tau_theta_integer=None if rounded.tau_theta is None else _span(rounded.tau_theta),
        **_weight_errors(floats, rounded, layer),
        **_resources(layer),
    )


def _weight_errors(floats: LayerFloats, rounded: LayerFloats, layer: IntegerLayer) -> dict[str, Any]:
    rows = floats.threshold.detach().double().unsqueeze(1)
    scale = (layer.unit / UNIT)[: len(rows)].unsqueeze(1)
    errors, before, after, units = [], [], [], []
    for name, exponent in (("w_in", layer.weight_exp), ("w_rec", layer.weight_rec_exp)):
        w, w_int = (getattr(f, name).detach().double() for f in (floats, rounded))
        errors.append(((w_int - w) / rows).flatten())
        units.append((((w_int - w) * scale).abs() / 2**exponent).flatten())
        before.append(w.flatten())
        after.append(w_int.flatten())
    error, w, w_int = torch.cat(errors), torch.cat(before), torch.cat(after)
    return {
        "weight_error_max": error.abs().max().item(),
        "weight_error_rms": error.square().mean().sqrt().item(),
        "rounded_to_zero": ((w != 0) & (w_int.abs() < 1e-12)).double().mean().item(),
        "clipped": int((torch.cat(units) > 1 + 1e-6).sum()),
    }


def _resources(layer: IntegerLayer) -> dict[str, int]:
    m, n = layer.weight.shape
    fan_in = n + (0 if layer.weight_rec is None else m)
    bits = fan_in * m * 9
    return {
        "neurons": m,
        "fan_in": fan_in,
        "decay_pairs": len(layer.decays.unique(dim=1).T),
        "synapse_bits": bits,
        "cores": max(math.ceil(m / 1024), math.ceil(fan_in / 4096), math.ceil(bits / 2**20)),
    }


def _activity(exact: Tensor, integer: Tensor, extremes: Extremes) -> LayerActivity:
    a, b = exact.double().mean((0, 1)), integer.double().mean((0, 1))
    differs = (exact != integer).flatten(1).any(1).nonzero()
    varied = len(a) > 1 and a.std() > 0 and b.std() > 0
    return LayerActivity(
        rate_float=a.mean().item(),
        rate_integer=b.mean().item(),
        rate_correlation=torch.corrcoef(torch.stack((a, b)))[0, 1].item() if varied else None,
        rate_difference=(a - b).abs().max().item(),
        agreement=(exact == integer).double().mean().item(),
        first_difference=int(differs[0]) if len(differs) else None,
        extremes=extremes,
    )


def _span(x: Tensor) -> tuple[float, float]:
    return x.min().item(), x.max().item()
