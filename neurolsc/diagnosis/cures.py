"""What is done to copies of a network: treatments of faults, and a few updates as the user's loop makes them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim.adam import adam

from neurolsc.diagnosis.losses import Objective
from neurolsc.diagnosis.measurements import Batch
from neurolsc.init.identity import Identity
from neurolsc.network import Network
from neurolsc.neurons.parameters import set_value, value_of
from neurolsc.neurons.weights import owner_of
from neurolsc.stability import Activity, activity
from neurolsc.surroundings import eval_mode

# ---- treatments


@dataclass(frozen=True)
class Treatment:
    """What is done about a fault."""

    words: str  # says what is done; treatments of the same words are one
    treat: Callable[[Network, Tensor], None]  # changes the network in place; may read an input (T, B, n_in)
    lr: float = 1.0  # factor on the learning rate of the updates that follow


ADVICE = "neurolsc.initialize(net, x)"  # what is advised for networks that are silent, saturated or lose their input


def initialise(network: Network, x: Tensor) -> None:
    """Initialise a network in place as ADVICE says, on an input (T, B, n_in)."""
    Identity().apply(network, [x])


def leave(network: Network, x: Tensor) -> None:
    """Do nothing to the network: the cure is another learning rate."""


@dataclass(frozen=True)
class Calming:
    """Scale parameters of layers and detach resets of layers; layers are counted from 0."""

    factors: dict[tuple[int, str], float]  # by layer and name of the parameter
    detached: tuple[int, ...]  # layers whose reset gets no gradient

    def __call__(self, network: Network, x: Tensor) -> None:
        for (layer, name), factor in self.factors.items():
            owner, last = owner_of(network.cells[layer], name)
            set_value(owner, last, value_of(owner, last) * factor)
        for layer in self.detached:
            switch = network.cells[layer].reset_switch()
            if switch is not None:  # else the layer has no reset to detach
                setattr(switch.owner, switch.name, switch.value)


# ---- updates


class Outcome(NamedTuple):
    """A network after updates on a batch."""

    first: float  # loss of the batch before the updates; NaN if there were no updates
    loss: float  # loss after them; NaN or infinite if the training diverged
    activities: tuple[Activity, ...]  # of each layer after them; empty if the network could not run any more


def update(network: Network, batch: Batch, loss: Objective, lr: float, updates: int) -> Outcome:
    """Train a network in place on a batch by Adam, for some updates; return its losses and activities.

    The network is in evaluation mode, so that copies do not differ by dropout. The updates stop where the loss is NaN
    or infinite, or has no gradient, or where network or loss refuse what an update has left.
    """
    step = adam_step([p for p in network.parameters() if p.requires_grad], lr)
    first = math.nan
    updated = False
    with eval_mode(network):
        try:
            for count in range(updates):
                with torch.enable_grad():
                    run = network.run(batch.x, mask=batch.mask)
                    value = loss(run.logits, batch.targets, batch.mask)  # type: ignore[arg-type]
                if count == 0:
                    first = value.item()
                if not value.isfinite() or not value.requires_grad:
                    break
                step(value)
                updated = True
            with torch.no_grad():
                run = network.run(batch.x, mask=batch.mask)
                value = loss(run.logits, batch.targets, batch.mask)  # type: ignore[arg-type]
        except (ValueError, FloatingPointError):  # raised if an update left weights that are NaN
            if updates and not updated:  # the error is not of an update
                raise
            return Outcome(first, loss=math.nan, activities=())
        activities = tuple(activity(z, batch.mask) for z in run.spikes)
    return Outcome(first, value.item(), activities)


def adam_step(parameters: Sequence[Tensor], lr: float) -> Callable[[Tensor], None]:
    """Return a function that does one step of Adam on a loss, in place, with torch's defaults.

    The class `torch.optim.Adam` would import torch's compiler, which takes longer than the updates of most networks.
    """
    means = [torch.zeros_like(p) for p in parameters]
    squares = [torch.zeros_like(p) for p in parameters]
    counts = [torch.zeros(()) for _ in parameters]

    def step(loss: Tensor) -> None:
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        # as in torch, a parameter without a gradient stays
        reached = [i for i, gradient in enumerate(gradients) if gradient is not None]
        with torch.no_grad():
            adam(
                [parameters[i] for i in reached],
                [gradient for gradient in gradients if gradient is not None],
                [means[i] for i in reached],
                [squares[i] for i in reached],
                [],  # of AMSGrad
                [counts[i] for i in reached],
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=lr,
                weight_decay=0.0,
                eps=1e-8,
                maximize=False,
            )

    return step
