"""A linear teacher and its students: fully connected, in blocks, complex and diagonal, LRU (arXiv:2405.21064, Sec. 4).

A linear network of one input and one output is its impulse response k[n], and of uncorrelated inputs the mean loss of a
run of T steps is a sum over it, so students are trained on what the paper's batches are samples of:

    L = 1/2 sum_n (1 - n/T) (k[n] - k*[n])^2

Many students are trained at once; every parameter has them as its first axis.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

Parameters = dict[str, Tensor]  # of R networks (R, ...)
STEPS = 300  # of a run, three times the longest memory
BETAS, EPS = (0.9, 0.999), 1e-8  # Adam's


def connected(n: int, seeds: list[int], *, heads: int = 1, memory: float, angle: float = math.pi) -> Parameters:
    """Networks of n real neurons in blocks, each of which is fully connected; eigenvalues have moduli in [memory, 1].

    Source: eq. 12 to 15.
    """
    width, made = n // heads, []
    for seed in seeds:
        draw = torch.Generator().manual_seed(seed)
        a = torch.randn(heads, width, width, generator=draw, dtype=torch.float64) / width**0.5
        values, vectors = torch.linalg.eig(a)
        moved = torch.polar(memory + (1 - memory) * values.abs().tanh(), values.angle() * angle / math.pi)
        a = (vectors @ torch.diag_embed(moved) @ torch.linalg.inv(vectors)).real
        b, c, d = (torch.randn(size, generator=draw, dtype=torch.float64) for size in (n, n, 1))
        made.append({"a": a, "b": b, "c": c / n**0.5, "d": d})
    return {name: torch.stack([one[name] for one in made]).float() for name in made[0]}


def diagonal(
    n: int, seeds: list[int], *, memory: float, angle: float = math.pi, form: str = "complex", delta: float = 1.0
) -> Parameters:
    """Networks of n complex neurons, in the forms of a :class:`neurolsc.neurons.DiagonalRNN`.

    S4's Δ begins at delta, and its inputs divided by that: it is the same network for all.

    Source: eq. 16 to 25.
    """
    made = []
    for seed in seeds:
        draw = torch.Generator().manual_seed(seed)
        u, turn = torch.rand(2, n, generator=draw)
        modulus = (memory**2 + u * (1 - memory**2)).sqrt().clamp(max=1 - 1e-6)
        into, out = (torch.randn(n, 2, generator=draw) / 2**0.5 for _ in range(2))
        one = {"b": into, "c": out / n**0.5, "d": torch.randn(1, generator=draw)}
        value = torch.polar(modulus, (2 * turn - 1) * angle)
        if form == "lru":
            one |= {"nu": (-modulus.log()).log(), "theta": (turn * angle).clamp(min=1e-3).log()}
            one |= {"gamma": (1 - modulus**2).log() / 2}
        elif form == "s4":
            log = value.log() / delta
            one |= {"a_re": log.real, "a_im": log.imag, "delta": torch.full((n,), math.log(math.expm1(delta)))}
            one["b"] = into / delta
        else:
            one |= {"re": value.real, "im": value.imag}
        made.append(one)
    return {name: torch.stack([one[name] for one in made]) for name in made[0]}


def response(p: Parameters, steps: int = STEPS) -> Tensor:
    """The impulse responses (R, T) of networks."""
    if "a" in p:
        power, columns = p["a"], p["b"].view(*p["a"].shape[:3], 1)
        while columns.shape[-1] < steps:  # B, AB, A²B, ...: twice as many with each square
            columns = torch.cat([columns, power @ columns], -1)
            power = power @ power
        k = (p["c"].view(*columns.shape[:3], 1) * columns).sum((1, 2))[:, :steps]
    else:
        weight = torch.complex(*p["b"].unbind(-1)) * torch.complex(*p["c"].unbind(-1))
        if "nu" in p:
            log = torch.complex(-p["nu"].exp(), p["theta"].exp())
            weight = weight * p["gamma"].exp()
        elif "delta" in p:
            delta = softplus(p["delta"])
            log = torch.complex(p["a_re"], p["a_im"]) * delta
            weight = weight * delta
        else:
            log = torch.complex(p["re"], p["im"]).log()
        n = torch.arange(steps, dtype=log.real.dtype, device=log.device)
        k = (weight.unsqueeze(-1) * torch.exp(log.unsqueeze(-1) * n)).real.sum(1)
    return torch.cat([k[:, :1] + p["d"], k[:, 1:]], 1)


def relative_loss(k: Tensor, wanted: Tensor) -> Tensor:
    """The loss of responses (R, T) by the power of the teacher's outputs (R,)."""
    steps = wanted.shape[-1]
    left = 1 - torch.arange(steps, dtype=k.dtype, device=k.device) / steps
    return (left * (k - wanted) ** 2).sum(-1) / (left * wanted**2).sum(-1)


