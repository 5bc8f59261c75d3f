"""Progress: bars on a terminal, plain lines in files and pipes, nothing where it is not wanted."""

import itertools
import os
import re
import subprocess
import sys
from typing import NamedTuple

import pytest
import torch

from neurolsc import Cell, Network, radius_profile
from neurolsc.progress import reporting

WORK = """
import torch
from neurolsc import ALIFPlus, Network, pretrain, progress, radius_profile, scale_to_radius, train

progress.EVERY = 0.0
torch.manual_seed(0)
network = Network([ALIFPlus(20, 16), ALIFPlus(16, 16)], n_out=3)
x = (torch.rand(20, 8, 20) < 0.2).float()
result = pretrain(network, [x], target=0.5)
scaled = scale_to_radius(network, x, target=0.5)
radius_profile(network, x, progress=True)
items = [(x[:, i], i % 3) for i in range(8)]
train(network, items, items, epochs=3, batch_size=2)
train(network, items, items, epochs=1, progress=False)
print(result.converged, result.steps, scaled.steps)
"""


def work(stderr: int) -> tuple[int, int]:
    """Run it, and tell how many steps were taken, and measurements made."""
    done = subprocess.run([sys.executable, "-c", WORK], stdout=subprocess.PIPE, stderr=stderr, text=True, check=True)
    converged, steps, measurements = done.stdout.split()
    assert converged == "True" and 0 < int(steps) < 200
    return int(steps), int(measurements)


@pytest.fixture(scope="module")
def in_a_file(tmp_path_factory) -> tuple[list[str], int, int]:
    """Lines of standard error in a file, steps and measurements."""
    path = tmp_path_factory.mktemp("progress") / "stderr"
    with path.open("wb") as file:
        steps, measurements = work(file.fileno())
    return path.read_bytes().decode().splitlines(keepends=True), steps, measurements


@pytest.mark.slow
def test_off_a_terminal_every_epoch_is_one_plain_line(in_a_file):
    lines, *_ = in_a_file
    assert not any("\r" in line for line in lines)
    epochs = [line for line in lines if line.startswith("epoch")]
    assert len(epochs) == 3  # none of a training that is to be quiet
    for number, line in enumerate(epochs, start=1):
        assert re.fullmatch(
            rf"epoch {number}/3: batch 4/4, [\d.]+ s, loss [\d.]+, validation [\d.]+ [\d.]+%\n", line
        ), line


@pytest.mark.slow
def test_off_a_terminal_other_work_tells_lines_whose_last_one_is_full(in_a_file):
    lines, steps, measurements = in_a_file
    taken = [line for line in lines if line.startswith("pretrain")]
    assert [re.search(r"step (\d+)/(\d+)", line).groups() for line in taken[:-1]] == [
        (str(n), "200") for n in range(1, steps + 1)
    ]
    assert re.fullmatch(
        rf"pretrain: step {steps}/{steps}, [\d.]+ s, time [\d.]+ [\d.]+ depth [\d.]+ [\d.]+\n", taken[-1]
    )
    assert f"scale: measurement {measurements}, " in [line for line in lines if line.startswith("scale")][-1]
    assert "radii: step 40/40, " in [line for line in lines if line.startswith("radii")][-1]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no pty")
def test_on_a_terminal_bars_are_written_over_and_that_of_a_converged_pretraining_ends_full():
    import fcntl
    import pty
    import struct
    import termios
    import threading

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
    said = bytearray()

    def listen() -> None:
        try:
            while part := os.read(ours, 4096):
                said.extend(part)
        except OSError:  # the other end is closed
            return

    listener = threading.Thread(target=listen)
    listener.start()
    steps, _ = work(theirs)
    os.close(theirs)
    listener.join()
    os.close(ours)
    frames = said.decode().replace("\n", "\r").split("\r")
    pretraining = [frame for frame in frames if frame.startswith("pretrain")]
    assert re.match(r"pretrain:   0%\|.* 0/200 ", pretraining[0])
    assert re.match(rf"pretrain: 100%\|█+\| {steps}/{steps} ", pretraining[-1])
    epochs = [frame for frame in frames if re.match(r"epoch 3/3: 100%.*loss [\d.]+, validation [\d.]+ ", frame)]
    assert epochs


def test_plain_lines_come_some_seconds_apart_and_once_at_the_end(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with reporting(9, desc="work", unit="piece", initial=1) as bar:
        for _ in range(7):
            now[0] += 4
            bar.update()
        assert bar.n == 8
    assert capsys.readouterr().err == (
        "work: piece 4/9, 12.0 s, about 20 s left\nwork: piece 7/9, 24.0 s, about 8 s left\nwork: piece 8/9, 28.0 s\n"
    )
    with reporting(9, desc="work", unit="piece", shown=False) as bar:
        bar.update()
        bar.complete()
    assert capsys.readouterr().err == ""


class Memory(NamedTuple):
    h: torch.Tensor


class Tanh(Cell):
    """A cell without a closed form."""

    def initial_state(self, batch):
        return Memory(torch.zeros(batch, self.n_hidden))

    def output(self, state):
        return state.h

    def update(self, x, z, state):
        return Memory(torch.tanh(0.5 * z + x))


def test_a_profile_shows_nothing_unless_it_is_slow_and_then_what_is_left(capsys, monkeypatch):
    network, x = Network([Tanh(80, 80)], n_out=2), torch.rand(6, 2, 80)
    radius_profile(network, x)
    assert capsys.readouterr().err == ""
    now = itertools.count(0.0, 6.0)
    monkeypatch.setattr("time.monotonic", lambda: next(now))
    monkeypatch.setattr("neurolsc.stability.profile.SLOW", 80)
    radius_profile(network, x)
    lines = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"radii: step [24]/6, \d+\.0 s, about \d+ s left", lines[0]), lines
    assert re.fullmatch(r"radii: step 6/6, \d+\.0 s", lines[-1])
    radius_profile(network, x, progress=False)
    assert capsys.readouterr().err == ""
