r"""Determinants of transition derivatives through time: the lower bound of the Local Stability Condition.

The determinant of a product of square matrices is the product of their determinants. For a matrix M (n, n)

.. math:: b = \frac{1}{n} \log |\det M|

is the mean of :math:`\log |\lambda|` over its n eigenvalues, while the radius is the largest :math:`|\lambda|`. On
positive semi-definite matrices the determinant is super-additive and multiplicative. If b has the mean 0 over such
matrices, gradients have a lower bound that decays sub-exponentially with the number of factors. If the mean radius is 1
as well, all eigenvalues lie near the unit circle.

Source: arXiv:2308.12075, App. D: Theorem 5, and Theorem 6, by which no such function of all matrices exists.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from neurolsc.display import Displayed, Table
from neurolsc.interop.prepared import AS_READ, prepare
from neurolsc.neurons.cell import Cell, step_of
from neurolsc.neurons.lru import Rotation
from neurolsc.neurons.rate import FeedForward
from neurolsc.stability.transitions import OperatorProduct, Transitions, draw_steps, flat, follow, time_operator
from neurolsc.surroundings import eval_mode, in_full_precision
from neurolsc.validation import whole

ENTRIES = 2**24  # of the matrices of points that are held at once: 128 MiB in float64


def refuse_without_memory(cells: Sequence[Cell]) -> None:
    """Raise a TypeError that names the first layer without memory, whose derivative through time is 0."""
    for number, cell in enumerate(cells, start=1):
        if step_of(type(cell)) is FeedForward:
            named = f"layer {number} ({type(cell).__name__}) has no memory"
            raise TypeError(f"{named}: its derivative through time is 0, and has no determinant.")


def time_matrices(t: Transitions) -> Tensor:
    """The derivatives of a layer's states by its states a step before, at all P points (P, n, n), in float64.

    For an LRU or DiagonalRNN they are those of its memory alone: the input in its state is read anew in every step.
    """
    step = time_operator(t)
    if isinstance(step, Rotation):
        step = step.of_memory()
    return OperatorProduct([step], len(t.x)).matrices(flat(t.before)).double()


def log_determinants(matrices: Tensor) -> Tensor:
    """Return log|det M| / n of matrices (P, n, n): (P,); it is minus infinity for a singular one."""
    return torch.linalg.slogdet(matrices).logabsdet / matrices.shape[-1]


def mean_log_determinant(matrices: Tensor) -> float | None:
    """Return the mean of log|det M| / n over those of P matrices (P, n, n) that are not singular; None if all are."""
    b = log_determinants(matrices.detach())
    if not b.isfinite().any():
        return None
    return b[b.isfinite()].mean().item()


def lower_bound_loss(matrices: Tensor, target: float) -> Tensor:
    r"""Return the loss of LSC with ``bounds="both"``: it is 0 if the lower bound of the gradients holds (Theorem 5).

    .. math:: \big(E\, b - \log \rho\big)^2 + E \max(-\lambda_{\min}, 0)^2

    with means E over P points, b of :func:`log_determinants`, whose mean leaves out singular matrices, the target
    :math:`\rho`, and the smallest eigenvalue :math:`\lambda_{\min}` of :math:`(M + M^T) / 2`, which is below 0 if that
    is not positive semi-definite. The loss is 0 if all matrices are singular.

    Args:
        matrices: derivatives through time M (P, n, n).
        target: target of :math:`e^b`, the geometric mean of :math:`|\lambda|`.
    """
    regular = log_determinants(matrices.detach()).isfinite()
    if not regular.any():
        return matrices.new_zeros(())
    # Only of regular ones: the gradient of a singular one's logarithm is not finite, and 0 times it is NaN.
    distance = log_determinants(matrices[regular]).mean() - math.log(target)
    smallest = torch.linalg.eigvalsh((matrices + matrices.mT) / 2)[:, 0]
    return distance.square() + smallest.clamp(max=0).square().mean()


@dataclass(frozen=True, repr=False)
class DeterminantProfile(Displayed):
    """Determinants of the derivatives through time; made by :func:`log_determinant_profile`.

    Attributes:
        log_determinant: log|det M| / n of each layer, step and sample (L, K, B).
        radius: spectral radii of the same derivatives (L, K, B).
        states: size n of each layer's state; for an LRU or DiagonalRNN that of its memory.
        layout: where time and batch were found in the x that was given.
    """

    log_determinant: Tensor
    radius: Tensor
    states: tuple[int, ...]
    layout: str = AS_READ

    @property
    def mean(self) -> Tensor:
        """Mean of log|det M| / n over the points of each layer that are not singular (L,); NaN if all are."""
        finite = self.log_determinant.isfinite()
        return torch.where(finite, self.log_determinant, torch.nan).flatten(1).nanmean(1)

    @property
    def singular(self) -> Tensor:
        """Share of points of each layer whose derivative is singular (L,)."""
        return (~self.log_determinant.isfinite()).double().mean((1, 2))

    def to_dict(self) -> dict[str, Any]:
        return {
            "mean": [None if math.isnan(value) else value for value in self.mean.tolist()],  # JSON has no NaN
            "radius": self.radius.mean((1, 2)).tolist(),
            "singular": self.singular.tolist(),
            "states": list(self.states),
            "layout": self.layout,
        }

    def parts(self) -> list[str | Table]:
        """A line for each layer."""
        rows = []
        for i, mean in enumerate(self.mean.tolist()):
            logarithm = typical = "-"
            if not math.isnan(mean):
                logarithm = f"{mean:+.3f}"
                typical = f"{math.exp(mean):.3f}"
            radius = f"{self.radius[i].mean():.3f}"
            rows.append((str(i + 1), str(self.states[i]), logarithm, typical, radius, f"{self.singular[i]:.0%}"))
        head = ("layer", "states", "log|det| / n", "typical |eigenvalue|", "radius", "singular")
        lines: list[str | Table] = [] if self.layout == AS_READ else [f"x: {self.layout}"]
        return [*lines, Table(head, rows)]


@in_full_precision
def log_determinant_profile(
    net: nn.Module, x: Any, *, steps: int | None = 16, samples: int = 8, seed: int = 0
) -> DeterminantProfile:
    """Measure log|det| of the derivatives through time of every layer, next to their radii.

    Derivatives through depth are left out: most are rectangular, and of layers that send spikes singular.

    Args:
        net: a network, or a module of snnTorch, norse, spikingjelly or PyTorch; it stays as it is.
        x: inputs, as for :func:`neurolsc.radius_profile`.
        steps: number of time steps to draw at random, if x has more; None: all.
        samples: number of samples to measure, the first ones.
        seed: seed of the draw of steps.

    Raises:
        TypeError: if net is none of these, x or a number is of another kind, or a layer has no memory.
        ValueError: if x does not fit the network, or a number is out of range.

    Cost: dense eigenvalues of every point, O(n^3).

    Source: arXiv:2308.12075, App. D.
    """
    whole("samples", samples)
    if steps is not None:
        whole("steps", steps)
    prepared = prepare(net, x)
    network = prepared.network
    refuse_without_memory(network.cells)
    some = prepared.without_padding()[:, :samples]
    if steps is not None:
        steps = min(steps, len(some))
    chosen = draw_steps(len(some), steps, torch.Generator().manual_seed(seed))
    shape = (len(chosen), some.shape[1])
    logs = []
    radii = []
    states = []
    with eval_mode(network), torch.no_grad():
        transitions, _ = follow(network, some, chosen)
        for t in transitions:
            points_at_once = max(ENTRIES // t.states**2, 1)
            found = [time_matrices(part) for part in t.chunks(points_at_once)]
            logs.append(torch.cat([log_determinants(m) for m in found]).view(shape))
            radii.append(torch.cat([torch.linalg.eigvals(m).abs().amax(1) for m in found]).view(shape))
            states.append(found[0].shape[-1])
    return DeterminantProfile(torch.stack(logs).cpu(), torch.stack(radii).cpu(), tuple(states), prepared.layout)
