"""What may be wrong with a layer: each rule a function, each bound with its reason."""

import math
from collections.abc import Iterator

from neurolsc.diagnosis.figures import Figures, LayerFigures
from neurolsc.network import Network
from neurolsc.stability.findings import DEAD, Finding, held_by

SATURATED, SCALE, NEURONS = "saturated layer", "threshold out of scale", "dead neurons"
SYNCHRONOUS, EXPLODING, VANISHING = "synchronous layer", "exploding through time", "vanishing through depth"
FROZEN = "frozen time constant"

BUSY = 0.9
"""spikes per neuron and step above which a layer says little but yes"""
RARE, OFTEN = 0.01, 0.4
"""rates outside of which a threshold is out of scale. Networks woken to 0.06 to 0.25 learn, those
at 0.0002 to 0.04 hardly. A threshold of no size at all fires at every voltage above 0, which is
half of the steps: near that it decides nothing"""
MOST_DEAD = 0.5
"""share of neurons that never fire above which it is no choice of a sparse code any more"""
COMMON = 0.5
"""synchrony above which more than half of what the neurons do is done by all; layers that speech
or digits drive have 0.1 to 0.3"""
TENFOLD = math.log(10.0)
"""growth over a whole run above which gradients through time explode. A mean radius above 1 alone
is none, where a few points have large ones and products shrink; nor is the growth of a few steps,
by as much as the largest singular value, which is 1 to 3"""
CALM = "scale w_rec down: no leak is above 1 by itself"
"""what to try where the leak is the largest part of a radius above 1"""
LITTLE = 0.1
"""largest singular value through depth below which a layer lets through less than a tenth of any
gradient; five such layers leave less than 1e-5. Woken networks have 0.7, good ones 2 to 4"""
MOST_STUCK = 0.5
"""share of a layer's time constants that no step moves above which the layer is meant"""


def faults(network: Network, figures: Figures, *, learnt: bool) -> Iterator[Finding]:
    """What is wrong with the layers, from the first to the last.

    Of a network that has learnt, layers may fire often, and gradients grow: it is not for that.
    """
    silent_below = False
    scaled = all(network.cells[i].thresholds() is not None for i in network.spiking)
    for i, layer in enumerate(figures.layers):
        if not network.cells[i].integrator:
            yield from _activity(i + 1, layer, silent_below, BUSY if learnt else OFTEN, scaled)
        yield from () if learnt else _through_time(i, figures)
        if i and not silent_below:  # a silent one below has no derivatives to give
            yield from _through_depth(i + 1, layer)
        yield from _constants(i + 1, layer)
        silent_below = layer.activity.rate == 0


def _activity(number: int, layer: LayerFigures, silent_below: bool, often: float, scaled: bool) -> Iterator[Finding]:
    rate, dead, saturated, synchrony = layer.activity
    to_rate = "scale its thresholds to a rate of 0.15 (match_firing_rates)" if scaled else "scale its input weights"
    if math.isnan(rate):
        return
    if rate == 0:
        why = "the layer below is silent" if silent_below else "its thresholds lie above all that it gets"
        yield Finding(number, "never fires", to_rate, why, DEAD)
    elif rate > BUSY:
        why = "its thresholds lie below what it gets"
        yield Finding(number, f"fires {rate:.2f} spikes per neuron and step", to_rate, why, SATURATED)
    elif not RARE <= rate <= often:
        high = rate < RARE
        why = f"its thresholds are too {'high' if high else 'low'} for what it gets"
        yield Finding(number, f"fires {rate:.2g} spikes per neuron and step", to_rate, why, SCALE)
    elif saturated > 0.5:
        why = "their thresholds lie below what they get"
        yield Finding(number, f"{saturated:.0%} of its neurons fire at nearly all steps", to_rate, why, SATURATED)
    elif dead > MOST_DEAD:
        why = "their thresholds lie above all that they get"
        yield Finding(number, f"{dead:.0%} of its neurons never fire", to_rate, why, NEURONS)
    if synchrony > COMMON and rate > 0:
        problem = f"its neurons fire together, {synchrony:.0%} of their variance is common"
        cure = "halve the recurrent weights"
        yield Finding(number, problem, cure, "one drive or their own recurrence moves them all", SYNCHRONOUS)


def _through_time(i: int, figures: Figures) -> Iterator[Finding]:
    radius, exponent = figures.profile.time_mean[i].item(), figures.layers[i].exponent
    if exponent * figures.steps > TENFOLD:
        held = held_by(figures.profile, i)
        problem = f"gradients grow {math.exp(exponent):.2f}-fold at every step back in time"
        why = f"mean radius {radius:.2f}, held by the {held.name}"
        cure = CALM if held.name == "leak" else held.too_large
        yield Finding(i + 1, problem, cure, why, EXPLODING)


def _through_depth(number: int, layer: LayerFigures) -> Iterator[Finding]:
    if layer.singular_depth < LITTLE:
        problem = f"lets no gradient through to the layer below, largest singular value {layer.singular_depth:.2g}"
        cure = "scale w_in up to a radius of 0.5 through depth, and the thresholds to the rate"
        yield Finding(
            number, problem, cure, "its input weights are small, or spikes below have hardly a derivative", VANISHING
        )


def _constants(number: int, layer: LayerFigures) -> Iterator[Finding]:
    for constant in layer.constants:
        if not constant.given and not constant.trained:
            cure = f"unfreeze it: {constant.name} is to have requires_grad=True"
            yield Finding(number, f"{constant.name} is frozen", cure, "its requires_grad is False", FROZEN)
        elif not constant.given and constant.stuck > MOST_STUCK:
            problem = f"no step of an optimizer can move {constant.name}"
            why = f"a decay of {constant.decay:.6g} has no derivative left"
            yield Finding(number, problem, f"set {constant.name} to between 0.1 and 1e4 steps", why, FROZEN)
