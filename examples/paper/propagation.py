"""Fig. 5, 14 and 15 of arXiv:2405.21064: signals and gradients of deep networks before training, and gates."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import torch
from matplotlib.ticker import NullFormatter
from torch import Tensor, nn
from torch.nn.functional import gelu, glu

from examples.paper.figure import PICTURE, Figure, Judgement, Result, Scale
from examples.paper.trials import Row, Trial
from neurolsc import theory
from neurolsc.neurons import GRU, Cell, DiagonalRNN, LRUState
from neurolsc.neurons.lru import linear_scan
from neurolsc.neurons.rate import chrono
from neurolsc.plots import color, finish, line_style, panels, styled

WHITE, SLOW, DECAY = 0.332, 0.044, 0.997  # Fig. 12: R(Δ) of embedded sentences is WHITE δ + SLOW DECAY^|Δ|
KINDS = ("cRNN", "LRU", "GRU", "cRNN, layer norm")


def sentences(steps: int, batch: int, width: int, seed: int = 0) -> Tensor:
    """Gaussian inputs (T, B, N) with the autocorrelation of the paper's sentences."""
    draw = torch.Generator().manual_seed(seed)
    white, slow = torch.randn(2, steps, batch, width, generator=draw)
    start = torch.randn(batch, width, generator=draw)
    slow = linear_scan(torch.full((width,), DECAY), slow * (1 - DECAY**2) ** 0.5, start)
    return WHITE**0.5 * white + SLOW**0.5 * slow


def diagonal(n: int, memory: float, form: str) -> DiagonalRNN:
    """A cell whose moduli are uniform in the lower half of [memory, 1], as those of gates.

    Source: App. D.1.
    """
    cell = DiagonalRNN(n, n, form=form)
    modulus = memory + (1 - memory) / 2 * torch.rand(n)
    cell.eigenvalues = torch.polar(modulus, cell.eigenvalues.detach().angle())
    if form == "lru":
        cell.gamma_log.data = (1 - modulus**2).log() / 2
    return cell


def outputs_and_memory(cell: Cell, x: Tensor) -> tuple[Tensor, Tensor]:
    """The outputs and the memory of a run from rest, (T, B, n) both."""
    if isinstance(cell, DiagonalRNN):
        driven = cell.driven(x)
        h = linear_scan(cell.eigenvalues, driven, torch.zeros_like(driven[0]))
        return cell.output(LRUState(h, x)), h
    outputs, _ = cell.run(x, cell.initial_state(x.shape[1]))
    return outputs, outputs


class Deep(nn.Module):
    """Four blocks of a recurrence, a nonlinearity, a gated linear unit and a skip connection, between linear layers."""

    def __init__(self, kind: str, n: int, memory: float, *, blocks: int = 4) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(n, n), nn.Linear(n, n)
        self.recurrent = nn.ModuleList()
        for _ in range(blocks):
            gated = kind == "GRU"
            form = "lru" if kind == "LRU" else "complex"
            self.recurrent.append(GRU(n, n, reset_after=True, memory=memory) if gated else diagonal(n, memory, form))
        self.gates = nn.ModuleList(nn.Linear(n, 2 * n) for _ in range(blocks))
        norm = nn.LayerNorm if kind.endswith("norm") else nn.Identity
        self.norms = nn.ModuleList(norm(n) for _ in range(2 * blocks))

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        u, memories = self.encoder(x), []
        for i, (cell, gate) in enumerate(zip(self.recurrent, self.gates, strict=True)):
            y, h = outputs_and_memory(cell, self.norms[2 * i](u))
            memories.append(h)
            u = u + glu(gate(self.norms[2 * i + 1](gelu(y))))
        return self.decoder(u), memories


REAL, IMAGINARY = "lambda: real part or modulus", "lambda: imaginary part or angle"
PARTS = {"lambda_real": REAL, "nu_log": REAL, "lambda_imag": IMAGINARY, "theta_log": IMAGINARY}


def group(name: str) -> str:
    """Which parameters one belongs to: the modulus or the angle of λ, another recurrent one, or the rest."""
    if not name.startswith("recurrent"):
        return "feed-forward"
    return PARTS.get(name.rpartition(".")[2], "recurrent")


