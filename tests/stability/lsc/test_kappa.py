"""Multipliers: clipped ratios, the highest for a dead layer, damped at every turn."""

import math

import pytest

from neurolsc.stability.lsc.kappa import Damping, kappa

BOUNDS = (0.85, 1.15)


@pytest.mark.parametrize(
    ("mean", "expected"), [(0.5, 1.0), (0.48, 0.5 / 0.48), (0.55, 0.5 / 0.55), (2.0, 0.85), (0.1, 1.15), (1e-30, 1.15)]
)
def test_kappa_is_the_clipped_ratio(mean, expected):
    assert kappa(mean, 0.5, BOUNDS) == pytest.approx(expected)


@pytest.mark.parametrize("high", [1.15, 3.0])
def test_kappa_of_a_dead_layer_is_the_highest(high):
    assert kappa(0.0, 0.5, (0.85, high)) == high


def test_damping_counts_the_turns_of_each_layer():
    damping = Damping(2)
    assert damping([1.1, 0.9]) == [1.1, 0.9]
    assert damping([1.1, 1.1]) == pytest.approx([1.1, 1.1**0.5])  # the second has turned once
    assert damping([0.9, 1.1]) == pytest.approx([0.9**0.5, 1.1**0.5])
    assert damping([1.1, 0.9]) == pytest.approx([1.1 ** (1 / 3), 0.9 ** (1 / 3)])
    assert math.prod(damping([1.0, 1.0])) == 1


def test_damping_goes_on_from_its_state():
    one, other = Damping(1), Damping(1)
    for k in (1.1, 0.9):
        one([k])
    other.restore(one.state())
    assert one([1.1]) == other([1.1])
    assert other.turns == [2]
