"""Public functions take any library's module and x as it takes it, and do to it what they do to its network."""

import copy

import nir
import pytest
import snntorch as snn
import torch
from spikingjelly.activation_based import neuron
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

from neurolsc import load, match_firing_rates, pretrain, radius_profile, save, scale_to_radius, wrap
from neurolsc.export import read_netx, to_netx, to_nir, verify
from neurolsc.init import LSC, Chain, FiringRate, Glorot, Initialiser, InitReport
from neurolsc.interop.neurobench import model
from neurolsc.interop.prepared import prepare
from tests.interop.modules import CASES, CLASSES, N_IN, STEPS, N, Tutorial, norse, sequence

pytestmark = pytest.mark.filterwarnings("ignore::neurolsc.WrappedNeuronWarning")

FEW = ("snnTorch batch first", "snnTorch images", "norse step", "spikingjelly over time", "PyTorch batch first")


def values(net: nn.Module) -> list[Tensor]:
    """Parameters and buffers, copied."""
    return [value.clone() for value in net.state_dict().values()]


# ---------------------------------------------------------------- radii and rates


@pytest.mark.parametrize("name", FEW)
def test_radii_of_a_module_are_those_of_its_network_and_it_stays_as_it_is(name):
    case = CASES[name]
    net, x = case.make(), case.x()
    before = values(net)
    found = radius_profile(net, x, steps=2)
    network, own_x, *_ = prepare(net, x)
    wanted = radius_profile(network, own_x, steps=2)
    assert torch.equal(found.time, wanted.time) and torch.equal(found.depth, wanted.depth)
    assert found.layout == case.layout
    assert str(found).startswith(f"x: {case.layout}\n")
    assert found.to_dict()["layout"] == case.layout
    assert "x:" not in str(wanted)
    assert all(map(torch.equal, before, values(net)))


def test_half_precision_is_measured_in_float32():
    net, x = Tutorial(), sequence()
    wanted = radius_profile(copy.deepcopy(net).bfloat16().float(), x.bfloat16().float(), steps=2)
    found = radius_profile(net.bfloat16(), x.bfloat16(), steps=2)
    assert torch.equal(found.time, wanted.time) and found.time.dtype == torch.float32
    assert net.fc1.weight.dtype == torch.bfloat16


@pytest.mark.parametrize("name", FEW)
def test_pretraining_a_module_changes_its_own_parameters_as_those_of_its_network(name):
    case = CASES[name]
    net, x = case.make(), case.x()
    other = copy.deepcopy(net)
    settings = {"target": 0.5, "max_steps": 2, "progress": False, "steps": 2, "samples": 2}
    found = pretrain(net, x, **settings)
    network, own_x, *_ = prepare(other, x)
    wanted = pretrain(network, [own_x], **settings)
    assert torch.equal(found.profile.time, wanted.profile.time)
    assert found.layout == case.layout
    assert f"x: {case.layout}" in str(found)
    assert all(map(torch.equal, values(net), values(other)))
    assert not all(map(torch.equal, values(net), values(case.make())))


def test_pretraining_takes_a_loader_a_batch_with_labels_and_a_list():
    x, y = 3 * torch.rand(8, STEPS, N_IN), torch.arange(8) % CLASSES
    loader = DataLoader(TensorDataset(x, y), batch_size=8)
    settings = {"target": 0.5, "max_steps": 1, "progress": False, "steps": 2, "samples": 2}
    results = []
    for given in (x, (x, y), [x], [(x, y)], loader):
        torch.manual_seed(0)
        results.append(pretrain(Tutorial(batch_first=True), given, **settings).profile.time)
    assert all(torch.equal(result, results[0]) for result in results)


def test_scaling_a_module_reaches_the_target_in_it():
    torch.manual_seed(0)
    net, x = CASES["snnTorch batch first"].make(), CASES["snnTorch batch first"].x()
    found = scale_to_radius(net, x, target=0.6, direction="time", progress=False)
    assert found.layout == CASES["snnTorch batch first"].layout
    assert radius_profile(net, x).time_mean.tolist() == pytest.approx([0.6, 0.6], abs=0.06)


