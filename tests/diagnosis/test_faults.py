"""Faults planted in healthy networks are named where they are, with a cure that the layer can take and did not have."""

import copy
import math
import re
from dataclasses import replace
from typing import Any

import pytest
import snntorch as snn
import torch
from snntorch import surrogate
from torch import Tensor, nn

import neurolsc
from neurolsc import LIF, Network, diagnose, init, try_cures, wrap
from neurolsc.diagnosis import FAULTS, Bounds, cures
from neurolsc.diagnosis.case import Case
from neurolsc.diagnosis.causes import growth, is_identity, step_sizes
from neurolsc.diagnosis.faults import BOUNDS, BY_NAME, findings, of_labels
from neurolsc.diagnosis.report import examined
from neurolsc.diagnosis.rules import is_too_fast
from neurolsc.stability.scale import layer_inputs
from neurolsc.surrogate import Rectangular
from tests.diagnosis.networks import HEALTHY, PLANTS, batch, exploding, healthy

FEW = {"samples": 2, "steps": 4}


@pytest.fixture(scope="module")
def digits():
    torch.manual_seed(0)
    return healthy("digits", 2)


def named(diagnosis, layer: int | None) -> list[str]:
    return [finding.name for finding in diagnosis if finding.layer == layer]


# ---- planted


@pytest.mark.long
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
    diagnosis = diagnose(network, *data, **FEW)
    (finding,) = [f for f in diagnosis if f.layer == layer and f.name == name]
    assert finding.cause and finding.cure
    assert name not in named(diagnosis, 3 - layer)


def test_a_layer_that_fires_rarely_is_no_fault(digits):
    network, (x, y) = copy.deepcopy(digits[0]), digits[1]
    init.FiringRate(0.005).apply(network, [x])
    assert not diagnose(network, x, y, **FEW)


def test_the_cure_of_layers_above_a_silent_one_is_to_mend_that_one():
    network, data = healthy("digits", 3)
    PLANTS["dead"][0](network)
    diagnosis = diagnose(network, *data, **FEW)
    dead = {f.layer: f for f in diagnosis if f.name == "dead layer"}
    assert list(dead) == [2, 3]
    assert "thresholds" in dead[2].cause and dead[2].cure == cures.ADVICE
    assert (dead[3].cause, dead[3].cure) == ("the layer below is silent", "mend layer 2 first")
    assert len(diagnosis.lines) == len(diagnosis)  # what is said of the two differs


# ---- cures that were applied, and that a layer cannot take


def test_the_initialisation_is_advised_once(digits):
    network, (x, y) = copy.deepcopy(digits[0]), digits[1]
    PLANTS["dead"][0](network)
    (finding,) = diagnose(network, x, y, **FEW)
    assert finding.cure == cures.ADVICE
    cures.initialise(network, x)
    assert network.run(x).spikes[1].any()
    assert cures.ADVICE not in [f.cure for f in diagnose(network, x, y, **FEW)]


def test_an_initialisation_that_does_not_help_is_not_advised(digits):
    network, (x, y) = copy.deepcopy(digits[0]), digits[1]
    PLANTS["dead"][0](network)
    for parameter in network.cells[1].parameters():
        parameter.requires_grad_(False)
    (finding,) = [f for f in diagnose(network, x, y, **FEW) if f.name == "dead layer"]
    assert finding.cure == "lower its thresholds, or raise its input weights"


@pytest.mark.parametrize(("width", "threshold"), [(16, 0.2), (512, 1.0), (512, 0.3)])
def test_an_identity_is_told_from_drawn_weights_at_any_width_and_threshold(width, threshold):
    torch.manual_seed(0)
    network = Network([neurolsc.LIF(40, width), neurolsc.LIF(width, width)], 4)
    network.cells[1].theta.fill_(threshold)
    x = (torch.rand(20, 8, 40) < 0.2).float()
    assert not any(is_identity(cell, BOUNDS.identity) for cell in network.cells)
    init.Identity(rate=0.05).apply(network, [x])
    assert [is_identity(cell, BOUNDS.identity) for cell in network.cells] == [False, True]


@pytest.mark.slow
def test_upper_layers_that_begin_as_an_identity_are_not_sent_to_it_again():
    torch.manual_seed(0)
    x, y = batch("digits")
    network = Network([neurolsc.ALIFPlus(140, 64), *(neurolsc.ALIFPlus(64, 64) for _ in range(2))], 20)
    case = examined(network, x, y, **FEW)
    assert not case.initialised
    for initialiser in (init.Identity(), init.Relay(drawn=1)):
        again = copy.deepcopy(network)
        initialiser.apply(again, [x])
        PLANTS["dead"][0](again)
        assert examined(again, x, y, **FEW).initialised
        (dead, above) = [f for f in diagnose(again, x, y, **FEW) if f.name == "dead layer"]
        assert dead.cure == "lower its thresholds, or raise its input weights"
        assert above.cure == "mend layer 2 first"


@pytest.mark.parametrize(("text", "rate"), [("FiringRate(0.1)", 0.1), ("Relay()", 0.15)])
def test_after_an_initialisation_nobody_is_sent_to_it(text, rate, digits):
    network, (x, y) = copy.deepcopy(digits[0]), digits[1]
    PLANTS["dead"][0](network)
    init.named(text).apply(network, [x])
    found = diagnose(network, x, y, **FEW)
    assert [layer.activity.rate for layer in found.measurements.layers] == pytest.approx([rate] * 2, abs=0.02)
    assert not found


# ---- growth through time, and what it is due to


@pytest.mark.long
def test_a_reset_that_explodes_is_named_and_detaching_it_helps():
    network, data = exploding()
    diagnosis = diagnose(network, data)
    rates = [layer.exponent * len(data[0]) for layer in diagnosis.measurements.layers]  # over the whole run
    grown = tuple(i for i, log in enumerate(rates, start=1) if log > math.log(Bounds().growth))
    assert grown
    for layer in grown:
        (finding,) = [f for f in diagnosis if f.layer == layer]
        assert finding.name == "exploding through time"
        assert "due to the reset: without it 0.9" in finding.cause
        assert finding.cure == "detach the reset (reset_gradient=False)"
    (trial,) = try_cures(network, data, diagnosis=diagnosis, lr=3e-3)
    assert (trial.cure, trial.layers) == ("the reset detached", grown)
    assert trial.before == pytest.approx(diagnosis.measurements.loss, rel=1e-5)  # it changes gradients only
    assert trial.helped and trial.after < trial.untreated
    assert all(cell.reset.gradient for cell in network.cells)  # the network itself stays


