"""Roots: bracketed, found in as few steps as bisection needs, on noise and jumps too."""

import math
from collections.abc import Callable

import pytest

from neurolsc.stability.roots import Bracket, bracket, root

REACH = math.log(1e4)


@pytest.mark.parametrize("at", [-9.0, -3.1, -0.01, 0.0, 0.2, 5.0, 9.1])
def test_bracket_holds_a_root_within_its_range(at):
    low, high, a, b = bracket(lambda x: x - at, REACH)
    assert low <= at <= high
    assert (low < high) == (at != 0)
    assert (a, b) == (low - at, high - at)


@pytest.mark.parametrize("sign", [-1, 1])
def test_bracket_is_empty_without_a_root(sign):
    tried = []
    between = bracket(lambda x: tried.append(x) or sign, REACH)
    assert between.low == between.high == 0
    assert max(map(abs, tried)) == pytest.approx(9.21, abs=0.01), "up to a factor of 1e4"


CASES: dict[str, tuple[Callable[[float], float], float]] = {
    "line": (lambda x: 2 * x - 1, 0.5),
    "power": (lambda x: (x - 0.7) ** 9, 0.7),
    "exponential": (lambda x: math.exp(5 * x) - 40, math.log(40) / 5),
    "jump": (lambda x: math.copysign(1, x - 0.3), 0.3),
    "flat": (lambda x: 0.01 * x - 0.001 if x < 0.9 else 100.0, 0.1),
    "falls": (lambda x: 0.2 - x, 0.2),
    "at an end": (lambda x: x + 1, -1.0),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("width", [1e-2, 1e-6])
def test_root_is_found_within_one_step_more_than_bisection(name, width):
    function, at = CASES[name]
    calls: list[float] = []
    between = Bracket(-1.0, 2.0, function(-1.0), function(2.0))
    found = root(lambda x: calls.append(x) or function(x), between, width=width, close=0.0)
    assert len(calls) <= math.ceil(math.log2(3 / (2 * width))) + 1
    assert found == pytest.approx(at, abs=2 * width) or name == "power"
    assert abs(function(found)) == min(abs(function(x)) for x in [-1.0, 2.0, *calls])
    assert all(-1 <= x <= 2 for x in calls)


def test_smooth_functions_take_fewer_steps_than_bisection():
    calls: list[float] = []
    function = CASES["exponential"][0]
    between = Bracket(-1.0, 2.0, function(-1.0), function(2.0))
    root(lambda x: calls.append(x) or function(x), between, width=1e-12, close=0.0)
    assert len(calls) <= 41 / 2, "bisection takes 41"


def test_a_value_that_is_close_will_do():
    calls: list[float] = []
    found = root(lambda x: calls.append(x) or x**3 - 0.2, Bracket(0, 1, -0.2, 0.8), width=1e-9, close=0.05)
    assert abs(found**3 - 0.2) <= 0.05
    assert len(calls) <= 3
