"""What the loop asks of a surrogate: the tensors that it holds, and its derivative on the way back.

The forward pass of the loop takes a spike to be where v > theta, and on the way back one number per
neuron times the gradient that comes. With the surrogates of :mod:`neurolsc.surrogate` that is so,
and their derivative is a formula. Any other surrogate is differentiated as plain steps
differentiate it, one step at a time by autograd, and whatever of it could differ from plain steps
keeps the loop away (:func:`lends_itself`).
"""

import copy
from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from neurolsc import surrogate
from neurolsc.surrogate import Surrogate

OURS = frozenset(getattr(surrogate, name) for name in surrogate.__all__) - {Surrogate}
"""classes whose shape is the derivative of their shape integral, and all of both"""
_AS_WRITTEN = {name: getattr(Surrogate, name) for name in ("forward", "derivative", "primitive", "__call__")}
_OF_A_MODULE = frozenset(vars(nn.Module()))
_LASTING = (bool, int, float, complex, str, type(None), torch.dtype, torch.device)


def held(spike: Surrogate) -> dict[str, Tensor]:
    """The tensors of a surrogate by name: parameters, buffers, and plain attributes."""
    places = (spike._parameters, spike._buffers, vars(spike))
    return {name: value for place in places for name, value in place.items() if isinstance(value, Tensor)}


def holding(spike: Surrogate, tensors: Sequence[Tensor]) -> Surrogate:
    """A surrogate as it is now, around other tensors in place of those that it holds.

    What is set on the one does not reach the other.
    """
    given = dict(zip(held(spike), tensors, strict=True))
    copied = copy.copy(spike)
    inside: dict[str, Any] = copied.__dict__  # type: ignore[assignment]
    for place in ("_parameters", "_buffers"):
        inside[place] = {name: given.get(name) for name in inside[place]}
    inside.update((name, tensor) for name, tensor in given.items() if isinstance(inside.get(name), Tensor))
    return copied


def overridden(thing: object) -> bool:
    """Whether an object has a method of its own in place of its class's."""
    return any(callable(getattr(type(thing), name, None)) for name in vars(thing))


def lends_itself(spike: object) -> TypeGuard[Surrogate]:
    """Whether the loop may stand in for this spike function, as far as can be seen from outside.

    That is a surrogate without modules inside, which spikes as
    :class:`~neurolsc.surrogate.Surrogate` says, and whose attributes are numbers, texts or tensors,
    so that they can be kept for the way back.
    """
    if not isinstance(spike, Surrogate) or overridden(spike) or next(spike.children(), None) is not None:
        return False
    if spike._exact_values:
        return False
    own = [value for name, value in vars(spike).items() if name not in _OF_A_MODULE]
    return all(getattr(type(spike), name) is method for name, method in _AS_WRITTEN.items()) and all(
        _lasts(value) for value in own
    )


def depends_on_more(spike: Surrogate, distance: Tensor) -> bool:
    """Whether the spikes have a gradient by something that the surrogate does not hold itself.

    Args:
        spike: the surrogate.
        distance: a distance from the threshold (B, n_hidden).
    """
    with torch.enable_grad():
        alone = holding(spike, [tensor.detach() for tensor in held(spike).values()])
        return alone.primitive(distance.detach()).requires_grad


def _lasts(value: object) -> bool:
    """Whether an attribute cannot change unseen; a tensor says when it has."""
    if isinstance(value, tuple):
        return all(_lasts(each) for each in value) and not any(isinstance(each, Tensor) for each in value)
    return isinstance(value, (*_LASTING, Tensor))
