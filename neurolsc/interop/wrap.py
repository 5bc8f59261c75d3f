"""Models of snnTorch, norse, spikingjelly and PyTorch as networks over the same parameters."""

from collections.abc import Iterable, Mapping, Sequence, Sized
from contextlib import suppress
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter, is_lazy

from neurolsc.interop.example_run import NO_LAYER, ExampleRun, Layout, parts_of
from neurolsc.interop.spikingjelly import SpikingJellyCell, step_of
from neurolsc.interop.wrapped import (
    CellWithModules,
    WrappedCell,
    library_of,
    plain_module,
    torch_cells,
    warn_of,
)
from neurolsc.network import Network, copied
from neurolsc.neurons.cell import Cell, dtype_and_device
from neurolsc.surroundings import HALF, eval_mode, in_full_precision
from neurolsc.validation import dense, one_of, shown

MOST_CALLS = 500  # rounds of two calls that look for a state in modules; a longer delay line is not noticed


def wrap(
    module: nn.Module | Iterable[nn.Module],
    x: Tensor | None = None,
    *,
    input_shape: int | Sequence[int] | None = None,
    output: Literal["spikes", "membrane"] | None = None,
) -> Network:
    """Make a network of cells over a model of snnTorch, norse, spikingjelly or PyTorch.

    Pre-training the network pre-trains the model. Every recurrent layer becomes a cell, together with the Linear,
    Conv2d, pooling and other modules without state before it; what follows the last one becomes the readout. Layers
    read the layer below in the same step (``layer_delay=0``). A last layer without a reset is read by its voltage:
    norse's LI, and snnTorch's Leaky or Synaptic with ``reset_mechanism="none"`` whose membrane the model returns, alone
    or beside its spikes; others by spikes.

    With an example input x the order is that of use, and the network is compared with the model from rest: what every
    layer reads and sends and what the model returns must agree to 1e-4 of the largest value, but for one value in
    10,000. The model runs in evaluation mode and is afterwards as before, but lazy layers are built. Random numbers
    replace the spikes of layers that do not read them themselves: so a relu behind a layer shows, although it changes
    no spike, only a derivative.

    Args:
        module: an ``nn.Sequential`` or norse's ``SequentialState``; a recurrent layer; a list of modules in the order
            in which a step goes through them; or a module of your own. Of that one, without x, the order of definition
            is taken: it must be the order of use.
        x: what the model itself takes: ``module(x)`` is called once. Time is its first or second axis, or x is the same
            in every step; a layer with ``batch_first=True`` reads the batch first.
        input_shape: shape of one sample of a step's input, such as 784 or (1, 28, 28); by default that of x, or of the
            first Linear or recurrent layer. The network itself reads flat inputs (T, B, n_in), time first.
        output: what is read of a layer of snnTorch at the very end, its spikes or its membrane; by default what the
            model returns first of the two, and without x its spikes; of a layer without a reset see above. With
            ``"membrane"`` the cell sends mem, resets as ever, and is an :attr:`~neurolsc.Cell.integrator`, like
            norse's LI.

    Returns:
        The network. What it computes at each step is what the model computes; its states are its own.

    Raises:
        TypeError: if a layer cannot be wrapped; the message says which and why.
        ValueError: if the modules do not fit in this order, or the model does something with x that the network does
            not; the message says where.

    Example:
        >>> model = nn.ModuleDict({"lstm": nn.LSTM(8, 16, num_layers=2), "out": nn.Linear(16, 4)})
        >>> network = wrap([model["lstm"], model["out"]])
        >>> len(network.cells), network(torch.zeros(5, 3, 8)).shape
        (2, torch.Size([5, 3, 4]))
    """
    return wrap_with_layout(module, x, input_shape=input_shape, output=output)[0]


@in_full_precision
def wrap_with_layout(
    module: nn.Module | Iterable[nn.Module],
    x: Tensor | None = None,
    *,
    input_shape: int | Sequence[int] | None = None,
    output: Literal["spikes", "membrane"] | None = None,
    prefers: Literal["spikes", "membrane"] | None = None,
) -> tuple[Network, Layout | None]:
    """Make the network of :func:`wrap`, and find where time and batch are in x.

    Args:
        module: as in :func:`wrap`.
        x: as in :func:`wrap`.
        input_shape: as in :func:`wrap`.
        output: as in :func:`wrap`.
        prefers: what to read of a last layer of snnTorch where the model returns both its spikes and its membrane;
            None: the first of the two, but the membrane of a layer without a reset.

    Returns:
        The network, and the layout of x; None without x.
    """
    module = plain_module(module)
    if x is not None and isinstance(module, nn.Module) and any(map(is_lazy, module.parameters())):
        # A call builds lazy layers for good. That of a copy shows first whether the model reads x, and how.
        _wrapped(copied(module), x, input_shape, output, prefers)
    return _wrapped(module, x, input_shape, output, prefers)


