r"""A network in NeuroBench's harness, with all of its synapses counted.

The harness finds weights by the class of their module: ``nn.Linear``, a convolution, a recurrent module of PyTorch. The
weights of our cells are parameters of their own: of a bare network the harness counts the readout alone, without a
warning. :func:`model` gives it every matrix as an ``nn.Linear``.

Source: J. Yik et al., Nature Communications 16, 1545 (2025); the surface is that of neurobench 2.3.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor, nn

from neurolsc.interop.prepared import network_of
from neurolsc.interop.wrapped import WrappedCell
from neurolsc.network import Network
from neurolsc.neurons.weights import OneToOne, WeightMatrix, owner_of, weight_matrices
from neurolsc.surroundings import eval_mode

try:
    from neurobench.blocks.layer import STATELESS_LAYERS
    from neurobench.models import NeuroBenchModel
except ImportError as error:
    raise ImportError(
        "neurolsc.interop.neurobench needs NeuroBench: pip install 'neurobench>=2.3', or, next to a CPU build of torch, "
        "pip install --no-deps 'neurobench>=2.3' snntorch."
    ) from error

__all__ = ["model"]


def model(net: nn.Module, x: Any = None) -> "NetworkModel":
    r"""Make a model for NeuroBench's ``Benchmark`` of a network, or of a module of another library.

    The model maps batches (B, T, ...), batch first, to the network's logits (B, T, n_out). Every batch starts from
    rest, in evaluation mode and without gradients. The metrics of NeuroBench then are, per sample:

    - ``ActivationSparsity``: 1 minus the firing rate of all neurons that spike; of cells that send numbers, such as a
      GRU, the share of zeros. Integrators are left out.
    - ``SynapticOperations``: nonzero inputs of a matrix times its nonzero weights, at every step; ``Effective_ACs``
      where a batch has inputs 0 and ±1 alone in that step, else ``Effective_MACs``. Where no weight is zero their sum
      is ``neurolsc.evaluate(network, data).synops``: an event counts when it is sent, in the last step, too. ``Dense``
      is T times the number of weights. Biases, leaks and products of gates are not counted.
    - ``ConnectionSparsity``: the share of zeros in all matrices. The unused diagonal of an ALIFLowPass is zeros.
    - ``Footprint``, in bytes, is that of the network's parameters and buffers. A snnTorch model that was run has its
      last states in buffers, which NeuroBench counts.
    - ``ParameterCount``: the network's parameters.
    - ``MembraneUpdates``: how often a voltage changes; the first step counts whole.

    ``NeuronOperations`` knows some layers of snnTorch alone: of others it prints an error and is 0. A wrapped
    ``nn.Linear`` or convolution, such as the recurrent one of snnTorch's RLeaky, is counted when it is called, as in
    NeuroBench's own models: there the spikes of the last step do not count.

    Args:
        net: a network, or a module of snnTorch, norse, spikingjelly or PyTorch.
        x: an example of what the module takes, which shows the order of its layers, as for
            :func:`neurolsc.interop.prepared.prepare`. Without x it must be their order of definition.

    Raises:
        TypeError: if it is no network, cannot be wrapped, or has matrices that cannot be counted, such as those of an
            LRU, a DiagonalRNN, an embedding, or a cell of your own that names them neither in ``scaled_parameters``
            nor in ``input_matrices``.
        ValueError: at a call, if a batch is not (B, T, ...).

    Example:
        >>> from neurolsc import LIF
        >>> harness = model(Network([LIF(8, 16)], n_out=3))
        >>> harness(torch.ones(4, 20, 8)).shape
        torch.Size([4, 20, 3])
    """
    return NetworkModel(network_of(net, x))


class Reading(NamedTuple):
    """A matrix that is no module to be called, and what it reads."""

    matrix: WeightMatrix
    cell: int  # index of the cell
    reads_output: bool  # True if the matrix reads the output of the cell, False if it reads the input


class Synapses(nn.Linear):
    """A copy of a matrix as a Linear in float64, since NeuroBench sums operations in the dtype of the output."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.double())


