"""A user's module and a user's input, as the network of its cells and what that network reads.

Every public function that takes a network takes a module of snnTorch, norse, spikingjelly or PyTorch as well, and its
input as the module takes it. `prepare` is how: one batch; `prepare_batches` does it for all batches of a list or
loader.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from neurolsc.interop.wrap import Layout, wrap, wrap_with_layout
from neurolsc.interop.wrapped import plain_module
from neurolsc.network import Network
from neurolsc.neurons.cell import dtype_and_device
from neurolsc.surroundings import original
from neurolsc.validation import BatchParts, as_batch, dense, numpy_hint, swapped_axes, tensor

AS_READ = "as the network reads it"


class Prepared(NamedTuple):
    """A network over a module's own parameters, and a batch as that network reads it."""

    network: Network
    x: Tensor  # input (T, B, n_in), of the network's dtype and on its device
    targets: Tensor | None  # classes (B,), or targets for every step (T, B, ...)
    mask: Tensor | None  # (T, B), True while a sample lasts
    layout: str  # where time and batch were found in the user's x, such as "batch first (B, T, 784)"
    turned: str = ""  # why time and batch of the user's x were swapped, if they were

    def without_padding(self) -> Tensor:
        """The input of samples that last, as :func:`without_padding` cuts it."""
        return without_padding(self.x, self.mask)


class PreparedBatches(NamedTuple):
    """A network over a module's own parameters, and batches as that network reads them."""

    network: Network
    batches: Iterable[Any]  # each x (T, B, n_in), or (x, targets) or (x, targets, mask)
    layout: str
    leaves_membranes: bool = False  # True if the module returns membranes beside the spikes that are read


def prepare(
    net: nn.Module | Iterable[nn.Module],
    x: Any,
    y: Tensor | None = None,
    *,
    needs_targets: bool = False,
    turn: bool = False,
    prefers_membrane: bool = False,
) -> Prepared:
    """Make a network of a user's module, and its input of the user's x.

    The module is called with x, in evaluation mode and from rest, and stays as it was: parameters, buffers, hidden
    states, modes, hooks and torch's random numbers. Where a call of it is one step, x has time first.

    Args:
        net: a :class:`neurolsc.Network`; or a module of snnTorch, norse, spikingjelly or PyTorch, or a list of modules
            in the order of their use, of which :func:`neurolsc.wrap` makes one.
        x: what the module takes: time first, batch first, or one input for all steps; of a network (T, B, n_in). Or a
            batch (x, targets) or (x, targets, mask); or a list of batches or a ``DataLoader``, whose first batch is
            taken.
        y: targets, if x has none: classes (B,), or targets for every step, laid out as x is.
        needs_targets: refuse a batch without targets.
        turn: swap time and batch of an x that has as many steps as there are targets, and say so in ``turned``, instead
            of refusing it.
        prefers_membrane: read the membrane of a last layer of snnTorch wherever the module returns it, also beside
            spikes.

    Raises:
        TypeError: if net is no module, is of half precision or cannot be wrapped, or x or y is of another kind than
            wanted.
        ValueError: if x is empty, not finite, or does not fit the module; if targets do not fit x, or are missing.
    """
    batch = as_batch(first_batch(as_batches(x, y)))
    if needs_targets and batch.targets is None:
        raise ValueError("targets are needed for a loss: give y, or a batch (x, y).")
    if batch.targets is not None:
        tensor("y", batch.targets)

    reader = Reader.of(net, batch, prefers_membrane=prefers_membrane)
    read = reader.read(batch)
    turned = swapped_axes(read.x, read.targets)
    if turned and not turn:
        raise ValueError(f"{turned}.")
    if turned:
        batch = batch._replace(x=batch.x.transpose(0, 1))
        reader = Reader.of(net, batch, prefers_membrane=prefers_membrane)
        read = reader.read(batch)
    _check_targets(read)
    return Prepared(reader.network, *read, str(reader), turned)


