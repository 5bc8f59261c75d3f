"""Two processes train what one process trains, with the same batches, decisions and checkpoints."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, multiprocessing, nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from neurolsc import LIF, Monitor, Network, train
from neurolsc.datasets import collate
from neurolsc.tasks import Classification, ClassPerStep
from tests.patterns import CLASSES, Leak, N, Patterns, small_network

pytestmark = pytest.mark.slow
RANKS = 2
SETTINGS: dict[str, Any] = {"batch_size": 4, "epochs": 3, "lr": 2e-2, "schedule": "constant", "progress": False}


class Unequal(Patterns):
    """Samples of unequal length, in float64."""

    def __getitem__(self, index: int, /) -> tuple[Tensor, int]:
        x, label = super().__getitem__(index)
        return x[: 6 + index % 4].double(), label


class Streams(Dataset[Any]):
    """Three long sequences in pieces, whose targets are classes of steps."""

    streams = 3

    def __init__(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = (torch.rand(12, 5, N, generator=generator) < 0.4).double()
        self.targets = torch.randint(CLASSES, (12, 5), generator=generator)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.targets[index]


class NoLoss(Classification):
    """A loss that is NaN for samples of class 2."""

    def loss(self, logits: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().loss(logits, targets, mask) / (targets != 2).all()  # not finite


def own(rank: int = 0) -> Network:
    """A network that each rank draws for itself."""
    return small_network(seed=rank, readout_bias=True).double()


def samples(rank: int, folder: Path) -> tuple[Network, Any]:
    """The last batch of 13 samples is one sample, which is that of the last rank."""
    net = own(rank)
    monitor = Monitor(net, torch.ones(5, 4, N).double(), torch.tensor([0, 1, 2, 0]), every=4)
    result = train(
        net, Unequal(13), Unequal(7, seed=1), floss=0.1, floss_every=5, monitor=monitor, clip_spectrum=1.0, **SETTINGS
    )
    return net, (result, [row["update"] for row in monitor.rows])


def loader(rank: int, folder: Path) -> tuple[Network, Any]:
    net = own(rank)
    data = DataLoader(Unequal(13), 5, shuffle=True, collate_fn=collate)
    return net, (train(net, data, Unequal(7, seed=1), patience=1, **SETTINGS | {"lr": 0.5, "epochs": 9}), None)


def streams(rank: int, folder: Path) -> tuple[Network, Any]:
    net = own(rank)
    return net, (train(net, Streams(0), Streams(1), task=ClassPerStep(), **SETTINGS), None)


def stopped_twice(rank: int, folder: Path) -> tuple[Network, Any]:
    """A training that goes on from a checkpoint."""
    for epochs in (1, 2, 3):
        net = own(rank)
        more = {"checkpoint": folder / "checkpoint", "epochs": epochs}
        result = train(net, Unequal(13), Unequal(7, seed=1), **SETTINGS | more)
    return net, (result, None)


CASES = [samples, loader, streams, stopped_twice]


def dropped() -> Tensor:
    """What dropout lets through in a batch of two equal samples, of which each rank has one."""
    seen: list[Tensor] = []

    class Kept(nn.Dropout):
        def forward(self, x: Tensor) -> Tensor:
            out = super().forward(x)
            if self.training:
                seen.append(out)
            return out

    cell = Leak(N, 40)
    net = Network([cell], nn.Sequential(Kept(0.5), nn.Linear(40, CLASSES)))
    with torch.no_grad():
        cell.w.fill_(1.0)
    item = (torch.ones(4, N), 0)
    train(net, [item, item], [item], **SETTINGS | {"epochs": 1})
    return torch.stack(seen)


def refusals(rank: int, folder: Path) -> list[str]:
    """Errors, each of which all ranks raise."""
    normed = Network([LIF(N, 8)], nn.Sequential(nn.BatchNorm1d(8), nn.Linear(8, CLASSES)))
    part = DataLoader(Patterns(8), 4, collate_fn=collate, sampler=DistributedSampler(Patterns(8)))
    data = Patterns(8), Patterns(4)
    damaged = folder / "damaged"
    if rank == 0:
        damaged.write_bytes(b"nothing")
    calls = [
        lambda: train(normed, *data, **SETTINGS),
        lambda: train(own(), part, data[1], **SETTINGS),
        lambda: train(own(), *data, seed=rank, **SETTINGS),
        lambda: train(own(), Patterns(8, seed=rank), data[1], **SETTINGS),
        lambda: train(own(), *data, checkpoint=damaged, **SETTINGS),
        lambda: train(own(), *data, task=NoLoss(), **SETTINGS | {"batch_size": 8}),
    ]
    errors = []
    for call in calls:
        with pytest.raises((ValueError, FloatingPointError)) as found:
            call()
        errors.append(str(found.value))
    return errors


def in_group(rank: int, port: int, folder: Path) -> None:
    """What a process does: all is written, and compared in the tests."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    distributed.init_process_group("gloo", rank=rank, world_size=RANKS)
    found: dict[str, Any] = {}
    for case in CASES:
        net, (result, more) = case(rank, folder)
        found[case.__name__] = (net.state_dict(), result, more)
    found["dropped"] = dropped()
    found["errors"] = refusals(rank, folder)
    torch.save(found, folder / f"{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    multiprocessing.spawn(in_group, (port, folder), nprocs=RANKS)  # type: ignore[attr-defined]
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(RANKS)]


@pytest.mark.parametrize("case", CASES)
def test_two_processes_train_what_one_trains(case, both, tmp_path):
    net, (alone, more) = case(0, tmp_path)
    assert len({row["train_loss"] for row in alone.history}) == len(alone.history) > 1  # it moves
    assert max(rate for row in alone.history for rate in row["firing_rate"]) > 0  # and fires
    for rank, found in enumerate(both):
        state, result, others = found[case.__name__]
        torch.testing.assert_close(state, dict(net.state_dict()), rtol=1e-7, atol=1e-9)
        assert (result.best_epoch, result.stopped_early) == (alone.best_epoch, alone.stopped_early)
        assert len(result.history) == len(alone.history)
        for row, expected in zip(result.history, alone.history, strict=True):
            torch.testing.assert_close(row | {"seconds": 0}, expected | {"seconds": 0}, rtol=1e-7, atol=1e-9)
        assert others == (more if rank == 0 or more is None else [])
    assert all(torch.equal(value, both[1][case.__name__][0][name]) for name, value in both[0][case.__name__][0].items())


def test_an_early_stop_is_that_of_all_ranks(both):
    assert [found["loader"][1].stopped_early for found in both] == [True, True]


def test_dropout_draws_other_numbers_on_each_rank(both):
    first, second = (found["dropped"] for found in both)
    assert first.shape == second.shape
    assert not torch.equal(first, second)


def test_what_is_refused_is_refused_on_all_ranks(both):
    assert both[0]["errors"] == both[1]["errors"]
    norm, part, seed, data, damaged, nan = both[0]["errors"]
    assert "BatchNorm1d" in norm and "in one process" in norm
    assert "without a DistributedSampler" in part
    assert "same call on all ranks, got another on rank 1 (seed was 0" in seed
    assert "training.x" in data
    assert "damaged" in damaged
    assert "in epoch 1, batch 1, from the readout on" in nan