def before_training(kind: str, memory: float, seed: int, *, steps: int, batch: int, width: int) -> Row:
    """Mean squares of the states of the first and of the last layer, and of gradients by group of parameters."""
    torch.manual_seed(seed)
    x, network = sentences(steps + 1, batch, width, seed), Deep(kind, width, memory)
    guess, h = network(x[:-1])
    ((guess - x[1:]) ** 2).sum(-1).mean().div(2).backward()  # eq. 156
    states = [h[place].detach().abs().square().mean().item() for place in (0, -1)]
    parts: dict[str, list[Tensor]] = {}
    for name, p in network.named_parameters():
        parts.setdefault(group(name), []).append(p.grad.flatten())
    gradients = {name: torch.cat(part).square().mean().item() for name, part in parts.items()}
    return {"states": states, "gradients": gradients}


@dataclass(frozen=True)
class Signals:
    """Mean squares by kind and memory."""

    states: dict[str, dict[float, tuple[float, float]]]  # of h in the first and the last layer
    gradients: dict[str, dict[float, dict[str, float]]]  # of the loss, by group of parameters


class PropagationFigure(Figure[Signals]):
    """Fig. 5."""

    name, title = "memory-5", "Memory, Fig. 5"

    def trials(self, scale: Scale) -> list[Trial]:
        size = {"steps": 512, "batch": 8, "width": 256} if scale.full else {"steps": 256, "batch": 4, "width": 24}
        memories = (0.5, 0.9, 0.99, 0.999) if scale.full else (0.5, 0.9, 0.99)
        seeds = range(scale.seeds or (8 if scale.full else 3))
        return [
            Trial(before_training, {"kind": kind, "memory": memory, "seed": seed} | size)
            for kind in KINDS
            for memory in memories
            for seed in seeds
        ]

    def measure(self, scale: Scale, results: Sequence[Row]) -> Signals:
        states: dict[str, dict[float, tuple[float, float]]] = {}
        gradients: dict[str, dict[float, dict[str, float]]] = {}
        by_network: dict[tuple[str, float], list[Row]] = {}
        for row in results:
            by_network.setdefault((row["kind"], row["memory"]), []).append(row)
        for (kind, memory), rows in by_network.items():
            first, last = zip(*(row["states"] for row in rows), strict=True)
            states.setdefault(kind, {})[memory] = mean(first), mean(last)
            names = rows[0]["gradients"]
            gradients.setdefault(kind, {})[memory] = {n: mean(row["gradients"][n] for row in rows) for n in names}
        return Signals(states, gradients)

    @styled
    def draw(self, found: Signals, out: Path) -> None:
        figure, axes = panels(1, 1 + len(KINDS), figsize=(15, 3.6))
        for i, (kind, by) in enumerate(found.states.items()):
            gaps = [1 - memory for memory in by]
            for j, dashes in enumerate(("-", "--")):
                label = kind if j == 0 else None
                axes[0, 0].loglog(gaps, [pair[j] for pair in by.values()], dashes, color=color(i), label=label)
        axes[0, 0].set_title(r"E[$|h|^2$]: layer 1, layer 4 dashed")
        axes[0, 0].legend(fontsize="x-small")
        names = list(dict.fromkeys(name for by in found.gradients.values() for one in by.values() for name in one))
        for ax, (kind, by) in zip(axes[0, 1:], found.gradients.items(), strict=True):
            for name in next(iter(by.values())):
                ax.loglog(
                    gaps, [one[name] for one in by.values()], marker="o", label=name, **line_style(names.index(name))
                )
            ax.set_title(f"{kind}: E[(dL/d$\\theta$)$^2$]")
        axes[0, 1].legend(fontsize="x-small")
        for ax in axes[0]:
            ax.invert_xaxis()
            ax.set_xlabel(r"$1 - \nu_0$")
        finish(figure, out / PICTURE, f"{self.title}: before training, four blocks")

    def judge(self, found: Signals) -> list[Judgement]:
        """Growth is from the shortest memory to the longest."""

        def growth(kind: str, name: str) -> float:
            by = list(found.gradients[kind].values())
            return by[-1][name] / by[0][name]

        signal = {kind: list(by.values())[-1][0] / next(iter(by.values()))[0] for kind, by in found.states.items()}
        by_part = f"real part {growth('cRNN', REAL):.2g}-fold, rest {growth('cRNN', 'feed-forward'):.2g}-fold"
        lru = f"modulus {growth('LRU', REAL):.2g}-fold, angle {growth('LRU', IMAGINARY):.2g}-fold"
        normed = growth("cRNN, layer norm", REAL)
        return [
            Judgement(
                "LRU and GRU hold states level, the cRNN does not",
                max(signal["LRU"], signal["GRU"]) < 5 < signal["cRNN"],
                ", ".join(f"{kind} {value:.2g}-fold" for kind, value in signal.items()),
            ),
            Judgement(
                "of the cRNN all gradients explode, those of λ most",
                growth("cRNN", REAL) > growth("cRNN", "feed-forward") > 5,
                by_part,
            ),
            Judgement("of the LRU that of the angle does", growth("LRU", IMAGINARY) > 5 * growth("LRU", REAL), lru),
            Judgement("of the GRU none does", growth("GRU", "recurrent") < 5, f"{growth('GRU', 'recurrent'):.2g}-fold"),
            Judgement(
                "layer norm holds back the cRNN's",
                normed < growth("cRNN", REAL) / 10,
                f"{normed:.2g}-fold in place of {growth('cRNN', REAL):.2g}-fold",
            ),
        ]

    def notes(self) -> list[str]:
        return ["inputs are Gaussian with the autocorrelation of the paper's sentences (Fig. 12)"]


