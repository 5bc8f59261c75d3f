"""Simulators of exported files."""

import os
from pathlib import Path

import pytest

from neurolsc.export.verify import find_python

ROOT = Path(__file__).parents[2]


@pytest.fixture
def simulators(monkeypatch):
    """Lava's environment of this checkout, and nengo-loihi's where it is there."""
    for name, folder in (("NEUROLSC_LAVA_PYTHON", ".lava-env"), ("NEUROLSC_NENGO_PYTHON", ".nengo-env")):
        monkeypatch.setenv(name, os.environ.get(name) or str(ROOT / folder / "bin" / "python"))
    try:
        find_python("Lava")
    except FileNotFoundError as error:
        pytest.skip(str(error))
