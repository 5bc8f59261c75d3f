"""`neurolsc.initialize` with a learning rate: it warns of one that is too high, and sets the same network."""

import copy
import pkgutil

import pytest
import torch
from torch import nn

from neurolsc import LIF, Network, diagnose, initialize
from neurolsc.interop.saved import values_outside

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
    (empty, dead, *_) = diagnose(net, torch.zeros_like(x))
    assert empty.name == "empty input"
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
    with pytest.raises(ValueError, match=r"loss must be .* got 'membranes'"):
        initialize(net, x, loss="membranes")
    with pytest.raises(ValueError, match=r"loss must be .* got 'mse'"):
        initialize(net, x, torch.zeros(16, dtype=torch.long), loss="mse")
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


class OneStep(nn.Module):
    """A module that takes one step a call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.below = nn.Linear(40, 64), snn.Leaky(0.9, init_hidden=True)
        self.second, self.above = nn.Linear(64, 64), snn.Leaky(0.9, init_hidden=True)
        self.last = nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.above(self.second(self.below(self.first(x)))))


def test_targets_show_that_x_is_batch_first_in_the_batch_and_beside_it(x):
    torch.manual_seed(0)
    apart, together, time_first = OneStep(), OneStep(), OneStep()
    for net in (together, time_first):
        net.load_state_dict(apart.state_dict())
    turned, y = x.transpose(0, 1), torch.arange(16) % 4
    report = initialize(apart, turned, y, lr=1e-3)
    initialize(together, (turned, y))
    initialize(time_first, x, y, lr=1e-3)
    assert report.layout == "batch first (B, T, 40), one step a call"
    for name, value in apart.state_dict().items():
        assert torch.equal(together.state_dict()[name], value) and torch.equal(time_first.state_dict()[name], value)


def test_a_network_refuses_an_x_that_y_shows_to_be_batch_first(x):
    network = Network([LIF(40, 64), LIF(64, 64)], 4)
    before = copy.deepcopy(network.state_dict())
    with pytest.raises(ValueError, match=r"looks batch first, .* give x\.transpose\(0, 1\)"):
        initialize(network, x.transpose(0, 1), torch.arange(16) % 4, lr=1e-3)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def values(net: nn.Module) -> dict[str, torch.Tensor]:
    """All weights and buffers, and what norse keeps outside of them."""
    return copy.deepcopy(net.state_dict()) | values_outside(net)


def stopped_at(count: int, function):
    """The function, interrupted in a call after that many."""
    calls = []

    def stopped(*args, **kwargs):
        calls.append(None)
        if len(calls) > count:
            raise KeyboardInterrupt
        return function(*args, **kwargs)

    return stopped


@pytest.mark.parametrize(
    ("place", "arguments"),
    [
        ("neurolsc.stability.scale.solve", {"method": "FiringRate(0.15)"}),
        ("neurolsc.stability.scale.solve", {}),
        ("neurolsc.stability.rules.TransitionRule.apply", {"method": "LSC(0.5)"}),
        ("neurolsc.advice.diagnose", {"y": torch.arange(16) % 4, "lr": 1e-3}),
    ],
)
def test_an_interruption_puts_back_what_was_set_also_outside_of_the_state_dict(x, monkeypatch, place, arguments):
    norse = pytest.importorskip("norse.torch")
    torch.manual_seed(0)
    cells = [nn.Linear(40, 64), norse.LIFCell(), nn.Linear(64, 64), norse.LIFCell(), nn.Linear(64, 4), norse.LICell()]
    net = norse.SequentialState(*cells)
    before = values(net)
    monkeypatch.setattr(place, stopped_at(1, pkgutil.resolve_name(place)))
    with pytest.raises(KeyboardInterrupt):
        initialize(net, x, **arguments)
    after = values(net)
    assert all(torch.equal(after[name], value) for name, value in before.items())
