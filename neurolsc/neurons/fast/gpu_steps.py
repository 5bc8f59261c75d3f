"""One step of other libraries' neurons on a GPU, and its gradients: the formulas of Numba's kernels, in Triton.

A function takes tiles of entries, all of one shape: one for each state and parameter. It returns such tiles. Names are
those of :mod:`neurolsc.neurons.fast.scan_kernels`: r are the spikes of the voltage before a step, s those of the step;
u is the voltage from which s are computed, before s reset it; q is a gradient by spikes, g one by a state. The
operations of a step and their order are those of the library.

A function that ends in `_back` goes back through one step. It takes the gradients by the states after the step (g,
g_exc, ...) and by its spikes (from_z), those states before the step that it reads, u, and `given`: the derivatives of
the spikes, read if FORMULA is GIVEN.
"""

import math

import triton
import triton.language as tl

from neurolsc.neurons.fast import kinds

# A Triton kernel can read a module's numbers only in this form.
SUBTRACT = tl.constexpr(kinds.SUBTRACT)
ZERO = tl.constexpr(kinds.ZERO)
NONE = tl.constexpr(kinds.NONE)
ALL = tl.constexpr(kinds.ALL)
GIVEN = tl.constexpr(kinds.GIVEN)
ATAN = tl.constexpr(kinds.ATAN)
FAST_SIGMOID = tl.constexpr(kinds.FAST_SIGMOID)
SIGMOID = tl.constexpr(kinds.SIGMOID)
SIGN = tl.constexpr(kinds.SIGN)
QUADRATIC = tl.constexpr(kinds.QUADRATIC)
BOX = tl.constexpr(kinds.BOX)
LEAK_OF_ALL = tl.constexpr(kinds.LEAK_OF_ALL)
LEAK_OF_STATE = tl.constexpr(kinds.LEAK_OF_STATE)
NO_LEAK = tl.constexpr(kinds.NO_LEAK)
HALF_PI = tl.constexpr(math.pi / 2)


@triton.jit
def fires(distance):
    """Return 1 where a distance, voltage - threshold, is above zero, else 0."""
    return (distance > 0).to(distance.dtype)


@triton.jit
def reaches(distance, AT_THRESHOLD: tl.constexpr):
    """Return 1 where a distance is above zero, or is zero and AT_THRESHOLD is set; else 0."""
    if AT_THRESHOLD:
        spikes = distance >= 0
    else:
        spikes = distance > 0
    return spikes.to(distance.dtype)


@triton.jit
def slopes(distance, given, FORMULA: tl.constexpr, A: tl.constexpr):
    """Return the derivatives of spikes by their voltages, by the formulas of `scan_kernels.slopes`."""
    if FORMULA == GIVEN:
        slope = given
    elif FORMULA == ATAN:
        scaled = distance * (HALF_PI * A)
        slope = (A / 2) / (scaled * scaled + 1)
    elif FORMULA == FAST_SIGMOID:
        scaled = tl.abs(distance) * A + 1
        slope = 1 / (scaled * scaled)
    elif FORMULA == SIGMOID:
        small = tl.exp(tl.abs(distance) * -A)
        slope = small * A / ((small + 1) * (small + 1))
    elif FORMULA == SIGN:
        slope = ((distance < 0).to(distance.dtype) * 2 - 1) * A
    elif FORMULA == QUADRATIC:
        slope = tl.maximum(A - tl.abs(distance) * (A * A), 0.0)
    else:  # NOTHING: no gradient passes a spike
        slope = tl.zeros_like(distance)
    return slope


@triton.jit
def reset_again(u, s, r, threshold, RESET: tl.constexpr):
    """Return voltages that their own spikes s reset at once: snnTorch with ``reset_delay=False``.

    The reset by r is in u already, and snnTorch takes it back.
    """
    after = u
    if RESET == SUBTRACT:
        after = u - (s - r) * threshold
    elif RESET != NONE:
        after = u - (s - r) * u
    return after


