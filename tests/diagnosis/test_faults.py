"""Faults planted in healthy networks are named, and healthy networks have none."""

import copy
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import neurolsc
from neurolsc import LIF, Network, diagnose, init, try_cures
from neurolsc.diagnosis.report import layer_faults, missing_classes
from tests.diagnosis.networks import HEALTHY, PLANTS, batch, exploding, healthy


@pytest.fixture(scope="module")
def digits():
    torch.manual_seed(0)
    return healthy("digits", 2)


def named(diagnosis, layer: int | None) -> list[str]:
    return [finding.name for finding in diagnosis if finding.layer == layer]


@pytest.mark.slow
@pytest.mark.parametrize("kind", HEALTHY)
def test_nothing_is_found_in_a_healthy_network(kind):
    network, data = healthy(*HEALTHY[kind])
    diagnosis = diagnose(network, data, lr=1e-3)
    assert not diagnosis and list(diagnosis) == [], str(diagnosis)
    assert all(0.1 < layer.activity.rate < 0.2 for layer in diagnosis.measurements.layers)


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_fault_is_named_where_it_is(plant, digits):
    network, data = copy.deepcopy(digits[0]), digits[1]
    plant_it, layer, name = PLANTS[plant]
    plant_it(network)
    diagnosis = diagnose(network, data)
    (finding,) = [f for f in diagnosis if f.layer == layer and f.name == name]
    assert finding.cause and finding.cure
    assert name not in named(diagnosis, 3 - layer)


@pytest.mark.slow
def test_a_reset_that_explodes_is_named_and_detaching_it_helps():
    network, data = exploding()
    diagnosis = diagnose(network, data)
    growth = [layer.exponent * len(data[0]) for layer in diagnosis.measurements.layers]  # over the whole run
    grown = tuple(i for i, log in enumerate(growth, start=1) if log > math.log(10))
    assert grown
    for layer in grown:
        (finding,) = [f for f in diagnosis if f.layer == layer]
        assert finding.name == "exploding through time"
        assert "due to the reset" in finding.cause
        assert finding.cure.startswith("detach the reset")
    (trial,) = try_cures(network, data, diagnosis, lr=3e-3)
    assert (trial.cure, trial.layers) == ("the reset detached", grown)
    assert trial.before == pytest.approx(diagnosis.measurements.loss, rel=1e-5)  # it changes gradients only
    assert trial.helped and trial.after < trial.untreated
    assert all(cell.reset.gradient for cell in network.cells)  # the network itself stays


def test_a_missing_class_is_named_where_there_are_labels_enough(digits):
    many = torch.arange(2000) % 20
    missing = many.masked_fill(many == 7, 8)
    (finding,) = diagnose(*digits, labels=missing)
    assert (finding.layer, finding.name) == (None, "missing class")
    assert "class 7 is missing from 2000 labels" in finding.problem
    assert not list(missing_classes(many, 20))
    assert not list(missing_classes(missing[:40], 20))  # by chance 40 of 20 classes leave some out


@pytest.mark.slow
def test_a_learning_rate_that_is_too_high_is_named_and_a_lower_one_helps(digits):
    network, data = digits
    weights = copy.deepcopy(network.state_dict())
    (finding,) = diagnosis = diagnose(network, data, lr=0.1)
    assert (finding.layer, finding.name) == (None, "learning rate too high")
    assert float(finding.cure.split()[-1]) <= 0.01
    (trial,) = try_cures(network, data, diagnosis, lr=0.1)
    assert trial.helped
    assert all(torch.equal(value, weights[name]) for name, value in network.state_dict().items())


@pytest.mark.slow
def test_a_layer_that_fires_often_is_no_fault_of_a_network_that_learnt(digits):
    network = copy.deepcopy(digits[0])
    PLANTS["low"][0](network)
    for losses, expected in (((2.0, 1.5, 1.0), []), ((2.0, 1.99, 1.98), ["threshold out of scale"])):
        rows = [{"train_loss": loss} for loss in losses]
        assert named(diagnose(network, digits[1], history=rows), 1) == expected


def test_an_input_that_is_batch_first_is_named_and_the_rest_is_said_of_it_turned(digits):
    network, (x, labels) = digits
    right = diagnose(network, (x, labels))
    (finding,) = wrong = diagnose(network, (x.transpose(0, 1), labels))
    assert (finding.name, finding.cure) == ("input batch first", "give x.transpose(0, 1)")
    torch.testing.assert_close(wrong.measurements.profile.time_mean, right.measurements.profile.time_mean)
    assert wrong.measurements.loss == right.measurements.loss


