"""Batches (T, B, N) of items, parts of a data set, and the seed of random changes."""

import math
import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from neurolsc.display import shapes
from neurolsc.validation import number, one_of, whole

SAMPLES = Path(__file__).parent / "samples"
Split = Literal["train", "validation", "test"]
SPLITS = ("train", "validation", "test")
By = Literal["random", "speaker"]

# An input x (T, N) with the label of the whole, or with targets (T, ...), one for every step.
Item = tuple[Tensor, int | Tensor]
ItemT = TypeVar("ItemT", bound=Item)


class Batch(Sequence[Item]):
    """Items that already share one tensor, which :func:`collate` need not copy.

    It is a sequence of pairs (x (T, N), label). A data set returns one from ``__getitems__``, which
    a ``DataLoader`` calls with the indices of a batch.

    Args:
        x: inputs (T, B, N).
        labels: classes (B,), int64; or targets for every step (T, B, ...).
        mask: (T, B), bool, True while an item lasts, first its steps and then the padding; None:
            all last for T steps.

    Raises:
        ValueError: if x is not (T, B, N) with as many samples as there are labels.
    """

    def __init__(self, x: Tensor, labels: Tensor, mask: Tensor | None = None) -> None:
        per_step = labels.ndim > 1
        if x.ndim != 3 or x.shape[1:2] != labels.shape[per_step : per_step + 1]:
            turned = x.ndim == 3 and (x.shape[1::-1] if per_step else x.shape[:1]) == labels.shape[:2]
            hint = "; x looks batch-first: x.transpose(0, 1)" if turned else ""
            raise ValueError(
                f"a batch must be x (T, B, N) with labels (B,) or targets (T, B, ...), got {tuple(x.shape)} "
                f"and {tuple(labels.shape)}{hint}."
            )
        self.x, self.labels, self.mask = x, labels, mask

    def __repr__(self) -> str:
        return f"Batch({shapes('TB', x=self.x, mask=self.mask)})"

    def __len__(self) -> int:
        return self.x.shape[1]

    def __getitem__(self, index: Any) -> Any:
        """One item, without its padding."""
        x = self.x.select(1, index)
        steps = len(x) if self.mask is None else int(self.mask[:, index].sum())
        return x[:steps], int(self.labels[index]) if self.labels.ndim == 1 else self.labels[:steps, index]


