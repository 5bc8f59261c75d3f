"""A user's network at the speed of kernels that run a whole sequence, without a change of the network."""

from __future__ import annotations

import copy
import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial, wraps
from threading import RLock
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves, tree_map

from neurolsc.interop.fused import layers_of
from neurolsc.interop.fused_base import FusedLayer
from neurolsc.interop.groups import version_of
from neurolsc.interop.lazy import LazyTensor, lazies_in, replaced
from neurolsc.interop.recording import Recording
from neurolsc.interop.wrapped import Accelerated, borrowed, is_dropout, library_of, plain_module, warn_of
from neurolsc.neurons.fast.scan import has_kernels
from neurolsc.neurons.fast.sequence import transformed
from neurolsc.surroundings import eval_mode, original


class NotAcceleratedWarning(UserWarning):
    """A layer, or a whole network, that runs in the plain steps of its library."""


def accelerate(net: nn.Module, x: Tensor | tuple[Any, ...]) -> Any:
    """Run a network of snnTorch, norse or spikingjelly several times as fast, as it is.

    The result *is* the network, but for its speed: it shares parameters, buffers, states, hooks and all attributes with
    net, is of a subclass of its class, and takes and returns what net does, with the same gradients.

    Its ``forward`` is the user's own. While that runs, the steps of neurons are written down, and computed when a value
    is needed: each layer once for all steps, by a kernel that saves its voltages alone. Functions of PyTorch between
    neurons (Linear, convolutions, pooling, batch norm in evaluation, dropout, arithmetic) are called once over (T B).
    Everything else runs in plain steps, as ever, and a warning names layers that do. So do all layers under autocast,
    ``torch.compile`` and ``torch.func``, and on a GPU that has no kernels.

    Where a call of net is one step and the loop over time is around it, the calls return lazy tensors, which hold what
    will be computed: ``torch.stack``, a loss, or anything else that needs a value, computes all steps at once.

    Args:
        net: a network with neurons that the kernels know: snnTorch's Leaky, Synaptic and Alpha; norse's LIF, LIFBox and
            LI; spikingjelly's LIFNode, ParametricLIFNode and IFNode.
        x: an example of what net takes; a tuple if it takes several arguments. Both are called with it from rest, in
            evaluation and in training mode, and compared; net and x are afterwards as before.

    Returns:
        A module that shares everything with net.

    Raises:
        TypeError: if net is no module, or x neither a tensor nor a tuple.
        ValueError: if no layer of net can be accelerated; the message says why.

    Example:
        >>> accelerate(nn.Linear(3, 2), torch.zeros(4, 3))
        Traceback (most recent call last):
        ValueError: net has no layer of neurons that the kernels know.
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"net must be a module, got {type(net).__name__}.")
    if not isinstance(x, Tensor | tuple):
        raise TypeError(
            f"x must be a tensor, an example of what net takes, or a tuple of its arguments, got {type(x).__name__}."
        )
    net = original(net)
    if isinstance(net, Accelerated):
        return net
    fused, reasons, _ = layers_of(net)
    if not fused:
        texts = [f"{name} ({reason})" if name else reason for name, reason in reasons.items()]  # no name: net itself
        why = f": {'; '.join(texts)}" if texts else ""
        raise ValueError(f"net has no layer of neurons that the kernels know{why}.")
    fast = _accelerated(net)
    fast_class = type(fast)
    warn_of_plain(fast_class, reasons)
    _compare(net, fast, x if isinstance(x, tuple) else (x,))
    return fast


class _Accelerated(Accelerated, nn.Module):
    """A user's class whose forward runs neurons over all steps at once.

    Each accelerated network has such a class of its own. What belongs to the network alone is kept in the class, as the
    object shares its ``__dict__`` with the user's network.

    Attributes:
        named: the layers that a warning has named, and why they run in plain steps.
        runs_plainly: why the whole network runs in plain steps; None while it does not.
        loop_outside: True if a call is one step.
        steps_of: of each layer the most steps that it ran at once in the last call, and all of its steps there.
        recording: with the loop outside, the steps that have been written down.
        single_steps: with the loop outside, how many steps in a row were each computed alone.
        lock: lets one thread call the network at a time.
    """

    named: ClassVar[dict[str, str]]
    runs_plainly: ClassVar[str | None] = None
    loop_outside: ClassVar[bool] = False
    steps_of: ClassVar[dict[nn.Module, tuple[int, int]]] = {}
    recording: ClassVar[Recording | None] = None
    single_steps: ClassVar[int] = 0
    lock: ClassVar[Any]

    def _call_at_once(self, args: Any, kwargs: Any) -> Any:
        """Call the user's forward, with its neurons run at once where that can be; return what it returns.

        Threads wait for each other, as they share the layers and their states.
        """
        with type(self).lock:
            return self._call_in_turn(args, kwargs)

    def _call_in_turn(self, args: Any, kwargs: Any) -> Any:
        """Do what :meth:`_call_at_once` says; one thread does at a time."""
        fast_class = type(self)
        plain = partial(self.plain_class.forward, self)
        device = None
        if fast_class.runs_plainly is None:
            device = device_of_kernels(self, args, kwargs)
        if device is None:
            if fast_class.loop_outside:  # calls before may have left lazy tensors in the layers
                with_tensors(self)
            return plain(*replaced(args), **replaced(kwargs))
        recording = fast_class.recording
        # A loop outside goes on with the steps of its last calls, until a value of them is asked for.
        if recording is not None and recording.count > MOST_CALLS:
            recording.flush()
        if recording is None or recording.flushed:
            if self._is_read_in_every_step():
                with_tensors(self)
                return plain(*replaced(args), **replaced(kwargs))
            recording = Recording(device, self._forget if fast_class.loop_outside else None)
        before_call = Before(self, steps=fast_class.loop_outside)
        before: list[tuple[nn.Parameter, int]] = []
        if fast_class.loop_outside:
            fast_class.recording = recording
        else:
            before = [(p, version_of(p)) for p in self.parameters()]
        try:
            return self._recorded(recording, plain, args, kwargs)
        except Exception as error:
            if type(error).__module__ == "torch.utils.checkpoint":  # by which a checkpoint ends what it computes again
                raise
            # A lazy tensor cannot do something; or the user's code has an error, which the plain forward raises, too.
            reason = first_line_of(error)
        if any(version_of(p) != version for p, version in before):
            fast_class.runs_plainly = reason
            raise RuntimeError(
                "forward changes parameters in place, which an accelerated network cannot put off. They have been changed "
                f"by half a call; from now on the network runs in plain steps ({reason})"
            )
        before_call.restore()  # forward is called again
        if fast_class.loop_outside:
            with_tensors(self)
        out = plain(*replaced(args), **replaced(kwargs))
        fast_class.runs_plainly = reason
        warn_of(f"the network runs in plain steps: its forward cannot be put off ({reason})", NotAcceleratedWarning)
        return out

    def _forget(self) -> None:
        """Let the recording of a loop outside go: a part of it has been computed, and the next call begins another."""
        fast_class = type(self)
        if fast_class.recording is not None and not fast_class.recording.pending:
            if max((at_once for at_once, _ in fast_class.recording.steps_of.values()), default=0) == 1:
                fast_class.single_steps += 1
            else:
                fast_class.single_steps = 0
            fast_class.recording = None

    def _is_read_in_every_step(self) -> bool:
        """True if values of a loop outside have been asked for in each of many steps: from then on it runs plainly."""
        fast_class = type(self)
        if fast_class.single_steps < MOST_SINGLE_STEPS:
            return False
        fast_class.runs_plainly = "values are asked for in every step"
        warn_of(
            "the network runs in plain steps: its values were asked for in every step, which is slower put off. Collect "
            "the steps and stack them, or use the network that is not accelerated.",
            NotAcceleratedWarning,
        )
        return True

    def _recorded(self, recording: Recording, plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call forward while its calls are recorded.

        Args:
            recording: the recording.
            plain: the user's forward.
            args: its arguments.
            kwargs: its keyword arguments.

        Returns:
            What forward returns, with lazy tensors if the loop is outside, else with tensors.
        """
        fast_class = type(self)
        with recorded(self, recording, fast_class) as fused:
            # Where the network is itself a layer of neurons, `recorded` has set the forward that writes down.
            forward = vars(self).get("forward", plain)
            as_step = fast_class.loop_outside
            inputs = [as_input(recording, arg, as_step=as_step) for arg in args]
            named = {name: as_input(recording, arg, as_step=as_step) for name, arg in kwargs.items()}
            out = forward(*inputs, **named)
            if as_step and not any(layer.steps > 1 for layer in fused):
                return out
            fast_class.loop_outside = False  # also if the example, of one step, looked otherwise
            recording.flush()
            fast_class.steps_of = recording.steps_of
            return copied(replaced(out))

    def train(self, mode: bool = True) -> Any:
        """Switch the mode; steps that have been written down are computed before, in the mode that they had."""
        self._compute_steps()
        return super().train(mode)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's; steps that have been written down are computed before, as batch norms collect there."""
        self._compute_steps()
        return super().state_dict(*args, **kwargs)

    def _compute_steps(self) -> None:
        """Compute the steps that have been written down."""
        recording = type(self).recording
        if recording is not None:
            # an error is raised when a value is asked for, and perhaps none ever is
            with suppress(RuntimeError):
                recording.flush()

    def __reduce__(self) -> Any:
        return _accelerated, (plain_module(self), self.loop_outside, self.runs_plainly)


