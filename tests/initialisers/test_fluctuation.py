"""Voltages that fluctuate about a mean: theory against runs."""

import math

import pytest
import torch

from neurolsc import LIF, ALIFPlus, Network
from neurolsc.initialisers import FluctuationDriven
from neurolsc.initialisers.cells import impulse_response, input_synapses, kept_share, membrane
from tests.initialisers.networks import NETWORKS, all_voltages, rates, spikes


def free_voltages(cell, read, own) -> tuple[torch.Tensor, torch.Tensor]:
    """The parts of a voltage without reset that come from the input and from the layer itself."""
    decay, parts = cell.decay_v.detach(), []
    for current in (read @ cell.w_in.detach().T, own @ cell.w_rec.detach().T):
        v, trace = torch.zeros_like(current[0]), []
        for now in current:
            v = decay * v + now
            trace.append(v)
        parts.append(torch.stack(trace)[50:])
    return parts[0], parts[1]


def over_time(v: torch.Tensor) -> torch.Tensor:
    return v.flatten(0, 1)


@pytest.mark.parametrize("kind", [LIF, ALIFPlus])
@pytest.mark.parametrize("start", [FluctuationDriven(), FluctuationDriven(0.3, 0.8, 0.6)], ids=str)
def test_mean_and_deviation_in_time_are_those_asked_for(start, kind):
    torch.manual_seed(0)
    network = Network([kind(400, 200, tau_v=4.0)], 4)
    x = spikes(500, 6, 400, rate=0.04)
    assert start.apply(network, [x], seed=1) == ()
    cell = network.cells[0]
    z = network.run(x).spikes[0].detach()
    assert 0.005 < z.mean().item() < 0.5
    read, own = (torch.cat([torch.zeros_like(s[:1]), s[:-1]]) for s in (x, z))
    below, itself = free_voltages(cell, read, own)
    theta = (cell.theta if kind is LIF else cell.theta_rest).detach()
    from_below = (over_time(below).std(0) / theta).square().mean().item()
    assert from_below == pytest.approx(start.alpha * start.sigma**2, rel=0.1)  # spikes of 4 % are nearly Poisson
    from_itself = (over_time(itself).std(0) / theta).square().mean().item()
    assert from_itself == pytest.approx((1 - start.alpha) * start.sigma**2, rel=0.35)  # own spikes are correlated
    mean = (over_time(below + itself).mean(0) / theta).mean().item()
    assert mean == pytest.approx(start.mu, abs=0.1)


@pytest.mark.parametrize("name", NETWORKS)
def test_far_below_the_threshold_the_voltage_itself_has_the_deviation(name):
    network, x = NETWORKS[name](), spikes(400, 16, rate=0.05)
    with torch.no_grad():
        for parameter in (p for key, p in network.named_parameters() if key.endswith("bias")):
            parameter.zero_()  # snnTorch's layers have them, and a constant current fires alone
    found = FluctuationDriven(sigma=0.1).apply(network, [x], seed=1)
    assert [f.layer for f in found] == [1, 2] and "never fires" in str(found[0]) and "no spikes" in str(found[1])
    v = all_voltages(network, x, name)[0][50:]
    theta = network.cells[0].membrane().thresholds(network.cells[0].initial_state(1))[0].detach()
    measured = (over_time(v).std(0) / theta).square().mean().sqrt().item()
    assert measured == pytest.approx(0.1 * math.sqrt(0.9), rel=0.1)


@pytest.mark.parametrize("name", NETWORKS)
def test_all_layers_fire(name):
    network, x = NETWORKS[name](), spikes()
    assert FluctuationDriven().apply(network, [x], seed=1) == ()
    assert min(rates(network, x)) > 0.01


def test_alpha_one_leaves_no_recurrence():
    network = NETWORKS["LIF"]()
    FluctuationDriven(alpha=1.0).apply(network, [spikes()])
    assert not network.cells[0].w_rec.any()


def test_a_mean_that_needs_more_variance_than_there_is_is_told():
    (first, *_) = FluctuationDriven(mu=3.0, sigma=0.01).apply(NETWORKS["LIF"](), [spikes()])
    assert first.layer == 1 and "more variance than sigma allows" in str(first)


def test_the_filter_is_measured_and_leaves_no_trace():
    network = NETWORKS["LIF"]()
    cell, below = network.cells[0], input_synapses(network, 0)
    before = cell.w_in.detach().clone()
    response = impulse_response(cell, membrane(network, 0), below, 12)
    expected = cell.decay_v.detach().double() ** torch.arange(12).unsqueeze(1)
    torch.testing.assert_close(response, expected, rtol=1e-3, atol=1e-4)
    assert torch.equal(cell.w_in, before)
    torch.testing.assert_close(
        kept_share(cell, membrane(network, 0)), cell.decay_v.detach().double(), rtol=1e-4, atol=0
    )
    wrapped = NETWORKS["snntorch"]()
    share = kept_share(wrapped.cells[0], membrane(wrapped, 0))
    torch.testing.assert_close(share, torch.full_like(share, 0.8), rtol=1e-4, atol=0)
