"""A row of numbers that are measured of a network on the probe batch, and of what the last updates did to its weights.

A row is a flat dict, so that writers of logs take it as it is. Numbers of a layer end in its number, counted from 1:
``rate_1``. What is not known is NaN or left out.
"""

import math

import torch
from torch import Tensor

from neurolsc.diagnosis.causes import step_sizes, summed_responses
from neurolsc.diagnosis.losses import Objective
from neurolsc.diagnosis.measurements import Batch, layer_gradients
from neurolsc.init.base import Layer
from neurolsc.network import Network, Run, eval_mode
from neurolsc.stability import activity, signal_to_noise, similarity_to_input, time_constants
from neurolsc.stability.conditions import surrogate_slope
from neurolsc.stability.indicators import active_fraction, together
from neurolsc.stability.profile import depth_radius, time_radius
from neurolsc.stability.transitions import draw_steps, follow

Row = dict[str, float]
Weights = list[list[Tensor]]  # of each layer its input weights, then its recurrent ones; last those of the readout

STEPS, SAMPLES = 4, 2  # at which radii, surrogates and voltages are measured, the same ones in every row
PIECES = 4  # of the probe batch, between which the gradient's signal and noise are told apart
ACTIVE = 0.1  # share of its peak from which on a surrogate's derivative counts, as in `active_surrogate_fraction`
DRIFT = 0.01  # relative change of a decay, or of what is left of it, after which impulse responses are measured anew


def put(row: Row, layer: int, **values: float) -> None:
    """Enter numbers of a layer, counted from 0."""
    for name, value in values.items():
        row[f"{name}_{layer + 1}"] = value


class Probe:
    """A network with the batch on which it is measured again and again.

    Args:
        network: the network, over the parameters that are trained.
        batch: the batch.
        loss: the loss whose gradients are taken, if the batch has targets.
    """

    def __init__(self, network: Network, batch: Batch, loss: Objective) -> None:
        self.network = network
        self.batch = batch
        self.loss = loss
        self._decays: list[float] = []
        self._memory: list[float] = []

    def measure(self, before: Weights | None = None, earlier: Weights | None = None) -> Row:
        """Measure everything.

        Args:
            before: the weights before the last update, if they are known.
            earlier: the weights at the last row, if they are known.

        Raises:
            FloatingPointError: if a state or a derivative is not finite.
        """
        row: Row = {}
        network = self.network
        batch = self.batch
        with eval_mode(network), torch.no_grad():
            run = network.run(batch.x, mask=batch.mask)

        # what a run forwards shows, and the parameters
        for i, cell in enumerate(network.cells):
            layer = Layer(network, i)
            if not cell.integrator:
                rate, dead, saturated, synchrony = activity(run.spikes[i], batch.mask)
                put(row, i, rate=rate, dead=dead, saturated=saturated, synchrony=synchrony)
            put(row, i, similarity=similarity_to_input(batch.x, run.spikes[i]))
            put(row, i, weights=norm([matrix.weights for matrix in layer.inputs]))
            if layer.recurrent:
                put(row, i, recurrent=norm([matrix.weights for matrix in layer.recurrent]))
            if layer.membrane is not None:
                put(row, i, threshold=layer.resting_threshold().mean().item())
                put(row, i, surrogate_width=surrogate_width(layer))
            for constant in time_constants(cell):
                name = constant.name.removeprefix("layer.")
                put(row, i, **{f"decay_{name}": constant.decay})

        # runs backwards, of parts of the batch
        if batch.targets is not None:
            row["probe_loss"] = self.loss(run.logits, batch.targets, batch.mask).item()
            parts = batch.pieces(PIECES) or [batch]
            gradients = [layer_gradients(network, part, self.loss) for part in parts]
            for i in range(len(network.cells)):
                of_parts = torch.stack([together(layers[i]) for layers in gradients])
                if of_parts.numel():
                    put(row, i, gradient=of_parts.mean(0).norm().item())
                if of_parts.numel() and len(parts) > 1:
                    put(row, i, signal_to_noise=signal_to_noise(of_parts))

        # derivatives of single steps, at the same points in every row
        x = batch.first(SAMPLES)
        generator = torch.Generator().manual_seed(0)
        steps = draw_steps(len(x), min(STEPS, len(x)), generator)
        with eval_mode(network), torch.no_grad():
            at, _ = follow(network, x, steps)
            for i, t in enumerate(at):
                put(row, i, radius_time=time_radius(t, i).radius.mean().item())
                put(row, i, radius_depth=depth_radius(t, i, "submatrix", generator).radius.mean().item())
        for i, t in enumerate(at):
            put(row, i, active=active_fraction(t))
            membrane = t.cell.membrane()
            if membrane is not None:
                put(row, i, voltage=(membrane.voltage(t.before) / membrane.thresholds(t.before)).mean().item())

        # updates
        now = weights_of(network)
        if earlier is not None:
            for name, moved in zip(names(network), relative_changes(now, earlier), strict=True):
                row[f"drift_{name}"] = moved
        if before is not None:
            for name, moved in zip(names(network), relative_changes(now, before), strict=True):
                row[f"change_{name}"] = moved
            for i, size in enumerate(self._step_sizes(run)):
                if len(now[i]):
                    put(row, i, step=size * (now[i][0] - before[i][0]).abs().mean().item())
        return row

    def _step_sizes(self, run: Run) -> list[float]:
        """Thresholds by which voltages move if all input weights of a neuron grow by 1."""
        decays = [constant.decay for cell in self.network.cells for constant in time_constants(cell)]
        if not self._memory or decays_differ(decays, self._decays):  # an impulse response takes as long as a run
            self._decays = decays
            self._memory = summed_responses(self.network, len(self.batch.x))
        x = self.network.embedded(self.batch.x)
        return step_sizes(self.network, [x, *run.spikes[:-1]], self._memory)


