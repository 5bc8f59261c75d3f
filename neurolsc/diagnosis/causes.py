r"""What causes a fault, measured: parts of a step taken away, derivatives at the voltages that occur, sizes of steps.

A cause is not inferred from what can be changed: a part (recurrent weights, reset, adaptation) is taken away while the
states stay, and the growth of gradients is measured again.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from neurolsc.init.base import Layer
from neurolsc.interop.wrapped import WrappedCell
from neurolsc.network import Network
from neurolsc.neurons.cell import Cell, ResetSwitch
from neurolsc.neurons.parameters import replaced, value_of
from neurolsc.neurons.weights import WeightMatrix, owner_of, recurrent_weights, weight_matrices
from neurolsc.stability.conditions import surrogate_slope
from neurolsc.stability.indicators import layer_exponents
from neurolsc.stability.transitions import follow
from neurolsc.surroundings import eval_mode

# ---- growth through time


class Growth(NamedTuple):
    """How gradients of a layer grow through time, and which part makes them grow."""

    rate: float  # growth in nats per step
    part: str  # "recurrence", "reset" or a parameter's name; "leak" if no part that can be taken away makes it grow
    without: float  # growth in nats per step without that part; of the leak, which stays, the same as rate
    peak: float  # largest derivative of the surrogate, NaN if not known


ALMOST_NOTHING = 1e-12  # factor on a part that is taken away: a parameter stored as its logarithm cannot be 0
A_TENTH = 0.1  # share of the growth that a part has to make up to be its cause


def growth(network: Network, x: Tensor, layer: int, *, seed: int = 0) -> Growth:
    """Measure how gradients of a layer grow through time, and find the part of its step that makes them grow.

    Growth is the largest finite-time Lyapunov exponent, a mean over samples. It is measured again with each part taken
    out of the derivatives in turn: recurrent weights, the reset, and each parameter by which a neuron's spikes act on
    itself. The states stay those of the whole network, and parameters are put back.

    Args:
        network: the network.
        x: input (T, B, n_in).
        layer: the layer, counted from 0.
        seed: seed of the direction that is followed.

    Returns:
        The growth; its part is "leak" if no part lowers it by a tenth.
    """
    batch = x.shape[1]
    with eval_mode(network), torch.no_grad():
        cell = network.cells[layer]
        of_layers, _ = follow(network, x, torch.arange(len(x)))
        transitions = of_layers[layer]

        def measured() -> float:
            """Return the exponent along the states of the run; derivatives are those of the layer as it is now."""
            return layer_exponents(transitions, batch, count=1, seed=seed).mean().item()

        whole = measured()
        without: dict[str, float] = {}  # the growth without each part
        weights = [matrix for matrix in recurrent_weights(cell) if matrix.weights.any()]
        if weights:
            with scaled([(matrix.cell, matrix.name) for matrix in weights], ALMOST_NOTHING):
                without["recurrence"] = measured()
        switch = cell.reset_switch()
        if switch is not None:
            with switched(switch):
                without["reset"] = measured()
        for name in own_feedback(cell):
            with scaled([(cell, name)], ALMOST_NOTHING):
                without[name] = measured()
    part = min(without, key=without.__getitem__, default="leak")  # the part without which gradients grow least
    least = without.get(part, whole)
    # both are -inf where a layer passes nothing through time, and then their difference is NaN
    no_part_matters = least == whole or whole - least < A_TENTH * abs(whole)
    if no_part_matters:
        return Growth(whole, "leak", whole, peak(cell))
    return Growth(whole, part, least, peak(cell))


def own_feedback(cell: Cell) -> list[str]:
    """Return names of parameters by which a neuron's spikes act on itself, such as the adaptation.

    Reset and recurrent weights are not among them.
    """
    recurrent = {matrix.name for matrix in recurrent_weights(cell)}
    names = []
    for each in cell.scaled_parameters:
        # true of a parameter whose value makes the radius through time larger; a time constant acts through its decay
        grows = each.radius == "time" and each.through == "value" and each.sign > 0
        if grows and each.parameter not in recurrent:
            names.append(each.parameter)
    return names


@contextmanager
def scaled(places: list[tuple[Cell, str]], factor: float) -> Iterator[None]:
    """Multiply the parameters at places (cell, name) by a factor inside the block; afterwards they are as before."""
    values = []
    for cell, name in places:
        owner, last = owner_of(cell, name)
        values.append((owner, last, value_of(owner, last) * factor))
    with replaced(values):
        yield


@contextmanager
def switched(switch: ResetSwitch) -> Iterator[None]:
    """Take the gradient out of a reset inside the block; afterwards it is as it was."""
    before = getattr(switch.owner, switch.name)
    setattr(switch.owner, switch.name, switch.value)
    try:
        yield
    finally:
        setattr(switch.owner, switch.name, before)


# ---- surrogates


def peak(cell: Cell) -> float:
    """Return the largest finite derivative of a cell's surrogate within three thresholds of the threshold.

    The largest threshold counts, and as 1 if it is below. NaN if the cell does not say where its surrogate is.
    """
    membrane = cell.membrane()
    if membrane is None:
        return math.nan
    threshold = membrane.thresholds(cell.initial_state(1)).detach().abs().max().clamp(min=1.0)
    distance = 3 * threshold * torch.linspace(-1, 1, 2001, **cell.dtype_and_device)
    slope = surrogate_slope(membrane, distance).abs()
    return slope[slope.isfinite()].max().item()


def mean_slopes(network: Network, x: Tensor) -> list[float]:
    r"""Return the mean derivative of each layer's surrogate, times the threshold, over a run on x (T, B, n_in).

    .. math:: \frac{1}{TBn} \sum_{t,b,i} |\vartheta_i[t, b]\, H'(v_i[t, b] - \vartheta_i[t, b])|

    with the surrogate derivative H' at the voltage v and the threshold :math:`\vartheta`. NaN if a cell does not say
    where its surrogate is, 0 if its spikes have no derivative. The factor :math:`\vartheta_i` keeps the mean the same
    if the weights, the thresholds and the width of the surrogate of a layer are all scaled by one number. A threshold
    of 0 counts as 1.
    """
    found = []
    with eval_mode(network):
        of_layers, _ = follow(network, x, torch.arange(len(x)))
        for transitions in of_layers:
            membrane = transitions.cell.membrane()
            if membrane is None:
                found.append(math.nan)
                continue
            threshold = membrane.thresholds(transitions.before).detach()  # (P, n), P points (step, sample)
            distance = membrane.voltage(transitions.before).detach() - threshold
            # in the shape of the state, in which the surrogate reads it
            distance = distance.view_as(getattr(transitions.before, membrane.name))
            with torch.enable_grad():
                leaf = distance.clone().requires_grad_()
                spikes = membrane.spike(leaf)
                if not spikes.requires_grad:  # no surrogate
                    found.append(0.0)
                    continue
                (slope,) = torch.autograd.grad(spikes.sum(), leaf, materialize_grads=True, allow_unused=True)
            size = torch.where(threshold == 0, 1.0, threshold.abs())
            found.append((size * slope.flatten(1).abs()).mean().item())
    return found


# ---- initialisations


FEWEST = 8  # inputs of a neuron: with fewer, one of them can dominate by chance


def is_identity(cell: Cell, factor: float) -> bool:
    """True if a layer is near an identity: most neurons have one input weight far larger than all others.

    Args:
        cell: the layer. Its first input matrix decides; False if there is none, or neurons have fewer than 8 inputs.
        factor: how many times as large as the second largest the largest weight has to be.
    """
    for matrix in weight_matrices(cell, "depth", inputs=True):
        weights = matrix.weights.flatten(1).abs()
        if weights.shape[1] < FEWEST:
            return False
        largest, second = weights.topk(2, dim=1).values.unbind(1)
        return (largest > factor * second).double().mean().item() > 0.5
    return False


# ---- batch norms


# Largest weight that a batch norm's initial statistics, a mean of 0 and a variance of 1, may have in the present ones.
# Variances of currents are often below 0.01, so that 1 % of 1 would still decide. With torch's momentum of 0.1 it takes
# 66 batches.
INITIAL_SHARE = 1e-3


def fresh_batch_norms(module: nn.Module) -> list[Any]:
    """Return the batch norms in training mode that have seen no batch, or too few for statistics of their own.

    In evaluation mode such a norm would not normalise, as its statistics are still in part a mean of 0 and a variance
    of 1.
    """
    found = []
    for part in module.modules():
        if not isinstance(part, nn.modules.batchnorm._BatchNorm) or part.num_batches_tracked is None:
            continue
        batches = int(part.num_batches_tracked)
        if part.momentum is None:  # a plain mean over batches
            initial = float(batches == 0)
        else:
            initial = (1 - part.momentum) ** batches
        if part.training and initial > INITIAL_SHARE:
            found.append(part)
    return found


def set_statistics(network: Network, x: Tensor) -> None:
    """Give fresh batch norms the mean statistics of all steps of a run on x (T, B, n_in), in place.

    Other modules run in evaluation mode.
    """
    fresh = fresh_batch_norms(network)
    momenta = [norm.momentum for norm in fresh]
    with eval_mode(network), torch.no_grad():  # which puts the modes back, of the fresh ones too
        for norm in fresh:
            norm.train()
            norm.reset_running_stats()  # of the few batches that it may have seen
            norm.momentum = None  # a plain mean over calls
        network.run(x)
    for norm, momentum in zip(fresh, momenta, strict=True):
        norm.momentum = momentum


# ---- steps of an optimizer


def step_sizes(network: Network, reads: Sequence[Tensor], memory: Sequence[float] | None = None) -> list[float]:
    r"""Return the number S of thresholds by which a layer's voltages move if all input weights of a neuron grow by 1.

    .. math:: S_l = \frac{N_{l-1}\, r_{l-1}}{\vartheta_l} \sum_{t < T} k_l[t]

    with N the number of inputs of a neuron, r the mean size of an input in a step, :math:`\vartheta` the resting
    threshold above the voltage at rest, and k the impulse response of the voltage. A step of Adam moves each weight by
    about the learning rate. If all weights of a neuron move in one direction, the voltage moves by S times the learning
    rate.

    Args:
        network: the network; parameters are put back.
        reads: the input (T, B, n_in) of each layer.
        memory: the sum of k over steps for each layer, if :func:`summed_responses` has measured it before.

    Returns:
        S of each layer; NaN where the impulse response is not known, or the threshold is not above the voltage at rest.
    """
    if memory is None:
        memory = summed_responses(network, len(reads[0]))
    found = []
    with eval_mode(network), torch.no_grad():
        for index, read in enumerate(reads):
            if math.isnan(memory[index]):
                found.append(math.nan)
                continue
            layer = Layer(network, index)
            matrix = layer.inputs[0]
            rest = layer.membrane.voltage(layer.cell.initial_state(1))[0].double().cpu()
            threshold = (layer.resting_threshold() - rest).mean().item()
            drive = matrix.fan_in * mean_read(layer.cell, matrix, read)
            found.append(drive * memory[index] / threshold if threshold > 0 else math.nan)
    return found


def summed_responses(network: Network, steps: int) -> list[float]:
    """Return the impulse response of each layer's voltage, summed over steps, mean over neurons.

    NaN for an integrator, for currents that a batch norm scales, and for a cell that does not say what its voltage is
    or does not have exactly one input matrix.
    """
    found = []
    with eval_mode(network), torch.no_grad():
        for index in range(len(network.cells)):
            layer = Layer(network, index)
            unknown = layer.membrane is None or len(layer.inputs) != 1
            # a batch norm undoes a step that all weights of a neuron take together
            if layer.cell.integrator or layer.normalised or unknown:
                found.append(math.nan)
            else:
                found.append(layer.impulse_response(steps).sum(0).mean().item())
    return found


def mean_read(cell: Cell, matrix: WeightMatrix, read: Tensor) -> float:
    """Return the mean absolute entry of what an input matrix multiplies, while its cell reads `read` (T, B, n_in).

    NaN if the module that owns the weights is never called, since another one uses them.
    """
    read = read.flatten(0, 1).to(cell.dtype_and_device["dtype"])
    owner, _ = owner_of(cell, matrix.name)
    if not isinstance(cell, WrappedCell):  # the matrix reads the input itself
        return read.abs().mean().item()
    if owner not in set(cell.before.modules()):  # weights of the layer, which reads what the modules before it make
        return cell.current(read).abs().mean().item()
    # weights of a module before the layer: see what that module gets
    seen: list[Tensor] = []
    handle = owner.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    try:
        cell.current(read)
    finally:
        handle.remove()
    if not seen:
        return math.nan
    return seen[0].abs().mean().item()
