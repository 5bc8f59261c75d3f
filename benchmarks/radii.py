"""How fast are radii found without matrices, and how far off are they?  python benchmarks/radii.py [--quick] [--device cuda]

ALIF layers on spike-latency MNIST from the package. The peer is what anyone would write: `torch.func.jacrev` under `vmap` of one
step, then `torch.linalg.eigvals`. It takes minutes at 1,000 points, so it is timed on a few and scaled: "ms a point" is
comparable. Points at which all neurons are in the same state are measured once by ours; the share of different ones is given.
Errors are relative to float64 eigenvalues of the same matrices. Writes results/radii.json, .md and .png; radii_cuda on a GPU.
"""

import argparse
import json
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.func import jacrev, vmap

import neurolsc
from neurolsc.datasets import SpikeLatencyMNIST, input_batches
from neurolsc.stability.cycles import depth_cycle, time_cycle
from neurolsc.stability.lsc import look
from neurolsc.stability.measure import at_points, depth_radius, time_radius
from neurolsc.stability.transition import Transitions, flat, follow, unflat
from neurolsc.surrogate import FastSigmoid, MultiGaussian

DEVICE = "cpu"

RESULTS = Path(__file__).parent / "results"
BATCH, STEPS = 100, 10
REGIMES = ("default", "ALIF±", "recurrence-dominated", "after 0.5", "after 1")


def network(kind: type = neurolsc.ALIFPlus, n: int = 256, **settings: object) -> neurolsc.Network:
    torch.manual_seed(0)
    return neurolsc.Network([kind(784, n, **settings), kind(n, n, **settings)], 10).to(DEVICE)


def regime(name: str, inputs: list, max_steps: int) -> neurolsc.Network:
    if name == "ALIF±":
        return network(neurolsc.ALIFPlusMinus)
    net = network(adaptation=0.1 if name == "recurrence-dominated" else 1.8)
    if name == "recurrence-dominated":
        with torch.no_grad():
            for cell in net.cells:
                cell.w_rec.mul_(20)
    if name.startswith("after"):
        # to 1 with the thresholds held: else it may end where it began
        target, rule = float(name.split()[1]), neurolsc.TransitionRule(hold_threshold=name == "after 1")
        result = neurolsc.pretrain(net, inputs, target=target, rule=rule, max_steps=max_steps, progress=False)
        print(name, "reached", result.profile.time_mean.tolist(), f"{result.seconds:.0f} s", flush=True)
    return net


def points(net: neurolsc.Network, x: Tensor, steps: int = STEPS) -> tuple[Transitions, float]:
    """The second layer at `steps` steps of all samples, and its firing rate."""
    transitions, outputs = follow(net, x, torch.linspace(5, x.shape[0] - 1, steps).long())
    return transitions[1], outputs[1].mean().item()


def some(t: Transitions, count: int) -> Transitions:
    chosen = torch.randperm(len(t.x), generator=torch.Generator().manual_seed(1))[:count]
    return at_points(t, chosen.to(DEVICE))


def peer(t: Transitions, direction: str) -> Tensor:
    """Radii by jacrev, vmap and eigvals."""

    def through_time(h: Tensor, x: Tensor) -> Tensor:
        return flat(t.cell.step(x[None], unflat(h[None], t.before))[1])[0]

    def through_depth(below: Tensor, h: Tensor) -> Tensor:
        state = unflat(h[None], t.before)
        x = t.below.output(unflat(below[None], t.state_below))
        return flat(t.cell.update(x, t.cell.output(state), state))[0]

    if direction == "time":
        m = vmap(jacrev(through_time))(flat(t.before), t.x)
    else:
        m = vmap(jacrev(through_depth))(flat(t.state_below), flat(t.before))
    return torch.linalg.eigvals(m).abs().amax(-1)


def ours(t: Transitions, direction: str):
    return time_radius(t, 1) if direction == "time" else depth_radius(t, 1, "submatrix", torch.Generator())


