"""Small changes forward and gradients backward, and covariances: against closed forms, autograd and scipy."""

import math

import pytest
import torch
from scipy import stats
from torch import nn

from neurolsc import ALIFPlus, Network, wrap
from neurolsc.stability import singular_values
from neurolsc.stability.transitions import flat
from neurolsc.theory import PascalRNN, covariance_decay, perturbation_growth

pytestmark = pytest.mark.usefixtures("float64")
both = pytest.mark.parametrize("layer_delay", [0, 1])

# ---- forward and back


@both
def test_of_the_pascal_rnn_both_ways_are_counted_paths(layer_delay, size=0.5):
    steps, layers, at = 6, 3, 2
    network = Network([PascalRNN(time=size, depth=size) for _ in range(layers)], nn.Identity(), layer_delay=layer_delay)
    found = perturbation_growth(network, torch.randn(steps, 2, 1), step=at, size=0.1)
    torch.testing.assert_close(found.difference, found.tangent, rtol=1e-8, atol=1e-12)
    for layer in range(1, layers + 1):
        for t in range(steps):
            n, k = (t - at - 1, layer - 1) if layer_delay else (t - at, layer - 1)  # after the arrow from the input
            arrows = n if layer_delay else n + k
            wanted = size ** (arrows + 1) * math.comb(arrows, k) if n >= 0 else 0
            torch.testing.assert_close(found.tangent[layer - 1, t], torch.full((2,), float(wanted)))
            n, k = steps - 1 - t, layers - layer
            arrows = n if layer_delay else n + k
            wanted = size**arrows * math.comb(arrows, k)
            torch.testing.assert_close(found.gradient[layer - 1, t], torch.full((2,), float(wanted)))


@both
def test_of_smooth_networks_two_runs_differ_by_the_tangent_to_first_order(layer_delay):
    network = wrap([nn.GRU(4, 5), nn.GRU(5, 3), nn.Linear(3, 2)])
    network.layer_delay = layer_delay
    x, errors = torch.randn(6, 3, 4), []
    for size in (1e-3, 1e-4):
        found = perturbation_growth(network, x, size=size)
        errors.append((found.difference - found.tangent).abs().max().item())
    assert found.tangent[1, -1].min() > 0
    assert errors[0] < 1e-3 and errors[1] == pytest.approx(errors[0] / 10, rel=0.2)


@both
def test_of_spiking_layers_the_tangent_is_that_of_autograd_with_surrogates(layer_delay, make_network, make_spikes):
    network = make_network(ALIFPlus, width=5, layers=2, gain=3, tau_v=5.0, layer_delay=layer_delay)
    x = make_spikes(T=6, B=2).requires_grad_()
    found = perturbation_growth(network, x.detach())
    generator = torch.Generator().manual_seed(0)
    change = torch.randn(2, x.shape[2], generator=generator, dtype=torch.float64)
    change = change / change.norm(dim=1, keepdim=True)
    for t, moment in enumerate(network.records(x)):
        for layer, state in enumerate(moment.after.layers):
            h = flat(state)
            if h.requires_grad:
                rows = [
                    torch.autograd.grad(h[:, i].sum(), x, retain_graph=True, materialize_grads=True)[0][0]
                    for i in range(h.shape[1])
                ]
                wanted = torch.stack([(row * change).sum(1) for row in rows], 1).norm(dim=1)
                torch.testing.assert_close(found.tangent[layer, t], wanted.detach())
    assert found.tangent[1].any()


def test_a_small_change_moves_no_spike_or_whole_ones(make_network, make_spikes):
    network, x = make_network(gain=3, tau_v=5.0), make_spikes(T=8, B=4)
    small, large = (perturbation_growth(network, x, size=size) for size in (1e-9, 3.0))
    assert small.tangent[1, -1].any() and not small.difference[1].any()  # no spike of the first layer has moved
    assert large.difference[1].any()
    torch.testing.assert_close(small.tangent, large.tangent)


def test_a_step_outside_the_run_is_refused(make_network, make_spikes):
    with pytest.raises(ValueError, match=r"step must be in 0 \.\.\. 3, got 4"):
        perturbation_growth(make_network(), make_spikes(T=4), step=4)


# ---- covariance


@pytest.mark.parametrize("samples", [3, 12, 257])
def test_covariance_correlation_and_p_value_are_those_of_scipy(samples):
    sizes = torch.randn(2, 6, samples).cumsum(1)
    found = covariance_decay(sizes, step=1)
    for layer in range(2):
        for t in (0, 2, 5):
            wanted = stats.pearsonr(sizes[layer, t].numpy(), sizes[layer, 1].numpy())
            assert found.covariance[layer, t].item() == pytest.approx(torch.cov(sizes[layer])[t, 1].item())
            assert found.correlation[layer, t].item() == pytest.approx(wanted.statistic)
            assert found.p_value[layer, t].item() == pytest.approx(wanted.pvalue, rel=1e-8)


def test_a_step_at_which_all_samples_are_alike_has_no_covariance_and_no_correlation(make_network, make_spikes):
    """A network at rest: its first derivatives are the same whatever the input."""
    network = make_network(gain=3, tau_v=5.0)
    sizes, _ = singular_values(network, make_spikes(T=12, B=9))
    at_rest = covariance_decay(sizes)
    assert (at_rest.covariance == 0).all() and at_rest.correlation.isnan().all() and at_rest.p_value.isnan().all()
    late = covariance_decay(sizes, step=6)
    assert late.correlation[:, :1].isnan().all()
    assert late.correlation[:, 6:].isfinite().all() and late.covariance[0, 6:].abs().min() > 0
    torch.testing.assert_close(late.correlation[:, 6], torch.ones(2))


@pytest.mark.parametrize(
    ("shape", "step", "words"), [((4, 2), 0, r"B >= 3 samples, got \(4, 2\)"), ((4, 5), 4, "in 0 ... 3, got 4")]
)
def test_too_few_samples_and_a_step_outside_are_refused(shape, step, words):
    with pytest.raises(ValueError, match=words):
        covariance_decay(torch.zeros(shape), step=step)
