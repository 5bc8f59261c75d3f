"""The paper's other cells through the same pre-training: nothing of it knows one of them."""

import pytest
import torch

from neurolsc import GRU, LRU, LSTM, RNN, Criteria, FeedForward, Network, PaperRule, pretrain
from neurolsc.stability.lsc.targets import Along

pytestmark = pytest.mark.slow

KINDS = {
    "RNN-relu": RNN,
    "RNN-sigmoid": lambda n_in, n: RNN(n_in, n, activation="sigmoid"),
    "GRU": GRU,
    "GRU-after": lambda n_in, n: GRU(n_in, n, reset_after=True),
    "LSTM": LSTM,
}


@pytest.mark.parametrize("target", [0.5, 1.0])
@pytest.mark.parametrize("kind", KINDS)
def test_gated_cells_reach_both_targets(kind, target, make_spikes):
    network = Network([KINDS[kind](30, 20), KINDS[kind](20, 20)], 4)
    inputs = [make_spikes(T=15, B=8, seed=s) for s in range(4)]
    means_alone = Criteria(deviation=None, smoothed_deviation=None)  # of 20 neurons radii scatter
    result = pretrain(network, inputs, target=target, criteria=means_alone, progress=False)
    assert result.converged, result
    profile = result.profile
    for means in (profile.time_mean, profile.depth_mean):
        torch.testing.assert_close(means, torch.full_like(means, target), rtol=0, atol=0.02)


@pytest.mark.parametrize("activation", ["relu", "sine", "cosine"])
def test_feed_forward_layers_reach_1_through_depth(activation):
    cells = [FeedForward(20, 20, activation=activation) for _ in range(6)]
    network = Network(cells, 3, layer_delay=0)
    inputs = [torch.rand(1, 32, 20) for _ in range(4)]
    result = pretrain(network, inputs, target=Along(1.0, "depth"), steps=1, samples=16, progress=False)
    assert result.converged, result
    assert (result.profile.depth_mean - 1).abs().max() <= 0.02
    assert not result.profile.time.any()


def test_a_target_through_time_is_refused_by_layers_without_memory_in_words():
    network = Network([FeedForward(20, 20), FeedForward(20, 20)], 3, layer_delay=0)
    result = pretrain(network, [torch.rand(1, 32, 20)], target=1.0, steps=1, max_steps=3, progress=False)
    assert not result.converged
    assert any("it has no memory: take target=Along(radius, 'depth')" in str(f) for f in result.findings)


def test_an_lru_reaches_the_balanced_target():
    network = Network([LRU(12, 12) for _ in range(2)], 3, layer_delay=0)
    inputs = [torch.randn(20, 8, 12) for _ in range(4)]
    result = pretrain(network, inputs, target="balanced", rule=PaperRule(), progress=False)
    assert result.converged, result
    torch.testing.assert_close(result.profile.time_mean, torch.full((2,), 20 / 22), rtol=0, atol=0.04)
    torch.testing.assert_close(result.profile.depth_mean, torch.full((2,), 2 / 22), rtol=0.04, atol=0.0)
    assert all((cell.modulus < 1).all() for cell in network.cells)
