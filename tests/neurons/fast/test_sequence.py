"""LIF and ALIF over all steps at once equal plain steps in every corner, or are run by plain steps."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import functional
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.func import functional_call

from neurolsc import LIF, ALIFPlus, surrogate
from neurolsc.neurons.fast import cpu_kernels, sequence
from tests.neurons.fast.both import (
    BATCH,
    STEPS,
    assert_as_plain_steps,
    assert_both,
    assert_same,
    counted,
    firing,
    gradients,
    loss_of,
    moving,
    own,
    spikes,
)
from tests.neurons.steps import by_steps

pytestmark = pytest.mark.usefixtures("float64")


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
    outcomes = [way(cell, x, state, late=late, lengths=lengths) for way in (own, by_steps)]
    alive = torch.arange(STEPS).unsqueeze(1) < lengths
    assert torch.equal(outcomes[0][0][alive], outcomes[1][0][alive])
    found = [gradients(loss_of(z[alive], [(leaf + 1) ** 3 for leaf in after]), by) for z, after in outcomes]
    assert_same([*outcomes[0][1], *found[0]], [*outcomes[1][1], *found[1]])


def test_buffers_are_differentiated_and_parameters_one_by_one():
    spike = surrogate.FastSigmoid(torch.linspace(0.2, 0.8, 8), torch.linspace(0.7, 1.5, 8))
    cell = firing(LIF, spike=spike, reset_gradient=True).requires_grad_(False)
    buffers = cell.b_v, cell.theta, spike.fixed_dampening, spike.fixed_sharpness
    for buffer in buffers:
        buffer.requires_grad_()
    assert_as_plain_steps(cell, spikes(), by=buffers)
    cell = firing(ALIFPlus).requires_grad_(False)
    for name in ("w_in", "w_rec", "log_tau_v", "adaptation"):
        cell.get_parameter(name).requires_grad_()
        assert_as_plain_steps(cell, spikes())
        cell.requires_grad_(False)


@pytest.mark.parametrize(("kind", "most"), [(LIF, 2.4), (ALIFPlus, 2.6)])
def test_a_run_stores_its_spikes_and_voltages_and_little_else(kind, most, monkeypatch):
    monkeypatch.setattr(sequence, "ROWS", 60)
    cell, x, sizes = firing(kind, 2, 40), spikes(100, BATCH, 2), {}
    with saved_tensors_hooks(lambda t: sizes.update({t.data_ptr(): t.nbytes}) or t, lambda t: t):
        z, state = cell.run(x, cell.initial_state(BATCH))
    loss_of(z, state).backward()
    assert z.nbytes < sum(sizes.values()) < most * z.nbytes


# ---- surrogates, also a user's own (whose gradients test_any_run compares)


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
        self.width, self.list = nn.Parameter(torch.linspace(0.8, 1.5, 8)), [1.0]
        self.register_buffer("peak", torch.tensor(1.3))

    def shape(self, x: Tensor) -> Tensor:
        return self.peak * super().shape(x / self.width)

    def shape_integral(self, x: Tensor) -> Tensor:
        return self.list[0] * self.peak * self.width * super().shape_integral(x / self.width)


def otherwise(method: str) -> surrogate.Surrogate:
    """A surrogate that changes what another method than the two gives."""
    change = {method: lambda self, v: getattr(surrogate.FastSigmoid, method)(self, v) * 3}
    return type(f"Other_{method}", (surrogate.FastSigmoid,), change)()


def hooked(handle: str) -> surrogate.Surrogate:
    spike = surrogate.FastSigmoid()
    if handle == "forward":
        spike.register_forward_hook(lambda module, args, z: z / 2)
    else:
        spike.register_full_backward_hook(lambda module, g_in, g_out: (g_in[0] * 2,))
    return spike


OTHERS = [*map(otherwise, ("forward", "__call__", "derivative", "primitive")), hooked("forward"), hooked("back")]


@pytest.mark.parametrize("spike", OTHERS, ids=lambda spike: type(spike).__name__)
def test_surrogates_that_do_otherwise_take_plain_steps(spike):
    assert_as_plain_steps(firing(ALIFPlus, spike=spike), spikes(), at_once=False)


# ---- kinds of input


def test_what_plain_steps_take_or_refuse():
    cell = firing(LIF)
    assert_as_plain_steps(cell, spikes(), cell.initial_state(1), at_once=False)  # a state for all samples
    assert_as_plain_steps(firing(ALIFPlus).to(torch.bfloat16), spikes().to(torch.bfloat16), at_once=False)
    for x in (spikes()[..., :5], spikes(batch=2)):
        messages = []
        for way in (own, by_steps):
            with pytest.raises(RuntimeError) as caught:
                way(cell, x, cell.initial_state(BATCH))
            messages.append(str(caught.value))
        assert messages[0] == messages[1]
    cell.theta = torch.tensor(1.0)
    assert_as_plain_steps(cell, spikes(), at_once=False)


@pytest.mark.parametrize("where", ["v", "w_rec", "gradient"])
def test_numbers_that_are_not_finite(where, monkeypatch):
    monkeypatch.setattr(cpu_kernels, "DENSITY", 1.0)  # all products of inputs are sums of rows
    cell, x = firing(ALIFPlus), spikes()
    state = type(cell.initial_state(1))(*(leaf.detach().clone() for leaf in cell.initial_state(BATCH)))
    if where == "gradient":
        by_z = torch.ones(STEPS, BATCH, 8)
        by_z[3, 1, 2] = torch.nan
        outcomes = [
            torch.autograd.grad(way(cell, x, state)[0], list(cell.parameters()), by_z) for way in (own, by_steps)
        ]
        assert_same(*outcomes)
        assert outcomes[1][0].isnan().any()
        return
    if where == "v":
        state.v[0, 1] = torch.nan
    else:  # from where nothing fires
        cell.b_v[3] = -1e6
        cell.w_rec.data[..., 3] = torch.inf
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

    assert_both(batched)


def test_jacobians_and_products_with_the_hessian():
    cell, x = firing(ALIFPlus, 12, 4), spikes()
    w = cell.w_rec.detach()

    def output(way: Any, w: Tensor) -> Tensor:
        return functional_call(Caller(cell, way), {"cell.w_rec": w}, (x,)).square().mean((0, 1))

    assert_both(lambda way: [functional.jacobian(lambda w: output(way, w), w, vectorize=True)])
    assert_both(lambda way: functional.hvp(lambda w: output(way, w).sum(), w, torch.ones_like(w)))


@pytest.mark.long  # the first transformed function of a process takes torch ten seconds
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

    assert_both(results)


def test_a_graph_again_and_in_parts_saved_elsewhere():
    cell, x = firing(ALIFPlus, reset_gradient=True), spikes().requires_grad_()
    by = [*cell.parameters(), x]

    def several(way: Any) -> Any:
        with save_on_cpu():
            z, state = way(cell, x, cell.initial_state(BATCH))
        losses = loss_of(z, state), loss_of(z, state), state.theta.sum(), z[2].sum()
        return [g for loss in losses for g in gradients(loss, by)]

    assert_both(several)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode):
    cell, x = firing(ALIFPlus), spikes()
    with mode(), counted() as calls:
        assert_both(lambda way: [(run := way(cell, x, cell.initial_state(BATCH)))[0], *run[1]])
    assert calls == [1]
