"""The identity initialisation: what layers pass on, their rates and weights, and the report."""

import itertools

import norse.torch as norse
import pytest
import snntorch as snn
import torch
from snntorch import surrogate
from spikingjelly.activation_based import layer as jelly
from spikingjelly.activation_based import neuron
from torch import Tensor, nn

from neurolsc import GRU, LIF, LSTM, RNN, ALIFPlus, ALIFPlusMinus, Cell, Network, wrap
from neurolsc.init import Identity, named
from neurolsc.init.base import InitReport, Layer, layers_of
from neurolsc.init.identity import voltage_after_spike
from neurolsc.neurons import BRF, RF, ALIFPositive
from tests.init.networks import NETWORKS, spikes, weights

T, B, N, WIDTH = 30, 8, 40, 16


@pytest.fixture
def x() -> Tensor:
    return spikes(T, B, N)


def ours(cell: type, layers: int = 4, **settings: object) -> Network:
    torch.manual_seed(0)
    cells = [cell(WIDTH if i else N, WIDTH, **settings) for i in range(layers)]
    return Network(cells, 3, layer_delay=0)


def leaky(kind: type = snn.Leaky, beta: float = 0.9, layers: int = 4, **settings: object) -> nn.Sequential:
    """Layers of snnTorch, and a Linear as output."""
    torch.manual_seed(0)
    settings |= {"linear_features": WIDTH} if kind is snn.RLeaky else {}
    modules: list[nn.Module] = []
    for i in range(layers):
        modules.append(nn.Linear(WIDTH if i else N, WIDTH))
        modules.append(kind(beta, spike_grad=surrogate.atan(), **settings))
    return nn.Sequential(*modules, nn.Linear(WIDTH, 3))


def spiking() -> nn.Sequential:
    """Layers of snnTorch of which the last one, of ten neurons, is the output."""
    return nn.Sequential(*leaky()[:-1], nn.Linear(WIDTH, 10), snn.Leaky(0.9))


def lif_nodes() -> nn.Sequential:
    """Layers of spikingjelly, and a Linear as output."""
    torch.manual_seed(0)
    modules: list[nn.Module] = []
    for i in range(3):
        modules += [jelly.Linear(WIDTH if i else N, WIDTH), neuron.LIFNode()]
    return nn.Sequential(*modules, jelly.Linear(WIDTH, 3))


EVERY = {
    "Leaky": lambda: wrap(leaky()),
    "Leaky, reset to zero": lambda: wrap(leaky(reset_mechanism="zero")),
    "RLeaky": lambda: wrap(leaky(snn.RLeaky)),
    "LIF": lambda: ours(LIF, tau_v=5.0),
    "ALIF+": lambda: ours(ALIFPlus, tau_v=0.7),
    "ALIF+-": lambda: ours(ALIFPlusMinus, tau_v=0.7),
    "LIFNode": lambda: wrap(lif_nodes()),
}


@pytest.mark.parametrize("name", EVERY)
def test_without_drawn_weights_the_upper_layers_pass_on_every_spike(name: str, x: Tensor):
    network = EVERY[name]()
    report = Identity(rate=0.1, drawn=0.0, adaptation=1e-9).apply(network, [x])
    assert report == ()
    assert [layer.done for layer in report.layers] == ["drawn", *["identity"] * (len(network.cells) - 1)]
    sent = network.run(x).spikes
    assert sent[0].mean().item() == pytest.approx(0.1, rel=0.1)
    for below, layer in itertools.pairwise(sent):
        assert torch.equal(below, layer)


def slow_container() -> Network:
    """A recurrent layer of spikingjelly above one without recurrence, whose voltage takes 1/60 of a current."""
    torch.manual_seed(0)
    recurrent = jelly.LinearRecurrentContainer(neuron.LIFNode(tau=60.0, v_reset=None), WIDTH, WIDTH)
    return wrap([nn.Linear(N, WIDTH), neuron.LIFNode(), recurrent, nn.Linear(WIDTH, 3)])


@pytest.mark.parametrize("make", [slow_container, lambda: ours(RF, layers=2), lambda: ours(BRF, layers=2)])
def test_recurrent_weights_take_off_what_a_spike_leaves_where_a_voltage_takes_a_part_of_a_current(make, x: Tensor):
    network = make()
    report = Identity(drawn=0.0).apply(network, [x])
    assert [layer.done for layer in report.layers] == ["drawn", "identity"]
    with torch.no_grad():
        left = voltage_after_spike(Layer(network, 1))
    assert left.abs().max().item() < 0.01


