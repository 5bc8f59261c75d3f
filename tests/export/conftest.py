"""Simulators of exported files."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from neurolsc.export import AtrlifLayer, read_netx
from neurolsc.export.verify import SIMULATORS, find_python, simulate

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def simulators() -> Iterator[None]:
    """Lava's environment of this checkout, and nengo-loihi's where it is there."""
    with pytest.MonkeyPatch.context() as patch:
        for name, folder in (("NEUROLSC_LAVA_PYTHON", ".lava-env"), ("NEUROLSC_NENGO_PYTHON", ".nengo-env")):
            patch.setenv(name, os.environ.get(name) or str(ROOT / folder / "bin" / "python"))
        try:
            find_python("Lava")
        except FileNotFoundError as error:
            pytest.skip(str(error))
        yield


@pytest.fixture(scope="module")
def simulate_at_once(simulators) -> Iterator[Callable[[list[tuple[Path, Tensor]]], None]]:
    """Runs many files in one process of each simulator, which start slowly; ``verify`` then finds the results."""
    done: dict[tuple[str, str], Any] = {}

    def run(jobs: list[tuple[Path, Tensor]]) -> None:
        files = [(path, read_netx(path), x) for path, x in jobs]
        for name in SIMULATORS:
            chosen = [
                (path, network.padded(x))
                for path, network, x in files
                if name == "Lava" or not any(isinstance(layer, AtrlifLayer) for layer in network.layers)
            ]
            try:
                results = simulate(name, chosen)
            except FileNotFoundError:
                continue
            done.update({(name, str(path)): found for (path, _), found in zip(chosen, results, strict=True)})

    def found(name: Any, jobs: list[tuple[Path, Tensor]]) -> list[Any]:
        known = [done[name, str(path)] for path, _ in jobs if (name, str(path)) in done]
        return known or simulate(name, jobs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["neurolsc.export.verify"], "simulate", found)
        yield run
