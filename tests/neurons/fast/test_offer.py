"""The run that cells offer equals plain steps in every corner, or is by plain steps."""

import copy
import pickle
import threading
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import functional
from torch.autograd.graph import save_on_cpu
from torch.func import functional_call
from torch.nn.modules import module as modules
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from neurolsc import LIF, ALIFPlus, Network, surrogate
from neurolsc.neurons.fast import entries, on_cpu
from neurolsc.neurons.spiking import Reset, StaticReset, ZeroReset
from tests.neurons.fast.both import (
    BATCH,
    HIDDEN,
    STEPS,
    assert_as_plain_steps,
    assert_same,
    both,
    counted,
    firing,
    gradients,
    loss_of,
    own,
    plainly,
    spikes,
)

pytestmark = pytest.mark.usefixtures("float64")
every_kind = pytest.mark.parametrize("kind", [LIF, ALIFPlus])


@pytest.fixture
def by_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small products go by events, too."""
    monkeypatch.setattr(entries, "SMALLEST", 1)
    monkeypatch.setattr(entries, "DENSITY", 1.0)


# surrogates of a user's own


class Parabola(surrogate.Surrogate):
    """A shape without a flaw."""

    def shape(self, x: Tensor) -> Tensor:
        return (1 - x * x).clamp(min=0)

    def shape_integral(self, x: Tensor) -> Tensor:
        inside = x.clamp(-1, 1)
        return inside - inside**3 / 3


class Unused(Parabola):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.unused = nn.Parameter(torch.ones(2))


class OnlyInShape(Unused):
    def shape(self, x: Tensor) -> Tensor:
        return super().shape(x) * self.unused.sum()


class Widened(Parabola):
    """A parameter and a buffer in both of them."""

    def __init__(self) -> None:
        super().__init__(0.7)
        self.width = nn.Parameter(torch.linspace(0.8, 1.5, HIDDEN))
        self.register_buffer("peak", torch.tensor(1.3))

    def shape(self, x: Tensor) -> Tensor:
        return self.peak * super().shape(x / self.width)

    def shape_integral(self, x: Tensor) -> Tensor:
        return self.peak * self.width * super().shape_integral(x / self.width)


class Flat(surrogate.Surrogate):
    """Without a derivative."""

    def shape(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    def shape_integral(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


class AcrossNeurons(surrogate.Surrogate):
    """Not element by element."""

    def shape(self, x: Tensor) -> Tensor:
        return torch.ones_like(x) / x.shape[-1]

    def shape_integral(self, x: Tensor) -> Tensor:
        return torch.tanh(x) * x.mean(-1, keepdim=True)


class Rolled(surrogate.Surrogate):
    """What a neuron's spike depends on is another neuron's voltage; the slopes of all are alike."""

    def shape(self, x: Tensor) -> Tensor:
        return torch.ones_like(x)

    def shape_integral(self, x: Tensor) -> Tensor:
        return x.roll(1, -1)


class OnlyFrames(Parabola):
    """For (B, n) alone."""

    def shape_integral(self, x: Tensor) -> Tensor:
        _, _ = x.shape
        return super().shape_integral(x)


class Overflowing(Parabola):
    """Infinite beyond one."""

    def shape_integral(self, x: Tensor) -> Tensor:
        return torch.where(x > 1, torch.inf, x)


@pytest.mark.parametrize("spike", [Parabola, Unused, OnlyInShape, Widened, Flat, AcrossNeurons, Rolled, OnlyFrames])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_users_surrogate_takes_the_loop_with_the_gradients_of_plain_steps(spike, recompute):
    cell = firing(ALIFPlus, spike=spike())
    assert_as_plain_steps(cell, spikes(), loop=True, recompute=recompute)
    assert_as_plain_steps(firing(LIF, spike=spike(), reset_gradient=True), spikes(), loop=True)


def test_parameters_that_nothing_depends_on_have_no_gradient():
    cell = firing(ALIFPlus, spike=Unused(learnable=True))
    z, after = cell.run(spikes(), cell.initial_state(BATCH))
    loss_of(z, after).backward()
    assert cell.spike.unused.grad is None
    assert cell.spike.log_dampening.grad.any()
    ours = firing(ALIFPlus, spike=surrogate.Arctan(learnable=True))
    ours.spike.register_parameter("unused", nn.Parameter(torch.ones(3)))
    assert_as_plain_steps(ours, spikes(), loop=True)


def test_a_surrogate_that_is_not_finite_is_seen_in_the_spikes():
    assert_as_plain_steps(firing(LIF, spike=Overflowing()), spikes(), loop=True)


def outside() -> tuple[surrogate.Surrogate, Tensor]:
    """A surrogate with a gradient by what it does not hold."""
    width = torch.tensor(1.2, requires_grad=True)

    class Outside(Parabola):
        def shape_integral(self, x: Tensor) -> Tensor:
            return super().shape_integral(x) * width

    return Outside(), width


def test_a_gradient_by_what_the_surrogate_does_not_hold():
    spike, width = outside()
    assert_as_plain_steps(firing(LIF, spike=spike), spikes(), loop=False, by=(width,))


def test_a_gradient_by_a_tensor_that_is_an_attribute():
    spike, power = surrogate.FastSigmoid(), torch.tensor(0.3, requires_grad=True)
    spike.fixed_dampening = power.exp()
    assert_as_plain_steps(firing(LIF, spike=spike), spikes(), loop=True, by=(power,))


class Forward(surrogate.FastSigmoid):
    def forward(self, v: Tensor) -> Tensor:
        return super().forward(v) / 2


class Derivative(surrogate.FastSigmoid):
    def derivative(self, v: Tensor) -> Tensor:
        return super().derivative(v) * 3


class Primitive(surrogate.FastSigmoid):
    def primitive(self, v: Tensor) -> Tensor:
        return super().primitive(v) * 3


class Mixin:
    def primitive(self, v: Tensor) -> Tensor:
        return super().primitive(v) * 3  # type: ignore[misc]


class Mixed(Mixin, surrogate.FastSigmoid):
    pass


class Called(surrogate.FastSigmoid):
    def __call__(self, v: Tensor) -> Tensor:
        return super().__call__(v) / 2


class WithModule(Parabola):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(1, 1)


class WithList(Parabola):
    def __init__(self) -> None:
        super().__init__()
        self.list = [1.0]


class WithTuple(Parabola):
    def __init__(self) -> None:
        super().__init__()
        self.tuple = (torch.ones(1), 1.0)


@pytest.mark.parametrize("spike", [Forward, Derivative, Primitive, Mixed, Called, WithModule, WithList, WithTuple])
def test_surrogates_that_do_otherwise_take_plain_steps(spike):
    assert_as_plain_steps(firing(ALIFPlus, spike=spike()), spikes(), loop=False)


@pytest.mark.parametrize("name", ["forward", "primitive", "shape_integral", "shape"])
def test_methods_of_one_surrogate_are_seen(name):
    cell = firing(ALIFPlus)
    real = getattr(cell.spike, name)
    setattr(cell.spike, name, lambda v: real(v) / 2)
    assert_as_plain_steps(cell, spikes(), loop=False)


def test_methods_of_one_cell_are_seen():
    for name in ("update", "output", "distance", "constants"):
        cell = firing(ALIFPlus)
        real = getattr(cell, name)
        changed = {
            "update": lambda x, z, state, real=real: real(x / 2, z, state),
            "output": lambda state, real=real: real(state) / 2,
            "distance": lambda state, real=real: real(state) / 2,
            "constants": lambda real=real: (c := real())._replace(w_in=c.w_in / 2),
        }
        setattr(cell, name, changed[name])
        assert_as_plain_steps(cell, spikes(), loop=False)


def test_other_resets_are_seen():
    class Half(Reset):
        def carry(self, leaked: Tensor, z: Tensor, theta: Tensor) -> Tensor:
            return super().carry(leaked, z, theta / 2)

    class Leaking:
        gradient = False

        def carry(self, leaked: Tensor, z: Tensor, theta: Tensor) -> Tensor:
            return leaked * 0.9

    patched = Reset()
    object.__setattr__(patched, "carry", lambda leaked, z, theta: leaked - theta * z / 3)
    for reset, loop in (
        (Half(), False),
        (Leaking(), False),
        (patched, False),
        (ZeroReset(True), True),
        (StaticReset(), True),
    ):
        cell = firing(ALIFPlus)
        cell.reset = reset
        assert_as_plain_steps(cell, spikes(), loop=loop)


def hook_pre(spike):
    return spike.register_forward_pre_hook(lambda module, args: (args[0] / 2,))


def hook_after(spike):
    return spike.register_forward_hook(lambda module, args, z: z / 2)


def hook_kwargs(spike):
    return spike.register_forward_hook(lambda module, args, kwargs, z: z / 2, with_kwargs=True)


def hook_always(spike):
    return spike.register_forward_hook(lambda module, args, z: z / 2, always_call=True)


def hook_backward(spike):
    return spike.register_full_backward_hook(lambda module, g_in, g_out: (g_in[0] * 2,))


def hook_backward_pre(spike):
    return spike.register_full_backward_pre_hook(lambda module, g_out: (g_out[0] * 2,))


def global_after(spike):
    return modules.register_module_forward_hook(lambda m, a, z: z / 2 if isinstance(m, surrogate.Surrogate) else z)


def global_pre(spike):
    return modules.register_module_forward_pre_hook(
        lambda m, a: (a[0] / 2,) if isinstance(m, surrogate.Surrogate) else a
    )


def global_backward(spike):
    return modules.register_module_full_backward_hook(lambda m, g_in, g_out: (g_in[0] * 2,))


def global_backward_pre(spike):
    return modules.register_module_full_backward_pre_hook(lambda m, g_out: (g_out[0] * 2,))


@pytest.mark.parametrize(
    "register",
    [
        *(hook_pre, hook_after, hook_kwargs, hook_always, hook_backward, hook_backward_pre),
        *(global_after, global_pre, global_backward, global_backward_pre),
    ],
)
def test_hooks_on_the_surrogate_are_seen(register):
    cell = firing(ALIFPlus)
    handle = register(cell.spike)
    try:
        assert_as_plain_steps(cell, spikes(), loop=False)
    finally:
        handle.remove()
    assert_as_plain_steps(cell, spikes(), loop=True)


def test_hooks_that_come_after_the_forward_pass_change_nothing():
    cell, x = firing(ALIFPlus), spikes()
    (z, state), (plain_z, plain_state) = both(lambda way: way(cell, x, cell.initial_state(BATCH)))
    handle = hook_after(cell.spike)
    by = list(cell.parameters())
    one = gradients(loss_of(z, state), by, create_graph=True)
    other = gradients(loss_of(plain_z, plain_state), by, create_graph=True)
    handle.remove()
    assert_same(one, other)


def test_a_parametrized_surrogate():
    class Halved(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / 2

    cell = firing(ALIFPlus, spike=surrogate.Logistic(learnable=True))
    parametrize.register_parametrization(cell.spike, "log_sharpness", Halved())
    assert_as_plain_steps(cell, spikes(), loop=False)


# changes between the passes


def changed_between(change: Any, spike: Any = None, **settings: Any) -> None:
    """Plain steps and the loop, each with a change between its passes: torch raises, or the
    gradients are equal."""
    found = []
    for way in (plainly, own):
        cell = firing(ALIFPlus, spike=None if spike is None else spike(), **settings)
        x = spikes()
        z, state = way(cell, x, cell.initial_state(BATCH))
        change(cell, x)
        by = list(cell.parameters())
        try:
            found.append(gradients(loss_of(z, state), by))
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
            found.append(None)
    plain, loop = found
    if loop is not None:
        assert plain is not None
        assert_same(loop, plain)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", ["w_in", "w_rec", "b_v", "log_tau_v", "log_tau_theta", "adaptation", "b_theta"])
def test_constants_changed_in_place_between_the_passes(name, recompute):
    def change(cell: Any, x: Tensor) -> None:
        with torch.no_grad():
            getattr(cell, name).mul_(3)

    changed_between(change)


def per_neuron(**settings: Any) -> surrogate.Surrogate:
    return surrogate.FastSigmoid(torch.linspace(0.2, 0.8, HIDDEN), torch.linspace(0.7, 1.5, HIDDEN), **settings)


@pytest.mark.parametrize(
    ("spike", "name"),
    [
        (per_neuron, "fixed_dampening"),
        (per_neuron, "fixed_sharpness"),
        (lambda: per_neuron(learnable=True), "log_dampening"),
        (lambda: per_neuron(learnable=True), "log_sharpness"),
        (Widened, "width"),
        (Widened, "peak"),
    ],
)
def test_what_a_surrogate_holds_changed_in_place_between_the_passes(spike, name):
    def change(cell: Any, x: Tensor) -> None:
        with torch.no_grad():
            getattr(cell.spike, name).mul_(3)

    changed_between(change, spike)


@pytest.mark.parametrize("spike", [surrogate.FastSigmoid, per_neuron, lambda: per_neuron(learnable=True), Widened])
def test_what_a_surrogate_holds_replaced_between_the_passes(spike):
    def change(cell: Any, x: Tensor) -> None:
        for name in ("fixed_dampening", "fixed_sharpness", "log_dampening", "peak"):
            if hasattr(cell.spike, name):
                value = getattr(cell.spike, name)
                setattr(cell.spike, name, nn.Parameter(value * 3) if isinstance(value, nn.Parameter) else value * 3)

    # the parameters asked for are those of the forward pass
    found = []
    for way in (plainly, own):
        cell = firing(ALIFPlus, spike=spike())
        by = list(cell.parameters())
        z, state = way(cell, spikes(), cell.initial_state(BATCH))
        change(cell, z)
        found.append(gradients(loss_of(z, state), by))
    assert_same(*found)


def test_another_spike_or_reset_between_the_passes():
    def change(cell: Any, x: Tensor) -> None:
        cell.spike, cell.reset = surrogate.Rectangular(0.1), ZeroReset()
        cell.b_v = torch.ones(HIDDEN)

    changed_between(change)


def test_input_changed_in_place_between_the_passes(by_events):
    changed_between(lambda cell, x: x.mul_(2))


def test_spikes_of_a_layer_changed_beneath_autograd_are_read_as_they_are(by_events):
    cells = [firing(ALIFPlus, 12, 8), firing(ALIFPlus, 8, 6)]
    z, _ = cells[0].run(spikes(), cells[0].initial_state(BATCH))
    assert z.sum() > 9
    z.detach().numpy()[:, :, ::2] = 0
    assert_as_plain_steps(cells[1], z, loop=True)
    z.detach().numpy()[:, :, 1] *= 2
    assert_as_plain_steps(cells[1], z, loop=True)


# kinds of input


DTYPES = [
    *(torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn),
    *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.bool),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("layer", [torch.float32, torch.float64], ids=str)
def test_inputs_of_any_dtype(dtype, layer, by_events):
    cell, x = firing(ALIFPlus).to(layer), spikes().to(dtype)
    rtol = 1e-10 if layer == torch.float64 else 2e-5
    assert_as_plain_steps(cell, x, loop=True, rtol=rtol)
    first = x[0]
    assert_as_plain_steps(cell, x, loop=True, rtol=rtol, first=first)
    if dtype.is_floating_point and dtype.itemsize > 1:
        x = (x * 0.7).requires_grad_()
        first = x.detach()[1].clone().requires_grad_()
        rtol = rtol if dtype.itemsize > 2 else 1e-2
        assert_as_plain_steps(cell, x, loop=True, rtol=rtol, by=(x, first), first=first)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.uint8, torch.int64], ids=str)
def test_sparse_inputs_of_any_dtype_with_entries_given_twice(dtype, by_events):
    dense = spikes().to(dtype).to_sparse()
    twice = torch.sparse_coo_tensor(
        torch.cat([dense.indices(), dense.indices()[:, :9]], 1),
        torch.cat([dense.values(), dense.values()[:9]]),
        dense.shape,
        check_invariants=True,
    )
    assert not twice.is_coalesced()
    assert_as_plain_steps(firing(ALIFPlus), twice, loop=True)


def test_sparse_inputs_with_dense_frames(by_events):
    x = spikes()
    x[2:4] = 0
    hybrid = x.to_sparse(2)
    assert hybrid.dense_dim() == 1
    assert_as_plain_steps(firing(ALIFPlus), hybrid, loop=False)


def test_a_layer_in_half_precision_takes_plain_steps():
    cell = firing(ALIFPlus).to(torch.bfloat16)
    assert_as_plain_steps(cell, spikes().to(torch.bfloat16), loop=False)


def test_inputs_of_any_layout_in_memory(by_events):
    x, cell = spikes(), firing(ALIFPlus)
    for same in (
        x[:, :1].expand(-1, BATCH, -1),
        x.transpose(0, 1).contiguous().transpose(0, 1),
        spikes(2 * STEPS, 2 * BATCH)[::2, ::2],
        torch.view_as_complex(torch.stack([torch.zeros_like(x), -x], -1)).conj().imag,
    ):
        assert_as_plain_steps(cell, same, loop=True)


@every_kind
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("recompute", [False, True])
def test_the_smallest_runs(kind, steps, batch, recompute, by_events):
    cell = firing(kind, reset_gradient=True)
    x, first = spikes(steps, batch) + 0.2, spikes(1, batch)[0]
    assert_as_plain_steps(cell, x, loop=True, recompute=recompute)
    assert_as_plain_steps(cell, x, loop=True, recompute=recompute, first=first)


def test_runs_without_steps_or_samples_are_those_of_plain_steps():
    cell = firing(LIF)
    with pytest.raises(RuntimeError, match="non-empty"):
        cell.run(spikes()[:0], cell.initial_state(BATCH))
    z, state = cell.run(spikes(batch=BATCH)[:, :0], cell.initial_state(0))
    assert z.shape == (STEPS, 0, HIDDEN)
    assert state.v.shape == (0, HIDDEN)


def test_wrong_shapes_are_told_as_by_plain_steps():
    cell = firing(LIF)
    for x in (spikes()[..., :5], spikes(batch=2)):
        messages = []
        for way in (own, plainly):
            with pytest.raises((RuntimeError, ValueError, IndexError)) as caught:
                way(cell, x, cell.initial_state(BATCH))
            messages.append(str(caught.value))
        assert messages[0] == messages[1]


@every_kind
def test_states_that_are_shared_by_all_samples(kind):
    cell = firing(kind)
    one = cell.initial_state(1)
    assert_as_plain_steps(cell, spikes(), one, loop=False)
    shared = type(one)(*(leaf.expand(BATCH, -1) for leaf in one))
    assert_as_plain_steps(cell, spikes(), shared, loop=True)


def test_thresholds_of_another_shape():
    cell = firing(LIF)
    cell.theta = torch.tensor(1.0)
    assert_as_plain_steps(cell, spikes(), loop=False)


@pytest.mark.parametrize("lengths", [[7, 4, 0], [9, 7, 8], [0, 0, 0]])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_lengths_of_any_integer_dtype_and_beyond_the_end(lengths, dtype):
    cell, x, lengths = firing(ALIFPlus), spikes(), torch.tensor(lengths, dtype=dtype)
    (z, state), (plain_z, plain_state) = both(lambda way: way(cell, x, cell.initial_state(BATCH), lengths=lengths))
    assert_same([*state], [*plain_state])
    alive = torch.arange(STEPS).unsqueeze(1) < lengths
    assert torch.equal(z[alive], plain_z[alive])
    ends = [sum(leaf.square().sum() for leaf in after) for after in (state, plain_state)]
    assert_same(*(gradients(end, list(cell.parameters())) for end in ends))
    twice = []
    for end in ends:
        first = gradients(end, list(cell.parameters()), create_graph=True)
        again = sum(g.square().sum() for g in first if g is not None and g.requires_grad)
        twice.append(gradients(again, list(cell.parameters())))
    assert_same(*twice)


# numbers that are not finite, or hardly numbers


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", ["v", "theta"])
@pytest.mark.parametrize("reset", ["subtract", "static", "zero"])
def test_states_that_are_not_finite(value, where, reset):
    cell = firing(ALIFPlus, reset=reset)
    state = cell.initial_state(BATCH)
    state = type(state)(*(leaf.detach().clone() for leaf in state))
    getattr(state, where)[0, 1] = value
    assert_as_plain_steps(cell, spikes(), state, loop=True)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["w_in", "w_rec", "b_v", "adaptation"])
def test_weights_that_are_not_finite_where_nothing_fires(name, value, by_events):
    cell, x = firing(ALIFPlus), spikes()
    x[..., 2] = 0
    with torch.no_grad():
        cell.b_v[3] = -1e6  # never fires
        getattr(cell, name)[..., 2 if name == "w_in" else 3] = value
    assert_as_plain_steps(cell, x, loop=True)


def test_a_threshold_that_nothing_reaches():
    cell = firing(LIF)
    cell.theta[2] = torch.inf
    assert_as_plain_steps(cell, spikes(), loop=True)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_gradients_that_are_not_finite(value, by_events):
    cell, x, found = firing(ALIFPlus), spikes(), []
    x[..., 2] = 0
    for way in (own, plainly):
        z, _ = way(cell, x, cell.initial_state(BATCH))
        given = torch.ones_like(z)
        given[3, 1, 2] = value
        found.append(torch.autograd.grad(z, list(cell.parameters()), given))
    assert_same(*found)
    assert found[1][0].isnan().any()


@pytest.mark.parametrize("flush", [False, True])
def test_denormal_numbers(flush, by_events):
    cell, x = firing(ALIFPlus).float(), spikes().float()
    x[x == 0] = 1e-40
    torch.set_flush_denormal(flush)
    try:
        assert_as_plain_steps(cell, x, loop=True, rtol=2e-5)
    finally:
        torch.set_flush_denormal(False)


# ways of differentiating


def test_several_gradients_at_once():
    cell, x = firing(ALIFPlus, spike=surrogate.Logistic(learnable=True)), spikes().requires_grad_()

    def batched(way: Any) -> Any:
        z, state = way(cell, x, cell.initial_state(BATCH))
        given = torch.eye(z.numel()).view(-1, *z.shape)[::20], torch.ones(9, *state.v.shape)
        by = [*cell.parameters(), x]
        return torch.autograd.grad([z, state.v], by, given, is_grads_batched=True)

    found, plain = both(batched)
    assert plain[0].any()
    assert_same(found, plain)


def test_a_map_over_gradients():
    cell, x = firing(ALIFPlus), spikes()

    def mapped(way: Any) -> Any:
        z, _ = way(cell, x, cell.initial_state(BATCH))
        given = torch.eye(z.numel()).view(-1, *z.shape)[::20]
        return torch.vmap(lambda g: torch.autograd.grad(z, list(cell.parameters()), g, retain_graph=True))(given)

    assert_same(*both(mapped))


def test_jacobians_and_products_with_the_hessian():
    cell, x = firing(ALIFPlus, 12, 4), spikes()

    def output(way: Any, w: Tensor) -> Tensor:
        call = Caller(cell, way)
        return functional_call(call, {"cell.w_rec": w}, (x,)).square().mean((0, 1))

    w = cell.w_rec.detach()
    for take in (
        lambda f: [functional.jacobian(f, w)],
        lambda f: [functional.jacobian(f, w, vectorize=True)],
        lambda f: functional.jvp(f, w, torch.ones_like(w)),
        lambda f: functional.hvp(lambda w: f(w).sum(), w, torch.ones_like(w)),
        lambda f: functional.vhp(lambda w: f(w).sum(), w, torch.ones_like(w)),
    ):
        assert_same(*both(lambda way, take=take: take(lambda w: output(way, w))))


class Caller(nn.Module):
    """A run as a module, so that functional_call can replace the cell's parameters."""

    def __init__(self, cell: Any, way: Any) -> None:
        super().__init__()
        self.cell, self.way = cell, way

    def parts(self, x: Tensor, recompute: bool = False) -> tuple[Tensor, Tensor]:
        z, state = self.way(self.cell, x, self.cell.initial_state(x.shape[1]), recompute=recompute)
        return z, state.v

    def forward(self, x: Tensor, recompute: bool = False) -> Tensor:
        z, v = self.parts(x, recompute)
        return z + v


