"""Back through the spikes: from the gradient by them to that by the distance from the threshold."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from neurolsc.neurons.fast import chunks
from neurolsc.neurons.fast.surrogates import holding
from neurolsc.surrogate import Surrogate


class Slopes(ABC):
    """The way back through a surrogate, block by block: ``enter``, ``times_`` a step, ``leave``.

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
        """The gradient by the distance in step i, from that by its spikes; asked for once."""

    @abstractmethod
    def leave(self) -> None:
        """Go from a block, whose part in the gradients is then known."""

    def gradients(self) -> list[Tensor | None]:
        """Those by what the surrogate holds, where wanted; None where nothing depends on it."""
        found = iter(self.totals)
        return [next(found) if wanted else None for wanted in self.needed]

    def add(self, found: Iterable[Tensor | None]) -> None:
        """Add to the gradients by what the surrogate holds, of those that are wanted."""
        pairs = zip(self.totals, found, strict=True)
        self.totals = [new if total is None else total if new is None else total + new for total, new in pairs]


class Formula(Slopes):
    """Through one of our surrogates: by its derivative, a formula, for some steps at once."""

    def enter(self, distance: Tensor) -> None:
        self.distance, self.slope = distance, list[Tensor]()
        self.at_once = max(1, chunks.SLOPES // distance[0].numel())
        self.seen = torch.empty_like(distance) if self.wanted else None

    def times_(self, i: int, back: Tensor) -> Tensor:
        if self.seen is not None:
            self.seen[i] = back
        if not self.slope:
            part = self.distance[max(i + 1 - self.at_once, 0) : i + 1]
            self.slope = list(self.spike.derivative(part).to(part.dtype).unbind(0))
        return self.slope.pop().mul_(back)

    def leave(self) -> None:
        if self.seen is not None:
            self.add(self.learnt(self.distance, self.seen))

    def learnt(self, distance: Tensor, back: Tensor) -> Sequence[Tensor | None]:
        """The gradients by what the surrogate holds, from many steps' distances and gradients."""
        with torch.enable_grad():
            smooth = self.spike.primitive(distance)
        return torch.autograd.grad(smooth, self.wanted, back.to(smooth.dtype), allow_unused=True)


class StepByStep(Slopes):
    """Through any other surrogate: by autograd, as plain steps go.

    Where nothing that it holds is learnt, and where its derivative has been shown to be that of its
    primitive at all distances of the first block that is entered, it is by this derivative.
    """

    def enter(self, distance: Tensor) -> None:
        if not hasattr(self, "by_formula"):
            self.by_formula = not self.wanted and all(self._agrees(frame) for frame in distance)
        self.distance = distance

    def times_(self, i: int, back: Tensor) -> Tensor:
        distance = self.distance[i]
        if self.by_formula:
            return self.spike.derivative(distance).to(back.dtype) * back
        slope, *learnt = self._through(distance, back)
        self.add(learnt)
        return torch.zeros_like(back) if slope is None else slope

    def leave(self) -> None:
        """All is known already."""

    def _through(self, distance: Tensor, back: Tensor) -> Sequence[Tensor | None]:
        """The gradients by a step's distance and by what the surrogate holds, by autograd."""
        distance = distance.detach().requires_grad_()
        with torch.enable_grad():
            smooth = self.spike.primitive(distance)
        if not smooth.requires_grad:
            return [None] * (1 + len(self.wanted))
        return torch.autograd.grad(smooth, [distance, *self.wanted], back.to(smooth.dtype), allow_unused=True)

    def _agrees(self, distance: Tensor) -> bool:
        """Whether the formula is what autograd gives, for another gradient at each neuron."""
        back = torch.linspace(1, 2, distance.numel(), dtype=distance.dtype, device=distance.device).view_as(distance)
        slope, formula = self._through(distance, back)[0], self.spike.derivative(distance).to(back.dtype) * back
        if slope is None or slope.shape != formula.shape:
            return False
        return bool((slope - formula).abs().max() <= 100 * torch.finfo(slope.dtype).eps * slope.abs().max())
