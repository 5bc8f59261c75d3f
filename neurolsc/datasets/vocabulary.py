"""Words and their numbers."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from neurolsc.io import atomic_write, clean, refusing
from neurolsc.validation import whole

UNKNOWN = "<unk>"
"""stands for every word that a vocabulary lacks"""
END = "<eos>"
"""stands at the end of every line"""
MOST = 2**23
"""bytes of a file of words: Python takes some 20 times as many to hold its lists"""


class Vocabulary(Sequence[str]):
    """Words with a number each: a sequence of them, number 0 first.

    Args:
        words: all different, none empty or with a blank in it.

    Raises:
        ValueError: if there is none, or one is not such.

    Example:
        >>> vocabulary = Vocabulary.of("the cat and the dog".split())
        >>> list(vocabulary), vocabulary.encode(["dog", "the"]).tolist()
        (['the', 'and', 'cat', 'dog'], [3, 0])
    """

    def __init__(self, words: Iterable[str]) -> None:
        self.words = tuple(words)
        if not self.words:
            raise ValueError("a vocabulary needs at least one word, got none.")
        if odd := [word for word in self.words if not isinstance(word, str) or word.split() != [word]]:
            raise ValueError(f"a word is a text without blanks, got {clean(repr(odd[0]))}.")
        self._numbers = {word: number for number, word in enumerate(self.words)}
        if len(self._numbers) < len(self.words):
            twice = next(word for word, count in Counter(self.words).items() if count > 1)
            raise ValueError(f"the words of a vocabulary must differ, got {clean(repr(twice))} twice.")

    @classmethod
    def of(cls, words: Iterable[str], *, at_least: int = 1) -> "Vocabulary":
        """The vocabulary of a text: the most frequent word first, equals by the alphabet.

        Args:
            words: the text.
            at_least: rarer words are left out; if there are any, ``<unk>`` is a word, counted as
                often as they come.

        Raises:
            ValueError: if at_least is below 1, or there is no word.
        """
        whole("at_least", at_least)
        counts = Counter(words)
        rare = [word for word, count in counts.items() if count < at_least and word != UNKNOWN]
        if rare:
            counts[UNKNOWN] += sum(counts.pop(word) for word in rare)
        return cls(sorted(counts, key=lambda word: (-counts[word], word)))

    @property
    def unknown(self) -> int | None:
        """The number of ``<unk>``, if it is a word."""
        return self._numbers.get(UNKNOWN)

    def encode(self, words: Iterable[str]) -> Tensor:
        """The numbers of words (n,), int64; that of ``<unk>`` for a word that is not there.

        Raises:
            ValueError: if a word is not there and ``<unk>`` neither; the message names the first.
        """
        words = list(words)
        unknown = self.unknown
        if unknown is None and (odd := [word for word in words if word not in self._numbers]):
            raise ValueError(
                f"{len(odd)} of {len(words)} words are not in the vocabulary of {len(self)}, which has no {UNKNOWN}; "
                f"the first is {clean(repr(odd[0]))}."
            )
        return torch.tensor([self._numbers.get(word, unknown) for word in words], dtype=torch.int64)

    def decode(self, numbers: Iterable[int] | Tensor) -> list[str]:
        """The words of numbers.

        Raises:
            ValueError: if one is not that of a word.
        """
        numbers = [int(number) for number in numbers]
        if odd := [number for number in numbers if not 0 <= number < len(self)]:
            raise ValueError(f"numbers of words run from 0 to {len(self) - 1}, got {odd[0]}.")
        return [self.words[number] for number in numbers]

    def save(self, path: str | PathLike[str]) -> None:
        """Write the words as JSON, whole or not at all.

        Raises:
            OSError: if the file cannot be written.
        """
        text = json.dumps({"words": self.words}, ensure_ascii=False, indent=0) + "\n"
        atomic_write(path, lambda file: file.write(text.encode()))

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "Vocabulary":
        """Read what :meth:`save` wrote.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if it is larger than 8 MiB, no such file, or its words are none.
        """
        with Path(path).open("rb") as file, refusing(path, "it is not a vocabulary in JSON"):
            content = file.read(MOST + 1)
            if len(content) > MOST:
                raise ValueError(f"a vocabulary has at most {MOST:,} bytes, got more.")
            told: Any = json.loads(content)
            if not isinstance(told, dict) or not isinstance(told.get("words"), list):
                raise ValueError('wanted is {"words": [...]}, got something else.')
            return cls(told["words"])

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: Any) -> Any:
        return self.words[index]

    def __contains__(self, word: object) -> bool:
        return word in self._numbers

    def __eq__(self, other: object) -> bool:
        return self.words == other.words if isinstance(other, Vocabulary) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.words)

    def __repr__(self) -> str:
        first = ", ".join(self.words[:3])
        return f"Vocabulary({len(self)} words: {first}{', ...' if len(self) > 3 else ''})"
