"""A few updates of a copy on a batch, as the user's loop makes them: plain Adam, the user's loss."""

import math
from typing import NamedTuple

import torch

from neurolsc.diagnosis.losses import Objective
from neurolsc.diagnosis.measurements import Batch
from neurolsc.network import Network, eval_mode
from neurolsc.stability import Activity, activity


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
