"""Jobs that are killed with SIGKILL and begun again lose nothing and leave nothing behind.

Each job runs undisturbed once. Then it is begun in a fresh folder and killed, at a moment of the
clock or at a call that changes the disk, and begun again; KILLS in the environment says how often.
"""

import builtins
import hashlib
import io
import os
import random
import shutil
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
from tests.patterns import QUIET, Patterns, small_network

KILLS = int(os.environ.get("KILLS", "1"))
CALLS = ("open", "fsync", "replace", "rename", "unlink", "mkdir", "rmdir", "truncate", "ftruncate")
TRAINED = Experiment(
    NetworkSettings(cell="ALIFPositive", reset="static", width=12, layers=2, tau_v=3.0),
    DataSettings(data="shd", dt=0.05, channels=70, repeat=1, binary=True),
    training=TrainSettings(epochs=2, batch_size=16, lr=0.01),
)
LOOP = PretrainSettings("1", rule="paper", pretrain_steps=12, pretrain_samples=2, pretrain_times=4)


def run(experiment: Experiment, out: Path) -> None:
    with suppress(FileExistsError):  # it is finished
        experiment.run(out, progress=False)


def function(folder: Path) -> None:
    network = small_network()
    train(network, Patterns(40), Patterns(12), epochs=4, checkpoint=folder / "c", **QUIET)
    save(network, folder / "network.safetensors")
    for file in folder.glob(".network*"):  # of a killed save, which has no owner
        file.unlink()


JOBS: dict[str, Callable[[Path], None]] = {
    "training": function,
    "run": lambda folder: run(TRAINED, folder / "run"),
    "pre-training": lambda folder: run(replace(TRAINED, pretraining=LOOP, training=None), folder / "run"),
}


class Fuse:
    """Counts the calls that change the disk, and kills the process before or after one of them."""

    def __init__(self, at: int | None) -> None:
        self.count, self.at = 0, at
        for name in CALLS:
            setattr(os, name, self.wrapped(getattr(os, name)))
        opening, writing = io.open, self.wrapped(io.open)
        builtins.open = io.open = lambda f, mode="r", *a, **k: (writing if set(mode) & set("wxa+") else opening)(
            f, mode, *a, **k
        )

    def wrapped(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*arguments: Any, **keywords: Any) -> Any:
            self.step()
            result = call(*arguments, **keywords)
            self.step()
            return result

        return wrapper

    def step(self) -> None:
        self.count += 1
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def begin(job: Callable[[Path], None], folder: Path, at: int | None = None) -> int:
    """Run a job in a process of its own, whose number this is; it notes how many calls it made."""
    if child := os.fork():
        return child
    try:
        torch.set_num_threads(1)
        fuse = Fuse(at)
        job(folder)
        (folder.parent / "calls").write_text(str(fuse.count))
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
        timed = path.is_dir() or path.suffix in (".json", ".csv", ".png", ".txt", "") or path.name.startswith(".")
        found[str(path.relative_to(folder))] = "" if timed else hashlib.sha256(path.read_bytes()).hexdigest()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_a_killed_job_that_is_begun_again_ends_as_an_undisturbed_one(name: str, tmp_path: Path):
    job, draw, killed = JOBS[name], random.Random(0), 0
    (whole := tmp_path / "whole").mkdir()
    started = time.perf_counter()
    assert wait(begin(job, whole)) == 0
    seconds, calls, wanted = time.perf_counter() - started, int((tmp_path / "calls").read_text()), content(whole)
    assert any(wanted.values())
    for attempt in range(KILLS):
        (folder := tmp_path / f"{attempt}").mkdir()
        for _ in range(draw.randint(1, 3)):
            clock = draw.random() < 0.5
            child = begin(job, folder, None if clock else draw.randint(1, calls))
            if clock:
                time.sleep(draw.uniform(0, seconds))
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            killed += wait(child) == -signal.SIGKILL
        for _ in range(2):  # the second time it finds all that is done
            assert wait(begin(job, folder)) == 0
        assert content(folder) == wanted
        shutil.rmtree(folder)
    assert killed
