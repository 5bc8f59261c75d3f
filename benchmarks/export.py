"""Does an exported network spike in Lava exactly as its integers say, and what do the integers cost?

    python benchmarks/export.py [--digits FOLDER]

Needs `make lava-env`. Six kinds of networks over 250 steps, then the two trained networks in the package: mode accuracies on test
samples (500 digits of the package; all 400 synthetic utterances, or the 40 in the package) in floats and integers, and on 20 of
them in the simulator, before and after an epoch of fine-tuning through the integers.
Writes results/export.json, .md and .png, and docs/pictures/export.png.
"""

import argparse
import dataclasses
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Subset

import neurolsc
from neurolsc import LIF, ALIFPlus, Network, evaluate, train
from neurolsc.datasets import SHD, SpikeLatencyMNIST, collate
from neurolsc.export import ExportReport, QuantizationAware, Verification, quantize, to_netx, verify

STEPS, SAMPLES, SEED = 250, 20, 0
CALIBRATION = 100
RESULTS = Path(__file__).parent / "results"


def lif(n_in: int, width: int, reset: str, *, bias: float = 0.0, recurrent: bool = True) -> LIF:
    """LIF that fire, each neuron with a decay of its own."""
    cell = LIF(n_in, width, tau_v=5.0, reset=reset)  # type: ignore[arg-type]
    with torch.no_grad():
        cell.w_in.mul_(3)
        cell.b_v.copy_(torch.linspace(0.5, 1.5, width) * bias)
        if not recurrent:
            cell.w_rec.zero_()
    return cell


def alif(n_in: int, width: int) -> ALIFPlus:
    """ALIF that fire."""
    cell = ALIFPlus(n_in, width, tau_v=5.0, tau_theta=20.0, b_theta=0.05, adaptation=0.3, reset="static")
    with torch.no_grad():
        cell.w_in.mul_(3)
    return cell


def exactness(folder: Path) -> list[dict[str, object]]:
    """One row per kind of network: integers against simulator, and against floats."""
    torch.manual_seed(SEED)
    kinds = {
        "LIF, feed-forward": Network([lif(40, 32, "subtract", recurrent=False)], 5),
        "LIF, recurrent, reset by subtraction": Network([lif(40, 32, "subtract"), lif(32, 24, "subtract")], 5),
        "LIF, recurrent, reset to zero": Network([lif(40, 32, "zero"), lif(32, 24, "zero")], 5),
        "LIF, recurrent, bias": Network([lif(40, 32, "subtract", bias=0.1), lif(32, 24, "subtract", bias=0.1)], 5),
        "ALIF, static reset": Network([alif(40, 32), alif(32, 24)], 5),
        "700-256-20, LIF, recurrent": Network([lif(700, 256, "subtract")], 20),
    }
    rows: list[dict[str, object]] = []
    for i, (name, network) in enumerate(kinds.items()):
        x = (torch.rand(STEPS, 1, network.n_in) < (0.05 if network.n_in == 700 else 0.2)).float()
        path = folder / f"{i}.net"
        to_netx(network, path, x)
        found = verify(path, x)
        integer, exact = quantize(network).run(x), network.run(x)
        floats = [(a == b).double().mean().item() for a, b in zip(exact.spikes, integer.spikes, strict=True)]
        row = {
            "network": name,
            "spikes": sum(layer.spikes for layer in found.layers),
            "simulator": min(layer.agreement for layer in found.layers),
            "states": min(layer.state_agreement for layer in found.layers),
            "readout": found.readout_agreement,
            "floats": min(floats),
        }
        print(row)
        rows.append(row)
    return rows


@dataclasses.dataclass(frozen=True)
class Shipped:
    """A network of the package, and its data."""

    load: Callable[[str], Any]
    """split -> data set"""
    tuning_samples: int
    tuning_batch: int
    tuning_lr: float


def shipped(digits: str | None) -> dict[str, Shipped]:
    """The trained networks in the package."""

    def spoken(split: str) -> SHD:
        form = {"dt": 0.02, "channels": 140, "repeat": 1, "binary": True}
        return SHD(digits, split, **form) if digits else SHD.embedded(split, **form)

    return {
        "sl-mnist-alif": Shipped(SpikeLatencyMNIST.embedded, 900, 32, 6e-4),
        "spoken-digits-alif": Shipped(spoken, 1620, 32, 2e-3),
    }


