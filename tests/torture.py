"""Kill runs, saves, caches and exports with SIGKILL again and again, and see what comes of it.

    python -m tests.torture [--kills 100] [--seed 0] [--only train] [--json FILE]

Every job is run undisturbed once. Then it is begun in a fresh folder and killed, one to three times
in a row, each time begun again; at last it is let end. What it made must then be what the
undisturbed one made, bit for bit, and no file may lie there that does not lie beside that.

Half of the kills come at a moment of the clock, spread over the time that the job takes; the others
at a call that changes the disk (open for writing, put on the disk, rename, remove, make a folder),
just before or just after it, each as likely.
"""

import argparse
import builtins
import datetime
import hashlib
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MPLBACKEND", "Agg")

import click
import pytorch_optimizer  # noqa: F401
import torch
import torch._dynamo

import neurolsc
import neurolsc.plots
from neurolsc import ALIFPlus, Network, save
from neurolsc.cli import app
from neurolsc.datasets import SHD
from neurolsc.experiment import Experiment
from neurolsc.experiment.config import DataSettings, NetworkSettings, PretrainSettings, TrainSettings
from tests.words import draw_words, write_words

WORDS = 160
DATA = DataSettings(data="shd", dt=0.05, channels=70, repeat=1, binary=True)
NETWORK = NetworkSettings(cell="ALIFPositive", reset="static", width=12, layers=2, tau_v=3.0)
SCALE = PretrainSettings("0.5", rule="hold-threshold", method="scale", pretrain_samples=2, pretrain_times=4)
LOOP = PretrainSettings("1", rule="paper", pretrain_steps=25, pretrain_samples=2, pretrain_times=4)
TRAIN = TrainSettings(epochs=4, batch_size=8, lr=0.01)
CELLS = {f"lr-{lr}": Experiment(NETWORK, DATA, SCALE, TrainSettings(2, 8, lr)) for lr in (0.01, 0.003)}
TRAINED = Experiment(NETWORK, DATA, None, TRAIN)


def cached(folder: Path) -> None:
    """A data set whose cache is made."""
    data = SHD.from_file(folder.parent / "words.h5", dt=1e-3, cache=folder / "cache")
    x, _ = next(iter(data.__getitems__([0, 1])))
    (folder / "read").write_bytes(x.numpy().tobytes())


def run(experiment: Experiment, out: Path) -> None:
    """A run, unless it is finished."""
    with suppress(FileExistsError):
        experiment.run(out)


def saves(folder: Path) -> None:
    """A network of 4 MB that grows, saved over itself."""
    torch.manual_seed(0)
    network = Network([ALIFPlus(300, 700)], 20)
    for i in range(12):
        with torch.no_grad():
            network.readout.weight.fill_(i)  # type: ignore[union-attr,operator]
        save(network, folder / "network.safetensors")


def sweep(folder: Path) -> None:
    """The cells of a sweep, one after the other."""
    for name, cell in CELLS.items():
        run(cell, folder / name)


def export(folder: Path) -> None:
    """A trained network into integers, trained through them first."""
    words = ["export", folder.parent / "trained", "--to", "netx", "--samples", "8", "--fine-tune", "2", "--force"]
    try:
        app.main([*map(str, words), "--out", str(folder / "netx")], standalone_mode=False)
    except click.ClickException as error:
        if "exists already" not in error.message:
            raise


JOBS: dict[str, Callable[[Path], None]] = {
    "train": lambda folder: run(TRAINED, folder / "run"),
    "pretrain": lambda folder: run(Experiment(NETWORK, DATA, LOOP), folder / "run"),
    "sweep cells": sweep,
    "export": export,
    "save": saves,
    "cache of spikes": cached,
}
TIMED = (".json", ".csv", ".png", ".txt", ".net")
"""files that tell how long something took, or when they were drawn: they must be there"""


@dataclass
class Found:
    """What came of the kills of one job."""

    kills: int = 0
    by_clock: int = 0
    chains: int = 0
    in_writing: int = 0
    """kills after which a temporary or an unfinished folder was there"""
    lost: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


