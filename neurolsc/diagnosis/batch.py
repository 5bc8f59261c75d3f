"""The batch that a network is looked at with."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from neurolsc.network import Network
from neurolsc.validation import tensor


@dataclass(frozen=True)
class Given:
    """A batch as the network reads it."""

    x: Tensor
    """input (T, B, n_in), dense"""
    targets: Tensor | None = None
    """what the task wants; None: nothing that needs a loss is measured"""
    mask: Tensor | None = None
    """(T, B) bool; None: all samples last for T steps"""

    @classmethod
    def of(cls, batch: Tensor | Sequence[Tensor], network: Network) -> "Given":
        """A batch from what a user has: x alone, or (x, targets), or (x, targets, mask).

        Raises:
            TypeError: if it is something else.
            ValueError: if x is not (T, B, n_in) of the network.
        """
        if isinstance(batch, Tensor) or not isinstance(batch, tuple | list):
            batch = (tensor("x", batch),)
        parts = tuple(batch)
        for name, part in zip(("x", "targets", "mask"), parts, strict=False):
            if type(part).__module__ == "numpy":
                tensor(name, part)
        if not 1 <= len(parts) <= 3 or not all(isinstance(part, Tensor) for part in parts):
            got = ", ".join(type(part).__name__ for part in parts)
            raise TypeError(f"batch must be x, (x, targets) or (x, targets, mask) of tensors, got ({got}).")
        device = network.dtype_and_device["device"]
        x, *more = (part.to(device) for part in parts)
        if x.ndim != 3 or x.shape[2] != network.n_in or 0 in x.shape:
            raise ValueError(f"x must have shape (T, B, {network.n_in}) with T, B >= 1, got {tuple(x.shape)}.")
        return cls(x.to_dense() if x.is_sparse else x, *more)

    @property
    def samples(self) -> int:
        """Number of samples."""
        return self.x.shape[1]

    def turned(self) -> "Given":
        """The batch with the first two axes of the input swapped."""
        return replace(self, x=self.x.transpose(0, 1))

    def pieces(self, count: int) -> list["Given"]:
        """The batch in pieces of an equal number of samples; what is left over is left out."""
        size = self.samples // count
        return [self.part(range(k * size, (k + 1) * size)) for k in range(count)]

    def part(self, samples: range) -> "Given":
        """Some of the samples."""
        some = slice(samples.start, samples.stop)
        targets = self.targets
        if targets is not None:
            targets = targets[some] if targets.ndim == 1 else targets[:, some]
        return Given(self.x[:, some], targets, None if self.mask is None else self.mask[:, some])

    def last_steps(self) -> Tensor:
        """Which step is the last one of each sample (T, B), bool."""
        steps = torch.arange(self.x.shape[0], device=self.x.device).unsqueeze(1)
        return steps == self.lengths() - 1

    def lengths(self) -> Tensor:
        """Steps of each sample (B,)."""
        if self.mask is not None:
            return self.mask.sum(0)
        return torch.full((self.samples,), self.x.shape[0], device=self.x.device)

    def few(self, samples: int) -> Tensor:
        """The input of the first samples, as long as the shortest of them lasts."""
        some = self.part(range(min(samples, self.samples)))
        return some.x[: int(some.lengths().min())]
