"""The examination: a network and a batch in, figures and findings out."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from neurolsc.diagnosis.batch import Given
from neurolsc.diagnosis.faults import faults
from neurolsc.diagnosis.figures import measure
from neurolsc.diagnosis.order import batch_first
from neurolsc.diagnosis.report import Diagnosis
from neurolsc.diagnosis.training_faults import Attempts, learnt, missing_classes, tells, too_fast, wrong_axes
from neurolsc.diagnosis.updates import UPDATES, MakeOptimizer, copied, finite, loss_of, updated
from neurolsc.network import Network, as_network
from neurolsc.stability.findings import surrogate_fault
from neurolsc.tasks import Classification, Task
from neurolsc.training.optim import adabelief_lookahead
from neurolsc.validation import positive, whole


def diagnose(
    network: Network,
    batch: Tensor | Sequence[Tensor],
    *,
    task: Task = Classification(),
    labels: Tensor | None = None,
    history: Sequence[Mapping[str, Any]] = (),
    lr: float | None = None,
    optimizer: Callable[[Iterable[nn.Parameter], float], Optimizer] = adabelief_lookahead,
    epsilon: float = 1e-8,
    samples: int = 8,
    steps: int = 16,
    seed: int = 0,
) -> Diagnosis:
    """Look at a network that does not learn, or before it is to learn, and say what is wrong.

    Measured are what the neurons of each layer do, radii and what holds them, Lyapunov exponents,
    singular values, usable derivatives, and what is left of the input; with targets also the
    gradients of the loss, how far back and down they reach, and how much batches agree on them.
    Found are layers that are dead, saturated, synchronous or out of scale, gradients that explode
    through time or vanish through depth, time constants that are frozen or cannot move, classes
    that are missing, a learning rate that is too high, an input whose axes are swapped, and a
    surrogate whose derivative is NaN or infinite somewhere (all else is then measured as if it were
    0 there). A
    radius through time just below 1 is a memory and no fault.

    Args:
        network: the network; it stays as it is. :func:`neurolsc.wrap` makes one of models of
            snnTorch, norse and PyTorch.
        batch: x (T, B, n_in), or (x, targets) or (x, targets, mask) as
            :func:`neurolsc.datasets.collate` gives them. A few dozen samples are enough.
        task: what is asked of the network.
        labels: classes of more samples than the batch holds (n,), in which missing ones are looked
            for; by default those of the batch.
        history: rows with ``train_loss``, an epoch each: ``TrainResult.history``.
        lr: learning rate; given one and fewer than three epochs of history, copies of the network
            are trained on the batch for 10 updates, at this rate, a tenth and a hundredth of it.
        optimizer: makes the optimizer from parameters and learning rate.
        epsilon: of the optimizer, with which entries of the gradient are compared: 1e-8 in Adam.
        samples: derivatives are looked at on so many samples of the batch,
        steps: and at so many steps, drawn at random.
        seed: of what is drawn.

    Returns:
        The diagnosis, a sequence of its findings: empty where nothing was found.

    Raises:
        TypeError: if network is not one, or the batch is of another kind.
        ValueError: if the batch does not fit the network or the task, or a number is out of range.
        FloatingPointError: if a state or derivative is NaN or infinite.

    Cost: about that of 50 training steps on the batch in the fast loop, of layers of 64 neurons
    and 40 samples; with a learning rate that is tried twice as much.
    """
    as_network(network)
    for name, value in (("samples", samples), ("steps", steps)):
        whole(name, value)
    for name, value in (("epsilon", epsilon), *((("lr", lr),) if lr is not None else ())):
        positive(name, value)
    given = Given.of(batch, network)
    turned = batch_first(given)
    if turned:  # all that follows is said of the input as it should be
        given = given.turned()
    unfit = [fault for layer, cell in enumerate(network.cells) if (fault := surrogate_fault(cell, layer))]
    if unfit:  # the rest is said of the network with other surrogates
        network = finite(network)
    figures = measure(network, given, task, samples=samples, steps=steps, epsilon=epsilon, seed=seed)
    found = [*wrong_axes(turned), *unfit, *faults(network, figures, learnt=learnt(history))]
    known = given.targets if labels is None else labels
    if known is not None and known.ndim == 1:
        found += missing_classes(known, network.n_out)
    few = None if tells(history) else _attempts(network, given, task, optimizer, lr)
    found += too_fast(history, few)
    return Diagnosis(tuple(found), figures, epsilon)


def _attempts(
    network: Network, given: Given, task: Task, optimizer: MakeOptimizer, lr: float | None
) -> Attempts | None:
    """A few updates on copies at a learning rate and smaller ones; None without rate or targets."""
    if lr is None or given.targets is None:
        return None
    rates = (lr, lr / 10, lr / 100)
    losses = {rate: loss_of(updated(copied(network), given, task, optimizer, rate), given, task) for rate in rates}
    return Attempts(UPDATES, losses)
