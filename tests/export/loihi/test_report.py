"""The report: numbers that can be worked out by hand, and its forms."""

import json
from dataclasses import FrozenInstanceError, replace

import h5py
import pytest
import torch

from neurolsc import LIF, ALIFPlus, Network, metrics
from neurolsc.export import Decisions, Extremes, Verification, dequantize, quantize, to_netx
from neurolsc.export.loihi.atrlif import AtrlifLayer
from neurolsc.export.loihi.compare import make_report
from neurolsc.export.simulators.agreement import LayerAgreement
from tests.export.networks import KINDS, N_IN, WIDTH, in_steps, make, spikes


def test_resources_of_a_700_256_20_network():
    torch.manual_seed(0)
    network = Network([LIF(700, 256, tau_v=5.0)], 20)
    (layer,) = make_report(network, quantize(network)).layers
    assert layer.neurons == 256
    assert layer.fan_in == 956
    assert layer.synapse_bits == 956 * 256 * 9
    assert layer.cores == 3  # 2,202,624 bits at 2^20 each
    assert layer.decay_pairs == quantize(network).layers[0].i_decay.unique().numel()  # type: ignore[union-attr]


def test_errors_of_one_weight_worked_out():
    cell = LIF(2, 1, reset="zero")
    with torch.no_grad():
        cell.theta.fill_(2.0)
        cell.w_in.copy_(torch.tensor([[2.54, 0.013]]))
        cell.w_rec.fill_(0.3)
        cell.tau_v = torch.tensor([10.0])
    network = Network([cell], 2).double()
    (layer,) = make_report(network, quantize(network)).layers
    # thresholds: 1.27 -> 200 units each; 0.0065 is 1.3 units, becomes 2; 0.15 is 30
    assert layer.threshold == (200, 200)
    assert layer.scale == pytest.approx((100, 100))
    assert layer.weight_error_max == pytest.approx(0.7 / 200, rel=1e-6)
    assert layer.weight_error_rms == pytest.approx(0.7 / 200 / 3**0.5, rel=1e-6)
    assert layer.clipped == 0
    assert layer.rounded_to_zero == 0
    kept = network.cells[0].decay_v.item()  # type: ignore[attr-defined]
    assert layer.decay_error == pytest.approx(abs((4096 - round(4096 * (1 - kept))) / 4096 - kept), rel=1e-6)


def test_small_weights_that_vanish_are_reported():
    cell = LIF(2, 1, reset="zero")
    with torch.no_grad():
        cell.w_in.copy_(torch.tensor([[1.0, 0.003]]))
        cell.w_rec.fill_(0.5)
    network = Network([cell], 2)
    (layer,) = make_report(network, quantize(network)).layers
    assert layer.rounded_to_zero == pytest.approx(1 / 3)


@pytest.mark.parametrize("kind", KINDS)
def test_on_data_it_says_what_both_networks_did(kind, tmp_path):
    network, x = make(kind), spikes()
    labels = torch.tensor([0, 1, 2])
    report = to_netx(network, tmp_path / "a.net", x, labels=labels)
    exact, integer = network.run(x), quantize(network).run(x)
    assert report.activity is not None
    assert report.decisions is not None
    assert report.radii is not None
    for a, one, other in zip(report.activity, exact.spikes, integer.spikes, strict=True):
        assert a.rate_float == pytest.approx(one.mean().item())
        assert a.rate_integer == pytest.approx(other.mean().item())
        assert a.agreement == pytest.approx((one == other).double().mean().item())
        assert a.rate_integer > 0.05
        first = next((t for t in range(len(x)) if not torch.equal(one[t].double(), other[t])), None)
        assert a.first_difference == first
    assert report.decisions.accuracy_float == metrics.mode_accuracy(exact.logits, labels)
    assert report.decisions.accuracy_simulator is None
    for way in ("time", "depth"):
        torch.testing.assert_close(
            torch.tensor(report.radii[f"float_{way}"]),
            torch.tensor(report.radii[f"integer_{way}"]),
            atol=0.03,
            rtol=0.03,
        )
    assert report.verification == "not run"


