"""The table of faults: how each is found, what is said of it, and what is to be done.

`FAULTS` has a row for each kind, in the order in which they are to be mended; `Bounds` has every number that a rule
compares with, and its reason. The `rules` read a `case`: a network, a batch, and what was measured.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from neurolsc.diagnosis import rules
from neurolsc.diagnosis.case import Case, Sign
from neurolsc.diagnosis.cures import Treatment
from neurolsc.diagnosis.measurements import EPSILON
from neurolsc.stability.conditions import DEAD, NO_SURROGATE, NOT_FINITE, Finding

MISSING = "missing class"


@dataclass(frozen=True)
class Bounds:
    """The numbers with which rules compare. Each was set by few networks, and is to be fitted on more."""

    # A layer is saturated if it fires more than `busy` spikes per neuron and step, or if more than a share `most_busy`
    # of its neurons fire at nearly all steps: what always fires tells nothing.
    busy: float = 0.9
    most_busy: float = 0.5
    # A surrogate is closed if its mean derivative times the threshold is below this. In layers that fire,
    # fast_sigmoid(25) has 0.01 or more; a sparse fast sigmoid, whose derivative is 0 far from the threshold, has 3e-6.
    closed: float = 1e-4
    # Similarity to the input below which a layer has lost what tells samples apart, if the first layer has ten times as
    # much; and how many such layers in a row are a fault. Five Leaky layers learn with two, eight with three do not.
    lost: float = 0.02
    lost_layers: int = 3
    # Root mean square of a layer's gradient, in epsilons of Adam, below which it vanishes: at one epsilon a step of
    # Adam is half of the learning rate.
    unmoved: float = 1.0
    # A layer's gradient vanishes, too, if it is more than so many times smaller than the largest of a layer. In
    # networks of the study that learn the two differ by up to 1e6.
    faded: float = 1e6
    # A layer counts as an identity if in most neurons the largest input weight is more than so many times the second
    # largest. In drawn weights it is 1.1 times as large; in an identity layer with 64 inputs, to which 0.3 of the drawn
    # weights are added, 27 times with thresholds of 1, and 7 times with thresholds of 0.27.
    identity: float = 2.0
    # Growth of gradients over a whole run. A mean radius above 1 alone is no fault: where a few points have large ones,
    # products shrink. LIF of the study learn as often at 30-fold as without any growth.
    growth: float = 100.0
    # Product of the singular values through depth. Networks of the study that learn have up to 40.
    across: float = 80.0
    # Peak of a surrogate's derivative above which the surrogate is what makes gradients grow through depth: surrogates
    # of the libraries have 1, a logistic one of sharpness 25 has 6.
    steep: float = 4.0
    # Share of neurons, above which it is a fault, whose states grow without a spike or a weight.
    unstable: float = 0.01
    # Share of a layer's time constants, above which it is a fault, that no step of an optimizer moves.
    stuck: float = 0.5
    # A class is missing, and not by chance, if as many labels, drawn evenly, leave out one with less than this
    # probability.
    chance: float = 0.01
    # Thresholds by which a step of Adam may move the voltages of a layer above the first. Where the loss reads spikes:
    # four and eight Leaky layers of snnTorch train up to 0.4, and from 0.9 on end with an output that fires always or
    # never. Where it reads a linear layer or an integrator: eight Leaky layers train up to 2.5, and not at 8.
    step: float = 0.7
    step_below_linear: float = 3.0
    # Number of updates on a batch, after which a loss has moved if it moves at all. A loss has fallen well if it ends
    # below the share `lower` of its start. A learning rate is too high if the loss ends more than `higher` times as
    # high as at a tenth of the rate, and the latter falls well or the former has risen `risen`-fold.
    updates: int = 10
    lower: float = 0.95
    higher: float = 1.005
    risen: float = 2.0
    # A start is slow if updates lower the loss by no more than this share of what they do in an initialised copy. In
    # four and eight Leaky or RLeaky layers that end at less than half of the best score, the share is below 0.05.
    slow: float = 0.2
    # Share of the loss by which the initialised copy has to end lower: two losses closer than that may differ by noise.
    gains: float = 0.02
    # Share of its first value to which a training loss has to fall, over at least three epochs, to count as learnt.
    learnt: float = 0.9


BOUNDS = Bounds()


@dataclass(frozen=True)
class Fault:
    """A kind of fault.

    Attributes:
        name: the kind, for programs.
        condition: what makes it a fault, in words.
        advice: what is to be done, in words.
        test: the rule, which yields a sign for each place of a case where it finds the fault.
        cure: returns what is to be done about one sign, in words.
        treatment: makes the treatment by `try_cures` of some layers, counted from 1; None: the kind has none.
        unless_learnt: True if a network that has learnt is not tested for it.
    """

    name: str
    condition: str
    advice: str
    test: Callable[[Case], Iterator[Sign]]
    cure: Callable[[Case, Sign], str]
    treatment: Callable[[Case, Sequence[int]], Treatment | None] | None = None
    unless_learnt: bool = False


FAULTS: tuple[Fault, ...] = (
    Fault(
        "input batch first",
        "of a module that goes through time itself: x has as many steps, along its first axis, as y has labels, and not "
        "as many samples",
        "transpose x to (T, B, ...)",
        rules.is_batch_first,
        rules.cure_batch_first,
    ),
    Fault(
        "empty input",
        "x is all zeros, or all of its samples are alike",
        "give a batch of your data",
        rules.says_nothing,
        rules.cure_empty_input,
    ),
    Fault(
        "loss not finite",
        "with `y`: the loss is NaN or infinite before any update",
        "look in the loss for a division by 0, a logarithm of 0 or outputs that are too large",
        rules.has_no_finite_loss,
        rules.cure_loss,
    ),
    Fault(
        "nothing to train",
        "with `y`: no parameter has `requires_grad=True`",
        "call `net.requires_grad_(True)`",
        rules.has_nothing_to_train,
        rules.cure_frozen_network,
    ),
    Fault(
        NO_SURROGATE,
        "its spikes have no derivative",
        "give it a surrogate gradient",
        rules.has_no_surrogate,
        rules.cure_surrogate,
    ),
    Fault(
        NOT_FINITE,
        "the derivative of its surrogate is NaN or infinite near the threshold",
        "take another surrogate",
        rules.is_not_finite,
        rules.cure_surrogate,
    ),
    Fault(
        "closed surrogate",
        f"it fires, but the mean derivative of its surrogate at its voltages is below {BOUNDS.closed:g} spikes per "
        "threshold",
        "take another surrogate",
        rules.is_closed,
        rules.cure_surrogate,
    ),
    Fault(
        "fresh batch norm",
        "a batch norm has seen no batch in training mode, or too few (66 at the usual momentum), so it would not normalise in "
        "evaluation",
        "run some 70 batches in training mode first",
        rules.has_fresh_batch_norms,
        rules.cure_fresh_batch_norms,
    ),
    Fault(
        DEAD,
        "it never fires in the batch (an integrator, or an output above a layer that fires, need not)",
        "`initialize`; mend the lowest dead layer first",
        rules.is_dead,
        rules.cure_dead,
        rules.treat_by_initialising,
    ),
    Fault(
        "saturated layer",
        f"it fires more than {BOUNDS.busy:g} spikes per neuron and step, or {BOUNDS.most_busy:.0%} of its neurons fire at "
        "nearly all steps",
        "`initialize`",
        rules.is_saturated,
        rules.cure_saturated,
        rules.treat_by_initialising,
    ),
    Fault(
        "lost signal",
        f"{BOUNDS.lost_layers} hidden layers in a row keep less than {BOUNDS.lost:.0%} of what tells samples apart "
        "(similarity to the input)",
        "`initialize`",
        rules.has_lost_the_input,
        rules.cure_lost_input,
        rules.treat_by_initialising,
        unless_learnt=True,
    ),
    Fault(
        "vanishing gradient",
        f"the root mean square of its gradient is below {BOUNDS.unmoved * EPSILON:g}, or its norm is {BOUNDS.faded:.0e} "
        "times smaller than another layer's",
        "`initialize`",
        rules.is_vanishing,
        rules.cure_vanishing,
        rules.treat_by_initialising,
        unless_learnt=True,
    ),
    Fault(
        "exploding through time",
        f"gradients grow more than {BOUNDS.growth:g}-fold from the last step back to the first",
        "weaken what makes them grow: scale the recurrent weights, detach the reset, or lower the surrogate's peak",
        rules.explodes_in_time,
        rules.cure_growth_in_time,
        rules.treat_growth,
        unless_learnt=True,
    ),
    Fault(
        "exploding through depth",
        f"gradients can grow more than {BOUNDS.across:g}-fold from the last layer to the first (product of the largest "
        "singular values)",
        "lower the surrogate's peak; else `initialize`",
        rules.explodes_in_depth,
        rules.cure_growth_in_depth,
        unless_learnt=True,
    ),
    Fault(
        "unstable below threshold",
        f"the states of more than {BOUNDS.unstable:.0%} of its neurons grow even without spikes and weights (their radius "
        "is above 1)",
        "change the parameter that the report names",
        rules.is_unstable,
        rules.cure_unstable,
    ),
    Fault(
        "frozen time constant",
        "a time constant is a parameter with `requires_grad=False`",
        "set `requires_grad=True`",
        rules.is_frozen,
        rules.cure_frozen,
    ),
    Fault(
        "stuck time constant",
        f"an optimizer cannot move the time constants of more than {BOUNDS.stuck:.0%} of its neurons: they are too long, "
        "or clamped",
        "set it to between 0.1 and 1e4 steps, a decay to between 0 and 1",
        rules.is_stuck,
        rules.cure_stuck,
    ),
    Fault(
        MISSING,
        f"y lacks a class, which by chance happens in less than {BOUNDS.chance:.0%} of such batches",
        "complete the data, or give the network fewer outputs",
        rules.misses_classes,
        rules.cure_missing_classes,
    ),
    Fault(
        "learning rate too high for a layer",
        f"with `lr`: one step of Adam moves the voltages of a layer above the first by more than {BOUNDS.step:g} "
        f"thresholds ({BOUNDS.step_below_linear:g} where the loss reads no spikes)",
        "lower the learning rate to that of the report",
        rules.steps_are_large,
        rules.cure_large_steps,
        rules.treat_the_rate,
    ),
    Fault(
        "slow start",
        f"with `lr` and `y`: {BOUNDS.updates} updates lower the loss by less than {1 - BOUNDS.lower:.0%}; those of an "
        f"initialised copy lower it {1 / BOUNDS.slow:g} times as much, and it ends {BOUNDS.gains:.0%} lower (both "
        "measured from the loss of guessing, if the first loss is higher)",
        "`initialize`",
        rules.starts_slowly,
        rules.cure_slow_start,
        rules.treat_by_initialising,
        unless_learnt=True,
    ),
    Fault(
        "learning rate too high",
        f"with `lr` and `y`: a tenth of it lowers the loss by more than {1 - BOUNDS.lower:.0%} in {BOUNDS.updates} updates, "
        f"and with it the loss ends higher; or the loss rises {BOUNDS.risen:g}-fold, or hidden layers fall silent or "
        "saturate. With `history`: the loss only grew",
        "lower the learning rate tenfold",
        rules.is_too_fast,
        rules.cure_too_fast,
        rules.treat_the_rate,
    ),
)

"""All kinds of faults, in the order in which they are to be mended."""

BY_NAME = {fault.name: fault for fault in FAULTS}
OF_THE_RATE = tuple(fault.name for fault in FAULTS if fault.treatment is rules.treat_the_rate)


def findings(case: Case) -> tuple[Finding, ...]:
    """Return a finding for every sign of the faults in FAULTS, in its order."""
    found = []
    for fault in FAULTS:
        if fault.unless_learnt and case.learnt:
            continue
        for sign in fault.test(case):
            cure = fault.cure(case, sign)
            found.append(Finding(sign.layer, sign.problem, cure, cause=sign.cause, name=fault.name))
    return tuple(found)


def of_labels(labels: Tensor, classes: int) -> tuple[Finding, ...]:
    """Return a finding if the labels (n,) of a whole data set lack some of the classes; else nothing."""
    found = []
    for sign in rules.missing_classes(labels, classes, BOUNDS.chance):
        cure = rules.cure_missing_classes(None, sign)
        found.append(Finding(sign.layer, sign.problem, cure, cause=sign.cause, name=MISSING))
    return tuple(found)
