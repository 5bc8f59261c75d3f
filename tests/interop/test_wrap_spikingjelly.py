"""spikingjelly's neurons as our cells: steps, initialisations and diagnoses; and its users' silent fifth layer."""

import copy
from itertools import chain

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from neurolsc import Network, WrappedNeuronWarning, diagnose, pretrain, radius_profile, wrap
from neurolsc.init import FiringRate, Relay
from neurolsc.stability.indicators import recurrence_radius
from neurolsc.stability.transitions import follow

sj = pytest.importorskip("spikingjelly.activation_based")
from spikingjelly.activation_based import functional, layer, neuron, surrogate  # noqa: E402

STEPS, BATCH, N_IN, N = 25, 6, 7, 9
NODES = {
    "LIF": lambda **k: neuron.LIFNode(tau=3.0, **k),
    "LIF-input-whole": lambda **k: neuron.LIFNode(tau=3.0, decay_input=False, **k),
    "PLIF": lambda **k: neuron.ParametricLIFNode(init_tau=3.0, **k),
    "PLIF-input-whole": lambda **k: neuron.ParametricLIFNode(init_tau=3.0, decay_input=False, **k),
    "IF": lambda **k: neuron.IFNode(**k),
}
RESETS = {"subtract": None, "zero": 0.0, "number": -0.3}


def theirs(net: nn.Module, x: Tensor) -> Tensor:
    """What the model itself sends over x, from rest, in its own mode."""
    functional.reset_net(net)
    multi = isinstance(net, layer.MultiStepContainer) or any(getattr(m, "step_mode", "s") == "m" for m in net.modules())
    out = net(x) if multi else torch.stack([net(step) for step in x])
    functional.reset_net(net)
    return out


@pytest.mark.parametrize("reset", RESETS)
@pytest.mark.parametrize("kind", NODES)
def test_every_neuron_steps_as_spikingjelly_does(kind, reset):
    mode = "s" if kind == "LIF" else "m"
    node = NODES[kind](v_reset=RESETS[reset], step_mode=mode, store_v_seq=True)
    net = nn.Sequential(layer.Linear(N_IN, N, step_mode=mode), node).double()
    x = 4 * torch.randn(STEPS, BATCH, N_IN, dtype=torch.float64)
    functional.reset_net(net)
    outputs = net(x) if mode == "m" else torch.stack([net(step) for step in x])
    v_before = node.v
    network = wrap(net)
    run = network.run(x)
    assert 0.02 < run.spikes[0].mean() < 0.9
    assert torch.equal(run.logits, outputs)
    after = run.states.layers[0].v
    z = run.spikes[0][-1]
    v = after - z * node.v_threshold if node.v_reset is None else (1 - z) * after + z * node.v_reset
    assert_close(v, node.v_seq[-1], rtol=1e-12, atol=1e-12)
    assert node.v is v_before  # the model's hidden state stays


