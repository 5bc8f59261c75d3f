"""The loop on a GPU: one Triton kernel a pass, and what is done for all steps around it.

The same functions as :func:`neurolsc.neurons.fast.forward.forward` and
:func:`neurolsc.neurons.fast.reverse.reverse`, in float32. Before the kernels of
:mod:`neurolsc.neurons.fast.fused_kernels` the input is projected and the surrogate differentiated,
by its own code; after them the gradients of the weights are made. For the reverse pass v and the
threshold of all steps are kept, each (T, B, n_hidden); it makes two more such tensors, the
surrogate's derivative and the gradient by the projected input, and a third where the surrogate
learns.
"""

import os
import shutil
import sysconfig
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from neurolsc.neurons.equations import Constants
from neurolsc.neurons.fast.forward import State
from neurolsc.neurons.fast.inputs import Inputs, Plan, rows_of
from neurolsc.neurons.fast.reading import Reading
from neurolsc.neurons.fast.resets import in_place
from neurolsc.neurons.fast.slopes import Formula
from neurolsc.neurons.fast.steps import Trace
from neurolsc.neurons.fast.totals import Totals
from neurolsc.neurons.reset import Reset

WIDEST = 512
"""Neurons up to which kernels are used: each program reads the recurrent weights at every step."""
HELD = 2**13
"""Products that a program holds at once: 32 registers for each of its 32 * WARPS threads."""
WARPS = 8


def suits(c: Constants, *states: Tensor | None) -> bool:
    """Whether the kernels can run such a layer: in float32, on an NVIDIA GPU that Triton knows."""
    tensors = [tensor for tensor in (*c, *states) if tensor is not None]
    batch, hidden = tensors[-1].shape
    device = c.w_rec.device
    return (
        device.type == "cuda"
        and hidden <= WIDEST
        and batch * hidden < 2**28  # rows are counted in int32
        and all((tensor.dtype, tensor.device) == (torch.float32, device) for tensor in tensors)
        and torch.version.hip is None
        and torch.cuda.get_device_capability(device) >= (8, 0)
        and kernels() is not None
    )


