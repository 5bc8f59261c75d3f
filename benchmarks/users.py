"""What an initialisation does in a user's own loop: networks x learning rates x seeds.

    python benchmarks/users.py --networks "4 Leaky" "8 Leaky" --arms built "Relay(rate=0.02)"
    python benchmarks/users.py --arms built "by hand" kaiming "Identity()" --seeds 20 21 22 23
    python benchmarks/users.py --table              the tables of what is there

The second command runs every network with the loss of its tutorial; `--losses` names others. Seeds below 20 chose the
method (results/users_choosing.csv), those from 20 on are reported.

A trial is a network, a loss, an initialisation, a learning rate and a seed, trained by plain Adam without clipping,
in batches whose order the seed draws. Each finished trial is a row of results/users.csv; trials that are there are
passed over, so a run that was killed goes on. Nothing of neurolsc.train is used.

An initialisation sees one batch of inputs, neither labels nor learning rate. Networks of snnTorch's Leaky and RLeaky
are trained side by side: all arms and learning rates of a seed read the same batches, and each has its own parameters.
"""

import argparse
import copy
import csv
import datetime
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import snntorch as snn
import torch
from _users_networks import KINDS, Chain, Data, Jelly, Kind, Ours, data, frames, is_norse
from spikingjelly.activation_based import neuron
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from tqdm import tqdm

import neurolsc

RESULTS = Path(__file__).parent / "results" / "users.csv"
RATES = (3e-4, 1e-3, 3e-3, 1e-2)
CHOOSING = (0, 1)  # seeds that choose a design, by default; those from 20 on chose nothing and are reported
SIDE_BY_SIDE = 24  # networks at once; more are not faster
COLUMNS = (
    "network", "loss", "arm", "lr", "seed", "epochs", "test", "curve", "train_loss", "rates_before", "rates_after",
    "thresholds", "seconds", "init_seconds", "report", "date",
)  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """A network with its loss, how it is initialised, and how it is trained."""

    network: str
    loss: str
    arm: str
    lr: float
    seed: int
    epochs: int

    @classmethod
    def of(cls, row: dict[str, str]) -> "Trial":
        """The trial of a row of results."""
        return cls(row["network"], row["loss"], row["arm"], float(row["lr"]), int(row["seed"]), int(row["epochs"]))


# ---------------------------------------------------------------- arms


def kaiming(net: nn.Module) -> None:
    """Kaiming's weights and zero biases, in every Linear and Conv2d."""
    for module in net.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def by_hand(net: nn.Module) -> None:
    """What a user would type: thresholds of 0.3, recurrent weights times 0.2."""
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, snn.SpikingNeuron):
                module.threshold.fill_(0.3)
                if isinstance(module, snn.RLeaky | snn.RSynaptic):
                    module.recurrent.weight.mul_(0.2)
            elif is_norse(module) and hasattr(module.p, "v_th"):
                module.p = module.p._replace(v_th=torch.as_tensor(0.3))
                if hasattr(module, "recurrent_weights"):
                    module.recurrent_weights.mul_(0.2)
            elif isinstance(module, neuron.BaseNode):
                module.v_threshold = 0.3
            elif isinstance(module, neurolsc.SpikingCell):
                module.thresholds().scale(0.3)
                if hasattr(module, "w_rec"):
                    module.w_rec.mul_(0.2)


def initialise(net: nn.Module, arm: str, x: Tensor, seed: int) -> str:
    """Initialise a network in place by the arm of that name; the report."""
    if arm == "built":
        return ""
    if arm == "kaiming":
        kaiming(net)
        return ""
    if arm == "by hand":
        by_hand(net)
        return ""
    from neurolsc.init import named

    return " | ".join(str(named(arm).apply(wrapped(net, x), [x.flatten(2)], seed=seed)).splitlines())


