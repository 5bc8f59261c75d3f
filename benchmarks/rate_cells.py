"""How fast are the cells that send numbers, next to PyTorch's own layers, and their radii?

    python benchmarks/rate_cells.py [--rounds 9] [--minimal-lru FOLDER]

- layers: a run over 100 steps, forward and with its gradient, of RNN, GRU and LSTM next to
  `nn.RNN`, `nn.GRU` and `nn.LSTM`; PyTorch has no RNN with a sigmoid (its tanh stands beside it),
  and no GRU whose reset acts before the recurrent weights (its own stands beside equation 48);
- steps: one step, next to `nn.RNNCell`, `nn.GRUCell` and `nn.LSTMCell`;
- scan: the LRU's run next to its steps, and the linear recurrence alone next to a loop;
- minimal-LRU: the LRU's run next to that of github.com/NicolasZucchet/minimal-LRU (jax and flax)
  with the same weights and sizes, if FOLDER is a checkout of it, in the environment of
  `make peers-env`; first its outputs are checked against ours;
- radii: a radius through time and through depth of the second of two untrained layers, by products
  with vectors, by dense eigenvalues (`torch.linalg.eigvals`) and by ARPACK
  (`scipy.sparse.linalg.eigs`) on the same products.

One thread, the best of several rounds in which all take their turn; next to minimal-LRU processor
time, as medians. Writes results/rate_cells.json; takes five minutes, three more with minimal-LRU.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from _lru_peer import next_to_theirs
from scipy.sparse.linalg import LinearOperator, eigs
from torch import Tensor, nn

from neurolsc import GRU, LRU, LSTM, RNN, Cell, Network
from neurolsc.neurons.lru import linear_scan
from neurolsc.stability.profile import depth_radius, time_radius
from neurolsc.stability.transitions import Transitions, depth_product, follow, time_product

RESULTS = Path(__file__).parent / "results"
STEPS, SIZES = 100, ((32, 42), (32, 128), (100, 256))
LENGTHS = (16, 64, 250)
KINDS: dict[str, tuple[Callable[[int], Cell], type[nn.RNNBase], dict[str, str]]] = {
    "RNN, relu": (lambda n: RNN(n, n), nn.RNN, {"nonlinearity": "relu"}),
    "RNN, sigmoid": (lambda n: RNN(n, n, activation="sigmoid"), nn.RNN, {}),
    "GRU, eq. 48": (lambda n: GRU(n, n), nn.GRU, {}),
    "GRU, reset after": (lambda n: GRU(n, n, reset_after=True), nn.GRU, {}),
    "LSTM": (lambda n: LSTM(n, n), nn.LSTM, {}),
}
Way = Callable[[], object]


def race(ways: dict[str, Way], rounds: int, repeat: int = 1) -> dict[str, float]:
    """Milliseconds of each, at best."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds + 1):
        for name, way in ways.items():
            started = time.perf_counter()
            for _ in range(repeat):
                way()
            best[name] = min(best[name], 1e3 * (time.perf_counter() - started) / repeat)
    return best


def back(run: Callable[[], Tensor]) -> Way:
    """A run with the gradient of its sum."""
    return lambda: run().sum().backward()


def quietly(run: Way) -> Way:
    """A run without a gradient."""

    def without() -> object:
        with torch.no_grad():
            return run()

    return without


def layers(rounds: int) -> list[dict[str, Any]]:
    """Runs over all steps."""
    found = []
    for batch, n in SIZES:
        x = torch.randn(STEPS, batch, n)
        for name, (make, theirs, settings) in KINDS.items():
            ours, peer = make(n), theirs(n, n, **settings)
            state = ours.initial_state(batch)
            runs = {"ours": lambda o=ours, s=state, x=x: o.run(x, s)[0], "PyTorch": lambda p=peer, x=x: p(x)[0]}
            both = race({who: back(run) for who, run in runs.items()}, rounds)
            forward = race({who: quietly(run) for who, run in runs.items()}, rounds)
            found.append({"cell": name, "n": n, "batch": batch, "both": both, "forward": forward})
            print(name, n, both, flush=True)
    return found


def steps(rounds: int) -> list[dict[str, Any]]:
    """One step."""
    found = []
    cells: dict[str, Any] = {nn.RNN: nn.RNNCell, nn.GRU: nn.GRUCell, nn.LSTM: nn.LSTMCell}
    for batch, n in SIZES[:2]:
        x = torch.randn(batch, n)
        for name, (make, theirs, settings) in KINDS.items():
            ours, peer = make(n), cells[theirs](n, n, **settings)
            state = ours.initial_state(batch)
            z = ours.output(state)
            given = (z, z) if theirs is nn.LSTM else z
            ways: dict[str, Way] = {
                "ours": quietly(lambda o=ours, s=state, z=z, x=x: o.update(x, z, s)),
                "PyTorch": quietly(lambda p=peer, g=given, x=x: p(x, g)),
            }
            found.append({"cell": name, "n": n, "batch": batch, "ms": race(ways, rounds, repeat=100)})
    return found


