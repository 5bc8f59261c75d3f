"""One run in a folder: locked, claimed by its settings, cleaned up, named when finished."""

import errno
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from neurolsc import locks, runs
from neurolsc.locks import alone, lock_of
from neurolsc.runs import Stopped, run_folder

ME = rf"process {os.getpid()} on {re.escape(socket.gethostname())} since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d"


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_the_second_one_is_refused_at_once_by_the_name_of_the_first(tmp_path: Path):
    with run_folder(tmp_path / "run", {"lr": 0.01}) as folder:
        (folder / "mine").touch()
        for settings in ({"lr": 0.3}, {"lr": 0.01}):  # an equal run is refused, too
            with pytest.raises(BlockingIOError, match=rf"run is in use by {ME}"):
                run_folder(tmp_path / "run", settings).__enter__()
        assert names(folder) == {"mine", "settings.toml"}
        assert (folder / "settings.toml").read_text() == "lr = 0.01\n"
        with run_folder(tmp_path / "other", {}):
            pass
    assert names(tmp_path) == {"run", "other"}
    assert names(tmp_path / "run") == {"mine", "settings.toml"}
    with pytest.raises(FileExistsError, match="run exists already"):
        run_folder(tmp_path / "run", {"lr": 0.3}).__enter__()


def test_of_eight_threads_one_runs(tmp_path: Path):
    begin, ended, refused = threading.Barrier(8, timeout=20), [], []

    def go() -> None:
        begin.wait()
        try:
            with run_folder(tmp_path / "run", {}) as folder:
                (folder / "file").write_text("x")
                begin.wait()  # until all have tried
            ended.append(True)
        except BlockingIOError as error:
            refused.append(str(error))
            begin.wait()

    threads = [threading.Thread(target=go) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ended) == 1
    assert len(refused) == 7
    assert names(tmp_path) == {"run"}


