"""Criteria: means apart, deviations one by one, and how well a mean is known."""

import math

import pytest
import torch

from neurolsc import Criteria
from neurolsc.stability.lsc.criteria import Measured, errors, standard_error
from neurolsc.stability.lsc.loss import loss
from neurolsc.stability.lsc.targets import Aim, aim


def measured(time: list[float], depth: list[float], spread: float = 0.0) -> Measured:
    """Radii of the given means, half of them above and half below by the spread."""
    steps = torch.tensor([[-spread], [spread]], dtype=torch.float64)
    return Measured(tuple(m + steps for m in time), tuple(m + steps for m in depth))


def test_errors_are_those_of_all_radii_from_their_own_target():
    radii = Measured((torch.tensor([0.5, 0.9]),), (torch.tensor([0.1, 0.2]),))
    torch.testing.assert_close(errors(radii, Aim(0.5, 0.1)), torch.tensor([0.0, 0.4, 0.0, 0.1]))
    torch.testing.assert_close(errors(radii, Aim(0.5, 0.1), include_input=False), torch.tensor([0.0, 0.4]))


def test_means_are_judged_per_layer_and_direction_and_never_pooled():
    goal, criteria = Aim(0.55, 0.55), Criteria(deviation=None, smoothed_deviation=None)
    # time 0.95 and depth 0.15 pool to 0.55, and so do layers 0.4 and 0.7
    assert len(criteria.misses(measured([0.95], [0.15]), goal)) == 2
    assert criteria.misses(measured([0.55, 0.55], [0.4, 0.7]), goal) == [
        (0, "depth", pytest.approx(0.4), 0.55),
        (1, "depth", pytest.approx(0.7), 0.55),
    ]
    assert not criteria.met(measured([0.55, 0.55], [0.55, 0.55 + 0.021]), goal, 0.0)
    assert criteria.met(measured([0.55, 0.55], [0.55, 0.55 + 0.019]), goal, 0.0)


def test_balanced_target_is_judged_relative_to_the_target():
    goal, criteria = aim("balanced", 98, 2), Criteria()
    assert goal.depth == 0.02
    assert criteria.met(measured([0.98], [0.02 * 1.039]), goal, 0.0)
    assert not criteria.met(measured([0.98], [0.02 * 1.041]), goal, 0.0)
    assert not criteria.met(measured([0.98], [0.0]), goal, 0.0), "a dead layer is within the absolute tolerance"


def test_the_input_row_can_be_left_out():
    radii, goal, criteria = measured([0.5, 0.5], [3.0, 0.5]), Aim(0.5, 0.5), Criteria()
    assert not criteria.met(radii, goal, 0.0)
    assert criteria.met(radii, goal, 0.0, include_input=False)
    assert not criteria.misses(radii, goal, include_input=False)


def test_nan_is_never_on_target():
    assert Criteria().misses(measured([math.nan], [0.5]), Aim(0.5, 0.5)) == [
        (0, "time", pytest.approx(math.nan, nan_ok=True), 0.5)
    ]


@pytest.mark.parametrize(
    ("spread", "smoothed", "switches", "met"),
    [
        (0.19, 0.19, {}, True),
        (0.21, 0.19, {}, False),
        (0.21, 0.19, {"deviation": None}, True),
        (0.19, 0.21, {}, False),
        (0.19, 0.21, {"smoothed_deviation": None}, True),
        (0.19, 0.19, {"deviation": 0.1}, False),
    ],
)
def test_deviations_are_asked_for_one_by_one(spread, smoothed, switches, met):
    assert Criteria(**switches).met(measured([0.5], [0.5], spread), Aim(0.5, 0.5), smoothed) is met


def test_tolerance_is_a_setting():
    radii, goal = measured([0.57], [0.5]), Aim(0.5, 0.5)
    assert not Criteria().met(radii, goal, 0.0)
    assert Criteria(tolerance=0.08).met(radii, goal, 0.0)


def test_loss_is_the_mean_square_of_the_errors():
    radii = Measured((torch.tensor([[0.5, 0.9]]),), (torch.tensor([[0.1, 0.2]]),))
    torch.testing.assert_close(loss(radii, Aim(0.5, 0.1)), torch.tensor((0.16 + 0.01) / 4))
    torch.testing.assert_close(loss(radii, Aim(0.5, 0.1), include_input=False), torch.tensor(0.08))


