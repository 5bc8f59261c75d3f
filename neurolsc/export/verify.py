"""The exported file against simulators that share no code with us, spike by spike."""

from dataclasses import replace
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from neurolsc.export.loihi.fixed_point import LIMIT, UNIT, IntegerMoment, clip, moments
from neurolsc.export.loihi.netx import read_netx
from neurolsc.export.loihi.quantize import QuantizedNetwork
from neurolsc.export.simulators.agreement import LayerAgreement, LayerOpinion, Opinion, Verification
from neurolsc.export.simulators.process import find_python, simulate

__all__ = ["ask_nengo_loihi", "verify"]


def verify(
    path: str | PathLike[str],
    spikes: Tensor,
    *,
    python: str | PathLike[str] | None = None,
    timeout: float = 600.0,
    progress: bool = False,
) -> Verification:
    """Run an exported file in Lava's simulator beside the integer model, spike by spike.

    Lava runs in a process of its own, in another environment; when the time is up, it and all that
    it started are killed. nengo-loihi is asked, too, where it is installed.

    Args:
        path: the file.
        spikes: input (T, B, n_in), 0 or 1; every sample is a run of its own, which takes a second
            or two.
        python: Python of the Lava environment; by default ``NEUROLSC_LAVA_PYTHON``, else
            ``.lava-env`` below this folder.
        timeout: seconds for all samples.
        progress: show a bar over the samples that Lava has run.

    Returns:
        The agreement per layer.

    Raises:
        ValueError: if the file or the spikes do not fit.
        FileNotFoundError: if there is no Lava environment.
        TimeoutError: if the simulator does not finish.
        RuntimeError: if it fails; with what it said.
    """
    quantized = read_netx(path)
    x = quantized.padded(spikes)
    result = simulate("Lava", find_python("Lava", python), path, x, timeout, progress=progress)
    run = list(moments(quantized.layers, x))
    ours, theirs = _spikes(run), _simulated(quantized, result)
    expected_logits, logits = (quantized.logits(z[-1].double()) for z in (ours, theirs))
    agreements = [
        _agreement(LayerOpinion.of(a, b), [moment.states[i] for moment in run], i + 1, result)
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True))
    ]
    if quantized.integrates:
        readout_agreement = agreements.pop().state_agreement
    else:
        sums = torch.from_numpy(result[f"v_{len(quantized.layers) + 1}"])
        expected = UNIT * (logits.cumsum(0) - logits)  # the readout reads the last layer one step late
        inside = (expected - 1 + LIMIT) % (2 * LIMIT) + 1 - LIMIT  # a sum may wrap more than once
        readout_agreement = (clip(inside) == sums).double().mean().item()
    return Verification(
        tuple(agreements),
        steps=spikes.shape[0],
        samples=spikes.shape[1],
        tools=tuple(str(tool) for tool in result["versions"]),
        spikes=quantized.cropped(theirs),
        logits=logits[quantized.blank_steps :],
        expected_logits=expected_logits[quantized.blank_steps :],
        readout_agreement=readout_agreement,
        opinions=(ask_nengo_loihi(path, spikes, timeout=timeout),),
    )


def ask_nengo_loihi(
    path: str | PathLike[str], spikes: Tensor, *, python: str | PathLike[str] | None = None, timeout: float = 600.0
) -> Opinion:
    """Run an exported file in nengo-loihi's emulator beside the integer model, spike by spike.

    The emulator checks what Lava does not: an input of 21 bits or a current of 23 that overflows is
    an error. It runs in a process of its own, in another environment (``make nengo-env``).

    Args:
        path: a file of LIF layers.
        spikes: input (T, B, n_in), 0 or 1.
        python: Python of the environment; by default ``NEUROLSC_NENGO_PYTHON``, else ``.nengo-env``
            below this folder.
        timeout: seconds for all samples.

    Returns:
        The agreement per layer, with blank steps and bias neurons; or why it did not run: an ALIF
        layer, no environment, an error.

    Raises:
        ValueError: if the file or the spikes do not fit.
    """
    quantized = read_netx(path)
    x = quantized.padded(spikes)
    for i, layer in enumerate(quantized.layers, start=1):
        if layer.rise is not None:
            reason = f"layer {i} is an {layer.kind}, and a compartment of Loihi 1 has a fixed threshold."
            return Opinion("nengo-loihi", reason=reason)
    try:
        result = simulate("nengo-loihi", find_python("nengo-loihi", python), path, x, timeout)
    except (FileNotFoundError, TimeoutError, RuntimeError) as error:
        return Opinion("nengo-loihi", reason=str(error))
    ours = _spikes(list(moments(quantized.layers, x)))
    tool = ", ".join(str(version) for version in result["versions"])
    theirs, readout = _simulated(quantized, result), None
    if quantized.integrates:
        readout = (ours.pop() == theirs.pop()).double().mean().item()
    return replace(Opinion.of(f"{tool} beside the integers", ours, theirs), readout=readout)


def _spikes(run: list[IntegerMoment]) -> list[Tensor]:
    """Of every layer, (T, B, M); of an integrator its voltages."""
    return [torch.stack(layer) for layer in zip(*(moment.spikes for moment in run), strict=True)]


def _simulated(quantized: QuantizedNetwork, result: dict[str, Any]) -> list[Tensor]:
    last = len(quantized.layers)
    names = [f"v_{i}" if quantized.integrates and i == last else f"spikes_{i}" for i in range(1, last + 1)]
    return [torch.from_numpy(result[name]) for name in names]


def _agreement(spikes: LayerOpinion, states: list[Any], i: int, result: dict[str, Any]) -> LayerAgreement:
    """Layer i, counted from 1, of its spikes and of its states beside the simulator's."""
    equal = [
        torch.stack([getattr(state, name) for state in states]) == torch.from_numpy(result[f"{name}_{i}"])
        for name in states[0]._fields
    ]
    return LayerAgreement(
        spikes=spikes.spikes,
        agreement=spikes.agreement,
        state_agreement=min(same.double().mean().item() for same in equal),
        first_difference=spikes.first_difference,
    )
