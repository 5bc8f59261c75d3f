"""LIF and ALIF over all steps at once equal plain steps in every corner, or are run by plain
steps."""

import copy
import pickle
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import functional
from torch.autograd.graph import save_on_cpu
from torch.func import functional_call
from torch.nn.modules import module as modules
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from neurolsc import LIF, ALIFPlus, ALIFPlusMinus, Cell, Network, surrogate
from neurolsc.neurons.fast import cpu_kernels, inputs, sequence
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
SURROGATES = [getattr(surrogate, name) for name in surrogate.__all__ if name != "Surrogate"]
ROUTES = {  # largest share of non-zero entries, rows of a block, by Numba
    "sparse, few steps": (1.0, 3, True),
    "dense, many": (0.0, 1024, True),
    "now this, now that": (0.15, 12, True),
    "other devices": (0.0, 12, False),
}


@pytest.fixture(params=list(ROUTES))
def route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All ways of making products, by a CPU's kernels and without."""
    density, rows, by_kernels = ROUTES[request.param]
    monkeypatch.setattr(cpu_kernels, "DENSITY", density)
    monkeypatch.setattr(sequence, "ROWS", rows)
    if not by_kernels:
        monkeypatch.setattr(sequence, "cpu_kernels", lambda _: None)


@pytest.fixture
def sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    """All products of inputs are sums of rows."""
    monkeypatch.setattr(cpu_kernels, "DENSITY", 1.0)


def moving(cell: Cell) -> Any:
    """A state in the middle of a run, to be differentiated by."""
    with torch.no_grad():
        _, state = plainly(cell, spikes(4), cell.initial_state(BATCH))
    return type(state)(*(leaf.requires_grad_() for leaf in state))


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("reset_gradient", [False, True])
@pytest.mark.parametrize("reset", ["subtract", "static", "zero"])
@pytest.mark.parametrize("kind", [LIF, ALIFPlus, ALIFPlusMinus])
def test_a_run_is_its_plain_steps(kind, reset, reset_gradient, recompute, route):
    cell = firing(kind, reset=reset, reset_gradient=reset_gradient)
    state, first, x = moving(cell), spikes(1)[0].requires_grad_(), (1.3 * spikes()).requires_grad_()
    how = {"recompute": recompute, "lengths": torch.tensor([7, 3, 0])}
    assert_as_plain_steps(cell, x, state, by=(x, *state), recompute=recompute)
    with counted() as calls:
        outcomes = [way(cell, x, state, first=first, **how) for way in (own, plainly)]
    assert calls
    alive = torch.arange(STEPS).unsqueeze(1) < how["lengths"]
    assert torch.equal(outcomes[0][0][alive], outcomes[1][0][alive])
    by = [*cell.parameters(), x, first, *state]
    found = [gradients(loss_of(z[alive], [(leaf + 1) ** 3 for leaf in after]), by) for z, after in outcomes]
    assert_same([*outcomes[0][1], *found[0]], [*outcomes[1][1], *found[1]])


@pytest.mark.parametrize("layer_delay", [0, 1])
def test_a_network_with_a_mask_is_its_plain_steps(layer_delay, route):
    network = Network([firing(ALIFPlus, 12, 8), firing(LIF, 8, 6)], 3, layer_delay=layer_delay)
    mask, found = torch.arange(STEPS).unsqueeze(1) < torch.tensor([7, 4, 1]), []
    for plain in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            for kind in (LIF, ALIFPlus) if plain else ():
                patch.setattr(kind, "run_at_once", Cell.run_at_once)
            done = network.run(spikes(), mask=mask)
            loss = done.logits.square().sum() + sum(leaf.sum() for layer in done.states.layers for leaf in layer)
            found.append([*done.spikes, done.logits, *torch.autograd.grad(loss, list(network.parameters()))])
    assert torch.equal(found[0][1], found[1][1])
    assert found[0][1].any()
    assert_same(*found)


@pytest.mark.parametrize("learnable", [False, True])
@pytest.mark.parametrize("spike", SURROGATES)
def test_every_surrogate(spike, learnable):
    per_neuron = torch.linspace(0.2, 0.8, HIDDEN), torch.linspace(0.7, 1.5, HIDDEN)
    assert_as_plain_steps(firing(ALIFPlus, spike=spike(*per_neuron, learnable=learnable)), spikes())


