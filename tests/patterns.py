"""A tiny task that a small network learns, commands in this process, trainings that stop."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from click.testing import CliRunner
from torch import Tensor, nn

from neurolsc import LIF, ALIFPlus, LIFState, Network, train
from neurolsc.cli import app
from neurolsc.neurons import Cell
from neurolsc.training import PAPER

T, N, CLASSES = 12, 6, 3


class Patterns:
    """Class c spikes more in channels 2c and 2c + 1; drawn from a seed."""

    def __init__(self, size: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.arange(size) % CLASSES
        rate = torch.full((size, N), 0.1)
        rate[torch.arange(size).unsqueeze(1), 2 * self.labels.unsqueeze(1) + torch.tensor([0, 1])] = 0.7
        self.x = (torch.rand(size, T, N, generator=generator) < rate.unsqueeze(1)).to(torch.uint8)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int, /) -> tuple[Tensor, int]:
        return self.x[index], int(self.labels[index])


def small_network(seed: int = 0, readout_bias: bool = False) -> Network:
    torch.manual_seed(seed)
    cells = [ALIFPlus(N, 8, tau_theta=10.0), LIF(8, 8, threshold=0.3)]
    return Network(cells, CLASSES, readout_bias=readout_bias)


def weights(network: Network) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


def same_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k].view(torch.int32), b[k].view(torch.int32)) for k in a)


QUIET: dict[str, Any] = PAPER | {"batch_size": 8, "lr": 5e-3, "progress": False}


class Spy(Patterns):
    """Notes the order in which its items are read."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.asked: list[int] = []

    def __getitem__(self, index: int, /) -> tuple[Tensor, int]:
        self.asked.append(index)
        return super().__getitem__(index)


class Leak(Cell):
    """Differentiable, without spikes: h[t] = h[t-1] / 2 + W x."""

    def __init__(self, n_in: int, n_hidden: int, dropout: float = 0.0) -> None:
        super().__init__(n_in, n_hidden)
        self.w = nn.Parameter(torch.randn(n_hidden, n_in))
        self.dropout = nn.Dropout(dropout)

    def initial_state(self, batch: int) -> Any:
        return LIFState(torch.zeros(batch, self.n_hidden))

    def output(self, state: Any) -> Tensor:
        return state.v

    def update(self, x: Tensor, z: Tensor, state: Any) -> Any:
        return type(state)(state.v / 2 + self.dropout(x) @ self.w.T)


def succeed(*words: str | Path) -> str:
    """What a command prints."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.output


def refused(*words: str | Path) -> str:
    """What a command prints that ends with an error, which is no traceback."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code != 0 and "Traceback" not in result.output
    return result.output


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def stopped(error: BaseException, epochs: int) -> Callable[..., Any]:
    """A training that raises an error after some epochs."""

    def stop(history: list[Any]) -> None:
        if len(history) == epochs:
            raise error

    return lambda *data, **more: train(*data, on_epoch=stop, **more)
