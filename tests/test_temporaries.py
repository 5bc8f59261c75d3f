"""Writes beside each other, and what is left of those that were killed."""

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from neurolsc import ALIFPlus, Network, load, save
from neurolsc import temporaries as module
from neurolsc.files import atomic_write, read_tree, write_tree
from neurolsc.temporaries import remove_dead, replacing


def network(seed: int = 0) -> Network:
    torch.manual_seed(seed)
    return Network([ALIFPlus(20, 10), ALIFPlus(10, 10)], 4, readout_bias=True)


def test_threads_that_save_to_one_path_all_succeed_and_readers_see_whole_files(tmp_path: Path):
    path, networks, failed, read = tmp_path / "n", [network(seed) for seed in range(4)], [], []
    save(networks[0], path)
    wanted = [n.readout.weight for n in networks]
    done = threading.Event()

    def write(one: Network) -> None:
        for _ in range(15):
            try:
                save(one, path)
            except Exception as error:
                failed.append(error)

    def look() -> None:
        while not done.is_set():
            found = load(path).readout.weight
            read.append(any(torch.equal(found, weight) for weight in wanted))

    writers = [threading.Thread(target=write, args=[one]) for one in networks]
    reader = threading.Thread(target=look)
    reader.start()
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()
    assert failed == []
    assert read and all(read)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_the_same_network_saves_to_the_same_bytes(tmp_path: Path):
    for number in range(8):  # the order of texts in a header is drawn anew for every file
        save(network(), tmp_path / f"{number}.safetensors")
    assert len({file.read_bytes() for file in tmp_path.iterdir()}) == 1
    code = f"from tests.test_temporaries import *; save(network(), {str(tmp_path / 'other')!r})"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1], check=True)
    assert (tmp_path / "other").read_bytes() == (tmp_path / "0.safetensors").read_bytes()
    data = (tmp_path / "other").read_bytes()
    assert int.from_bytes(data[:8], "little") % 8 == 0  # tensors are aligned, as the format asks


def test_a_temporary_has_a_name_that_nobody_can_guess_and_another_one_at_every_write(tmp_path: Path):
    seen = []
    for _ in range(3):
        with replacing(str(tmp_path / "n")) as file:
            seen.append(Path(file.name))
    assert all(path.parent == tmp_path and len(path.name.split(".")[2]) == 16 for path in seen)
    assert len(set(seen)) == 3


def test_planted_links_are_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / f".n.{os.getpid()}.tmp").symlink_to("victim")  # the name that a process number would give
    names = iter(["0" * 16, "1" * 16])
    (tmp_path / f".n.{'0' * 16}.neurolsc-tmp").symlink_to("victim")
    monkeypatch.setattr(module.secrets, "token_hex", lambda _: next(names))
    with pytest.raises(FileExistsError, match="could not write the file"):  # even a name that was guessed
        write_tree(tmp_path / "n", 1)
    write_tree(tmp_path / "n", 1)
    assert (tmp_path / "victim").read_text() == "precious"
    assert read_tree(tmp_path / "n") == 1


def test_rights_are_those_of_the_umask(tmp_path: Path):
    before = os.umask(0o027)
    try:
        atomic_write(tmp_path / "n", lambda file: file.write(b"x"))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "n").stat().st_mode) == 0o640


def test_a_name_of_255_bytes_can_be_written(tmp_path: Path):
    write_tree(tmp_path / ("ü" * 127), 1)
    assert read_tree(tmp_path / ("ü" * 127)) == 1


def test_what_is_no_file_is_not_replaced_by_one(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match=r"neither a file nor a folder.*pipe"):
        write_tree(tmp_path / "pipe", 1)
    assert (tmp_path / "pipe").is_fifo()


def test_only_our_own_temporaries_of_the_dead_are_removed(tmp_path: Path):
    dead = tmp_path / f".n.{'a' * 16}.neurolsc-tmp"
    others = [".n.swp", f".n.{'a' * 15}.neurolsc-tmp", "n.neurolsc-tmp", f".m.{'b' * 16}.neurolsc-tmp"]
    for path in [dead, *(tmp_path / name for name in others)]:
        path.write_text("x")
    with replacing(str(tmp_path / "n")) as file:
        alive = Path(file.name)
        assert not dead.exists()
        remove_dead(tmp_path, "n")
        write_tree(tmp_path / "n", 2)  # another writer beside it
        assert alive.exists()
        file.write(b"mine")
    assert (tmp_path / "n").read_bytes() == b"mine"
    assert {path.name for path in tmp_path.iterdir()} == {"n", *others}
    remove_dead(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"n", *others[:3]}


def test_a_writer_whose_new_temporary_was_taken_for_a_dead_one_makes_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    locked, taken = module._locked, []

    def thief(descriptor: int) -> bool | None:
        if not taken:
            taken.extend(tmp_path.glob(".n.*"))
            taken[0].unlink()
        return locked(descriptor)

    monkeypatch.setattr(module, "_locked", thief)
    write_tree(tmp_path / "n", 3)
    assert taken and read_tree(tmp_path / "n") == 3


@pytest.mark.slow
def test_what_a_killed_writer_left_is_removed_by_the_next_one(tmp_path: Path):
    code = (
        "import os, signal, sys; from neurolsc.files import atomic_write\n"
        "def die(file): file.write(b'half'); file.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
        "atomic_write(sys.argv[1], die)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path / "n")], cwd=Path(__file__).parents[1])
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    write_tree(tmp_path / "n", 1)
    assert list(tmp_path.iterdir()) == [tmp_path / "n"]
