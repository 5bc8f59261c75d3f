"""Fig. 1, 2, 6, 7, 8 and 10 of arXiv:2405.21064, from closed forms: one integrator that learns another; Hessians."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import torch
from torch import Tensor

from examples.paper.figure import PICTURE, Figure, Judgement, Result, Scale
from examples.paper.trials import Row, Trial
from neurolsc import theory
from neurolsc.plots import color, finish, panels, styled

MEMORIES = (0.9, 0.99, 0.999)
ANGLE = math.pi / 100  # of the teacher in Fig. 6 and 7
FORMS = {
    "LRU": theory.Polar(theory.DoubleExponential(), "exponential"),
    "optimal": theory.Polar(theory.Tanh(), "level"),
}


def loss(student: Tensor, teacher: Tensor, *, scaled: bool, correlation: float = 0.0) -> Tensor:
    """The loss E|h - h*|²/2 of one integrator that learns another, of the same inputs.

    Source: eq. 87 to 93; γ is squared in eq. 92.
    """
    own, wanted = (theory.state_covariance(z, correlation=correlation) for z in (student, teacher))
    both = theory.state_covariance(student, teacher.conj(), correlation=correlation).real
    if not scaled:
        return (own + wanted) / 2 - both
    return 1 - both / (own * wanted).sqrt()


@dataclass(frozen=True)
class Curves:
    """Sensitivities by correlation, and losses along the real axis and along a circle by memory."""

    gaps: Tensor  # 1 - λ
    moments: dict[float, Tensor]  # E[(dh/dλ)²] by correlation
    real: dict[float, tuple[Tensor, Tensor]]  # by teacher: λ and loss
    circle: dict[float, tuple[Tensor, Tensor]]  # angle and loss


class LandscapeFigure(Figure[Curves]):
    """Fig. 1."""

    name, title = "memory-1", "Memory, Fig. 1"

    def measure(self, scale: Scale, results: Sequence[Result]) -> Curves:
        gaps = torch.logspace(0, -4, 81, dtype=torch.float64) * 0.9
        moments = {rho: theory.sensitivity_covariance(1 - gaps, correlation=rho) for rho in (0.0, 0.5, 0.9, 1.0)}
        axis = 1 - torch.logspace(0, -4, 2001, dtype=torch.float64)
        turns = torch.linspace(-math.pi, math.pi, 4001, dtype=torch.float64)
        real, circle = {}, {}
        for memory in MEMORIES:
            teacher = torch.tensor(memory, dtype=torch.complex128)
            real[memory] = axis, loss(axis.to(torch.complex128), teacher, scaled=False)
            circle[memory] = turns, loss(torch.polar(torch.full_like(turns, memory), turns), teacher, scaled=False)
        return Curves(gaps, moments, real, circle)

    @styled
    def draw(self, found: Curves, out: Path) -> None:
        figure, ((one, two, three),) = panels(1, 3, figsize=(11, 3.4))
        for i, (rho, moment) in enumerate(found.moments.items()):
            one.loglog(found.gaps, moment, color=color(i), label=f"$\\rho$ = {rho:g}")
        one.invert_xaxis()
        one.set(xlabel=r"$1 - \lambda$", title=r"A: E[(dh/d$\lambda$)$^2$]")
        for i, memory in enumerate(found.real):
            x, y = found.real[memory]
            two.loglog(1 - x, y + 1e-6, color=color(i), label=f"$\\lambda^*$ = {memory:g}")
            turns, y = found.circle[memory]
            three.semilogy(turns, y + 1e-6, color=color(i))
        two.invert_xaxis()
        two.set(xlabel=r"$1 - \lambda$", ylabel="loss", title="B: along the real axis")
        three.set(xlabel=r"angle of $\lambda$", title=r"C: along the circle $|\lambda^*|$")
        for ax in (one, two):
            ax.legend(fontsize="small")
        finish(figure, out / PICTURE, f"{self.title}: one integrator")

    def judge(self, found: Curves) -> list[Judgement]:
        slopes = {}
        for rho, moment in found.moments.items():
            pair = torch.stack([moment, found.gaps])[:, -2:].log().diff(dim=1).squeeze(1)
            slopes[rho] = (pair[0] / pair[1]).item()
        right = all(abs(s + (4 if rho == 1 else 3)) < 0.01 for rho, s in slopes.items())
        sharp = [theory.sensitivity_covariance(memory).item() for memory in MEMORIES]
        widths = []
        for _, y in found.circle.values():
            widths.append((y < y.max() / 2).double().mean().item() * 2 * math.pi)
        return [
            Judgement(
                "sensitivity grows as the power -3 of 1 - λ, -4 for constant inputs",
                right,
                ", ".join(f"{s:.2f} at ρ = {rho:g}" for rho, s in slopes.items()),
            ),
            Judgement(
                "the minimum sharpens with memory",
                sharp[-1] > 1e3 * sharp[0],
                "curvatures " + ", ".join(f"{s:.2g}" for s in sharp),
            ),
            Judgement(
                "on the circle its valley narrows, flat elsewhere",
                widths[-1] < widths[0] / 10,
                "widths " + ", ".join(f"{w:.2g} rad" for w in widths),
            ),
        ]


@dataclass(frozen=True)
class Levelled:
    """Second moments of the state and of its sensitivity over λ; of each correlation, and of ρ = 1 with neither."""

    gaps: Tensor  # 1 - λ
    state: dict[str, Tensor]
    sensitivity: dict[str, Tensor]


class NormalisationFigure(Figure[Levelled]):
    """Fig. 2: inputs scaled by the root of 1 - λ², a constant when differentiating, and λ = exp(-exp ν)."""

    name, title = "memory-2", "Memory, Fig. 2"
    plain = "ρ = 1, neither"

    def measure(self, scale: Scale, results: Sequence[Result]) -> Levelled:
        gaps = torch.logspace(0, -4, 81, dtype=torch.float64) * 0.9
        decay, form = 1 - gaps, theory.DoubleExponential()
        state, sensitivity = {}, {}
        for rho in (0.0, 0.5, 0.9, 1.0):
            scaled = 1 - decay**2
            slope = form.derivative(form.inverse(decay))
            state[f"ρ = {rho:g}"] = scaled * theory.state_covariance(decay, correlation=rho)
            moment = theory.sensitivity_covariance(decay, correlation=rho)
            sensitivity[f"ρ = {rho:g}"] = scaled * slope**2 * moment
        state[self.plain] = theory.state_covariance(decay, correlation=1.0)
        sensitivity[self.plain] = theory.sensitivity_covariance(decay, correlation=1.0)
        return Levelled(gaps, state, sensitivity)

    @styled
    def draw(self, found: Levelled, out: Path) -> None:
        figure, ((left, right),) = panels(1, 2, figsize=(8.4, 3.4))
        for ax, lines in ((left, found.state), (right, found.sensitivity)):
            for i, (name, values) in enumerate(lines.items()):
                ax.loglog(found.gaps, values, color="grey" if name == self.plain else color(i), label=name)
            ax.invert_xaxis()
            ax.set_xlabel(r"$1 - \lambda$")
        left.set_title("A: E[$h^2$]")
        right.set_title(r"B: E[(dh/d$\nu$)$^2$], grey E[(dh/d$\lambda$)$^2$]")
        left.legend(fontsize="small")
        finish(figure, out / PICTURE, f"{self.title}: scaled inputs and a double exponential")

    def judge(self, found: Levelled) -> list[Judgement]:
        long = found.gaps <= 0.1
        growth = {name: (values[-1] / values[long][0]).item() for name, values in found.sensitivity.items()}
        shown = ", ".join(f"{name} {value:.3g}-fold" for name, value in growth.items())
        even = (found.state["ρ = 0"] - 1).abs().max().item()
        most = found.sensitivity["ρ = 0"].max().item()
        rises = {name: (values[-1] / values[0]).item() for name, values in found.state.items()}
        states = ", ".join(f"{name} {value:.3g}-fold" for name, value in rises.items())
        return [
            Judgement("at ρ = 0 the state is level", even < 1e-9, f"off 1 by at most {even:.1g}"),
            Judgement("at ρ = 0 the sensitivity is bounded", most <= 0.5, f"at most {most:.2g}"),
            Judgement("of other inputs the state is not level", rises["ρ = 0.9"] > 5, f"from λ = 0.1 {states}"),
            Judgement(
                "at ρ = 1 both still grow, far more slowly than with neither",
                10 < growth["ρ = 1"] < 1e-3 * growth[self.plain],
                f"sensitivity from λ = 0.9 {shown}",
            ),
        ]


class ParametrisationFigure(Figure[dict[str, dict[float, tuple[float, float]]]]):
    """Fig. 6: the curvature at the optimum by the parameters of modulus and angle, with normalised inputs."""

    name, title = "memory-6", "Memory, Fig. 6"

    def measure(self, scale: Scale, results: Sequence[Result]) -> dict[str, dict[float, tuple[float, float]]]:
        found: dict[str, dict[float, tuple[float, float]]] = {name: {} for name in ("none", *FORMS)}
        for memory in (*MEMORIES, 0.9999):
            teacher = torch.polar(torch.tensor(memory, dtype=torch.float64), torch.tensor(ANGLE, dtype=torch.float64))
            for name in found:
                free = FORMS[name].inverse(teacher) if name in FORMS else (teacher.abs(), teacher.angle())

                def of(
                    i: int, value: Tensor, name: str = name, free: tuple = free, teacher: Tensor = teacher
                ) -> Tensor:
                    at = [value if j == i else part for j, part in enumerate(free)]
                    if name not in FORMS:
                        student = torch.polar(at[0], at[1])
                    elif i == 0:  # the angle stays where it is
                        student = torch.polar(FORMS[name].magnitude.value(at[0]), teacher.angle())
                    else:
                        student = FORMS[name].value(at[0], at[1])
                    return loss(student, teacher, scaled=True)

                hessian = torch.autograd.functional.hessian
                found[name][memory] = tuple(hessian(lambda v, i=i: of(i, v), free[i]).item() for i in (0, 1))
        return found

    @styled
    def draw(self, found: dict[str, dict[float, tuple[float, float]]], out: Path) -> None:
        figure, axes = panels(1, 2, figsize=(8.4, 3.4), sharey=True)
        for column, what in enumerate(("modulus", "angle")):
            for i, (name, by) in enumerate(found.items()):
                values = [pair[column] for pair in by.values()]
                axes[0, column].loglog([1 - m for m in by], values, "o-", color=color(i), label=name)
            axes[0, column].invert_xaxis()
            axes[0, column].set(xlabel=r"$1 - |\lambda^*|$", title=f"by the parameter of the {what}")
        axes[0, 0].set_ylabel("curvature at the optimum")
        axes[0, 0].legend(fontsize="small")
        finish(figure, out / PICTURE, f"{self.title}: curvature with normalised inputs")

    def judge(self, found: dict[str, dict[float, tuple[float, float]]]) -> list[Judgement]:
        """A curvature is level if it stays within a factor of 3 from memory 0.99 on."""

        def level(name: str, i: int) -> bool:
            values = [pair[i] for memory, pair in found[name].items() if memory >= 0.99]
            return max(values) < 3 * min(values)

        def shown(name: str, i: int) -> str:
            return f"{name} " + " to ".join(f"{found[name][m][i]:.2g}" for m in (0.99, 0.9999))

        exact = all(abs(pair[0] * (1 - memory**2) ** 2 - 1) < 1e-3 for memory, pair in found["none"].items())
        return [
            Judgement("curvature by the modulus is that of eq. 98", exact, shown("none", 0)),
            Judgement(
                "both parametrisations level the modulus",
                level("LRU", 0) and level("optimal", 0),
                f"{shown('LRU', 0)}, {shown('optimal', 0)}",
            ),
            Judgement(
                "of the angles only the optimal one is level",
                level("optimal", 1) and not level("LRU", 1) and not level("none", 1),
                ", ".join(shown(name, 1) for name in found),
            ),
        ]


def on_ring(angle: float) -> Tensor:
    return torch.polar(torch.tensor(0.99, dtype=torch.float64), torch.tensor(angle).double())


def way(angle: str, steps: int, rate: float) -> Row:
    """Real and imaginary parts of λ at every step of Adam, and the loss of the last; by the angle's parametrisation."""
    teacher = on_ring(ANGLE)
    form = theory.Polar(theory.Tanh(), angle)
    free = [part.clone().requires_grad_() for part in form.inverse(on_ring(math.pi / 4))]
    adam, students = torch.optim.Adam(free, rate), []
    for _ in range(steps):
        student = form.value(*free)
        students.append(student.detach())
        adam.zero_grad()
        loss(student, teacher, scaled=True).backward()
        adam.step()
    found = torch.stack(students)
    last = loss(found[-1], teacher, scaled=True).item()
    return {"way": [found.real.tolist(), found.imag.tolist()], "loss": last}


