"""Modules in torch.compile, and our layers inside of one."""

import copy

import pytest
import snntorch as snn
import torch
from torch import Tensor, nn

import neurolsc
from neurolsc import LIF, ALIFPlus, Monitor, Network, accelerate, diagnose, initialize, pretrain, radius_profile, wrap
from neurolsc.interop.prepared import prepare
from tests.test_monitor import Norse, SnnTorch, SpikingJelly, batch, own, slow

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of torch's compiler itself
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),  # likewise, which it reads
]


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def not_run(graph, inputs):
    raise AssertionError("the compiled module was called")


WAYS = ["around", "in place"]


def compiled(net: nn.Module, way: str) -> nn.Module:
    """The module in torch.compile, whose graph cannot be run."""
    if way == "around":
        return torch.compile(net, backend=not_run)  # type: ignore[return-value]
    net.compile(backend=not_run)
    return net


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [own, SnnTorch, *slow(Norse, SpikingJelly)])
def test_a_compiled_module_is_measured_and_set_by_its_original(make, way, tmp_path):
    x, y = batch(0)
    net = make()
    plain = copy.deepcopy(net)
    made = compiled(net, way)
    assert torch.equal(radius_profile(made, x, steps=2).time, radius_profile(plain, x, steps=2).time)
    assert str(diagnose(made, x, y, samples=1, steps=1)) == str(diagnose(plain, x, y, samples=1, steps=1))
    assert prepare(made, x).layout == prepare(plain, x).layout
    found = initialize(made, x)
    assert str(found) == str(initialize(plain, x))
    for change in (made, plain):
        pretrain(change, x, max_steps=1, steps=1, samples=1, progress=False)
    for name, value in plain.state_dict().items():
        assert torch.equal(net.state_dict()[name], value), name
    monitors = [Monitor(one, x, y, every=1) for one in (made, plain)]
    for monitor in monitors:
        monitor.step(1.0)
    assert monitors[0].rows == monitors[1].rows
    neurolsc.save(made, tmp_path / "net.safetensors")
    if not isinstance(net, Network):
        assert neurolsc.load(tmp_path / "net.safetensors", plain) is plain
        assert neurolsc.load(tmp_path / "net.safetensors", made) is made
        assert len(wrap(made, x).cells) == 3


def test_a_layer_that_is_compiled_inside_of_a_module_is_read_as_it_is():
    x, _ = batch(0)
    net = SnnTorch()
    wanted = radius_profile(net, x, steps=2)
    net.lif[0] = torch.compile(net.lif[0], backend=not_run)
    net.fc[1] = torch.compile(net.fc[1], backend=not_run)
    found = radius_profile(net, x, steps=2)
    assert torch.equal(found.time, wanted.time)
    assert torch.equal(found.depth, wanted.depth)


def test_what_is_accelerated_is_the_original_of_a_compiled_module():
    net = nn.Sequential(nn.Linear(12, 8), snn.Leaky(0.9, init_hidden=True))
    x = batch(0)[0]
    assert type(accelerate(torch.compile(net, backend=not_run), x[0])).__name__ == "AcceleratedSequential"


# ---- our layers inside of a compiled module


class ByStep(nn.Module):
    """A loop over steps."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(12, 6)
        self.cells = nn.ModuleList([LIF(6, 5), ALIFPlus(5, 4)])

    def forward(self, x: Tensor) -> Tensor:
        states = [cell.initial_state(x.shape[1]) for cell in self.cells]
        sent = []
        for now in 40 * self.fc(x):
            z = now
            for i, cell in enumerate(self.cells):
                z, states[i] = cell.step(z, states[i])
            sent.append(states[-1].v)
        return torch.stack(sent)


class ByRun(ByStep):
    """A layer after the other over all steps."""

    def forward(self, x: Tensor) -> Tensor:
        z = 40 * self.fc(x)
        for cell in self.cells:
            z, _ = cell.run(z, cell.initial_state(x.shape[1]))
        return z


@pytest.mark.long
@pytest.mark.parametrize("kind", [*slow(ByStep), ByRun])
def test_our_layers_are_a_part_of_a_graph_without_a_warning(kind):
    net = kind()
    x = batch(0)[0][:4]
    wanted = net(x)
    found = torch.compile(net, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(found, wanted)
    for a, b in zip(
        torch.autograd.grad(found.square().sum(), list(net.fc.parameters())),
        torch.autograd.grad(wanted.square().sum(), list(net.fc.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(a, b)
    assert wanted.any()


def test_a_whole_network_under_fullgraph_shows_why_not():
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"not with fullgraph=True: use cell\.run there"):
        torch.compile(own(), fullgraph=True, backend="eager")(batch(0)[0])
