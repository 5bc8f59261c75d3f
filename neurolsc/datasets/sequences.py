"""Sequences with a target at every step: words of texts, slots, chorales; and a value to store and recall."""

import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from neurolsc.datasets.batches import SAMPLES, SPLITS, Batch, BatchDataset, Split, epoch_of_training, generator
from neurolsc.datasets.download import fetch, read_unpacked
from neurolsc.io import clean, refusing
from neurolsc.validation import one_of, probability, whole

# ---- words

UNKNOWN = "<unk>"  # stands for every word that a vocabulary lacks
END = "<eos>"  # stands at the end of every line


class Vocabulary(Sequence[str]):
    """A sequence of different words; a word's place in it is its token index, from 0.

    Raises:
        ValueError: if there is no word, or a word occurs twice.

    Example:
        >>> vocabulary = Vocabulary.of("the cat and the dog".split())
        >>> list(vocabulary), vocabulary.encode(["dog", "the"]).tolist()
        (['the', 'and', 'cat', 'dog'], [3, 0])
    """

    def __init__(self, words: Iterable[str]) -> None:
        self.words = tuple(words)
        self._numbers = {word: number for number, word in enumerate(self.words)}
        different = len(self._numbers)
        if not 0 < len(self.words) == different:
            raise ValueError(f"a vocabulary takes different words, got {len(self.words)}, {different} different.")

    @classmethod
    def of(cls, words: Iterable[str], *, at_least: int = 1) -> "Vocabulary":
        """Return the vocabulary of a text: the most frequent word first, equally frequent ones in alphabetical order.

        Args:
            words: the text.
            at_least: words that come less often are left out. If any are, ``<unk>`` is a word of the vocabulary, and
                counts as often as they do together.
        """
        whole("at_least", at_least)
        counts = Counter(words)
        rare = [word for word, count in counts.items() if count < at_least and word != UNKNOWN]
        if rare:
            counts[UNKNOWN] += sum(counts.pop(word) for word in rare)
        return cls(sorted(counts, key=lambda word: (-counts[word], word)))

    def encode(self, words: Iterable[str]) -> Tensor:
        """Return the token indices of words (n,), int64; that of ``<unk>`` for a word that the vocabulary lacks.

        Raises:
            ValueError: if the vocabulary lacks a word, and has no ``<unk>``; the message names the first such word.
        """
        words = list(words)
        unknown = self._numbers.get(UNKNOWN)
        if unknown is None and (missing := [word for word in words if word not in self._numbers]):
            raise ValueError(
                f"{len(missing)} of {len(words)} words are not in the vocabulary of {len(self)}, which has no {UNKNOWN}; "
                f"the first is {clean(repr(missing[0]))}."
            )
        return torch.tensor([self._numbers.get(word, unknown) for word in words], dtype=torch.int64)

    def decode(self, numbers: Iterable[int] | Tensor) -> list[str]:
        """Return the words of token indices."""
        return [self.words[int(number)] for number in numbers]

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: Any) -> Any:
        return self.words[index]


