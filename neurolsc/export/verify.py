"""What an exported file does: its golden samples replayed, and other simulators beside ours."""

from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neurolsc.export.loihi.fixed_point import LIMIT, UNIT, clip, moments, spikes_of
from neurolsc.export.loihi.netx import Golden, parse, read_netx, replay
from neurolsc.export.loihi.quantize import QuantizedNetwork
from neurolsc.export.nir.read import from_nir
from neurolsc.export.nir.table import NEURONS
from neurolsc.export.simulators.agreement import LayerAgreement, Opinion, Verification, first_step
from neurolsc.export.simulators.process import find_python, simulate
from neurolsc.untrusted.hdf5 import Content
from neurolsc.untrusted.refusal import refusing

__all__ = ["ask_nengo_loihi", "verify", "verify_nir"]


def verify(
    path: str | PathLike[str],
    spikes: Tensor | None = None,
    *,
    python: str | PathLike[str] | None = None,
    timeout: float = 600.0,
    progress: bool = False,
) -> Verification:
    """Replay what an exported file says of itself, and run it in Lava's simulator.

    A file of :func:`neurolsc.export.to_netx` holds golden samples: input, and what every layer and
    the readout made of it. They are replayed through the integers that the file holds now, each
    layer on the golden spikes of the layer below, so that a changed weight shows in its own layer.
    That needs no simulator.

    With spikes, Lava runs the file, too, and is compared with the integers spike by spike. It runs
    in a process of its own, in another environment; when the time is up, it and all that it started
    are killed. nengo-loihi likewise, where it is installed. Without a Lava environment only the
    golden samples are replayed, and the result says that Lava was not run.

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
        ValueError: if the file or the spikes do not fit, or it holds no golden samples and no
            spikes are given.
        FileNotFoundError: if `python` is not there, or there is no Lava environment and the file
            holds no golden samples.
        TimeoutError: if the simulator does not finish.
        RuntimeError: if it fails; with what it said.
    """
    with open(path, "rb") as file:
        quantized, golden = parse(file.read(), fspath(path))
    replayed = None if golden is None else _replay(quantized, golden)
    if spikes is None:
        if python is not None:
            raise ValueError("python names a Lava environment, which needs spikes to run: give both or none.")
        if replayed is None:
            raise ValueError(
                f"{fspath(path)} holds no golden samples: write it with to_netx or write_netx(..., golden=x), or give "
                "spikes to run in Lava."
            )
        return replayed
    x = quantized.padded(spikes)
    try:
        environment = find_python("Lava", python)
    except FileNotFoundError as error:
        if python is not None or replayed is None:
            raise
        opinions = (Opinion("Lava", reason=str(error)), ask_nengo_loihi(path, spikes, timeout=timeout))
        return replace(replayed, opinions=opinions)
    result = simulate("Lava", environment, path, x, timeout, progress=progress)
    run = list(moments(quantized.layers, x))
    ours = [torch.stack(z) for z in zip(*(moment.spikes for moment in run), strict=True)]
    theirs = _simulated(quantized, result)
    expected_logits, logits = (quantized.logits(z[-1].double()) for z in (ours, theirs))
    layers = [
        replace(LayerAgreement.of(a, b), state_agreement=_states([moment.states[i] for moment in run], i + 1, result))
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True))
    ]
    if quantized.integrates:
        readout_agreement = layers.pop().state_agreement or 0.0
    else:
        sums = torch.from_numpy(result[f"v_{len(quantized.layers) + 1}"])
        expected = UNIT * (logits.cumsum(0) - logits)  # the readout reads the last layer one step late
        inside = (expected - 1 + LIMIT) % (2 * LIMIT) + 1 - LIMIT  # a sum may wrap more than once
        readout_agreement = (clip(inside) == sums).double().mean().item()
    return Verification(
        tuple(layers),
        steps=spikes.shape[0],
        samples=spikes.shape[1],
        tools=tuple(str(tool) for tool in result["versions"]),
        spikes=quantized.cropped(theirs),
        logits=quantized.on_time(logits, quantized.latency),
        expected_logits=quantized.on_time(expected_logits, quantized.latency),
        readout_agreement=readout_agreement,
        opinions=(ask_nengo_loihi(path, spikes, timeout=timeout),),
        golden=replayed,
    )


