r"""A layer by itself: run on the outputs of the layers below, measured, and changed until a measure is on target.

The *recurrence radius* is the radius of what spikes do to their own layer through its recurrent weights W alone. With
z = output(h),

.. math:: R = \frac{\partial z}{\partial h} \Big(\frac{\partial h'}{\partial z}\Big|_{W} -
              \frac{\partial h'}{\partial z}\Big|_{W = 0}\Big)

is the derivative through time that is due to W, between outputs: of LIF and ALIF :math:`\mathrm{diag}(s)\, W_{rec}`.
Leaks, resets and adaptation are left out; where the state is linear in W so is R.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

from neurolsc.network import Network
from neurolsc.neurons.cell import Cell, State, Thresholds, WeightMatrix, owner_of, weight_matrices
from neurolsc.stability.eigen import spectral_radius
from neurolsc.stability.transitions import Transitions, flat, jacobian, unflat
from neurolsc.surrogate import exact_values
from neurolsc.validation import set_value


def reads(network: Network, x: Tensor, layer: int) -> Tensor:
    """The input of a layer at every step of a run (T, B, n_in), with the network's delay."""
    with torch.no_grad():
        own = x.to(network.dtype_and_device["device"])
        below = network.run(own).spikes[layer - 1] if layer else network.embedded(own)
        return _delayed(network, below, layer)


def next_reads(network: Network, read: Tensor, layer: int) -> Tensor:
    """The input of the next layer, from the input of this one."""
    cell = network.cells[layer]
    with torch.no_grad():
        return _delayed(network, cell.run(read, cell.initial_state(read.shape[1]))[0], layer + 1)


def _delayed(network: Network, below: Tensor, layer: int) -> Tensor:
    if not network.layer_delay:
        return below
    start = network.initial_states(below.shape[1])
    first = network.cells[layer - 1].output(start.layers[layer - 1]) if layer else start.x
    assert first is not None
    return torch.cat([first.unsqueeze(0), below[:-1]])


def steps(cell: Cell, read: Tensor) -> Iterator[tuple[Tensor, State, State]]:
    """The run of a cell from rest: of every step its input, its state before and after."""
    with torch.no_grad():
        state = cell.initial_state(read.shape[1])
        for x in read:
            after = cell.update(x, cell.output(state), state)
            yield x, state, after
            state = after


def rate(cell: Cell, read: Tensor) -> float:
    """Spikes per neuron and step in a run from rest."""
    with torch.no_grad():
        return cell.run(read, cell.initial_state(read.shape[1]))[0].ne(0).double().mean().item()


def scale_to_rate(cell: Cell, thresholds: Thresholds, read: Tensor, wanted: float, *, reach: float) -> float:
    """Scale thresholds, by `reach` at most, until a cell's rate is nearest to a wanted one; return its rate."""
    return settle(
        lambda log: thresholds.scale(math.exp(-log)),
        lambda: rate(cell, read),
        wanted,
        reach=math.log(reach),
        close=1e-3 * wanted,
    )


# ---- recurrence


def recurrence_radius(t: Transitions) -> Tensor:
    """Radius of R at the points of t, (P,); 0 for a layer without recurrent synapses."""
    matrices = weight_matrices(t.cell, "time")
    if not matrices:
        return t.x.new_zeros(len(t.x))

    def output(h: Tensor) -> Tensor:
        with exact_values(t.cell):
            return t.cell.output(unflat(h, t.before))

    def step(z: Tensor, x: Tensor, h: Tensor) -> Tensor:
        return flat(t.cell.update(x, z, unflat(h, t.before)))

    with torch.no_grad():
        z = t.cell.output(t.before)
    by_state = jacobian(output, flat(t.before)).detach()
    whole = jacobian(step, z, t.x, flat(t.before)).detach()
    with without(matrices):
        rest = jacobian(step, z, t.x, flat(t.before)).detach()
    return spectral_radius(by_state @ (whole - rest))


@contextmanager
def without(matrices: Sequence[WeightMatrix]) -> Iterator[None]:
    """Set recurrent weights to 0 for a while."""
    places = [(owner_of(matrix.cell, matrix.name), matrix.weights.clone()) for matrix in matrices]
    try:
        for place, weights in places:
            set_value(*place, torch.zeros_like(weights))
        yield
    finally:
        for place, weights in places:
            set_value(*place, weights)


# ---- roots


def bracket(function: Callable[[float], float], reach: float) -> tuple[float, float]:
    """Widen away from 0, up to `reach`, until the sign of an increasing function changes.

    Both ends are the same where it does not, or where 0 is the root.
    """
    here = function(0.0)
    near, far = 0.0, -math.copysign(0.25, here)
    while here != 0 and abs(near) < reach:
        if function(far) * here <= 0:
            return min(near, far), max(near, far)
        near, far = far, math.copysign(min(2 * abs(far), reach), far)
    return 0.0, 0.0


def settle(
    set_to: Callable[[float], object], measure: Callable[[], float], target: float, *, reach: float, close: float
) -> float:
    """Set a value so that its measure is nearest to a target, of all values tried; return the measure.

    Of values that measure the same it is the one nearest to 0. The measure increases with the value, up to noise; the
    value goes no farther than `reach` from 0, where it starts. A difference of `close` from the target will do.
    """
    from scipy.optimize import brentq  # takes 0.2 s to import

    tried: list[tuple[float, float, float, float]] = []

    @cache
    def miss(value: float) -> float:
        set_to(value)
        found = measure()
        missed = found - target if math.isfinite(found) else 1e12  # stands for what is not finite
        tried.append((abs(missed), abs(value), value, found))
        return missed if abs(missed) > close else 0.0

    low, high = bracket(miss, reach)
    if low < high:
        brentq(miss, low, high, xtol=1e-4)
    _, _, value, found = min(tried)
    set_to(value)
    return found
