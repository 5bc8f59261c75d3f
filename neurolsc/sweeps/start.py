"""What is measured of every trial's network before it is trained."""

import math
import os
import platform
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

import neurolsc
from neurolsc import metrics
from neurolsc.diagnosis.batch import Given
from neurolsc.diagnosis.figures import measure
from neurolsc.experiment import Experiment
from neurolsc.modes import evaluating
from neurolsc.network import Network
from neurolsc.stability.profile import draw_steps
from neurolsc.stability.recurrence import recurrence_radius
from neurolsc.stability.transition import follow

Statistic = float | Sequence[float | None] | None
"""a number, or one per layer; None where there is none"""
SAMPLES = 32
"""training samples that rates are taken of"""
FEW, TIMES = 4, 8
"""samples, and time steps drawn at random, that derivatives are taken at"""


def statistics(network: Network, experiment: Experiment) -> dict[str, Statistic]:
    """Figures of a network before its training, each a number or a list with one per layer.

    Every key becomes columns of the table, with ``start_`` before it. Beside radii, rates and
    silent steps they are the measures of :func:`neurolsc.diagnose`, and the radius of the
    recurrence alone.

    Args:
        network: the network; it stays as it is.
        experiment: what the network is of; its training samples are the input.
    """
    given = Given.of(experiment.first_samples("train", SAMPLES), network)
    few, seed = given.few(FEW), experiment.network.seed
    how: dict[str, Any] = {"samples": FEW, "steps": TIMES, "epsilon": 1e-8, "seed": seed, "progress": False}
    found = measure(network, given, experiment.data.task, **how)
    with evaluating(network), torch.no_grad():
        spikes = network.run(given.x, mask=given.mask).spikes
        times = draw_steps(len(few), min(TIMES, len(few)), torch.Generator().manual_seed(seed))
        recurrence = [recurrence_radius(t).mean().item() for t in follow(network, few, times)[0]]
    binary = all(metrics.is_binary(layer) for layer in spikes)
    told: dict[str, Statistic] = {
        "time_radius": found.profile.time_mean.tolist(),
        "depth_radius": found.profile.depth_mean.tolist(),
        "recurrence_radius": recurrence,
        "firing_rate": [metrics.firing_rate(layer, given.mask) for layer in spikes] if binary else None,
        "silent_steps": [metrics.silent_steps(layer, given.mask) for layer in spikes] if binary else None,
    }
    for name in ("exponent", "singular_time", "singular_depth", "usable", "survives", "gradient", "noise"):
        told[name] = [finite(getattr(layer, name)) for layer in found.layers]
    return told


def finite(value: float | None) -> float | None:
    """A finite number; None in the place of what is none, or not measured."""
    return value if value is not None and math.isfinite(value) else None


def environment(device: str = "cpu") -> dict[str, Any]:
    """What a trial ran on: versions and the kinds of machine and device, without their names."""
    on_a_gpu = device.startswith("cuda") and torch.cuda.is_available()
    return {
        "neurolsc": neurolsc.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "device": torch.cuda.get_device_name(device) if on_a_gpu else device,
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
