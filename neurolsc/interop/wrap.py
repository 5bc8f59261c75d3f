"""Models of snnTorch, norse, spikingjelly and PyTorch as networks over the same parameters."""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from typing import Any, Literal, NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from neurolsc.interop.foreign import ForeignCell, PrecededCell, borrowed, torch_cells
from neurolsc.interop.wrap_spikingjelly import is_dropout, spikingjelly_cell, step_of
from neurolsc.network import Network, eval_mode
from neurolsc.neurons.cell import Cell
from neurolsc.validation import one_of, tensor


class Tail(nn.Sequential):
    """The modules after the last recurrent layer, as a readout of its flat output."""

    def __init__(self, modules: Iterable[nn.Module], shape: tuple[int, ...]) -> None:
        super().__init__(*modules)
        self.shape = shape

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.view(-1, *self.shape)).flatten(1)


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
    norse's LI, and snnTorch's Leaky or Synaptic with ``reset_mechanism="none"`` (unless with ``init_hidden=True,
    output=False`` it returns its spikes alone). Of a last layer that resets the spikes are read.

    With an example input x the order is that of use, and the network is compared with the model: what every layer reads
    and sends, and what the model returns, over all steps and from rest. All must agree to 1e-4 of the largest value,
    but for one value in 10,000 (a voltage that rounding puts across its threshold). The model runs in evaluation mode
    and is afterwards as before. Random spikes replace those of a silent layer, so that differences behind it show.

    Args:
        module: an ``nn.Sequential`` or norse's ``SequentialState``; a recurrent layer; a list of modules in the order
            in which a step goes through them; or a module of your own. Of that one, without x, the order of definition
            is taken: it must be the order of use.
        x: what the model itself takes: ``module(x)`` is called once. Of a layer that takes one step (snnTorch's,
            norse's cells) every call is a step; one that takes all steps (norse's ``LIF``, ``nn.LSTM``) has time as its
            first axis, or second if ``batch_first=True``. What the first module reads must be x: time first, batch
            first, or the same in every step.
        input_shape: shape of one sample of a step's input, such as 784 or (1, 28, 28); by default that of x, or of the
            first Linear or recurrent layer. The network itself reads flat inputs (T, B, n_in), time first, whatever the
            model reads.
        output: what is read of a layer of snnTorch at the very end, its spikes or its membrane; by default what the
            model returns first of the two, without x its spikes. With ``"membrane"`` the cell sends mem, resets as
            ever, and is an :attr:`~neurolsc.Cell.integrator`, like norse's LI.

    Returns:
        The network. What it computes at each step is what the model computes; its states are its own.

    Raises:
        TypeError: if module is no module or list of modules, or a layer cannot be wrapped; the message says which and
            why.
        ValueError: if there is no recurrent layer, one is used twice, the modules do not fit in this order, the input's
            shape is not known, there is no membrane to read, or the model does something with x that the network does
            not; the message says where.

    Example:
        >>> model = nn.ModuleDict({"lstm": nn.LSTM(8, 16, num_layers=2), "out": nn.Linear(16, 4)})
        >>> network = wrap([model["lstm"], model["out"]])
        >>> len(network.cells), network(torch.zeros(5, 3, 8)).shape
        (2, torch.Size([5, 3, 4]))
    """
    modules: list[Any] = [module]
    if isinstance(module, Iterable) and not isinstance(module, nn.Module):
        modules = list(module)
    if not all(isinstance(part, nn.Module) for part in modules):
        raise TypeError(f"wrap takes a module or a list of modules, got {module!r}.")
    parts, seen = list(_parts(modules)), None
    if x is not None:
        if not isinstance(module, nn.Module):
            raise TypeError("x is for a model whose forward takes it, got a list of modules.")
        seen = _Forward(module, tensor("x", x))
        parts = seen.parts
    recurrent = [part for part in parts if _library(part)]
    if not recurrent:
        known = "snnTorch, norse, spikingjelly, ours or torch.nn's RNN, GRU, LSTM"
        raise ValueError(f"there is no recurrent layer to wrap: none of {known}.")
    if len(set(recurrent)) < len(recurrent):
        raise ValueError("a recurrent layer occurs twice: its two uses would share a hidden state.")
    if output is not None:
        one_of("output", output, ("spikes", "membrane"))
    if input_shape is not None:
        shape = (input_shape,) if isinstance(input_shape, int) else tuple(input_shape)
    else:
        shape = _first_shape(parts) if seen is None else seen.shape
    by_layer = seen is None and output is None  # the last layer alone decides whether its membrane is read
    cells: dict[nn.Module, list[Cell]] = {}
    before: list[nn.Module] = []
    for part in parts:
        if not _library(part):
            before.append(step_of(part))
            continue
        with _in_order(parts, seen, len(cells) + 1):
            _refuse_state(before, shape)
            cells[part] = _cells(part, before, shape, last=by_layer and part is parts[-1])
        shape, before = getattr(cells[part][-1], "output_shape", (cells[part][-1].n_hidden,)), []
    with _in_order(parts, seen, len(cells) + 1):
        _refuse_state(before, shape)
        network = Network([cell for of in cells.values() for cell in of], Tail(before, shape), layer_delay=0)
    returned = "spikes" if seen is None else seen.compare(network, cells)
    if (output or returned) == "membrane":
        cell: Any = network.cells[-1]
        if before or _library(recurrent[-1]) != "snntorch" or cell.membrane() is None:
            end = type(before[-1] if before else recurrent[-1]).__name__
            raise ValueError(f'output="membrane" reads a layer of snnTorch that has a mem at the very end, got {end}.')
        cell.integrator = True
        cell.recurrent_synapses = cell.recurrent_synapses and None  # its spikes are not what it sends
    return network


class _Use(NamedTuple):
    """One call of a module in a model's forward."""

    module: nn.Module
    read: Tensor
    sent: Tensor
    passed: Tensor  # to others: what was sent, or random spikes where a layer is silent


