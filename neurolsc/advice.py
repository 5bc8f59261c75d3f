"""One call that initialises any network, and says what it did to which layer."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from neurolsc.init.base import Initialiser, InitReport, named
from neurolsc.init.identity import Identity
from neurolsc.interop.prepared import prepare
from neurolsc.validation import whole


def initialize(
    net: nn.Module | Iterable[nn.Module],
    x: Any,
    *,
    method: str | Initialiser | None = None,
    seed: int = 0,
) -> InitReport:
    """Set weights and thresholds of a network before its training, in place.

    It sees one batch of inputs, neither labels nor a learning rate. The recommended method,
    :class:`neurolsc.init.Identity`, decides for each layer:

    - a layer that integrates, sends no spikes (RNN, GRU, LSTM, LRU), or whose currents a batch norm normalises, is left
      as it is;
    - the lowest spiking layer, a convolution, a layer narrower than the one below, and a neuron whose synapses remember
      keep their drawn weights: their recurrence is bounded and their thresholds are scaled to a low firing rate;
    - every other layer begins by passing on the spikes that it reads, plus a part of its drawn weights.

    Args:
        net: a :class:`neurolsc.Network`, or a module of snnTorch, norse, spikingjelly or PyTorch.
        x: one batch of inputs, as net takes it; or a batch (x, y), a list of batches or a ``DataLoader``, whose first
            batch is taken.
        method: another method: an object of :mod:`neurolsc.init`, or its text, such as ``"LSC(0.5)"``.
        seed: seed of all draws.

    Returns:
        What was done, a line a layer; a tuple of the findings, what could not be reached.

    Raises:
        TypeError: if net cannot be wrapped, or x or method is of another kind.
        ValueError: if x does not fit net or is not finite; or method names no initialiser. The network is then as it
            was.

    Example:
        >>> import snntorch as snn
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> net = nn.Sequential(nn.Linear(40, 64), snn.Leaky(0.9), nn.Linear(64, 64), snn.Leaky(0.9))
        >>> x = (torch.rand(25, 8, 40) < 0.2).float()  # time, batch, inputs
        >>> report = initialize(net, x)
        >>> [layer.done for layer in report.layers]
        ['drawn', 'identity']
    """
    whole("seed", seed, at_least=0)
    initialiser = as_initialiser(method)
    prepared = prepare(net, x)
    report = initialiser.apply(prepared.network, [prepared.x], seed=seed)
    return report if isinstance(report, InitReport) else InitReport(report, title=str(initialiser))


def as_initialiser(method: str | Initialiser | None) -> Initialiser:
    """The initialiser that an argument names; the recommended one for None."""
    if method is None:
        return Identity()
    if isinstance(method, str):
        return named(method)
    if isinstance(method, Initialiser):
        return method
    raise TypeError(f"method must be an initialiser or its text, such as 'LSC(0.5)', got {type(method).__name__}.")
