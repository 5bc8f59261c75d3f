"""How fast, in how little memory, do spiking layers run next to the strongest alternatives?

    python benchmarks/layers.py [--rounds 5] [--parts layers digits growth]

Two recurrent layers and a linear readout of 20 classes, 700 inputs, B = 100; forward and backward,
and forward alone, as logits from an input. Ours are ALIF+ and LIF. The others are four libraries'
layers (_layers_libraries.py), blocks of ten steps of the same equations compiled by torch.compile
(_layers_inductor.py; needs a C++ compiler), and a jitted jax.lax.scan of them and spyx's RLIF
(_layers_jax.py), which have an environment of their own (`make peers-env`) and stay out without it.
First each is checked against ours (_layers_check.py). Of the input as many entries are not zero as
in the spoken digits of the package (9 % in 100 steps, 4 % in 250), in one setting 1 %. Input
weights are scaled until all layers fire 5 or 20 % of the time, those of the same equations are
equal, and the rates are in the table. Beside it one training step (cross-entropy and Adam) of
spike-latency MNIST, 784 inputs, 2 x 128, T = 100, B = 256, on the digits in the package, with those
that run in torch.

Times are processor time of one thread on one core, the shortest of several rounds in which all take
their turns, those in jax in a process beside; compilation is left out. Memory is the rise of the
resident set's peak over one forward and backward pass, at most of three processes (Linux).
spikingjelly takes part if it is installed (pip install --no-deps spikingjelly; it wants loguru).
Writes results/layers.json, .md and .png, in which parts that are not run stay as they were; takes
half an hour of one core, and the first time as long again to compile.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from _layers import OURS, Ours, Peer, build, gains_for
from _layers_check import check
from _layers_child import SAME, Child, names
from _layers_inductor import INDUCTOR
from _layers_libraries import LIBRARIES
from _layers_report import against, write
from torch import Tensor
from torch.nn.functional import cross_entropy

from neurolsc.datasets import SpikeLatencyMNIST, collate

CONTESTANTS: dict[str, Callable[..., Peer]] = OURS | INDUCTOR | LIBRARIES
RESULTS = Path(__file__).parent / "results"
SIZES, BATCH, RATE, DENSITY = (700, 256, 20), 100, 0.05, 0.01
PARTS = ("layers", "digits", "growth")
IMPORT = "import time, torch; start = time.process_time(); import neurolsc; print(time.process_time() - start)"


@dataclass(frozen=True)
class Setting:
    """What is run: neurons in a layer, steps, the firing rate, and the share of the input that is
    not zero."""

    width: int
    steps: int
    rate: float
    density: float


SETTINGS = [
    Setting(256, 100, 0.05, 0.09),
    Setting(256, 100, 0.2, 0.09),
    Setting(256, 250, 0.05, 0.04),
    Setting(256, 250, 0.2, 0.04),
    Setting(128, 100, 0.05, 0.09),
    Setting(128, 100, 0.2, 0.09),
    Setting(256, 100, 0.05, 0.01),
]
MEASURED = (SETTINGS[0], SETTINGS[2])
"""Those whose memory is measured."""


def noise(steps: int, batch: int = BATCH, density: float = DENSITY) -> Tensor:
    """The input: independent spikes (T, B, n_in)."""
    random = torch.rand(steps, batch, SIZES[0], generator=torch.Generator().manual_seed(0))
    return (random < density).float()


def there_and_back(network: Peer, x: Tensor) -> None:
    """One forward and backward pass."""
    network.zero_grad()
    network(x).square().mean().backward()


def forward_alone(network: Peer, x: Tensor) -> None:
    """One forward pass of which nothing is kept."""
    with torch.no_grad():
        network(x)


def training_step(network: Peer, optimizer: torch.optim.Optimizer, x: Tensor, labels: Tensor) -> None:
    """One step of training on the cross-entropy of every step."""
    optimizer.zero_grad()
    logits = network(x)
    cross_entropy(logits.flatten(0, 1), labels.repeat(len(logits))).backward()
    optimizer.step()


def timed(way: Callable[[], None]) -> float:
    """Milliseconds of processor time."""
    started = time.process_time()
    way()
    return 1e3 * (time.process_time() - started)


def race(ways: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Milliseconds of each way, the least of several rounds in turn; one more goes ahead."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            times[name].append(way())
    return {name: round(min(each[1:]), 1) for name, each in times.items()}


def gains_of(setting: Setting, x: Tensor) -> dict[str, list[float]]:
    """The gains of each contestant in torch; those of the same equations have ours."""
    sizes, ours = (SIZES[0], setting.width, SIZES[2]), {}
    for name in (same[0] for same in SAME.values()):
        ours[name] = gains_for(OURS[name], x, sizes, setting.rate)
    others = {name: gains_for(make, x[:, :25], sizes, setting.rate) for name, make in LIBRARIES.items()}
    shared = {name: ours[SAME["ALIF" if "ALIF" in name else "LIF"][0]] for name in OURS | INDUCTOR}
    return shared | others


def peak(name: str, setting: Setting, gains: list[float]) -> float:
    """MB by which the resident set rises over a forward and backward pass, at most of three
    processes of its own.

    Linux now and then reports a third of a peak, and never more than it was.
    """
    command = [sys.executable, __file__, "--peak", name, json.dumps(asdict(setting)), json.dumps(gains)]
    runs = [subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(3)]
    return max(float(run.stdout.split()[-1]) for run in runs)


def print_peak(name: str, setting: Setting, gains: list[float]) -> None:
    """The child's part of :func:`peak`."""

    def status(key: str) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024

    x = noise(setting.steps, density=setting.density)
    network = build(CONTESTANTS[name], (SIZES[0], setting.width, SIZES[2]), gains)
    there_and_back(network, x[:10])
    ctypes.CDLL(None).malloc_trim(0)  # what is held and not used would be taken first
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = status("VmRSS")
    there_and_back(network, x)
    print(round(status("VmHWM") - before, 1))


