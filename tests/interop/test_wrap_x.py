"""`wrap(net, x)`: the order of use, and a network that is compared with what the model does."""

import pytest
import snntorch as snn
import torch
from torch import nn
from torch.nn.functional import log_softmax, max_pool2d, relu
from torch.testing import assert_close

from neurolsc import wrap

STEPS, BATCH, N_IN = 20, 5, 7


class Net(nn.Module):
    """snnTorch's tutorial with neurons defined before their Linears; places to change."""

    def __init__(self, change=lambda spk: spk, end=lambda out: out, begin=lambda x: x, **leaky) -> None:
        super().__init__()
        self.lif1, self.lif2 = snn.Leaky(beta=0.9, **leaky), snn.Leaky(beta=0.8, **leaky)
        self.fc2, self.fc1 = nn.Linear(12, 12, bias=False), nn.Linear(N_IN, 12)
        self.drop = nn.Dropout(0.5)
        self.change, self.end, self.begin = change, end, begin

    def forward(self, x):
        mem1, mem2 = self.lif1.init_leaky(), self.lif2.init_leaky()
        spks, mems = [], []
        for step in self.begin(x):
            spk1, mem1 = self.lif1(self.drop(self.fc1(step)), mem1)
            spk2, mem2 = self.lif2(self.drop(self.change(self.fc2(self.drop(spk1)))), mem2)
            spks.append(spk2)
            mems.append(mem2)
        return self.end((torch.stack(spks), torch.stack(mems)))


def steps() -> torch.Tensor:
    return 3 * torch.rand(STEPS, BATCH, N_IN)


def test_neurons_before_their_linears_are_put_in_the_order_of_use():
    with pytest.raises(ValueError, match=r"no module is between a Leaky and a Leaky: .*wrap\(net, x\)"):
        wrap(Net(), input_shape=N_IN)  # in the order of definition
    net, x = Net().eval(), steps()
    network = wrap(net, x)
    assert [cell.layer for cell in network.cells] == [net.lif1, net.lif2]
    run = network.eval().run(x)
    assert all(z.any() for z in run.spikes)
    assert torch.equal(run.logits, net(x)[0])


@pytest.mark.parametrize("threshold", [1.0, 100.0], ids=["firing", "silent"])
def test_a_function_in_forward_is_an_error_that_names_the_place(threshold):
    place = (
        r"between lif1 \(Leaky\) and lif2 \(Leaky\) .* drop \(Dropout\), fc2 \(Linear\), drop .*Let it call a module"
    )
    with pytest.raises(ValueError, match=place):
        wrap(Net(relu, threshold=threshold), steps())


class Loop(Net):
    """A network with another step."""

    def __init__(self, step, mem: float = 0.0) -> None:
        super().__init__()
        self.step, self.mem = step, mem

    def forward(self, x):
        mem1, mem2, out = torch.full((BATCH, 12), self.mem), torch.zeros(BATCH, 12), []
        for now in x:
            spk, mem1, mem2 = self.step(self, now, mem1, mem2)
            out.append(spk)
        return torch.stack(out)


def skip(net, x, mem1, mem2):
    spk1, mem1 = net.lif1(net.fc1(x), mem1)
    spk2, mem2 = net.lif2(net.fc2(spk1) + spk1, mem2)
    return spk2, mem1, mem2


def twice(net, x, mem1, mem2):
    spk, mem1 = net.lif1(net.fc1(x), mem1)
    spk, mem1 = net.lif1(net.fc2(spk), mem1)
    return spk, mem1, mem2


def twice_below(net, x, mem1, mem2):
    spk, mem1, _ = twice(net, x, mem1, mem2)
    spk, mem2 = net.lif2(spk, mem2)
    return spk, mem1, mem2


def in_place(net, x, mem1, mem2):
    spk, mem1 = net.lif1(net.fc1(x), mem1)
    spk *= 2
    spk, mem2 = net.lif2(net.fc2(spk), mem2)
    return spk, mem1, mem2


def one_layer(net, x, mem1, mem2):
    return *net.lif1(net.fc1(x), mem1), mem2


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (lambda: Loop(skip), r"between lif1 \(Leaky\) and lif2 \(Leaky\) .*fc2 .*a sum of two layers"),
        (lambda: Loop(in_place), r"between lif1 \(Leaky\) and lif2 .*fc2"),
        (lambda: Loop(twice), r"between the input and lif1 \(Leaky\) .*use every layer once in a step"),
        (lambda: Loop(twice_below), r"between the input and lif1 \(Leaky\) .*use every layer once in a step"),
        (lambda: Loop(one_layer, mem=5.0), r"lif1 \(Leaky\) sends values .*forward sets or changes its state"),
        (
            lambda: Net(begin=lambda x: (torch.rand_like(x) < x).float()),
            r"between the input and lif1 \(Leaky\) .*fc1 .*encoding in spikes",
        ),
        (
            lambda: Net(end=lambda out: log_softmax(out[1].sum(0), -1)),
            r"between lif2 \(Leaky\) and what forward returns \(\(5, 12\)\): .*nn.LogSoftmax",
        ),
    ],
)
def test_what_a_network_of_layers_cannot_do_is_refused_by_name(net, message):
    with pytest.raises(ValueError, match=message):
        wrap(net(), steps())


