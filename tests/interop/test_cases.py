"""Situations of public reports and their relatives: what is right there, or the error that says what is wrong."""

import copy

import pytest
import snntorch as snn
import torch
from spikingjelly.activation_based import encoding, layer, neuron
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, max_pool2d
from torch.nn.utils import parametrizations, parametrize, prune
from torch.testing import assert_close

from neurolsc import (
    WrappedNeuronWarning,
    diagnose,
    initialize,
    match_firing_rates,
    pretrain,
    radius_profile,
    scale_to_radius,
    wrap,
)
from neurolsc.init import FiringRate, LayerwiseScaling, Relay
from neurolsc.interop.prepared import prepare
from neurolsc.neurons.parameters import set_value
from neurolsc.neurons.weights import weight_matrices
from tests.interop.modules import norse


def spikes(steps: int, batch: int, n_in: int, rate: float = 0.3) -> Tensor:
    return (torch.rand(steps, batch, n_in) < rate).float()


# ---------------------------------------------------------------- axes are what layers read, not equal sizes


class Rows(nn.Module):
    """One row of an image a step."""

    def __init__(self, n_in: int, axis: int = 0) -> None:
        super().__init__()
        self.fc, self.lif, self.out, self.axis = nn.Linear(n_in, 32), snn.Leaky(beta=0.9), nn.Linear(32, 10), axis

    def forward(self, x: Tensor) -> Tensor:
        mem, out = self.lif.reset_mem(), []
        for row in x.unbind(self.axis):
            spk, mem = self.lif(self.fc(row), mem)
            out.append(self.out(spk))
        return torch.stack(out)


@pytest.mark.parametrize("axis", [0, 1], ids=["time first", "batch first"])
@pytest.mark.parametrize(("steps", "batch"), [(27, 8), (28, 8), (29, 8), (28, 28), (8, 28)])
def test_an_image_with_as_many_rows_as_columns_is_read_row_by_row(steps, batch, axis):
    net, rows = Rows(28, axis), torch.rand(steps, batch, 28)
    network = wrap(net, rows.transpose(0, 1) if axis else rows)
    assert network.n_in == 28
    assert torch.equal(network(rows), net(rows.transpose(0, 1) if axis else rows))


# ---------------------------------------------------------------- what a module is, its step says, not where it lives


class Encoded(nn.Module):
    """A tutorial's network that turns an image into spikes by itself."""

    def __init__(self, encoder: nn.Module, lif: nn.Module, *, every_step: bool = False) -> None:
        super().__init__()
        self.encoder, self.fc, self.lif, self.every_step = encoder, nn.Linear(12, 16), lif, every_step

    def forward(self, x: Tensor) -> Tensor:
        out, state = [], []
        for step in [x] * 10 if self.every_step else self.encoder(x):
            sent = self.lif(self.fc(self.encoder(step) if self.every_step else step), *state)
            sent, *state = sent if isinstance(sent, tuple) else (sent,)
            out.append(sent)
        return torch.stack(out)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Encoded(norse.PoissonEncoder(10), norse.LIFCell()), "PoissonEncoder"),
        (lambda: Encoded(norse.ConstantCurrentLIFEncoder(10), norse.LIFCell()), "ConstantCurrentLIFEncoder"),
        (lambda: Encoded(encoding.PoissonEncoder(), neuron.LIFNode(), every_step=True), "PoissonEncoder"),
        (lambda: Encoded(norse.PoissonEncoder(10), snn.Leaky(0.9)), "PoissonEncoder"),
        (lambda: norse.SequentialState(norse.PoissonEncoder(10), nn.Linear(12, 16), norse.LIF()), "PoissonEncoder"),
    ],
)
def test_an_encoder_is_named_and_what_is_to_be_done_with_it(make, name):
    with pytest.raises(ValueError, match=rf"\({name}\) is an encoder: call it outside of the model"):
        wrap(make(), torch.rand(8, 12))


