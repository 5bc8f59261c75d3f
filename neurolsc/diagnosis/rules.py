"""Rules find faults in a case, cures say what to do about them, treatments do it; `faults` has the table of all.

A rule yields a `Sign` for each place where it finds a fault. Next to it stands its cure, which returns in words what
the user is to do. Where the package can do it, there is a treatment of some layers as well. A cure advises the
recommended initialisation only if that takes the fault away on a copy (`mended`).
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from neurolsc.diagnosis import cures
from neurolsc.diagnosis.case import Case, Sign, found_by, listed, mended, product_across
from neurolsc.diagnosis.causes import Growth, fresh_batch_norms, peak
from neurolsc.diagnosis.cures import Calming, Treatment
from neurolsc.diagnosis.measurements import EPSILON
from neurolsc.neurons.weights import recurrent_weights
from neurolsc.stability.conditions import NO_SURROGATE, NOT_FINITE, below_threshold, has_stability_rule

LARGEST_LOG = 700  # the exponential of more overflows float64

# ---------------------------------------------------------------- the input and the modules


def is_batch_first(case: Case) -> Iterator[Sign]:
    """Find an input whose axes of time and batch look swapped."""
    if case.turned:
        yield Sign(None, "time and batch of the input look swapped", case.turned)


def cure_batch_first(case: Case, sign: Sign) -> str:
    """Advise to swap them."""
    return "give x.transpose(0, 1)"


def says_nothing(case: Case) -> Iterator[Sign]:
    """Find an input of zeros, or of samples that are all alike."""
    x = case.batch.x
    if not x.any():
        yield Sign(None, "the input is all zeros")
    elif x.shape[1] > 1 and (x == x[:, :1]).all():
        yield Sign(None, f"the {x.shape[1]} samples of the input are all alike")


def cure_empty_input(case: Case, sign: Sign) -> str:
    """Advise to give samples of the data."""
    return "give a batch of your data, as your loop reads it"


def has_no_finite_loss(case: Case) -> Iterator[Sign]:
    """Find a loss that is NaN or infinite before any update."""
    loss = case.measured.loss
    if loss is not None and not math.isfinite(loss):
        yield Sign(None, f"the loss is {loss:g} before any update")


def cure_loss(case: Case, sign: Sign) -> str:
    """Advise another loss."""
    return "look in the loss for a division by 0, a logarithm of 0 or outputs that are too large"


def has_nothing_to_train(case: Case) -> Iterator[Sign]:
    """Find a network whose parameters are all frozen."""
    if case.batch.targets is not None and not any(p.requires_grad for p in case.network.parameters()):
        yield Sign(None, "no parameter of the network has requires_grad=True")


def cure_frozen_network(case: Case, sign: Sign) -> str:
    """Advise to let an optimizer change parameters."""
    return "call net.requires_grad_(True), or leave out y"


def has_no_surrogate(case: Case) -> Iterator[Sign]:
    """Find layers whose spikes have no derivative."""
    for fault in case.surrogates:
        if fault.name == NO_SURROGATE:
            yield Sign(fault.layer, fault.problem, fault.cause)


def is_not_finite(case: Case) -> Iterator[Sign]:
    """Find layers whose surrogate has a derivative that is NaN or infinite."""
    for fault in case.surrogates:
        if fault.name == NOT_FINITE:
            yield Sign(fault.layer, fault.problem, fault.cause)


def is_closed(case: Case) -> Iterator[Sign]:
    """Find layers that fire, but whose surrogate has a derivative of nearly 0 at their voltages."""
    for i, layer in case.layers:
        slope = case.slopes[i - 1]  # NaN, where it was not measured, is not below the bound
        if layer.activity.rate > 0 and slope < case.bounds.closed:
            bound = f"its derivative is below {case.bounds.closed:g} spikes per threshold at its voltages"
            yield Sign(i, "its surrogate passes no gradient", bound)


def cure_surrogate(case: Case, sign: Sign) -> str:
    """Advise a surrogate with a gradient at all voltages."""
    return "use fast_sigmoid or atan"


def has_fresh_batch_norms(case: Case) -> Iterator[Sign]:
    """Find batch norms that have seen no batch, or too few; all are one sign."""
    modules = [*case.network.cells, case.network.readout]
    fresh = [i for i, module in enumerate(modules, start=1) if fresh_batch_norms(module)]
    layers = [i for i in fresh if i < len(modules)]
    places = []
    if layers:
        places.append(listed(layers))
    if len(modules) in fresh:  # the last module is no layer
        places.append("the readout")
    if places:
        batches = min(int(norm.num_batches_tracked) for module in modules for norm in fresh_batch_norms(module))
        seen = "too few batches" if batches else "no batch"
        problem = f"batch norms of {' and '.join(places)} have seen {seen}: in evaluation they do not normalise"
        cause = f"num_batches_tracked is {batches}"
        if case.batch.x.shape[1] > 1:  # one sample has no statistics
            cause += "; all other findings were measured with statistics of this batch"
        yield Sign(None, problem, cause)


def cure_fresh_batch_norms(case: Case, sign: Sign) -> str:
    """Advise to let batch norms collect statistics."""
    return "run some 70 batches in training mode before you evaluate, initialise or measure it"


# ---------------------------------------------------------------- activity


def is_dead(case: Case) -> Iterator[Sign]:
    """Find layers that never fire."""
    for i in case.dead:
        cause = "its thresholds lie above all that it gets"
        if i - 1 in case.dead:
            cause = "the layer below is silent"
        elif i == 1 and not case.batch.x.any():
            cause = "the input is all zeros"
        yield Sign(i, "never fires", cause)


def cure_dead(case: Case, sign: Sign) -> str:
    """Advise to mend the lowest dead layer first: by the initialisation if it fires in a copy, else by thresholds."""
    if sign.layer != case.dead[0]:
        return f"mend layer {case.dead[0]} first"
    if sign.layer == 1 and not case.batch.x.any():
        return "give inputs that are not all 0"
    if mended(case, is_dead, sign):
        return cures.ADVICE
    return "lower its thresholds, or raise its input weights"


def is_saturated(case: Case) -> Iterator[Sign]:
    """Find layers that fire at nearly all steps, on the average or in most of their neurons."""
    for i, layer in case.layers:
        if not case.saturated(layer.activity):
            continue
        cause = "its thresholds lie below what it gets"
        if layer.activity.rate > case.bounds.busy:
            yield Sign(i, f"fires {layer.activity.rate:.2g} spikes per neuron and step", cause)
        else:
            yield Sign(i, f"{layer.activity.saturated:.0%} of its neurons fire at nearly all steps", cause)


def cure_saturated(case: Case, sign: Sign) -> str:
    """Advise the initialisation if the layer of a copy then fires less, else other thresholds or weights."""
    if mended(case, is_saturated, sign):
        return cures.ADVICE
    return "raise its thresholds, or lower its weights"


def has_lost_the_input(case: Case) -> Iterator[Sign]:
    """Find several hidden layers in a row that keep little of an input of which the first layer keeps much."""
    first = case.measured.layers[0].similarity_to_input
    if case.dead:  # a dead layer is the cause
        return
    if not first > 10 * case.bounds.lost:  # the first layer has lost it already, or it is NaN
        return
    yield from keeps_little(case)


def keeps_little(case: Case) -> Iterator[Sign]:
    """Find several hidden layers in a row that fire, but whose spikes hardly differ between samples; all are one sign.

    `similarity_to_input` is the share of the differences between samples that a layer preserves.
    """
    first = case.measured.layers[0].similarity_to_input
    lost: list[int] = []
    for i, layer in case.layers[1:]:
        hidden = layer.activity.rate > 0 and not case.is_output(i)
        if hidden and layer.similarity_to_input < case.bounds.lost:
            lost.append(i)
        elif len(lost) < case.bounds.lost_layers:  # a row that is too short does not count
            lost = []
    if len(lost) < case.bounds.lost_layers:
        return
    highest = max(case.measured.layers[i - 1].similarity_to_input for i in lost)
    problem = f"{listed(lost)} keep at most {highest:.1%} of what tells samples apart, layer 1 keeps {first:.0%}"
    yield Sign(lost[0], problem, "each layer of random weights drops a part", others=tuple(lost[1:]))


def cure_lost_input(case: Case, sign: Sign) -> str:
    """Advise the initialisation if spikes of a copy then differ between samples, else a shallower network."""
    if mended(case, keeps_little, sign):
        return cures.ADVICE
    return "take fewer layers, or connections that skip some"


# ---------------------------------------------------------------- gradients


def is_vanishing(case: Case) -> Iterator[Sign]:
    """Find layers that get next to no gradient, where neither a surrogate nor a dead layer is the cause."""
    if not found_by(case, has_no_surrogate, is_closed, is_dead):
        yield from gets_no_gradient(case)


def gets_no_gradient(case: Case) -> Iterator[Sign]:
    """Find layers whose gradient is too small for Adam or compared with another layer's; all are one sign."""
    trained = [(i, layer.gradient, layer.entries) for i, layer in case.layers if layer.gradient is not None]
    if not trained:
        return
    largest = max(size for _, size, _ in trained)
    gone = []  # pairs of a layer whose gradient vanishes and the norm of that gradient
    for i, size, entries in trained:
        root_mean_square = size / math.sqrt(entries)
        if root_mean_square < case.bounds.unmoved * EPSILON or size * case.bounds.faded < largest:
            gone.append((i, size))
    if not gone:
        return
    first, size = gone[0]
    others = tuple(i for i, _ in gone[1:])
    also = ""
    if others:
        also = f", and next to none {listed(others)}"
    cause = f"its norm is {size:.0e}, in the layer that gets most {largest:.0e}; Adam's epsilon is {EPSILON:g}"
    yield Sign(first, f"no gradient reaches it{also}", cause, others)