class Words(BatchDataset):
    """A text in windows; the target at every word is the word that follows it.

    Item i is a pair (x, y): x of shape (T, 1), int64, the token indices of words, and y (T,), int64, those of the words
    that follow. The windows follow one another and leave no word out; the last may be shorter. A network reads token
    indices by an embedding. The task is :class:`neurolsc.tasks.ClassPerStep`.

    Args:
        text: token indices (n,), int64.
        vocabulary: the words.
        split: name of the part.
        steps: words in a window.
        repeat: time steps for which each word is shown and predicted, so that T = repeat * steps.
        streams: number of equally long parts of the text that are read side by side. The state is then carried from
            window to window (:class:`neurolsc.training.Samples`), and words after a part's last whole window are left
            out. None: every window begins at rest.
        switch: probability that another word, drawn uniformly, is read in a word's place; the target stays the word
            that follows (arXiv:2308.12075, App. H: 0.05).
        switch_epochs: words are switched in the first so many epochs of a training only; 0: in all epochs.

    Attributes:
        window: words in a window.
        n_words: words of the vocabulary, as an embedding needs them.

    Raises:
        ValueError: if an argument is out of range, or the text is shorter than a window in each stream.

    Example:
        >>> vocabulary = Vocabulary.of("a b c".split())
        >>> text = vocabulary.encode("a b c a b".split())
        >>> words = Words(text, vocabulary, "train", steps=2, repeat=1)
        >>> x, y = words[1]
        >>> x.flatten(), y
        (tensor([2, 0]), tensor([0, 1]))
    """

    def __init__(
        self,
        text: Tensor,
        vocabulary: Vocabulary,
        split: Split,
        *,
        steps: int = 100,
        repeat: int = 2,
        streams: int | None = None,
        switch: float = 0.0,
        switch_epochs: int = 0,
    ) -> None:
        self.window = whole("steps", steps)
        self.repeat = whole("repeat", repeat)
        self.switch = probability("switch", switch)
        self.switch_epochs = whole("switch_epochs", switch_epochs, at_least=0)
        if text.ndim != 1 or text.dtype != torch.int64:
            raise ValueError(f"a text must be token indices (n,), int64, got {text.dtype} {tuple(text.shape)}.")
        if switch and len(vocabulary) < 2:
            raise ValueError(f"switch={switch:g} takes another word for a word, but the vocabulary has one alone.")
        self.split = split
        self.text = text
        self.vocabulary = vocabulary
        self.n_in = 1
        self.n_words = len(vocabulary)
        self.n_classes = len(vocabulary)
        self.steps = None
        parts = 1
        if streams is not None:
            parts = whole("streams", streams)
        if len(text) - 1 < parts * self.window:  # the last word is only a target
            raise ValueError(
                f"{parts} x {self.window} words take a text of {parts * self.window + 1} words, got {len(text)}: fewer "
                "steps, or fewer streams."
            )
        self._starts = torch.arange(0, len(text) - 1, self.window)  # place in the text of each window's first word
        if streams is not None:
            self.streams = streams
            windows = (len(text) - 1) // streams // self.window  # of each stream
            # the first window of every stream, then the second of every stream: item i + streams continues item i
            self._starts = self._starts[: streams * windows].view(streams, windows).T.flatten()

    def __len__(self) -> int:
        return len(self._starts)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        starts = self._starts[torch.as_tensor(indices, dtype=torch.long)]
        places = starts + torch.arange(self.window)[:, None]  # (words in a window, B)
        inside = places < len(self.text) - 1  # the last window of a text may be shorter
        places = places.clamp(max=len(self.text) - 2)
        x = self.text[places]
        y = self.text[places + 1]
        epoch = epoch_of_training() or 1  # outside of a training items are those of a first epoch
        if self.switch and epoch <= (self.switch_epochs or math.inf):
            random = generator(indices)
            switched = torch.from_numpy(random.random(x.shape) < self.switch)
            others = torch.from_numpy(random.integers(0, self.n_words - 1, x.shape))
            x = torch.where(switched, others + (others >= x), x)  # all words but x itself are equally likely
        steps = int(inside.sum(0).max())  # a batch is as long as its longest window
        mask = inside[:steps].repeat_interleave(self.repeat, 0)
        x = x[:steps].repeat_interleave(self.repeat, 0) * mask
        y = y[:steps].repeat_interleave(self.repeat, 0) * mask
        return Batch(x.unsqueeze(-1), y, None if mask.all() else mask)


def read_words(path: str | PathLike[str]) -> list[str]:
    """Read the words of a text file, UTF-8, separated by blanks, with ``<eos>`` at the end of every line.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is not UTF-8, or has no word.
    """
    data = Path(path).read_bytes()
    words: list[str] = []
    with refusing(path, "a text must be UTF-8"):
        for line in data.decode("utf-8-sig").removesuffix("\n").split("\n"):
            words += map(sys.intern, line.split())
            words.append(END)
        if all(word == END for word in words):
            raise ValueError(f"it has no word in {len(words)} lines.")
    return words


def characters_of(words: Sequence[str]) -> list[str]:
    """Return the characters of words, ``_`` between words of a line and ``<eos>`` at its end, as in Mikolov's files."""
    characters: list[str] = []
    for before, word in pairwise([END, *words]):
        if END not in (before, word):  # both are words of one line
            characters.append("_")
        if word == END:  # one item, not five characters
            characters.append(END)
        else:
            characters += word
    return characters


