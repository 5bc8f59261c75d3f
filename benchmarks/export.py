"""Does an exported network spike in Lava exactly as its integers say, and what do the integers cost?  python benchmarks/export.py

Needs `make lava-env`. Six kinds of networks over 250 steps, then 2 x 64 ALIF with a static reset, pre-trained to radius 0.9 and
trained on the package's digits: scores of floats, integers and simulator before and after fine-tuning through the integers, and
after as much training in floats. The few epochs are far from the best that such a network can reach.
Writes results/export.json, .md and .png, and docs/pictures/export.png.
"""

import copy
import dataclasses
import json
import shutil
import tempfile
import time
from pathlib import Path

import torch

from neurolsc import LIF, ALIFPlus, Network, TransitionRule, evaluate, pretrain, train
from neurolsc.datasets import SpikeLatencyMNIST, collate, input_batches
from neurolsc.export import ExportReport, QuantizationAware, Verification, quantize, to_netx, verify

STEPS, SAMPLES, SEED = 250, 20, 0
WIDTH, EPOCHS, BATCH, LR = 64, 8, 32, 5e-4
TUNING_EPOCHS, TUNING_LR = 2, 2e-4
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


def digits(folder: Path) -> tuple[dict[str, dict[str, float]], ExportReport, Verification]:
    """Scores on the test digits before and after fine-tuning, and the export of the latter."""
    data = {split: SpikeLatencyMNIST.embedded(split) for split in ("train", "validation", "test")}
    torch.manual_seed(SEED)
    settings = {"tau_v": 20.0, "tau_theta": 20.0, "b_theta": 0.05, "adaptation": 0.5, "reset": "static"}
    network = Network([ALIFPlus(n, WIDTH, **settings) for n in (784, WIDTH)], 10)
    rule = TransitionRule(hold_threshold=True)
    pretrain(network, input_batches(data["train"], 16, seed=SEED), target=0.9, rule=rule, seed=SEED, progress=False)
    for cell in network.cells:  # or training makes some of them negative, which no chip's ALIF can have
        for name in ("adaptation", "b_theta"):
            cell.get_parameter(name).requires_grad_(False)
    scores = {}

    def learn(epochs: int, lr: float, model: Network) -> None:
        train(
            model, data["train"], data["validation"], epochs=epochs, batch_size=BATCH, lr=lr, seed=SEED, progress=False
        )

    def score(name: str, network: Network) -> None:
        for kind, model in (("float", network), ("integer", QuantizationAware(network))):
            found = evaluate(model, data["test"])
            scores[f"{name}, {kind}"] = {"mode_accuracy": found.mode_accuracy, "loss": found.loss}
            print(name, kind, scores[f"{name}, {kind}"], found.firing_rate, flush=True)

    learn(EPOCHS, LR, network)
    score("trained", network)
    control = copy.deepcopy(network)
    learn(TUNING_EPOCHS, TUNING_LR, control)
    score("as long in floats", control)
    learn(TUNING_EPOCHS, TUNING_LR, QuantizationAware(network))
    score("fine-tuned", network)
    x, labels = collate([data["test"][i] for i in range(SAMPLES)])
    calibration, known = collate([data["validation"][i] for i in range(len(data["validation"]))])
    path = folder / "digits.net"
    report = to_netx(network, path, calibration, labels=known)
    found = verify(path, x)
    return scores, report.with_simulator(network, x, found, labels), found


def main() -> None:
    """Measure and write the results."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        scores, report, found = digits(Path(folder))
        rows = exactness(Path(folder))
    about = {
        "torch": torch.__version__,
        "simulator": list(found.tools),
        "date": time.strftime("%Y-%m-%d"),
        "seed": SEED,
    }
    about["seconds"] = round(time.perf_counter() - started)
    result = {"about": about, "exactness": rows, "scores": scores, "report": dataclasses.asdict(report)}
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
    for i, layer in enumerate(found.layers, start=1):
        equal = f"{layer.agreement:.4%} | {layer.state_agreement:.4%} | {found.readout_agreement:.4%}"
        assert report.activity is not None
        name = f"digits, 2 x {WIDTH} ALIF, {SAMPLES} samples of {found.steps} steps, layer {i}"
        lines.append(f"| {name} | {layer.spikes} | {equal} | {report.activity[i - 1].agreement:.2%} (calibration) |")
    lines += ["", "| digits, 500 test samples | mode accuracy | loss |", "| --- | --- | --- |"]
    lines += [f"| {name} | {s['mode_accuracy']:.1%} | {s['loss']:.4f} |" for name, s in scores.items()]
    lines += ["", "```", str(report), "```"]
    (RESULTS / "export.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    assert found.exact
    assert all(row["simulator"] == row["states"] == row["readout"] == 1 for row in rows)


if __name__ == "__main__":
    main()
