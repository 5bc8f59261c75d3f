"""How fast, and in how little memory, do recurrent spiking layers run forward and backward, next to those of four libraries?

    python benchmarks/layers.py [--rounds 5] [--parts layers digits growth]

Two recurrent layers of 256 and a linear readout of 20 classes, 700 inputs of which 1 % spike, B = 100, T = 100 and 250; and one
training step (cross-entropy and Adam) of spike-latency MNIST, 784 inputs, 2 x 128, T = 100, B = 256, on the digits in the package.
Every library gets the same input and the same loss; its input weights are scaled until its layers fire 5 % of the time, and the
rates are in the table. Times are processor time, the median of several rounds in one process and one thread, in which all take
their turns. The floor is what the products take that dense spikes need, at the rate that torch.mm reaches here for one step: nine
of (B, N) x (N, N) per step (forward, back and for the weights: recurrence of both layers, input of the second one), the readout,
and of the first layer's input one row per spike, forward and for the weights. Memory is the rise of the resident set's peak over
one forward and backward pass, at most of three processes (Linux). spikingjelly takes part if it is installed (pip install --no-deps
spikingjelly; it wants loguru). Writes results/layers.json, .md and .png, in which parts that are not run stay as they
were; takes about five minutes of one core.
"""

import argparse
import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from _layers import CONTESTANTS, OURS, PEERS, Ours, Peer, build, gains_for
from _layers_report import write
from torch import Tensor
from torch.nn.functional import cross_entropy

from neurolsc.datasets import SpikeLatencyMNIST, collate

RESULTS = Path(__file__).parent / "results"
SIZES, BATCH, RATE, DENSITY = (700, 256, 20), 100, 0.05, 0.01
IMPORT = "import time, torch; start = time.process_time(); import neurolsc; print(time.process_time() - start)"


def noise(steps: int, batch: int = BATCH) -> Tensor:
    """The input: independent spikes (T, B, n_in)."""
    random = torch.rand(steps, batch, SIZES[0], generator=torch.Generator().manual_seed(0))
    return (random < DENSITY).float()


def there_and_back(network: Peer, x: Tensor) -> None:
    """One forward and backward pass."""
    network.zero_grad()
    network(x).square().mean().backward()


def training_step(network: Peer, optimizer: torch.optim.Optimizer, x: Tensor, labels: Tensor) -> None:
    """One step of training on the cross-entropy of every step."""
    optimizer.zero_grad()
    logits = network(x)
    cross_entropy(logits.flatten(0, 1), labels.repeat(len(logits))).backward()
    optimizer.step()


