"""`neurolsc.initialize` with a learning rate: it warns of one that is too high, and sets the same network."""

import copy

import pytest
import torch
from torch import nn

from neurolsc import diagnose, initialize

snn = pytest.importorskip("snntorch")


@pytest.fixture
def net() -> nn.Module:
    torch.manual_seed(0)
    layers = []
    for n_in in (40, 64, 64):
        layers += [nn.Linear(n_in, 64), snn.Leaky(0.9, spike_grad=snn.surrogate.atan())]
    return nn.Sequential(*layers, nn.Linear(64, 4))


@pytest.fixture
def x(make_spikes) -> torch.Tensor:
    return make_spikes(T=20, B=16, N=40, rate=0.2)


def test_a_learning_rate_that_is_too_high_is_warned_of_and_changes_nothing_that_is_set(net, x):
    y = torch.arange(16) % 4
    blind, low, high = (copy.deepcopy(net) for _ in range(3))
    initialize(blind, x)
    assert not initialize(low, x, y, loss="membrane", lr=1e-3)
    report = initialize(high, x, y, loss="membrane", lr=3.0)
    assert {finding.name for finding in report} <= {"learning rate too high", "learning rate too high for a layer"}
    assert "lower the learning rate" in str(report)
    for name, value in blind.state_dict().items():
        assert torch.equal(low.state_dict()[name], value) and torch.equal(high.state_dict()[name], value)


@pytest.mark.parametrize("method", [None, "FluctuationDriven()", "ActivityPropagation()"])
def test_an_input_of_zeros_is_named(net, x, method):
    for layer in net[:3:2]:
        nn.init.zeros_(layer.bias)  # which would make neurons fire
    finding, *_ = initialize(net, torch.zeros_like(x), method=method)
    assert str(finding) == "layer 1: reads nothing: the input is all zeros; give inputs that are not all 0."
    (dead, *_) = diagnose(net, torch.zeros_like(x))
    wanted = "layer 1: never fires (the input is all zeros); give inputs that are not all 0."
    assert wanted == str(dead)


def test_labels_and_learning_rate_come_together_and_are_refused_before_anything_is_set(net, x):
    before = copy.deepcopy(net.state_dict())
    for arguments in ({"y": torch.zeros(16, dtype=torch.long)}, {"lr": 1e-3}):
        with pytest.raises(ValueError, match="y and lr belong together"):
            initialize(net, x, **arguments)
    with pytest.raises(ValueError, match="of 16 samples"):
        initialize(net, x, torch.zeros(7, dtype=torch.long), lr=1e-3)
    with pytest.raises(TypeError, match="lr must be a number, got str"):
        initialize(net, x, torch.zeros(16, dtype=torch.long), lr="1e-3")
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