def seconds(run: Callable[[], object], repeats: int) -> float:
    taken = []
    for _ in range(repeats):
        wait()
        started = time.perf_counter()
        run()
        wait()
        taken.append(time.perf_counter() - started)
    return sorted(taken)[len(taken) // 2]


def wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def different(t: Transitions, direction: str) -> float:
    """Share of the points that differ from all others in the states that the derivative depends on."""
    assert t.state_below is not None
    return len(torch.unique(flat(t.before if direction == "time" else t.state_below), dim=0)) / len(t.x)


def compare(t: Transitions, direction: str, few: int, many: int, gradient: bool, repeats: int) -> dict:
    """Milliseconds a point of both, in turns with the same work."""
    small, large = some(t, few), some(t, many)
    parameters = [p for p in t.cell.parameters() if p.requires_grad]

    def run(radius: Callable[[], Tensor]) -> None:
        with torch.set_grad_enabled(gradient):
            value = radius()
        if gradient:
            torch.autograd.grad(value.sum(), parameters, allow_unused=True)

    run(lambda: ours(some(t, 8), direction).radius)
    mine = seconds(lambda: run(lambda: ours(large, direction).radius), repeats) / many * 1e3
    theirs = seconds(lambda: run(lambda: peer(small, direction)), repeats) / few * 1e3
    with torch.set_grad_enabled(gradient):
        share = ours(large, direction).exact.sum().item() / many
    row = {"ours_ms": mine, "peer_ms": theirs, "ratio": theirs / mine, "exact_share": share}
    row |= {"different": different(large, direction)}
    return row | {"points": many, "peer_points": few}


def errors(t: Transitions, direction: str, count: int) -> dict:
    part = some(t, count)
    cycle = time_cycle(part) if direction == "time" else depth_cycle(part, "submatrix", torch.Generator())
    with torch.no_grad():
        matrices = (cycle.matrix(i, part.x).double().cpu() for i in range(count))
        exact = torch.stack([torch.linalg.eigvals(m).abs().max() for m in matrices])
        off = (ours(part, direction).radius.double().cpu() / exact - 1).abs()
    return {"radius": exact.mean().item(), "p99": off.quantile(0.99).item(), "worst": off.max().item(), "of": count}


def random_layers(x: Tensor, layers: int) -> dict:
    """Errors through time, 20 points each, of layers of every kind and scale, where leaks and recurrence compete for the radius."""
    draw, off, dense = random.Random(0), [], 0
    for seed in range(layers):
        kind = draw.choice([neurolsc.ALIFPlus, neurolsc.ALIFPlusMinus, neurolsc.LIF])
        settings = {
            "reset": draw.choice(["subtract", "static", "zero"]),
            "reset_gradient": draw.random() < 0.4,
            "tau_v": draw.choice([0.1, 0.1, 2.0, 10.0]),
            "spike": draw.choice([FastSigmoid, MultiGaussian])(),
        }
        if kind is not neurolsc.LIF:
            settings |= {"adaptation": draw.choice([0.1, 0.5, 1.8]), "tau_theta": draw.choice([1.5, 5.0, 20.0, 100.0])}
        n = draw.choice([48, 64, 96, 128, 192, 256])
        torch.manual_seed(seed)
        net = neurolsc.Network([kind(784, n, **settings), kind(n, n, **settings)], 10).to(DEVICE)
        recurrent, forward = draw.choice([1, 2, 4, 6, 8, 11, 15, 20]), draw.choice([1, 3, 6])
        with torch.no_grad():
            for cell in net.cells:
                cell.w_rec.mul_(recurrent)
                cell.w_in.mul_(forward)
            part = some(points(net, x, 6)[0], 20)
            cycle = time_cycle(part)
            matrices = (cycle.matrix(i, part.x).double().cpu() for i in range(20))
            exact = torch.stack([torch.linalg.eigvals(m).abs().max() for m in matrices])
            found = ours(part, "time")
        off.append(torch.where(exact > 0, (found.radius.double().cpu() / exact - 1).abs(), 0))
        dense += found.exact.sum().item()
    error = torch.cat(off)
    row = {"layers": layers, "points": len(error), "dense": dense, "more than 1 %": (error > 0.01).sum().item()}
    return row | {"p99": error.quantile(0.99).item(), "worst": error.max().item()}


def sampling(net: neurolsc.Network, x: Tensor) -> list[float]:
    """How far the mean radii of 32 steps x 8 samples are from those of 50 steps x 32 samples, at worst, over 4 draws."""
    whole = neurolsc.radius_profile(net, x[:, :32], steps=50)
    worst = [0.0, 0.0]
    for seed in range(4):
        drawn = torch.randperm(32, generator=torch.Generator().manual_seed(seed))[:8]
        part = neurolsc.radius_profile(net, x[:, drawn], steps=32, seed=seed)
        for i, name in enumerate(("time_mean", "depth_mean")):
            worst[i] = max(worst[i], (getattr(part, name) - getattr(whole, name)).abs().max().item())
    return worst


def pretraining(n: int, inputs: list, exact: bool) -> dict:
    before = look.time_radius, look.depth_radius, look.radius_profile
    if exact:
        look.time_radius = partial(time_radius, method="exact")
        look.depth_radius = partial(depth_radius, method="exact")
        look.radius_profile = partial(neurolsc.radius_profile, method="exact")
    try:
        result = neurolsc.pretrain(network(n=n), inputs, target=0.5, progress=False)
    finally:
        look.time_radius, look.depth_radius, look.radius_profile = before
    row = {"n": n, "path": "exact" if exact else "without matrices", "seconds": result.seconds, "steps": result.steps}
    return row | {"converged": result.converged, "time": result.profile.time_mean.tolist()}


def main() -> None:
    """Run everything and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the points, one repeat, no check of the sampling"
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    global DEVICE
    arguments = parser.parse_args()
    quick, DEVICE = arguments.quick, arguments.device
    repeats, many, checked = (1, 100, 12) if quick else (3, BATCH * STEPS, 50)
    data = SpikeLatencyMNIST.embedded("train")
    inputs = [batch.to(DEVICE) for batch in input_batches(data, 32)]
    x = next(iter(input_batches(data, BATCH))).to(DEVICE)
    rows: dict[str, list] = {"speed": [], "errors": [], "growth": [], "profile": [], "random": []}
    rows |= {"pretraining": [], "sampling": []}
    neurolsc.pretrain(network(n=8), inputs, max_steps=1, progress=False)  # the first call imports the optimizer
    for name in REGIMES:
        net = regime(name, inputs, 20 if quick else 60)
        t, rate = points(net, x)
        for direction in ("time", "depth"):
            row = {"regime": name, "n": 256, "direction": direction, "gradient": False, "firing_rate": rate}
            rows["speed"].append(row | compare(t, direction, 2 if quick else 8, many, False, repeats))
            rows["errors"].append({"regime": name, "direction": direction} | errors(t, direction, checked))
            print(rows["speed"][-1], rows["errors"][-1], flush=True)
            if name == "default":
                row |= {"gradient": True}
                rows["speed"].append(row | compare(t, direction, 2 if quick else 8, many // 2, True, repeats))
                print(rows["speed"][-1], flush=True)
        write(rows)
        if name in ("default", "after 0.5") and not quick:
            rows["sampling"].append({"regime": name, "time_depth": sampling(net, x)})
            print(rows["sampling"][-1], flush=True)
        if name == "default":
            steps, samples = (20, 4) if quick else (100, 25)
            taken = seconds(partial(neurolsc.radius_profile, net, x[:, :samples], steps=steps), 1)
            dense = seconds(partial(neurolsc.radius_profile, net, x[:, :1], steps=5, method="exact"), 1)
            run = seconds(partial(net.run, x), 1)  # over all steps, once in either
            part = seconds(partial(net.run, x[:, :samples]), 1), seconds(partial(net.run, x[:, :1]), 1)
            row = {"without_matrices_s": run + (taken - part[0]) * 10_000 / (steps * samples)}
            row |= {"exact_s": run + (dense - part[1]) * 2_000}
            rows["profile"].append(row | {"measured_points": steps * samples, "exact_points": 5})
            print(rows["profile"][-1], flush=True)
    rows["random"].append(random_layers(x, 10 if quick else 120))
    print(rows["random"][-1], flush=True)
    for n in (512, 128, 64):
        t, rate = points(network(n=n), x)
        row = {"regime": "default", "n": n, "direction": "time", "gradient": False, "firing_rate": rate}
        rows["growth"].append(row | compare(t, "time", 2 if n == 512 else 8, 100 if quick else 400, False, 1))
        print(rows["growth"][-1], flush=True)
        write(rows)
    for n in (128, 256):
        for exact in (True, False) if n == 128 else (False,):  # with dense eigenvalues 2 x 256 takes many minutes
            rows["pretraining"].append(pretraining(n, inputs, exact))
            print(rows["pretraining"][-1], flush=True)
            write(rows)


def write(rows: dict[str, list]) -> None:
    about = {"threads": torch.get_num_threads(), "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
    about |= {"device": torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu"}
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / ("radii" if DEVICE == "cpu" else "radii_cuda")
    path.with_suffix(".json").write_text(json.dumps({"about": about} | rows, indent=1) + "\n")
    lines = [
        "| regime | N | direction | gradient | ours, ms a point | peer | ratio | different | dense | error p99 | worst | rate |"
    ]
    lines.append("| --- " * 12 + "|")
    off = {(e["regime"], e["direction"]): e for e in rows["errors"]}
    for r in rows["speed"] + rows["growth"]:
        e = off.get((r["regime"], r["direction"])) if r["n"] == 256 and not r["gradient"] else None
        cells = [r["regime"], r["n"], r["direction"], "yes" if r["gradient"] else "no", f"{r['ours_ms']:.2f}"]
        cells += [f"{r['peer_ms']:.0f}", f"{r['ratio']:.0f}", f"{r['different']:.0%}", f"{r['exact_share']:.1%}"]
        cells += [f"{e['p99']:.2%}", f"{e['worst']:.2%}"] if e else ["", ""]
        lines.append("| " + " | ".join(map(str, [*cells, f"{r['firing_rate']:.4f}"])) + " |")
    lines += ["", "| pre-training to 0.5 | path | seconds | steps | converged |", "| --- " * 5 + "|"]
    for r in rows["pretraining"]:
        lines.append(f"| 2 x {r['n']} | {r['path']} | {r['seconds']:.1f} | {r['steps']} | {r['converged']} |")
    for r in rows["profile"]:
        lines += ["", "Profile of 2 x 256 at 100 steps x 100 samples, scaled from "]
        lines[-1] += (
            f"{r['exact_points']} and {r['measured_points']} points: dense {r['exact_s']:.0f} s, without matrices "
        )
        lines[-1] += f"{r['without_matrices_s']:.0f} s."
    for r in rows["random"]:
        lines += ["", f"{r['layers']} random layers, {r['points']} points, {r['dense']} by dense eigenvalues: "]
        lines[-1] += f"{r['more than 1 %']} off by more than 1 %, p99 {r['p99']:.2%}, worst {r['worst']:.2%}."
    for r in rows["sampling"]:
        by_time, by_depth = r["time_depth"]
        lines += [
            "",
            f"Means of 32 steps x 8 samples, {r['regime']}: off by at most {by_time:.4f} (time), {by_depth:.4f} (depth).",
        ]
    path.with_suffix(".md").write_text("\n".join(lines) + "\n")
    draw(rows, path)


def draw(rows: dict[str, list], path: Path) -> None:
    """Time a point against the width, and errors by regime."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    default = [r for r in rows["speed"] if (r["regime"], r["direction"], r["gradient"]) == ("default", "time", False)]
    grown = sorted(rows["growth"] + default, key=lambda r: r["n"])
    widths = [r["n"] for r in grown]
    left.loglog(widths, [r["peer_ms"] for r in grown], "o-", label="jacrev and eigvals")
    left.loglog(widths, [r["ours_ms"] for r in grown], "o-", label="without matrices")
    left.set(
        xlabel="neurons N (the matrix is 2 N wide)", ylabel="ms a point", xticks=widths, title="ALIF+, through time"
    )
    left.set_xticklabels(widths)
    left.minorticks_off()
    left.legend()
    for color, direction in enumerate(("time", "depth")):
        found = [e for e in rows["errors"] if e["direction"] == direction]
        places = [i + 0.2 * (2 * color - 1) for i in range(len(found))]
        right.bar(places, [100 * e["p99"] for e in found], 0.4, label=f"through {direction}")
    right.axhline(1, color="k", linestyle=":", label="goal")
    right.set(
        xticks=range(len(REGIMES)), ylabel="error, 99th percentile, %", title="N = 256, against float64 eigenvalues"
    )
    right.set_xticklabels([name.replace("-dominated", "") for name in REGIMES])
    right.legend()
    figure.savefig(path.with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    main()
