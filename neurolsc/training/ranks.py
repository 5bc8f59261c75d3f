"""Several processes that train one network: each takes its samples of every batch, and gradients are summed.

All ranks make the same batches, so that their order, their padding and random changes of items are those of one
process. The loss of a batch is a mean over samples. So a rank's loss counts by its share of the samples, and the sum of
the gradients is the gradient of the whole batch. Ranks with the same gradients keep the same weights. In one process,
whose share is the whole batch, all of this changes nothing.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from neurolsc.interop.ranks import share_values
from neurolsc.io import differences
from neurolsc.network import Network
from neurolsc.surroundings import rank_of_processes
from neurolsc.training.evaluation import Data

T = TypeVar("T")


def begin_alike(network: Network, data: Sequence[Data], call: dict[str, Any]) -> None:
    """Refuse a training that cannot be split over processes, and give all ranks the weights of rank 0.

    Args:
        network: the network.
        data: the data sets of the training.
        call: what has to be the same on all ranks, by name.

    Raises:
        ValueError: on all ranks, if a value of `call` differs, a layer reads several samples at once, or a data set is
            a part of one.
    """
    for name, module in network.named_modules():
        if isinstance(module, _BatchNorm):
            raise ValueError(
                f"train in several processes runs a part of each batch in each, and {name}, a {type(module).__name__}, "
                "would see its part alone: take a norm of single samples, or train in one process."
            )
    for part in data:
        if isinstance(part, DataLoader) and isinstance(part.sampler, DistributedSampler):
            raise ValueError(
                "train splits each batch over the processes itself: give all ranks the same data, without a "
                "DistributedSampler."
            )
    calls = gathered([call])
    for rank, other in enumerate(calls):
        if changed := differences(calls[0], other):
            raise ValueError(f"train needs the same call on all ranks, got another on rank {rank} ({changed}).")
    share_values(network)


class Share:
    """The samples of a batch that this rank takes: as many as the other ranks have, or one more or fewer.

    A rank without a sample runs the first one of the batch, with a weight of 0.

    Args:
        samples: number of samples in the batch.
    """

    def __init__(self, samples: int) -> None:
        rank, processes = rank_of_processes()
        self.first = rank * samples // processes
        self.last = (rank + 1) * samples // processes
        self.samples = self.last - self.first
        self.weight = self.samples / samples

    def of(self, x: Tensor, axis: int) -> Tensor:
        """Return this rank's part of a tensor (..., B, ...) whose samples lie along an axis."""
        if self.samples == 0:
            return x.narrow(axis, 0, 1)
        return x.narrow(axis, self.first, self.samples)


@contextmanager
def draws_of_rank(seed: int, device: torch.device) -> Iterator[None]:
    """Let dropout draw other numbers on each rank, while the random numbers of the data stay those of all ranks.

    Args:
        seed: the same on all ranks, and another one for each batch of a training.
        device: the device of the network.
    """
    rank, processes = rank_of_processes()
    if processes == 1:
        yield
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed * processes + rank)
        yield


def summed(value: float, device: torch.device) -> float:
    """Return the sum of a number over all ranks."""
    if rank_of_processes()[1] == 1:
        return value
    total = torch.tensor(value, dtype=torch.float64, device=device)
    distributed.all_reduce(total)
    return total.item()


def lowest(value: int, device: torch.device) -> int:
    """Return the lowest of the numbers of all ranks."""
    if rank_of_processes()[1] == 1:
        return value
    found = torch.tensor(value, device=device)
    distributed.all_reduce(found, distributed.ReduceOp.MIN)
    return int(found.item())


def sum_gradients(network: Network) -> None:
    """Sum the gradients over all ranks, in place."""
    gradients = [p.grad for p in network.parameters() if p.grad is not None]
    if rank_of_processes()[1] == 1 or not gradients:
        return
    together = torch.cat([gradient.flatten() for gradient in gradients])
    distributed.all_reduce(together)
    parts = together.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))


def gathered(values: list[T]) -> list[T]:
    """Return the values of all ranks, those of rank 0 first; all return the same."""
    _, processes = rank_of_processes()
    if processes == 1:
        return values
    of_ranks: list[Any] = [None] * processes
    distributed.all_gather_object(of_ranks, values)
    return [value for of_rank in of_ranks for value in of_rank]