def test_a_recurrence_that_explodes_is_blamed_though_the_leak_is_the_largest_part(make_network, make_spikes):
    network, x = make_network(LIF, n_in=40, width=32, tau_v=50.0), make_spikes(T=60, B=8, N=40)
    init.FiringRate(0.1).apply(network, [x])
    found = diagnose(network, x, **FEW)
    assert found.measurements.profile.main_term(1).name == "leak"
    (grown,) = [f for f in found if f.name == "exploding through time"]
    assert grown.layer == 2
    assert "due to the recurrence" in grown.cause and grown.cure.startswith("scale w_rec down")
    w_rec = network.cells[1].w_rec.detach().clone()
    (trial,) = try_cures(network, x, torch.arange(8) % 4, diagnosis=found, updates=1)
    assert trial.cure.startswith("w_rec of layer 2 scaled by 0.")
    assert torch.equal(network.cells[1].w_rec, w_rec)
    share = float(grown.cure.split()[-3])
    with torch.no_grad():
        network.cells[1].w_rec.mul_(share)
    assert abs(growth(network, x[:, :2], 1).rate) < 0.3 * found.measurements.layers[1].exponent


def test_a_gradient_of_the_loss_that_is_nan_blames_no_part_that_passes_nothing_through_time(make_spikes):
    torch.manual_seed(0)
    cell = LIF(5, 6, reset="zero", spike=Rectangular(sharpness=1e6))  # 0 at all voltages that occur
    cell.tau_v = 1e-3  # no memory
    with torch.no_grad():
        cell.w_in.fill_(1.0)
    network, x = Network([cell], 3), make_spikes(T=10, B=8, N=5)
    y = torch.arange(8) % 3
    found = diagnose(network, x, y, loss=lambda out, y: (0 * out).sum().sqrt(), **FEW)  # d sqrt(s) / ds at 0
    assert cell.w_rec.any() and math.isnan(found.measurements.layers[0].gradient)
    assert found.measurements.layers[0].exponent == -math.inf
    assert growth(network, x, 0).part == "leak"


def test_thresholds_that_explode_are_blamed_though_the_leak_is_the_largest_part(make_spikes):
    torch.manual_seed(0)
    network, x = Network([neurolsc.ALIFPlusMinus(40, 32, tau_v=50.0)], 5), make_spikes(T=60, B=8, N=40)
    init.FiringRate(0.1).apply(network, [x])
    with torch.no_grad():
        network.cells[0].w_rec.zero_()
        network.cells[0].adaptation.fill_(-network.cells[0].theta_rest.mean())
    assert network.run(x).spikes[0].mean() > 0.1
    (grown,) = [f for f in diagnose(network, x.bool(), **FEW) if f.name == "exploding through time"]
    assert "due to the adaptation" in grown.cause and grown.cure == "lower adaptation"


def one_to_one(weight: float) -> Network:
    snn = pytest.importorskip("snntorch")
    torch.manual_seed(0)
    layer = snn.RLeaky(beta=0.9, V=weight, all_to_all=False)
    return wrap(nn.Sequential(nn.Linear(100, 32), layer, nn.Linear(32, 10)))


def test_one_to_one_recurrence_is_recurrence(make_spikes):
    x = make_spikes(T=20, B=4, N=100)
    network = one_to_one(1.0)
    (grown,) = [f for f in diagnose(network, x, **FEW) if f.name == "exploding through time"]
    assert "due to the recurrence: without it 0.90-fold" in grown.cause
    assert grown.cure.startswith("scale layer.recurrent.V down")
    assert network.cells[0].layer.recurrent.V.item() == 1.0
    assert not [f for f in diagnose(one_to_one(0.0), x, **FEW) if f.name == "exploding through time"]


@pytest.mark.parametrize("recurrent", [False, True])
def test_a_cure_that_a_layer_cannot_take_is_not_advised(recurrent, make_spikes):
    """A layer of norse has neither recurrent weights nor gates; the surrogate's peak makes its reset explode."""
    norse = pytest.importorskip("norse.torch")
    torch.manual_seed(0)
    x = make_spikes(T=20, B=4, N=12)
    p = norse.LIFParameters(method="triangle", alpha=torch.tensor(100.0), v_th=torch.tensor(0.1))
    first = [norse.LIFRecurrentCell(12, 16, p)] if recurrent else [nn.Linear(12, 16), norse.LIFCell(p)]
    network = wrap(norse.SequentialState(*first, nn.Linear(16, 4)))
    (grown,) = [f for f in diagnose(network, x, **FEW) if f.name == "exploding through time"]
    if recurrent:  # whose reset passes no gradient
        assert grown.cure.startswith("scale layer.recurrent_weights down")
        return
    assert "due to the reset: without it 0.87-fold" in grown.cause
    assert grown.cure == "lower the peak of its surrogate, 100, by its slope or alpha"
    assert network.cells[0].layer.p.method == "triangle"


def test_gradients_that_explode_are_named_unless_a_history_says_that_the_network_learnt():
    network = neurolsc.load("sl-mnist-alif")
    diagnosis = diagnose(network, *batch("mnist"), **FEW)
    assert [(f.layer, f.name) for f in diagnosis] == [(1, "exploding through time"), (2, "exploding through time")]
    assert diagnosis.measurements.loss < 1
    assert diagnosis.measurements.layers[0].gradient > 1e5
    rows = [{"train_loss": loss} for loss in (2.0, 1.5, 1.0)]
    assert not diagnose(network, *batch("mnist"), history=rows, **FEW)


# ---- surrogates, batch norms, constants