class Text(Words):
    """Words of text files, by :meth:`from_files` or :meth:`embedded`; items are as in :class:`Words`."""

    @classmethod
    def from_files(
        cls,
        split: Split,
        *,
        train: str | PathLike[str],
        test: str | PathLike[str],
        validation: str | PathLike[str] | None = None,
        share: float = 0.1,
        at_least: int = 1,
        characters: bool = False,
        **options: Any,
    ) -> "Text":
        """Return a split of texts that :func:`read_words` reads from files, in the vocabulary of the training text.

        Args:
            split: ``"train"``, ``"validation"`` or ``"test"``.
            train: file of the training text.
            test: file of the test, which is opened for ``split="test"`` only.
            validation: file of the validation text; None: the last lines of ``train``, which are then not trained on.
            share: share of the words of ``train`` that are held out, if there is no validation file.
            at_least: words that are rarer in the training text become ``<unk>``.
            characters: items are characters (:func:`characters_of`), not words.
            **options: as in :class:`Words`.

        Raises:
            FileNotFoundError: if a file is not there.
            ValueError: if an argument is out of range, a file is damaged or shorter than a window, the share leaves
                nothing, or the vocabulary has neither a word nor ``<unk>``.
        """

        def read(path: str | PathLike[str]) -> list[str]:
            return characters_of(read_words(path)) if characters else read_words(path)

        one_of("split", split, SPLITS)
        words = {"train": read(train)}
        paths = {"train": train, "validation": validation or train, "test": test}
        if validation is None:
            if not 0 < share < 1:
                raise ValueError(f"share must be between 0 and 1, got {share}.")
            whole_text = words["train"]
            first = max(1, round((1 - share) * len(whole_text)))
            end = whole_text.index(END, first - 1) + 1  # the cut comes after the whole line of word `first`
            if end == len(whole_text):
                raise ValueError(
                    f"holding out {share} of {whole_text.count(END)} lines leaves nothing to validate with."
                )
            words |= {"train": whole_text[:end], "validation": whole_text[end:]}
        vocabulary = Vocabulary.of(words["train"], at_least=at_least)
        if split not in words:
            words[split] = read(paths[split])
        with refusing(paths[split], "it does not fit its vocabulary"):
            text = vocabulary.encode(words[split])
        return cls(text, vocabulary, split, **options)

    @classmethod
    def embedded(cls, split: Split, **options: Any) -> "Text":
        """Return the sample in the package: three chapters of "Alice's Adventures in Wonderland".

        Chapters I and II are for training, the halves of III for validation and test; words that come only once in
        chapters I and II are ``<unk>``.
        """
        train, validation, test = (SAMPLES / "text" / f"{name}.txt" for name in SPLITS)
        return cls.from_files(split, train=train, validation=validation, test=test, at_least=2, **options)


class PennTreebank(Words):
    """The Penn Treebank in T. Mikolov's form; items are as in :class:`Words`.

    929,589 words to train, 73,760 and 82,430 for validation and test, ``<eos>`` at the end of every line counted; the
    vocabulary of the training text has 10,000, or 50 characters. The text is the Linguistic Data Consortium's; read its
    licence before you use it.

    Args:
        root: folder of ptb.train.txt, ptb.valid.txt and ptb.test.txt; missing files are downloaded into it.
        split: ``"train"``, ``"validation"`` or ``"test"``.
        characters: items are characters (:func:`characters_of`), not words.
        **options: as in :class:`Words`.

    Raises:
        ValueError: if an argument is out of range, or a file damaged or another.
        ConnectionError: if a missing file could not be downloaded.

    Source: M. Marcus, B. Santorini, M. Marcinkiewicz, Computational Linguistics 19 (1993); T. Mikolov et al.,
    "Recurrent neural network based language model", Interspeech 2010; the paper's use of it: arXiv:2308.12075, table
    S1.
    """

    _file = "ptb.{}.txt"

    def __init__(self, root: str | PathLike[str], split: Split, *, characters: bool = False, **options: Any) -> None:
        def read(part: str) -> list[str]:
            words = read_words(fetch(root, self._file.format(part)))
            if characters:
                return characters_of(words)
            return words

        part = {"train": "train", "validation": "valid", "test": "test"}[one_of("split", split, SPLITS)]
        text = read("train")
        vocabulary = Vocabulary.of(text)
        if split != "train":
            text = read(part)
        super().__init__(vocabulary.encode(text), vocabulary, split, **options)


