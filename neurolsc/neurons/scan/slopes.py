"""Back through the spikes: from the gradient by them to that by the distance from the threshold."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from neurolsc.neurons.scan.surrogates import holding
from neurolsc.surrogate import Surrogate


class Slopes(ABC):
    """The way back through a surrogate, a block of steps at a time: ``enter``, ``times_`` for each, ``leave``.

    Args:
        spike: the surrogate.
        tensors: what it held in the forward pass.
        needed: of which of them the gradient is wanted.
    """

    def __init__(self, spike: Surrogate, tensors: Sequence[Tensor], needed: Sequence[bool]) -> None:
        leaves = [t.detach().requires_grad_() if n else t for t, n in zip(tensors, needed, strict=True)]
        self.spike, self.needed = holding(spike, leaves), needed
        self.wanted = [leaf for leaf, wanted in zip(leaves, needed, strict=True) if wanted]
        self.totals: list[Tensor | None] = [None] * len(self.wanted)

    @abstractmethod
    def enter(self, distance: Tensor) -> None:
        """Go to a block of steps, with their distances from the threshold (steps, B, n_hidden)."""

    @abstractmethod
    def times_(self, i: int, back: Tensor) -> Tensor:
        """The gradient by the distance in step i (B, n_hidden), from that by its spikes; asked for once."""

    @abstractmethod
    def leave(self) -> None:
        """Go from a block, whose part in the gradients of what the surrogate holds is then known."""

    def gradients(self) -> list[Tensor | None]:
        """Those by what the surrogate holds, where they are wanted; None also where nothing depends on it."""
        found = iter(self.totals)
        return [next(found) if wanted else None for wanted in self.needed]

    def add(self, found: Iterable[Tensor | None]) -> None:
        """Add to the gradients by what the surrogate holds, of those that are wanted."""
        pairs = zip(self.totals, found, strict=True)
        self.totals = [new if total is None else total if new is None else total + new for total, new in pairs]


class Formula(Slopes):
    """Through one of our surrogates: by its derivative, which is a formula."""

    def enter(self, distance: Tensor) -> None:
        with torch.no_grad():
            self.slope = self.spike.derivative(distance).to(distance.dtype).unbind(0)
        self.distance = distance
        self.seen = torch.empty_like(distance) if self.wanted else None

    def times_(self, i: int, back: Tensor) -> Tensor:
        if self.seen is not None:
            self.seen[i] = back
        return self.slope[i].mul_(back)

    def leave(self) -> None:
        if self.seen is not None:
            self.add(self.learnt(self.distance, self.seen))

    def learnt(self, distance: Tensor, back: Tensor) -> Sequence[Tensor | None]:
        """The gradients by what the surrogate holds, from distances and the gradient by the spikes of many steps."""
        with torch.enable_grad():
            smooth = self.spike.primitive(distance)
        return torch.autograd.grad(smooth, self.wanted, back.to(smooth.dtype), allow_unused=True)


class Autograd(Slopes):
    """Through any other: step by step by autograd, as plain steps go."""

    def enter(self, distance: Tensor) -> None:
        self.distance = distance

    def times_(self, i: int, back: Tensor) -> Tensor:
        distance = self.distance[i].detach().requires_grad_()
        with torch.enable_grad():
            smooth = self.spike.primitive(distance)
        if not smooth.requires_grad:
            return torch.zeros_like(back)
        given = back.to(smooth.dtype)
        slope, *learnt = torch.autograd.grad(smooth, [distance, *self.wanted], given, allow_unused=True)
        self.add(learnt)
        return torch.zeros_like(back) if slope is None else slope

    def leave(self) -> None:
        """All is known already."""