class Counted(nn.Module):
    """The layers whose synapses NeuroBench counts; its parameters and buffers are those of the network.

    Args:
        network: the network.
        layers: the modules of the network that are called, and a Synapses for each other matrix.
    """

    def __init__(self, network: Network, layers: list[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self._network = [network]  # in a list: else it would be a part, and its layers would be counted twice

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        return self._network[0].parameters(recurse)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        return self._network[0].buffers(recurse)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self._network[0]._apply(fn, recurse)  # .to(device) moves the network
        return self


def is_called(matrix: WeightMatrix) -> bool:
    """True if a matrix belongs to a module that is called, such as the recurrent one of snnTorch's RLeaky.

    NeuroBench then counts its operations by itself.
    """
    owner, _ = owner_of(matrix.cell, matrix.name)
    return isinstance(owner, STATELESS_LAYERS)


class NetworkModel(NeuroBenchModel):
    """A network in NeuroBench's harness; see :func:`model`.

    Attributes:
        network: the network.
        readings: the matrices that are no modules to be called and what each reads, by the Synapses that stands for it.
    """

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        readings: list[Reading] = []
        for i, cell in enumerate(network.cells):
            readings += [Reading(m, i, reads_output=False) for m in weight_matrices(cell, "depth", inputs=True)]
            readings += [Reading(m, i, reads_output=True) for m in weight_matrices(cell, "time")]
        # NeuroBench itself counts modules that are called. Weights by which each neuron reads itself are no matrix.
        readings = [r for r in readings if not is_called(r.matrix) and not isinstance(r.matrix, OneToOne)]
        if isinstance(network.readout, nn.Linear):
            matrix = WeightMatrix(cast(Any, network), "readout.weight")
            readings.append(Reading(matrix, len(network.cells) - 1, reads_output=True))
        called = [m for m in network.modules() if isinstance(m, STATELESS_LAYERS) and m is not network.readout]

        # Every weight of two or more axes must be counted.
        counted = {id(p) for layer in called for p in layer.parameters()}
        for reading in readings:
            owner, name = owner_of(reading.matrix.cell, reading.matrix.name)
            counted.add(id(owner._parameters.get(name)))  # of None where the matrix is computed from parameters
        if left := [name for name, p in network.named_parameters() if p.ndim > 1 and id(p) not in counted]:
            raise TypeError(
                f"network has weights that NeuroBench cannot count: {', '.join(left)}. Counted are those of nn.Linear and "
                "convolutions, and matrices in a cell's scaled_parameters or input_matrices."
            )
        # NeuroBench reads these modules in place of the matrices; __net__ gives them the weights, when it is called
        self.readings = {Synapses(*r.matrix.weights.T.shape, bias=False, device="meta"): r for r in readings}
        self._net = Counted(network, [*called, *self.readings])

    def __net__(self) -> nn.Module:  # type: ignore[override]
        """Return the layers that NeuroBench counts, with the weights as they are now."""
        for layer, (matrix, _, reads_output) in self.readings.items():
            weights = matrix.weights.to(torch.float64, copy=True)
            owner, _ = owner_of(matrix.cell, matrix.name)
            # No neuron reads itself, though the parameter has a diagonal.
            if reads_output and getattr(owner, "recurrent_synapses", None) == len(weights) - 1:
                weights.fill_diagonal_(0)
            layer.weight = nn.Parameter(weights, requires_grad=False)
        return self._net

    def activation_layers(self) -> list[dict[str, Any]]:
        """Name the cells that spike, and the layers whose hooks hold their spikes; NeuroBench's own method."""
        cells = [(i, self.network.cells[i]) for i in self.network.spiking]
        return [{"layer_name": f"cells.{i}", "layer": getattr(cell, "layer", cell)} for i, cell in cells]

    def __call__(self, batch: Tensor) -> Tensor:  # type: ignore[override]
        """Run a batch (B, T, ...) from rest, and fill NeuroBench's hooks with what its layers read and sent.

        Returns:
            The logits (B, T, n_out).
        """
        if batch.ndim < 3:
            raise ValueError(f"a batch must have shape (B, T, ...), batch first, got {tuple(batch.shape)}.")
        network = self.network
        x = batch.flatten(2).transpose(0, 1).to(network.dtype_and_device["device"])
        with eval_mode(network), torch.no_grad():
            currents, voltages = self._step_by_step(x)  # network.run returns neither
            self.reset_hooks()  # so that they forget these steps, which the run below repeats
            run = network.run(x)
        self.__net__()  # copies the weights again, as they may have changed since the harness asked for them
        # An input matrix reads the spikes of the layer below; that of a wrapped cell reads what the modules before the
        # cell send, in `currents`. A recurrent matrix reads the cell's own spikes of the step before. The spikes of the
        # last step count as read, too, as in neurolsc.evaluate.
        inputs = [currents.get(i, z) for i, z in enumerate((x, *run.spikes[:-1]))]
        for hook in self.connection_hooks:
            if hook.layer in self.readings:
                _, i, reads_output = self.readings[hook.layer]
                read = run.spikes[i] if reads_output else inputs[i]
                hook.inputs = [(step,) for step in read]
        for i, hook in zip(network.spiking, self.activation_hooks, strict=False):  # no hooks if no metric needs them
            hook.activation_outputs = [run.spikes[i]]
            hook.pre_fire_mem_potential, hook.post_fire_mem_potential = voltages.get(i, ([], []))
        return run.logits.transpose(0, 1)

    def _step_by_step(self, x: Tensor) -> tuple[dict[int, list[Tensor]], dict[int, tuple[list[Tensor], list[Tensor]]]]:
        """Step through an input (T, B, n_in) for what a run does not return.

        Returns:
            What wrapped layers themselves read in each step, and the voltages of cells before and after each step; both
            by the index of the cell. Both are empty if no metric counts them.
        """
        currents = {}
        voltages = {}
        if not (self.connection_hooks or self.activation_hooks):
            return currents, voltages
        for record in self.network.records(x):
            for i, cell in enumerate(self.network.cells):
                if isinstance(cell, WrappedCell):
                    currents.setdefault(i, []).append(cell.current(record.inputs[i]))
                membrane = cell.membrane()
                if membrane is not None:
                    before, after = voltages.setdefault(i, ([], []))
                    before.append(membrane.voltage(record.before.layers[i]))
                    after.append(membrane.voltage(record.after.layers[i]))
        return currents, voltages
