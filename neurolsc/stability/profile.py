"""Radii over layers, time steps and samples: measured, as numbers, as a table and as a picture."""

import math
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from neurolsc.display import Displayed, Table, or_dash
from neurolsc.eigen.pieces import with_bases, with_matrices
from neurolsc.eigen.radii import METHODS, TOLERANCE, Method
from neurolsc.metrics import firing_rate, is_binary, silent_steps
from neurolsc.modes import evaluating
from neurolsc.network import Network, as_network
from neurolsc.neurons.derivatives import Term
from neurolsc.progress import LOG_INTERVAL, progress_bar
from neurolsc.stability.cycles import NonSquare
from neurolsc.stability.measure import (
    NON_SQUARE,
    chunks,
    contributions_of,
    depth_radius,
    is_non_square,
    states,
    time_radius,
)
from neurolsc.stability.transition import follow
from neurolsc.validation import one_of, tensor, whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SLOW, FEW = 1024, 4
"""from so many state variables on, a few points of a cell without closed form take seconds: so many
are done between two reports of progress"""


@dataclass(frozen=True, repr=False)
class RadiusProfile(Displayed):
    """Radii of the transition derivatives of a network on an input; made by :func:`radius_profile`.

    Attributes:
        time: radii through time (L, K, B): layer, step, sample.
        depth: radii through depth (L, K, B); row 0 is the first layer's derivative by the input.
        steps: the K steps that were measured (K,); every one of T by default.
        sources: per layer, the share of the points at which each term of the closed form
            contributes most to the radius through time (leak, reset, feedback, recurrence); of 64
            points spread evenly over the run where the radii were found without matrices. Empty for
            cells without a closed form.
        firing_rate: spikes per neuron and step (L,); NaN for a layer whose outputs are not all 0 or
            1.
        silent_steps: share of steps and samples at which no neuron of the layer fires (L,); NaN
            likewise.
        non_square: per depth row, how a derivative between unequal widths was treated; None where
            it is square.
        exact: share of the radii through time and depth (2, L) that come from dense eigenvalues:
            all of small layers, and of others those for which neither products with vectors nor
            squares did settle.
        target: the radii (time, depth) that were aimed at, if any; None: left as it was.
        terms: per layer, what its cell says of these terms: what to change, and their colours.
        due_to: per layer, the mean contribution of each term to the radius through time, which sum
            up to its mean; without a closed form, as of wrapped layers, of the recurrent weights
            and of the rest. Of some of the points, as the sources, and of 16 without a closed form.
    """

    time: Tensor
    depth: Tensor
    steps: Tensor
    sources: tuple[dict[str, float], ...]
    firing_rate: Tensor
    silent_steps: Tensor
    non_square: tuple[NonSquare | None, ...]
    exact: Tensor
    target: tuple[float | None, float | None] | None = None
    terms: tuple[tuple[Term, ...], ...] = ()
    due_to: tuple[dict[str, float], ...] = ()

    @property
    def time_mean(self) -> Tensor:
        """Mean radius through time of every layer (L,)."""
        return self.time.mean((1, 2))

    @property
    def depth_mean(self) -> Tensor:
        """Mean radius through depth of every layer (L,); row 0 from the input."""
        return self.depth.mean((1, 2))

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values."""
        return {
            "time": self.time.tolist(),
            "depth": self.depth.tolist(),
            "steps": self.steps.tolist(),
            "time_mean": self.time_mean.tolist(),
            "depth_mean": self.depth_mean.tolist(),
            "sources": list(self.sources),
            "due_to": list(self.due_to),
            "firing_rate": [_number_or_none(rate) for rate in self.firing_rate.tolist()],
            "silent_steps": [_number_or_none(share) for share in self.silent_steps.tolist()],
            "non_square": list(self.non_square),
            "exact": self.exact.tolist(),
            "target": self.target,
        }

    def plot(self, path: str | PathLike[str] | None = None, *, title: str = "") -> "Figure":
        """Draw the profile.

        Args:
            path: a file to write as well, whose suffix chooses the format.
            title: of the whole.

        Returns:
            The figure, which a notebook shows.
        """
        from neurolsc.plots import plot_profile  # matplotlib is slow to import and few runs draw

        return plot_profile(
            path,
            steps=self.steps.numpy(),
            time=self.time.numpy(),
            depth=self.depth.numpy(),
            held_by=self.sources,
            colors={term.name: term.color for terms in self.terms for term in terms if term.color},
            firing_rate=self.firing_rate.tolist(),
            target=self.target,
            starred=[treatment is not None for treatment in self.non_square],
            notes=[f"{line}." for line in self._stars()],
            title=title,
        )

    def _stars(self) -> list[str]:
        """What a star in the table and the picture means."""
        words = {"submatrix": "radius of a random square sub-matrix", "singular": "largest singular value"}
        return [f"* between unequal widths: {words[t]}" for t in sorted({t for t in self.non_square if t})]

    def parts(self) -> list[str | Table]:
        """What is shown: a table with a line for each layer, and what its signs mean."""
        head = ("layer", "time radius", "depth radius", "spikes/step", "silent", "time radius due to")
        star = " " if any(self.non_square) else ""
        rows = [
            (
                str(i + 1),
                _mean_std(self.time[i]),
                _mean_std(self.depth[i]) + ("*" if self.non_square[i] else star),
                or_dash(self.firing_rate[i].item(), ".4f"),
                or_dash(self.silent_steps[i].item(), ".0%"),
                _sum(self.due_to[i]) if self.due_to else "not known",
            )
            for i in range(len(self.time))
        ]
        told: list[str | Table] = [Table(head, rows)]
        if (self.exact < 1).any():
            shares = (
                f"{name} {', '.join(f'{s:.1%}' for s in row)}"
                for name, row in zip(("time", "depth"), self.exact, strict=True)
            )
            told.append(f"from products with vectors; by dense eigenvalues: {'; '.join(shares)}")
        if self.target is not None:
            aims = zip(("time", "depth"), self.target, strict=True)
            told.append("target: " + ", ".join(f"{name} {radius:.3g}" for name, radius in aims if radius is not None))
        return told + self._stars()


def radius_profile(
    network: Network,
    x: Tensor,
    *,
    steps: int | None = None,
    non_square: NonSquare = "submatrix",
    method: Method = "krylov",
    tolerance: float = TOLERANCE,
    target: tuple[float | None, float | None] | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> RadiusProfile:
    """Measure the radii of every transition derivative of a network.

    Args:
        network: the network; its parameters are not changed.
        x: input (T, B, n_in).
        steps: measure this many steps, drawn at random; by default all T. The condition is about a
            mean over steps and samples, which a few dozen of them estimate.
        non_square: what stands for the radius between unequal widths.
        method: ``"krylov"``: from products of the derivative with vectors, by squares of the whole
            matrix where these do not settle, by dense eigenvalues only where that is cheaper or
            neither tells; ``"exact"``: by dense eigenvalues.
        tolerance: relative error up to which a radius from products counts, above 0 and at most
            0.1; the larger, the fewer products. Below about 1e-4 in float32 all radii come from
            dense eigenvalues.
        target: radii through time and depth to show beside the measured ones.
        seed: of the steps and sub-matrices that are drawn.
        progress: show a progress bar; None: after ten seconds.

    Returns:
        The profile.

    Raises:
        TypeError: if network is not one (:func:`neurolsc.wrap` makes one of other modules).
        ValueError: if x does not fit the network, steps is not in 1 ... T, or the tolerance not in
            0 ... 0.1.
        FloatingPointError: if a state or derivative is NaN or infinite; the message names the
            layer.

    Cost: for each of L K B points and direction a few dozen products, of LIF and ALIF O(n_hidden^2)
    each; ``"exact"``: a dense eigenvalue problem of the state's size S (2 n_hidden for ALIF),
    O(S^3).
    """
    one_of("non_square", non_square, NON_SQUARE)
    one_of("method", method, METHODS)
    generator = torch.Generator().manual_seed(seed)
    chosen = draw_steps(len(tensor("x", x)), steps, generator)
    with evaluating(as_network(network)), torch.no_grad():
        transitions, outputs = follow(network, x, chosen)
        shape = (len(chosen), x.shape[1])
        time, depth, sources, due_to, exact = [], [], [], [], []
        work = len(transitions) * shape[0]
        delay = 0.0 if progress else LOG_INTERVAL
        with progress_bar(work, desc="radii", unit="step", shown=progress is not False, delay=delay) as bar:
            for layer, t in enumerate(transitions):
                pieces, across = [], []
                together = with_matrices(states(t)) if method == "exact" else with_bases(t.x, states(t))
                if t.cell.derivatives() is None and states(t) >= SLOW:
                    together = min(together, FEW)
                for piece in chunks(t, together):
                    pieces.append(time_radius(piece, layer, method, tolerance))
                    across.append(depth_radius(piece, layer, non_square, generator, method, tolerance))
                    bar.update(len(piece.x) / shape[1])
                for found, kept in ((pieces, time), (across, depth)):
                    kept.append(torch.cat([r.radius for r in found]).view(shape).cpu())
                    exact.append(sum(r.exact.sum().item() for r in found) / t.x.shape[0])
                parts = contributions_of(t, layer, method, time[-1].flatten())
                due_to.append({name: part.mean().item() for name, part in parts.items()})
                most = torch.stack(list(parts.values())).argmax(0).tolist() if t.cell.derivatives() and parts else []
                held = [list(parts)[i] for i in most]
                sources.append({name: held.count(name) / len(held) for name in sorted(set(held))})
    spikes = torch.tensor([firing_rate(layer) if is_binary(layer) else math.nan for layer in outputs])
    silent = torch.tensor([silent_steps(layer) if is_binary(layer) else math.nan for layer in outputs])
    treated: tuple[NonSquare | None, ...] = tuple(non_square if is_non_square(t) else None for t in transitions)
    shares = torch.tensor(exact).view(-1, 2).T
    times, depths = torch.stack(time), torch.stack(depth)
    terms = tuple(known.terms if (known := cell.derivatives()) else () for cell in network.cells)
    return RadiusProfile(
        times, depths, chosen, tuple(sources), spikes, silent, treated, shares, target, terms, tuple(due_to)
    )


def draw_steps(total: int, count: int | None, generator: torch.Generator) -> Tensor:
    """Draw `count` of `total` steps, one at random from each of count equal stretches; None: all.

    Radii change along a run more than from sample to sample, so a mean over stretches is steadier
    than over free draws.

    Raises:
        ValueError: if count is below 1 or above total.
    """
    if count is None:
        return torch.arange(total)
    if whole("steps", count) > total:
        raise ValueError(f"steps must be at most the {total} steps of the input, got {count}.")
    edges = torch.arange(count + 1) * total // count  # of stretches of whole steps, so that none is drawn twice
    return edges[:-1] + (torch.rand(count, generator=generator, dtype=torch.float64) * edges.diff()).long()


def _number_or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def _sum(parts: dict[str, float]) -> str:
    """A sum in words, the largest part first; parts that round to 0 are left out."""
    ordered = [item for item in sorted(parts.items(), key=lambda item: -abs(item[1])) if abs(item[1]) >= 0.005]
    told = "".join(f" {'-' if value < 0 else '+'} {name} {abs(value):.2f}" for name, value in ordered)
    return told.removeprefix(" + ").strip() or "not known"


def _mean_std(x: Tensor) -> str:
    return f"{x.mean():.3f} ± {x.std(correction=0):.3f}"
