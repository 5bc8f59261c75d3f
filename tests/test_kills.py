"""Every call that changes the disk fails or is the last: what is there stays whole, and the next run ends.

KILLS in the environment says how often whole runs are killed, too, at moments of the clock and at such calls.
"""

import builtins
import errno
import hashlib
import io
import os
import random
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from neurolsc import save, train
from neurolsc.experiment import DataSettings, Experiment, NetworkSettings, PretrainSettings, TrainSettings
from neurolsc.experiment.run import run_folder
from tests.patterns import QUIET, Patterns, small_network

KILLS = int(os.environ.get("KILLS", "1"))
CALLS = ("open", "fsync", "replace", "rename", "unlink", "mkdir", "rmdir", "truncate", "ftruncate")
FAULTS = (errno.ENOSPC, errno.EROFS, errno.EIO)
TRAINED = Experiment(
    NetworkSettings(cell="ALIFPositive", reset="static", width=12, layers=2, tau_v=3.0),
    DataSettings(data="shd", dt=0.05, channels=70, repeat=1, binary=True),
    training=TrainSettings(epochs=2, batch_size=16, lr=0.01),
)
LOOP = PretrainSettings("1", rule="paper", pretrain_steps=12, pretrain_samples=2, pretrain_times=4)
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU, autograd has threads and refuses to be forked"),
]


class Disk:
    """Counts the calls that change the disk; one of them fails, or the process is killed before it."""

    def __init__(self, at: int | None, fault: int | None) -> None:
        self.count, self.at, self.fault = 0, at, fault
        for name in CALLS:
            setattr(os, name, self.watched(getattr(os, name)))
        opening, writing = io.open, self.watched(io.open)
        builtins.open = io.open = lambda f, mode="r", *a, **k: (writing if set(mode) & set("wxa+") else opening)(
            f, mode, *a, **k
        )

    def watched(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **keywords: Any) -> Any:
            self.count += 1
            if self.count == self.at:
                if self.fault is None:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise OSError(self.fault, os.strerror(self.fault), "the disk")
            return call(*arguments, **keywords)

        return wrapper


def begin(job: Callable[[Path], None], folder: Path, at: int | None = None, fault: int | None = None) -> int:
    """Run a job in a process of its own, whose number this is; it notes how many calls it made."""
    if child := os.fork():
        return child
    try:
        torch.set_num_threads(1)
        disk = Disk(at, fault)
        try:
            job(folder)
        except OSError as error:
            os._exit(2 if fault is not None and os.strerror(fault) in str(error) else 1)
        (folder.parent / "calls").write_text(str(disk.count))
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def wait(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def content(folder: Path) -> dict[str, str]:
    """Every file, with a digest where it must be the same to the bit: not of times and pictures."""
    found = {}
    for path in sorted(folder.rglob("*")):
        timed = path.is_dir() or path.suffix in (".json", ".csv", ".png", ".txt", "")
        found[str(path.relative_to(folder))] = "" if timed else hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def small(folder: Path) -> None:
    with suppress(FileExistsError), run_folder(folder / "run", {"lr": QUIET["lr"]}) as inside:  # else it is finished
        network = small_network()
        train(network, Patterns(8), Patterns(3), epochs=2, checkpoint=inside / "train.checkpoint", **QUIET)
        save(network, inside / "network.safetensors")


def whole(folder: Path, experiment: Experiment = TRAINED) -> None:
    with suppress(FileExistsError):
        experiment.run(folder / "run", progress=False)


def pretrained(folder: Path) -> None:
    whole(folder, replace(TRAINED, pretraining=LOOP, training=None))


def undisturbed(job: Callable[[Path], None], folder: Path) -> tuple[int, dict[str, str]]:
    """How many calls a job makes, and what it leaves."""
    (folder / "whole").mkdir()
    assert wait(begin(job, folder / "whole")) == 0
    wanted = content(folder / "whole")
    assert any(wanted.values())
    return int((folder / "calls").read_text()), wanted


@pytest.mark.parametrize("kill", [pytest.param(True, marks=pytest.mark.slow), False], ids=["killed", "failed"])
def test_whichever_call_is_the_last_nothing_is_lost_or_mixed_and_the_next_run_ends_in_the_same_bits(
    kill: bool, tmp_path: Path
):
    small(tmp_path / "first")  # whatever is compiled and kept is so before calls are counted
    calls, wanted = undisturbed(small, tmp_path)
    assert calls > 20
    codes = []
    for n in range(1, calls + 1):
        (folder := tmp_path / str(n)).mkdir()
        codes.append(wait(begin(small, folder, n, None if kill else FAULTS[n % len(FAULTS)])))
        small(folder)
        assert content(folder) == wanted, n
    reported = codes.count(-signal.SIGKILL if kill else 2)
    assert reported == calls if kill else reported > calls / 2 and codes.count(1) == 0


@pytest.mark.slow
@pytest.mark.parametrize("job", [whole, pretrained])
def test_a_run_that_is_killed_and_begun_again_ends_as_an_undisturbed_one(job: Callable[[Path], None], tmp_path: Path):
    draw, killed, started = random.Random(0), 0, time.perf_counter()
    calls, wanted = undisturbed(job, tmp_path)
    seconds = time.perf_counter() - started
    for attempt in range(KILLS):
        (folder := tmp_path / str(attempt)).mkdir()
        for _ in range(draw.randint(1, 3)):
            clock = draw.random() < 0.5
            child = begin(job, folder, None if clock else draw.randint(1, calls))
            if clock:
                time.sleep(draw.uniform(0, seconds))
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            killed += wait(child) == -signal.SIGKILL
        assert wait(begin(job, folder)) == 0
        assert content(folder) == wanted
    assert killed
