"""What level time constants buy a spiking network: one cue is to be remembered, by thresholds of 10 to 1,000 steps.

arXiv:2405.21064 carried to eq. 49 of arXiv:2308.12075. Every arm starts as the same network and differs in what is
trained: the decay itself, log τ (as every cell here), the root of τ, or log τ with inputs scaled by a function of τ.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, stdev

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from examples.paper.figure import PICTURE, Figure, Judgement, Scale
from examples.paper.trials import Row, Trial, of_row
from neurolsc import ALIFPlus, Network, theory
from neurolsc.neurons.cell import Cell
from neurolsc.neurons.lru import linear_scan
from neurolsc.plots import finish, legend_below, line_style, panels, styled
from neurolsc.tasks import Classification

ARMS = (
    "decay",
    "log tau",
    "log tau, b_theta by gain",
    "root tau",
    "log tau, scaled by variance",
    "log tau, scaled by mean",
)
OPTIMIZERS = ("Adam", "SGD")
TASK = Classification(last=20)
BATCH, EVERY = 32, 10  # samples of an update, updates between measurements
VALUES, GROUP, CUE = 4, 10, 20  # how many cues, neurons of a cue, steps of one


def cues(batch: int, delay: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """One of 4 cues for 20 steps, a delay, and a question for 20: spikes (T, B, 50) and which it was (B,)."""
    labels = torch.randint(VALUES, (batch,), generator=draw)
    rates = torch.full((2 * CUE + delay, batch, VALUES + 1), 0.02)
    rates[:CUE, torch.arange(batch), labels] = 0.3
    rates[-CUE:, :, VALUES] = 0.3
    rates = rates.repeat_interleave(GROUP, 2)
    return (torch.rand(rates.shape, generator=draw) < rates).float(), labels


class FromDecay(nn.Module):
    """The logarithm of τ, of a decay λ = exp(-1/τ) that is trained as it is, inside (0, 1)."""

    def forward(self, decay: Tensor) -> Tensor:
        return -(-decay.clamp(1e-6, 1 - 1e-6).log()).log()

    def right_inverse(self, log: Tensor) -> Tensor:
        return torch.exp(-torch.exp(-log))


def network(arm: str, seed: int, width: int) -> Network:
    """A layer of ALIF+ whose thresholds remember 10 to 1,000 steps, all with the same rest and the same mean rise."""
    torch.manual_seed(seed)
    cell = ALIFPlus((VALUES + 1) * GROUP, width, tau_v=5.0)
    cell.tau_theta = torch.logspace(1, 3, width)
    cell.theta_rest = 0.5
    with torch.no_grad():
        cell.adaptation.copy_(20 * (1 - cell.decay_theta))
        cell.w_rec.mul_(0.2)
    made = Network([cell], VALUES, layer_delay=0)
    if arm == "decay":
        for name in ("log_tau_v", "log_tau_theta"):
            parametrize.register_parametrization(cell, name, FromDecay())
    elif not arm.startswith("log tau") or "scaled" in arm:
        scales = {"variance": "variance", "mean": "mean"}
        theory.level_time_constants(made, scale=scales.get(arm.rpartition(" ")[2]))  # type: ignore[arg-type]
    return made


@dataclass(frozen=True)
class Run:
    """A training."""

    curve: list[float]  # validation accuracy after every EVERY updates, chance if training diverged
    rate: float  # of firing at the end
    moved: float  # mean |log of τ by its initial value| of thresholds


def train(arm: str, optimizer: str, lr: float, seed: int, *, width: int, updates: int, delay: int) -> Row:
    """Train an arm, and return the :class:`Run`; the same samples in the same order for every arm of a seed."""
    made = network(arm, seed, width)
    cell: Cell = made.cells[0]
    draw = torch.Generator().manual_seed(seed)
    test, targets = cues(300, delay, draw)
    momentum = {"momentum": 0.9} if optimizer == "SGD" else {}
    rest = [cell.b_theta] if "gain" in arm else []  # what neurolsc.train does: its rate by how far it moves the rest
    groups = [{"params": [p for p in made.parameters() if p is not (rest or [None])[0]]}]
    groups += [{"params": rest, "lr": lr / cell.gains()["b_theta"]}] if rest else []
    optim = getattr(torch.optim, optimizer)(groups, lr, **momentum)
    before, curve, rate = cell.tau_theta.detach().clone(), [], math.nan
    for i in range(updates):
        x, labels = cues(BATCH, delay, draw)
        optim.zero_grad()
        loss = TASK.loss(made(x), labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(made.parameters(), 1.0)
        optim.step()
        if not all(p.isfinite().all() for p in made.parameters()):
            break
        if (i + 1) % EVERY == 0:
            with torch.no_grad():
                run = made.run(test)
            curve.append(TASK.measures(run.logits, targets)["mean_accuracy"])
            rate = run.spikes[0].mean().item()
    curve += [0.25] * (updates // EVERY - len(curve))
    moved = (cell.tau_theta.detach() / before).log().abs().mean().item()
    return asdict(Run(curve, rate, moved))


def sensitivities(made: Network, x: Tensor) -> dict[str, Tensor]:
    """E[(d theta / d omega)²] of every threshold on a run of inputs, ω being what an arm trains of τ (N,).

    Spikes are those of the run. Where inputs are scaled by γ(τ), the threshold follows that, too: it is γ times a sum.
    """
    (entry,) = (e for e in theory.time_constant_sensitivity(made, x) if e.name == "tau_theta")
    with torch.no_grad():
        before = made.initial_states(x.shape[1]).layers[0].theta
        h = torch.stack([before, *(r.after.layers[0].theta for r in made.records(x))]).double()
    tau, decay = entry.tau, torch.exp(-1 / entry.tau)
    slope = (decay / tau) * linear_scan(decay, h[:-1], h[0] / (1 - decay))
    falls = {"variance": decay**2 / (tau * (1 - decay**2)), "mean": decay / (tau * (1 - decay))}  # -d log γ / d log τ
    scaled = {
        f"log tau, scaled by {name}": (slope - h[1:] * fall).square().mean((0, 1)) for name, fall in falls.items()
    }
    free = {
        "decay": entry.measured * (tau / decay) ** 2,
        "log tau": entry.measured,
        "root tau": entry.measured * 4 / tau,
    }
    return free | scaled


def rests(tau: Tensor) -> dict[str, Tensor]:
    """(d theta / d b)² of a resting threshold by what is trained of its constant input, by input scale (N,)."""
    decay = torch.exp(-1 / tau)
    plain = theory.state_covariance(decay, correlation=1.0)
    return {"none": plain, "variance": plain * (1 - decay**2), "mean": plain * (1 - decay) ** 2}


def steepness(tau: Tensor, moments: Tensor) -> float:
    """The slope of the logarithm of moments by that of τ, by least squares."""
    x, y = tau.log() - tau.log().mean(), moments.log() - moments.log().mean()
    return ((x * y).sum() / (x * x).sum()).item()


@dataclass(frozen=True)
class Found:
    """Trainings by optimizer and arm at the rate that is best over all seeds, and sensitivities before training."""

    tau: Tensor
    moments: dict[str, Tensor]
    best: dict[str, dict[str, tuple[float, list[Run]]]]  # rate and runs

    def gain(self, optimizer: str, arm: str, other: str) -> tuple[float, float]:
        """How much higher the mean accuracy over a training is, and its standard error over seeds."""
        pairs = zip(self.best[optimizer][arm][1], self.best[optimizer][other][1], strict=True)
        apart = [mean(a.curve) - mean(b.curve) for a, b in pairs]
        return mean(apart), stdev(apart) / len(apart) ** 0.5


class TimeConstantsFigure(Figure[Found]):
    """The spiking result: no figure of a paper."""

    name, title = "memory-spikes", "Memory of spikes"

    def trials(self, scale: Scale) -> list[Trial]:
        size = {"width": 32, "updates": 150, "delay": 60}
        rates = {"Adam": [3e-4, 1e-3, 3e-3, 1e-2], "SGD": [0.01, 0.03, 0.1, 0.3]}
        if scale.full:
            size = {"width": 128, "updates": 2000, "delay": 400}
            rates = {name: [values[0] / 3, *values, values[-1] * 3] for name, values in rates.items()}
        size["updates"] = scale.epochs or size["updates"]
        seeds = range(scale.seeds or (10 if scale.full else 4))
        return [
            Trial(train, {"arm": arm, "optimizer": optimizer, "lr": lr, "seed": seed} | size)
            for optimizer in OPTIMIZERS
            for arm in ARMS
            for lr in rates[optimizer]
            for seed in seeds
        ]

    def measure(self, scale: Scale, results: Sequence[Row]) -> Found:
        by_arm: dict[tuple[str, str], dict[float, list[Run]]] = {}
        for row in results:
            by_rate = by_arm.setdefault((row["optimizer"], row["arm"]), {})
            by_rate.setdefault(row["lr"], []).append(of_row(Run, row))
        best: dict[str, dict[str, tuple[float, list[Run]]]] = {}
        for (optimizer, arm), by_rate in by_arm.items():
            means = {lr: mean(mean(run.curve) for run in runs) for lr, runs in by_rate.items()}
            lr = max(means, key=lambda lr: means[lr])
            best.setdefault(optimizer, {})[arm] = lr, by_rate[lr]
        made = network("log tau", 0, results[0]["width"])
        x, _ = cues(32, 1000, torch.Generator().manual_seed(0))
        return Found(made.cells[0].tau_theta.detach().double(), sensitivities(made, x), best)

    @styled
    def draw(self, found: Found, out: Path) -> None:
        figure, axes = panels(1, 3, figsize=(13, 4.2))
        styles = {arm: line_style(i) for i, arm in enumerate(ARMS)}
        for arm, moments in found.moments.items():
            axes[0, 0].loglog(found.tau, moments, **styles[arm])
        for scale, moments in rests(found.tau).items():
            axes[0, 0].loglog(found.tau, moments, color="black", linewidth=0.8)
            text = f"by $b_\\vartheta$, scale {scale}"
            axes[0, 0].annotate(text, (400, moments[-1]), fontsize="x-small", va="bottom", ha="right")
        axes[0, 0].set(xlabel=r"$\tau_\vartheta$ in steps", title=r"A: E[(d$\vartheta$/d$\omega$)$^2$] before training")
        for ax, (optimizer, arms), letter in zip(axes[0, 1:], found.best.items(), "BC", strict=True):
            for arm, (_, runs) in arms.items():
                curves = torch.tensor([run.curve for run in runs])
                updates = torch.arange(1, curves.shape[1] + 1) * EVERY
                ax.plot(updates, curves.mean(0), linewidth=1.8, **styles[arm])
                ax.plot(updates, curves.T, linewidth=0.4, alpha=0.5, **styles[arm])
            ax.axhline(1 / VALUES, color="black", linewidth=0.6)
            ax.set(xlabel="updates", ylabel="accuracy on new cues", ylim=(0.15, 1), title=f"{letter}: {optimizer}")
        legend_below(figure, styles, 3)
        title = f"{self.title}: which of {VALUES} cues was it? Thin lines are seeds, each arm at its best rate"
        finish(figure, out / PICTURE, title)

    def judge(self, found: Found) -> list[Judgement]:
        """An arm is better if its mean accuracy over the training is, by two standard errors over seeds."""
        slopes = {arm: steepness(found.tau, moments) for arm, moments in found.moments.items()}
        by_rest = {scale: steepness(found.tau, moments) for scale, moments in rests(found.tau).items()}
        scaled = "log tau, scaled by mean"
        judged = [
            Judgement(
                "of thresholds with one rest, log tau is level and the decay is not",
                abs(slopes["log tau"]) < 0.3 and slopes["decay"] > 1.5,
                "powers of τ: " + ", ".join(f"{arm} {slope:.2f}" for arm, slope in slopes.items()),
            ),
            Judgement(
                "by its constant input a rest is level where the mean is scaled",
                abs(by_rest["mean"]) < 0.1 and by_rest["none"] > 1.9,
                "powers of τ: " + ", ".join(f"{scale} {slope:.2f}" for scale, slope in by_rest.items()),
            ),
        ]
        for optimizer, arms in found.best.items():
            shown = "; ".join(
                f"{arm} {mean(mean(r.curve) for r in runs):.3f}, {mean(r.curve[-1] for r in runs):.0%} at the end, rate "
                f"{lr:g}, firing {min(r.rate for r in runs):.2f} to {max(r.rate for r in runs):.2f}"
                for arm, (lr, runs) in arms.items()
            )
            for arm, other in (
                (scaled, "log tau"),
                (scaled, "log tau, b_theta by gain"),
                ("root tau", "log tau"),
                ("log tau", "decay"),
            ):
                gain, error = found.gain(optimizer, arm, other)
                numbers = f"{gain:+.3f} ± {error:.3f}"
                judged.append(Judgement(f"{optimizer}: {arm} learns faster than {other}", gain > 2 * error, numbers))
            judged[-1] = Judgement(judged[-1].claim, judged[-1].holds, f"{judged[-1].found}; all arms: {shown}")
        return judged

    def notes(self) -> list[str]:
        return [
            "accuracies are means over the training, the learning rate is each arm's best over all seeds",
            "all arms start as the same network, whose thresholds have one rest whatever their τ",
        ]