def cure_vanishing(case: Case, sign: Sign) -> str:
    """Advise the initialisation if the layer of a copy then gets a gradient, else other surrogates or currents."""
    if mended(case, gets_no_gradient, sign):
        return cures.ADVICE
    return "take a surrogate with wider tails, such as atan, or normalise the currents of each layer"


def explodes_in_time(case: Case) -> Iterator[Sign]:
    """Find layers whose gradients grow along a run; the cause is the part without which they grow least."""
    for i, found in case.growths.items():
        fold = math.exp(min(found.rate, LARGEST_LOG))
        problem = f"gradients grow {fold:.2f}-fold at every step back in time"
        size = case.measured.layers[i - 1].gradient
        if size is not None and not math.isfinite(size):
            problem += f", that of the loss to {size}"
        if found.part == "leak":
            yield Sign(i, problem, "neither recurrence nor reset makes them grow: its own decays do")
            continue
        fold_without = math.exp(found.without)
        yield Sign(i, problem, f"due to the {found.part}: without it {fold_without:.2f}-fold")


def cure_growth_in_time(case: Case, sign: Sign) -> str:
    """Advise to lower the part that makes gradients grow, in a way that the layer allows."""
    assert sign.layer is not None
    cell = case.measurable.cells[sign.layer - 1]
    found = case.growths[sign.layer]
    switch = cell.reset_switch()
    if found.part == "recurrence":
        names = ", ".join(matrix.name for matrix in recurrent_weights(cell))
        return f"scale {names} down, to {bearable(found):.2g} of it"
    if found.part == "reset" and switch is not None and switch.cure:  # a user can detach it
        return switch.cure
    if found.part == "reset":
        return f"lower the peak of its surrogate, {found.peak:.3g}, by its slope or alpha"
    if found.part != "leak":  # a parameter, such as the adaptation
        return f"lower {found.part}"
    # the leak: a condition on the neuron's parameters, if one is broken
    alone = None
    if has_stability_rule(cell):
        alone = below_threshold(cell).main_bound()
    if alone is not None:
        return alone.cure
    return "shorten its time constants, or let its gates retain less"


