"""Who else could find radii: ARPACK, batched power iteration, and jacrev with eigvals.

Each is as fast as it can be made, with one setting for all that it is asked.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs
from torch import Tensor
from torch.func import jacrev, vmap

from neurolsc.stability.profile import depth_radius, time_radius
from neurolsc.stability.transitions import OperatorProduct, Transitions, depth_product, flat, time_product, unflat

MOST = 1000
"""products after which power iteration gives up; dense eigenvalues take over, as for ARPACK"""


class Found(NamedTuple):
    """Radii of some points."""

    radius: Tensor
    products: float
    """with vectors, for each point"""
    dense: float
    """share of the points that went by dense eigenvalues"""


Contestant = Callable[[Transitions, str], Found]


def cycle_of(t: Transitions, direction: str) -> OperatorProduct:
    return time_product(t) if direction == "time" else depth_product(t, "submatrix", torch.Generator())


def ours(t: Transitions, direction: str) -> Found:
    with counted() as products:
        found = time_radius(t, 1) if direction == "time" else depth_radius(t, 1, "submatrix", torch.Generator())
    return Found(found.radius, products[0] / len(t.x), found.exact.double().mean().item())


@contextmanager
def counted() -> Iterator[list[int]]:
    """Counts the vectors that cycles are multiplied with."""
    total, before = [0], (OperatorProduct.matvec, OperatorProduct.rmatvec)

    def counting(method: Callable[[OperatorProduct, Tensor], Tensor]) -> Callable[[OperatorProduct, Tensor], Tensor]:
        def apply(cycle: OperatorProduct, x: Tensor) -> Tensor:
            total[0] += len(x)
            return method(cycle, x)

        return apply

    OperatorProduct.matvec, OperatorProduct.rmatvec = (counting(method) for method in before)  # type: ignore[method-assign]
    try:
        yield total
    finally:
        OperatorProduct.matvec, OperatorProduct.rmatvec = before  # type: ignore[method-assign]


# ---- ARPACK


def arpack(tolerance: float, basis: int) -> Contestant:
    """`scipy.sparse.linalg.eigs`, one point at a time, the closed form as numpy products in
    float32.

    Args:
        tolerance: its `tol`.
        basis: its `ncv`; 20 is its own choice.
    """

    def run(t: Transitions, direction: str) -> Found:
        n, product_at = _products(t, direction)
        start = np.random.default_rng(0).standard_normal(n).astype(np.float32)
        radius, made, dense = torch.empty(len(t.x)), 0, 0

        for point in range(len(t.x)):
            apply = product_at(point)

            def counting(x: np.ndarray, apply: Callable[[np.ndarray], np.ndarray] = apply) -> np.ndarray:
                nonlocal made
                made += 1
                return apply(x.reshape(-1))

            operator = LinearOperator((n, n), matvec=counting, dtype=np.float32)
            try:
                value = eigs(operator, k=1, which="LM", tol=tolerance, ncv=basis, v0=start, return_eigenvectors=False)
            except ArpackNoConvergence:
                value, dense = (
                    np.linalg.eigvals(np.stack([apply(e) for e in np.eye(n, dtype=np.float32)], 1)),
                    dense + 1,
                )
            radius[point] = float(np.abs(value).max())
        return Found(radius, made / len(t.x), dense / len(t.x))

    return run


def _products(t: Transitions, direction: str) -> tuple[int, Callable[[int], Callable[[np.ndarray], np.ndarray]]]:
    """The number of variables, and for a point the function that multiplies its derivative with a
    vector."""
    if direction == "depth":
        assert t.below is not None and t.state_below is not None
        w, slopes = t.cell.w_in.detach().numpy(), t.below.linearised(t.state_below).slopes[:, 0].detach().numpy()
        return w.shape[1], lambda i: lambda x: slopes[i] * (w @ x)
    step = t.cell.linearised(t.before)
    w, s, k = (part.detach().numpy() for part in (step.w_rec, step.slopes[:, 0], step.k))
    n = s.shape[1]

    def at(i: int) -> Callable[[np.ndarray], np.ndarray]:
        si, ki = s[i], k[i]

        def apply(x: np.ndarray) -> np.ndarray:
            v, theta = x[:n], x[n:]
            to_v = ki[0, 0] * v + ki[0, 1] * theta + w @ (si * (v - theta))
            return np.concatenate((to_v, ki[1, 0] * v + ki[1, 1] * theta))

        return apply

    return 2 * n, at


# ---- power iteration


def power(tolerance: float, window: int) -> Contestant:
    """Norms of powers, all points at once, until the growth over a window has settled.

    The growth of the norm over a window averages over the turns of a complex pair or a ring.

    Args:
        tolerance: relative change of the estimate from one window to the next at which a point is
            done.
        window: products in a window.
    """

    def run(t: Transitions, direction: str) -> Found:
        cycle = cycle_of(t, direction)
        radius = torch.empty(cycle.points, device=t.x.device)
        x = torch.randn(cycle.size, generator=torch.Generator().manual_seed(0)).to(t.x).expand(cycle.points, -1)
        left, last, part = torch.arange(cycle.points, device=x.device), torch.full_like(radius, torch.inf), cycle
        made = 0
        x = x / x.norm(dim=1, keepdim=True)
        for _ in range(MOST // window):
            growth = torch.zeros_like(last)
            for i in range(1, window + 1):
                x = part.rmatvec(x)
                if i % 8 == 0 or i == window:  # so that nothing leaves the range of float32
                    norm = torch.linalg.vector_norm(x, dim=1)
                    growth, x = growth + norm.log(), x / norm.clamp(min=torch.finfo(x.dtype).tiny).unsqueeze(1)
            made += window * len(left)
            estimate = (growth / window).exp()
            done = (estimate - last).abs() <= tolerance * estimate
            radius[left], last = estimate, estimate
            if done.any():
                stay = (~done).nonzero().squeeze(1)
                left, x, last = left[stay], x[stay], last[stay]
                if not len(left):
                    break
                part = cycle.take(left)
        for i in left.tolist():
            radius[i] = torch.linalg.eigvals(cycle.matrix(i, t.x).cpu()).abs().max()
        return Found(radius, made / cycle.points, len(left) / cycle.points)

    return run


# ---- automatic differentiation


def autograd(t: Transitions, direction: str) -> Found:
    """`torch.func.jacrev` under `vmap` of one step, then `torch.linalg.eigvals`."""

    def through_time(h: Tensor, x: Tensor) -> Tensor:
        return flat(t.cell.step(x[None], unflat(h[None], t.before))[1])[0]

    def through_depth(below: Tensor, h: Tensor) -> Tensor:
        state = unflat(h[None], t.before)
        x = t.below.output(unflat(below[None], t.state_below))
        return flat(t.cell.update(x, t.cell.output(state), state))[0]

    if direction == "time":
        m = vmap(jacrev(through_time))(flat(t.before), t.x)
    else:
        m = vmap(jacrev(through_depth))(flat(t.state_below), flat(t.before))
    return Found(torch.linalg.eigvals(m).abs().amax(-1), m.shape[-1], 1.0)


# ---- settings


def candidates(peer: str) -> Iterator[tuple[str, list[tuple[str, Contestant]]]]:
    """Ways to set a peer, each with tolerances, the loosest first."""
    if peer == "ARPACK":
        for basis in (12, 20, 30, 40):
            tolerances = (0.1, 0.03, 0.01, 0.003, 1e-3, 1e-4)
            yield f"ncv {basis}", [(f"tol {x:g}", arpack(x, basis)) for x in tolerances]
    else:
        for window in (8, 16, 32, 64):
            tolerances = (0.01, 0.003, 1e-3, 3e-4, 1e-4, 1e-5)
            yield f"window {window}", [(f"tolerance {x:g}", power(x, window)) for x in tolerances]


class Case(NamedTuple):
    """Points of a layer on which settings are tried."""

    t: Transitions
    direction: str
    exact: Tensor
    """their radii"""


class Setting(NamedTuple):
    """How a peer is set, the same everywhere."""

    words: str
    run: Contestant
    error: float
    """the largest 99th percentile of errors of a case"""


def chosen(peer: str, goal: float, cases: list[Case], cost: Callable[[Callable[[], Found]], tuple]) -> Setting:
    """The setting whose errors are within the goal in every case, and whose times are least.

    Times are compared by their product over the cases. Where no setting is within the goal it is
    the one whose errors are least.
    """
    best, least = None, (torch.inf, torch.inf)
    for way, settings in candidates(peer):
        for tolerance, run in settings:
            worst, total = 0.0, 0.0
            for case in cases:
                seconds, found = cost(partial(run, case.t, case.direction))
                error = (found.radius.double().cpu() / case.exact - 1).abs().quantile(0.99).item()
                worst, total = max(worst, error), total + math.log(seconds)
                if worst > max(goal, least[0]):
                    break  # others do better
            if (max(worst, goal), total) < least:
                best, least = Setting(f"{tolerance}, {way}", run, worst), (max(worst, goal), total)
            if worst <= goal:
                break  # tighter ones take longer
    assert best is not None
    return best
