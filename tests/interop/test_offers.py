"""What wrapped layers say of themselves: synapses within the layer, and thresholds that can be
scaled and held."""

import copy

import pytest
import snntorch as snn
import torch
from torch import Tensor, nn
from torch.autograd.functional import jacobian
from torch.testing import assert_close

from neurolsc import ALIFPlus, Network, TransitionRule, evaluate, match_firing_rates, wrap
from neurolsc.interop import norse as in_norse
from neurolsc.interop import snntorch as in_snntorch
from tests.interop.layers import EVERY, N_IN, N, norse

WIDTH = 12


def wrapped(name: str) -> Network:
    modules, shape = EVERY[name]
    return wrap(modules(), input_shape=shape)


@pytest.mark.filterwarnings("ignore::neurolsc.interop.foreign.ForeignNeuronWarning")
@pytest.mark.parametrize("name", EVERY)
def test_the_synapses_within_a_layer_are_those_through_which_a_spike_moves_another_neuron(name):
    (cell, *_) = wrapped(name).cells
    told = cell.recurrent_synapses
    library, _, kind = name.rpartition(".")
    if library == "" or "conv" in kind.lower() or "SLSTM" in kind:
        assert told is None
        return
    state = cell.initial_state(1)
    x, z = torch.zeros(1, cell.n_in), 0.1 * torch.ones(1, cell.n_hidden)
    if library == "snn":
        heard = [leaf for leaf in state._fields if leaf in ("syn", "syn_exc", "mem")][:1]
        by_z = influence(lambda z: cell.update(x, z, state), heard, z)
    elif "Recurrent" not in kind:
        assert told == 0
        return
    else:
        by_z = influence(lambda z: cell.update(x, z, state._replace(z=z)), ["i"], z)
    assert (by_z != 0).sum(0).tolist() == [told] * cell.n_hidden


def influence(step, leaves, z):
    """How much each spike moves each neuron, in any of some leaves of the state."""
    parts = [jacobian(lambda z, leaf=leaf: getattr(step(z), leaf)[0], z)[:, 0].abs() for leaf in leaves]
    return torch.stack(parts).sum(0)


def test_operations_of_a_wrapped_network_are_counted_spike_by_spike():
    torch.manual_seed(0)
    layers = [snn.RLeaky(0.8, linear_features=WIDTH), nn.Linear(WIDTH, WIDTH), snn.Leaky(0.9)]
    network = wrap([nn.Linear(7, WIDTH), *layers, nn.Linear(WIDTH, 3)])
    x = (torch.rand(10, 4, 7) < 0.5).float()
    run = network.run(4 * x)
    first, second = (layer.sum().item() for layer in run.spikes)
    assert first > 0 and second > 0
    by_hand = x.sum().item() * WIDTH + first * (WIDTH + WIDTH) + second * (0 + 3)
    samples = [(4 * x[:, b], 0) for b in range(4)]
    assert evaluate(network, samples).synops == pytest.approx(by_hand / 4)


@pytest.mark.parametrize(
    "modules",
    [
        lambda: [nn.Conv2d(1, 2, 3), snn.Leaky(0.9)],
        lambda: [nn.Linear(25, 9), nn.ReLU(), nn.Linear(9, 4), snn.Leaky(0.9)],
        lambda: [nn.Linear(25, 9), nn.BatchNorm1d(9), snn.Leaky(0.9)],
        lambda: [nn.Flatten(), snn.Leaky(0.9)],
        lambda: [nn.Linear(25, 9), norse.LIFRecurrentCell(9, 4)],
        lambda: [nn.Linear(25, 9), ALIFPlus(9, 4)],
    ],
)
def test_a_layer_whose_input_is_not_one_dense_product_does_not_say(modules):
    shape = (1, 5, 5) if isinstance(modules()[0], nn.Conv2d | nn.Flatten) else 25
    assert wrap(modules(), input_shape=shape).cells[0].recurrent_synapses is None


