"""The loop's run by plain steps, as autograd follows them: for second derivatives."""

import torch
from torch import Tensor

from neurolsc.neurons.equations import advance
from neurolsc.neurons.fast.inputs import Inputs, Plan, end_samples, pack, unpack
from neurolsc.neurons.fast.surrogates import holding


def by_plain_steps(plan: Plan, inputs: Inputs) -> tuple[Tensor, Tensor, Tensor | None]:
    """The spikes (T, B, n_hidden), and v and theta at the end."""
    x, first, z, v, theta, c, tensors = inputs
    spike = holding(plan.spike, tensors)
    read = (x.to_dense() if x.is_sparse else x).to(v.dtype).unbind(0)
    read = read if first is None else (first.to(v.dtype), *read[:-1])
    spikes, ends, v_end, theta_end = [], end_samples(plan.lengths, len(read)), v, theta
    for t, frame in enumerate(read, start=1):
        v, theta = advance(plan.reset, c, frame, z, v, theta)
        limit: Tensor = c.threshold if theta is None else theta  # type: ignore[assignment]
        z = spike.forward(v - limit)  # no hook on it has come since the forward pass
        spikes.append(z)
        if t in ends:
            now = torch.zeros(len(v), 1, dtype=torch.bool, device=v.device)
            now[ends[t]] = True
            v_end = torch.where(now, v, v_end)
            theta_end = None if theta is None else torch.where(now, theta, theta_end)  # type: ignore[arg-type]
    return torch.stack(spikes), v_end, theta_end


def plain_gradients(plan: Plan, inputs: Inputs, needed: Inputs, given: tuple[Tensor | None, ...]) -> Inputs:
    """The gradients, where needed, by way of plain steps.

    Args:
        plan: the run.
        inputs: its inputs.
        needed: the gradients of which of them are.
        given: those by the spikes, and by v and theta at the end; None where zero.
    """
    create, wanted = torch.is_grad_enabled(), pack(needed)
    with torch.enable_grad():
        # aliases: one input may depend on another, and a gradient must not flow between them here
        pairs = zip(pack(inputs), wanted, strict=True)
        aliases = [i.view_as(i) if wants else i for i, wants in pairs]
        outputs = by_plain_steps(plan, unpack(aliases))
        pairs = zip(outputs, given, strict=True)
        known = [(o, g) for o, g in pairs if o is not None and g is not None and o.requires_grad]
        if not known:
            return unpack([None] * len(wanted))
        by = [i for i, wants in zip(aliases, wanted, strict=True) if wants]
        ends, gradients = zip(*known, strict=True)
        found = iter(torch.autograd.grad(ends, by, gradients, create_graph=create, allow_unused=True))
    return unpack([next(found) if wants else None for wants in wanted])
