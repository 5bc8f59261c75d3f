"""`wrap`: which modules become which cells, that the network computes what the model does, and that
the model is changed."""

import math
import subprocess
import sys

import pytest
import snntorch as snn
import snntorch.utils
import torch
from torch import nn
from torch.testing import assert_close

from neurolsc import LIF, Network, pretrain, radius_profile, save, wrap
from neurolsc.initialisers import RateMatching
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


class Disordered(Tutorial):
    """One whose layers are not defined in the order of their use."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.lif1, self.fc2 = self.fc1, self.lif1, self.fc2
        first = self.fc1
        del self.fc1
        self.fc1 = first


class Conv(nn.Module):
    """A convolutional network with pooling, norm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.pool = nn.MaxPool2d(2)
        self.lif1 = snn.Leaky(beta=0.8, init_hidden=True)
        self.flatten = nn.Flatten()
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(12, 4)

    def forward(self, x):
        snn.utils.reset(self)
        spikes = [self.lif1(self.pool(self.norm(self.conv(step)))) for step in x]
        return torch.stack([self.fc(self.drop(self.flatten(z))) for z in spikes])


def test_a_tutorial_network_computes_the_same_wrapped_bit_for_bit():
    net, x = Tutorial(), 3 * torch.rand(20, 5, 7)
    run = wrap(net).run(x)
    assert run.logits.any()
    assert torch.equal(run.logits, net(x))


@pytest.mark.parametrize("kind", ["Leaky", "Leaky-zero", "Leaky-now", "RLeaky", "RLeaky-now", "Synaptic"])
def test_a_membrane_that_is_read_is_that_of_the_librarys_loop_and_no_start_sets_its_layer(kind):
    torch.manual_seed(0)
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


@pytest.mark.parametrize(
    ("end", "told"),
    [(lambda: nn.Linear(12, 3), "got Linear"), (lambda: nn.LSTM(12, 3), "got LSTM"), (nn.Identity, "got Identity")],
)
def test_a_membrane_where_there_is_none_to_read_is_refused(end, told):
    with pytest.raises(ValueError, match=rf"has a mem at the very end, {told}"):
        wrap([nn.Linear(7, 12), snn.Leaky(0.9), end()], output="membrane")


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


def test_pretraining_the_network_changes_the_model_and_leaves_its_readout():
    net, x = Tutorial(24), 3 * torch.rand(20, 16, 7)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    result = pretrain(wrap(net), [x], target=0.5, max_steps=60, progress=False)
    assert result.converged
    assert result.profile.firing_rate.min() > 0
    assert net.lif1.beta == pytest.approx(0.5, abs=0.02)
    assert {k for k, v in net.state_dict().items() if not torch.equal(v, before[k])} == {
        "fc1.weight",
        "lif1.beta",
        "fc2.weight",
        "lif2.beta",
    }
    assert wrap(net)(x).any()
    profile = radius_profile(wrap(net), x)  # of the model, wrapped anew
    torch.testing.assert_close(profile.time_mean, torch.full((2,), 0.5), atol=0.02, rtol=0)


def test_radii_are_those_of_the_evaluated_network_and_its_modes_are_kept():
    net = Conv().train()
    network = wrap(net, input_shape=(1, 6, 6))
    running = net.norm.running_mean.clone()
    x = 3 * torch.rand(8, 5, 36)
    one, two = radius_profile(network, x, steps=2), radius_profile(network, x, steps=2)
    assert torch.equal(one.depth, two.depth)
    assert torch.equal(net.norm.running_mean, running)
    assert net.norm.training
    assert network.training


