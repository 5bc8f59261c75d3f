"""A row of numbers that are measured of a network on the probe batch, and of what the last updates did to its weights.

A row is a flat dict, so that writers of logs take it as it is. Numbers of a layer end in its number, counted from 1:
``rate_1``. What is not known is NaN or left out.
"""

import math

import torch
from torch import Tensor

from neurolsc.diagnosis.causes import step_sizes, summed_responses
from neurolsc.diagnosis.losses import Objective
from neurolsc.diagnosis.measurements import Batch
from neurolsc.init.base import Layer
from neurolsc.network import Network
from neurolsc.stability import activity, signal_to_noise, similarity_to_input, time_constants
from neurolsc.stability.conditions import surrogate_slope
from neurolsc.stability.indicators import active_fraction, gradients_by, together, trained_parameters
from neurolsc.stability.profile import depth_radius, time_radius
from neurolsc.stability.transitions import draw_steps, follow
from neurolsc.surroundings import eval_mode

Row = dict[str, float]
Weights = list[list[Tensor]]  # for each layer its input weights, then its recurrent ones; at the end the readout's

STEPS, SAMPLES = 4, 2  # of the probe batch, at which radii, surrogates and voltages are measured, the same in every row
PIECES = 4  # number of parts of the probe batch, by which the gradient's signal and noise are told apart
ACTIVE = 0.1  # share of its peak from which on a surrogate's derivative counts, as in `active_surrogate_fraction`
DRIFT = 0.01  # relative change of 1 - decay from which on impulse responses are measured anew


def put(row: Row, layer: int, **values: float) -> None:
    """Enter numbers of a layer, which is counted from 0 here and from 1 in the row."""
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
        self._decays: list[float] = []  # decays of all layers when their impulse responses were measured
        self._memory: list[float] = []  # the sum of each layer's impulse response; empty before the first row

    def measure(self, before: Weights | None = None, earlier: Weights | None = None) -> Row:
        """Measure the network, and how its weights have changed.

        Args:
            before: a copy of the weights before the last update; None: the row says nothing of that update.
            earlier: a copy of the weights at the last row; None: the row says nothing of the updates since.

        Returns:
            The row, without the number of the update and the training loss; some numbers may be NaN or infinite.

        Raises:
            FloatingPointError: if a state or a derivative is not finite.
        """
        row: Row = {}
        network = self.network
        batch = self.batch
        with eval_mode(network):
            logits, spikes, gradients = self._run()

        # What a forward run and the parameters show.
        for i, cell in enumerate(network.cells):
            layer = Layer(network, i)
            if not cell.integrator:
                rate, dead, saturated, synchrony = activity(spikes[i], batch.mask)
                put(row, i, rate=rate, dead=dead, saturated=saturated, synchrony=synchrony)
            put(row, i, similarity=similarity_to_input(batch.x, spikes[i]))
            put(row, i, weights=norm([matrix.weights for matrix in layer.inputs]))
            if layer.recurrent:
                put(row, i, recurrent=norm([matrix.weights for matrix in layer.recurrent]))
            if layer.membrane is not None:
                put(row, i, threshold=layer.resting_threshold().mean().item())
                put(row, i, surrogate_width=surrogate_width(layer))
            for constant in time_constants(cell):
                name = constant.name.removeprefix("layer.")
                put(row, i, **{f"decay_{name}": constant.decay})

        # Gradients of parts of the batch; differences between the parts are the noise.
        if batch.targets is not None:
            row["probe_loss"] = self.loss(logits, batch.targets, batch.mask).item()
            for i in range(len(network.cells)):
                of_parts = torch.stack([together(layers[i]) for layers in gradients])  # (parts, parameters)
                if not of_parts.numel():
                    continue  # all parameters are frozen
                put(row, i, gradient=of_parts.mean(0).norm().item())
                if len(gradients) > 1:
                    put(row, i, signal_to_noise=signal_to_noise(of_parts))

        # Derivatives of single steps, at the same points in every row.
        x = batch.first(SAMPLES)
        generator = torch.Generator().manual_seed(0)
        steps = draw_steps(len(x), min(STEPS, len(x)), generator)
        with eval_mode(network), torch.no_grad():
            transitions, _ = follow(network, x[: steps[-1] + 1], steps)
            for i, points in enumerate(transitions):
                put(row, i, radius_time=time_radius(points, i).radius.mean().item())
                put(row, i, radius_depth=depth_radius(points, i, "submatrix", generator).radius.mean().item())
        for i, points in enumerate(transitions):
            put(row, i, active=active_fraction(points))
            membrane = points.cell.membrane()
            if membrane is not None:
                voltages = membrane.voltage(points.before) / membrane.thresholds(points.before)
                put(row, i, voltage=voltages.mean().item())

        # What updates did to the weights.
        now = weights_of(network)
        if earlier is not None:
            for name, change in zip(names(network), relative_changes(now, earlier), strict=True):
                row[f"drift_{name}"] = change
        if before is not None:
            for name, change in zip(names(network), relative_changes(now, before), strict=True):
                row[f"change_{name}"] = change
            for i, size in enumerate(self._step_sizes(spikes)):
                if len(now[i]):  # else the layer has no weights
                    mean_change = (now[i][0] - before[i][0]).abs().mean().item()  # of the first matrix of input weights
                    put(row, i, step=size * mean_change)
        return row

    def _run(self) -> tuple[Tensor, list[Tensor], list[tuple[dict[str, Tensor], ...]]]:
        """Run the network on the batch, part by part, and take the gradient of each part.

        Returns:
            Logits and the outputs of each layer, of the whole batch; and for each part the gradients of each layer, by
            parameter, without those of the readout. Without targets the list of gradients is empty.
        """
        network = self.network
        batch = self.batch
        if batch.targets is None:
            with torch.no_grad():
                run = network.run(batch.x, mask=batch.mask)
            return run.logits, list(run.spikes), []
        parameters = trained_parameters(network)
        parts = batch.pieces(PIECES) or [batch]  # a batch of one sample has no pieces
        logits = []
        spikes = []
        gradients = []
        for part in parts:
            with torch.enable_grad():
                run = network.run(part.x, mask=part.mask)
                value = self.loss(run.logits, part.targets, part.mask)  # type: ignore[arg-type]
            gradients.append(gradients_by(value, parameters)[:-1])
            logits.append(run.logits.detach())
            spikes.append([layer.detach() for layer in run.spikes])
        done = sum(part.x.shape[1] for part in parts)
        samples = batch.x.shape[1]
        if done < samples:  # the last few samples are in no part: no gradients of them are taken
            rest = batch.part(done, samples)
            with torch.no_grad():
                run = network.run(rest.x, mask=rest.mask)
            logits.append(run.logits)
            spikes.append(list(run.spikes))
        return torch.cat(logits, 1), [torch.cat(layer, 1) for layer in zip(*spikes, strict=True)], gradients

    def _step_sizes(self, spikes: list[Tensor]) -> list[float]:
        """Return for each layer by how many thresholds its voltages move if all input weights of a neuron grow by 1.

        NaN where :func:`neurolsc.diagnosis.causes.step_sizes` has it. `spikes` are the outputs of each layer on the
        probe batch.
        """
        decays = [constant.decay for cell in self.network.cells for constant in time_constants(cell)]
        # Impulse responses cost as much as a run: they are measured again only if decays have changed.
        if not self._memory or decays_differ(decays, self._decays):
            self._decays = decays
            self._memory = summed_responses(self.network, len(self.batch.x))
        x = self.network.embedded(self.batch.x)
        return step_sizes(self.network, [x, *spikes[:-1]], self._memory)


