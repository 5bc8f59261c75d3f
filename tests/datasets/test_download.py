"""Published files: found, or downloaded, verified and unpacked; packed files."""

import gzip
import io
import lzma
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from neurolsc.datasets import (
    CIFAR10,
    SHD,
    JSBChorales,
    PennTreebank,
    SequentialMNIST,
    SpikeLatencyMNIST,
    download,
)
from neurolsc.datasets.download import FILES, fetch, read_unpacked

JSB = "jsb-chorales-quarter.json"


def files_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def tarred(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return packed.getvalue()


def zipped(files: dict[str, bytes]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, text in files.items():
            packed.writestr(name, text)
    return content.getvalue()


def test_a_file_in_the_folder_is_used_without_a_download(tmp_path):
    for i, place in enumerate(("shd_train.h5", "SHD/shd_train.h5", "train.h5")):
        path = tmp_path / str(i) / place
        path.parent.mkdir(parents=True)
        path.touch()
        assert fetch(tmp_path / str(i), "shd_train.h5", "SHD/shd_train.h5", "train.h5") == path


def test_a_file_of_the_set_stands_for_its_folder_and_another_is_refused(tmp_path):
    for name in ("shd_train.h5", "shd_test.h5", "mine.h5"):
        (tmp_path / name).touch()
    assert fetch(tmp_path / "shd_train.h5", "shd_test.h5") == tmp_path / "shd_test.h5"
    with pytest.raises(ValueError, match=r"root must be the folder of shd_test\.h5, or that file, got .*mine\.h5"):
        fetch(tmp_path / "mine.h5", "shd_test.h5")


def test_a_missing_file_is_downloaded_from_the_first_address_that_has_it(tmp_path, publish, host):
    publish(b"{}", JSB, absent_first=True)
    (tmp_path / "new").mkdir()
    assert fetch(tmp_path / "new" / "root", JSB).read_bytes() == b"{}"
    assert files_in(tmp_path / "new") == [f"root/{JSB}"]
    (host[0] / JSB).unlink()
    assert fetch(tmp_path / "new" / "root", JSB).exists()  # found the second time


@pytest.mark.parametrize(
    ("name", "pack", "member"),
    [
        ("shd_test.h5", zipped, "shd_test.h5"),
        ("data_batch_3.bin", tarred, "cifar-10-batches-bin/data_batch_3.bin"),
        ("train.bin", tarred, "cifar-100-binary/train.bin"),
    ],
)
def test_of_an_archive_the_file_alone_is_unpacked(tmp_path, publish, host, name, pack, member):
    publish(pack({member: b"content", "other": b"x"}), name)
    root, archive = tmp_path / "root", FILES[name].archive
    assert fetch(root, name).read_bytes() == b"content"
    assert files_in(root) == sorted([archive, member])
    (host[0] / archive).unlink()
    (root / member).unlink()
    assert fetch(root, name).read_bytes() == b"content"  # from the archive that is there
    (root / archive).unlink()
    assert fetch(root, name) == root / member


@pytest.mark.parametrize(
    ("name", "pack", "member"),
    [("shd_test.h5", zipped, "shd_test.h5"), ("train.bin", tarred, "cifar-100-binary/train.bin")],
)
def test_an_archive_is_unpacked_in_a_folder_that_is_named_from_the_working_directory(
    tmp_path, publish, monkeypatch, name, pack, member
):
    publish(pack({member: b"content"}), name)
    monkeypatch.chdir(tmp_path)
    assert fetch("root", name).read_bytes() == b"content"
    assert files_in(tmp_path / "root") == sorted([FILES[name].archive, member])


@pytest.mark.parametrize("name", [JSB, "shd_test.h5"])
def test_another_download_is_refused_and_leaves_nothing(tmp_path, publish, host, name):
    publish(zipped({"a": b"x" * 100}), name)
    archive = FILES[name].archive
    (host[0] / archive).write_bytes(b"<html>log in</html>")
    with pytest.raises(ConnectionError, match=rf"{archive} could not be downloaded from .* by hand"):
        fetch(tmp_path / "root", name)
    assert not (tmp_path / "root").exists()
    (tmp_path / "there").mkdir()
    with pytest.raises(ConnectionError):
        fetch(tmp_path / "there", name)
    assert (tmp_path / "there").exists()


@pytest.mark.parametrize("make", [SHD, SpikeLatencyMNIST, SequentialMNIST, CIFAR10, PennTreebank, JSBChorales])
def test_a_root_in_a_folder_that_is_not_there_is_refused_before_a_download(tmp_path, make):
    with pytest.raises(FileNotFoundError, match=r"there is no folder .*nowhere, and a download makes only the last"):
        make(tmp_path / "nowhere" / "root", "train")
    assert not (tmp_path / "nowhere").exists()


def test_a_host_that_cannot_be_reached_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    address = "http://127.0.0.1:1/"  # refuses a connection
    monkeypatch.setitem(download.FILES, JSB, replace(FILES[JSB], addresses=(address,)))
    with pytest.raises(ConnectionError, match=rf"{JSB} could not be downloaded from {address}.*embedded"):
        fetch(tmp_path / "root", JSB)


def test_the_hashes_of_shd_are_those_that_tonic_checks():
    import tonic

    for part in ("train", "test"):
        remote = FILES[f"shd_{part}.h5"]
        assert remote.known_hash == f"md5:{getattr(tonic.datasets.SHD, f'{part}_md5')}"
        assert remote.addresses == (tonic.datasets.SHD.base_url,)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_a_packed_file_is_unpacked_or_refused(tmp_path, pack):
    (tmp_path / "a").write_bytes(pack(bytes(range(250)) * 100))
    assert read_unpacked(tmp_path / "a") == bytes(range(250)) * 100
    if pack is not bytes:
        (tmp_path / "a").write_bytes(pack(bytes(10**6))[:-9])
        with pytest.raises(ValueError, match=r"a: .*damaged"):
            read_unpacked(tmp_path / "a")