def _wrapped(
    module: nn.Module | Iterable[nn.Module],
    x: Tensor | None,
    input_shape: int | Sequence[int] | None,
    output: Literal["spikes", "membrane"] | None,
    prefers: Literal["spikes", "membrane"] | None,
) -> tuple[Network, Layout | None]:
    """As :func:`wrap_with_layout`, which says what the arguments are and what is returned."""
    modules = as_modules(module)
    for part in modules:
        _refuse_values(part)
    one_of("output", output or "spikes", ("spikes", "membrane"))

    # Put the parts in the order of use: with x a call of the model shows it, else the order of definition is taken.
    run = None
    if x is None:
        _refuse_broken(modules)
        parts = list(parts_of(modules))
    elif isinstance(module, nn.Module):
        x = _finite(x)
        if x.dtype in HALF:  # so was the module, which is of float32 inside of this function
            x = x.to(dtype_and_device(module)["dtype"])
        _refuse_broken(modules)
        run = ExampleRun(module, x)
        parts = run.parts
    else:
        raise TypeError("x is for a model whose forward takes it, got a list of modules.")

    layers = [part for part in parts if library_of(part)]
    if not layers:
        raise ValueError(NO_LAYER)
    # Only a Sequential and a list are sure to be used in the order of definition.
    if run is None and isinstance(module, nn.Module) and not isinstance(module, nn.Sequential):
        _refuse_missing_modules(parts)
    if len(set(layers)) < len(layers):
        raise ValueError("a recurrent layer occurs twice: its two uses would share a hidden state.")
    own_forward = isinstance(module, nn.Module) and not isinstance(module, nn.Sequential | nn.ModuleList)
    if run is None and own_forward and len(layers) > 1:
        names = {part: name for name, part in module.named_modules()}  # type: ignore[union-attr]
        used = ", ".join(names[layer] for layer in layers)
        warn_of(f"nothing shows that forward uses {used} in this order, and each once in a step: give wrap(net, x).")

    # The shapes that a sample of a step's input may have, the most likely first.
    if isinstance(input_shape, int):
        shapes = [(input_shape,)]
    elif input_shape is not None:
        shapes = [tuple(input_shape)]
    elif run is None:
        shapes = [_first_shape(parts)]
    else:
        shapes = run.shapes

    # Each layer becomes a cell together with the modules before it; those after the last layer become the readout.
    layer_decides = run is None and output is None  # neither a run nor the user says whether the membrane is read
    cells: list[Cell] = []
    before: list[nn.Module] = []
    part = None  # the part at which an error occurs; None at the readout
    try:
        for part in parts:
            if library_of(part):
                cells += _cells_for(shapes, part, before, run, last=layer_decides and part is parts[-1])
                shapes = [getattr(cells[-1], "output_shape", (cells[-1].n_hidden,))]
                before = []
            elif any(isinstance(inner, nn.Embedding) for inner in part.modules()):
                raise TypeError(
                    "an Embedding reads integers, which no layer sends: wrap the modules after it as a list."
                )
            else:
                before.append(step_of(part))
        part = None
        _refuse_state(before, shapes[0])  # what is left in `before` follows the last layer
        readout: nn.Module = nn.Sequential(nn.Unflatten(1, shapes[0]), *before, nn.Flatten())
        if len(before) == 1 and isinstance(before[0], nn.Linear) and not any(isinstance(c, WrappedCell) for c in cells):
            readout = before[0]  # behind our own cells: a file and an export can describe a bare Linear
        network = Network(cells, readout, layer_delay=0)
    except RuntimeError as error:  # of shapes
        if run is not None:
            raise run.refusal(part or run.other_reader()) from error
        order = ", ".join(type(part).__name__ for part in parts)
        raise ValueError(
            f"the modules do not fit in the order {order} ({error}). Pass an example of the model's input, wrap(net, x), "
            "or those that a step goes through as a list, in the order of their use: wrap([fc1, lif1, fc2, lif2])."
        ) from error

    # Decide what is read of the last layer: its spikes, or its membrane, which only a layer of snnTorch offers.
    last: Any = cells[-1]
    has_mem = not before and library_of(layers[-1]) == "snntorch" and last.membrane() is not None
    if run is not None:
        outputs = run.returned_by(network, has_mem)
    elif has_mem:
        outputs = ["spikes", "membrane"]
    else:
        outputs = ["spikes"]
    read: str = output or outputs[0]
    if output is None and prefers is not None and prefers in outputs:
        read = prefers
    elif output is None and "membrane" in outputs and run is not None and last.layer.reset_mechanism == "none":
        read = "membrane"  # a layer without a reset integrates
    if read == "membrane":
        if not has_mem:
            end = type([*layers, *before][-1]).__name__
            raise ValueError(f'output="membrane" reads a layer of snnTorch that has a mem at the very end, got {end}.')
        last.integrator = True
    layout = None if run is None else run.layout
    if layout is not None and not last.integrator and "membrane" in outputs and prefers is None:
        layout = layout._replace(leaves_membranes=True)
    return network, layout


