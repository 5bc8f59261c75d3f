"""How many seconds do diagnose, radius_profile and initialisations cost on networks that people have?

    python benchmarks/seconds.py NAME [--networks "tutorial 5"] [--calls diagnose] [--limit 300]

Each row is one network and one call in a fresh process of one thread: the processor seconds of the first call, imports
that it needs included, and how many training steps these are. The process is the second of two alike: the first one
leaves behind what a machine has where the packages were used before, Python's bytecode and compiled kernels. A training
step is forward and backward of the same batch in the library's own loop, the fastest of five; of our cells it is the
plain loop over steps, without kernels. A call that takes longer than the limit is stopped there. NAME is that of the
column in results/seconds.json; rows that are there are passed over. Two hours of one core; fifteen minutes for --calls
diagnose radius_profile initialize.
"""

import argparse
import datetime
import json
import math
import os
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor, nn

RESULTS = Path(__file__).parent / "results"
CLASSES = 10
LEAST, STEPS = 10.0, 20.0  # a call may cost the larger of so many seconds and so many training steps
CALLS = (
    "diagnose",
    "radius_profile",
    "initialize",
    "FiringRate(0.15)",
    "Identity()",
    "Relay()",
    "LayerwiseScaling()",
    "LSUV()",
    "FluctuationDriven()",
    "ActivityPropagation()",
    "FourConditions()",
    "Glorot()",
    "He()",
    "IKUN()",
    "Orthogonal()",
    "LSC()",
    "LSC(method='scale')",
    "LSCSingular()",
    "LSCLyapunov()",
)


@dataclass
class Case:
    """A network as its library's users write it, and its loop."""

    model: nn.Module
    x: Tensor  # (T, B, n_in)
    loop: Callable[[Tensor], Tensor]  # the outputs of all steps, of the library's own loop
    input_shape: tuple[int, ...] | None = None


def digits(steps: int, batch: int) -> Tensor:
    """Digits as grey levels, the same at every step."""
    from neurolsc.datasets import MNISTPixels

    images = MNISTPixels.embedded("train").images[:batch] / 255
    return images.expand(steps, -1, -1).contiguous()


def coded(steps: int, batch: int) -> Tensor:
    """Digits as spikes, whose rates are the grey levels."""
    return (torch.rand(steps, batch, 784) < digits(steps, batch)).float()


def sound(steps: int, batch: int, n_in: int = 700) -> Tensor:
    """As many spikes as a cochlea sends, at random."""
    return (torch.rand(steps, batch, n_in) < 0.03).float()


def of_snntorch(modules: list[nn.Module], x: Tensor, input_shape: tuple[int, ...]) -> Case:
    from snntorch import utils

    model = nn.Sequential(*modules)

    def loop(x: Tensor) -> Tensor:
        utils.reset(model)
        return torch.stack([model(frame.view(-1, *input_shape)) for frame in x])

    return Case(model, x, loop, input_shape)


def tutorial_5() -> Case:
    import snntorch as snn

    def leaky() -> nn.Module:
        return snn.Leaky(beta=0.95, init_hidden=True)

    return of_snntorch([nn.Linear(784, 1000), leaky(), nn.Linear(1000, 10), leaky()], digits(25, 128), (784,))


def tutorial_6() -> Case:
    import snntorch as snn
    from snntorch import surrogate

    def leaky() -> nn.Module:
        return snn.Leaky(beta=0.5, spike_grad=surrogate.fast_sigmoid(slope=25), init_hidden=True)

    modules = [nn.Conv2d(1, 12, 5), nn.MaxPool2d(2), leaky(), nn.Conv2d(12, 64, 5), nn.MaxPool2d(2), leaky()]
    modules += [nn.Flatten(), nn.Linear(1024, 10), leaky()]
    return of_snntorch(modules, digits(50, 128), (1, 28, 28))


def leaky(layers: int) -> Case:
    import snntorch as snn

    modules: list[nn.Module] = []
    for width in (784, *[64] * (layers - 1)):
        modules += [nn.Linear(width, 64), snn.Leaky(beta=0.95, init_hidden=True)]
    return of_snntorch([*modules, nn.Linear(64, CLASSES)], coded(25, 64), (784,))