class WikiText2(PennTreebank):
    """WikiText-2: verified good articles of Wikipedia; items and arguments are as in :class:`PennTreebank`.

    2,088,628 words to train, 217,646 and 245,569 for validation and test, ``<eos>`` at the end of every line, empty
    ones too, counted; the vocabulary of the training text has 33,278. The files are wiki.train.tokens,
    wiki.valid.tokens and wiki.test.tokens, or wikitext-2-v1.zip, which is downloaded if nothing of it is there.

    Source: S. Merity, C. Xiong, J. Bradbury, R. Socher, "Pointer sentinel mixture models", arXiv:1609.07843;
    CC BY-SA 3.0.
    """

    _file = "wiki.{}.tokens"


# ---- slots

SLOT_FILES = {
    "train": "atis-2.train.w-intent.iob",
    "validation": "atis-2.dev.w-intent.iob",
    "test": "atis.test.w-intent.iob",
}


class ATIS(BatchDataset):
    """Queries for flights, and which slot each word fills, in the files in which ATIS is handed on.

    Item i is a pair (x, y): x of shape (T, words of the vocabulary), uint8, one-hot words, and y (T,), int64, the
    numbers of the words' tags. The task is :class:`neurolsc.tasks.ClassPerStep`, the score of the literature
    :func:`neurolsc.metrics.span_f1` of whole slots. The texts are the Linguistic Data Consortium's and are not
    downloaded.

    Args:
        root: folder of ``atis-2.train.w-intent.iob``, ``atis-2.dev.w-intent.iob`` and ``atis.test.w-intent.iob``, as
            :func:`read_slots` reads them.
        split: ``"train"``, ``"validation"`` or ``"test"``.

    Attributes:
        queries: of every item a pair, its words and their tags.
        vocabulary: words that the training has twice or more, and ``<unk>``.
        tags: the tags of all three files.

    Raises:
        FileNotFoundError: if a file is not there.
        ValueError: if the split is unknown, or a file damaged or of another layout.

    Source: P. Price, "Evaluation of spoken language systems: the ATIS domain", 1990; arXiv:1805.10369, Sec. 4.1.
    """

    def __init__(self, root: str | PathLike[str], split: Split) -> None:
        one_of("split", split, SPLITS)
        for name in SLOT_FILES.values():
            if not (path := Path(root) / name).exists():
                wanted = ", ".join(SLOT_FILES.values())
                raise FileNotFoundError(f"there is no {path}: ATIS is not downloaded; its folder must have {wanted}.")
        parts = {part: read_slots(Path(root) / name) for part, name in SLOT_FILES.items()}
        words = (word for query, _ in parts["train"] for word in query)
        self.vocabulary = Vocabulary.of([UNKNOWN, *words], at_least=2)
        self.tags = Vocabulary.of(tag for queries in parts.values() for _, tags in queries for tag in tags)
        self.split = split
        self.queries = parts[split]
        self.n_in = len(self.vocabulary)
        self.n_classes = len(self.tags)
        self.steps = None

    def __len__(self) -> int:
        return len(self.queries)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        queries = [self.queries[index] for index in indices]
        words = pad_sequence([self.vocabulary.encode(words) for words, _ in queries])
        tags = pad_sequence([self.tags.encode(tags) for _, tags in queries])
        mask = torch.arange(len(words))[:, None] < torch.tensor([len(words) for words, _ in queries])
        x = torch.nn.functional.one_hot(words, self.n_in) * mask.unsqueeze(-1)  # padding is 0, not the first word
        return Batch(x.to(torch.uint8), tags, mask)


def read_slots(path: str | PathLike[str]) -> list[tuple[list[str], list[str]]]:
    """Read queries with the tags of their words.

    Each line has ``BOS``, the words and ``EOS``, a tabulator, and as many tags: ``O`` for ``BOS``, for each word ``O``
    or ``B-`` or ``I-`` with the name of a slot, and for ``EOS`` the intent of the query. Empty lines are skipped.

    Returns:
        Pairs of words and their tags, without ``BOS``, ``EOS`` and the intent.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if a line has another form, or no line has a query.
    """
    data = Path(path).read_bytes()
    queries = []
    with refusing(path, "it is no file of slots in UTF-8"):
        for number, line in enumerate(data.decode("utf-8-sig").split("\n"), start=1):
            if not line.strip():
                continue
            before, _, after = line.partition("\t")
            words = before.split()
            tags = after.split()
            if len(words) < 3 or (words[0], words[-1]) != ("BOS", "EOS") or len(words) != len(tags):
                raise ValueError(
                    f"line {number} must be 'BOS word ... EOS', a tabulator and as many tags, the last of them the intent; "
                    f"got {len(words)} words and {len(tags)} tags, {clean(line)}."
                )
            word_tags = tags[1:-1]
            if odd := [tag for tag in word_tags if tag != "O" and tag[:2] not in ("B-", "I-")]:
                raise ValueError(f"line {number}: a tag must be O, B-slot or I-slot, got {clean(odd[0])}.")
            queries.append((words[1:-1], word_tags))
        if not queries:
            raise ValueError("it has no query.")
    return queries


