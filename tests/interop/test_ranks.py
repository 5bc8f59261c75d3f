"""Two processes: a module in DistributedDataParallel is set alike on both, and the monitor of rank 0 speaks."""

import os
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, multiprocessing, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from neurolsc import Monitor, initialize, match_firing_rates, pretrain, radius_profile
from neurolsc.init import LSUV
from neurolsc.interop.saved import values_outside
from tests.test_monitor import SnnTorch, SpikingJelly, batch, own

pytestmark = pytest.mark.slow
RANKS = 2


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def in_group(rank: int, port: int, folder: Path) -> None:
    """What a process does: everything is written, and compared in the test."""
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    distributed.init_process_group("gloo", rank=rank, world_size=RANKS)
    torch.manual_seed(rank)
    x, y = batch(rank)
    x = x * (1 + rank)  # a batch of its own, on which another initialisation follows
    found: dict[str, Any] = {}
    for make in (own, SnnTorch, SpikingJelly):
        net = DistributedDataParallel(make())
        report = initialize(net, x)
        found[make.__name__] = (str(report), dict(net.module.state_dict()), values_outside(net.module))
    net = DistributedDataParallel(own())
    found["pretrain"] = str(pretrain(net, x, max_steps=2, steps=2, samples=2, progress=False).findings)
    match_firing_rates(net, x, [0.1, 0.2])
    LSUV().apply(net, x)
    compiled: Any = torch.compile(net, backend="eager")
    found["radii"] = radius_profile(compiled, batch(0)[0], steps=2).time
    found["set"] = dict(net.module.state_dict())
    errors = []
    try:
        initialize(net, x[:, :, :3] if rank == 0 else x)
    except ValueError as error:
        errors.append(str(error))
    found["errors"] = errors

    # a loop, of which each rank has other batches
    monitor = Monitor(net, x, y, loss="membrane", every=2, path=folder / "rows.jsonl")
    optimizer = torch.optim.SGD(net.parameters(), 1e-2)
    for update in range(4):
        more, labels = batch(10 * rank + update)
        loss = cross_entropy(net(more).mean(0), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        monitor.step(loss)
    found["rows"] = monitor.rows
    found["updates"] = monitor.updates
    found["text"] = str(monitor)
    found["trained"] = dict(net.module.state_dict())
    torch.save(found, folder / f"{rank}.pt")
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    multiprocessing.spawn(in_group, (free_port(), folder), nprocs=RANKS)  # type: ignore[attr-defined]
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(RANKS)]


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("make", [own, SnnTorch, SpikingJelly])
def test_an_initialisation_is_that_of_rank_0_on_every_rank(make, both):
    first, second = (found[make.__name__] for found in both)
    assert first[0] == second[0]
    assert same(first[1], second[1])
    assert same(first[2], second[2])
    torch.manual_seed(0)
    alone = make()
    if make is own:  # the first network that rank 0 makes
        report = initialize(alone, batch(0)[0])
        assert str(report) == first[0]
        for name, value in alone.state_dict().items():
            torch.testing.assert_close(first[1][name], value)
    assert any(value.ndim for value in first[1].values())


def test_other_functions_that_set_and_measure_take_the_wrapped_module(both):
    assert both[0]["pretrain"] == both[1]["pretrain"]
    assert same(both[0]["set"], both[1]["set"])
    assert torch.equal(both[0]["radii"], both[1]["radii"])


def test_an_error_of_rank_0_is_that_of_all(both):
    for found in both:
        assert len(found["errors"]) == 1
        assert "12" in found["errors"][0]


def test_the_monitor_of_rank_0_has_the_rows_and_the_training_goes_on_alike(both):
    assert [row["update"] for row in both[0]["rows"]] == [0, 2, 4]
    assert "gradient_1" in both[0]["rows"][-1]
    assert both[1]["rows"] == []
    assert [found["updates"] for found in both] == [4, 4]
    assert both[1]["text"] == "the monitor of rank 0 has the rows"
    assert same(both[0]["trained"], both[1]["trained"])


class FSDPModule(nn.Sequential):
    """Named as the class that ``fully_shard`` gives a module."""


def test_sharded_parameters_are_refused():
    net = nn.Sequential(FSDPModule(nn.Linear(12, 4)))
    for function in (initialize, radius_profile, Monitor):
        with pytest.raises(TypeError, match=r"sharded by FSDP.*before it is sharded"):
            function(net, batch(0)[0])
