"""The inputs that pre-training reads: checked, counted, gone through again and again."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from neurolsc.frames import lasting


class InputStream:
    """The inputs of a set of batches, again and again.

    Args:
        batches: inputs x (T, B, n_in), or tuples that begin with one, such as (x, labels) or (x,
            targets, mask). Of a batch with a mask (T, B) the samples that last at least as long as
            the middle one are taken, cut to it, so that no step is padding.

    Attributes:
        taken: how many were taken so far.
        steps: the T steps of the first.

    Raises:
        TypeError: if batches is not an iterable of those.
        ValueError: if there is none, or x of a pair (x, labels) has the batch first.
    """

    def __init__(self, batches: Iterable[Any]) -> None:
        if isinstance(batches, Tensor):
            raise TypeError(
                f"batches must be an iterable of inputs (T, B, n_in), got one tensor {tuple(batches.shape)}: give [x]."
            )
        if not isinstance(batches, Iterable):
            raise TypeError(f"batches must be an iterable of inputs (T, B, n_in), got {type(batches).__name__}.")
        self._batches: Iterable[Any] = batches
        self._round, self._read, self.taken = iter(batches), 0, 0
        self._size: int | None = None  # of a round, once one is over
        self._waiting: Tensor | None = None
        first = self._next()
        if first is None:
            raise ValueError("pretrain needs at least one batch of inputs, got none.")
        self._waiting, self.steps = first, first.shape[0]

    def take(self) -> Tensor:
        """The next input.

        Raises:
            ValueError: if there is none left.
        """
        x = self._next()
        if x is None:
            raise ValueError(
                f"pretrain needs more than the {self.taken} batches it got (an iterator can be used only once)."
            )
        self.taken += 1
        return x

    def following(self) -> Iterator[Tensor]:
        """The inputs that come next, until all that there are have come once."""
        count = 0
        while (x := self._next()) is not None:
            if count == self._size:
                self._waiting = x
                return
            self.taken, count = self.taken + 1, count + 1
            yield x

    def skip(self, count: int) -> None:
        """Go on after so many inputs."""
        for _ in range(count):
            self.take()

    def _next(self) -> Tensor | None:
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            return waiting
        batch = next(self._round, None)
        if batch is None and not isinstance(self._batches, Iterator):
            self._round, self._size, self._read = iter(self._batches), self._read, 0
            batch = next(self._round, None)
        if batch is None:
            return None
        self._read += 1
        return input_of(batch, self._read)


class Fresh:
    """Samples of the inputs that come next, in random order, each once as long as there are others.

    Inputs of another length than the first of them are passed over.

    Args:
        inputs: where they come from.
        last: the input to draw from if none comes.
        generator: of the order within each.
    """

    def __init__(self, inputs: InputStream, last: Tensor, generator: torch.Generator) -> None:
        self._more, self._generator = inputs.following(), generator
        self._x = self._mixed(next(self._more, last))

    def upto(self, count: int) -> Tensor:
        """The first so many samples (T, B, n_in), or all that there are."""
        while self._x.shape[1] < count and (x := next(self._more, None)) is not None:
            if x.shape[0] == self._x.shape[0]:
                self._x = torch.cat([self._x, self._mixed(x)], 1)
        return pick(self._x, torch.arange(min(count, self._x.shape[1])))

    def _mixed(self, x: Tensor) -> Tensor:
        return pick(x, torch.randperm(x.shape[1], generator=self._generator))


def pick(x: Tensor, samples: Tensor) -> Tensor:
    """Some samples of an input (T, B, n_in), dense or sparse."""
    return x.index_select(1, samples.to(x.device))


def input_of(batch: Any, number: int) -> Tensor:
    """The input of a batch x, (x, labels) or (x, targets, mask).

    Raises:
        TypeError: if it is none of these.
        ValueError: if x is not (T, B, n_in), or as many labels as its first axis say so.
    """
    parts = batch if isinstance(batch, tuple | list) else (batch,)
    if not parts or not isinstance(parts[0], Tensor):
        cure = ": torch.from_numpy(x)" if type(parts[0] if parts else None).__module__ == "numpy" else ""
        inside = f" of {type(parts[0]).__name__}" if parts and parts is batch else ""
        raise TypeError(
            f"a batch must be an input (T, B, n_in) or a tuple (input, labels), got {type(batch).__name__}{inside} "
            f"as batch {number}{cure}."
        )
    x, labels, mask, *_ = *parts, None, None
    if x.ndim != 3:
        raise ValueError(f"inputs must be (T, B, n_in), got {tuple(x.shape)} in batch {number}.")
    if isinstance(labels, Tensor) and labels.ndim == 1 and x.shape[0] == len(labels) != x.shape[1]:
        raise ValueError(
            f"inputs must be (T, B, n_in), but batch {number} has {len(labels)} labels and x {tuple(x.shape)}, which "
            "is batch first: give (x.transpose(0, 1), labels)."
        )
    if mask is None:
        return x
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != x.shape[:2]:
        got = f"{mask.dtype} {tuple(mask.shape)}" if isinstance(mask, Tensor) else type(mask).__name__
        raise ValueError(f"a mask must be bool {tuple(x.shape[:2])}, as x of batch {number}, got {got}.")
    lengths = mask.long().cumprod(0).sum(0)
    if not lengths.any():
        raise ValueError(f"the mask of batch {number} leaves no sample a first step.")
    return lasting(x, lengths, max(int(lengths.median()), 1))
