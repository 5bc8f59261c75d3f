"""Exported files verified: golden samples replayed, simulators run in processes of their own.

A simulator is a script for the Python of its environment (``lava_runner.py``, ``nengo_runner.py``)
and an entry in `SIMULATORS`. It gets a file and input spikes, and writes the spikes and states of
every layer.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from neurolsc.display import Displayed
from neurolsc.export.fixed_point import LIMIT, UNIT, AtrlifLayer, IntegerStep, clip, integer_steps
from neurolsc.export.netx import Golden, parse, replay
from neurolsc.export.neurons import exported_neuron
from neurolsc.export.nir import from_nir
from neurolsc.export.quantize import QuantizedNetwork
from neurolsc.hdf5 import HDF5
from neurolsc.io import refusing
from neurolsc.progress import progress_bar

__all__ = ["LayerAgreement", "Verification", "find_python", "simulate", "verify", "verify_nir"]

SimulatorName = Literal["Lava", "nengo-loihi"]
SIMULATORS: dict[SimulatorName, str] = {"Lava": "lava", "nengo-loihi": "nengo"}  # in names of environments and runners
DONE = "neurolsc: a sample is done"  # a line of a runner's output


@dataclass(frozen=True)
class LayerAgreement:
    """Agreement of a layer's spikes in two runs."""

    spikes: int  # of the run that is compared with
    agreement: float  # share of (step, sample, neuron) triples with the same spike
    # the same of the states after each step; of golden samples the share of (step, sample) with the
    # same sum of states
    state_agreement: float | None = None
    first_difference: int | None = None  # first step, blank steps counted, with another spike (golden: or state)

    @classmethod
    def of(cls, ours: Tensor, theirs: Tensor) -> "LayerAgreement":
        """Compare spikes (T, B, M)."""
        same = ours == theirs
        return cls(int(ours.sum()), same.double().mean().item(), first_difference=first_step(~same))


@dataclass(frozen=True, repr=False)
class Verification(Displayed):
    """What :func:`neurolsc.export.verify` found."""

    layers: tuple[LayerAgreement, ...]  # first layer first, without the readout
    steps: int
    samples: int
    tools: tuple[str, ...]  # names and versions of what ran
    spikes: tuple[Tensor, ...]  # of what ran, (T, B, M), without blank steps and bias neurons
    logits: Tensor  # its integer readout at every step (T, B, C)
    expected_logits: Tensor  # the integer model's, or the golden ones
    # share of (step, sample, class) with the same logit, in Lava the same sum of logits so far, or
    # the same state of an integrator
    readout_agreement: float
    readout_difference: int | None = None  # first step at which a logit of a golden sample differs
    golden: "Verification | None" = None  # of the golden samples, where a simulator ran on other spikes
    others: tuple["Verification", ...] = ()  # of further simulators on the same spikes
    not_run: tuple[str, ...] = ()  # simulators that did not run, and why
    simulated: bool = True  # False where only the golden samples were replayed

    @property
    def exact(self) -> bool:
        """Whether every spike, state and readout is the same in all that ran."""
        parts = [*self.others, *([] if self.golden is None else [self.golden])]
        return (
            self.readout_agreement == 1
            and all(layer.agreement == 1 and layer.state_agreement in (None, 1) for layer in self.layers)
            and all(part.exact for part in parts)
        )

    def parts(self) -> list[str]:
        """A line for each layer."""

        def where(step: int | None) -> str:
            return "" if step is None else f", first difference at step {step}"

        lines = self.golden.parts() if self.golden is not None else []
        lines.append(f"{', '.join(self.tools)}: {self.samples} samples of {self.steps} steps")
        for i, layer in enumerate(self.layers, start=1):
            states = "" if layer.state_agreement is None else f"; states {layer.state_agreement:.4%} equal"
            equal = f"{layer.spikes} spikes, {layer.agreement:.4%} equal{states}"
            lines.append(f"layer {i}: {equal}{where(layer.first_difference)}")
        lines.append(f"readout: {self.readout_agreement:.4%} equal{where(self.readout_difference)}")
        return [*lines, *(line for other in self.others for line in other.parts()), *self.not_run]


