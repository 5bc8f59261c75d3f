"""A user's network at the speed of kernels that run a whole sequence, without a change of the network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial, wraps
from threading import RLock
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch.utils._pytree import tree_map

from neurolsc.interop.comparison import Before, difference, difference_in_training, outcome
from neurolsc.interop.fused import SortedModules
from neurolsc.interop.groups import version_of
from neurolsc.interop.lazy import LazyTensor, lazies_in, replaced
from neurolsc.interop.recording import Recording
from neurolsc.interop.wrapped import Accelerated, plain_class, plain_module, warn_of
from neurolsc.neurons.fast.scan import has_kernels
from neurolsc.neurons.fast.sequence import transformed
from neurolsc.surroundings import original


class NotAcceleratedWarning(UserWarning):
    """A layer, or a whole network, that runs in the plain steps of its library."""


def accelerate(net: nn.Module, x: Tensor | tuple[Any, ...]) -> Any:
    """Return an accelerated form of a network of snnTorch, norse or spikingjelly, which runs several times as fast.

    The result *is* the network, but for its speed: it shares parameters, buffers, states, hooks and all attributes with
    net, is of a subclass of its class, and takes and returns what net does, with the same gradients.

    Its ``forward`` is the user's own. While it runs, the steps of neurons are written down, and computed when a value
    is needed: each layer once for all steps, by a kernel that keeps only states and voltages for the backward pass.
    Functions of PyTorch between neurons (Linear, convolutions, pooling, batch norm in evaluation, dropout, arithmetic)
    are called once, with the samples of all steps, (T B), as one batch. All else runs in plain steps, as ever, and a
    warning names such layers. Under autocast, ``torch.compile`` and ``torch.func``, and on a GPU that has no kernels,
    all layers run in plain steps.

    Where a call of net is one step and the loop over time is around it, the calls return lazy tensors, which hold what
    will be computed: ``torch.stack``, a loss, or anything else that needs a value, computes all steps at once.

    Args:
        net: a network with neurons that the kernels know: snnTorch's Leaky, Synaptic, Alpha, RLeaky and RSynaptic;
            norse's LIF, LIFBox, LIFRecurrent, LSNN, LSNNRecurrent and LI; spikingjelly's LIFNode, ParametricLIFNode and
            IFNode.
        x: an example of what net takes; a tuple if it takes several arguments. The network and its accelerated form are
            both called with it, from rest, in evaluation and in training mode. If their results or gradients differ,
            the network runs in plain steps, and a warning says why. Afterwards net and x are as before.

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
    layers = SortedModules(net)
    if not layers.fused:
        texts = [f"{name} ({reason})" if name else reason for name, reason in layers.reasons.items()]  # "": net
        why = f": {'; '.join(texts)}" if texts else ""
        raise ValueError(f"net has no layer of neurons that the kernels know{why}.")
    fast = _accelerated(net)
    warn_of_plain(running_of(fast), layers.reasons)
    _compare(net, fast, x if isinstance(x, tuple) else (x,))
    return fast


class _Accelerated(Accelerated, nn.Module):
    """The base of the classes of accelerated networks, whose forward runs neurons over all steps at once.

    Each accelerated network has a subclass of its own, which holds its :class:`Running`: the object itself shares its
    ``__dict__`` with the user's network. This class adds few names, since each would hide one of the user's.
    """

    _running: ClassVar[Running]

    def train(self, mode: bool = True) -> Any:
        """Switch the mode, after the steps that have been written down are computed in the mode of their calls."""
        running_of(self).compute_steps()
        return super().train(mode)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's state dict, after waiting steps are computed: batch norms collect statistics there."""
        running_of(self).compute_steps()
        return super().state_dict(*args, **kwargs)

    def __reduce__(self) -> Any:
        running = running_of(self)
        return _accelerated, (plain_module(self), running.loop_outside, running.runs_plainly)


def running_of(fast: Any) -> Running:
    """Return how an accelerated network runs."""
    return type(fast)._running


