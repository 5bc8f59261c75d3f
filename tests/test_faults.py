"""Every call that changes the disk fails once: what is there stays whole, and the next run ends."""

import builtins
import errno
import io
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from neurolsc import save, train
from neurolsc.experiment.run import run_folder
from tests.patterns import QUIET, Patterns, small_network

CALLS = ("open", "fsync", "replace", "unlink", "mkdir", "rmdir")
FAULTS = (errno.ENOSPC, errno.EROFS, errno.EIO)


class Disk:
    """Counts the calls that change the disk, and lets one of them fail."""

    def __init__(self, at: int | None = None, fault: int = errno.ENOSPC) -> None:
        self.count, self.at, self.fault = 0, at, fault

    def call(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **keywords: Any) -> Any:
            self.count += 1
            if self.count == self.at:
                raise OSError(self.fault, os.strerror(self.fault), "the disk")
            return real(*arguments, **keywords)

        return wrapper

    def open(self, real: Callable[..., Any]) -> Callable[..., Any]:
        failing = self.call(real)
        return lambda file, mode="r", *a, **k: (failing if set(mode) & set("wxa+") else real)(file, mode, *a, **k)


@contextmanager
def disk(at: int | None = None, fault: int = errno.ENOSPC) -> Iterator[Disk]:
    one = Disk(at, fault)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(io, "open", one.open(io.open))
        patch.setattr(builtins, "open", io.open)
        for name in CALLS:
            patch.setattr(os, name, one.call(getattr(os, name)))
        yield one


def job(out: Path) -> None:
    """A run with two checkpoints and a network."""
    with run_folder(out, {"lr": QUIET["lr"]}) as folder:
        network = small_network()
        train(network, Patterns(8), Patterns(3), epochs=2, checkpoint=folder / "train.checkpoint", **QUIET)
        save(network, folder / "network.safetensors")


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_whichever_call_fails_nothing_is_lost_or_mixed_and_the_next_run_ends_in_the_same_bits(tmp_path: Path):
    job(tmp_path / "first" / "run")  # whatever is compiled and kept is so before calls are counted
    with disk() as counted:
        job(tmp_path / "whole" / "run")
    wanted = (tmp_path / "whole" / "run" / "network.safetensors").read_bytes()
    assert counted.count > 20
    told = 0
    for n in range(1, counted.count + 1):
        fault = FAULTS[n % len(FAULTS)]
        folder = tmp_path / str(n)
        try:
            with disk(n, fault):
                job(folder / "run")
        except OSError as error:
            told += 1
            assert os.strerror(fault) in str(error)
        with suppress(FileExistsError):  # it was finished
            job(folder / "run")  # the disk works again
        assert names(folder) == {"run"}, n
        assert names(folder / "run") == {"settings.toml", "network.safetensors"}, n
        assert (folder / "run" / "network.safetensors").read_bytes() == wanted
        shutil.rmtree(folder)
    assert told > counted.count / 2