def verify(
    path: str | PathLike[str],
    spikes: Tensor | None = None,
    *,
    python: str | PathLike[str] | None = None,
    timeout: float = 600.0,
    progress: bool = False,
) -> Verification:
    """Replay the golden samples of an exported file, and run it in simulators.

    A file of :func:`neurolsc.export.to_netx` holds golden samples: input, and the output of every
    layer and the readout. They are replayed through the integers in the file, each layer on the
    golden spikes of the layer below, so that a changed weight shows in its own layer. That needs no
    simulator.

    With spikes, Lava and nengo-loihi run the file, too, where they are installed, and are compared
    with the integers spike by spike, state by state. nengo-loihi takes LIF layers only, and checks
    what Lava does not: overflows of a step's input (21 bits) and of the current (23 bits).

    Args:
        path: the file.
        spikes: input (T, B, n_in), 0 or 1; every sample is a run of its own, which takes a second
            or two.
        python: Python of the Lava environment; by default ``NEUROLSC_LAVA_PYTHON``, else
            ``.lava-env`` in the working folder. nengo-loihi's: ``NEUROLSC_NENGO_PYTHON``,
            ``.nengo-env``.
        timeout: seconds for all samples in a simulator.
        progress: show a bar over the samples that a simulator has run.

    Returns:
        The agreement per layer.

    Raises:
        ValueError: if the file or the spikes do not fit, or it holds no golden samples and there
            are no spikes.
        FileNotFoundError: if `python` is not there, or there is no simulator and the file holds no
            golden samples.
        TimeoutError: if Lava does not finish.
        RuntimeError: if it fails; with its output.
    """
    with open(path, "rb") as file:
        quantized, golden = parse(file.read(), fspath(path))
    replayed = None if golden is None else _replayed(quantized, golden)
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
    steps: list[IntegerStep] = []
    runs, not_run = [], []
    for name in SIMULATORS:
        adaptive = [i for i, layer in enumerate(quantized.layers, start=1) if isinstance(layer, AtrlifLayer)]
        if name == "nengo-loihi" and adaptive:
            reason = f"layer {adaptive[0]} is an ALIF, and a compartment of Loihi 1 has a fixed threshold."
            not_run.append(f"{name}: not run: {reason}")
            continue
        try:
            environment = find_python(name, python if name == "Lava" else None)
            result = simulate(name, environment, path, x, timeout, progress=progress)
        except (FileNotFoundError, TimeoutError, RuntimeError) as error:
            if name == "Lava" and (python is not None or not isinstance(error, FileNotFoundError)):
                raise
            not_run.append(f"{name}: not run: {error}")
        else:
            steps = steps or list(integer_steps(quantized.layers, x))
            runs.append(_compared(quantized, steps, result))
    if runs:
        return replace(runs[0], golden=replayed, others=tuple(runs[1:]), not_run=tuple(not_run))
    if replayed is None:
        raise FileNotFoundError("; ".join(not_run))
    return replace(replayed, not_run=tuple(not_run))


