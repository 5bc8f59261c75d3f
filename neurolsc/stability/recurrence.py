r"""What the spikes of a layer do to it through its recurrent synapses alone: radius and strength.

With z = output(h) what a layer sends and W its recurrent weights,

.. math:: R = \frac{\partial z}{\partial h} \Big(\frac{\partial h'}{\partial z}\Big|_{W} -
              \frac{\partial h'}{\partial z}\Big|_{W = 0}\Big)

is the part of the derivative through time that is owed to W, seen between outputs: of LIF and ALIF
:math:`\mathrm{diag}(s)\, W_{rec}`. Leaks, resets and adaptation are left out, and where the state
is linear in W so is R: a factor of the weights is a factor of its radius.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from neurolsc.eigen.radius import spectral_radius
from neurolsc.neurons.cell import Synapses, owner_of, synapses
from neurolsc.positive import set_value
from neurolsc.stability.transition import Transitions, flat, jacobian, unflat
from neurolsc.surrogate import exact_values


def recurrence_radius(t: Transitions) -> Tensor:
    """Radius of R at the points of t, (P,); 0 for a layer without recurrent synapses.

    Cost: two backward passes through P n_hidden steps, and P eigenvalue problems of n_hidden^3.
    """
    matrices = synapses(t.cell, "time")
    if not matrices:
        return t.x.new_zeros(len(t.x))
    output = jacobian(_output(t), flat(t.before)).detach()
    whole = _by_output(t)
    with without(matrices):
        rest = _by_output(t)
    return spectral_radius(output @ (whole - rest))


def recurrence_share(t: Transitions) -> float:
    r"""How strongly recurrent spikes drive a layer, as a share of its input.

    .. math:: \frac{\lVert g(x, z; W) - g(x, z; 0) \rVert}{\lVert g(x, z; W) - g(0, z; W) \rVert}

    with g the step and norms over all points: of LIF and ALIF
    :math:`\lVert W_{rec} z \rVert / \lVert W_{in} x \rVert`. No surrogate is in it. 0 without
    recurrent synapses; infinite where the input moves nothing.
    """
    matrices = synapses(t.cell, "time")
    with torch.no_grad():
        z = t.cell.output(t.before)
        step = flat(t.cell.update(t.x, z, t.before))
        by_input = (step - flat(t.cell.update(torch.zeros_like(t.x), z, t.before))).norm().item()
        with without(matrices):
            by_spikes = (step - flat(t.cell.update(t.x, z, t.before))).norm().item()
    return by_spikes / by_input if by_input else math.inf if by_spikes else 0.0


@contextmanager
def without(matrices: Sequence[Synapses]) -> Iterator[None]:
    """Set recurrent weights to 0 for a while."""
    places = [(owner_of(matrix.cell, matrix.name), matrix.weights.clone()) for matrix in matrices]
    try:
        for place, weights in places:
            set_value(*place, torch.zeros_like(weights))
        yield
    finally:
        for place, weights in places:
            set_value(*place, weights)


def _output(t: Transitions) -> Callable[[Tensor], Tensor]:
    def output(h: Tensor) -> Tensor:
        with exact_values(t.cell):
            return t.cell.output(unflat(h, t.before))

    return output


def _by_output(t: Transitions) -> Tensor:
    """d h' / d z with z apart from the state, (P, S, n_hidden)."""

    def step(z: Tensor, x: Tensor, h: Tensor) -> Tensor:
        return flat(t.cell.update(x, z, unflat(h, t.before)))

    with torch.no_grad():
        z = t.cell.output(t.before)
    return jacobian(step, z, t.x, flat(t.before)).detach()
