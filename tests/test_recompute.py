"""Recomputation: the same gradients from less memory."""

import pytest
import torch
from torch import Tensor

from neurolsc import Network

pytestmark = pytest.mark.usefixtures("float64")


def saved(network: Network, x: Tensor) -> int:
    """Bytes that a run saves for its gradient, without its input and parameters."""
    known = {t.untyped_storage().data_ptr() for t in (x, *network.parameters())}
    sizes: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        sizes[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        loss = network(x).square().sum()
        total = sum(size for pointer, size in sizes.items() if pointer not in known)
    loss.backward()
    return total


def test_less_is_saved(make_network, make_spikes, monkeypatch):
    monkeypatch.setattr("neurolsc.neurons.cell.RECOMPUTED", 1)
    network, x = make_network(gain=3), make_spikes(T=100, B=100)
    spikes = sum(z.nbytes for z in network.run(x).spikes)
    assert saved(network, x) < 2.5 * spikes  # with the voltages, and in blocks the thresholds and what is not zero
    network.recompute = True
    assert saved(network, x) < 1.4 * spikes


@pytest.mark.parametrize("spike", [None, torch.sigmoid], ids=["loop", "plain steps"])
@pytest.mark.parametrize("layer_delay", [0, 1])
def test_gradients_are_the_same(spike, layer_delay, make_network, make_spikes, monkeypatch):
    monkeypatch.setattr("neurolsc.neurons.cell.RECOMPUTED", 1)
    network, x = make_network(gain=3, spike=spike, layer_delay=layer_delay), make_spikes(T=9)
    mask = torch.arange(9).unsqueeze(1) < torch.tensor([5, 3, 0, 2, 5, 1])  # no sample takes all steps
    for given in (None, mask):
        found = []
        for network.recompute in (False, True):
            run = network.run(x, mask=given)
            assert run.spikes[1].any()
            found.append(torch.autograd.grad(run.logits.square().sum(), list(network.parameters())))
        torch.testing.assert_close(*found, rtol=1e-10, atol=1e-14)