@pytest.mark.parametrize(
    ("end", "way"),
    [
        (lambda out: out[0].sum(0), "spikes"),
        (lambda out: out[1], "membrane"),
        (lambda out: {"mem": list(out[1]), "spk": out[0]}, "membrane"),
        (lambda out: out[1].amax(0), "membrane"),
        (lambda out: out[1].transpose(0, 1), "membrane"),
    ],
)
def test_the_output_is_what_the_model_returns_first_spikes_or_membrane(end, way):
    net, x = Net(end=end).eval(), steps()
    network = wrap(net, x).eval()
    assert network.spiking == ((0,) if way == "membrane" else (0, 1))
    net.end = lambda out: out
    spikes, mems = net(x)
    assert spikes.any()
    assert_close(network(x), spikes if way == "spikes" else mems)


class Images(nn.Module):
    """snnTorch's tutorial 6 with a view in forward, and as it is with its pooling as a function."""

    def __init__(self, pool) -> None:
        super().__init__()
        self.conv1, self.lif1 = nn.Conv2d(1, 3, 3), snn.Leaky(beta=0.5)
        self.conv2, self.lif2 = nn.Conv2d(3, 5, 3), snn.Leaky(beta=0.5)
        self.fc, self.lif3 = nn.Linear(20, 4), snn.Leaky(beta=0.5)
        self.pool = pool

    def forward(self, x):
        mem1, mem2, mem3, out = self.lif1.init_leaky(), self.lif2.init_leaky(), self.lif3.init_leaky(), []
        for _ in range(STEPS):
            spk1, mem1 = self.lif1(self.pool(self.conv1(x)), mem1)
            spk2, mem2 = self.lif2(self.pool(self.conv2(spk1)), mem2)
            _, mem3 = self.lif3(self.fc(spk2.view(len(x), -1)), mem3)
            out.append(mem3)
        return torch.stack(out)


def test_a_view_is_followed_and_a_module_may_be_used_behind_several_layers():
    net, x = Images(nn.MaxPool2d(2)), 9 * torch.rand(BATCH, 1, 14, 14)
    run = wrap(net, x).run(x.flatten(1).expand(STEPS, -1, -1))
    assert run.spikes[0].any() and run.spikes[1].any()
    assert_close(run.logits, net(x))
    with pytest.raises(ValueError, match=r"between the input and lif1 \(Leaky\) .* conv1 \(Conv2d\)\."):
        wrap(Images(lambda x: max_pool2d(x, 2)), x)


class AtOnce(Net):
    """A Linear over all steps at once, layer after layer."""

    def forward(self, x):
        below = x
        for fc, lif in ((self.fc1, self.lif1), (self.fc2, self.lif2)):
            mem, out = lif.init_leaky(), []
            for current in fc(below):
                spk, mem = lif(current, mem)
                out.append(spk)
            below = torch.stack(out)
        return (below,)


def image(x: torch.Tensor) -> torch.Tensor:
    return x.flatten(1).expand(STEPS, -1, -1)


@pytest.mark.parametrize(
    ("net", "x", "ours"),
    [
        (lambda: Net(begin=image), 3 * torch.rand(BATCH, 1, N_IN), image),
        (lambda: Net(begin=lambda x: x.transpose(0, 1)), steps().transpose(0, 1), lambda x: x.transpose(0, 1)),
        (AtOnce, steps(), lambda x: x),
    ],
    ids=["the same in all steps", "batch first", "Linear over all steps"],
)
def test_an_input_may_be_the_same_in_all_steps_or_batch_first_or_pass_a_linear_at_once(net, x, ours):
    net = net().eval()
    network = wrap(net, x).eval()
    assert network.n_in == N_IN
    out = network(ours(x))
    assert out.any()
    assert torch.equal(out, net(x)[0])


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_torch_layer_reads_time_where_it_says(batch_first):
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out, self.lstm = nn.Linear(6, 4), nn.LSTM(N_IN, 6, num_layers=2, batch_first=batch_first, dropout=0.3)

        def forward(self, x):
            return self.out(self.lstm(x)[0])

    def turned(x):
        return x.transpose(0, 1) if batch_first else x

    net, x = Model().eval(), steps()
    assert_close(wrap(net, turned(x)).eval()(x), turned(net(turned(x))))


def test_nothing_of_the_model_is_changed():
    net = nn.Sequential(
        nn.Linear(N_IN, 9), nn.BatchNorm1d(9), nn.Dropout(0.5), snn.Leaky(beta=0.9, init_hidden=True), nn.Linear(9, 4)
    )
    x = 3 * torch.rand(BATCH, N_IN)
    for _ in range(3):
        net(x)
    leaky, norm = net[3], net[1]
    mem, running, rng = leaky.mem, norm.running_mean.clone(), torch.get_rng_state()
    assert len(wrap(net, x).cells) == 1
    assert leaky.mem is mem
    assert all(m.training for m in net.modules())
    assert torch.equal(norm.running_mean, running)
    assert torch.equal(torch.get_rng_state(), rng)
    broken = Net(lambda x: x.no_such_thing)
    with pytest.raises(AttributeError):
        wrap(broken, steps())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in (*net.modules(), *broken.modules()))
