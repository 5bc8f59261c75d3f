"""One call of a user's model with an example input: which modules it uses in which order, and what they read and send.

:func:`neurolsc.interop.wrap.wrap` takes the order of the cells from it, and compares the network with the model.
"""

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name

from neurolsc.interop.wrapped import OWN_NEURON, WrappedCell, borrowed, is_dropout, library_of
from neurolsc.network import Network
from neurolsc.neurons.cell import Cell, dtype_and_device
from neurolsc.surroundings import eval_mode

NO_LAYER = (
    "there is no recurrent layer of snnTorch, norse, spikingjelly, neurolsc or torch.nn (RNN, GRU, LSTM) to wrap. "
    f"{OWN_NEURON}"
)


class Layout(NamedTuple):
    """Where time and batch are in the tensor x that a model takes.

    The axes of x are (T, B, ...) if time is first, (B, T, ...) if batch is first, (T B, ...) if both share one axis
    (step after step), and (B, ...) if every step reads the same x.
    """

    axes: Literal["time first", "batch first", "one axis", "every step"]
    steps: int  # T
    sample: tuple[int, ...]  # shape of one sample of one step
    one_step: bool = False  # True if a call of the model is one step, and its user's loop goes through time
    leaves_membranes: bool = False  # True if the model returns membranes as well as the spikes that are read

    def by_step(self, x: Tensor) -> Tensor:
        """Return an input of the model, of any number of samples, as (T, B, ...)."""
        match self.axes:
            case "time first":
                return x
            case "batch first":
                return x.transpose(0, 1)
            case "one axis":
                return x.unflatten(0, (self.steps, -1))
            case "every step":
                return x.expand(self.steps, *x.shape)

    def __str__(self) -> str:
        sizes = "".join(f", {size}" for size in self.sample)
        match self.axes:
            case "time first":
                text = f"time first (T, B{sizes})"
            case "batch first":
                text = f"batch first (B, T{sizes})"
            case "one axis":
                text = f"time and batch in one axis (T B{sizes})"
            case "every step":
                what = "image" if len(self.sample) > 1 else "input"
                text = f"one {what} for all {self.steps} steps"
        if self.one_step:
            text += ", one step a call"
        return text


class Use(NamedTuple):
    """One call of a module in a model's forward, or all calls of a layer joined as (T, B, ...)."""

    module: nn.Module
    read: Tensor  # its input
    sent: Tensor  # its output
    passed: Tensor  # what the model got as the output: `sent`, or random numbers in place of spikes


class CannotReadError(ValueError):
    """The error of a model that cannot be called with an x; other ValueErrors refuse what the call has shown."""


class OtherNetworkError(ValueError):
    """The error of a model of which a call has shown that layers in a row would be another network."""