@pytest.mark.parametrize("layers", [1, 2])
def test_a_surrogate_that_passes_nothing_is_named_in_a_layer_that_fires(layers, make_spikes):
    snn = pytest.importorskip("snntorch")
    x, y = make_spikes(T=25, B=16, N=12, rate=0.3), torch.arange(16) % 4

    def network(spike) -> Network:
        torch.manual_seed(0)
        body: list[nn.Module] = []
        for n_in in (12, 16)[:layers]:
            body += [nn.Linear(n_in, 16), snn.Leaky(beta=0.9, spike_grad=spike, threshold=0.4)]
        return wrap(nn.Sequential(*body, nn.Linear(16, 4)))

    sparse = network(snn.surrogate.SFS())
    assert all(z.mean() > 0.1 for z in sparse.run(x).spikes)
    found = diagnose(sparse, x, y, loss="count", **FEW)
    assert [(f.layer, f.name) for f in found] == [(i + 1, "closed surrogate") for i in range(layers)]
    assert {f.cure for f in found} == {"use fast_sigmoid or atan"}
    numbers = ("layer 1", "each of layers 1, 2")[layers - 1]
    assert found.lines == [f"{numbers}: {str(found[0]).removeprefix('layer 1: ')}"]
    narrow = network(snn.surrogate.fast_sigmoid(slope=25))  # of which 5 % are active
    assert "closed surrogate" not in [f.name for f in diagnose(narrow, x, y, loss="count", **FEW)]


@pytest.mark.parametrize("threshold", [-0.5, 0.0])
def test_a_threshold_that_is_not_positive_closes_no_surrogate(threshold, make_spikes):
    torch.manual_seed(0)
    leaky = snn.Leaky(beta=0.9, threshold=threshold, spike_grad=surrogate.fast_sigmoid(25))
    network = wrap([nn.Linear(12, 16), leaky, nn.Linear(16, 4)])
    found = diagnose(network, make_spikes(T=25, B=16, N=12, rate=0.3), torch.arange(16) % 4, loss="count", **FEW)
    assert found.measurements.layers[0].active_surrogate_fraction < 0.1  # so that slopes were measured
    assert "closed surrogate" not in [f.name for f in found]


def normed() -> nn.Sequential:
    snn = pytest.importorskip("snntorch")
    torch.manual_seed(0)
    layers = [nn.Linear(20, 16), nn.BatchNorm1d(16), snn.Leaky(beta=0.9, init_hidden=True)]
    layers += [nn.Linear(16, 16), nn.BatchNorm1d(16), snn.Leaky(beta=0.9, init_hidden=True)]
    return nn.Sequential(*layers, nn.Linear(16, 4))


def test_of_a_silent_output_the_membrane_is_named_only_if_spikes_are_counted(make_spikes):
    snn = pytest.importorskip("snntorch")
    torch.manual_seed(0)
    network = wrap([nn.Linear(20, 16), snn.Leaky(0.9), nn.Linear(16, 4), snn.Leaky(0.9, threshold=1e6)])
    x, y = 5 * make_spikes(T=20, B=8, N=20), torch.arange(8) % 4
    (counted,) = (note for note in diagnose(network, x, y, loss="count", **FEW).notes if "no spikes" in note)
    (own,) = (
        note
        for note in diagnose(network, x, y, loss=lambda out, y: out.square().mean(), **FEW).notes
        if "no spikes" in note
    )
    assert counted == f'{own}; if your loss reads its membrane, give loss="membrane"'


def of_norse() -> nn.Module:
    norse = pytest.importorskip("norse.torch")
    torch.manual_seed(0)
    layers = [norse.LIFRecurrent(40, 32), norse.LIFRecurrent(32, 32), nn.Linear(32, 4), norse.LI()]
    return norse.SequentialState(*layers)


@pytest.mark.parametrize(("lr", "warns"), [(1e-4, False), (0.05, True)])
def test_a_rate_that_the_advised_initialisation_does_not_bear_is_noted(lr: float, warns: bool):
    torch.manual_seed(0)
    x, y = (torch.rand(50, 32, 40) < 0.05).float(), torch.arange(32) % 4
    found = diagnose(of_norse(), x, y, loss="membrane", lr=lr)
    assert "dead layer" in [finding.name for finding in found]
    notes = [
        note for note in found.notes if note.startswith("note: after neurolsc.initialize(net, x) a step of Adam at")
    ]
    assert bool(notes) is warns
    net = of_norse()
    report = neurolsc.initialize(net, x, y, loss="membrane", lr=lr)
    assert any("lower the learning rate to" in finding.cure for finding in report) is warns
    assert not warns or "lower the learning rate to" in notes[0]


def small() -> Network:
    torch.manual_seed(0)
    return Network([LIF(20, 16), LIF(16, 16)], n_out=4, layer_delay=0)


def of_a_logarithm(out: Tensor, y: Tensor) -> Tensor:
    return nn.functional.nll_loss(out.mean(0).log(), y)


@pytest.mark.parametrize(
    ("change", "loss", "name", "words"),
    [
        (lambda x: 0 * x, "count", "empty input", "the input is all zeros"),
        (lambda x: x[:, :1].expand_as(x), "count", "empty input", "the 8 samples of the input are all alike"),
        (lambda x: x, of_a_logarithm, "loss not finite", r"the loss is (nan|-?inf) before any update"),
        (lambda x: x, lambda out, y: out.sum() / 0, "loss not finite", r"the loss is (nan|-?inf) before any update"),
    ],
)
def test_inputs_and_losses_that_teach_nothing_are_the_first_fault(make_spikes, change, loss, name, words):
    x = change(make_spikes(T=20, B=8, N=20))
    found = diagnose(small(), x, torch.arange(8) % 4, loss=loss, lr=1e-3, **FEW)
    assert found[0].name == name
    assert re.search(words, found[0].problem)
    assert not any("gradients grow" in finding.problem for finding in found)


def test_a_network_that_is_frozen_as_a_whole_has_nothing_to_train(make_spikes):
    x, y = make_spikes(T=20, B=8, N=20), torch.arange(8) % 4
    net = small()
    for parameter in list(net.parameters())[1:]:
        parameter.requires_grad_(False)
    assert "nothing to train" not in [finding.name for finding in diagnose(net, x, y, **FEW)]
    net.requires_grad_(False)
    assert diagnose(net, x, y, **FEW)[0].name == "nothing to train"
    assert "nothing to train" not in [finding.name for finding in diagnose(net, x, **FEW)]


