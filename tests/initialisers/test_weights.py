"""Weights by their shape alone: Glorot, He, orthogonal, IKUN; and by thresholds: propagation."""

import math

import pytest
import snntorch as snn
import torch
from torch import nn
from torch.testing import assert_close

from neurolsc import LIF, ALIFPlus, Network, wrap
from neurolsc.initialisers import IKUN, ActivityPropagation, Glorot, He, Orthogonal
from neurolsc.surrogate import Arctan, FastSigmoid
from tests.initialisers.networks import NETWORKS, all_voltages, norse, rates, spikes

WIDE = 300


def wide(layer) -> Network:
    torch.manual_seed(0)
    return Network([layer(WIDE, 200), layer(200, 200)], 4)


def wide_snntorch() -> Network:
    recurrent = snn.RLeaky(0.8, linear_features=200, spike_grad=snn.surrogate.fast_sigmoid(25))
    return wrap([nn.Linear(WIDE, 200), recurrent, nn.Linear(200, 4)])


def wide_norse() -> Network:
    return wrap([norse.LIFRecurrent(WIDE, 200), nn.Linear(200, 4)])


def matrices(network: Network) -> list[torch.Tensor]:
    """The input and the recurrent matrix of the first layer."""
    cell = network.cells[0]
    if hasattr(cell, "w_in"):
        return [cell.w_in.detach(), cell.w_rec.detach()]
    names = ("before.0.weight", "layer.recurrent.weight")
    if hasattr(cell.layer, "input_weights"):
        names = ("layer.input_weights", "layer.recurrent_weights")
    return [cell.get_parameter(name).detach() for name in names]


@pytest.mark.parametrize("make", [lambda: wide(LIF), lambda: wide(ALIFPlus), wide_snntorch, wide_norse])
def test_glorot_and_he_have_the_deviations_of_their_formulas(make):
    for start, deviations in (
        (Glorot(1.5), [1.5 * math.sqrt(2 / (WIDE + 200)), 1.5 * math.sqrt(2 / 400)]),
        (He(0.5), [0.5 * math.sqrt(2 / WIDE), 0.5 * math.sqrt(2 / 200)]),
    ):
        network = make()
        assert start.apply(network, []) == ()
        for weights, deviation in zip(matrices(network), deviations, strict=True):
            there = weights[weights != 0]
            assert there.std().item() == pytest.approx(deviation, rel=0.02)
            assert abs(there.mean().item()) < 5 * deviation / math.sqrt(there.numel())
            if isinstance(start, Glorot):
                assert there.abs().max().item() <= math.sqrt(3) * deviation


@pytest.mark.parametrize("make", [lambda: wide(LIF), lambda: wide(ALIFPlus), wide_snntorch])
def test_orthogonal_matrices_have_one_singular_value(make):
    network = make()
    before = matrices(network)[0].clone()
    Orthogonal(0.7).apply(network, [])
    w_in, w_rec = matrices(network)
    assert torch.equal(w_in, before)
    assert_close(torch.linalg.svdvals(w_rec), torch.full((200,), 0.7), rtol=1e-5, atol=0)
    Orthogonal(1.3, inputs=True).apply(network, [])
    for weights in matrices(network):
        assert_close(torch.linalg.svdvals(weights), torch.full((200,), 1.3), rtol=1e-5, atol=0)


def test_orthogonal_recurrence_needs_recurrence():
    network = wrap([nn.Linear(7, 5), snn.RLeaky(0.9, linear_features=5), nn.Linear(5, 5), snn.Leaky(0.9)])
    before = network.cells[0].get_parameter("layer.recurrent.weight").clone()
    with pytest.raises(TypeError, match=r"layer 2, a SnnTorchCell of a Leaky, names no recurrent matrix"):
        Orthogonal().apply(network, [])
    assert torch.equal(network.cells[0].get_parameter("layer.recurrent.weight"), before)


@pytest.mark.parametrize(
    ("make", "slope"),
    [
        (lambda: wide(LIF), 0.5 * 0.5),  # dampening times the integral of (1 + u)^-2 over 0 to 1
        (lambda: wide(lambda n, m: ALIFPlus(n, m, spike=FastSigmoid(2.0, 3.0))), 2.0 / 4),
        (lambda: wide(lambda n, m: LIF(n, m, spike=Arctan(1.0))), math.atan(math.pi / 2) * 2 / math.pi),
        (lambda: wide(lambda n, m: LIF(n, m, spike=FastSigmoid(torch.linspace(0.1, 0.9, m)))), 0.25),
        (wide_snntorch, 1 / 26),
        (wide_norse, 0.5),  # its method super: (1 + |u|)^-2
    ],
)
def test_ikun_divides_by_the_mean_derivative_of_the_surrogate(make, slope):
    for version, fans in (("v1", [WIDE, 200]), ("v2", [WIDE + 200, 400])):
        network = make()
        IKUN(version).apply(network, [])
        for weights, fan in zip(matrices(network), fans, strict=True):
            there = weights[weights != 0]
            assert there.var().item() == pytest.approx(1 / (slope * fan), rel=0.04)


def test_ikun_needs_a_surrogate_that_has_a_derivative():
    with pytest.raises(ValueError, match="layer 1, a LIF, has a surrogate without a derivative"):
        IKUN().apply(wide(lambda n, m: LIF(n, m, spike=FastSigmoid(0.0))), [])


@pytest.mark.filterwarnings("ignore::neurolsc.interop.foreign.ForeignNeuronWarning")  # without memory, on purpose
def test_activity_passes_through_ten_layers_at_a_variance_of_one():
    """Memoryless neurons without reset, as the paper has them: all layers fire at P(u > 1)."""
    torch.manual_seed(0)
    layers = [m for _ in range(10) for m in (nn.Linear(600, 600, bias=False), snn.Leaky(0.0, reset_mechanism="none"))]
    network, x = wrap(layers, output="spikes"), spikes(10, 32, 600, rate=0.3)
    assert rates(network, x)[-1] == 0
    assert ActivityPropagation().apply(network, [x], seed=1) == ()
    for mem, fires in zip(all_voltages(network, x, "snntorch"), rates(network, x), strict=True):
        assert mem.var().item() == pytest.approx(1, abs=0.15)
        assert fires == pytest.approx(0.1587, abs=0.025)


@pytest.mark.parametrize("name", NETWORKS)
def test_propagation_counts_all_spikes_that_a_neuron_hears(name):
    network, x = NETWORKS[name](), spikes(rate=0.3)
    assert ActivityPropagation().apply(network, [x], seed=1) == ()
    cell = network.cells[0]
    theta = cell.membrane().thresholds(cell.initial_state(1))[0]
    fires = torch.special.ndtr(-theta).mean().item()
    for weights in matrices(network):
        there = weights[weights != 0]
        wanted = 1 / (40 * x.mean().item() + 32 * fires)
        assert there.var().item() == pytest.approx(wanted, rel=0.15)  # of 32 x 32 numbers
    assert rates(network, x)[0] > 0.01


def test_propagation_of_nothing_is_told():
    (finding,) = ActivityPropagation().apply(NETWORKS["LIF"](), [torch.zeros(5, 2, 40)])
    assert "reads nothing" in str(finding)