def layers(setting: Setting, rounds: int, folder: Path) -> dict:
    """Times, rates and, in some settings, memory of two layers."""
    x, sizes = noise(setting.steps, density=setting.density), (SIZES[0], setting.width, SIZES[2])
    gains = gains_of(setting, x)
    networks = {name: build(make, sizes, gains[name]) for name, make in CONTESTANTS.items()}
    with torch.no_grad():
        rates = {name: [round(z.mean().item(), 4) for z in network.spikes(x)] for name, network in networks.items()}
    weights: dict[str, Ours] = {kind: networks[same[0]] for kind, same in SAME.items()}  # type: ignore[misc]
    run = {"setting": asdict(setting), "rates": rates, "ms": {}}
    remote, task = names(), folder / "task.npz"
    child = Child(weights, x, task) if remote else None
    rates |= {name: child.ask(name, "rates") for name in remote if child}
    for what, way in (("both", there_and_back), ("forward", forward_alone)):
        ways: dict[str, Callable[[], float]] = {
            name: partial(timed, partial(way, network, x)) for name, network in networks.items()
        }
        ways |= {name: partial(child.ask, name, what) for name in remote if child}
        run["ms"][what] = race(ways, rounds)
    if child:
        child.close()
    if setting in MEASURED:
        run["peak MB"] = {name: peak(name, setting, gains[name]) for name in CONTESTANTS}
        run["peak MB"] |= {name: remote_peak(name, weights, x, task) for name in remote}
    print(json.dumps(run), flush=True)
    return run


def remote_peak(name: str, networks: dict[str, Ours], x: Tensor, task: Path) -> float:
    """As :func:`peak`, of a contestant in jax."""
    found = []
    for _ in range(3):
        child = Child(networks, x, task)
        found.append(child.ask(name, "peak"))
        child.close()
    return max(found)