MOST_SINGLE_STEPS = 50  # after as many, the loop outside is one that asks for values in every step
MOST_CALLS = 100_000  # that are written down and not asked for, as of a network that only runs


class Before:
    """What a network holds besides its parameters, as it was before a call, and torch's random numbers.

    These are the attributes of its modules; lists, dicts, sets and deques in them, nested ones as well; buffers and
    other tensors. Parameters and large tensors keep changes in place, and so do objects of other classes.

    Args:
        net: the network.
        steps: a call is one step: only attributes are noted, as copies would take too long.
        objects: the attributes of objects of the user's own classes, such as a meter, are noted as well.
    """

    def __init__(self, net: nn.Module, *, steps: bool = False, objects: bool = False) -> None:
        self.draws = torch.get_rng_state()
        self.places: list[tuple[Any, Any]] = []
        self.tensors: list[tuple[Tensor, int, Tensor]] = []
        self.noted: set[int] = set()
        for module in net.modules():
            attributes = vars(module)
            self.places.append((attributes, attributes.copy()))
            for name in ("_buffers", "_memories"):
                if name in attributes:
                    self.places.append((attributes[name], attributes[name].copy()))
            if steps or library_of(module) is not None:  # layers of neurons take their states back themselves
                continue
            for name, value in attributes.items():
                if name == "_buffers" or name not in OF_MODULES:
                    self.note(value)
                    if objects and is_of_the_user(value):
                        self.places.append((vars(value), vars(value).copy()))
                        for part in vars(value).values():
                            self.note(part)

    def note(self, value: Any) -> None:
        """Note a value of an attribute, and what it holds."""
        if isinstance(value, Tensor):
            if type(value) is Tensor and value.numel() <= LARGEST_TENSOR:
                self.tensors.append((value, version_of(value), value.detach().clone()))
            return
        if not isinstance(value, MUTABLE) or id(value) in self.noted:
            return
        self.noted.add(id(value))
        self.places.append((value, value.copy()))
        if len(value) <= MOST_PARTS:
            for part in value.values() if isinstance(value, dict) else value:
                self.note(part)

    def restore(self) -> None:
        """Put everything back in place."""
        torch.set_rng_state(self.draws)
        for place, before in self.places:
            place.clear()
            if isinstance(place, dict | set):
                place.update(before)
            else:
                place.extend(before)
        with torch.no_grad():
            for tensor, version, before in self.tensors:
                if version_of(tensor) != version:
                    tensor.copy_(before)


