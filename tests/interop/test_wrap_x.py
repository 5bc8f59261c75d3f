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
    """snnTorch's tutorial with neurons defined before their Linears; two places to change."""

    def __init__(self, change=lambda spk: spk, end=lambda out: out, **leaky) -> None:
        super().__init__()
        self.lif1, self.lif2 = snn.Leaky(beta=0.9, **leaky), snn.Leaky(beta=0.8, **leaky)
        self.fc2, self.fc1 = nn.Linear(12, 12, bias=False), nn.Linear(N_IN, 12)
        self.drop = nn.Dropout(0.5)
        self.change, self.end = change, end

    def forward(self, x):
        mem1, mem2 = self.lif1.init_leaky(), self.lif2.init_leaky()
        spks, mems = [], []
        for step in x:
            spk1, mem1 = self.lif1(self.drop(self.fc1(step)), mem1)
            spk2, mem2 = self.lif2(self.drop(self.change(self.fc2(self.drop(spk1)))), mem2)
            spks.append(spk2)
            mems.append(mem2)
        return self.end((torch.stack(spks), torch.stack(mems)))


def steps() -> torch.Tensor:
    return 3 * torch.rand(STEPS, BATCH, N_IN)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def test_neurons_before_their_linears_are_put_in_the_order_of_use():
    net, x = Net().eval(), steps()
    network = wrap(net, x)
    assert [cell.layer for cell in network.cells] == [net.lif1, net.lif2]
    run = network.eval().run(x)
    assert all(z.any() for z in run.spikes)
    assert torch.equal(run.logits, net(x)[0])


@pytest.mark.parametrize("threshold", [1.0, 100.0], ids=["firing", "silent"])
@pytest.mark.parametrize("change", [relu, torch.tanh, lambda x: x * (x > -0.05)], ids=["relu", "tanh", "cut"])
def test_a_function_in_forward_is_an_error_that_names_the_place(change, threshold):
    with pytest.raises(ValueError, match=r"between fc2 \(Linear\) and drop \(Dropout\) .*Let it call a module"):
        wrap(Net(change, threshold=threshold), steps())


class Skip(Net):
    def forward(self, x):
        mem1, mem2, out = self.lif1.init_leaky(), self.lif2.init_leaky(), []
        for step in x:
            spk1, mem1 = self.lif1(self.fc1(step), mem1)
            spk2, mem2 = self.lif2(self.fc2(spk1) + spk1, mem2)
            out.append(spk2)
        return torch.stack(out)


class Twice(Net):
    def forward(self, x):
        mem, out = self.lif1.init_leaky(), []
        for step in x:
            spk, mem = self.lif1(self.fc1(step), mem)
            spk, mem = self.lif1(self.fc2(spk), mem)
            out.append(spk)
        return torch.stack(out)


class TwiceBelow(Net):
    def forward(self, x):
        mem1, mem2, out = self.lif1.init_leaky(), self.lif2.init_leaky(), []
        for step in x:
            spk, mem1 = self.lif1(self.fc1(step), mem1)
            spk, mem1 = self.lif1(self.fc2(spk), mem1)
            spk, mem2 = self.lif2(spk, mem2)
            out.append(spk)
        return torch.stack(out)


class InPlace(Net):
    def forward(self, x):
        mem1, mem2, out = self.lif1.init_leaky(), self.lif2.init_leaky(), []
        for step in x:
            spk, mem1 = self.lif1(self.fc1(step), mem1)
            spk *= 2
            spk, mem2 = self.lif2(self.fc2(spk), mem2)
            out.append(spk)
        return torch.stack(out)


class Charged(Net):
    def forward(self, x):
        mem, out = torch.full((BATCH, 12), 5.0), []
        for step in x:
            spk, mem = self.lif1(self.fc1(step), mem)
            out.append(spk)
        return torch.stack(out)


class Encoded(Net):
    def forward(self, x):
        return super().forward((torch.rand_like(x) < x).float())