def drawn_means(samples: int, steps: int, *, along: float, apart: float) -> tuple[float, float]:
    """Deviation of the mean of a look over many draws, and the mean square of the errors that the
    looks state."""
    random, means, stated, total = torch.Generator().manual_seed(0), [], [], 100
    course = along * torch.sin(torch.arange(total, dtype=torch.float64) / 15) + 0.5
    for _ in range(2000):
        edges = torch.arange(steps + 1) * total // steps
        at = edges[:-1] + (torch.rand(steps, generator=random) * edges.diff()).long()
        levels = apart * torch.randn(samples, generator=random, dtype=torch.float64)
        radii = course[at].unsqueeze(1) + levels
        means.append(radii.mean().item())
        stated.append(standard_error(radii, total))
    return torch.tensor(means).std().item(), torch.tensor(stated).square().mean().sqrt().item()


@pytest.mark.parametrize(("samples", "steps"), [(8, 100), (32, 100), (8, 32)])
def test_standard_error_is_the_deviation_of_means_over_draws_of_samples(samples, steps):
    deviation, stated = drawn_means(samples, steps, along=0.0, apart=0.1)
    assert stated == pytest.approx(deviation, rel=0.05)
    assert deviation == pytest.approx(0.1 / math.sqrt(samples), rel=0.05)


def test_standard_error_of_the_drawn_steps_is_no_less_than_their_deviation():
    deviation, stated = drawn_means(4, 20, along=0.4, apart=0.0)
    assert deviation <= stated <= 4 * deviation  # neighbouring stretches differ more than the steps within one
    assert drawn_means(4, 100, along=0.4, apart=0.0)[1] == pytest.approx(0, abs=1e-12), "all steps: nothing is drawn"


def test_standard_error_of_one_sample_is_that_of_its_steps():
    radii = torch.tensor([[0.4], [0.6], [0.5]], dtype=torch.float64)
    assert standard_error(radii, 3) == 0
    assert standard_error(radii, 6) == pytest.approx(math.sqrt(0.5 * (0.04 + 0.01) / 12))
    assert standard_error(torch.tensor([[0.5]]), 6) == 0


def test_a_mean_is_lost_beyond_the_tolerance_and_three_standard_errors():
    goal, criteria = Aim(0.5, 0.5), Criteria(tolerance=0.02)
    for miss, lost in ((0.31, False), (0.33, True)):  # standard error 0.1
        apart = torch.tensor([[0.4, 0.6]], dtype=torch.float64)
        sure = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
        radii = Measured((sure,), (apart - miss,))
        assert criteria.lost(radii, goal, 1) is lost
        assert criteria.lost(radii, goal, 1, include_input=False) is False
    assert criteria.lost(Measured((sure + 0.021,), (sure,)), goal, 1)


def test_doubt_is_the_largest_standard_error_in_tolerances():
    apart = torch.tensor([[0.4, 0.6]], dtype=torch.float64)  # standard error 0.1
    radii, criteria = Measured((apart / 2, apart), (4 * apart, 2 * apart)), Criteria(tolerance=0.02)
    assert criteria.doubt(radii, Aim(0.5, 0.5), 1) == pytest.approx(0.4 / 0.02)
    assert criteria.doubt(radii, Aim(0.5, 0.5), 1, include_input=False) == pytest.approx(0.2 / 0.02)
    assert criteria.doubt(radii, Aim(0.9, 0.1), 1, include_input=False) == pytest.approx(0.2 / (2 * 0.02 * 0.1))
    assert Criteria(tolerance=0.0).doubt(radii, Aim(0.5, 0.5), 1) == math.inf


def test_a_mean_on_its_target_is_no_miss_without_a_tolerance():
    goal, exact = Aim(0.5, 0.5), Criteria(tolerance=0.0)
    assert not exact.misses(measured([0.5], [0.5]), goal)
    assert len(exact.misses(measured([0.5 + 1e-9], [0.5]), goal)) == 1