def bearable(found: Growth) -> float:
    """Return the factor on a part at which gradients would keep their size, if their growth were linear in the part.

    It is kept between 0.05 and 0.95, so that a treatment lowers the part but does not take it away.
    """
    whole = math.exp(min(found.rate, LARGEST_LOG))
    without = math.exp(found.without)
    return min(max((1 - without) / (whole - without), 0.05), 0.95)


def treat_growth(case: Case, layers: Sequence[int]) -> Treatment | None:
    """Return a treatment that weakens the parts which make gradients grow in some layers, counted from 1.

    It scales weights or other parameters and detaches resets. None if this can be done in none of the layers.
    """
    factors: dict[tuple[int, str], float] = {}
    detached = []
    for i in layers:
        found = case.growths.get(i)
        cell = case.measurable.cells[i - 1]
        if found is None or found.part == "leak":  # there is no treatment of a leak
            continue
        if found.part == "reset":
            switch = cell.reset_switch()
            if switch is not None and switch.cure:  # a user can detach it
                detached.append(i - 1)
            continue
        names = [found.part]
        if found.part == "recurrence":
            names = [matrix.name for matrix in recurrent_weights(cell)]
        factors |= {(i - 1, name): bearable(found) for name in names}
    words = ["the reset detached"] if detached else []
    words += [f"{name} of layer {layer + 1} scaled by {factor:.2f}" for (layer, name), factor in factors.items()]
    if words:
        return Treatment("; ".join(words), Calming(factors, tuple(detached)))
    return None