def test_radii_of_the_integers_are_those_of_their_parameters():
    """Without memory and with weights on the grid, rounding changes nothing."""
    cell = LIF(4, 4, reset="zero", tau_v=5.0)
    with torch.no_grad():
        cell.w_rec.copy_(torch.eye(4) * 100 / 254)
        cell.w_in.copy_(torch.ones(4, 4))
        cell.tau_v = torch.full((4,), -1 / torch.log(torch.tensor(0.75)).item())
    network = Network([cell], 2).double()
    report = make_report(network, quantize(network), spikes(20, 2, 4))
    assert report.radii is not None
    assert report.radii["integer_time"] == pytest.approx(
        report.radii["float_time"], rel=1e-6
    )  # tau_v is made in float32


def test_json_text_picture_and_file_hold_it(tmp_path):
    network, x = make("ALIF below LIF"), spikes()
    report = to_netx(network, tmp_path / "a.net", x, labels=torch.tensor([0, 1, 2]))
    report.to_json(tmp_path / "report.json")
    written = json.loads((tmp_path / "report.json").read_text())
    assert written == report.to_dict()
    with h5py.File(tmp_path / "a.net") as file:
        assert json.loads(file["neurolsc/report"][()]) == written
    assert written["layers"][0]["neuron"] == "ALIF, static reset: ALIF (ATRLIF)"
    text = str(report)
    assert "verified by: not run" in text
    assert "layer 2: LIF, reset by subtraction" in text
    assert "radii through time" in text
    report.plot(tmp_path / "report.png")
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")


def test_without_data_it_says_so(tmp_path):
    report = to_netx(make("recurrent, zero"), tmp_path / "a.net")
    assert report.activity is report.decisions is report.radii is None
    report.plot(tmp_path / "report.png")
    assert "rate" not in str(report).replace("integrate", "")


def test_what_the_simulator_found_is_added(tmp_path):
    network, x = make("recurrent, zero"), spikes()
    report = to_netx(network, tmp_path / "a.net", x)
    run = quantize(network).run(x)
    found = Verification(
        (LayerAgreement(10, 1.0, 1.0, None),) * 2,
        len(x),
        3,
        ("lava-nc 0.10.0",),
        run.spikes,
        run.logits,
        run.logits,
        1.0,
    )
    votes = metrics.mode_vote(run.logits)
    done = report.with_simulator(network, x, found, votes.clamp(min=0))
    assert done.tools == ("lava-nc 0.10.0",)
    assert done.simulator is not None
    assert done.simulator.accuracy_simulator == done.simulator.accuracy_integer
    assert "layer 1: 10 spikes, 100.0000% equal" in str(done)
    assert found.exact


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_errors_are_the_largest_over_the_neurons_whatever_their_sign(kind, seed):
    network = make(kind, seed)
    quantized = quantize(network)
    rounded = dequantize(network, quantized)
    for cell, other, said in zip(network.cells, rounded.cells, make_report(network, quantized).layers, strict=True):
        adaptive = isinstance(cell, ALIFPlus)
        theta, theta_int = ((c.theta_rest if adaptive else c.theta).tolist() for c in (cell, other))
        shares = [b / a - 1 for a, b in zip(theta, theta_int, strict=True)]
        assert said.threshold_error == pytest.approx(max(map(abs, shares)), rel=1e-3, abs=1e-7)
        pairs = zip(cell.b_v.tolist(), other.b_v.tolist(), theta, strict=True)
        assert said.bias_error == pytest.approx(max(abs(b - a) / t for a, b, t in pairs), rel=1e-3, abs=1e-7)
        pairs = zip(cell.decay_v.tolist(), other.decay_v.tolist(), strict=True)
        assert said.decay_error == pytest.approx(max(abs(a - b) for a, b in pairs), rel=1e-3, abs=1e-7)
        weights = [
            (abs(b - a) / t)
            for name in ("w_in", "w_rec")
            for row, row_int, t in zip(getattr(cell, name).tolist(), getattr(other, name).tolist(), theta, strict=True)
            for a, b in zip(row, row_int, strict=True)
        ]
        assert said.weight_error_max == pytest.approx(max(weights), rel=1e-3)
        assert said.weight_error_rms == pytest.approx((sum(w * w for w in weights) / len(weights)) ** 0.5, rel=1e-3)
        assert said.tau_v == pytest.approx((min(cell.tau_v.tolist()), max(cell.tau_v.tolist())))
        assert said.tau_v_integer == pytest.approx((min(other.tau_v.tolist()), max(other.tau_v.tolist())))
        assert (said.tau_theta is None) == (said.tau_theta_integer is None) == (said.theta_step is None) != adaptive
        if adaptive:
            assert said.tau_theta == pytest.approx((min(cell.tau_theta.tolist()), max(cell.tau_theta.tolist())))
            assert said.tau_theta_integer == pytest.approx(said.tau_theta, rel=0.01)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_error_of_a_reset_is_that_of_its_mantissa(seed):
    network = make("ALIF", seed)
    quantized = quantize(network)
    for cell, layer, said in zip(network.cells, quantized.layers, make_report(network, quantized).layers, strict=True):
        assert isinstance(layer, AtrlifLayer)
        resets = (layer.reset * 2**layer.reset_exp * 64 / layer.unit).tolist()
        shares = [abs(r / t - 1) for r, t in zip(resets, cell.theta_rest.tolist(), strict=True)]
        assert said.reset_error == pytest.approx(max(shares), rel=1e-3)
        assert said.theta_step == layer.theta_step.unique().item()
        pairs = {*zip(layer.v_decay.tolist(), layer.theta_decay.tolist(), strict=True)}
        assert said.decay_pairs == len(pairs)


