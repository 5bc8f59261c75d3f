r"""What a cell shows by itself: faults of its surrogate, its time constants, its stability below threshold.

**Below threshold** the step of a neuron without spikes and weights is a linear map of its variables. The cell gives its
constant matrix M (:meth:`neurolsc.Cell.subthreshold`). For two variables the radius follows from trace and determinant,

.. math:: \rho = \sqrt{\det M} \;\text{ if }\; (\mathrm{tr}\,M)^2 < 4 \det M, \quad\text{else}\quad
    \rho = \tfrac12 \Big( |\mathrm{tr}\,M| + \sqrt{(\mathrm{tr}\,M)^2 - 4 \det M} \Big)

A neuron with :math:`\rho > 1` grows without bound until it spikes. What reset, surrogate and recurrence add is in the
radii of :func:`neurolsc.radius_profile`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from neurolsc.network import Network, as_network
from neurolsc.neurons.cell import Bound, Cell, Membrane
from neurolsc.neurons.weights import owner_of, stored_parameter
from neurolsc.stability.isolated import block_radii
from neurolsc.surroundings import in_full_precision

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# kinds of findings
DEAD = "dead layer"
NOT_FINITE = "surrogate not finite"
NO_SURROGATE = "no surrogate"
# A surrogate's derivative has to be finite up to this many thresholds from the threshold; one below 1 counts as 1.
REACH = 20.0
# If a decay changes by less than STUCK per unit of log tau, float32 does not see an optimizer move it: a hundred steps
# of 1e-3 move a decay near 1 by less than the eps of float32, 1.2e-7.
STUCK = 1e-6
MARGINAL = 1e-6  # radii above 1 by at most this are on the boundary: rounding of float32


@dataclass(frozen=True)
class Finding:
    """A fault: where it is, what causes it, and one thing to try."""

    layer: int | None  # counted from 1; None: a fault of the whole network
    problem: str
    cure: str  # what to try
    cause: str = ""  # "": unknown, or said in the problem
    name: str = ""  # the kind of fault, for programs

    def __str__(self) -> str:
        where = "network"
        if self.layer is not None:
            where = f"layer {self.layer}"
        why = f" ({self.cause})" if self.cause else ""
        return f"{where}: {self.problem}{why}; {self.cure}."

    def __repr__(self) -> str:
        return f"Finding({self})"


def surrogate_fault(cell: Cell, layer: int) -> Finding | None:
    """Return a finding if spikes have no derivative, or one that is not finite at or near the threshold; else None.

    A single voltage with such a derivative makes the gradient of every weight NaN. In float32 that happens with
    snnTorch's ``sigmoid(slope=25)`` at voltages of 3.5 or more below the threshold. `layer` is the cell's index from 0.
    """
    membrane = cell.membrane()
    if membrane is None:
        return None
    # fork_rng restores the random state, which a stochastic spike function changes.
    v = getattr(cell.initial_state(1), membrane.name).detach().requires_grad_()
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        derivative = membrane.spike(v).requires_grad
    if not derivative:
        return Finding(
            layer + 1,
            "its spikes have no derivative",
            "use fast_sigmoid or atan",
            cause="its spike function is no surrogate",
            name=NO_SURROGATE,
        )
    at_zero = torch.zeros(1, **cell.dtype_and_device)  # v - theta
    low, high = finite_distances(cell)
    distance, side = min((-low, "below"), (high, "above"))  # the end nearer to the threshold
    if not surrogate_slope(membrane, at_zero).isfinite().all():
        where = "at the threshold"
    elif distance < math.inf:
        where = f"{distance:.3g} or more {side} the threshold"
    else:
        return None
    problem = f"the derivative of its surrogate is not finite {where}"
    cause = "a voltage there makes all gradients NaN, at any learning rate"
    return Finding(layer + 1, problem, "use fast_sigmoid or atan", cause=cause, name=NOT_FINITE)


def finite_distances(cell: Cell) -> tuple[float, float]:
    """Return the range of v - theta, (lowest, highest), in which the derivative of a cell's surrogate is finite.

    The threshold itself is left out: :func:`surrogate_fault` looks at it. The ends are exact to 0.002 thresholds. An
    end is infinite if the derivative is finite up to 20 times the largest threshold (or 20, if that is below 1), or the
    cell has no :meth:`neurolsc.Cell.membrane`.
    """
    membrane = cell.membrane()
    if membrane is None:
        return -math.inf, math.inf
    threshold = membrane.thresholds(cell.initial_state(1)).detach().abs().max().clamp(min=1.0)
    above = threshold * torch.linspace(0, REACH, 10_001, **cell.dtype_and_device)[1:]
    distance = torch.cat([-above, above])
    finite = surrogate_slope(membrane, distance).isfinite().all(1)
    bad = distance[~finite & distance.isfinite()]  # an infinite threshold has no finite distance
    low = max(bad[bad < 0].tolist(), default=-math.inf)
    high = min(bad[bad > 0].tolist(), default=math.inf)
    return low, high


def surrogate_slope(membrane: Membrane, distance: Tensor) -> Tensor:
    """Return a surrogate's derivative at distances v - theta (P,): (P, n_hidden), or (P, 1) if neurons share it."""
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        v = distance.unsqueeze(1)
        # If neurons have surrogates of their own, spikes have a column for each neuron, and so must v.
        v = v.expand_as(membrane.spike(v)).clone().requires_grad_()
        z = membrane.spike(v)
        if not z.requires_grad:  # spikes without a derivative
            return torch.zeros_like(v)
        (slope,) = torch.autograd.grad(z.sum(), v, materialize_grads=True, allow_unused=True)
    return slope


