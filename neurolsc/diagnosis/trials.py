"""Cures of faults, tried with a few updates on copies of the network."""

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from neurolsc.diagnosis.case import Case
from neurolsc.diagnosis.cures import Treatment, update
from neurolsc.diagnosis.faults import BY_NAME, findings
from neurolsc.diagnosis.losses import Loss
from neurolsc.diagnosis.report import Diagnosis, Trial, examined, learning_rate
from neurolsc.network import copied
from neurolsc.stability.conditions import Finding
from neurolsc.surroundings import in_full_precision
from neurolsc.validation import whole

LOWER = 0.995  # share of the untreated loss below which a cure has helped: another order of sums moves it by 0.001


@in_full_precision
def try_cures(
    net: nn.Module,
    x: Any,
    y: Tensor | None = None,
    *,
    loss: Loss = "step",
    lr: float = 1e-3,
    diagnosis: Diagnosis | None = None,
    updates: int = 20,
    seed: int = 0,
) -> tuple[Trial, ...]:
    """Try the cure of each finding on a copy of the network, and see whether it then learns faster.

    Each copy is trained on the batch itself by Adam, without dropout. It starts from the same weights, but for what
    its cure changes; an untreated copy is trained as well. So few updates show whether a cure helps the loss to fall at
    all, not where a whole training ends.

    Args:
        net: the network or module; it stays as it is.
        x: inputs, as for :func:`neurolsc.diagnose`.
        y: targets.
        loss: the loss that is trained, as for :func:`neurolsc.diagnose`.
        lr: learning rate.
        diagnosis: the diagnosis of net on that batch; by default it is made here.
        updates: number of updates of each copy, 1 or more.
        seed: seed of the draws of a diagnosis made here.

    Returns:
        A trial for every kind of fault that the package can treat; it treats all layers with the fault at once. Kinds
        with the same cure share a trial. If x was batch first, time is put first before all trials.

    Raises:
        TypeError: if net cannot be wrapped, or an argument is of another kind.
        ValueError: if there are no targets, or the batch, the loss or a number does not fit.

    Cost: ``updates`` training steps on the batch per cure and for the untreated copy.
    """
    lr = learning_rate(lr)
    whole("updates", updates)
    measured = None
    if diagnosis is not None:
        measured = diagnosis.measurements
    case = examined(net, x, y, loss=loss, lr=lr, seed=seed, measured=measured)
    if case.batch.targets is None:
        raise ValueError("trials need targets: give y.")
    if diagnosis is None:
        found = findings(case)
    else:
        found = tuple(diagnosis)
    treatments = treatments_of(case, found)
    if not treatments:
        return ()
    untreated = update(copied(case.measurable), case.batch, case.loss, lr, updates).loss
    trials = []
    for treatment, names in treatments.values():
        patient = copied(case.measurable)
        treatment.treat(patient, case.batch.x)
        before = update(patient, case.batch, case.loss, lr, updates=0).loss  # no update: the loss as it is
        after = update(patient, case.batch, case.loss, lr * treatment.lr, updates).loss
        helped = math.isfinite(after) and not after >= LOWER * untreated  # it helped, too, if the untreated is NaN
        trials.append(
            Trial(
                name=", ".join(names),
                layers=layers_of(found, names),
                cure=treatment.words,
                before=before,
                after=after,
                untreated=untreated,
                helped=helped,
            )
        )
    return tuple(trials)


def treatments_of(case: Case, found: Sequence[Finding]) -> dict[str, tuple[Treatment, list[str]]]:
    """Return the treatments of findings, by their words; each with the names of the faults that it treats.

    Faults that the package cannot treat are left out.
    """
    treatments: dict[str, tuple[Treatment, list[str]]] = {}
    for name in dict.fromkeys(finding.name for finding in found):  # each name once, in order
        fault = BY_NAME.get(name)
        if fault is None or fault.treatment is None:
            continue
        treatment = fault.treatment(case, layers_of(found, [name]))
        if treatment is not None:  # None: it has nothing to do in these layers
            _, names = treatments.setdefault(treatment.words, (treatment, []))
            names.append(name)
    return treatments


def layers_of(found: Sequence[Finding], names: Sequence[str]) -> tuple[int, ...]:
    """Return the layers, counted from 1, that have a fault of these names; faults of the whole network have none."""
    return tuple(sorted({each.layer for each in found if each.name in names and each.layer is not None}))
