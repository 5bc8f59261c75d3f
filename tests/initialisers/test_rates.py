"""All layers at one rate."""

import re

import pytest
import torch

from neurolsc import LIF, Network
from neurolsc.initialisers import RateMatching
from tests.initialisers.networks import NETWORKS, rates, spikes


@pytest.mark.parametrize("name", NETWORKS)
def test_every_layer_gets_the_rate(name):
    network, x = NETWORKS[name](), spikes()
    assert RateMatching(0.15).apply(network, [x]) == ()
    assert rates(network, x) == pytest.approx([0.15] * 2, rel=0.1)


def test_a_rate_out_of_reach_is_told_with_the_nearest():
    torch.manual_seed(0)
    network = Network([LIF(40, 16), LIF(16, 16)], 4)
    found = RateMatching(0.9).apply(network, [spikes()])
    assert [f.layer for f in found] == [1, 2]
    fires = re.match(r"layer 1: fires ([\d.]+) spikes per neuron and step, not 0.9", str(found[0]))
    assert fires and float(fires[1]) == pytest.approx(rates(network, spikes())[0], abs=0.005)