def prepare_batches(net: nn.Module | Iterable[nn.Module], x: Any, *, prefers_membrane: bool = False) -> PreparedBatches:
    """Make a network of a user's module, and its batches of the user's x.

    The first batch shows where time and batch lie in all of them.

    Args:
        net: as in :func:`prepare`.
        x: as in :func:`prepare`; every batch of a list or loader is taken, and a loader is read anew in every round.
        prefers_membrane: as in :func:`prepare`.

    Raises:
        TypeError: as :func:`prepare`.
        ValueError: as :func:`prepare`.
    """
    batches = as_batches(x)
    net = original(net)
    if isinstance(net, Network):
        _refuse_half(net)
        if isinstance(batches, Sequence):
            batches = [_dense_batch(batch) for batch in batches]
        return PreparedBatches(net, batches, AS_READ)
    first = as_batch(first_batch(batches))
    reader = Reader.of(net, first, prefers_membrane=prefers_membrane)
    if swapped := swapped_axes(reader.read(first).x, first.targets):
        raise ValueError(f"{swapped}.")
    every: Iterable[Any] = ReadBatches(batches, reader)
    if isinstance(batches, Sequence):
        every = list(every)
    leaves_membranes = reader.layout is not None and reader.layout.leaves_membranes
    return PreparedBatches(reader.network, every, str(reader), leaves_membranes)


def _dense_batch(batch: Any) -> Any:
    """A batch whose input is dense; what is no batch stays, and is refused where it is read."""
    if isinstance(batch, Tensor):
        return dense(batch)
    if isinstance(batch, tuple) and batch and isinstance(batch[0], Tensor):
        return (dense(batch[0]), *batch[1:])
    return batch


def network_of(net: nn.Module | Iterable[nn.Module], x: Any = None) -> Network:
    """The network of a module, as it reads x; without x a module's order of definition must be its order of use."""
    if x is not None:
        return prepare(net, x).network
    net = original(net)
    if isinstance(net, Network):
        return net
    return wrap(net)


@dataclass(frozen=True)
class Reader:
    """A network, and where time and batch lie in what its user gives it."""

    network: Network
    layout: Layout | None  # None: x is (T, B, n_in)

    @classmethod
    def of(
        cls,
        net: nn.Module | Iterable[nn.Module],
        batch: BatchParts,
        *,
        prefers_membrane: bool = False,
    ) -> "Reader":
        """Wrap a module as it reads a batch; a network and a list of modules read (T, B, n_in)."""
        net = plain_module(net)
        if not isinstance(net, nn.Module):
            net = wrap(net)
        _refuse_half(net)
        if isinstance(net, Network):
            return cls(net, layout=None)
        x = _checked(batch.x)
        like = dtype_and_device(net)
        if not x.is_floating_point():
            raise TypeError(f"x must be {like['dtype']}, as the weights of net are, got {x.dtype}: give x.float().")
        return cls(*_wrapped(net, batch._replace(x=x.to(**like)), prefers_membrane))

    def __str__(self) -> str:
        if self.layout is None:
            return AS_READ
        return str(self.layout)

    def read(self, batch: BatchParts) -> BatchParts:
        """A batch as the network reads it."""
        x, targets, mask = batch
        x = _checked(x)
        like = self.network.dtype_and_device
        if self.network.embedding is not None:
            like = {"device": like["device"]}  # token indices stay integers
        if self.layout is not None:
            x = self.layout.by_step(x).flatten(2)
            if self.layout.axes == "batch first":
                targets = _time_first(targets, x)
                mask = _time_first(mask, x)
        n_in = self.network.n_in
        if x.ndim != 3 or x.shape[2] != n_in:
            cure = ""
            if x.ndim > 3 and x[0, 0].numel() == n_in:
                cure = ": give x.flatten(2)"
            raise ValueError(f"x must have shape (T, B, {n_in}) with T, B >= 1, got {tuple(x.shape)}{cure}.")
        if mask is not None and (mask.dtype != torch.bool or mask.shape != x.shape[:2]):
            raise ValueError(f"mask must be bool {tuple(x.shape[:2])}, got {mask.dtype} {tuple(mask.shape)}.")
        if isinstance(targets, Tensor):
            targets = targets.to(like["device"])
        if mask is not None:
            mask = mask.to(like["device"])
        return BatchParts(x.to(**like), targets, mask)