@dataclass(frozen=True)
class Paths:
    """Ways of λ while it is learnt, by angle's parametrisation."""

    teacher: complex
    ways: dict[str, Tensor]  # complex (steps,)
    losses: dict[str, float]  # at the end


class AngleFigure(Figure[Paths]):
    """Fig. 7."""

    name, title = "memory-7", "Memory, Fig. 7"

    def trials(self, scale: Scale) -> list[Trial]:
        how = {"steps": 50_000, "rate": 1e-3} if scale.full else {"steps": 600, "rate": 1e-2}
        return [Trial(way, {"angle": angle} | how) for angle in ("plain", "exponential", "level")]

    def measure(self, scale: Scale, results: Sequence[Row]) -> Paths:
        ways, losses = {}, {}
        for row in results:
            real, imaginary = torch.tensor(row["way"], dtype=torch.float64)
            ways[row["angle"]] = torch.complex(real, imaginary)
            losses[row["angle"]] = row["loss"]
        return Paths(complex(on_ring(ANGLE)), ways, losses)

    @styled
    def draw(self, found: Paths, out: Path) -> None:
        figure, axes = panels(1, len(found.ways), figsize=(11, 3.4), sharey=True)
        turns, gaps = torch.linspace(0.01, 1, 120, dtype=torch.float64), torch.logspace(-0.5, -4, 120).double()
        grid = torch.polar((1 - gaps).unsqueeze(1), turns)
        teacher = torch.tensor(found.teacher, dtype=torch.complex128)
        surface = loss(grid, teacher, scaled=True)
        for ax, (name, way) in zip(axes[0], found.ways.items(), strict=True):
            ax.pcolormesh(turns.numpy(), gaps.numpy(), surface.numpy(), cmap="Blues_r", shading="auto", rasterized=True)
            ax.plot(way.angle(), 1 - way.abs(), ".", color="black", markersize=1.5)
            ax.plot(teacher.angle(), 1 - teacher.abs(), "*", color=color(1), markersize=12)
            ax.set(
                yscale="log",
                xlim=(0, 1),
                ylim=(1e-4, 0.9),
                xlabel=r"angle of $\lambda$",
                title=f"{name} angle: loss {found.losses[name]:.2g}",
            )
        axes[0, 0].set_ylabel(r"$1 - |\lambda|$")
        axes[0, 0].invert_yaxis()
        finish(figure, out / PICTURE, f"{self.title}: ways of Adam to a teacher (star)")

    def judge(self, found: Paths) -> list[Judgement]:
        shown = ", ".join(f"{name} {value:.2g}" for name, value in found.losses.items())
        learnt = {name: value < 1e-3 for name, value in found.losses.items()}
        return [
            Judgement(
                "plain and exponential angles are learnt", learnt["plain"] and learnt["exponential"], f"losses {shown}"
            ),
            Judgement("the angle that is level at the optimum is not", not learnt["level"], f"losses {shown}"),
        ]