def is_of_the_user(value: Any) -> bool:
    """True for an object of a class that is no library's: nothing of a library is put back behind its back."""
    kind = type(value)
    home = sys.modules.get(kind.__module__)
    file = getattr(home, "__file__", None) or ""
    in_library = kind.__module__ in sys.stdlib_module_names or "site-packages" in file or kind.__module__ == "builtins"
    return hasattr(value, "__dict__") and not in_library and not isinstance(value, nn.Module | type)


LARGEST_TENSOR = 100_000  # entries of a tensor that is copied before every call
MOST_PARTS = 1000  # of a list whose parts are looked at; a longer one is a log of numbers
MUTABLE = (list, dict, set, deque)
OF_MODULES = frozenset((*vars(nn.Module()), "_memories", "_memories_rv"))  # attributes that every module has


def copied(out: Any) -> Any:
    """Return results that share no memory with others: a copy of each view, as of one step of all."""

    def own(value: Any) -> Any:
        if isinstance(value, Tensor) and value._is_view():
            return value.clone()
        return value

    return tree_map(own, out)


def first_line_of(error: Exception) -> str:
    """Return the kind of an error and the first line of its text; PyTorch's may have a page."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}"


def _accelerated(net: nn.Module, loop_outside: bool = False, runs_plainly: str | None = None) -> Any:
    """Make an object that shares everything with a module, of a new subclass of its class.

    Args:
        net: the module.
        loop_outside: as in :class:`_Accelerated`.
        runs_plainly: as in :class:`_Accelerated`.
    """
    kind = type(net)

    @wraps(kind.forward)
    def forward(self: _Accelerated, *args: Any, **kwargs: Any) -> Any:
        return self._call_at_once(args, kwargs)

    fast_class = type(
        f"Accelerated{kind.__name__}", (_Accelerated, kind), {"forward": forward, "__doc__": kind.__doc__}
    )
    fast_class.__module__ = kind.__module__
    fast_class.plain_class = kind
    fast_class.named = {}
    fast_class.lock = RLock()
    fast_class.loop_outside = loop_outside
    fast_class.runs_plainly = runs_plainly
    fast = object.__new__(fast_class)  # without a call of the user's __init__
    object.__setattr__(fast, "__dict__", vars(net))
    return fast


def device_of_kernels(net: nn.Module, args: Any, kwargs: Any) -> torch.device | None:
    """Return the device of a call that can be recorded now and run by kernels later; None for other calls.

    A call runs plainly under compilers, torch.func, autocast or global hooks, in half precision, with tensors on
    several devices, and on a device without kernels.
    """
    tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor)]
    if transformed(tensors) or _has_any_global_hook():
        return None
    devices = set()
    for tensor in (*tensors, *net.parameters()):
        if tensor.is_floating_point() and tensor.dtype not in PRECISIONS:
            return None
        devices.add(tensor.device)
    if len(devices) > 1:
        return None
    device = torch.device("cpu")  # of a network without tensors
    if devices:
        device = devices.pop()
    if not has_kernels(device) or torch.is_autocast_enabled(device.type):
        return None
    return device


PRECISIONS = (torch.float32, torch.float64)  # of the kernels


def as_input(recording: Recording, arg: Any, *, as_step: bool) -> Any:
    """Make an argument of forward a lazy tensor; return what is no tensor of numbers, such as a state, as it is.

    Args:
        recording: the recording of the call.
        arg: the argument.
        as_step: it is the input of one step, not one in which the user's loop finds all steps.
    """
    if type(arg) is not Tensor or not arg.is_floating_point():
        return arg
    if as_step:
        return recording.step(arg)
    if arg.ndim > 1:  # else it has no axes of time and batch
        return recording.source(arg)
    return arg


@contextmanager
def recorded(net: nn.Module, recording: Recording, fast_class: type[_Accelerated]) -> Iterator[list[FusedLayer]]:
    """Let the neurons of a network write their steps down inside the block; these layers are its value.

    If the loop over time is inside, their states are tensors afterwards. After an error they are what they were before.
    """
    fused, reasons, plain = layers_of(net)
    warn_of_plain(fast_class, reasons)
    with ExitStack() as stack:
        for module in plain:  # before and after all hooks of the user
            before = module.register_forward_pre_hook(_read_tensors, prepend=True, with_kwargs=True)
            after = module.register_forward_hook(_send_tensors, prepend=True)
            stack.callback(before.remove)
            stack.callback(after.remove)
        recording.running = True
        try:
            for layer in fused:
                layer.start(recording)
            yield fused
            if not fast_class.loop_outside:
                with_tensors(net)
        except BaseException:
            for layer in fused:
                layer.give_back()
            raise
        finally:
            recording.running = False
            for layer in fused:
                layer.stop()


def _read_tensors(module: nn.Module, args: Any, kwargs: Any) -> Any:
    """Give a module tensors for its lazy arguments; a hook before its forward."""
    return replaced(args), replaced(kwargs)


def _send_tensors(module: nn.Module, args: Any, out: Any) -> Any:
    """Give the hooks of the user tensors for the lazy ones that a module returns; a hook after its forward."""
    return replaced(out)


def with_tensors(net: nn.Module) -> None:
    """Replace the lazy tensors that modules hold in attributes, buffers and spikingjelly's memories by their values."""
    for module in net.modules():
        attributes = vars(module)
        places = [attributes, *(attributes[name] for name in ("_buffers", "_memories") if name in attributes)]
        for place in places:
            for name, value in place.items():
                if type(value) is LazyTensor or (isinstance(value, list | tuple) and lazies_in(value)):
                    place[name] = copied(replaced(value))
                elif type(value) is dict and name[0] != "_" and lazies_in(value):
                    value.update(copied(replaced(value)))