class ReadBatches:
    """The batches of a loader as a network reads them, anew in every round."""

    def __init__(self, batches: Iterable[Any], reader: Reader) -> None:
        self.batches = batches
        self.reader = reader

    def __iter__(self) -> Iterator[BatchParts]:
        for batch in self.batches:
            yield self.reader.read(as_batch(batch))


def _time_first(part: Any, x: Tensor) -> Any:
    """Targets for every step or a mask as (T, B, ...), if they are (B, T, ...) as the input of the model was."""
    steps, samples = x.shape[:2]
    if isinstance(part, Tensor) and part.ndim > 1 and part.shape[:2] == (samples, steps):
        return part.transpose(0, 1)
    return part


def _check_targets(batch: BatchParts) -> None:
    """Refuse targets of another number of samples or steps than x has."""
    targets = batch.targets
    if targets is None:
        return
    steps, samples = batch.x.shape[:2]
    fits = targets.shape[:2] == (steps, samples) or targets.shape[:1] == (samples,)
    if not fits:
        raise ValueError(
            f"targets must be of {samples} samples, ({samples},) or ({steps}, {samples}, ...), got {tuple(targets.shape)}."
        )


def without_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """The samples of x (T, B, n_in) that last at least as long as the median, cut to that length.

    None of their steps is padding, which a mask (T, B) shows; without one it is x.
    """
    if mask is None:
        return x
    lengths = mask.long().cumprod(0).sum(0)
    steps = max(int(lengths.median()), 1)
    return x[:steps, (lengths >= steps).to(x.device)]


# ---- the module


def _wrapped(net: nn.Module, batch: BatchParts, prefers_membrane: bool) -> tuple[Network, Layout]:
    """The network of a module that goes through time by itself or takes one step a call, and how it reads x."""
    x = batch.x
    try:
        network, layout = wrap_with_layout(net, x, prefers_membrane=prefers_membrane)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        step_by_step = _wrapped_as_step(net, batch, prefers_membrane)
        if step_by_step is not None:
            return step_by_step
        if not isinstance(net, nn.Sequential) or type(net).forward is not nn.Sequential.forward:
            raise
        # its order of definition is its order of use, even where layers return tuples and it cannot be called
        network, _ = wrap_with_layout(net, prefers_membrane=prefers_membrane)
        if x.ndim < 3:
            raise ValueError(f"x must have time and batch first, (T, B, ...), got {tuple(x.shape)}.") from error
        return network, Layout("time first", len(x), tuple(x.shape[2:]), one_step=True)
    assert layout is not None
    if layout.steps == 1 and layout.axes == "every step":
        raise ValueError(
            f"a call of net is one step, and so is x {tuple(x.shape)}: give x with time first, (T, B, ...), as your loop "
            "goes through it. The same input in 25 steps is x.expand(25, *x.shape)."
        )
    return network, layout


def _wrapped_as_step(net: nn.Module, batch: BatchParts, prefers_membrane: bool) -> tuple[Network, Layout] | None:
    """The network of a module that takes one step a call, or None if it does not take one of x."""
    batch_first = bool(swapped_axes(batch.x, batch.targets))  # the module, which sees one step, cannot tell
    if batch_first:
        x = batch.x.transpose(0, 1)
    else:
        x = batch.x
    if x.ndim < 3:
        return None
    busiest = x.flatten(1).count_nonzero(1).argmax()  # zeros would show little of what a module does
    try:
        network, layout = wrap_with_layout(net, x[busiest], prefers_membrane=prefers_membrane)
    except (RuntimeError, ValueError, TypeError, IndexError):
        return None
    if layout is None or layout.steps > 1 or layout.axes != "every step":
        return None
    axes = "time first"
    if batch_first:
        axes = "batch first"
    return network, Layout(axes, len(x), tuple(x.shape[2:]), one_step=True)