def wrapped(net: nn.Module, x: Tensor) -> neurolsc.Network:
    """The network of a module, over the same parameters; frames are flat."""
    if isinstance(net, Ours):
        return net.layers
    if isinstance(net, Jelly):
        return neurolsc.wrap(net.layers, input_shape=tuple(x.shape[2:]))
    integrates = net.readout == "membrane" and isinstance(net.layers[-1], snn.SpikingNeuron)
    output = "membrane" if integrates else None
    return neurolsc.wrap(list(net.layers), input_shape=tuple(x.shape[2:]), output=output)


# ---------------------------------------------------------------- side by side


class Side(nn.Module):
    """Linear layers of several networks as one, over their stacked weights.

    `stack` reads the weights once a run, since a recurrent layer uses them in every step.
    """

    def __init__(self, linears: list[nn.Linear]) -> None:
        super().__init__()
        self.linears = tuple(linears)  # not registered: the parameters belong to the networks
        self.out_features = linears[0].out_features

    def stack(self) -> None:
        """Read the networks' parameters."""
        self.weight = torch.stack([each.weight.T for each in self.linears])
        self.bias = torch.stack([each.bias for each in self.linears])[:, None]

    def forward(self, x: Tensor) -> Tensor:
        """x (B, n), the same for all, or (R, B, n) -> (R, B, m)."""
        if x.ndim == 2:
            n_in, networks = x.shape[1], len(self.linears)
            joined = self.weight.transpose(0, 1).reshape(n_in, -1)
            return (x @ joined).view(len(x), networks, -1).transpose(0, 1) + self.bias
        return torch.baddbmm(self.bias, x, self.weight)


