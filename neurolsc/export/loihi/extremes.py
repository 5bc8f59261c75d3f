"""How far the integers of a run went, and whether they left the chip's bits."""

from dataclasses import dataclass

from torch import Tensor

from neurolsc.export.loihi.fixed_point import LIMIT, UNIT, Seen

__all__ = ["Extremes"]

INPUT_LIMIT = 2**21
"""64 times the input of one step stays below this in modulus: the chip checks it, Lava does not"""


@dataclass(frozen=True)
class Extremes:
    """How far a layer's integers went, and what happened that must not.

    Example:
        >>> a, b = Extremes(v=(-5, 3), wraps=1), Extremes(v=(-2, 9), wraps=2)
        >>> (a | b).v, (a | b).wraps
        ((-5, 9), 3)
    """

    drive: tuple[int, int] = (0, 0)
    """smallest and largest input of a step, in weight units (limit 32767)"""
    u: tuple[int, int] = (0, 0)
    """current, in state units (limit 2^23)"""
    v: tuple[int, int] = (0, 0)
    """voltage, in state units"""
    theta: tuple[int, int] = (0, 0)
    """threshold, in state units"""
    wraps: int = 0
    """currents that left 24 bits and came back with the other sign"""
    saturations: int = 0
    """voltages or thresholds that reached the end of 24 bits"""
    large_inputs: int = 0
    """inputs of 32768 weight units or more"""
    ties: int = 0
    """voltages equal to the threshold: the float network and a CUBA layer do not fire, an ALIF
    layer does"""

    def __or__(self, other: "Extremes") -> "Extremes":
        """Both together."""
        ranges = {
            name: (
                min(getattr(self, name)[0], getattr(other, name)[0]),
                max(getattr(self, name)[1], getattr(other, name)[1]),
            )
            for name in ("drive", "u", "v", "theta")
        }
        counts = {
            name: getattr(self, name) + getattr(other, name)
            for name in ("wraps", "saturations", "large_inputs", "ties")
        }
        return Extremes(**ranges, **counts)

    @property
    def overflows(self) -> int:
        """Events that an export must not have: wraps, saturations and large inputs."""
        return self.wraps + self.saturations + self.large_inputs

    @property
    def reach(self) -> float:
        """The largest share of its bits that a state or an input used; 1 is an overflow."""
        states = max(abs(value) for pair in (self.u, self.v, self.theta) for value in pair) / LIMIT
        return max(states, UNIT * max(map(abs, self.drive)) / INPUT_LIMIT)

    @staticmethod
    def of(seen: Seen) -> "Extremes":
        """Those of one step."""
        return Extremes(
            _range(seen.drive),
            _range(seen.u),
            _range(seen.v),
            _range(seen.theta),
            wraps=0 if seen.u is None else int(((seen.u > LIMIT) | (seen.u <= -LIMIT)).sum()),
            saturations=sum(int((s.abs() >= LIMIT).sum()) for s in (seen.v, seen.theta) if s is not None),
            large_inputs=int((UNIT * seen.drive.abs() >= INPUT_LIMIT).sum()),
            ties=int((seen.distance == 0).sum()),
        )


def _range(x: Tensor | None) -> tuple[int, int]:
    return (0, 0) if x is None else (int(x.min()), int(x.max()))
