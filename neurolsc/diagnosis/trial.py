"""Cures, tried: each on a copy of the network for a few updates on the same batch."""

import math
from collections.abc import Callable, Iterable, Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

from neurolsc.diagnosis.batch import Given
from neurolsc.diagnosis.cures import Cure, cure_for
from neurolsc.diagnosis.order import batch_first
from neurolsc.diagnosis.report import Diagnosis, Trial
from neurolsc.diagnosis.updates import copied, loss_of, updated
from neurolsc.network import Network, as_network
from neurolsc.stability.findings import Finding
from neurolsc.tasks import Classification, Task
from neurolsc.training.optim import adabelief_lookahead
from neurolsc.validation import positive, whole

BETTER = 0.995
"""a cure helps if the loss ends below this share of the untreated copy's: other orders of summation
move it by a thousandth"""


def try_cures(
    network: Network,
    batch: Tensor | Sequence[Tensor],
    diagnosis: Diagnosis,
    *,
    task: Task = Classification(),
    lr: float = 1e-3,
    optimizer: Callable[[Iterable[nn.Parameter], float], Optimizer] = adabelief_lookahead,
    updates: int = 20,
) -> tuple[Trial, ...]:
    """Try the cure of each finding on a copy of the network, and see whether it then learns faster.

    Each copy is trained on the batch itself, without dropout, from the same weights but for its
    cure; an untreated copy as well. So few updates say whether a cure sets something in motion,
    not what a whole training becomes.

    Args:
        network: the network; it stays as it is.
        batch: (x, targets) or (x, targets, mask), as for :func:`neurolsc.diagnose`.
        diagnosis: what was found with that batch.
        task: what is asked of the network.
        lr: learning rate.
        optimizer: makes the optimizer from parameters and learning rate.
        updates: of each copy.

    Returns:
        A trial for every kind of fault that the package can do something about, of all layers that
        have it at once; kinds with the same cure are one. A missing class is none of those, nor
        are swapped axes: there the batch is turned before all trials.

    Raises:
        TypeError: if network is not one, or the batch is of another kind.
        ValueError: if there are no targets, or the batch or a number does not fit.

    Cost: ``updates`` training steps on the batch per cure and for the untreated copy.
    """
    given = Given.of(batch, as_network(network))
    if given.targets is None:
        raise ValueError("trials need targets: give the batch as (x, targets).")
    whole("updates", updates)
    positive("lr", lr)
    if batch_first(given):
        given = given.turned()
    cures: dict[str, Cure] = {}
    treated: dict[str, list[str]] = {}
    for name in dict.fromkeys(finding.name for finding in diagnosis):
        cure = cure_for(name, [layer - 1 for layer in _layers(diagnosis, [name])], network, diagnosis.figures)
        if cure is not None:
            cures[cure.words] = cure
            treated.setdefault(cure.words, []).append(name)
    if not cures:
        return ()
    untreated = loss_of(updated(copied(network), given, task, optimizer, lr, updates), given, task)
    trials = []
    for words, cure in cures.items():
        patient = copied(network)
        if cure.treat is not None:
            cure.treat(patient, given.x)
        before = loss_of(patient, given, task)
        after = loss_of(updated(patient, given, task, optimizer, lr * cure.lr, updates), given, task)
        helped = math.isfinite(after) and not after >= BETTER * untreated
        layers = _layers(diagnosis, treated[words])
        trials.append(Trial(", ".join(treated[words]), layers, words, before, after, untreated, helped))
    return tuple(trials)


def _layers(findings: Iterable[Finding], names: list[str]) -> tuple[int, ...]:
    """The layers in which faults of some names were found, counted from 1."""
    return tuple(sorted({f.layer for f in findings if f.name in names and f.layer is not None}))