SCALED = [
    *(
        f"snn.{kind}-hidden"
        for kind in ("Leaky", "Leaky-zero", "Leaky-now", "RLeaky", "RLeaky-one", "Synaptic", "RSynaptic")
    ),
    *(f"snn.{kind}-passed" for kind in ("Alpha", "SLSTM", "RLeaky-conv")),
    *(f"norse.{kind}" for kind in ("LIF", "LIFRecurrent", "LIFBoxCell", "IAFCell", "LSNNRecurrent", "LSNNCell")),
]
OURS = {
    "in_snntorch.LIF": lambda: [nn.Linear(N_IN, N), in_snntorch.LIF(linear_features=N)],
    "in_snntorch.ALIFPlus": lambda: [nn.Linear(N_IN, N), in_snntorch.ALIFPlus(linear_features=N)],
    "in_norse.LIFRecurrent": lambda: [in_norse.LIFRecurrent(N_IN, N)],
    "in_norse.ALIFPlusMinusRecurrentCell": lambda: [in_norse.ALIFPlusMinusRecurrentCell(N_IN, N)],
    "ALIFPlus after a Linear": lambda: [nn.Linear(N_IN, N_IN), ALIFPlus(N_IN, N)],
}


@pytest.mark.filterwarnings("ignore::neurolsc.interop.foreign.ForeignNeuronWarning")
@pytest.mark.parametrize("name", [*SCALED, *OURS])
def test_rates_are_matched_by_thresholds_that_scale(name):
    torch.manual_seed(1)
    network = wrap(OURS[name]()) if name in OURS else wrapped(name)
    (cell,) = network.cells
    x = 8 * torch.randn(40, 8, cell.n_in)
    before = network.run(x)
    thresholds = cell.thresholds()
    thresholds.scale(4.0)
    assert network.run(x).spikes[0].mean() < before.spikes[0].mean()
    thresholds.scale(1.0)
    assert torch.equal(network.run(x).spikes[0], before.spikes[0])
    wanted = 0.6 * before.spikes[0].mean().item()
    assert wanted > 0
    (reached,) = match_firing_rates(network, x, [wanted])
    assert reached == pytest.approx(wanted, abs=0.01)


@pytest.mark.parametrize(
    "modules",
    [
        lambda: [nn.LSTM(N_IN, N)],
        lambda: [norse.LICell(), nn.Linear(N_IN, N)],
        lambda: [norse.LIFRecurrentCell(N_IN, N, p=norse.LIFParameters(v_th=torch.tensor(-50.0)))],
        lambda: [nn.Linear(N_IN, N), snn.Leaky(0.9, threshold=-1.0)],
    ],
)
def test_a_layer_without_a_threshold_that_a_factor_raises_does_not_say(modules):
    assert wrap(modules(), input_shape=N_IN).cells[0].thresholds() is None


@pytest.mark.parametrize(
    "modules",
    [lambda: [nn.Linear(5, 5), ALIFPlus(5, 6)], lambda: [in_norse.ALIFPlusRecurrent(5, 6)]],
)
@pytest.mark.parametrize("hold", [True, False])
def test_a_rule_holds_the_resting_threshold_where_it_is_asked_to(modules, hold):
    (cell,) = wrap(modules()).cells
    rest, rule = resting(cell), TransitionRule(hold_threshold=hold)
    rule.apply(cell, time=0.8, depth=1.0)
    assert torch.allclose(resting(cell), rest, rtol=1e-5) == hold


def resting(cell) -> Tensor:
    found = cell.thresholds().rest()
    assert found is not None
    return found.clone()


def test_a_view_in_snntorch_rests_at_its_threshold_whatever_a_rule_moves():
    layer = in_snntorch.ALIFPlus(linear_features=4, threshold=0.7)
    (cell,) = wrap([nn.Linear(3, 4), layer]).cells
    before = copy.deepcopy(layer)
    TransitionRule(hold_threshold=True).apply(cell, time=0.8, depth=1.3)
    assert not torch.equal(layer.tau_theta, before.tau_theta)
    assert_close(layer.rest(torch.zeros(1, 4))[1], torch.full((1, 4), 0.7))
