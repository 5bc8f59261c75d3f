"""The contract of wrapped layers, W1 to W10, for every layer of snnTorch, norse and PyTorch that is wrapped;
their thresholds."""

import copy

import pytest
import snntorch as snn
import torch
from torch import Tensor, nn
from torch.autograd.functional import jacobian
from torch.testing import assert_close

from neurolsc import (
    ALIFPlus,
    WrappedNeuronWarning,
    match_firing_rates,
    pretrain,
    radius_profile,
    scale_to_radius,
    spectral_radius,
    wrap,
)
from neurolsc.interop import snntorch as in_snntorch
from neurolsc.neurons import BRF
from neurolsc.stability.transitions import flat, follow, unflat
from neurolsc.surrogate import Surrogate
from tests.interop.layers import EVERY, N_IN, NORSE, SNNTORCH, TORCH, N, norse
from tests.stability.dense import depth_derivative, depth_factors, input_derivative_by_autograd, time_derivative

every = pytest.mark.parametrize("name", [name for name in EVERY if not name.endswith("-passed")])
pytestmark = pytest.mark.filterwarnings("ignore::neurolsc.WrappedNeuronWarning")


def made(table: dict, name: str, dtype: torch.dtype = torch.float32):
    """The modules of an entry, their network, and an input (T, B, n_in) under which they fire."""
    make, shape = table[name]
    torch.manual_seed(0)
    modules = [module.to(dtype) for module in make()]
    network = wrap(modules, input_shape=shape)
    scale = 30 if "norse" in name or table is NORSE else 10
    return modules, network, scale * torch.rand(6, 3, network.n_in, dtype=dtype)


