"""The report: numbers that can be worked out by hand, and its forms."""

import json

import h5py
import pytest
import torch

from neurolsc import LIF, Network, metrics
from neurolsc.export import Verification, quantize, to_netx
from neurolsc.export.loihi.compare import make_report
from neurolsc.export.simulators.agreement import LayerAgreement
from tests.export.networks import KINDS, make, spikes


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