class _Forward:
    """What a model does with an input: the modules that it calls, their order, and their values."""

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        kinds = {m: (name, type(m).__name__) for name, m in model.named_modules()}
        self.names = {m: f"{name} ({kind})" if name else kind for m, (name, kind) in kinds.items()}
        self.uses: list[_Use] = []
        self.returned = list(_tensors(self._follow(model, x)))
        layers = dict.fromkeys(use.module for use in self.uses if _library(use.module))
        if not layers:
            known = "snnTorch, norse, spikingjelly or PyTorch"
            raise ValueError(f"{type(model).__name__}'s forward calls no recurrent layer of {known}.")
        self.read, self.sent, self.passed = (
            {
                layer: _by_step(layer, [getattr(use, what) for use in self.uses if use.module is layer])
                for layer in layers
            }
            for what in ("read", "sent", "passed")
        )
        (first, read), *others = self.read.items()
        self.steps, self.batch = read.shape[:2]
        for layer, other in others:
            if other.shape[:2] != read.shape[:2]:
                raise ValueError(
                    f"{self.names[layer]} reads {other.shape[0]} steps of {other.shape[1]} samples, and {self.names[first]} "
                    f"{self.steps} of {self.batch}: every layer must be used once in each step."
                )
        self.parts: list[nn.Module] = []
        self.chains: list[list[_Use]] = []  # of every layer, from the one below to it; and of what follows
        chain: list[_Use] = []
        for use in self.uses:
            if _library(use.module) and use.module not in self.parts:
                self._add(chain, use)
            chain = [use] if _library(use.module) else [*chain, use]
        self._add(chain)
        self.x = self._input(x)
        self.shape = tuple(self.x.shape[2:])

    def _follow(self, model: nn.Module, x: Tensor) -> Any:
        """Call a model from rest, note each use of a layer or outermost module, and return what it returns."""
        inside: list[nn.Module] = []
        random, flatten = torch.Generator().manual_seed(0), nn.Flatten()
        self.names[flatten] = "a flatten"

        def leave(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
            inside.pop()
            if inside:
                return out
            arguments = (*args, *kwargs.values())
            read = [value for value in arguments if isinstance(value, Tensor)]
            sent = out[0] if isinstance(out, tuple) and out else out
            library = _library(module)
            if not read or not isinstance(sent, Tensor) or (library is None and (len(read) > 1 or sent is not out)):
                wanted = "one tensor" if library is None else "a tensor and a state"
                raise ValueError(
                    f"{self.names[module]} reads {', '.join(type(value).__name__ for value in arguments)} and returns "
                    f"{type(out).__name__}: in a network of layers it reads and returns {wanted}."
                )
            passed = sent = sent.clone()  # forward may change its own in place
            if library not in (None, "torch") and not sent.any() and not hasattr(module, "recurrent"):
                passed = torch.randint(2, sent.shape, generator=random).to(sent)
                out = passed.clone() if isinstance(out, Tensor) else (passed.clone(), *out[1:])
            below = self.uses[-1].passed if self.uses else read[0]
            for start in (1, 2):  # x.view(len(x), -1), or of all steps
                if below.ndim > start + 1 and torch.equal(flat := below.flatten(start), read[0]):
                    self.uses.append(_Use(flatten, below, flat, flat))
            self.uses.append(_Use(module, read[0].clone(), sent, passed))
            return out

        devices = [x.device] if x.device.type == "cuda" else []
        with ExitStack() as stack:
            for context in (eval_mode(model), torch.no_grad(), torch.random.fork_rng(devices=devices)):
                stack.enter_context(context)
            module: Any
            for module in model.modules():
                stack.enter_context(borrowed(module))  # also gives back its hidden state
                if hasattr(module, "_memories"):  # spikingjelly's
                    module._memories.update(copy.deepcopy(module._memories_rv))
                elif _library(module) == "snntorch" and hasattr(module, "reset_mem"):
                    module.reset_mem()
            for module in dict.fromkeys(_parts([model], nested=True)):
                stack.callback(module.register_forward_pre_hook(lambda module, _: inside.append(module)).remove)
                stack.callback(module.register_forward_hook(leave, with_kwargs=True).remove)
            return model(x)

    def _add(self, chain: list[_Use], *layer: _Use) -> None:
        """Add a layer and the modules before it: once, where all steps go through them at once."""
        below = chain[:1] if self.parts else []
        between = chain[len(below) :]
        modules, count = [use.module for use in between], len(between) // self.steps
        if modules == modules[:count] * self.steps:
            between = between[:count]
        self.chains.append([*below, *between, *layer])
        self.parts += [use.module for use in (*between, *layer)]

    def refuse(self, *chains: list[_Use]) -> NoReturn:
        """Say between which two modules forward does something else: the first that do not meet."""
        a, b = chains[-1][0], chains[-1][-1]
        for below, above in (pair for chain in reversed(chains) for pair in reversed(list(pairwise(chain)))):
            if not any(torch.equal(above.read, sent) for sent in (below.passed, below.passed[0], below.passed[:, 0])):
                a, b = below, above
        first, second = self.names[a.module], self.names[b.module]
        raise ValueError(
            f"between {first} and {second} forward does what no module does: {second} reads {tuple(b.read.shape)}, "
            f"{_range(b.read)}, and {first} sends {tuple(a.passed.shape)}, {_range(a.passed)}. Let it call a module there in place "
            "of a function, such as nn.ReLU(), without a sum of two layers; or pass a list of modules in order."
        )

    def _layouts(self, x: Tensor) -> Iterator[Tensor]:
        """An input as (T, B, ...) in all ways in which that can be meant."""
        every, one = (self.steps, self.batch), len(x) == self.batch
        if one and self.steps == 1:
            yield x[None]
        if x.ndim > 2 and x.shape[:2] == every:
            yield x
        if x.ndim > 2 and x.shape[:2] == every[::-1]:
            yield x.transpose(0, 1)
        if len(x) == self.steps * self.batch:
            yield x.unflatten(0, every)
        if one:
            yield x.expand(self.steps, *x.shape)

    def _input(self, x: Tensor) -> Tensor:
        """What the first module reads in every step (T, B, ...), if that is x."""
        first = self.parts[0]
        if _library(first):
            read = self.read[first]
        else:  # which may be used again behind another layer
            reads = [use.read for use in self.uses if use.module is first][:: self.parts.count(first)]
            read = next(self._layouts(reads[0] if len(reads) == 1 else torch.stack(reads)), reads[0][None])
        if isinstance(first, nn.Linear) and read.ndim > 3:
            raise ValueError(
                f"{self.names[first]} reads {tuple(read.shape[1:])} in one step: x of shape {tuple(x.shape)} is taken as one "
                "step, (B, n_in), since the model does not go through time by itself."
            )
        if all(_differ(read.flatten(2), layout.flatten(2).to(read.dtype)) for layout in self._layouts(x)):
            raise ValueError(
                f"between the input and {self.names[first]}: x has shape {tuple(x.shape)} and values {_range(x)}, and what "
                f"{self.names[first]} reads in the {self.steps} steps that {self.names[next(iter(self.read))]} takes, "
                f"{_range(read)}, is another input. Do outside of the model what its forward does with x, such as an encoding "
                "in spikes, and use every layer once in a step."
            )
        return read

    def compare(self, network: Network, cells: dict[nn.Module, list[Cell]]) -> str:
        """Refuse a network that computes something else; find out which output the model has."""
        reads, below = self.x, self.x.flatten(2)
        with eval_mode(network), torch.no_grad():
            for place, (layer, (first, *more)) in enumerate(cells.items()):
                read = torch.stack([first.current(z) for z in below]) if isinstance(first, ForeignCell) else below
                if _differ(self.read[layer].flatten(2), read.flatten(2)):
                    self.refuse(self.chains[place])
                for cell in (first, *more):
                    reads, below = below, cell.run(below, cell.initial_state(self.batch))[0]
                if _differ(self.sent[layer].flatten(2), below):
                    raise ValueError(
                        f"{self.names[layer]} sends values {_range(self.sent[layer])}, and its own steps from rest "
                        f"{_range(below)}: forward sets or changes its state."
                    )
                below = self.passed[layer].flatten(2)
            ways = {"spikes": torch.stack([network.readout(z) for z in below])}
            cell, last = network.cells[-1], self.parts[-1]
            if _library(last) == "snntorch" and (of := cell.membrane()) is not None:
                state, mems = cell.initial_state(self.batch), []
                for z in reads:
                    _, state = cell.step(z, state)
                    mems.append(of.voltage(state))
                ways["membrane"] = torch.stack(mems)
        for returned in self.returned:
            for way, out in ways.items():
                forms = (out, out.transpose(0, 1), out[-1], out.sum(0), out.mean(0), out.amax(0))
                if any(not _differ(returned.flatten(), form.flatten()) for form in forms):
                    return way
        name = self.names[last]
        shapes = ", ".join(str(tuple(r.shape)) for r in self.returned) or "no tensor"
        raise ValueError(
            f"between {name} and what forward returns ({shapes}): it is neither what {name} sends in every step, nor its last, "
            "sum, mean or largest value over time. Let forward call a module for what it does there, such as "
            "nn.LogSoftmax(-1), or leave it to the loss."
        )


def _by_step(layer: Any, tensors: list[Tensor]) -> Tensor:
    """What a layer reads or sends, from all its calls, as (T, B, ...)."""
    if isinstance(layer, nn.RNNBase):
        return torch.cat([t.transpose(0, 1) if layer.batch_first else t for t in tensors])
    kind = type(layer)
    norse_with_time = kind.__module__.partition(".")[0] == "norse" and not kind.__name__.endswith("Cell")
    at_once = norse_with_time or getattr(layer, "step_mode", "s") == "m"
    return torch.cat(tensors) if at_once else torch.stack(tensors)


def _tensors(tree: Any) -> Iterator[Tensor]:
    """All tensors in what a model returned, lists of steps also as one."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        yield from _tensors(list(tree.values()))
    elif isinstance(tree, list | tuple):
        if len(tree) > 1 and all(isinstance(t, Tensor) and t.shape == tree[0].shape for t in tree):
            yield torch.stack(list(tree))
        for part in tree:
            yield from _tensors(part)


def _differ(came: Tensor, wanted: Tensor) -> bool:
    """Whether more than one value in 10,000 differs by more than 1e-4 of the largest."""
    if came.shape != wanted.shape:
        return True
    near = (came.double() - wanted.double()).abs() <= 1e-4 * wanted.double().abs().max()  # NaN is not
    return (~near).double().mean().item() > 1e-4


def _range(values: Tensor) -> str:
    return f"from {values.min().item():.3g} to {values.max().item():.3g}"


def _parts(modules: Iterable[nn.Module], *, nested: bool = False) -> Iterator[nn.Module]:
    """The recurrent layers and the largest modules without one in them, in order; nested: all in those as well."""
    for module in modules:
        if isinstance(module, Network):
            raise TypeError("wrap makes a Network of other modules; a Network is one already, use it as it is.")
        if isinstance(module, nn.modules.loss._Loss):
            continue
        if _library(module) == "norse" and isinstance(lifted := getattr(module, "lifted_module", None), nn.Module):
            yield from _parts([lifted], nested=nested)
        elif _library(module):
            yield module
        elif _opened(module):
            yield from _parts(module.children(), nested=nested)
        else:
            yield from module.modules() if nested else [module]


def _opened(module: nn.Module) -> bool:
    """Whether a module is a container that a step is not given to as a whole."""
    if isinstance(module, nn.ModuleList | nn.ModuleDict):
        return True
    return any(_library(part) or (part is not module and is_dropout(part)) for part in module.modules())


def _library(module: nn.Module) -> str | None:
    """Where a recurrent layer comes from; None for modules without state and for containers."""
    if isinstance(module, Cell):
        return "neurolsc"
    if isinstance(module, nn.RNNBase | nn.RNNCellBase):
        return "torch"
    if isinstance(module, nn.Sequential):  # norse's SequentialState is one
        return None
    roots = {kind.__name__: kind.__module__.partition(".")[0] for kind in type(module).__mro__}
    if "spikingjelly" in (roots.get("MemoryModule"), roots.get("NonSpikingBaseNode")) and not is_dropout(module):
        return "spikingjelly"
    return next((root for root in roots.values() if root in ("snntorch", "norse")), None)


def _cells(layer: nn.Module, before: list[nn.Module], shape: tuple[int, ...], *, last: bool) -> list[Cell]:
    match _library(layer):
        case "snntorch":
            from neurolsc.interop.wrap_snntorch import snntorch_cell  # which imports snnTorch

            return [snntorch_cell(layer, before, shape, last=last)]
        case "norse":
            from neurolsc.interop.wrap_norse import norse_cell

            return [norse_cell(layer, before, shape)]
        case "spikingjelly":
            return [spikingjelly_cell(layer, before, shape)]
        case "torch":
            return torch_cells(layer, before, shape)
    cell: Any = layer  # ours, with its closed form unless there are modules before it
    return [PrecededCell(cell, before, shape) if before or shape != (cell.n_in,) else cell]


def _first_shape(parts: list[nn.Module]) -> tuple[int, ...]:
    first: Any = next(part for part in parts if not isinstance(part, nn.Flatten | nn.Dropout | nn.Identity))
    if isinstance(first, nn.Linear):
        return (first.in_features,)
    if isinstance(first, Cell):
        return (first.n_in,)
    if _library(first) and isinstance(size := getattr(first, "input_size", None), int | Tensor):
        return (int(size),)
    raise ValueError(
        f"the shape of an input is not known from {type(first).__name__}; pass input_shape, such as 784 or (1, 28, 28)."
    )


def _refuse_state(modules: list[nn.Module], shape: tuple[int, ...]) -> None:
    """Refuse an unknown module whose second output differs from the first, or is no tensor."""
    unknown = [type(m).__name__ for m in modules if not type(m).__module__.startswith("torch.nn.")]
    if not unknown:
        return
    chain = nn.Sequential(*modules)
    like = next(chain.parameters(), torch.empty(0))
    x = torch.ones(1, *shape, dtype=like.dtype, device=like.device)
    with torch.no_grad(), eval_mode(chain):
        first, second = chain(x), chain(x)
    if not isinstance(first, Tensor) or not torch.equal(first, second):
        names = ", ".join(unknown)
        raise TypeError(f"{names}: one of these keeps a state or does not return one tensor, and cannot be wrapped.")


@contextmanager
def _in_order(parts: list[nn.Module], seen: _Forward | None, built: int) -> Iterator[None]:
    """Turn an error of shapes into one that says which modules do not fit."""
    try:
        yield
    except RuntimeError as error:
        if seen is not None:
            seen.refuse(*seen.chains[:built])
        order = ", ".join(type(part).__name__ for part in parts)
        raise ValueError(
            f"the modules do not fit in the order {order} ({error}). Pass an example of the model's input, wrap(net, x), "
            "or those that a step goes through as a list, in the order of their use: wrap([fc1, lif1, fc2, lif2])."
        ) from error