def decays_differ(now: list[float], before: list[float]) -> bool:
    """True if a memory, 1 / (1 - decay), differs by more than a hundredth."""
    return any(abs(a - b) > DRIFT * abs(1 - b) for a, b in zip(now, before, strict=True))


def surrogate_width(layer: Layer) -> float:
    """Distance from the threshold, in thresholds, at which the surrogate falls to a tenth of its peak; at most 10."""
    distance = torch.logspace(-5, 1, 121, **layer.cell.dtype_and_device)
    threshold = layer.resting_threshold().abs().mean().to(distance)
    slope = surrogate_slope(layer.membrane, threshold * distance).abs().mean(1)
    peak = surrogate_slope(layer.membrane, distance.new_zeros(1)).abs().mean()
    open_at = distance[(slope >= ACTIVE * peak) & (peak > 0)]
    return open_at.max().item() if len(open_at) else 0.0


# ---- weights


def names(network: Network) -> list[str]:
    """Numbers of the layers, from 1, and the readout."""
    return [*(str(i) for i in range(1, len(network.cells) + 1)), "readout"]


def weights_of(network: Network) -> Weights:
    """The weights of each layer and of the readout, the tensors themselves."""
    found = []
    for i in range(len(network.cells)):
        found.append([matrix.weights for matrix in Layer(network, i).matrices])
    return [*found, [p.detach() for p in network.readout.parameters()]]


def copy_of(weights: Weights) -> Weights:
    """A copy, which updates do not reach; in float32 if weights are of half precision."""
    copies = []
    for layer in weights:
        copies.append([matrix.to(torch.promote_types(matrix.dtype, torch.float32), copy=True) for matrix in layer])
    return copies


def norm(tensors: list[Tensor]) -> float:
    """The norm of all entries of tensors."""
    return math.hypot(*(matrix.norm().item() for matrix in tensors))


def relative_changes(now: Weights, before: Weights) -> list[float]:
    """The norm of each layer's change, divided by the norm of its weights; 0 without weights."""
    found = []
    for after, then in zip(now, before, strict=True):
        moved = norm([a - b for a, b in zip(after, then, strict=True)])
        size = norm(then)
        found.append(moved / size if size else 0.0)
    return found


def not_finite(network: Network) -> list[str]:
    """Which layers have parameters that are NaN or infinite."""
    parts = zip(names(network), [*network.cells, network.readout], strict=True)
    return [name for name, part in parts if not all(p.isfinite().all() for p in part.parameters())]
