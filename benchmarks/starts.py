"""Which start for which surrogate and neuron? Other libraries' networks on the embedded digits.

    python benchmarks/starts.py [--registered] [--networks snntorch] [--arms built woken "Relay()"] [--epochs 5]

Each row is one network, one start, one seed and one learning rate: digits as 25 steps of
latencies, Adam, cross-entropy at every step. The networks of all seeds and rates of an arm are
trained at once, on the same batches. Appends to results/starts.csv and passes over rows that are
there, so that it goes on after a kill. About half a minute of one core an arm.

`--registered` runs sections 19 and 20 of study/registration.md: seeds 0 to 3 choose a learning rate, seeds 4 to
11 are reported. It appends to results/study_libraries.csv. Two to four minutes of one core an arm.
"""

import argparse
import copy
import csv
import datetime
import itertools
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

os.environ.setdefault("OMP_NUM_THREADS", "1")

import norse.torch as norse
import snntorch as snn
import torch
from snntorch import surrogate as theirs
from torch import Tensor, nn
from tqdm import tqdm

import neurolsc
from neurolsc import surrogate as ours
from neurolsc.datasets import LatencyEncoding, SpikeLatencyMNIST, collate, input_batches
from neurolsc.initialisers import Initialiser, RateMatching, Relay, named, register
from neurolsc.initialisers.base import layers_of
from neurolsc.metrics import mode_accuracy
from neurolsc.stability.conditions import Finding

RESULTS = Path(__file__).parent / "results" / "starts.csv"
REGISTERED = Path(__file__).parent / "results" / "study_libraries.csv"
WIDTH, CLASSES, BATCH, PIXELS = 64, 10, 64, 784
SEEDS, RATES = (0, 1, 2), (1e-3, 3e-3, 1e-2)
GRID, CHOOSING, NEW = (1e-5, 3e-5, 1e-4, 3e-4, *RATES, 3e-2, 1e-1), range(4), range(4, 12)  # of --registered
STARTS = {"built": "Default()", "woken": "RateMatching(0.15)"}
STARTS |= {"recurrence": "RecurrenceOfRelay(0.15)", "bounded": "BySource(depth=0)"}  # of RLeaky, as registered
SURROGATES: dict[str, Callable[[Tensor], Tensor]] = {
    "fast_sigmoid(5)": theirs.fast_sigmoid(5),
    "fast_sigmoid(10)": theirs.fast_sigmoid(10),
    "fast_sigmoid(25)": theirs.fast_sigmoid(25),
    "fast_sigmoid(50)": theirs.fast_sigmoid(50),
    "atan": theirs.atan(),
    "sigmoid(5)": theirs.sigmoid(5),
    "triangular": theirs.triangular(),
    "FastSigmoid(1)": ours.FastSigmoid(sharpness=1.0),
    "FastSigmoid(3)": ours.FastSigmoid(sharpness=3.0),
    "FastSigmoid(10)": ours.FastSigmoid(sharpness=10.0),
}


@dataclass(frozen=True)
class Arm:
    """A network and its start."""

    neuron: str
    reset: str
    surrogate: str
    depth: int
    start: str


COMMON, WIDE = "fast_sigmoid(25)", "atan"  # snnTorch's default slope, and its neurons' default surrogate
NETWORKS: list[tuple[str, str, str, int]] = [
    *itertools.product(("RLeaky", "Leaky"), ("subtract",), (COMMON, WIDE, "FastSigmoid(1)", "fast_sigmoid(5)"), (4,)),
    *itertools.product(("RLeaky", "Leaky"), ("subtract",), (COMMON, WIDE), (8,)),
    *itertools.product(("RLeaky", "Leaky"), ("zero",), (COMMON, WIDE), (4,)),
    *itertools.product(("RLeaky", "Leaky"), ("subtract",), (COMMON,), (2,)),
    *itertools.product(("norse LIF",), ("zero",), ("super",), (4,)),
    *itertools.product(("RLeaky",), ("subtract",), ("fast_sigmoid(50)", "fast_sigmoid(10)", "FastSigmoid(10)"), (4,)),
    *itertools.product(("RLeaky",), ("subtract",), ("sigmoid(5)", "triangular"), (4,)),
    *itertools.product(("Leaky",), ("none",), (COMMON,), (4,)),
    *itertools.product(("Synaptic",), ("subtract",), (COMMON,), (4,)),
    *itertools.product(("our LIF", "our ALIF+"), ("subtract",), (COMMON, "FastSigmoid(1)"), (4,)),
    *itertools.product(("norse LIFRecurrent",), ("zero",), ("super",), (4,)),
    *itertools.product(("Leaky",), ("subtract",), ("fast_sigmoid(50)",), (4,)),
]