def warn_of_plain(fast_class: type[_Accelerated], reasons: dict[str, str]) -> None:
    """Warn of layers that are not run at once, of each once; `reasons` says why, by the name of the layer."""
    new = {name: reason for name, reason in reasons.items() if name not in fast_class.named}
    if new:
        fast_class.named.update(new)
        texts = "; ".join(f"{name or 'the layer'} ({reason})" for name, reason in new.items())
        warn_of(f"these run in plain steps: {texts}.", NotAcceleratedWarning)


# ---- the comparison with the user's network

# The share of values that may differ: in float32 one spike of a long run may fall otherwise, and others follow.
LARGEST_SHARE = 0.05
ROUNDED = 1e-6  # share of the largest gradient below which one in float32 may be a sum that cancels


class _Outcome(NamedTuple):
    """What a network returned, and the gradient of a random weighted sum of it."""

    tensors: list[Tensor]
    gradients: dict[str, Tensor | None]  # by the name of the parameter; None if the sum does not depend on it


def _compare(net: nn.Module, fast: Any, x: tuple[Any, ...]) -> None:
    """Call a network and its accelerated form with an example x, and compare what they return and their gradients.

    This finds whether the loop over time is outside. Where the two do not agree, the accelerated form runs in plain
    steps from then on, and a warning says why.
    """
    fast_class = type(fast)
    wanted = _outcome(net, net, x, calls=1)
    single: list[str] = []
    try:
        came = _outcome(net, fast, x, calls=1)
        most_steps = max((in_all for _, in_all in fast_class.steps_of.values()), default=0)
        if most_steps == 1 and fast_class.runs_plainly is None:
            # the loop over time must be around the calls
            fast_class.loop_outside = True
            wanted = _outcome(net, net, x, calls=3)
            came = _outcome(net, fast, x, calls=3)
        fault = _difference(came, wanted)
        single = _single_steps(net, fast_class)
        if 2 * len(single) > len(fast_class.steps_of) > 0:  # these would be slower than in plain steps
            fault = fault or f"needs values of {', '.join(single)} in every step"
        if not fault and fast_class.runs_plainly is None:
            fault = _difference_in_training(net, fast, x)
    except Exception as error:  # of its backward pass: an error of forward leads to plain steps
        fault = f"raises {first_line_of(error)}"
    if "forward" in vars(net):
        fault = "has a forward that is an attribute of the object, not of its class"
    if fault and fast_class.runs_plainly is None:
        fast_class.runs_plainly = fault
        warn_of(f"the network runs in plain steps: accelerated it {fault}.", NotAcceleratedWarning)


