"""How fast are radii without matrices, and how far off?  python benchmarks/radii.py [--quick]
[--device cuda]

ALIF layers on spike-latency MNIST from the package, at points that differ from all others, the same
for everybody. The peers are the strongest that one could pick: ARPACK (`scipy.sparse.linalg.eigs`
on the closed form as numpy products; scipy is needed here only, not by the package), batched power
iteration on our own products, and `torch.func.jacrev` under `vmap` with `torch.linalg.eigvals`.

ARPACK and power iteration have one setting for all regimes, directions and widths, as a user has
who does not know the answers: the fastest of 24 whose 99th percentile of errors is within the goal
everywhere, 1 % or 0.1 %, on other points than those that are timed. Where it does not settle a
point goes by dense eigenvalues, whose time counts. All are warmed up and take turns; of each the
best round counts, in process time on a CPU. Set OMP_NUM_THREADS=1. Errors are relative to float64
eigenvalues of the same matrices. Writes results/radii.json, .md and .png; radii_cuda on a GPU,
without ARPACK. `radii_layers.py` checks radii of random layers.
"""

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import scipy
import torch
from _radii_peers import Case, Contestant, Found, Setting, autograd, chosen, cycle_of, ours
from _radii_report import draw, table
from torch import Tensor

import neurolsc
from neurolsc.datasets import SpikeLatencyMNIST, input_batches
from neurolsc.stability.profile import depth_radius, time_radius
from neurolsc.stability.transitions import Transitions, flat, follow

DEVICE = "cpu"
RESULTS = Path(__file__).parent / "results"
BATCH, STEPS = 100, 10
GOALS = {"within 1 %": 0.01, "within 0.1 %": 0.001}
APART = 12
"""points of a case on which settings are chosen, and which are not timed"""
REGIMES = ("default", "ALIF±", "recurrence-dominated", "orthogonal", "after 0.5", "after 1")


def network(kind: type = neurolsc.ALIFPlus, n: int = 256, **settings: object) -> neurolsc.Network:
    torch.manual_seed(0)
    return neurolsc.Network([kind(784, n, **settings), kind(n, n, **settings)], 10).to(DEVICE)


def regime(name: str, inputs: list[Tensor], max_steps: int) -> neurolsc.Network:
    if name == "ALIF±":
        return network(neurolsc.ALIFPlusMinus)
    strong = name in ("recurrence-dominated", "orthogonal")
    net = network(adaptation=0.1 if strong else 1.8, recurrent_init="orthogonal" if name == "orthogonal" else "glorot")
    if strong:
        with torch.no_grad():
            for cell in net.cells:
                cell.w_rec.mul_(20)
    if name.startswith("after"):
        # to 1 with the thresholds held: else it may end where it began
        target, rule = float(name.split()[1]), neurolsc.TransitionRule(hold_threshold=name == "after 1")
        result = neurolsc.pretrain(net, inputs, target=target, rule=rule, max_steps=max_steps, progress=False)
        print(name, "reached", result.profile.time_mean.tolist(), f"{result.seconds:.0f} s", flush=True)
    return net


def points(net: neurolsc.Network, x: Tensor) -> tuple[Transitions, float]:
    """The second layer at some steps of all samples, and its firing rate."""
    transitions, outputs = follow(net, x, torch.linspace(5, x.shape[0] - 1, STEPS).long())
    return transitions[1], outputs[1].mean().item()


def distinct(t: Transitions, direction: str) -> tuple[Transitions, float]:
    """The points that differ in the states that the derivative depends on, shuffled; and their
    share."""
    rows = flat(t.before if direction == "time" else t.state_below)
    which = torch.unique(rows, dim=0, return_inverse=True)[1].cpu()
    first = torch.full((int(which.max()) + 1,), len(rows)).scatter_reduce(0, which, torch.arange(len(rows)), "amin")
    chosen = first[torch.randperm(len(first), generator=torch.Generator().manual_seed(1))]
    return t.at(chosen.to(DEVICE)), len(first) / len(rows)