@pytest.mark.parametrize("reset", ["subtract", "zero"])
@pytest.mark.parametrize("kind", [LIF, ALIFPlus])
def test_second_derivatives(kind, reset):
    cell = firing(kind, reset=reset, reset_gradient=True, spike=surrogate.Logistic(learnable=True))
    x, by = spikes().requires_grad_(), list(cell.parameters())

    def twice(way: Any) -> Any:
        z, state = way(cell, x, cell.initial_state(BATCH), lengths=torch.tensor([7, 2, 0]))
        once = gradients(loss_of(z[:1, :2], state), [*by, x], create_graph=True)
        return gradients(sum(g.square().sum() for g in once if g is not None and g.requires_grad), by)

    found, plain = both(twice)
    assert any(g is not None and g.any() for g in plain)
    assert_same(found, plain)


@pytest.mark.parametrize("recompute", [False, True])
def test_two_parts_have_the_gradients_of_the_whole(recompute, route):
    cell, x = firing(ALIFPlus), spikes(11)
    whole, end = cell.run(x, cell.initial_state(BATCH), recompute=recompute)
    first, middle = cell.run(x[:4], cell.initial_state(BATCH), recompute=recompute)
    second, last = cell.run(x[4:], middle, recompute=recompute)
    assert torch.equal(torch.cat([first, second]), whole)
    by = list(cell.parameters())
    assert_same(gradients(loss_of(torch.cat([first, second]), last), by), gradients(loss_of(whole, end), by))


def test_steps_that_are_run_again_are_as_they_were():
    n, bursts = 512, [7, 20, 29]  # more inputs than a dense product sums in one go: it rounds unlike a sum of rows
    x = torch.randn(36, 4, n, generator=torch.Generator().manual_seed(3))
    x[bursts] += 6.0
    cell, found = ALIFPlus(n, n, tau_v=5.0), []
    for recompute in (False, True):
        z, state = cell.run(x, cell.initial_state(4), recompute=recompute)
        loss = (z * torch.linspace(-1, 1, n)).sum() + state.v.square().sum()
        found.append((z, *torch.autograd.grad(loss, list(cell.parameters()))))
    assert all(torch.equal(saved, again) and saved.any() for saved, again in zip(*found, strict=True))


def test_only_what_is_wanted_is_differentiated(route):
    cell = firing(LIF, spike=per_neuron(), reset_gradient=True).requires_grad_(False)
    x, state = spikes().requires_grad_(), moving(cell)
    assert_as_plain_steps(cell, x, by=(x,))
    assert_as_plain_steps(cell, spikes(), state, by=tuple(state))
    buffers = (cell.b_v, cell.theta, cell.spike.fixed_dampening, cell.spike.fixed_sharpness)
    for buffer in buffers:
        buffer.requires_grad_()
    assert_as_plain_steps(cell, spikes(), by=buffers)
    cell = firing(ALIFPlus).requires_grad_(False)
    for name in ("w_in", "w_rec", "log_tau_v", "adaptation"):
        cell.get_parameter(name).requires_grad_()
        assert_as_plain_steps(cell, spikes())
        cell.requires_grad_(False)


# surrogates of a user's own


class Parabola(surrogate.Surrogate):
    def shape(self, x: Tensor) -> Tensor:
        return (1 - x * x).clamp(min=0)

    def shape_integral(self, x: Tensor) -> Tensor:
        inside = x.clamp(-1, 1)
        return inside - inside**3 / 3


