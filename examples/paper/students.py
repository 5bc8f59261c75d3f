"""Fig. 3, 4, 9, 10 d and 11 of arXiv:2405.21064: students of a linear teacher, their Hessians, heads and angles."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median

import torch
from torch import Tensor

from examples.paper.figure import PICTURE, Figure, Judgement, Scale
from examples.paper.teacher import Best, Parameters, Start, best_of, connected, diagonal, relative_loss, response, train
from examples.paper.trials import Row, Trial, of_row
from neurolsc.plots import color, finish, panels, styled

MEMORY = 0.99  # of the teacher, where one is compared
TEACHER = 10  # neurons
RATES = [10 ** (e / 2) for e in range(-9, -1)]


@dataclass(frozen=True)
class Size:
    """How large students are, and how long they learn."""

    width: int = 32
    iterations: int = 600
    seeds: int = 2
    rates: tuple[float, ...] = tuple(RATES[1:])


PAPER_SIZE = Size(64, 10_000, 10, tuple(10 ** (e / 2) for e in range(-10, 0)))


def size_of(scale: Scale) -> Size:
    """The paper's or the small one, with the iterations and seeds of the command."""
    one = PAPER_SIZE if scale.full else Size()
    return Size(one.width, scale.epochs or one.iterations, scale.seeds or one.seeds, one.rates)


FORMS = {"complex diagonal": "complex", "LRU": "lru", "S4": "s4"}


