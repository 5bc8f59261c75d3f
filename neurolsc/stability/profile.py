"""Radii over layers, time steps and samples: measured, as numbers, as a table and as a picture."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from neurolsc.display import LOG_INTERVAL, Displayed, Table, or_dash, progress_bar
from neurolsc.metrics import firing_rate, is_binary, silent_steps
from neurolsc.network import Network, as_network, eval_mode
from neurolsc.neurons.cell import weight_matrices
from neurolsc.neurons.derivatives import StepMap, Term
from neurolsc.stability.arnoldi import (
    DENSE_BELOW,
    METHODS,
    Method,
    Radii,
    leading_pairs,
    points_with_bases,
    radii,
    safe_sqrt,
)
from neurolsc.stability.conditions import surrogate_fault
from neurolsc.stability.transitions import (
    NON_SQUARE,
    NonSquare,
    Transitions,
    depth_product,
    draw_steps,
    flat,
    follow,
    input_operators,
    time_operator,
    time_product,
    without,
)
from neurolsc.validation import one_of, tensor

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# points of a layer at which terms are compared: of small closed forms, of larger ones, and by autograd
DENSE, BY_PRODUCTS, BY_AUTOGRAD = 256, 64, 16
OWN = "leak or reset"  # all but the recurrence, of cells without a closed form
# from so many state variables on, a few points by autograd take seconds: so many between two reports of progress
SLOW, FEW = 1024, 4


def time_radius(t: Transitions, layer: int, method: Method = "krylov") -> Radii:
    """Radii through time at the points of t, shape (K B,), differentiable by the parameters; `layer` is for errors."""
    with _naming(t, layer, "time"):
        known = t.cell.derivatives()
        with_input = known is None or known.reads_input
        some, which = _distinct(t, flat(t.before), *((t.x,) if with_input else ()))
        return radii(time_product(some), t.x, method).at(which)


def depth_radius(
    t: Transitions, layer: int, non_square: NonSquare, generator: torch.Generator, method: Method = "krylov"
) -> Radii:
    """Radii through depth at the points of t, shape (K B,), differentiable by the parameters."""
    points, singular = len(t.x), t.non_square and non_square == "singular"
    drawn = t.non_square and not singular  # another choice at every point
    with _naming(t, layer, "depth"):
        which = torch.arange(points, device=t.x.device)
        if not drawn:
            below = () if t.state_below is None else (flat(t.state_below),)
            alike = all(part.same for part in input_operators(t))
            t, which = _distinct(t, *below, *(() if alike else (t.x, flat(t.before))))
        product = depth_product(t, non_square, generator)
        found = radii(product, t.x, method)
    if singular:  # the operator is M times its transpose
        found = found._replace(radius=safe_sqrt(found.radius))
    return found.at(which if product.points > 1 else torch.zeros_like(which))


def _distinct(t: Transitions, *parts: Tensor) -> tuple[Transitions, Tensor]:
    """One of all points that are equal in some tensors (P, ...), and for each point the index of the one equal to it.

    Before the first spikes all samples are alike, which is a fifth of the steps of spike-latency MNIST.
    """
    points = torch.arange(len(t.x), device=t.x.device)
    if not parts:
        return t, points
    which = torch.unique(torch.cat([part.detach() for part in parts], 1), dim=0, return_inverse=True)[1]
    first = points.new_full((int(which.max()) + 1,), len(points)).scatter_reduce(0, which, points, "amin")
    return (t, points) if len(first) == len(points) else (t.at(first), which)


@contextmanager
def _naming(t: Transitions, layer: int, direction: str) -> Iterator[None]:
    """Let an error about NaN name the layer, and its surrogate if that is the cause."""
    try:
        yield
    except FloatingPointError as error:
        of, number = (t.cell, layer) if direction == "time" or t.below is None else (t.below, layer - 1)
        fault = surrogate_fault(of, number) or (
            f"layer {layer + 1}: the derivative through {direction} holds NaN or infinity. Its weights or states have "
            "run away; lower the learning rate, or start from smaller weights."
        )
        raise FloatingPointError(str(fault)) from error


def contributions(t: Transitions) -> dict[str, Tensor]:
    """What each term contributes to the radius through time, at some or all points; they sum to it.

    The contribution of a term is its product with the gradient of the radius (P,): the real part of y^H (term) x times
    the phase of the eigenvalue, with its vectors x and y. Of spiking cells without a closed form the terms are the
    recurrent weights, if there are any, and the rest; of others without one it is empty.
    """
    known, recurrent = t.cell.derivatives(), weight_matrices(t.cell, "time")
    if not (known.terms if known else t.cell.membrane()):
        return {}
    count = min(len(t.x), BY_AUTOGRAD if known is None else DENSE if t.states <= DENSE_BELOW else BY_PRODUCTS)
    some = t.at(torch.arange(count) * len(t.x) // count)
    pairs = leading_pairs(time_product(some), t.x)
    x, y, radius = pairs.right, pairs.left, pairs.value.abs()
    phase = pairs.value.conj() / radius.clamp(min=torch.finfo(t.x.dtype).tiny)
    with without(() if known else recurrent):
        step = time_operator(some)

        def terms(a: Tensor, b: Tensor) -> dict[str, Tensor]:
            return step.terms(a, b) if isinstance(step, StepMap) else {OWN: (b * step.matvec(a)).sum(1)}

        rr, ri, ir, ii = (terms(a, b) for a in (x.real, x.imag) for b in (y.real, y.imag))
    found = {name: (phase * torch.complex(rr[name] + ii[name], ir[name] - ri[name])).real for name in rr}
    return found if known or not recurrent else found | {"recurrence": radius - found[OWN]}


@dataclass(frozen=True, repr=False)
class RadiusProfile(Displayed):
    """Radii of the transition derivatives of a network on an input; made by :func:`radius_profile`.

    Attributes:
        time: radii through time (L, K, B): layer, step, sample.
        depth: radii through depth (L, K, B); row 0 is the first layer's derivative by the input.
        steps: the K steps that were measured (K,); every one of T by default.
        firing_rate: spikes per neuron and step (L,); NaN for a layer whose outputs are not all 0 or 1.
        silent_steps: share of steps and samples at which no neuron of the layer fires (L,); NaN likewise.
        non_square: per depth row, how a derivative between unequal widths was treated; None where it is square.
        exact: share of the radii through time and depth (2, L) that come from dense eigenvalues: all of small
            layers, and of others where products with vectors did not settle.
        target: the target radii (time, depth), if any; None: left as it was.
        terms: per layer, the terms of its closed form: what to change, and their colours.
        contributions: per layer, the mean contribution of each term to the radius through time, which sum up to its
            mean; at some points. Without a closed form, as of wrapped spiking layers, that of the recurrent weights and
            of the rest; empty for gated cells.
    """

    time: Tensor
    depth: Tensor
    steps: Tensor
    firing_rate: Tensor
    silent_steps: Tensor
    non_square: tuple[NonSquare | None, ...]
    exact: Tensor
    target: tuple[float | None, float | None] | None = None
    terms: tuple[tuple[Term, ...], ...] = ()
    contributions: tuple[dict[str, float], ...] = ()

    @property
    def time_mean(self) -> Tensor:
        """Mean radius through time of every layer (L,)."""
        return self.time.mean((1, 2))

    @property
    def depth_mean(self) -> Tensor:
        """Mean radius through depth of every layer (L,); row 0 from the input."""
        return self.depth.mean((1, 2))

    def main_term(self, layer: int) -> Term:
        """The term that contributes most to the mean radius through time; `unknown` if none is known."""
        parts = self.contributions[layer]
        most = max(parts, key=parts.__getitem__, default="unknown")
        unknown = Term(most, "scale the recurrent weights down, or let its gates retain less")
        return next((term for term in self.terms[layer] if term.name == most), unknown)

    def to_dict(self) -> dict[str, Any]:
        numbers = {name: getattr(self, name).tolist() for name in ("time", "depth", "steps", "time_mean", "depth_mean")}
        shares = {
            name: [None if math.isnan(value) else value for value in getattr(self, name).tolist()]
            for name in ("firing_rate", "silent_steps")
        }
        lists = {name: list(getattr(self, name)) for name in ("contributions", "non_square")}
        return numbers | shares | lists | {"exact": self.exact.tolist(), "target": self.target}

    def plot(self, path: str | PathLike[str] | None = None, *, title: str = "") -> "Figure":
        """Draw the profile, and write it to a file, whose suffix chooses the format."""
        from neurolsc.plots import plot_profile  # matplotlib is slow to import and few runs draw

        return plot_profile(
            path,
            steps=self.steps.numpy(),
            time=self.time.numpy(),
            depth=self.depth.numpy(),
            contributions=self.contributions,
            colors={term.name: term.color for terms in self.terms for term in terms if term.color},
            firing_rate=self.firing_rate.tolist(),
            target=self.target,
            starred=[treatment is not None for treatment in self.non_square],
            notes=[f"{line}." for line in self._stars()],
            title=title,
        )

    def _stars(self) -> list[str]:
        words = {"submatrix": "radius of a random square sub-matrix", "singular": "largest singular value"}
        return [f"* between unequal widths: {words[t]}" for t in sorted({t for t in self.non_square if t})]

    def parts(self) -> list[str | Table]:
        head = ("layer", "time radius", "depth radius", "spikes/step", "silent", "time radius, by term")
        star = " " if any(self.non_square) else ""
        rows = [
            (
                str(i + 1),
                _mean_std(self.time[i]),
                _mean_std(self.depth[i]) + ("*" if self.non_square[i] else star),
                or_dash(self.firing_rate[i].item(), ".4f"),
                or_dash(self.silent_steps[i].item(), ".0%"),
                _sum(self.contributions[i]) if self.contributions else "not known",
            )
            for i in range(len(self.time))
        ]
        lines: list[str | Table] = [Table(head, rows)]
        if self.target is not None:
            aims = zip(("time", "depth"), self.target, strict=True)
            lines.append("target: " + ", ".join(f"{name} {radius:.3g}" for name, radius in aims if radius is not None))
        return lines + self._stars()


def radius_profile(
    network: Network,
    x: Tensor,
    *,
    steps: int | None = None,
    non_square: NonSquare = "submatrix",
    method: Method = "krylov",
    target: tuple[float | None, float | None] | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> RadiusProfile:
    """Measure the radii of every transition derivative of a network.

    Args:
        network: the network; its parameters are not changed.
        x: input (T, B, n_in).
        steps: measure this many steps, drawn at random; by default all T.
        non_square: what stands for the radius between unequal widths.
        method: ``"krylov"``: to 1 % from products of the derivative with vectors, by dense eigenvalues where that is
            cheaper or products do not settle; ``"exact"``: by dense eigenvalues.
        target: radii through time and depth to show with the measured ones.
        seed: of the steps and sub-matrices that are drawn.
        progress: show a progress bar; None: after ten seconds.

    Raises:
        TypeError: if network is not one (:func:`neurolsc.wrap` makes one of other modules).
        ValueError: if x does not fit the network or steps is not in 1 ... T.
        FloatingPointError: if a state or derivative is NaN or infinite; the message names the layer.

    Cost: for each of L K B points and direction a few dozen products, of LIF and ALIF O(n_hidden^2) each; ``"exact"``:
    a dense eigenvalue problem of the state's size S (2 n_hidden for ALIF), O(S^3).
    """
    one_of("non_square", non_square, NON_SQUARE)
    one_of("method", method, METHODS)
    generator = torch.Generator().manual_seed(seed)
    chosen = draw_steps(len(tensor("x", x)), steps, generator)
    with eval_mode(as_network(network)), torch.no_grad():
        transitions, outputs = follow(network, x, chosen)
        shape = (len(chosen), x.shape[1])
        time, depth, by_term, exact = [], [], [], []
        work = len(transitions) * shape[0]
        delay = 0.0 if progress else LOG_INTERVAL
        with progress_bar(work, desc="radii", unit="step", shown=progress is not False, delay=delay) as bar:
            for layer, t in enumerate(transitions):
                pieces, across = [], []
                together = points_with_bases(t.x, t.states)
                if t.cell.derivatives() is None and t.states >= SLOW:
                    together = min(together, FEW)
                for piece in t.chunks(together):
                    pieces.append(time_radius(piece, layer, method))
                    across.append(depth_radius(piece, layer, non_square, generator, method))
                    bar.update(len(piece.x) / shape[1])
                for found, measured in ((pieces, time), (across, depth)):
                    measured.append(torch.cat([r.radius for r in found]).view(shape).cpu())
                    exact.append(sum(r.exact.sum().item() for r in found) / t.x.shape[0])
                by_term.append({name: part.mean().item() for name, part in contributions(t).items()})
    counted = [
        z if is_binary(z) and not cell.integrator else None for cell, z in zip(network.cells, outputs, strict=True)
    ]
    spikes = torch.tensor([math.nan if z is None else firing_rate(z) for z in counted])
    silent = torch.tensor([math.nan if z is None else silent_steps(z) for z in counted])
    treated: tuple[NonSquare | None, ...] = tuple(non_square if t.non_square else None for t in transitions)
    shares = torch.tensor(exact).view(-1, 2).T
    times, depths = torch.stack(time), torch.stack(depth)
    terms = tuple(known.terms if (known := cell.derivatives()) else () for cell in network.cells)
    return RadiusProfile(times, depths, chosen, spikes, silent, treated, shares, target, terms, tuple(by_term))


def _sum(parts: dict[str, float]) -> str:
    ordered = [item for item in sorted(parts.items(), key=lambda item: -abs(item[1])) if abs(item[1]) >= 0.005]
    text = "".join(f" {'-' if value < 0 else '+'} {name} {abs(value):.2f}" for name, value in ordered)
    return text.removeprefix(" + ").strip() or ("below 0.005" if parts else "not known")


def _mean_std(x: Tensor) -> str:
    return f"{x.mean():.3f} ± {x.std(correction=0):.3f}"
