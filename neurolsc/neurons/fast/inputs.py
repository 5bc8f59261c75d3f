"""The arguments of a run over all steps at once, and which cells and moments can have one."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.utils._device import DeviceContext

from neurolsc import surrogate
from neurolsc.surrogate import Surrogate

OURS = frozenset(getattr(surrogate, name) for name in surrogate.__all__) - {Surrogate}  # derivatives known as formulas


class Constants(NamedTuple):
    """What all steps of a layer have in common."""

    w_in: Tensor  # (n_hidden, n_in)
    w_rec: Tensor  # (n_hidden, n_hidden)
    decay_v: Tensor  # (n_hidden,), as all that follow
    b_v: Tensor
    threshold: Tensor | None = None  # of a LIF, or the resting one that a static reset subtracts; else None
    decay_theta: Tensor | None = None  # None, as the next two, where the threshold is fixed
    b_theta: Tensor | None = None
    adaptation: Tensor | None = None


def advance(
    reset: Any, c: Constants, x: Tensor, z: Tensor, v: Tensor, theta: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """One plain step of eq. 49: the next voltage and threshold (B, n_hidden)."""
    subtracted = theta if c.threshold is None else c.threshold
    after = reset.carry(c.decay_v * v, z, subtracted) + x @ c.w_in.T + z @ c.w_rec.T + c.b_v
    if theta is None:
        return after, None
    return after, c.decay_theta * theta + c.b_theta + c.adaptation * z  # type: ignore[operator]


class Inputs(NamedTuple):
    """All tensors that a run depends on; or something about each of them, as a gradient."""

    x: Any  # input (T, B, n_in)
    z: Any  # spikes before the first step (B, n_hidden)
    v: Any  # voltage before it (B, n_hidden)
    theta: Any  # threshold before it (B, n_hidden); None where it is fixed
    c: Constants
    spike: tuple[Any, ...]  # what the surrogate holds, in the order of :func:`held`

    def flat(self) -> tuple[Any, ...]:
        """One after the other, as a function of autograd takes and returns them."""
        *own, c, spike = self
        return (*own, *c, *spike)

    @classmethod
    def of(cls, flat: Sequence[Any]) -> Inputs:
        """The inverse of :meth:`flat`."""
        x, z, v, theta, *rest = flat
        n = len(Constants._fields)
        return cls(x, z, v, theta, Constants(*rest[:n]), tuple(rest[n:]))


@dataclass(frozen=True)
class Plan:
    """What a run is besides its tensors."""

    spike: Surrogate  # a copy, which nobody changes
    reset: Any  # a neurolsc.neurons.spiking.Reset
    lengths: Tensor  # steps after which the state of each sample is wanted (B,)
    keep: Literal["nothing", "starts", "all"]  # states saved for the reverse pass: none, before each block, all
    gpu: bool  # the GPU's kernels take all steps
    half: torch.dtype | None  # dtype of weights in products under autocast, which the GPU's kernels alone can do

    def ends(self) -> dict[int, Tensor]:
        """The samples whose state is wanted, by the number of steps after which it is."""
        return {int(n): (self.lengths == n).nonzero().squeeze(1) for n in self.lengths.unique()}


def rows_of(c: Constants) -> Tensor:
    """decay_v, b_v, what a reset subtracts, decay_theta, b_theta and adaptation (6, n_hidden)."""
    zero = torch.zeros_like(c.decay_v)
    moving = (torch.ones_like(zero), zero, zero) if c.decay_theta is None else c[5:]
    return torch.stack([c.decay_v, c.b_v, zero if c.threshold is None else c.threshold, *moving])  # type: ignore[list-item]


def overridden(thing: object) -> bool:
    """Whether an object has a method of its own in place of its class's."""
    return any(callable(getattr(type(thing), name, None)) for name in vars(thing))


def spikes_as_ours(spike: object) -> bool:
    """Whether a spike is 1 where v > theta, else 0, with the derivative of its primitive."""
    return (
        isinstance(spike, Surrogate)
        and not overridden(spike)
        and next(spike.children(), None) is None
        and not spike._exact_values
        and type(spike).forward is Surrogate.forward
        and type(spike).__call__ is nn.Module.__call__
    )


def held(spike: Surrogate) -> dict[str, Tensor]:
    """The tensors of a surrogate by name: parameters, buffers, and plain attributes."""
    places = (spike._parameters, spike._buffers, vars(spike))
    return {name: value for place in places for name, value in place.items() if isinstance(value, Tensor)}


def holding(spike: Surrogate, tensors: Iterable[Tensor]) -> Surrogate:
    """A copy of a surrogate around other tensors than those that it holds."""
    others = dict(zip(held(spike), tensors, strict=True))
    copied = copy.copy(spike)
    inside: dict[str, Any] = vars(copied)
    for place in ("_parameters", "_buffers"):
        inside[place] = {name: others.pop(name, None) for name in inside[place]}
    inside.update(others)
    return copied


def elementwise(spike: Surrogate, like: Tensor) -> bool:
    """Whether a user's surrogate acts on each neuron alone, without a gradient by what it lacks."""
    alone = holding(spike, [t.detach() for t in held(spike).values()])
    v = torch.linspace(-2, 2, 3 * like.shape[1], dtype=like.dtype, device=like.device).view(3, -1)
    with torch.enable_grad():
        if alone.primitive(v).requires_grad:
            return False
        smooth = alone.primitive(v.requires_grad_())
        if not smooth.requires_grad:
            return True
        back = v.detach() + 3
        one, all_at_once = (torch.autograd.grad(smooth, v, g, retain_graph=True)[0] for g in (back, back / back))
    return bool((one - all_at_once * back).abs().max() <= 100 * torch.finfo(one.dtype).eps * one.abs().max())


def followed(spike: Any, tensors: Iterable[Tensor | None]) -> bool:
    """Whether somebody follows each operation of a run; True also where torch does not say.

    That is so under compilers and tracers, under the transforms of ``torch.func``, in forward mode,
    in modes that see every operation (a default device is none), for a tensor that stands for
    several (``is_grads_batched``) or is of a class of its own, and with hooks on the surrogate or
    on all modules.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined]
        return True
    try:
        return bool(
            torch._C._functorch.peek_interpreter_stack() is not None  # type: ignore[attr-defined]
            or torch.autograd.forward_ad._current_level >= 0
            or torch._C._len_torch_dispatch_stack()
            or any(not isinstance(m, DeviceContext) for m in torch.overrides._get_current_function_mode_stack())
            or any(
                type(t) not in (Tensor, nn.Parameter) or torch._C._functorch.is_legacy_batchedtensor(t)  # type: ignore[attr-defined]
                for t in tensors
                if t is not None
            )
            or hooked(spike)
        )
    except AttributeError:
        return True


def hooked(spike: Any) -> bool:
    """Whether hooks hang on a spike function, or on all modules; True where torch does not say."""
    names = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    try:
        return bool(modules._has_any_global_hook()) or any(bool(getattr(spike, name)) for name in names)
    except AttributeError:
        return True