def verify_nir(path: str | PathLike[str]) -> Verification:
    """Replay the golden samples of a NIR file through its network, layer by layer.

    The network is one of floats: on another machine a voltage within rounding of its threshold may
    decide otherwise.

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
    words = [f"{exported_neuron(f'layer {i}', cell).word}_{i}" for i, cell in enumerate(cells, start=1)]
    names, sizes = ("input", *words, "output"), (cells[0].n_in, *(cell.n_hidden for cell in cells), network.n_out)
    sent: list[Tensor] = []
    with refusing(path, "its golden samples cannot be read"), HDF5(path) as file:
        if not file.has("nodes"):
            raise ValueError("it holds no golden samples: write it with to_nir(..., golden=x).")
        for name, n in zip(names, sizes, strict=True):
            place = f"nodes/{name}/observables"
            data = file.values(f"{place}/{'spikes' if file.has(f'{place}/spikes') else 'values'}/data", 3, "bf")
            if data.shape != (*(sent[0].shape[1::-1] if sent else data.shape[:2]), n):
                raise ValueError(f"nodes/{name} has data of shape {data.shape}, which do not fit {n} neurons.")
            sent.append(torch.from_numpy(data).transpose(0, 1).to(**like))
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


def _replayed(quantized: QuantizedNetwork, golden: Golden) -> Verification:
    """The golden samples through integers, each layer alone."""
    below = [z.double() for z in golden.spikes]
    sent = [*below[1:], golden.readout]  # the last one by an integrator
    layers, spikes, same_states = [], [], []
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


def _compared(quantized: QuantizedNetwork, steps: Sequence[IntegerStep], result: dict[str, Any]) -> Verification:
    """A simulator's result against the steps of the integers."""
    last = len(quantized.layers)
    names = [f"v_{i}" if quantized.integrates and i == last else f"spikes_{i}" for i in range(1, last + 1)]
    theirs = [torch.from_numpy(result[name]) for name in names]
    ours = [torch.stack(z) for z in zip(*(step.spikes for step in steps), strict=True)]
    layers = []
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        states = [step.states[i] for step in steps]
        equal = [
            torch.stack([getattr(state, name) for state in states]) == torch.from_numpy(result[f"{name}_{i + 1}"])
            for name in states[0]._fields
        ]
        shares = min(same.double().mean().item() for same in equal)
        layers.append(replace(LayerAgreement.of(a, b), state_agreement=shares))
    expected_logits, logits = (quantized.logits(z[-1].double()) for z in (ours, theirs))
    same = logits == expected_logits
    if quantized.integrates:
        readout_agreement = layers.pop().state_agreement or 0.0
    else:
        if f"v_{last + 1}" in result:  # Lava's readout adds up, and reads the last layer one step late
            expected = UNIT * (logits.cumsum(0) - logits)
            inside = (expected - 1 + LIMIT) % (2 * LIMIT) + 1 - LIMIT  # a sum may wrap more than once
            same = clip(inside) == torch.from_numpy(result[f"v_{last + 1}"])
        readout_agreement = same.double().mean().item()
    return Verification(
        tuple(layers),
        steps=len(same) - quantized.blank_steps - quantized.latency,
        samples=same.shape[1],
        tools=tuple(str(tool) for tool in result["versions"]),
        spikes=quantized.cropped(theirs),
        logits=quantized.on_time(logits, quantized.latency),
        expected_logits=quantized.on_time(expected_logits, quantized.latency),
        readout_agreement=readout_agreement,
    )


def first_step(differs: Tensor) -> int | None:
    """The first step of (T, ...) at which something differs; None if nothing does."""
    steps = differs.flatten(1).any(1).nonzero()
    return int(steps[0]) if len(steps) else None


def find_python(name: SimulatorName, python: str | PathLike[str] | None = None) -> Path:
    """A simulator's Python: `python`, or its variable's, or its environment's in this folder."""
    short = SIMULATORS[name]
    variable = f"NEUROLSC_{short.upper()}_PYTHON"
    wanted = python or os.environ.get(variable) or Path(f".{short}-env/bin/python")
    found = shutil.which(fspath(wanted))
    if found is None:
        raise FileNotFoundError(
            f"no {name} environment: {wanted} is not there. `make {short}-env` creates .{short}-env in a checkout of neurolsc; "
            f"{variable} names the Python of another one."
        )
    return Path(found).absolute()


def simulate(
    name: SimulatorName, python: Path, path: str | PathLike[str], x: Tensor, timeout: float, *, progress: bool = False
) -> dict[str, np.ndarray]:
    """Run a file in a simulator on x (T, B, n_in), blank steps included; its runner's arrays.

    When the time is up, the process and all that it started are killed.
    """
    runner = Path(__file__).parent / f"{SIMULATORS[name]}_runner.py"
    with tempfile.TemporaryDirectory() as folder:
        source, target, log = (Path(folder, part) for part in ("in.npz", "out.npz", "log"))
        deadline = time.monotonic() + timeout
        np.savez(source, allow_pickle=False, spikes=x.numpy().astype(np.uint8))
        # a session of its own, because a failing model leaves Lava's processes waiting for ever
        with (
            progress_bar(x.shape[1], desc=name, unit="sample", shown=progress) as bar,
            log.open("wb") as output,
            subprocess.Popen(
                [python, "-I", runner, Path(path).absolute(), source, target],
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ) as child,
        ):
            running = True
            try:
                while running:
                    running = child.poll() is None
                    if running and time.monotonic() > deadline:
                        raise TimeoutError(f"{name} did not finish {fspath(path)} in {timeout:g} s.")
                    if running:
                        with contextlib.suppress(subprocess.TimeoutExpired):
                            child.wait(timeout=min(0.2, timeout))
                    bar.update(log.read_text(errors="replace").count(DONE) - bar.n)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
        if child.returncode != 0 or not target.exists():
            raise RuntimeError(f"{name} failed on {fspath(path)}:\n{log.read_text(errors='replace')[-2000:]}")
        with np.load(target, allow_pickle=False) as file:
            return dict(file)
