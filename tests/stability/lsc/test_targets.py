"""Targets: numbers, the balanced one, and objects of one's own."""

import math
from dataclasses import dataclass

import pytest

from neurolsc import PaperRule, TransitionRule
from neurolsc.stability.lsc.rules import default_rule
from neurolsc.stability.lsc.targets import Aim, Along, Balanced, Equal, aim


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


@dataclass(frozen=True)
class Given:
    """What it is made with."""

    radii: tuple[float, float]

    def aim(self, steps: int, layers: int) -> Aim:
        return Aim(*self.radii)


def test_an_object_is_asked():
    assert aim(Given((0.7, 0.2)), 100, 2) == Aim(0.7, 0.2)
    assert aim(Equal(0.5), 100, 2) == aim(0.5, 100, 2)
    assert aim(Balanced(), 100, 2) == aim("balanced", 100, 2)


@pytest.mark.parametrize("bad", [(0.0, 0.5), (0.5, -1.0), (math.nan, 0.5), (0.5, math.inf)])
def test_radii_that_cannot_be_are_refused_from_an_object_too(bad):
    with pytest.raises(ValueError, match=r"target radii must be in \(0, inf\), or one of them None, got .* from Given"):
        aim(Given(bad), 100, 2)


def test_one_direction_of_a_target_leaves_the_other():
    assert aim(Along(0.5, "time"), 100, 2) == Aim(0.5, None)
    assert aim(Along("balanced", "depth"), 100, 2) == Aim(None, pytest.approx(2 / 102))


def test_along_refuses_other_directions_targets_and_what_leaves_none():
    with pytest.raises(ValueError, match="direction must be"):
        Along(0.5, "both")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="target must be a radius in"):
        Along(0, "time")
    with pytest.raises(ValueError, match=r"or one of them None, got \(None, None\)"):
        aim(Along(Along(0.5, "depth"), "time"), 100, 2)


def test_the_paper_rule_is_the_default_of_the_balanced_target_alone():
    assert default_rule("balanced") == default_rule(Balanced()) == PaperRule()
    assert default_rule(0.5) == default_rule(Given((0.5, 0.5))) == TransitionRule()
