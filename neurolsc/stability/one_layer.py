"""A layer by itself, on what those below send: measured again after every change of it alone."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from neurolsc.network import Network
from neurolsc.neurons.cell import Cell, State, Thresholds
from neurolsc.stability.roots import settle
from neurolsc.stability.transition import Transitions, stacked


def reads(network: Network, x: Tensor, layer: int) -> Tensor:
    """What a layer reads at every step of a run (T, B, n_in), with the network's delay."""
    with torch.no_grad():
        own = x.to(network.dtype_and_device["device"])
        below = network.run(own).spikes[layer - 1] if layer else network.embedded(own)
        return _delayed(network, below, layer)


def next_reads(network: Network, read: Tensor, layer: int) -> Tensor:
    """What the layer after one reads, from what that one does."""
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


def bottom_up(network: Network, x: Tensor, some: Tensor, times: Tensor) -> Iterator[tuple[Tensor, Transitions]]:
    """Layer after layer what it reads, and the points of its derivatives, each run once.

    A layer may be changed when it is its turn: the next one reads what it sends by then.

    Args:
        network: the network.
        x: input (T, B, n_in).
        some: the samples at whose points derivatives are taken.
        times: the steps at which they are, increasing.

    Yields:
        What the layer reads at all steps (T, B, n_in), and its points, as
        :func:`~neurolsc.stability.transition.follow` has them.
    """
    wanted, read = set(times.tolist()), reads(network, x, 0)
    below, state_below = None, None
    for layer, cell in enumerate(network.cells):
        points = Transitions(cell, read[times][:, some].flatten(0, 1), cell.initial_state(1), below, state_below)
        yield read, again(points, read[:, some], times)
        if layer + 1 < len(network.cells):
            run = [(before, after) for i, (_, before, after) in enumerate(steps(cell, read[:, some])) if i in wanted]
            below, state_below = cell, stacked([before if network.layer_delay else after for before, after in run])
            read = next_reads(network, read, layer)


def steps(cell: Cell, read: Tensor) -> Iterator[tuple[Tensor, State, State]]:
    """The run of a cell from rest: of every step what it reads, its state before and after."""
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


def gradient_gain(cell: Cell, read: Tensor, generator: torch.Generator) -> float:
    r"""By how much a gradient grows or shrinks on its way back through a layer, over a whole run.

    .. math:: \frac{\lVert \partial (g \cdot z) / \partial x \rVert}{\lVert g \rVert}

    with a random gradient g on all outputs z (T, B, n_hidden), and x what the layer reads.
    """
    x = read.detach().clone().requires_grad_()
    with torch.enable_grad():
        z = cell.run(x, cell.initial_state(x.shape[1]))[0]
        g = torch.randn(z.shape, generator=generator, dtype=torch.float64).to(z)
        (back,) = torch.autograd.grad((g * z).sum(), x)
    return (back.norm() / g.norm()).item()


def again(t: Transitions, read: Tensor, times: Tensor) -> Transitions:
    """The points of a layer after it alone has changed, at the same steps (K,) of what it reads."""
    wanted = set(times.tolist())
    before = [state for i, (_, state, _) in enumerate(steps(t.cell, read)) if i in wanted]
    return t._replace(before=stacked(before))


def scale_to_rate(cell: Cell, thresholds: Thresholds, read: Tensor, wanted: float, *, reach: float) -> float:
    """Leave the thresholds of a cell where it fires as often as wanted, or nearest to that.

    Args:
        cell: the cell.
        thresholds: its thresholds.
        read: what it reads (T, B, n_in).
        wanted: spikes per neuron and step.
        reach: the largest factor, up or down.

    Returns:
        The rate reached.
    """
    return settle(
        lambda log: thresholds.scale(math.exp(-log)),
        lambda: rate(cell, read),
        wanted,
        reach=math.log(reach),
        close=1e-3 * wanted,
    )
