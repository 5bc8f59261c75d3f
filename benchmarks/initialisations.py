"""Which initialisation for which surrogate and neuron? Other libraries' networks on the embedded digits.

    python benchmarks/initialisations.py [--networks snntorch] [--arms built rate-matched "Relay()"] [--epochs 5]

Each row is one network, one initialisation, one seed and one learning rate: digits as 25 steps of
latencies, Adam, cross-entropy at every step. The networks of all seeds and rates of an arm are
trained at once, on the same batches. Appends to results/initialisations.csv and passes over rows that are
there, so that it goes on after a kill. About half a minute of one core an arm.
"""

import argparse
import csv
import datetime
import itertools
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

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
from neurolsc.init import named
from neurolsc.metrics import mode_accuracy

RESULTS = Path(__file__).parent / "results" / "initialisations.csv"
WIDTH, CLASSES, BATCH, PIXELS = 64, 10, 64, 784
SEEDS, RATES = (0, 1, 2), (1e-3, 3e-3, 1e-2)
INITIALISERS = {"built": "Default()", "rate-matched": "FiringRate(0.15)"}
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
    """A network and its initialisation."""

    neuron: str
    reset: str
    surrogate: str
    depth: int
    init: str


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
    arm: Arm, epochs: int, data: dict, batches: list[Tensor], trials: Sequence[tuple[int, float]]
) -> list[dict]:
    """Train an arm at once with some seeds, in order, and learning rates; a row for each."""
    built, wrapped, findings = [], [], []
    began = time.perf_counter()
    for seed, of_seed in itertools.groupby(trials, lambda trial: trial[0]):
        network = neurolsc.wrap(build(arm, seed))
        found = named(INITIALISERS.get(arm.init, arm.init)).apply(network, batches, seed=seed)
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
            "init_seconds": round((started - began) / len({seed for seed, _ in trials}), 2),
            "date": datetime.date.today().isoformat(),
            "end_rates": " ".join(f"{r:.3f}" for r in end_rates[:, i]),
        }
        for i, (seed, lr) in enumerate(trials)
    ]


@torch.no_grad()
def score(stack: Callable, x: Tensor, labels: Tensor) -> list[float]:
    """Mode accuracy of every network."""
    logits = torch.cat([stack(part)[0] for part in x.split(250, dim=1)], dim=2)
    return [round(float(mode_accuracy(each, labels)), 4) for each in logits]


def digits() -> tuple[dict, list[Tensor]]:
    """The embedded digits and labels of each split, and the batches for initialisation."""
    steps, data = LatencyEncoding(dt=2.0, repeat=1), {}
    for split in ("train", "validation", "test"):
        images = SpikeLatencyMNIST.embedded(split, encoding=steps)
        x, labels = collate([images[i] for i in range(len(images))])
        data[split] = (x.float(), labels)
    images = SpikeLatencyMNIST.embedded("train", encoding=steps)
    return data, [x.float() for x in input_batches(images, 32, seed=0)][:8]


def arm_of(row: dict[str, str]) -> Arm:
    """The arm of a row of results."""
    return Arm(row["neuron"], row["reset"], row["surrogate"], int(row["depth"]), row["init"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--networks", default="", help="only those whose arm contains all these words, such as 'RLeaky depth=4'"
    )
    parser.add_argument(
        "--arms", nargs="+", default=["built", "rate-matched", "Relay()"], help="initialisations, by name or text"
    )
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    warnings.simplefilter("ignore", neurolsc.WrappedNeuronWarning)
    data, batches = digits()
    done = set(map(arm_of, csv.DictReader(args.out.open()))) if args.out.exists() else set()
    every = [Arm(*network, initialiser) for network in NETWORKS for initialiser in args.arms]
    arms = [arm for arm in every if arm not in done and all(word in str(arm) for word in args.networks.split())]
    for arm in tqdm(arms):
        rows = train_arm(arm, args.epochs, data, batches, list(itertools.product(SEEDS, RATES)))
        new = not args.out.exists()
        with args.out.open("a", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerows(rows)
        by_rate = {lr: [r["validation"] for r in rows if r["lr"] == lr] for lr in RATES}
        tqdm.write(f"{arm}: {by_rate}, spikes per neuron and step {rows[0]['rates']}")


if __name__ == "__main__":
    main()
