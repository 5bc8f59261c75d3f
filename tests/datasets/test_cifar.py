"""Images for one step: pixels of digits, CIFAR's records and archives, and what is refused."""

import hashlib
import io
import re
import tarfile
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from neurolsc.datasets import CIFAR10, CIFAR100, MNISTPixels, Pixels, SpikeLatencyMNIST, cifar, cifar_files, collate
from neurolsc.datasets.cifar_files import CIFAR10_FILES, CIFAR100_FILES, Layout, fetch_cifar, read_records, unpack

SPLITS = ("train", "validation", "test")
RECORDS = {"train": 20, "test": 10}


def small(layout: Layout) -> Layout:
    return replace(layout, records=RECORDS)


def records(layout: Layout, part: str, seed: int) -> tuple[bytes, Tensor, Tensor]:
    """A file in the layout, its images and its labels."""
    random = torch.Generator().manual_seed(seed)
    n = layout.records[part]
    images = torch.randint(256, (n, 3072), generator=random).byte()
    labels = torch.stack([torch.randint(c, (n,), generator=random).byte() for c in layout.labels], 1)
    content = b"".join(bytes(a.tolist()) + bytes(b.tolist()) for a, b in zip(labels, images, strict=True))
    return content, images, labels[:, -1]


def contents(layout: Layout) -> dict[str, bytes]:
    names = [(part, name) for part in layout.files for name in layout.files[part]]
    return {name: records(layout, part, seed)[0] for seed, (part, name) in enumerate(names)}