def own_loop(modules: list[nn.Module], x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The outputs of the loop that a user of the library writes."""
    *before, layer = modules
    outputs, state = [], None
    for frame in x.view(*x.shape[:2], *shape):
        for module in before:
            frame = module(frame)
        if isinstance(layer, snn.SpikingNeuron) and layer.init_hidden:
            z = layer(frame)
        elif isinstance(layer, snn.SpikingNeuron):
            z, *state = layer(frame, *(state or ()))
            state = [z, *state] if hasattr(layer, "recurrent") else state
        elif isinstance(layer, nn.RNNCellBase):
            state = layer(frame, state)
            z = state[0] if isinstance(state, tuple) else state
        elif type(layer).__name__.endswith("Cell"):
            z, state = layer(frame, state)
        else:
            (z,), state = layer(frame[None], state)
        outputs.append(z.flatten(1))
    return torch.stack(outputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*(f"snn.{k}" for k in SNNTORCH), *(f"norse.{k}" for k in NORSE)])
def test_w1_every_neuron_steps_as_its_own_library_does(name):
    """To rounding: all steps are projected at once, and a product of more rows may sum in another order."""
    modules, network, x = made(EVERY, name)
    logits = network(x)
    assert logits.any()
    assert_close(logits, own_loop(modules, x, EVERY[name][1]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", TORCH)
def test_w1_torch_layers_step_as_torch_does(name):
    modules, network, x = made(TORCH, name)
    if isinstance(modules[0], nn.RNNCellBase):
        assert torch.equal(network(x), own_loop(modules, x, (N_IN,)))
    else:  # which computes all steps' inputs in one product, so that sums are rounded otherwise
        assert_close(network(x), modules[0](x)[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("layer", "why"),
    [
        (lambda: snn.LeakyParallel(4, 4), "whole sequence"),
        (lambda: type("Mine", (snn.Leaky,), {})(0.9), "subclass"),
        (lambda: norse.LIFCorrelation(4, 4), "weights with every call"),
        (lambda: norse.LIFAdExCell(), "LIFAdExCell cannot be wrapped: only LIF, LIFBox"),
        (lambda: nn.Embedding(4, 4), "an Embedding reads integers"),
        (lambda: norse.LIFRecurrentCell(4, 4, p=norse.LIFParameters(method="adjoint")), "adjoint"),
        (lambda: norse.LSNNRecurrent(4, 4, adjoint=True), "adjoint"),
        (lambda: nn.LSTM(4, 4, bidirectional=True), "back in time"),
        (lambda: nn.LSTM(4, 4, proj_size=2), "proj_size=2"),
    ],
)
def test_w2_what_has_no_step_is_refused_with_the_reason(layer, why):
    with pytest.raises(TypeError, match=why):
        wrap([layer(), nn.RNN(4, 4)], input_shape=4)


@pytest.mark.filterwarnings("ignore::neurolsc.WrappedNeuronWarning")
def test_a_radius_that_no_parameter_moves_is_named(make_spikes):
    result = pretrain(wrap([norse.LSNNRecurrentCell(30, 8)]), [make_spikes()], target=0.5, max_steps=1, progress=False)
    (through_depth,) = [f for f in result.findings if "through depth" in f.problem]
    assert through_depth.cure == "no parameter that rules scale moves it; set direction='time'"


@pytest.mark.parametrize(
    ("layer", "what"),
    [
        (lambda: snn.SLSTM(4, 6), "by the state is identically zero .*hidden_size"),
        (lambda: norse.LSNNRecurrentCell(4, 4), "never decays"),
        (lambda: snn.Leaky(0.9, spike_grad=snn.surrogate.triangular()), "surrogate"),
    ],
)
def test_w3_derivatives_that_are_not_what_they_seem_are_warned_of(layer, what):
    with pytest.warns(WrappedNeuronWarning, match=what):
        wrap([layer()], input_shape=4)


@every
def test_w4_wrapping_and_measuring_leave_no_trace(name):
    make, shape = EVERY[name]
    layers = nn.Sequential(*make())
    everything = [m for m in layers.modules() if m is not layers and not isinstance(m, Surrogate)]
    attributes = [(dict(vars(m)), dict(m._buffers)) for m in everything]
    flags = [leaf.requires_grad for leaf in neuron_parameters(layers[-1])]
    network = wrap(list(layers), input_shape=shape)
    radius_profile(network, torch.rand(2, 2, network.n_in), steps=1)
    for (before, buffers), now in zip(attributes, everything, strict=True):
        assert before == dict(vars(now))
        assert all(buffers[key] is now._buffers[key] for key in buffers)
    assert flags == [leaf.requires_grad for leaf in neuron_parameters(layers[-1])]


def neuron_parameters(layer: nn.Module) -> list[Tensor]:
    return [leaf for leaf in getattr(layer, "p", ()) if isinstance(leaf, Tensor)]


@pytest.mark.slow
@every
def test_w5_jacobians_equal_the_loop_of_autograd_grad(name):
    _, network, x = made(EVERY, name, torch.float64)
    assert network(x).dtype == torch.float64  # w6: snnTorch's own spikes are float32
    for t in follow(network, x, torch.tensor([3]))[0]:
        for ours, of in ((time_derivative(t), "state"), (input_derivative_by_autograd(t), "input")):
            reference = torch.stack([rows(t, sample, of) for sample in range(3)])
            scale = reference.abs().max().clamp(min=1).item()
            assert_close(ours, reference, rtol=1e-12, atol=1e-12 * scale)


def rows(t, sample: int, of: str) -> Tensor:
    """The Jacobian of one sample, one backward pass a row."""
    before = type(t.before)(*(leaf[sample : sample + 1] for leaf in t.before))
    h, x = flat(before).requires_grad_(), t.x[sample : sample + 1].clone().requires_grad_()
    state = unflat(h, before)
    after = flat(t.cell.update(x, t.cell.output(state), state))[0]
    by = h if of == "state" else x
    grads = [torch.autograd.grad(v, by, retain_graph=True, materialize_grads=True, allow_unused=True)[0] for v in after]
    return torch.cat(grads)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: snn.RLeaky(0.9, linear_features=N),
        lambda: snn.RLeaky(0.9, all_to_all=False, V=torch.randn(N)),
    ],
)
def test_w7_the_radius_without_spk_at_the_next_step_is_that_of_the_full_matrix(layer, float64):
    layer = layer().double()
    network = wrap([nn.Linear(N_IN, N).double(), layer], input_shape=N_IN)
    x = 3 * torch.rand(8, 3, N_IN)
    assert network.cells[0].initial_state(1)._fields == ("mem",)
    steps = follow(network, x, torch.arange(8))[0][0]
    reduced = spectral_radius(time_derivative(steps)).view(8, 3)
    surrogate, full = layer.spike_grad, []
    layer.spike_grad = lambda v: surrogate(v).to(v.dtype)
    for mem, now in zip(steps.before.mem, steps.x, strict=True):
        current = network.cells[0].current(now[None]).detach()

        def step(h: Tensor, current=current) -> Tensor:
            spk, after = layer(current, h[None, N:], h[None, :N])
            return torch.cat([after[0], spk[0]])

        full.append(jacobian(step, torch.cat([mem, layer.fire(mem)]).detach()))
    full = spectral_radius(torch.stack(full)).view(8, 3)
    assert network.run(x).spikes[0].any()
    # snnTorch's surrogates return float32, and so their gradients pass through float32 too
    assert_close(full[:-1], reduced[1:], rtol=1e-6, atol=1e-6)
    assert not torch.allclose(full[:-1], reduced[:-1])


@pytest.mark.parametrize("delay", [True, False])
def test_w8_the_reset_of_snntorch_carries_gradient_without_delay_only(delay):
    surrogate = snn.surrogate.atan(2.0)
    network = wrap([nn.Linear(N_IN, N), snn.Leaky(0.9, reset_delay=delay, spike_grad=surrogate)])
    cell, x = network.cells[0], 3 * torch.rand(6, 3, N_IN)
    t = follow(network, x, torch.tensor([4]))[0][0]
    by_mem = time_derivative(t)[:, :N, :N].diagonal(dim1=1, dim2=2)
    fired = 0.9 * t.before.mem + cell.current(t.x) - (t.before.mem > 1).float()
    s = jacobian(lambda v: surrogate(v - 1).sum(), fired)
    assert network.run(x).spikes[0].any()
    assert_close(by_mem, torch.full_like(s, 0.9) if delay else 0.9 * (1 - s))
    assert cell.reset_gradient is not delay


@pytest.mark.parametrize("name", ["LIFRecurrentCell", "LIFCell", "LIFRecurrent", "LIF"])
def test_w8_norse_resets_carry_gradient_but_in_its_recurrent_lif(name):
    _, network, x = made(NORSE, name, torch.float64)
    cell = network.cells[0]
    t = follow(network, x, torch.tensor([4]))[0][0]
    state = cell.update(t.x, cell.output(t.before), t.before)
    v = slice(state._fields.index("v") * N, (state._fields.index("v") + 1) * N)
    by_v, z = time_derivative(t)[:, v, v].diagonal(dim1=1, dim2=2), cell.output(state)
    assert z.any() and not z.all()
    detached = torch.allclose(by_v, (1 - z) * cell.decay_mem.to(z))
    assert cell.reset_gradient is not detached


def test_w9_layers_read_the_layer_below_in_the_same_step():
    fc1, lif1, fc2, lif2 = nn.Linear(N_IN, N), snn.Leaky(0.9), nn.Linear(N, N), snn.Leaky(0.8)
    network = wrap([fc1, lif1, fc2, lif2])
    assert network.layer_delay == 0
    x = 3 * torch.rand(6, 3, N_IN)
    first, second = follow(network, x, torch.tensor([4]))[0]
    mem = second.state_below.mem  # of the same step
    s = jacobian(lambda v: lif1.spike_grad(v - 1).sum(), mem)
    assert_close(depth_derivative(second), fc2.weight * s.unsqueeze(1))
    assert_close(depth_derivative(first), fc1.weight.expand(3, -1, -1))


@pytest.mark.parametrize(
    ("modules", "moved"),
    [
        (
            lambda: [nn.Linear(N_IN, N), snn.RLeaky(0.9, linear_features=N), nn.Linear(N, 3)],
            {"0.weight", "1.beta", "1.recurrent.weight"},
        ),
        (
            lambda: [nn.Linear(N_IN, N), in_snntorch.ALIFPlus(0.8, N, threshold=0.3)],
            {"0.weight", *(f"1.{name}" for name in ("beta", "recurrent.weight", "adaptation", "tau_theta"))},
        ),
        (lambda: [norse.LIFRecurrent(N_IN, N), nn.Linear(N, 3)], {"0.input_weights", "0.recurrent_weights"}),
        (
            lambda: [nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), snn.Leaky(0.9), nn.Flatten(), nn.Linear(18, 3)],
            {"0.weight", "2.beta"},
        ),
        (lambda: [nn.GRU(N_IN, N, num_layers=2), nn.Linear(N, 3)], None),
    ],
)
def test_w10_pretraining_changes_only_what_the_rule_names(modules, moved):
    modules = nn.Sequential(*modules())
    image = any(isinstance(m, nn.Conv2d) for m in modules.modules())
    network = wrap(list(modules), input_shape=(1, 5, 5) if image else N_IN)
    before = copy.deepcopy(modules.state_dict())
    flags = [p.requires_grad for p in modules.parameters()]
    pretrain(network, [3 * torch.rand(6, 3, network.n_in)], target=0.5, max_steps=4, samples=2, steps=2, progress=False)
    now = modules.state_dict()
    changed = {k for k in before if not torch.equal(before[k], now[k])}
    moved = moved or {f"0.{w}_{k}" for w in ("weight_ih", "weight_hh", "bias_hh") for k in ("l0", "l1")}
    assert changed == moved
    assert flags == [p.requires_grad for p in modules.parameters()]


def test_w10_norse_decays_move_in_this_layer_and_in_no_other():
    layer, other = norse.LIFRecurrent(N_IN, N), norse.LIFRecurrent(N_IN, N)
    default = norse.LIFParameters().tau_mem_inv.clone()
    network = wrap([layer, nn.Linear(N, 3)])
    x = 30 * torch.rand(10, 3, N_IN)
    # sub-matrices of so few neurons would be drawn too unevenly to settle
    result = pretrain(network, [x], target=0.5, max_steps=40, non_square="singular", progress=False)
    assert result.converged
    assert (1 - 1e-3 * layer.p.tau_mem_inv) < 0.7
    assert torch.equal(other.p.tau_mem_inv, default)
    assert torch.equal(norse.LIFParameters().tau_mem_inv, default)
    fresh = wrap([other, nn.Linear(N, 3)])
    fresh.load_state_dict(network.state_dict())
    assert torch.equal(other.p.tau_mem_inv, layer.p.tau_mem_inv)


FEW = (
    "snn.Leaky-now-hidden",
    "snn.RSynaptic-hidden",
    "snn.SLSTM-hidden",
    "snn.ALIF-hidden",
    "norse.LIF",
    "norse.LSNNRecurrent",
)
SCALED = {
    **{name: lambda name=name: wrap(EVERY[name][0](), input_shape=EVERY[name][1]) for name in FEW},
    "ALIFPlus after a Linear": lambda: wrap([nn.Linear(N_IN, N_IN), ALIFPlus(N_IN, N)]),
}


@pytest.mark.parametrize("network", SCALED.values(), ids=SCALED)
def test_rates_are_matched_by_thresholds_that_scale(network):
    torch.manual_seed(1)
    network = network()
    (cell,) = network.cells
    x = 8 * torch.randn(25, 8, cell.n_in)
    before = network.run(x).spikes[0]
    thresholds = cell.thresholds()
    thresholds.scale(4.0)
    assert network.run(x).spikes[0].mean() < before.mean()
    thresholds.scale(1.0)
    assert torch.equal(network.run(x).spikes[0], before)
    (reached,) = match_firing_rates(network, x, [0.6 * before.mean().item()])
    assert reached == pytest.approx(0.6 * before.mean().item(), abs=0.01)


@pytest.mark.parametrize(
    "modules",
    [
        lambda: [nn.LSTM(N_IN, N)],
        lambda: [norse.LICell(), nn.Linear(N_IN, N)],
        lambda: [norse.LIFRecurrentCell(N_IN, N, p=norse.LIFParameters(v_th=torch.tensor(-50.0)))],
        lambda: [nn.Linear(N_IN, N), snn.Leaky(0.9, threshold=-1.0)],
    ],
)
def test_a_layer_without_a_threshold_that_a_factor_raises_has_none(modules):
    assert wrap(modules(), input_shape=N_IN).cells[0].thresholds() is None


class Rectified(nn.Sequential):
    """A Sequential with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).relu()