class Running:
    """How an accelerated network runs.

    Attributes:
        named: the layers that a warning has named, and why they run in plain steps.
        runs_plainly: why the whole network runs in plain steps; None while it does not.
        loop_outside: True if a call is one step.
        steps_of: with the loop inside, for each layer the most steps that it ran at once in the last call, and the
            number of all of its steps in that call.
        recording: with the loop outside, the steps that have been written down.
        layers: with the loop outside, the modules as they were sorted for the last call of this recording.
        longest: with the loop outside, the most steps that a layer ran at once when values were asked for since the
            last call; None: none were asked for.
        short_runs: with the loop outside, how often in a row only a few steps were computed at once.
        lock: lets one thread call the network at a time.
    """

    def __init__(self, loop_outside: bool = False, runs_plainly: str | None = None) -> None:
        self.named: dict[str, str] = {}
        self.runs_plainly = runs_plainly
        self.loop_outside = loop_outside
        self.steps_of: dict[nn.Module, tuple[int, int]] = {}
        self.recording: Recording | None = None
        self.layers: SortedModules | None = None
        self.longest: int | None = None
        self.short_runs = 0
        self.lock: Any = RLock()

    def call(self, net: _Accelerated, args: Any, kwargs: Any) -> Any:
        """Call the user's forward, with its neurons run over all steps at once if possible; return what it returns.

        Threads wait for each other, as they share the layers and their states.
        """
        with self.lock:
            return self._call_in_turn(net, args, kwargs)

    def _call_in_turn(self, net: _Accelerated, args: Any, kwargs: Any) -> Any:
        """Do what :meth:`call` says; one thread does at a time."""
        plain = partial(plain_class(net).forward, net)
        layers = None
        device = None
        if self.runs_plainly is None:
            layers = self._sorted(net)
            device = device_of_kernels(layers.parameters, args, kwargs)
        if layers is None or device is None:
            if self.loop_outside:  # calls before may have left lazy tensors in the layers
                with_tensors(net)
            return plain(*replaced(args), **replaced(kwargs))
        # With the loop outside, calls share one recording until a value of it is asked for or a sequence begins anew.
        recording = self.recording
        if recording is not None and recording.count > MOST_CALLS:
            recording.flush()
        continues = self.loop_outside and goes_on_from_steps(layers, args, kwargs)
        if recording is not None and not continues and not recording.flushed:  # the last sequence was never asked for
            self._collect(recording)
            recording = None
        if recording is None or recording.flushed:
            self._count_run(continues)
            if self.runs_plainly is not None:
                with_tensors(net)
                return plain(*replaced(args), **replaced(kwargs))
            recording = Recording(device, self._forget if self.loop_outside else None)
        before_call = Before(layers.modules, steps=self.loop_outside)
        versions: list[tuple[nn.Parameter, int]] = []
        if self.loop_outside:
            self.recording = recording
            self.layers = layers
        else:
            versions = [(p, version_of(p)) for p in layers.parameters]
        try:
            return self._recorded(net, recording, layers, plain, args, kwargs)
        except Exception as error:
            if type(error).__module__ == "torch.utils.checkpoint":  # a checkpoint ends its recomputation by an error
                raise
            # A lazy tensor cannot do what the code asks; or the code has an error, which the plain forward raises, too.
            reason = first_line_of(error)
        if any(version_of(p) != version for p, version in versions):
            self.runs_plainly = reason
            raise RuntimeError(
                "forward changes parameters in place, which an accelerated network cannot put off. They have been changed "
                f"by half a call; from now on the network runs in plain steps ({reason})"
            )
        before_call.restore()  # forward is called again
        if self.loop_outside:
            with_tensors(net)
        out = plain(*replaced(args), **replaced(kwargs))
        self.runs_plainly = reason  # not before: an error of the user's own is raised above, and decides nothing
        warn_of(f"the network runs in plain steps: its forward cannot be put off ({reason})", NotAcceleratedWarning)
        return out

    def _sorted(self, net: nn.Module) -> SortedModules:
        """Return the sorted modules; those of the last call if its steps still wait and no module has changed."""
        layers = self.layers
        recording = self.recording
        if layers is None or recording is None or recording.flushed or not layers.still_hold():
            return SortedModules(net)
        return layers

    def _collect(self, recording: Recording) -> None:
        """Let batch norms collect the statistics of steps whose values were not asked for, before a new sequence."""
        if recording.count == 0 or not recording.has_norms:
            return
        try:
            recording.flush()
        except RuntimeError:  # weights have been changed since
            self.runs_plainly = "steps of a batch norm were left when weights changed"
            warn_of(
                "the network runs in plain steps: weights were changed before its batch norms had collected the statistics "
                "of steps whose values nothing asked for; these are left out.",
                NotAcceleratedWarning,
            )

    def _forget(self, recording: Recording) -> None:
        """Note how many steps a recording has run at once; drop it if no call waits. The next call begins another."""
        if self.recording is not recording:
            return
        self.longest = max((at_once for at_once, _ in recording.steps_of.values()), default=0)
        if not recording.pending:
            self.recording = None
            self.layers = None

    def _count_run(self, continues: bool) -> None:
        """Count how often in a row values were asked for after a few steps; after many times the network runs plainly.

        Args:
            continues: True if the sequence continues after those steps; False if it had no more, which does not count.
        """
        longest = self.longest
        self.longest = None
        if longest is None:
            return
        if longest > SHORT_RUN:
            self.short_runs = 0
        elif continues:
            self.short_runs += 1
        if self.short_runs < MOST_SHORT_RUNS:
            return
        self.runs_plainly = "values are asked for every few steps"
        warn_of(
            "the network runs in plain steps: its values were asked for every few steps, which is slower put off. Collect "
            "the steps and stack them, or use the network that is not accelerated.",
            NotAcceleratedWarning,
        )

    def _recorded(
        self,
        net: nn.Module,
        recording: Recording,
        layers: SortedModules,
        plain: Callable[..., Any],
        args: Any,
        kwargs: Any,
    ) -> Any:
        """Call the user's forward, and record the calls of neurons and functions in it.

        Args:
            net: the network.
            recording: the recording.
            layers: the sorted modules.
            plain: the user's forward.
            args: the arguments of forward.
            kwargs: the keyword arguments of forward.

        Returns:
            What forward returns: lazy tensors if the loop over time is outside, else tensors.
        """
        with recorded(net, self, recording, layers):
            # If the network is itself a layer of neurons, `recorded` has set its forward to one that writes calls down.
            forward = vars(net).get("forward", plain)
            as_step = self.loop_outside
            inputs = [as_input(recording, arg, as_step=as_step) for arg in args]
            named = {name: as_input(recording, arg, as_step=as_step) for name, arg in kwargs.items()}
            out = forward(*inputs, **named)
            if as_step and not any(layer.steps > 1 for layer in layers.fused):
                return out
            self.loop_outside = False  # a layer has run several steps, even if the example had one
            recording.flush()
            self.steps_of = recording.steps_of
            return copied(replaced(out))

    def compute_steps(self) -> None:
        """Compute the steps that have been written down."""
        recording = self.recording
        if recording is not None:
            # an error is raised when a value is asked for, and perhaps none ever is
            with suppress(RuntimeError):
                recording.flush()


