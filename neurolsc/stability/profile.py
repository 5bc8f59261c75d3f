"""Spectral radii over layers, time steps and samples: measured, as numbers, as a table and as a picture."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import PathLike
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from neurolsc.display import PATIENCE, Displayed, Table, or_dash, progress_bar
from neurolsc.interop.prepared import AS_READ, prepare
from neurolsc.metrics import firing_rate, is_binary, silent_steps
from neurolsc.network import Network
from neurolsc.neurons.derivatives import StepMap, Term
from neurolsc.neurons.neuronwise import OWN
from neurolsc.neurons.weights import weight_matrices
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
from neurolsc.stability.rules import has_targets, standard_error
from neurolsc.stability.sampling import AUTOGRAD, WORK, Grid, affordable, draws, first_shape, next_shape, operations
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
    zeroed,
)
from neurolsc.surroundings import eval_mode, in_full_precision
from neurolsc.validation import one_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Most points of a layer at which terms are compared, by how the derivative is known: enough for a mean in a table.
DENSE = 256  # a small closed form, whose eigenvectors come from its matrix
BY_PRODUCTS = 64  # a larger closed form
BY_AUTOGRAD = 16  # no closed form
SLOW = 1024  # state variables from which on a few points by autograd take seconds
FEW = 4  # points of such a layer between two reports of progress
SMALLEST_PART = 0.005  # contribution to a radius below which a term is not shown: it would read 0.00


def time_radius(t: Transitions, layer: int, method: Method = "krylov") -> Radii:
    """Spectral radii through time at the points of t (P,), differentiable by the parameters.

    Points with the same derivative are computed once. `layer` (from 0) is named in errors.
    """
    with _layer_in_errors(t, layer, "time"):
        product = time_product(t)
        if product.blocks() is not None:  # so cheap that equal points need not be found
            return radii(product, t.x, method)
        known = t.cell.derivatives()
        depends_on = [flat(t.before)]  # the derivative is the same where these are
        if known is None or known.reads_input:
            depends_on.append(t.x)
        distinct, which = _distinct(t, depends_on)
        return radii(time_product(distinct), t.x, method).at(which)


def mean_time_radius(t: Transitions, layer: int) -> float:
    """The mean radius through time at the points of t, or at as many of them as take about a second."""
    if time_product(t.at(slice(0, 1))).blocks() is None:  # blocks of single neurons cost next to nothing
        t = t.at(affordable(len(t.x), t.states))
    return time_radius(t, layer).radius.mean().item()


def depth_radius(
    t: Transitions,
    layer: int,
    non_square: NonSquare,
    generator: torch.Generator,
    method: Method = "krylov",
    *,
    draws: int = 1,
) -> Radii:
    """Spectral radii through depth at the points of t (P,), differentiable by the parameters.

    Args:
        t: the layer at the points.
        layer: its index from 0, named in errors.
        non_square: what stands for the radius between unequal widths: ``"submatrix"``, the mean radius of random square
            sub-matrices, or the largest singular value.
        generator: draws the sub-matrices.
        method: as in :func:`radius_profile`.
        draws: number of sub-matrices at each point, over whose radii the mean is taken.

    Returns:
        The radii, and which of them are exact.
    """
    if t.non_square and non_square == "submatrix":  # each point has sub-matrices of its own, so none are equal
        if draws > 1:
            copies = t.at(torch.arange(len(t.x), device=t.x.device).repeat_interleave(draws))
        else:
            copies = t
        with _layer_in_errors(t, layer, "depth"):
            found = radii(depth_product(copies, non_square, generator), t.x, method)
        return Radii(found.radius.view(-1, draws).mean(1), found.exact.view(-1, draws).all(1))
    with _layer_in_errors(t, layer, "depth"):
        # points with equal derivatives have equal radii, and are measured once
        depends_on = []
        if t.state_below is not None:
            depends_on.append(flat(t.state_below))
        if not all(part.same for part in input_operators(t)):  # else the derivative by the input is constant
            depends_on += [t.x, flat(t.before)]
        distinct, which = _distinct(t, depends_on)
        product = depth_product(distinct, non_square, generator)
        found = radii(product, t.x, method)
    if t.non_square:  # the radius of M^T M is the square of M's largest singular value
        found = found._replace(radius=safe_sqrt(found.radius))
    if product.points == 1:  # the derivative is the same at all points
        which = torch.zeros_like(which)
    return found.at(which)


def _distinct(t: Transitions, depends_on: Sequence[Tensor]) -> tuple[Transitions, Tensor]:
    """The distinct points of t, and for each point of t the index of the distinct point that equals it.

    Points are equal if the tensors that the derivative depends on, each (P, ...), have equal rows there. Before the
    first spikes all samples are alike, which is a fifth of the steps of spike-latency MNIST.
    """
    points = torch.arange(len(t.x), device=t.x.device)
    if not depends_on:
        return t, points
    rows = torch.cat([part.detach() for part in depends_on], 1)
    _, which = torch.unique(rows, dim=0, return_inverse=True)
    # of the points that are equal, the one with the lowest index
    first = points.new_full((int(which.max()) + 1,), len(points)).scatter_reduce(0, which, points, "amin")
    if len(first) == len(points):
        return t, points
    return t.at(first), which


@contextmanager
def _layer_in_errors(t: Transitions, layer: int, direction: str) -> Iterator[None]:
    """Let an error about NaN inside the block name the layer (from 0), and its surrogate if that is the cause.

    Through depth the surrogate is that of the layer below, whose output this layer reads.
    """
    try:
        yield
    except FloatingPointError as error:
        if direction == "time" or t.below is None:
            fault = surrogate_fault(t.cell, layer)
        else:
            fault = surrogate_fault(t.below, layer - 1)
        fault = fault or (
            f"layer {layer + 1}: the derivative through {direction} holds NaN or infinity. Its weights or states have "
            "run away; lower the learning rate, or start from smaller weights."
        )
        raise FloatingPointError(str(fault)) from error


def contributions(t: Transitions) -> dict[str, Tensor]:
    r"""Return what each term of the derivative contributes to the radius through time.

    .. math:: \rho = \sum_j \mathrm{Re}\Big(\frac{\bar\lambda}{|\lambda|}\, y^H A_j x\Big), \qquad M = \sum_j A_j

    with the largest eigenvalue of M and its right and left vectors x and y, scaled to :math:`y^H x = 1`. Without a
    closed form of the derivative the terms of a spiking cell are its recurrent weights, if there are any, and the rest.

    Returns:
        The contributions by the name of the term, each (p,) at p evenly chosen points of t; empty for a cell that
        neither spikes nor has a closed form, or whose closed form names no terms.
    """
    known = t.cell.derivatives()
    if known is None:
        has_terms = t.cell.membrane() is not None
    else:
        has_terms = bool(known.terms)
    if not has_terms:
        return {}
    if known is None:
        count = BY_AUTOGRAD
    elif t.states <= DENSE_BELOW:
        count = DENSE
    else:
        count = BY_PRODUCTS
    count = min(count, len(t.x))
    some = t.at(torch.arange(count) * len(t.x) // count)
    if known and len(known.terms) == 1:  # it is the whole derivative
        return {known.terms[0].name: radii(time_product(some), t.x).radius}
    pairs = leading_pairs(time_product(some), t.x)
    radius = pairs.value.abs()
    # conj(lambda) / |lambda|; the clamp keeps an eigenvalue of 0 from dividing by 0
    phase = pairs.value.conj() / radius.clamp(min=torch.finfo(t.x.dtype).tiny)
    if known:
        recurrent = ()
    else:
        recurrent = weight_matrices(t.cell, "time")
    with zeroed(recurrent):  # without a closed form: what the derivative is without the recurrent weights
        step = time_operator(some)

        def terms(x: Tensor, y: Tensor) -> dict[str, Tensor]:
            """y^T A x of each term A, for real vectors (p, S); each (p,)."""
            if isinstance(step, StepMap):
                return step.terms(x, y)
            return {OWN.name: (y * step.matvec(x)).sum(1)}

        # y^H A x from the real and imaginary parts of both vectors; the first word of a name is the part of x
        x = pairs.right
        y = pairs.left
        real_real = terms(x.real, y.real)
        real_imag = terms(x.real, y.imag)
        imag_real = terms(x.imag, y.real)
        imag_imag = terms(x.imag, y.imag)
    found = {}
    for name in real_real:
        product = torch.complex(real_real[name] + imag_imag[name], imag_real[name] - real_imag[name])
        found[name] = (phase * product).real
    if recurrent:  # the recurrent weights have what is left of the radius
        found["recurrence"] = radius - found[OWN.name]
    return found


@dataclass(frozen=True, repr=False)
class RadiusProfile(Displayed):
    """Spectral radii of the transition derivatives of a network on an input; made by :func:`radius_profile`.

    Attributes:
        time: radii through time (L, K, B): layer, step, sample.
        depth: radii through depth (L, K, B); row 0 is the first layer's derivative by the input.
        steps: the K steps that were measured (K,).
        samples: the B samples that were measured (B,).
        error: standard errors of the mean radii through time and depth (2, L), as estimates of the means over all steps
            of the run and further samples like those of the input (:func:`neurolsc.stability.rules.standard_error`).
            One sample does not tell how much samples differ: the errors are then those along the steps alone.
        shape: steps and samples of the whole input.
        firing_rate: spikes per neuron and step (L,); NaN for a layer whose outputs are not all 0 or 1.
        silent_steps: share of steps and samples at which no neuron of the layer fires (L,); NaN for the same layers.
        non_square: per depth row, how a derivative between unequal widths was treated; None where it is square.
        exact: share of the radii through time and depth (2, L) that come from dense eigenvalues, or from the blocks of
            single neurons: all of small layers, and of others where products with vectors did not settle.
        target: the target radii (time, depth), None for a direction without a target; None without any target.
        terms: per layer, the terms of its closed form, each with what to change and its colour in a picture.
        contributions: per layer, the mean contribution of each term to the radius through time, at some points; the
            contributions sum up to the mean radius there. Wrapped spiking layers, which have no closed form, have two
            terms, the recurrent weights and the rest; gated cells have none.
        layout: where time and batch were found in the x that was given.
    """

    time: Tensor
    depth: Tensor
    steps: Tensor
    samples: Tensor
    error: Tensor
    shape: tuple[int, int]
    firing_rate: Tensor
    silent_steps: Tensor
    non_square: tuple[NonSquare | None, ...]
    exact: Tensor
    target: tuple[float | None, float | None] | None = None
    terms: tuple[tuple[Term, ...], ...] = ()
    contributions: tuple[dict[str, float], ...] = ()
    layout: str = AS_READ

    @property
    def time_mean(self) -> Tensor:
        """Mean radius through time of every layer (L,)."""
        return self.time.mean((1, 2))

    @property
    def depth_mean(self) -> Tensor:
        """Mean radius through depth of every layer (L,); row 0 from the input."""
        return self.depth.mean((1, 2))

    def main_term(self, layer: int) -> Term:
        """The term that contributes most to the mean radius of a layer (from 0) through time.

        If no contributions are known, its name is "unknown".
        """
        parts = self.contributions[layer]
        name = max(parts, key=parts.__getitem__, default="unknown")
        for term in self.terms[layer]:
            if term.name == name:
                return term
        # "unknown", or a term of a cell without a closed form
        return Term(name, "scale the recurrent weights down, or let its gates retain less")

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in ("time", "depth", "steps", "samples", "error", "time_mean", "depth_mean"):
            found[name] = getattr(self, name).tolist()
        for name in ("firing_rate", "silent_steps"):  # JSON has no NaN
            found[name] = [None if math.isnan(value) else value for value in getattr(self, name).tolist()]
        for name in ("contributions", "non_square"):
            found[name] = list(getattr(self, name))
        return {**found, "exact": self.exact.tolist(), "target": self.target, "layout": self.layout}

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
        """A footnote, marked by a star, for each treatment of derivatives between unequal widths."""
        words = {"submatrix": "radius of a random square sub-matrix", "singular": "largest singular value"}
        used = {treatment for treatment in self.non_square if treatment}
        return [f"* between unequal widths: {words[treatment]}" for treatment in sorted(used)]

    def parts(self) -> list[str | Table]:
        head = ("layer", "time radius", "depth radius", "spikes/step", "silent", "time radius, by term")
        no_star = " " if any(self.non_square) else ""  # keeps the numbers below each other
        rows = []
        for i in range(len(self.time)):
            depth = _mean_std(self.depth[i]) + ("*" if self.non_square[i] else no_star)
            fires = or_dash(self.firing_rate[i].item(), ".4f")
            silent = or_dash(self.silent_steps[i].item(), ".0%")
            terms = _sum(self.contributions[i] if self.contributions else {})
            rows.append((str(i + 1), _mean_std(self.time[i]), depth, fires, silent, terms))
        lines: list[str | Table] = []
        if self.layout != AS_READ:
            lines.append(f"x: {self.layout}")
        lines.append(Table(head, rows))
        if self.target is not None:
            aims = zip(("time", "depth"), self.target, strict=True)
            lines.append("target: " + ", ".join(f"{name} {radius:.3g}" for name, radius in aims if radius is not None))
        return [*lines, self._measured(), *self._stars()]

    def _measured(self) -> str:
        """Where the radii were measured, and how well the means are known."""
        steps, samples = self.shape
        where = f"all {steps} steps of {samples} sample{'s' if samples > 1 else ''}"
        if (len(self.steps), len(self.samples)) != self.shape:
            where = f"{len(self.steps)} of {steps} steps and {len(self.samples)} of {samples} samples"
        if len(self.samples) == 1:
            return f"means over {where}; how much samples differ is not known"
        means = torch.stack((self.time_mean, self.depth_mean)).double()
        relative = torch.where(means > 0, self.error / means, 0).max().item()  # a mean of 0 has no relative error
        return f"means over {where}, standard errors at most {relative:.1%} of a mean"


@in_full_precision
def radius_profile(
    net: nn.Module,
    x: Any,
    *,
    steps: int | None = None,
    non_square: NonSquare = "submatrix",
    method: Method = "krylov",
    target: tuple[float | None, float | None] | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> RadiusProfile:
    """Measure the spectral radii of every transition derivative of a network.

    Args:
        net: a network, or a module of snnTorch, norse, spikingjelly or PyTorch; it stays as it is.
        x: input (T, B, n_in) of a network, or what the module takes, as :func:`neurolsc.interop.prepared.prepare` reads
            it. Parameters of half precision are float32 meanwhile.
        steps: number of time steps, drawn at random, at which all samples are measured; ``len(x)``: every point.
            By default points are drawn, up to 32 steps and 32 samples, until the standard error of every mean is below
            1 %, or until measuring would take more than some seconds; ``error`` of the result says how well the means
            are known.
        non_square: what stands for the radius between unequal widths. Without `steps` a sub-matrix of at most 64 rows
            is drawn several times at each point, and the mean is taken, as radii of small ones vary more. A larger one
            is drawn once, and with `steps` each.
        method: ``"krylov"``: to 1 % from products of the derivative with vectors, by dense eigenvalues where that is
            cheaper or products do not settle, and neuron by neuron where no neuron reads another one; ``"exact"``: by
            dense eigenvalues.
        target: radii through time and depth to show with the measured ones.
        seed: seed of the draws of points and sub-matrices.
        progress: show a progress bar; None: only after five seconds.

    Raises:
        TypeError: if net or x is none of these.
        ValueError: if x does not fit the network, steps is not in 1 ... T or target is not two radii.
        FloatingPointError: if a state or derivative is NaN or infinite; the message names the layer.

    Cost: a run of the input; then for each point, layer and direction a few dozen products, of LIF and ALIF
    O(n_hidden^2) each; ``"exact"``, and between layers of many hundred neurons: a dense eigenvalue problem of the
    state's size S (2 n_hidden for ALIF), O(S^3).
    """
    one_of("non_square", non_square, NON_SQUARE)
    one_of("method", method, METHODS)
    if target is not None and not has_targets(target):
        raise ValueError(
            f"target must be two radii in (0, inf), (time, depth), of which one may be None; got {target!r}."
        )
    generator = torch.Generator().manual_seed(seed)
    prepared = prepare(net, x)
    network = prepared.network
    x = prepared.without_padding()
    total, batch = x.shape[:2]
    with eval_mode(network), torch.no_grad():
        if steps is not None:
            chosen = draw_steps(total, steps, generator)
            grid = Grid(chosen, torch.arange(batch), torch.arange(len(chosen)), total)
            transitions, outputs = follow(network, x, chosen)
        else:
            grid = Grid.drawn(total, batch, generator)
            some = x[:, grid.samples.to(x.device)]
            transitions, outputs = follow(network, some, grid.steps)
            if len(grid.samples) < batch:  # firing rates are counted on all samples
                outputs = network.run(x).spikes
        profile = profile_at(
            network,
            transitions,
            outputs,
            grid,
            shape=(total, batch),
            every=steps is not None,
            non_square=non_square,
            method=method,
            target=target,
            generator=generator,
            progress=progress,
        )
    return replace(profile, layout=prepared.layout)


def profile_at(
    network: Network,
    transitions: Sequence[Transitions],
    outputs: Sequence[Tensor],
    grid: Grid,
    *,
    shape: tuple[int, int],
    every: bool,
    generator: torch.Generator,
    non_square: NonSquare = "submatrix",
    method: Method = "krylov",
    target: tuple[float | None, float | None] | None = None,
    progress: bool | None = None,
    work: float = WORK,
) -> RadiusProfile:
    """The radii of a network at the points of a grid along a run, without gradient.

    Args:
        network: the network, in evaluation mode.
        transitions: of each layer, at all points of the grid.
        outputs: outputs of each layer in the run (T, B, n_hidden), from which firing rates are counted.
        grid: the points.
        shape: steps and samples of the input that the grid was drawn from.
        every: measure all points; else only as many as the means need.
        generator: draws the sub-matrices.
        non_square: as in :func:`radius_profile`.
        method: as there.
        target: as there.
        progress: as there.
        work: floating-point operations of eigenvalues after which no more points are measured, unless `every`.
    """
    delay = 0.0 if progress else PATIENCE
    with progress_bar(None, desc="radii", unit="point", shown=progress is not False, delay=delay) as bar:
        layers = []
        for layer, t in enumerate(transitions):
            options: Any = {"non_square": non_square, "method": method, "generator": generator}
            layers.append(_LayerRadii(t, layer, grid, several_draws=not every, **options))
        size = grid.shape  # steps and samples to measure
        if not every:
            size = first_shape(grid, sum(of_layer.most_work for of_layer in layers), work)
        while True:
            places = grid.rectangle(size)
            bar.total = places.numel() * len(layers)
            for of_layer in layers:
                of_layer.measure(places.flatten(), bar)
            if every:
                break
            found = [radii for of_layer in layers for radii in of_layer.at(places)]
            larger = next_shape(size, grid, found, sum(of_layer.work for of_layer in layers), work)
            if larger is None:  # the means are known, or more would take too long
                break
            size = larger
    samples, order = grid.samples[: size[1]].sort()
    places = grid.rectangle(size)[:, order]  # (k, b), steps and samples increasing
    times = torch.stack([of_layer.at(places)[0] for of_layer in layers])
    depths = torch.stack([of_layer.at(places)[1] for of_layer in layers])
    by_term = []
    for t in transitions:
        parts = contributions(t.at(places.flatten().to(t.x.device)))
        by_term.append({name: part.mean().item() for name, part in parts.items()})
    rates = []
    silent = []
    for cell, z in zip(network.cells, outputs, strict=True):
        sends_spikes = is_binary(z) and not cell.integrator
        rates.append(firing_rate(z) if sends_spikes else math.nan)
        silent.append(silent_steps(z) if sends_spikes else math.nan)
    derivatives = [cell.derivatives() for cell in network.cells]
    return RadiusProfile(
        time=times,
        depth=depths,
        steps=grid.steps[grid.order[: size[0]].sort().values],
        samples=samples,
        error=torch.tensor([[standard_error(r, grid.total) for r in radii] for radii in (times, depths)]),
        shape=shape,
        firing_rate=torch.tensor(rates),
        silent_steps=torch.tensor(silent),
        non_square=tuple(non_square if t.non_square else None for t in transitions),
        exact=torch.tensor([of_layer.exact_share() for of_layer in layers]).T,
        target=target,
        terms=tuple(known.terms if known else () for known in derivatives),
        contributions=tuple(by_term),
    )


class _LayerRadii:
    """Radii of one layer at the points of a grid; :meth:`measure` measures some of them, each once.

    Points are counted step by step, as in :meth:`Grid.rectangle`. With `several_draws` small sub-matrices are drawn
    several times at each point.
    """

    def __init__(
        self,
        t: Transitions,
        layer: int,
        grid: Grid,
        *,
        non_square: NonSquare,
        method: Method,
        generator: torch.Generator,
        several_draws: bool,
    ) -> None:
        self.t = t
        self.layer = layer
        self.non_square: NonSquare = non_square
        self.method: Method = method
        self.generator = generator
        points = grid.shape[0] * grid.shape[1]
        self.known = torch.zeros(points, dtype=torch.bool)  # which points have been measured
        self.time = torch.zeros(points, dtype=t.x.dtype)
        self.depth = torch.zeros_like(self.time)
        self.exact = torch.zeros(2, points, dtype=torch.bool)  # through time and depth
        self.work = 0.0  # floating-point operations so far
        point = t.at(slice(0, 1))  # all points have the same sizes
        along = time_product(point)
        across = depth_product(point, non_square, torch.Generator())  # for its size: the draw does not matter
        time_size = along.size
        if along.blocks() is not None:  # blocks of single neurons cost next to nothing
            time_size = 0
        self.sizes = (time_size, across.size)
        known = [cell.derivatives() for cell in (t.cell, t.below) if cell is not None]
        self.factor = 1.0 if all(known) else AUTOGRAD  # time per operation, relative to closed forms
        self.draws = 1
        if several_draws and t.non_square and non_square == "submatrix":
            self.draws = draws(min(t.depth_shape))
        self.points_at_once = points_with_bases(t.x, t.states)  # measured between two reports of progress
        if t.cell.derivatives() is None and t.states >= SLOW:
            self.points_at_once = min(self.points_at_once, FEW)

    @property
    def most_work(self) -> float:
        """Floating-point operations of a point if both of its radii take dense eigenvalues."""
        dense = torch.ones(1, dtype=torch.bool)
        time, depth = (operations(size, dense) for size in self.sizes)
        return self.factor * (time + self.draws * depth)

    def measure(self, places: Tensor, bar: tqdm) -> None:
        """Measure the radii at those of the places (p,) where they are not known yet; `bar` counts the points."""
        new = places[~self.known[places]]
        for some in new.split(self.points_at_once):
            t = self.t.at(some.to(self.t.x.device))
            along = time_radius(t, self.layer, self.method)
            across = depth_radius(t, self.layer, self.non_square, self.generator, self.method, draws=self.draws)
            self.time[some] = along.radius.cpu()
            self.depth[some] = across.radius.cpu()
            self.exact[0, some] = along.exact.cpu()
            self.exact[1, some] = across.exact.cpu()
            work = operations(self.sizes[0], along.exact) + self.draws * operations(self.sizes[1], across.exact)
            self.work += self.factor * work
            bar.update(len(some))
        self.known[new] = True

    def at(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Radii through time and through depth at places (k, b), each (k, b)."""
        return self.time[places], self.depth[places]

    def exact_share(self) -> list[float]:
        """Shares of the measured radii through time and through depth that are dense, or of single neurons."""
        return self.exact[:, self.known].double().mean(1).tolist()


def _sum(parts: dict[str, float]) -> str:
    """Contributions as text, largest first, such as "leak 0.61 + recurrence 0.30 - reset 0.02"."""
    if not parts:
        return "not known"
    text = ""
    for name in sorted(parts, key=lambda name: -abs(parts[name])):
        if abs(parts[name]) >= SMALLEST_PART:
            sign = "-" if parts[name] < 0 else "+"
            text += f" {sign} {name} {abs(parts[name]):.2f}"
    return text.removeprefix(" + ").strip() or f"below {SMALLEST_PART}"


def _mean_std(x: Tensor) -> str:
    """Mean and standard deviation as text, such as "0.500 ± 0.020"."""
    return f"{x.mean():.3f} ± {x.std(correction=0):.3f}"
