"""A float network beside its integers: errors of the parameters, and of what they do on data."""

import math
from dataclasses import replace

import torch
from torch import Tensor

from neurolsc.export.dequantize import dequantize
from neurolsc.export.extremes import Extremes
from neurolsc.export.fixed_point import UNIT, AlifLayer, CubaLayer, Layer
from neurolsc.export.quantize import IntegerRun, QuantizedNetwork
from neurolsc.export.report import ExportReport, LayerActivity, LayerReport, decisions
from neurolsc.network import Network
from neurolsc.neurons import LIF
from neurolsc.neurons.alif import ALIF
from neurolsc.neurons.spiking import SpikingCell
from neurolsc.stability import radius_profile

__all__ = ["make_report"]

RADIUS_STEPS, RADIUS_SAMPLES = 8, 4
"""how much of the calibration data the radii are measured on: as many eigenvalue problems as that"""


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
    rounded = dequantize(network, quantized)
    pairs = zip(network.cells, rounded.cells, quantized.layers, strict=True)
    layers = tuple(
        _layer(a, b, layer) for a, b, layer in pairs if isinstance(a, SpikingCell) and isinstance(b, SpikingCell)
    )
    report = ExportReport(layers, quantized.readout_scale, quantized.remarks, None, None, None, None)
    if calibration is None:
        return report
    run = quantized.run(calibration) if run is None else run
    with torch.no_grad():
        exact = network.run(calibration)
    x = calibration.to_dense() if calibration.is_sparse else calibration
    radii = {}
    for name, one in (("float", network), ("integer", rounded)):
        steps = min(RADIUS_STEPS, len(x))
        profile = radius_profile(one, x[:, :RADIUS_SAMPLES].to(one.dtype_and_device["dtype"]), steps=steps)
        radii |= {f"{name}_time": profile.time_mean.tolist(), f"{name}_depth": profile.depth_mean.tolist()}
    return replace(
        report,
        activity=tuple(_activity(a, b, e) for a, b, e in zip(exact.spikes, run.spikes, run.extremes, strict=False)),
        readout=run.extremes[-1],
        radii=radii,
        decisions=decisions(exact.logits, run.logits, labels),
    )


def _layer(cell: SpikingCell, rounded: SpikingCell, layer: Layer) -> LayerReport:
    theta, theta_int = (_rest(c).detach().double() for c in (cell, rounded))
    rows = theta.unsqueeze(1)
    scale = (layer.unit / UNIT)[: cell.n_hidden]
    errors, before, after, units = [], [], [], []
    for name in ("w_in", "w_rec"):
        w, w_int = (getattr(c, name).detach().double() for c in (cell, rounded))
        exponent = getattr(layer, "weight_exp" if name == "w_in" else "weight_rec_exp", 0)
        errors.append(((w_int - w) / rows).flatten())
        units.append((((w_int - w) * scale.unsqueeze(1)).abs() / 2**exponent).flatten())
        before.append(w.flatten())
        after.append(w_int.flatten())
    error, w, w_int = torch.cat(errors), torch.cat(before), torch.cat(after)
    m, n = layer.weight.shape
    fan_in = n + (0 if layer.weight_rec is None else m)
    bits = fan_in * m * 9
    decays = [layer.v_decay, layer.i_decay if isinstance(layer, CubaLayer) else layer.theta_decay]
    adaptive = isinstance(layer, AlifLayer)
    return LayerReport(
        neuron=_kind(cell),
        neurons=m,
        fan_in=fan_in,
        scale=_span(scale),
        threshold=(int(layer.threshold.min()), int(layer.threshold.max())),
        theta_step=int(layer.theta_step[0]) if adaptive else None,
        weight_error_max=error.abs().max().item(),
        weight_error_rms=error.square().mean().sqrt().item(),
        rounded_to_zero=((w != 0) & (w_int.abs() < 1e-12)).double().mean().item(),
        clipped=int((torch.cat(units) > 1 + 1e-6).sum()),
        threshold_error=((theta_int - theta) / theta).abs().max().item(),
        reset_error=((layer.reset * 2**layer.reset_exp / scale - theta) / theta).abs().max().item()
        if adaptive
        else 0.0,
        bias_error=((rounded.b_v - cell.b_v) / theta).abs().max().item(),
        decay_error=(rounded.decay_v - cell.decay_v).abs().max().item(),
        tau_v=_span(cell.tau_v),
        tau_v_integer=_span(rounded.tau_v),
        tau_theta=_span(cell.tau_theta) if isinstance(cell, ALIF) else None,
        tau_theta_integer=_span(rounded.tau_theta) if isinstance(rounded, ALIF) else None,
        decay_pairs=len(torch.stack(decays).unique(dim=1).T),
        synapse_bits=bits,
        cores=max(math.ceil(m / 1024), math.ceil(fan_in / 4096), math.ceil(bits / 2**20)),
    )


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


def _rest(cell: SpikingCell) -> Tensor:
    if isinstance(cell, ALIF):
        return cell.theta_rest
    assert isinstance(cell, LIF)
    return cell.theta


def _kind(cell: SpikingCell) -> str:
    if isinstance(cell, ALIF):
        return "ALIF, static reset: ALIF (ATRLIF)"
    return "LIF, reset to zero: CUBA" if cell.reset_name == "zero" else "LIF, reset by subtraction: CUBA, voltage in u"


def _span(x: Tensor) -> tuple[float, float]:
    return x.min().item(), x.max().item()
