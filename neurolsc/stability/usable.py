"""Which spikes have a derivative that a gradient can use."""

import math

import torch
from torch import Tensor

from neurolsc.modes import evaluating
from neurolsc.network import Network, as_network
from neurolsc.neurons.cell import State
from neurolsc.stability.profile import draw_steps
from neurolsc.stability.transition import Transitions, follow

FAR = 1e6
"""a voltage beyond all thresholds"""
HALVINGS = 64
"""steps of bisection that reach neighbouring numbers of any dtype"""


def usable_share(
    network: Network, x: Tensor, *, threshold: float = 0.1, steps: int | None = None, seed: int = 0
) -> Tensor:
    r"""The share of neurons, steps and samples whose spike has a derivative of a useful size.

    .. math:: \frac{1}{K B n} \sum_{t,b,i} \Big[\, \Big|\frac{\partial z_i}{\partial v_i}\Big|
        \ge \text{threshold} \cdot \max_v \frac{\partial z_i}{\partial v_i} \Big]

    Only through these a gradient reaches the neuron's weights; a neuron that is far from its
    threshold at all steps and samples learns nothing, whatever the loss. The largest derivative is
    taken at the threshold itself, found by bisection, so any surrogate will do.

    Args:
        network: the network; its parameters are not changed.
        x: input (T, B, n_in).
        threshold: the share of the largest derivative that counts as useful, in 0 ... 1.
        steps: look at this many steps, drawn at random; by default all.
        seed: of the steps.

    Returns:
        Shares (L,); NaN for a layer that does not spike, or whose cell does not say what its
        voltage is (:meth:`neurolsc.Cell.membrane`).

    Raises:
        TypeError: if network is not one.
        ValueError: if x does not fit it, or threshold or steps are out of range.

    Cost: one backward pass through a step of every layer at all points, and 64 steps of one sample.
    """
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold must be above 0 and at most 1, got {threshold}.")
    chosen = draw_steps(x.shape[0], steps, torch.Generator().manual_seed(seed))
    with evaluating(as_network(network)):
        transitions, _ = follow(network, x, chosen)
        return torch.tensor([_of_layer(t, threshold) for t in transitions])


def _of_layer(t: Transitions, threshold: float) -> float:
    membrane = t.cell.membrane()
    if membrane is None:
        return math.nan
    voltage = membrane.name
    z, slope = _spikes(t.cell, voltage, getattr(t.before, voltage), t.before, t.x)
    if slope is None or not bool(((z == 0) | (z == 1)).all()):
        return math.nan
    one = type(t.before)(*(leaf[:1] for leaf in t.before))
    low = torch.full_like(getattr(one, voltage), -FAR)
    high = torch.full_like(low, FAR)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        fires = _spikes(t.cell, voltage, middle, one, t.x[:1])[0].view_as(middle) > 0
        low, high = torch.where(fires, low, middle), torch.where(fires, middle, high)
    peaks = [_spikes(t.cell, voltage, v, one, t.x[:1])[1] for v in (low, high)]
    peak = torch.stack([p for p in peaks if p is not None] + [slope.amax(0, keepdim=True)]).amax(0)
    return ((slope >= threshold * peak) & (peak > 0)).double().mean().item()


def _spikes(cell: object, name: str, v: Tensor, state: State, x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Spikes at a voltage, and the size of their derivatives by it, both in its shape.

    Where spikes are themselves a variable of the state, those of the next step.
    """
    with torch.enable_grad():
        v = v.detach().requires_grad_()
        before = state._replace(**{name: v})
        z = cell.output(before)  # type: ignore[attr-defined]
        if not z.requires_grad or z.grad_fn is None:
            z = cell.output(cell.update(x, z.detach(), before))  # type: ignore[attr-defined]
        if z.numel() != v.numel() or not z.requires_grad:
            return z, None
        (slope,) = torch.autograd.grad(z.sum(), v, materialize_grads=True, allow_unused=True)
    return z.detach(), slope.abs()
