"""Exported files verified: golden samples replayed, simulators run in processes of their own.

A simulator gets a file and input spikes, and writes the spikes and states of every layer (``simulator.py``).
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from neurolsc.display import Displayed, in_80_columns
from neurolsc.export.fixed_point import LIMIT, UNIT, AtrlifLayer, clip
from neurolsc.export.netx import changed_layers, read_with_golden, replay
from neurolsc.export.quantize import QuantizedNetwork

SimulatorName = Literal["Lava", "nengo-loihi"]
SIMULATORS: dict[SimulatorName, str] = {"Lava": "lava", "nengo-loihi": "nengo"}  # the short form, for environments
PER_SAMPLE = 60.0  # seconds that a simulator may take for a sample, and once more for its start


@dataclass(frozen=True)
class LayerAgreement:
    """Agreement of one integer layer with a reference, a file or simulator, on the reference's inputs."""

    spikes: int  # number of spikes of the reference
    agreement: float  # share of (step, sample, neuron) triples with the same spike
    # share of (step, sample, neuron) triples with the same state after the step. A file has only sums of states over
    # neurons: for golden samples it is the share of (step, sample) pairs with the same sum.
    state_agreement: float
    first_difference: int | None = None  # first step with a spike or state that differs; None if there is none


@dataclass(frozen=True, repr=False)
class Verification(Displayed):
    """What :func:`neurolsc.export.verify` found."""

    layers: tuple[LayerAgreement, ...]  # first layer first, without the readout
    steps: int
    samples: int
    tools: tuple[str, ...]  # names and versions of what ran
    logits: Tensor  # integer readout of what ran, at every step (T, B, C)
    # share of (step, sample, class) triples with the same logit; in Lava with the same sum of logits so far; for an
    # integrator with the same voltage and states
    readout_agreement: float
    readout_difference: int | None = None  # first step at which the readout differs; None if there is none
    simulated: bool = True  # False where only the golden samples were replayed
    others: tuple["Verification", ...] = ()  # of the golden samples and further simulators
    not_run: tuple[str, ...] = ()  # simulators that did not run, and why
    # layers of the file, 0 for its input, whose entries are not those that were written, by their digests (SHA-256)
    changed: tuple[int, ...] = ()

    @property
    def exact(self) -> bool:
        """True if every spike, state and readout is the same in all that ran, and the file is as it was written."""
        if self.changed:
            return False
        same = all(layer.agreement == layer.state_agreement == 1 for layer in self.layers)
        return same and self.readout_agreement == 1 and all(other.exact for other in self.others)

    def parts(self) -> list[str]:
        """Return the lines of the report: each layer, the readout, then the comparisons with further tools.

        Equal means that all tools gave the same value. The last lines say what did not run.
        """

        def where(step: int | None) -> str:
            if step is None:
                return ""
            return f", first difference at step {step}"

        lines = [f"{', '.join(self.tools)}: {self.samples} samples of {self.steps} steps"]
        for i, layer in enumerate(self.layers, start=1):
            equal = f"{layer.spikes} spikes, {layer.agreement:.4%} equal; states {layer.state_agreement:.4%} equal"
            lines.append(f"layer {i}: {equal}{where(layer.first_difference)}")
        lines.append(f"readout: {self.readout_agreement:.4%} equal{where(self.readout_difference)}")
        for other in self.others:
            lines += other.parts()
        if self.changed:
            layers = ", ".join(map(str, self.changed))
            lines.append(f"changed after the export, by their digests (SHA-256): layer {layers} of the file")
        for reason in self.not_run:  # it may quote what a simulator printed, whose lines are kept
            lines += map(in_80_columns, reason.splitlines())
        return lines


def verify(path: str | PathLike[str], spikes: Tensor | None = None) -> Verification:
    """Replay the golden samples of an exported file, and run it in simulators.

    A file of :func:`neurolsc.export.to_netx` holds golden samples: input, and the output of every layer and the
    readout. They are replayed through the integers in the file, each layer on the golden spikes of the layer below, so
    that a changed weight shows in its own layer. That needs no simulator. A weight that these samples never use shows
    in digests of the layers, which the file holds as well.

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
        RuntimeError: if Lava fails; the message holds its output.
    """
    quantized, golden = read_with_golden(path)
    changed = changed_layers(path)
    runs = []
    not_run = []
    if spikes is None and not golden:
        raise ValueError(f"{fspath(path)} holds no golden samples, and there are no spikes to run in Lava.")
    adaptive = [i for i, layer in enumerate(quantized.layers, start=1) if isinstance(layer, AtrlifLayer)]
    for name in SIMULATORS:
        if spikes is None:  # nothing to simulate
            break
        x = quantized.padded(spikes)
        try:
            if name == "nengo-loihi" and adaptive:
                raise RuntimeError(
                    f"layer {adaptive[0]} is an ALIF, and a compartment of Loihi 1 has a fixed threshold."
                )
            result = simulate(name, path, x)
        except (FileNotFoundError, TimeoutError, RuntimeError) as error:
            # Lava runs every file, and so must not fail where it is installed; nengo-loihi is a second opinion
            if name == "Lava" and not isinstance(error, FileNotFoundError):
                raise
            not_run.append(f"{name}: not run: {error}")
        else:
            found = {key: torch.from_numpy(value) for key, value in result.items() if key != "versions"}
            runs.append(_compared(quantized, found | {"spikes_0": x}, tuple(map(str, result["versions"]))))
    if golden:
        replayed = _compared(quantized, golden, ("golden samples through the integers of the file",))
        runs.append(replace(replayed, simulated=False))
    if not runs:
        raise FileNotFoundError("; ".join(not_run))
    return replace(runs[0], others=tuple(runs[1:]), not_run=tuple(not_run), changed=changed)