@pytest.mark.parametrize("part", [0.3, 1.0])
@pytest.mark.parametrize("name", ["Leaky", "RLeaky", "ALIF+"])
def test_a_part_of_the_drawn_weights_is_added(name: str, part: float, x: Tensor):
    built, bare, network = EVERY[name](), EVERY[name](), EVERY[name]()
    Identity(rate=0.05, drawn=0.0).apply(bare, [x], seed=1)
    Identity(rate=0.05, drawn=part).apply(network, [x], seed=1)
    # The second layer reads the same spikes in both, so its identity is the same.
    for as_drawn, alone, both in zip(*(n.cells[1].named_parameters() for n in (built, bare, network)), strict=True):
        label, drawn = as_drawn
        if label.endswith(("w_in", "before.0.weight")):
            assert drawn.abs().sum() > 0
            torch.testing.assert_close(both[1], alone[1] + part * drawn)
            assert torch.equal(alone[1].count_nonzero(), torch.tensor(WIDTH))


@pytest.mark.parametrize(
    ("beta", "width", "linear"), [(0.9, 16, False), (0.5, 16, True), (0.95, 64, False), (0.9, 64, True)]
)
def test_the_chosen_rate_is_nine_spikes_within_the_memory_of_a_neuron_or_thirty_below_a_linear_output(
    beta: float, width: int, linear: bool
):
    torch.manual_seed(0)
    modules: list[nn.Module] = []
    for i in range(3):
        modules += [nn.Linear(width if i else N, width), snn.Leaky(beta, spike_grad=surrogate.atan())]
    if linear:
        modules.append(nn.Linear(width, 4))
    network, x = wrap(nn.Sequential(*modules)), spikes(T, 32, N)
    Identity(drawn=0.0).apply(network, [x])
    memory = sum(beta**t for t in range(T))
    spikes_read, lowest = (30, 0.05) if linear else (9, 0.01)
    wanted = min(max(spikes_read / (width * memory), lowest), 0.15)
    rates = [sent.mean().item() for sent in network.run(x).spikes]
    hidden = rates if linear else rates[:-1]  # an output that spikes keeps its threshold
    assert hidden == pytest.approx([wanted] * len(hidden), rel=0.15)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_library_is_set_and_its_recurrence_bounded(name: str, x: Tensor):
    network = NETWORKS[name]()
    report = Identity(rate=0.1, recurrence=0.1).apply(network, [x])
    rates = [sent.mean().item() for sent in network.run(x).spikes]
    assert rates[0] == pytest.approx(0.1, rel=0.2)
    assert all(0.02 < rate < 0.3 for rate in rates)
    assert [layer.rate_after for layer in report.layers] == pytest.approx(rates, abs=1e-6)


def test_layers_are_left_that_integrate_or_normalise_or_do_not_spike(x: Tensor):
    torch.manual_seed(0)
    integrating = wrap(norse.SequentialState(nn.Linear(N, 20), norse.LIF(), nn.Linear(20, 5), norse.LI()))
    batch_norm = wrap([jelly.Linear(N, 20), jelly.BatchNorm1d(20), neuron.LIFNode()])
    gated = Network([GRU(N, 20)], 3)
    for network, why in ((integrating, "integrates"), (batch_norm, "normalised currents"), (gated, "sends no spikes")):
        before = weights(network)
        report = Identity().apply(network, [x])
        assert report.layers[-1].done == "left"
        assert report.layers[-1].why == why
        last = f"cells.{len(network.cells) - 1}."
        assert all(torch.equal(before[name], value) for name, value in weights(network).items() if last in name)


def test_a_narrower_layer_and_a_convolution_keep_their_drawn_weights(x: Tensor):
    torch.manual_seed(0)
    modules = [nn.Conv2d(1, 4, 3), snn.Leaky(0.9), nn.Conv2d(4, 4, 3), snn.Leaky(0.9), nn.Flatten()]
    network = wrap([*modules, nn.Linear(4 * 4 * 4, 10), snn.Leaky(0.9), nn.Linear(10, 3)], input_shape=(1, 8, 8))
    before = weights(network)
    report = Identity(rate=0.1).apply(network, [spikes(T, B, 64)])
    assert [(layer.done, layer.why) for layer in report.layers] == [
        ("drawn", "lowest"),
        ("drawn", "convolution"),
        ("drawn", "narrower: 10 of 64"),
    ]
    moved = [name for name, value in weights(network).items() if not torch.equal(before[name], value)]
    assert sum("threshold" in name for name in moved) == 3
    assert sum("bias" in name for name in moved) == 2  # but not that of the lowest layer
    assert all("threshold" in name or "bias" in name for name in moved)


def test_an_output_that_spikes_keeps_weights_and_thresholds_and_loses_its_biases(x: Tensor):
    network = wrap(spiking())
    drawn = {name: value.clone() for name, value in network.cells[-1].state_dict().items()}
    report = Identity(rate=0.1).apply(network, [x])
    assert (report.layers[-1].done, report.layers[-1].why, report.layers[-1].step_growth) == ("drawn", "output", 1.0)
    for name, value in network.cells[-1].state_dict().items():
        if name.endswith("bias"):
            assert drawn[name].any()
            assert not value.any()
        else:
            assert torch.equal(drawn[name], value)


