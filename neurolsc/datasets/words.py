"""A text, in windows of words with the word that follows each."""

import sys
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Literal, TypedDict, Unpack

import torch
from torch import Tensor
from torch.utils.data import Dataset

from neurolsc.datasets.augment import generator
from neurolsc.datasets.collate import Batch
from neurolsc.datasets.vocabulary import END, Vocabulary
from neurolsc.datasets.word_switch import WordAugmentation
from neurolsc.io import refusing
from neurolsc.validation import whole

Split = Literal["train", "validation", "test"]
SPLITS = ("train", "validation", "test")


class WordOptions(TypedDict, total=False):
    """How items are made of a text: keywords of :class:`Words` and of the data sets of words."""

    steps: int
    repeat: int
    streams: int | None
    augment: Sequence[WordAugmentation]


class Words(Dataset[tuple[Tensor, Tensor]]):
    """A text in windows: which word comes next, after each of them?

    Item i is a pair (x, y): x of shape (T, 1), int64, the numbers of words, and y (T,), int64,
    those of the words that follow. The windows lie behind one another and leave no word out; the
    last may be shorter, and :func:`collate` gives a mask for a batch that holds it. A network reads
    numbers by an embedding. The task is :class:`neurolsc.tasks.ClassPerStep`, whose score is the
    perplexity over all words of the split.

    A network starts every window at rest, unless there are ``streams``.

    Args:
        text: numbers of words (n,), int64.
        vocabulary: the words.
        split: what this part is called.
        **options: how items are made: ``steps`` (100; words in a window), ``repeat`` (2, as in the
            paper; for how many time steps each word is shown, and asked for: T = repeat steps),
            ``streams`` (None; a number: the text is cut into so many equally long parts that are
            read side by side, and the state goes on from window to window, see
            :class:`neurolsc.training.Samples`; the words behind the last whole windows are left
            out), ``augment`` (none; applied to what is read in this order, such as
            :class:`WordSwitch`).

    Attributes:
        split: name of the split.
        text: numbers of words (n,), int64.
        vocabulary: the words.
        window: words in a window.
        repeat: time steps of each word.
        augment: what changes the words that are read.
        n_in: number of inputs, 1.
        n_words: words of the vocabulary, what an embedding needs.
        n_classes: as many, what is to be told apart.

    Raises:
        TypeError: if a number is no int.
        ValueError: if a number is out of range, of a word that is not there, or the text is shorter
            than a window in each stream.

    Example:
        >>> vocabulary = Vocabulary.of("a b c".split())
        >>> text = vocabulary.encode("a b c a b".split())
        >>> words = Words(text, vocabulary, "train", steps=2, repeat=1)
        >>> x, y = words[1]
        >>> x.flatten(), y
        (tensor([2, 0]), tensor([0, 1]))
    """

    def __init__(self, text: Tensor, vocabulary: Vocabulary, split: Split, **options: Unpack[WordOptions]) -> None:
        options = options.copy()
        self.window = whole("steps", options.pop("steps", 100))
        self.repeat = whole("repeat", options.pop("repeat", 2))
        streams = options.pop("streams", None)
        self.augment = tuple(options.pop("augment", ()))
        if options:
            raise TypeError(
                f"unknown options {', '.join(options)}; known are {', '.join(WordOptions.__annotations__)}."
            )
        if text.ndim != 1 or text.dtype != torch.int64:
            raise ValueError(f"a text must be numbers of words (n,), int64, got {text.dtype} {tuple(text.shape)}.")
        if len(text) and not 0 <= int(text.min()) <= int(text.max()) < len(vocabulary):
            raise ValueError(
                f"numbers of words must lie in 0 ... {len(vocabulary) - 1}, got {int(text.min())} ... {int(text.max())}."
            )
        self.split, self.text, self.vocabulary = split, text, vocabulary
        self.n_in, self.n_words, self.n_classes = 1, len(vocabulary), len(vocabulary)
        parts = 1 if streams is None else whole("streams", streams)
        if len(text) - 1 < parts * self.window:
            behind = f" in each of {parts} streams" if streams is not None else ""
            raise ValueError(
                f"windows of {self.window} words{behind} take a text of {parts * self.window + 1} words, got {len(text)}."
            )
        if streams is None:
            starts = torch.arange(0, len(text) - 1, self.window)
        else:
            self.streams = streams
            each = (len(text) - 1) // streams // self.window
            starts = (torch.arange(streams) * each * self.window + self.window * torch.arange(each)[:, None]).flatten()
        self._starts = starts

    def __len__(self) -> int:
        """Number of windows."""
        return len(self._starts)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """One window: x (T, 1) and the next words (T,)."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"items run from 0 to {len(self) - 1}, asked for {index}.")
        x, y = self.__getitems__([index])[0]
        assert isinstance(y, Tensor)
        return x, y

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Return several windows at once: what a ``DataLoader`` calls for a batch."""
        starts = self._starts[torch.as_tensor(indices, dtype=torch.long)]
        places = starts + torch.arange(self.window)[:, None]
        inside = places < len(self.text) - 1
        places = places.clamp(max=len(self.text) - 2)
        x, y = self.text[places], self.text[places + 1]
        if self.augment:
            random = generator(indices)
            for change in self.augment:
                x = torch.from_numpy(change(x.numpy(), self.n_words, random))
        x, y = (values.masked_fill(~inside, 0).repeat_interleave(self.repeat, 0) for values in (x, y))
        if inside.all():
            return Batch(x.unsqueeze(-1), y)
        mask = inside.repeat_interleave(self.repeat, 0)
        steps = int(mask.sum(0).max())  # a batch is as long as its longest window
        return Batch(x[:steps].unsqueeze(-1), y[:steps], None if mask[:steps].all() else mask[:steps])

    @property
    def left_out(self) -> int:
        """How many words are never asked for, behind the last whole windows of streams."""
        return 0 if not hasattr(self, "streams") else len(self.text) - 1 - len(self) * self.window

    def __repr__(self) -> str:
        """What a log needs to tell this set from another."""
        streams = f", {self.streams} streams" if hasattr(self, "streams") else ""
        augment = f", augment={self.augment}" if self.augment else ""
        return (
            f"{type(self).__name__}(split={self.split!r}, {len(self.text)} words of {self.n_words}, {len(self)} windows "
            f"of {self.window}, repeat={self.repeat}{streams}{augment})"
        )


def read_words(path: str | PathLike[str]) -> list[str]:
    """Read the words of a text file, UTF-8, separated by blanks, with ``<eos>`` behind every line.

    An empty line is a line, and gives its ``<eos>``.

    Args:
        path: the file.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not UTF-8, or has no word; the message names the file and the line.
    """
    words: list[str] = []
    with Path(path).open("rb") as file, refusing(path, "it cannot be read"):
        for number, line in enumerate(file, start=1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"line {number}: a text must be UTF-8, got {error.reason} at byte {error.start}."
                ) from error
            if "\0" in text:
                raise ValueError(f"line {number}: a text must be UTF-8, got a zero byte, as UTF-16 has them.")
            words += map(sys.intern, text.split())
            words.append(END)
        if all(word == END for word in words):
            raise ValueError(f"it has no word in {words.count(END)} lines.")
    return words


def encoded(path: str | PathLike[str], words: Sequence[str], vocabulary: Vocabulary) -> Tensor:
    """The numbers of the words of a file.

    Raises:
        ValueError: if a word is not known; the message names the file.
    """
    with refusing(path, "it does not fit its vocabulary"):
        return vocabulary.encode(words)
