"""What tests of sweeps share."""

import functools

import pytest

from neurolsc.experiment import DataSettings

_load = functools.cache(DataSettings.load)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what takes longer than a small training: pictures, and reading the data anew."""
    monkeypatch.setattr("neurolsc.training.TrainResult.plot", lambda *_, **__: None)
    monkeypatch.setattr(DataSettings, "load", lambda self, split: _load(self, split))
