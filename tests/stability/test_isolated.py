"""Single neurons: all of a layer whose neurons do not read each other, and what they say about those that do."""

import itertools

import norse.torch as norse
import pytest
import snntorch as snn
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from spikingjelly.activation_based import neuron, surrogate
from torch import Tensor, nn

from neurolsc import LIF, ALIFLowPass, ALIFPlus, pretrain, radius_profile, wrap
from neurolsc.interop import snntorch as in_snntorch
from neurolsc.neurons.blocks import SpikingStep
from neurolsc.neurons.spiking import alif_blocks
from neurolsc.stability import lyapunov_exponents, singular_values
from neurolsc.stability.isolated import (
    IsolatedNeurons,
    block_norms,
    block_radii,
    isolated_hint,
    shifted_factors,
)
from neurolsc.stability.profile import time_radius
from neurolsc.stability.transitions import follow
from neurolsc.surrogate import FastSigmoid
from tests.stability.dense import (
    check_operator,
    check_terms,
    input_derivative_by_autograd,
    output_derivative_by_autograd,
    time_derivative,
    time_derivative_by_autograd,
)

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore::neurolsc.WrappedNeuronWarning"),
]

N_IN, N = 7, 5
SPIKE = FastSigmoid(dampening=0.9, sharpness=2.0)  # snnTorch's own surrogates count in float32

# ---- blocks of single neurons


def dense_blocks(k: Tensor) -> Tensor:
    """Blocks (P, V, V, n) as matrices (P n, V, V)."""
    return k.permute(0, 3, 1, 2).flatten(0, 1)


