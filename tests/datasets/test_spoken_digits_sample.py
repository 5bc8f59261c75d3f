import hashlib
import lzma
import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

import neurolsc.datasets
from neurolsc.datasets import SHD, EventFile

SAMPLE = Path(neurolsc.datasets.__file__).parent / "samples" / "spoken_digits"
CARDS = Path(__file__).parent.parent.parent / "datasets"


def test_the_sample_is_balanced_and_its_test_has_voices_of_its_own():
    train, validation, test = (SHD.embedded(split) for split in ("train", "validation", "test"))
    assert (len(train), len(validation), len(test)) == (64, 16, 40)
    assert torch.cat([train.labels, validation.labels]).bincount().tolist() == [4] * 20
    assert test.labels.bincount().tolist() == [2] * 20
    heard = set(train.speakers.tolist()) | set(validation.speakers.tolist())
    assert heard == set(range(8))
    assert set(test.speakers.tolist()) - heard == {10, 11}
    assert (test.speakers >= 10).sum() == 20
    apart = [SHD.embedded(split, by="speaker").speakers.tolist() for split in ("train", "validation")]
    assert not set(apart[0]) & set(apart[1])


def test_the_sample_is_small_and_has_the_sizes_and_checksums_on_its_card():
    card = (CARDS / "README.md").read_text()
    listed = re.findall(r"^\| (\S+)\.h5\.xz \| (\d+) \| ([0-9a-f]{64}) \|$", card, flags=re.MULTILINE)
    assert sorted(name for name, _, _ in listed) == ["test", "train"]
    total = 0
    for name, size, sha256 in listed:
        packed = (SAMPLE / f"{name}.h5.xz").read_bytes()
        assert len(packed) == int(size)
        assert hashlib.sha256(lzma.decompress(packed)).hexdigest() == sha256
        total += len(packed)
    assert total < 1_200_000


@pytest.mark.slow
def test_the_recipe_makes_the_sample_again(digits_root, tmp_path, monkeypatch: pytest.MonkeyPatch):
    recipe = CARDS / "make_spoken_digits_sample.py"
    monkeypatch.setattr("sys.argv", [str(recipe), str(digits_root), str(tmp_path)])
    runpy.run_path(str(recipe), run_name="__main__")
    for part in ("train", "test"):  # compared by content: another HDF5 or xz may write other bytes
        made, kept = (EventFile(folder / f"{part}.h5.xz") for folder in (tmp_path, SAMPLE))
        for name in ("labels", "speakers", "names"):
            assert np.array_equal(getattr(made, name), getattr(kept, name))
        everything = range(len(kept))
        assert all(np.array_equal(a, b) for a, b in zip(made.read(everything), kept.read(everything), strict=True))