@pytest.mark.parametrize("history", [5, [{"loss": 1.0}], {"train_loss": 1.0}, ["2.3"], [{"train_loss": None}]])
def test_a_history_without_training_losses_is_refused(make_spikes, history):
    with pytest.raises(TypeError, match="history must be rows, an epoch each, such as"):
        diagnose(small(), make_spikes(T=20, B=8, N=20), torch.arange(8) % 4, history=history, **FEW)


@pytest.mark.parametrize("last", [math.nan, math.inf])
def test_a_history_that_ends_without_a_number_is_of_a_learning_rate_that_is_too_high(make_spikes, last):
    rows = [{"train_loss": loss} for loss in (2.3, last)]
    found = diagnose(small(), make_spikes(T=20, B=8, N=20), torch.arange(8) % 4, history=rows, **FEW)
    assert f"the training loss became {last:g}" in [finding.problem for finding in found]


def test_fresh_batch_norms_of_a_readout_and_of_one_sample_are_said_as_they_are(make_spikes):
    snn = pytest.importorskip("snntorch")
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(20, 16), snn.Leaky(0.9, init_hidden=True), nn.Linear(16, 4), nn.BatchNorm1d(4))
    for layers, words in ((net, "batch norms of the readout have"), (normed(), "batch norms of layers 1, 2 have")):
        for samples in (1, 8):
            found = diagnose(wrap(layers), make_spikes(T=20, B=samples, N=20), torch.arange(samples) % 4, **FEW)
            (finding,) = [f for f in found if f.name == "fresh batch norm"]
            assert finding.problem.startswith(words) and "do not normalise" in finding.problem
            assert ("statistics of this batch" in str(finding)) is (samples > 1)


