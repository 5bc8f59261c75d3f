"""What is done to copies of a network: treatments of faults, and a few updates as the user's loop makes them."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from neurolsc.diagnosis.losses import Objective
from neurolsc.diagnosis.measurements import Batch
from neurolsc.init.identity import Identity
from neurolsc.network import Network, eval_mode
from neurolsc.neurons.cell import owner_of, set_value
from neurolsc.stability import Activity, activity

# ---- treatments


@dataclass(frozen=True)
class Treatment:
    """What is done about a fault."""

    words: str
    treat: Callable[[Network, Tensor], None]  # in place, on an input (T, B, n_in)
    lr: float = 1.0  # factor on the learning rate


ADVICE = "neurolsc.initialize(net, x)"  # what is advised for networks that are silent, saturated or lose their input


def initialise(network: Network, x: Tensor) -> None:
    """Initialise a network as it is advised."""
    Identity().apply(network, [x])


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


# ---- updates


class Outcome(NamedTuple):
    """A network after updates on a batch."""

    loss: float  # of the batch; NaN if it was no number on the way
    activities: tuple[Activity, ...]  # of each layer


def update(network: Network, batch: Batch, loss: Objective, lr: float, updates: int) -> Outcome:
    """Train a network in place on a batch by Adam, in evaluation mode, so that dropout tells no copies apart.

    The updates stop where the loss is no number.
    """
    trained = [p for p in network.parameters() if p.requires_grad]
    with eval_mode(network):
        if trained and updates:
            optimizer = torch.optim.Adam(trained, lr)
            for _ in range(updates):
                with torch.enable_grad():
                    run = network.run(batch.x, mask=batch.mask)
                    value = loss(run.logits, batch.targets, batch.mask)  # type: ignore[arg-type]
                if not value.isfinite() or not value.requires_grad:
                    break
                optimizer.zero_grad()
                value.backward()
                optimizer.step()
        try:
            with torch.no_grad():
                run = network.run(batch.x, mask=batch.mask)
                value = loss(run.logits, batch.targets, batch.mask)  # type: ignore[arg-type]
        except (ValueError, FloatingPointError):  # of weights that are no numbers
            return Outcome(math.nan, ())
        found = tuple(activity(z, batch.mask) for z in run.spikes)
    return Outcome(value.item(), found)