SHORT_RUN = 4  # up to so many steps at once, a plain loop is faster
MOST_SHORT_RUNS = 50  # short runs in a row after which the network runs plainly; fewer may be a look at some values
MOST_CALLS = 100_000  # calls that may wait: a network whose outputs are never read would fill the memory


def copied(out: Any) -> Any:
    """Return results with a copy in place of each view, such as one step of a tensor of all steps."""

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
    """Make an object of a new subclass of a module's class that shares everything with the module.

    Args:
        net: the module.
        loop_outside: as in :class:`Running`.
        runs_plainly: as in :class:`Running`.
    """
    kind = type(net)

    @wraps(kind.forward)
    def forward(self: _Accelerated, *args: Any, **kwargs: Any) -> Any:
        return running_of(self).call(self, args, kwargs)

    fast_class = type(
        f"Accelerated{kind.__name__}", (_Accelerated, kind), {"forward": forward, "__doc__": kind.__doc__}
    )
    fast_class.__module__ = kind.__module__
    fast_class._plain_class = kind
    fast_class._running = Running(loop_outside, runs_plainly)
    fast = object.__new__(fast_class)  # without a call of the user's __init__
    object.__setattr__(fast, "__dict__", vars(net))
    return fast


def device_of_kernels(parameters: Iterable[Tensor], args: Any, kwargs: Any) -> torch.device | None:
    """Return the device of a call that can be recorded now and run by kernels later; None for other calls.

    A call runs plainly under compilers, torch.func, autocast or global hooks, in half precision, with tensors on
    several devices, and on a device without kernels.
    """
    tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor)]
    if transformed(tensors) or _has_any_global_hook():
        return None
    devices = set()
    for tensor in (*tensors, *parameters):
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
    """Return a floating-point tensor among forward's arguments as a lazy tensor; any other argument as it is.

    Args:
        recording: the recording of the call.
        arg: the argument.
        as_step: True if it is the input of one step; False if a loop inside forward takes all steps from it.
    """
    if type(arg) is not Tensor or not arg.is_floating_point():
        return arg
    if as_step:
        return recording.step(arg)
    if arg.ndim > 1:  # a vector has no axes of time and batch
        return recording.source(arg)
    return arg