def test_an_encoder_in_a_list_is_named():
    with pytest.raises(ValueError, match="ConstantCurrentLIFEncoder, Linear turn one sample into 10 before a LIFCell"):
        wrap([norse.ConstantCurrentLIFEncoder(10), nn.Linear(12, 16), norse.LIFCell()], input_shape=12)
    with pytest.raises(TypeError, match=r"LatencyEncoder cannot be wrapped.* Call an encoder outside of the model"):
        wrap(Encoded(encoding.LatencyEncoder(10), neuron.LIFNode(), every_step=True), torch.rand(8, 12))


@pytest.mark.parametrize(
    "make",
    [
        lambda: norse.SequentialState(norse.Lift(nn.Conv2d(1, 4, 3)), norse.LIF()),
        lambda: nn.Sequential(layer.SeqToANNContainer(nn.Conv2d(1, 4, 3), nn.Flatten()), neuron.LIFNode(step_mode="m")),
    ],
    ids=["Lift", "SeqToANNContainer"],
)
def test_a_container_or_layer_of_a_library_without_a_state_is_a_module_like_others(make):
    assert len(wrap(make(), torch.rand(5, 2, 1, 12, 12)).cells) == 1


class OwnLeaky(snn.Leaky):
    """A neuron of one's own."""


class OwnNode(neuron.LIFNode):
    """Likewise."""


class OwnCell(norse.LIFCell):
    """Likewise."""


class OwnStep(nn.Module):
    """Without a library."""

    def __init__(self) -> None:
        super().__init__()
        self.mem = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        z = (self.mem > 1).to(x)
        self.mem = 0.9 * self.mem - z + x
        return z


@pytest.mark.parametrize(
    "make", [lambda: OwnLeaky(0.9, init_hidden=True), OwnNode, OwnCell, OwnStep], ids=["snn", "sj", "norse", "torch"]
)
def test_a_neuron_of_ones_own_is_sent_to_its_page(make):
    with pytest.raises((TypeError, ValueError), match='see "Your own neuron" in the documentation'):
        wrap(norse.SequentialState(nn.Linear(12, 16), make()), torch.rand(8, 12))


# ---------------------------------------------------------------- a refusal says what forward does


class Functional(nn.Module):
    """A network of convolutions with a function where a module should be."""

    def __init__(self, function) -> None:
        super().__init__()
        self.conv, self.lif1 = nn.Conv2d(1, 4, 5), snn.Leaky(0.9)
        self.fc, self.lif2 = nn.Linear(4 * 36, 4), snn.Leaky(0.9)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        mem1, mem2 = self.lif1.reset_mem(), self.lif2.reset_mem()
        out = []
        for step in x:
            spk, mem1 = self.lif1(self.function(self.conv(step)), mem1)
            spk, mem2 = self.lif2(self.fc(spk.flatten(1)), mem2)
            out.append(spk)
        return torch.stack(out)


@pytest.mark.parametrize(
    ("function", "named"),
    [
        (lambda x: max_pool2d(x, 2), r"F\.max_pool2d\."),
        (lambda x: torch.relu(avg_pool2d(x, 2)), r"F\.avg_pool2d, torch\.relu\."),
        (lambda x: 2 * max_pool2d(x, 2), r"F\.max_pool2d, Tensor\.mul\."),
    ],
)
def test_functions_that_forward_calls_between_two_layers_are_named(function, named):
    x = torch.rand(5, 2, 1, 16, 16)
    with pytest.raises(ValueError, match=rf"something else than conv \(Conv2d\): it calls {named}"):
        wrap(Functional(function), x)


# ---------------------------------------------------------------- what integrates is read by its membrane


