"""Does an exported network spike in Lava as its integers say, and what do the integers cost?

    python benchmarks/export.py [kinds] [sl-mnist-alif] [spoken-digits-alif] [--digits FOLDER]

Needs `make lava-env`. Without names all is measured; results of the others are kept. Six kinds of
networks over 250 steps, then the two trained networks in the package: mode accuracies on test
samples (500 digits of the package; all 250 spoken digits, or the 50 in the package) in
floats and integers, and on 20 of them in the simulator, before and after fine-tuning through the
integers on training samples. Writes results/export.json and .md.
"""

import argparse
import dataclasses
import json
import os
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
from neurolsc.export import ExportReport, QuantizationAware, quantize, read_netx, to_netx, verify
from neurolsc.metrics import mode_accuracy

STEPS, SAMPLES, SEED = 250, 20, 0
CALIBRATION, TUNING_BATCH = 50, 32
KINDS = "kinds"
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
    data: str
    """which data, in words"""
    tuning_samples: int
    tuning_lr: float


def shipped(digits: str | None) -> dict[str, Shipped]:
    """The trained networks in the package."""

    def spoken(split: str) -> SHD:
        form = {"dt": 0.02, "channels": 140, "repeat": 1, "binary": True}
        return SHD(digits, split, **form) if digits else SHD.embedded(split, **form)

    return {
        "sl-mnist-alif": Shipped(SpikeLatencyMNIST.embedded, "digits of the package", 320, 6e-4),
        "spoken-digits-alif": Shipped(
            spoken, f"FSDD digits as spikes, {'all' if digits else 'of the package'}", 2025, 1e-3
        ),
    }


def scored(name: str, about: Shipped, folder: Path) -> dict[str, Any]:
    """Test scores of a trained network before and after fine-tuning, and the latter's report."""
    network = neurolsc.load(name)
    validation, test = about.load("validation"), about.load("test")
    calibration, known = collate(validation.__getitems__(range(min(CALIBRATION, len(validation)))))
    x, labels = collate(test.__getitems__(range(SAMPLES)))
    scores: dict[str, dict[str, Any]] = {}
    tools: list[str] = []

    def score(when: str) -> ExportReport:
        path = folder / f"{when}.net"
        report = to_netx(network, path, calibration, labels=known)
        found = verify(path, x)
        assert found.simulated and report.activity is not None
        models = {"float": network.run(x.float()), "integer": read_netx(path).run(x), "simulator": found}
        accuracies = {f"accuracy_{kind}": mode_accuracy(run.logits.detach(), labels) for kind, run in models.items()}
        layers = [
            {"spikes": layer.spikes, "agreement": layer.agreement, "state_agreement": layer.state_agreement}
            | {"floats": activity.agreement}
            for layer, activity in zip(found.layers, report.activity, strict=True)
        ]
        row: dict[str, Any] = {"samples": len(test), "steps": found.steps, "exact": found.exact, "layers": layers}
        row |= {"readout_agreement": found.readout_agreement, "simulated": {"samples": SAMPLES} | accuracies}
        for kind, model in (("float", network), ("integer", QuantizationAware(network, calibration))):
            row[kind] = evaluate(model, test, batch_size=100).to_dict()
        scores[when] = row
        print(name, when, {k: row[k]["mode_accuracy"] for k in ("float", "integer")}, accuracies, flush=True)
        tools[:] = found.tools
        return report

    score("trained")
    train(
        QuantizationAware(network, calibration),
        Subset(about.load("train"), range(min(about.tuning_samples, len(about.load("train"))))),
        Subset(validation, range(len(calibration[0]))),
        epochs=1,
        batch_size=TUNING_BATCH,
        lr=about.tuning_lr,
        seed=SEED,
        progress=False,
    )
    report = score("fine-tuned")
    made = {"data": about.data, "date": time.strftime("%Y-%m-%d"), "torch": torch.__version__, "tools": tools}
    return made | {"scores": scores, "report": report.to_dict(), "text": str(report)}


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


def write(result: dict[str, Any]) -> None:
    """All results so far, those of earlier calls included."""
    (RESULTS / "export.json").write_text(json.dumps(result, indent=1) + "\n")
    lines = [
        f"Integers against Lava's simulator, {STEPS} steps; spikes, states and readout sums that are equal.",
        "",
        "| network | spikes | spikes equal | states equal | readout equal | float spikes equal |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in result["exactness"]:
        equal = " | ".join(f"{row[name]:.4%}" for name in ("simulator", "states", "readout"))
        lines.append(f"| {row['network']} | {row['spikes']} | {equal} | {row['floats']:.2%} |")
    networks = result["networks"]
    for name, network in networks.items():
        for when, row in network["scores"].items():
            for i, layer in enumerate(row["layers"], start=1):
                equal = f"{layer['agreement']:.4%} | {layer['state_agreement']:.4%} | {row['readout_agreement']:.4%}"
                what = f"{name}, {when}, {SAMPLES} samples of {row['steps']} steps, layer {i}"
                lines.append(f"| {what} | {layer['spikes']} | {equal} | {layer['floats']:.2%} (calibration) |")
    lines += [
        "",
        f"| network | test samples | float | integer | rate per layer, float; integer | float, integer, simulator on {SAMPLES} |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, network in networks.items():
        lines += table(name, network["scores"])
    for name, network in networks.items():
        lines += ["", f"{name}, fine-tuned ({network['data']}; {', '.join(network['tools'])}):", ""]
        lines += ["```", network["text"], "```"]
    (RESULTS / "export.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def main(parts: list[str], digits: str | None) -> None:
    """Measure what is asked for, and write it beside what was measured before."""
    earlier = RESULTS / "export.json"
    result = json.loads(earlier.read_text()) if earlier.exists() else {}
    result = {"exactness": result.get("exactness", []), "networks": result.get("networks", {})}
    for part in parts:
        started = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            if part == KINDS:
                result["exactness"] = exactness(Path(folder))
                assert all(row["simulator"] == row["states"] == row["readout"] == 1 for row in result["exactness"])
            else:
                result["networks"][part] = scored(part, shipped(digits)[part], Path(folder))
                result["networks"][part] |= {"seconds": round(time.perf_counter() - started)}
                assert all(row["exact"] for row in result["networks"][part]["scores"].values())
        write(result)


if __name__ == "__main__":
    data = os.environ.get("NEUROLSC_DATA")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[KINDS, *shipped(None), []], help="what to measure; by default all")
    parser.add_argument(
        "--digits", default=f"{data}/real_digits" if data else None, help="folder of the spoken train.h5 and test.h5"
    )
    args = parser.parse_args()
    main(args.parts or [KINDS, *shipped(None)], args.digits)
