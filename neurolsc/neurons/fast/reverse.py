r"""The reverse pass of the loop.

With :math:`g_x = \partial L / \partial x`, s the surrogate's derivative, and D, E and R of
:mod:`neurolsc.neurons.reset`,

.. math::
    q[t] &= s[t] \Big(g_z[t] + W_{rec}^T g_v[t+1] + \beta g_\vartheta[t+1] - R[t]\, g_v[t+1]\Big) \\
    g_v[t] &= D[t]\, g_v[t+1] + q[t] \\
    g_\vartheta[t] &= e^{-1/\tau_\vartheta} g_\vartheta[t+1] + E[t]\, g_v[t+1] - q[t]

and the gradients of the constants are sums over time of products with these
(:mod:`neurolsc.neurons.fast.totals`); those of the weights are made for many steps at once. The
loop holds :math:`-g_\vartheta`, to which q is added.
"""

from collections.abc import Sequence

from torch import Tensor

from neurolsc.neurons.fast import on_cpu
from neurolsc.neurons.fast.inputs import Inputs, Plan
from neurolsc.neurons.fast.slopes import Formula, StepByStep
from neurolsc.neurons.fast.steps import Replay, Trace
from neurolsc.neurons.fast.totals import Totals


def reverse(plan: Plan, inputs: Inputs, trace: Trace, needed: Inputs, given: Sequence[Tensor | None]) -> Inputs:
    """The gradients, where needed.

    Args:
        plan: the run.
        inputs: its inputs.
        trace: its forward pass.
        needed: which gradients are.
        given: those by the spikes (T, B, n_hidden), and by v and theta at the end (B, n_hidden);
            None where zero.
    """
    c, steps = inputs.c, len(trace.z)
    slopes = (Formula if plan.known else StepByStep)(plan.spike, inputs.spike, needed.spike)
    kind = on_cpu.carried_of(trace.z0)
    totals, replay = Totals(c, trace, needed, kind.rows), Replay(on_cpu.steps_of(plan.reset, c, trace.reading), trace)
    state = kind(plan.reset, c, trace, totals.vectors, given)
    made = trace.z.new_empty(min(trace.block, steps), *trace.z0.shape)
    for a in reversed(range(0, steps, trace.block)):
        b = min(a + trace.block, steps)
        state.block(slopes, a, *replay.block(a, b), made[: b - a])
        totals.add_block(a, b, made[: b - a])
        state.g_v = made[0].clone()
    state.to_start(replay)
    found = Inputs(totals.x, totals.first, *state.found(), totals.constants(), tuple(slopes.gradients()))
    return found
