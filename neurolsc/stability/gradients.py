"""Gradients of a loss: by the states of every layer and step, and by the parameters of a layer."""

from collections import Counter
from collections.abc import Callable
from itertools import chain

import torch
from torch import Tensor

from neurolsc.modes import evaluating
from neurolsc.network import Network, NetworkState, as_network

Loss = Callable[[Tensor], Tensor]
"""A number with a gradient, from the logits (T, B, C)."""


def state_gradients(network: Network, x: Tensor, loss: Loss) -> Tensor:
    r"""Norms of the gradient of a loss by the state of every layer, step and sample.

    .. math:: G_{l,t,b} = \Big\lVert \frac{\mathrm{d} L}{\mathrm{d} h[t, l]_b} \Big\rVert_2

    The gradient is that through all later steps and higher layers. Of a loss of the last step
    alone, row T-1-k is what is left of the gradient k steps back.

    Args:
        network: the network; it is run step by step, and its parameters get no gradient.
        x: input (T, B, n_in).
        loss: of the logits. Of samples of unequal length it takes what lies inside their mask;
            what follows has no gradient then.

    Returns:
        Norms (L, T, B), in the loss's unit over that of the state.

    Raises:
        TypeError: if network is not one.
        ValueError: if x does not fit it.

    Cost: a forward and a backward pass by plain steps; the graph of all T steps is kept.

    Source: Pascanu, Mikolov & Bengio 2013, arXiv:1211.5063.
    """
    with evaluating(as_network(network)), torch.enable_grad():
        start = network.initial_states(x.shape[1]) if x.ndim == 3 else None  # else x is refused
        moments = list(network.moments(x, start and _differentiable(start)))
        logits = torch.stack([network.readout(m.outputs[-1]) for m in moments])
        leaves = [leaf for m in moments for layer in m.after.layers for leaf in layer]
        found = iter(_gradients(loss(logits), leaves))
    norms = [[_norms([next(found) for _ in layer]) for layer in m.after.layers] for m in moments]
    return torch.stack([torch.stack(step) for step in norms], 1)


def parameter_gradients(
    network: Network, x: Tensor, loss: Loss, *, mask: Tensor | None = None
) -> tuple[dict[str, Tensor], ...]:
    """The gradient of a loss by the parameters of every layer, and last of the readout.

    Args:
        network: the network; the ``grad`` of its parameters stays as it is.
        x: input (T, B, n_in).
        loss: of the logits.
        mask: as in :meth:`neurolsc.Network.run`.

    Returns:
        For each of L cells and the readout the gradients by name, detached, each in the shape of
        its parameter; those of frozen parameters are left out. Cells that stand for one module of
        another library count those that they would pre-train (:meth:`neurolsc.Cell.pretrained`).

    Raises:
        TypeError: if network is not one.
        ValueError: if x or the mask do not fit it.

    Cost: a forward and a backward pass.
    """
    cells = as_network(network).cells
    shared = Counter(p for cell in cells for p in cell.parameters())
    trained = [{n: p for n, p in part.named_parameters() if p.requires_grad} for part in (*cells, network.readout)]
    for cell, names in zip(cells, trained, strict=False):
        own = set(cell.pretrained())
        for name in [n for n, p in names.items() if shared[p] > 1 and p not in own]:
            del names[name]
    with evaluating(network), torch.enable_grad():
        value = loss(network.run(x, mask=mask).logits)
    found = iter(_gradients(value, list(chain.from_iterable(t.values() for t in trained))))
    return tuple({name: next(found).detach() for name in names} for names in trained)


def _differentiable(states: NetworkState) -> NetworkState:
    """The same states, by which a gradient can be taken whether or not any parameter needs one."""
    layers = (type(s)(*(leaf.detach().clone().requires_grad_() for leaf in s)) for s in states.layers)
    return NetworkState(tuple(layers), states.x)


def together(gradients: dict[str, Tensor]) -> Tensor:
    """All gradients of a layer side by side (P,)."""
    return torch.cat([g.flatten() for g in gradients.values()]) if gradients else torch.empty(0)


def _gradients(value: Tensor, by: list[Tensor]) -> list[Tensor]:
    """Gradients by tensors, zero by those that the value does not depend on."""
    reached = [t for t in by if t.requires_grad]
    if not value.requires_grad or not reached:
        return [torch.zeros_like(t) for t in by]
    found = iter(torch.autograd.grad(value, reached, allow_unused=True, materialize_grads=True))
    return [next(found) if t.requires_grad else torch.zeros_like(t) for t in by]


def _norms(leaves: list[Tensor]) -> Tensor:
    """Norm over all variables of a state, of each sample (B,)."""
    return torch.cat([leaf.detach().abs().flatten(1) for leaf in leaves], 1).norm(dim=1)
