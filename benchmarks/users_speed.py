"""How much faster does a network of snnTorch, norse or spikingjelly run after `neurolsc.accelerate`?

    python benchmarks/users_speed.py [--networks "tutorial 5"] [--steps 25 100] [--rounds 7] [--compile] [--memory]
    python benchmarks/users_speed.py --device cuda --memory

Each network runs as its user wrote it and accelerated, in turn: forward alone (what is needed for a backward pass is
kept), forward and backward, and without gradients. In "784-100-10" and "tutorial 6" a call is one step, and
the loop is around it. One thread, processor time, the shortest of all rounds. With --compile, `torch.compile`
of the user's network runs beside them; it takes minutes to compile a loop of 25 steps. Memory is the growth of the
largest resident size during one forward and backward pass in a fresh process. Half an hour of one core.

On a GPU it is the time until the GPU has done its work, and the memory that torch allocates at most. The results are
then written to users_speed_gpu.json, not to users_speed.json.
"""

import argparse
import ctypes
import datetime
import gc
import json
import os
import platform
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import norse.torch as norse
import snntorch as snn
import torch
from snntorch import surrogate, utils
from spikingjelly.activation_based import functional, layer, neuron
from torch import Tensor, nn

from neurolsc import accelerate

RESULTS = Path(__file__).parent / "results"
CLASSES = 10
FAST = surrogate.fast_sigmoid(slope=25)


# ---------------------------------------------------------------- networks


class Tutorial5(nn.Module):
    """784-1000-10 of snnTorch's fifth tutorial, which shows the same image in all steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.fc1 = nn.Linear(784, 1000)
        self.lif1 = snn.Leaky(beta=0.95)
        self.fc2 = nn.Linear(1000, CLASSES)
        self.lif2 = snn.Leaky(beta=0.95)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mem1 = self.lif1.init_leaky()
        mem2 = self.lif2.init_leaky()
        spk2_rec = []
        mem2_rec = []
        for _ in range(self.steps):
            cur1 = self.fc1(x)
            spk1, mem1 = self.lif1(cur1, mem1)
            cur2 = self.fc2(spk1)
            spk2, mem2 = self.lif2(cur2, mem2)
            spk2_rec.append(spk2)
            mem2_rec.append(mem2)
        return torch.stack(spk2_rec, dim=0), torch.stack(mem2_rec, dim=0)


class Deep(nn.Module):
    """Layers of snnTorch in a loop over time; the membrane of the last is read."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        layers: list[Any] = list(self.layers)
        states: list[Any] = [each.reset_mem() if hasattr(each, "reset_mem") else None for each in layers]
        voltages = []
        for x_t in x:
            z = x_t
            for i, each in enumerate(self.layers):
                if states[i] is None:
                    z = each(z)
                else:
                    state = states[i] if isinstance(states[i], tuple) else (states[i],)
                    z, *after = each(z, *state)
                    states[i] = (z, *after) if len(state) > len(after) else tuple(after)
            voltages.append(states[-1][-1])
        return torch.stack(voltages)


def tutorial_6() -> nn.Module:
    """12C5-MP2-64C5-MP2-1024FC10 of snnTorch's sixth tutorial, whose loop is outside."""
    return nn.Sequential(
        nn.Conv2d(1, 12, 5),
        nn.MaxPool2d(2),
        snn.Leaky(beta=0.5, spike_grad=FAST, init_hidden=True),
        nn.Conv2d(12, 64, 5),
        nn.MaxPool2d(2),
        snn.Leaky(beta=0.5, spike_grad=FAST, init_hidden=True),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, CLASSES),
        snn.Leaky(beta=0.5, spike_grad=FAST, init_hidden=True, output=True),
    )


def in_steps() -> nn.Module:
    """784-100-10, as small as networks are whose call is one step."""
    return nn.Sequential(
        nn.Linear(784, 100),
        snn.Leaky(beta=0.9, spike_grad=FAST, init_hidden=True),
        nn.Linear(100, CLASSES),
        snn.Leaky(beta=0.9, spike_grad=FAST, init_hidden=True, output=True),
    )


def leaky(width: int, depth: int, *, recurrent: bool) -> nn.Module:
    layers: list[nn.Module] = []
    for i in range(depth):
        layers.append(nn.Linear(width if i else 140, width))
        if recurrent:
            layers.append(snn.RLeaky(beta=0.9, linear_features=width, spike_grad=FAST))
        else:
            layers.append(snn.Leaky(beta=0.9, spike_grad=FAST))
    return Deep(*layers, nn.Linear(width, CLASSES), snn.Leaky(beta=0.9, reset_mechanism="none"))


