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


def test_the_sample_is_balanced_in_words_and_voices():
    train, validation, test = (SHD.embedded(split) for split in ("train", "validation", "test"))
    assert (len(train), len(validation), len(test)) == (80, 20, 50)
    labels, speakers = (
        torch.cat([getattr(part, name) for part in (train, validation)]) for name in ("labels", "speakers")
    )
    assert (5 * labels + speakers).bincount().tolist() == [2] * 50
    assert (5 * test.labels + test.speakers).bincount().tolist() == [1] * 50
    assert train.names == ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    apart = [set(SHD.embedded(split, by="speaker").speakers.tolist()) for split in ("train", "validation")]
    assert (len(apart[0]), len(apart[1])) == (4, 1)
    assert not apart[0] & apart[1]


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
def test_the_recipe_makes_the_sample_again(recordings_root, tmp_path, monkeypatch: pytest.MonkeyPatch):
    recipe = CARDS / "make_spoken_digits_sample.py"
    monkeypatch.setattr("sys.argv", [str(recipe), str(recordings_root), str(tmp_path)])
    runpy.run_path(str(recipe), run_name="__main__")
    for part in ("train", "test"):  # compared by content: another HDF5 or xz may write other bytes
        made, kept = (EventFile(folder / f"{part}.h5.xz") for folder in (tmp_path, SAMPLE))
        for name in ("labels", "speakers", "names"):
            assert np.array_equal(getattr(made, name), getattr(kept, name))
        everything = range(len(kept))
        assert all(np.array_equal(a, b) for a, b in zip(made.read(everything), kept.read(everything), strict=True))
