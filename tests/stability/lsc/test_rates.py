"""The control that gives a network another one's firing rates by its thresholds alone."""

import copy
import math

import pytest
import torch

from neurolsc import LIF, ALIFLowPass, ALIFPlus, ALIFPlusMinus, Network, match_firing_rates

pytestmark = pytest.mark.usefixtures("float64")

THRESHOLDS = {"b_theta", "adaptation", "theta"}


@pytest.mark.parametrize("kind", [LIF, ALIFPlus, ALIFPlusMinus, ALIFLowPass])
@pytest.mark.parametrize("wanted", [(0.05, 0.02), (0.02, 0.1)])
def test_reaches_the_rates_and_changes_thresholds_alone(kind, wanted, make_network, make_spikes):
    network, x = make_network(kind, gain=2), make_spikes()
    before = copy.deepcopy(network.state_dict())
    reached = match_firing_rates(network, x, wanted, tolerance=0.75)
    measured = [layer.mean().item() for layer in network.run(x).spikes]
    assert reached == measured
    assert reached == pytest.approx(wanted, abs=0.015)  # in so small a network rates move in jumps
    for name, value in network.state_dict().items():
        changed = not torch.equal(value, before[name])
        assert changed == (name.split(".")[-1] in THRESHOLDS), name
        if changed:  # the whole threshold by one factor
            ratio = value / before[name]
            torch.testing.assert_close(ratio, ratio.mean().expand_as(ratio))


def test_rate_zero_silences(make_network, make_spikes):
    network, x = make_network(gain=2), make_spikes()
    assert match_firing_rates(network, x, [0.0, 0.0]) == [0, 0]
    assert not network.run(x).spikes[0].any()


@pytest.mark.parametrize("kind", [LIF, ALIFPlus, ALIFPlusMinus, ALIFLowPass])
def test_a_rate_that_no_threshold_gives_is_an_error_and_changes_nothing(kind, make_network, make_spikes):
    network, x = make_network(kind, gain=2), make_spikes()
    before = copy.deepcopy(network.state_dict())
    with pytest.raises(
        ValueError,
        match=r"layer 2: no scale .* from 0.001 to 1000 gives 0.95 spikes .* the nearest that was found is 0\.\d+",
    ):
        match_firing_rates(network, x, [0.05, 0.95])
    torch.testing.assert_close(network.state_dict(), before, rtol=1e-12, atol=0)


def test_the_nearest_rate_is_taken_where_the_tolerance_allows_it(make_network, make_spikes):
    network, x = make_network(gain=2), make_spikes()
    before = network.cells[1].theta_rest.clone()
    reached = match_firing_rates(network, x, [0.05, 0.95], tolerance=math.inf)
    assert 0.05 < reached[1] < 0.9
    assert reached[1] == network.run(x).spikes[1].mean().item()
    torch.testing.assert_close(network.cells[1].theta_rest, before * 1e-3), "the least scale"


def test_a_control_keeps_a_threshold(make_network, make_spikes):
    """A layer that no input reaches fires at no scale: its thresholds must not shrink to nothing
    instead."""
    network, x = make_network(gain=2), make_spikes()
    with torch.no_grad():
        network.cells[0].w_in.zero_()
    before = network.cells[0].theta_rest.clone()
    with pytest.raises(ValueError, match="layer 1: no scale"):
        match_firing_rates(network, x, [0.1, 0.1])
    torch.testing.assert_close(network.cells[0].theta_rest, before)


def test_a_layer_that_fires_at_no_scale_keeps_its_thresholds_where_the_nearest_will_do(make_network, make_spikes):
    network, x = make_network(gain=2), make_spikes()
    with torch.no_grad():
        network.cells[0].w_in.zero_()
    before = copy.deepcopy(network.cells[0].state_dict())
    assert match_firing_rates(network, x, [0.1, 0.1], tolerance=math.inf)[0] == 0
    torch.testing.assert_close(network.cells[0].state_dict(), before)


def test_what_does_not_fit_is_refused(make_network, make_spikes):
    network, x = make_network(), make_spikes()
    for bad in ([0.1], [0.1, 1.2], [-0.1, 0.1], [float("nan"), 0.1]):
        with pytest.raises(ValueError, match=r"rates must be 2 numbers in \[0, 1\]"):
            match_firing_rates(network, x, bad)


def test_a_cell_without_a_threshold_is_refused(make_spikes):
    class Other(LIF):
        def thresholds(self):
            return None

    assert match_firing_rates(Network([LIF(30, 4)], 2), make_spikes(), [0.1])
    network = Network([Other(30, 4)], 2)
    with pytest.raises(TypeError, match="layer 1, a Other, does not say how its thresholds scale"):
        match_firing_rates(network, make_spikes(), [0.1])
