"""What is measured of every trial's network before it is trained."""

import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch

import neurolsc
from neurolsc import metrics
from neurolsc.experiment import Experiment
from neurolsc.network import Network
from neurolsc.stability import radius_profile

SAMPLES = 32
"""training samples that rates are taken of"""
RADII, TIMES = 4, 8
"""samples, and time steps drawn at random, that radii are taken of"""


@torch.no_grad()
def statistics(network: Network, experiment: Experiment) -> dict[str, float | list[float] | None]:
    """Figures of a network before its training: each a number, or a list with one per layer.

    Every key becomes columns of the table, with ``start_`` before it.

    Args:
        network: the network; it stays as it is.
        experiment: what the network is of; its training samples are the input.
    """
    x, _, *rest = experiment.first_samples("train", SAMPLES)
    mask = rest[0] if rest else None
    x = x.to(**network.dtype_and_device)
    spikes = network.run(x, mask=mask).spikes
    steps = min(TIMES, x.shape[0])
    profile = radius_profile(network, x[:, :RADII], steps=steps, seed=experiment.network.seed)
    binary = all(metrics.is_binary(layer) for layer in spikes)
    return {
        "time_radius": profile.time_mean.tolist(),
        "depth_radius": profile.depth_mean.tolist(),
        "firing_rate": [metrics.firing_rate(layer, mask) for layer in spikes] if binary else None,
        "silent_steps": [metrics.silent_steps(layer, mask) for layer in spikes] if binary else None,
    }


def environment() -> dict[str, Any]:
    """What a trial ran on: versions and the kind of machine, without its name."""
    return {
        "neurolsc": neurolsc.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
    }


@cache
def _commit() -> str | None:
    """The commit of the package, with a + if files differ from it; None outside of a checkout."""
    here = Path(neurolsc.__file__).parent

    def git(*words: str) -> str | None:
        try:
            return subprocess.run(["git", *words], cwd=here, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return None

    if git("ls-files", "--error-unmatch", "__init__.py") is None:  # installed inside of another checkout, or none
        return None
    commit, changed = git("rev-parse", "HEAD"), git("status", "--porcelain", "--untracked-files=no", ".")
    return f"{commit}+" if changed else commit