def as_modules(net: Any) -> list[nn.Module]:
    """Return a list of the modules of a net, which is a module or a list of some; TypeError if it is neither."""
    modules: list[Any] = [net]
    if isinstance(net, Iterable) and not isinstance(net, nn.Module | str):
        modules = list(net)
    for part in modules:
        if not isinstance(part, nn.Module):
            listed = "" if part is net else "a list with "
            raise TypeError(f"net must be a torch.nn.Module or a list of modules, got {listed}{shown(part)}.")
    return modules


def _finite(x: Tensor) -> Tensor:
    """Return x made dense; ValueError if it is empty or not finite."""
    x = dense(x)
    if not x.numel():
        raise ValueError(f"x must be finite and not empty, got {tuple(x.shape)}.")
    if not x.isfinite().all():
        raise ValueError(f"x must be finite and not empty, got {tuple(x.shape)} with NaN or infinity.")
    return x


def _refuse_broken(modules: Iterable[nn.Module]) -> None:
    """Refuse layers that snnTorch itself cannot step."""
    for part in modules:
        for layer in part.modules():
            if library_of(layer) == "snntorch":
                from neurolsc.interop.snntorch import refuse_broken  # which imports snnTorch

                refuse_broken(layer)


def _refuse_missing_modules(parts: Sequence[nn.Module]) -> None:
    """Refuse two layers in a row, if the second has no weights by which it could read the first.

    Then the order of definition is not that of use: a Linear between the two is defined elsewhere.
    """
    for below, part in pairwise(parts):
        # the part is no layer (library None), or has input weights: norse's recurrent layers, snnTorch's SLSTM
        has_weights = hasattr(part, "input_weights") or hasattr(part, "lstm_cell")
        can_read = has_weights or library_of(part) in (None, "torch", "neurolsc")
        if library_of(below) and not can_read:
            raise ValueError(
                f"in the order of definition no module is between a {type(below).__name__} and a {type(part).__name__}: "
                "pass an example of the model's input, wrap(net, x), which shows the order of use."
            )


def _refuse_values(module: nn.Module) -> None:
    """Refuse a module whose parameters are no real, finite numbers."""
    for name, value in module.named_parameters():
        if isinstance(value, UninitializedParameter):
            continue
        if value.device.type == "meta":
            raise ValueError(
                f"{name} of net lies on the device meta, which holds no values: give net.to_empty(...) some."
            )
        if value.is_complex():
            raise TypeError(f"the parameters of net must be real, got {name} of {value.dtype}.")
        if value.is_floating_point() and not value.isfinite().all():
            raise ValueError(f"the parameters of net must be finite, got NaN or infinity in {name}.")


def _cells(layer: nn.Module, before: list[nn.Module], shape: tuple[int, ...], *, last: bool) -> list[Cell]:
    """Make the cells of a layer; the first of them takes in the modules before the layer.

    Args:
        layer: the layer; of PyTorch it may have several sublayers, each of which becomes a cell.
        before: modules without state that its input goes through first.
        shape: shape of one sample of the input of those modules, or of the layer if there are none.
        last: let the cell be an integrator, if its layer is one of snnTorch without a reset.
    """
    match library_of(layer):
        case "snntorch":
            from neurolsc.interop.snntorch import SnnTorchCell  # which imports snnTorch

            return [SnnTorchCell(layer, before, shape, last=last)]
        case "norse":
            from neurolsc.interop.norse import NorseCell

            return [NorseCell(layer, before, shape)]
        case "spikingjelly":
            return [SpikingJellyCell(layer, before, shape)]
        case "torch":
            return torch_cells(layer, before, shape)
    cell: Any = layer
    if before or shape != (cell.n_in,):
        return [CellWithModules(cell, before, shape)]
    return [cell]  # as it is: behind no modules it keeps its closed form