def test_the_report_has_a_line_a_layer_and_says_how_a_step_has_grown(x: Tensor):
    network = wrap(nn.Sequential(*spiking(), nn.Linear(10, 3)))
    before = [cell.membrane().thresholds(cell.initial_state(1)).mean() for cell in network.cells]
    report = Identity(rate=0.02).apply(network, [x])
    after = [cell.membrane().thresholds(cell.initial_state(1)).mean() for cell in network.cells]
    growth = [(old / new).item() for old, new in zip(before, after, strict=True)]
    assert [layer.step_growth for layer in report.layers] == pytest.approx(growth)
    assert report.step_growth == pytest.approx(max(growth))
    lines = str(report).splitlines()
    assert lines[0] == "Identity(rate=0.02)"
    assert sum(line.startswith("layer ") for line in lines) == 5
    assert max(map(len, lines)) <= 80
    assert "narrower: 10 of 16" in lines[-1]


def test_weights_are_put_back_when_it_is_interrupted(x: Tensor, monkeypatch: pytest.MonkeyPatch):
    network = wrap(leaky())
    before = weights(network)
    made = Identity.make_identity

    def stopped(self: Identity, layer, *args: object) -> float:
        if layer.index == 2:
            raise KeyboardInterrupt
        return made(self, layer, *args)

    monkeypatch.setattr(Identity, "make_identity", stopped)
    with pytest.raises(KeyboardInterrupt):
        Identity().apply(network, [x])
    assert all(torch.equal(before[name], value) for name, value in weights(network).items())


@pytest.mark.parametrize("tau", [60.0, 150.0, 180.0])  # 1 / tau is no multiple of 0.001
@pytest.mark.parametrize("kind", [neuron.LIFNode, neuron.ParametricLIFNode, "norse"])
def test_a_slow_neuron_reads_as_many_thresholds_as_a_fast_one(kind: type | str, tau: float, x: Tensor):
    def drives(tau: float) -> Tensor:
        """Identity weights of the second layer, in thresholds of what its voltage takes."""
        torch.manual_seed(0)
        below, read = nn.Linear(N, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        if isinstance(kind, str):
            cell = norse.LIFBoxCell(norse.LIFBoxParameters(torch.tensor(1000 / tau)), dt=1e-3)
            network = wrap([below, snn.Leaky(0.5), read, cell, nn.Linear(WIDTH, 3)])
        else:
            time_constant = {"tau" if kind is neuron.LIFNode else "init_tau": tau}
            network = wrap([below, snn.Leaky(0.5), read, kind(**time_constant), nn.Linear(WIDTH, 3)])
        report = Identity(drawn=0.0).apply(network, [x])
        assert report.layers[1].done == "identity"
        return read.weight.diagonal() / (tau * layers_of(network)[1].resting_threshold())

    assert torch.allclose(drives(tau), drives(2.0), rtol=1e-3)


@pytest.mark.parametrize("above", [GRU, LSTM, RNN])
def test_below_a_layer_that_sends_numbers_a_layer_is_set_as_below_a_linear_output(above: type, x: Tensor):
    def report(*layers: Cell) -> InitReport:
        torch.manual_seed(0)
        return Identity().apply(Network([ALIFPlus(N, WIDTH), *layers], 3), [x])

    mixed = report(above(WIDTH, WIDTH))
    assert [layer.done for layer in mixed.layers] == ["drawn", "left"]
    assert mixed.layers[0].rate_after == report().layers[0].rate_after


def test_a_neuron_that_remembers_keeps_its_drawn_weights(x: Tensor):
    torch.manual_seed(0)
    layers = [norse.LIFRecurrent(N, WIDTH), norse.LIFRecurrent(WIDTH, WIDTH), nn.Linear(WIDTH, 3)]
    network = wrap(norse.SequentialState(*layers))
    report = Identity(rate=0.1).apply(network, [x])
    assert report.layers[1].done == "drawn"
    assert report.layers[1].why.startswith("passes on only")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rate": 1.0}, "rate"),
        ({"drawn": -0.1}, "drawn"),
        ({"recurrence": -1.0}, "recurrence"),
        ({"lowest": 0}, "lowest"),
    ],
)
def test_numbers_out_of_range_are_refused(settings: dict, message: str):
    with pytest.raises(ValueError, match=message):
        Identity(**settings)


def test_its_text_makes_it_again():
    assert named(str(Identity(rate=0.05, lowest=2))) == Identity(rate=0.05, lowest=2)


def test_a_surrogate_without_derivative_is_refused(x: Tensor):
    network = ours(ALIFPositive, spike=lambda u: (u > 0).to(u))
    with pytest.raises(ValueError, match="no derivative"):
        Identity().apply(network, [x])
