"""Files of modules of other libraries, with the values that their own state_dict leaves out.

norse keeps thresholds and time constants of a layer in a NamedTuple ``p``, spikingjelly in plain numbers. Neither are
in ``net.state_dict()``, even if an initialisation has set them. A file of :func:`save` holds them, too.
"""

import copy
import numbers
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from neurolsc import io
from neurolsc.interop.wrapped import plain_module
from neurolsc.network import Network
from neurolsc.surroundings import original

SHOWN = 3  # names in a remark, since a large module has very many
OF_SPIKINGJELLY = ("v_threshold", "v_reset", "tau")  # attributes of its neurons that are plain numbers
# what comes before the name of a value in a file
LIKE_STATE = "state/"  # if net.state_dict() has it
OUTSIDE = "outside/"  # if net.state_dict() leaves it out


def save(net: nn.Module, path: str | PathLike[str]) -> None:
    """Write a file of a network, or of the values of a module of another library, whole or not at all.

    The values of a module are its ``state_dict``, and the thresholds and time constants of norse's and spikingjelly's
    layers, which the ``state_dict`` leaves out; :func:`load` puts them into a new module of the same classes.

    Args:
        net: a module of another library; or a network of cells and surrogates of this package, and registered ones
            (:func:`neurolsc.register`): its layout, its parameters and buffers bit by bit, and which are frozen. A
            network made by :func:`neurolsc.wrap` is written in our own cells (:func:`neurolsc.export.from_wrapped`)
            where these have the same spikes; :func:`load` returns those, with default surrogates.
        path: the file, usually ``*.safetensors``.

    Raises:
        TypeError: if net is no module, or a surrogate, the readout, a wrapped layer or a value cannot be described in a
            file.
        ValueError: if a cell is not registered, two cells share a parameter, the network has tensors that its layout
            does not explain, or a parameter has no values.
        OSError: if the file cannot be written.
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"net must be a neurolsc.Network or a torch.nn.Module, got {type(net).__name__}.")
    net = original(net)
    if isinstance(net, Network):
        io.save(net, path)
        return
    state = net.state_dict()
    if others := [name for name, value in state.items() if not isinstance(value, Tensor)]:
        raise TypeError(
            f"{others[0]} of net.state_dict() is a {type(state[others[0]]).__name__}; a file holds tensors alone."
        )
    for name, value in state.items():
        if isinstance(value, UninitializedParameter) or value.device.type == "meta":
            raise ValueError(
                f"{name} of net has no values: it is of a lazy layer that was not called, or on the device meta."
            )
    tensors = {LIKE_STATE + name: value for name, value in state.items()}
    tensors |= {OUTSIDE + name: value for name, value in values_outside(net).items()}
    io.write_tensors(path, tensors, "module", {"class": type(plain_module(net)).__name__})


def load(path: str | PathLike[str], net: nn.Module | None = None) -> Any:
    """Read a file of :func:`save`: return its network, or set a module of another library to its values.

    Args:
        path: the file, or the name of a trained network in the package: ``"sl-mnist-alif"`` or
            ``"spoken-digits-alif"``. Cards in neurolsc/trained give the commands that made them.
        net: for a file of a module, the module that is to have the values; it must be made of the same classes. For a
            file of a network None: the network is made anew, on the CPU and in its dtypes.

    Returns:
        The network, or net.

    Raises:
        ValueError: if the file is damaged, is of another kind or format, names an unknown class, does not fit its
            layout or net, or holds NaN or infinity. net is then as it was.
        OSError: if there is neither a file nor a trained network of that name, or it cannot be read.

    Example:
        >>> load("sl-mnist-alif").n_in
        784
    """
    if net is None:
        return io.load(path)
    given = net
    net = cast(nn.Module, original(net))
    tensors, content = io.read_tensors(path, "module")
    state = {name.removeprefix(LIKE_STATE): v for name, v in tensors.items() if name.startswith(LIKE_STATE)}
    outside = {name.removeprefix(OUTSIDE): v for name, v in tensors.items() if name.startswith(OUTSIDE)}
    known = values_outside(net)
    if outside.keys() != known.keys():
        differing = ", ".join(sorted(outside.keys() ^ known.keys()))
        raise ValueError(
            f"{path} is of a {content['class']} whose layers keep other values than those of net: {differing}."
        )
    for name, value in known.items():
        if outside[name].shape != value.shape:
            shapes = f"{tuple(outside[name].shape)}, in net {tuple(value.shape)}"
            raise ValueError(
                f"{path} is of a {content['class']} with another {name} than net: it is of shape {shapes}."
            )
    before = {name: value.detach().clone() for name, value in net.state_dict().items()}
    try:
        net.load_state_dict(state)
    except RuntimeError as error:  # names or shapes differ; torch has set what fits all the same
        net.load_state_dict(before)
        raise ValueError(f"{path} is of a {content['class']} with other parameters than net: {error}") from error
    # the names have been compared above
    set_values_outside(net, outside)
    return given


class Place(NamedTuple):
    """Where a layer keeps a value outside of its state_dict."""

    owner: Any  # the layer
    name: str  # of its attribute, or of a field
    in_p: bool = False  # True for a field of norse's NamedTuple p

    def value(self) -> Any:
        """Return the value as it is now, a number or a tensor."""
        return getattr(self.owner.p if self.in_p else self.owner, self.name)


def _places(net: nn.Module | Iterable[nn.Module]) -> Iterator[tuple[str, Place]]:
    """Yield the names and places of numbers and tensors of norse's and spikingjelly's layers that no state_dict holds.

    Those are the fields of norse's ``p``, and attributes of spikingjelly's neurons that are neither parameters nor
    buffers. A name is the path of the layer and that of the value, such as ``"1.p.v_th"``.
    """
    if not isinstance(net, nn.Module):  # a list of modules
        net = nn.ModuleList(net)
    for prefix, part in net.named_modules():
        dot = f"{prefix}." if prefix else ""
        library = type(part).__module__.partition(".")[0]
        p: Any = getattr(part, "p", None)
        if library == "norse" and hasattr(p, "_fields"):
            candidates = [(f"{dot}p.{name}", Place(part, name, in_p=True)) for name in p._fields]
        elif hasattr(part, "v_threshold") and hasattr(part, "surrogate_function"):  # spikingjelly's, and its subclasses
            candidates = [(f"{dot}{name}", Place(part, name)) for name in OF_SPIKINGJELLY if name in vars(part)]
        else:
            continue
        for name, place in candidates:
            value = place.value()
            is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
            if is_number or isinstance(value, Tensor):  # else norse's p.method, a word, or a v_reset of None
                yield name, place


def values_outside(net: nn.Module | Iterable[nn.Module]) -> dict[str, Tensor]:
    """Copy thresholds, time constants and the like that layers keep outside of ``net.state_dict()``, by name.

    Numbers are returned as tensors of float64.
    """
    values = {}
    for name, place in _places(net):
        value = place.value()
        if isinstance(value, Tensor):
            values[name] = value.detach().clone()
        else:
            values[name] = torch.tensor(value, dtype=torch.float64)
    return values


def set_values_outside(net: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Set all values that :func:`values_outside` returns; each stays a parameter, a tensor or a number, as it was.

    Args:
        net: the module.
        values: the values by name.

    Raises:
        KeyError: if a name is missing.
    """
    for name, place in _places(net):
        before = place.value()
        owner: Any = place.owner
        new: Any = values[name]
        if isinstance(before, nn.Parameter):  # stays the same object, which an optimizer may hold
            with torch.no_grad():
                before.copy_(new)
            continue
        if isinstance(before, Tensor):
            new = new.to(before)
        else:
            new = type(before)(new.item())  # an int or a float
        if place.in_p:
            owner.p = owner.p._replace(**{place.name: new})
        else:
            setattr(owner, place.name, new)


@contextmanager
def restored_on_error(net: nn.Module | Iterable[nn.Module]) -> Iterator[None]:
    """If the block ends in an error or is interrupted, put back all weights, buffers and :func:`values_outside`."""
    net = original(net)
    if not isinstance(net, nn.Module):  # a list of modules
        net = nn.ModuleList(net)
    state = copy.deepcopy(net.state_dict())
    outside = values_outside(net)
    try:
        yield
    except BaseException:
        net.load_state_dict(state)
        set_values_outside(net, outside)
        raise


def left_out(net: nn.Module | Iterable[nn.Module], before: Mapping[str, Tensor]) -> str:
    """Say which values outside of ``net.state_dict()`` differ from those that :func:`values_outside` returned before.

    The text also says how to keep them; it is empty if none differs.
    """
    changed = [name for name, value in values_outside(net).items() if not torch.equal(value, before[name])]
    if not changed:
        return ""
    names = ", ".join(changed[:SHOWN])
    if len(changed) > SHOWN:
        names += f" and {len(changed) - SHOWN} more"
    return f"not in net.state_dict(): {names}; neurolsc.save(net, path) keeps them, neurolsc.load(path, net) sets them."
