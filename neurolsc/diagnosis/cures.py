"""Treatments of faults: what is done to a copy of a network when a cure is tried."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

import neurolsc
from neurolsc.init import Identity
from neurolsc.network import Network
from neurolsc.neurons.cell import owner_of, set_value


@dataclass(frozen=True)
class Treatment:
    """What is done about a fault."""

    words: str
    treat: Callable[[Network, Tensor], None]  # in place, on an input (T, B, n_in)
    lr: float = 1.0  # factor on the learning rate


ADVICE = "neurolsc.initialize(net, x)"  # what is advised for networks that are silent, saturated or lose their input


def initialise(network: Network, x: Tensor) -> None:
    """Initialise a network by :func:`neurolsc.initialize`.

    Raises:
        TypeError: if a cell lacks what it needs.
        ValueError: if a parameter that it would set is frozen.
    """
    recommended = getattr(neurolsc, "initialize", None)
    if recommended is None:
        Identity().apply(network, [x])
    else:
        recommended(network, x)


def leave(network: Network, x: Tensor) -> None:
    """Do nothing to the network: the cure is another learning rate."""


@dataclass(frozen=True)
class Calming:
    """Scale parameters of layers and detach resets of layers; layers are counted from 0."""

    factors: dict[tuple[int, str], float]  # by layer and name
    detached: tuple[int, ...]

    def __call__(self, network: Network, x: Tensor) -> None:
        for (layer, name), factor in self.factors.items():
            owner, last = owner_of(network.cells[layer], name)
            set_value(owner, last, torch.as_tensor(getattr(owner, last)).detach() * factor)
        for layer in self.detached:
            switch = network.cells[layer].reset_switch()
            if switch is not None:
                setattr(switch.owner, switch.name, switch.value)