@contextmanager
def recorded(net: nn.Module, running: Running, recording: Recording, layers: SortedModules) -> Iterator[None]:
    """Let the neurons of a network write their steps down inside the block.

    If the loop over time is inside forward, the states of all layers are tensors afterwards, not lazy ones. After an
    error, the states are those from before the block.
    """
    warn_of_plain(running, layers.reasons)
    with ExitStack() as stack:
        for module in layers.plain:  # prepended hooks run first, so that the user's hooks see tensors
            before = module.register_forward_pre_hook(_read_tensors, prepend=True, with_kwargs=True)
            after = module.register_forward_hook(_send_tensors, prepend=True)
            stack.callback(before.remove)
            stack.callback(after.remove)
        recording.running = True
        try:
            for layer in layers.fused:
                layer.start(recording)
            yield
            if not running.loop_outside:
                with_tensors(net)
        except BaseException:
            for layer in layers.fused:
                layer.give_back()
            raise
        finally:
            recording.running = False
            for layer in layers.fused:
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
        for place, name, value in held_steps(module):
            if isinstance(value, dict):
                value.update(copied(replaced(value)))
            else:
                place[name] = copied(replaced(value))


def goes_on_from_steps(layers: SortedModules, args: Any, kwargs: Any) -> bool:
    """True if a call starts from states that were written down; False if it starts from others, as after a reset.

    After a reset, steps that still wait are not computed together with the new ones: a backward pass may have freed
    the graph that they depend on.
    """
    if any(layer.holds_steps() for layer in layers.fused):
        return True
    return bool(lazies_in((args, kwargs))) or any(holds_steps(module) for module in layers.modules)


def holds_steps(module: nn.Module) -> bool:
    """True if a module holds a lazy tensor in an attribute, a buffer or one of spikingjelly's memories."""
    return any(True for _ in held_steps(module))


def held_steps(module: nn.Module) -> Iterator[tuple[dict[str, Any], str, Any]]:
    """Yield a dict, a name in it and the value there, for each place where a module holds lazy tensors."""
    attributes = vars(module)
    places = [attributes, *(attributes[name] for name in ("_buffers", "_memories") if name in attributes)]
    for place in places:
        for name, value in [*place.items()]:
            if (
                type(value) is LazyTensor
                or (isinstance(value, list | tuple) and lazies_in(value))
                or (type(value) is dict and name[0] != "_" and lazies_in(value))  # "_": _buffers and _memories
            ):
                yield place, name, value


def warn_of_plain(running: Running, reasons: dict[str, str]) -> None:
    """Warn once of each layer that runs in plain steps; `reasons` says why, by the layer's name."""
    new = {name: reason for name, reason in reasons.items() if name not in running.named}
    if new:
        running.named.update(new)
        texts = "; ".join(f"{name or 'the layer'} ({reason})" for name, reason in new.items())
        warn_of(f"these run in plain steps: {texts}.", NotAcceleratedWarning)


# ---- the comparison with the user's network


def _compare(net: nn.Module, fast: Any, x: tuple[Any, ...]) -> None:
    """Call a network and its accelerated form with an example x, and compare what they return and their gradients.

    This finds whether the loop over time is outside. Where the two do not agree, the accelerated form runs in plain
    steps from then on, and a warning says why.
    """
    running = running_of(fast)
    wanted = outcome(net, net, x, calls=1)
    single: list[str] = []
    try:
        came = outcome(net, fast, x, calls=1)
        most_steps = max((in_all for _, in_all in running.steps_of.values()), default=0)
        if most_steps == 1 and running.runs_plainly is None:
            # the loop over time must be around the calls
            running.loop_outside = True
            wanted = outcome(net, net, x, calls=CALLS_OF_LOOP)
            came = outcome(net, fast, x, calls=CALLS_OF_LOOP)
        fault = difference(came, wanted)
        single = _single_steps(net, running)
        if 2 * len(single) > len(running.steps_of) > 0:  # most layers would be slower than in plain steps
            fault = fault or f"needs values of {', '.join(single)} in every step"
        if not fault and running.runs_plainly is None:
            fault = difference_in_training(net, fast, x, calls=CALLS_OF_LOOP if running.loop_outside else 1)
    except Exception as error:  # in a backward pass, or when a lazy result is read: forward's own errors are caught
        fault = f"raises {first_line_of(error)}"
    if "forward" in vars(net):
        fault = "has a forward that is an attribute of the object, not of its class"
    if fault and running.runs_plainly is None:
        running.runs_plainly = fault
        warn_of(f"the network runs in plain steps: accelerated it {fault}.", NotAcceleratedWarning)


CALLS_OF_LOOP = 3  # of a loop outside: the fewest with a step that reads and passes on a state which is not at rest


def _single_steps(net: nn.Module, running: Running) -> list[str]:
    """Return the names of the layers whose steps were each computed alone in the last call."""
    names = {module: name for name, module in net.named_modules()}
    found = []
    for layer, (at_once, in_all) in running.steps_of.items():
        if at_once == 1 < in_all:
            found.append(names.get(layer) or "the layer")
    return found
