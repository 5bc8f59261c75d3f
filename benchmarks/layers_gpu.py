"""How fast, and in how little memory, do recurrent spiking layers run forward and backward on a
GPU, next to other libraries?

    python benchmarks/layers_gpu.py [--rounds 20]

The networks, inputs, loss and firing rates of layers.py: two recurrent layers of 256, 700 inputs of
which 1 % spike, B = 100, T = 100 and 250. Ours runs by its kernels, by them with recomputation, and
by the loop of single operations that they replace. Times are medians between two CUDA events, all
networks taking their turns in one process, after three rounds that make the kernels; memory is what
torch allocates at most during one forward and backward pass beyond what it held before. How many
spikes differ between kernels and loop, and how far their gradients are apart on the steps before
the first of them, is in the JSON. Writes results/layers_gpu.json, .md and .png, or says that there
is no CUDA device. `--device cpu --small --folder FOLDER` only tries the script out.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import median

import torch
from _layers import OURS, Peer, build, gains_for
from _layers_libraries import LIBRARIES
from _layers_report import against
from layers import RATE, RESULTS, noise, there_and_back
from torch import Tensor

from neurolsc.neurons.fast import sequence

LOOP = "neurolsc ALIF+, loop"
FIRST, *_ = OURS
NAMES = [FIRST, LOOP, *LIBRARIES]


@contextmanager
def by_loop() -> Iterator[None]:
    """Our layers run without kernels."""
    suits, sequence.suits_gpu = sequence.suits_gpu, lambda *_: False
    try:
        yield
    finally:
        sequence.suits_gpu = suits


def run(name: str, network: Peer, x: Tensor) -> None:
    """One forward and backward pass."""
    if name != LOOP:
        return there_and_back(network, x)
    with by_loop():
        return there_and_back(network, x)


def timed(way: Callable[[], None], device: str) -> float:
    """Milliseconds."""
    if device == "cpu":
        started = time.perf_counter()
        way()
        return 1e3 * (time.perf_counter() - started)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    way()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end)


def race(ways: dict[str, Callable[[], None]], rounds: int, device: str) -> dict[str, float]:
    """The median of several rounds in turn, after three more."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(3 + rounds):
        for name, way in ways.items():
            times[name].append(timed(way, device))
    return {name: round(median(each[3:]), 3) for name, each in times.items()}


def peak(way: Callable[[], None], network: Peer, device: str) -> float:
    """MB that a pass takes beyond what was held before; 0 on a CPU, where torch does not count."""
    if device == "cpu":
        return 0.0
    network.zero_grad()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    way()
    torch.cuda.synchronize()
    return round((torch.cuda.max_memory_allocated() - before) / 2**20, 1)


def agreement(network: Peer, x: Tensor) -> dict[str, float | int]:
    """Kernels and loop on the same input."""
    with torch.no_grad():
        kernels = network.spikes(x)
        with by_loop():
            loop = network.spikes(x)
    differ = torch.stack([(one != other).flatten(1).any(1) for one, other in zip(kernels, loop, strict=True)]).any(0)
    same = int(differ.int().argmax()) if differ.any() else len(x)
    gradients = []
    if same:
        for name in (FIRST, LOOP):
            run(name, network, x[:same])
            gradients.append(torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None]))
    apart = (gradients[0] - gradients[1]).norm() / gradients[1].norm() if gradients else torch.tensor(torch.nan)
    share = torch.stack([(one != other).float().mean() for one, other in zip(kernels, loop, strict=True)]).mean()
    return {"spikes that differ": share.item(), "steps without": same, "gradients apart by": apart.item()}


def layers(steps: int, batch: int, sizes: tuple[int, int, int], rounds: int, device: str) -> dict:
    x, networks, rates = noise(steps, batch).to(device), {}, {}
    makers = {LOOP: OURS[FIRST]} | OURS | LIBRARIES
    for name in NAMES:
        make = partial(lambda make, *sizes: make(*sizes).to(device), makers[name])
        networks[name] = build(make, sizes, gains_for(make, x, sizes, RATE))
        with torch.no_grad():
            rates[name] = [round(z.mean().item(), 4) for z in networks[name].spikes(x)]
    ways = {name: partial(run, name, network, x) for name, network in networks.items()}
    ms = race(ways, rounds, device)
    mb = {name: peak(way, networks[name], device) for name, way in ways.items()}
    return {
        "steps": steps,
        "batch": batch,
        "ms": ms,
        "rates": rates,
        "peak MB": mb,
        "time": against(ms[FIRST], {name: ms[name] for name in LIBRARIES}),
        "kernels and loop": agreement(networks[FIRST], x),
    }


def write(report: dict, folder: Path) -> None:
    """Write layers_gpu.json, .md and .png."""
    (folder / "layers_gpu.json").write_text(json.dumps(report, indent=1) + "\n")
    lines = [", ".join(f"{key} {value}" for key, value in report["about"].items()), ""]
    lines += ["| forward and backward, 2 layers | T | B | ms | times ours | peak MB | rates |", "| --- " * 7 + "|"]
    for done in report["layers"]:
        for name, ms in done["ms"].items():
            rates = ", ".join(f"{rate:.3f}" for rate in done["rates"][name])
            cells = [name, done["steps"], done["batch"], ms, f"{ms / done['ms'][FIRST]:.2f}", done["peak MB"][name]]
            lines.append("| " + " | ".join(map(str, [*cells, rates])) + " |")
    (folder / "layers_gpu.md").write_text("\n".join(lines) + "\n")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained")
    rows = figure.subplots(len(report["layers"]), 2, sharey=True, squeeze=False)
    for row, done in zip(rows, report["layers"], strict=True):
        for axes, key in zip(row, ("ms", "peak MB"), strict=True):
            colors = ["C0" if name.startswith("neurolsc") else "0.6" for name in NAMES]
            axes.bar_label(axes.barh(NAMES, [done[key][name] for name in NAMES], color=colors), fmt="%.3g", padding=2)
            axes.set(title=f"T = {done['steps']}: {key}")
            axes.margins(x=0.15)
    rows[0][0].invert_yaxis()
    figure.savefig(folder / "layers_gpu.png", dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="2 x 16, B = 4, T = 8")
    parser.add_argument("--folder", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("torch finds no CUDA device here: nothing was measured, and nothing is written.")
        return
    if arguments.device == "cpu" and arguments.folder == RESULTS:
        parser.error("--device cpu is no measurement of a GPU: give another --folder.")
    packages = {package: version(package) for package in ("torch", "snntorch", "norse")}
    if arguments.device == "cuda":
        packages |= {"triton": version("triton"), "device": torch.cuda.get_device_name()}
    report = {
        "about": {"date": time.strftime("%Y-%m-%d"), "rounds": arguments.rounds, **packages},
        "layers": [],
    }
    for steps in (8,) if arguments.small else (100, 250):
        sizes, batch = ((700, 16, 4), 4) if arguments.small else ((700, 256, 20), 100)
        report["layers"].append(layers(steps, batch, sizes, arguments.rounds, arguments.device))
        print(json.dumps(report["layers"][-1], indent=1), flush=True)
    write(report, arguments.folder)


if __name__ == "__main__":
    main()
