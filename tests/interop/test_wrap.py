"""`wrap`: which modules become which cells, that the network computes what the model does, and what changes in it."""

import importlib
import sys

import pytest
import snntorch as snn
import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, max_pool2d, relu
from torch.testing import assert_close

from neurolsc import LIF, WrappedNeuronWarning, load, pretrain, radius_profile, save, wrap
from neurolsc.export import quantize
from neurolsc.init import FiringRate
from neurolsc.interop import norse as in_norse
from tests.interop.layers import SNNTORCH

STEPS, BATCH, N_IN = 20, 5, 7


class Net(nn.Module):
    """The network of snnTorch's tutorials, with places to change."""

    def __init__(
        self, change=lambda y: y, end=lambda out: out, begin=lambda x: x, between=lambda spk: spk, **leaky
    ) -> None:
        super().__init__()
        self.fc1, self.lif1 = nn.Linear(N_IN, 12), snn.Leaky(beta=0.9, **leaky)
        self.fc2, self.lif2 = nn.Linear(12, 12, bias=False), snn.Leaky(beta=0.8, **leaky)
        self.drop = nn.Dropout(0.5)
        self.change, self.end, self.begin, self.between = change, end, begin, between

    def forward(self, x):
        mem1, mem2 = self.lif1.init_leaky(), self.lif2.init_leaky()
        spks, mems = [], []
        for step in self.begin(x):
            spk1, mem1 = self.lif1(self.drop(self.fc1(step)), mem1)
            spk2, mem2 = self.lif2(self.drop(self.change(self.fc2(self.drop(self.between(spk1))))), mem2)
            spks.append(spk2)
            mems.append(mem2)
        return self.end((torch.stack(spks), torch.stack(mems)))


def steps() -> Tensor:
    return 3 * torch.rand(STEPS, BATCH, N_IN)


# ---------------------------------------------------------------- without x: the order of definition, or a list


@pytest.mark.parametrize("kind", ["Leaky-zero", "RLeaky-now", "Synaptic"])
def test_a_membrane_that_is_read_is_that_of_the_librarys_loop_and_no_initialiser_sets_its_layer(kind):
    fc, lif, *tail = nn.Linear(7, 7), snn.Leaky(beta=0.9, init_hidden=True), *SNNTORCH[f"{kind}-hidden"][0]()
    nn.init.uniform_(tail[0].weight, 0, 1)
    network, x, mems, fired = wrap([fc, lif, *tail], output="membrane"), steps(), [], 0
    for step in x:
        fired += tail[1](tail[0](lif(fc(step)))).sum()
        mems.append(tail[1].mem)
    assert fired > 0
    assert_close(network(x), torch.stack(mems), rtol=1e-5, atol=1e-6)
    assert network.spiking == (0,)
    before = tail[1].threshold.clone()
    FiringRate(0.3).apply(network, [x])
    assert network.run(x).spikes[0].mean().item() == pytest.approx(0.3, abs=0.03)
    assert torch.equal(tail[1].threshold, before)


@pytest.mark.parametrize("end", [nn.Linear(12, 3), nn.LSTM(12, 3)], ids=lambda m: type(m).__name__)
def test_a_membrane_where_there_is_none_to_read_is_refused(end):
    with pytest.raises(ValueError, match=rf"has a mem at the very end, got {type(end).__name__}"):
        wrap([nn.Linear(7, 12), snn.Leaky(0.9), end], output="membrane")


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
        (lambda: [nn.Linear(3, 3), torch.relu], TypeError, "net must be a torch.nn.Module or a list of modules"),
        (lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU()), ValueError, "no recurrent layer"),
        (lambda: [nn.Conv2d(1, 2, 3), snn.Leaky(0.9)], ValueError, r"wrap\(net, x\), or input_shape"),
        (lambda: [fc := nn.Linear(3, 3), lif := snn.Leaky(0.9), fc, lif], ValueError, "occurs twice"),
        (lambda: [nn.Linear(3, 3), Counting(), snn.Leaky(0.9)], TypeError, "Counting: .*has a state"),
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


def test_a_cell_of_ours_is_taken_as_it_is_and_modules_before_it_belong_to_it():
    cell, plain, out = in_norse.ALIFPlusRecurrentCell(N_IN, 16, v_th=0.3), nn.Linear(N_IN, N_IN), nn.Linear(16, 3)
    assert wrap([cell, out]).cells[0] is cell
    network, x, state, logits = wrap([nn.Flatten(), plain, cell, out]), steps(), None, []
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