@settings(max_examples=40)
@given(st.integers(1, 4), st.lists(st.booleans(), min_size=16, max_size=16), st.integers(0, 1000))
def test_radii_and_norms_of_blocks_are_those_of_lapack(variables, kept, seed):
    k = torch.randn(3, variables, variables, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    pattern = torch.tensor(kept[: variables**2], dtype=torch.float64).view(variables, variables)
    k = k * pattern[:, :, None]
    wanted = torch.linalg.eigvals(dense_blocks(k)).abs().amax(1).view(3, 4)
    # an eigenvalue that is a multiple root is off by the square root, or a higher one, of rounding in LAPACK
    torch.testing.assert_close(block_radii(k), wanted, rtol=1e-9, atol=1e-4 if variables > 2 else 1e-7)
    norms = torch.linalg.matrix_norm(dense_blocks(k), 2).view(3, 4)
    torch.testing.assert_close(block_norms(k), norms, rtol=1e-9, atol=1e-12)


def test_a_triangular_block_has_its_diagonal_exactly():
    k = torch.tensor([[0.9, 0.0, 0.0], [3.0, 0.9, 0.0], [1.0, 7.0, 0.9]])[None, :, :, None]
    assert block_radii(k).item() == 0.9
    assert block_radii(k.transpose(1, 2)).item() == 0.9


# ---- wrapped layers whose neurons do not read each other


def snntorch_layers() -> dict[str, nn.Module]:
    found = {}
    resets = ("subtract", "zero", "none")
    for name, reset, delay, hidden in itertools.product(("Leaky", "Synaptic"), resets, (True, False), (True, False)):
        decays = (0.9,) if name == "Leaky" else (0.8, 0.9)
        settings = {"reset_mechanism": reset, "reset_delay": delay, "init_hidden": hidden, "spike_grad": SPIKE}
        layer = getattr(snn, name)(*decays, **settings)
        found[f"{name}, {reset}{', at once' * (not delay)}{', hidden' * hidden}"] = layer
    for reset in resets:
        own = {"reset_mechanism": reset, "spike_grad": SPIKE, "init_hidden": True}
        found[f"Alpha, {reset}"] = snn.Alpha(0.9, 0.8, **own)
        for v, learnt in ((torch.tensor(0.7), True), (torch.linspace(-1, 1.5, N), True), (torch.ones(N), False)):
            one = own | {"V": v, "all_to_all": False, "learn_recurrent": learnt}
            case = f"{reset}, {'one' if not v.ndim else 'each'}{', fixed' * (not learnt)}"
            found[f"RLeaky, {case}"] = snn.RLeaky(0.9, **one)
            found[f"RSynaptic, {case}"] = snn.RSynaptic(0.8, 0.9, **one)
    each = {"beta": torch.linspace(0.3, 0.95, N), "threshold": torch.linspace(0.5, 1.5, N)}
    found["Leaky, of each neuron"] = snn.Leaky(
        **each, learn_beta=True, learn_threshold=True, graded_spikes_factor=2.0, spike_grad=SPIKE
    )
    return found


def norse_layers() -> dict[str, nn.Module]:
    kinds = ("LIF", "LIFCell", "LIFBoxCell", "IAF", "IAFCell", "LSNN", "LSNNCell", "LI", "LICell", "LIBoxCell")
    return {f"norse {kind}": getattr(norse, kind)() for kind in kinds}


def spikingjelly_layers() -> dict[str, nn.Module]:
    found = {}
    for v_reset, detach, enter in itertools.product((None, 0.0, 0.2), (True, False), (True, False)):
        settings = {"v_reset": v_reset, "detach_reset": detach, "surrogate_function": surrogate.ATan()}
        case = f"reset {v_reset}{', detached' * detach}"
        found[f"LIFNode, {case}, {enter}"] = neuron.LIFNode(tau=3.0, decay_input=enter, **settings)
        parametric = neuron.ParametricLIFNode(init_tau=3.0, decay_input=enter, **settings)
        found[f"ParametricLIFNode, {case}, {enter}"] = parametric
        found[f"IFNode, {case}"] = neuron.IFNode(**settings)
    return found


APART = {**snntorch_layers(), **norse_layers(), **spikingjelly_layers()}


def points_of(name: str):
    """The transitions of a layer on an input under which it fires, behind a layer like itself."""
    torch.manual_seed(0)
    network = wrap([nn.Linear(N_IN, N).double(), APART[name].double()])
    x = (60 if "norse" in name else 10) * torch.rand(8, 3, network.n_in)
    (t,), (z,) = follow(network, x, torch.arange(8))
    assert z.any() or network.cells[0].integrator
    # its own outputs are those of the layer below
    return network, x, t._replace(below=t.cell, state_below=t.before)


@pytest.mark.parametrize("name", APART)
def test_neuron_by_neuron_derivatives_are_those_of_autograd(name):
    network, x, t = points_of(name)
    known = t.cell.derivatives()
    dense = time_derivative_by_autograd(t)
    step = known.state_map(t.x, t.before)
    close = {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(time_derivative(t), dense, **close)
    check_operator(step, dense.detach())
    check_terms(step, known.by_state(t.x, t.before), len(dense))
    by_input = known.by_input(t.x, t.before).expand(len(dense), -1, -1)
    torch.testing.assert_close(by_input, input_derivative_by_autograd(t), **close)
    torch.testing.assert_close(known.of_output(t.before), output_derivative_by_autograd(t), **close)
    product = torch.eye(by_input.shape[2]).expand(len(dense), -1, -1)
    for operator in known.input_maps(t.x, t.before):
        product = torch.stack([operator.matvec(column) for column in product.unbind(2)], 2)
    torch.testing.assert_close(product, by_input)

    profile = radius_profile(network, x, steps=8)
    wanted = torch.linalg.eigvals(dense.detach()).abs().amax(1).view(8, 3)
    torch.testing.assert_close(profile.time[0], wanted, rtol=1e-9, atol=1e-7)
    assert sum(profile.contributions[0].values()) == pytest.approx(profile.time_mean.item(), rel=1e-6)
    along, _ = singular_values(network, x)
    torch.testing.assert_close(along[0], torch.linalg.matrix_norm(dense.detach(), 2).view(8, 3), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["Leaky, of each neuron", "norse LSNN", "RSynaptic, subtract, each", "Alpha, zero"])
def test_the_gradient_of_a_radius_is_that_of_the_dense_matrix(name):
    network, _, t = points_of(name)
    parameters = [p for p in network.cells[0].parameters() if p.requires_grad]
    found, wanted = (
        torch.autograd.grad(
            time_radius(t, 0, method).radius.sum(), parameters, materialize_grads=True, allow_unused=True
        )
        for method in ("krylov", "exact")
    )
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-9)


def test_exponents_of_blocks_are_those_of_the_products_of_dense_matrices():
    network, x, t = points_of("Synaptic, subtract")
    found = lyapunov_exponents(network, x, seed=3)
    steps = time_derivative_by_autograd(t).detach().unflatten(0, (8, 3))
    start = torch.randn(steps.shape[-1], 1, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    for sample in range(3):
        moved = start / start.norm()
        for m in steps[:, sample]:
            moved = m @ moved
        torch.testing.assert_close(found[0, sample, 0], moved.norm().log() / 8)


def test_one_to_one_recurrence_is_what_a_radius_is_due_to():
    layer = snn.RLeaky(0.5, V=torch.full((N,), 8.0), all_to_all=False, spike_grad=SPIKE)
    network = wrap([nn.Linear(N_IN, N), layer.double()])
    profile = radius_profile(network, 5 * torch.rand(20, 6, N_IN))
    assert profile.time_mean.item() > 1.2
    assert profile.main_term(0).name == "recurrence"
    assert profile.contributions[0]["leak or reset"] == pytest.approx(0.5, rel=1e-6)


COUPLED = {
    "RLeaky": lambda: [nn.Linear(N_IN, N), snn.RLeaky(0.9, linear_features=N)],
    "RSynaptic": lambda: [nn.Linear(N_IN, N), snn.RSynaptic(0.8, 0.9, linear_features=N)],
    "RLeaky, convolution": lambda: [snn.RLeaky(0.9, conv2d_channels=1, kernel_size=3)],
    "SLSTM": lambda: [snn.SLSTM(N_IN, N_IN)],
    "our LIF for snnTorch": lambda: [nn.Linear(N_IN, N), in_snntorch.LIF(0.9, N)],
    "quantised, by any function": lambda: [
        nn.Linear(N_IN, N),
        snn.Leaky(0.9, state_quant=lambda v: v - v.mean(1, True)),
    ],
    "LIFRecurrent": lambda: [norse.LIFRecurrent(N_IN, N)],
    "LSNNRecurrentCell": lambda: [norse.LSNNRecurrentCell(N_IN, N)],
    "LILinearCell": lambda: [norse.LILinearCell(N_IN, N)],
    "our LIF": lambda: [nn.Linear(N_IN, N), LIF(N, N)],
    "GRU": lambda: [nn.GRU(N_IN, N)],
}


@pytest.mark.parametrize("name", COUPLED)
def test_layers_whose_neurons_read_each_other_are_not_taken_apart(name):
    shape = (1, N_IN, N_IN) if "convolution" in name else (N_IN,)
    (cell,) = wrap(COUPLED[name](), input_shape=shape).cells
    assert cell.derivatives() is None


def test_a_step_that_a_user_changed_is_not_taken_apart():
    (cell,) = wrap([nn.Linear(N_IN, N), snn.Leaky(0.9)]).cells
    assert cell.derivatives() is not None
    cell.advance = lambda current, z, state: state._replace(mem=state.mem.flip(1))
    assert cell.derivatives() is None


def test_modules_that_are_not_affine_are_differentiated_where_they_are():
    def doubled(module, args, out):
        return out.square()

    torch.manual_seed(0)
    hooked = nn.Linear(N_IN, N)
    hooked.register_forward_hook(doubled)
    chains = {
        "one matrix": [nn.Linear(N_IN, 6), nn.BatchNorm1d(6), nn.Dropout(), nn.Linear(6, N)],
        "a rectifier": [nn.Linear(N_IN, N), nn.ReLU()],
        "a hook": [hooked],
    }
    for name, before in chains.items():
        network = wrap([*before, snn.Leaky(0.9)]).double().eval()
        (t,), _ = follow(network, 2 * torch.randn(4, 3, N_IN), torch.arange(4))
        first = t.cell.derivatives().input_maps(t.x, t.before)[0]
        assert first.same == (name == "one matrix")
        found = t.cell.derivatives().by_input(t.x, t.before).expand(12, -1, -1)
        torch.testing.assert_close(found, input_derivative_by_autograd(t), rtol=1e-9, atol=1e-9)


def test_deep_convolutions_have_the_radii_of_dense_matrices():
    torch.manual_seed(0)
    low = {"threshold": 0.1, "spike_grad": SPIKE}
    modules = [nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), snn.Leaky(0.5, **low), nn.Conv2d(2, 3, 2), snn.Leaky(0.9, **low)]
    network = wrap([*modules, nn.Flatten(), nn.Linear(27, 4), snn.Leaky(0.8, **low)], input_shape=(1, 10, 10)).double()
    x = 8 * torch.rand(5, 2, 100)
    fast, dense = (radius_profile(network, x, steps=5, method=method) for method in ("krylov", "exact"))
    assert all(rate > 0 for rate in fast.firing_rate)
    torch.testing.assert_close(fast.time, dense.time, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(fast.depth, dense.depth, rtol=0.01, atol=1e-9)


def test_pretraining_of_single_neurons_reaches_its_target():
    torch.manual_seed(0)
    network = wrap([nn.Linear(N_IN, 12), snn.Leaky(0.9, learn_beta=True)])
    x = 3 * torch.rand(12, 8, N_IN)
    result = pretrain(network, [x], target=0.5, direction="time", max_steps=60, samples=2, steps=4, progress=False)
    assert result.converged
    assert result.profile.time_mean.item() == pytest.approx(0.5, abs=0.02)


# ---- LIF and ALIF, whose neurons read each other


@pytest.mark.parametrize("kind", [LIF, ALIFPlus])
@pytest.mark.parametrize("shift", [0.7, 0.3 + 0.4j], ids=["real", "complex"])
def test_factors_solve_with_the_shifted_matrix_and_its_adjoint(kind, shift, make_network, make_spikes):
    network = make_network(kind, width=6, gain=6, tau_v=2.0, reset_gradient=True)
    t = follow(network, make_spikes(T=6, B=2), torch.arange(6))[0][1]
    dense = time_derivative(t)[7].detach()
    shift = torch.tensor(shift)
    m = dense.to(shift.dtype) - shift * torch.eye(len(dense))
    b = torch.randn(len(dense)).to(shift.dtype)
    one = t.cell.derivatives().state_map(t.x, t.before).take(torch.tensor([7]))
    factors = shifted_factors(one, shift)
    torch.testing.assert_close(m @ factors.solve(b), b)
    torch.testing.assert_close(m.mH @ factors.solve_adjoint(b), b)


# ---- isolated neurons


def blocks(m: Tensor, neurons: int) -> Tensor:
    """m (P, n, n) with all entries between different neurons put to 0."""
    variables = m.shape[1] // neurons
    return m * torch.eye(neurons).repeat(variables, variables)


@pytest.mark.parametrize(("kind", "right"), [(LIF, True), (ALIFPlus, True), (ALIFPlus, False), (ALIFLowPass, False)])
def test_isolated_neurons_are_the_diagonal_blocks_and_their_gain_is_bounded(kind, right, make_network, make_spikes):
    network = make_network(kind, width=6, gain=6, tau_v=2.0, reset_gradient=True)
    t = follow(network, make_spikes(T=6, B=2), torch.arange(6))[0][1]
    step, d = t.cell.linearised(t.before), blocks(time_derivative(t).detach(), 6)
    alone, largest = IsolatedNeurons.of(step), torch.linalg.eigvals(d).abs().amax(1)
    torch.testing.assert_close(alone.modulus.amax(1), largest)
    real = alone.real.gather(1, alone.modulus.argmax(1, keepdim=True)).squeeze(1)
    assert real.any()
    known = isolated_hint(step, right, 0.01)
    x, value, m = known.vector.unsqueeze(2)[real], known.value[real], (d if right else d.mT)[real]
    torch.testing.assert_close(value.abs(), largest[real])
    torch.testing.assert_close(m.to(x.dtype) @ x, value[:, None, None] * x)
    torch.testing.assert_close(x.norm(dim=1).squeeze(1), torch.ones(len(x)))

    radius = 1.05 * alone.modulus.amax(1, keepdim=True)
    bound, variables = alone.gain(radius).detach(), d.shape[1] // 6
    into = torch.eye(d.shape[1])[:, :6].to(torch.complex128)
    out = torch.cat((torch.eye(6), -torch.eye(6)), 1)[:, : 6 * variables].to(torch.complex128)
    found = torch.zeros_like(bound)
    for angle in torch.linspace(0, 3.14159, 40):
        for far in (1.0, 1.5):
            mu = torch.polar(far * radius, angle.expand_as(radius)).unsqueeze(2)
            g = alone.s * (out @ torch.linalg.inv(mu * torch.eye(d.shape[1]) - d) @ into).diagonal(dim1=1, dim2=2)
            found = torch.maximum(found, g.abs().detach())
    assert (found <= (1 + 1e-9) * bound).all()
    assert (found > 0.97 * bound).double().mean() > 0.9, "nor is it far above"


def slow_thresholds(n: int, coupling: float, seed: int = 0, *, strong: int | None = None) -> SpikingStep:
    """An ALIF layer with slow thresholds, of a given radius of its coupling; `strong` has the eigenvalue 1.2 alone."""
    g = torch.Generator().manual_seed(seed)
    w_rec = torch.randn(n, n, generator=g) * coupling / n**0.5
    decay, rise = 0.9 + 0.09 * torch.rand(n, generator=g), torch.full((n,), 0.001)
    if strong is not None:
        rise[strong], decay[strong] = -0.6, 0.6
        w_rec[strong], w_rec[:, strong] = 3 * w_rec[strong], 3 * w_rec[:, strong]
    s, zero = torch.ones(1, n), torch.zeros(1, n)
    into = torch.stack([torch.ones(n), torch.zeros(n)])
    blocks = alif_blocks(s, (zero, zero, zero), rise=rise, decay_theta=decay)
    return SpikingStep(blocks, torch.stack([s, -s], 1), w_rec, into)


def test_isolated_neurons_hold_the_radius_only_where_the_network_has_no_more():
    for seed in range(2):
        assert not isolated_hint(slow_thresholds(100, 1.05, seed), False, 0.01).largest.any()
        mild = isolated_hint(slow_thresholds(100, 0.4, seed), False, 0.01)
        assert mild.exists.all()
        assert mild.largest.all()


def test_an_eigenvalue_that_the_network_moves_is_not_taken():
    step = slow_thresholds(100, 0.4, strong=7)  # the largest eigenvalue is of a neuron that the others read
    known = isolated_hint(step, False, 0.01)
    assert known.value.abs() > 1.1
    assert not known.exists.any()
    assert not known.largest.any()
