"""Faults as a table of rules, each bound with its reason: what is wrong with layers and training."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neurolsc.diagnosis.measurements import Measurements
from neurolsc.network import Network
from neurolsc.stability.findings import DEAD, Finding, main_term

SATURATED, SCALE, NEURONS = "saturated layer", "threshold out of scale", "dead neurons"
SYNCHRONOUS, EXPLODING, VANISHING = "synchronous layer", "exploding through time", "vanishing through depth"
FROZEN, MISSING, TOO_FAST, AXES = "frozen time constant", "missing class", "learning rate too high", "input batch first"

BUSY = 0.9  # spikes per neuron and step above which a layer says little but yes
# Rates outside of which a threshold is out of scale. Networks woken to 0.06 to 0.25 learn, those at 0.0002 to 0.04
# hardly. A threshold of no size fires at every voltage above 0, half of the steps.
RARE, OFTEN = 0.01, 0.4
MOST_DEAD = 0.5  # share of silent neurons above which it is no sparse code any more
# Synchrony above which all neurons do more than half of what they do together; layers that speech or digits drive have
# 0.1 to 0.3.
COMMON = 0.5
# Growth over a whole run above which gradients explode. A mean radius above 1 alone is none, where a few points have
# large ones and products shrink; nor is the growth of a few steps, by as much as the largest singular value, which is 1
# to 3.
TENFOLD = math.log(10.0)
# Largest singular value through depth below which a layer passes less than a tenth of any gradient; five such layers
# leave less than 1e-5. Woken networks have 0.7, good ones 2 to 4.
LITTLE = 0.1
MOST_STUCK = 0.5  # share of a layer's time constants that no step moves above which it is a fault


class Rule(NamedTuple):
    """A fault of a layer: problem, cause and cure are filled with what was measured."""

    name: str
    found: Callable[[SimpleNamespace], bool]
    problem: str
    cause: str
    cure: str = "{to_rate}"


FIRES = "fires {rate:.2g} spikes per neuron and step"
ACTIVITY = (  # the first that applies
    Rule(DEAD, lambda m: m.rate == 0 and m.silent_below, "never fires", "the layer below is silent"),
    Rule(DEAD, lambda m: m.rate == 0, "never fires", "its thresholds lie above all that it gets"),
    Rule(
        SATURATED,
        lambda m: m.rate > BUSY,
        "fires {rate:.2f} spikes per neuron and step",
        "its thresholds lie below what it gets",
    ),
    Rule(SCALE, lambda m: m.rate < RARE, FIRES, "its thresholds are too high for what it gets"),
    Rule(SCALE, lambda m: m.rate > m.often, FIRES, "its thresholds are too low for what it gets"),
    Rule(
        SATURATED,
        lambda m: m.saturated > 0.5,
        "{saturated:.0%} of its neurons fire at nearly all steps",
        "their thresholds lie below what they get",
    ),
    Rule(
        NEURONS,
        lambda m: m.dead > MOST_DEAD,
        "{dead:.0%} of its neurons never fire",
        "their thresholds lie above all that they get",
    ),
)
OTHERS = (  # all that apply
    Rule(
        SYNCHRONOUS,
        lambda m: m.spikes and m.synchrony > COMMON and m.rate > 0,
        "its neurons fire together, {synchrony:.0%} of their variance is common",
        "one drive or their own recurrence moves them all",
        "halve the recurrent weights",
    ),
    Rule(
        EXPLODING,
        lambda m: not m.learnt and m.exponent * m.steps > TENFOLD,
        "gradients grow {growth:.2f}-fold at every step back in time",
        "mean radius {radius:.2f}, due to the {term}",
        "{less}",
    ),
    Rule(
        VANISHING,
        lambda m: m.layer > 1 and not m.silent_below and m.singular_depth < LITTLE,
        "lets no gradient through to the layer below, largest singular value {singular_depth:.2g}",
        "its input weights are small, or spikes below have hardly a derivative",
        "scale w_in up to a radius of 0.5 through depth, and the thresholds to the rate",
    ),
)
CONSTANTS = (  # of each time constant the first that applies
    Rule(
        FROZEN,
        lambda c: not c.trained,
        "{name} is frozen",
        "its requires_grad is False",
        "unfreeze it: {name} is to have requires_grad=True",
    ),
    Rule(
        FROZEN,
        lambda c: c.stuck > MOST_STUCK,
        "no step of an optimizer can move {name}",
        "a decay of {decay:.6g} has no derivative left",
        "set {name} to between 0.1 and 1e4 steps",
    ),
)


def layer_faults(network: Network, measured: Measurements, *, learnt: bool) -> Iterator[Finding]:
    """What is wrong with the layers, from the first to the last.

    Of a network that has learnt, layers may fire often, and gradients grow.
    """
    silent_below = False
    scaled = all(network.cells[i].thresholds() is not None for i in network.spiking)
    for i, layer in enumerate(measured.layers):
        term = main_term(measured.profile, i)
        values = SimpleNamespace(
            **vars(layer),
            **layer.activity._asdict(),
            layer=i + 1,
            spikes=not network.cells[i].integrator and not math.isnan(layer.activity.rate),
            silent_below=silent_below,
            learnt=learnt,
            often=BUSY if learnt else OFTEN,
            to_rate="scale its thresholds to a rate of 0.15 (match_firing_rates)"
            if scaled
            else "scale its input weights",
            steps=measured.steps,
            growth=math.exp(min(layer.exponent, 700)),
            radius=measured.profile.time_mean[i].item(),
            term=term.name,
            less="scale w_rec down: no leak is above 1 by itself" if term.name == "leak" else term.too_large,
        )
        active = next((rule for rule in ACTIVITY if values.spikes and rule.found(values)), None)
        found = [(rule, values) for rule in (active, *OTHERS) if rule and (rule is active or rule.found(values))]
        for constant in layer.constants:
            c = SimpleNamespace(**vars(constant))
            found += [(rule, c) for rule in CONSTANTS if not constant.fixed and rule.found(c)][:1]
        for rule, v in found:
            problem, cure, cause = (text.format(**vars(v)) for text in (rule.problem, rule.cure, rule.cause))
            yield Finding(i + 1, problem, cure, cause, rule.name)
        silent_below = layer.activity.rate == 0


def missing_classes(labels: Tensor, classes: int) -> Iterator[Finding]:
    """Classes that no label (n,) names, where there are labels enough to decide.

    Of n labels drawn evenly from C classes some class is left out by chance with a probability of at most :math:`C (1 -
    1/C)^n`, which has to be below 1 %.
    """
    absent = (torch.bincount(labels.flatten().long().cpu(), minlength=classes) == 0).nonzero().flatten().tolist()
    if absent and classes * (1 - 1 / classes) ** labels.numel() < 0.01:
        which = f"class {absent[0]} is" if len(absent) == 1 else f"classes {', '.join(map(str, absent))} are"
        cure = "give samples of every class, or a readout of as many classes as there are"
        yield Finding(None, f"{which} missing from {labels.numel()} labels", cure, "the data lack it", MISSING)


def too_fast(history: Sequence[Mapping[str, Any]], updates: int, losses: Mapping[float, float]) -> Iterator[Finding]:
    """A loss that only grew over epochs, or that smaller rates bring lower in a few updates.

    Args:
        history: rows with ``train_loss``, an epoch each; three or more count.
        updates: updates on one batch,
        losses: and the loss after them by learning rate, that of the training first; empty: not tried. Where steps are
            small enough, the larger ones go down faster.
    """
    epochs = [row["train_loss"] for row in history]
    if len(epochs) >= 3 and min(epochs[1:]) > epochs[0]:
        problem = f"the training loss only grew, from {epochs[0]:.3g} to {epochs[-1]:.3g} in {len(epochs)} epochs"
        cure = "lower the learning rate tenfold"
        yield Finding(None, problem, cure, "steps that are small enough lower it", TOO_FAST)
    if losses:
        lr = next(iter(losses))
        best = min(losses, key=lambda rate: losses[rate] if math.isfinite(losses[rate]) else math.inf)
        if not losses[lr] <= 1.005 * losses[best]:
            problem = f"{updates} updates on one batch at {lr:g} bring its loss to {losses[lr]:.4g}"
            cause = f"at {best:g} they bring it to {losses[best]:.4g}"
            yield Finding(None, problem, f"lower the learning rate to {best:g}", cause, TOO_FAST)
