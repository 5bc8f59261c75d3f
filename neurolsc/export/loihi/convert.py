"""The whole way from a float network to a checked file."""

import copy
import json
from dataclasses import replace
from os import PathLike, fspath

import torch
from torch import Tensor

from neurolsc.export.loihi.compare import make_report
from neurolsc.export.loihi.fixed_point import LIMIT
from neurolsc.export.loihi.netx import GOLDEN_SAMPLES, Golden, content, parse
from neurolsc.export.loihi.quantize import IntegerRun, fit_scales, quantize
from neurolsc.export.loihi.report import ExportReport
from neurolsc.export.wrapped import from_wrapped
from neurolsc.files import atomic_write
from neurolsc.network import Network

__all__ = ["to_netx"]

TRIAL_STEPS = 50
"""how long a file is stepped on random spikes before it is called done"""


def to_netx(
    network: Network,
    path: str | PathLike[str],
    calibration: Tensor | None = None,
    *,
    labels: Tensor | None = None,
    force: bool = False,
    golden: int = GOLDEN_SAMPLES,
) -> ExportReport:
    """Export a network to Lava: quantise it, check it on data, and write a NetX file.

    The content is read back and stepped beside the integers that it was made from before the file
    takes its name. The file holds the input and the spikes of a few samples, which
    :func:`neurolsc.export.verify` replays without a simulator.

    Args:
        network: LIF and ALIF layers, perhaps an LI at the end; what can be expressed is in
            :func:`neurolsc.export.quantize`.
        path: the file, usually ``*.net``. Lava keeps an open file open: give each export a new
            path.
        calibration: samples (T, B, n_in), 0 or 1. Without them overflows are not looked for.
        labels: their classes (B,), for accuracies in the report.
        force: accept fewer than 62 weight units per threshold.
        golden: how many of the samples, from the first one on, the file holds with their spikes;
            without calibration data it holds one of 50 steps of random spikes. 0: none.

    Returns:
        The report: errors, rates, ranges, resources. It is in the file as well.

    Raises:
        ValueError: if something cannot be expressed or an integer overflows on the calibration
            data; the message names the layer and the number.
        TypeError: if a layer is neither LIF nor ALIF.
        OSError: if the file cannot be written.

    Example:
        >>> import tempfile
        >>> from neurolsc import LIF
        >>> network = Network([LIF(30, 8, reset="zero")], n_out=4)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     report = to_netx(network, f"{folder}/digits.net")
        >>> report.layers[0].clipped
        0
    """
    if golden < 0:
        raise ValueError(f"golden must be a number of samples, 0 or more, got {golden}.")
    given, own = network, from_wrapped(network)
    network = copy.deepcopy(own).cpu()
    if calibration is not None:
        calibration = (calibration.to_dense() if calibration.is_sparse else calibration).cpu()
    labels = None if labels is None else labels.cpu()
    halvings = None if calibration is None else fit_scales(network, calibration, force=force)
    quantized = quantize(network, force=force, halvings=halvings)
    run = None
    if calibration is not None:
        run = quantized.run(calibration)
        _refuse_overflows(run)
        if run.extremes[-1].wraps and not quantized.integrates:
            peak = max(map(abs, run.extremes[-1].v))
            scale = quantized.readout_scale * LIMIT / 2 / peak
            quantized = quantize(network, force=force, readout_scale=scale, halvings=halvings)
            run = quantized.run(calibration)
    report = make_report(network, quantized, calibration, labels, run)
    report = replace(
        report, remarks=(*report.remarks, *_latency(network, calibration, None if own is given else given))
    )
    steps = TRIAL_STEPS if calibration is None else len(calibration)
    trial = torch.rand(TRIAL_STEPS, 1, quantized.n_in, generator=torch.Generator().manual_seed(0)) < 0.2
    x = trial if calibration is None else calibration
    samples = Golden.of(quantized, x[:, :golden]) if golden else None
    data = content(quantized, steps, json.dumps(report.to_dict()), samples)
    if not torch.equal(parse(data, fspath(path))[0].run(x).logits, quantized.run(x).logits):
        raise RuntimeError(f"what would be written to {fspath(path)} does not step as the integers do.")
    atomic_write(path, lambda file: file.write(data))
    return report


def _latency(network: Network, calibration: Tensor | None, wrapped: Network | None) -> list[str]:
    """What the delay of the layers means to who reads the file; equal spikes of a wrapped model."""
    if network.layer_delay:
        return []
    layers = len(network.cells)
    remarks = [
        f"latency: layer l spikes l steps later than in the given network, and the readout {layers}: in a simulator feed {layers} "
        "blank steps after the input to see all of it."
    ]
    if calibration is not None and wrapped is not None:
        with torch.no_grad():
            theirs = wrapped.run(calibration.to(**wrapped.dtype_and_device)).spikes
            ours = network.run(calibration).spikes
        pairs = [(theirs[i].cpu(), ours[i]) for i in network.spiking]
        shares = [f"{(a == b).double().mean():.4%} of {int(a.sum())}" for a, b in pairs]
        remarks.append(f"wrapped network against our cells, before rounding: spikes equal in {', '.join(shares)}.")
    return remarks


def _refuse_overflows(run: IntegerRun) -> None:
    for i, e in enumerate(run.extremes[:-1], start=1):
        where = "times on the calibration data"
        if e.large_inputs:
            raise ValueError(
                f"layer {i}: the input of a step exceeds 32767 units {e.large_inputs} {where}: it reaches from {e.drive[0]} to "
                f"{e.drive[1]}. Train with smaller weights or fewer spikes."
            )
        if e.wraps:
            raise ValueError(
                f"layer {i}: the current leaves 24 bits {e.wraps} {where}: it reaches from {e.u[0]} to {e.u[1]}."
            )
        if e.saturations:
            raise ValueError(
                f"layer {i}: the voltage or threshold leaves 24 bits {e.saturations} {where}: {e.v[0]} to {e.v[1]} and "
                f"to {e.theta[1]}."
            )
