"""Results show themselves: one line or a table."""

import pytest
import torch

from neurolsc import (
    ALIFPlus,
    Network,
)
from neurolsc.datasets.batches import Batch
from neurolsc.display import Table
from neurolsc.export import quantize
from neurolsc.neurons import ALIFPositive


@pytest.fixture(scope="module")
def network() -> Network:
    torch.manual_seed(0)
    return Network([ALIFPlus(20, 6), ALIFPlus(6, 6)], n_out=3)


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return (torch.rand(20, 8, 20, generator=torch.Generator().manual_seed(1)) < 0.3).float()


def test_a_table_has_words_to_the_left_numbers_to_the_right_and_nothing_after_the_last_word():
    table = Table(("layer", "radius", "held by"), [("1", "0.5 *", "leak"), ("10", "0.25  ", "feedback, reset")])
    assert str(table) == ("layer  radius  held by\n    1   0.5 *  leak\n   10  0.25    feedback, reset")


def test_a_network_says_sizes_wiring_and_how_many_parameters_it_has(network):
    first, second, *_ = repr(network).splitlines()
    assert first == "Network("
    assert second == f"  20 -> 2 x 6 -> 3, layer_delay=1, {sum(p.numel() for p in network.parameters()):,} parameters"
    assert "ALIFPlus" in repr(network)
    wide = Network([ALIFPlus(2000, 1000), ALIFPlus(1000, 5)], n_out=2, layer_delay=0)
    assert "2000 -> 1000 -> 5 -> 2, layer_delay=0, 3," in repr(wide)


def test_a_run_and_its_states_name_their_axes(network, x):
    run = network.run(x)
    assert repr(run) == "Run(logits (T=20, B=8, 3), spikes 2 x (T=20, B=8, 6), states of 2 layers)"
    assert repr(run.states) == "NetworkState(2 x ALIFState(v (B=8, 6), theta (B=8, 6)), x (B=8, 20))"
    at_once = Network(list(network.cells), 3, layer_delay=0).run(x).states
    assert repr(at_once) == "NetworkState(2 x ALIFState(v (B=8, 6), theta (B=8, 6)))"
    assert repr(Batch(x, torch.zeros(8).long())) == "Batch(x (T=20, B=8, 20))"
    whole = quantize(Network([ALIFPositive(20, 6, reset="static", b_theta=0.002, adaptation=0.2)], 3), force=True)
    assert repr(whole) == "QuantizedNetwork(20 -> 6 -> 3)"
    assert repr(whole.layers[0]) == "AtrlifLayer(20, 6)"
    assert repr(whole.run(x)) == "IntegerRun(logits (T=20, B=8, 3), spikes (T=20, B=8, 6))"