class Readout(nn.Module):
    """A tutorial's network that returns spikes and membranes of its last layer."""

    def __init__(self, order: str, reset: str) -> None:
        super().__init__()
        self.fc, self.lif, self.out = nn.Linear(12, 16), snn.Leaky(0.9), nn.Linear(16, 4)
        self.last, self.order = snn.Leaky(0.9, reset_mechanism=reset), order

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        mem, last = self.lif.reset_mem(), self.last.reset_mem()
        sent: dict[str, list[Tensor]] = {"spk": [], "mem": []}
        for step in x:
            spk, mem = self.lif(self.fc(step), mem)
            z, last = self.last(self.out(spk), last)
            sent["spk"].append(z)
            sent["mem"].append(last)
        return tuple(torch.stack(sent[name]) for name in self.order.split())


@pytest.mark.parametrize(
    ("order", "reset", "integrates"),
    [
        ("spk mem", "none", True),
        ("mem spk", "none", True),
        ("spk", "none", False),
        ("mem", "subtract", True),
        ("mem spk", "subtract", True),
        ("spk mem", "subtract", False),
    ],
)
def test_a_readout_that_is_never_reset_is_read_by_its_membrane_wherever_forward_returns_it(order, reset, integrates):
    net, x = Readout(order, reset), 5 * spikes(20, 8, 12)
    network = wrap(net, x)
    assert network.cells[-1].integrator is integrates
    wanted = dict(zip(order.split(), net(x), strict=True))["mem" if integrates else "spk"]
    assert_close(network(x), wanted)


# ---------------------------------------------------------------- no state is shown by two equal outputs


