"""Whether the kernels are right on a device: a small layer there, by them and by plain steps."""

import threading
import warnings
from itertools import product

import torch
from torch import Tensor

from neurolsc.neurons.equations import Constants
from neurolsc.neurons.fast.function import scan
from neurolsc.neurons.fast.inputs import Inputs, Plan, pack
from neurolsc.neurons.fast.plain import by_plain_steps
from neurolsc.neurons.fast.surrogates import held
from neurolsc.neurons.reset import Reset, StaticReset, ZeroReset
from neurolsc.surrogate import FastSigmoid

STEPS, BATCH, INPUTS, HIDDEN = 4, 3, 5, 6
TOLERANCE = 2e-3
"""relative to the norm of a gradient, since products may be set to TF32"""

_lock = threading.Lock()
_passed: dict[torch.device, bool] = {}


def passed(device: torch.device) -> bool:
    """Whether the kernels give there what plain steps give; tried once in a process.

    All resets, with a fixed and a moving threshold, forward and back. Where the kernels differ, or
    fail to compile or to start, layers on that device run by the loop, and one warning says so.
    """
    with _lock:
        if device not in _passed:
            fault = _fault(device)
            _passed[device] = fault is None
            if fault is not None:
                told = f"the kernels of spiking layers are not used on {device}, where they {fault}"
                warnings.warn(f"{told}; the slower loop gives the same results.", RuntimeWarning, stacklevel=2)
        return _passed[device]


def _fault(device: torch.device) -> str | None:
    """What is wrong with the kernels on a device, or None."""
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
        for kind, moving in product((Reset, StaticReset, ZeroReset), (False, True)):
            try:
                differ = _differ(kind(gradient=True), moving, device)
            except Exception as error:  # of the compiler, the driver, or what they start: many kinds, one answer
                return f"fail ({type(error).__name__}: {error})"
            if differ is not None:
                return (
                    f"differ from plain steps ({differ}, {kind.__name__}, threshold {'moving' if moving else 'fixed'})"
                )
    return None


def _differ(reset: Reset, moving: bool, device: torch.device) -> str | None:
    """In what kernels and plain steps differ for a reset and a kind of threshold, or None."""
    spike = FastSigmoid(torch.linspace(0.5, 1, HIDDEN), learnable=True).to(device, torch.float32)
    plan = Plan(spike, True, reset, torch.tensor([STEPS, 2, 0], device=device), "all", kernels=True)
    results = []
    for by_kernels in (True, False):
        inputs = _layer(spike, reset, moving, device)
        z, v, theta = scan(plan, inputs)[:3] if by_kernels else by_plain_steps(plan, inputs)
        weights = torch.linspace(-1, 1, z.numel(), device=device).view_as(z)
        loss = (z * weights).sum() + v.square().sum() + (0 if theta is None else theta.square().sum())
        leaves = [tensor for tensor in pack(inputs) if tensor is not None]
        gradients = torch.autograd.grad(loss, leaves, allow_unused=True)
        results.append(([z, v, *([] if theta is None else [theta])], gradients))
    (values, gradients), (plain_values, plain_gradients) = results
    if not 0.1 < plain_values[0].mean() < 0.9 or not torch.equal(values[0], plain_values[0]):
        return "spikes"
    if not all(_close(*pair) for pair in zip(values, plain_values, strict=True)):
        return "states"
    return None if all(_close(*pair) for pair in zip(gradients, plain_gradients, strict=True)) else "gradients"


def _layer(spike: FastSigmoid, reset: Reset, moving: bool, device: torch.device) -> Inputs:
    """A layer that fires, of numbers with so few digits that its sums are exact in any order."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int, low: int = -16, high: int = 17) -> Tensor:
        return (torch.randint(low, high, shape, generator=generator) / 16).to(device).requires_grad_()

    halves = torch.full((HIDDEN,), 0.5, device=device)
    decay_v, decay_theta = halves.clone().requires_grad_(), halves.clone().requires_grad_()
    threshold = draw(HIDDEN, low=8) if not moving or isinstance(reset, StaticReset) else None
    own = (decay_theta, draw(HIDDEN, low=4), draw(HIDDEN)) if moving else ()
    c = Constants(draw(HIDDEN, INPUTS), draw(HIDDEN, HIDDEN), decay_v, draw(HIDDEN), threshold, *own)
    x, first = draw(STEPS, BATCH, INPUTS, low=0), draw(BATCH, INPUTS, low=0)
    z = (draw(BATCH, HIDDEN) > 0).float().detach().requires_grad_()
    theta = draw(BATCH, HIDDEN, low=4) if moving else None
    return Inputs(x, first, z, draw(BATCH, HIDDEN), theta, c, tuple(held(spike).values()))


def _close(one: Tensor | None, plain: Tensor | None) -> bool:
    if one is None or plain is None:
        return all(tensor is None or not bool(tensor.any()) for tensor in (one, plain))
    return bool((one - plain).norm() <= TOLERANCE * plain.norm() + 1e-6)