def decays_differ(now: list[float], before: list[float]) -> bool:
    """True if one of the decays differs so much that the memory 1 / (1 - decay) changes by a hundredth or more."""
    return any(abs(a - b) > DRIFT * abs(1 - b) for a, b in zip(now, before, strict=True))


def surrogate_width(layer: Layer) -> float:
    """Return the distance above the threshold up to which the surrogate's derivative is a tenth of its peak or more.

    The peak is taken to lie at the threshold. The distance is counted in thresholds, and at most 10; 0 if the
    derivative is 0 at the threshold.
    """
    distance = torch.logspace(-5, 1, 121, **layer.cell.dtype_and_device)  # in thresholds; 20 values for a factor of 10
    threshold = layer.resting_threshold().abs().mean().to(distance)
    slope = surrogate_slope(layer.membrane, threshold * distance).abs().mean(1)
    peak = surrogate_slope(layer.membrane, distance.new_zeros(1)).abs().mean()
    active_at = distance[(slope >= ACTIVE * peak) & (peak > 0)]
    return active_at.max().item() if len(active_at) else 0.0


# ---- weights


def names(network: Network) -> list[str]:
    """Return names of the layers, "1", "2", ..., and "readout" at the end."""
    return [*(str(i) for i in range(1, len(network.cells) + 1)), "readout"]


def weights_of(network: Network) -> Weights:
    """Return the weights of each layer and of the readout, not copied."""
    weights = []
    for i in range(len(network.cells)):
        weights.append([matrix.weights for matrix in Layer(network, i).matrices])
    return [*weights, [p.detach() for p in network.readout.parameters()]]


def copy_of(weights: Weights) -> Weights:
    """Copy weights, so that updates do not reach them; to float32 if they are of half precision."""
    copies = []
    for layer in weights:
        copies.append([matrix.to(torch.promote_types(matrix.dtype, torch.float32), copy=True) for matrix in layer])
    return copies


def norm(tensors: list[Tensor]) -> float:
    """Return the norm of all entries of some tensors together; 0 without tensors."""
    return math.hypot(*(matrix.norm().item() for matrix in tensors))


def relative_changes(now: Weights, before: Weights) -> list[float]:
    """Return, for each layer and the readout, the norm of the change of its weights over their norm before.

    0 where there are no weights, or all were 0.
    """
    changes = []
    for layer_now, layer_before in zip(now, before, strict=True):
        change = norm([a - b for a, b in zip(layer_now, layer_before, strict=True)])
        size = norm(layer_before)
        changes.append(change / size if size else 0.0)
    return changes


def not_finite(network: Network) -> list[str]:
    """Return the names of layers, as :func:`names` gives them, with parameters that are NaN or infinite."""
    parts = zip(names(network), [*network.cells, network.readout], strict=True)
    return [name for name, part in parts if not all(p.isfinite().all() for p in part.parameters())]