@register
@dataclass(frozen=True)
class RecurrenceOfRelay(Initialiser):
    """Recurrent weights as `Relay` sets them, the rest as drawn; then all layers are woken."""

    rate: float

    def apply(self, network: neurolsc.Network, inputs: Sequence[Tensor], *, seed: int = 0) -> tuple[Finding, ...]:
        drawn, matrices = (
            copy.deepcopy(network.state_dict()),
            [m for each in layers_of(network) for m in each.recurrent],
        )
        Relay(self.rate).apply(network, inputs, seed=seed)
        set_by_relay = [matrix.weights.clone() for matrix in matrices]
        network.load_state_dict(drawn)
        for matrix, weights in zip(matrices, set_by_relay, strict=True):
            matrix.set(weights)
        return RateMatching(self.rate).apply(network, inputs)


def build(arm: Arm, seed: int) -> nn.Sequential:
    """A network of the library as its users write it."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for i in range(arm.depth):
        n_in = WIDTH if i else PIXELS
        if arm.neuron.startswith("norse"):
            p = norse.LIFParameters(method=arm.surrogate)  # which does not read alpha
            if arm.neuron == "norse LIF":
                layers += [nn.Linear(n_in, WIDTH), norse.LIFCell(p)]
            else:
                layers += [norse.LIFRecurrentCell(n_in, WIDTH, p)]
            continue
        spike = SURROGATES[arm.surrogate]
        if arm.neuron.startswith("our"):
            kind = {"our LIF": neurolsc.LIF, "our ALIF+": neurolsc.ALIFPlus}[arm.neuron]
            layers += [kind(n_in, WIDTH, spike=spike, reset=arm.reset, tau_v=9.5)]  # which keeps 0.9 a step
            continue
        kind = getattr(snn, arm.neuron)
        extra = {"linear_features": WIDTH} if arm.neuron == "RLeaky" else {}
        extra |= {"alpha": 0.8} if arm.neuron == "Synaptic" else {}
        layers += [nn.Linear(n_in, WIDTH), kind(beta=0.9, spike_grad=spike, reset_mechanism=arm.reset, **extra)]
    return nn.Sequential(*layers, nn.Linear(WIDTH, CLASSES))


class Side(nn.Module):
    """Linear layers of several networks as one, over their stacked weights.

    :meth:`stack` reads their weights once a run, since a recurrent layer uses them in every step.
    """

    def __init__(self, linears: list[nn.Linear]) -> None:
        super().__init__()
        self.linears = tuple(linears)  # not registered: the parameters belong to the networks

    def stack(self) -> None:
        """Read the networks' parameters."""
        self.weight = torch.stack([each.weight.T for each in self.linears])  # (R, n, m)
        self.bias = None if self.linears[0].bias is None else torch.stack([each.bias for each in self.linears])[:, None]

    def forward(self, x: Tensor) -> Tensor:
        """x (B, n), the same for all, or (R, B, n) -> (R, B, m)."""
        if x.ndim == 2:
            n_in, networks = x.shape[1], len(self.linears)
            y = (x @ self.weight.transpose(0, 1).reshape(n_in, -1)).view(len(x), networks, -1).transpose(0, 1)
            return y if self.bias is None else y + self.bias
        return x @ self.weight if self.bias is None else torch.baddbmm(self.bias, x, self.weight)