def explodes_in_depth(case: Case) -> Iterator[Sign]:
    """Find gradients that grow from the last layer to the first."""
    times = product_across(case.measured)
    if times > case.bounds.across:
        problem = f"gradients grow up to {times:.2g}-fold from the last layer to the first"
        steepest, highest = max(peaks(case).items(), key=lambda pair: pair[1], default=(0, 0.0))
        cause = "largest singular values through depth are above 1 in most layers"
        if highest > case.bounds.steep:
            cause = f"the surrogate of layer {steepest} has a peak of {highest:.3g}"
        yield Sign(None, problem, cause)


def peaks(case: Case) -> dict[int, float]:
    """Return the largest derivative of each layer's surrogate, by layer, counted from 1, where it is known."""
    by_layer = {i: peak(cell) for i, cell in enumerate(case.measurable.cells, start=1)}
    return {i: value for i, value in by_layer.items() if not math.isnan(value)}


def cure_growth_in_depth(case: Case, sign: Sign) -> str:
    """Advise to lower the peak of a surrogate if it is high; else the initialisation, if it helps a copy."""
    if any(value > case.bounds.steep for value in peaks(case).values()):
        return "lower that peak, by the slope or alpha of the surrogate"
    if mended(case, explodes_in_depth, sign):
        return cures.ADVICE
    return "lower the input weights of upper layers, and their thresholds with them"


# ---------------------------------------------------------------- constants


def is_unstable(case: Case) -> Iterator[Sign]:
    """Find layers with neurons whose own variables grow without any spike or weight."""
    for i, cell in enumerate(case.measurable.cells, start=1):
        if not has_stability_rule(cell):
            continue
        alone = below_threshold(cell)  # the neurons without spikes and weights
        if alone.outside <= case.bounds.unstable:  # the share whose radius is above 1
            continue
        broken = alone.main_bound()  # None if the cell names no bound
        cause = f"radii up to {alone.radius.max():.2f}"
        if broken is not None:
            cause = f"{broken.violated}; {cause}"
        yield Sign(i, f"{alone.outside:.0%} of its neurons are unstable below threshold", cause)


def cure_unstable(case: Case, sign: Sign) -> str:
    """Advise to keep the condition that most neurons break."""
    assert sign.layer is not None
    broken = below_threshold(case.measurable.cells[sign.layer - 1]).main_bound()
    if broken is None:
        return "bring its parameters back"
    return broken.cure


def is_frozen(case: Case) -> Iterator[Sign]:
    """Find time constants that are parameters, but need no gradient, so that no optimizer moves them."""
    for i, layer in case.layers:
        for constant in layer.constants:
            if not constant.fixed and not constant.trained:
                yield Sign(i, f"{constant.name} is frozen", "its requires_grad is False")