def _single_steps(net: nn.Module, fast_class: type[_Accelerated]) -> list[str]:
    """Return the names of the layers whose steps were each computed alone in the last call."""
    names = {module: name for name, module in net.named_modules()}
    found = []
    for layer, (at_once, in_all) in fast_class.steps_of.items():
        if at_once == 1 < in_all:
            found.append(names.get(layer) or "the layer")
    return found


def _difference_in_training(net: nn.Module, fast: Any, x: tuple[Any, ...]) -> str | None:
    """Say how an accelerated network differs from the user's in training mode, with dropouts off; None if it does not.

    Nothing is said of a network that cannot be called with this example in training, or that draws random numbers there
    and whose draws do not come in the order of the loop.
    """
    calls = 3 if type(fast).loop_outside else 1
    try:
        wanted = _outcome(net, net, x, calls=calls, training=True)
    except Exception:  # a batch norm, for instance, refuses a batch of one
        return None
    came = _outcome(net, fast, x, calls=calls, training=True)
    fault = _difference(came, wanted)
    if fault is None:
        return None
    otherwise_drawn = _outcome(net, net, x, calls=calls, training=True, seed=1)
    if _difference(otherwise_drawn, wanted):
        return None
    return f"{fault} in training mode"


def _outcome(
    net: nn.Module, called: nn.Module, x: tuple[Any, ...], *, calls: int, training: bool = False, seed: int = 0
) -> _Outcome:
    """Return what a network returns for x from rest, and the gradients of a random sum of it.

    The network is afterwards as before.

    Args:
        net: the user's network, whose states and parameters `called` shares.
        called: what is called, net or its accelerated form.
        x: the arguments of a call.
        calls: the number of calls in a row.
        training: call it in training mode, with dropouts in evaluation mode; else all is in evaluation mode.
        seed: seed of random numbers.
    """
    with ExitStack() as stack:
        stack.callback(Before(net, objects=True).restore)
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())
        x = tuple(_clone(arg) for arg in x)
        devices = {arg.device for arg in x if isinstance(arg, Tensor) and arg.is_cuda}  # besides the CPU
        for context in (eval_mode(net), torch.enable_grad(), torch.random.fork_rng(devices=devices)):
            stack.enter_context(context)
        if training:
            net.train()
            for module in net.modules():
                if isinstance(module, nn.modules.dropout._DropoutNd) or is_dropout(module):
                    module.eval()
        modules: Any = net.modules()
        for module in modules:
            stack.enter_context(borrowed(module))  # also gives back its hidden state
            if hasattr(module, "_memories"):  # spikingjelly's, and the values that it resets them to
                module._memories.update(copy.deepcopy(module._memories_rv))
            elif hasattr(module, "reset_mem"):  # snnTorch's
                module.reset_mem()
        stack.enter_context(unchanged((*net.parameters(), *net.buffers())))
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        out = replaced([called(*x) for _ in range(calls)])
        tensors = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        for module in net.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):  # what it has collected
                tensors += [buffer.clone() for buffer in module.buffers()]
        parameters = {name: p for name, p in net.named_parameters() if p.requires_grad}
        # drawn for all tensors: net and its accelerated form, called after each other, get the same sum
        torch.manual_seed(0)
        draws = [torch.randn(t.shape, dtype=torch.float64).to(t) for t in tensors]
        weighted = [(t * draw).sum() for t, draw in zip(tensors, draws, strict=True) if t.requires_grad]
        if not weighted or not parameters:
            return _Outcome(tensors, {})
        gradients = torch.autograd.grad(
            sum(weighted),  # type: ignore[arg-type]
            [*parameters.values()],
            allow_unused=True,
        )
        return _Outcome([t.detach() for t in tensors], dict(zip(parameters, gradients, strict=True)))


