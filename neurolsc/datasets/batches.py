"""Batches (T, B, N) of items, parts of a data set, and the seed of random changes."""

import math
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, Subset

from neurolsc.display import shapes
from neurolsc.validation import dense, number, numpy_hint, one_of, shown, whole

SAMPLES = Path(__file__).parent / "samples"
Split = Literal["train", "validation", "test"]
SPLITS = ("train", "validation", "test")
By = Literal["random", "speaker"]

# An input x (T, N) with the label of the whole, or with targets (T, ...), one for every step.
Item = tuple[Tensor, int | Tensor]
ItemT = TypeVar("ItemT", bound=Item)


class Batch(Sequence[Item]):
    """A batch in one tensor, and a sequence of its items, pairs (x (T, N), label).

    A data set returns one from ``__getitems__``, which a ``DataLoader`` calls with the indices of a batch.
    :func:`collate` takes it as it is, and copies nothing.

    Args:
        x: inputs (T, B, N).
        labels: classes (B,), int64; or targets for every step (T, B, ...).
        mask: (T, B), bool, True at the steps of an item and False at its padding, which follows; None: no padding.

    Raises:
        ValueError: if x is not (T, B, N) with as many samples as there are labels.
    """

    def __init__(self, x: Tensor, labels: Tensor, mask: Tensor | None = None) -> None:
        axis = 1 if labels.ndim > 1 else 0  # the axis of the labels that counts samples
        if x.ndim != 3 or x.shape[1:2] != labels.shape[axis : axis + 1]:
            raise ValueError(
                f"a batch must be x (T, B, N) with labels (B,) or targets (T, B, ...), got {tuple(x.shape)} "
                f"and {tuple(labels.shape)}."
            )
        self.x = x
        self.labels = labels
        self.mask = mask

    def __repr__(self) -> str:
        return f"Batch({shapes('TB', x=self.x, mask=self.mask)})"

    def __len__(self) -> int:
        return self.x.shape[1]

    def __getitem__(self, index: Any) -> Any:
        """Return one item without its padding; for a slice, a list of items."""
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        x = self.x.select(1, index)
        if self.mask is None:
            steps = len(x)
        else:
            steps = int(self.mask[:, index].sum())
        if self.labels.ndim == 1:
            return x[:steps], int(self.labels[index])
        return x[:steps], self.labels[:steps, index]


class BatchDataset(Dataset[Item]):
    """A map-style data set whose items are made batch by batch.

    Subclasses define ``__getitems__(indices)``, which returns a :class:`Batch`, and these attributes.

    Attributes:
        split: name of the split; None for a whole file or a data set of another library.
        labels: classes (n,), int64; a data set without them defines ``__len__``.
        n_in: number of inputs N.
        n_classes: number of classes, or of outputs that a network needs.
        steps: number of time steps T; None if items have their own.
    """

    split: Split | None
    labels: Tensor
    n_in: Any  # an int
    n_classes: int
    steps: int | None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        raise NotImplementedError

    def __getitem__(self, index: Any) -> Any:
        """Return one item: x (T, N), and its class or its targets (T, ...); for a slice, torch's ``Subset``.

        Raises:
            IndexError: if there is no such item.
            TypeError: if the index is neither an integer nor a slice.
        """
        if isinstance(index, slice):
            return Subset(self, range(len(self))[index])
        try:
            place = operator.index(index)
        except TypeError:
            raise TypeError(f"an index must be an int or a slice, got {type(index).__name__}.") from None
        if not -len(self) <= place < len(self):
            raise IndexError(f"items run from 0 to {len(self) - 1}, got {place}.")
        return self.item(place % len(self))

    def item(self, index: int) -> Any:
        """Return the item at an index from 0 on."""
        return self.__getitems__([index])[0]

    def __repr__(self) -> str:
        shape = f"x ({self.steps or 'T'}, {self.n_in})"
        return f"{type(self).__name__}(split={self.split!r}, {len(self)} items, {shape}, {self.n_classes} classes)"