# ---- music

# MIDI numbers of the keys of a piano, A0 to C8
LOWEST = 21
HIGHEST = 108
KEYS = HIGHEST - LOWEST + 1
NAME = "jsb-chorales-quarter.json"


class JSBChorales(BatchDataset):
    """Bach's chorales as the keys of a piano, quarter note by quarter note.

    Item i is a pair (x, y): x of shape (T, 88), uint8, the keys that sound in each step (MIDI 21 to 108), and y
    (T, 88), the keys of the next step; a piece of n steps has T = n - 1. The task is
    :class:`neurolsc.tasks.BinaryPerStep`.

    Args:
        root: folder of ``jsb-chorales-quarter.json``, in which 229, 76 and 77 pieces are for training, validation and
            test, the split of the literature; a missing one is downloaded into it.
        split: ``"train"``, ``"validation"`` or ``"test"``.

    Attributes:
        pieces: all keys of every piece (steps, 88), uint8.

    Raises:
        ValueError: if the split is unknown, or the file another or damaged.
        ConnectionError: if a missing file could not be downloaded.

    Source: N. Boulanger-Lewandowski, Y. Bengio, P. Vincent, "Modeling temporal dependencies in high-dimensional
    sequences", ICML 2012 (the split); the file is that of https://github.com/czhuang/JSB-Chorales-dataset.

    Example:
        >>> chorales = JSBChorales.embedded("test")
        >>> x, y = chorales[0]
        >>> len(chorales), x.shape, torch.equal(x[1:], y[:-1])
        (16, torch.Size([60, 88]), True)
    """

    def __init__(self, root: str | PathLike[str], split: Split) -> None:
        one_of("split", split, SPLITS)
        self._open(fetch(root, NAME, f"jsb/{NAME}"), split)

    @classmethod
    def from_file(cls, path: str | PathLike[str], split: Split) -> "JSBChorales":
        """Return a split of any JSON file, plain or packed, in the layout of :func:`read_pieces`."""
        self = cls.__new__(cls)
        self._open(path, split)
        return self

    @classmethod
    def embedded(cls, split: Split) -> "JSBChorales":
        """Return the sample in the package: 60 whole chorales to train, 16 and 16 for the others."""
        return cls.from_file(SAMPLES / "jsb" / "jsb-chorales-sample.json.gz", split)

    def _open(self, path: str | PathLike[str], split: Split) -> None:
        """Set all attributes from a file; both constructors call it."""
        part = split
        if one_of("split", split, SPLITS) == "validation":
            part = "valid"
        self.split = split
        self.pieces = tuple(map(torch.from_numpy, read_pieces(path, part)))
        self.n_in = KEYS
        self.n_classes = KEYS
        self.steps = None

    def __len__(self) -> int:
        return len(self.pieces)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        pieces = [self.pieces[index] for index in indices]
        padded = pad_sequence(pieces)
        mask = torch.arange(len(padded) - 1)[:, None] < torch.tensor([len(piece) - 1 for piece in pieces])
        return Batch(padded[:-1] * mask.unsqueeze(-1), padded[1:], mask)


