"""WikiText-2, word by word."""

import hashlib
import zipfile
from os import PathLike
from pathlib import Path
from typing import Unpack

from neurolsc.datasets.download import downloaded, first_there
from neurolsc.datasets.vocabulary import Vocabulary
from neurolsc.datasets.words import SPLITS, Split, WordOptions, Words, encoded, read_words
from neurolsc.io import atomic_write, refusing
from neurolsc.untrusted.packed import read_most
from neurolsc.validation import one_of

ARCHIVE = "wikitext-2-v1.zip"
MD5 = "542ccefacc6c27f945fb54453812b3cd"
"""of the archive, as torchtext (pytorch/text, wikitext2.py) and others check it"""
ADDRESSES: tuple[str, ...] = (
    "https://wikitext.smerity.com/" + ARCHIVE,
    "https://s3.amazonaws.com/research.metamind.io/wikitext/" + ARCHIVE,
)
PARTS = {"train": "train", "validation": "valid", "test": "test"}
COUNTS = {"train": 2_088_628, "validation": 217_646, "test": 245_569}
"""words of each split, with an <eos> for every line; files that are there are known by these"""
LARGEST = 2**24
"""bytes of a file; the largest has 10,797,148"""


class WikiText2(Words):
    """WikiText-2: verified good articles of Wikipedia; items are as in :class:`Words`.

    2,088,628 words to train, 217,646 and 245,569 for validation and test, ``<eos>`` at the end of
    every line, empty ones too, counted; the vocabulary of the training text has 33,278.

    Args:
        root: folder of wiki.train.tokens, wiki.valid.tokens and wiki.test.tokens, or of train.txt,
            valid.txt and test.txt, or of wikitext-2-v1.zip, which is downloaded if nothing of it is
            there (4 MB), and unpacked there.
        split: ``"train"``, ``"validation"`` or ``"test"``.
        **options: as of :class:`Words`.

    Raises:
        ValueError: if the split is unknown, an option out of range, or a file damaged or another.
        ConnectionError: if a missing file could not be downloaded.

    Source: S. Merity, C. Xiong, J. Bradbury, R. Socher, "Pointer sentinel mixture models",
    arXiv:1609.07843; CC BY-SA 3.0.
    """

    def __init__(self, root: str | PathLike[str], split: Split, **options: Unpack[WordOptions]) -> None:
        one_of("split", split, SPLITS)
        words = _words(fetch_wikitext(root, "train"), "train")
        vocabulary = Vocabulary.of(words)
        path = fetch_wikitext(root, split)
        text = encoded(path, words if split == "train" else _words(path, split), vocabulary)
        super().__init__(text, vocabulary, split, **options)


def fetch_wikitext(root: str | PathLike[str], split: str) -> Path:
    """Return the path of the file of a split, after downloading and unpacking it if it is missing.

    Raises:
        ValueError: if the archive is damaged or another.
        ConnectionError: if it could not be downloaded.
    """
    root, part = Path(root), PARTS[split]
    name = f"wiki.{part}.tokens"
    there = first_there(root, (name, f"wikitext-2/{name}", f"{part}.txt"))
    if there is not None:
        return there
    archive = root / ARCHIVE
    if archive.exists():
        _verify(archive)
    else:
        otherwise = f"Put it, or the files in it, into {root} by hand, or use Text.embedded(split)."
        downloaded(root, ARCHIVE, ADDRESSES, _verify, called=ARCHIVE, otherwise=otherwise)
    return _unpack(archive, f"wikitext-2/{name}", root / "wikitext-2" / name)


def _unpack(archive: Path, inside: str, path: Path) -> Path:
    """Unpack one file of the archive, and nothing else of what it holds."""
    with archive.open("rb") as file, refusing(archive, "the archive is damaged"):
        with zipfile.ZipFile(file) as packed, packed.open(inside) as member:
            content = read_most(member, LARGEST)  # type: ignore[arg-type]
        if len(content) > LARGEST:
            raise ValueError(f"{inside} has more than {LARGEST:,} bytes.")
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(path, lambda out: out.write(content))
    return path


def _words(path: Path, split: str) -> list[str]:
    """The words of a file, if there are as many as there must be."""
    words = read_words(path)
    if len(words) != COUNTS[split]:
        raise ValueError(
            f"{path}: {split} of WikiText-2 has {COUNTS[split]:,} words and ends of lines, got {len(words):,}; "
            "for other texts there is Text.from_files."
        )
    return words


def _verify(path: Path) -> None:
    with path.open("rb") as file:
        got = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if got != MD5:
        raise ValueError(f"{path}: not {ARCHIVE} as published; its md5 is {got}, wanted {MD5}.")