class Borrowed(nn.Module):
    """Reads the weights of a Linear that it never calls."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(20, 16)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.fc.weight, self.fc.bias)


def test_weights_that_another_module_uses_leave_the_step_of_their_layer_unknown(make_spikes):
    snn = pytest.importorskip("snntorch")
    network = wrap([nn.Linear(20, 20), snn.Leaky(0.9), Borrowed(), snn.Leaky(0.9), nn.Linear(16, 4)])
    x = 5 * make_spikes(T=20, B=8, N=20)
    assert math.isnan(step_sizes(network, list(layer_inputs(network, x)))[1])
    diagnose(network, x, torch.arange(8) % 4, lr=1e-3, **FEW)


def test_a_sample_that_is_masked_throughout_is_named(make_spikes):
    mask = torch.ones(20, 3, dtype=torch.bool)
    mask[:, 1] = False
    with pytest.raises(ValueError, match="a sample of the batch has no time step: its mask is False throughout"):
        diagnose(Network([LIF(20, 8)], n_out=3), (make_spikes(T=20, B=3, N=20), None, mask))


def test_fresh_batch_norms_are_named_and_measured_with_statistics_of_the_batch(make_spikes):
    x, y = make_spikes(T=20, B=16, N=20), torch.arange(16) % 4
    net = normed()
    before = copy.deepcopy(net.state_dict())
    found = diagnose(wrap(net), x, y, **FEW)
    (finding,) = [f for f in found if f.name == "fresh batch norm"]
    assert (
        finding.problem.startswith("batch norms of layers 1, 2 have seen no batch") and "training mode" in finding.cure
    )
    assert all(torch.equal(net.state_dict()[name], value) for name, value in before.items())
    assert net[1].training and net[1].momentum == 0.1
    # the currents that a batch norm sends in training have mean 0 and deviation 1
    rates = [layer.activity.rate for layer in found.measurements.layers]
    running = normed()
    for norm in (running[1], running[4]):
        norm.momentum = None
    for frame in x:
        running(frame)
    network = wrap(running)
    with torch.no_grad():
        spikes = network.eval().run(x).spikes
    assert rates == pytest.approx([z.mean().item() for z in spikes], rel=1e-4)
    assert "fresh batch norm" not in [f.name for f in diagnose(wrap(running.train()), x, y, **FEW)]
    for frame in x[:5]:  # after so few batches statistics are still half of those before the first
        net(frame)
    found = diagnose(wrap(net), x, y, **FEW)
    (finding,) = [f for f in found if f.name == "fresh batch norm"]
    assert finding.problem.startswith("batch norms of layers 1, 2 have seen too few batches")
    assert [layer.activity.rate for layer in found.measurements.layers] == rates
    assert net[1].num_batches_tracked == 5


def test_a_decay_behind_a_clamp_is_stuck(make_spikes):
    snn = pytest.importorskip("snntorch")
    torch.manual_seed(0)
    x, y = make_spikes(T=10, B=8, N=12, rate=0.4), torch.arange(8) % 4
    for beta, stuck in ((1.3, ["stuck time constant"]), (0.9, [])):
        layer = snn.Leaky(beta=beta, learn_beta=True, threshold=0.5)
        found = diagnose(wrap(nn.Sequential(nn.Linear(12, 16), layer, nn.Linear(16, 4))), x, y, **FEW)
        assert found.measurements.layers[0].activity.rate > 0.05
        assert [f.name for f in found if "time constant" in f.name] == stuck


# ---- integrators


@pytest.mark.slow
def test_an_integrator_is_not_dead(make_spikes):
    norse, snn = pytest.importorskip("norse.torch"), pytest.importorskip("snntorch")
    x, y = make_spikes(T=10, B=8, N=12), torch.arange(8) % 4
    weights = nn.Linear(16, 4)
    with torch.no_grad():
        weights.weight.zero_()  # so that its voltage stays 0
        weights.bias.zero_()
    last = snn.Leaky(beta=0.9, reset_mechanism="none", init_hidden=True, output=True)
    reset = snn.Leaky(beta=0.9, init_hidden=True)
    hidden = snn.Leaky(beta=0.9, threshold=0.2, init_hidden=True)
    networks = {
        "LI": wrap(norse.SequentialState(norse.LIFRecurrentCell(12, 16), weights, norse.LICell())),
        "no reset": wrap(nn.Sequential(nn.Linear(12, 16), hidden, weights, last)),
        "membrane": wrap(nn.Sequential(nn.Linear(12, 16), hidden, weights, reset), output="membrane"),
    }
    for name, network in networks.items():
        found = diagnose(network, x, y, loss="membrane", **FEW)
        assert network.cells[1].integrator
        assert math.isnan(found.measurements.layers[1].activity.rate), name
        assert not [f for f in found if f.layer == 2], name


def test_an_output_that_is_silent_above_a_layer_that_fires_is_a_note(make_spikes):
    """Networks learn from there: the surrogate passes on what the loss asks of it."""
    snn = pytest.importorskip("snntorch")
    x, y = make_spikes(T=10, B=8, N=12), torch.arange(8) % 4
    torch.manual_seed(0)
    hidden, output = (snn.Leaky(beta=0.9, threshold=threshold) for threshold in (0.2, 5.0))
    network = wrap(nn.Sequential(nn.Linear(12, 16), hidden, nn.Linear(16, 4), output))
    found = diagnose(network, x, y, loss="count", **FEW)
    assert found.measurements.layers[0].activity.rate > 0 == found.measurements.layers[1].activity.rate
    assert "dead layer" not in [f.name for f in found]
    assert [note for note in found.notes if 'give loss="membrane"' in note]
    hidden.threshold.fill_(1e3)
    silent = diagnose(network, x, y, loss="count", **FEW)
    assert [f.layer for f in silent if f.name == "dead layer"] == [1, 2]
    assert not [note for note in silent.notes if "membrane" in note]


# ---- gradients and signals, of measurements as they are found in networks that fail


@pytest.fixture(scope="module")
def ten(digits) -> Case:
    """Ten layers with the measurements of a healthy one."""
    network, (x, y) = digits
    case = examined(network, x, y, samples=2, steps=2)
    layer = replace(case.measured.layers[1], singular_depth=1.0, gradient=1.0, noise=1.0, similarity_to_input=0.5)
    deep = Network([network.cells[0], *[network.cells[1]] * 9], 20)
    measured = replace(case.measured, layers=(layer,) * 10)
    return replace(case, network=deep, measurable=deep, measured=measured)


def measured_as(case: Case, **values: list[Any]) -> Case:
    """The case where layers have other values, such as gradient=[...], one for each."""
    layers = case.measured.layers
    for name, each in values.items():
        layers = tuple(replace(layer, **{name: value}) for layer, value in zip(layers, each, strict=True))
    return replace(case, measured=replace(case.measured, layers=layers))


def found_of(case: Case, **values: list[Any]) -> list[tuple[int | None, str]]:
    """What is found where layers have other values, as of `measured_as`."""
    ill = measured_as(case, **values)
    signs = []
    for fault in FAULTS:
        if fault.unless_learnt and ill.learnt:
            continue
        signs += [(sign.layer, fault.name) for sign in fault.test(ill)]
    return signs


def test_gradients_that_vanish_or_grow_over_all_layers_are_named_though_no_layer_is_ill(ten):
    assert found_of(ten) == []
    # the ends of the sizes that ten rate-matched layers of ALIF+ have in the study
    shrinking = [10 ** (-6.5 + 6.5 * i / 9) for i in range(10)]
    assert found_of(ten, gradient=shrinking) == [(1, "vanishing gradient")]
    assert found_of(ten, gradient=[size**0.9 for size in shrinking]) == []
    tiny = [ten.measured.layers[0].entries ** 0.5 * size for size in (0.9e-8, *[1.1e-8] * 9)]
    assert found_of(ten, gradient=tiny) == [(1, "vanishing gradient")]
    assert found_of(ten, singular_depth=[1.7] * 10) == [(None, "exploding through depth")]
    assert found_of(ten, singular_depth=[1.5] * 10) == []
    learnt = replace(ten, history=[{"train_loss": loss} for loss in (2.0, 1.5, 1.0)])
    assert found_of(learnt, gradient=shrinking, singular_depth=[1.7] * 10) == []


def test_parts_of_a_batch_that_do_not_agree_are_no_fault(ten):
    # Noise alone gives 1 / 8. Less shows only that the parts hold other classes, whose gradients cancel in the whole.
    assert ten.measured.pieces == 8
    assert found_of(ten, noise=[0.01 / 8] * 10) == []


def test_a_signal_that_three_layers_in_a_row_have_lost_is_named(ten):
    kept, lost = 0.3, 0.001
    assert found_of(ten, similarity_to_input=[kept] * 6 + [lost] * 4) == [(7, "lost signal")]
    assert found_of(ten, similarity_to_input=[kept] * 8 + [lost] * 2) == []
    assert found_of(ten, similarity_to_input=[lost] * 10) == []  # of an input that no layer has
    spread = [kept, lost, lost, kept, lost, lost, kept, lost, lost, kept]
    assert found_of(ten, similarity_to_input=spread) == []


GONE, LOST = 1e-9, 0.001
IN_THE_COPY = {  # what is measured of layers, of the same layers of an initialised copy, and whether that is a cure
    "gets a gradient": ("gradient", [1, GONE, *[1] * 8], [1] * 10, True),
    "and one more vanishes": ("gradient", [1, GONE, *[1] * 8], [GONE, GONE, *[1] * 8], False),
    "one of two still vanishes": ("gradient", [GONE, GONE, *[1] * 8], [1, GONE, *[1] * 8], False),
    "keeps the signal": ("similarity_to_input", [*[0.5] * 6, *[LOST] * 4], [0.5] * 10, True),
    "and layers below lose it": ("similarity_to_input", [*[0.5] * 6, *[LOST] * 4], [0.5, 0.5, *[LOST] * 8], False),
    "the first layer keeps little": ("similarity_to_input", [*[0.5] * 6, *[LOST] * 4], [0.1, *[LOST] * 9], False),
}


@pytest.mark.parametrize("silent", [False, True], ids=["", "another layer falls silent"])
@pytest.mark.parametrize("kind", IN_THE_COPY)
def test_a_layer_is_cured_only_if_no_sign_covers_it_in_the_copy_and_no_other_layer_falls_silent(kind, silent, ten):
    name, values, after, cured = IN_THE_COPY[kind]
    ill, copied = measured_as(ten, **{name: values}), measured_as(ten, **{name: after})
    if silent:
        activity = ten.measured.layers[0].activity
        copied = measured_as(copied, activity=[*[activity] * 4, activity._replace(rate=0.0), *[activity] * 5])
    ill.__dict__["treated"] = copied
    (finding,) = findings(ill)
    assert (finding.cure == cures.ADVICE) == (cured and not silent)


@pytest.mark.long
def test_a_gradient_that_a_narrow_surrogate_takes_is_not_sent_to_the_initialisation(make_spikes):
    snn = pytest.importorskip("snntorch")
    torch.manual_seed(0)
    body: list[nn.Module] = []
    for n_in in (100, *[64] * 7):
        spike = snn.surrogate.fast_sigmoid(slope=25)
        body += [nn.Linear(n_in, 64), snn.RLeaky(0.9, linear_features=64, spike_grad=spike)]
    network, x = wrap(nn.Sequential(*body, nn.Linear(64, 10))), make_spikes(T=25, B=32, N=100, rate=0.2)
    y = torch.arange(32) % 10
    found = {f.name: f for f in diagnose(network, x, y, loss="count", **FEW)}
    assert found["vanishing gradient"].layer == 1
    assert found["vanishing gradient"].cure.startswith("take a surrogate with wider tails")  # it stays as small
    cures.initialise(network, x)
    assert cures.ADVICE not in [f.cure for f in diagnose(network, x, y, loss="count", **FEW)]


# ---- the learning rate


def test_the_step_of_a_voltage_is_inputs_times_rate_times_memory_over_threshold(make_spikes):
    torch.manual_seed(0)
    steps, decay = 12, 0.8
    cells = [LIF(20, 16), LIF(16, 8, threshold=0.5)]
    cells[1].tau_v = torch.full((8,), -1 / math.log(decay))
    network = Network(cells, 3, layer_delay=0)
    reads = list(layer_inputs(network, make_spikes(T=steps, B=4, N=20, rate=0.5)))
    memory = (1 - decay**steps) / (1 - decay)
    wanted = 16 * reads[1].mean().item() * memory / 0.5
    assert wanted > 0
    assert step_sizes(network, reads)[1] == pytest.approx(wanted, rel=1e-4)


def test_the_step_of_a_convolution_reads_what_its_kernel_reads(make_spikes):
    snn = pytest.importorskip("snntorch")
    layers = [nn.Conv2d(1, 2, 3), snn.Leaky(0.5, threshold=0.1), nn.MaxPool2d(2), nn.Conv2d(2, 3, 2), snn.Leaky(0.5)]
    network = wrap(nn.Sequential(*layers, nn.Flatten(), nn.Linear(12, 4)), input_shape=(1, 8, 8))
    reads = list(layer_inputs(network, make_spikes(T=6, B=4, N=64, rate=0.5)))
    pooled = nn.MaxPool2d(2)(reads[1].view(24, 2, 6, 6)).mean().item()
    assert pooled > 1.2 * reads[1].mean().item() > 0
    memory = (1 - 0.5**6) / 0.5
    assert step_sizes(network, reads)[1] == pytest.approx(2 * 4 * pooled * memory, rel=1e-4)


def test_a_step_that_is_large_next_to_the_threshold_is_named_above_the_first_layer(make_network, make_spikes):
    network, x = make_network(LIF, layers=3, tau_v=20.0), make_spikes(T=20, B=8)
    init.FiringRate(0.1).apply(network, [x])
    case = examined(network, x, **FEW)
    worst = max(case.step_sizes[1:])
    assert case.step_sizes[0] > worst
    for lr, expected in ((3.2 / worst, 1), (2.8 / worst, 0)):  # no spikes are read out
        found = [f for f in findings(replace(case, lr=lr)) if f.name == "learning rate too high for a layer"]
        assert len(found) == expected
        for finding in found:
            assert case.step_sizes[finding.layer - 1] == worst
            assert float(finding.cure.split(",")[0].split()[-1]) == pytest.approx(1.5 / worst, rel=0.1)


def test_a_step_is_too_large_earlier_where_spikes_are_read_out(make_spikes):
    snn = pytest.importorskip("snntorch")
    torch.manual_seed(0)
    layers = [nn.Linear(30, 64), snn.Leaky(0.95, threshold=0.3), nn.Linear(64, 10), snn.Leaky(0.95)]
    case = examined(wrap(nn.Sequential(*layers)), make_spikes(T=20, B=8, N=30, rate=0.2), **FEW)
    named = [f.layer for f in findings(replace(case, lr=0.8 / case.step_sizes[1])) if "too high" in f.name]
    assert named == [2]
    assert not [f for f in findings(replace(case, lr=0.6 / case.step_sizes[1])) if "too high" in f.name]


@pytest.mark.long
def test_a_batch_norm_undoes_a_step_that_all_weights_of_a_neuron_take(make_spikes):
    snn = pytest.importorskip("snntorch")
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(16).eval()
    layers = [nn.Linear(12, 16), snn.Leaky(0.9), nn.Linear(16, 16), norm, snn.Leaky(0.9), nn.Linear(16, 4)]
    network, x = wrap(layers), make_spikes(T=10, B=8, N=12)
    first, second = step_sizes(network, list(layer_inputs(network, x)))
    assert first > 0 and math.isnan(second)


class SpikesAndMembranes(nn.Module):
    """The network of snnTorch's fifth tutorial, small: it returns spikes first, then membranes."""

    def __init__(self) -> None:
        import snntorch

        super().__init__()
        self.fc1 = nn.Linear(12, 16)
        self.lif1 = snntorch.Leaky(0.9)
        self.fc2 = nn.Linear(16, 4)
        self.lif2 = snntorch.Leaky(0.9)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mem1, mem2 = self.lif1.init_leaky(), self.lif2.init_leaky()
        spikes, membranes = [], []
        for frame in x:
            spk1, mem1 = self.lif1(self.fc1(frame), mem1)
            spk2, mem2 = self.lif2(self.fc2(spk1), mem2)
            spikes.append(spk2)
            membranes.append(mem2)
        return torch.stack(spikes), torch.stack(membranes)


