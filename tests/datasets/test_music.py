"""Music: pieces, their batches, their file, and errors in it."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from neurolsc.datasets import JSBChorales, collate, input_batches
from neurolsc.datasets.sequences import NAME

MUSIC = {
    "train": [[[60, 64], [62], []], [[21, 108], [40]]],
    "valid": [[[70], [71], [72], [70, 75]]],
    "test": [[[30], [31]]],
}


def write(path: Path, content: Any) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


@pytest.mark.parametrize("packed", [bytes, gzip.compress])
def test_an_item_is_a_piece_and_the_same_piece_a_step_later(tmp_path, packed):
    path = write(tmp_path / "music", packed(json.dumps(MUSIC).encode()))
    train = JSBChorales.from_file(path, "train")
    assert (len(train), train.n_in, train.n_classes) == (2, 88, 88)
    x, y = train[0]
    assert (x.shape, y.shape, x.dtype) == ((2, 88), (2, 88), torch.uint8)
    assert [row.nonzero().flatten().tolist() for row in x] == [[60 - 21, 64 - 21], [62 - 21]]
    assert [row.nonzero().flatten().tolist() for row in y] == [[62 - 21], []]
    assert train[-1][0][0].nonzero().flatten().tolist() == [0, 87]
    assert [len(JSBChorales.from_file(path, split)) for split in ("validation", "test")] == [1, 1]
    assert repr(train) == "JSBChorales(split='train', 2 items, x (T, 88), 88 classes)"


def test_batches_of_unequal_pieces_are_those_of_collate():
    chorales = JSBChorales.embedded("train")
    indices = [5, 0, 7, 59]
    batch = chorales.__getitems__(indices)
    for a, b in zip(collate(batch), collate([chorales[i] for i in indices]), strict=True):
        assert_close(a, b)
    assert batch.mask is not None and not batch.mask.all()
    assert len(input_batches(chorales, 8, count=2)) == 2


def test_the_whole_set_has_the_sizes_and_frequencies_of_the_literature(jsb_root):
    train, validation, test = (JSBChorales(jsb_root, split) for split in ("train", "validation", "test"))
    assert [len(part) for part in (train, validation, test)] == [229, 76, 77]
    assert [sum(map(len, part.pieces)) for part in (train, validation, test)] == [13_807, 4_602, 4_725]
    written = json.loads((jsb_root / NAME).read_text())["test"][3]
    assert [[note + 21 for note in row.nonzero().flatten().tolist()] for row in test.pieces[3]] == written
    keys = torch.cat(train.pieces).double()  # how often each sounds leaves 11 nats a step
    logits = torch.logit((keys.sum(0) + 0.5) / (len(keys) + 1))
    y = torch.cat([piece[1:] for piece in test.pieces]).double()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(logits.expand(y.shape), y, reduction="sum")
    assert loss.item() / (4_725 - 77) == pytest.approx(11.09, abs=0.02)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"train": [[[20], [30]]]}, r"train, piece 0, step 0: .* from 21 to 108, got \[20\]"),
        ({"train": [[[30], [30]], [[30], [109]]]}, r"train, piece 1, step 1: .*, got \[109\]"),
        ({"train": [[[30], [30]], []]}, r"train, piece 1: a piece is a list of at least two steps, got \[\]"),
        (b"[" * 200_000, "damaged: it is not a JSON file of music .RecursionError"),
    ],
)
def test_a_bad_file_is_refused_by_place_and_reason(tmp_path, content, message):
    path = write(tmp_path / "music.json", content)
    with pytest.raises(ValueError, match=rf"(?s)^{re.escape(str(path))}: .*({message})"):
        JSBChorales.from_file(path, "train")