def collate(items: Sequence[ItemT]) -> tuple[Tensor, ...]:
    """Stack items along the second axis into a batch: the ``collate_fn`` of a ``DataLoader``.

    Args:
        items: pairs (x, label), every x of shape (T, N) with the same N and dtype, the label an int, or a tensor
            (T, ...) of targets, one for every step; or a :class:`Batch`.

    Returns:
        x (T, B, N), and labels (B,), int64, or targets (T, B, ...). Items of unequal length and their targets are
        padded with zeros to the longest. A mask (T, B) is then the third value, True while an item lasts, as
        :meth:`neurolsc.Network.run` takes it.

    Raises:
        ValueError: if there is no item, items differ in N or dtype, or targets are not one for every step.
        TypeError: if x is not a tensor, or a label is neither an integer nor a tensor of targets.

    Example:
        >>> x, labels, mask = collate([(torch.ones(1, 700), 3), (torch.ones(2, 700), 7)])
        >>> x.shape, labels.tolist(), mask.int().tolist()
        (torch.Size([2, 2, 700]), [3, 7], [[1, 1], [0, 1]])
    """
    if isinstance(items, Batch):
        if items.mask is None:
            return (items.x, items.labels)
        return (items.x, items.labels, items.mask)
    if len(items) == 0:
        raise ValueError("a batch needs at least one item (x (T, N), label), got none.")
    for item in items:
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise TypeError(f"items must be pairs (x, label) with a tensor x (T, N), got {shown(item)}.")
    inputs: list[Any] = [x for x, _ in items]
    targets: list[Any] = [y for _, y in items]
    if not all(isinstance(x, Tensor) for x in inputs):
        raise TypeError(
            f"items must be pairs (x, label) with a tensor x (T, N), got a {type(inputs[0]).__name__}{numpy_hint(inputs[0])}."
        )
    inputs = [dense(x) for x in inputs]
    kinds = dict.fromkeys((*x.shape[1:], x.dtype) for x in inputs)
    if len(kinds) > 1 or inputs[0].ndim != 2:
        raise ValueError(f"items of a batch must be x (T, N) of one N and dtype, got (N, dtype) = {[*kinds]}.")
    lengths = [len(x) for x in inputs]
    if isinstance(targets[0], Tensor) and targets[0].ndim > 0:
        for x, y in zip(inputs, targets, strict=True):
            if len(x) != len(y):
                raise ValueError(
                    f"a label must be an integer, or one for each of {len(x)} steps, got {tuple(y.shape)}."
                )
        labels = pad_sequence(targets)
    else:
        try:
            labels = torch.tensor([operator.index(y) for y in targets])
        except TypeError:
            raise TypeError(
                "a label must be an integer, or a tensor with a target for each step; got a "
                f"{type(targets[0]).__name__}, {targets[0]}. If the target is a single number, repeat it for every step."
            ) from None
    x = pad_sequence(inputs)
    mask = torch.arange(len(x))[:, None] < torch.tensor(lengths)
    if mask.all():
        return (x, labels)
    return (x, labels, mask)


def fetch(dataset: Dataset[Any], indices: Sequence[int]) -> Sequence[tuple[Tensor, int]]:
    """Return the items (x, label) at some indices of a data set, read together where it has ``__getitems__``."""
    if hasattr(dataset, "__getitems__"):
        return dataset.__getitems__(indices)  # type: ignore[attr-defined]
    return [dataset[i] for i in indices]


def input_batches(dataset: Dataset[Any], batch_size: int, *, count: int = 16, seed: int = 0) -> list[Tensor]:
    """Draw batches of inputs for pre-training, without labels; no item is drawn twice.

    Args:
        dataset: map-style, items (x (T, N), label).
        batch_size: samples in a batch.
        count: number of batches, fewer if the data set has too few items; the last may be smaller.
        seed: seed of the draw.

    Returns:
        Inputs, each (T, B, N). If items differ in length, those of at least median length are taken, cut to it.

    Raises:
        ValueError: if the data set is empty, or batch_size or count is below 1.
    """
    total = len(dataset)  # type: ignore[arg-type]
    size = whole("batch_size", batch_size)
    if total == 0:
        raise ValueError("input_batches needs a data set with items, got an empty one.")
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    inputs = []
    lengths = []  # of each batch a tensor (B,), the steps of its items
    for part in order[: whole("count", count) * size].split(size):
        x, _, *mask = collate(fetch(dataset, part.tolist()))
        inputs.append(x)
        lengths.append(mask[0].sum(0) if mask else torch.full((x.shape[1],), len(x)))
    all_lengths = torch.cat(lengths)
    steps = int(all_lengths.median())
    if (all_lengths == steps).all():
        return inputs
    kept = []
    for x, of_batch in zip(inputs, lengths, strict=True):
        long_enough = of_batch >= steps
        if long_enough.any():  # else x may have fewer steps than the others, and could not be joined to them
            kept.append(x[:steps, long_enough])
    return list(torch.cat(kept, 1).split(size, 1))


class InputBatches(Sequence[tuple[Tensor, ...]]):
    """All items of a data set in batches, drawn once in random order and made when they are read.

    Args:
        dataset: map-style, items (x (T, N), label).
        batch_size: samples in a batch; the last may have fewer.
        seed: seed of the draw.
    """

    def __init__(self, dataset: Dataset[Any], batch_size: int, *, seed: int = 0) -> None:
        self.dataset = dataset
        self.batch_size = whole("batch_size", batch_size)
        order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(seed))  # type: ignore[arg-type]
        self._parts = order.split(batch_size)  # indices of each batch

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, index: Any) -> Any:
        """Return a batch: x (T, B, N), labels, and a mask if its items differ in length; for a slice, a list."""
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        return collate(fetch(self.dataset, self._parts[index].tolist()))