class Stack:
    """Chains of snnTorch's layers that step side by side; each has its own parameters and thresholds."""

    def __init__(self, nets: list[Chain]) -> None:
        self.readout = nets[0].readout
        self.modules: list[nn.Module] = []
        for peers in zip(*(net.layers for net in nets), strict=True):
            first = peers[0]
            if isinstance(first, nn.Linear):
                self.modules.append(Side(list(peers)))
                continue
            thresholds = [peer.threshold.detach().view(1, -1) for peer in peers]
            width = max(each.shape[1] for each in thresholds)
            joined = copy.deepcopy(first)
            joined.threshold = torch.stack([each.expand(1, width) for each in thresholds])
            if isinstance(first, snn.RLeaky):
                joined.recurrent = Side([peer.recurrent for peer in peers])
            self.modules.append(joined)
        self.networks = len(nets)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What the loss reads (R, T, B, classes), and firing rates (layers, R)."""
        for module in self.modules:
            for side in (module, getattr(module, "recurrent", None)):
                if isinstance(side, Side):
                    side.stack()
        steps, batch, _ = x.shape
        z = x.flatten(0, 1)
        rates = []
        for index, module in enumerate(self.modules):
            if isinstance(module, Side):
                z = module(z)
                continue
            last = index == len(self.modules) - 1
            spikes, membranes = self.neurons(module, z.view(self.networks, steps, batch, -1))
            if module.reset_mechanism != "none":
                rates.append(spikes.detach().mean((1, 2, 3)))
            sent = membranes if last and self.readout == "membrane" else spikes
            z = sent.flatten(1, 2)
        return z.view(self.networks, steps, batch, -1), torch.stack(rates)

    def neurons(self, module: nn.Module, currents: Tensor) -> tuple[Tensor, Tensor]:
        """Spikes and membranes of a layer of neurons, from currents (R, T, B, n)."""
        spikes = membrane = torch.zeros_like(currents[:, 0])
        sent, membranes = [], []
        for current in currents.unbind(1):
            if isinstance(module, snn.RLeaky):
                spikes, membrane = module(current, spikes, membrane)
            else:
                spikes, membrane = module(current, membrane)
            sent.append(spikes)
            membranes.append(membrane)
        return torch.stack(sent, 1), torch.stack(membranes, 1)


class Alone:
    """One network of any kind, with the outputs of a stack of one."""

    def __init__(self, nets: list[nn.Module]) -> None:
        (self.net,) = nets
        self.readout = self.net.readout

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor]:
        sent, rates = self.net(x)
        return sent[None], torch.stack(rates)[:, None]


# ---------------------------------------------------------------- training


def losses(sent: Tensor, labels: Tensor, readout: str) -> Tensor:
    """The loss of each network (R,), of what it sends (R, T, B, classes).

    "count": cross-entropy of spike counts; "membrane": of the mean over time; "step": of each step.
    """
    networks, steps = sent.shape[:2]
    if readout == "step":
        logits = sent.flatten(1, 2)
        labels = labels.repeat(steps)
    else:
        logits = sent.sum(1) if readout == "count" else sent.mean(1)
    each = cross_entropy(logits.flatten(0, 1), labels.repeat(networks), reduction="none")
    return each.view(networks, -1).mean(1)


def predictions(sent: Tensor, readout: str) -> Tensor:
    """Classes (R, B): the most common one of all steps, or that of the largest sum."""
    if readout == "step":
        return sent.argmax(3).mode(1).values
    return sent.sum(1).argmax(2)


@torch.no_grad()
def accuracies(run: Callable, part: Data, kind: Kind, readout: str) -> list[float]:
    """Test accuracy of each network, in evaluation mode."""
    samples, labels = part
    draw = torch.Generator().manual_seed(0)
    right = []
    for index in range(0, len(labels), 250):
        x = frames(kind.data, samples[index : index + 250], draw)
        found = predictions(run(x)[0], readout)
        right.append(found == labels[index : index + 250])
    return torch.cat(right, 1).double().mean(1).tolist()


def train(trials: Sequence[Trial], parts: dict[str, Data]) -> Iterator[dict]:
    """Train trials of one network, loss, seed and number of epochs at once; a row for each."""
    first = trials[0]
    kind = KINDS[first.network]
    samples, labels = parts["train"]
    nets, reports, init_seconds = built(trials, parts)
    run = Stack(nets) if kind.side_by_side else Alone(nets)
    groups = [
        {"params": [p for p in net.parameters() if p.requires_grad], "lr": trial.lr}
        for net, trial in zip(nets, trials, strict=True)
    ]
    optimizer = torch.optim.Adam(groups)
    draw = torch.Generator().manual_seed(first.seed)
    some = frames(kind.data, samples[:256], torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = run(some)[1]
    started = time.process_time()
    curve = []
    for _ in range(first.epochs):
        epoch = []
        for chosen in torch.randperm(len(labels), generator=draw).split(kind.batch):
            sent, _ = run(frames(kind.data, samples[chosen], draw))
            loss = losses(sent, labels[chosen], first.loss)
            optimizer.zero_grad()
            loss[loss.isfinite()].sum().backward()
            optimizer.step()
            epoch.append(loss.detach())
        for net in nets:
            net.eval()
        curve.append(accuracies(run, parts["test"], kind, first.loss))
        for net in nets:
            net.train()
    seconds = (time.process_time() - started) / len(trials)
    with torch.no_grad():
        after = run(some)[1]
    for i, trial in enumerate(trials):
        yield {
            **vars(trial),
            "test": round(curve[-1][i], 4),
            "curve": " ".join(f"{scores[i]:.3f}" for scores in curve),
            "train_loss": round(torch.stack(epoch)[:, i].mean().item(), 4),
            "rates_before": " ".join(f"{rate:.3g}" for rate in before[:, i].tolist()),
            "rates_after": " ".join(f"{rate:.3g}" for rate in after[:, i].tolist()),
            "thresholds": " ".join(f"{threshold:.3g}" for threshold in thresholds(nets[i])),
            "seconds": round(seconds, 1),
            "init_seconds": round(init_seconds[i], 2),
            "report": reports[i],
            "date": datetime.date.today().isoformat(),
        }


def built(trials: Sequence[Trial], parts: dict[str, Data]) -> tuple[list[nn.Module], list[str], list[float]]:
    """A network for each trial, its report and the seconds of its initialisation, which equal arms share."""
    kind = KINDS[trials[0].network]
    samples, _ = parts["train"]
    made: dict[str, tuple[nn.Module, str, float]] = {}
    nets, reports, seconds = [], [], []
    for trial in trials:
        if trial.arm not in made:
            torch.manual_seed(trial.seed)
            net = kind.build(trial.loss)
            chosen = torch.randperm(len(samples), generator=torch.Generator().manual_seed(trial.seed))[: kind.batch]
            x = frames(kind.data, samples[chosen], torch.Generator().manual_seed(trial.seed))
            began = time.process_time()
            report = initialise(net, trial.arm, x, trial.seed)
            made[trial.arm] = (net, report, time.process_time() - began)
        net, report, took = made[trial.arm]
        nets.append(copy.deepcopy(net))
        reports.append(report)
        seconds.append(took)
    return nets, reports, seconds


def thresholds(net: nn.Module) -> Iterator[float]:
    """The mean threshold of each layer of neurons at rest."""
    for module in net.modules():
        if isinstance(module, snn.SpikingNeuron):
            yield module.threshold.mean().item()
        elif isinstance(module, neuron.BaseNode):
            yield float(torch.as_tensor(module.v_threshold).mean())
        elif is_norse(module) and hasattr(module.p, "v_th"):
            yield module.p.v_th.mean().item()
        elif isinstance(module, neurolsc.SpikingCell):
            rest = module.thresholds().rest()
            yield float("nan") if rest is None else rest.mean().item()


# ---------------------------------------------------------------- the command


def append(rows: Sequence[dict], path: Path) -> None:
    """Add rows to a file of results."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerows(rows)


