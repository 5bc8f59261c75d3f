import errno
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest
import torch

from neurolsc import LIF, Network, save
from neurolsc.files import atomic_write, read_tree, write_tree


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(file: BinaryIO) -> None:
        file.write(b"half of the new")
        raise KeyError("the writer broke")

    with pytest.raises(KeyError, match="the writer broke"):
        atomic_write(path, fail)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@contextmanager
def file_size_limit(size: int) -> Iterator[None]:
    """The nearest thing to a full disk that a test may cause: no file may grow beyond a size."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def test_a_write_that_runs_out_of_room_names_path_and_reason_and_cleans_up(tmp_path: Path):
    path = tmp_path / "big.safetensors"
    path.write_text("old")
    with (
        file_size_limit(4096),
        pytest.raises(OSError, match=r"could not write .*File too large.*big\.safetensors"),
    ):
        write_tree(path, {"a": torch.zeros(10_000)})
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_kind_of_error_and_its_number_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(FileNotFoundError, match=r"nowhere/n") as caught:
        save(Network([LIF(2, 2)], 2), tmp_path / "nowhere" / "n")
    assert caught.value.filename == str(tmp_path / "nowhere" / "n")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="file/n"):
        write_tree(tmp_path / "file" / "n", 1)
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError, match="folder"):
        write_tree(tmp_path / "folder", 1)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_tree(tmp_path / "n", 1)
    assert caught.value.errno == errno.ENOSPC
    assert {p.name for p in tmp_path.iterdir()} == {"file", "folder"}


@pytest.mark.skipif(os.geteuid() == 0, reason="for root no folder is read-only")
def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path):
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError, match=str(tmp_path)):
        write_tree(tmp_path / "n", 1)


def test_a_written_file_has_the_usual_rights_and_a_link_stays_a_link(tmp_path: Path):
    plain, link = tmp_path / "plain", tmp_path / "link"
    plain.touch()
    link.symlink_to(plain)
    atomic_write(tmp_path / "new", lambda file: file.write(b"x"))
    atomic_write(link, lambda file: file.write(b"through"))
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    assert link.is_symlink()
    assert plain.read_bytes() == b"through"


@pytest.mark.slow
def test_neither_a_reader_nor_a_kill_ever_sees_half_a_file(tmp_path: Path):
    path = tmp_path / "n"
    write_tree(path, torch.zeros(100_000))
    code = (
        "import sys, torch; from neurolsc.checkpoint import write_tree\n"
        "print('ready', flush=True); i = 0\n"
        "while True: i += 1; write_tree(sys.argv[1], torch.full((100_000,), float(i)))"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        for _ in range(20):  # while the writer is at work
            assert len(read_tree(path).unique()) == 1
        writer.kill()
    assert len(read_tree(path).unique()) == 1