class SimilarityFigure(Figure[dict[float, Tensor]]):
    """Fig. 8: which eigenvalues share an entry of the Hessian."""

    name, title = "memory-8", "Memory, Fig. 8"
    at = 0.99 * complex(math.cos(math.pi / 4), math.sin(math.pi / 4))

    @staticmethod
    def plane() -> Tensor:
        line = torch.linspace(-1, 1, 161, dtype=torch.float64)
        return torch.complex(line, line.new_zeros(()).expand(161)).unsqueeze(0) + 1j * line.unsqueeze(1)

    def measure(self, scale: Scale, results: Sequence[Result]) -> dict[float, Tensor]:
        plane = self.plane()
        inside = plane.abs() < 0.995
        found = {}
        for rho in (0.0, 0.99, 1.0):
            known = theory.sensitivity_covariance(plane[inside], torch.tensor(self.at), correlation=rho).abs()
            found[rho] = torch.full(plane.shape, math.nan, dtype=torch.float64).masked_scatter(inside, known)
        return found

    @styled
    def draw(self, found: dict[float, Tensor], out: Path) -> None:
        figure, axes = panels(1, len(found), figsize=(10, 3.4))
        for ax, (rho, values) in zip(axes[0], found.items(), strict=True):
            shown = ax.imshow(values.log10().numpy(), origin="lower", extent=(-1, 1, -1, 1), cmap="magma")
            ax.plot(self.at.real, self.at.imag, "*", color="white", markersize=9)
            ax.set(title=f"$\\rho$ = {rho:g}", xlabel="real part")
            figure.colorbar(shown, ax=ax, shrink=0.8)
        axes[0, 0].set_ylabel("imaginary part")
        finish(figure, out / PICTURE, f"{self.title}: log10 |S(λ, λ0)|, λ0 the star")

    def judge(self, found: dict[float, Tensor]) -> list[Judgement]:
        plane = self.plane()
        peaks = {rho: complex(plane.flatten()[values.nan_to_num(0).argmax()]) for rho, values in found.items()}
        shown = ", ".join(f"{peak:.2f} at ρ = {rho:g}" for rho, peak in peaks.items())
        mirror = abs(peaks[0.0] - self.at.conjugate()) < 0.05
        return [
            Judgement("of uncorrelated inputs it is largest at the conjugate", mirror, shown),
            Judgement("of constant ones it is near 1", abs(peaks[1.0] - 1) < 0.05, shown),
        ]


