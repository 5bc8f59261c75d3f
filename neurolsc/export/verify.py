"""Exported files verified: golden samples replayed, simulators run in processes of their own.

A simulator gets a file and input spikes, and writes the spikes and states of every layer (``simulator.py``).
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from neurolsc.display import Displayed
from neurolsc.export.fixed_point import LIMIT, UNIT, AtrlifLayer, clip, integer_steps
from neurolsc.export.netx import Golden, read_with_golden, replay
from neurolsc.export.quantize import QuantizedNetwork

__all__ = ["LayerAgreement", "Verification", "find_python", "simulate", "verify"]

SimulatorName = Literal["Lava", "nengo-loihi"]
SIMULATORS: dict[SimulatorName, str] = {"Lava": "lava", "nengo-loihi": "nengo"}  # in names of environments
PER_SAMPLE = 60.0  # seconds of a simulator for a sample, and once for its start


@dataclass(frozen=True)
class LayerAgreement:
    """Agreement of a layer's spikes in two runs."""

    spikes: int  # of the run that is compared with
    agreement: float  # share of (step, sample, neuron) triples with the same spike
    # the same of the states after each step; of golden samples the share of (step, sample) with the
    # same sum of states
    state_agreement: float
    first_difference: int | None = None  # first step with another spike (golden: or state)


@dataclass(frozen=True, repr=False)
class Verification(Displayed):
    """What :func:`neurolsc.export.verify` found."""

    layers: tuple[LayerAgreement, ...]  # first layer first, without the readout
    steps: int
    samples: int
    tools: tuple[str, ...]  # names and versions of what ran
    logits: Tensor  # its integer readout at every step (T, B, C)
    # share of (step, sample, class) with the same logit, in Lava the same sum of logits so far, or
    # the same state of an integrator
    readout_agreement: float
    readout_difference: int | None = None  # first step at which a logit of a golden sample differs
    simulated: bool = True  # False where only the golden samples were replayed
    others: tuple["Verification", ...] = ()  # of the golden samples and further simulators
    not_run: tuple[str, ...] = ()  # simulators that did not run, and why

    @property
    def exact(self) -> bool:
        """True if every spike, state and readout is the same in all that ran."""
        same = all(layer.agreement == layer.state_agreement == 1 for layer in self.layers)
        return same and self.readout_agreement == 1 and all(other.exact for other in self.others)

    def parts(self) -> list[str]:
        """A line for each layer."""

        def where(step: int | None) -> str:
            return "" if step is None else f", first difference at step {step}"

        lines = [f"{', '.join(self.tools)}: {self.samples} samples of {self.steps} steps"]
        for i, layer in enumerate(self.layers, start=1):
            equal = f"{layer.spikes} spikes, {layer.agreement:.4%} equal; states {layer.state_agreement:.4%} equal"
            lines.append(f"layer {i}: {equal}{where(layer.first_difference)}")
        lines.append(f"readout: {self.readout_agreement:.4%} equal{where(self.readout_difference)}")
        return [*lines, *(line for other in self.others for line in other.parts()), *self.not_run]


def verify(path: str | PathLike[str], spikes: Tensor | None = None) -> Verification:
    """Replay the golden samples of an exported file, and run it in simulators.

    A file of :func:`neurolsc.export.to_netx` holds golden samples: input, and the output of every layer and the
    readout. They are replayed through the integers in the file, each layer on the golden spikes of the layer below, so
    that a changed weight shows in its own layer. That needs no simulator.

    With spikes, Lava and nengo-loihi run the file, too, where they are installed, and are compared with the integers
    spike by spike, state by state. nengo-loihi takes LIF layers only, and checks what Lava does not: overflows of a
    step's input (21 bits) and of the current (23 bits). Lava's Python is ``NEUROLSC_LAVA_PYTHON``, else that of
    ``.lava-env`` in the working folder; nengo-loihi's ``NEUROLSC_NENGO_PYTHON``, ``.nengo-env``.

    Args:
        path: the file.
        spikes: input (T, B, n_in), 0 or 1; every sample is a run of its own, which takes a second or two.

    Raises:
        ValueError: if the file or the spikes do not fit, or it holds no golden samples and there are no spikes.
        FileNotFoundError: if there is no simulator and the file holds no golden samples.
        TimeoutError: if Lava takes more than a minute for a sample.
        RuntimeError: if it fails; with its output.
    """
    quantized, golden = read_with_golden(path)
    replayed = [] if golden is None else [_replayed(quantized, golden)]
    if spikes is None:
        if not replayed:
            raise ValueError(f"{fspath(path)} holds no golden samples, and there are no spikes to run in Lava.")
        return replayed[0]
    x = quantized.padded(spikes)
    runs, not_run = [], []
    adaptive = [i for i, layer in enumerate(quantized.layers, start=1) if isinstance(layer, AtrlifLayer)]
    for name in SIMULATORS:
        if name == "nengo-loihi" and adaptive:
            reason = f"layer {adaptive[0]} is an ALIF, and a compartment of Loihi 1 has a fixed threshold."
            not_run.append(f"{name}: not run: {reason}")
            continue
        try:
            runs.append(_compared(quantized, x, simulate(name, [(path, x)])[0]))
        except (FileNotFoundError, TimeoutError, RuntimeError) as error:
            if name == "Lava" and not isinstance(error, FileNotFoundError):
                raise
            not_run.append(f"{name}: not run: {error}")
    if not runs and not replayed:
        raise FileNotFoundError("; ".join(not_run))
    first, *others = [*runs, *replayed]
    return replace(first, others=tuple(others), not_run=tuple(not_run))