def test_firing_rates_of_a_module_are_matched_in_it():
    net, x = Tutorial(batch_first=True), 3 * torch.rand(64, 25, N_IN)
    reached = match_firing_rates(net, x, [0.2, 0.1])
    spikes = prepare(net, x).network.eval().run(x.transpose(0, 1)).spikes
    assert reached == pytest.approx([0.2, 0.1], rel=0.1)
    assert [z.mean().item() for z in spikes] == pytest.approx(reached, rel=1e-6)


# ---------------------------------------------------------------- initialisations


@pytest.mark.parametrize("init", [Glorot(), FiringRate(0.2), Glorot() + FiringRate(0.2)], ids=str)
@pytest.mark.parametrize("name", ["snnTorch batch first", "norse over time", "spikingjelly step"])
def test_an_initialisation_of_a_module_is_that_of_its_network(init, name):
    case = CASES[name]
    net, x = case.make(), case.x()
    other = copy.deepcopy(net)
    found = init.apply(net, x, seed=3)
    network, own_x, *_ = prepare(other, x)
    wanted = init.apply(network, [own_x], seed=3)
    assert tuple(found) == tuple(wanted)
    assert isinstance(found, InitReport) and found.layout == case.layout
    assert str(found).startswith(f"x: {case.layout}")
    assert all(map(torch.equal, values(net), values(other)))
    assert torch.equal(prepare(net, x).network.eval()(own_x), network.eval()(own_x))


def test_initialisers_take_a_loader_whose_order_stays_and_ones_own_initialiser_gets_a_network():
    class Seen(Initialiser):
        def apply(self, network, inputs, *, seed=0):
            self.seen = network.n_in, [x.shape for x, *_ in inputs]
            return ()

    x = 3 * torch.rand(40, STEPS, N_IN)
    loader = DataLoader(TensorDataset(x, torch.arange(40) % CLASSES), batch_size=2, shuffle=True)
    net, init = Tutorial(batch_first=True), Seen()
    state = torch.get_rng_state()
    assert init.apply(net, loader) == ()
    assert torch.equal(torch.get_rng_state(), state)
    assert init.seen == (N_IN, [(STEPS, 2, N_IN)] * 16)
    assert Chain((init, init)).apply(net, x) == ()


def test_an_initialiser_without_need_of_an_input_takes_a_module_alone():
    net = nn.Sequential(nn.Linear(N_IN, N), snn.Leaky(0.9))
    before = net[0].weight.clone()
    Glorot().apply(net, [])
    assert not torch.equal(net[0].weight, before)


# ---------------------------------------------------------------- what outlives net.state_dict()


def lif_nodes() -> nn.Module:
    return nn.Sequential(nn.Linear(N_IN, N), neuron.LIFNode(tau=3.0), nn.Linear(N, CLASSES), neuron.IFNode())


def norse_layers() -> nn.Module:
    return norse.SequentialState(norse.LIFRecurrentCell(N_IN, N), nn.Linear(N, CLASSES), norse.LICell())


def leaky() -> nn.Module:
    return nn.Sequential(nn.Linear(N_IN, N), snn.Leaky(0.9, init_hidden=True), nn.Linear(N, CLASSES))


@pytest.mark.parametrize("make", [lif_nodes, norse_layers, leaky])
@pytest.mark.parametrize("init", [FiringRate(0.2), LSC(0.5, method="scale", direction="time")], ids=["rates", "radii"])
def test_what_an_initialisation_sets_is_in_the_file_of_the_module(make, init, tmp_path):
    net, x = make(), 10 * sequence()
    report = init.apply(net, x)
    left_by_state_dict = make()
    left_by_state_dict.load_state_dict(net.state_dict())
    restored = make()
    save(net, tmp_path / "net.safetensors")
    assert load(tmp_path / "net.safetensors", restored) is restored
    own_x = prepare(net, x).x
    network, again, without = (prepare(each, x).network for each in (net, restored, left_by_state_dict))
    spikes = network.run(own_x).spikes[0]
    assert spikes.any()
    assert torch.equal(again.run(own_x).spikes[0], spikes)
    kept = torch.equal(without.run(own_x).spikes[0], spikes)
    assert kept is (make is leaky)
    assert (report.left_out == "") is kept
    assert kept or "neurolsc.save(net, path) keeps them" in str(report)


