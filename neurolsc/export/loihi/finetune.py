"""Training through the integers: what is trained is what is exported."""

from torch import Tensor, nn

from neurolsc.export.loihi.fixed_point import spikes_of
from neurolsc.export.loihi.quantize import fit_scales, quantize
from neurolsc.export.loihi.table import NEURONS
from neurolsc.network import Network, NetworkState, Run

__all__ = ["QuantizationAware"]


class QuantizationAware(Network):
    """A network that runs in Loihi's integers and is trained in floats.

    It shares cells and readout with the network that it is made from. Every run quantises their
    parameters anew and steps the integer equations; rounding lets gradients pass (straight
    through), and spikes have the cells' surrogate gradient. So ``neurolsc.train`` and
    ``neurolsc.evaluate`` take it as any other network, and after a training the original network
    holds weights of which the *rounded* ones work. The reset is detached, whatever
    ``reset_gradient`` says, but not that by subtraction of LIF, which is one of the recurrent
    weights. Rounding flips spikes, and recurrence amplifies that: a few epochs win most of it back.

    Args:
        network: what :func:`neurolsc.export.quantize` accepts.
        calibration: samples (T, B, n_in) for :func:`neurolsc.export.fit_scales`, as in
            :func:`neurolsc.export.to_netx`.
        force: accept fewer than 62 weight units per threshold.

    Raises:
        ValueError: as :func:`neurolsc.export.quantize`; also when training has moved a parameter
            out of what can be expressed.
        TypeError: likewise.

    Example:
        >>> import torch
        >>> from neurolsc import LIF
        >>> network = Network([LIF(3, 2, reset="zero")], n_out=2)
        >>> QuantizationAware(network)(torch.ones(5, 1, 3)).sum().backward()
        >>> network.cells[0].w_in.grad.shape
        torch.Size([2, 3])
    """

    def __init__(self, network: Network, calibration: Tensor | None = None, *, force: bool = False) -> None:
        if network.layer_delay != 1:
            raise ValueError(
                "the network has layer_delay=0, and its form for the chip is a copy: train QuantizationAware(delayed("
                "from_wrapped(network))), both of neurolsc.export."
            )
        nn.Module.__init__(self)
        self.cells, self.readout, self.layer_delay = network.cells, network.readout, network.layer_delay
        self._n_out = network.n_out
        self.force = force
        quantize(network, force=force)
        self.halvings = None if calibration is None else fit_scales(network, calibration, force=force)

    def run(self, x: Tensor, states: NetworkState | None = None, *, mask: Tensor | None = None) -> Run:
        """Run over time in integers.

        Args:
            x: input spikes (T, B, n_in), 0 or 1.
            states: none can be given: a run starts at rest.
            mask: none can be given.

        Returns:
            Logits in float units, spikes without those that stand for a bias, and the state at
            rest: there is none to go on from.

        Raises:
            ValueError: if x is not 0 or 1, or a state or mask is given.
        """
        if states is not None or mask is not None:
            raise ValueError("an integer run starts at rest and has no mask.")
        quantized = quantize(self, force=self.force, halvings=self.halvings)
        neurons = [NEURONS.of(f"layer {i}", cell) for i, cell in enumerate(self.cells, start=1)]
        surrogates = [neuron.floats(cell).spike for neuron, cell in zip(neurons, self.cells, strict=True)]
        spikes = spikes_of(quantized.layers, quantized.padded(x), surrogates)
        logits = quantized.logits(spikes[-1]) / quantized.readout_scale
        cut = quantized.cropped(spikes)
        return Run(quantized.on_time(logits, quantized.latency), cut, self.initial_states(x.shape[1]))
