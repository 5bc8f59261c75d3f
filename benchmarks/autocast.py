"""Is bfloat16 autocast slower than float32? Updates, forward and backward, of small networks. A minute on one core.

Two recurrent layers of 128 neurons, 50 steps, 64 samples. In turn, so that what else the machine does falls on both;
processor time, the median of all rounds. The first line says whether the processor has products in bfloat16: without
them PyTorch imitates them.
"""

import time
from pathlib import Path
from statistics import median

import torch
from torch.nn.functional import cross_entropy

from neurolsc import GRU, LIF, LSTM, ALIFPlus, Cell, Network
from neurolsc.neurons import RadLIF

STEPS, BATCH, INPUTS, WIDTH, CLASSES = 50, 64, 64, 128, 10
UPDATES, ROUNDS = 5, 5
UNITS = ("avx512_bf16", "amx_bf16", "avx512_fp16", "amx_fp16")


def hardware() -> str:
    """The processor, and which products of half precision it has."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    known = dict(line.split("\t", 1) for line in lines if "\t" in line)
    name = next((value.strip(": \t") for key, value in known.items() if key == "model name"), "unknown processor")
    flags = next((value.split() for key, value in known.items() if key == "flags"), [])
    return f"{name}; in half precision: {', '.join(unit for unit in UNITS if unit in flags) or 'no products'}"


def seconds(network: Network, x: torch.Tensor, y: torch.Tensor, half: bool) -> float:
    """Processor time of an update."""
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    started = time.process_time()
    for _ in range(UPDATES):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = cross_entropy(network(x).mean(0), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return (time.process_time() - started) / UPDATES


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x = (torch.rand(STEPS, BATCH, INPUTS) < 0.3).float()
    y = torch.randint(CLASSES, (BATCH,))
    print(hardware())
    print("cell       float32, ms  autocast, ms  ratio")
    kinds: list[type[Cell]] = [LIF, ALIFPlus, RadLIF, GRU, LSTM]
    for kind in kinds:
        network = Network([kind(INPUTS, WIDTH), kind(WIDTH, WIDTH)], CLASSES)
        times: dict[bool, list[float]] = {False: [], True: []}
        for half in times:
            seconds(network, x, y, half)
        for _ in range(ROUNDS):
            for half in times:
                times[half].append(seconds(network, x, y, half))
        full, cast = (1e3 * median(times[half]) for half in times)
        print(f"{kind.__name__:10} {full:11.1f}  {cast:12.1f}  {cast / full:5.2f}")
