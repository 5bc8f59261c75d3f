"""`wrap`: which modules become which cells, that the network computes what the model does, and what changes in it."""

import pytest
import snntorch as snn
import snntorch.utils
import torch
from torch import nn
from torch.testing import assert_close

from neurolsc import pretrain, radius_profile, wrap
from neurolsc.initialisers import RateMatching
from neurolsc.interop import norse as in_norse
from neurolsc.interop import snntorch as in_snntorch
from neurolsc.surrogate import FastSigmoid
from tests.interop.layers import SNNTORCH, norse


class Tutorial(nn.Module):
    """The network of snnTorch's tutorials."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.fc1 = nn.Linear(7, width)
        self.lif1 = snn.Leaky(beta=0.9)
        self.fc2 = nn.Linear(width, width)
        self.lif2 = snn.Leaky(beta=0.9)

    def forward(self, x):
        mem1, mem2 = self.lif1.init_leaky(), self.lif2.init_leaky()
        record = []
        for step in x:
            spk1, mem1 = self.lif1(self.fc1(step), mem1)
            spk2, mem2 = self.lif2(self.fc2(spk1), mem2)
            record.append(spk2)
        return torch.stack(record)


def test_a_tutorial_network_computes_the_same_wrapped_bit_for_bit():
    net, x = Tutorial(), 3 * torch.rand(20, 5, 7)
    logits = wrap(net)(x)
    assert logits.any()
    assert torch.equal(logits, net(x))


def test_a_norse_network_computes_the_same_wrapped_bit_for_bit():
    cells = norse.SequentialState(
        nn.Linear(7, 9), norse.LIFCell(), norse.LIFRecurrentCell(9, 6), nn.Linear(6, 4), norse.LICell()
    )
    x, state, outputs = 30 * torch.rand(20, 5, 7), None, []
    for step in x:
        out, state = cells(step, state)
        outputs.append(out)
    run = wrap(cells).run(x)
    assert all(z.any() for z in run.spikes)
    assert torch.equal(run.logits, torch.stack(outputs))


@pytest.mark.parametrize("kind", ["Leaky-zero", "RLeaky-now", "Synaptic"])
def test_a_membrane_that_is_read_is_that_of_the_librarys_loop_and_no_start_sets_its_layer(kind):
    fc, lif, *tail = nn.Linear(7, 7), snn.Leaky(beta=0.9, init_hidden=True), *SNNTORCH[f"{kind}-hidden"][0]()
    nn.init.uniform_(tail[0].weight, 0, 1)
    network, x, mems, fired = wrap([fc, lif, *tail], output="membrane"), 3 * torch.rand(20, 5, 7), [], 0
    for step in x:
        fired += tail[1](tail[0](lif(fc(step)))).sum()
        mems.append(tail[1].mem)
    assert fired > 0
    assert_close(network(x), torch.stack(mems), rtol=1e-5, atol=1e-6)
    assert network.spiking == (0,)
    before = tail[1].threshold.clone()
    RateMatching(0.3).apply(network, [x])
    assert network.run(x).spikes[0].mean().item() == pytest.approx(0.3, abs=0.03)
    assert torch.equal(tail[1].threshold, before)


@pytest.mark.parametrize("end", [nn.Linear(12, 3), nn.LSTM(12, 3)], ids=lambda m: type(m).__name__)
def test_a_membrane_where_there_is_none_to_read_is_refused(end):
    with pytest.raises(ValueError, match=rf"has a mem at the very end, got {type(end).__name__}"):
        wrap([nn.Linear(7, 12), snn.Leaky(0.9), end], output="membrane")


def test_pretraining_the_network_changes_the_model_and_leaves_its_readout():
    net, x = Tutorial(24), 3 * torch.rand(20, 16, 7)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    result = pretrain(wrap(net), [x], target=0.5, max_steps=60, progress=False)
    assert result.converged
    assert result.profile.firing_rate.min() > 0
    changed = {k for k, v in net.state_dict().items() if not torch.equal(v, before[k])}
    assert changed == {"fc1.weight", "lif1.beta", "fc2.weight", "lif2.beta"}
    profile = radius_profile(wrap(net), x)  # of the model, wrapped anew
    assert_close(profile.time_mean, torch.full((2,), 0.5), atol=0.02, rtol=0)


def test_radii_are_those_of_the_evaluated_network_and_its_modes_stay():
    norm = nn.BatchNorm2d(3)
    modules = [nn.Conv2d(1, 3, 3), norm, nn.MaxPool2d(2), snn.Leaky(beta=0.8), nn.Flatten(), nn.Dropout(0.5)]
    network = wrap([*modules, nn.Linear(12, 4)], input_shape=(1, 6, 6))
    running, x = norm.running_mean.clone(), 3 * torch.rand(8, 5, 36)
    one, two = radius_profile(network, x, steps=2), radius_profile(network, x, steps=2)
    assert torch.equal(one.depth, two.depth)
    assert torch.equal(norm.running_mean, running)
    assert norm.training and network.training


class Counting(nn.Module):
    """A module with a state of its own."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return x + self.calls


