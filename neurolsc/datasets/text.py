"""Texts of one's own, and the small one in the package."""

from contextlib import ExitStack
from importlib import resources
from os import PathLike
from typing import Unpack

from neurolsc.datasets.vocabulary import END, Vocabulary
from neurolsc.datasets.words import SPLITS, Split, WordOptions, Words, encoded, read_words
from neurolsc.validation import one_of


class Text(Words):
    """Words of text files; items are as in :class:`Words`.

    Made by :meth:`from_files` or :meth:`embedded`.

    Example:
        >>> words = Text.embedded("train", steps=20)
        >>> x, y = words[0]
        >>> words.vocabulary.decode(x[::2, 0])[:6], words.vocabulary.decode(y[:2])
        (['alice', 'was', '<unk>', 'to', 'get', 'very'], ['was', 'was'])
    """

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
        **options: Unpack[WordOptions],
    ) -> "Text":
        """A split of texts in files: :func:`neurolsc.datasets.words.read_words`.

        The vocabulary is that of what is trained on. The file of the test is opened for
        ``split="test"`` only.

        Args:
            split: ``"train"``, ``"validation"`` or ``"test"``.
            train: what is trained on.
            test: what is kept for the test.
            validation: what decides when to stop; None: the end of ``train``, whole lines, which is
                then held out.
            share: of the words of ``train`` that are held out.
            at_least: words that are rarer in what is trained on are ``<unk>``.
            **options: as of :class:`Words`.

        Raises:
            FileNotFoundError: if a file is not there.
            ValueError: if the split is unknown, a file is damaged or shorter than a window, the
                share is not between 0 and 1 or leaves nothing, or a word is not in the vocabulary
                and ``<unk>`` neither.
        """
        one_of("split", split, SPLITS)
        words, held_out = read_words(train), None
        if validation is None:
            words, held_out = _cut(words, share)
        vocabulary = Vocabulary.of(words, at_least=at_least)
        path = {"train": train, "validation": train if validation is None else validation, "test": test}[split]
        if split == "validation" and held_out is not None:
            words = held_out
        elif split != "train":
            words = read_words(path)
        return cls(encoded(path, words, vocabulary), vocabulary, split, **options)

    @classmethod
    def embedded(cls, split: Split, **options: Unpack[WordOptions]) -> "Text":
        """Return the sample in the package: three chapters of "Alice's Adventures in Wonderland".

        Chapters I and II are for training, the halves of III for validation and test; words that
        stand only once in the first two are ``<unk>``.

        Args:
            split: ``"train"``, ``"validation"`` or ``"test"``.
            **options: as of :class:`Words`.

        Raises:
            ValueError: if the split is unknown, or an option out of range.
        """
        folder = resources.files("neurolsc.datasets") / "samples" / "text"
        with ExitStack() as stack:
            train, validation, test = (
                stack.enter_context(resources.as_file(folder / f"{name}.txt")) for name in SPLITS
            )
            return cls.from_files(split, train=train, validation=validation, test=test, at_least=2, **options)


def _cut(words: list[str], share: float) -> tuple[list[str], list[str]]:
    """A text in two, between lines: the second has a share of the words, or a little less.

    Raises:
        ValueError: if the share is not between 0 and 1, or a part would be empty.
    """
    if not 0 < share < 1:
        raise ValueError(f"share must be between 0 and 1, got {share}.")
    first = max(1, round((1 - share) * len(words)))
    end = next(i for i in range(first - 1, len(words)) if words[i] == END) + 1
    if end == len(words):
        raise ValueError(f"holding out {share} of {words.count(END)} lines leaves nothing to validate with.")
    return words[:end], words[end:]