class BatchDataset(Dataset[Item]):
    """A map-style data set whose items are made batch by batch.

    Subclasses define ``__len__`` and ``__getitems__(indices)``, which returns a :class:`Batch`.
    """

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        raise NotImplementedError

    def __getitem__(self, index: int) -> Any:
        """One item: x (T, N), and its class or its targets (T, ...)."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"items run from 0 to {len(self) - 1}, got {index}.")
        return self.__getitems__([index])[0]


def collate(items: Sequence[ItemT]) -> tuple[Tensor, ...]:
    """Stack items along the second axis into a batch: the ``collate_fn`` of a ``DataLoader``.

    Items of unequal length are padded with zeros to the longest.

    Args:
        items: pairs (x, label), every x of shape (T, N) with the same N and dtype, the label an int,
            or a tensor (T, ...) of targets, one for every step; or a :class:`Batch`, which is taken
            apart without a copy.

    Returns:
        x of shape (T, B, N), in the items' dtype, and labels of shape (B,), int64, or targets
        (T, B, ...) in the items' dtype; where items are of unequal length, third, a mask (T, B),
        bool, True while an item lasts, as :meth:`neurolsc.Network.run` takes it.

    Raises:
        ValueError: if there is no item, or one differs from the first in N or dtype.
        TypeError: if x is not a tensor, or a label neither an integer nor a tensor of targets.

    Example:
        >>> x, labels = collate([(torch.zeros(100, 784), 3), (torch.zeros(100, 784), 7)])
        >>> x.shape, labels
        (torch.Size([100, 2, 784]), tensor([3, 7]))
        >>> x, labels, mask = collate([(torch.ones(1, 700), 3), (torch.ones(2, 700), 7)])
        >>> x.shape, mask.int().tolist()
        (torch.Size([2, 2, 700]), [[1, 1], [0, 1]])
    """
    if isinstance(items, Batch):
        return (items.x, items.labels) if items.mask is None else (items.x, items.labels, items.mask)
    if len(items) == 0:
        raise ValueError("a batch needs at least one item (x (T, N), label), got none.")
    first, target = items[0][0], cast(Any, items[0][1])
    if not isinstance(first, Tensor):
        cure = ": give (torch.from_numpy(x), label)" if type(first).__module__ == "numpy" else ""
        raise TypeError(f"items must be pairs (x, label) with a tensor x (T, N), got a {type(first).__name__}{cure}.")
    if first.ndim != 2:
        raise ValueError(f"items must have the shape (T, N), got {tuple(first.shape)} in item 0.")
    per_step = isinstance(target, Tensor) and target.ndim > 0
    for i, (x, y) in enumerate(items):
        if x.shape[1:] != first.shape[1:] or x.dtype != first.dtype:
            raise ValueError(
                f"all items of a batch must agree, got {tuple(x.shape)} {x.dtype} in item {i} "
                f"and {tuple(first.shape)} {first.dtype} in item 0."
            )
        if per_step and (not isinstance(y, Tensor) or len(y) != len(x) or y.dtype != target.dtype):
            raise ValueError(
                f"targets must be a tensor with one for each of the {len(x)} steps, {target.dtype} as in item 0, "
                f"got {y!r} in item {i}."
            )
    if per_step:
        labels = pad_sequence([torch.as_tensor(y) for _, y in items])
    else:
        try:
            labels = torch.tensor([operator.index(y) for _, y in items])
        except TypeError as error:
            raise TypeError(f"a label must be an integer, or targets a tensor (T, ...): {error}.") from error
    lengths = torch.tensor([len(x) for x, _ in items])
    x = pad_sequence([x for x, _ in items])
    mask = torch.arange(len(x))[:, None] < lengths
    return (x, labels) if mask.all() else (x, labels, mask)


def fetch(dataset: Dataset[Any], indices: Sequence[int]) -> Sequence[tuple[Tensor, int]]:
    """Some items of a data set, read together where it has ``__getitems__``."""
    if hasattr(dataset, "__getitems__"):
        return dataset.__getitems__(indices)  # type: ignore[attr-defined]
    return [dataset[i] for i in indices]


def input_batches(dataset: Dataset[Any], batch_size: int, *, count: int = 16, seed: int = 0) -> list[Tensor]:
    """Draw batches of inputs for pre-training, without labels and without repetition.

    Args:
        dataset: map-style, items (x (T, N), label).
        batch_size: samples in a batch.
        count: number of batches, fewer if the data set has too few items; the last may be smaller.
        seed: of the draw.

    Returns:
        Inputs, each (T, B, N). Of items of unequal length those that last at least as long as the
        median, cut to its T steps: no step is padding, which would count in radii and rates.

    Raises:
        ValueError: if the data set is empty, or batch_size or count is below 1.
    """
    whole("batch_size", batch_size)
    whole("count", count)
    total = len(dataset)  # type: ignore[arg-type]
    if total == 0:
        raise ValueError("input_batches needs a data set with items, got an empty one.")
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    drawn = []
    for part in order[: count * batch_size].split(batch_size):
        x, _, *mask = collate(fetch(dataset, part.tolist()))
        drawn.append((x, mask[0].sum(0) if mask else torch.full((x.shape[1],), x.shape[0])))
    lengths = torch.cat([each for _, each in drawn])
    steps = int(lengths.median())
    if (lengths == steps).all():
        return [x for x, _ in drawn]
    long_enough = torch.cat([x[:steps, (each >= steps).to(x.device)] for x, each in drawn if (each >= steps).any()], 1)
    return list(long_enough.split(batch_size, 1))


def count_bins(dt: float, window: float, *, unit: str = "ms") -> int:
    """Return how many bins of dt fill a window, both in the unit.

    Raises:
        ValueError: if one of them is not positive or the window is not a whole number of bins.
    """
    ratio = number("window", window) / number("dt", dt)
    bins = round(ratio)
    if bins < 1 or not math.isclose(ratio, bins, rel_tol=1e-9):
        raise ValueError(f"window must be a whole number of bins, got {window} {unit} with bins of {dt} {unit}.")
    return bins


# Parts of a data set


class Parts(NamedTuple):
    """A training set cut in two: indices, ascending, int64."""

    train: np.ndarray
    validation: np.ndarray


def hold_out(speakers: np.ndarray, by: By, *, share: float = 0.1, seed: int = 0) -> Parts:
    """Cut a training set in two, at random or between speakers.

    Utterances drawn at random are of voices that are also trained on; whole speakers are new
    voices, as some are in SHD's test set. The permutation is that of NumPy's ``RandomState``, whose
    stream is frozen (NEP 19).

    Args:
        speakers: speaker of each utterance (n,), integers; negative where it is not known.
        by: what is drawn, utterances (``"random"``) or speakers (``"speaker"``).
        share: of the utterances or speakers held out, between 0 and 1; at least one is.
        seed: of the draw.

    Returns:
        Two parts, neither of them empty.

    Raises:
        TypeError: if the seed is not an int.
        ValueError: if ``by`` is unknown, the share is not between 0 and 1, the seed is negative, a
            part would be empty, or speakers that are not known are to be held out.

    Example:
        >>> parts = hold_out(np.array([0, 0, 1, 1, 2, 2]), "speaker", share=0.4, seed=0)
        >>> parts.validation
        array([4, 5])
    """
    one_of("by", by, ("random", "speaker"))
    if not 0 < share < 1:
        raise ValueError(f"share must be between 0 and 1, got {share}.")
    if by == "speaker" and (speakers < 0).any():
        raise ValueError("validation by speaker needs extra/speaker in the file, who speaks; draw it at random.")
    owners = np.arange(len(speakers)) if by == "random" else speakers
    drawn_from = np.unique(owners)
    size = max(1, round(share * len(drawn_from)))
    if size >= len(drawn_from):
        raise ValueError(f"holding out {size} of {len(drawn_from)} ({by}) leaves nothing to train on.")
    order = np.random.RandomState(whole("seed", seed, at_least=0)).permutation(len(drawn_from))
    out = np.isin(owners, drawn_from[order[:size]])
    return Parts(np.flatnonzero(~out), np.flatnonzero(out))


def carve(n: int, sizes: dict[str, int], seed: int) -> dict[str, Tensor]:
    """Draw disjoint parts of n items: the first sizes of a random permutation, one after another.

    The permutation is that of NumPy's ``RandomState``, whose stream is frozen (NEP 19).

    Raises:
        TypeError: if the seed is not an int.
        ValueError: if the seed is negative or the parts are larger than the whole.
    """
    if sum(sizes.values()) > n:
        raise ValueError(f"parts of {sizes} items in all need {sum(sizes.values())} items, got {n}.")
    permutation = torch.from_numpy(np.random.RandomState(whole("seed", seed, at_least=0)).permutation(n))
    return dict(zip(sizes, permutation.split([*sizes.values(), n - sum(sizes.values())]), strict=False))


def describe_speakers(training: Any, validation: Any) -> str:
    """The speakers of two parts of a data set, in one line."""
    lines = []
    for name, part in (("trained on", training), ("held out for validation", validation)):
        speakers = part.speakers.unique().tolist()
        word = "speaker" if len(speakers) == 1 else "speakers"
        lines.append(f"{name}: {word} {', '.join(map(str, speakers))} ({len(part)} utterances)")
    return "; ".join(lines)


# Random changes of items

_SEED: ContextVar[int | None] = ContextVar("_SEED", default=None)  # other threads have their own
_EPOCH: ContextVar[int | None] = ContextVar("_EPOCH", default=None)
epoch_of_training = _EPOCH.get  # from 1; None outside of a training


@contextmanager
def drawn_from(seed: int, epoch: int | None = None) -> Iterator[None]:
    """Let random changes of items depend on a seed and the indices of the items alone.

    Args:
        seed: of all draws inside.
        epoch: of the training, from 1; None outside of one.
    """
    tokens = _SEED.set(seed), _EPOCH.set(epoch)
    try:
        yield
    finally:
        _SEED.reset(tokens[0])
        _EPOCH.reset(tokens[1])


def generator(indices: Sequence[int]) -> np.random.Generator:
    """The generator of random changes of some items.

    Inside of :func:`drawn_from` it follows from seed and indices, else from torch's random numbers,
    so that ``torch.manual_seed`` repeats it.
    """
    seed = _SEED.get()
    if seed is None:
        return np.random.default_rng(int(torch.randint(2**62, ())))
    return np.random.default_rng([seed, *(int(index) % 2**64 for index in indices)])