# ---------------------------------------------------------------- with x: the order of use, compared with the model


def test_cells_of_ours_with_a_linear_are_saved_and_exported_as_a_network_of_ours(tmp_path):
    network = wrap([LIF(N_IN, 8, reset="zero", threshold=0.1), nn.Linear(8, 3, bias=False)])
    save(network, tmp_path / "n.safetensors")
    x = steps()
    assert_close(load(tmp_path / "n.safetensors")(x), network(x))
    assert network.run(x).spikes[0].any()
    assert quantize(network, force=True).n_in == N_IN


def test_without_x_the_order_is_that_of_definition_and_with_x_that_of_use():
    net, x = Net().eval(), steps()
    with pytest.warns(WrappedNeuronWarning, match="nothing shows that forward uses lif1, lif2 in this order"):
        defined = wrap(net)
    net._modules = {name: net._modules[name] for name in ("lif1", "lif2", "fc2", "fc1", "drop")}
    with pytest.raises(ValueError, match=r"no module is between a Leaky and a Leaky: .*wrap\(net, x\)"):
        wrap(net, input_shape=N_IN)
    for network in (defined, wrap(net, x)):
        assert [cell.layer for cell in network.cells] == [net.lif1, net.lif2]
        run = network.eval().run(x)
        assert all(z.any() for z in run.spikes)
        assert torch.equal(run.logits, net(x)[0])


@pytest.mark.parametrize("threshold", [1.0, 100.0], ids=["firing", "silent"])
@pytest.mark.parametrize("where", ["change", "between"])
def test_a_function_in_forward_is_an_error_that_names_the_place(where, threshold):
    """A relu changes no spike, but the derivative where there is none."""
    place = (
        r"between lif1 \(Leaky\) and lif2 \(Leaky\) .* drop \(Dropout\), fc2 \(Linear\), drop .*Let it call a module"
    )
    with pytest.raises(ValueError, match=place):
        wrap(Net(**{where: relu}, threshold=threshold), steps())


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
    return *net.lif2(spk, mem2), mem1


def one_layer(net, x, mem1, mem2):
    return *net.lif1(net.fc1(x), mem1), mem2


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (lambda: Loop(skip), r"between lif1 \(Leaky\) and lif2 \(Leaky\) .*fc2 .*a sum of two layers"),
        (lambda: Loop(twice), r"lif1 \(Leaky\) is used twice in one step, 2 times for each of 20 steps"),
        (lambda: Loop(one_layer, mem=5.0), r"lif1 \(Leaky\) sends something else .*forward sets or changes its state"),
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


class WithReadout(Loop):
    """The same network with a readout, in the step of a test."""

    def __init__(self, step) -> None:
        super().__init__(step)
        self.fc3, self.fc4 = nn.Linear(12, 4), nn.Linear(4, 4)
        self.wide = nn.Linear(24, 4)

    def spikes(self, x, mem1, mem2):
        """Return the spikes of both layers, and their membranes."""
        spk1, mem1 = self.lif1(self.fc1(x), mem1)
        spk2, mem2 = self.lif2(self.fc2(spk1), mem2)
        return spk1, spk2, mem1, mem2


class ReadoutOverTime(WithReadout):
    """Its readout reads the spikes of both layers in all steps, in one call."""

    def forward(self, x):
        mem1, mem2, spikes = torch.zeros(BATCH, 12), torch.zeros(BATCH, 12), []
        for now in x:
            spk1, spk2, mem1, mem2 = self.spikes(now, mem1, mem2)
            spikes.append(torch.stack((spk1, spk2)))
        return self.step(self, *torch.stack(spikes, 1))


def sum_into_readout(net, *state):
    spk1, spk2, *membranes = net.spikes(*state)
    return net.fc3(spk1 + spk2), *membranes


def both_into_readout(net, *state):
    spk1, spk2, *membranes = net.spikes(*state)
    return net.wide(torch.cat((spk1, spk2), -1)), *membranes


def membrane_into_readout(net, *state):
    *_, mem1, mem2 = net.spikes(*state)
    return net.fc3(mem2), mem1, mem2


def relu_in_readout(net, *state):
    _, spk2, *membranes = net.spikes(*state)
    return net.fc4(relu(net.fc3(spk2))), *membranes


def relu_at_the_end(net, *state):
    _, spk2, *membranes = net.spikes(*state)
    return relu(net.fc4(net.fc3(spk2))), *membranes