def rleaky(layers: int) -> Case:
    import snntorch as snn

    modules: list[nn.Module] = []
    for width in (784, *[64] * (layers - 1)):
        modules += [nn.Linear(width, 64), snn.RLeaky(beta=0.95, linear_features=64, init_hidden=True)]
    return of_snntorch([*modules, nn.Linear(64, CLASSES)], coded(25, 64), (784,))


def wide_rleaky() -> Case:
    import snntorch as snn

    modules: list[nn.Module] = []
    for width in (700, 128, 128):
        modules += [nn.Linear(width, 128), snn.RLeaky(beta=0.95, linear_features=128, init_hidden=True)]
    return of_snntorch([*modules, nn.Linear(128, CLASSES)], sound(100, 32), (700,))


def norse_recurrent() -> Case:
    import norse.torch as norse

    layers = [norse.LIFRecurrent(700, 128), norse.LIFRecurrent(128, 128), nn.Linear(128, CLASSES), norse.LI()]
    model = norse.SequentialState(*layers)
    return Case(model, sound(100, 32), lambda x: model(x)[0])


def multi_step() -> Case:
    from spikingjelly.activation_based import functional, layer, neuron, surrogate

    modules: list[nn.Module] = []
    for width in (784, 128, 128, 128):
        modules += [layer.Linear(width, 128), layer.BatchNorm1d(128)]
        modules.append(neuron.LIFNode(tau=2.0, surrogate_function=surrogate.ATan()))
    model = nn.Sequential(*modules, layer.Linear(128, CLASSES))
    functional.set_step_mode(model, "m")

    def loop(x: Tensor) -> Tensor:
        functional.reset_net(model)
        return model(x)

    return Case(model, coded(25, 64), loop)


def ours(layers: int) -> Case:
    import neurolsc

    cells = [neurolsc.ALIFPlus(width, 128) for width in (700, *[128] * (layers - 1))]
    return plain(neurolsc.Network(cells, CLASSES), sound(100, 32))


def pixel_by_pixel() -> Case:
    import neurolsc

    images = digits(1, 32).permute(2, 1, 0).contiguous()  # (784, 32, 1)
    return plain(neurolsc.Network([neurolsc.LIF(1, 128, tau_v=20.0)], CLASSES), images)


def plain(network: nn.Module, x: Tensor) -> Case:
    def loop(x: Tensor) -> Tensor:
        states, logits = network.initial_states(x.shape[1]), []
        for frame in x:
            out, states = network.step(frame, states)
            logits.append(out)
        return torch.stack(logits)

    return Case(network, x, loop)


NETWORKS: dict[str, Callable[[], Case]] = {
    "tutorial 5": tutorial_5,
    "tutorial 6": tutorial_6,
    "4 Leaky": lambda: leaky(4),
    "8 Leaky": lambda: leaky(8),
    "4 RLeaky": lambda: rleaky(4),
    "8 RLeaky": lambda: rleaky(8),
    "3 RLeaky 128": wide_rleaky,
    "2 LIFRecurrent, LI": norse_recurrent,
    "4 LIFNode": multi_step,
    "2 ALIF+": lambda: ours(2),
    "5 ALIF+": lambda: ours(5),
    "10 ALIF+": lambda: ours(10),
    "LIF, 784 steps": pixel_by_pixel,
}


def training_step(case: Case, labels: Tensor) -> float:
    """Processor seconds of forward and backward, the fastest of five."""
    seconds = []
    for _ in range(5):
        started = time.process_time()
        loss = nn.functional.cross_entropy(case.loop(case.x).sum(0), labels)
        loss.backward()
        seconds.append(time.process_time() - started)
        case.model.zero_grad()
    return min(seconds)


