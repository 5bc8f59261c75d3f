"""JSB Chorales: polyphonic music, in which the next chord is to be told."""

from collections.abc import Sequence
from importlib import resources
from os import PathLike
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from neurolsc.datasets.collate import Batch
from neurolsc.datasets.jsb_files import KEYS, PARTS, fetch_jsb, read_pieces
from neurolsc.validation import one_of

Split = Literal["train", "validation", "test"]


class JSBChorales(Dataset[tuple[Tensor, Tensor]]):
    """Bach's chorales as the keys of a piano, quarter note by quarter note.

    Item i is a pair (x, y): x of shape (T, 88), uint8, the keys that sound in each step (MIDI 21 to
    108), and y (T, 88), those of the step after it. A piece of n steps so has T = n - 1. Pieces are
    of unequal length; a batch is padded with zeros to its longest, and :func:`collate` gives a mask
    as well. The task is :class:`neurolsc.tasks.BinaryPerStep`, whose score ``nll`` is the measure
    of the literature: nats a step, a mean over all steps of the split.

    The whole set has 229, 76 and 77 pieces (13,807, 4,602 and 4,725 steps), the split of the
    literature.

    Args:
        root: folder of ``jsb-chorales-quarter.json``; a missing one is downloaded into it.
        split: ``"train"``, ``"validation"`` or ``"test"``.

    Attributes:
        split: name of the split.
        keys: the keys of all pieces, one behind the other (steps, 88), uint8.
        starts: first step of every piece, and the end of the last (n + 1,), int64.
        n_in: number of inputs, 88.
        n_classes: number of outputs that a network needs, 88.

    Raises:
        ValueError: if the split is unknown, or the file another or damaged.
        ConnectionError: if a missing file could not be downloaded.

    Source: N. Boulanger-Lewandowski, Y. Bengio, P. Vincent, "Modeling temporal dependencies in
    high-dimensional sequences", ICML 2012 (the split); the file is that of
    https://github.com/czhuang/JSB-Chorales-dataset.

    Example:
        >>> chorales = JSBChorales.embedded("test")
        >>> x, y = chorales[0]
        >>> len(chorales), x.shape, torch.equal(x[1:], y[:-1])
        (16, torch.Size([60, 88]), True)
    """

    def __init__(self, root: str | PathLike[str], split: Split) -> None:
        part = PARTS[one_of("split", split, tuple(PARTS))]
        self._hold(read_pieces(fetch_jsb(str(root)), part), split)

    @classmethod
    def from_file(cls, path: str | PathLike[str], split: Split) -> "JSBChorales":
        """A split of any file in the layout: :func:`neurolsc.datasets.jsb_files.read_pieces`.

        Args:
            path: the JSON file, plain or packed, with pieces ``train``, ``valid`` and ``test``.
            split: as above.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if the split is unknown, or the file is damaged.
        """
        part = PARTS[one_of("split", split, tuple(PARTS))]
        self = cls.__new__(cls)
        self._hold(read_pieces(path, part), split)
        return self

    @classmethod
    def embedded(cls, split: Split) -> "JSBChorales":
        """Return the sample in the package: 60 whole chorales to train, 16 and 16 for the others.

        Args:
            split: as above.

        Raises:
            ValueError: if the split is unknown.
        """
        file = resources.files("neurolsc.datasets") / "samples" / "jsb" / "jsb-chorales-sample.json.gz"
        with resources.as_file(file) as path:
            return cls.from_file(path, split)

    def _hold(self, pieces: list[np.ndarray], split: Split) -> None:
        self.split = split
        self.keys = torch.from_numpy(np.concatenate(pieces))
        self.starts = torch.from_numpy(np.cumsum([0, *map(len, pieces)]))
        self.n_in = self.n_classes = KEYS

    def __len__(self) -> int:
        """Number of pieces."""
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """One piece: x (T, 88) and the next step's keys (T, 88)."""
        piece = self.piece(index)
        return piece[:-1], piece[1:]

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Return several pieces, padded together: what a ``DataLoader`` calls for a batch."""
        pieces = [self.piece(index) for index in indices]
        padded = pad_sequence(pieces)
        steps = torch.tensor([len(piece) - 1 for piece in pieces])
        mask = torch.arange(len(padded) - 1)[:, None] < steps
        targets = padded[1:]
        return Batch(padded[:-1] * mask.unsqueeze(-1), targets, mask)

    def piece(self, index: int) -> Tensor:
        """All keys of a piece (steps, 88)."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"items run from 0 to {len(self) - 1}, asked for {index}.")
        start, stop = self.starts[index % len(self) : index % len(self) + 2].tolist()
        return self.keys[start:stop]

    def __repr__(self) -> str:
        """What a log needs to tell this set from another."""
        lengths = self.starts.diff()
        return (
            f"{type(self).__name__}(split={self.split!r}, {len(self)} pieces of {int(lengths.min())} to "
            f"{int(lengths.max())} steps, {len(self.keys)} in all, x (T, {self.n_in}))"
        )