def test_what_a_wrapped_radius_is_due_to_is_what_our_cell_of_equal_weights_says():
    torch.manual_seed(0)
    cell = LIF(7, 12, tau_v=-1 / math.log(0.9))
    cell.tau_v = torch.full((12,), -1 / math.log(0.9))
    layer, before = snn.RLeaky(0.9, linear_features=12, spike_grad=cell.spike), nn.Linear(7, 12, bias=False)
    with torch.no_grad():
        cell.w_in.mul_(3)
        before.weight.copy_(cell.w_in)
        layer.recurrent.weight.copy_(cell.w_rec)
        layer.recurrent.bias.zero_()
    x = torch.rand(12, 3, 7)
    ours, theirs = (
        radius_profile(n, x) for n in (Network([cell], 2, layer_delay=0), wrap([before, layer, nn.Linear(12, 2)]))
    )
    assert ours.firing_rate > 0.05
    assert theirs.due_to[0]["leak"] == pytest.approx(0.9, abs=0.01)
    assert theirs.due_to[0]["recurrence"] == pytest.approx(ours.due_to[0]["recurrence"], abs=0.02)
    assert theirs.due_to[0]["recurrence"] > 0.02
    assert "leak 0.90 + recurrence" in str(theirs)
    (recurrent,) = radius_profile(wrap([norse.LIFRecurrent(7, 12)]), 5 * x).due_to
    assert set(recurrent) == {"leak", "recurrence"}


def test_layers_out_of_order_are_an_error_that_says_what_to_pass():
    net = Disordered()
    with pytest.raises(ValueError, match=r"order Leaky, Linear, Leaky, Linear .*wrap\(\[fc1, lif1, fc2, lif2\]\)"):
        wrap(net, input_shape=7)
    x = 3 * torch.rand(20, 5, 7)
    assert torch.equal(wrap([net.fc1, net.lif1, net.fc2, net.lif2])(x), net(x))


@pytest.mark.parametrize(
    ("modules", "error", "message"),
    [
        (lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU()), ValueError, "no recurrent layer"),
        (lambda: [snn.Leaky(0.9), nn.Linear(3, 3)], ValueError, "pass input_shape"),
        (lambda: [nn.Conv2d(1, 2, 3), snn.Leaky(0.9)], ValueError, "pass input_shape"),
        (lambda: [fc := nn.Linear(3, 3), lif := snn.Leaky(0.9), fc, lif], ValueError, "occurs twice"),
        (lambda: [nn.Linear(3, 3), Counting(), snn.Leaky(0.9)], TypeError, "Counting: .*keeps a state"),
        (lambda: [nn.Linear(3, 4), snn.Leaky(0.9), nn.Linear(3, 3)], ValueError, "do not fit"),
    ],
)
def test_what_cannot_be_wrapped_is_refused_by_name(modules, error, message):
    with pytest.raises(error, match=message):
        wrap(modules())


def test_a_subclass_of_a_norse_neuron_is_refused_since_its_step_is_not_known():
    class Own(norse.LIFRecurrentCell):
        pass

    with pytest.raises(TypeError, match="norse's Own cannot be wrapped: its step is not known"):
        wrap([Own(3, 4)])


class Counting(nn.Module):
    """A module that is not what it was."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return x + self.calls


def test_modules_of_ones_own_without_state_are_taken():
    class Scale(nn.Module):
        def forward(self, x):
            return 3 * x

    lstm, out = nn.LSTM(7, 6), nn.Linear(6, 4)
    x = torch.rand(5, 3, 7)
    torch.testing.assert_close(wrap([Scale(), lstm, out], input_shape=7)(x), out(lstm(3 * x)[0]))


def test_a_wrapped_network_that_no_file_can_describe_is_refused(tmp_path):
    model = [nn.Conv2d(1, 2, 3), nn.Flatten(), snn.Leaky(0.9), nn.Linear(8, 2)]
    with pytest.raises(TypeError, match=r"Conv2d cannot be exported.*torch\.save\(model\.state_dict\(\), path\)"):
        save(wrap(model, input_shape=(1, 4, 4)), tmp_path / "net.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_neither_snntorch_nor_norse_is_needed_for_a_torch_lstm():
    code = (
        "import sys; sys.modules['snntorch'] = sys.modules['norse'] = sys.modules['lightning'] = None\n"
        "import torch, neurolsc\n"
        "network = neurolsc.wrap(torch.nn.LSTM(3, 4))\n"
        "print(neurolsc.radius_profile(network, torch.rand(5, 2, 3)).time_mean.shape[0])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stdout.strip() == "1", done.stderr