@pytest.mark.slow  # the first transformed function of a process takes torch ten seconds
@pytest.mark.parametrize("recompute", [False, True])
def test_transforms_of_torch_func(recompute):
    cell, x = firing(ALIFPlus, 12, 4), spikes()
    parameters = {f"cell.{name}": p.detach() for name, p in cell.named_parameters()}
    many = {name: torch.stack([p, p * 1.1, p * 0.9]) for name, p in parameters.items()}

    def results(way: Any) -> Any:
        call = Caller(cell, way)

        def run(parameters: dict[str, Tensor]) -> Tensor:
            again = recompute and way is own  # plain steps know no recomputation there
            return functional_call(call, parameters, (x, again)).square().mean((0, 1))

        mapped = torch.vmap(run, randomness="error")(many)
        jacobian = torch.func.jacrev(run)(parameters)
        forward = torch.func.jvp(run, (parameters,), (parameters,))
        gradient = torch.func.grad(lambda p: run(p).sum())
        hessian = torch.func.jvp(gradient, (parameters,), (parameters,))[1]
        per_sample = torch.vmap(gradient)(many)
        return [mapped, *jacobian.values(), *forward, *hessian.values(), *per_sample.values()]

    found, plain = both(results)
    assert_same(found, plain)
    z, _ = cell.run(x, cell.initial_state(BATCH))
    assert z.any()