@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize(("kind", "reset"), [("LIF", "subtract"), ("PLIF-input-whole", "number")])
def test_gradients_are_those_of_spikingjelly(kind, reset, detach):
    node = NODES[kind](v_reset=RESETS[reset], detach_reset=detach, surrogate_function=surrogate.ATan())
    net = nn.Sequential(nn.Linear(N_IN, N), node).double()
    x = 4 * torch.randn(STEPS, BATCH, N_IN, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(STEPS, BATCH, N, dtype=torch.float64)
    (wanted,) = torch.autograd.grad((theirs(net, x) * weights).sum(), x)
    (came,) = torch.autograd.grad((wrap(net)(x) * weights).sum(), x)
    assert wanted.any()
    assert_close(came, wanted)
    assert wrap(net).cells[0].reset_gradient is not detach


@pytest.mark.parametrize("mode", ["s", "m"])
def test_a_recurrent_container_steps_as_spikingjelly_does(mode):
    net = nn.Sequential(layer.LinearRecurrentContainer(neuron.LIFNode(), N, N, step_mode=mode)).double()
    with torch.no_grad():
        net[0].rc.weight.mul_(4)
    x = 3 * torch.rand(STEPS, BATCH, N, dtype=torch.float64)
    network = wrap(net, input_shape=N)
    out = network(x)
    assert out.any()
    assert torch.equal(out, theirs(net, x))
    before, cell = net[0].rc.weight.clone(), network.cells[0]
    cell.w_rec = 2 * cell.w_rec
    changed = (net[0].rc.weight != before).any(0)
    assert changed.tolist() == [False] * N + [True] * N


@pytest.mark.parametrize("mode", ["s", "m"])
@pytest.mark.parametrize(
    "measure",
    [
        lambda net, x, y: radius_profile(net, x, steps=2, progress=False),
        lambda net, x, y: diagnose(net, x, y, steps=2, samples=2),
        lambda net, x, y: recurrence_radius(follow(wrap(net, input_shape=N), x, torch.tensor([3]))[0][0]),
    ],
    ids=["radii", "diagnosis", "recurrence"],
)
def test_measuring_a_recurrent_container_changes_nothing_in_it(measure, mode):
    """Its input and recurrent weights are views of one matrix, which measurements set to other values meanwhile."""
    torch.manual_seed(0)
    container = layer.LinearRecurrentContainer(neuron.LIFNode(v_threshold=0.2), N, N, step_mode=mode)
    net = nn.Sequential(container, layer.Linear(N, 4, step_mode=mode))
    before = copy.deepcopy(net.state_dict())
    measure(net, 3 * torch.rand(STEPS, BATCH, N), torch.arange(BATCH) % 4)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


class Deep(nn.Module):
    """A convolution, a batch norm and a dropout before Linears, in multi-step mode."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            layer.Conv2d(1, 3, 3, step_mode="m"),
            layer.BatchNorm2d(3, step_mode="m"),
            neuron.LIFNode(step_mode="m"),
            layer.MaxPool2d(2, step_mode="m"),
            layer.Flatten(step_mode="m"),
        )
        self.head = nn.Sequential(
            layer.Dropout(0.5, step_mode="m"), layer.Linear(12, N, step_mode="m"), neuron.LIFNode(step_mode="m")
        )

    def forward(self, x):
        functional.reset_net(self)
        return self.head(self.features(x)).mean(0)


def test_a_convolutional_network_in_multi_step_mode_is_followed_and_computes_the_same():
    net, x = Deep(), 6 * torch.rand(STEPS, BATCH, 1, 6, 6)
    with torch.no_grad():
        net.head[1].weight.mul_(6)
    with pytest.warns(WrappedNeuronWarning, match="Dropout drops the same inputs in all steps"):
        network = wrap(net, x).eval()
    assert network.n_in == 36
    run = network.run(x.flatten(2))
    assert all(z.any() for z in run.spikes)
    assert_close(run.logits.mean(0), net.eval()(x))
    (drop,) = (module for module in network.modules() if getattr(module, "theirs", None) is net.head[0])
    ones = torch.ones(BATCH, 100)
    assert_close(drop(ones), ones)
    net.train()
    assert drop(ones).unique().tolist() == [0.0, 2.0]  # half of them are dropped
    net.head[0].p = 0.0
    assert_close(drop(ones), ones)
    assert net.head[0].mask is None


def test_single_steps_and_a_multi_step_container_are_followed_too():
    x = 4 * torch.rand(STEPS, BATCH, N_IN)
    inner = nn.Sequential(nn.Linear(N_IN, N), neuron.LIFNode())
    multi = layer.MultiStepContainer(*copy.deepcopy(inner))
    ann = nn.Sequential(layer.SeqToANNContainer(copy.deepcopy(inner[0])), neuron.LIFNode(step_mode="m"))
    for net, given in ((inner, x[0]), (multi, x), (ann, x)):
        network = wrap(net, given)
        out = network(x)
        assert out.any()
        assert_close(out, theirs(multi, x))


@pytest.mark.parametrize(
    ("module", "error", "message"),
    [
        (lambda: neuron.QIFNode(), TypeError, "QIFNode cannot be wrapped: only LIFNode, ParametricLIFNode, IFNode"),
        (lambda: neuron.PSN(5), TypeError, "PSN cannot be wrapped: only LIFNode"),
        (lambda: type("Own", (neuron.LIFNode,), {})(), TypeError, "spikingjelly's Own cannot be wrapped"),
        (lambda: neuron.IFNode(v_threshold=0.5, v_reset=0.5), ValueError, "v_threshold must be above rest, got 0.5"),
    ],
)
def test_what_cannot_be_wrapped_is_refused_by_name(module, error, message):
    with pytest.raises(error, match=message):
        wrap(module(), input_shape=N_IN)


def test_radii_below_threshold_are_the_decay_and_pretraining_moves_tau_and_weights():
    net = nn.Sequential(
        nn.Linear(N_IN, N), neuron.LIFNode(tau=4.0, v_threshold=50.0, surrogate_function=surrogate.ATan(alpha=1e-6))
    )
    assert_close(radius_profile(wrap(net), torch.rand(5, 3, N_IN), steps=2).time_mean, torch.tensor([0.75]))
    net[1] = neuron.LIFNode(tau=4.0, v_threshold=0.3, detach_reset=True)
    x = 3 * torch.rand(STEPS, BATCH, N_IN)
    result = pretrain(wrap(net), [x], target=0.6, max_steps=200, progress=False)
    assert result.profile.firing_rate.min() > 0
    assert result.converged
    assert net[1].tau == pytest.approx(2.5, abs=0.2)
    assert isinstance(net[1].tau, float)


def test_a_state_dict_has_tau_and_threshold():
    net = nn.Sequential(nn.Linear(N_IN, N), neuron.LIFNode())
    network, x = wrap(net), 3 * torch.rand(STEPS, BATCH, N_IN)
    saved = copy.deepcopy(network.state_dict())
    FiringRate(0.3).apply(network, [x])
    assert network.run(x).spikes[0].mean().item() == pytest.approx(0.3, abs=0.02)
    assert net[1].v_threshold != 1.0
    network.load_state_dict(saved)
    assert net[1].v_threshold == 1.0


def firing(network: Network, x: Tensor) -> list[float]:
    return [z.mean().item() for z in network.run(x).spikes]


def test_silent_layers_are_named_with_their_cure_and_fire_after_a_start():
    """As in spikingjelly's issues 29, 190 and 285: rates go to zero from layer to layer."""
    modules = [(layer.Linear(40, 40), neuron.LIFNode()) for _ in range(5)]
    net, x = nn.Sequential(*chain(*modules), layer.Linear(40, 10)), 4 * (torch.rand(STEPS, 4, 40) < 0.3).float()
    functional.set_step_mode(net, "m")
    network = wrap(net, x)
    rates = firing(network, x)
    assert rates[0] > 0.02 and rates[4] == 0
    report = diagnose(network, x, samples=2, steps=2)
    dead = {finding.layer for finding in report.findings if finding.problem == "never fires"}
    assert dead == {i for i, rate in enumerate(rates, start=1) if rate == 0}
    assert [finding.cure for finding in report if finding.layer == min(dead)] == ["neurolsc.initialize(net, x)"]
    assert Relay().apply(network, [x]) == ()  # every relay hands on what it reads
    assert all(rate == pytest.approx(0.15, abs=0.02) for rate in firing(network, x))
    assert_close(theirs(net, x), network(x))  # the model itself is what has changed
