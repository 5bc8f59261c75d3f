"""Radii over layers, time steps and samples: measured, as numbers, as text and as a picture."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from os import PathLike
from typing import Any, Literal

import torch
from torch import Tensor
from tqdm.auto import tqdm

from neurolsc.metrics import firing_rate, is_binary, silent_steps
from neurolsc.modes import evaluated
from neurolsc.network import Network
from neurolsc.stability.radius import (
    largest_singular_value,
    radius_and_gradient,
    random_submatrix,
    spectral_radius,
)
from neurolsc.stability.transition import Transitions, depth_factors, follow, sum_of, time_derivative
from neurolsc.validation import one_of, whole

NonSquare = Literal["submatrix", "singular"]
"""What stands for the radius between unequal widths: that of a random square sub-matrix (the paper's released code), or
the largest singular value. The text of the paper does not say."""

NON_SQUARE: tuple[NonSquare, ...] = ("submatrix", "singular")


@dataclass(frozen=True)
class RadiusProfile:
    """Radii of the transition derivatives of a network on an input; made by :func:`radius_profile`.

    Attributes:
        time: radii through time (L, K, B): layer, step, sample.
        depth: radii through depth (L, K, B); row 0 is the first layer's derivative by the input.
        steps: the K steps that were measured (K,); every one of T by default.
        sources: per layer, the share of the points at which each term of the closed form contributes most to the radius
            through time (leak, reset, feedback, recurrence); empty for cells without a closed form.
        firing_rate: spikes per neuron and step (L,); NaN for a layer whose outputs are not all 0 or 1.
        silent_steps: share of steps and samples at which no neuron of the layer fires (L,); NaN likewise.
        non_square: per depth row, how a derivative between unequal widths was treated; None where it is square.
        target: the radii (time, depth) that were aimed at, if any.
    """

    time: Tensor
    depth: Tensor
    steps: Tensor
    sources: tuple[dict[str, float], ...]
    firing_rate: Tensor
    silent_steps: Tensor
    non_square: tuple[NonSquare | None, ...]
    target: tuple[float, float] | None = field(default=None)

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
            "firing_rate": [_number_or_none(rate) for rate in self.firing_rate.tolist()],
            "silent_steps": [_number_or_none(share) for share in self.silent_steps.tolist()],
            "non_square": list(self.non_square),
            "target": self.target,
        }

    def plot(self, path: str | PathLike[str]) -> None:
        """Draw the profile to a file; the suffix chooses the format."""
        from neurolsc.plots import plot_profile  # matplotlib is slow to import and few runs draw

        plot_profile(self, path)

    def __str__(self) -> str:
        lines = ["layer  time radius    depth radius   spikes/step  silent  radius through time is held by"]
        for i in range(self.time.shape[0]):
            held = sorted(self.sources[i].items(), key=lambda item: -item[1])
            lines.append(
                f"{i + 1:>5}  {_mean_std(self.time[i])}  {_mean_std(self.depth[i])}{'*' if self.non_square[i] else ' '}"
                f"  {_or_dash(self.firing_rate[i], '10.4f')}  {_or_dash(self.silent_steps[i], '5.0%')}   "
                + (", ".join(f"{name} {share:.0%}" for name, share in held if share >= 0.005) or "not known")
            )
        if self.target is not None:
            lines.append(f"target: time {self.target[0]:.3g}, depth {self.target[1]:.3g}")
        for treatment in sorted({t for t in self.non_square if t}):
            words = {"submatrix": "radius of a random square sub-matrix", "singular": "largest singular value"}
            lines.append(f"* between unequal widths: {words[treatment]}")
        return "\n".join(lines)


@evaluated
def radius_profile(
    network: Network,
    x: Tensor,
    *,
    steps: int | None = None,
    non_square: NonSquare = "submatrix",
    target: tuple[float, float] | None = None,
    seed: int = 0,
    progress: bool = False,
) -> RadiusProfile:
    """Measure the radii of every transition derivative of a network.

    Args:
        network: the network; its parameters are not changed.
        x: input (T, B, n_in).
        steps: measure this many steps, drawn at random; by default all T. The condition is about a mean over steps and
            samples, which a few dozen of them estimate.
        non_square: what stands for the radius between unequal widths.
        target: radii through time and depth to show beside the measured ones.
        seed: of the steps and sub-matrices that are drawn.
        progress: show a progress bar.

    Returns:
        The profile.

    Raises:
        ValueError: if x does not fit the network, or steps is not in 1 ... T.
        FloatingPointError: if a state or derivative is NaN or infinite; the message names the layer.

    Cost: L K B dense eigenvalue problems of the state's size S (2 n_hidden for ALIF), each O(S^3).
    """
    one_of("non_square", non_square, NON_SQUARE)
    generator = torch.Generator().manual_seed(seed)
    chosen = draw_steps(x.shape[0], steps, generator)
    transitions, outputs = follow(network, x, chosen)
    shape = (len(chosen), x.shape[1])
    time, depth, sources = [], [], []
    with torch.no_grad(), tqdm(total=len(transitions) * shape[0], unit="step", disable=not progress) as bar:
        for layer, t in enumerate(transitions):
            pieces, across, held = [], [], []
            for piece in _chunks(t, max(1, 2**23 // t.before[0][0].numel() ** 2)):
                radius, leading = time_radius_and_sources(piece, layer)
                pieces.append(radius)
                across.append(depth_radius(piece, layer, non_square, generator))
                held.append(leading)
                bar.update(len(radius) / shape[1])
            time.append(torch.cat(pieces).view(shape).cpu())
            depth.append(torch.cat(across).view(shape).cpu())
            sources.append(_shares(held))
    spikes = torch.tensor([firing_rate(layer) if is_binary(layer) else math.nan for layer in outputs])
    silent = torch.tensor([silent_steps(layer) if is_binary(layer) else math.nan for layer in outputs])
    treated: tuple[NonSquare | None, ...] = tuple(non_square if is_non_square(t) else None for t in transitions)
    return RadiusProfile(torch.stack(time), torch.stack(depth), chosen, tuple(sources), spikes, silent, treated, target)


def draw_steps(total: int, count: int | None, generator: torch.Generator) -> Tensor:
    """Draw `count` of `total` steps, one at random from each of as many equal stretches; all of them if count is None.

    Radii change along a run more than from sample to sample, so a mean over stretches is steadier than over free draws.

    Raises:
        ValueError: if count is below 1 or above total.
    """
    if count is None:
        return torch.arange(total)
    if whole("steps", count) > total:
        raise ValueError(f"steps must be at most the {total} steps of the input, got {count}.")
    edges = torch.arange(count + 1) * total // count  # of stretches of whole steps, so that none is drawn twice
    return edges[:-1] + (torch.rand(count, generator=generator, dtype=torch.float64) * edges.diff()).long()


def time_radius(t: Transitions, layer: int) -> Tensor:
    """Radii through time at the points of t, shape (K B,), differentiable by the parameters."""
    return spectral_radius(_finite(time_derivative(t), layer, "time"))


def time_radius_and_sources(t: Transitions, layer: int) -> tuple[Tensor, list[str] | None]:
    """Radii through time, and at every point the name of the term that contributes most to it (None: not known).

    The contribution of a term is its product with the gradient of the radius; contributions sum up to the radius.
    """
    if not t.cell.has_closed_form():
        return time_radius(t, layer), None
    terms = t.cell.time_sources(t.before)
    radius, gradient, _ = radius_and_gradient(_finite(sum_of(terms), layer, "time"))
    parts = torch.stack([(gradient * term).sum((-2, -1)) for term in terms.values()])
    names = list(terms)
    return radius, [names[i] for i in parts.argmax(0).tolist()]


def depth_radius(t: Transitions, layer: int, non_square: NonSquare, generator: torch.Generator) -> Tensor:
    """Radii through depth at the points of t, shape (K B,), differentiable by the parameters."""
    by_input, below = depth_factors(t)
    points = t.x.shape[0]
    if not is_non_square(t):
        # A B and B A have the same eigenvalues but for zeros, and B A is no larger than the layer below
        m = by_input if below is None else below @ by_input
        return spectral_radius(_finite(m, layer, "depth")).expand(points)
    m = _finite(by_input if below is None else by_input @ below, layer, "depth")
    if non_square == "singular":
        return largest_singular_value(m).expand(points)
    return spectral_radius(random_submatrix(m.expand(points, -1, -1), generator))


def is_non_square(t: Transitions) -> bool:
    """Whether the depth derivative of a layer is not square: its state and what it reads differ in size."""
    below = t.cell.n_in if t.state_below is None else sum(leaf[0].numel() for leaf in t.state_below)
    return below != sum(leaf[0].numel() for leaf in t.before)


def _finite(m: Tensor, layer: int, direction: str) -> Tensor:
    if not m.isfinite().all():
        raise FloatingPointError(
            f"layer {layer + 1}: the derivative through {direction} holds NaN or infinity. Its weights or states have "
            "run away; lower the learning rate, or start from smaller weights."
        )
    return m


def _chunks(t: Transitions, size: int) -> Iterator[Transitions]:
    for start in range(0, t.x.shape[0], size):
        part = slice(start, start + size)
        below = None if t.state_below is None else type(t.state_below)(*(leaf[part] for leaf in t.state_below))
        before = type(t.before)(*(leaf[part] for leaf in t.before))
        yield Transitions(t.cell, t.x[part], before, t.below, below)


def _shares(held: list[list[str] | None]) -> dict[str, float]:
    names = [name for piece in held if piece is not None for name in piece]
    return {name: names.count(name) / len(names) for name in sorted(set(names))}


def _number_or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def _or_dash(value: Tensor, form: str) -> str:
    """A number of a given width, or a dash in its place."""
    return f"{'-':>{int(form.partition('.')[0])}}" if value.isnan() else format(value.item(), f">{form}")


def _mean_std(x: Tensor) -> str:
    return f"{x.mean():.3f} ± {x.std(correction=0):.3f}"