def scored(name: str, about: Shipped, folder: Path) -> tuple[dict[str, dict[str, Any]], ExportReport, Verification]:
    """Scores of a trained network on test samples before and after fine-tuning, and the export of the latter."""
    network = neurolsc.load(name)
    validation, test = about.load("validation"), about.load("test")
    calibration, known = collate(validation.__getitems__(range(min(CALIBRATION, len(validation)))))
    x, labels = collate(test.__getitems__(range(SAMPLES)))
    scores: dict[str, dict[str, Any]] = {}

    def score(when: str) -> tuple[ExportReport, Verification]:
        path = folder / f"{name}-{when}.net"
        report = to_netx(network, path, calibration, labels=known)
        found = verify(path, x)
        report = report.with_simulator(network, x, found, labels)
        row: dict[str, Any] = {"samples": len(test), "simulated": dataclasses.asdict(report.simulator)}  # type: ignore[call-overload]
        for kind, model in (("float", network), ("integer", QuantizationAware(network, calibration))):
            row[kind] = dataclasses.asdict(evaluate(model, test, batch_size=100))
        row["exact"] = found.exact
        scores[when] = row
        print(name, when, {k: row[k]["mode_accuracy"] for k in ("float", "integer")}, report.simulator, flush=True)
        return report, found

    score("trained")
    part = Subset(about.load("train"), range(min(about.tuning_samples, len(about.load("train")))))
    train(
        QuantizationAware(network, calibration),
        part,
        Subset(validation, range(min(CALIBRATION, len(validation)))),
        epochs=1,
        batch_size=about.tuning_batch,
        lr=about.tuning_lr,
        seed=SEED,
        progress=False,
    )
    return scores, *score("fine-tuned")


def table(name: str, scores: dict[str, dict[str, Any]]) -> list[str]:
    """Lines of a table: one per state of a network."""
    lines = []
    for when, row in scores.items():
        accuracies = " | ".join(f"{row[kind]['mode_accuracy']:.1%}" for kind in ("float", "integer"))
        rates = "; ".join(
            ", ".join(f"{rate:.3f}" for rate in row[kind]["firing_rate"]) for kind in ("float", "integer")
        )
        lines.append(
            f"| {name}, {when} | {row['samples']} | {accuracies} | {rates} | "
            f"{row['simulated']['accuracy_float']:.0%}, {row['simulated']['accuracy_integer']:.0%}, "
            f"{row['simulated']['accuracy_simulator']:.0%} |"
        )
    return lines


def main(digits: str | None) -> None:
    """Measure and write the results."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        results = {name: scored(name, about, Path(folder)) for name, about in shipped(digits).items()}
        rows = exactness(Path(folder))
    _, report, found = results["sl-mnist-alif"]
    about = {
        "torch": torch.__version__,
        "simulator": list(found.tools),
        "date": time.strftime("%Y-%m-%d"),
        "seed": SEED,
        "spoken digits": "synthetic, all test utterances" if digits else "synthetic, those in the package",
    }
    about["seconds"] = round(time.perf_counter() - started)
    networks = {name: {"scores": scores, "report": made.to_dict()} for name, (scores, made, _) in results.items()}
    result = {"about": about, "exactness": rows, "networks": networks}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "export.json").write_text(json.dumps(result, indent=1) + "\n")
    report.plot(RESULTS / "export.png")
    shutil.copy(RESULTS / "export.png", Path(__file__).parent.parent / "docs" / "pictures" / "export.png")
    lines = [
        f"Integers against {', '.join(found.tools)}, {STEPS} steps; spikes, states and readout sums that are equal.",
        "",
    ]
    lines += [
        "| network | spikes | spikes equal | states equal | readout equal | float spikes equal |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        equal = " | ".join(f"{row[name]:.4%}" for name in ("simulator", "states", "readout"))
        lines.append(f"| {row['network']} | {row['spikes']} | {equal} | {row['floats']:.2%} |")
    for name, (_, made, seen) in results.items():
        for i, layer in enumerate(seen.layers, start=1):
            equal = f"{layer.agreement:.4%} | {layer.state_agreement:.4%} | {seen.readout_agreement:.4%}"
            assert made.activity is not None
            what = f"{name}, fine-tuned, {SAMPLES} samples of {seen.steps} steps, layer {i}"
            lines.append(f"| {what} | {layer.spikes} | {equal} | {made.activity[i - 1].agreement:.2%} (calibration) |")
    lines += [
        "",
        "| network | test samples | float | integer | rate per layer, float; integer "
        f"| float, integer, simulator on {SAMPLES} |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, (scores, _, _) in results.items():
        lines += table(name, scores)
    for name, (_, made, _) in results.items():
        lines += ["", f"{name}, fine-tuned:", "", "```", str(made), "```"]
    (RESULTS / "export.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    assert all(row["exact"] for scores, _, _ in results.values() for row in scores.values())
    assert all(row["simulator"] == row["states"] == row["readout"] == 1 for row in rows)


if __name__ == "__main__":
    data = os.environ.get("NEUROLSC_DATA")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--digits", default=f"{data}/spoken_digits" if data else None, help="folder of the spoken train.h5 and test.h5"
    )
    main(parser.parse_args().digits)
