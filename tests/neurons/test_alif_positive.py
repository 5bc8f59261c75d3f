"""ALIF+ whose adaptation and b_theta stay positive."""

import pytest
import torch

from neurolsc import ALIFPlus, ALIFPositive, Network, PaperRule, match_firing_rates, pretrain
from neurolsc.export import quantize

NAMES = ("adaptation", "b_theta")


def cells(kind: type[ALIFPlus]) -> list[ALIFPlus]:
    torch.manual_seed(0)
    return [kind(20, 12, reset="static", b_theta=0.002, tau_v=5.0), kind(12, 12, reset="static", b_theta=0.002)]


def inputs(seed: int = 1) -> torch.Tensor:
    return (torch.rand(40, 4, 20, generator=torch.Generator().manual_seed(seed)) < 0.3).float()


def test_it_starts_and_runs_as_alif_plus_does():
    free, positive = (Network(cells(kind), 3) for kind in (ALIFPlus, ALIFPositive))
    with torch.no_grad():
        positive.readout.weight.copy_(free.readout.weight)
    a, b = (network.run(inputs()) for network in (free, positive))
    for name in NAMES:
        torch.testing.assert_close(getattr(positive.cells[0], name), getattr(free.cells[0], name))
    assert all(layer.mean() > 0.02 for layer in a.spikes)
    assert all((x == y).double().mean() > 0.999 for x, y in zip(a.spikes, b.spikes, strict=True))


def pushed_down(kind: type[ALIFPlus]) -> Network:
    """After steps that lower adaptation and b_theta by more than they are."""
    network = Network(cells(kind), 3)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        sum(getattr(cell, name).sum() for cell in network.cells for name in NAMES).backward()  # type: ignore[union-attr]
        optimizer.step()
    return network


def test_no_step_of_training_makes_them_negative_and_export_takes_them_where_it_refuses_alif_plus():
    network = pushed_down(ALIFPositive)
    assert all((getattr(cell, name) > 0).all() for cell in network.cells for name in NAMES)
    assert quantize(network, force=True).layers
    with pytest.raises(ValueError, match=r"layer 1: adaptation must be positive .*--cell ALIFPositive"):
        quantize(pushed_down(ALIFPlus), force=True)


def test_setting_them_sets_them_and_what_is_not_positive_is_refused():
    cell = ALIFPositive(4, 3)
    cell.theta_rest = torch.tensor([0.5, 1.0, 2.0])
    torch.testing.assert_close(cell.theta_rest, torch.tensor([0.5, 1.0, 2.0]))
    cell.adaptation = torch.full((3,), 0.7)
    torch.testing.assert_close(cell.adaptation, torch.full((3,), 0.7))
    with pytest.raises(ValueError, match="b_theta must be positive and finite, got -"):
        cell.theta_rest = -1.0


def test_thresholds_are_scaled_to_wanted_rates():
    network = Network(cells(ALIFPositive), 3)
    reached = match_firing_rates(network, inputs(), [0.2, 0.1])
    assert reached == pytest.approx([0.2, 0.1], abs=0.02)


@pytest.mark.slow
def test_both_rules_move_them_like_those_of_alif_plus_and_reach_the_radius():
    network = Network(cells(ALIFPositive), 3)
    PaperRule().apply(network.cells[0], time=1.0, depth=1.1)
    for name in NAMES:
        torch.testing.assert_close(getattr(network.cells[0], name), 1.1 * getattr(cells(ALIFPlus)[0], name))
    result = pretrain(network, [inputs(i) for i in range(4)], target=0.5, steps=8, samples=2, progress=False)
    assert result.converged
    assert all((getattr(cell, name) > 0).all() for cell in network.cells for name in NAMES)
