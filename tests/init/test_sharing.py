"""Parameters that several places share: they are measured as they are, and no method sets them for one place alone."""

import math
from contextlib import suppress

import pytest
import snntorch as snn
import torch
from snntorch.surrogate import atan
from torch import nn
from torch.testing import assert_close

from neurolsc import LIF, Network, diagnose, initialize, match_firing_rates, pretrain, radius_profile, scale_to_radius
from neurolsc.init import LSC, FiringRate, Glorot, Initialiser, Relay, named
from neurolsc.init.base import INITIALISERS

WIDTH = 24


class Net(nn.Module):
    """Three layers of snnTorch and a readout."""

    def __init__(self, **leaky) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(20, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.lif1, self.lif2, self.lif3 = (snn.Leaky(beta, spike_grad=atan(), **leaky) for beta in (0.9, 0.9, 0.8))
        self.out = nn.Linear(WIDTH, WIDTH)

    def step(self, x, mems):
        x, mems[0] = self.lif1(self.fc1(x), mems[0])
        x, mems[1] = self.lif2(self.fc2(x), mems[1])
        x, mems[2] = self.lif3(self.fc3(x), mems[2])
        return self.out(x)

    def forward(self, x):
        mems = [layer.init_leaky() for layer in (self.lif1, self.lif2, self.lif3)]
        return torch.stack([self.step(now, mems) for now in x])


def apart() -> nn.Module:
    return Net()


def module() -> nn.Module:
    net = Net()
    net.fc3 = net.fc2
    return net


def parameter() -> nn.Module:
    net = Net()
    net.fc3.weight = net.fc2.weight
    return net


def memory() -> nn.Module:
    net = Net()
    net.fc3.weight = nn.Parameter(net.fc2.weight.data)
    return net


def readout() -> nn.Module:
    net = Net()
    net.out.weight = net.fc3.weight
    return net


SHARING = {
    module: (r"fc2\.weight, fc3\.weight is shared by layer 2 \(lif2\) and layer 3 \(lif3\)", ["layer 3", "layer 2"]),
    parameter: (r"fc2\.weight, fc3\.weight is shared by layer 2 \(lif2\) and layer 3 \(lif3\)", ["layer 3", "layer 2"]),
    memory: (r"fc2\.weight, fc3\.weight is shared by layer 2 \(lif2\) and layer 3 \(lif3\)", ["layer 3", "layer 2"]),
    readout: (r"fc3\.weight, out\.weight is shared by layer 3 \(lif3\) and the readout", ["", "the readout"]),
}


def inputs() -> torch.Tensor:
    return (torch.rand(30, 16, 20) < 0.4).float()


def rates(net: Net, x: torch.Tensor) -> list[float]:
    """Firing rates of the layers in a run of the module itself."""
    spikes: dict[nn.Module, list[torch.Tensor]] = {layer: [] for layer in (net.lif1, net.lif2, net.lif3)}
    hooks = [
        layer.register_forward_hook(lambda layer, _, out: spikes[layer].append(out[0].detach())) for layer in spikes
    ]
    net(x)
    for hook in hooks:
        hook.remove()
    return [torch.stack(of_layer).mean().item() for of_layer in spikes.values()]


@pytest.mark.parametrize("make", SHARING)
def test_initialize_leaves_shared_weights_and_its_report_is_true_of_the_module(make):
    net, x = make(), inputs()
    shared = (net.out if make is readout else net.fc3).weight
    before = shared.detach().clone()
    report = initialize(net, x)
    assert torch.equal(shared, before)
    for layer, others in zip(report.layers[1:], SHARING[make][1], strict=True):
        expected = f"shares weights with {others}"
        if not others:
            expected = ""
        assert layer.why == expected
    assert_close([layer.rate_after for layer in report.layers], rates(net, x), rtol=1e-5, atol=0)
    assert all(layer.rate_after > 0.01 for layer in report.layers)


def test_a_layer_apart_is_the_identity():
    report = initialize(apart(), inputs())
    assert [layer.done for layer in report.layers] == ["drawn", "identity", "identity"]


METHODS = {
    "Glorot": lambda net, x: initialize(net, x, method=Glorot()),
    "Glorot and rates": lambda net, x: (Glorot() + FiringRate(0.1)).apply(net, [x]),
    "Relay": lambda net, x: Relay().apply(net, [x]),
    "LSC": lambda net, x: LSC(0.5).apply(net, [x]),
    "pretrain": lambda net, x: pretrain(net, x, max_steps=2, progress=False),
    "scale_to_radius": lambda net, x: scale_to_radius(net, x, target=0.5, progress=False),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("make", SHARING)
def test_what_sets_shared_weights_is_refused_by_name_and_changes_nothing(make, method):
    net, x = make(), inputs()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(ValueError, match=SHARING[make][0]):
        METHODS[method](net, x)
    for name, value in net.state_dict().items():
        if "mem" not in name:
            assert torch.equal(value, before[name])


@pytest.mark.parametrize("name", sorted(INITIALISERS))
def test_no_initialiser_moves_what_two_layers_share(name):
    method: Initialiser = named("FiringRate(0.1)" if name == "FiringRate" else name)
    net = module()
    before = net.fc2.weight.detach().clone()
    with suppress(ValueError, TypeError):
        method.apply(net, [inputs()])
    assert torch.equal(net.fc2.weight, before)


def test_thresholds_over_shared_weights_are_set_and_weights_that_are_frozen_may_be_shared():
    x = inputs()
    for make in (module, parameter):
        net = make()
        FiringRate(0.1).apply(net, [x])
        assert rates(net, x) == pytest.approx([0.1] * 3, rel=0.15)
        assert match_firing_rates(net, x, [0.1, 0.05, 0.1]) == pytest.approx(rates(net, x), rel=1e-5)
    net = module()
    net.fc2.requires_grad_(False)
    assert not initialize(net, x).layers[1].why.startswith("shares")
    Glorot().apply(net, [x])


def test_a_threshold_that_two_layers_share_is_left_and_set_for_none():
    net, x = Net(learn_threshold=True), inputs()
    net.lif3.threshold = net.lif2.threshold
    report = initialize(net, x)
    assert [layer.why for layer in report.layers[1:]] == [f"shares thresholds with layer {i}" for i in (3, 2)]
    with pytest.raises(ValueError, match=r"lif2\.threshold, lif3\.threshold is shared by layer 2"):
        match_firing_rates(net, x, [0.1, 0.02, 0.2], tolerance=math.inf)
    assert net.lif2.threshold == 1


def test_shared_weights_are_measured_as_two_modules_of_equal_weights():
    net, x = module(), 3 * inputs()
    twin = Net()
    twin.load_state_dict(net.state_dict())
    for direction in ("time_mean", "depth_mean"):
        shared, own = (getattr(radius_profile(each, x, steps=4), direction) for each in (net, twin))
        assert_close(shared, own)
    assert str(diagnose(net, x)) == str(diagnose(twin, x))


def test_a_cell_of_ours_that_is_used_twice_is_refused_by_its_name_in_the_network():
    cell = LIF(8, 8)
    network, x = Network([LIF(20, 8), cell, cell], n_out=3), inputs()
    with pytest.raises(ValueError, match=r"cells\.1\.w_in, cells\.2\.w_in is shared by layer 2 and layer 3"):
        Glorot().apply(network, [x])


def test_the_layers_of_one_lstm_share_nothing():
    net, x = nn.LSTM(20, 8, num_layers=3), inputs()
    before = net.weight_hh_l1.detach().clone()
    pretrain(net, x, max_steps=1, progress=False)
    assert not torch.equal(net.weight_hh_l1, before)