class Fuse:
    """Counts the calls that change the disk, and kills the process at one of them."""

    CALLS = ("open", "fsync", "replace", "rename", "unlink", "mkdir", "rmdir", "truncate", "ftruncate")

    def __init__(self, at: float | None = None) -> None:
        self.count, self.at = 0, at
        for name in self.CALLS:
            setattr(os, name, self.wrapped(getattr(os, name)))
        builtins.open = io.open = self.opening(io.open)

    def opening(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def opened(file: Any, mode: str = "r", *arguments: Any, **keywords: Any) -> Any:
            return (self.wrapped(call) if set(mode) & set("wxa+") else call)(file, mode, *arguments, **keywords)

        return opened

    def wrapped(self, call: Callable[..., object]) -> Callable[..., object]:
        def wrapper(*arguments: object, **keywords: object) -> object:
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
    """Run a job in a process of its own; its number. It notes how many calls it made."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        torch.set_num_threads(1)
        with open(folder.parent / "log", "wb") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        fuse = Fuse(at)
        job(folder)
        (folder.parent / "calls").write_text(str(fuse.count))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def wait(child: int) -> int:
    """The exit code; negative: of a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def names(folder: Path) -> list[str]:
    """The name of every file and folder in a folder, however deep."""
    return [path.name for path in folder.rglob("*")]


def content(folder: Path) -> dict[str, str]:
    """Every file by its path, with a digest where it must be the same to the bit."""
    files = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*"))}
    return {name: _digest(path) for name, path in files.items()}


def _digest(path: Path) -> str:
    if path.is_dir() or path.suffix in TIMED or path.name.startswith("."):
        return ""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def torture(job: Callable[[Path], None], root: Path, kills: int, draw: random.Random) -> Found:
    """Kill a job so many times."""
    found, whole = Found(), root / "whole"
    whole.mkdir()
    started = time.perf_counter()
    if wait(begin(job, whole)):
        raise RuntimeError((root / "log").read_text())
    seconds, calls, wanted = time.perf_counter() - started, int((root / "calls").read_text()), content(whole)
    misses = 0
    while found.kills < kills and misses < 5 * kills + 20:
        folder = root / f"chain-{found.chains}"
        folder.mkdir()
        for _ in range(min(draw.randint(1, 3), kills - found.kills)):
            clock = found.by_clock * 2 <= found.kills
            child = begin(job, folder, None if clock else draw.randint(1, calls))
            if clock:
                time.sleep(draw.uniform(0, seconds))
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            if wait(child) != -signal.SIGKILL:
                misses += 1  # it was faster: there was less left to do
                continue
            found.kills += 1
            found.by_clock += clock
            found.in_writing += any(name.startswith(".") or ".partial" in name for name in names(folder))
        found.chains += 1
        check(job, folder, wanted, found)
        shutil.rmtree(folder)
    shutil.rmtree(whole)
    return found


def check(job: Callable[[Path], None], folder: Path, wanted: dict[str, str], found: Found) -> None:
    """Let a job end, and compare; the second time is the next one that comes along."""
    for _ in range(2):
        if wait(begin(job, folder)):
            found.lost.append("it does not end: " + (folder.parent / "log").read_text().strip().splitlines()[-1])
            return
    made = content(folder)
    found.lost += [name for name, digest in wanted.items() if made.get(name) != digest]
    found.left += sorted(made.keys() - wanted.keys())


def table(found: dict[str, Found]) -> str:
    """What came of it, as lines."""
    head = f"{'':16}  kills  by the clock  at a call  chains  in the middle of a run or write  lost  left behind"
    lines = [
        f"{name:16}  {f.kills:>5}  {f.by_clock:>12}  {f.kills - f.by_clock:>9}  {f.chains:>6}  {f.in_writing:>31}"
        f"  {len(f.lost):>4}  {len(f.left):>11}"
        for name, f in found.items()
    ]
    return "\n".join([head, *lines])


def prepare(root: Path) -> None:
    """What the jobs need: words, and a trained network."""
    write_words(root / "words.h5", draw_words(WORDS))
    if wait(begin(lambda _: run(TRAINED, root / "trained"), root / "whole")):
        raise RuntimeError((root / "log").read_text())


def shares(kills: int, jobs: int) -> Iterator[int]:
    """So many kills among so many jobs."""
    for i in range(jobs):
        yield kills // jobs + (i < kills % jobs)


def main() -> int:
    """Torture all jobs, print the table, and fail if anything was lost or left behind."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=JOBS, action="append")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    jobs = {name: job for name, job in JOBS.items() if not given.only or name in given.only}
    found, draw, started = {}, random.Random(given.seed), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        for (name, job), kills in zip(jobs.items(), shares(given.kills, len(jobs)), strict=True):
            found[name] = torture(job, Path(folder), kills, draw)
            for what in ("lost", "left"):
                for line in getattr(found[name], what):
                    print(f"{name}: {what}: {line}", flush=True)
    seconds = time.perf_counter() - started
    print(f"{table(found)}\n{sum(f.kills for f in found.values())} kills in {seconds:.0f} s")
    if given.json:
        about = {"date": str(datetime.date.today()), "torch": torch.__version__, "neurolsc": neurolsc.__version__}
        about |= {"seed": given.seed, "seconds": round(seconds)}
        given.json.write_text(json.dumps({"about": about, "jobs": {n: vars(f) for n, f in found.items()}}, indent=1))
    return int(any(f.lost or f.left for f in found.values()))


if __name__ == "__main__":
    sys.exit(main())