def _clone(arg: Any) -> Any:
    """Return a copy of a tensor, which the user's forward may change; all else as it is."""
    if isinstance(arg, Tensor):
        return arg.detach().clone().requires_grad_(arg.requires_grad)
    return arg


@contextmanager
def unchanged(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Give tensors back the values that they had before the block, where a user's forward changes them."""
    before = [(tensor, tensor.detach().clone()) for tensor in tensors if not is_lazy(tensor)]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in before:
                if not torch.equal(tensor, value):
                    tensor.copy_(value)


def _difference(came: _Outcome, wanted: _Outcome) -> str | None:
    """Say how an accelerated network differs from the user's; None if it does not."""
    if [(t.shape, t.dtype) for t in came.tensors] != [(t.shape, t.dtype) for t in wanted.tensors]:
        return "returns tensors of other shapes"
    share = max((_share(a, b) for a, b in zip(came.tensors, wanted.tensors, strict=True)), default=0.0)
    if share > LARGEST_SHARE:
        return f"returns other values ({share:.0%} of them)"
    largest = max((float(g.abs().max()) for g in wanted.gradients.values() if g is not None and g.numel()), default=0.0)
    for name, gradient in wanted.gradients.items():
        other = came.gradients.get(name)
        if gradient is None:
            gradient = torch.zeros(())
        if other is None:
            other = torch.zeros_like(gradient)
        if all(not g.numel() or float(g.abs().max()) < ROUNDED * largest for g in (gradient, other)):
            continue  # zero but for rounding, as that of a bias whose mean is taken away
        # Where spikes differ, so do gradients.
        if share == 0 and _share(other, gradient.expand_as(other), tolerance=1e-2) > LARGEST_SHARE:
            return f"has another gradient by {name}"
    return None


def _share(came: Tensor, wanted: Tensor, tolerance: float = 1e-4) -> float:
    """Return the share of entries that differ by more than `tolerance` of the largest finite one that is wanted.

    Entries that are both NaN, or infinite with the same sign, do not differ.
    """
    if not wanted.numel():
        return 0.0
    came = came.cpu().double()  # not every device has float64
    wanted = wanted.cpu().double()
    largest = wanted.abs().nan_to_num(posinf=0).max()
    near = (came - wanted).abs() <= tolerance * largest
    return (~(near | (came == wanted) | (came.isnan() & wanted.isnan()))).double().mean().item()
