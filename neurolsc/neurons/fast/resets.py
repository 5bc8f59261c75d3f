r"""What each reset does in place and on the way back.

D, E and R are those of :mod:`neurolsc.neurons.reset`.

The one place in the loop that tells resets apart. A reset that is not in its table is unknown to
the loop, which then is not taken.
"""

from dataclasses import dataclass

from torch import Tensor

from neurolsc.neurons.reset import Reset, StaticReset, ZeroReset


@dataclass(frozen=True)
class Subtract:
    """Subtract the threshold, or the resting one.

    Attributes:
        gradient: whether a gradient passes the reset.
    """

    gradient: bool
    zero = False

    def carry_(self, leaked: Tensor, z: Tensor, subtracted: Tensor) -> None:
        """What is carried over, in place of d v."""
        leaked.addcmul_(subtracted, z, value=-1)

    def to_spikes_(
        self, back: Tensor, by_decay: Tensor | None, g_v: Tensor, v: Tensor, z: Tensor, subtracted: Tensor, d: Tensor
    ) -> None:
        """Add -R g_v to the gradient by the spikes, and the step's part to that by the decay d."""
        if by_decay is not None:
            by_decay.addcmul_(g_v, v)
        if self.gradient:
            back.addcmul_(g_v, subtracted, value=-1)

    def to_voltage_(self, carried: Tensor, g_v: Tensor, z: Tensor, d: Tensor) -> None:
        """Turn q + d g_v into q + D g_v; here the same."""

    def to_subtracted_(self, total: Tensor, g_v: Tensor, z: Tensor, sign: int) -> None:
        """Add the gradient by what is subtracted, E g_v, times a sign."""
        if self.gradient:
            total.addcmul_(g_v, z, value=-sign)


@dataclass(frozen=True)
class Zero:
    """Start again from zero; the methods as those of :class:`Subtract`."""

    gradient: bool
    zero = True

    def carry_(self, leaked: Tensor, z: Tensor, subtracted: Tensor) -> None:
        """d v (1 - z)."""
        leaked.addcmul_(leaked, z, value=-1)

    def to_spikes_(
        self, back: Tensor, by_decay: Tensor | None, g_v: Tensor, v: Tensor, z: Tensor, subtracted: Tensor, d: Tensor
    ) -> None:
        """R is d v, and D is d (1 - z)."""
        if by_decay is None and not self.gradient:
            return
        leaked = g_v * v
        if self.gradient:
            back.addcmul_(leaked, d, value=-1)
        if by_decay is not None:
            by_decay.add_(leaked.addcmul_(leaked, z, value=-1))

    def to_voltage_(self, carried: Tensor, g_v: Tensor, z: Tensor, d: Tensor) -> None:
        """D is d (1 - z)."""
        carried.sub_(g_v * d * z)

    def to_subtracted_(self, total: Tensor, g_v: Tensor, z: Tensor, sign: int) -> None:
        """Nothing is subtracted."""


_IN_PLACE = {Reset: Subtract, StaticReset: Subtract, ZeroReset: Zero}


def known(reset: object) -> bool:
    """Whether the loop knows this reset: those of ours, and no class derived from them."""
    return type(reset) in _IN_PLACE


def in_place(reset: Reset) -> Subtract | Zero:
    """A reset as the loop uses it."""
    return _IN_PLACE[type(reset)](reset.gradient)
