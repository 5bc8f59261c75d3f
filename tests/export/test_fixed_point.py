"""The integer equations against the same ones in plain Python integers, and the counters."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from neurolsc.export import AtrlifLayer, CubaLayer, Extremes, IntegerLayer, quantize
from neurolsc.export.fixed_point import integer_steps, wrap
from tests.export.networks import KINDS, make, spikes

ONE = torch.ones(1, dtype=torch.float64)


def dec(x: int, k: int) -> int:
    size = (abs(x) * (4096 - k)) >> 12
    return size if x >= 0 else -size


def wrapped(u: int) -> int:
    return u - 2**24 if u > 2**23 else u + 2**24 if u <= -(2**23) else u


def clipped(v: int) -> int:
    return max(-(2**23) + 1, min(2**23 - 1, v))


def ints(x: Tensor) -> list:
    assert torch.equal(x, x.round())
    return x.to(torch.int64).tolist()


def plain_run(layers: tuple[IntegerLayer, ...], x: Tensor) -> list[list[list[int]]]:
    """Spikes [step][layer][neuron] of one sample (T, N), neuron by neuron in Python integers."""
    drives = [[0] * layer.size for layer in layers]
    u = [[0] * layer.size for layer in layers]
    v = [[0] * layer.size for layer in layers]
    th = [[64 * t for t in ints(layer.threshold)] for layer in layers]
    result = []
    for frame in ints(x):
        out = []
        for i, layer in enumerate(layers):
            z = []
            for j in range(layer.size):
                drive, v_decay, rest = drives[i][j], ints(layer.v_decay)[j], 64 * ints(layer.threshold)[j]
                bias = ints(layer.bias)[j]
                if isinstance(layer, CubaLayer):
                    u[i][j] = wrapped(dec(u[i][j], ints(layer.i_decay)[j]) + 64 * drive)
                    v[i][j] = clipped(dec(v[i][j], v_decay) + u[i][j] + 64 * bias)
                    z.append(int(v[i][j] > rest))
                    v[i][j] *= 1 - z[-1]
                else:
                    v[i][j] = clipped(dec(v[i][j], v_decay) + 64 * drive + (bias << layer.bias_exp))
                    th[i][j] = dec(th[i][j] - rest, ints(layer.theta_decay)[j]) + rest
                    z.append(int(v[i][j] >= th[i][j]))
                    th[i][j] += 64 * ints(layer.theta_step)[j] * z[-1]
            out.append(z)
        for i, layer in enumerate(layers):
            below = frame if i == 0 else out[i - 1]
            w, rec = ints(layer.weight), None if layer.weight_rec is None else ints(layer.weight_rec)
            for j in range(layer.size):
                one = sum(a * s for a, s in zip(w[j], below, strict=True))
                own = 0 if rec is None else sum(a * s for a, s in zip(rec[j], out[i], strict=True))
                if isinstance(layer, AtrlifLayer):
                    one, own = one << layer.weight_exp, own << layer.weight_rec_exp
                    own -= (ints(layer.reset)[j] << layer.reset_exp) * out[i][j]
                drives[i][j] = one + own
        result.append(out)
    return result


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_equals_the_equations_in_python_integers(kind):
    layers = quantize(make(kind)).layers
    x = spikes(12, 1, rate=0.4).double()
    ours = list(integer_steps(layers, x))
    theirs = plain_run(layers, x[:, 0])
    for i in range(len(layers)):
        assert sum(sum(out[i]) for out in theirs) > 10
        assert [ints(step.spikes[i][0]) for step in ours] == [out[i] for out in theirs]


@given(st.integers(-(2**24) + 1, 2**24))
def test_wrap_keeps_24_bits(u):
    assert wrap(torch.tensor(float(u), dtype=torch.float64)).item() == wrapped(u)


def cuba(weight: float, threshold: float, *, decays: tuple[float, float] = (4096.0, 0.0)) -> CubaLayer:
    vectors = {"bias": 0 * ONE, "i_decay": decays[0] * ONE, "v_decay": decays[1] * ONE, "threshold": threshold * ONE}
    return CubaLayer(weight=weight * ONE.view(1, 1), weight_rec=None, unit=ONE, **vectors)


def run(made: IntegerLayer, steps: int) -> tuple[list[int], Extremes]:
    """Spikes and extremes of one neuron whose input is 1 at every step."""
    total, fired = Extremes(), []
    for step in integer_steps([made], torch.ones(steps, 1, 1, dtype=torch.float64)):
        total |= Extremes.of(step.values[0])
        fired.append(int(step.spikes[0]))
    return fired, total


def test_at_the_threshold_cuba_does_not_fire_and_an_alif_does():
    fired, extremes = run(cuba(50, 100), 5)
    assert fired == [0, 0, 0, 1, 0]  # 0, 50, 100, 150: fires; 50
    assert extremes.ties == 1
    rest = {"bias": 0 * ONE, "v_decay": 0 * ONE, "theta_decay": ONE, "threshold": 100 * ONE, "theta_step": ONE}
    matrices = {"weight": 50 * ONE.view(1, 1), "weight_rec": 0 * ONE.view(1, 1), "reset": 100 * ONE, "unit": ONE}
    assert run(AtrlifLayer(**matrices, **rest, bias_exp=0, reset_exp=0), 4)[0] == [0, 0, 1, 0]


def test_wraps_saturations_and_large_inputs_are_counted():
    growing = cuba(2.0**15 - 1, 2.0**17 - 1, decays=(0.0, 4095.0))  # u grows by almost 2^21 a step
    last = list(integer_steps([growing], torch.ones(7, 1, 1, dtype=torch.float64)))[-1].states[0]
    found, step = run(growing, 7)[1], 64 * (2**15 - 1)
    assert (found.drive, found.u, found.overflows) == (2**15 - 1, 5 * step, 2)  # a voltage is clipped, a current wraps
    assert last.u.item() == 6 * step - 2**24
    assert run(cuba(2.0**15, 2.0**17 - 1), 8)[1].overflows == 7 + 1  # inputs; and 4 x 2^21 = 2^23 is clipped