def test_the_text_says_how_far_a_layer_went_and_what_was_decided(tmp_path):
    report = to_netx(make("recurrent, zero"), tmp_path / "a.net", spikes(), labels=torch.tensor([0, 1, 2]))
    went = Extremes(drive=(-300, 200), u=(0, 7), v=(-(2**22), 5), theta=(0, 2**21), wraps=1, saturations=2, ties=3)
    assert report.activity is not None
    quiet = replace(report.activity[1], first_difference=None, rate_float=0.25, rate_integer=0.125, agreement=0.5)
    loud = replace(report.activity[0], extremes=went, first_difference=11)
    decided = Decisions(4, 0.75, 0.5, 0.25, 1.0)
    lines = str(replace(report, activity=(loud, quiet), decisions=decided)).splitlines()
    said = "first differs at step 11; largest input 300 of 32767, state 50% of 24 bits, 1 wraps, 2 saturations, 3 ties"
    assert any(line.endswith(said) for line in lines)
    assert any(
        line.startswith("layer 2: rate 0.2500 float, 0.1250 integer; 50.00% of spikes equal, first differs never")
        for line in lines
    )
    assert (
        "calibration: 75.0% of 4 decided as in floats; mode accuracy float 50.0%, integer 25.0%, simulator 100.0%"
        in lines
    )
    layer = report.layers[0]
    kilobytes = (N_IN + WIDTH) * WIDTH * 9 / 8 / 1024
    assert lines[1].split()[:4] == ["1", str(WIDTH), "1", f"{kilobytes:.0f}"]
    assert lines[1].split()[4] == str(layer.threshold[0])
    assert lines[1].split()[-1] == f"{layer.decay_error:.5f}"
    with pytest.raises(FrozenInstanceError):
        decided.samples = 5  # type: ignore[misc]


def test_one_neuron_alone_has_no_correlation_of_rates(tmp_path):
    cell = LIF(N_IN, 1, tau_v=5.0, reset="zero")
    with torch.no_grad():
        cell.w_in.abs_()
    report = to_netx(Network([cell], 2), tmp_path / "a.net", spikes())
    assert report.activity is not None
    assert report.activity[0].rate_integer > 0.05
    assert report.activity[0].rate_correlation is None


@pytest.mark.parametrize("rest", [4.08, 3.92])
def test_a_threshold_that_is_rounded_up_or_down_is_off_by_the_same(rest):
    network = in_steps(100, 100, rest)  # 5 units a step: 20.4 or 19.6 become 20
    (layer,) = make_report(network, quantize(network)).layers
    assert layer.threshold == (20, 20)
    assert layer.threshold_error == pytest.approx(0.08 / rest, rel=0.02)  # 5.08 units a step, of which 5 are made