def test_a_file_of_a_module_of_other_layers_is_refused_and_the_module_stays(tmp_path):
    path = tmp_path / "net.safetensors"
    save(lif_nodes(), path)
    for other, message in (
        (norse_layers(), r"is of a Sequential whose layers keep other values than those of net: 0.p.alpha"),
        (nn.Sequential(*lif_nodes()[:2]), "whose layers keep other values"),
        (nn.Sequential(nn.Linear(N_IN, 4), *lif_nodes()[1:]), r"(?s)with other parameters than net: .*size mismatch"),
    ):
        before = values(other)
        with pytest.raises(ValueError, match=message):
            load(path, other)
        assert all(map(torch.equal, before, values(other)))
    threshold_each = lif_nodes()
    threshold_each[1].v_threshold = torch.ones(3)
    save(threshold_each, path)
    other = lif_nodes()
    before = values(other)
    with pytest.raises(ValueError, match=r"another 1.v_threshold than net: it is of shape \(3,\), in net \(\)"):
        load(path, other)
    assert all(map(torch.equal, before, values(other)))
    with pytest.raises(
        ValueError, match=r"got a module in format .*give load\(path, net\) a new module of its classes"
    ):
        load(path)
    save(prepare(CASES["ours"].make(), sequence()).network, path)
    with pytest.raises(ValueError, match=r"wanted a module .*got a network .*give load\(path\)"):
        load(path, leaky())
    with pytest.raises(TypeError, match=r"net must be a neurolsc\.Network or a torch.nn.Module, got list"):
        save([nn.Linear(2, 2)], path)


# ---------------------------------------------------------------- exports


class ToChip(Tutorial):
    """A tutorial's network whose layers a chip has."""

    def __init__(self) -> None:
        super().__init__(batch_first=True)
        self.lif1, self.lif2 = (snn.Leaky(beta=0.9, reset_mechanism="zero", threshold=0.3) for _ in "ab")

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)[0]


def test_a_module_is_exported_to_lava_with_what_it_takes(tmp_path):
    net, x = ToChip(), (torch.rand(6, 25, N_IN) < 0.4).float()
    labels = torch.arange(6) % CLASSES
    report = to_netx(net, tmp_path / "a.net", (x, labels))
    assert report.layout == f"batch first (B, T, {N_IN})"
    assert str(report).startswith(f"x: {report.layout}\n")
    assert report.decisions.accuracy_float is not None
    assert read_netx(tmp_path / "a.net").n_in == N_IN
    assert verify(tmp_path / "a.net").exact
    again = to_netx(net, tmp_path / "b.net", x, labels=labels)
    assert again.to_dict() == report.to_dict()


def test_a_module_is_described_in_nir_in_the_order_of_use(tmp_path):
    net, x = ToChip(), (torch.rand(6, 25, N_IN) < 0.4).float()
    net._modules = dict(reversed(net._modules.items()))  # so that the order of definition is another
    graph = to_nir(net, x, dt=1e-4)
    assert torch.equal(torch.from_numpy(graph.nodes["w_in_1"].weight), net.fc1.weight)
    to_nir(net, tmp_path / "a.nir", x, dt=1e-4)
    assert nir.read(tmp_path / "a.nir").nodes.keys() == graph.nodes.keys()
    whole = to_nir(wrap(net, x), dt=1e-4)
    assert_close(torch.from_numpy(whole.nodes["lif_1"].tau_mem), torch.from_numpy(graph.nodes["lif_1"].tau_mem))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_neurobench_runs_a_module():
    net, x = Tutorial(), sequence()
    sent = model(net, x)(x.transpose(0, 1))
    net.eval()
    assert torch.equal(sent.transpose(0, 1), net(x)[0])