def read_pieces(path: str | PathLike[str], part: str) -> list[np.ndarray]:
    """Read the pieces of one part of a file of music.

    The file is one JSON object, plain or packed by gzip or xz, with a list of pieces for each part (``train``,
    ``valid`` and ``test``); a piece is a list of steps, a step the list of the MIDI numbers that sound in it.

    Returns:
        The keys of each piece, (steps, 88) uint8 zeros and ones, the lowest key first.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is damaged or of another layout.
    """
    text = read_unpacked(path)
    with refusing(path, "damaged: it is not a JSON file of music"):
        tree: Any = json.loads(text)
        pieces = None
        if isinstance(tree, dict):
            pieces = tree.get(part)
        if not isinstance(pieces, list) or not pieces:
            raise ValueError(f"wanted is an object with a list {part!r} of pieces, got {clean(tree)}.")
        arrays = []
        for i, piece in enumerate(pieces):
            if not isinstance(piece, list) or len(piece) < 2:
                raise ValueError(f"{part}, piece {i}: a piece is a list of at least two steps, got {clean(piece)}.")
            keys = np.zeros((len(piece), KEYS), np.uint8)
            for step, notes in enumerate(piece):
                good = isinstance(notes, list) and all(type(n) is int and LOWEST <= n <= HIGHEST for n in notes)
                if not good or len(set(notes)) != len(notes):
                    raise ValueError(
                        f"{part}, piece {i}, step {step}: a step is a list of different MIDI numbers from {LOWEST} to "
                        f"{HIGHEST}, got {clean(notes)}."
                    )
                keys[step, np.array(notes, int) - LOWEST] = 1
            arrays.append(keys)
    return arrays


# ---- store and recall

PERIOD = 20  # steps
VALUES = 4
GROUP = 10  # neurons for each value
# probability of a spike in a step
ON = 0.2  # of neurons of the value that is sent
OFF = 0.01  # of all others
SIZES = {"train": 2_000, "validation": 500, "test": 1_000}


class StoreRecall(BatchDataset):
    r"""Remember a value over a delay in which other values are shown.

    Inputs come in groups of 10 neurons: one for each of 4 values, one for *store* and one for *recall*. In each period
    of 20 steps a value is shown, drawn anew; in the first period *store* is on as well, in the last one *recall* is,
    and no value is shown. Between the two lie `delay` steps. A neuron of a group that is on fires with probability 0.2
    in a step, any other with 0.01.

    Item i is a pair (x, label): x of shape (40 + delay, 60), uint8 zeros and ones, and the value of the first period.
    Only the last period is to be scored: :class:`neurolsc.tasks.Classification` with last=20.

    Args:
        split: ``"train"``, ``"validation"`` or ``"test"``: 2,000, 500 and 1,000 samples.
        seed: seed of all draws.
        delay: steps from the end of the first period to the beginning of the last, a multiple of 20.

    Attributes:
        labels: the values to store (n,), int64.

    Raises:
        ValueError: if the split is unknown or a number out of range.

    Source: after the store-recall task of Salaj et al., eLife 10 (2021), e65459, Fig. 2; the code and its numbers are
    ours.
    """

    def __init__(self, split: Split, *, seed: int = 0, delay: int = 100) -> None:
        count = SIZES[one_of("split", split, tuple(SIZES))]
        whole("seed", seed, at_least=0)
        if whole("delay", delay, at_least=0) % PERIOD:
            raise ValueError(f"delay must be a multiple of the period of {PERIOD} steps, got {delay}.")
        self.split = split
        self.n_classes = VALUES
        self.n_in = (VALUES + 2) * GROUP
        self.steps = 2 * PERIOD + delay
        # every split of every seed has a generator seed of its own
        draw = torch.Generator().manual_seed(len(SIZES) * seed + list(SIZES).index(split))
        # Values are shown in all periods but the last: first the one to store, then others that distract.
        showing = 1 + delay // PERIOD
        shown = torch.randint(VALUES, (count, showing), generator=draw)
        self.labels = shown[:, 0].clone()
        signal = torch.zeros(count, showing + 1, VALUES + 2)  # 1 where a group is on in a period
        signal[:, :-1, :VALUES] = torch.nn.functional.one_hot(shown, VALUES).float()
        signal[:, 0, VALUES] = 1  # store
        signal[:, -1, VALUES + 1] = 1  # recall
        chances = (OFF + (ON - OFF) * signal).repeat_interleave(PERIOD, 1).repeat_interleave(GROUP, 2)
        self._spikes = (torch.rand(chances.shape, generator=draw) < chances).to(torch.uint8)  # (n, T, 60)

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        chosen = torch.as_tensor(indices, dtype=torch.long)
        return Batch(self._spikes[chosen].transpose(0, 1).contiguous(), self.labels[chosen])