def archive(layout: Layout, files: dict[str, bytes]) -> bytes:
    """A gzipped tar of files by their paths."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{layout.folder}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


KINDS: Any = pytest.mark.parametrize(
    ("kind", "layout"), [(CIFAR10, small(CIFAR10_FILES)), (CIFAR100, small(CIFAR100_FILES))], ids=["10", "100"]
)


@KINDS
@pytest.mark.parametrize("inside", [False, True])
def test_files_that_are_there_are_read_by_their_records(tmp_path, monkeypatch, kind, layout, inside):
    monkeypatch.setattr(kind, "_layout", layout)
    folder = tmp_path / layout.folder if inside else tmp_path
    folder.mkdir(exist_ok=True)
    for name, content in contents(layout).items():
        (folder / name).write_bytes(content)
    test = kind(tmp_path, "test")
    _, images, labels = records(layout, "test", len(layout.files["train"]))
    assert_close(test.images, images)
    assert_close(test.labels, labels.long())
    x, label = test[3]
    assert (x.shape, x.dtype, label, type(label)) == ((1, 3072), torch.float32, int(labels[3]), int)
    assert_close(x[0].double() * 255, images[3].double(), rtol=0, atol=1e-4)
    train, validation = kind(tmp_path, "train"), kind(tmp_path, "validation")
    total = 20 * len(layout.files["train"])
    assert (len(train), len(validation)) == (total - total // 10, total // 10)
    rows = [{bytes(row.tolist()) for row in part.images} for part in (train, validation)]
    assert not rows[0] & rows[1]
    everything = {
        bytes(row.tolist()) for seed in range(len(layout.files["train"])) for row in records(layout, "train", seed)[1]
    }
    assert rows[0] | rows[1] == everything
    assert {bytes(row.tolist()) for row in kind(tmp_path, "train", seed=1).images} != rows[0]
    assert (train.n_classes, train.n_in, train.steps) == (layout.labels[-1], 3072, 1)
    x, labels = collate(train.__getitems__([4, 1]))
    assert x.shape == (1, 2, 3072)
    assert_close(x[:, 1], train[1][0])
    assert_close(labels, train.labels[[4, 1]])


@KINDS
def test_the_archive_is_downloaded_verified_and_unpacked(tmp_path, monkeypatch, host, kind, layout):
    folder, address = host
    packed = archive(layout, contents(layout) | {"readme.html": b"<html>"})
    layout = replace(layout, md5=hashlib.md5(packed).hexdigest())
    monkeypatch.setattr(kind, "_layout", layout)
    monkeypatch.setattr(cifar_files, "HOME", address)
    (folder / layout.archive).write_bytes(packed)
    root = tmp_path / "root"
    assert len(kind(root, "test")) == 10
    kept = sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())
    assert kept == sorted([layout.archive, *(f"{layout.folder}/{name}" for name in layout.files["test"])])
    (folder / layout.archive).unlink()
    assert len(kind(root, "train")) > 0  # of the archive that is there
    (root / layout.archive).unlink()
    assert len(kind(root, "validation")) > 0  # of its files


@KINDS
@pytest.mark.parametrize("damage", [lambda d: d[:-20], lambda d: b"<html>log in</html>", lambda d: b""])
def test_another_archive_is_refused_and_a_download_of_one_leaves_nothing(
    tmp_path, monkeypatch, host, kind, layout, damage
):
    folder, address = host
    packed = archive(layout, contents(layout))
    layout = replace(layout, md5=hashlib.md5(packed).hexdigest())
    monkeypatch.setattr(kind, "_layout", layout)
    monkeypatch.setattr(cifar_files, "HOME", address)
    (folder / layout.archive).write_bytes(damage(packed))
    root = tmp_path / "root"
    with pytest.raises(ConnectionError, match=rf"(?s){layout.archive} could not be downloaded.*as published.*by hand"):
        kind(root, "test")
    assert not [*root.iterdir()]
    (root / layout.archive).write_bytes(damage(packed))
    with pytest.raises(ValueError, match=rf"^{re.escape(str(root))}.*not {layout.archive} as published; its md5 is"):
        kind(root, "test")


def odd_members(layout: Layout) -> dict[str, bytes]:
    """Archives in which the test file is none."""
    name = layout.files["test"][0]
    path, size = f"{layout.folder}/{name}", len(contents(layout)[name])
    made = {"missing": archive(layout, {"other.bin": b"x"}), "short": archive(layout, {name: b"x" * (size - 1)})}
    made["elsewhere"] = archive(layout, {f"../{name}": b"x" * size})
    for kind, link in ((tarfile.SYMTYPE, "a link"), (tarfile.DIRTYPE, "a folder"), (tarfile.LNKTYPE, "a hard link")):
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            member = tarfile.TarInfo(path)
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
        made[link] = packed.getvalue()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        link, other = tarfile.TarInfo(path), tarfile.TarInfo(f"{layout.folder}/other.bin")
        other.size = link.size = size
        tar.addfile(other, io.BytesIO(bytes(size)))
        link.type, link.linkname = tarfile.SYMTYPE, "other.bin"
        tar.addfile(link)
    made["a link to another file in it"] = packed.getvalue()
    made["cut off"] = archive(layout, contents(layout))[:-2000]
    made["no archive"] = b"nothing of the kind" * 9
    return made


@pytest.mark.parametrize("what", [*odd_members(small(CIFAR100_FILES))])
def test_nothing_but_the_named_plain_files_is_unpacked(tmp_path, what):
    layout = small(CIFAR100_FILES)
    path = tmp_path / "a.tar.gz"
    path.write_bytes(odd_members(layout)[what])
    told = (
        "the archive is damaged" if what in ("cut off", "no archive") else "must be a plain file of 30,740 bytes in it"
    )
    with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}: .*{told}"):
        unpack(path, layout, "test", tmp_path / "into")
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]


@KINDS
def test_files_of_another_size_and_labels_out_of_range_are_refused(tmp_path, kind, layout):
    good, _, _ = records(layout, "test", 0)
    path = tmp_path / "batch.bin"
    length = len(good) // 10
    for bad in (good[:-1], good + b"x", b"", good + good[:length]):
        path.write_bytes(bad)
        with pytest.raises(
            ValueError, match=rf"batch.bin: 10 images of {layout.called} are {len(good):,} bytes.*{len(bad):,}"
        ):
            read_records(path, layout, 10)
    for column, classes in enumerate(layout.labels):
        bad = bytearray(good)
        bad[4 * length + column] = classes
        path.write_bytes(bad)
        with pytest.raises(ValueError, match=rf"image 4: its label must lie in 0 \.\.\. {classes - 1}, got {classes}"):
            read_records(path, layout, 10)
    with pytest.raises(FileNotFoundError):
        read_records(tmp_path / "none", layout, 10)


def test_the_published_files_have_the_sizes_of_their_page():
    sizes = {
        layout.called: {part: len(names) * layout.records[part] for part, names in layout.files.items()}
        for layout in (CIFAR10_FILES, CIFAR100_FILES)
    }
    of_both = {"train": 50_000, "test": 10_000}
    assert sizes == {"CIFAR-10": of_both, "CIFAR-100": of_both}
    assert cifar.HELD_OUT == 10


def test_odd_splits_and_parts_are_refused_before_anything_is_fetched(tmp_path):
    unknown: Any = "valid"
    with pytest.raises(ValueError, match="split must be one of 'train', 'validation', 'test', got 'valid'"):
        CIFAR10(tmp_path, unknown)
    with pytest.raises(ValueError, match="part must be one of 'train', 'test', got 'valid'"):
        fetch_cifar(tmp_path, CIFAR10_FILES, "valid")
    assert not [*tmp_path.iterdir()]


def test_digits_as_pixels_are_the_images_of_the_spiking_set():
    for split in SPLITS:
        pixels, spikes = MNISTPixels.embedded(split), SpikeLatencyMNIST.embedded(split)
        assert_close(pixels.images, spikes.images)
        assert_close(pixels.labels, spikes.labels)
    x, label = pixels[7]
    assert (x.shape, x.dtype, label) == ((1, 784), torch.float32, int(pixels.labels[7]))
    everything = pixels.__getitems__(range(500)).x
    assert (float(everything.min()), float(everything.max())) == (0.0, 1.0)
    assert_close(x[0], pixels.images[7] / 255)
    assert repr(pixels) == "MNISTPixels(split='test', 500 items, x (1, 784), 10 classes)"
    with pytest.raises(IndexError):
        pixels[500]


def test_the_whole_set_of_digits_has_the_sizes_of_the_paper(mnist_root):
    parts = [MNISTPixels(mnist_root, split) for split in SPLITS]
    assert [len(part) for part in parts] == [45_000, 5_000, 10_000]
    assert parts[0].images.double().mean() / 255 == pytest.approx(0.1307, abs=2e-3)


@pytest.mark.parametrize(
    ("images", "labels", "told"),
    [
        (torch.zeros(3, 4), torch.zeros(3), r"images must be bytes \(n, N\) with labels \(n,\), got torch.float32"),
        (torch.zeros(3, 4).byte(), torch.zeros(2), r"got torch.uint8 \(3, 4\) and \(2,\)"),
        (torch.zeros(3, 4).byte(), torch.tensor([0, 2, 1]), r"labels must lie in 0 \.\.\. 1, got 0 \.\.\. 2"),
        (torch.zeros(3, 4).byte(), torch.tensor([0, -1, 1]), r"labels must lie in 0 \.\.\. 1, got -1 \.\.\. 1"),
    ],
)
def test_images_that_are_none_are_refused(images, labels, told):
    with pytest.raises(ValueError, match=told):
        Pixels(images, labels, ["a", "b"], "train")