def read(path: Path) -> list[dict[str, str]]:
    """All rows of a file of results, none if there is none."""
    if not path.exists():
        return []
    with path.open() as file:
        return list(csv.DictReader(file))


def table(rows: Sequence[dict[str, str]], network: str, loss: str) -> str:
    """Mean test accuracy in %, each arm by learning rate, with its smallest firing rate before training."""
    chosen = [row for row in rows if (row["network"], row["loss"]) == (network, loss)]
    lines = [f"{network}, {loss}", "| arm | " + " | ".join(f"{lr:g}" for lr in RATES) + " | spikes before |"]
    for arm in dict.fromkeys(row["arm"] for row in chosen):
        of_arm = [row for row in chosen if row["arm"] == arm]
        cells = []
        for lr in RATES:
            found = [100 * float(row["test"]) for row in of_arm if float(row["lr"]) == lr]
            cells.append(" / ".join(f"{score:.0f}" for score in found) if found else "")
        lines.append(f"| {arm} | " + " | ".join(cells) + f" | {of_arm[0]['rates_before']} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=list(KINDS), choices=list(KINDS), metavar="NETWORK")
    parser.add_argument("--losses", nargs="+", default=[], help="by default that of each network's tutorial")
    parser.add_argument("--arms", nargs="+", default=["built"], help="'built', 'kaiming', 'by hand', or a text")
    parser.add_argument("--rates", nargs="+", type=float, default=list(RATES))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(CHOOSING))
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--root", type=Path, default=Path("real_digits"), help="train.h5 and test.h5, in SHD's layout")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="print tables and train nothing")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    done = {Trial.of(row) for row in read(args.out)}
    for network in args.networks:
        kind = KINDS[network]
        for loss in args.losses or kind.readouts[:1]:
            if loss not in kind.readouts:
                continue
            if not args.table:
                parts = data(kind.data, args.root)
                for seed in args.seeds:
                    wanted = [Trial(network, loss, a, lr, seed, args.epochs) for a in args.arms for lr in args.rates]
                    left = [trial for trial in wanted if trial not in done]
                    size = SIDE_BY_SIDE if kind.side_by_side else 1
                    chunks = [left[i : i + size] for i in range(0, len(left), size)]
                    for chunk in tqdm(chunks, desc=f"{network}, {loss}, seed {seed}"):
                        append(list(train(chunk, parts)), args.out)
            print(table([row for row in read(args.out) if row["epochs"] == str(args.epochs)], network, loss))


if __name__ == "__main__":
    main()