def scan(rounds: int) -> list[dict[str, Any]]:
    """The LRU next to its steps."""

    def loop(decay: Tensor, b: Tensor, x: Tensor) -> Tensor:
        values = []
        for now in b:
            x = decay * x + now
            values.append(x)
        return torch.stack(values)

    found = []
    for batch, n in SIZES:
        for length in LENGTHS:
            cell, x = LRU(n, n), torch.randn(length, batch, n)
            state, decay = cell.initial_state(batch), LRU(n, n).eigenvalues.detach().requires_grad_()
            b = torch.randn(length, batch, n, dtype=torch.complex64, requires_grad=True)
            block = {
                "ours": back(lambda c=cell, x=x, s=state: c.run(x, s)[0]),
                "steps": back(lambda c=cell, x=x, s=state: c._by_steps(x, s, None, None)[0]),
            }
            alone = {
                "ours": back(lambda d=decay, b=b, s=state: linear_scan(d, b, s.x).real),
                "steps": back(lambda d=decay, b=b, s=state: loop(d, b, s.x).real),
            }
            row = {"n": n, "batch": batch, "steps": length}
            found.append(row | {"block": race(block, rounds // 3), "alone": race(alone, rounds // 3)})
            print("scan", found[-1], flush=True)
    return found


def by_arpack(cycle: Any, like: Tensor) -> list[float]:
    """The radius at every point."""
    found = []
    for i in range(cycle.points):
        one = cycle.take(torch.tensor([i]))

        def product(x: np.ndarray, one: Any = one) -> np.ndarray:
            return one.matvec(torch.from_numpy(np.ascontiguousarray(x).reshape(1, -1)).to(like)).numpy()[0]

        operator = LinearOperator((cycle.size, cycle.size), matvec=product, dtype=np.float32)
        try:
            values = eigs(operator, k=1, which="LM", tol=1e-2, return_eigenvectors=False, maxiter=300)
            found.append(float(np.abs(values).max()))
        except Exception:
            found.append(float("nan"))
    return found


def radii(rounds: int) -> list[dict[str, Any]]:
    """A radius of the second of two untrained layers, a point."""
    found = []
    for n in (64, 128, 256):
        makes = {name: make for name, (make, *_) in KINDS.items()} | {"LRU": lambda n: LRU(n, n)}
        for name, make in makes.items():
            torch.manual_seed(0)
            network = Network([make(n), make(n)], 10, layer_delay=0).eval()
            x = torch.randn(40, 4, n)
            t: Transitions = follow(network, x, torch.arange(5, 40, 12))[0][1]
            points, generator = len(t.x), torch.Generator().manual_seed(0)
            for direction in ("time", "depth"):
                cycle = time_product(t) if direction == "time" else depth_product(t, "submatrix", generator)

                def radius(method: str, d: str = direction, t: Transitions = t, g: Any = generator) -> Any:
                    return time_radius(t, 1, method) if d == "time" else depth_radius(t, 1, "submatrix", g, method)

                ways: dict[str, Way] = {
                    "ours": quietly(lambda r=radius: r("krylov")),
                    "dense": quietly(lambda r=radius: r("exact")),
                    "ARPACK": quietly(lambda c=cycle, x=x: by_arpack(c, x)),
                }
                with torch.no_grad():
                    ours, exact = radius("krylov"), radius("exact").radius
                    arpack = torch.tensor(by_arpack(cycle, x))
                ms = {who: each / points for who, each in race(ways, max(rounds // 4, 1)).items()}
                row = {"cell": name, "n": n, "through": direction, "ms": ms, "radius": exact.mean().item()}
                row |= {"went dense": ours.exact.float().mean().item()}
                row |= {"error": (ours.radius / exact - 1).abs().max().item()}
                found.append(row | {"error of ARPACK": (arpack / exact - 1).abs().nan_to_num(1).max().item()})
                print("radii", found[-1], flush=True)
    return found


def main() -> None:
    """Measure, and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--minimal-lru", type=Path, metavar="FOLDER", help="a checkout of minimal-LRU")
    options = parser.parse_args()
    rounds = options.rounds
    torch.set_num_threads(1)
    torch.manual_seed(0)
    about = {"date": date.today().isoformat(), "torch": torch.__version__, "scipy": version("scipy"), "threads": 1}
    about["load of other processes at the start"] = round(os.getloadavg()[0], 1)
    parts: dict[str, Callable[[int], list[dict[str, Any]]]] = {"layers": layers, "steps": steps, "scan": scan}
    if options.minimal_lru:
        parts["minimal-LRU"] = lambda rounds: [
            row
            for batch, n in SIZES
            for length in LENGTHS
            for row in next_to_theirs(options.minimal_lru, rounds, length, batch, n)
        ]
    parts["radii"] = radii
    report = {"about": about} | {name: part(rounds) for name, part in parts.items()}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "rate_cells.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