@cache
def kernels() -> ModuleType | None:
    """The kernels, or None without Triton or what it needs: a C compiler and Python's headers."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or not Path(sysconfig.get_path("include"), "Python.h").exists():
        return None
    try:
        from neurolsc.neurons.fast import fused_kernels
    except ImportError:
        return None
    return fused_kernels


def forward(plan: Plan, inputs: Inputs, reading: Reading) -> tuple[Trace, State, Tensor]:
    """The forward pass, as that of :func:`neurolsc.neurons.fast.forward.forward`.

    Where not all voltages are kept, the reverse pass takes another forward pass.
    """
    z0, v0, theta0, c = inputs.z, inputs.v, inputs.theta, inputs.c
    steps, batch, hidden, whole = reading.steps, *v0.shape, plan.keep == "all"
    with torch.autocast(v0.device.type, plan.half, enabled=plan.half is not None):
        drive = reading.drive(0, steps, c.w_in, c.w_in.T).float()
    z, v = v0.new_empty(steps, batch, hidden), v0.new_empty(steps * whole + 1, batch, hidden)
    v[0] = v0
    if theta0 is None:
        theta = _fixed(c, v0)
    else:
        theta = torch.empty_like(v)
        theta[0] = theta0
    ends = v[0].clone(), theta[0].clone()
    size = batch * hidden
    with torch.cuda.device_of(v0):
        kernels().forward[_programs(v0)](  # type: ignore[union-attr]
            *(drive, c.w_rec.T.contiguous().to(plan.half), rows_of(c), _ends(plan.lengths, steps, v0)),
            *(z0.contiguous(), z, v, theta, *ends),
            *(steps, batch, hidden, size, size * whole, size * (len(theta) > 1)),
            **_kind(c, plan.reset),
            **_tile(v0),
            enable_fp_fusion=False,  # rounds as the loop does
        )
    fixed, finite = theta0 is None, v0.new_zeros(())
    end = ends[0], None if fixed else ends[1]
    return Trace(reading, z0, z, None, v, None if fixed else theta, {}, 1), end, finite


def reverse(plan: Plan, inputs: Inputs, trace: Trace, needed: Inputs, given: Sequence[Tensor | None]) -> Inputs:
    """The gradients, as those of :func:`neurolsc.neurons.fast.reverse.reverse`."""
    if plan.keep == "some":
        trace, _, _ = forward(replace(plan, keep="all"), inputs, trace.reading)
    c, z0, z, v = inputs.c, trace.z0, trace.z, trace.v
    (steps, batch, hidden), (g_z, *g_end) = z.shape, given
    theta = _fixed(c, z0) if trace.theta is None else trace.theta
    slopes, totals = Formula(plan.spike, inputs.spike, needed.spike), Totals(c, trace, needed)
    distance = v[1:] - theta[-steps:]
    slope = slopes.spike.derivative(distance).to(z.dtype).expand_as(z).contiguous()
    g, state, sums = torch.empty_like(z), z.new_empty(3, batch, hidden), z.new_empty(6, batch, hidden)
    through = torch.empty_like(z) if slopes.wanted else g
    into = slope if g_z is None else g_z.contiguous()
    known = [torch.zeros_like(z0) if end is None else end for end in g_end]
    with torch.cuda.device_of(z):
        kernels().reverse[_programs(z0)](  # type: ignore[union-attr]
            *(slope[-1], into[-1], torch.stack(known)),
            *(c.w_rec.contiguous().to(plan.half), rows_of(c), _ends(plan.lengths, steps, z0)),
            *(z0.contiguous(), z[max(steps - 2, 0)], v[-2], theta[-2:][0]),
            *(g[-1], through[-1], state, sums),
            *(steps, batch, hidden, batch * hidden, batch * hidden * (len(theta) > 1)),
            **_kind(c, plan.reset),
            PASSES=plan.reset.gradient,
            SPIKES=g_z is not None,
            ENDS=any(end is not None for end in g_end),
            THROUGH=bool(slopes.wanted),
            **_tile(z0),
            enable_fp_fusion=True,
        )
    del slope, into
    totals.add_block(0, steps, g)
    if slopes.wanted:
        slopes.add(slopes.learnt(distance, through))
    weights = totals.constants()
    vectors = Constants(weights.w_in, weights.w_rec, *sums.sum(1))  # type: ignore[arg-type]
    if trace.theta is None:  # what the moving threshold was given at the start
        vectors = vectors._replace(threshold=state[2].sum(0))
    z_first, v_first, theta_first = state
    return Inputs(totals.x, totals.first, z_first, v_first, theta_first, vectors, tuple(slopes.gradients()))


def _fixed(c: Constants, like: Tensor) -> Tensor:
    """A fixed threshold as the one of every step (1, B, n_hidden)."""
    assert c.threshold is not None
    return c.threshold.repeat(1, len(like), 1)


def _ends(lengths: Tensor | None, steps: int, like: Tensor) -> Tensor:
    """The lengths as the kernels want them (B,)."""
    if lengths is None:
        return torch.full((len(like),), steps, dtype=torch.int32, device=like.device)
    return lengths.to(like.device, torch.int32)


def _kind(c: Constants, reset: Reset) -> dict[str, bool]:
    """Which of the resets the kernels are made for."""
    return {"CONSTANT": c.threshold is not None and c.decay_theta is not None, "ZERO": in_place(reset).zero}


def _samples(like: Tensor) -> int:
    """Samples of a program: as few as keep all multiprocessors busy, as registers allow."""
    processors = torch.cuda.get_device_properties(like.device).multi_processor_count if like.is_cuda else 1
    return next((r for r in (1, 2) if -(-len(like) // r) <= processors), 4)


def _programs(like: Tensor) -> tuple[int]:
    return (-(-len(like) // _samples(like)),)


def _tile(like: Tensor) -> dict[str, int]:
    """The sizes that the kernels are made for, after a state (B, n_hidden)."""
    samples, columns = _samples(like), max(16, 1 << (like.shape[1] - 1).bit_length())
    return {
        "R": samples,
        "C": columns,
        "K": min(columns, HELD // (samples * columns)),
        "num_warps": WARPS,
        "num_stages": 1,
    }