def verify_nir(path: str | PathLike[str]) -> Verification:
    """Replay the golden samples of a NIR file through the network that the file holds.

    Layer by layer, as :func:`verify`. The network is one of floats: on another machine a voltage
    within rounding of its threshold may decide otherwise.

    Args:
        path: a file of ``to_nir(..., golden=x)``.

    Returns:
        The agreement per layer; of the readout the share of logits that are equal to rounding.

    Raises:
        ValueError: if the file is damaged, or holds no golden samples.
        ImportError: if nir is not installed.
        OSError: if the file cannot be read.
    """
    network = from_nir(path, layer_delay=0)
    like, cells = network.dtype_and_device, list(network.cells)
    names = [NEURONS.of(f"layer {i}", cell).name(i) for i, cell in enumerate(cells, start=1)]
    with refusing(path, "its golden samples cannot be read"), Content(Path(path)) as file:
        if not file.has("nodes"):
            raise ValueError("it holds no golden samples: write it with to_nir(..., golden=x).")
        sent = []
        for name, n in zip(
            ("input", *names, "output"),
            (cells[0].n_in, *(cell.n_hidden for cell in cells), network.n_out),
            strict=True,
        ):
            place = f"nodes/{name}/observables"
            values = file.values(f"{place}/{'spikes' if file.has(f'{place}/spikes') else 'values'}/data", 3, "bf")
            if values.shape != (*(sent[0].shape[1::-1] if sent else values.shape[:2]), n) or 0 in values.shape:
                raise ValueError(f"{place} has data of shape {values.shape}, which do not fit {n} neurons.")
            sent.append(torch.from_numpy(values).transpose(0, 1).to(**like))
    with torch.no_grad():
        spikes = [cell.run(x, cell.initial_state(x.shape[1]))[0] for cell, x in zip(cells, sent, strict=False)]
        logits = network.readout(spikes[-1] if cells[-1].integrator else sent[-2])
    same = logits.isclose(sent[-1], rtol=1e-4, atol=1e-6)
    return Verification(
        tuple(LayerAgreement.of(sent[i + 1], spikes[i]) for i in network.spiking),
        steps=len(same),
        samples=same.shape[1],
        tools=("golden samples through the network of the file",),
        spikes=tuple(spikes),
        logits=logits,
        expected_logits=sent[-1],
        readout_agreement=same.double().mean().item(),
        readout_difference=first_step(~same),
        simulated=False,
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
    ours = spikes_of(quantized.layers, x)
    tool = ", ".join(str(version) for version in result["versions"])
    theirs, readout = _simulated(quantized, result), None
    if quantized.integrates:
        readout = (ours.pop() == theirs.pop()).double().mean().item()
    return replace(Opinion.of(f"{tool} beside the integers", ours, theirs), readout=readout)


def _replay(quantized: QuantizedNetwork, golden: Golden) -> Verification:
    """The golden samples through integers, each layer alone."""
    below = [z.double() for z in golden.spikes]
    sent = [*below[1:], golden.readout]  # the last one by an integrator
    layers, spikes, same_states = [], [], []
    with torch.no_grad():
        for layer, x, wanted, states in zip(quantized.layers, below, sent, golden.states, strict=False):
            ((z,), (sums,)) = replay([layer], x)
            same_states.append(sums == states)
            first = first_step((z != wanted).any(2) | ~same_states[-1])
            share = same_states[-1].double().mean().item()
            layers.append(replace(LayerAgreement.of(wanted, z), state_agreement=share, first_difference=first))
            spikes.append(z)
        logits = spikes[-1] if quantized.integrates else quantized.logits(below[-1])
    same = logits == golden.readout
    if quantized.integrates:
        same &= same_states[-1].unsqueeze(2)
        layers.pop()
    return Verification(
        tuple(layers),
        steps=len(same) - quantized.blank_steps - quantized.latency,
        samples=same.shape[1],
        tools=("golden samples through the integers of the file",),
        spikes=quantized.cropped(spikes),
        logits=quantized.on_time(logits, quantized.latency),
        expected_logits=quantized.on_time(golden.readout, quantized.latency),
        readout_agreement=same.double().mean().item(),
        readout_difference=first_step(~same),
        simulated=False,
    )


def _simulated(quantized: QuantizedNetwork, result: dict[str, Any]) -> list[Tensor]:
    last = len(quantized.layers)
    names = [f"v_{i}" if quantized.integrates and i == last else f"spikes_{i}" for i in range(1, last + 1)]
    return [torch.from_numpy(result[name]) for name in names]


def _states(states: list[Any], i: int, result: dict[str, Any]) -> float:
    """The share of equal states of layer i, counted from 1."""
    equal = [
        torch.stack([getattr(state, name) for state in states]) == torch.from_numpy(result[f"{name}_{i}"])
        for name in states[0]._fields
    ]
    return min(same.double().mean().item() for same in equal)
