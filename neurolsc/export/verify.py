"""The exported file against Lava's bit-accurate simulator, spike by spike."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm

from neurolsc.export.fixed_point import LIMIT, UNIT, AlifState, clip, moments
from neurolsc.export.lava_runner import DONE
from neurolsc.export.netx import read_netx

__all__ = ["LayerAgreement", "Verification", "find_lava", "verify"]

RUNNER = Path(__file__).parent / "lava_runner.py"


@dataclass(frozen=True)
class LayerAgreement:
    """One layer of the integer model beside the same layer in the simulator."""

    spikes: int
    """spikes of the integer model; agreement of silence says little"""
    agreement: float
    """share of (step, sample, neuron) triples with the same spike"""
    state_agreement: float
    """the same of current and voltage, or voltage and threshold, after every step"""
    first_difference: int | None
    """the first step at which a spike differs, counted from 0 with blank steps; None if none does"""


@dataclass(frozen=True)
class Verification:
    """What :func:`verify` found."""

    layers: tuple[LayerAgreement, ...]
    """first layer first, readout left out"""
    steps: int
    samples: int
    tools: tuple[str, ...]
    """names and versions of what ran"""
    spikes: tuple[Tensor, ...]
    """the simulator's, each (T, B, M), without blank steps and bias neurons"""
    logits: Tensor
    """integer readout of them at every step (T, B, C)"""
    expected_logits: Tensor
    """the same of the integer model's spikes"""
    readout_agreement: float
    """share of (step, sample, class) triples in which the simulator's readout holds the sum of the logits so far"""

    @property
    def exact(self) -> bool:
        """Whether every spike and every state is the same, and the readout's sums are."""
        return self.readout_agreement == 1 and all(
            layer.agreement == layer.state_agreement == 1 for layer in self.layers
        )

    def __str__(self) -> str:
        """One line per layer."""
        lines = [f"{', '.join(self.tools)}: {self.samples} samples of {self.steps} steps"]
        for i, layer in enumerate(self.layers, start=1):
            where = "" if layer.first_difference is None else f", first difference at step {layer.first_difference}"
            lines.append(
                f"layer {i}: {layer.spikes} spikes, {layer.agreement:.4%} equal; states {layer.state_agreement:.4%} equal{where}"
            )
        lines.append(f"readout: {self.readout_agreement:.4%} of the sums equal")
        return "\n".join(lines)


def verify(
    path: str | PathLike[str],
    spikes: Tensor,
    *,
    python: str | PathLike[str] | None = None,
    timeout: float = 600.0,
    progress: bool = False,
) -> Verification:
    """Run an exported file in Lava's simulator and compare it with the integer model, spike by spike.

    Lava runs in a process of its own, in another environment; when the time is up, it and all that it started are killed.

    Args:
        path: the file.
        spikes: input (T, B, n_in), 0 or 1; every sample is a run of its own, which takes a second or two.
        python: Python of the Lava environment; by default :func:`find_lava`.
        timeout: seconds for all samples.
        progress: show a bar over the samples.

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
    with tqdm(total=x.shape[1], desc="Lava", unit="sample", disable=not progress) as bar:
        result = _simulate(find_lava(python), path, x, timeout, bar)
    run = list(moments(quantized.layers, x))
    agreements, simulated = [], []
    for i in range(len(quantized.layers)):
        ours = torch.stack([moment.spikes[i] for moment in run])
        theirs = torch.from_numpy(result[f"spikes_{i + 1}"])
        names = AlifState._fields if isinstance(run[0].states[i], AlifState) else ("u", "v")
        equal = [
            (torch.stack([getattr(m.states[i], name) for m in run]) == torch.from_numpy(result[f"{name}_{i + 1}"]))
            .double()
            .mean()
            .item()
            for name in names
        ]
        differs = (ours != theirs).flatten(1).any(1).nonzero()
        agreements.append(
            LayerAgreement(
                spikes=int(ours.sum()),
                agreement=(ours == theirs).double().mean().item(),
                state_agreement=min(equal),
                first_difference=int(differs[0]) if len(differs) else None,
            )
        )
        simulated.append(theirs)
    logits = simulated[-1].double() @ quantized.readout.T
    sums = torch.from_numpy(result[f"v_{len(quantized.layers) + 1}"])
    expected = UNIT * (logits.cumsum(0) - logits)  # the readout reads the last layer one step late
    inside = (expected - 1 + LIMIT) % (2 * LIMIT) + 1 - LIMIT  # a sum may wrap more than once
    return Verification(
        tuple(agreements),
        steps=spikes.shape[0],
        samples=spikes.shape[1],
        tools=tuple(str(tool) for tool in result["versions"]),
        spikes=quantized.cropped(simulated),
        logits=logits[quantized.blank_steps :],
        expected_logits=torch.stack([m.spikes[-1] for m in run])[quantized.blank_steps :] @ quantized.readout.T,
        readout_agreement=(clip(inside) == sums).double().mean().item(),
    )


def find_lava(python: str | PathLike[str] | None = None) -> Path:
    """The Python of the Lava environment: the one given, else ``NEUROLSC_LAVA_PYTHON``, else ``.lava-env`` below this folder.

    Raises:
        FileNotFoundError: if there is none; the message says how to make one.
    """
    given = python or os.environ.get("NEUROLSC_LAVA_PYTHON") or Path(".lava-env/bin/python")
    found = shutil.which(fspath(given))
    if found is None:
        raise FileNotFoundError(
            f"no Lava environment: {given} is not there. `make lava-env` creates .lava-env in a checkout of neurolsc; "
            "NEUROLSC_LAVA_PYTHON names the Python of another one."
        )
    return Path(found).absolute()


def _simulate(
    python: Path, path: str | PathLike[str], x: Tensor, timeout: float, bar: "tqdm[NoReturn]"
) -> dict[str, np.ndarray]:
    """What the runner wrote."""
    with tempfile.TemporaryDirectory() as folder:
        source, target, said = (Path(folder, name) for name in ("in.npz", "out.npz", "said"))
        np.savez(source, allow_pickle=False, spikes=x.numpy().astype(np.uint8))
        deadline = time.monotonic() + timeout
        # a session of its own, because a failing model leaves Lava's processes waiting for ever
        with (
            said.open("wb") as output,
            subprocess.Popen(
                [python, "-I", RUNNER, Path(path).absolute(), source, target],
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ) as child,
        ):
            try:
                while child.poll() is None:
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"Lava did not finish {fspath(path)} in {timeout:g} s.")
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(timeout=min(0.2, timeout))
                    bar.update(said.read_text(errors="replace").count(DONE) - bar.n)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
        if child.returncode != 0 or not target.exists():
            raise RuntimeError(f"Lava failed on {fspath(path)}:\n{said.read_text(errors='replace')[-2000:]}")
        with np.load(target, allow_pickle=False) as file:
            return dict(file)
