"""What may be wrong with the data or the training, each rule a function."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from neurolsc.stability.findings import Finding

MISSING, TOO_FAST, AXES = "missing class", "learning rate too high", "input batch first"

CHANCE = 0.01
"""a class is missing if chance alone would leave one out more rarely than this"""
WORSE = 1.005
"""factor by which the loss of a batch may end above that at a smaller rate, after a few updates on
the batch itself: where steps are small enough, the larger ones go down faster"""


@dataclass(frozen=True)
class Attempts:
    """What a few updates on one batch made of its loss, at several learning rates."""

    updates: int
    """how many"""
    losses: Mapping[float, float]
    """the loss after them by learning rate, that of the training first"""


def wrong_axes(cause: str) -> Iterator[Finding]:
    """An input of which :func:`neurolsc.diagnosis.order.batch_first` says why it looks turned."""
    if cause:
        problem = "the input looks batch first, (B, T, n_in) in place of (T, B, n_in)"
        yield Finding(None, problem, "give x.transpose(0, 1)", cause, AXES)


def missing_classes(labels: Tensor, classes: int) -> Iterator[Finding]:
    """Classes that no label (n,) names, where there are labels enough to tell.

    Of n labels drawn evenly from C classes some class is left out by chance with a probability of
    at most :math:`C (1 - 1/C)^n`.
    """
    counts = torch.bincount(labels.flatten().long().cpu(), minlength=classes)
    absent = (counts == 0).nonzero().flatten().tolist()
    if absent and classes * (1 - 1 / classes) ** labels.numel() < CHANCE:
        which = f"class {absent[0]} is" if len(absent) == 1 else f"classes {', '.join(map(str, absent))} are"
        cure = "give samples of every class, or a readout of as many classes as there are"
        yield Finding(None, f"{which} missing from {labels.numel()} labels", cure, "the data lack it", MISSING)


def learnt(history: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the training loss has fallen by more than a tenth over the epochs."""
    return tells(history) and history[-1]["train_loss"] < 0.9 * history[0]["train_loss"]


def too_fast(history: Sequence[Mapping[str, Any]], attempts: Attempts | None) -> Iterator[Finding]:
    """A loss that only grew over epochs, or that smaller rates bring lower in a few updates."""
    losses = [row["train_loss"] for row in history]
    if tells(history) and min(losses[1:]) > losses[0]:
        problem = f"the training loss only grew, from {losses[0]:.3g} to {losses[-1]:.3g} in {len(losses)} epochs"
        cure = "lower the learning rate tenfold"
        yield Finding(None, problem, cure, "steps that are small enough lower it", TOO_FAST)
    if attempts is None:
        return
    lr, best = next(iter(attempts.losses)), min(attempts.losses, key=lambda rate: _loss_or_inf(attempts.losses[rate]))
    after, lowest = attempts.losses[lr], attempts.losses[best]
    if not after <= WORSE * lowest:
        problem = f"{attempts.updates} updates on one batch at {lr:g} bring its loss to {after:.4g}"
        cure = f"lower the learning rate to {best:g}"
        yield Finding(None, problem, cure, f"at {best:g} they bring it to {lowest:.4g}", TOO_FAST)


def tells(history: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a history is long enough to say how a loss goes."""
    return len(history) >= 3


def _loss_or_inf(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf
