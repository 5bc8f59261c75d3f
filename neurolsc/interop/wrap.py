"""Networks of snnTorch, norse and PyTorch as networks of cells over the same parameters."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from neurolsc.interop.own import own_cell
from neurolsc.interop.torch_nn import torch_cells
from neurolsc.modes import evaluating
from neurolsc.network import Network
from neurolsc.neurons.cell import Cell
from neurolsc.validation import whole


class Tail(nn.Sequential):
    """The modules after the last recurrent layer, as a readout of its flat output."""

    def __init__(self, modules: Iterable[nn.Module], shape: tuple[int, ...]) -> None:
        super().__init__(*modules)
        self.shape = shape

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.view(-1, *self.shape)).flatten(1)


def wrap(
    module: nn.Module | Iterable[nn.Module],
    *,
    input_shape: int | Sequence[int] | None = None,
    output: Literal["spikes", "membrane"] = "spikes",
) -> Network:
    """Make a network of cells over the parameters of a model of snnTorch, norse or PyTorch.

    Pre-training the network pre-trains the model. Every recurrent layer becomes a cell, together
    with the Linear, Conv2d, pooling and other modules without state before it; what follows the
    last one becomes the readout. Layers read the layer below in the same step (``layer_delay=0``).
    Neither snnTorch nor norse is imported unless the model is made of it.

    Args:
        module: an ``nn.Sequential`` or norse's ``SequentialState``; a recurrent layer; a list of
            modules in the order in which a step goes through them; or a module of your own. Of that
            one the order of definition is taken, since what its ``forward`` does cannot be known:
            it must be the order of use. Pass a list where it is not.
        input_shape: shape of one sample of a step's input, such as 784 or (1, 28, 28); by default
            that of the first Linear or recurrent layer. The network itself reads flat inputs (T, B,
            n_in), time first.
        output: what is read of a layer of snnTorch at the very end: its spikes, or its membrane.
            With ``"membrane"`` its cell sends mem, resets as ever, and is an
            :attr:`~neurolsc.Cell.integrator`, like norse's LI: starts and rates pass over it.

    Returns:
        The network. What it computes at each step is what the model computes; its states are its
        own.

    Raises:
        TypeError: if what is given is no module or list of modules, or a layer cannot be wrapped;
            the message says which and why.
        ValueError: if there is no recurrent layer, one is used twice, the modules do not fit in
            this order, the input's shape is needed and not given, or there is no membrane to read.

    Example:
        >>> model = nn.ModuleDict({"lstm": nn.LSTM(8, 16, num_layers=2), "out": nn.Linear(16, 4)})
        >>> network = wrap([model["lstm"], model["out"]])
        >>> len(network.cells), network(torch.zeros(5, 3, 8)).shape
        (2, torch.Size([5, 3, 4]))
    """
    parts = list(_parts(_modules(module)))
    recurrent = [part for part in parts if _library(part)]
    if not recurrent:
        raise ValueError(
            "there is no recurrent layer to wrap: none of snnTorch, norse, ours or torch.nn's RNN, GRU, LSTM."
        )
    if len(set(recurrent)) < len(recurrent):
        raise ValueError("a recurrent layer occurs twice: its two uses would share a hidden state.")
    shape = _first_shape(parts) if input_shape is None else _sizes(input_shape)
    cells: list[Cell] = []
    before: list[nn.Module] = []
    for part in parts:
        if not _library(part):
            before.append(part)
            continue
        with _in_order(parts):
            _refuse_state(before, shape)
            cells += _cells(part, before, shape)
        shape, before = getattr(cells[-1], "output_shape", (cells[-1].n_hidden,)), []
    if output == "membrane":
        _read_membrane(cells[-1], before)
    elif output != "spikes":
        raise ValueError(f"output must be 'spikes' or 'membrane', got {output!r}.")
    with _in_order(parts):
        _refuse_state(before, shape)
        return Network(cells, Tail(before, shape), layer_delay=0)


def _modules(module: Any) -> list[nn.Module]:
    """What was given as a list of modules, if it is one or some."""
    if isinstance(module, nn.Module):
        return [module]
    if isinstance(module, str | Tensor | type | Mapping) or not isinstance(module, Iterable):
        raise TypeError(f"wrap takes a module or a list of modules, got {_told(module)}.")
    modules = list(module)
    for place, part in enumerate(modules):
        if not isinstance(part, nn.Module):
            raise TypeError(f"wrap takes a list of modules; at place {place}, got {_told(part)}.")
    return modules


def _told(thing: Any) -> str:
    """What a thing is that is no module, and what to write instead where that is plain."""
    if isinstance(thing, type):
        return f"the class {thing.__name__}; write {thing.__name__}(...)"
    if isinstance(thing, Tensor):
        return f"a tensor of shape {tuple(thing.shape)}"
    if callable(thing):
        return f"the function {getattr(thing, '__name__', thing)}; write a module, such as nn.ReLU()"
    return f"{type(thing).__name__} ({thing!r})"


def _sizes(input_shape: Any) -> tuple[int, ...]:
    sizes = input_shape if isinstance(input_shape, tuple | list) else (input_shape,)
    return tuple(whole("input_shape", size) for size in sizes)


def _parts(modules: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """The recurrent layers and the largest modules without one in them, in order."""
    for module in modules:
        if isinstance(module, Network):
            raise TypeError("wrap makes a Network of other modules; a Network is one already, use it as it is.")
        if _library(module) == "norse" and hasattr(module, "lifted_module"):
            yield from _parts([module.lifted_module])  # type: ignore[list-item]
        elif _library(module):
            yield module
        elif isinstance(module, nn.ModuleList | nn.ModuleDict) or any(map(_library, module.modules())):
            yield from _parts(module.children())
        elif not isinstance(module, nn.modules.loss._Loss):
            yield module


def _library(module: nn.Module) -> str | None:
    """Where a recurrent layer comes from; None for modules without state and for containers."""
    if isinstance(module, Cell):
        return "neurolsc"
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        return "torch"
    roots = [kind.__module__.partition(".")[0] for kind in type(module).__mro__]
    if isinstance(module, nn.Sequential):  # norse's SequentialState is one
        return None
    return next((root for root in roots if root in ("snntorch", "norse")), None)


def _cells(layer: nn.Module, before: list[nn.Module], shape: tuple[int, ...]) -> list[Cell]:
    if isinstance(layer, Cell):
        return [own_cell(layer, before, shape)]
    match _library(layer):
        case "snntorch":
            from neurolsc.interop.wrap_snntorch import snntorch_cell  # which imports snnTorch

            return [snntorch_cell(layer, before, shape)]
        case "norse":
            from neurolsc.interop.wrap_norse import norse_cell

            return [norse_cell(layer, before, shape)]
    return list(torch_cells(layer, before, shape))


def _read_membrane(cell: Cell, after: list[nn.Module]) -> None:
    """Let the last cell send its membrane."""
    layer = getattr(cell, "layer", cell)
    mem = cell.membrane() if _library(layer) == "snntorch" else None
    if after or mem is None:
        end = type(after[-1] if after else layer).__name__
        raise ValueError(f'output="membrane" reads a layer of snnTorch that has a mem at the very end, got {end}.')
    cell.integrator = True


def _first_shape(parts: list[nn.Module]) -> tuple[int, ...]:
    first = next(part for part in parts if not isinstance(part, nn.Flatten | nn.Dropout | nn.Identity))
    if isinstance(first, nn.Linear):
        return (first.in_features,)
    if isinstance(first, Cell):
        return (first.n_in,)
    if _library(first) and isinstance(size := getattr(first, "input_size", None), int | Tensor):
        return (int(size),)
    raise ValueError(
        f"the shape of an input cannot be told from {type(first).__name__}; pass input_shape, such as 784 or (1, 28, 28)."
    )


def _refuse_state(modules: list[nn.Module], shape: tuple[int, ...]) -> None:
    """Refuse an unknown module whose second answer is another one, or is no tensor."""
    unknown = [m for m in modules if not type(m).__module__.startswith("torch.nn.")]
    if not unknown:
        return
    chain = nn.Sequential(*modules)
    like = next(chain.parameters(), torch.empty(0))
    x = torch.ones(1, *shape, dtype=like.dtype, device=like.device)
    with torch.no_grad(), evaluating(chain):
        first, second = chain(x), chain(x)
    if not isinstance(first, Tensor) or not torch.equal(first, second):
        names = ", ".join(type(m).__name__ for m in unknown)
        raise TypeError(f"{names}: one of these keeps a state or does not return one tensor, and cannot be wrapped.")


@contextmanager
def _in_order(parts: list[nn.Module]) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        order = ", ".join(type(part).__name__ for part in parts)
        raise ValueError(
            f"the modules do not fit in the order {order} ({error}). Pass those that a step goes through as a list, in "
            "the order of their use: wrap([fc1, lif1, fc2, lif2])."
        ) from error