def test_dual_numbers_of_forward_mode():
    cell, x, found = firing(LIF), spikes(), []
    for way in (own, plainly):
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
            _, state = way(cell, dual, cell.initial_state(BATCH))
            found.append(torch.autograd.forward_ad.unpack_dual(state.v))
    assert_same(*found)


def test_a_graph_may_be_gone_through_again_and_in_parts():
    cell, x = firing(ALIFPlus, reset_gradient=True), spikes()

    def several(way: Any) -> Any:
        z, state = way(cell, x, cell.initial_state(BATCH))
        by = list(cell.parameters())
        whole = gradients(loss_of(z, state), by)
        again = gradients(loss_of(z, state), by)
        return [*whole, *again, *gradients(state.theta.sum(), by), *gradients(z[2].sum(), by)]

    assert_same(*both(several))


def test_recomputation_and_saving_elsewhere():
    cell, x = firing(ALIFPlus), spikes().requires_grad_()

    def stored(way: Any) -> Any:
        found = []
        for recompute in (False, True):
            with save_on_cpu():
                z, state = way(cell, x, cell.initial_state(BATCH), recompute=recompute)
            found += gradients(loss_of(z, state), [*cell.parameters(), x])
            for reentrant in (False, True):
                z, v = checkpoint(Caller(cell, way).parts, x, recompute, use_reentrant=reentrant)
                cell.zero_grad()
                x.grad = None
                loss_of(z, (v,)).backward()
                found += [p.grad for p in (*cell.parameters(), x)]
        return found

    assert_same(*both(stored))