class Stack:
    """Networks of one kind that step side by side; each has its own parameters."""

    def __init__(self, networks: list[nn.Sequential]) -> None:
        self.networks = networks
        self.neurons: list[nn.Module] = []
        for i, first in enumerate(networks[0]):
            peers = [network[i] for network in networks]
            if isinstance(first, nn.Linear):
                self.neurons.append(Side(peers))
            elif isinstance(first, norse.LIFCell):
                p = first.p._replace(v_th=torch.stack([torch.as_tensor(n.p.v_th).view(1, -1) for n in peers]))
                self.neurons.append(norse.LIFCell(p))
            else:
                extra = {"linear_features": WIDTH} if isinstance(first, snn.RLeaky) else {}
                extra |= {"alpha": first.alpha} if isinstance(first, snn.Synaptic) else {}
                threshold = torch.stack([n.threshold.detach().view(1, -1) for n in peers])
                layer = type(first)(
                    beta=first.beta,
                    spike_grad=first.spike_grad,
                    threshold=threshold,
                    reset_mechanism=first.reset_mechanism,
                    **extra,
                )
                if extra and isinstance(first, snn.RLeaky):
                    layer.recurrent = Side([n.recurrent for n in peers])
                self.neurons.append(layer)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (R, T, B, classes) and the firing rate of each layer (layers, R)."""
        for module in self.neurons:
            for side in (module, getattr(module, "recurrent", None)):
                if isinstance(side, Side):
                    side.stack()
        steps, batch, _ = x.shape
        networks = len(self.networks)
        rates: list[Tensor] = []
        z: Tensor = x.flatten(0, 1)  # (T B, n), then (R, T B, n)
        for module in self.neurons:
            if isinstance(module, Side):
                z = module(z)
                continue
            currents = z.view(networks, steps, batch, -1).unbind(1)
            state: tuple = ()
            if isinstance(module, snn.SpikingNeuron):
                kinds = 2 if isinstance(module, snn.RLeaky | snn.Synaptic) else 1
                state = tuple(torch.zeros_like(currents[0]) for _ in range(kinds))
            out = []
            for current in currents:
                if isinstance(module, snn.SpikingNeuron):
                    spikes, *after = module(current, *state)
                    state = (spikes, *after) if isinstance(module, snn.RLeaky) else tuple(after)
                else:
                    spikes, state = module(current, state or None)
                out.append(spikes)
            z = torch.stack(out, 1).flatten(1, 2)
            rates.append(z.detach().mean((1, 2)))
        return z.view(networks, steps, batch, -1), torch.stack(rates)


class Loop:
    """Networks of any kind, one after the other."""

    def __init__(self, networks: list[neurolsc.Network]) -> None:
        self.networks = networks

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        runs = [network.run(x) for network in self.networks]
        rates = torch.stack([torch.stack([z.detach().mean() for z in run.spikes]) for run in runs], 1)
        return torch.stack([run.logits for run in runs]), rates


def train_arm(
    arm: Arm, epochs: int, data: dict, start_batches: list[Tensor], trials: Sequence[tuple[int, float]]
) -> list[dict]:
    """Train an arm with these seeds and learning rates, at once; a row for each."""
    built, wrapped, findings = [], [], []
    began = time.perf_counter()
    for seed, of_seed in itertools.groupby(trials, lambda trial: trial[0]):
        network = neurolsc.wrap(build(arm, seed))
        found = named(STARTS.get(arm.start, arm.start)).apply(network, start_batches, seed=seed)
        for _ in of_seed:
            net = build(arm, seed)
            wrapped.append(neurolsc.wrap(net))
            wrapped[-1].load_state_dict(network.state_dict())
            built.append(net)
            findings.append("; ".join(map(str, found)))
    sequential = arm.neuron == "norse LIFRecurrent" or arm.neuron.startswith("our")
    stack = Loop(wrapped) if sequential else Stack(built)
    groups = [
        {"params": [p for p in net.parameters() if p.requires_grad], "lr": lr}
        for net, (_, lr) in zip(built, trials, strict=True)
    ]
    optimizer = torch.optim.Adam(groups)
    x, labels = data["train"]
    draw = torch.Generator().manual_seed(0)
    started = time.perf_counter()
    with torch.no_grad():
        rates = stack(x[:, :256])[1]
    for _ in range(epochs):
        for some in torch.randperm(len(labels), generator=draw).split(BATCH):
            logits, _ = stack(x[:, some])
            losses = nn.functional.cross_entropy(
                logits.reshape(-1, CLASSES),
                labels[some].repeat(logits.shape[0] * logits.shape[1]),
                reduction="none",
            )
            loss = losses.view(len(built), -1).mean(1)
            optimizer.zero_grad()
            loss[loss.isfinite()].sum().backward()
            optimizer.step()
    validation, test = (score(stack, *data[split]) for split in ("validation", "test"))
    with torch.no_grad():
        end_rates = stack(x[:, :256])[1]
    return [
        asdict(arm)
        | {
            "seed": seed,
            "lr": lr,
            "epochs": epochs,
            "validation": validation[i],
            "test": test[i],
            "rates": " ".join(f"{r:.3f}" for r in rates[:, i]),
            "findings": findings[i],
            "seconds": round(time.perf_counter() - started, 1),
            "start_seconds": round((started - began) / len({seed for seed, _ in trials}), 2),
            "date": datetime.date.today().isoformat(),
            "end_rates": " ".join(f"{r:.3f}" for r in end_rates[:, i]),
        }
        for i, (seed, lr) in enumerate(trials)
    ]


def run_registered(known: dict[tuple[int, float], float], run: Callable[[list[tuple[int, float]]], None]) -> None:
    """Choose a rate with seeds 0 to 3, from more until none at an edge is best; then run seeds 4 to 11 at it.

    Args:
        known: validation scores by seed and rate; `run` adds to them.
        run: trains an arm with seeds and rates.
    """
    first, last = 3, 6  # of the grid
    while True:
        rates = GRID[first : last + 1]
        run([(seed, lr) for seed in CHOOSING for lr in rates])
        best = max(rates, key=lambda lr: fmean(known[seed, lr] for seed in CHOOSING))  # the lowest of equals
        if best == rates[0] and first:
            first -= 1
        elif best == rates[-1] and last + 1 < len(GRID):
            last += 1
        else:
            return run([(seed, best) for seed in NEW])


@torch.no_grad()
def score(stack: Callable, x: Tensor, labels: Tensor) -> list[float]:
    """Mode accuracy of every network."""
    logits = torch.cat([stack(part)[0] for part in x.split(250, dim=1)], dim=2)
    return [round(float(mode_accuracy(each, labels)), 4) for each in logits]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--networks", default="", help="only those whose arm contains all these words, such as 'RLeaky depth=4'"
    )
    parser.add_argument("--arms", nargs="+", help="starts, by name or text", default=["built", "woken", "Relay()"])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--registered", action="store_true", help="only what the study compares")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    out = args.out or (REGISTERED if args.registered else RESULTS)
    warnings.simplefilter("ignore", neurolsc.ForeignNeuronWarning)
    steps = LatencyEncoding(dt=2.0, repeat=1)
    data = {}
    for split in ("train", "validation", "test"):
        digits = SpikeLatencyMNIST.embedded(split, encoding=steps)
        x, labels = collate([digits[i] for i in range(len(digits))])
        data[split] = (x.float(), labels)
    digits = SpikeLatencyMNIST.embedded("train", encoding=steps)
    start_batches = [x.float() for x in input_batches(digits, 32, seed=0)][:8]
    known: dict[Arm, dict[tuple[int, float], float]] = {}
    for r in csv.DictReader(out.open()) if out.exists() else ():
        arm = Arm(r["neuron"], r["reset"], r["surrogate"], int(r["depth"]), r["start"])
        known.setdefault(arm, {})[int(r["seed"]), float(r["lr"])] = float(r["validation"])
    every = [Arm(*network, start) for network in NETWORKS for start in args.arms]
    if args.registered:
        usual = [
            (*each, n) for n in (4, 8) for each in itertools.product(("RLeaky", "Leaky"), ("subtract",), (COMMON, WIDE))
        ]
        every = [
            Arm(*each, start)
            for extra in ((*args.arms, "recurrence"), ("bounded",))
            for each in usual
            for start in extra
            if each[0] == "RLeaky" or start in args.arms
        ]
    for arm in tqdm([arm for arm in every if all(word in str(arm) for word in args.networks.split())]):
        scores = known.setdefault(arm, {})

        def run(trials: list[tuple[int, float]], arm: Arm = arm, scores: dict = scores) -> None:
            if not (trials := [trial for trial in trials if trial not in scores]):
                return
            rows = train_arm(arm, args.epochs, data, start_batches, trials)
            scores.update({(row["seed"], row["lr"]): row["validation"] for row in rows})
            new = not out.exists()
            with out.open("a+", newline="") as file:
                file.seek(0)
                columns = list(rows[0]) if new else next(csv.reader(file))  # older files have no end_rates
                writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
                if new:
                    writer.writeheader()
                writer.writerows(rows)
            by_rate = {lr: [r["validation"] for r in rows if r["lr"] == lr] for _, lr in trials}
            tqdm.write(f"{arm}: {by_rate}, spikes per neuron and step {rows[0]['rates']}")

        if args.registered:
            run_registered(scores, run)
        else:
            run(list(itertools.product(SEEDS, RATES)))


if __name__ == "__main__":
    main()
