"""What tests of figures share."""

import functools

import pytest

from neurolsc.experiment.config import DataSettings

_load = functools.cache(DataSettings.load)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what takes longer than a small training: pictures of runs, reading data."""
    monkeypatch.setattr("neurolsc.training.TrainResult.plot", lambda *_, **__: None)
    monkeypatch.setattr(DataSettings, "load", lambda self, split: _load(self, split))