def norse_layers(width: int, depth: int, *, recurrent: bool) -> nn.Module:
    p = norse.LIFParameters(v_th=torch.tensor(0.3))
    layers: list[nn.Module] = []
    for i in range(depth):
        below = width if i else 140
        layers += (
            [norse.LIFRecurrent(below, width, p)] if recurrent else [norse.Lift(nn.Linear(below, width)), norse.LIF(p)]
        )
    return norse.SequentialState(*layers, norse.Lift(nn.Linear(width, CLASSES)), norse.LI())


def jelly(width: int, depth: int, mode: str) -> nn.Module:
    layers: list[nn.Module] = []
    for i in range(depth):
        layers += [layer.Linear(width if i else 140, width), neuron.LIFNode()]
    net = nn.Sequential(*layers, layer.Linear(width, CLASSES), neuron.LIFNode())
    functional.set_step_mode(net, mode)
    return net


# ---------------------------------------------------------------- calls


@dataclass(frozen=True)
class Case:
    """A network, what it reads, and how its user calls it.

    Attributes:
        example: what `accelerate` is given.
        call: a run over all steps, from rest, of the network or of the accelerated one: a number to differentiate.
    """

    net: nn.Module
    example: Tensor
    call: Callable[[Any], Tensor]


def case(name: str, steps: int, device: str) -> Case:
    torch.manual_seed(0)
    if name == "tutorial 5":
        x = torch.rand(128, 784).to(device)
        return Case(Tutorial5(steps).to(device), x, lambda model: model(x)[1].square().mean())
    if name == "tutorial 6":
        images = torch.rand(32, 1, 28, 28).to(device)

        def forward_pass(model: Any) -> Tensor:
            utils.reset(net)
            mem_rec = []
            for _ in range(steps):
                _, mem = model(images)
                mem_rec.append(mem)
            return torch.stack(mem_rec).square().mean()

        net = tutorial_6().to(device)
        return Case(net, images, forward_pass)
    if name == "784-100-10":
        frames = (torch.rand(steps, 32, 784) < 0.1).float().to(device)

        def stacked(model: Any) -> Tensor:
            utils.reset(small)
            mem_rec = []
            for frame in frames:
                _, mem = model(frame)
                mem_rec.append(mem)
            return torch.stack(mem_rec).square().mean()

        small = in_steps().to(device)
        return Case(small, frames[0], stacked)
    x = (torch.rand(steps, 64, 140) < 0.1).float().to(device)
    makers: dict[str, Callable[[], nn.Module]] = {
        "Leaky 3 x 128": lambda: leaky(128, 3, recurrent=False),
        "RLeaky 3 x 128": lambda: leaky(128, 3, recurrent=True),
        "RLeaky 3 x 512": lambda: leaky(512, 3, recurrent=True),
        "norse LIF 3 x 128": lambda: norse_layers(128, 3, recurrent=False),
        "norse LIFRecurrent 3 x 128": lambda: norse_layers(128, 3, recurrent=True),
        "spikingjelly multi-step 3 x 128": lambda: jelly(128, 3, "m"),
    }
    net = makers[name]().to(device)

    def call(model: Any) -> Tensor:
        functional.reset_net(net)
        out = model(x)
        return (out[0] if isinstance(out, tuple) else out).square().mean()

    return Case(net, x, call)


NETWORKS = (
    "tutorial 5",
    "tutorial 6",
    "784-100-10",
    "Leaky 3 x 128",
    "RLeaky 3 x 128",
    "RLeaky 3 x 512",
    "norse LIF 3 x 128",
    "norse LIFRecurrent 3 x 128",
    "spikingjelly multi-step 3 x 128",
)