@triton.jit
def back_through_reset_again(g, q, s, r, u, threshold, RESET: tl.constexpr):
    """Go back through :func:`reset_again`; return the gradients by u, s and the threshold.

    g is the gradient by the voltages after the reset, q the gradient by s from outside.
    """
    by_threshold = tl.zeros_like(g)
    if RESET == SUBTRACT:
        q -= g * threshold
        by_threshold -= g * (s - r)
    elif RESET != NONE:
        q -= g * u
        g *= 1 - (s - r)
    return g, q, by_threshold


@triton.jit
def leaky(x, v, beta, threshold, factor, RESET: tl.constexpr, DELAYED: tl.constexpr):
    """Return the spikes, u and v after a step of snnTorch's Leaky or RLeaky."""
    r = fires(v - threshold)
    if RESET == SUBTRACT:
        u = beta * v + x - r * threshold
    elif RESET == ZERO:
        u = beta * ((1 - r) * v) + x
    else:
        u = beta * v + x
    if RESET == ALL:  # an RLeaky that resets to zero: its input, too
        u -= r * u
    s = fires(u - threshold)
    after = u
    if not DELAYED:
        after = reset_again(u, s, r, threshold, RESET)
    return s * factor, u, after


@triton.jit
def leaky_back(
    g, from_z, v, u, given, beta, threshold, factor,
    RESET: tl.constexpr, DELAYED: tl.constexpr, FORMULA: tl.constexpr, A: tl.constexpr,
):  # fmt: skip
    """Go back through :func:`leaky`; return the gradients by x, v, beta, threshold and factor."""
    r = fires(v - threshold)
    s = fires(u - threshold)
    q = from_z * factor
    by_threshold = tl.zeros_like(g)
    if not DELAYED:
        g, q, by_threshold = back_through_reset_again(g, q, s, r, u, threshold, RESET)
    q *= slopes(u - threshold, given, FORMULA, A)
    g += q
    by_threshold -= q
    if RESET == SUBTRACT:
        by_threshold -= g * r
    if RESET == ALL:  # it sets the input to zero, too
        g *= 1 - r
    by_x = g
    if RESET == ZERO:  # it sets the last voltage alone to zero
        g *= 1 - r
    return by_x, g * beta, g * v, by_threshold, from_z * s


@triton.jit
def synaptic(x, syn, v, alpha, beta, threshold, factor, RESET: tl.constexpr, DELAYED: tl.constexpr):
    """Return the spikes, u, and syn and v after a step of snnTorch's Synaptic."""
    r = fires(v - threshold)
    syn = alpha * syn + x
    u = beta * v + syn
    if RESET == SUBTRACT:
        u -= r * threshold
    elif RESET == ZERO:
        u -= u * r
    s = fires(u - threshold)
    after = u
    if not DELAYED:
        after = reset_again(u, s, r, threshold, RESET)
    return s * factor, u, syn, after


@triton.jit
def synaptic_back(
    g_syn, g, from_z, syn, v, u, given, alpha, beta, threshold, factor,
    RESET: tl.constexpr, DELAYED: tl.constexpr, FORMULA: tl.constexpr, A: tl.constexpr,
):  # fmt: skip
    """Go back through :func:`synaptic`; return the gradients by x, syn, v, alpha, beta, threshold and factor."""
    r = fires(v - threshold)
    s = fires(u - threshold)
    q = from_z * factor
    by_threshold = tl.zeros_like(g)
    if not DELAYED:
        g, q, by_threshold = back_through_reset_again(g, q, s, r, u, threshold, RESET)
    q *= slopes(u - threshold, given, FORMULA, A)
    g += q
    by_threshold -= q
    if RESET == SUBTRACT:
        by_threshold -= g * r
    elif RESET == ZERO:
        g *= 1 - r
    g_syn += g
    return g_syn, g_syn * alpha, g * beta, g_syn * syn, g * v, by_threshold, from_z * s


@triton.jit
def alpha_function(x, exc, inh, v, alpha, beta, threshold, factor, scale, RESET: tl.constexpr):
    """Return the spikes, and exc, inh and v after a step of snnTorch's Alpha."""
    r = fires(v - threshold)
    last_inh = inh
    exc = alpha * exc + x
    inh = beta * inh - x
    v = scale * (exc + inh)
    if RESET == SUBTRACT:  # snnTorch's reset also adds the last inh to v
        exc -= threshold * r
        v += last_inh * r
    elif RESET == ZERO:
        exc -= exc * r
        v -= v * r
    if RESET != NONE:
        inh -= inh * r
    return fires(v - threshold) * factor, exc, inh, v


