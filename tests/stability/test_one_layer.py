"""Layers run alone, against the whole network followed."""

from collections.abc import Callable

import pytest
import snntorch as snn
import torch
from torch import Tensor, nn

from neurolsc import LIF, ALIFPlus, Network, wrap
from neurolsc.neurons import State
from neurolsc.stability.one_layer import bottom_up
from neurolsc.stability.transition import follow

T, B, N = 12, 5, 6
SOME, TIMES = torch.tensor([3, 0, 4]), torch.tensor([0, 4, 5, 11])


def ours(delay: int) -> Network:
    torch.manual_seed(0)
    cells = [ALIFPlus(N, 8, tau_theta=5.0), LIF(8, 7, tau_v=3.0), ALIFPlus(7, 9)]
    network = Network(cells, 3, layer_delay=delay).double()
    for cell in network.cells:
        cell.thresholds().scale(0.1)
    return network


def theirs() -> Network:
    torch.manual_seed(0)
    return wrap([nn.Linear(N, 8), snn.RLeaky(0.8, linear_features=8), nn.Linear(8, 7), snn.Leaky(0.9)]).double()


def x() -> Tensor:
    return torch.rand(T, B, N, generator=torch.Generator().manual_seed(1), dtype=torch.float64).round()


def same(a: State | None, b: State | None) -> None:
    assert (a is None) == (b is None)
    for one, other in zip(a or (), b or (), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("make", [lambda: ours(0), lambda: ours(1), theirs], ids=["no delay", "delay", "snntorch"])
@pytest.mark.parametrize("change", [1.0, 0.5])
def test_bottom_up_finds_the_points_of_the_whole_network_changed_on_the_way(make: Callable[[], Network], change: float):
    network, found, activity = make(), [], []
    for layer, (read, points) in enumerate(bottom_up(network, x(), SOME, TIMES)):
        before = follow(network, x()[:, SOME], TIMES)[0][layer]  # at its turn those below it have changed
        torch.testing.assert_close(points.x, before.x, rtol=0, atol=0)
        same(points.before, before.before)
        same(points.state_below, before.state_below)
        assert (points.cell, points.below) == (before.cell, before.below)
        activity.append(read.sum().item())
        found.append(points)
        network.cells[layer].thresholds().scale(change)
    assert len(found) == len(network.cells)
    assert min(activity) > 0
    after = follow(network, x()[:, SOME], TIMES)[0]
    for now, then in zip(after, found, strict=True):
        torch.testing.assert_close(then.x, now.x, rtol=0, atol=0)
        same(then.state_below, now.state_below)