def seconds(device: str) -> float:
    """Processor time; on a GPU the time now, when it has done all that was asked of it."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def timed(name: str, steps: int, rounds: int, device: str, *, compiled: bool) -> dict[str, dict[str, float]]:
    """Milliseconds of each contestant: forward alone, with backward, and without gradients."""
    found = case(name, steps, device)
    contestants: dict[str, Any] = {"own": found.net, "accelerated": accelerate(found.net, found.example)}
    if compiled:
        contestants["torch.compile"] = torch.compile(found.net)
    best: dict[str, dict[str, float]] = {}
    for number in range(rounds + 1):
        for contestant, model in contestants.items():
            found.net.zero_grad()
            start = seconds(device)
            loss = found.call(model)
            middle = seconds(device)
            loss.backward()
            end = seconds(device)
            alone = 0.0
            if contestant != "torch.compile":  # which would compile once more
                with torch.no_grad():
                    found.call(model).item()
                alone = seconds(device) - end
            if number == 0:  # compiles, and fills caches
                continue
            spent = best.setdefault(contestant, {"forward": float("inf"), "both": float("inf")})
            spent["forward"] = min(spent["forward"], 1e3 * (middle - start))
            spent["both"] = min(spent["both"], 1e3 * (end - start))
            if alone:
                spent["no gradients"] = min(spent.get("no gradients", float("inf")), 1e3 * alone)
    return best


def grown(name: str, steps: int, contestant: str, device: str) -> float:
    """MiB by which one forward and backward pass raises the memory of this process; on a GPU what torch allocates."""
    small = case(name, 4, device)
    small.call(accelerate(small.net, small.example) if contestant == "accelerated" else small.net).backward()
    found = case(name, steps, device)
    model = found.net
    if contestant == "accelerated":
        short = found.example[:4] if found.example.ndim == 3 else found.example
        model = accelerate(found.net, short)
    found.net.zero_grad()
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        found.call(model).backward()
        return (torch.cuda.max_memory_allocated() - held) / 2**20
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # else freed memory would be used again, and not count
    Path("/proc/self/clear_refs").write_text("5")  # the largest size is that of now
    before = resident("VmRSS")
    found.call(model).backward()
    return resident("VmHWM") - before


def resident(name: str) -> float:
    """Resident memory of this process in MiB, now (VmRSS) or at most (VmHWM); Linux alone tells it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def grown_in_a_process(name: str, steps: int, contestant: str, device: str) -> float:
    arguments = [sys.executable, __file__, "--networks", name, "--steps", str(steps), "--memory-of", contestant]
    arguments += ["--device", device]
    done = subprocess.run(arguments, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


# ---------------------------------------------------------------- results


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def place_of(run: dict[str, Any]) -> tuple[int, int]:
    """The place of a result in the table."""
    return NETWORKS.index(run["network"]), run["steps"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--steps", nargs="+", type=int, default=[25, 100, 250])
    parser.add_argument(
        "--rounds", type=int, default=7, help="of timing; 0 leaves the times of the results as they are"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--compile", action="store_true", help="run torch.compile of each network beside it")
    parser.add_argument("--memory", action="store_true", help="measure memory, too, at 100 steps")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    device: str = chosen.device
    if device == "cuda" and not torch.cuda.is_available():
        print("torch finds no CUDA device here: nothing was measured, and nothing is written.")
        return
    results = RESULTS / "users_speed.json"
    if device == "cuda":
        results = RESULTS / "users_speed_gpu.json"
    warnings.simplefilter("ignore", UserWarning)
    torch.set_num_threads(1)
    if chosen.memory_of:
        print(grown(chosen.networks[0], chosen.steps[0], chosen.memory_of, device))
        return
    old = json.loads(results.read_text()) if results.exists() else {"runs": []}
    runs = {(run["network"], run["steps"], run["contestant"]): run for run in old["runs"]}
    about = {
        "date": datetime.date.today().isoformat(),
        "device": f"one thread of {processor()}",
        **{name: version(name) for name in ("torch", "snntorch", "norse", "spikingjelly", "numba")},
        "samples": "128 (tutorial 5), 32 (tutorial 6, 784-100-10), 64",
    }
    if device == "cuda":
        about |= {"device": torch.cuda.get_device_name(), "triton": version("triton")}
    for name in chosen.networks:
        for steps in chosen.steps:
            found = timed(name, steps, chosen.rounds, device, compiled=chosen.compile) if chosen.rounds else {}
            for contestant, spent in found.items():
                run = runs.setdefault((name, steps, contestant), {})
                run.update(network=name, steps=steps, contestant=contestant, **spent)
            print(f"{name}, T = {steps}, ms: {found}", flush=True)
            if chosen.memory and steps == 100:
                for contestant in ("own", "accelerated"):
                    runs[name, steps, contestant]["memory"] = grown_in_a_process(name, steps, contestant, device)
            ordered = sorted(runs.values(), key=place_of)
            results.write_text(json.dumps({"about": about, "runs": ordered}, indent=1) + "\n")


if __name__ == "__main__":
    main()
