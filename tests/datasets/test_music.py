"""Music: pieces, their batches, their file, and what is refused of one."""

import gzip
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from torch.utils.data import DataLoader

from neurolsc.datasets import JSBChorales, collate, collate_padded, input_batches
from neurolsc.datasets.music import NAME, read_pieces

MUSIC = {
    "train": [[[60, 64], [62], []], [[21, 108], [40]]],
    "valid": [[[70], [71], [72], [70, 75]]],
    "test": [[[30], [31]]],
}


def write(path: Path, content: Any) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def test_an_item_is_a_piece_and_the_same_piece_a_step_later(tmp_path, publish):
    publish(json.dumps(MUSIC).encode(), NAME)
    train = JSBChorales(tmp_path / "root", "train")
    assert (len(train), train.n_in, train.n_classes) == (2, 88, 88)
    x, y = train[0]
    assert (x.shape, y.shape, x.dtype) == ((2, 88), (2, 88), torch.uint8)
    assert [row.nonzero().flatten().tolist() for row in x] == [[60 - 21, 64 - 21], [62 - 21]]
    assert [row.nonzero().flatten().tolist() for row in y] == [[62 - 21], []]
    x, y = train[-1]
    assert [row.nonzero().flatten().tolist() for row in (x[0], y[0])] == [[0, 87], [40 - 21]]
    assert [len(JSBChorales(tmp_path / "root", split)) for split in ("validation", "test")] == [1, 1]
    assert "2 pieces of 2 to 3 steps, 5 in all" in repr(train)
    for index in (2, -3):
        with pytest.raises(IndexError, match=f"items run from 0 to 1, got {index}"):
            train[index]


def test_batches_of_unequal_pieces_are_those_of_collate_padded():
    chorales = JSBChorales.embedded("train")
    indices = [5, 0, 7, 59]
    got = collate(chorales.__getitems__(indices))
    for a, b in zip(got, collate_padded([chorales[i] for i in indices]), strict=True):
        assert_close(a, b)
    x, y, mask = got
    assert not mask.all()
    assert not (x[~mask].any() or (y[~mask]).any())
    for i, (own, target) in zip(indices, chorales.__getitems__(indices), strict=True):
        assert_close(own, chorales[i][0])
        assert_close(target, chorales[i][1])
    (first, _, _), *_ = DataLoader(chorales, batch_size=4, collate_fn=collate)
    assert first.shape[1:] == (4, 88)
    assert len(input_batches(chorales, 8, count=2)) == 2


def test_the_whole_set_has_the_sizes_of_the_literature(jsb_root):
    parts = [JSBChorales(jsb_root, split) for split in ("train", "validation", "test")]
    assert [len(part) for part in parts] == [229, 76, 77]
    assert [len(part.keys) for part in parts] == [13_807, 4_602, 4_725]
    told = json.loads((jsb_root / NAME).read_text())["test"]
    keys = [[note + 21 for note in row.nonzero().flatten().tolist()] for row in parts[2].piece(3)]
    assert keys == told[3]
    whole = {bytes(parts[0].piece(i).numpy()) for i in range(229)}
    sample = JSBChorales.embedded("train")
    assert {bytes(sample.piece(i).numpy()) for i in range(60)} <= whole


def test_who_knows_how_often_each_key_sounds_needs_11_nats_a_step(jsb_root):
    train, test = (JSBChorales(jsb_root, split) for split in ("train", "test"))
    p = (train.keys.sum(0).double() + 0.5) / (len(train.keys) + 1)
    logits = torch.logit(p)
    total = sum(
        torch.nn.functional.binary_cross_entropy_with_logits(logits.expand(y.shape), y.double(), reduction="sum").item()
        for _, y in (test[i] for i in range(len(test)))
    )
    assert total / (4_725 - 77) == pytest.approx(11.09, abs=0.02)


@pytest.mark.parametrize("packed", [bytes, gzip.compress])
def test_any_file_in_the_layout_is_read(tmp_path, packed):
    path = write(tmp_path / "music", packed(json.dumps(MUSIC).encode()))
    assert [len(JSBChorales.from_file(path, split)) for split in ("train", "validation", "test")] == [2, 1, 1]
    pieces = read_pieces(path, "train")
    assert all(isinstance(keys, np.ndarray) and keys.dtype == np.uint8 for keys in pieces)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"train": [[[20], [30]]]}, r"train, piece 0, step 0: .* from 21 to 108, got \[20\]"),
        ({"train": [[[30], [30]], [[30], [109]]]}, r"train, piece 1, step 1: .*, got \[109\]"),
        ({"train": [[[30.0], [30]]]}, r"got \[30.0\]"),
        ({"train": [[[True], [30]]]}, r"got \[True\]"),
        ({"train": [[["C4"], [30]]]}, r"got \['C4'\]"),
        ({"train": [[[40, 40], [30]]]}, r"train, piece 0, step 0: .* different .* got \[40, 40\]"),
        ({"train": [[30, 31]]}, "train, piece 0, step 0: .*got 30"),
        ({"train": [[[30], [30]], []]}, r"train, piece 1: a piece is a list of at least two steps, got \[\]"),
        ({"train": ["abc"]}, "train, piece 0: a piece is a list of at least two steps, got abc"),
        ({"train": []}, "wanted is an object with a list 'train' of pieces"),
        ({"test": []}, "wanted is an object with a list 'train' of pieces"),
        ([1], "wanted is an object with a list 'train' of pieces"),
        (b'{"train": [[[60], [6', "Expecting|delimiter"),
        (b"\xff\xfe{", "damaged: it is not a JSON file of music .UnicodeDecodeError"),
        (b"[" * 200_000, "damaged: it is not a JSON file of music .RecursionError"),
    ],
)
def test_a_bad_file_is_refused_by_place_and_reason(tmp_path, content, message):
    path = write(tmp_path / "music.json", content)
    with pytest.raises(ValueError, match=rf"(?s)^{re.escape(str(path))}: .*({message})"):
        JSBChorales.from_file(path, "train")
    with pytest.raises(ValueError, match="split must be one of 'train', 'validation', 'test', got 'valid'"):
        JSBChorales.from_file(path, "valid")  # type: ignore[arg-type]