@pytest.mark.parametrize(
    ("modules", "error", "message"),
    [
        (lambda: [nn.Linear(3, 3), torch.relu], TypeError, "wrap takes a module or a list of modules"),
        (lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU()), ValueError, "no recurrent layer"),
        (lambda: [nn.Conv2d(1, 2, 3), snn.Leaky(0.9)], ValueError, r"wrap\(net, x\), or input_shape"),
        (lambda: [fc := nn.Linear(3, 3), lif := snn.Leaky(0.9), fc, lif], ValueError, "occurs twice"),
        (lambda: [nn.Linear(3, 3), Counting(), snn.Leaky(0.9)], TypeError, "Counting: .*keeps a state"),
        (
            lambda: [nn.Linear(3, 4), snn.Leaky(0.9), nn.Linear(3, 3)],
            ValueError,
            r"order Linear, Leaky, Linear .*wrap\(\[fc1, lif1, fc2, lif2\]\)",
        ),
    ],
)
def test_what_cannot_be_wrapped_is_refused_by_name(modules, error, message):
    with pytest.raises(error, match=message):
        wrap(modules())


def test_modules_of_ones_own_without_state_are_taken():
    class Scale(nn.Module):
        def forward(self, x):
            return 3 * x

    lstm, out = nn.LSTM(7, 6), nn.Linear(6, 4)
    x = torch.rand(5, 3, 7)
    assert_close(wrap([Scale(), lstm, out], input_shape=7)(x), out(lstm(3 * x)[0]))


# ---------------------------------------------------------------- our own layers in their networks


LAYERS = {"LIF": in_snntorch.LIF, "ALIF+": in_snntorch.ALIFPlus}


def spikes() -> torch.Tensor:
    return (torch.rand(12, 6, 20, generator=torch.Generator().manual_seed(0)) < 0.3).to(torch.get_default_dtype())


def stack(kind: str, **settings: object) -> nn.Sequential:
    settings = {"beta": 0.8, "linear_features": 16, "threshold": 0.3, "init_hidden": True} | settings
    layers = [LAYERS[kind](**settings) for _ in "ab"]
    return nn.Sequential(nn.Linear(20, 16), layers[0], nn.Linear(16, 16), layers[1], nn.Linear(16, 3))


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("mechanism", ["subtract", "zero", "none"])
def test_a_wrapped_snntorch_network_of_our_layers_computes_what_it_computes(kind, mechanism):
    net, x = stack(kind, reset_mechanism=mechanism), spikes()
    expected = torch.stack([net(frame) for frame in x])
    states = {name: buffer.clone() for name, buffer in net.named_buffers()}
    run = wrap(net).run(x)
    assert torch.equal(run.logits, expected)
    assert all(layer.any() for layer in run.spikes)
    assert all(torch.equal(buffer, states[name]) for name, buffer in net.named_buffers())  # hidden states stay


def test_our_layers_in_a_snntorch_network_are_pretrained_in_place():
    net = stack("ALIF+", spike_grad=FastSigmoid())
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    result = pretrain(wrap(net), [spikes()], target=0.5, max_steps=3, samples=2, steps=4, progress=False)
    assert (result.profile.firing_rate > 0).all()
    changed = {name for name, p in net.named_parameters() if not torch.equal(p, before[name])}
    assert {"0.weight", "1.recurrent.weight", "2.weight", "3.recurrent.weight"} <= changed
    assert not {"4.weight", "4.bias", "0.bias"} & changed


def test_a_cell_of_ours_is_taken_as_it_is_and_modules_before_it_belong_to_it():
    cell, plain, out = in_norse.ALIFPlusRecurrentCell(20, 16, v_th=0.3), nn.Linear(20, 20), nn.Linear(16, 3)
    assert wrap([cell, out]).cells[0] is cell
    network, x, state, logits = wrap([nn.Flatten(), plain, cell, out]), spikes(), None, []
    for frame in x:
        z, state = cell(plain(frame), state)
        logits.append(out(z))
    run = network.run(x)
    assert run.spikes[0].any()
    assert torch.equal(run.logits, torch.stack(logits))
    weight, w_rec, rest = plain.weight.clone(), cell.w_rec.clone(), cell.theta_rest.clone()
    pretrain(network, [x], target=0.5, max_steps=2, progress=False)
    assert torch.equal(plain.weight, weight)
    assert not torch.equal(cell.w_rec, w_rec) and not torch.equal(cell.theta_rest, rest)


def test_layers_of_all_makes_stand_in_one_network():
    modules = [
        nn.Linear(20, 16),
        in_snntorch.ALIFPlus(beta=0.8, linear_features=16, threshold=0.3),
        in_norse.LIFRecurrentCell(16, 12, v_th=0.3),
        nn.Linear(12, 8),
        snn.Leaky(beta=0.8, threshold=0.3),
        nn.LSTM(8, 6),
    ]
    network = wrap(modules)
    assert len(network.cells) == 4
    profile = radius_profile(network, spikes(), steps=4)
    assert profile.time.isfinite().all() and (profile.time_mean > 0).all()
