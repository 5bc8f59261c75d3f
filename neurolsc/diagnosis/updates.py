"""A few updates on copies of a network."""

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from neurolsc.diagnosis.batch import Given
from neurolsc.network import Network, eval_mode
from neurolsc.stability.findings import finite_distances
from neurolsc.tasks import Task

UPDATES = 10
"""updates on one batch after which its loss has moved if it moves at all"""

SPIKE_NAMES = ("spike", "spike_grad")
"""where cells of ours and layers of snnTorch have their surrogate"""

SAFE = 0.8
"""share of the distances with a finite derivative that is also finite times a large gradient"""

MakeOptimizer = Callable[[Iterable[nn.Parameter], float], Optimizer]


def copied(network: Network) -> Network:
    """An independent copy, also of layers of others that hold states with a history."""
    held = [tensor for module in network.modules() for tensor in (*module._buffers.values(), *vars(module).values())]
    memo = {id(t): t.detach().clone() for t in held if isinstance(t, Tensor) and not t.is_leaf}
    return copy.deepcopy(network, memo)


def finite(network: Network) -> Network:
    """A copy whose surrogates have derivative 0 where they have none that is finite."""
    network = copied(network)
    for cell in network.cells:
        low, high = (SAFE * end for end in finite_distances(cell))
        for module in (cell, getattr(cell, "layer", None)):
            for name in SPIKE_NAMES if (low, high) != (-math.inf, math.inf) else ():
                spike: Any = getattr(module, name, None)
                if spike is not None:
                    setattr(module, name, _Clamped(spike, low, high))
    return network


class _Clamped(nn.Module):
    """A surrogate that sees no distance from the threshold beyond a range."""

    def __init__(self, spike: Callable[[Tensor], Tensor], low: float, high: float) -> None:
        super().__init__()
        self.spike, self.low, self.high = spike, low, high

    def forward(self, v: Tensor) -> Tensor:
        return self.spike(v.clamp(self.low, self.high))


def updated(
    network: Network, given: Given, task: Task, optimizer: MakeOptimizer, lr: float, updates: int = UPDATES
) -> Network:
    """The same network after some updates on one batch; it stops where the loss is no number."""
    trained = [p for p in network.parameters() if p.requires_grad]
    if not trained:
        return network
    with eval_mode(network), torch.enable_grad():  # without dropout, so that treatments can be compared
        steps = optimizer(trained, lr)
        for _ in range(updates):
            loss = _loss(network, given, task)
            if not loss.isfinite() or not loss.requires_grad:
                break
            steps.zero_grad()
            loss.backward()
            steps.step()
    return network


def loss_of(network: Network, given: Given, task: Task) -> float:
    """The loss of a batch; NaN where a state is."""
    with eval_mode(network), torch.no_grad():
        return _loss(network, given, task).item()


def _loss(network: Network, given: Given, task: Task) -> Tensor:
    assert given.targets is not None
    return task.loss(network.run(given.x, mask=given.mask).logits, given.targets, given.mask)
