"""A user's network at the speed of kernels that run a whole sequence, without a change of the network."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook
from torch.utils._pytree import tree_leaves

from neurolsc.interop.fused import layers_of
from neurolsc.interop.lazy import LazyTensor, Recording, replaced
from neurolsc.interop.wrapped import Accelerated, borrowed, plain_module, warn_of
from neurolsc.network import eval_mode
from neurolsc.neurons.fast.sequence import transformed
from neurolsc.surroundings import original


class NotAcceleratedWarning(UserWarning):
    """A layer, or a whole network, that runs in the plain steps of its library."""


def accelerate(net: nn.Module, x: Tensor) -> Any:
    """Run a network of snnTorch, norse or spikingjelly several times as fast, as it is.

    The result *is* the network, but for its speed: it shares parameters, buffers, states, hooks and all attributes with
    net, is of a subclass of its class, and takes and returns what net does, with the same gradients.

    Its ``forward`` is the user's own. While that runs, the steps of neurons are written down, and computed when a value
    is needed: each layer once for all steps, by a kernel that saves its voltages alone. Functions of PyTorch between
    neurons (Linear, convolutions, pooling, batch norm in evaluation, dropout, arithmetic) are called once over (T B).
    Everything else runs in plain steps, as ever, and a warning names layers that do. So do all layers under autocast,
    ``torch.compile`` and ``torch.func``, and on a GPU.

    Where a call of net is one step and the loop over time is around it, the calls return lazy tensors, which hold what
    will be computed: ``torch.stack``, a loss, or anything else that needs a value, computes all steps at once.

    Args:
        net: a network with neurons that the kernels know: snnTorch's Leaky, Synaptic and Alpha; norse's LIF, LIFBox and
            LI; spikingjelly's LIFNode, ParametricLIFNode and IFNode.
        x: an example of what net takes. Both are called with it, in evaluation mode and from rest, and compared; net is
            afterwards as before.

    Returns:
        A module that shares everything with net.

    Raises:
        TypeError: if net is no module or x no tensor.
        ValueError: if no layer of net can be accelerated; the message says why.

    Example:
        >>> accelerate(nn.Linear(3, 2), torch.zeros(4, 3))
        Traceback (most recent call last):
        ValueError: net has no layer of neurons that the kernels know.
    """
    if not isinstance(net, nn.Module):
        raise TypeError(f"net must be a module, got {type(net).__name__}.")
    if not isinstance(x, Tensor):
        raise TypeError(f"x must be a tensor, an example of what net takes, got {type(x).__name__}.")
    net = original(net)
    if isinstance(net, Accelerated):
        return net
    fused, reasons, _ = layers_of(net)
    if not fused:
        texts = [f"{name} ({reason})" if name else reason for name, reason in reasons.items()]
        why = f": {'; '.join(texts)}" if texts else ""
        raise ValueError(f"net has no layer of neurons that the kernels know{why}.")
    fast = _accelerated(net)
    fast_class = type(fast)
    warn_of_plain(fast_class, reasons)
    _compare(net, fast, x)
    return fast


class _Accelerated(Accelerated, nn.Module):
    """A user's class whose forward runs neurons over all steps at once.

    Attributes:
        named: the layers that a warning has named.
        runs_plainly: why the whole network runs in plain steps; None while it does not.
        loop_outside: True if a call is one step.
        longest: the most steps that a layer has run at once in the last call.
        most: the most steps of a layer in the last call.
        recording: with the loop outside, the steps that have been written down.
    """

    named: ClassVar[dict[str, str]]
    runs_plainly: ClassVar[str | None] = None
    loop_outside: ClassVar[bool] = False
    longest: ClassVar[int] = 0
    most: ClassVar[int] = 0
    recording: ClassVar[Recording | None] = None

    def _call_at_once(self, args: Any, kwargs: Any) -> Any:
        """The user's forward, its neurons at once where that can be."""
        fast_class = type(self)
        plain = partial(self.plain_class.forward, self)
        if fast_class.runs_plainly is not None or must_run_plainly(self, args, kwargs):
            if fast_class.loop_outside:
                with_tensors(self)
            return plain(*replaced(args), **replaced(kwargs))
        if not fast_class.loop_outside:
            recording = Recording()
        else:
            if fast_class.recording is None or fast_class.recording.flushed:
                fast_class.recording = Recording()
            recording = fast_class.recording
        try:
            return self._recorded(recording, plain, args, kwargs)
        except Exception as error:
            # a lazy tensor cannot do something; or it is an error of the user's code, which the plain forward raises
            reason = f"{type(error).__name__}: {error}"
        if fast_class.loop_outside:
            with_tensors(self)
        out = plain(*replaced(args), **replaced(kwargs))
        fast_class.runs_plainly = reason
        warn_of(f"the network runs in plain steps: its forward cannot be put off ({reason})", NotAcceleratedWarning)
        return out

    def _recorded(self, recording: Recording, plain: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call forward while its calls are recorded; return tensors, or lazy ones if the loop is outside."""
        fast_class = type(self)
        with recorded(self, recording, fast_class):
            forward = vars(self).get("forward", plain)  # the first of a layer that is a network by itself
            as_step = fast_class.loop_outside
            inputs = [as_input(recording, arg, as_step=as_step) for arg in args]
            named = {name: as_input(recording, arg, as_step=as_step) for name, arg in kwargs.items()}
            out = forward(*inputs, **named)
            if as_step:
                return out
            recording.flush()
            fast_class.longest = recording.longest
            fast_class.most = recording.most
            return replaced(out)

    def __reduce__(self) -> Any:
        return _accelerated, (plain_module(self), self.loop_outside, self.runs_plainly)


def _accelerated(net: nn.Module, loop_outside: bool = False, runs_plainly: str | None = None) -> Any:
    """An object of a subclass of a module's class that shares everything with it."""
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
    fast_class.loop_outside = loop_outside
    fast_class.runs_plainly = runs_plainly
    fast = object.__new__(fast_class)
    object.__setattr__(fast, "__dict__", vars(net))
    return fast


def must_run_plainly(net: nn.Module, args: Any, kwargs: Any) -> bool:
    """True where a call cannot be put off: under compilers, transforms, autocast, global hooks, on a GPU, in half."""
    tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor)]
    if transformed(tensors) or _has_any_global_hook():
        return True
    if torch.is_autocast_enabled("cpu"):
        return True
    return any(
        tensor.device.type != "cpu" or (tensor.is_floating_point() and tensor.dtype not in PRECISIONS)
        for tensor in (*tensors, *net.parameters())
    )