@triton.jit
def alpha_function_back(
    g_exc, g_inh, g, from_z, exc, inh, v, u, given, alpha, beta, threshold, factor, scale,
    RESET: tl.constexpr, FORMULA: tl.constexpr, A: tl.constexpr,
):  # fmt: skip
    """Go back through :func:`alpha_function`; u is v after the step.

    Returns the gradients by x, exc, inh, v, alpha, beta, threshold, factor and scale.
    """
    r = fires(v - threshold)
    q = from_z * factor * slopes(u - threshold, given, FORMULA, A)
    g += q
    by_threshold = -q
    by_last_inh = tl.zeros_like(g)
    if RESET == SUBTRACT:  # exc -= threshold r, and v += r times inh before the step
        by_threshold -= g_exc * r
        by_last_inh = g * r
    elif RESET == ZERO:
        g_exc *= 1 - r
        g *= 1 - r
    if RESET != NONE:
        g_inh *= 1 - r
    by_scale = g * (alpha * exc + beta * inh)  # v = scale (exc + inh) of the step, in which + x and - x cancel
    g_exc += g * scale
    g_inh += g * scale
    return (
        g_exc - g_inh, g_exc * alpha, g_inh * beta + by_last_inh, tl.zeros_like(g),
        g_exc * exc, g_inh * inh, by_threshold, from_z * fires(u - threshold), by_scale,
    )  # fmt: skip


@triton.jit
def reset_by(u, s, threshold, rest, RESET: tl.constexpr):
    """Return the voltages u after a reset by their own spikes s: SUBTRACT, ZERO (to `rest`) or NONE."""
    after = u
    if RESET == SUBTRACT:
        after = u - s * threshold
    elif RESET == ZERO:
        after = (1 - s) * u + s * rest
    return after


@triton.jit
def back_through_reset(g, q, s, u, slope, threshold, rest, RESET: tl.constexpr, PASSES: tl.constexpr):
    """Go back through :func:`reset_by` and the spikes s; return the gradients by u, the threshold and `rest`.

    g is the gradient by the voltages after the reset, q the gradient by s from outside, and slope the derivative of s.
    With PASSES, a gradient passes the spikes in the reset.
    """
    by_threshold = tl.zeros_like(g)
    by_rest = tl.zeros_like(g)
    if RESET == SUBTRACT:
        if PASSES:
            q -= g * threshold
        by_threshold -= g * s
    elif RESET == ZERO:
        if PASSES:
            q += g * (rest - u)
        by_rest += g * s
        g *= 1 - s
    q *= slope
    return g + q, by_threshold - q, by_rest


@triton.jit
def current_lif(x, v, i, gain, loss, leak, threshold, rest, RESET: tl.constexpr, SPIKING: tl.constexpr):
    """Return the spikes, u, and v and i after a step of norse's LIF; of its LI (not SPIKING), u as the spikes."""
    i += x
    u = v + gain * ((leak - v) + i)
    i += loss * i
    z = u
    after = u
    if SPIKING:
        z = fires(u - threshold)
        after = reset_by(u, z, threshold, rest, RESET)
    return z, u, after, i


@triton.jit
def current_lif_back(
    g, g_i, from_z, v, u, given, gain, loss, leak, threshold, rest,
    RESET: tl.constexpr, SPIKING: tl.constexpr, PASSES: tl.constexpr, FORMULA: tl.constexpr, A: tl.constexpr,
):  # fmt: skip
    """Go back through :func:`current_lif`; return the gradients by x, v, i, gain, loss, leak, threshold and rest."""
    by_threshold = tl.zeros_like(g)
    by_rest = tl.zeros_like(g)
    if SPIKING:
        slope = slopes(u - threshold, given, FORMULA, A)
        s = fires(u - threshold)
        g, by_threshold, by_rest = back_through_reset(g, from_z, s, u, slope, threshold, rest, RESET, PASSES)
    else:
        g += from_z
    i_plus_x = (u - v) / gain - (leak - v)  # of the step, from the change of v, as the run does not keep x
    by_i = g * gain + g_i + g_i * loss
    by_gain = g * ((leak - v) + i_plus_x)
    return by_i, g - g * gain, by_i, by_gain, g_i * i_plus_x, g * gain, by_threshold, by_rest


