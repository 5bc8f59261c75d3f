"""A user's module and a user's input, as the network of its cells and what that network reads.

Every public function that takes a network takes a module of snnTorch, norse, spikingjelly or PyTorch as well, and its
input as the module takes it. `prepare` makes the network and lays one batch out for it; `prepare_batches` does so for
all batches of a list or loader.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from neurolsc.interop.example_run import CannotReadError, Layout, OtherNetworkError
from neurolsc.interop.wrap import wrap, wrap_with_layout
from neurolsc.interop.wrapped import UnsupportedLayerError, plain_module
from neurolsc.metrics import is_binary
from neurolsc.network import Network
from neurolsc.neurons.cell import dtype_and_device
from neurolsc.surroundings import original
from neurolsc.validation import BatchParts, as_batch, dense, numpy_hint, swapped_axes, tensor

AS_READ = "as the network reads it"  # the layout in words, where x is (T, B, n_in)
Output = Literal["spikes", "membrane"]  # what can be read of a last layer of snnTorch
# errors of a module that cannot read an x; the last one comes from a module that reads the tuple a layer returns
FAILS = (RuntimeError, ValueError, TypeError, IndexError, AttributeError)


class Prepared(NamedTuple):
    """A network over a module's own parameters, and a batch as that network reads it."""

    network: Network
    x: Tensor  # input (T, B, n_in), of the network's dtype and on its device
    targets: Tensor | None  # classes (B,), or targets for every step (T, B, ...)
    mask: Tensor | None  # (T, B), True while a sample lasts
    layout: str  # where time and batch were found in the user's x, such as "batch first (B, T, 784)"
    turned: str = ""  # why time and batch of the user's x were swapped; empty if they were not

    def without_padding(self) -> Tensor:
        """Return the input, cut by the mask as :func:`without_padding` does."""
        return without_padding(self.x, self.mask)


class PreparedBatches(NamedTuple):
    """A network over a module's own parameters, and batches as that network reads them."""

    network: Network
    batches: Iterable[Any]  # each x (T, B, n_in), or (x, targets) or (x, targets, mask)
    layout: str  # where time and batch were found in the user's x
    leaves_membranes: bool = False  # True if the module returns membranes as well as the spikes that are read


def prepare(
    net: nn.Module | Iterable[nn.Module],
    x: Any,
    y: Tensor | None = None,
    *,
    needs_targets: bool = False,
    turn: bool = False,
    prefers: Output | None = None,
) -> Prepared:
    """Make a network of a user's module, and lay the user's x out as that network reads it.

    The module is called with x, in evaluation mode and from rest, and stays as it was: parameters, buffers, hidden
    states, modes, hooks and torch's random numbers. Where one call of the module is one step, x has time first, unless
    targets show that it is batch first.

    Args:
        net: a :class:`neurolsc.Network`; or a module of snnTorch, norse, spikingjelly or PyTorch, or a list of modules
            in the order of their use, of which :func:`neurolsc.wrap` makes a network.
        x: what the module takes: time first, batch first, or one input for all steps; of a network (T, B, n_in). Or a
            batch (x, targets) or (x, targets, mask); or a list of batches or a ``DataLoader``, whose first batch is
            taken.
        y: targets, if x has none: classes (B,), or targets for every step, laid out as x is.
        needs_targets: refuse a batch without targets.
        turn: swap time and batch of an x that has as many steps as there are targets, and say so in ``turned``, instead
            of refusing it.
        prefers: what to read of a last layer of snnTorch where the module returns both its spikes and its membrane;
            None: the first of the two, but the membrane of a layer without a reset.

    Returns:
        The network, its input (T, B, n_in), targets and mask (None if there are none), and in words the layout of the
        user's x.

    Raises:
        TypeError: if net is no module, is of half precision or cannot be wrapped, or x or y is of another kind than
            wanted.
        ValueError: if x is empty, not finite, or does not fit the module; if targets do not fit x, or are missing.
    """
    batches = as_batches(x, y)
    batch = _bytes_as_floats(as_batch(first_batch(batches)), batches)
    if needs_targets and batch.targets is None:
        raise ValueError("targets are needed for a loss: give y, or a batch (x, y).")
    if batch.targets is not None:
        tensor("y", batch.targets)

    reader = Reader.of(net, batch, prefers=prefers)
    read = reader.read(batch)
    turned = swapped_axes(read.x, read.targets)
    if turned and reader.layout is not None and reader.layout.axes == "batch first":
        turned = (
            f"x {tuple(batch.x.shape)} looks time first, as there are targets of {read.x.shape[0]} samples, but net reads "
            "(B, T, ...): give x.transpose(0, 1)"
        )
    if turned and not turn:
        raise ValueError(f"{turned}.")
    if turned:  # the first reader saw time and batch swapped: make another one
        batch = batch._replace(x=batch.x.transpose(0, 1))
        reader = Reader.of(net, batch, prefers=prefers)
        read = reader.read(batch)
    _check_targets(read)
    return Prepared(reader.network, *read, str(reader), turned)