def cure_frozen(case: Case, sign: Sign) -> str:
    """Advise to train the parameter."""
    return "give it requires_grad=True"


def is_stuck(case: Case) -> Iterator[Sign]:
    """Find time constants that are trained, but that no step of an optimizer moves."""
    for i, layer in case.layers:
        still = {name.replace("log_", "") for name in layer.still}  # log_tau_v holds the time constant tau_v
        fires = layer.activity.rate != 0  # a silent layer may get no input: then no decay has a gradient
        for constant in layer.constants:
            problem = f"no step of an optimizer can move {constant.name}"
            if not constant.trained:
                continue
            if constant.stuck > case.bounds.stuck:
                yield Sign(i, problem, f"a decay of {constant.decay:.6g} has no derivative left")
            elif fires and constant.name in still:
                yield Sign(i, problem, "its gradient is 0, as behind a clamp")


def cure_stuck(case: Case, sign: Sign) -> str:
    """Advise a value at which the decay can move."""
    return "set it to between 0.1 and 1e4 steps, a decay to between 0 and 1"


# ---------------------------------------------------------------- targets and the learning rate


def missing_classes(labels: Tensor, classes: int, chance: float) -> Iterator[Sign]:
    r"""Find classes that no label names, unless there are so few labels that this may be chance; all are one sign.

    Of n labels drawn evenly from C classes, some class is missing with a probability of at most :math:`C (1 -
    1/C)^n`.

    Args:
        labels: classes, of any shape, n of them.
        classes: C, the number of classes.
        chance: the probability from which on nothing is found.
    """
    counts = torch.bincount(labels.flatten().long().cpu(), minlength=classes)
    absent = (counts == 0).nonzero().flatten().tolist()
    if absent and classes * (1 - 1 / classes) ** labels.numel() < chance:
        if len(absent) == 1:
            which = f"class {absent[0]} is"
        else:
            which = f"classes {', '.join(map(str, absent))} are"
        yield Sign(None, f"{which} missing from {labels.numel()} labels", "the data lack it")


def misses_classes(case: Case) -> Iterator[Sign]:
    """Find classes that the targets of the batch do not name, if the targets are classes of samples (B,)."""
    y = case.batch.targets
    classes = case.network.n_out
    if y is None or y.ndim != 1 or y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        return
    if len(y) and y.min() >= 0 and y.max() < classes:
        yield from missing_classes(y, classes, case.bounds.chance)


def cure_missing_classes(case: Case | None, sign: Sign) -> str:
    """Advise to complete the data, or to take fewer outputs; it needs no case."""
    return "give samples of every class, or a readout of as many classes as there are"


def steps_are_large(case: Case) -> Iterator[Sign]:
    """Find the layer above the first whose voltages a step of Adam moves farthest, if that is too far."""
    if case.lr is None or case.learnt:  # a network that has learnt bears its steps
        return
    worst = 0  # no layer
    largest = largest_step(case)
    for layer, step_size in enumerate(case.step_sizes, start=1):
        if layer > 1 and step_size * case.lr > largest:  # never true of NaN, a step that is not known
            worst = layer
            largest = step_size * case.lr
    if worst:
        problem = f"a step of Adam at {case.lr:g} moves its voltages by up to {largest:.2g} thresholds"
        yield Sign(worst, problem, "inputs x their rate x memory / threshold, times the learning rate")


def too_large_once_initialised(case: Case) -> str:
    """Say which lower learning rate an initialised copy of the network needs; empty if it bears the user's."""
    if case.treated is None:
        return ""
    for sign in steps_are_large(case.treated):
        return f"after {cures.ADVICE} {sign.problem} in layer {sign.layer}: {cure_large_steps(case.treated, sign)}"
    return ""


def largest_step(case: Case) -> float:
    """Return the number of thresholds by which a step may move voltages; it is smaller if the loss reads spikes."""
    if case.spikes_are_read:
        return case.bounds.step
    return case.bounds.step_below_linear


