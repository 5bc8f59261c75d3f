"""The embedded sample, its card and its recipe agree."""

import gzip
import hashlib
import re
import runpy
from importlib import resources
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from neurolsc.datasets import SpikeLatencyMNIST
from neurolsc.datasets.mnist_files import TEST, TRAIN

CARDS = Path(__file__).parents[2] / "datasets"
SAMPLE = resources.files("neurolsc.datasets") / "samples" / "mnist"


def test_the_sample_holds_1800_200_and_500_digits_balanced_over_classes():
    train, validation, test = (SpikeLatencyMNIST.embedded(split) for split in ("train", "validation", "test"))
    assert [len(train), len(validation), len(test)] == [1800, 200, 500]
    assert_close(torch.bincount(torch.cat([train.labels, validation.labels])), torch.full((10,), 200))
    assert_close(torch.bincount(test.labels), torch.full((10,), 50))
    assert (torch.bincount(validation.labels, minlength=10) >= 10).all()
    assert len(torch.cat([train.images, validation.images, test.images]).unique(dim=0)) == 2500


def test_classes_are_mixed_along_the_sample():
    for labels in SpikeLatencyMNIST.embedded("test").labels.split(100):
        assert len(labels.unique()) == 10


def test_another_seed_holds_out_other_digits():
    a, b = (SpikeLatencyMNIST.embedded("validation", seed=seed).images for seed in (0, 1))
    assert len(torch.cat([a, b]).unique(dim=0)) > 300


def test_the_sample_is_small_and_has_the_sizes_and_checksums_on_its_card():
    card = (CARDS / "README.md").read_text()
    listed = re.findall(r"^\| (\S+-ubyte)\.gz \| (\d+) \| ([0-9a-f]{64}) \|$", card, flags=re.MULTILINE)
    assert sorted(name for name, _, _ in listed) == sorted(TRAIN + TEST)
    total = 0
    for name, size, sha256 in listed:
        packed = (SAMPLE / f"{name}.gz").read_bytes()
        assert len(packed) == int(size)
        assert hashlib.sha256(gzip.decompress(packed)).hexdigest() == sha256
        total += len(packed)
    assert total < 700_000


def test_the_recipe_makes_the_sample_again_from_mnist(mnist_root, tmp_path, monkeypatch: pytest.MonkeyPatch):
    recipe = CARDS / "make_mnist_sample.py"
    monkeypatch.setattr("sys.argv", [str(recipe), str(mnist_root), str(tmp_path)])
    runpy.run_path(str(recipe), run_name="__main__")
    for name in TRAIN + TEST:  # compared uncompressed: another zlib may pack the same digits differently
        made, kept = (folder.joinpath(f"{name}.gz").read_bytes() for folder in (tmp_path, SAMPLE))
        assert gzip.decompress(made) == gzip.decompress(kept)
        assert made[:10] == kept[:10]  # the gzip header: no name, no time