@triton.jit
def voltage_lif(x, v, gain, leak, threshold, rest, FORM: tl.constexpr, RESET: tl.constexpr, AT_THRESHOLD: tl.constexpr):
    """Return the spikes, u and v after a step of norse's LIFBox or spikingjelly's neurons."""
    if FORM == BOX:
        u = v + (x + leak - v) * gain
    elif FORM == LEAK_OF_ALL:
        u = v + (x - (v - leak)) * gain
    elif FORM == LEAK_OF_STATE:
        u = v - (v - leak) * gain + x
    else:  # NO_LEAK
        u = v + x
    s = reaches(u - threshold, AT_THRESHOLD)
    return s, u, reset_by(u, s, threshold, rest, RESET)


@triton.jit
def voltage_lif_back(
    g, from_z, v, u, given, gain, leak, threshold, rest,
    FORM: tl.constexpr, RESET: tl.constexpr, PASSES: tl.constexpr, AT_THRESHOLD: tl.constexpr,
    FORMULA: tl.constexpr, A: tl.constexpr,
):  # fmt: skip
    """Go back through :func:`voltage_lif`; return the gradients by x, v, gain, leak, threshold and rest."""
    slope = slopes(u - threshold, given, FORMULA, A)
    s = reaches(u - threshold, AT_THRESHOLD)
    g, by_threshold, by_rest = back_through_reset(g, from_z, s, u, slope, threshold, rest, RESET, PASSES)
    by_x = g
    by_v = g
    by_gain = tl.zeros_like(g)
    by_leak = tl.zeros_like(g)
    if FORM != NO_LEAK:
        by_v = g - g * gain
        by_leak = g * gain
        if FORM == LEAK_OF_STATE:
            by_gain = -g * (v - leak)
        else:
            by_x = g * gain
            by_gain = g * (u - v) / gain  # as u - v = gain (x - (v - leak))
    return by_x, by_v, by_gain, by_leak, by_threshold, by_rest


@triton.jit
def adaptive_lif(x, v, i, b, gain, loss, leak, threshold, rest, pull, beta):
    """Return the spikes, the distance u - b, and v, i and b after a step of norse's LSNN, whose threshold is b."""
    u = v + gain * ((leak - v) + i)
    i = i + loss * i + x
    b = b + pull * (threshold - b)
    distance = u - b
    s = fires(distance)
    return s, distance, reset_by(u, s, threshold, rest, ZERO), i, b + s * beta


@triton.jit
def adaptive_lif_back(
    g, g_i, g_b, from_z, v, i, b, distance, given, gain, loss, leak, threshold, rest, pull, beta,
    PASSES: tl.constexpr, FORMULA: tl.constexpr, A: tl.constexpr,
):  # fmt: skip
    """Go back through :func:`adaptive_lif`; `distance` is u - b, as it returned it.

    Returns the gradients by x, v, i, b, gain, loss, leak, threshold, rest, pull and beta.
    """
    drive = (leak - v) + i  # the step changes v by gain times this
    u = v + gain * drive
    s = fires(distance)
    q = from_z
    if PASSES:  # through what a spike does to v and b
        q += g * (rest - u) + g_b * beta
    q *= slopes(distance, given, FORMULA, A)
    by_rest = g * s
    by_beta = g_b * s
    g = g * (1 - s) + q
    g_b -= q
    by_v = g - g * gain
    by_i = g_i + g_i * loss + g * gain
    by_b = g_b - g_b * pull
    return (
        g_i, by_v, by_i, by_b,
        g * drive, g_i * i, g * gain, g_b * pull, by_rest, g_b * (threshold - b), by_beta,
    )  # fmt: skip