def _refuse_half(net: nn.Module) -> None:
    half = {p.dtype for p in net.parameters() if p.is_floating_point()} - {torch.float32, torch.float64}
    if half:
        raise TypeError(
            f"the parameters of net must be float32 or float64, got {half.pop()}: give net.float(), and convert it "
            "afterwards."
        )


# ---- the input


def _checked(x: Tensor) -> Tensor:
    """An input, dense, if it is real, finite, not empty, and has at least two axes."""
    x = dense(x)
    if x.is_complex():
        raise TypeError(f"x must be real, got {x.dtype}.")
    if x.ndim < 2 or not x.numel():
        raise ValueError(f"x must have axes for time and batch and not be empty, got shape {tuple(x.shape)}.")
    if x.is_floating_point() and not x.isfinite().all():
        raise ValueError("x must be finite, got NaN or infinity.")
    return x


def as_batches(x: Any, y: Tensor | None = None) -> Iterable[Any]:
    """Batches that can be read again and again: a list or loader as it is, or one batch x in a list.

    Raises:
        TypeError: if x is none of these.
        ValueError: if x has targets and y is given, too.
    """
    if isinstance(x, Tensor):
        return [x if y is None else (x, y)]
    if isinstance(x, tuple) or (isinstance(x, list) and _is_one_batch(x)):
        if y is not None:
            raise ValueError("targets are given twice: in the batch (x, targets), and as y.")
        return [tuple(x)]
    if y is not None:
        raise ValueError(f"y is for one batch x, but x is a {type(x).__name__}: give batches (x, targets).")
    if isinstance(x, Mapping | str | Iterator) or not isinstance(x, Iterable):
        wanted = "a tensor, a batch (x, targets), a list of batches or a DataLoader"
        raise TypeError(f"x must be {wanted}, got {type(x).__name__}{numpy_hint(x)}.")
    if numpy_hint(x):
        raise TypeError(f"x must be a torch.Tensor, got {type(x).__name__}{numpy_hint(x)}.")
    return x


def _is_one_batch(parts: list[Any]) -> bool:
    """True for [x, targets], as torch's default ``collate_fn`` makes it; False for a list of batches."""
    if len(parts) not in (2, 3) or not all(isinstance(part, Tensor) for part in parts):
        return False
    x, targets = parts[:2]
    return targets.ndim == 1 or (x.is_floating_point() and not targets.is_floating_point())


def first_batch(batches: Iterable[Any]) -> Any:
    """The first batch, as :func:`some_batches` takes it.

    Raises:
        ValueError: if there is no batch.
    """
    return some_batches(batches, count=1)[0]


def some_batches(batches: Iterable[Any], count: int) -> list[Any]:
    """The first batches, at most `count`; the next reader draws the same random numbers again.

    Raises:
        ValueError: if there is no batch.
    """
    loader = batches
    if isinstance(batches, ReadBatches):
        loader = batches.batches
    with _same_random_numbers(loader):
        some = list(islice(batches, count))
    if not some:
        raise ValueError("x needs at least one batch, got none.")
    return some


@contextmanager
def _same_random_numbers(loader: object) -> Iterator[None]:
    """Put the generators back that a loader and its data set draw from."""
    owners = (loader, getattr(loader, "sampler", None))
    generators = [getattr(owner, "generator", None) for owner in owners]
    before = [(generator, generator.get_state()) for generator in generators if generator is not None]
    numbers = random.getstate()
    of_numpy = np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(numbers)
        np.random.set_state(of_numpy)
        for generator, state in before:
            generator.set_state(state)