PRECISIONS = (torch.float32, torch.float64)  # of the kernels


def as_input(recording: Recording, arg: Any, *, as_step: bool) -> Any:
    """An argument as what a recording reads; what is no tensor, such as a state, as it is."""
    if type(arg) is not Tensor or not arg.is_floating_point():
        return arg
    if as_step:
        return recording.step(arg)
    if arg.ndim > 1:
        return recording.source(arg)
    return arg


@contextmanager
def recorded(net: nn.Module, recording: Recording, fast_class: type[_Accelerated]) -> Iterator[None]:
    """Inside, neurons write their steps down; afterwards their states are tensors again, if the loop was inside."""
    fused, reasons, plain = layers_of(net)
    warn_of_plain(fast_class, reasons)
    with ExitStack() as stack:
        for module in plain:
            before = module.register_forward_pre_hook(_read_tensors, prepend=True, with_kwargs=True)
            after = module.register_forward_hook(_send_tensors, prepend=True)
            stack.callback(before.remove)
            stack.callback(after.remove)
        recording.running = True
        try:
            for layer in fused:
                layer.start(recording)
            yield
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
    """A hook by which a module reads tensors."""
    return replaced(args), replaced(kwargs)


def _send_tensors(module: nn.Module, args: Any, out: Any) -> Any:
    """A hook by which hooks of the user see tensors."""
    return replaced(out)


def with_tensors(net: nn.Module) -> None:
    """Replace the lazy tensors that modules hold by their values."""
    for module in net.modules():
        places = [vars(module), *(vars(module)[name] for name in ("_buffers", "_memories") if name in vars(module))]
        for place in places:
            for name, value in place.items():
                if isinstance(value, LazyTensor | list | tuple):
                    place[name] = replaced(value)