def test_the_loss_says_whether_spikes_or_membranes_are_read(make_spikes):
    pytest.importorskip("snntorch")
    torch.manual_seed(0)
    net, x, y = SpikesAndMembranes(), 4 * make_spikes(T=10, B=8, N=12), torch.arange(8) % 4
    with torch.no_grad():
        spikes, membranes = net(x)
    assert spikes.any()
    counted = examined(net, x, y, loss="count", lr=1e-3, **FEW)
    read = examined(net, x, y, loss="membrane", lr=1e-3, **FEW)
    loss = nn.functional.cross_entropy
    assert counted.measured.loss == pytest.approx(loss(spikes.sum(0), y).item(), rel=1e-4)
    assert read.measured.loss == pytest.approx(loss(membranes.mean(0), y).item(), rel=1e-4)
    assert counted.step_sizes[1] > 0 and math.isnan(read.step_sizes[1])
    assert (counted.spikes_are_read, read.spikes_are_read) == (True, False)
    before = copy.deepcopy(net.state_dict())
    report = neurolsc.initialize(net, x)
    assert report.layers[1].why == "output"
    assert 'loss="membrane" reads the second' in str(report)
    net.load_state_dict(before)
    report = neurolsc.initialize(net, x, loss="membrane")
    assert report.layers[1].why == "integrates"
    assert "membrane" not in str(report)


