"""Layers drawn at random, each again from its number, with their radii and their derivatives.

The draw goes over all cells, resets, surrogates and inputs, over time constants and scales, and
over recurrence that is easy to get wrong: rings of many eigenvalues of one modulus, eigenvalues
beside those of leaks, matrices far from normal. Half of the layers are balanced: recurrence and
leaks give nearly the same radius. Beside layers stand bare matrices, and layers without a closed
form.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import torch
from torch import Tensor

from neurolsc import ALIFPlus, ALIFPlusMinus, ALIFPositive, Network, surrogate
from neurolsc.datasets import SHD, SpikeLatencyMNIST, input_batches
from neurolsc.neurons import LIF
from neurolsc.neurons.derivatives import Matrices
from neurolsc.stability.arnoldi import Radii, radii
from neurolsc.stability.profile import depth_radius, time_radius
from neurolsc.stability.transitions import OperatorProduct, Transitions, follow
from tests.stability.dense import depth_factors, random_submatrix, time_derivative

KINDS = ("LIF", "ALIF+", "ALIF±", "ALIF positive", "no closed form", "matrix")
CELLS = {"LIF": LIF, "ALIF+": ALIFPlus, "ALIF±": ALIFPlusMinus, "ALIF positive": ALIFPositive}
NAMES = """glorot, orthogonal, cyclic, permutation, signed permutation, sparse, low rank, identity + shift,
    block and leaks, half a ring, delay line, far from normal"""
FAMILIES = tuple(name.strip() for name in NAMES.split(","))
RESETS = tuple(product(("subtract", "static", "zero"), (False, True)))
SPIKES = tuple(name for name in surrogate.__all__ if name != "Surrogate")
INPUTS = ("digits", "speech", "random", "silence")
WIDTHS = {40: 4, 48: 5, 64: 6, 76: 8, 80: 8, 90: 6, 100: 4, 128: 3, 160: 1.5, 200: 1, 256: 0.7, 300: 0.5}
"""neurons, and how often; few are wide, as dense eigenvalues check every point"""
EACH = 12
"""points of a layer in each direction, where so many differ; a quarter of those of layers above 100
wide"""


@dataclass(frozen=True)
class Points:
    """The points of one layer in one direction."""

    number: int
    family: str
    direction: str
    what: str
    rate: float
    radii: Callable[[], Radii]
    matrices: Callable[[torch.dtype], Tensor]  # (P, n, n) in closed form, or what stands for them if not square
    squared: bool = False  # the radius is the root of that of the matrices


def block(n: int) -> int:
    """Neurons that are connected where the others only leak."""
    return n // (2 + n % 5)


def weights(family: str, n: int) -> Tensor:
    """Recurrent weights (n, n) of a family, of radius about 1."""
    w = torch.randn(n, n) / n**0.5
    shift = torch.eye(n).roll(1, 0)
    match family:
        case "glorot":
            return torch.nn.init.xavier_uniform_(w)
        case "orthogonal":
            return torch.nn.init.orthogonal_(w)
        case "cyclic":
            return shift
        case "permutation":
            return torch.eye(n)[torch.randperm(n)]
        case "signed permutation":
            return torch.eye(n)[torch.randperm(n)] * torch.randn(n).sign()
        case "sparse":
            return w * (torch.rand(n, n) < 0.1) / 0.1**0.5
        case "low rank":
            rank = int(torch.randint(1, 6, ()))
            return torch.randn(n, rank) @ torch.randn(rank, n) / n / rank**0.5 + torch.eye(n) * 0.01
        case "identity + shift":
            return torch.eye(n) + 0.05 * shift
        case "block and leaks":
            k = block(n)
            return torch.block_diag(torch.nn.init.orthogonal_(torch.empty(k, k)), torch.zeros(n - k, n - k))
        case "half a ring":
            k = n // 2
            return torch.block_diag(torch.eye(k).roll(1, 0), 0.3 * w[k:, k:])
        case "delay line":
            return torch.diag(torch.ones(n - 1), -1) + 0.1 * w
        case "far from normal":  # hidden feed-forward chains: eigenvalues on the diagonal, much larger ones above it
            q = torch.nn.init.orthogonal_(torch.empty(n, n))
            strength = 10 ** torch.empty(()).uniform_(-0.5, 0.7)
            return q @ (torch.diag(torch.rand(n) * 2 - 1) + strength * w.triu(1)) @ q.T
    raise ValueError(f"family must be one of {FAMILIES}, got {family!r}.")


def layer(number: int) -> list[Points]:
    """The points of the layer with this number, or bare matrices."""
    draw = random.Random(number)
    kind, family = KINDS[number % len(KINDS)], FAMILIES[number // len(KINDS) % len(FAMILIES)]
    torch.manual_seed(number)
    n = draw.choices(list(WIDTHS), list(WIDTHS.values()))[0]
    n = max(n, 76) if kind in ("LIF", "matrix") else min(n, 100) if kind == "no closed form" else n
    if kind == "matrix":
        return [_bare(number, draw, family, n)]
    t, what, rate = _points(draw, kind, family, n)
    differ = (*t.before,) if kind != "no closed form" else (*t.before, t.x)
    found = [_through_time(number, family, what, rate, _some(t, differ))]
    if min(t.cell.n_in, n) > 75 or number % 8 == 0:
        below = "glorot" if t.non_square else FAMILIES[(number // 3) % len(FAMILIES)]
        found.append(_through_depth(number, draw, below, what, rate, t, kind))
    return found


def _points(draw: random.Random, kind: str, family: str, n: int) -> tuple[Transitions, str, float]:
    """Points of the second layer of a network, what it is, and its firing rate."""
    source = draw.choice(INPUTS)
    x = _inputs(source, draw)
    n_below = n if draw.random() < 0.8 else draw.choice([60, 80, 120])
    alike = draw.random() < 0.2
    settings, words = _settings(draw, kind, alike)
    cell = CELLS.get(kind, draw.choice([LIF, ALIFPlus]))
    if family in ("glorot", "orthogonal"):
        settings["recurrent_init"] = family
    net = Network([cell(x.shape[2], n_below, **settings), cell(n_below, n, **settings)], 2)
    top, scale, gain = net.cells[1], 5 ** draw.uniform(-1, 1), draw.choice([1, 3, 10, 30])
    with torch.no_grad():
        if family not in ("glorot", "orthogonal"):
            top.w_rec.copy_(weights(family, n))
        if family == "block and leaks":  # the others have no recurrence, and leak slowly
            tau = torch.full((n,), draw.choice([5.0, 20.0, 50.0]))
            tau[: block(n)] = 0.2
            top.tau_v = tau
        top.w_rec.mul_(scale)
        for part in net.cells:
            part.w_in.mul_(gain)
        steps = torch.linspace(2, len(x) - 1, 6).long()
        (_, t), outputs = follow(net, x, steps)
        if alike or draw.random() < 1 / 3:
            factor = _balance(t) * draw.uniform(0.95, 1.15)
            top.w_rec.mul_(factor)
            scale *= factor
    what = f"{cell.__name__}({n_below}, {n}), w_rec {family} x {scale:.3g}, w_in x {gain}, {words}, {source}"
    return t, what, outputs[1].mean().item()


def _settings(draw: random.Random, kind: str, alike: bool) -> tuple[dict[str, Any], str]:
    reset, gradient = draw.choice(RESETS)
    name, dampening, sharpness = (
        draw.choice(SPIKES),
        draw.choice([0.3, 0.5, 1.0]),
        draw.choice([0.5, 1.0, 1.0, 3.0, 10.0]),
    )
    if alike:  # one derivative at all neurons, so that a ring of weights is a ring of eigenvalues
        name, sharpness = "Rectangular", 0.1
    spike = getattr(surrogate, name)(dampening, sharpness)
    settings = {"reset": reset, "reset_gradient": gradient, "tau_v": draw.choice([0.1, 0.1, 2.0, 10.0, 50.0])}
    if kind == "LIF":
        settings["threshold"] = draw.choice([0.2, 1.0])
    if kind.startswith("ALIF"):
        settings |= {
            "tau_theta": draw.choice([1.5, 5.0, 20.0, 100.0]),
            "adaptation": draw.choice([0.01, 0.1, 0.5, 1.8]),
            "b_theta": draw.choice([0.005, 0.02]),
        }
    words = f"{name}({dampening}, {sharpness}), " + ", ".join(f"{k} {v}" for k, v in settings.items())
    settings["spike"] = spike if kind != "no closed form" else _Unknown(spike)
    return settings, words


class _Unknown(torch.nn.Module):
    """A surrogate of which only the values are known, as those of other libraries."""

    def __init__(self, spike: surrogate.Surrogate) -> None:
        super().__init__()
        self.spike = spike

    def forward(self, v: Tensor) -> Tensor:
        return self.spike(v)


def _balance(t: Transitions) -> float:
    """The factor of the recurrent weights at which they alone give the radius that all else
    gives."""
    one, w = t.at(slice(0, 1)), t.cell.w_rec.clone()

    def radius(factor: float) -> float:
        t.cell.w_rec.copy_(factor * w)
        return torch.linalg.eigvals(time_derivative(one)).abs().max().item() / max(factor, 1)

    alone, recurrent = radius(0), radius(1e4)
    t.cell.w_rec.copy_(w)
    return alone / recurrent if 0.05 * recurrent < alone < 20 * recurrent else 1.0


@cache
def _data(source: str) -> Tensor:
    data = SpikeLatencyMNIST.embedded("train") if source == "digits" else SHD.embedded("train")
    x = next(iter(input_batches(data, 32))).float()
    return x[8:32] if source == "digits" else x[30:54]


def _inputs(source: str, draw: random.Random) -> Tensor:
    """Inputs (T, 4, n_in)."""
    if source in ("digits", "speech"):
        return _data(source)[:, draw.sample(range(32), 4)]
    x = torch.zeros(24, 4, 60)
    return x if source == "silence" else (torch.rand(x.shape) < draw.choice([0.05, 0.3])).float()


def _some(t: Transitions, differ: tuple[Tensor, ...]) -> Transitions:
    """A few points that differ in these tensors (P, ...)."""
    rows = torch.cat([part.detach().reshape(len(t.x), -1) for part in differ], 1)
    first: dict[bytes, int] = {}
    for i, row in enumerate(rows):
        first.setdefault(row.numpy().tobytes(), i)
    chosen = torch.tensor(list(first.values()))
    return t.at(chosen[torch.randperm(len(chosen))[: EACH if t.cell.n_hidden <= 100 else EACH // 4]])


def _through_time(number: int, family: str, what: str, rate: float, t: Transitions) -> Points:
    def matrices(dtype: torch.dtype) -> Tensor:
        return time_derivative(_as(t, dtype)).detach()

    return Points(number, family, "time", what, rate, lambda: time_radius(t, 1), matrices)


def _through_depth(
    number: int, draw: random.Random, family: str, what: str, rate: float, t: Transitions, kind: str
) -> Points:
    assert t.state_below is not None
    cell, unequal = t.cell.copy(), t.non_square
    if not unequal and family != "glorot":
        with torch.no_grad():
            cell.w_in.copy_(weights(family, t.cell.n_in) * t.cell.w_in.abs().max())
    t = _some(t._replace(cell=cell), (*t.state_below, *((t.x, *t.before) if kind == "no closed form" else ())))
    rule = draw.choice(["submatrix", "singular"]) if unequal else "submatrix"

    def ours() -> Radii:
        return depth_radius(t, 1, rule, torch.Generator().manual_seed(number))

    def matrices(dtype: torch.dtype) -> Tensor:
        by_input, below = (part.detach() for part in depth_factors(_as(t, dtype)))
        if not unequal:
            return below @ by_input
        m = by_input @ below
        if rule == "singular":
            return m @ m.mT if m.shape[1] < m.shape[2] else m.mT @ m
        return random_submatrix(m.expand(len(t.x), -1, -1), torch.Generator().manual_seed(number))

    words = f"w_in {family}, {what}" + (f", {rule}" if unequal else "")
    return Points(number, family, "depth", words, rate, ours, matrices, unequal and rule == "singular")


def _as(t: Transitions, dtype: torch.dtype) -> Transitions:
    def state(h: Any) -> Any:
        return None if h is None else type(h)(*(leaf.to(dtype) for leaf in h))

    below = None if t.below is None else t.below.copy().to(dtype)
    return Transitions(t.cell.copy().to(dtype), t.x.to(dtype), state(t.before), below, state(t.state_below))


def _bare(number: int, draw: random.Random, family: str, n: int) -> Points:
    """Recurrence and leaks, as matrices."""
    n = draw.choice([n, 200, 300]) if number % 4 == 1 else n
    w, leak = weights(family, n), draw.choice([0.0, 0.5, 0.9, 0.99]) * torch.ones(n)
    if family == "block and leaks":
        leak[: block(n)] = 0
    one = torch.linalg.eigvals(w).abs().max()
    scales = torch.empty(EACH, 1, 1).uniform_(0.9, 1.2) * (leak.max() if leak.max() > 0 else draw.uniform(0.2, 5)) / one
    spread = 1 + draw.choice([0, 0, 0.001, 0.1]) * torch.randn(EACH, 1, n)
    m = scales * w * spread + torch.diag(leak)
    what = f"{family} ({n} x {n}), leak {leak.max():.2g}"
    return Points(number, family, "matrix", what, 0.0, lambda: radii(OperatorProduct([Matrices(m)], len(m)), m), m.to)