def cost(run: Callable[[], Found]) -> tuple[float, Found]:
    """Seconds of one run, and what it returns."""
    clock = time.process_time if DEVICE == "cpu" else time.perf_counter
    wait()
    started = clock()
    found = run()
    wait()
    return clock() - started, found


def wait() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def lapack(t: Transitions, direction: str) -> Tensor:
    cycle = cycle_of(t, direction)
    matrices = (cycle.matrix(i, t.x).double().cpu() for i in range(len(t.x)))
    return torch.stack([torch.linalg.eigvals(m).abs().max() for m in matrices])


def contestants(peers: dict[str, Setting], many: int, few: int) -> dict[str, tuple[str, Contestant, int]]:
    """Name: settings, function, and how many points it is timed at."""
    taking: dict[str, tuple[str, Contestant, int]] = {"ours": ("", ours, many)}
    batch = min(many, 200)  # enough to be done side by side
    taking |= {k: (s.words, s.run, few if k.startswith("ARPACK") else batch) for k, s in peers.items()}
    return taking | {"jacrev and eigvals": ("", autograd, 4)}


def compare(t: Transitions, direction: str, repeats: int, checked: int, peers: dict[str, Setting]) -> list[dict]:
    """Milliseconds a point, errors and products of everybody, in turns."""
    t, share = distinct(t, direction)
    t = t.at(slice(APART, None))
    exact = lapack(t.at(slice(0, checked)), direction)
    rows = []
    with torch.no_grad():
        taking = contestants(peers, len(t.x), len(exact))
        rounds = [
            {name: cost(partial(run, t.at(slice(0, n)), direction)) for name, (_, run, n) in taking.items()}
            for _ in range(repeats)
        ]
    for name, (settings, _, n) in taking.items():
        found, compared = rounds[0][name][1], min(n, checked)
        off = (found.radius[:compared].double().cpu() / exact[:compared] - 1).abs()
        p50, p99 = off.quantile(torch.tensor([0.5, 0.99], dtype=off.dtype)).tolist()
        row = {"contestant": name, "settings": settings, "ms": min(r[name][0] for r in rounds) / n * 1e3, "points": n}
        row |= {"p50": p50, "p99": p99, "max": off.max().item(), "products": found.products, "dense": found.dense}
        rows.append(row | {"different": share})
    return [row | {"ratio": row["ms"] / rows[0]["ms"]} for row in rows]


def settings(cases: dict[tuple, Transitions]) -> dict[str, Setting]:
    """One of each peer for each goal, chosen on some points of all cases."""
    tried = []
    for (_, _, direction), t in cases.items():
        some = distinct(t, direction)[0].at(slice(0, APART))
        tried.append(Case(some, direction, lapack(some, direction)))
    peers = {}
    with torch.no_grad():
        for peer in ("power iteration",) if DEVICE == "cuda" else ("ARPACK", "power iteration"):
            for words, goal in GOALS.items():
                peers[f"{peer} {words}"] = setting = chosen(peer, goal, tried, cost)
                print(f"{peer} {words}: {setting.words}; errors up to {setting.error:.2%}", flush=True)
    return peers


def gradients(t: Transitions, direction: str, repeats: int) -> list[dict]:
    """Milliseconds a point of a radius and its gradient, for ours and by automatic
    differentiation."""
    t, share = distinct(t, direction)
    parameters = [p for p in t.cell.parameters() if p.requires_grad]

    def own(part: Transitions) -> Tensor:
        return (time_radius(part, 1) if direction == "time" else depth_radius(part, 1, "submatrix", torch.Generator()))[
            0
        ]

    taking = {"ours": (own, 200), "jacrev and eigvals": (lambda part: autograd(part, direction).radius, 2)}
    least = dict.fromkeys(taking, torch.inf)
    for _ in range(repeats + 1):
        for name, (radius, n) in taking.items():
            part = t.at(slice(0, n))

            def run(radius: Callable = radius, part: Transitions = part) -> None:
                torch.autograd.grad(radius(part).sum(), parameters, allow_unused=True)

            least[name] = min(least[name], cost(run)[0] / len(part.x) * 1e3)
    return [{"contestant": k, "ms": v, "ratio": v / least["ours"], "different": share} for k, v in least.items()]


