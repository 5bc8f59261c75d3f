"""The download: tonic's real class on an archive that this machine serves, and on a host that
cannot be reached."""

import hashlib
import io
import sys
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
import tonic

from neurolsc.datasets import SHD
from neurolsc.datasets.shd_files import fetch_shd
from tests.datasets.conftest import QuietHandler
from tests.words import write_words


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the archive of a tiny SHD, served where tonic takes the real one from."""
    folder = tmp_path / "served"
    write_words(folder / "shd_train.h5")
    with zipfile.ZipFile(folder / "shd_train.h5.zip", "w") as archive:
        archive.write(folder / "shd_train.h5", "shd_train.h5")
    md5 = hashlib.md5((folder / "shd_train.h5.zip").read_bytes()).hexdigest()
    monkeypatch.setattr(tonic.datasets.SHD, "train_md5", md5)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        monkeypatch.setattr(tonic.datasets.SHD, "base_url", f"http://127.0.0.1:{server.server_port}/")
        yield folder
        server.shutdown()
        thread.join()


def test_the_checksums_that_tonic_checks_are_those_that_are_known():
    assert tonic.datasets.SHD.train_md5 == "f3252aeb598ac776c1b526422d90eecb"
    assert tonic.datasets.SHD.test_md5 == "1503a5064faa34311c398fb0a1ed0a6f"
    assert tonic.datasets.SHD.base_url == "https://zenkelab.org/datasets/"


def test_a_missing_file_is_downloaded_and_unpacked_and_used_the_second_time(served: Path, tmp_path: Path):
    root = tmp_path / "new" / "root"
    assert fetch_shd(root, "train").read_bytes() == (served / "shd_train.h5").read_bytes()
    assert [p.name for p in root.iterdir()] == ["shd_train.h5"]
    (served / "shd_train.h5.zip").unlink()
    assert len(SHD(root, "train", share=0.25)) == 9


@pytest.mark.parametrize("spoil", ["other content", "no archive", "not there"])
def test_a_failed_download_is_one_clear_error_and_leaves_nothing(served, tmp_path: Path, spoil: str, monkeypatch):
    archive = served / "shd_train.h5.zip"
    if spoil == "not there":
        archive.unlink()
    else:
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as other:
            other.writestr("shd_train.h5", "something else")
        archive.write_bytes(content.getvalue() if spoil == "other content" else b"no archive")
        if spoil == "no archive":  # with the right checksum: what is unpacked fails
            monkeypatch.setattr(tonic.datasets.SHD, "train_md5", hashlib.md5(b"no archive").hexdigest())
    root = tmp_path / "root"
    with pytest.raises(ConnectionError, match=r"(?s)shd_train\.h5 could not be downloaded from .*by hand.*embedded"):
        fetch_shd(root, "train")
    assert not list(root.iterdir())


def test_a_host_that_cannot_be_reached_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tonic.datasets.SHD, "base_url", "http://127.0.0.1:9/")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with pytest.raises(
        ConnectionError, match=r"(?s)shd_test\.h5 could not be downloaded .*refused.*shd_test\.h5\.zip, into"
    ):
        SHD(tmp_path / "root", "test")
    assert not list((tmp_path / "root").iterdir())


def test_without_tonic_the_extra_is_named_and_files_that_are_there_are_read(tmp_path: Path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tonic.datasets", None)
    with pytest.raises(ImportError, match=r"(?s)has no shd_train\.h5.*pip install 'tonic>=1\.6'.*by hand"):
        SHD(tmp_path / "root", "train")
    assert not (tmp_path / "root").exists()
    write_words(tmp_path / "shd_train.h5")
    assert len(SHD(tmp_path, "train", share=0.25)) == 9