def cure_large_steps(case: Case, sign: Sign) -> str:
    """Advise a learning rate whose steps are half of what the layer can take."""
    assert sign.layer is not None
    lr = largest_step(case) / 2 / case.step_sizes[sign.layer - 1]
    return f"lower the learning rate to {lr:.1g}, or begin at a lower firing rate"


def starts_slowly(case: Case) -> Iterator[Sign]:
    """Find that updates hardly lower the loss of a copy, though they lower the loss of an initialised copy."""
    treated = case.initialised_outcome
    if treated is None or case.lr is None:
        return
    untreated = case.outcomes[case.lr].loss
    gain = case.start - treated.loss
    untreated_gain = case.start - untreated
    tells_apart = gain - untreated_gain > case.bounds.gains * case.start  # else the two may differ by noise
    if gain > 0 and tells_apart and not untreated_gain > case.bounds.slow * gain:
        first = case.outcomes[case.lr].first
        problem = f"{case.updates} at {case.lr:g} bring its loss from {first:.4g} to {untreated:.4g}"
        if first > case.start:
            problem += f", where guessing has {case.start:.4g}"
        yield Sign(None, problem, f"that of an initialised copy falls to {treated.loss:.4g}")


def cure_slow_start(case: Case, sign: Sign) -> str:
    """Advise the initialisation."""
    return cures.ADVICE


def is_too_fast(case: Case) -> Iterator[Sign]:
    """Find a history whose loss only grew, or updates on copies that end better at a tenth of the learning rate."""
    losses = [row["train_loss"] for row in case.history]
    if losses and not math.isfinite(losses[-1]):
        yield Sign(None, f"the training loss became {losses[-1]:g}", "steps that are small enough keep it finite")
        return
    if case.judged and min(losses[1:]) > losses[0]:
        problem = f"the training loss only grew, from {losses[0]:.3g} to {losses[-1]:.3g} in {len(losses)} epochs"
        yield Sign(None, problem, "steps that are small enough lower it")
        return
    if len(case.outcomes) < 2:  # a lower learning rate was not tried, as the user's does well
        return
    if found_by(case, starts_slowly):  # the slow start is the cause
        return
    (lr, high), (lower, low) = case.outcomes.items()  # the user's learning rate comes first
    broken = [words for words in case.broken(high) if words not in case.broken(low)]
    # A loss of NaN at the user's learning rate is neither lower nor higher, and so a sign.
    lower_is_no_better = high.loss <= case.bounds.higher * low.loss
    if math.isnan(high.loss) and math.isnan(low.loss) and math.isfinite(high.first):
        yield Sign(None, f"{case.updates} at {lr:g} bring its loss to nan", f"at {lower:g} they do so, too")
        return
    if math.isnan(low.loss) or (lower_is_no_better and not broken):
        return
    # the loss has neither risen much at the user's rate nor fallen well at a tenth of it
    nothing_moved = high.loss < case.bounds.risen * high.first and not case.falls(low)
    if nothing_moved and not broken:
        return
    problem = f"{case.updates} at {lr:g} bring its loss to {high.loss:.4g}"
    if broken:
        problem += f", and {', '.join(broken)}"
    yield Sign(None, problem, f"at {lower:g} they bring it to {low.loss:.4g}")


def cure_too_fast(case: Case, sign: Sign) -> str:
    """Advise a tenth of the learning rate."""
    if case.lr is None:
        return "lower the learning rate tenfold"
    return f"lower the learning rate to {case.lr / 10:g}"


def treat_by_initialising(case: Case, layers: Sequence[int]) -> Treatment | None:
    """Return the recommended initialisation, which treats the whole network; None if it refuses the network."""
    if case.initialised_copy is None:
        return None
    return Treatment(cures.ADVICE, cures.initialise)


def treat_the_rate(case: Case, layers: Sequence[int]) -> Treatment | None:
    """Return a treatment that trains at a tenth of the learning rate; the network stays as it is."""
    return Treatment("a tenth of the learning rate", cures.leave, lr=0.1)
