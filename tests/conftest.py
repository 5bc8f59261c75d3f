"""What the tests share: a fresh seed for each, and networks with inputs under which they fire."""

import functools
import os
from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import settings
from torch import Tensor

from neurolsc import ALIFPlus, Cell, Network
from neurolsc.experiment import DataSettings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is first imported: kernels run on the CPU

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests first: at the end the workers share many quick ones, and none waits for the other."""
    items.sort(key=is_quick)


def is_quick(item: pytest.Item) -> bool:
    return not any(item.get_closest_marker(name) for name in ("slow", "long"))


@pytest.fixture(autouse=True)
def fresh_torch() -> Iterator[None]:
    """Every test starts from the same seed and leaves torch's default dtype as it was."""
    dtype = torch.get_default_dtype()
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(dtype)


@pytest.fixture
def float64(fresh_torch: None) -> None:
    """Tensors and parameters are double in this test."""
    torch.set_default_dtype(torch.float64)


@pytest.fixture
def make_spikes() -> Callable[..., Tensor]:
    """Random input spikes (T, B, N) in torch's default dtype."""

    def make(T: int = 20, B: int = 6, N: int = 30, *, rate: float = 0.2, seed: int = 1) -> Tensor:
        random = torch.rand(T, B, N, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        return (random < rate).to(torch.get_default_dtype())

    return make


@pytest.fixture
def make_network() -> Callable[..., Network]:
    """A small network; at an input gain of 2 or more all its layers fire on those spikes."""

    def make(
        cell: type[Cell] = ALIFPlus,
        *,
        n_in: int = 30,
        width: int = 16,
        layers: int = 2,
        layer_delay: int = 1,
        gain: float = 1.0,
        seed: int = 0,
        **settings: object,
    ) -> Network:
        torch.manual_seed(seed)
        widths = [n_in, *[width] * layers]
        cells = [cell(below, width, **settings) for below in widths[:-1]]
        with torch.no_grad():
            for made in cells:
                made.w_in.mul_(gain)
        return Network(cells, n_out=4, layer_delay=layer_delay)

    return make


_load = functools.cache(DataSettings.load)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what takes longer than a small training: pictures, and reading the data anew."""
    monkeypatch.setattr("neurolsc.training.TrainResult.plot", lambda *_, **__: None)
    monkeypatch.setattr(DataSettings, "load", lambda self, split: _load(self, split))