def _compared(quantized: QuantizedNetwork, found: dict[str, Tensor], tools: tuple[str, ...]) -> Verification:
    """Compare the integers, layer by layer, with what a file holds or a simulator returned.

    Each layer is run on the spikes that `found` has of the layer below.

    Args:
        quantized: the integers.
        found: by name, for layer i from 1: ``spikes_0``, the input, and ``spikes_i``, each (T, B, M); the states
            ``u_i``, ``v_i`` or ``theta_i`` (T, B, M) of a simulator, or their sums ``states_i`` (T, B) of a file;
            ``readout`` (T, B, C) of a file.
        tools: what ran, for the report.
    """

    def first(same: Tensor) -> int | None:
        """Return the first step at which an entry of `same` (T, ...) is False; None if all are True."""
        steps = (~same.flatten(1).all(1)).nonzero()
        if len(steps):
            return int(steps[0])
        return None

    layers = []
    count = len(quantized.layers)
    logits = torch.empty(0)
    same = torch.empty(0)
    for i, layer in enumerate(quantized.layers, start=1):
        ((z, values),) = replay([layer], found[f"spikes_{i - 1}"].double())
        states = {f"{name}_{i}": value for name, value in values.items()}
        states[f"states_{i}"] = torch.stack([*values.values()]).sum((0, 3))
        # (T, B, M), or of sums (T, B): `found` has either states or their sums
        same_states = torch.stack([value == found[name] for name, value in states.items() if name in found]).all(0)
        if i == count and quantized.integrates:
            logits = found["readout" if "readout" in found else f"v_{i}"].double()
            same = (z == logits) & same_states.view(*z.shape[:2], -1)
            continue  # an integrator is the readout, and counts as no layer of spikes
        same = z == found[f"spikes_{i}"]
        difference = first(same.all(2) & same_states.view(*z.shape[:2], -1).all(2))
        layers.append(
            LayerAgreement(
                spikes=int(found[f"spikes_{i}"].sum()),
                agreement=same.double().mean().item(),
                state_agreement=same_states.double().mean().item(),
                first_difference=difference,
            )
        )
    if not quantized.integrates:
        logits = quantized.logits(found[f"spikes_{count}"].double())
        same = torch.ones_like(logits, dtype=torch.bool)  # of nengo-loihi, which has no readout
        if "readout" in found:
            same = logits == found["readout"]
        elif f"v_{count + 1}" in found:  # Lava's readout adds up, and reads the last layer one step late
            expected = UNIT * (logits.cumsum(0) - logits)
            inside = (expected - 1 + LIMIT) % (2 * LIMIT) + 1 - LIMIT  # as `wrap`, but a sum may wrap more than once
            same = clip(inside) == found[f"v_{count + 1}"]
    steps = logits.shape[0] - quantized.latency
    samples = logits.shape[1]
    on_time = quantized.on_time(logits, quantized.latency)
    return Verification(
        layers=tuple(layers),
        steps=steps,
        samples=samples,
        tools=tools,
        logits=on_time,
        readout_agreement=same.double().mean().item(),
        readout_difference=first(same),
    )


def find_python(name: SimulatorName) -> Path:
    """Return the Python that a simulator's environment variable names, else that of its environment in this folder.

    FileNotFoundError if there is no such Python.
    """
    short = SIMULATORS[name]
    variable = f"NEUROLSC_{short.upper()}_PYTHON"
    wanted = os.environ.get(variable) or f".{short}-env/bin/python"
    found = shutil.which(wanted)
    if found is None:
        raise FileNotFoundError(
            f"no {name} environment: {wanted} is not there. `make {short}-env` creates .{short}-env in a checkout of neurolsc; "
            f"{variable} names the Python of another one."
        )
    return Path(found).absolute()


def simulate(name: SimulatorName, path: str | PathLike[str], x: Tensor) -> dict[str, np.ndarray]:
    """Run a file on x (T, B, n_in) in a process of a simulator; return the arrays that it wrote, by name.

    Names and shapes are those of ``simulator.py``. When the run ends, or its time is up, the process and all processes
    that it started are killed.

    Raises:
        FileNotFoundError: if the simulator is not installed.
        TimeoutError: if it takes longer than a minute for each sample and one more.
        RuntimeError: if it fails; the message holds the end of its output.
    """
    timeout = PER_SAMPLE * (1 + x.shape[1])
    script = Path(__file__).with_name("simulator.py")
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder, "in.npz"), allow_pickle=False, spikes=x.numpy().astype(np.uint8))
        command = [find_python(name), "-I", script, name, Path(path).absolute(), "in.npz", "out.npz"]
        # a session of its own, because a failing model leaves Lava's processes waiting for ever
        with (
            Path(folder, "log").open("w+b") as log,
            subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, start_new_session=True) as child,
        ):
            try:
                child.wait(timeout)
            except subprocess.TimeoutExpired:
                raise TimeoutError(f"{name} did not finish {fspath(path)} in {timeout:g} s.") from None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
        if child.returncode != 0:
            text = Path(folder, "log").read_text(errors="replace")
            raise RuntimeError(f"{name} failed on {fspath(path)}:\n{text[-2000:]}")
        with np.load(Path(folder, "out.npz"), allow_pickle=False) as file:
            return dict(file)