def prepare_batches(net: nn.Module | Iterable[nn.Module], x: Any, *, prefers: Output | None = None) -> PreparedBatches:
    """Make a network of a user's module, and lay the user's batches out as that network reads them.

    The first batch shows where time and batch lie in all of them. A list of batches is read at once; a loader is read
    in every round, each batch when it is asked for.

    Args:
        net: as in :func:`prepare`.
        x: as in :func:`prepare`, but every batch of a list or loader is taken.
        prefers: as in :func:`prepare`.

    Returns:
        The network, the batches, the layout of the user's x in words, and whether the module returns membranes as
        well as the spikes that are read.

    Raises:
        TypeError: as :func:`prepare`.
        ValueError: as :func:`prepare`.
    """
    batches = as_batches(x)
    net = original(net)
    if isinstance(net, Network):  # a network reads batches as they are
        _refuse_half(net)
        if isinstance(batches, Sequence):
            batches = [_dense_batch(batch) for batch in batches]
        return PreparedBatches(net, batches, AS_READ)
    first = _bytes_as_floats(as_batch(first_batch(batches)), batches)
    reader = Reader.of(net, first, prefers=prefers)
    if swapped := swapped_axes(reader.read(first).x, first.targets):
        raise ValueError(f"{swapped}.")
    laid_out: Iterable[Any] = ReadBatches(batches, reader)
    if isinstance(batches, Sequence):
        laid_out = list(laid_out)
    leaves_membranes = reader.layout is not None and reader.layout.leaves_membranes
    return PreparedBatches(reader.network, laid_out, str(reader), leaves_membranes)


def _dense_batch(batch: Any) -> Any:
    """Return a batch with its input made dense; anything else is returned as it is, and refused where it is read."""
    if isinstance(batch, Tensor):
        return dense(batch)
    if isinstance(batch, tuple) and batch and isinstance(batch[0], Tensor):
        return (dense(batch[0]), *batch[1:])
    return batch


def network_of(net: nn.Module | Iterable[nn.Module], x: Any = None) -> Network:
    """Return the network that is made of a module.

    Args:
        net: as in :func:`prepare`.
        x: as in :func:`prepare`; a call of the module with it shows the order of use. Without x the module's order of
            definition must be its order of use.
    """
    if x is not None:
        return prepare(net, x).network
    net = original(net)
    if isinstance(net, Network):
        return net
    return wrap(net)


@dataclass(frozen=True)
class Reader:
    """Lays batches out as a network reads them.

    Attributes:
        network: the network.
        layout: where time and batch lie in the user's x; None if x is (T, B, n_in) already.
    """

    network: Network
    layout: Layout | None

    @classmethod
    def of(
        cls,
        net: nn.Module | Iterable[nn.Module],
        batch: BatchParts,
        *,
        prefers: Output | None = None,
    ) -> "Reader":
        """Make the reader of a module: its network, and the layout with which the module reads a batch.

        Args:
            net: a module, which is called with the batch's x to find network and layout; or a network or a list of
                modules, which read (T, B, n_in) and are not called.
            batch: a batch of the user's, whose x has the layout that the module takes.
            prefers: as in :func:`prepare`.
        """
        net = plain_module(net)
        if not isinstance(net, nn.Module):  # a list of modules
            net = wrap(net)
        _refuse_half(net)
        if isinstance(net, Network):
            return cls(net, layout=None)
        x = _dense_input(batch.x)
        like = dtype_and_device(net)
        # Only an embedding reads integers, and no wrapped module has one. Integers 0 and 1 are spikes, taken as floats.
        if not x.is_floating_point() and not is_binary(x):
            raise TypeError(f"x must be {like['dtype']}, as the weights of net are, got {x.dtype}: give x.float().")
        return cls(*_wrapped(net, batch._replace(x=x.to(**like)), prefers))

    def __str__(self) -> str:
        if self.layout is None:
            return AS_READ
        return str(self.layout)

    def read(self, batch: BatchParts) -> BatchParts:
        """Lay a batch out as the network reads it: x (T, B, n_in), its targets and its mask (T, B), time first.

        All are put on the network's device, and x into its dtype.

        Raises:
            TypeError: if x is no real tensor.
            ValueError: if x is empty or not finite, or x or the mask does not fit the network.
        """
        x, targets, mask = batch
        x = _dense_input(x)
        like = self.network.dtype_and_device
        if self.network.embedding is not None:
            like = {"device": like["device"]}  # token indices stay integers
        if self.layout is not None:
            x = self.layout.by_step(x).flatten(2)
            if self.layout.axes == "batch first":
                if not self._is_of_classes(targets):
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

    def _is_of_classes(self, targets: Any) -> bool:
        """True for targets with one number for each sample and output, (B, n_out), such as one-hot classes."""
        if not isinstance(targets, Tensor) or not targets.is_floating_point():
            return False
        return targets.ndim == 2 and targets.shape[1] == self.network.n_out