class GatesFigure(Figure[dict[tuple[float, float], Tensor]]):
    """Fig. 14: the Jacobian of a GRU over many steps."""

    name, title = "memory-14", "Memory, Fig. 14"

    def measure(self, scale: Scale, results: Sequence[Result]) -> dict[tuple[float, float], Tensor]:
        steps, width = (128, 128) if scale.full else (48, 24)
        x, found = sentences(steps, 1, width)[:, 0], {}
        for memory, strength in ((0.5, 1.0), (0.9, 1.0), (0.99, 1.0), (0.9, 0.0), (0.9, 3.0), (0.9, 6.0)):
            torch.manual_seed(0)
            gru = GRU(width, width, reset_after=True, memory=memory)
            w_in, w_rec, bias = gru.w_in.detach(), strength * gru.w_rec.detach(), gru.bias.detach()

            def step(h: Tensor, now: Tensor, w_in: Tensor = w_in, w_rec: Tensor = w_rec, bias: Tensor = bias) -> Tensor:
                r, z, n = (w_in @ now + bias).chunk(3)
                r_h, z_h, n_h = (w_rec @ h).chunk(3)
                z = torch.sigmoid(z + z_h)
                return z * h + (1 - z) * torch.tanh(n + torch.sigmoid(r + r_h) * n_h)

            h, product, products = torch.zeros(width), torch.eye(width), []
            for now in x:
                product = torch.func.jacrev(step)(h, now) @ product
                h = step(h, now)
                products.append(product)
            found[memory, strength] = torch.stack(products)
        return found

    @styled
    def draw(self, found: dict[tuple[float, float], Tensor], out: Path) -> None:
        figure, axes = panels(2, 3, figsize=(10, 5.6), sharex=True)
        for ax, ((memory, strength), j) in zip(axes.flat, found.items(), strict=True):
            off = ~torch.eye(j.shape[1], dtype=torch.bool)
            ax.plot(j[:, off][:, ::37], color=color(6), linewidth=0.5, alpha=0.5)
            ax.plot(j.diagonal(dim1=1, dim2=2), color=color(0), linewidth=0.7, alpha=0.8)
            ax.set_title(f"$\\nu_0$ = {memory:g}, recurrent weights times {strength:g}")
            ax.set_yscale("symlog", linthresh=0.1)
        for ax in axes[1]:
            ax.set_xlabel("steps")
        finish(
            figure, out / PICTURE, f"{self.title}: a GRU's derivative by its first state; diagonal blue, others grey"
        )

    def judge(self, found: dict[tuple[float, float], Tensor]) -> list[Judgement]:
        def ratio(key: tuple[float, float]) -> float:
            """The root mean square off the diagonal by that on it, over the first 1 / (1 - ν0) steps."""
            j = found[key][: max(round(1 / (1 - key[0])), 2)]
            off = ~torch.eye(j.shape[1], dtype=torch.bool)
            return (j[:, off].square().mean() / j.diagonal(dim1=1, dim2=2).square().mean()).sqrt().item()

        usual = {memory: ratio((memory, 1.0)) for memory in (0.5, 0.9, 0.99)}
        strong = [found[0.9, s][-1].abs().max().item() for s in (1.0, 6.0)]
        shown = ", ".join(f"{value:.2g} at {memory}" for memory, value in usual.items())
        return [
            Judgement("terms off the diagonal are small", max(usual.values()) < 0.2, f"off by on {shown}"),
            Judgement("the smaller, the longer the memory", usual[0.99] < usual[0.5], shown),
            Judgement(
                "strong recurrent weights break it",
                ratio((0.9, 6.0)) > 3 * usual[0.9],
                f"off by on {ratio((0.9, 6.0)):.2g} at 6-fold, largest entry at the end {strong[1]:.2g}",
            ),
        ]