class OnlyInShape(Parabola):
    """With a parameter that spikes do not depend on."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.unused = nn.Parameter(torch.ones(2))

    def shape(self, x: Tensor) -> Tensor:
        return super().shape(x) * self.unused.sum()


class Widened(Parabola):
    """A parameter, a buffer and a list in both of them."""

    def __init__(self) -> None:
        super().__init__(0.7)
        self.width, self.list = nn.Parameter(torch.linspace(0.8, 1.5, HIDDEN)), [1.0]
        self.register_buffer("peak", torch.tensor(1.3))

    def shape(self, x: Tensor) -> Tensor:
        return self.peak * super().shape(x / self.width)

    def shape_integral(self, x: Tensor) -> Tensor:
        return self.list[0] * self.peak * self.width * super().shape_integral(x / self.width)


class Flat(surrogate.Surrogate):
    def shape(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    shape_integral = shape


class AcrossNeurons(surrogate.Surrogate):
    def shape(self, x: Tensor) -> Tensor:
        return torch.ones_like(x)

    def shape_integral(self, x: Tensor) -> Tensor:
        return torch.tanh(x) * x.mean(-1, keepdim=True)


class Rolled(AcrossNeurons):
    """The slopes of all are alike."""

    def shape_integral(self, x: Tensor) -> Tensor:
        return x.roll(1, -1)


class OnlyFrames(Parabola):
    def shape_integral(self, x: Tensor) -> Tensor:
        _, _ = x.shape
        return super().shape_integral(x)


class Overflowing(Parabola):
    def shape_integral(self, x: Tensor) -> Tensor:
        return torch.where(x > 1, torch.inf, x)


class Derivative(surrogate.FastSigmoid):
    def derivative(self, v: Tensor) -> Tensor:
        return super().derivative(v) * 3


class Primitive(surrogate.FastSigmoid):
    def primitive(self, v: Tensor) -> Tensor:
        return super().primitive(v) * 3


class Forward(surrogate.FastSigmoid):
    def forward(self, v: Tensor) -> Tensor:
        return super().forward(v) / 2


class Called(surrogate.FastSigmoid):
    def __call__(self, v: Tensor) -> Tensor:
        return super().__call__(v) / 2


def per_neuron(**settings: Any) -> surrogate.Surrogate:
    return surrogate.FastSigmoid(torch.linspace(0.2, 0.8, HIDDEN), torch.linspace(0.7, 1.5, HIDDEN), **settings)


OWN = [Parabola, OnlyInShape, Widened, Flat, OnlyFrames, Overflowing, Derivative, Primitive]


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("spike", OWN)
def test_a_users_surrogate_has_the_gradients_of_plain_steps(spike, recompute):
    assert_as_plain_steps(firing(ALIFPlus, spike=spike()), spikes(), recompute=recompute)
    assert_as_plain_steps(firing(LIF, spike=spike(), reset_gradient=True), spikes())


@pytest.mark.parametrize("spike", [Forward, Called, AcrossNeurons, Rolled])
def test_surrogates_that_do_otherwise_take_plain_steps(spike):
    assert_as_plain_steps(firing(ALIFPlus, spike=spike()), spikes(), at_once=False)


def test_a_parameter_that_nothing_depends_on_has_no_gradient():
    cell = firing(ALIFPlus, spike=OnlyInShape(learnable=True))
    loss_of(*cell.run(spikes(), cell.initial_state(BATCH))).backward()
    assert cell.spike.unused.grad is None
    assert cell.spike.log_dampening.grad.any()


def test_gradients_by_tensors_inside_and_outside_of_a_surrogate():
    width = torch.tensor(1.2, requires_grad=True)

    class Outside(Parabola):
        def shape_integral(self, x: Tensor) -> Tensor:
            return super().shape_integral(x) * width

    assert_as_plain_steps(firing(LIF, spike=Outside()), spikes(), at_once=False, by=(width,))
    spike = surrogate.FastSigmoid()
    spike.fixed_dampening = width.exp()
    assert_as_plain_steps(firing(LIF, spike=spike), spikes(), by=(width,))


# a cell, a reset or a surrogate that does not do what its class says


@pytest.mark.parametrize("name", ["update", "output", "distance", "constants"])
def test_methods_of_one_cell_are_seen(name):
    cell = firing(ALIFPlus)
    real = getattr(cell, name)
    changed = {
        "update": lambda x, z, state: real(x / 2, z, state),
        "output": lambda state: real(state) / 2,
        "distance": lambda state: real(state) / 2,
        "constants": lambda: (c := real())._replace(w_in=c.w_in / 2),
    }
    setattr(cell, name, changed[name])
    assert_as_plain_steps(cell, spikes(), at_once=False)


@pytest.mark.parametrize("name", ["forward", "primitive", "shape_integral", "shape"])
def test_methods_of_one_surrogate_are_seen(name):
    cell = firing(ALIFPlus)
    real = getattr(cell.spike, name)
    setattr(cell.spike, name, lambda v: real(v) / 2)
    assert_as_plain_steps(cell, spikes(), at_once=False)


def test_a_parametrized_surrogate_takes_plain_steps():
    class Halved(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / 2

    cell = firing(ALIFPlus, spike=surrogate.Logistic(learnable=True))
    parametrize.register_parametrization(cell.spike, "log_sharpness", Halved())
    assert_as_plain_steps(cell, spikes(), at_once=False)


class Half(Reset):
    def carry(self, leaked: Tensor, z: Tensor, theta: Tensor) -> Tensor:
        return super().carry(leaked, z, theta / 2)


def patched() -> Reset:
    reset = Reset()
    object.__setattr__(reset, "carry", lambda leaked, z, theta: leaked - theta * z / 3)
    return reset


@pytest.mark.parametrize(("reset", "at_once"), [(Half, 0), (patched, 0), (ZeroReset, 1), (StaticReset, 1)])
def test_other_resets_are_seen(reset, at_once):
    cell = firing(ALIFPlus)
    cell.reset = reset()
    assert_as_plain_steps(cell, spikes(), at_once=bool(at_once))


HOOKS = {
    "pre": lambda spike: spike.register_forward_pre_hook(lambda module, args: (args[0] / 2,)),
    "after": lambda spike: spike.register_forward_hook(lambda module, args, z: z / 2),
    "back": lambda spike: spike.register_full_backward_hook(lambda module, g_in, g_out: (g_in[0] * 2,)),
    "back pre": lambda spike: spike.register_full_backward_pre_hook(lambda module, g_out: (g_out[0] * 2,)),
    "all": lambda _: modules.register_module_full_backward_hook(lambda module, g_in, g_out: (g_in[0] * 2,)),
}


@pytest.mark.parametrize("name", list(HOOKS))
def test_hooks_on_the_surrogate_are_seen(name):
    cell = firing(ALIFPlus)
    handle = HOOKS[name](cell.spike)
    try:
        assert_as_plain_steps(cell, spikes(), at_once=False)
    finally:
        handle.remove()
    assert_as_plain_steps(cell, spikes())


def test_hooks_that_come_after_the_forward_pass_change_nothing():
    cell, x = firing(ALIFPlus), spikes()
    (z, state), (plain_z, plain_state) = both(lambda way: way(cell, x, cell.initial_state(BATCH)))
    handle, by = HOOKS["after"](cell.spike), list(cell.parameters())
    one = gradients(loss_of(z, state), by, create_graph=True)
    other = gradients(loss_of(plain_z, plain_state), by, create_graph=True)
    handle.remove()
    assert_same(one, other)


PRIVATE = [
    (torch._C._functorch, "peek_interpreter_stack"),
    (torch._C._functorch, "is_legacy_batchedtensor"),
    (torch.autograd.forward_ad, "_current_level"),
    (torch._C, "_len_torch_dispatch_stack"),
    (torch.overrides, "_get_current_function_mode_stack"),
    (modules, "_has_any_global_hook"),
]


@pytest.mark.parametrize(("where", "name"), PRIVATE, ids=[name for _, name in PRIVATE])
def test_without_an_interface_of_torch_plain_steps_are_taken(where, name, monkeypatch):
    tensors, spike = [torch.ones(2), nn.Parameter(torch.ones(2)), None], surrogate.FastSigmoid()
    assert not inputs.followed(spike, tensors)
    assert inputs.followed(torch.sigmoid, tensors)
    with monkeypatch.context() as patch:
        patch.delattr(where, name)
        assert inputs.followed(spike, tensors)


# changes between the passes


def changed_between(change: Any, spike: Any = None, **settings: Any) -> None:
    """Plain steps and the fast ones, each with a change between its passes: torch raises, or the
    gradients are equal."""
    found = []
    for way in (plainly, own):
        cell, x = firing(ALIFPlus, spike=None if spike is None else spike()), spikes()
        by = list(cell.parameters())
        z, state = way(cell, x, cell.initial_state(BATCH), **settings)
        change(cell, x)
        try:
            found.append(gradients(loss_of(z, state), by))
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error)
            found.append(None)
    plain, fast = found
    if fast is not None:
        assert plain is not None
        assert_same(fast, plain)


@pytest.mark.parametrize("name", ["w_in", "w_rec", "b_v", "log_tau_v", "log_tau_theta", "adaptation", "b_theta"])
def test_constants_changed_in_place_between_the_passes(name):
    changed_between(lambda cell, x: getattr(cell, name).data.mul_(1) is getattr(cell, name).detach().mul_(3))


@pytest.mark.parametrize(
    ("spike", "name"),
    [
        (per_neuron, "fixed_dampening"),
        (lambda: per_neuron(learnable=True), "log_sharpness"),
        (Widened, "width"),
        (Widened, "peak"),
    ],
)
@pytest.mark.parametrize("in_place", [True, False])
def test_what_a_surrogate_holds_changed_between_the_passes(spike, name, in_place):
    def change(cell: Any, x: Tensor) -> None:
        value = getattr(cell.spike, name)
        if in_place:
            value.detach().mul_(3)
        else:
            setattr(cell.spike, name, nn.Parameter(value * 3) if isinstance(value, nn.Parameter) else value * 3)

    changed_between(change, spike)


def test_another_spike_reset_or_input_between_the_passes(sparse):
    def change(cell: Any, x: Tensor) -> None:
        cell.spike, cell.reset, cell.b_v = surrogate.Rectangular(0.1), ZeroReset(), torch.ones(HIDDEN)

    changed_between(change)
    changed_between(lambda cell, x: x.mul_(2))


@pytest.mark.parametrize("recompute", [False, True])
def test_spikes_can_be_changed_in_place_as_those_of_plain_steps(recompute):
    cell = firing(ALIFPlus)
    z, _ = cell.run(spikes(), cell.initial_state(BATCH), recompute=recompute)
    before = z.detach().clone()
    assert not z._is_view()
    assert torch.equal(z.mul_(2), 2 * before)


# kinds of input


DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.uint8, torch.int64, torch.bool]


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float8_e4m3fn, torch.uint16], ids=str)
@pytest.mark.parametrize("layer", [torch.float32, torch.float64], ids=str)
def test_inputs_of_any_dtype(dtype, layer, sparse):
    cell, x = firing(ALIFPlus).to(layer), spikes().to(dtype)
    rtol = 1e-10 if layer == torch.float64 else 2e-5
    assert_as_plain_steps(cell, x, rtol=rtol)
    if dtype.itemsize > 1 and dtype != torch.uint16:
        assert_as_plain_steps(cell, x.to_sparse(), rtol=rtol, first=x[0])
    if dtype.is_floating_point and dtype.itemsize > 1:
        x, first = (x * 0.7).requires_grad_(), (x * 0.7)[1].clone().requires_grad_()
        assert_as_plain_steps(cell, x, rtol=rtol if dtype.itemsize > 2 else 1e-2, by=(x, first), first=first)


def test_inputs_of_any_layout_in_memory(sparse):
    x, cell, dense = spikes(), firing(ALIFPlus), spikes().to_sparse()
    pieces = [dense.indices(), dense.indices()[:, :9]], [dense.values(), dense.values()[:9]]
    twice = torch.sparse_coo_tensor(torch.cat(pieces[0], 1), torch.cat(pieces[1]), x.shape, check_invariants=True)
    for same in (
        x[:, :1].expand(-1, BATCH, -1),
        x.transpose(0, 1).contiguous().transpose(0, 1),
        spikes(2 * STEPS, 2 * BATCH)[::2, ::2],
        torch.view_as_complex(torch.stack([torch.zeros_like(x), -x], -1)).conj().imag,
        x.to_sparse(2),
        twice,
    ):
        assert_as_plain_steps(cell, same)
    array = x.numpy().copy()
    cell.run(torch.from_numpy(array), cell.initial_state(BATCH))
    assert torch.equal(torch.from_numpy(array), x)


@pytest.mark.parametrize("kind", [LIF, ALIFPlus])
@pytest.mark.parametrize("recompute", [False, True])
def test_the_smallest_runs(kind, recompute, sparse):
    cell = firing(kind, reset_gradient=True)
    for steps, batch in ((1, 1), (1, 2), (2, 1)):
        x, first = spikes(steps, batch) + 0.2, spikes(1, batch)[0]
        assert_as_plain_steps(cell, x, recompute=recompute)
        assert_as_plain_steps(cell, x, recompute=recompute, first=first)


def test_what_plain_steps_take_or_refuse():
    cell = firing(LIF)
    assert_as_plain_steps(cell, spikes(), cell.initial_state(1), at_once=False)  # a state for all samples
    assert_as_plain_steps(firing(ALIFPlus).to(torch.bfloat16), spikes().to(torch.bfloat16), at_once=False)
    assert cell.run(spikes()[:, :0], cell.initial_state(0))[0].shape == (STEPS, 0, HIDDEN)
    for x in (spikes()[:0], spikes()[..., :5], spikes(batch=2)):
        messages = []
        for way in (own, plainly):
            with pytest.raises((RuntimeError, ValueError, IndexError)) as caught:
                way(cell, x, cell.initial_state(BATCH))
            messages.append(str(caught.value))
        assert messages[0] == messages[1]
    cell.theta = torch.tensor(1.0)
    assert_as_plain_steps(cell, spikes(), at_once=False)


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8])
def test_lengths_of_any_integer_dtype_and_beyond_the_end(dtype):
    cell, x, lengths = firing(ALIFPlus), spikes(), torch.tensor([9, 7, 8], dtype=dtype)
    assert_same(*both(lambda way: way(cell, x, cell.initial_state(BATCH), lengths=lengths)[1]))


# numbers that are not finite


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", ["v", "theta"])
@pytest.mark.parametrize("reset", ["subtract", "static", "zero"])
def test_states_that_are_not_finite(value, where, reset):
    cell = firing(ALIFPlus, reset=reset)
    state = type(cell.initial_state(1))(*(leaf.detach().clone() for leaf in cell.initial_state(BATCH)))
    getattr(state, where)[0, 1] = value
    assert_as_plain_steps(cell, spikes(), state)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", ["w_in", "w_rec", "b_v", "adaptation"])
def test_weights_that_are_not_finite_where_nothing_fires(name, value, sparse):
    cell, x = firing(ALIFPlus), spikes()
    x[..., 2] = 0
    with torch.no_grad():
        cell.b_v[3] = -1e6  # never fires
        getattr(cell, name)[..., 2 if name == "w_in" else 3] = value
    assert_as_plain_steps(cell, x)


def test_gradients_that_are_not_finite(sparse):
    cell, x, found = firing(ALIFPlus), spikes(), []
    x[..., 2] = 0
    for way in (own, plainly):
        z, _ = way(cell, x, cell.initial_state(BATCH))
        by_z = torch.ones_like(z)
        by_z[3, 1, 2] = torch.inf
        found.append(torch.autograd.grad(z, list(cell.parameters()), by_z))
    assert_same(*found)
    assert found[1][0].isnan().any()


# ways of differentiating


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


def test_several_gradients_at_once_and_a_map_over_gradients():
    cell, x = firing(ALIFPlus, spike=surrogate.Logistic(learnable=True)), spikes().requires_grad_()
    by = [*cell.parameters(), x]

    def batched(way: Any) -> Any:
        z, _ = way(cell, x, cell.initial_state(BATCH))
        each = torch.eye(z.numel()).view(-1, *z.shape)[::20]
        mapped = torch.vmap(lambda g: torch.autograd.grad(z, by, g, retain_graph=True))(each)
        return [*torch.autograd.grad(z, by, each, is_grads_batched=True, retain_graph=True), *mapped]

    found, plain = both(batched)
    assert plain[0].any()
    assert_same(found, plain)


def test_jacobians_and_products_with_the_hessian():
    cell, x = firing(ALIFPlus, 12, 4), spikes()
    w = cell.w_rec.detach()

    def output(way: Any, w: Tensor) -> Tensor:
        return functional_call(Caller(cell, way), {"cell.w_rec": w}, (x,)).square().mean((0, 1))

    for take in (
        lambda f: [functional.jacobian(f, w)],
        lambda f: [functional.jacobian(f, w, vectorize=True)],
        lambda f: functional.jvp(f, w, torch.ones_like(w)),
        lambda f: functional.hvp(lambda w: f(w).sum(), w, torch.ones_like(w)),
    ):
        assert_same(*both(lambda way, take=take: take(lambda w: output(way, w))))


@pytest.mark.slow  # the first transformed function of a process takes torch ten seconds
def test_transforms_of_torch_func():
    cell, x = firing(ALIFPlus, 12, 4), spikes()
    parameters = {f"cell.{name}": p.detach() for name, p in cell.named_parameters()}
    many = {name: torch.stack([p, p * 1.1, p * 0.9]) for name, p in parameters.items()}

    def results(way: Any) -> Any:
        def run(parameters: dict[str, Tensor]) -> Tensor:
            return functional_call(Caller(cell, way), parameters, (x, True)).square().mean((0, 1))

        gradient = torch.func.grad(lambda p: run(p).sum())
        hessian = torch.func.jvp(gradient, (parameters,), (parameters,))[1]
        jacobian, samples = torch.func.jacrev(run)(parameters), torch.vmap(gradient)(many)
        forward = torch.func.jvp(run, (parameters,), (parameters,))
        return [torch.vmap(run)(many), *forward, *(t for d in (jacobian, hessian, samples) for t in d.values())]

    assert_same(*both(results))


def test_dual_numbers_of_forward_mode():
    cell, x, found = firing(LIF), spikes(), []
    for way in (own, plainly):
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
            _, state = way(cell, dual, cell.initial_state(BATCH))
            found.append(torch.autograd.forward_ad.unpack_dual(state.v))
    assert_same(*found)


def test_a_graph_again_in_parts_saved_elsewhere_and_recomputed():
    cell, x = firing(ALIFPlus, reset_gradient=True), spikes().requires_grad_()
    by = [*cell.parameters(), x]

    def several(way: Any) -> Any:
        with save_on_cpu():
            z, state = way(cell, x, cell.initial_state(BATCH))
        found = [*gradients(loss_of(z, state), by), *gradients(loss_of(z, state), by)]
        found += [*gradients(state.theta.sum(), by), *gradients(z[2].sum(), by)]
        for reentrant in (False, True):
            cell.zero_grad()
            x.grad = None
            loss_of(*checkpoint(Caller(cell, way).forward, x, use_reentrant=reentrant).split(4)).backward()
            found += [p.grad for p in by]
        return found

    assert_same(*both(several))


# modes


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode, route):
    cell, x = firing(ALIFPlus), spikes()
    with mode(), counted() as calls:
        (z, state), (plain_z, plain_state) = both(lambda way: way(cell, x, cell.initial_state(BATCH)))
    assert calls == [1]
    assert torch.equal(z, plain_z)
    assert z.any()
    assert_same(state, plain_state)
    assert not z.requires_grad
    with torch.inference_mode():
        x = x.to(torch.uint8, copy=True)
    assert_as_plain_steps(cell, x, at_once=False)


def test_modes_and_tensors_that_see_every_operation():
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

    class Doubled(Tensor):
        pass

    cell = firing(ALIFPlus)
    with Slower():
        assert_as_plain_steps(cell, spikes(), at_once=False)
    with Counting() as counting:
        cell.run(spikes(), cell.initial_state(BATCH))
    assert counting.products == 2 * STEPS
    assert_as_plain_steps(cell, spikes().as_subclass(Doubled), at_once=False)
    with torch.autocast("cpu"), counted() as calls:
        cell.run(spikes().float(), cell.initial_state(BATCH))
    assert not calls


def test_defaults_of_another_kind_and_single_precision(route):
    cell, x = firing(ALIFPlus), spikes()
    z, _ = cell.run(x, cell.initial_state(BATCH))
    with torch.device("meta"), counted() as calls:
        state = type(cell.initial_state(1))(*(leaf.detach() for leaf in cell.initial_state(BATCH)))
        assert torch.equal(cell.run(x, state)[0], z)
    assert calls == [1]
    torch.set_default_dtype(torch.float32)
    assert_as_plain_steps(cell, x)
    torch.set_default_dtype(torch.float64)
    assert_as_plain_steps(cell.float(), x.float(), rtol=2e-5)


def test_copies_pickles_and_threads():
    cell, found = firing(ALIFPlus, spike=surrogate.Arctan(learnable=True)), []
    for other in (copy.deepcopy(cell), pickle.loads(pickle.dumps(cell))):
        assert_as_plain_steps(other, spikes())

    def work() -> None:
        found.append(gradients(loss_of(*cell.run(spikes(), cell.initial_state(BATCH))), list(cell.parameters())))

    threads = [threading.Thread(target=work) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20
    for each in found[1:]:
        assert_same(each, found[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Dynamo detected")
def test_a_layer_compiles_in_one_piece():
    cell, x = firing(ALIFPlus), spikes()
    z, state = torch.compile(lambda x: cell.run(x, cell.initial_state(BATCH)), fullgraph=True)(x)
    plain_z, plain_state = plainly(cell, x, cell.initial_state(BATCH))
    assert torch.equal(z, plain_z)
    by = list(cell.parameters())
    assert_same(gradients(loss_of(z, state), by), gradients(loss_of(plain_z, plain_state), by), 1e-9)