def test_only_what_is_asked_for_is_differentiated():
    cell = firing(ALIFPlus).requires_grad_(False)
    x = spikes().requires_grad_()
    assert_as_plain_steps(cell, x, loop=True, by=(x,))
    state = type(cell.initial_state(BATCH))(*(leaf.detach().requires_grad_() for leaf in cell.initial_state(BATCH)))
    assert_as_plain_steps(cell, spikes(), state, loop=True, by=tuple(state))
    for name in ("w_in", "log_tau_v", "adaptation"):
        cell.get_parameter(name).requires_grad_()
        assert_as_plain_steps(cell, spikes(), loop=True)
        cell.requires_grad_(False)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("reset_gradient", [True, False])
@pytest.mark.parametrize("reset", ["subtract", "zero"])
def test_buffers_with_a_gradient(reset, reset_gradient, compiled, monkeypatch):
    monkeypatch.setattr(on_cpu, "suits", lambda _: compiled)
    cell = firing(LIF, spike=per_neuron(), reset=reset, reset_gradient=reset_gradient)
    buffers = (cell.b_v, cell.theta, cell.spike.fixed_dampening, cell.spike.fixed_sharpness)
    for buffer in buffers:
        buffer.requires_grad_()
    assert_as_plain_steps(cell, spikes(), loop=True, by=buffers)


