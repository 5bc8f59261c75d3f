"""A root of a function that is costly and noisy, on a line."""

import math
from collections.abc import Callable
from typing import NamedTuple

_HUGE = 1e12  # stands for values that are not finite


class Bracket(NamedTuple):
    """Two points, and a function's values there."""

    low: float
    high: float
    at_low: float
    at_high: float


def bracket(function: Callable[[float], float], reach: float) -> Bracket:
    """Widen away from 0 until the sign changes.

    Args:
        function: an increasing function, up to noise: a value above 0 has its root below.
        reach: how far to go.

    Returns:
        Ends between which a root lies; both the same where there is none, or 0 is one.
    """
    here = function(0.0)
    near, far = (0.0, here), -math.copysign(0.25, here)
    while here != 0 and abs(near[0]) < reach:
        there = function(far)
        if there * here <= 0:
            (low, a), (high, b) = sorted([near, (far, there)])
            return Bracket(low, high, a, b)
        near, far = (far, there), math.copysign(min(2 * abs(far), reach), far)
    return Bracket(0.0, 0.0, here, here)


def root(function: Callable[[float], float], between: Bracket, *, width: float, close: float) -> float:
    r"""A root between two points at which a function has different signs: ITP.

    Interpolate, truncate (step towards the middle), project (onto the ends of what bisection could
    still reach): as fast as regula falsi on what is smooth, and at no function more than one step
    slower than bisection, which needs :math:`\log_2` of the bracket over twice the width.

    Args:
        function: the function.
        between: ends of different sign.
        width: half the width of the bracket at which to stop.
        close: a value this small will do.

    Returns:
        The point of the smallest value found, the last of equal ones.

    Source: Oliveira & Takahashi, ACM Trans. Math. Softw. 47 (2020), 5; kappa_1 = 0.2 / (b - a),
    kappa_2 = 2, n_0 = 1.
    """
    low, high, a, b = between
    best, at = min((abs(a), low), (abs(b), high))
    slope = 0.2 / (high - low)
    for left in range(math.ceil(math.log2((high - low) / (2 * width))) + 1, 0, -1):
        if high - low <= 2 * width or best <= close:
            break
        middle, falsi = (low + high) / 2, (b * low - a * high) / (b - a)
        side = math.copysign(1.0, middle - falsi)
        x = falsi + side * min(slope * (high - low) ** 2, abs(middle - falsi))
        radius = width * 2.0**left - (high - low) / 2
        x = x if abs(x - middle) <= radius else middle - side * radius
        y = function(x)
        if abs(y) <= best:
            best, at = abs(y), x
        if (y > 0) == (b > 0):
            high, b = x, y
        else:
            low, a = x, y
    return at


def settle(
    set_to: Callable[[float], object], measure: Callable[[], float], target: float, *, reach: float, close: float
) -> float:
    """Leave something at the value, of those tried, whose measure is nearest to a target.

    Of values that measure the same it is the one nearest to 0.

    Args:
        set_to: sets it; 0 is where it is now.
        measure: what is measured then; grows with the value, up to noise.
        target: what it shall be.
        reach: how far the value may go from 0.
        close: a difference from the target that will do.

    Returns:
        What is measured in the end.
    """
    tried: list[tuple[float, float, float, float]] = []

    def miss(value: float) -> float:
        set_to(value)
        found = measure()
        missed = found - target if math.isfinite(found) else _HUGE
        tried.append((abs(missed), abs(value), value, found))
        return missed if abs(missed) > close else 0.0

    between = bracket(miss, reach)
    if between.low < between.high:
        root(miss, between, width=1e-4, close=0.0)
    _, _, value, found = min(tried)
    set_to(value)
    return found