class ExampleRun:
    """One call of a model: its modules in the order of use, what its layers read and sent, and what it returned.

    The constructor runs the model, and raises the errors that show before cells are compared with its layers.

    Args:
        model: the model.
        x: the input of the call.

    Raises:
        ValueError: if the model has or calls no layer that can be wrapped, uses a layer twice in a step, has an
            encoder, cannot read x, or seems to have read several steps as one.
        TypeError: if x has another dtype than the model's weights, or the model itself raises one.

    Attributes:
        parts: the layers and the modules between them, in the order in which a step goes through them.
        calls: for each layer one Use, which joins all of its calls.
        steps: T, the number of steps.
        batch: B, the number of samples.
        shapes: the shapes that a sample of a step's input may have, the most likely first.
        returned: the tensors that the model returned.
        below: what the model got as the output of the layer compared last (T, B, ...), which is the input of the next
            cell; empty before the first layer has been compared.
        reads: the input (T, B, n_in) of the cell that was compared last.
        layout: where time and batch are in x; None before the first layer has been compared.
    """

    def __init__(self, model: nn.Module, x: Tensor) -> None:
        self.names = {part: f"{name} ({type(part).__name__})" for name, part in model.named_modules()}
        self.names[model] = type(model).__name__
        if not any(library_of(part) for part in model.modules()):
            raise ValueError(NO_LAYER)
        self.model = model
        self.x = x
        self.below = torch.empty(0)
        self.layout: Layout | None = None
        self.flatten = nn.Flatten()  # stands for a flattening that the model's own forward does, without a module
        self.names[self.flatten] = "a flatten"
        self.returned, uses, _ = self._follow()
        self.called = {use.module for use in uses}
        layers = dict.fromkeys(use.module for use in uses if library_of(use.module))
        if not layers:
            raise ValueError(NO_LAYER)
        self._refuse_encoder(uses)
        self.calls = {layer: self._joined(layer, [use for use in uses if use.module is layer]) for layer in layers}
        first_call = next(iter(self.calls.values()))
        if first_call.read.ndim < 3:
            raise ValueError(
                f"{self.names[first_call.module]} reads {tuple(first_call.read.shape[1:])} in one step, without an axis of "
                "samples: x must have one, such as x.unsqueeze(1)."
            )
        self.batch = first_call.read.shape[1]
        # A layer that is used twice in a step has read twice as many steps as the others.
        self.steps = min(len(call.read) for call in self.calls.values())
        for layer, call in self.calls.items():
            if len(call.read) > self.steps:
                times = len(call.read) / self.steps
                raise self._used_twice(layer, f"{times:g} times for each of {self.steps} steps")
        self.parts = self._parts_in_order(uses)
        self.shapes = self._possible_shapes(uses)
        # The model has read x as one step, yet its first two axes may be time and batch. If both are 1, it is one step
        # either way.
        if self.steps == 1 and len(x) == self.batch and x.ndim > 2 and x.shape[:2] != (1, 1):
            self._refuse_several_steps(uses)

    def _parts_in_order(self, uses: list[Use]) -> list[nn.Module]:
        """Return the layers and the modules between them in the order of a step, each layer at its first use."""
        parts: list[nn.Module] = []
        between: list[nn.Module] = []
        for module in (*(use.module for use in uses), None):  # None marks the end
            if module is not None and not library_of(module):
                between.append(module)
                continue
            if module not in parts:
                # A model may call the modules in between for all steps before it calls the layer for the first step.
                # They then stand in the list T times, and count once.
                once = between[: len(between) // self.steps]
                if between == once * self.steps:
                    between = once
                parts += between
                if module is not None:
                    parts.append(module)
            between = []
        return parts

    def _possible_shapes(self, uses: list[Use]) -> list[tuple[int, ...]]:
        """Return the shapes that a sample of a step's input may have, the most likely first."""
        first = self.parts[0]
        if first in self.calls:  # a layer of neurons, whose calls are joined as (T, B, ...)
            return [tuple(self.calls[first].read.shape[2:])]
        read = uses[0].read  # by the first call of that module
        times_called = sum(use.module is first for use in uses)
        shapes = [tuple(read.shape[1:])]
        # A module that is called once has read either all steps (T, B, ...) or one input for all of them (B, ...).
        # Shapes alone do not tell which: comparing the first layer does.
        if times_called == 1 and read.ndim > 2:
            shapes.insert(0, tuple(read.shape[2:]))
        return shapes

    def _joined(self, layer: nn.Module, uses: list[Use]) -> Use:
        """Join the uses of a layer into one, with tensors (T, B, ...)."""
        shapes = list(dict.fromkeys(tuple(use.read.shape) for use in uses))
        if len(shapes) > 1:
            raise self._used_twice(layer, f"on inputs {' and '.join(map(str, shapes[:2]))}")
        return Use(
            layer,
            read=_by_step(layer, [use.read for use in uses]),
            sent=_by_step(layer, [use.sent for use in uses]),
            passed=_by_step(layer, [use.passed for use in uses]),
        )

    def _used_twice(self, layer: nn.Module, evidence: str) -> ValueError:
        """Return the error for a layer that is used twice in one step."""
        # a layer that is never called may be meant for the second use
        unused = [self.names[part] for part in self.names if library_of(part) and part not in self.called]
        hint = ""
        if unused:
            hint = f" {', '.join(unused)} is never called."
        return OtherNetworkError(
            f"{self.names[layer]} is used twice in one step, {evidence}: its uses share one hidden state. Give every use a layer "
            f"of its own.{hint}"
        )

    def _refuse_encoder(self, uses: list[Use]) -> None:
        """Raise an error if a module below the first layer of neurons adds a time axis, or draws at random.

        Such an encoder makes spikes of an input, and a wrapped network starts from spikes or currents.
        """
        first_uses: dict[nn.Module, Use] = {}  # of each module below the first layer
        for use in uses:
            if library_of(use.module):  # the first layer of neurons
                break
            first_uses.setdefault(use.module, use)
        for use in uses:
            if use.module not in first_uses:
                continue
            first = first_uses[use.module]
            adds_time = use.sent.ndim > use.read.ndim and use.sent.shape[1:] == use.read.shape
            # in a later step it has the same input as in the first, and returns another output
            draws = torch.equal(use.read, first.read) and not torch.equal(use.sent, first.sent)
            if adds_time or draws:
                raise ValueError(
                    f"{self.names[use.module]} is an encoder: call it outside of the model, z = encoder(x), and give wrap a "
                    "forward that takes z, or a list of the modules that follow it, in the order of their use."
                )

    def _refuse_several_steps(self, uses: list[Use]) -> None:
        """Raise an error if a model that takes one step, (B, ...), seems to have read (T, B, ...) as one step.

        The first module that mixes features decides, by the axes of its input. A model without one acts element by
        element, so that nothing shows what a step is, and is refused.
        """
        mixes_features = nn.Linear | nn.Flatten | nn.modules.conv._ConvNd
        for use in uses:
            mixer = next((part for part in use.module.modules() if isinstance(part, mixes_features)), None)
            if mixer is None and not hasattr(use.module, "input_weights"):  # weights of norse's recurrent layers
                continue
            # a Flatten or a convolution reads an image, and two axes are (B, n): both are one step
            if isinstance(mixer, nn.Flatten | nn.modules.conv._ConvNd) or use.read.ndim < 3:
                return
            break  # a Linear or a layer's weights read three axes, which may be (T, B, n)
        raise ValueError(
            f"the model reads {tuple(self.x.shape)} in one step: it does not go through time by itself, so that x must be one "
            "step, (B, n_in)."
        )

    def _follow(self, *, functions: bool = False) -> tuple[list[Tensor], list[Use], "Functions"]:
        """Call the model with x, from rest and in evaluation mode, with random numbers in place of the layers' spikes.

        What the next module then reads shows what the model's forward does between two modules: a ReLU there, for
        instance, changes random numbers, and leaves spikes as they are.

        Args:
            functions: list also the functions of torch that forward itself calls between its modules.

        Returns:
            The tensors that the model returned, which follow from these random numbers; each use of a layer or of a
            module between layers, in order; and the functions, whose ``called`` is empty unless they were asked for.
        """
        model = self.model
        inside: list[nn.Module] = []  # the modules whose forward is running, the outermost first
        uses: list[Use] = []
        called = Functions(inside, uses)
        generator = torch.Generator().manual_seed(0)

        def after_forward(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> Any:
            """Note the use of a module whose forward has ended, and return what the model gets in place of `out`."""
            if len(inside) > 1:  # a part of another followed module, and no use of its own
                inside.pop()
                return out
            read = next((value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)), None)
            library = library_of(module)
            sent = out
            if library is not None and isinstance(out, tuple) and out:  # a layer's output, with its state
                sent = out[0]
            if read is None or not isinstance(sent, Tensor):
                raise ValueError(f"{self.names[module]} must read and return a tensor, got {type(out).__name__}.")
            passed = sent = sent.clone()  # a copy, since the model may change the output in place
            # In the next step the model may give recurrent layers of snnTorch their last spikes: these stay. So do
            # outputs of torch.nn's RNN, GRU and LSTM, which are no spikes.
            if library not in (None, "torch") and not hasattr(module, "recurrent"):
                passed = torch.randn(sent.shape, generator=generator).to(sent)
                if isinstance(out, Tensor):
                    out = passed.clone()
                else:
                    out = (passed.clone(), *out[1:])
            if uses:
                below = uses[-1].passed
                # Forward has flattened what the module below passed, as by x.view(len(x), -1). In the network a module
                # does so.
                if read.ndim < below.ndim and read.numel() == below.numel():
                    uses.append(Use(self.flatten, below, read, read))
            uses.append(Use(module, read.clone(), sent, passed))
            inside.pop()
            return out

        with ExitStack() as stack:
            for context in (eval_mode(model), torch.no_grad(), torch.random.fork_rng(devices=[])):
                stack.enter_context(context)
            module: Any
            for module in model.modules():
                stack.enter_context(borrowed(module))  # also gives back its hidden state
                # Layers of spikingjelly and snnTorch store their states, and are put to rest. Norse's store none.
                if hasattr(module, "_memories"):  # spikingjelly
                    module._memories.update(copy.deepcopy(module._memories_rv))
                elif library_of(module) == "snntorch" and hasattr(module, "reset_mem"):
                    module.reset_mem()
            for module in dict.fromkeys(parts_of([model], nested=True)):
                stack.callback(module.register_forward_pre_hook(lambda module, _: inside.append(module)).remove)
                stack.callback(module.register_forward_hook(after_forward, with_kwargs=True).remove)
            if functions:
                stack.enter_context(called)
            try:
                return list(_tensors(model(self.x))), uses, called
            except (RuntimeError, IndexError, TypeError) as error:
                wanted = dtype_and_device(model)["dtype"]
                reads_integers = any(isinstance(part, nn.Embedding) for part in model.modules())
                if self.x.dtype != wanted and not reads_integers:
                    raise TypeError(
                        f"the model cannot read an x of {self.x.dtype} ({error}): its weights are {wanted}, give x.to({wanted})."
                    ) from error
                if isinstance(model, nn.Sequential) and str(error).endswith("must be Tensor, not tuple"):
                    raise CannotReadError(
                        "the nn.Sequential cannot be called, as a layer in it returns a tuple: make snnTorch's layers with "
                        "init_hidden=True, or leave x out, as the order of definition is that of use."
                    ) from error
                hint = (
                    f"the model was called with an x of shape {tuple(self.x.shape)}: x must be what the model takes, which "
                    "is one step, (B, ...), where it does not go through time by itself."
                )
                if isinstance(error, TypeError):  # mostly a fault in the model's own code, not in the shape of x
                    error.add_note(hint)
                    raise
                raise CannotReadError(f"the model cannot read x: {error}. {hint}") from error

    def compare(self, layer: nn.Module, cells: list[Cell]) -> None:
        """Raise a ValueError if the cells of a layer read or send other values than the layer did in the run.

        It must be called for one layer after the other, in the order of ``parts``: each call sets ``below`` for the
        next one, and the first call sets ``layout``.
        """
        call = self.calls[layer]
        first = cells[0]
        with eval_mode(nn.ModuleList(cells)), torch.no_grad():
            # The first layer decides the layout of x: the first one that gives its cell what the layer read in the run.
            if len(self.below):
                layouts = [None]
            else:
                layouts = list(self._layouts())
            for layout in layouts:
                if layout is None:  # a later layer reads the one below
                    below = self.below
                else:
                    below = layout.by_step(self.x)
                read = below.flatten(2).to(call.read.dtype)
                self.reads = read
                if read.shape[2] != first.n_in:
                    continue
                if isinstance(first, WrappedCell):  # the layer itself reads what the modules before it send
                    read = torch.stack([first.current(z) for z in read])
                if not _differ(call.read.flatten(2), read.flatten(2)):
                    if layout is not None:
                        self.layout = layout
                    break
            else:  # no layout fits
                raise self.refusal(layer)
            sent = self.reads
            for cell in cells:
                sent, _ = cell.run(sent, cell.initial_state(self.batch))
        if _differ(call.sent.flatten(2), sent):
            raise ValueError(
                f"{self.names[layer]} sends something else than its own steps from rest: forward sets or changes its state."
            )
        self.below = call.passed

    def _layouts(self) -> Iterator[Layout]:
        """Yield the layouts that the sizes of x allow, the most likely first."""
        x = self.x
        steps = self.steps
        all_samples = len(x) == self.batch
        if all_samples and steps == 1:  # the 1 in (B, 1, 28, 28) is a number of channels, not of steps
            yield Layout("every step", steps, tuple(x.shape[1:]))
        if x.ndim > 2 and x.shape[:2] == (steps, self.batch):
            yield Layout("time first", steps, tuple(x.shape[2:]))
        if x.ndim > 2 and x.shape[:2] == (self.batch, steps):
            yield Layout("batch first", steps, tuple(x.shape[2:]))
        if len(x) == steps * self.batch:
            yield Layout("one axis", steps, tuple(x.shape[1:]))
        # Last, since an x with the batch first has this length, too.
        if all_samples and steps > 1:
            yield Layout("every step", steps, tuple(x.shape[1:]))

    def other_reader(self) -> nn.Module | None:
        """Return the first module after the last layer that reads something else than the module before it sends.

        A module may be called once a step, or once in all: with all steps, the last one or their mean. None if every
        module reads what is sent to it, or if a module is called another number of times, which leaves it open.
        """
        # This call draws the same random numbers as the first one: `below` holds those of the last layer.
        _, uses, _ = self._follow()
        modules = [use.module for use in uses]
        last = max(self.calls, key=self.parts.index)
        after = uses[modules.index(last) :]
        sent = self.below
        for part in self.parts[self.parts.index(last) + 1 :]:
            of_part = [use for use in after if use.module is part]
            if len(of_part) not in (1, self.steps):
                return None
            read = torch.stack([use.read for use in of_part]).flatten()
            forms = (sent, sent.transpose(0, 1), sent[-1], sent.mean(0))
            if all(_differ(read, form.flatten()) for form in forms):
                return part
            sent = torch.stack([use.sent for use in of_part])
            if len(of_part) == 1:
                sent = sent[0]
        return None

    def refusal(self, reader: nn.Module | None) -> ValueError:
        """Return the error for a reader whose input is not what the modules before it send.

        Args:
            reader: a layer or another module; None: the end.
        """
        end = len(self.parts)
        above = "what forward returns"
        if reader is not None:
            end = self.parts.index(reader)
            above = self.names[reader]
        modules = list(self.parts[:end])
        below = None  # the layer below the reader, if there is one
        lower_layers = [part for part in modules if library_of(part)]
        if lower_layers:
            below = lower_layers[-1]
            modules = modules[modules.index(below) + 1 :]
        under = self.names[below] if below else "the input"
        does = "changes or replaces what is sent"
        if modules:
            does = f"does something else than {', '.join(self.names[part] for part in modules)}"
        called = self._functions_between(below, reader)
        calls = ""
        if called:
            calls = f": it calls {', '.join(called)}"
        return OtherNetworkError(
            f"between {under} and {above} forward {does}{calls}. Let it call a module in place of a function, such as "
            "nn.ReLU(), without a sum of two layers or a concatenation, and use every layer once in a step. Do outside of the "
            "model what it does with x, such as an encoding in spikes. Or pass a list of modules in order."
        )

    def _functions_between(self, below: nn.Module | None, above: nn.Module | None) -> list[str]:
        """Return the names of functions of torch that forward calls between two layers.

        Args:
            below: the lower layer; None: the input.
            above: the upper layer; None: the end.

        Between two layers it returns those of the first step; before the end, those after the last use of the lower
        layer.
        """
        _, uses, functions = self._follow(functions=True)
        modules = [use.module for use in uses]
        start = 0  # a function is returned if `start` to `end` uses of modules came before it
        end = len(modules)
        if above is None and below in modules:
            start = end - modules[::-1].index(below)
        elif below in modules:
            start = modules.index(below) + 1
        if above in modules[start:]:
            end = modules.index(above, start)
        names = [name for uses_before, name in functions.called if start <= uses_before <= end]
        return list(dict.fromkeys(names))

    def returned_by(self, network: Network, has_mem: bool) -> list[str]:
        """Return which outputs of the last cell the model returns, in its order: "spikes", "membrane" or both.

        Args:
            network: the network, whose readout stands for what follows the last layer.
            has_mem: True if the last cell has a membrane that can be read.

        Raises:
            ValueError: if the model returns neither of the two.
        """
        cell: Any = network.cells[-1]
        with eval_mode(network), torch.no_grad():
            outputs = {"spikes": torch.stack([network.readout(z) for z in self.below.flatten(2)])}
            if has_mem:
                cell.integrator = True  # as an integrator it sends its membrane
                outputs["membrane"], _ = cell.run(self.reads, cell.initial_state(self.batch))
                cell.integrator = False
        found = [name for returned in self.returned for name, out in outputs.items() if _same_over_time(returned, out)]
        if found:
            return found
        reader = self.other_reader()
        if reader is not None:
            raise self.refusal(reader)
        name = self.names[self.parts[-1]]
        shapes = ", ".join(str(tuple(r.shape)) for r in self.returned) or "no tensor"
        raise OtherNetworkError(
            f"between {name} and what forward returns ({shapes}): it is neither what {name} sends in every step, nor its last, "
            "sum, mean or largest value over time. Let forward call a module for what it does there, such as "
            "nn.LogSoftmax(-1), or leave it to the loss."
        )


# functions that move, cut or make tensors, and change no value
HARMLESS = {
    *("__get__", "__getitem__", "__len__", "__iter__", "size", "dim", "numel", "unbind", "split", "chunk", "unsqueeze"),
    *("squeeze", "view", "reshape", "flatten", "unflatten", "transpose", "permute", "movedim", "expand", "repeat"),
    *("stack", "cat", "clone", "contiguous", "detach", "to", "float", "double", "type", "zeros", "zeros_like", "empty"),
    *("new_zeros", "new_empty", "is_floating_point", "__repr__", "item", "register_hook"),
}


class Functions(TorchFunctionMode):
    """Lists the functions of torch that forward calls outside of modules, but for harmless ones.

    Args:
        inside: the modules whose forward is running; empty outside of modules.
        uses: the uses of modules so far. The run changes both lists.

    Attributes:
        called: for each call the number of uses before it, and the name of the function, such as F.relu.
    """

    def __init__(self, inside: list[nn.Module], uses: list[Use]) -> None:
        super().__init__()
        self.inside = inside
        self.uses = uses
        self.called: list[tuple[int, str]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = resolve_name(func) or ""
        if not self.inside and name.rpartition(".")[2] not in HARMLESS:
            name = name.replace("torch.nn.functional.", "F.").replace("torch.Tensor.", "Tensor.")
            self.called.append((len(self.uses), name))
        return func(*args, **(kwargs or {}))


def _by_step(layer: Any, tensors: Sequence[Tensor]) -> Tensor:
    """Join what a layer has read or sent in all of its calls, as (T, B, ...)."""
    if isinstance(layer, nn.RNNBase):
        return torch.cat([t.transpose(0, 1) if layer.batch_first else t for t in tensors])
    kind = type(layer)
    of_norse = kind.__module__.partition(".")[0] == "norse" or kind.__module__ == "neurolsc.interop.norse"
    norse_with_time = of_norse and not kind.__name__.endswith("Cell")
    reads_sequences = norse_with_time or getattr(layer, "step_mode", "s") == "m"  # the second: spikingjelly's
    if reads_sequences:
        return torch.cat(list(tensors))
    return torch.stack(list(tensors))


def _tensors(tree: Any) -> Iterator[Tensor]:
    """Yield all tensors in what a model returned; before a list of equal shapes, which are steps, also its stack."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, list | tuple | Mapping):
        parts = list(tree.values() if isinstance(tree, Mapping) else tree)
        if len(parts) > 1 and all(isinstance(t, Tensor) and t.shape == parts[0].shape for t in parts):
            yield torch.stack(parts)
        for part in parts:
            yield from _tensors(part)


def _same_over_time(returned: Tensor, sent: Tensor) -> bool:
    """True if a model returned what a layer sends (T, B, N), batch first, or its last, sum, mean or largest step."""
    forms = (sent, sent.transpose(0, 1), sent[-1], sent.sum(0), sent.mean(0), sent.amax(0))
    return any(not _differ(returned.flatten(), form.flatten()) for form in forms)


def _differ(came: Tensor, wanted: Tensor) -> bool:
    """True if shapes differ, or more than one value in 10,000 differs by more than 1e-4 of the largest."""
    if came.shape != wanted.shape:
        return True
    # 1e-4 is above the rounding of float32. One value in 10,000 may be a spike whose voltage rounding has put across
    # its threshold.
    near = (came.double() - wanted.double()).abs() <= 1e-4 * wanted.double().abs().max()  # False for NaN
    return (~near).double().mean().item() > 1e-4


def parts_of(modules: Iterable[nn.Module], *, nested: bool = False) -> Iterator[nn.Module]:
    """Yield recurrent layers and, between them, the largest modules without a layer, in the order of definition.

    Args:
        modules: the modules.
        nested: yield also all modules inside of those without a layer.
    """
    for module in modules:
        if isinstance(module, Network):
            raise TypeError("wrap makes a Network of other modules; a Network is one already, use it as it is.")
        if isinstance(module, nn.modules.loss._Loss):  # no part of the model's forward
            continue
        lifted = getattr(module, "lifted_module", None)  # of norse's Lift
        if isinstance(lifted, nn.Module):
            yield from parts_of([lifted], nested=nested)
        elif library_of(module):
            yield module
        # Opened are containers, and modules that hold a layer or spikingjelly's dropout, which `step_of` replaces; the
        # dropout itself is yielded below.
        elif isinstance(module, nn.ModuleList | nn.ModuleDict) or any(
            library_of(part) or (part is not module and is_dropout(part)) for part in module.modules()
        ):
            yield from parts_of(module.children(), nested=nested)
        elif nested:
            yield from module.modules()
        else:
            yield module
