"""Covariance, correlation and p-values of sizes at distant steps."""

import pytest
import torch
from scipy import stats

from neurolsc.stability import singular_values
from neurolsc.theory import covariance_decay
from neurolsc.theory.measured import pearson_p

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("samples", [3, 4, 5, 12, 257])
def test_all_three_are_those_of_scipy(samples):
    sizes = torch.randn(2, 6, samples).cumsum(1)
    found = covariance_decay(sizes, step=1)
    for layer in range(2):
        for t in range(6):
            a, b = sizes[layer, t].numpy(), sizes[layer, 1].numpy()
            assert found.covariance[layer, t].item() == pytest.approx(torch.cov(sizes[layer])[t, 1].item())
            if t == 1:
                assert found.correlation[layer, t].item() == pytest.approx(1)
                continue
            wanted = stats.pearsonr(a, b)
            assert found.correlation[layer, t].item() == pytest.approx(wanted.statistic)
            assert found.p_value[layer, t].item() == pytest.approx(wanted.pvalue, rel=1e-8)


@pytest.mark.parametrize("samples", [3, 4, 10, 300, 100_000])
def test_p_values_reach_into_the_tail(samples):
    r = torch.tensor([0.0, 0.003, -0.05, 0.4, -0.9])
    shape = samples / 2 - 1
    wanted = torch.from_numpy(2 * stats.beta(shape, shape, loc=-1, scale=2).sf(r.abs().numpy()))
    torch.testing.assert_close(pearson_p(r, samples), wanted, rtol=1e-8, atol=1e-290)
    assert pearson_p(torch.tensor([1.0, -1.0]), samples).max() < 1e-12


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
    ("shape", "step", "words"),
    [
        ((4, 2), 0, r"B >= 3 samples, got \(4, 2\)"),
        ((5,), 0, r"must have shape \(\.\.\., K, B\)"),
        ((4, 5), 4, "step must be in 0 ... 3, got 4"),
        ((4, 5), -1, "step must be in 0 ... 3, got -1"),
    ],
)
def test_what_has_no_covariance_is_refused(shape, step, words):
    with pytest.raises(ValueError, match=words):
        covariance_decay(torch.zeros(shape), step=step)