def race(ways: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Milliseconds of each way, the median of several rounds in turn; one more goes ahead."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for lap in range(rounds + 1):
        for name, way in ways.items():
            started = time.process_time()
            way()
            if lap:
                times[name].append(1e3 * (time.process_time() - started))
    return {name: round(median(each), 1) for name, each in times.items()}


def floor(steps: int, x: Tensor, rounds: int) -> float:
    """Milliseconds of the products that dense spikes need."""
    _, n, classes = SIZES
    a, b, out = torch.randn(BATCH, n), torch.randn(n, n), torch.empty(BATCH, n)

    def products() -> None:
        for _ in range(100):
            torch.mm(a, b, out=out)

    rate = 100 * BATCH * n * n / race({"mm": products}, 5 * rounds)["mm"]
    return (9 * steps * BATCH * n * n + 3 * steps * BATCH * n * classes + 2 * x.count_nonzero().item() * n) / rate


def peak(name: str, steps: int, gains: list[float]) -> float:
    """MB by which the resident set rises over a forward and backward pass, at most of three processes of its own.

    Linux now and then reports a third of a peak, and never more than it was.
    """
    command = [sys.executable, __file__, "--peak", name, str(steps), json.dumps(gains)]
    runs = [subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(3)]
    return max(float(run.stdout.split()[-1]) for run in runs)


def print_peak(name: str, steps: int, gains: list[float]) -> None:
    """The child's part of :func:`peak`."""

    def status(key: str) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024

    network, x = build(CONTESTANTS[name], SIZES, gains), noise(steps)
    there_and_back(network, x[:3])
    ctypes.CDLL(None).malloc_trim(0)  # what is held and not used would be taken first
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = status("VmRSS")
    there_and_back(network, x)
    print(round(status("VmHWM") - before, 1))


def against(ours: float, peers: dict[str, float]) -> dict[str, object]:
    """Our time or memory next to the best of the others."""
    best = min(peers, key=peers.__getitem__)
    return {"best peer": best, "peer / ours": round(peers[best] / ours, 2), "ours / peer": round(ours / peers[best], 2)}


def layers(steps: int, gains: dict[str, list[float]], rounds: int) -> dict:
    """Times, rates and memory of 2 x 256."""
    x = noise(steps)
    networks = {name: build(make, SIZES, gains[name]) for name, make in CONTESTANTS.items()}
    with torch.no_grad():
        rates = {name: [round(z.mean().item(), 4) for z in network.spikes(x)] for name, network in networks.items()}
    ms = race({name: partial(there_and_back, network, x) for name, network in networks.items()}, rounds)
    mb = {name: peak(name, steps, gains[name]) for name in CONTESTANTS}
    least = floor(steps, x, rounds)
    return {
        "steps": steps,
        "ms": ms,
        "rates": rates,
        "peak MB": mb,
        "time": against(ms[OURS[0]], {name: ms[name] for name in PEERS}),
        "floor ms": round(least, 1),
        "ours / floor": round(ms[OURS[0]] / least, 2),
        "memory": against(mb[OURS[0]], {name: mb[name] for name in PEERS}),
        "memory with recomputation": against(mb[OURS[1]], {name: mb[name] for name in PEERS}),
    }


def digits(rounds: int) -> dict:
    """A training step of spike-latency MNIST."""
    data, sizes = SpikeLatencyMNIST.embedded("train"), (784, 128, 10)
    x, labels = collate([data[i] for i in range(256)])
    x, ways, rates = x.float(), {}, {}
    for name, make in CONTESTANTS.items():
        network = build(make, sizes, gains_for(make, x[:, :50], sizes, RATE))
        rates[name] = [round(z.mean().item(), 4) for z in network.spikes(x)]
        ways[name] = partial(training_step, network, torch.optim.Adam(network.parameters(), 1e-4), x, labels)
    ms = race(ways, rounds)
    return {"ms": ms, "rates": rates, "time": against(ms[OURS[0]], {name: ms[name] for name in PEERS})}


def growth(rounds: int) -> list[dict]:
    """Our time, and snnTorch's where it has such a network, over N, T, B, L and the rate, from 2 x 256, T = 50, B = 100."""
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
                ways[who] = partial(there_and_back, network, x)
            rows.append(now | {"over": name, "ms": race(ways, rounds)})
            print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--parts", nargs="+", choices=("layers", "digits", "growth"), default=["layers", "digits", "growth"]
    )
    parser.add_argument("--peak", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.peak:
        name, steps, gains = arguments.peak
        print_peak(name, int(steps), json.loads(gains))
        return
    rounds, parts = arguments.rounds, arguments.parts
    path = RESULTS / "layers.json"
    report = json.loads(path.read_text()) if path.exists() else {}
    report["about"] = {
        "date": time.strftime("%Y-%m-%d"),
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        **{package: version(package) for package in ("torch", "snntorch", "norse")},
        "spikingjelly": version("spikingjelly") if "spikingjelly LIFNode" in CONTESTANTS else None,
    }
    if "layers" in parts:
        runs = [
            subprocess.run([sys.executable, "-c", IMPORT], check=True, capture_output=True, text=True) for _ in range(5)
        ]
        report["import of neurolsc beyond torch, s"] = round(median(float(run.stdout) for run in runs), 2)
        gains = {name: gains_for(make, noise(100), SIZES, RATE) for name, make in CONTESTANTS.items()}
        report["layers"] = [layers(steps, gains, rounds) for steps in (100, 250)]
    if "digits" in parts:
        report["digits"] = digits(rounds)
    if "growth" in parts:
        report["growth"] = growth(min(rounds, 3))
    write(report, RESULTS)


if __name__ == "__main__":
    main()