@pytest.mark.parametrize("reset", ["subtract", "none"])
def test_spikes_are_counted_also_where_the_membrane_is_returned_first(reset, make_spikes):
    class Turned(SpikesAndMembranes):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            spikes, membranes = super().forward(x)
            return membranes, spikes

    torch.manual_seed(0)
    net, x, y = Turned(), 4 * make_spikes(T=10, B=8, N=12), torch.arange(8) % 4
    net.lif2 = snn.Leaky(0.9, reset_mechanism=reset)
    with torch.no_grad():
        _, spikes = net(x)
    assert spikes.any()
    case = examined(net, x, y, loss="count", **FEW)
    assert case.measured.loss == pytest.approx(nn.functional.cross_entropy(spikes.sum(0), y).item(), rel=1e-4)
    assert case.spikes_are_read
    report = neurolsc.initialize(net, x, loss="count")
    assert report.layers[1].why == "output" and "membrane" not in str(report)


def test_a_slow_start_is_named_where_an_initialised_copy_learns(make_spikes):
    snn = pytest.importorskip("snntorch")
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for n_in in (100, *[64] * 4):
        spike = snn.surrogate.fast_sigmoid(slope=25)
        layers += [nn.Linear(n_in, 64), snn.Leaky(0.9, spike_grad=spike)]
    network, y = wrap(nn.Sequential(*layers, nn.Linear(64, 10))), torch.arange(40) % 10
    patterns = torch.rand(10, 100) < 0.2
    x = (make_spikes(T=25, B=40, N=100, rate=0.3).bool() & patterns[y]).float()
    (finding,) = [f for f in diagnose(network, x, y, lr=1e-3, **FEW) if f.name == "slow start"]
    assert finding.cure == cures.ADVICE and finding.layer is None
    assert "slow start" not in [f.name for f in diagnose(network, x, y, lr=1e-9, **FEW)]  # nothing learns there
    cures.initialise(network, x)
    assert "slow start" not in [f.name for f in diagnose(network, x, y, lr=1e-3, **FEW)]


def test_updates_that_move_nothing_are_said_to_tell_nothing(digits):
    network, data = digits
    tiny = diagnose(network, *data, lr=1e-9, **FEW)
    assert not tiny, str(tiny)
    note = tiny.notes[-1]
    assert "10 updates on" in note and "at 1e-09" in note
    assert "that of an initialised copy to" in note and note in " ".join(str(tiny).split())
    assert tiny.to_dict()["notes"][-1] == note
    for lr in (None, 1e-2):  # nothing was tried, or it learns
        assert "too few to tell" not in " ".join(diagnose(network, *data, lr=lr, **FEW).notes)


def test_a_start_is_slow_where_its_loss_stays_above_guessing(make_network, make_spikes):
    network, x, y = make_network(LIF, gain=3, layers=2), make_spikes(T=20, B=16), torch.arange(16) % 4
    case = examined(network, x, y, lr=1e-3, **FEW)
    outcome = case.outcomes[1e-3]
    case.__dict__["outcomes"] = {1e-3: outcome._replace(loss=5.0), 1e-4: outcome._replace(loss=9.0)}

    def found(initialised: float) -> bool:
        case.__dict__["initialised_outcome"] = outcome._replace(loss=initialised)
        return "slow start" in [finding.name for finding in findings(case)]

    assert found(0.995 * case.start)
    assert not found(1.01 * case.start)  # it learns nothing either
    case.__dict__["outcomes"] = {1e-3: outcome._replace(loss=0.999 * case.start)}
    assert not found(0.99 * case.start)  # two losses of noise


@pytest.mark.long
def test_a_learning_rate_that_is_too_high_is_named_and_a_lower_one_helps(digits):
    network, data = digits
    weights = copy.deepcopy(network.state_dict())
    diagnosis = diagnose(network, data, lr=1.0, **FEW)
    assert {f.name for f in diagnosis} == {"learning rate too high", "learning rate too high for a layer"}
    (finding,) = [f for f in diagnosis if f.layer is None]
    assert float(finding.cure.split()[-1]) == 0.1
    (trial,) = try_cures(network, data, diagnosis=diagnosis, lr=1.0)
    assert trial.cure == "a tenth of the learning rate" and trial.helped
    assert all(torch.equal(value, weights[name]) for name, value in network.state_dict().items())