@pytest.mark.parametrize(
    ("net", "told"),
    [
        (Skip, r"between fc2 \(Linear\) and lif2 .*a sum of two layers"),
        (InPlace, r"between lif1 \(Leaky\) and fc2 .*from 0 to 2, and .*from 0 to 1\."),
        (Twice, r"in the 40 steps that lif1 \(Leaky\) takes, .*use every layer once in a step"),
        (TwiceBelow, r"lif2 \(Leaky\) reads 20 steps of 5 samples, and lif1 \(Leaky\) 40 of 5: .*once in each step"),
        (Charged, r"lif1 \(Leaky\) sends values .*forward sets or changes its state"),
        (Encoded, r"between the input and fc1 \(Linear\): .*encoding in spikes"),
        (
            lambda: Net(end=lambda out: log_softmax(out[1].sum(0), -1)),
            r"between lif2 \(Leaky\) and what forward returns \(\(5, 12\)\): .*nn.LogSoftmax",
        ),
    ],
)
def test_what_a_network_of_layers_cannot_do_is_refused_by_name(net, told):
    with pytest.raises(ValueError, match=told):
        wrap(net(), steps())


@pytest.mark.parametrize(
    ("end", "way"),
    [
        (lambda out: out, "spikes"),
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
    network = wrap(net, x)
    run = network.run(x.flatten(1).expand(STEPS, -1, -1))
    assert run.spikes[0].any() and run.spikes[1].any()
    assert_close(run.logits, net(x))
    with pytest.raises(
        ValueError, match=r"between conv1 \(Conv2d\) and lif1 \(Leaky\) .*\(5, 3, 6, 6\).*\(5, 3, 12, 12\)"
    ):
        wrap(Images(lambda x: max_pool2d(x, 2)), x)


class Static(Net):
    """One input for all steps, as in snnTorch's tutorial 5."""

    def forward(self, x):
        return super().forward(x.flatten(1).expand(STEPS, -1, -1))


class BatchFirst(Net):
    def forward(self, x):
        return super().forward(x.transpose(0, 1))


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
        return below


def test_an_input_may_be_the_same_in_all_steps_or_batch_first_or_pass_a_linear_at_once():
    x = steps()
    image = 3 * torch.rand(BATCH, 1, N_IN)
    cases = [
        (Static(), image, image.flatten(1).expand(STEPS, -1, -1)),
        (BatchFirst(), x.transpose(0, 1), x),
        (AtOnce(), x, x),
    ]
    for net, given, ours in cases:
        network = wrap(net.eval(), given).eval()
        assert network.n_in == N_IN
        out = network(ours)
        theirs = net(given)
        assert out.any()
        assert torch.equal(out, theirs if isinstance(theirs, torch.Tensor) else theirs[0])


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_torch_layer_reads_time_where_it_says(batch_first):
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out, self.lstm = nn.Linear(6, 4), nn.LSTM(N_IN, 6, num_layers=2, batch_first=batch_first, dropout=0.3)

        def forward(self, x):
            return self.out(self.lstm(x)[0])

    net, x = Model().eval(), steps()
    network = wrap(net, x.transpose(0, 1) if batch_first else x).eval()
    given = net(x.transpose(0, 1)).transpose(0, 1) if batch_first else net(x)
    assert_close(network(x), given)
    assert len(wrap(nn.GRU(N_IN, 3), x).cells) == 1


def test_nothing_of_the_model_is_changed():
    net = nn.Sequential(
        nn.Linear(N_IN, 9), nn.BatchNorm1d(9), nn.Dropout(0.5), snn.Leaky(beta=0.9, init_hidden=True), nn.Linear(9, 4)
    )
    x = 3 * torch.rand(BATCH, N_IN)
    for _ in range(3):
        net(x)
    leaky, norm = net[3], net[1]
    mem, running, rng = leaky.mem, norm.running_mean.clone(), torch.get_rng_state()
    network = wrap(net, x)
    assert len(network.cells) == 1
    assert leaky.mem is mem
    assert all(m.training for m in net.modules())
    assert torch.equal(norm.running_mean, running)
    assert torch.equal(torch.get_rng_state(), rng)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())
    with pytest.raises(ValueError, match="between the input"):
        wrap(Encoded(), steps())
    broken = Net(lambda x: x.no_such_thing)
    with pytest.raises(AttributeError):
        wrap(broken, steps())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in broken.modules())