def test_dead_layers_above_a_dead_one_dead_neurons_and_synchronous_ones():
    network, data = healthy("digits", 3)
    rest = network.cells[0].theta_rest.detach().clone()
    rest[:48] = 1e3
    network.cells[0].theta_rest = rest
    PLANTS["dead"][0](network)
    diagnosis = diagnose(network, data)
    causes = {f.layer: f.cause for f in diagnosis if f.name == "dead layer"}
    assert "thresholds" in causes[2] and causes[3] == "the layer below is silent"
    (finding,) = [f for f in diagnosis if f.layer == 1]
    assert (finding.name, finding.problem) == ("dead neurons", "75% of its neurons never fire")
    network, data = healthy("digits", 1, LIF)
    with torch.no_grad():  # all neurons are nearly the same one
        for weights in (network.cells[0].w_in, network.cells[0].w_rec):
            weights.copy_(weights[:1] + 0.01 * weights)
        network.cells[0].tau_v = torch.full((64,), 0.1)
    assert "synchronous layer" in named(diagnose(network, data), 1)


@pytest.mark.parametrize("initialiser", ["RateMatching(0.1)", "Relay(rate=0.1)"])
def test_a_recurrence_that_explodes_is_blamed_though_the_leak_is_the_largest_part(
    initialiser, make_network, make_spikes
):
    network, x = make_network(LIF, n_in=40, width=32, tau_v=50.0), make_spikes(T=60, B=8, N=40)
    init.named(initialiser).apply(network, [x])
    grown = [f for f in diagnose(network, x) if f.name == "exploding through time"]
    assert [f.layer for f in grown] == ([1, 2] if initialiser == "RateMatching(0.1)" else [])
    assert all("due to the leak" in f.cause and "scale w_rec down" in f.cure for f in grown)


def test_thresholds_that_explode_are_blamed_though_the_leak_is_the_largest_part(make_spikes):
    torch.manual_seed(0)
    network, x = Network([neurolsc.ALIFPlusMinus(40, 32, tau_v=50.0)], 5), make_spikes(T=60, B=8, N=40)
    init.RateMatching(0.1).apply(network, [x])
    with torch.no_grad():
        network.cells[0].w_rec.zero_()
        network.cells[0].adaptation.fill_(-network.cells[0].theta_rest.mean())
    assert network.run(x).spikes[0].mean() > 0.1
    (grown,) = [f for f in diagnose(network, x.bool()) if f.name == "exploding through time"]
    assert "due to the leak" in grown.cause and "lower the adaptation" in grown.cure and "w_rec" not in grown.cure


def test_gradients_that_explode_are_named_unless_a_history_says_that_the_network_learnt():
    network = neurolsc.load("sl-mnist-alif")
    diagnosis = diagnose(network, batch("mnist"))
    assert [(f.layer, f.name) for f in diagnosis] == [(1, "exploding through time"), (2, "exploding through time")]
    assert diagnosis.measurements.loss < 1
    assert diagnosis.measurements.layers[0].gradient > 1e5
    assert not diagnose(network, batch("mnist"), history=[{"train_loss": loss} for loss in (2.0, 1.5, 1.0)])


def test_what_does_not_fit_is_refused(digits):
    network, (x, labels) = digits
    with pytest.raises(ValueError, match=r"x must have shape \(T, B, 140\)"):
        diagnose(network, x[0])
    with pytest.raises(TypeError, match=r"batch must be x, \(x, targets\) or \(x, targets, mask\)"):
        diagnose(network, (x, labels, None))
    with pytest.raises(ValueError, match="lr must be positive"):
        diagnose(network, (x, labels), lr=-1.0)
    with pytest.raises(ValueError, match="trials need targets"):
        try_cures(network, x, diagnose(network, x))
    assert isinstance(network, Network)


def test_gradients_that_vanish_or_grow_over_all_layers_are_named_though_no_layer_is_ill():
    network, data = healthy("digits", 2)
    measured = diagnose(network, data).measurements
    layer = replace(measured.layers[0], singular_depth=1.0)

    def found(sizes: list[float], across: float, *, learnt: bool = False) -> list[str]:
        layers = tuple(replace(layer, gradient=size, singular_depth=across) for size in sizes)
        ten = Network([network.cells[0], *[network.cells[1]] * 9], 20)
        profile = SimpleNamespace(main_term=None, time_mean=None)
        return [f.name for f in layer_faults(ten, replace(measured, layers=layers, profile=profile), learnt=learnt)]

    # the ends of the sizes that ten rate-matched layers of ALIF+ have in the study
    shrinking = [10 ** (-6.5 + 6.5 * i / 9) for i in range(10)]
    assert found(shrinking, 1.0) == ["vanishing through depth"]
    assert found([size**0.9 for size in shrinking], 1.0) == []
    assert found([1.0] * 10, 1.7) == ["exploding through depth"]
    assert found([1.0] * 10, 1.5) == []
    assert found(shrinking, 1.7, learnt=True) == []
