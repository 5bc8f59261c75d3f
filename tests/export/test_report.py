"""The report: numbers that can be worked out by hand, and its forms."""

import pytest
import torch

from neurolsc import LIF, Network, metrics
from neurolsc.export import quantize
from neurolsc.export.netx import make_report
from tests.export.networks import in_steps, make, spikes


def test_resources_of_a_700_256_20_network():
    torch.manual_seed(0)
    network = Network([LIF(700, 256, tau_v=5.0)], 20)
    (layer,) = make_report(network, quantize(network), None, None).layers
    assert (layer.neurons, layer.synapse_bits) == (256, 956 * 256 * 9)
    assert layer.cores == 3  # 2,202,624 bits at 2^20 each


def test_errors_of_one_weight_worked_out():
    cell = LIF(2, 1, reset="zero")
    with torch.no_grad():
        cell.theta.fill_(2.0)
        cell.w_in.copy_(torch.tensor([[2.54, 0.013]]))
        cell.w_rec.fill_(0.3)
        cell.tau_v = torch.tensor([10.0])
    network = Network([cell], 2).double()
    (layer,) = make_report(network, quantize(network), None, None).layers
    # thresholds: 1.27 -> 200 units each; 0.0065 is 1.3 units, becomes 2; 0.15 is 30
    assert layer.threshold == (200, 200)
    assert layer.weight_error_max == pytest.approx(0.7 / 200, rel=1e-6)
    assert layer.weight_error_rms == pytest.approx(0.7 / 200 / 3**0.5, rel=1e-6)
    assert layer.rounded_to_zero == 0
    retention = network.cells[0].decay_v.item()  # type: ignore[attr-defined]
    expected = abs((4096 - round(4096 * (1 - retention))) / 4096 - retention)
    assert layer.decay_error == pytest.approx(expected, rel=1e-6)
    with torch.no_grad():
        network.cells[0].get_parameter("w_in")[0, 1] = 0.003  # of three weights one is less than half a unit
    (layer,) = make_report(network, quantize(network), None, None).layers
    assert layer.rounded_to_zero == pytest.approx(1 / 3)


@pytest.mark.parametrize("rest", [4.08, 3.92])
def test_a_threshold_that_is_rounded_up_or_down_is_off_by_the_same(rest):
    network = in_steps(100, 100, rest)  # 5 units a step: 20.4 or 19.6 become 20
    (layer,) = make_report(network, quantize(network), None, None).layers
    assert layer.threshold == (20, 20)
    assert layer.threshold_error == pytest.approx(0.08 / rest, rel=0.02)  # 5.08 units a step, of which 5 are made


def test_on_data_it_says_what_both_networks_did():
    network, x, labels = make("ALIF"), spikes(), torch.tensor([0, 1, 2])
    quantized = quantize(network)
    report = make_report(network, quantized, x, labels)
    exact, integer = network.run(x), quantized.run(x)
    assert report.activity is not None
    assert report.decisions is not None
    for a, one, other in zip(report.activity, exact.spikes, integer.spikes, strict=True):
        assert a.rate_float == pytest.approx(one.mean().item())
        assert a.rate_integer == pytest.approx(other.mean().item())
        assert a.agreement == pytest.approx((one == other).double().mean().item())
        assert a.rate_integer > 0.05
    assert report.decisions.accuracy_float == metrics.mode_accuracy(exact.logits, labels)