class GatedTheoryFigure(Figure[dict[str, dict[float, tuple[Tensor, Tensor]]]]):
    """Fig. 15: a gated recurrence against the closed form, which leaves the gate's dependence on inputs out."""

    name, title = "memory-15", "Memory, Fig. 15"

    def measure(self, scale: Scale, results: Sequence[Result]) -> dict[str, dict[float, tuple[Tensor, Tensor]]]:
        steps, batch, width = (512, 256, 256) if scale.full else (400, 64, 32)
        x, found = sentences(steps, batch, width), {}
        for kind in ("constant gates", "gates of inputs and states"):
            found[kind] = {}
            for memory in (0.5, 0.8, 0.9, 0.95, 0.98):
                torch.manual_seed(0)
                bias = torch.logit(chrono(width, memory))
                w_x, w_h = torch.randn(width, width) / width**0.5, nn.init.orthogonal_(torch.empty(width, width))
                h = slope = torch.zeros(batch, width)
                for now in x:  # eq. 157 and 158, and the derivative by a neuron's own bias
                    gate = torch.sigmoid(bias + (now @ w_x.T + h @ w_h.T if kind != "constant gates" else 0))
                    through = gate * (1 - gate)
                    back = 1 + w_h.diagonal() * slope if kind != "constant gates" else 1.0
                    slope, h = gate * slope + through * back * (h - now), gate * h + (1 - gate) * now
                found[kind][memory] = h.square().mean(), slope.square().mean()
        return found

    def closed(self, memory: float, width: int = 512) -> tuple[float, float]:
        """Means of E[h²] and E[(dh/db)²], eq. 159 to 161, over Chrono's biases."""
        torch.manual_seed(0)
        gate = chrono(width, memory).double()
        a, b = gate.clone().requires_grad_(), gate.clone().requires_grad_()
        both = WHITE * theory.state_covariance(a, b) + SLOW * theory.state_covariance(a, b, correlation=DECAY)
        f = (1 - a) * (1 - b) * both
        (by_a,) = torch.autograd.grad(f.sum(), a, create_graph=True)
        (by_both,) = torch.autograd.grad(by_a.sum(), b)
        return f.mean().item(), (by_both * (gate * (1 - gate)) ** 2).mean().item()

    @styled
    def draw(self, found: dict[str, dict[float, tuple[Tensor, Tensor]]], out: Path) -> None:
        figure, axes = panels(1, 2, figsize=(8.4, 3.4))
        memories = list(next(iter(found.values())))
        for i, (ax, what) in enumerate(zip(axes[0], ("E[$h^2$]", r"E[(dh/d$b_f$)$^2$]"), strict=True)):
            ax.loglog(
                [1 - m for m in memories], [self.closed(m)[i] for m in memories], color="black", label="closed form"
            )
            for j, (kind, by) in enumerate(found.items()):
                ax.loglog([1 - m for m in by], [pair[i] for pair in by.values()], "o", color=color(j), label=kind)
            ax.invert_xaxis()
            ax.xaxis.set_minor_formatter(NullFormatter())
            ax.set(xlabel=r"$1 - \nu_0$", title=what)
        axes[0, 0].legend(fontsize="small")
        finish(figure, out / PICTURE, f"{self.title}: a gated recurrence and the theory")

    def judge(self, found: dict[str, dict[float, tuple[Tensor, Tensor]]]) -> list[Judgement]:
        judged = []
        for (kind, by), bound in zip(found.items(), (0.15, 0.5), strict=True):
            off = [abs(math.log(pair[i].item() / self.closed(m)[i])) for m, pair in by.items() for i in (0, 1)]
            claim = f"the closed form is within {bound:.0%} of {kind}"
            judged.append(Judgement(claim, max(off) < math.log1p(bound), f"off by at most {math.expm1(max(off)):.0%}"))
        slopes = [self.closed(m)[1] for m in next(iter(found.values()))]
        shown = f"{min(slopes):.2g} to {max(slopes):.2g} while times grow 25-fold"
        return [
            *judged,
            Judgement("the bias's gradient hardly depends on memory", max(slopes) < 5 * min(slopes), shown),
        ]
