"""Are networks of snnTorch, norse and PyTorch brought to a radius, and do they learn better?
python benchmarks/interop.py

Two layers of 48 neurons with the libraries' default parameters on the digits in the package. First
every kind of layer is pre-trained to radius 1 and 0.5. Then a snnTorch and a norse network are
trained as they are and after one added call of pretrain, with equal budgets, and firing rates
beside the scores. Writes results/interop.json, .md and .png after every run.
"""

import json
import math
import time
import warnings
from pathlib import Path

import norse.torch as norse
import snntorch as snn
import torch
from torch import nn

import neurolsc
from neurolsc.datasets import SpikeLatencyMNIST, input_batches

WIDTH, MAX_STEPS, EPOCHS, BATCH, LR, SEEDS = 48, 100, 10, 64, 5e-3, (0, 1)
RESULTS = Path(__file__).parent / "results"


def snntorch_network(make_layer):
    layers = [nn.Linear(784, WIDTH), make_layer(), nn.Linear(WIDTH, WIDTH), make_layer(), nn.Linear(WIDTH, 10)]
    return nn.Sequential(*layers)


def norse_network(make_layer):
    return norse.SequentialState(make_layer(784), make_layer(WIDTH), nn.Linear(WIDTH, 10))


NETWORKS = {
    "snnTorch Leaky": lambda: snntorch_network(lambda: snn.Leaky(beta=0.9, init_hidden=True)),
    "snnTorch RLeaky": lambda: snntorch_network(lambda: snn.RLeaky(beta=0.9, linear_features=WIDTH, init_hidden=True)),
    "snnTorch Synaptic": lambda: snntorch_network(lambda: snn.Synaptic(alpha=0.9, beta=0.8, init_hidden=True)),
    "norse LIFRecurrent": lambda: norse_network(lambda n: norse.LIFRecurrent(n, WIDTH)),
    "norse LSNNRecurrent": lambda: norse_network(lambda n: norse.LSNNRecurrent(n, WIDTH)),
    "torch.nn.LSTM": lambda: [nn.LSTM(784, WIDTH, num_layers=2), nn.Linear(WIDTH, 10)],
}
TRAINED = ("snnTorch RLeaky", "norse LIFRecurrent")


def wrapped(name: str, seed: int) -> neurolsc.Network:
    torch.manual_seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", neurolsc.ForeignNeuronWarning)  # LSNN's adaptation that never decays
        return neurolsc.wrap(NETWORKS[name]())


def pretrained(network: neurolsc.Network, inputs: list, target: float, seed: int) -> dict:
    result = neurolsc.pretrain(network, inputs, target=target, seed=seed, max_steps=MAX_STEPS, progress=False)
    profile = result.profile
    row = {"target": target, "converged": result.converged, "steps": result.steps, "seconds": round(result.seconds, 1)}
    row |= {"time": profile.time_mean.tolist(), "depth": profile.depth_mean.tolist()}
    return row | {"firing_rate": profile.firing_rate.tolist(), "findings": [str(f) for f in result.findings]}


def main() -> None:
    """Run everything and write the results."""
    training, validation = (SpikeLatencyMNIST.embedded(split) for split in ("train", "validation"))
    inputs = input_batches(training, 32)
    reached, trained = [], []
    for name in NETWORKS:
        for target in (1.0, 0.5):
            reached.append({"layer": name} | pretrained(wrapped(name, 0), inputs, target, 0))
            print(reached[-1], flush=True)
            write(reached, trained)
    for seed in SEEDS:
        for name in TRAINED:
            for target in (None, 0.5, 1.0):
                network, started = wrapped(name, seed), time.perf_counter()
                row = {"network": name, "seed": seed, "target": target}
                if target is not None:
                    row["pretrain"] = pretrained(network, inputs, target, seed)
                budget = {"epochs": EPOCHS, "batch_size": BATCH, "lr": LR, "patience": EPOCHS}
                row["history"] = neurolsc.train(
                    network, training, validation, seed=seed, progress=False, optimizer=adam, **budget
                ).history
                scores = neurolsc.evaluate(network, SpikeLatencyMNIST.embedded("test"))
                row |= {"test": scores.mode_accuracy, "test_mean": scores.mean_accuracy}
                row |= {"firing_rate": scores.firing_rate, "seconds": round(time.perf_counter() - started, 1)}
                trained.append(row)
                print({k: v for k, v in row.items() if k != "history"}, flush=True)
                write(reached, trained)


def adam(parameters, lr: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr)


def numbers(values: list[float], digits: int = 2) -> str:
    return ", ".join("-" if math.isnan(value) else f"{value:.{digits}f}" for value in values)


def write(reached: list[dict], trained: list[dict]) -> None:
    """Both tables, the curves, and everything as JSON."""
    about = {"torch": torch.__version__, "snntorch": snn.__version__, "threads": torch.get_num_threads()}
    about |= {"date": time.strftime("%Y-%m-%d"), "width": WIDTH, "epochs": EPOCHS, "batch": BATCH, "lr": LR}
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({"about": about, "reached": reached, "trained": trained}, indent=1)
    (RESULTS / "interop.json").write_text(text + "\n")
    lines = [
        "| layers | target | reached | steps | seconds | time | depth | spikes per step | why not |",
        "| --- " * 9 + "|",
    ]
    for r in reached:
        cells = [r["layer"], r["target"], "yes" if r["converged"] else "no", r["steps"], r["seconds"]]
        cells += [numbers(r["time"]), numbers(r["depth"]), numbers(r["firing_rate"], 4), " ".join(r["findings"])]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    lines += [
        "",
        "| network | seed | radius | test, mode | test, mean | spikes per step | steps of pretrain | seconds in all |",
    ]
    lines.append("| --- " * 8 + "|")
    for r in trained:
        steps = r["pretrain"]["steps"] if "pretrain" in r else 0
        cells = [r["network"], r["seed"], r["target"] or "as it is", f"{r['test']:.1%}", f"{r['test_mean']:.1%}"]
        cells += [numbers(r["firing_rate"], 4), steps, r["seconds"]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    (RESULTS / "interop.md").write_text("\n".join(lines) + "\n")
    if trained:
        draw(trained)


def draw(trained: list[dict]) -> None:
    """Validation accuracy over the epochs, one panel a network, one line a seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    for name, axes in zip(TRAINED, figure.subplots(1, 2, sharey=True), strict=True):
        for color, target in enumerate((None, 0.5, 1.0)):
            for run in (r for r in trained if (r["network"], r["target"]) == (name, target)):
                label = ("as it is" if target is None else f"radius {target:g}") if run["seed"] == SEEDS[0] else None
                accuracy = [100 * row["validation_mode_accuracy"] for row in run["history"]]
                axes.plot(range(1, EPOCHS + 1), accuracy, color=f"C{color}", marker="o", label=label)
        axes.set(title=name, xlabel="epoch")
    axes = figure.axes
    axes[0].set(ylabel="validation mode accuracy, %", ylim=(0, 100))
    axes[0].legend()
    figure.savefig(RESULTS / "interop.png", dpi=110)


if __name__ == "__main__":
    main()