def hooked() -> nn.Sequential:
    layers = nn.Sequential(nn.Linear(7, N))
    layers.register_forward_hook(lambda module, args, out: out.relu())
    return layers


@pytest.mark.parametrize(("make", "affine"), [
    (lambda: nn.Sequential(nn.Linear(7, N)), True),
    (lambda: Rectified(nn.Linear(7, N)), False),
    (lambda: nn.Sequential(Rectified(nn.Linear(7, N))), False),
    (hooked, False),
])  # fmt: skip
def test_a_sequential_that_does_more_than_call_its_parts_is_not_affine(make, affine):
    torch.manual_seed(0)
    network = wrap([make().double(), snn.Leaky(0.9)], input_shape=(7,))
    assert network.cells[0].affine is affine
    (t,), _ = follow(network, torch.randn(5, 3, 7, dtype=torch.float64), torch.tensor([3]))
    exact = torch.stack([rows(t, sample, "input") for sample in range(3)])
    by_input, _ = depth_factors(t)
    assert_close(by_input.expand_as(exact), exact)


def test_a_neuron_of_ours_keeps_the_limits_of_its_parameters_behind_a_module():
    torch.manual_seed(0)
    net = [nn.Linear(4, 6), BRF(6, 5)]
    x = torch.randn(20, 8, 4)
    assert scale_to_radius(net, x, target=0.9, samples=2, steps=2, progress=False).profile.time_mean.isfinite().all()
    cell = wrap(net, input_shape=(4,)).cells[0]
    assert cell.recurrent_synapses == net[1].recurrent_synapses