def _cells_for(
    shapes: Sequence[tuple[int, ...]], layer: nn.Module, before: list[nn.Module], run: ExampleRun | None, *, last: bool
) -> list[Cell]:
    """Make the cells of a layer, for the first of some shapes of its input that fits.

    A shape fits if tensors of it go through the modules before and, in a run, the cells do what the layer did. If none
    fits, the error is that of the last shape.
    """

    def made(shape: tuple[int, ...]) -> list[Cell]:
        _refuse_state(before, shape)
        cells = _cells(layer, before, shape, last=last)
        if run is not None:
            run.compare(layer, cells)
        return cells

    for shape in shapes[:-1]:
        with suppress(RuntimeError, ValueError):
            return made(shape)
    return made(shapes[-1])


def _first_shape(parts: list[nn.Module]) -> tuple[int, ...]:
    """Return the shape of one sample of a step's input, as the first module states it; ValueError if it does not."""
    # these three read any shape
    first: Any = next(part for part in parts if not isinstance(part, nn.Flatten | nn.Dropout | nn.Identity))
    for name in ("in_features", "n_in", "input_size"):
        size = getattr(first, name, None)
        if isinstance(size, int | Tensor):  # a tensor in norse's recurrent layers
            return (int(size),)
    raise ValueError(
        f"the shape of an input is not known from {type(first).__name__}; pass an example of the model's input, "
        "wrap(net, x), or input_shape, such as 784 or (1, 28, 28)."
    )


def _refuse_state(modules: list[nn.Module], shape: tuple[int, ...]) -> None:
    """Refuse modules whose output depends on what they have read before.

    Such modules send different outputs for equal inputs, from the second call on or, as a delay line, after some calls.
    So modules are called in up to MOST_CALLS rounds, as long as calls change what they hold; on a copy if there can be
    one.
    """
    chain: nn.Module = nn.Sequential(*modules)
    with suppress(RuntimeError, TypeError):  # some modules cannot be copied
        chain = copied(chain)
    x = torch.ones(1, *shape, **dtype_and_device(chain))
    with torch.no_grad(), eval_mode(chain), torch.random.fork_rng(devices=[]):
        first = chain(x)
        held = _held_by(chain)
        stateful = not torch.equal(chain(x), first)
        for _ in range(MOST_CALLS):
            held_now = _held_by(chain)
            if stateful or held_now == held:
                break
            held = held_now
            chain(torch.rand_like(x))  # another input, which a state would keep
            stateful = not torch.equal(chain(x), first)
    if stateful:
        names = ", ".join(type(m).__name__ for m in modules)
        raise TypeError(f"{names}: one of these has a state, and cannot be wrapped.")


class _TensorVersion:
    """The present version of a tensor; two are equal if they have the same memory, unwritten in between.

    It keeps the tensor alive, so that no other tensor gets the same memory.
    """

    def __init__(self, value: Tensor) -> None:
        self.value = value
        version = -1  # of an inference tensor, which counts no versions
        if not value.is_inference():
            version = value._version
        self.key = (value.data_ptr(), version)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _TensorVersion) and self.key == other.key

    __hash__ = None  # type: ignore[assignment]


def _held_by(module: nn.Module) -> list[object]:
    """List all that a module and its parts hold besides parameters; two lists are equal if nothing has changed."""

    def comparable(value: object) -> object:
        if isinstance(value, Tensor):
            return _TensorVersion(value)
        if isinstance(value, Mapping):
            return [(str(key), comparable(inner)) for key, inner in value.items()]
        if isinstance(value, Iterable) and isinstance(value, Sized) and not isinstance(value, str | bytes):
            return [comparable(inner) for inner in value]
        if isinstance(value, int | float | str | bool | None):
            return value
        return id(value)

    attributes = []
    for part in module.modules():
        for name, value in vars(part).items():
            if name not in ("_parameters", "_modules") and not name.endswith("_hooks"):
                attributes.append(comparable(value))
    return attributes