# modes


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode):
    cell, x = firing(ALIFPlus), spikes()
    with mode(), counted() as calls:
        (z, state), (plain_z, plain_state) = both(lambda way: way(cell, x, cell.initial_state(BATCH)))
    assert calls == [1]
    assert z.any()
    assert torch.equal(z, plain_z)
    assert_same(state, plain_state)
    assert not z.requires_grad


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_what_inference_mode_has_made(dtype):
    cell = firing(ALIFPlus)
    with torch.inference_mode():
        x = spikes().to(dtype)
    assert_as_plain_steps(cell, x, loop=False)


def test_modes_that_see_every_operation():
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Slower(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            return result / 2 if func is torch.exp else result

    class Counting(TorchDispatchMode):
        products = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.products += "mm" in str(func)
            return func(*args, **(kwargs or {}))

    cell = firing(ALIFPlus)
    with Slower():
        assert_as_plain_steps(cell, spikes(), loop=False)
    with Counting() as counting:
        cell.run(spikes(), cell.initial_state(BATCH))
    assert counting.products == 2 * STEPS


def test_tensors_of_a_class_of_their_own():
    class Doubled(Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return super().__torch_function__(func, types, args, kwargs or {})

    assert_as_plain_steps(firing(ALIFPlus), spikes().as_subclass(Doubled), loop=False)


def test_a_default_device_is_no_hindrance(by_events):
    cell, x = firing(ALIFPlus), spikes()
    z, _ = cell.run(x, cell.initial_state(BATCH))
    with torch.device("meta"), counted() as calls:
        for form in (x, x.to_sparse()):
            state = type(cell.initial_state(BATCH))(*(leaf.detach() for leaf in cell.initial_state(BATCH)))
            assert torch.equal(cell.run(form, state)[0], z)
    assert calls == [1, 1]


def test_a_default_dtype_of_another_kind():
    cell, x = firing(ALIFPlus), spikes()
    torch.set_default_dtype(torch.float32)
    assert_as_plain_steps(cell, x, loop=True)
    torch.set_default_dtype(torch.float64)
    cell.float()
    assert_as_plain_steps(cell, x.float(), loop=True, rtol=2e-5)


def test_copies_and_pickles():
    cell = firing(ALIFPlus, spike=surrogate.Arctan(learnable=True))
    for other in (copy.deepcopy(cell), pickle.loads(pickle.dumps(cell))):
        assert_as_plain_steps(other, spikes(), loop=True)


def test_threads_do_not_meet():
    cell, x, found = firing(ALIFPlus, spike=surrogate.Arctan(learnable=True)), spikes(), []
    z, state = cell.run(x, cell.initial_state(BATCH))
    wanted = gradients(loss_of(z, state), list(cell.parameters()))

    def work() -> None:
        for _ in range(10):
            z, state = cell.run(x, cell.initial_state(BATCH))
            found.append(gradients(loss_of(z, state), list(cell.parameters())))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 40
    for each in found:
        assert_same(each, wanted)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_network_compiles_in_one_piece():
    network, x = Network([firing(ALIFPlus, 12, 8), firing(LIF, 8, 6)], 3), spikes()
    compiled = torch.compile(lambda x: network.cells[0].run(x, network.cells[0].initial_state(BATCH)), fullgraph=True)
    z, state = compiled(x)
    plain_z, plain_state = plainly(network.cells[0], x, network.cells[0].initial_state(BATCH))
    assert torch.equal(z, plain_z)
    by = list(network.cells[0].parameters())
    assert_same(gradients(loss_of(z, state), by), gradients(loss_of(plain_z, plain_state), by), 1e-9)


def test_arrays_of_numpy_are_not_changed(by_events):
    cell, array = firing(ALIFPlus), spikes().numpy()
    kept = array.copy()
    cell.run(torch.from_numpy(array), cell.initial_state(BATCH))
    assert np.array_equal(array, kept)