def digits(rounds: int) -> dict:
    """A training step of spike-latency MNIST."""
    data, sizes = SpikeLatencyMNIST.embedded("train"), (784, 128, 10)
    x, labels = collate([data[i] for i in range(256)])
    x, ways, rates = x.float(), {}, {}
    for name, make in CONTESTANTS.items():
        network = build(
            make, sizes, gains_for(OURS.get(name.replace("inductor", "neurolsc"), make), x[:, :50], sizes, RATE)
        )
        with torch.no_grad():
            rates[name] = [round(z.mean().item(), 4) for z in network.spikes(x)]
        step = partial(training_step, network, torch.optim.Adam(network.parameters(), 1e-4), x, labels)
        ways[name] = partial(timed, step)
    ms = race(ways, rounds)
    peers = {name: each for name, each in ms.items() if name not in OURS}
    return {"ms": ms, "rates": rates, "time": against(ms["neurolsc ALIF+"], peers)}


def growth(rounds: int) -> list[dict]:
    """Our time, and snnTorch's where it has such a network, over N, T, B, L and the rate, from 2 x
    256, T = 50, B = 100."""
    rows, peer = [], CONTESTANTS["snnTorch RLeaky"]
    base = {"N": 256, "T": 50, "B": 100, "L": 2, "rate": RATE}
    sweeps = {
        "N": [128, 256, 512],
        "T": [50, 100, 200],
        "B": [25, 50, 100],
        "L": [1, 2, 4],
        "rate": [0.01, 0.05, 0.1, 0.2],
    }
    for name, values in sweeps.items():
        for value in values:
            now = base | {name: value}
            x, sizes, ways = noise(now["T"], now["B"]), (SIZES[0], now["N"], SIZES[2]), {}
            for who, make in (
                {"ours": partial(Ours, depth=now["L"])} | ({"snnTorch": peer} if now["L"] == 2 else {})
            ).items():
                network = build(make, sizes, gains_for(make, x[:50, :25], sizes, now["rate"]))
                ways[who] = partial(timed, partial(there_and_back, network, x))
            rows.append(now | {"over": name, "ms": race(ways, rounds)})
            print(rows[-1], flush=True)
    return rows


def about(rounds: int) -> dict:
    """What took part."""
    found = {"date": time.strftime("%Y-%m-%d"), "threads": torch.get_num_threads(), "rounds": rounds}
    packages = ["torch", "snntorch", "norse", *(["spikingjelly"] if "spikingjelly LIFNode" in CONTESTANTS else [])]
    found |= {package: version(package) for package in packages}
    if names():
        lines = (Path(__file__).parent.parent / "peers-requirements.txt").read_text().splitlines()
        found |= dict(line.split("==") for line in lines if line.startswith(("jax==", "spyx==")))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--folder", type=Path, default=RESULTS)
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):  # children inherit it
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    if arguments.peak:
        name, setting, gains = arguments.peak
        print_peak(name, Setting(**json.loads(setting)), json.loads(gains))
        return
    rounds, parts, path = arguments.rounds, arguments.parts, arguments.folder / "layers.json"
    report = json.loads(path.read_text()) if path.exists() else {}
    report["about"] = about(rounds)
    if "layers" in parts:
        runs = [
            subprocess.run([sys.executable, "-c", IMPORT], check=True, capture_output=True, text=True) for _ in range(5)
        ]
        report["import of neurolsc beyond torch, s"] = round(median(float(run.stdout) for run in runs), 2)
        report["gradients apart by"] = check()
        with tempfile.TemporaryDirectory() as folder:
            report["layers"] = [layers(setting, rounds, Path(folder)) for setting in SETTINGS]
    if "digits" in parts:
        report["digits"] = digits(rounds)
    if "growth" in parts:
        report["growth"] = growth(min(rounds, 3))
    write(report, arguments.folder)


if __name__ == "__main__":
    main()
