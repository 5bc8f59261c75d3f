"""Targets and criteria."""

import math

import pytest
import torch

from neurolsc import Criteria
from neurolsc.stability.lsc.targets import Aim, Measured, aim


def measured(time: list[float], depth: list[float], spread: float = 0.0) -> Measured:
    """Radii of the given means, half of them above and half below by the spread."""
    steps = torch.tensor([-spread, spread], dtype=torch.float64)
    return Measured(tuple(m + steps for m in time), tuple(m + steps for m in depth))


@pytest.mark.parametrize(("T", "L"), [(100, 2), (7, 3), (1, 1)])
def test_balanced_targets_are_t_and_l_over_their_sum(T, L):
    goal = aim("balanced", T, L)
    assert goal.time == pytest.approx(T / (T + L))
    assert goal.depth == pytest.approx(L / (T + L))
    assert sum(goal) == pytest.approx(1)


def test_a_number_is_the_target_of_both_directions():
    assert aim(0.5, 100, 2) == Aim(0.5, 0.5)
    assert aim(1, 100, 2) == Aim(1.0, 1.0)


@pytest.mark.parametrize("bad", [0, -0.5, math.nan, math.inf, True, None, "half", (0.5, 0.5)], ids=str)
def test_other_targets_are_refused(bad):
    with pytest.raises(ValueError, match="target must be a radius in"):
        aim(bad, 100, 2)


def test_errors_are_those_of_all_radii_from_their_own_target():
    radii = Measured((torch.tensor([0.5, 0.9]),), (torch.tensor([0.1, 0.2]),))
    torch.testing.assert_close(radii.errors(Aim(0.5, 0.1)), torch.tensor([0.0, 0.4, 0.0, 0.1]))
    torch.testing.assert_close(radii.errors(Aim(0.5, 0.1), include_input=False), torch.tensor([0.0, 0.4]))


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
