"""What is read of a cell alone is what it does in its network."""

import math

import pytest
import torch

from neurolsc import ALIFPlus, Network
from neurolsc.initialisers.cells import membrane, voltages
from neurolsc.stability.one_layer import rate, reads, settle
from tests.initialisers.networks import NETWORKS, all_voltages, rates, spikes


@pytest.mark.parametrize("name", [*NETWORKS, "without delay"])
def test_a_layer_alone_reads_and_does_what_it_does_in_its_network(name):
    network = (
        Network([ALIFPlus(40, 16), ALIFPlus(16, 16)], 4, layer_delay=0) if name == "without delay" else NETWORKS[name]()
    )
    with torch.no_grad():
        for parameter in network.cells.parameters():
            if parameter.ndim == 2:
                parameter.mul_(3)
    x = spikes(20, 4)
    moments = list(network.records(x))
    assert min(rates(network, x)) > 0
    for layer, (cell, v) in enumerate(zip(network.cells, all_voltages(network, x, name), strict=True)):
        read = reads(network, x, layer)
        torch.testing.assert_close(read, torch.stack([m.inputs[layer] for m in moments]))
        torch.testing.assert_close(voltages(cell, membrane(network, layer), read), v)
        assert rate(cell, read) == pytest.approx(rates(network, x)[layer])


def test_settle_finds_a_root_or_the_nearest_there_is():
    def line(target: float, measure) -> tuple[float, float]:
        at = [0.0]

        def set_to(value: float) -> None:
            at[0] = value

        return settle(set_to, lambda: measure(at[0]), target, reach=9.0, close=1e-6), at[0]

    found, at = line(3.0, math.exp)
    assert found == pytest.approx(3, rel=1e-3) and at == pytest.approx(math.log(3), abs=1e-3)
    found, at = line(5.0, math.tanh)
    assert found == pytest.approx(1) and at > 2
    found, at = line(0.0, lambda v: math.inf if v > 1 else v - 0.5)
    assert found == pytest.approx(0, abs=1e-3) and at == pytest.approx(0.5, abs=1e-3)
    assert line(2.0, lambda v: 2.0) == (2.0, 0.0)
