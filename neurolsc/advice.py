"""One call that initialises any network, and says what it did to which layer."""

from functools import partial
from typing import Any

from torch import Tensor, nn

from neurolsc.diagnosis.faults import OF_THE_RATE
from neurolsc.diagnosis.losses import Loss, objective, output_of
from neurolsc.diagnosis.report import diagnose, learning_rate
from neurolsc.init.base import Initialiser, InitReport, named
from neurolsc.init.identity import Identity
from neurolsc.interop.ranks import on_rank_0
from neurolsc.interop.saved import restored_on_error
from neurolsc.stability.conditions import Finding
from neurolsc.surroundings import in_full_precision
from neurolsc.validation import whole


@on_rank_0
@in_full_precision
def initialize(
    net: nn.Module,
    x: Any,
    y: Tensor | None = None,
    *,
    loss: Loss = "step",
    lr: float | None = None,
    method: str | Initialiser | None = None,
    seed: int = 0,
) -> InitReport:
    """Set weights and thresholds of a network before its training, in place.

    What is set depends on one batch of inputs alone, neither on labels nor on the learning rate. With `lr` and `y` the
    report also warns if that learning rate is too high for the initialised network. The recommended method,
    :class:`neurolsc.init.Identity`, decides for each layer:

    - a layer that integrates, sends no spikes (RNN, GRU, LSTM, LRU), or whose currents a batch norm normalises, is left
      as it is;
    - the lowest spiking layer, a convolution, a layer narrower than the one below, and a neuron whose synapses remember
      keep their drawn weights: their recurrence is bounded and their thresholds are scaled to a low firing rate;
    - every other layer begins by passing on the spikes that it reads, plus a part of its drawn weights.

    It takes the time of some runs of the batch; with lr also the time of :func:`neurolsc.diagnose`.

    Args:
        net: a :class:`neurolsc.Network`, or a module of snnTorch, norse, spikingjelly or PyTorch.
        x: one batch of inputs, as net takes it; or a batch (x, y), a list of batches or a ``DataLoader``, whose first
            batch is taken.
        y: targets, as :func:`neurolsc.diagnose` takes them; only with lr. Where a call of net is one step, their number
            shows whether x is batch first.
        loss: what your loop trains, as :func:`neurolsc.diagnose` takes it. If net returns spikes and membranes,
            ``"membrane"`` says that the membranes are read.
        lr: learning rate of your loop.
        method: another method: an object of :mod:`neurolsc.init`, or its text, such as ``"LSC(0.5)"``.
        seed: seed of all draws.

    Returns:
        A report with a line for each layer that says what was done to it. The report is a tuple of findings, which say
        what could not be reached.

    Raises:
        TypeError: if net cannot be wrapped, or x, y, loss, lr or method is of another kind.
        ValueError: if x or y does not fit net or is not finite; method names no initialiser; or only one of y and lr
            is given. The network is then as it was, also after an interruption.

    Example:
        >>> import snntorch as snn
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> layers = [nn.Linear(40, 64), snn.Leaky(0.9), nn.Linear(64, 64), snn.Leaky(0.9), nn.Linear(64, 10)]
        >>> net = nn.Sequential(*layers)
        >>> x = (torch.rand(25, 8, 40) < 0.2).float()  # time, batch, inputs
        >>> report = initialize(net, x)
        >>> for layer in report.layers:
        ...     print(layer.layer, layer.done)
        1 drawn
        2 identity
    """
    whole("seed", seed, at_least=0)
    initialiser = as_initialiser(method)
    if lr is not None:
        lr = learning_rate(lr)
    objective(loss)  # refuses what is no loss
    has_targets = y is not None or isinstance(x, tuple)  # a tuple is a batch (x, y)
    if (lr is None and y is not None) or (lr is not None and not has_targets):
        raise ValueError("y and lr belong together: with both, a copy of the network is trained for some updates.")
    batch = x
    if y is not None:  # where a call of net is one step, only y shows whether x is batch first
        batch = (x, y)
    apply: Any = initialiser.apply  # declared for a Network; its decorator wraps any other module
    apply = partial(apply, net, batch, seed=seed, prefers=output_of(loss))
    if lr is None:
        return as_report(apply(), initialiser)
    diagnose(net, x, y, loss=loss, samples=1, steps=1)  # refuses what does not fit before anything is set
    with restored_on_error(net):
        report = as_report(apply(), initialiser)
        # of all that diagnose finds in the initialised network, only what is about the learning rate
        warnings = [finding for finding in diagnose(net, x, y, loss=loss, lr=lr) if finding.name in OF_THE_RATE]
    return InitReport([*report, *warnings], report.summary, report.layers, report.title, report.layout, report.left_out)


def as_report(findings: tuple[Finding, ...], initialiser: Initialiser) -> InitReport:
    """Return an initialiser's findings if they are a report, else a report of them titled by the initialiser's text."""
    if isinstance(findings, InitReport):
        return findings
    return InitReport(findings, title=str(initialiser))


def as_initialiser(method: str | Initialiser | None) -> Initialiser:
    """Return the initialiser that an argument names or is; the recommended one for None."""
    if method is None:
        return Identity()
    if isinstance(method, str):
        return named(method)
    if isinstance(method, Initialiser):
        return method
    raise TypeError(f"method must be an initialiser or its text, such as 'LSC(0.5)', got {type(method).__name__}.")
