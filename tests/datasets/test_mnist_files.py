import gzip
import re
import socket

import pytest
import torch
from torch.testing import assert_close

from neurolsc.datasets import mnist_files, read_idx
from neurolsc.datasets.mnist_files import TEST, TRAIN, fetch_mnist, read_pair

NAMES = TRAIN + TEST


def files_in(folder):
    return sorted(path.name for path in folder.iterdir())


def write(path, array):
    header = bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    path.write_bytes(header + bytes(array.flatten().tolist()))
    return path


def test_files_in_the_folder_are_used_plain_or_compressed_without_a_mirror(root):
    paths = fetch_mnist(root)
    assert tuple(paths) == NAMES
    assert sorted(path.name for path in paths.values()) == files_in(root)
    images, labels = read_pair(*(paths[name] for name in TRAIN))
    assert images.shape == (24, 28, 28)
    assert labels.shape == (24,)


def test_only_the_files_asked_for_are_needed(root):
    for path in [*root.glob("t10k*")]:
        path.unlink()
    assert tuple(fetch_mnist(root, TRAIN)) == TRAIN


def test_a_file_that_is_not_mnist_is_refused_and_left_alone(root):
    path = root / "train-labels-idx1-ubyte"
    path.write_bytes(path.read_bytes()[:-1] + b"\x0b")
    before = path.read_bytes()
    with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}: not MNIST's train-labels.*, wanted"):
        fetch_mnist(root)
    assert path.read_bytes() == before


def test_a_cut_off_compressed_file_is_refused_by_name(root):
    path = root / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}: the gzip stream is cut off"):
        fetch_mnist(root)


def test_missing_files_are_downloaded_verified_and_then_found(served, contents, tmp_path):
    root = tmp_path / "new" / "folder"
    paths = fetch_mnist(root)
    assert files_in(root) == sorted(f"{name}.gz" for name in NAMES)
    for name, path in paths.items():
        assert gzip.decompress(path.read_bytes()) == contents[name]
    for path in served.iterdir():
        path.unlink()
    assert fetch_mnist(root) == paths


def test_only_the_missing_file_is_downloaded(served, root):
    (root / "t10k-labels-idx1-ubyte").unlink()
    before = files_in(root)
    fetch_mnist(root)
    assert files_in(root) == sorted([*before, "t10k-labels-idx1-ubyte.gz"])


def test_the_next_mirror_is_asked_when_one_lacks_the_file(served, tmp_path, monkeypatch):
    (mirror,) = mnist_files.MIRRORS
    monkeypatch.setattr(mnist_files, "MIRRORS", (f"{mirror}absent/", mirror))
    assert read_idx(fetch_mnist(tmp_path / "root")["t10k-labels-idx1-ubyte"]).shape == (12,)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: gzip.compress(gzip.decompress(data)[:-1] + b"\x01"), "not MNIST's train-images"),
        (lambda data: data[:-50], "gzip stream is cut off or damaged"),
        (lambda data: b"<html>please log in</html>", "not MNIST's train-images"),
    ],
    ids=["other digits", "cut off", "a login page"],
)
def test_a_download_that_is_not_mnist_is_refused_and_leaves_nothing(served, tmp_path, damage, reason):
    path = served / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ConnectionError, match=rf"(?s)could not be downloaded.*127\.0\.0\.1.*{reason}"):
        fetch_mnist(tmp_path / "root")
    assert files_in(tmp_path / "root") == []


def test_when_no_host_answers_the_error_names_every_mirror_and_the_way_out(contents, tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: a connection is refused
        mirrors = tuple(f"http://127.0.0.1:{taken.getsockname()[1]}/{name}/" for name in ("one", "two"))
        monkeypatch.setattr(mnist_files, "MIRRORS", mirrors)
        with pytest.raises(ConnectionError) as caught:
            fetch_mnist(tmp_path / "root")
    message = str(caught.value)
    for mirror in mirrors:
        assert f"{mirror}train-images-idx3-ubyte.gz" in message
    assert f"into {tmp_path / 'root'} by hand" in message
    assert "SpikeLatencyMNIST.embedded(split)" in message
    assert files_in(tmp_path / "root") == []


@pytest.mark.parametrize(
    ("images", "labels", "culprit", "message"),
    [
        (torch.zeros(3, 28, 28), torch.zeros(2), "labels", "3 images need as many labels, got 2"),
        (torch.zeros(3, 28, 27), torch.zeros(3), "images", r"\(n, 28, 28\), n > 0, got \(3, 28, 27\)"),
        (torch.zeros(0, 28, 28), torch.zeros(0), "images", r"\(n, 28, 28\), n > 0, got \(0, 28, 28\)"),
        (torch.zeros(3, 28, 28), torch.zeros(3, 1), "labels", r"labels must be \(n,\), got \(3, 1\)"),
        (torch.zeros(3, 28, 28), torch.tensor([1, 10, 2]), "labels", "digits from 0 to 9, got 10"),
    ],
)
def test_files_that_do_not_fit_together_are_refused_by_name(tmp_path, images, labels, culprit, message):
    pair = write(tmp_path / "images", images.byte()), write(tmp_path / "labels", labels.byte())
    with pytest.raises(ValueError, match=rf"{culprit}: .*{message}"):
        read_pair(*pair)


def test_the_expected_checksums_are_those_of_the_original_distribution(mnist_root):
    paths = fetch_mnist(mnist_root)
    labels = read_idx(paths["train-labels-idx1-ubyte"])
    assert labels[:5].tolist() == [5, 0, 4, 1, 9]
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert_close(torch.bincount(labels), torch.tensor(counts))
