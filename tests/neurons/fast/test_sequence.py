"""LIF and ALIF over all steps at once equal plain steps in every corner, or are run by plain steps."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import functional
from torch.autograd.graph import save_on_cpu
from torch.func import functional_call

from neurolsc import LIF, ALIFPlus, Cell, surrogate
from neurolsc.neurons.fast import cpu_kernels, sequence
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


ROUTES = {"rows, few steps": (1.0, 3), "dense, many": (0.0, 1024), "now this, now that": (0.15, 12)}


@pytest.fixture(params=list(ROUTES))
def route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products as sums of rows up to a share of non-zero entries, and how many rows a block has."""
    density, rows = ROUTES[request.param]
    monkeypatch.setattr(cpu_kernels, "DENSITY", density)
    monkeypatch.setattr(sequence, "ROWS", rows)


@pytest.fixture
def sparse(monkeypatch: pytest.MonkeyPatch) -> None:
    """All products of inputs are sums of rows."""
    monkeypatch.setattr(cpu_kernels, "DENSITY", 1.0)


def moving(cell: Cell) -> Any:
    """A state in the middle of a run, to be differentiated by; it lies in memory neuron by neuron."""
    with torch.no_grad():
        _, state = plainly(cell, spikes(4), cell.initial_state(BATCH))
    return type(state)(*(leaf.T.contiguous().T.requires_grad_() for leaf in state))


@pytest.mark.parametrize("reset_gradient", [False, True])
@pytest.mark.parametrize("reset", ["subtract", "static", "zero"])
@pytest.mark.parametrize("kind", [LIF, ALIFPlus])
def test_a_run_is_its_plain_steps(kind, reset, reset_gradient, monkeypatch):
    monkeypatch.setattr(cpu_kernels, "DENSITY", 0.15)  # some products are sums of rows, some are dense
    monkeypatch.setattr(sequence, "ROWS", 12)
    cell = firing(kind, reset=reset, reset_gradient=reset_gradient)
    state, late, x = moving(cell), spikes(1)[0].requires_grad_(), (1.3 * spikes()).requires_grad_()
    assert_as_plain_steps(cell, x, state, by=(x, *state))
    lengths, by = torch.tensor([7, 3, 0]), [*cell.parameters(), x, late, *state]
    outcomes = [way(cell, x, state, late=late, lengths=lengths) for way in (own, plainly)]
    alive = torch.arange(STEPS).unsqueeze(1) < lengths
    assert torch.equal(outcomes[0][0][alive], outcomes[1][0][alive])
    found = [gradients(loss_of(z[alive], [(leaf + 1) ** 3 for leaf in after]), by) for z, after in outcomes]
    assert_same([*outcomes[0][1], *found[0]], [*outcomes[1][1], *found[1]])


def test_second_derivatives():
    cell = firing(ALIFPlus, reset_gradient=True, spike=surrogate.Logistic(learnable=True))
    x, by = spikes().requires_grad_(), list(cell.parameters())

    def twice(way: Any) -> Any:
        z, state = way(cell, x, cell.initial_state(BATCH), lengths=torch.tensor([7, 2, 0]))
        once = gradients(loss_of(z[:1, :2], state), [*by, x], create_graph=True)
        return gradients(sum(g.square().sum() for g in once if g is not None and g.requires_grad), by)

    found, plain = both(twice)
    assert any(g is not None and g.any() for g in plain)
    assert_same(found, plain)


def test_only_what_is_wanted_is_differentiated(route):
    spike = surrogate.FastSigmoid(torch.linspace(0.2, 0.8, HIDDEN), torch.linspace(0.7, 1.5, HIDDEN))
    cell = firing(LIF, spike=spike, reset_gradient=True).requires_grad_(False)
    x, state = spikes().requires_grad_(), moving(cell)
    assert_as_plain_steps(cell, x, by=(x,))
    assert_as_plain_steps(cell, spikes(), state, by=tuple(state))
    buffers = [cell.b_v, cell.theta, spike.fixed_dampening, spike.fixed_sharpness]
    for buffer in buffers:
        buffer.requires_grad_()
    assert_as_plain_steps(cell, spikes(), by=(*buffers,))
    cell = firing(ALIFPlus).requires_grad_(False)
    for name in ("w_in", "w_rec", "log_tau_v", "adaptation"):
        cell.get_parameter(name).requires_grad_()
        assert_as_plain_steps(cell, spikes())
        cell.requires_grad_(False)


# ---- surrogates, also a user's own


class Parabola(surrogate.Surrogate):
    def shape(self, x: Tensor) -> Tensor:
        return (1 - x * x).clamp(min=0)

    def shape_integral(self, x: Tensor) -> Tensor:
        inside = x.clamp(-1, 1)
        return inside - inside**3 / 3


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