def sampling(net: neurolsc.Network, x: Tensor) -> list[float]:
    """How far the mean radii of 32 steps x 8 samples are from those of 50 x 32, at worst, over 4
    draws."""
    whole = neurolsc.radius_profile(net, x[:, :32], steps=50)
    worst = [0.0, 0.0]
    for seed in range(4):
        drawn = torch.randperm(32, generator=torch.Generator().manual_seed(seed))[:8]
        part = neurolsc.radius_profile(net, x[:, drawn], steps=32, seed=seed)
        for i, name in enumerate(("time_mean", "depth_mean")):
            worst[i] = max(worst[i], (getattr(part, name) - getattr(whole, name)).abs().max().item())
    return worst


def main() -> None:
    """Run everything and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the points, two rounds, and speed alone")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--regimes", nargs="+", default=REGIMES, choices=REGIMES, help="all, unless named")
    global DEVICE
    arguments = parser.parse_args()
    quick, DEVICE = arguments.quick, arguments.device
    repeats, samples, checked = (2, 20, 20) if quick else (3, BATCH, 40)
    inputs = [batch.to(DEVICE) for batch in input_batches(SpikeLatencyMNIST.embedded("train"), 32)]
    x = next(iter(input_batches(SpikeLatencyMNIST.embedded("train"), samples))).to(DEVICE)
    rows: dict[str, list] = {"speed": [], "gradient": [], "sampling": [], "pretraining": []}

    def add(kind: str, about: dict, results: list[dict]) -> None:
        rows[kind] += [about | result for result in results]
        print(table(rows[kind][-len(results) :]), flush=True)
        write(rows)

    neurolsc.pretrain(network(n=8), inputs, max_steps=1, progress=False)  # the first call imports the optimizer
    cases: dict[tuple, Transitions] = {}
    rates = {}
    for name in arguments.regimes:
        net = regime(name, inputs, 20 if quick else 60)
        t, rates[name, 256] = points(net, x)
        cases |= {(name, 256, direction): t for direction in ("time", "depth")}
        if name in ("default", "after 0.5") and not quick:
            rows["sampling"].append({"regime": name, "time_depth": sampling(net, x)})
    for n in (64, 128, 512) if "default" in arguments.regimes else ():
        cases["default", n, "time"], rates["default", n] = points(network(n=n), x)
    peers = settings(cases)
    for (name, n, direction), t in cases.items():
        about = {"regime": name, "n": n, "direction": direction, "firing_rate": rates[name, n]}
        add("speed", about, compare(t, direction, repeats, checked, peers))
        if name == "default" and n == 256:
            add("gradient", about, gradients(t, direction, repeats))
    for n in () if quick else (128, 256):
        result = neurolsc.pretrain(network(n=n), inputs, target=0.5, progress=False)
        rows["pretraining"].append({"n": n, "seconds": result.seconds, "steps": result.steps})
    write(rows)


def write(rows: dict[str, list]) -> None:
    about = {"threads": torch.get_num_threads(), "torch": torch.__version__, "scipy": scipy.__version__}
    about |= {"date": time.strftime("%Y-%m-%d")}
    about |= {"device": torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu"}
    path = RESULTS / ("radii" if DEVICE == "cpu" else "radii_cuda")
    path.with_suffix(".json").write_text(json.dumps({"about": about} | rows, indent=1) + "\n")
    lines = [table(rows["speed"]), "", "With a gradient:", "", table(rows["gradient"])]
    for r in rows["pretraining"]:
        lines += ["", f"Pre-training 2 x {r['n']} to 0.5: {r['seconds']:.1f} s, {r['steps']} steps."]
    for r in rows["sampling"]:
        by_time, by_depth = r["time_depth"]
        lines += ["", f"Means of 32 steps x 8 samples, {r['regime']}: off by at most {by_time:.4f} (time), "]
        lines[-1] += f"{by_depth:.4f} (depth)."
    path.with_suffix(".md").write_text("\n".join(lines) + "\n")
    draw(rows["speed"], path)


if __name__ == "__main__":
    main()