class ReadBatches:
    """The batches of a loader as a network reads them, anew in every round."""

    def __init__(self, batches: Iterable[Any], reader: Reader) -> None:
        self.batches = batches
        self.reader = reader

    def __iter__(self) -> Iterator[BatchParts]:
        for batch in self.batches:
            yield self.reader.read(as_batch(batch))


def _time_first(part: Any, x: Tensor) -> Any:
    """Put time first in targets or a mask that belong to a batch-first input.

    Args:
        part: targets, a mask or None.
        x: the input, which has time first already (T, B, n_in).

    Returns:
        The part as (T, B, ...) if it is (B, T, ...), else as it is.
    """
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
            f"y must be of {samples} samples, ({samples},) or ({steps}, {samples}, ...), got {tuple(targets.shape)}."
        )


def without_padding(x: Tensor, mask: Tensor | None) -> Tensor:
    """Cut x (T, B, n_in) so that no step of it is padding.

    The samples that last at least as long as the median are taken, and cut to that length. The mask (T, B) is True
    while a sample lasts; without one x is returned as it is.

    Raises:
        ValueError: if no sample lasts a step.
    """
    if mask is None:
        return x
    lengths = mask.long().cumprod(0).sum(0)  # steps before the first False, of each sample
    if not lengths.any():
        raise ValueError("the mask is False at the first step of every sample: one sample must last a step at least.")
    steps = max(int(lengths.median()), 1)  # 1: also a sample without any step is left out
    return x[:steps, (lengths >= steps).to(x.device)]


# ---- the module


def _wrapped(net: nn.Module, batch: BatchParts, prefers: Output | None) -> tuple[Network, Layout]:
    """Make the network of a module, and find how it reads x.

    A module that goes through time by itself is tried first, then one that takes a step a call, then an nn.Sequential
    that cannot be called with x.

    Args:
        net: the module, no network.
        batch: a batch with its x in the module's dtype; its targets show whether x is batch first.
        prefers: as in :func:`prepare`.
    """
    x = batch.x
    try:
        network, layout = wrap_with_layout(net, x, prefers=prefers)
    except UnsupportedLayerError:
        raise
    except FAILS as error:
        found = _wrapped_as_step(net, batch, prefers)
        if isinstance(found, tuple):
            return found
        if isinstance(found, UnsupportedLayerError):
            raise found from None
        if not isinstance(net, nn.Sequential) or type(net).forward is not nn.Sequential.forward:
            raise
        # If the module could be called with x or with a step of it, the error refuses the module itself. One that says
        # what forward does comes first: the other may come from a step that was taken for x, or x for a step.
        refusals = [e for e in (found, error) if isinstance(e, ValueError) and not isinstance(e, CannotReadError)]
        refusals.sort(key=lambda refusal: not isinstance(refusal, OtherNetworkError))
        if refusals:
            raise refusals[0] from None
        # An nn.Sequential is defined in the order of use, even where it cannot be called, as its layers return tuples.
        if x.ndim < 3:
            raise ValueError(f"x must have time and batch first, (T, B, ...), got {tuple(x.shape)}.") from error
        sample = tuple(x.shape[2:])
        try:
            network, _ = wrap_with_layout(net, prefers=prefers)
        except ValueError:  # a convolution does not state the shape of its input
            network, _ = wrap_with_layout(net, input_shape=sample, prefers=prefers)
        return network, Layout("time first", len(x), sample, one_step=True)
    assert layout is not None  # since x was given
    if layout.steps == 1 and layout.axes == "every step":
        raise ValueError(
            f"a call of net is one step, and so is x {tuple(x.shape)}: give x with time first, (T, B, ...), as your loop "
            "goes through it. The same input in 25 steps is x.expand(25, *x.shape)."
        )
    return network, layout