def starts(kind: str, width: int, memory: float, angle: float = math.pi) -> list[Start]:
    """How students of a kind start; of real ones from the teacher's moduli or from none (Table 1)."""
    if kind in FORMS:
        return [lambda seeds: diagonal(width, seeds, memory=memory, angle=angle, form=FORMS[kind])]
    heads = {"linear RNN": 1, "blocks of 2": width // 2}.get(kind) or int(kind.split()[0])
    return [lambda seeds, m=m: connected(width, seeds, heads=heads, memory=m, angle=angle) for m in (memory, 0.0)]


def students(
    kind: str, memory: float, share: float, *, width: int, iterations: int, seeds: int, rates: Sequence[float]
) -> Row:
    """Train students of one kind, each of a teacher of its own, at every rate, and return the :class:`Best`.

    Eigenvalues of teachers and students begin with angles below that share of π.
    """
    angle = share * math.pi
    with torch.no_grad():
        teachers = response(connected(TEACHER, list(range(seeds)), memory=memory, angle=angle))
    return asdict(best_of(starts(kind, width, memory, angle), teachers, list(rates), iterations))


def compared(kinds: Sequence[str], memory: float, size: Size, share: float = 1.0) -> list[Trial]:
    """A trial for each kind of students, all of the same teachers."""
    return [Trial(students, {"kind": kind, "memory": memory, "share": share} | asdict(size)) for kind in kinds]


def arms_by(setting: str, rows: Sequence[Row]) -> dict[float, dict[str, Best]]:
    """What students learnt, by a setting and by their kind."""
    found: dict[float, dict[str, Best]] = {}
    for row in rows:
        found.setdefault(row[setting], {})[row["kind"]] = of_row(Best, row)
    return found


class StudentsFigure(Figure[dict[float, dict[str, Best]]]):
    """Fig. 3."""

    name, title = "memory-3", "Memory, Fig. 3"
    kinds = ("linear RNN", "blocks of 2", "complex diagonal", "LRU")

    def trials(self, scale: Scale) -> list[Trial]:
        memories = (0.32, 0.68, 0.84, 0.92, 0.96, 0.98) if scale.full else (0.32, 0.92)
        two = [trial for memory in memories for trial in compared(("linear RNN", "LRU"), memory, size_of(scale))]
        return [*two, *compared(self.kinds, MEMORY, size_of(scale))]

    def measure(self, scale: Scale, results: Sequence[Row]) -> dict[float, dict[str, Best]]:
        return arms_by("memory", results)

    @styled
    def draw(self, found: dict[float, dict[str, Best]], out: Path) -> None:
        figure, ((left, right),) = panels(1, 2, figsize=(8.4, 3.4), sharey=True)
        for i, kind in enumerate(("linear RNN", "LRU")):
            left.plot(
                [1 - m for m in found], [arms[kind].mean for arms in found.values()], "o-", color=color(i), label=kind
            )
            for memory, arms in found.items():
                left.plot([1 - memory] * len(arms[kind].losses), arms[kind].losses, ".", color=color(i), alpha=0.5)
        left.set(xscale="log", yscale="log", xlabel=r"$1 - \nu_0$ of the teacher", ylabel="relative loss", title="A")
        left.invert_xaxis()
        left.legend()
        for i, arm in enumerate(found[MEMORY].values()):
            right.bar(i, arm.mean, color=color(i), alpha=0.7)
            right.plot([i] * len(arm.losses), arm.losses, ".", color="black", alpha=0.6)
        right.set_xticks(range(len(found[MEMORY])), [kind.replace(" ", "\n") for kind in found[MEMORY]])
        right.set_title(f"B: $\\nu_0$ = {MEMORY}")
        finish(figure, out / PICTURE, f"{self.title}: students of a linear teacher")

    def judge(self, found: dict[float, dict[str, Best]]) -> list[Judgement]:
        """By geometric means over seeds."""
        gaps = {m: arms["linear RNN"].mean / arms["LRU"].mean for m, arms in found.items()}
        arms = {kind: arm.mean for kind, arm in found[MEMORY].items()}
        losses = ", ".join(f"{kind} {loss:.2g}" for kind, loss in arms.items())
        middle = math.sqrt(arms["linear RNN"] * arms["LRU"])
        shown = ", ".join(f"{gap:.3g} at {memory}" for memory, gap in gaps.items())
        return [
            Judgement("the linear RNN's loss is at least 5 times the LRU's at 0.99", gaps[MEMORY] >= 5, f"{losses}"),
            Judgement("the gap grows with memory", gaps[MEMORY] > gaps[min(gaps)], f"RNN by LRU {shown}"),
            Judgement("blocks of 2 close most of it", arms["blocks of 2"] < middle, f"half way is {middle:.2g}"),
        ]

    def notes(self) -> list[str]:
        return ["batches are replaced by the mean loss over uncorrelated inputs of 300 steps"]


class HeadsFigure(Figure[dict[int, Best]]):
    """Fig. 11."""

    name, title = "memory-11", "Memory, Fig. 11"

    def trials(self, scale: Scale) -> list[Trial]:
        size = size_of(scale)
        heads = [2**i for i in range(int(math.log2(size.width)))]
        return compared([f"{n} heads" for n in heads], MEMORY, size)

    def measure(self, scale: Scale, results: Sequence[Row]) -> dict[int, Best]:
        return {int(row["kind"].split()[0]): of_row(Best, row) for row in results}

    @styled
    def draw(self, found: dict[int, Best], out: Path) -> None:
        figure, ((left, right),) = panels(1, 2, figsize=(8.4, 3.2))
        left.plot(list(found), [arm.mean for arm in found.values()], "o-", color=color(0))
        for heads, arm in found.items():
            left.plot([heads] * len(arm.losses), arm.losses, ".", color=color(0), alpha=0.5)
        left.set(yscale="log", ylabel="relative loss", title="A")
        right.plot(list(found), [arm.step for arm in found.values()], "o-", color=color(1))
        right.set(yscale="log", ylabel="Adam's effective rate by its rate", title="B: entries of A, median")
        for ax in (left, right):
            ax.set_xscale("log", base=2)
            ax.set_xlabel("heads")
        finish(figure, out / PICTURE, f"{self.title}: blocks of a linear RNN")

    def judge(self, found: dict[int, Best]) -> list[Judgement]:
        one, most = found[1], found[max(found)]
        losses = ", ".join(f"{heads} {arm.mean:.2g}" for heads, arm in found.items())
        rates = ", ".join(f"{heads} {arm.step:.2g}" for heads, arm in found.items())
        return [
            Judgement("more heads learn better", most.mean < one.mean, losses),
            Judgement("with more heads Adam takes larger steps", most.step > one.step, rates),
        ]


class AnglesFigure(Figure[dict[float, dict[str, Best]]]):
    """Fig. 10 d."""

    name, title = "memory-10d", "Memory, Fig. 10 d"
    kinds = ("linear RNN", "complex diagonal", "LRU")

    def trials(self, scale: Scale) -> list[Trial]:
        shares = [10 ** (e / 2) for e in range(0, -5, -1)] if scale.full else [1.0, 0.01]
        size = size_of(scale) if scale.full else Size(16, scale.epochs or 300, scale.seeds or 2, tuple(RATES[2:]))
        return [trial for share in shares for trial in compared(self.kinds, MEMORY, size, share)]

    def measure(self, scale: Scale, results: Sequence[Row]) -> dict[float, dict[str, Best]]:
        return arms_by("share", results)

    @styled
    def draw(self, found: dict[float, dict[str, Best]], out: Path) -> None:
        figure, ((ax,),) = panels(1, 1, figsize=(4.6, 3.4))
        for i, kind in enumerate(self.kinds):
            ax.loglog(list(found), [arms[kind].mean for arms in found.values()], "o-", color=color(i), label=kind)
            for share, arms in found.items():
                ax.plot([share] * len(arms[kind].losses), arms[kind].losses, ".", color=color(i), alpha=0.5)
        ax.set(xlabel=r"$\theta_0 / \pi$", ylabel="relative loss")
        ax.invert_xaxis()
        ax.legend(fontsize="small")
        finish(figure, out / PICTURE, f"{self.title}: eigenvalues within an angle")

    def judge(self, found: dict[float, dict[str, Best]]) -> list[Judgement]:
        """By geometric means over seeds."""
        gaps = {s: arms["complex diagonal"].mean / arms["LRU"].mean for s, arms in found.items()}
        below = [arms["complex diagonal"].mean < arms["linear RNN"].mean for arms in found.values()]
        losses = "; ".join(
            f"{share:g} π: " + ", ".join(f"{kind} {arm.mean:.2g}" for kind, arm in arms.items())
            for share, arms in found.items()
        )
        shown = ", ".join(f"{gap:.3g} at {share:g} π" for share, gap in gaps.items())
        return [
            Judgement("the gap to the LRU widens as angles shrink", gaps[min(gaps)] > gaps[max(gaps)], shown),
            Judgement("the complex diagonal one stays below the linear RNN", all(below), losses),
        ]


# ---------------------------------------------------------------- the Hessian


def pair_of_networks(seed: int, pairs: int = 2, memory: float = MEMORY) -> tuple[Parameters, Parameters]:
    """The same network twice, fully connected and complex diagonal; its eigenvalues are conjugate pairs."""
    draw = torch.Generator().manual_seed(seed)
    u, turn = torch.rand(2, pairs, generator=draw, dtype=torch.float64)
    half = torch.polar(memory + (1 - memory) * u / 2, (0.1 + 0.8 * turn) * math.pi)
    columns = torch.randn(2 * pairs, pairs, 2, generator=draw, dtype=torch.float64)
    vectors = torch.view_as_complex(columns / columns.norm(dim=(0, 2), keepdim=True))
    values, p = torch.cat([half, half.conj()]), torch.cat([vectors, vectors.conj()], 1)
    inverse = torch.linalg.inv(p)
    b, c, d = (torch.randn(n, generator=draw, dtype=torch.float64) for n in (2 * pairs, 2 * pairs, 1))
    c = c / (2 * pairs) ** 0.5
    real = {"a": (p @ torch.diag(values) @ inverse).real.unsqueeze(0), "b": b, "c": c, "d": d}
    into, out = inverse @ b.to(p.dtype), c.to(p.dtype) @ p
    turned = {"re": values.real, "im": values.imag, "b": torch.view_as_real(into), "c": torch.view_as_real(out), "d": d}
    return tuple({name: value.unsqueeze(0) for name, value in one.items()} for one in (real, turned))  # type: ignore[return-value]


def hessian(p: Parameters) -> Tensor:
    """The Hessian (P, P) of the relative loss of a network that is its own teacher."""
    wanted, sizes = response(p), [value.numel() for value in p.values()]

    def loss(flat: Tensor) -> Tensor:
        parts = flat.split(sizes)
        one = {name: part.view_as(value) for (name, value), part in zip(p.items(), parts, strict=True)}
        return relative_loss(response(one), wanted).sum() / 2

    return torch.autograd.functional.hessian(loss, torch.cat([value.flatten() for value in p.values()]), vectorize=True)


def participation(h: Tensor, count: int = 8) -> Tensor:
    """Over how many coordinates each of the top eigenvectors spreads (count,): 1 / sum of fourth powers.

    The response of 4 neurons has 8 degrees of freedom and D's; of all else the curvature is 0.
    """
    return torch.linalg.eigh(h).eigenvectors[:, -count:].flip(1).pow(4).sum(0).reciprocal()


@dataclass(frozen=True)
class Curvature:
    """Hessians of pairs of networks, Adam's rates, and the curvature of LRUs by parameter."""

    hessians: list[tuple[Tensor, Tensor]]  # fully connected, complex diagonal
    spread: tuple[float, float]  # mean participation of the top 8 eigenvectors
    rates: tuple[Tensor, Tensor]  # effective by nominal rates of recurrent parameters after training


RATE = 1e-3  # at which Adam's effective rates are compared


def effective_rates(kind: str, names: Sequence[str], *, width: int, iterations: int, seeds: int) -> Row:
    """Adam's rates of some parameters at the end of a training at a constant rate, by that rate (n,)."""
    every = list(range(seeds))
    with torch.no_grad():
        teachers = response(connected(TEACHER, every, memory=MEMORY))
    start = starts(kind, width, MEMORY)[-1](every)
    found = train(start, teachers, torch.full((seeds,), RATE), iterations, cosine=False).effective
    return {"effective": (torch.cat([found[name].flatten() for name in names]) / RATE).tolist()}


def rates_of(parameters: dict[str, list[str]], scale: Scale) -> list[Trial]:
    """A trial for each kind of students, of whose parameters some are looked at."""
    size = size_of(scale)
    how = {"width": size.width, "iterations": size.iterations, "seeds": size.seeds}
    return [Trial(effective_rates, {"kind": kind, "names": names} | how) for kind, names in parameters.items()]


class HessianFigure(Figure[Curvature]):
    """Fig. 4."""

    name, title = "memory-4", "Memory, Fig. 4"

    def trials(self, scale: Scale) -> list[Trial]:
        return rates_of({"linear RNN": ["a"], "complex diagonal": ["re", "im"]}, scale)

    def measure(self, scale: Scale, results: Sequence[Row]) -> Curvature:
        draws = 20 if scale.full else 6
        found = [tuple(hessian(p) for p in pair_of_networks(seed)) for seed in range(draws)]
        spread = tuple(mean(participation(pair[i]).mean().item() for pair in found) for i in (0, 1))
        rates = tuple(torch.tensor(row["effective"]) for row in results)
        return Curvature(found, spread, rates)  # type: ignore[arg-type]

    @styled
    def draw(self, found: Curvature, out: Path) -> None:
        figure, axes = panels(2, 3, figsize=(10.5, 6))
        for row, (h, name) in enumerate(zip(found.hessians[0], ("fully connected", "complex diagonal"), strict=True)):
            values, vectors = torch.linalg.eigh(h)
            bound = h.abs().max().item()
            axes[row, 0].imshow(h.abs().clamp(min=1e-6 * bound).log10().numpy(), cmap="magma")
            axes[row, 0].set_title(f"{name}: log10 |Hessian|")
            axes[row, 1].imshow(vectors[:, -10:].flip(1).abs().numpy(), cmap="magma", vmin=0, vmax=1, aspect="auto")
            axes[row, 1].set(title="its top eigenvectors", xlabel="eigenvector", ylabel="parameter")
            axes[0, 2].plot(values.flip(0).clamp(min=1e-8), "o", markersize=3, color=color(row), label=name)
        axes[0, 2].set(yscale="log", title="eigenvalues")
        axes[0, 2].legend(fontsize="small")
        for i, (rates, name) in enumerate(zip(found.rates, ("fully connected", "complex diagonal"), strict=True)):
            logs = rates.log10()
            axes[1, 2].hist(logs[logs.isfinite()].numpy(), bins=30, alpha=0.6, color=color(i), density=True, label=name)
        axes[1, 2].set(
            title="Adam's effective rates by its rate", xlabel="log10, recurrent parameters", ylabel="density"
        )
        finish(figure, out / PICTURE, f"{self.title}: the Hessian at the optimum, and Adam")

    def judge(self, found: Curvature) -> list[Judgement]:
        largest = [median(torch.linalg.eigvalsh(pair[i])[-1].item() for pair in found.hessians) for i in (0, 1)]
        alike = 0.1 < largest[0] / largest[1] < 10
        middle = [rates.median().item() for rates in found.rates]
        spread = f"{found.spread[0]:.1f} and {found.spread[1]:.1f} of 25 coordinates"
        return [
            Judgement("largest eigenvalues are alike", alike, f"medians {largest[0]:.2g}, diagonal {largest[1]:.2g}"),
            Judgement("the diagonal's eigenvectors are concentrated", found.spread[1] < found.spread[0], spread),
            Judgement(
                "Adam takes larger steps there", middle[1] > middle[0], f"{middle[1]:.3g} against {middle[0]:.3g}"
            ),
        ]


@dataclass(frozen=True)
class Forms:
    """The Hessian of each form of a diagonal network, at its optimum, by what is trained; and Adam's rates."""

    hessians: dict[str, tuple[list[str], Tensor]]  # of one draw: the name of each parameter, and the Hessian
    curvature: dict[str, dict[str, float]]  # its diagonal by parameter: mean over a network, median over draws
    rates: dict[str, Tensor]  # effective by nominal rates of recurrent parameters after training


class FormsFigure(Figure[Forms]):
    """Fig. 9: LRU, and S4 at two step sizes."""

    name, title = "memory-9", "Memory, Fig. 9"
    trained = {"LRU": ["nu", "theta"], "S4": ["a_re", "a_im", "delta"]}  # noqa: RUF012

    def trials(self, scale: Scale) -> list[Trial]:
        return rates_of(self.trained, scale)

    def measure(self, scale: Scale, results: Sequence[Row]) -> Forms:
        hessians, curvature = {}, {}
        for name, form, delta in (("LRU", "lru", 1.0), ("S4, Δ = 0.01", "s4", 0.01), ("S4, Δ = 1", "s4", 1.0)):
            by_name: dict[str, list[float]] = {}
            for seed in range(20 if scale.full else 6):
                p = {k: v.double() for k, v in diagonal(4, [seed], memory=MEMORY, form=form, delta=delta).items()}
                names = [k for k, value in p.items() for _ in range(value.numel())]
                h = hessian(p)
                hessians.setdefault(name, (names, h))
                for k in self.trained[name[: 3 if form == "lru" else 2]]:
                    of_k = [value for value, n in zip(h.diagonal().tolist(), names, strict=True) if n == k]
                    by_name.setdefault(k, []).append(mean(of_k))
            curvature[name] = {k: median(values) for k, values in by_name.items()}
        return Forms(hessians, curvature, {row["kind"]: torch.tensor(row["effective"]) for row in results})

    @styled
    def draw(self, found: Forms, out: Path) -> None:
        figure, axes = panels(1, 4, figsize=(14, 3.4))
        for ax, (name, (names, h)) in zip(axes[0], found.hessians.items(), strict=False):
            bound = h.abs().max().item()
            ax.imshow(h.abs().clamp(min=1e-6 * bound).log10().numpy(), cmap="magma")
            places = {k: names.index(k) for k in names}
            ax.set_xticks(list(places.values()), list(places), rotation=90, fontsize="small")
            ax.set_title(f"{name}: log10 |Hessian|")
        for i, (kind, rates) in enumerate(found.rates.items()):
            logs = rates.log10()
            axes[0, 3].hist(logs[logs.isfinite()].numpy(), bins=30, alpha=0.6, color=color(i), density=True, label=kind)
        axes[0, 3].set(title="Adam's effective rates by its rate", xlabel="log10, recurrent parameters")
        axes[0, 3].legend(fontsize="small")
        finish(figure, out / PICTURE, f"{self.title}: the Hessian at the optimum by what is trained")

    def judge(self, found: Forms) -> list[Judgement]:
        shown = {name: ", ".join(f"{k} {v:.2g}" for k, v in by.items()) for name, by in found.curvature.items()}
        lru, small, one = found.curvature.values()
        return [
            Judgement("in the LRU the angle is what explodes", lru["theta"] > 10 * lru["nu"], shown["LRU"]),
            Judgement(
                "in S4 with Δ = 0.01 the curvature has gone from the angle to Δ",
                small["delta"] > 10 * small["a_im"],
                shown["S4, Δ = 0.01"],
            ),
            Judgement(
                "with Δ = 1 all recurrent parameters have it",
                min(one.values()) > 10 * lru["nu"],
                f"{shown['S4, Δ = 1']}; the LRU's modulus {lru['nu']:.2g}",
            ),
        ]

    def notes(self) -> list[str]:
        return ["S4's inputs are divided by the first Δ, so that the network is the same"]