class Delay(nn.Module):
    """A line in a list."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps, self.line = steps, []

    def forward(self, x: Tensor) -> Tensor:
        self.line.append(x)
        return self.line.pop(0) if len(self.line) > self.steps else torch.zeros_like(x)


class RunningMax(nn.Module):
    """A buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("most", torch.full((16,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        self.most = torch.maximum(self.most, 1.2 * x.amax(0)) if x.amax() > 1.5 else self.most + 0.1
        return torch.where(self.most > 3, 2 * x, x)


class EveryFifth(nn.Module):
    """A count of calls."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return 0 * x if self.calls % 5 == 0 else x


@pytest.mark.parametrize(
    "module", [Delay(1), Delay(2), Delay(5), Delay(60), RunningMax(), EveryFifth()], ids=lambda m: type(m).__name__
)
def test_a_module_with_a_state_is_refused_in_a_list_and_stays_empty(module):
    before = copy.deepcopy(vars(module))
    parts = [nn.Linear(30, 16), snn.Leaky(0.9), module, nn.Linear(16, 16), snn.Leaky(0.9)]
    with pytest.raises(TypeError, match=rf"{type(module).__name__}, Linear: one of these has a state"):
        wrap(parts)
    assert vars(module).get("line") == before.get("line") and module.__dict__.get("calls") == before.get("calls")


class Records(nn.Module):
    """What a user looks at afterwards, which no output depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Tensor] = []
        self.last = None

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        self.last = x.mean()
        return x


def test_a_module_that_only_records_has_no_state_and_records_one_call_of_ours():
    records = Records()
    network = wrap([nn.Linear(30, 16), snn.Leaky(0.9), records, nn.Linear(16, 16), snn.Leaky(0.9)])
    assert len(network.cells) == 2
    assert len(records.seen) == 1  # which shows the width of what follows


# ---------------------------------------------------------------- one-to-one recurrence is recurrence


@pytest.mark.parametrize(
    "make",
    [
        lambda: snn.RLeaky(beta=0.9, V=1.0, all_to_all=False),
        lambda: snn.RLeaky(beta=0.9, V=torch.linspace(0.8, 1.2, 32), all_to_all=False),
        lambda: snn.RSynaptic(alpha=0.3, beta=0.8, V=1.5, all_to_all=False),
        lambda: snn.RLeaky(beta=0.9, linear_features=32),
    ],
    ids=["shared", "each", "RSynaptic", "all to all"],
)
def test_a_radius_that_recurrence_raises_is_said_to_be_and_comes_down_with_its_weights(make):
    lif = make()
    if hasattr(lif.recurrent, "weight"):
        nn.init.eye_(lif.recurrent.weight)
    net = nn.Sequential(nn.Linear(100, 32), lif, nn.Linear(32, 10))
    x = spikes(20, 16, 100, rate=0.2)
    before = radius_profile(net, x, steps=6).time_mean.item()
    stored = next(iter(lif.recurrent.parameters()))
    drawn = stored.detach().clone()
    LayerwiseScaling(depth=0.0).apply(net, x)
    after = radius_profile(net, x, steps=6).time_mean.item()
    assert before > 1.2
    assert after < 1.02
    assert 0 < (stored.detach().abs().sum() / drawn.abs().sum()).item() < 0.7


def test_diagnose_names_one_to_one_recurrence_as_the_cause_and_its_weight():
    net = nn.Sequential(nn.Linear(100, 32), snn.RLeaky(beta=0.9, V=1.0, all_to_all=False), nn.Linear(32, 10))
    found = diagnose(net, spikes(20, 16, 100, rate=0.2), torch.arange(16) % 10)
    text = "\n".join(map(str, found))
    assert "due to the recurrence" in text and "recurrent.V" in text


def test_one_to_one_weights_are_set_as_the_diagonal_of_a_matrix():
    for v in (torch.tensor(0.5), torch.tensor([0.5, -1.0, 0.0])):
        net = wrap([nn.Linear(4, 3), snn.RLeaky(beta=0.9, V=v, all_to_all=False)])
        (matrix,) = weight_matrices(net.cells[0], "time")
        assert torch.equal(matrix.weights, torch.diag(v.expand(3)))
        matrix.set(torch.diag(torch.tensor([1.0, 2.0, 6.0])) + 5 * (1 - torch.eye(3)))
        wanted = torch.tensor(3.0) if v.ndim == 0 else torch.tensor([1.0, 2.0, 6.0])
        assert torch.equal(net.cells[0].layer.recurrent.V, wanted)


# ---------------------------------------------------------------- a layer used twice


class Regression(nn.Module):
    """A tutorial's network with its readout in the place of its second layer."""

    def __init__(self, slip, widths=(32, 32, 1)) -> None:
        super().__init__()
        a, b, c = widths
        self.f1, self.lif1, self.f2, self.lif2 = nn.Linear(1, a), snn.Leaky(beta=0.9), nn.Linear(a, b), snn.Leaky(0.8)
        self.f3, self.li = nn.Linear(b, c), snn.Leaky(beta=0.7, reset_mechanism="none")
        self.slip = slip

    def forward(self, x: Tensor) -> Tensor:
        out, mems = [], {}
        for step in x:
            z, mems["a"] = self.lif1(self.f1(step), mems.get("a"))
            z, mems["b"] = getattr(self, self.slip)(self.f2(z), mems.get("b"))
            _, mems["c"] = self.li(self.f3(z), mems.get("c"))
            out.append(mems["c"])
        return torch.stack(out)


class Encoder(nn.Module):
    """One LSTM for two sequences after another."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(self.lstm(x)[0])[0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Regression("li"), r"li \(Leaky\) is used twice in one step, on inputs \(8, 32\) and \(8, 1\)"),
        (lambda: Regression("li", (8, 4, 4)), r"li \(Leaky\) is used twice in one step, 2 times for each of 50 steps"),
        (lambda: Regression("lif1", (8, 8, 1)), r"lif1 \(Leaky\) is used twice in one step, 2 times for each of 50"),
    ],
)
def test_a_layer_that_is_used_twice_is_named_and_so_is_the_one_that_is_not_used(make, message):
    x = torch.linspace(0, 1, 50).view(50, 1, 1).repeat(1, 8, 1)
    with pytest.raises(ValueError, match=message + r".* lif2 \(Leaky\) is never called"):
        wrap(make(), x)


def test_a_layer_over_time_that_is_used_twice_is_refused():
    with pytest.raises(ValueError, match=r"lstm \(LSTM\)"):
        wrap(Encoder(), torch.rand(6, 3, 4))


def test_without_an_input_a_remark_says_that_nothing_shows_the_order_of_use():
    with pytest.warns(WrappedNeuronWarning, match="nothing shows that forward uses lif1, lif2, li in this order"):
        wrap(Regression("li"))


# ---------------------------------------------------------------- faults of the library below


@pytest.mark.parametrize("reset", ["subtract", "zero", "none"])
@pytest.mark.parametrize("kind", ["linear", "one to one", "conv"])
def test_snntorch_ignores_the_reset_delay_of_rsynaptic_and_so_does_the_wrapped_layer(kind, reset):
    """snnTorch 1.0, whose reset acts on the arguments of forward in place of its states."""
    size = {
        "linear": {"linear_features": 16},
        "one to one": {"all_to_all": False, "V": torch.rand(16)},
        "conv": {"conv2d_channels": 4, "kernel_size": 3},
    }[kind]
    lif = snn.RSynaptic(alpha=0.5, beta=0.9, threshold=0.5, reset_mechanism=reset, reset_delay=False, **size)
    before = nn.Conv2d(1, 4, 3, padding=1) if kind == "conv" else nn.Linear(36, 16)
    x = 2 * spikes(12, 4, 36)
    with pytest.warns(WrappedNeuronWarning, match="RSynaptic: snnTorch's step ignores reset_delay=False"):
        network = wrap([before, lif], input_shape=(1, 6, 6) if kind == "conv" else 36)
    states, sent = None, []
    for step in x:
        current = before(step.view(4, 1, 6, 6)) if kind == "conv" else before(step)
        states = lif(current, *(states or [torch.zeros_like(current)] * 3))
        sent.append(states[0].flatten(1))
    assert torch.stack(sent).any()
    assert torch.equal(network(x), torch.stack(sent))


def test_an_rsynaptic_that_snntorch_itself_cannot_step_is_refused_by_name():
    lif = snn.RSynaptic(0.5, 0.9, linear_features=16, reset_delay=False, init_hidden=True)
    net = nn.Sequential(nn.Linear(12, 16), lif, nn.Linear(16, 4))
    with pytest.raises(TypeError):
        net(torch.rand(3, 12))  # as snnTorch 1.0 is
    for function in (lambda: wrap(net), lambda: wrap(net, torch.rand(3, 12)), lambda: prepare(net, spikes(5, 3, 12))):
        with pytest.raises(TypeError, match=r"RSynaptic with reset_delay=False and init_hidden=True cannot be stepped"):
            function()


# ---------------------------------------------------------------- what can be moved is one list


def two_layers(norm=lambda linear: linear, recurrent=lambda linear: linear) -> nn.Module:
    lifs = [snn.RLeaky(beta=0.8, threshold=0.5, linear_features=16) for _ in "ab"]
    for lif in lifs:
        lif.recurrent = recurrent(lif.recurrent)
    return nn.Sequential(norm(nn.Linear(12, 16)), lifs[0], norm(nn.Linear(16, 16)), lifs[1], nn.Linear(16, 4))


@pytest.mark.parametrize("where", ["norm", "recurrent"])
def test_weights_under_weight_norm_are_scaled_as_others_are(where):
    net, x = two_layers(**{where: parametrizations.weight_norm}), spikes(20, 8, 12)
    parametrised = net[0] if where == "norm" else net[1].recurrent
    before = parametrised.weight.detach().clone()
    result = scale_to_radius(net, x, target=0.6, progress=False)
    assert result.profile.time_mean.tolist() == pytest.approx([0.6, 0.6], abs=0.05)
    assert result.profile.depth_mean.tolist() == pytest.approx([0.6, 0.6], abs=0.05)
    factors = parametrised.weight.detach() / before
    assert_close(factors, factors.mean().expand_as(factors), rtol=1e-4, atol=1e-4)
    assert factors.mean().item() != pytest.approx(1, abs=0.01)
    assert parametrize.is_parametrized(parametrised, "weight")


def test_pretraining_moves_weights_under_weight_norm():
    net, x = two_layers(norm=parametrizations.weight_norm), spikes(20, 8, 12)
    before = net[0].weight.detach().clone()
    result = pretrain(net, x, target=0.6, max_steps=60, progress=False, samples=2, steps=4)
    assert result.profile.depth_mean.tolist() == pytest.approx([0.6, 0.6], abs=0.1)
    assert not torch.equal(net[0].weight, before)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(
    ("norm", "message"),
    [
        (
            parametrizations.spectral_norm,
            r"weight of a Linear is parametrised by SpectralNorm, through which",
        ),
        (parametrizations.orthogonal, r"is parametrised by Orthogonal, through which it cannot get the values wanted"),
        (nn.utils.weight_norm, r"weight of a Linear is computed from weight_g by a hook: use torch.nn.utils.parametr"),
        (lambda linear: prune.random_unstructured(linear, "weight", 0.2), r"computed from weight_orig by a hook"),
    ],
    ids=["spectral", "orthogonal", "old weight norm", "pruned"],
)
def test_a_parametrisation_that_undoes_a_scale_is_named_and_the_weights_stay(norm, message):
    net, x = two_layers(norm=norm), spikes(20, 8, 12)
    net.eval()
    before = net[0](x[0]).detach()
    with pytest.raises(TypeError, match=message):
        scale_to_radius(net, x, target=0.6, direction="depth", progress=False)
    assert_close(net[0](x[0]), before)


def test_weights_of_half_precision_are_set_under_weight_norm():
    linear = parametrizations.weight_norm(nn.Linear(64, 64)).bfloat16()
    wanted = torch.randn(64, 64).bfloat16()
    set_value(linear, "weight", wanted)
    assert_close(linear.weight, wanted, rtol=0.02, atol=0.02)


def test_a_network_of_frozen_parameters_has_nothing_to_pretrain():
    net = two_layers().requires_grad_(False)
    with pytest.raises(ValueError, match=r"all that set radii are frozen"):
        pretrain(net, spikes(5, 3, 12), progress=False)


# ---------------------------------------------------------------- numbers that a user made parameters


def node(**given) -> nn.Module:
    made = neuron.LIFNode(tau=2.0, step_mode="m")
    for name, value in given.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize("init", [FiringRate(0.15), Relay()], ids=str)
@pytest.mark.parametrize(
    "make",
    [
        lambda: node(v_threshold=nn.Parameter(torch.tensor(1.0))),
        lambda: node(v_threshold=nn.Parameter(torch.linspace(0.8, 1.2, 16))),
        lambda: node(v_threshold=torch.tensor(1.0), v_reset=None),
        lambda: node(v_threshold=nn.Parameter(torch.tensor(1.0)), tau=nn.Parameter(torch.tensor(2.0))),
    ],
    ids=["parameter", "each", "tensor", "with tau"],
)
def test_a_trainable_threshold_of_spikingjelly_is_scaled(make, init):
    lif = make()
    net, x = (
        nn.Sequential(layer.Linear(12, 16, step_mode="m"), lif, layer.Linear(16, 4, step_mode="m")),
        spikes(20, 8, 12),
    )
    kind, before = type(lif.v_threshold), torch.as_tensor(lif.v_threshold).detach().clone()
    init.apply(net, x)
    assert type(lif.v_threshold) is kind
    assert_close(lif.v_threshold.detach() / before, (lif.v_threshold.detach() / before).mean().expand_as(before))
    network = prepare(net, x).network
    assert network.run(x).spikes[0].mean().item() == pytest.approx(0.15, abs=0.02)
    network.run(x).logits.sum().backward()
    if kind is nn.Parameter:
        assert lif.v_threshold.grad.abs().sum() > 0


def test_radii_are_set_by_a_trainable_time_constant_of_spikingjelly():
    lif = node(tau=nn.Parameter(torch.tensor(2.0)))
    net, x = (
        nn.Sequential(layer.Linear(12, 16, step_mode="m"), lif, layer.Linear(16, 4, step_mode="m")),
        spikes(20, 8, 12),
    )
    scale_to_radius(net, x, target=0.8, direction="time", progress=False)
    assert radius_profile(net, x).time_mean.item() == pytest.approx(0.8, abs=0.03)
    assert isinstance(lif.tau, nn.Parameter) and lif.tau.item() != 2


def test_a_frozen_threshold_of_spikingjelly_stays():
    lif = node(v_threshold=nn.Parameter(torch.tensor(1.0), requires_grad=False))
    net = nn.Sequential(layer.Linear(12, 16, step_mode="m"), lif)
    with pytest.raises(ValueError, match="frozen thresholds"):
        FiringRate(0.15).apply(net, spikes(20, 8, 12))
    assert lif.v_threshold.item() == 1


def test_a_trainable_threshold_of_norse_is_scaled():
    p = norse.LIFParameters(v_th=nn.Parameter(torch.tensor(1.0)))
    net, x = norse.SequentialState(nn.Linear(12, 16), norse.LIFCell(p), nn.Linear(16, 4)), 20 * spikes(20, 8, 12)
    FiringRate(0.15).apply(net, x)
    assert net[1].p.v_th is p.v_th and p.v_th.item() != 1
    assert prepare(net, x).network.run(x).spikes[0].mean().item() == pytest.approx(0.15, abs=0.02)


# ---------------------------------------------------------------- half precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("wrapped", [False, True], ids=["module", "network"])
def test_half_precision_is_measured_and_set_in_float32_and_stays_half(dtype, wrapped):
    net = nn.Sequential(nn.Linear(12, 16), snn.Leaky(beta=0.9, init_hidden=True), nn.Linear(16, 4)).to(dtype)
    x, y = spikes(20, 8, 12).to(dtype), torch.randint(0, 4, (8,))
    before = net[0].weight.clone()
    given = wrap(net) if wrapped else net
    assert radius_profile(given, x, steps=3).time.dtype == torch.float32
    assert diagnose(given, x, y).measurements.loss is not None
    changing = (
        lambda: pretrain(given, x, max_steps=2, progress=False),
        lambda: scale_to_radius(given, x, progress=False),
        lambda: match_firing_rates(given, x, [0.1]),
        lambda: initialize(given, x),
        lambda: FiringRate(0.1).apply(given, [x]),
    )
    assert torch.equal(net[0].weight, before)
    for change in changing:
        change()
        assert net[0].weight.dtype == dtype
    assert not torch.equal(net[0].weight, before)


# ---------------------------------------------------------------- radii that are known are not iterated


def convolutions(lif) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 5), nn.MaxPool2d(2), lif(), nn.Conv2d(4, 8, 5), lif(), nn.Flatten(), nn.Linear(8 * 4, 10)
    )


@pytest.mark.parametrize(
    "lif",
    [
        lambda: snn.Leaky(beta=0.8, init_hidden=True),
        lambda: snn.Synaptic(alpha=0.8, beta=0.5, init_hidden=True),
        lambda: neuron.ParametricLIFNode(init_tau=5.0, detach_reset=True),
    ],
    ids=["Leaky", "Synaptic", "ParametricLIFNode"],
)
def test_convolutions_of_neurons_that_read_none_of_their_own_have_the_radius_of_a_neuron(lif):
    """Of 1,152 neurons; a dense eigenvalue problem of that size takes a second at each point."""
    torch.manual_seed(0)
    net, x = convolutions(lif), 3 * torch.rand(6, 2, 1, 16, 16)
    radii = radius_profile(net, x, steps=2).time
    assert_close(radii, torch.full_like(radii, 0.8), rtol=0, atol=1e-6)