class ConcentrationFigure(Figure[dict[float, list[Tensor]]]):
    """Fig. 10 a to c: eigenvalues within an angle, and the Hessian by them."""

    name, title = "memory-10", "Memory, Fig. 10"

    def measure(self, scale: Scale, results: Sequence[Result]) -> dict[float, list[Tensor]]:
        found: dict[float, list[Tensor]] = {}
        for share in (1.0, 0.1, 0.01):
            for seed in range(20 if scale.full else 8):
                draw = torch.Generator().manual_seed(seed)
                u, turn = torch.rand(2, 10, generator=draw, dtype=torch.float64)
                values = torch.polar(0.99 + 0.005 * u, (2 * turn - 1) * share * math.pi)
                into, out = torch.randn(2, 10, generator=draw, dtype=torch.complex128)
                found.setdefault(share, []).append(theory.eigenvalue_hessian(values, into, out))
        return found

    @styled
    def draw(self, found: dict[float, list[Tensor]], out: Path) -> None:
        figure, axes = panels(1, len(found), figsize=(10, 3.4))
        for ax, (share, hessians) in zip(axes[0], found.items(), strict=True):
            logs = hessians[0].abs().log10()
            ax.imshow(logs.numpy(), cmap="magma", vmin=logs.max().item() - 5)
            ax.set_title(f"$\\theta_0$ = {share:g} $\\pi$: {off_diagonal(hessians):.0%} off the diagonal")
        finish(
            figure, out / PICTURE, f"{self.title}: log10 |Hessian| by real, then by imaginary parts of 10 eigenvalues"
        )

    def judge(self, found: dict[float, list[Tensor]]) -> list[Judgement]:
        shares = {share: off_diagonal(hessians) for share, hessians in found.items()}
        shown = ", ".join(f"{value:.0%} within {share:g} π" for share, value in shares.items())
        ordered = list(shares.values())
        return [Judgement("concentrated eigenvalues make it less diagonal", ordered == sorted(ordered), shown)]


def off_diagonal(hessians: list[Tensor]) -> float:
    """The mean share of a Hessian's squares that is not on its diagonal."""
    return mean(1 - (h.diagonal().square().sum() / h.square().sum()).item() for h in hessians)