def _wrapped_as_step(
    net: nn.Module, batch: BatchParts, prefers: Output | None
) -> tuple[Network, Layout] | Exception | None:
    """Make the network of a module that takes one step a call, and find how the loop around it reads x.

    Args:
        net: the module.
        batch: x with an axis of time, and perhaps targets.
        prefers: as in :func:`prepare`.

    Returns:
        The network and the layout of x; the error if no network could be made of a call with one step of x; None if a
        step has no axis of samples, or the module goes through time within one.
    """
    # The module sees one step, so only the targets show whether x is batch first.
    batch_first = bool(swapped_axes(batch.x, batch.targets))
    if batch_first:
        x = batch.x.transpose(0, 1)
    else:
        x = batch.x
    if x.ndim < 3:  # a step would have no axis of samples
        return None
    # The step with the most nonzero entries: zeros would show little of what the module does.
    busiest = x.flatten(1).count_nonzero(1).argmax()
    try:
        network, layout = wrap_with_layout(net, x[busiest], prefers=prefers)
    except FAILS as error:
        return error
    # any other layout has an axis of time within the one step
    if layout is None or layout.steps > 1 or layout.axes != "every step":
        return None
    axes = "time first"
    if batch_first:
        axes = "batch first"
    return network, Layout(axes, len(x), tuple(x.shape[2:]), one_step=True)


def _refuse_half(net: nn.Module) -> None:
    """Refuse a module with parameters of half precision, or of any dtype but float32 and float64."""
    half = {p.dtype for p in net.parameters() if p.is_floating_point()} - {torch.float32, torch.float64}
    if half:
        raise TypeError(
            f"the parameters of net must be float32 or float64, got {half.pop()}: give net.float(), and convert it "
            "afterwards."
        )


# ---- the input


def _dense_input(x: Tensor) -> Tensor:
    """Return an input made dense, after a check that it is real, finite and not empty, and has two axes or more."""
    x = dense(x)
    if x.is_complex():
        raise TypeError(f"x must be real, got {x.dtype}.")
    if x.ndim < 2 or not x.numel():
        raise ValueError(f"x must have axes for time and batch and not be empty, got shape {tuple(x.shape)}.")
    if x.is_floating_point() and not x.isfinite().all():
        raise ValueError("x must be finite, got NaN or infinity.")
    return x


def as_batches(x: Any, y: Tensor | None = None) -> Iterable[Any]:
    """Return batches that can be read again and again.

    Args:
        x: a list of batches or a loader, which is returned as it is; or one batch, which is returned in a list: a
            tensor, (x, targets), or the list [x, targets] of a DataLoader.
        y: targets of one batch x that has none.

    Raises:
        TypeError: if x is none of these.
        ValueError: if y is given with targets in x, or with several batches.
    """
    if isinstance(x, Tensor):
        return [x if y is None else (x, y)]
    if isinstance(x, tuple) or (isinstance(x, list) and _is_one_batch(x)):
        if y is not None:
            raise ValueError("targets are given twice: in the batch (x, targets), and as y.")
        return [tuple(x)]
    if isinstance(x, Mapping | str | Iterator) or not isinstance(x, Iterable):  # an iterator can be read only once
        wanted = "a tensor, a batch (x, targets), a list of batches or a DataLoader"
        raise TypeError(f"x must be {wanted}, got {type(x).__name__}{numpy_hint(x)}.")
    if numpy_hint(x):  # an array of NumPy, which is iterable, too
        raise TypeError(f"x must be a torch.Tensor, got {type(x).__name__}{numpy_hint(x)}.")
    if y is not None:
        raise ValueError(f"y is for one batch x, but x is a {type(x).__name__}: give batches (x, targets).")
    return x


def _bytes_as_floats(batch: BatchParts, batches: Iterable[Any]) -> BatchParts:
    """Return a loader's batch with its bytes, counts of spikes, as floats: its user has no place to convert them.

    A batch that is given alone or in a list is returned as it is.
    """
    if batch.x.dtype == torch.uint8 and not isinstance(batches, Sequence):
        return batch._replace(x=batch.x.float())
    return batch


def _is_one_batch(parts: list[Any]) -> bool:
    """True for a list [x, targets] or [x, targets, mask], as torch's ``collate_fn`` makes it; False for [x, x, ...]."""
    if len(parts) not in (2, 3) or not all(isinstance(part, Tensor) for part in parts):
        return False
    x, targets = parts[:2]
    # The second tensor is no input: it has one axis, or holds integers where x does not.
    return targets.ndim == 1 or (x.is_floating_point() and not targets.is_floating_point())


def first_batch(batches: Iterable[Any]) -> Any:
    """Return the first batch, as :func:`some_batches` takes it.

    Raises:
        ValueError: if there is no batch.
    """
    return some_batches(batches, count=1)[0]


def some_batches(batches: Iterable[Any], count: int) -> list[Any]:
    """Return a list of the first batches, at most `count`.

    Random numbers that a loader draws for them are put back: whoever reads the loader next draws the same ones.

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
    """Put back, after the block, all generators of random numbers that a loader and its data set may draw from."""
    batches = getattr(loader, "batch_sampler", None)
    owners = (loader, getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None))
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
