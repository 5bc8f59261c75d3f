"""Simulators in environments of their own: where they are, and a run that cannot hang us."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from os import PathLike, fspath
from pathlib import Path
from typing import Literal

import numpy as np
from torch import Tensor
from tqdm import tqdm

from neurolsc.progress import progress_bar

__all__ = ["SimulatorName", "find_python", "simulate"]

SimulatorName = Literal["Lava", "nengo-loihi"]

SHORT = {"Lava": "lava", "nengo-loihi": "nengo"}
"""in the names of environments, variables and runners"""
DONE = "neurolsc: a sample is done"
"""what a runner says after each sample, on a line of its own"""


def find_python(name: SimulatorName, python: str | PathLike[str] | None = None) -> Path:
    """The Python given, else the one the variable names, else the environment's below this folder.

    Raises:
        FileNotFoundError: if there is none; the message says how to make one.
    """
    short = SHORT[name]
    variable = f"NEUROLSC_{short.upper()}_PYTHON"
    given = python or os.environ.get(variable) or Path(f".{short}-env/bin/python")
    found = shutil.which(fspath(given))
    if found is None:
        raise FileNotFoundError(
            f"no {name} environment: {given} is not there. `make {short}-env` creates .{short}-env in a checkout of neurolsc; "
            f"{variable} names the Python of another one."
        )
    return Path(found).absolute()


def simulate(
    name: SimulatorName, python: Path, path: str | PathLike[str], x: Tensor, timeout: float, *, progress: bool = False
) -> dict[str, np.ndarray]:
    """Run a file in a simulator; what its runner wrote.

    Args:
        name: which one; its runner lies beside this file.
        python: of its environment.
        path: the exported file.
        x: spikes (T, B, n_in), 0 or 1.
        timeout: seconds, after which the process and all that it started are killed.
        progress: show a bar over the samples.

    Raises:
        TimeoutError: if it does not finish.
        RuntimeError: if it fails; with what it said.
    """
    runner = Path(__file__).parent / f"{SHORT[name]}_runner.py"
    with tempfile.TemporaryDirectory() as folder:
        source, target, said = (Path(folder, part) for part in ("in.npz", "out.npz", "said"))
        deadline = time.monotonic() + timeout
        np.savez(source, allow_pickle=False, spikes=x.numpy().astype(np.uint8))
        # a session of its own, because a failing model leaves Lava's processes waiting for ever
        with (
            progress_bar(x.shape[1], desc=name, unit="sample", shown=progress) as bar,
            said.open("wb") as output,
            subprocess.Popen(
                [python, "-I", runner, Path(path).absolute(), source, target],
                cwd=folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ) as child,
        ):
            try:
                while child.poll() is None:
                    if time.monotonic() > deadline:
                        raise TimeoutError(f"{name} did not finish {fspath(path)} in {timeout:g} s.")
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(timeout=min(0.2, timeout))
                    _advance(bar, said)
                _advance(bar, said)  # it may have spoken after the last look, before it ended
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
        if child.returncode != 0 or not target.exists():
            raise RuntimeError(f"{name} failed on {fspath(path)}:\n{said.read_text(errors='replace')[-2000:]}")
        with np.load(target, allow_pickle=False) as file:
            return dict(file)


def _advance(bar: tqdm, said: Path) -> None:
    """Move a bar to the number of samples that were said to be done."""
    bar.update(said.read_text(errors="replace").count(DONE) - bar.n)