def _replayed(quantized: QuantizedNetwork, golden: Golden) -> Verification:
    """The golden samples through integers, each layer alone."""
    below = [z.double() for z in golden.spikes]
    sent = [*below[1:], golden.readout]  # the last one by an integrator
    layers, z, same_states = [], torch.empty(0), torch.empty(0)
    for layer, x, wanted, states in zip(quantized.layers, below, sent, golden.states, strict=False):
        ((z,), (sums,)) = replay([layer], x)
        same_spikes, same_states = z == wanted, sums == states
        first = first_step(~same_spikes.all(2) | ~same_states)
        shares = same_spikes.double().mean().item(), same_states.double().mean().item()
        layers.append(LayerAgreement(int(wanted.sum()), *shares, first))
    logits = quantized.logits(z if quantized.integrates else below[-1])
    same = logits == golden.readout
    if quantized.integrates:
        layers.pop()
        same &= same_states.unsqueeze(2)
    return Verification(
        tuple(layers),
        steps=len(same) - quantized.latency,
        samples=same.shape[1],
        tools=("golden samples through the integers of the file",),
        logits=quantized.on_time(logits, quantized.latency),
        readout_agreement=same.double().mean().item(),
        readout_difference=first_step(~same),
        simulated=False,
    )


def _compared(quantized: QuantizedNetwork, x: Tensor, result: dict[str, Any]) -> Verification:
    """A simulator's result against the steps of the integers."""
    with torch.no_grad():
        steps = list(integer_steps(quantized.layers, x))
    count = len(quantized.layers)
    layers, z, theirs = [], torch.empty(0), torch.empty(0)
    for i in range(count):
        states, z = [step.states[i] for step in steps], torch.stack([step.spikes[i] for step in steps])
        equal = [
            torch.stack([getattr(state, name) for state in states]) == torch.from_numpy(result[f"{name}_{i + 1}"])
            for name in states[0]._fields
        ]
        integrates = quantized.integrates and i == count - 1
        theirs = torch.from_numpy(result[f"v_{i + 1}" if integrates else f"spikes_{i + 1}"])
        shares = (z == theirs).double().mean().item(), min(same.double().mean().item() for same in equal)
        layers.append(LayerAgreement(int(z.sum()), *shares, first_step(z != theirs)))
    logits = quantized.logits(theirs.double())
    if quantized.integrates:
        readout_agreement = layers.pop().state_agreement
    else:
        same = logits == quantized.logits(z)
        if f"v_{count + 1}" in result:  # Lava's readout adds up, and reads the last layer one step late
            expected = UNIT * (logits.cumsum(0) - logits)
            inside = (expected - 1 + LIMIT) % (2 * LIMIT) + 1 - LIMIT  # a sum may wrap more than once
            same = clip(inside) == torch.from_numpy(result[f"v_{count + 1}"])
        readout_agreement = same.double().mean().item()
    return Verification(
        tuple(layers),
        steps=len(logits) - quantized.latency,
        samples=logits.shape[1],
        tools=tuple(str(tool) for tool in result["versions"]),
        logits=quantized.on_time(logits, quantized.latency),
        readout_agreement=readout_agreement,
    )


def first_step(differs: Tensor) -> int | None:
    """The first step of (T, ...) at which something differs; None if nothing does."""
    steps = differs.flatten(1).any(1).nonzero()
    return int(steps[0]) if len(steps) else None


def find_python(name: SimulatorName) -> Path:
    """A simulator's Python: its variable's, or its environment's in this folder."""
    short = SIMULATORS[name]
    variable = f"NEUROLSC_{short.upper()}_PYTHON"
    wanted = os.environ.get(variable) or f".{short}-env/bin/python"
    if (found := shutil.which(wanted)) is None:
        raise FileNotFoundError(
            f"no {name} environment: {wanted} is not there. `make {short}-env` creates .{short}-env in a checkout of neurolsc; "
            f"{variable} names the Python of another one."
        )
    return Path(found).absolute()


def simulate(name: SimulatorName, jobs: Sequence[tuple[str | PathLike[str], Tensor]]) -> list[dict[str, np.ndarray]]:
    """Run files in one process of a simulator on x (T, B, n_in) each; the arrays that it wrote.

    When the time is up, the process and all that it started are killed.
    """
    timeout = PER_SAMPLE * (1 + sum(x.shape[1] for _, x in jobs))
    command: list[str | PathLike[str]] = [find_python(name), "-I", Path(__file__).with_name("simulator.py"), name]
    with tempfile.TemporaryDirectory() as folder:
        for i, (path, x) in enumerate(jobs):
            np.savez(Path(folder, f"in_{i}.npz"), allow_pickle=False, spikes=x.numpy().astype(np.uint8))
            command += [Path(path).absolute(), f"in_{i}.npz", f"out_{i}.npz"]
        # a session of its own, because a failing model leaves Lava's processes waiting for ever
        with (
            Path(folder, "log").open("w+b") as log,
            subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True) as child,
        ):
            try:
                child.wait(timeout)
            except subprocess.TimeoutExpired:
                raise TimeoutError(f"{name} did not finish {fspath(jobs[0][0])} in {timeout:g} s.") from None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
        if child.returncode != 0:
            text = Path(folder, "log").read_text(errors="replace")
            raise RuntimeError(f"{name} failed on {fspath(jobs[0][0])}:\n{text[-2000:]}")
        results = []
        for i in range(len(jobs)):
            with np.load(Path(folder, f"out_{i}.npz"), allow_pickle=False) as file:
                results.append(dict(file))
        return results