LIF2 = r"between lif2 \(Leaky\) and"


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (WithReadout(sum_into_readout), rf"^{LIF2} fc3 \(Linear\) .*: it calls Tensor.add"),
        (WithReadout(both_into_readout), rf"^{LIF2} wide \(Linear\) "),
        (WithReadout(membrane_into_readout), rf"^{LIF2} fc3 \(Linear\) "),
        (WithReadout(relu_in_readout), rf"^{LIF2} fc4 \(Linear\) forward .* than fc3 \(Linear\): it calls F.relu"),
        (ReadoutOverTime(lambda net, a, b: net.fc3(a + b)), rf"^{LIF2} fc3 \(Linear\) .*: it calls Tensor.add"),
        (ReadoutOverTime(lambda net, _, b: net.fc3(b.sum(0))), rf"^{LIF2} fc3 \(Linear\) .*: it calls Tensor.sum"),
        (ReadoutOverTime(lambda net, _, b: net.fc4(net.fc3(b.mean(0)).relu())), rf"^{LIF2} fc4 \(Linear\) "),
        # where the readout reads what it should, the place is behind it
        (WithReadout(relu_at_the_end), r"^between fc4 \(Linear\) and what forward returns"),
        (ReadoutOverTime(lambda net, _, b: net.fc3(b.mean(0)).relu()), r"^between fc3 \(Linear\) and what forward"),
        (ReadoutOverTime(lambda net, _, b: net.fc3(b[-1]).relu()), r"^between fc3 \(Linear\) and what forward"),
        (
            ReadoutOverTime(lambda net, _, b: torch.stack([net.fc3(now).relu() for now in b])),
            r"^between fc3 \(Linear\) and what forward",
        ),
    ],
)
def test_what_a_readout_reads_that_no_layer_sends_is_refused_below_it_and_not_behind(net, message):
    with pytest.raises(ValueError, match=message):
        wrap(net, steps())


@pytest.mark.parametrize(
    ("end", "way"),
    [
        (lambda out: out[0].sum(0), "spikes"),
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


def image(x: Tensor) -> Tensor:
    return x.flatten(1).expand(STEPS, -1, -1)


def test_a_view_is_followed_and_a_module_may_be_used_behind_several_layers():
    net, x = Images(nn.MaxPool2d(2)), 9 * torch.rand(BATCH, 1, 14, 14)
    net.conv2.weight.data.abs_().mul_(3)
    run = wrap(net, x).run(image(x))
    assert run.spikes[0].any() and run.spikes[1].any()
    assert_close(run.logits, net(x))
    with pytest.raises(
        ValueError, match=r"between the input and lif1 \(Leaky\) .* conv1 \(Conv2d\): it calls F\.max_pool2d\."
    ):
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
    leaky, norm = snn.Leaky(beta=0.9, init_hidden=True), nn.BatchNorm1d(9)
    net, x = nn.Sequential(nn.Linear(N_IN, 9), norm, nn.Dropout(0.5), leaky, nn.Linear(9, 4)), steps()[0]
    net(x)
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


def test_where_the_model_itself_cannot_take_x_the_error_says_what_x_must_be():
    net = nn.Sequential(nn.Linear(N_IN, 9), nn.BatchNorm1d(9), snn.Leaky(beta=0.9, init_hidden=True))
    with pytest.raises(ValueError, match=r"x must be finite and not empty, got \(0, 7\)\."):
        wrap(net, torch.zeros(0, 7))
    with pytest.raises(ValueError, match=r"cannot read x: running_mean .* one step, \(B, \.\.\.\)"):
        wrap(net, steps())  # all steps of a model that takes one
    with pytest.raises(TypeError, match=r"cannot read an x of torch\.int64 .* weights are torch\.float32, give x\.to"):
        wrap(net, steps()[0].long())
    with pytest.raises(
        ValueError, match=r"a layer in it returns a tuple: make snnTorch's layers with init_hidden=True"
    ):
        wrap(nn.Sequential(nn.Linear(N_IN, 9), snn.Leaky(beta=0.9), nn.Linear(9, 4)), steps()[0])


# ---------------------------------------------------------------- without the other libraries


@pytest.mark.parametrize("name", ["interop.snntorch", "interop.norse", "callbacks.lightning", "interop.neurobench"])
def test_i2_a_missing_package_is_named_with_what_to_install(name, monkeypatch):
    ours, name = f"neurolsc.{name}", name.partition(".")[2]
    for module in [module for module in sys.modules if module.split(".")[0] == name]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    monkeypatch.delitem(sys.modules, ours, raising=False)
    with pytest.raises(ImportError, match=rf"pip install '{name}>=\d\.\d'"):
        importlib.import_module(ours)