@dataclass(frozen=True)
class TimeConstant:
    """A time constant or decay of a cell."""

    name: str  # its name on the cell
    decay: float  # factor from step to step, mean over neurons
    fixed: bool  # True if it is a constant, not a parameter
    trained: bool  # True if it is a parameter with requires_grad
    stuck: float  # share of the neurons whose decay an optimizer cannot move


def time_constants(cell: Cell) -> tuple[TimeConstant, ...]:
    r"""Return the time constants among a cell's :attr:`neurolsc.Cell.scaled_parameters`, and whether they can move.

    A time constant tau in steps is trained by its logarithm, which moves the decay :math:`d = e^{-1/\tau}` by

    .. math:: \frac{\partial d}{\partial \log \tau} = \frac{e^{-1/\tau}}{\tau}.

    That is almost nothing if tau is very long (d near 1) or very short (d near 0). A decay that is a parameter itself
    moves freely.
    """
    found = []
    for scaled in cell.scaled_parameters:
        if scaled.through == "value":  # weights, not a time constant
            continue
        owner, name = owner_of(cell, scaled.parameter)
        value = torch.as_tensor(getattr(owner, name)).detach().double()
        decay = value
        moves = torch.ones_like(value)  # derivative of the decay by what is trained
        if scaled.through == "decay":  # a time constant; else the parameter is the decay
            decay = torch.exp(-1 / value)
            moves = decay / value
        parameter = stored_parameter(cell, scaled.parameter)
        found.append(
            TimeConstant(
                scaled.parameter,
                decay.mean().item(),
                fixed=parameter is None,
                trained=parameter is not None and parameter.requires_grad,
                stuck=(moves < STUCK).double().mean().item(),
            )
        )
    return tuple(found)


# ---- stability of single neurons


@dataclass(frozen=True)
class NeuronStability:
    """Stability of the single neurons of a layer; made by :func:`below_threshold` and :func:`at_threshold`.

    Attributes:
        matrix: M of every neuron (n_hidden, k, k), with k state variables, float64.
        radius: the spectral radius of each (n_hidden,).
        bounds: conditions on the cell's parameters; if all hold, no radius below threshold is above 1. Empty if the
            cell states none, and at the threshold.
    """

    matrix: Tensor
    radius: Tensor
    bounds: tuple[Bound, ...] = ()

    @property
    def outside(self) -> float:
        """Share of neurons with a radius above 1."""
        return (self.radius > 1 + MARGINAL).double().mean().item()

    @property
    def oscillating(self) -> float:
        """Share of neurons whose first two variables, by themselves, have complex eigenvalues."""
        if self.matrix.shape[1] == 1:  # a real number
            return 0.0
        trace, determinant = _trace_and_determinant(self.matrix[:, :2, :2])
        return (trace.square() < 4 * determinant).double().mean().item()

    def main_bound(self) -> Bound | None:
        """The condition that most neurons break; None if no neuron breaks any."""
        counts = [(int((bound.margin < 0).sum()), bound) for bound in self.bounds]  # how many neurons break each
        count, bound = max(counts, key=lambda pair: pair[0], default=(0, None))
        if count == 0:
            return None
        return bound


@in_full_precision
def below_threshold(cell: Cell) -> NeuronStability:
    """Return the stability of every neuron below threshold, where it sends no spikes.

    Raises:
        TypeError: if the class that defines the cell's step has no :meth:`neurolsc.Cell.subthreshold`.
    """
    return _stability(cell, 0.0)


