r"""Stability of single neurons below threshold: no spike, no weights between them.

There a step multiplies the variables of a neuron by a constant matrix M, which a cell states
(:meth:`neurolsc.Cell.subthreshold`). Of two variables the radius follows from trace and determinant,

.. math:: \rho = \sqrt{\det M} \;\text{ if }\; (\mathrm{tr}\,M)^2 < 4 \det M, \quad\text{else}\quad
    \rho = \tfrac12 \Big( |\mathrm{tr}\,M| + \sqrt{(\mathrm{tr}\,M)^2 - 4 \det M} \Big)

A neuron outside, :math:`\rho > 1`, grows without bound until it spikes. What reset, surrogate and recurrence add is in
the radii of :func:`neurolsc.radius_profile`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from neurolsc.network import Network, as_network
from neurolsc.neurons.cell import Bound, Cell
from neurolsc.stability.findings import surrogate_slope

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARGINAL = 1e-6  # radii up to so far above 1 are on the boundary: rounding of float32


@dataclass(frozen=True)
class NeuronStability:
    """The neurons of a layer, each by itself; made by :func:`below_threshold` and :func:`at_threshold`.

    Attributes:
        matrix: M of every neuron (n_hidden, k, k), float64.
        radius: its spectral radius (n_hidden,).
        bounds: the conditions on the parameters of the cell, under which no radius is above 1 below threshold.
    """

    matrix: Tensor
    radius: Tensor
    bounds: tuple[Bound, ...] = ()

    @property
    def margin(self) -> Tensor:
        """1 - radius (n_hidden,): positive for stable neurons."""
        return 1 - self.radius

    @property
    def outside(self) -> float:
        """Share of neurons with a radius above 1."""
        return (self.radius > 1 + MARGINAL).double().mean().item()

    @property
    def oscillating(self) -> float:
        """Share of neurons of two variables whose eigenvalues are complex."""
        if self.matrix.shape[1] == 1:
            return 0.0
        trace, determinant = _trace_and_determinant(self.matrix[:, :2, :2])
        return (trace.square() < 4 * determinant).double().mean().item()

    def main_bound(self) -> Bound | None:
        """The condition that most neurons break; None if none is broken."""
        broken = [(int((bound.margin < 0).sum()), bound) for bound in self.bounds]
        count, bound = max(broken, key=lambda pair: pair[0], default=(0, None))
        return bound if count else None


def below_threshold(cell: Cell) -> NeuronStability:
    """The stability of every neuron below threshold.

    Raises:
        TypeError: if the cell does not state it for its step (:meth:`neurolsc.Cell.subthreshold`).
    """
    return _stability(cell, 0.0)


def neurons_below_threshold(network: Network) -> dict[str, NeuronStability]:
    """The same of all layers that state it, by name, such as "layer 1"."""
    cells = enumerate(as_network(network).cells, start=1)
    return {f"layer {i}": below_threshold(cell) for i, cell in cells if states_stability(cell)}


def plot_neurons(
    layers: Mapping[str, NeuronStability], path: str | PathLike[str] | None = None, *, title: str = ""
) -> "Figure":
    """Draw neurons in the plane of trace and determinant, with the region where they are stable.

    Args:
        layers: by name: several, or one before and after a training.
        path: a file, whose suffix chooses the format.
        title: above the picture.

    Raises:
        ValueError: if neurons have one variable.
    """
    from neurolsc.plots import plot_stable_region  # matplotlib is slow to import and few runs draw

    if one := [name for name, layer in layers.items() if layer.matrix.shape[1] < 2]:
        raise ValueError(f"{', '.join(one)}: neurons of one variable have no determinant to draw; read their radius.")
    points = {name: _trace_and_determinant(layer.matrix[:, :2, :2]) for name, layer in layers.items()}
    found = {name: (trace.numpy(), determinant.numpy()) for name, (trace, determinant) in points.items()}
    return plot_stable_region(found, path, outside={name: part.outside for name, part in layers.items()}, title=title)


def at_threshold(cell: Cell) -> NeuronStability:
    r"""The same at the threshold, with the derivative of the spike there: reset and adaptation by a neuron's own spike.

    Of ALIF without a gradient through the reset the eigenvalues are :math:`e^{-1/\tau_v}` and
    :math:`e^{-1/\tau_\vartheta} - \beta s`, with s the largest derivative of the surrogate: an adaptation below
    :math:`-(1 - e^{-1/\tau_\vartheta}) / s` or above :math:`(1 + e^{-1/\tau_\vartheta}) / s` is outside.

    Raises:
        TypeError: as :func:`below_threshold`.
    """
    membrane = cell.membrane()
    slope = 0.0
    if membrane is not None:
        slope = surrogate_slope(membrane, torch.zeros(1, **cell.dtype_and_device)).item()
    return _stability(cell, slope)


def states_stability(cell: Cell) -> bool:
    """True if the class that defines the step of a cell states its matrix below threshold."""
    return cell._defined_with_its_step("subthreshold")


def _stability(cell: Cell, slope: float) -> NeuronStability:
    with torch.no_grad():
        matrix = cell.subthreshold(slope) if states_stability(cell) else None
        if matrix is None:
            raise TypeError(
                f"a {type(cell).__name__} does not state its matrix below threshold: write its subthreshold(), which "
                "returns (n_hidden, k, k), in the class that defines its update."
            )
        matrix = matrix.detach().double().cpu()
        stated = cell.bounds() if slope == 0 and cell._defined_with_its_step("bounds") else ()
    bounds = tuple(bound._replace(margin=bound.margin.detach().double().cpu()) for bound in stated)
    return NeuronStability(matrix, neuron_radii(matrix), bounds)


def neuron_radii(m: Tensor) -> Tensor:
    """Spectral radii (P,) of small real matrices (P, k, k), in closed form up to k = 2.

    A last variable that no other reads is taken by itself, so that only neurons with three variables that read one
    another need numeric eigenvalues.

    Example:
        >>> neuron_radii(torch.tensor([[[0.0, -0.5], [0.5, 0.0]]])).item()
        0.5
    """
    k = m.shape[-1]
    if k == 1:
        return m[:, 0, 0].abs()
    if not m[:, :-1, -1].any():
        return torch.maximum(neuron_radii(m[:, :-1, :-1]), m[:, -1, -1].abs())
    if k > 2:
        return torch.linalg.eigvals(m).abs().amax(1)
    trace, determinant = _trace_and_determinant(m)
    square = ((m[:, 0, 0] - m[:, 1, 1]) / 2).square() + m[:, 0, 1] * m[:, 1, 0]  # without cancellation
    real = trace.abs() / 2 + square.clamp(min=0).sqrt()
    return torch.where(square < 0, determinant.clamp(min=0).sqrt(), real)


def _trace_and_determinant(m: Tensor) -> tuple[Tensor, Tensor]:
    return m[:, 0, 0] + m[:, 1, 1], m[:, 0, 0] * m[:, 1, 1] - m[:, 0, 1] * m[:, 1, 0]
