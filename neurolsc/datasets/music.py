"""JSB Chorales: polyphonic music, of which the next chord is to be predicted."""

import json
from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence

from neurolsc.datasets.batches import SAMPLES, SPLITS, Batch, BatchDataset, Split
from neurolsc.datasets.download import fetch, read_unpacked
from neurolsc.io import clean, refusing
from neurolsc.validation import one_of

LOWEST, HIGHEST = 21, 108  # MIDI numbers of the keys of a piano, A0 to C8
KEYS = HIGHEST - LOWEST + 1
NAME = "jsb-chorales-quarter.json"


class JSBChorales(BatchDataset):
    """Bach's chorales as the keys of a piano, quarter note by quarter note.

    Item i is a pair (x, y): x of shape (T, 88), uint8, the keys that sound in each step (MIDI 21 to 108), and y
    (T, 88), those of the step after it; a piece of n steps has T = n - 1. The task is
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
        """A split of any JSON file, plain or packed, in the layout of :func:`read_pieces`."""
        self = cls.__new__(cls)
        self._open(path, split)
        return self

    @classmethod
    def embedded(cls, split: Split) -> "JSBChorales":
        """Return the sample in the package: 60 whole chorales to train, 16 and 16 for the others."""
        return cls.from_file(SAMPLES / "jsb" / "jsb-chorales-sample.json.gz", split)

    def _open(self, path: str | PathLike[str], split: Split) -> None:
        part = "valid" if one_of("split", split, SPLITS) == "validation" else split
        self.split, self.pieces = split, tuple(map(torch.from_numpy, read_pieces(path, part)))
        self.n_in, self.n_classes, self.steps = KEYS, KEYS, None

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
        Of each piece its keys, (steps, 88) uint8 zeros and ones, the lowest first.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is damaged or of another layout.
    """
    text = read_unpacked(path)
    with refusing(path, "damaged: it is not a JSON file of music"):
        tree: Any = json.loads(text)
        pieces = tree.get(part) if isinstance(tree, dict) else None
        if not isinstance(pieces, list) or not pieces:
            raise ValueError(f"wanted is an object with a list {part!r} of pieces, got {clean(tree)}.")
        read = []
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
            read.append(keys)
    return read