@in_full_precision
def neurons_below_threshold(network: Network) -> dict[str, NeuronStability]:
    """Return :func:`below_threshold` of every layer whose cell states its matrix, by name, such as "layer 1"."""
    cells = enumerate(as_network(network).cells, start=1)
    return {f"layer {i}": below_threshold(cell) for i, cell in cells if has_stability_rule(cell)}


def plot_neurons(
    layers: Mapping[str, NeuronStability], path: str | PathLike[str] | None = None, *, title: str = ""
) -> "Figure":
    """Draw neurons in the plane of trace and determinant, with the region where they are stable.

    Args:
        layers: stabilities by name, of several layers or of one before and after a training.
        path: a file to write to, whose suffix chooses the format.
        title: title of the picture.

    Raises:
        ValueError: if the neurons of a layer have one variable.
    """
    from neurolsc.plots import plot_stable_region  # matplotlib is slow to import and few runs draw

    if one := [name for name, layer in layers.items() if layer.matrix.shape[1] < 2]:
        raise ValueError(f"{', '.join(one)}: neurons of one variable have no determinant to draw; read their radius.")
    points = {name: _trace_and_determinant(layer.matrix[:, :2, :2]) for name, layer in layers.items()}
    found = {name: (trace.numpy(), determinant.numpy()) for name, (trace, determinant) in points.items()}
    return plot_stable_region(found, path, outside={name: part.outside for name, part in layers.items()}, title=title)


@in_full_precision
def at_threshold(cell: Cell) -> NeuronStability:
    r"""Return the stability of every neuron at the threshold, with the derivative of its own spike.

    The spike acts through reset and adaptation. If the cell has no :meth:`neurolsc.Cell.membrane`, the derivative of
    the spike counts as 0.

    For ALIF without a gradient through the reset the eigenvalues are :math:`e^{-1/\tau_v}` and
    :math:`e^{-1/\tau_\vartheta} - \beta s`, with the derivative s of the surrogate at the threshold: a neuron is
    unstable if its adaptation is below :math:`-(1 - e^{-1/\tau_\vartheta}) / s` or above
    :math:`(1 + e^{-1/\tau_\vartheta}) / s`.

    Raises:
        TypeError: as :func:`below_threshold`.
    """
    membrane = cell.membrane()
    if membrane is None:
        return _stability(cell, 0.0)
    at_zero = torch.zeros(1, **cell.dtype_and_device)  # v - theta
    return _stability(cell, surrogate_slope(membrane, at_zero)[0])


def has_stability_rule(cell: Cell) -> bool:
    """True if the class that defines the cell's step also gives its matrix below threshold."""
    return cell._defined_with_its_step("subthreshold")


def _stability(cell: Cell, slope: float | Tensor) -> NeuronStability:
    """The stability of every neuron if the derivative of its spikes by its voltage is `slope`, 0 or (n_hidden,)."""
    with torch.no_grad():
        matrix = None
        if has_stability_rule(cell):
            matrix = cell.subthreshold(slope)
        if matrix is None:
            raise TypeError(
                f"a {type(cell).__name__} does not state its matrix below threshold: write its subthreshold(), which "
                "returns (n_hidden, k, k), in the class that defines its update."
            )
        matrix = matrix.detach().double().cpu()
        stated: tuple[Bound, ...] = ()
        # A cell's bounds are conditions below threshold, where the slope is 0.
        if not torch.as_tensor(slope).any() and cell._defined_with_its_step("bounds"):
            stated = cell.bounds()
    bounds = tuple(bound._replace(margin=bound.margin.detach().double().cpu()) for bound in stated)
    return NeuronStability(matrix, neuron_radii(matrix), bounds)


def neuron_radii(m: Tensor) -> Tensor:
    """Spectral radii (P,) of small real matrices (P, k, k), by :func:`neurolsc.stability.isolated.block_radii`.

    Example:
        >>> neuron_radii(torch.tensor([[[0.0, -0.5], [0.5, 0.0]]])).item()
        0.5
    """
    return block_radii(m.permute(1, 2, 0).unsqueeze(0))[0]


def _trace_and_determinant(m: Tensor) -> tuple[Tensor, Tensor]:
    """Traces and determinants (P,) of matrices (P, 2, 2)."""
    trace = m[:, 0, 0] + m[:, 1, 1]
    determinant = m[:, 0, 0] * m[:, 1, 1] - m[:, 0, 1] * m[:, 1, 0]
    return trace, determinant