def test_a_lock_that_a_dead_process_left_blocks_nobody(tmp_path: Path):
    code = (
        "import os, signal, sys; from neurolsc.runs import run_folder\n"
        "run = run_folder(sys.argv[1], {'a': 1}); run.__enter__()\n"
        "print(os.getpid(), flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "run")]
    done = subprocess.run(words, cwd=Path(__file__).parents[1], check=False, capture_output=True, text=True)
    assert lock_of(tmp_path / "run").read_text().startswith(done.stdout.strip() + " on ")
    with run_folder(tmp_path / "run", {"a": 1}) as folder:
        assert lock_of(tmp_path / "run").read_text().startswith(f"{os.getpid()} on ")
        assert names(folder) == {"settings.toml"}
    assert names(tmp_path) == {"run"}


@pytest.mark.parametrize("refused", [False, True])
def test_a_lock_whose_file_was_removed_while_it_was_awaited_is_made_anew(refused: bool, tmp_path: Path, monkeypatch):
    attempt, tried = locks._try, []

    def late(lock, wait=False):
        tried.append(lock)
        if len(tried) > 1:
            return attempt(lock, wait)
        if not refused:  # the owner goes between our look and its answer
            owner.close()
            return attempt(lock, wait)
        try:
            return attempt(lock, wait)
        finally:  # or before we ask who it is
            owner.close()

    class Owner:
        def __init__(self) -> None:
            self.context = alone(tmp_path / "run")
            self.context.__enter__()

        def close(self) -> None:
            self.context.__exit__(None, None, None)

    owner = Owner()
    monkeypatch.setattr(locks, "_try", late)
    with alone(tmp_path / "run"):
        assert lock_of(tmp_path / "run").exists()
    assert not names(tmp_path)


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
@pytest.mark.filterwarnings("ignore:flock not supported")
def test_on_a_disk_without_locks_a_file_stands_for_one(number: int, tmp_path: Path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def without(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", without)
    told = rf"run is in use by process {os.getpid()}"
    with run_folder(tmp_path / "run", {}), pytest.raises(BlockingIOError, match=told):
        run_folder(tmp_path / "run", {}).__enter__()
    assert names(tmp_path) == {"run"}
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    end = "lock" if number == errno.ENOSYS else "softlock"
    (tmp_path / f".next.{end}").write_text(f"{dead.stdout.strip()}\n{socket.gethostname()}\n")
    with run_folder(tmp_path / "next", {}):  # of a dead owner on this machine it is taken over
        pass
    (tmp_path / f".far.{end}").write_text("1\nanother-machine\n")
    with pytest.raises(
        BlockingIOError, match=r"process 1 another-machine.*or remove .*\.far\.(soft)?lock if it is dead"
    ):
        run_folder(tmp_path / "far", {}).__enter__()


@pytest.mark.parametrize("left", ["radii_before.json", "start.checkpoint"])
@pytest.mark.parametrize("written", ["width = 8\nlr = 0.1\n", "width = "])
def test_an_unfinished_run_that_holds_no_training_is_overwritten(left: str, written: str, tmp_path: Path):
    (tmp_path / "run.partial").mkdir()
    (tmp_path / "run.partial" / "settings.toml").write_text(written)
    (tmp_path / "run.partial" / left).write_text("{}")
    with run_folder(tmp_path / "run", {"width": 9}) as folder:
        assert names(folder) == {"settings.toml"}
    assert (tmp_path / "run" / "settings.toml").read_text() == "width = 9\n"


def test_a_start_that_is_overwritten_is_named_and_what_is_no_start_is_not_removed(tmp_path: Path):
    (tmp_path / "run.partial").mkdir()
    (tmp_path / "run.partial" / "settings.toml").write_text("lr = 0.1\n")
    (tmp_path / "run.partial" / "start.checkpoint").touch()
    (tmp_path / "run.partial" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"run\.partial holds an unfinished run .*lr was 0\.1, is now 0\.2"):
        run_folder(tmp_path / "run", {"lr": 0.2}).__enter__()
    assert names(tmp_path / "run.partial") == {"settings.toml", "start.checkpoint", "notes.txt"}
    (tmp_path / "run.partial" / "notes.txt").unlink()
    said: list[str] = []
    with run_folder(tmp_path / "run", {"lr": 0.2}, said.append):
        pass
    assert names(tmp_path / "run") == {"settings.toml"}
    (line,) = said
    assert "run.partial holds no more than the start of other settings, and is overwritten (lr was 0.1, is" in line


def test_a_refused_training_leaves_nothing_of_its_start(tmp_path: Path):
    with pytest.raises(ValueError, match="lr"), run_folder(tmp_path / "run", {}) as folder:
        (folder / "start.checkpoint").touch()
        raise ValueError("lr")
    assert not names(tmp_path)


def test_other_settings_than_those_of_a_training_are_refused(tmp_path: Path):
    """Radii of the old network would stand beside the new one."""
    (tmp_path / "run.partial").mkdir()
    (tmp_path / "run.partial" / "settings.toml").write_text("width = 8\nlr = 0.1\n")
    (tmp_path / "run.partial" / "train.checkpoint").touch()
    with pytest.raises(ValueError, match=r"run\.partial holds .*\(width was 8, is now 9; lr was 0\.1, is now None\)"):
        run_folder(tmp_path / "run", {"width": 9}).__enter__()
    assert names(tmp_path) == {"run.partial"}


def test_damaged_settings_are_refused_by_name(tmp_path: Path):
    (tmp_path / "run.partial").mkdir()
    (tmp_path / "run.partial" / "settings.toml").write_text("width = ")
    (tmp_path / "run.partial" / "train.checkpoint").touch()
    with pytest.raises(ValueError, match=r"run\.partial/settings\.toml: not a TOML file"):
        run_folder(tmp_path / "run", {"width": 9}).__enter__()


def test_what_a_kill_left_in_the_folder_is_removed_and_nothing_else(tmp_path: Path):
    partial = tmp_path / "run.partial"
    partial.mkdir()
    left = [f".{name}.{'0' * 16}.neurolsc-tmp" for name in ("train.checkpoint", "learning.png")]
    others = ["notes.txt", ".swp", ".x.tmp"]
    for name in [*left, *others]:
        (partial / name).touch()
    with run_folder(tmp_path / "run", {}) as folder:
        assert names(folder) == {*others, "settings.toml"}
    assert names(tmp_path / "run") == {*others, "settings.toml"}


def test_checkpoints_go_when_the_run_has_its_name(tmp_path: Path):
    with run_folder(tmp_path / "run", {}) as folder:
        (folder / "train.checkpoint").touch()
    assert names(tmp_path / "run") == {"settings.toml"}
    for name in ("train.checkpoint", "pretrain.checkpoint", f".x.{'0' * 16}.neurolsc-tmp"):
        (tmp_path / "run" / name).touch()  # killed between getting the name and this
    lock_of(tmp_path / "run").touch()
    with pytest.raises(FileExistsError):
        run_folder(tmp_path / "run", {}).__enter__()
    assert names(tmp_path) == {"run"}
    assert names(tmp_path / "run") == {"settings.toml"}


def test_a_run_that_another_one_finished_between_our_look_and_our_lock_is_refused(tmp_path: Path, monkeypatch):
    def late(path: Path):
        path.mkdir()
        return alone(path)

    monkeypatch.setattr(runs, "alone", late)
    with pytest.raises(FileExistsError, match="run exists already"):
        run_folder(tmp_path / "run", {}).__enter__()
    assert names(tmp_path) == {"run"}


@pytest.mark.parametrize("error", [KeyError, KeyboardInterrupt])
def test_a_run_that_fails_before_it_has_something_leaves_nothing(error: type[BaseException], tmp_path: Path):
    with pytest.raises(error) as caught, run_folder(tmp_path / "run", {}) as folder:
        (folder / "below").mkdir()
        (folder / "below" / "file").touch()
        raise error
    assert not isinstance(caught.value, Stopped)
    assert not names(tmp_path)


def test_of_a_folder_that_is_removed_what_says_whose_it_is_goes_last(tmp_path: Path, monkeypatch):
    gone, listed = [], Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda path: iter(sorted(listed(path))))
    unlink = os.unlink
    monkeypatch.setattr(
        os, "unlink", lambda file, *a, **k: (gone.append(os.path.basename(file)), unlink(file, *a, **k))
    )
    with pytest.raises(KeyError), run_folder(tmp_path / "run", {}) as folder:
        for name in ("zebra", "yak"):
            (folder / name).touch()
        gone.clear()
        raise KeyError
    assert gone[:3] == ["yak", "zebra", "settings.toml"]


def test_a_run_that_fails_leaves_an_unfinished_one_as_it_found_it(tmp_path: Path):
    (tmp_path / "run.partial").mkdir()
    (tmp_path / "run.partial" / "radii_before.json").touch()
    with pytest.raises(KeyError), run_folder(tmp_path / "run", {}):
        raise KeyError
    assert names(tmp_path / "run.partial") == {"radii_before.json", "settings.toml"}


@pytest.mark.parametrize("kept", ["train.checkpoint", "network.safetensors"])
def test_ctrl_c_keeps_what_was_done_and_says_where(kept: str, tmp_path: Path):
    with pytest.raises(Stopped, match=r"kept in .*run\.partial"), run_folder(tmp_path / "run", {}) as folder:
        (folder / kept).touch()
        raise KeyboardInterrupt
    assert names(tmp_path) == {"run.partial"}
    with run_folder(tmp_path / "run", {}) as folder:
        assert (folder / kept).exists()


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"cannot write the run folder.*file"):
        run_folder(tmp_path / "file" / "run", {}).__enter__()
    (tmp_path / "run.partial").touch()
    with pytest.raises(OSError, match=r"cannot write the run folder.*run\.partial"):
        run_folder(tmp_path / "run", {}).__enter__()
    assert names(tmp_path) == {"file", "run.partial"}


def test_the_name_of_an_unfinished_run_is_refused(tmp_path: Path):
    with pytest.raises(ValueError, match=r"run\.partial would be the name of an unfinished run: leave out \.partial"):
        run_folder(tmp_path / "run.partial", {}).__enter__()
    assert not names(tmp_path)


def test_a_link_to_nowhere_is_no_free_name(tmp_path: Path):
    (tmp_path / "run").symlink_to("nowhere")
    with pytest.raises(FileExistsError, match="run exists already"):
        run_folder(tmp_path / "run", {}).__enter__()