def count_bins(dt: float, window: float, *, unit: str = "ms") -> int:
    """Return how many bins of dt fill a window; ``ValueError`` if that is no whole number."""
    ratio = number("window", window) / number("dt", dt)
    bins = round(ratio)
    # decimal numbers such as 0.004 are rounded in binary, and so is their ratio
    if bins < 1 or not math.isclose(ratio, bins, rel_tol=1e-9):
        raise ValueError(f"window must be a whole number of bins, got {window} {unit} with bins of {dt} {unit}.")
    return bins


# Parts of a data set


def hold_out(speakers: np.ndarray, by: By, *, share: float = 0.1, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Cut a training set in two, at random or between speakers.

    Args:
        speakers: speaker of each utterance (n,), integers; negative where it is not known.
        by: what is drawn: utterances (``"random"``), whose speakers are then also trained on, or speakers
            (``"speaker"``).
        share: share of the utterances or speakers that are held out, between 0 and 1; at least one is held out.
        seed: seed of the draw by NumPy's frozen ``RandomState`` (NEP 19).

    Returns:
        Indices for training and for validation, ascending, int64, neither of them empty.

    Raises:
        ValueError: if ``by`` is unknown, the share is not between 0 and 1 or leaves nothing, or a speaker is not known.

    Example:
        >>> train, validation = hold_out(np.array([0, 0, 1, 1, 2, 2]), "speaker", share=0.4, seed=0)
        >>> validation
        array([4, 5])
    """
    one_of("by", by, ("random", "speaker"))
    if not 0 < share < 1:
        raise ValueError(f"share must be between 0 and 1, got {share}.")
    if by == "speaker" and (speakers < 0).any():
        raise ValueError("validation by speaker needs extra/speaker in the file, who speaks; draw it at random.")
    groups = speakers  # group of each utterance: groups are held out whole
    if by == "random":
        groups = np.arange(len(speakers))  # each utterance by itself
    names = np.unique(groups)
    size = max(1, round(share * len(names)))
    if size >= len(names):
        raise ValueError(f"holding out {size} of {len(names)} ({by}) leaves nothing to train on.")
    order = np.random.RandomState(whole("seed", seed, at_least=0)).permutation(len(names))
    held_out = np.isin(groups, names[order[:size]])
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def carve(n: int, sizes: dict[str, int], seed: int) -> dict[str, Tensor]:
    """Draw disjoint parts of n items: pieces of a random permutation, one after the other.

    Args:
        n: number of items.
        sizes: number of items of each part, by its name.
        seed: seed of the permutation by NumPy's frozen ``RandomState`` (NEP 19).

    Returns:
        The indices of each part, int64, by its name.
    """
    if (taken := sum(sizes.values())) > n:
        raise ValueError(f"parts of {sizes} items in all need {taken} items, got {n}.")
    permutation = torch.from_numpy(np.random.RandomState(whole("seed", seed, at_least=0)).permutation(n))
    return dict(zip(sizes, permutation[:taken].split([*sizes.values()]), strict=True))


# Random changes of items

# seed and epoch of :func:`drawn_from`, separate in each thread; None outside of it
_DRAW: ContextVar[tuple[int, int | None] | None] = ContextVar("_DRAW", default=None)


@contextmanager
def drawn_from(seed: int, epoch: int | None = None) -> Iterator[None]:
    """Within this context, draw the random changes of items from a seed and the items' indices alone.

    Args:
        seed: the seed; in a training every epoch has another one.
        epoch: the epoch, which :func:`epoch_of_training` returns within the context; None outside of a training.
    """
    token = _DRAW.set((seed, epoch))
    try:
        yield
    finally:
        _DRAW.reset(token)


def epoch_of_training() -> int | None:
    """Return the epoch of :func:`drawn_from`, from 1; None outside of a training."""
    draw = _DRAW.get()
    if draw is None:
        return None
    return draw[1]


def generator(indices: Sequence[int]) -> np.random.Generator:
    """Return NumPy's generator for random changes of the items with these indices.

    Inside of :func:`drawn_from` its seed is made of the seed there and the indices. Elsewhere it is drawn from torch's
    random numbers, so that ``torch.manual_seed`` repeats it.
    """
    if (draw := _DRAW.get()) is None:
        return np.random.default_rng(int(torch.randint(2**62, ())))
    # modulo 2^64, since NumPy refuses negative seeds, and an index from the end is negative
    return np.random.default_rng([draw[0], *(int(index) % 2**64 for index in indices)])