@pytest.mark.parametrize("spike", [Parabola, Widened])
def test_a_users_surrogate_has_the_gradients_of_plain_steps(spike):
    assert_as_plain_steps(firing(ALIFPlus, spike=spike()), spikes())
    assert_as_plain_steps(firing(LIF, spike=spike(), reset_gradient=True), spikes())


def hooked(handle: str) -> surrogate.Surrogate:
    spike = surrogate.FastSigmoid()
    if handle == "forward":
        spike.register_forward_hook(lambda module, args, z: z / 2)
    else:
        spike.register_full_backward_hook(lambda module, g_in, g_out: (g_in[0] * 2,))
    return spike


@pytest.mark.parametrize("spike", [Forward(), Called(), Derivative(), Primitive(), hooked("forward"), hooked("back")])
def test_surrogates_that_do_otherwise_take_plain_steps(spike):
    assert_as_plain_steps(firing(ALIFPlus, spike=spike), spikes(), at_once=False)


# ---- kinds of input


def test_what_plain_steps_take_or_refuse():
    cell = firing(LIF)
    assert_as_plain_steps(cell, spikes(), cell.initial_state(1), at_once=False)  # a state for all samples
    assert_as_plain_steps(firing(ALIFPlus).to(torch.bfloat16), spikes().to(torch.bfloat16), at_once=False)
    for x in (spikes()[..., :5], spikes(batch=2)):
        messages = []
        for way in (own, plainly):
            with pytest.raises(RuntimeError) as caught:
                way(cell, x, cell.initial_state(BATCH))
            messages.append(str(caught.value))
        assert messages[0] == messages[1]
    cell.theta = torch.tensor(1.0)
    assert_as_plain_steps(cell, spikes(), at_once=False)


@pytest.mark.parametrize(("where", "value"), [("v", torch.nan), ("w_rec", torch.inf), ("gradient", torch.nan)])
def test_numbers_that_are_not_finite(value, where, sparse):
    cell, x = firing(ALIFPlus), spikes()
    state = type(cell.initial_state(1))(*(leaf.detach().clone() for leaf in cell.initial_state(BATCH)))
    x[..., 2] = 0
    if where == "gradient":
        outcomes = []
        for way in (own, plainly):
            z, _ = way(cell, x, state)
            by_z = torch.ones_like(z)
            by_z[3, 1, 2] = value
            outcomes.append(torch.autograd.grad(z, list(cell.parameters()), by_z))
        assert_same(*outcomes)
        assert outcomes[1][0].isnan().any()
        return
    with torch.no_grad():
        if where in state._fields:
            getattr(state, where)[0, 1] = value
        else:  # where nothing fires
            cell.b_v[3] = -1e6
            getattr(cell, where)[..., 2 if where == "w_in" else 3] = value
    assert_as_plain_steps(cell, x, state)


# ---- ways of differentiating


class Caller(nn.Module):
    """A run as a module, so that functional_call can replace the cell's parameters."""

    def __init__(self, cell: Any, way: Any) -> None:
        super().__init__()
        self.cell, self.way = cell, way

    def forward(self, x: Tensor) -> Tensor:
        z, state = self.way(self.cell, x, self.cell.initial_state(x.shape[1]))
        return z + state.v


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
        lambda f: [functional.jacobian(f, w, vectorize=True)],
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
            return functional_call(Caller(cell, way), parameters, (x,)).square().mean((0, 1))

        gradient = torch.func.grad(lambda p: run(p).sum())
        hessian = torch.func.jvp(gradient, (parameters,), (parameters,))[1]
        jacobian, samples = torch.func.jacrev(run)(parameters), torch.vmap(gradient)(many)
        forward = torch.func.jvp(run, (parameters,), (parameters,))
        return [torch.vmap(run)(many), *forward, *(t for d in (jacobian, hessian, samples) for t in d.values())]

    assert_same(*both(results))


def test_a_graph_again_and_in_parts_saved_elsewhere():
    cell, x = firing(ALIFPlus, reset_gradient=True), spikes().requires_grad_()
    by = [*cell.parameters(), x]

    def several(way: Any) -> Any:
        with save_on_cpu():
            z, state = way(cell, x, cell.initial_state(BATCH))
        losses = loss_of(z, state), loss_of(z, state), state.theta.sum(), z[2].sum()
        return [g for loss in losses for g in gradients(loss, by)]

    assert_same(*both(several))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode):
    cell, x = firing(ALIFPlus), spikes()
    with mode(), counted() as calls:
        (z, state), (plain_z, plain_state) = both(lambda way: way(cell, x, cell.initial_state(BATCH)))
    assert calls == [1]
    assert torch.equal(z, plain_z)
    assert z.any()
    assert_same(state, plain_state)


def test_autocast_on_a_cpu_takes_plain_steps():
    cell = firing(ALIFPlus)
    with torch.autocast("cpu"), counted() as calls:
        cell.run(spikes().float(), cell.initial_state(BATCH))
    assert not calls