def warn_of_plain(fast_class: type[_Accelerated], reasons: dict[str, str]) -> None:
    """Warn of layers that are not run at once, of each for the first time."""
    new = {name: reason for name, reason in reasons.items() if name not in fast_class.named}
    if new:
        fast_class.named.update(new)
        texts = "; ".join(f"{name or 'the layer'} ({reason})" for name, reason in new.items())
        warn_of(f"these run in plain steps: {texts}.", NotAcceleratedWarning)


# ---- the comparison with the user's network

# of values that may differ: in float32 one spike of a long run may fall otherwise, and others follow
LARGEST_SHARE = 0.05


class _Outcome(NamedTuple):
    """What a network returned, and the gradients of its parameters by a random sum of that."""

    tensors: list[Tensor]
    gradients: dict[str, Tensor | None]


def _compare(net: nn.Module, fast: Any, x: Tensor) -> None:
    """Call both with an example; where they do not agree, let the user's network run, and say so."""
    fast_class = type(fast)
    wanted = _outcome(net, net, x, calls=1)
    came = _outcome(net, fast, x, calls=1)
    if fast_class.most == 1 and fast_class.runs_plainly is None:  # the loop over time must be around the calls
        fast_class.loop_outside = True
        wanted = _outcome(net, net, x, calls=3)
        came = _outcome(net, fast, x, calls=3)
    fault = _difference(came, wanted)
    if fast_class.longest == 1 and fast_class.most > 1:
        fault = "asks for values in every step"
    if fault and fast_class.runs_plainly is None:
        fast_class.runs_plainly = fault
        warn_of(f"the network runs in plain steps: accelerated it {fault}.", NotAcceleratedWarning)


def _outcome(net: nn.Module, called: nn.Module, x: Tensor, *, calls: int) -> _Outcome:
    """Call a network from rest, in evaluation mode; it is afterwards as before."""
    with ExitStack() as stack:
        for context in (eval_mode(net), torch.enable_grad(), torch.random.fork_rng(devices=[])):
            stack.enter_context(context)
        modules: Any = net.modules()
        for module in modules:
            stack.enter_context(borrowed(module))  # also gives back its hidden state
            if hasattr(module, "_memories"):
                module._memories.update(copy.deepcopy(module._memories_rv))
            elif hasattr(module, "reset_mem"):
                module.reset_mem()
        torch.manual_seed(0)
        out = replaced([called(x) for _ in range(calls)])
        tensors = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        parameters = {name: p for name, p in net.named_parameters() if p.requires_grad}
        draws = [torch.randn(t.shape, dtype=torch.float64).to(t) for t in tensors]  # the same with and without gradient
        weighted = [(t * draw).sum() for t, draw in zip(tensors, draws, strict=True) if t.requires_grad]
        if not weighted or not parameters:
            return _Outcome(tensors, {})
        found = torch.autograd.grad(sum(weighted), [*parameters.values()], allow_unused=True)  # type: ignore[arg-type]
        return _Outcome([t.detach() for t in tensors], dict(zip(parameters, found, strict=True)))


def _difference(came: _Outcome, wanted: _Outcome) -> str | None:
    """How an accelerated network differs from the user's; None if it does not."""
    if [(t.shape, t.dtype) for t in came.tensors] != [(t.shape, t.dtype) for t in wanted.tensors]:
        return "returns tensors of other shapes"
    share = max((_share(a, b) for a, b in zip(came.tensors, wanted.tensors, strict=True)), default=0.0)
    if share > LARGEST_SHARE:
        return f"returns other values ({share:.0%} of them)"
    for name, gradient in wanted.gradients.items():
        other = came.gradients.get(name)
        if gradient is None:
            gradient = torch.zeros(())
        if other is None:
            other = torch.zeros_like(gradient)
        if share == 0 and _share(other, gradient.expand_as(other), tolerance=1e-2) > LARGEST_SHARE:
            return f"has another gradient by {name}"
    return None


def _share(came: Tensor, wanted: Tensor, tolerance: float = 1e-4) -> float:
    """The share of entries that differ by more than a part of the largest; both may be NaN or infinite."""
    if not wanted.numel():
        return 0.0
    came = came.double()
    wanted = wanted.double()
    near = (came - wanted).abs() <= tolerance * wanted.abs().nan_to_num().max()
    return (~(near | (came == wanted) | (came.isnan() & wanted.isnan()))).double().mean().item()