def measure(name: str, call: str) -> dict[str, object]:
    """Seconds of one call on one network, and of a training step."""
    warnings.simplefilter("ignore")
    import neurolsc
    from neurolsc.init import named

    torch.manual_seed(0)
    torch.set_num_threads(1)
    case = NETWORKS[name]()
    labels = torch.arange(case.x.shape[1]) % CLASSES
    step = training_step(case, labels)
    x = case.x
    if case.input_shape:  # as the module itself reads it
        x = x.unflatten(2, case.input_shape)
    known = set(sys.modules)
    started = time.process_time()
    note = ""
    if call == "diagnose":
        neurolsc.diagnose(case.model, x, labels)
    elif call == "radius_profile":
        neurolsc.radius_profile(case.model, x)
    elif call == "initialize":
        neurolsc.initialize(case.model, x)
    else:
        network = case.model
        if not isinstance(network, neurolsc.Network):
            network = neurolsc.wrap(case.model, input_shape=case.input_shape)
        try:
            named(call).apply(network, [case.x])
        except TypeError as error:  # it needs what these cells do not have
            note = str(error)
    seconds = time.process_time() - started
    dynamo = "torch._dynamo" in set(sys.modules) - known
    return {"step": step, "seconds": seconds, "refused": note, "imports torch._dynamo": dynamo}


def limited(name: str, call: str, limit: int) -> dict[str, object]:
    """The same in the second of two processes, each of which ends at a limit of processor seconds."""
    import signal

    def limit_itself() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))

    command = [sys.executable, __file__, "--child", name, call]
    # installers compile packages to bytecode; where that was left out, the first process does it
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit_itself, env=environment)
    if done.returncode in (-signal.SIGKILL, -signal.SIGXCPU):
        return {"stopped": limit}
    if done.returncode:
        return {"error": f"{done.returncode}: {done.stderr.strip().splitlines()[-1]}"}
    return json.loads(done.stdout.splitlines()[-1])


def shown(row: dict[str, object] | None, step: float) -> str:
    """A cell of the table; bold where it is beyond the goal."""
    if row is None:
        return ""
    if "error" in row:
        return "error"
    if "stopped" in row:
        return f"**> {row['stopped']:.0f}**"
    if row["refused"]:
        return "-"
    text = f"{row['seconds']:.1f} ({row['seconds'] / step:.0f})"
    return f"**{text}**" if row["seconds"] > max(LEAST, STEPS * step) else text


def table(columns: dict[str, dict[str, dict[str, dict[str, object]]]]) -> str:
    """Networks and calls, each with the seconds of all columns, in brackets the training steps."""
    about = (
        f"Processor seconds of one core, in brackets training steps; bold: beyond {LEAST:.0f} s and {STEPS:.0f} steps"
    )
    lines = [f"{about}. -: the initialisation needs what these cells do not have."]
    for name, column in columns.items():
        calls = [call for call in CALLS if any(call in rows for rows in column["rows"].values())]
        lines += ["", f"## {name}, {column['date']}", "", f"| network | a step | {' | '.join(calls)} |"]
        lines.append("| --- " * (len(calls) + 2) + "|")
        for network, rows in column["rows"].items():
            step = min((row["step"] for row in rows.values() if "step" in row), default=float("nan"))
            cells = [shown(rows.get(call), step) for call in calls]
            of_a_step = "" if math.isnan(step) else f"{step:.2f}"
            lines.append(f"| {network} | {of_a_step} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="column of the table, such as before or after")
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--calls", nargs="*", default=list(CALLS))
    parser.add_argument("--limit", type=int, default=300, help="processor seconds after which a call is stopped")
    options = parser.parse_args()
    path = RESULTS / "seconds.json"
    columns = json.loads(path.read_text()) if path.exists() else {}
    column = columns.setdefault(options.name, {"rows": {}})
    column["date"], column["torch"] = datetime.date.today().isoformat(), torch.__version__
    for call in options.calls:
        for network in options.networks:
            rows = column["rows"].setdefault(network, {})
            if call in rows:
                continue
            rows[call] = limited(network, call, options.limit)
            print(network, call, rows[call], flush=True)
            path.write_text(json.dumps(columns, indent=1) + "\n")
            path.with_suffix(".md").write_text(table(columns))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(json.dumps(measure(*sys.argv[2:4])))
    else:
        main()