def test_updates_that_silence_a_layer_are_named(make_network, make_spikes):
    network, x, y = make_network(LIF, gain=3, layers=2), make_spikes(T=20, B=16), torch.arange(16) % 4
    case = examined(network, x, y, lr=1.0, **FEW)
    high, low = case.outcomes.values()
    silent = high.activities[1]._replace(rate=0.0)
    outcomes = {1.0: high._replace(loss=low.loss, activities=(high.activities[0], silent)), 0.1: low}
    case.__dict__["outcomes"] = outcomes
    (finding,) = [f for f in findings(case) if f.name == "learning rate too high"]
    assert finding.problem.endswith("layer 2 never fires") and finding.cure == "lower the learning rate to 0.1"


@pytest.mark.parametrize(
    ("losses", "found"),
    [
        ((1.41, 1.386), False),
        ((3.0, 1.386), True),
        ((1.3, 1.0), True),
        ((0.9, 1.3), False),
        ((math.nan, 1.386), True),
        ((math.nan, math.nan), True),
        ((1.386, math.nan), False),
    ],
    ids=[
        "a little higher, where nothing moves",
        "doubled",
        "learns less",
        "learns more",
        "NaN",
        "both NaN",
        "only low NaN",
    ],
)
def test_a_lower_rate_is_advised_where_it_learns_or_the_loss_explodes(losses, found, make_network, make_spikes):
    network, x, y = make_network(LIF, gain=3, layers=2), make_spikes(T=20, B=16), torch.arange(16) % 4
    case = examined(network, x, y, lr=0.01, **FEW)
    outcome = case.outcomes[0.01]
    high, low = (outcome._replace(first=1.386, loss=loss) for loss in losses)
    case.__dict__.update(outcomes={0.01: high, 0.001: low}, initialised_outcome=None)
    assert (next(is_too_fast(case), None) is not None) == found


class Overdriven(nn.Module):
    """An output of so low a threshold that its counts, and with them the first loss, are large."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.hidden = nn.Linear(40, 64), snn.Leaky(0.9, spike_grad=surrogate.atan(), threshold=0.5)
        self.second, self.output = nn.Linear(64, 4), snn.Leaky(0.9, spike_grad=surrogate.atan(), threshold=0.1)

    def forward(self, x: Tensor) -> Tensor:
        below, above = self.hidden.reset_mem(), self.output.reset_mem()
        sent = []
        for step in x:
            z, below = self.hidden(self.first(step), below)
            z, above = self.output(self.second(z), above)
            sent.append(z)
        return torch.stack(sent)


@pytest.mark.parametrize("lr", [1e-3, 1e-4])
def test_a_loss_that_comes_down_from_above_guessing_is_told_from_where_it_began(lr):
    torch.manual_seed(0)
    x, y = (torch.rand(25, 32, 40) < 0.3).float(), torch.randint(0, 4, (32,))
    diagnosis = diagnose(Overdriven(), x, y, loss="count", lr=lr)
    assert diagnosis.measurements.loss > 5
    of_network = [finding for finding in diagnosis if finding.layer is None]
    assert not [finding for finding in of_network if finding.name == "learning rate too high"]
    for finding in of_network:
        assert f"bring its loss from {diagnosis.measurements.loss:.4g} to" in finding.problem
        assert "where guessing has 1.386" in finding.problem


def test_a_history_of_a_loss_that_only_grew_is_a_learning_rate_that_is_too_high(digits):
    rows = [{"train_loss": loss} for loss in (2.3, 2.4, 2.5)]
    (finding,) = diagnose(*digits, history=rows, **FEW)
    assert finding.name == "learning rate too high"
    assert "only grew, from 2.3 to 2.5 in 3 epochs" in finding.problem


# ---- targets


def test_a_missing_class_is_named_where_there_are_labels_enough(make_network, make_spikes):
    many = torch.arange(200) % 4
    missing = many.masked_fill(many == 2, 3)
    network = make_network(gain=3)
    (finding,) = [f for f in diagnose(network, make_spikes(B=200), missing, **FEW) if f.layer is None]
    assert finding.name == "missing class"
    assert "class 2 is missing from 200 labels" in finding.problem
    assert [str(each) for each in of_labels(missing, 4)] == [str(finding)]
    assert not of_labels(many, 4)
    assert not of_labels(missing[:10], 4)  # by chance 10 of 4 classes leave some out


def test_an_input_that_is_batch_first_is_named_and_the_rest_is_said_of_it_turned(digits):
    network, (x, labels) = digits
    right = diagnose(network, (x, labels), **FEW)
    (finding,) = wrong = diagnose(network, x.transpose(0, 1), labels, **FEW)
    assert (finding.name, finding.cure) == ("input batch first", "give x.transpose(0, 1)")
    torch.testing.assert_close(wrong.measurements.profile.time_mean, right.measurements.profile.time_mean)
    assert wrong.measurements.loss == right.measurements.loss


class OneStep(nn.Module):
    """A module that takes one step a call."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.hidden = nn.Linear(12, 16), snn.Leaky(0.9, init_hidden=True)
        self.last = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.hidden(self.first(x)))


def test_a_module_of_one_step_a_call_reads_x_batch_first_where_y_says_so_with_a_note(make_spikes):
    x, y = make_spikes(T=10, B=16, N=12), torch.arange(16) % 4
    per_step = torch.arange(160).view(10, 16) % 4
    for targets in (y, per_step):
        time_first = diagnose(OneStep(), x, targets, **FEW)
        batch_first = diagnose(OneStep(), x.transpose(0, 1), targets, **FEW)
        assert "batch first" not in str(time_first)
        note = batch_first.notes[0]
        assert note.startswith("note: x is read batch first, as y has as many ")
        assert note.endswith("; if your loop goes along that axis, give it x.transpose(0, 1)")
        assert "input batch first" not in [finding.name for finding in batch_first]
    over_time = diagnose(nn.RNN(12, 4, batch_first=True), x.transpose(0, 1), y, **FEW)  # which shows it by itself
    assert not [note for note in over_time.notes if "batch first" in note]


# ---- the table


def test_every_fault_has_its_row():
    assert len(BY_NAME) == len(FAULTS)
    for fault in FAULTS:
        assert fault.condition and fault.advice
        assert fault.test.__doc__