@dataclass(frozen=True)
class Trained:
    """R students after training."""

    losses: Tensor  # relative, infinite where training diverged (R,)
    parameters: Parameters
    effective: Parameters  # Adam's learning rates at the end, those of a gradient of ones (R, ...)


def train(start: Parameters, wanted: Tensor, rates: Tensor, iterations: int, *, cosine: bool = True) -> Trained:
    """Train R students by Adam, each towards its response (R, T) at its own rate (R,)."""
    p = {name: value.clone().requires_grad_() for name, value in start.items()}
    means, squares = ({name: torch.zeros_like(value) for name, value in p.items()} for _ in range(2))
    effective = {}
    for i in range(1, iterations + 1):
        loss = relative_loss(response(p, wanted.shape[-1]), wanted).sum() / 2
        gradients = torch.autograd.grad(loss, list(p.values()))
        rate = rates * (1 + math.cos(math.pi * i / iterations)) / 2 if cosine else rates
        with torch.no_grad():
            for (name, value), gradient in zip(p.items(), gradients, strict=True):
                means[name].lerp_(gradient, 1 - BETAS[0])
                squares[name].lerp_(gradient**2, 1 - BETAS[1])
                root = (squares[name] / (1 - BETAS[1] ** i)).sqrt() + EPS
                at = rate.view(-1, *[1] * (value.ndim - 1))
                effective[name] = rates.view_as(at) / root
                value -= at * means[name] / (1 - BETAS[0] ** i) / root
    with torch.no_grad():
        losses = relative_loss(response(p, wanted.shape[-1]), wanted)
    parameters = {name: value.detach() for name, value in p.items()}
    return Trained(losses.nan_to_num(torch.inf, torch.inf), parameters, effective)


Start = Callable[[list[int]], Parameters]  # networks of seeds


@dataclass(frozen=True)
class Best:
    """An arm at the learning rate that is best over all seeds."""

    rate: float
    losses: list[float]  # of the seeds
    step: float | None  # median of Adam's effective by its nominal rates of A's entries; None of a diagonal network

    @property
    def mean(self) -> float:
        """The geometric mean over seeds: losses lie decades apart."""
        return math.exp(sum(math.log(max(loss, 1e-12)) for loss in self.losses) / len(self.losses))


def best_of(starts: list[Start], teachers: Tensor, rates: list[float], iterations: int, **how: bool) -> Best:
    """Train students of S teachers (S, T) at every rate from every kind of start; the best kind and rate."""
    seeds, arms = list(range(len(teachers))), []
    for start in starts:
        drawn = start([100 + seed for seed in seeds])
        many = {name: value.repeat(len(rates), *[1] * (value.ndim - 1)) for name, value in drawn.items()}
        each = torch.tensor(rates).repeat_interleave(len(seeds))
        found = train(many, teachers.repeat(len(rates), 1), each, iterations, **how)
        for i, rate in enumerate(rates):
            part = slice(i * len(seeds), (i + 1) * len(seeds))
            step = found.effective["a"][part].median().item() / rate if "a" in found.effective else None
            arms.append(Best(rate, found.losses[part].tolist(), step))
    return min(arms, key=lambda arm: arm.mean)
