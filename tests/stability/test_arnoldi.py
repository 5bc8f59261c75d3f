"""Radii and gradients from products with vectors: within one per cent of LAPACK, or from it and counted as exact."""

import math

import pytest
import torch
from torch import Tensor, nn

from neurolsc import (
    LIF,
    ALIFPlus,
    ALIFPlusMinus,
    Network,
    radius_profile,
    spectral_radius,
    wrap,
)
from neurolsc.neurons.derivatives import Matrices
from neurolsc.stability import arnoldi as module
from neurolsc.stability.arnoldi import Basis, Radii, arnoldi, kernel, radii
from neurolsc.stability.profile import depth_radius, time_radius
from neurolsc.stability.transitions import OperatorProduct, Transitions, follow
from neurolsc.surrogate import Rectangular
from tests.stability.dense import time_derivative
from tests.stability.promise import ALL, check, survey
from tests.stability.random_layers import layer

pytestmark = pytest.mark.usefixtures("float64")


def gaussian(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) / shape[-1] ** 0.5


def orthogonal(n: int) -> Tensor:
    return torch.linalg.qr(torch.randn(n, n))[0]


def largest(m: Tensor) -> Tensor:
    return torch.linalg.eigvals(m.detach().double()).abs().amax(-1)


def found(m: Tensor) -> Radii:
    m = m if m.ndim == 3 else m.expand(2, -1, -1)
    return radii(OperatorProduct([Matrices(m)], len(m)), m)


def without_gradient(m: Tensor) -> Radii:
    with torch.no_grad():
        return found(m.float())


# ---- matrices


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_radii_and_gradients_of_gaussian_matrices(dtype):
    m = gaussian(0, 8, 120, 120).to(dtype).requires_grad_()
    fast, exact = found(m), spectral_radius(m)
    assert fast.exact.sum() <= 4
    torch.testing.assert_close(fast.radius, exact, rtol=0.01, atol=0)
    gradients = [torch.autograd.grad(r.sum(), m)[0] for r in (fast.radius, exact)]
    same = (fast.radius / exact - 1).abs() < 1e-5  # others are those of another eigenvalue within one per cent
    assert same.sum() > 5
    torch.testing.assert_close(gradients[0][same], gradients[1][same], rtol=1e-2, atol=1e-3)


def test_zero_identity_rotation_and_nilpotent_matrices():
    n = 90
    angle = torch.tensor([[math.cos(0.3), -math.sin(0.3)], [math.sin(0.3), math.cos(0.3)]])
    rotation = torch.block_diag(*[2 * angle] * (n // 2))
    m = torch.stack([torch.zeros(n, n), -0.5 * torch.eye(n), rotation, torch.diag(torch.ones(n - 1), 1)])
    m.requires_grad_()
    fast = found(m)
    torch.testing.assert_close(fast.radius.detach(), torch.tensor([0.0, 0.5, 2.0, 0.0]), rtol=1e-6, atol=0.05)
    assert fast.exact.tolist()[0] is False and fast.exact.tolist()[3] is True
    (gradient,) = torch.autograd.grad(fast.radius[:3].sum(), m)
    assert not gradient[0].any()
    terms = (gradient * m).sum((1, 2))  # Euler: the radius is homogeneous
    torch.testing.assert_close(terms[:3], fast.radius[:3], rtol=1e-6, atol=1e-9)


def test_zeros_and_products_too_small_to_be_squared():
    m = gaussian(8, 3, 120, 120)
    m[0], m[1] = 0, 1e-21 * m[1]
    got = without_gradient(m)
    torch.testing.assert_close(got.radius.double(), largest(m.float()), rtol=0.01, atol=0)
    assert not got.exact[0]


# ---- rings and chains


def test_permutations_and_small_circles():
    torch.manual_seed(0)
    loops = gaussian(3, 100, 100)
    loops[3, 7], loops[7, 3] = 8.0, 2.0  # two neurons above a random network
    signed = torch.eye(100)[torch.randperm(100)] * torch.randn(100).sign()
    m = torch.stack([torch.eye(100)[torch.randperm(100)], signed, loops])
    torch.testing.assert_close(without_gradient(m).radius.double(), largest(m), rtol=0.01, atol=0)


def test_a_ring_above_the_leaks_of_a_layer_is_not_missed():
    torch.set_default_dtype(torch.float32)
    settings = {"tau_theta": 20.0, "b_theta": 0.005, "adaptation": 0.01}
    cell = ALIFPlus(20, 256, recurrent_init="orthogonal", spike=Rectangular(1.0), **settings)
    radius = radius_profile(Network([cell], 5), torch.zeros(2, 1, 20))
    torch.testing.assert_close(radius.time, torch.full((1, 2, 1), 1.0053), rtol=0.01, atol=0)


# ---- what is left out


def basis(m: Tensor, q: Tensor, count: int) -> Basis:
    made = Basis(lambda _: lambda x: x @ m.T, q.unsqueeze(0), count)
    made.extend(count)
    return made


@pytest.mark.parametrize("mu", [-0.8, 0.9 + 0.7j])
def test_the_kernel_is_that_of_the_smallest_polynomial_of_the_products(mu):
    m, q, steps = gaussian(0, 60, 60), gaussian(1, 60), 8
    q = (q / q.norm()).to(torch.complex128)
    # p(x) = 1 + (x - mu) r(x): the smallest of q + (M - mu) (powers of M) q
    powers = [q]
    for _ in range(steps - 1):
        powers.append(m.to(torch.complex128) @ powers[-1])
    columns = torch.stack([m.to(torch.complex128) @ x - mu * x for x in powers], 1)
    least = torch.linalg.lstsq(columns, -q.unsqueeze(1)).solution
    smallest = (columns @ least).squeeze(1) + q
    k = kernel(basis(m, q.real, steps).h, torch.tensor([[mu]], dtype=torch.complex128))
    assert k.shape == (1, steps + 1, 1)
    torch.testing.assert_close(k[0, -1, 0], smallest.norm() ** -2, rtol=1e-8, atol=0)


def test_compiled_loops_are_the_plain_ones(monkeypatch):
    m, q = gaussian(11, 70, 70), gaussian(12, 6, 70)
    q[1, 5:] = 0  # a start that the process exhausts
    wide, made = torch.block_diag(m[:5, :5], m[5:, 5:]), []
    for compiled in (True, False):
        monkeypatch.setattr(module, "_has_loops", lambda _, compiled=compiled: compiled)
        made.append(Basis(lambda _: lambda x: x @ wide.T, q, 20))
        made[-1].extend(20)
    torch.testing.assert_close(made[0].h, made[1].h, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(made[0].vectors, made[1].vectors, rtol=1e-9, atol=1e-9)


def test_bases_stay_orthogonal_and_stop_at_a_breakdown():
    # nearly a multiple of the identity: what is new in each product is some 1e-5 of it
    n = 120
    made = basis(torch.eye(n).float() + 1e-5 * gaussian(1, n, n).float(), torch.ones(n).float(), 40)
    vectors = made.vectors[0][made.vectors[0].any(1)]
    assert len(vectors) > 1
    assert (vectors @ vectors.T - torch.eye(len(vectors)).float()).abs().max() < 1e-5
    few = torch.zeros(n)
    few[:3] = torch.tensor([3.0, -2.0, 1.0])
    result = arnoldi(lambda _: lambda x: x * few, gaussian(2, 1, n), torch.zeros(1) + 0j, 5e-7)
    assert result.settled.all()
    torch.testing.assert_close(result.value.real, torch.tensor([3.0]))


# ---- gradients


def test_the_gradient_of_a_ring_is_that_of_one_of_its_eigenvalues():
    m = torch.stack([(0.9 + 0.1 * torch.rand(150, 1)) * orthogonal(150) for _ in range(3)]).requires_grad_()
    got = found(m)
    assert not got.exact.all()
    torch.testing.assert_close(got.radius.detach(), largest(m), rtol=0.01, atol=0)
    (gradient,) = torch.autograd.grad(got.radius.sum(), m)
    torch.testing.assert_close((gradient * m).sum((1, 2)), got.radius, rtol=0.01, atol=0)  # Euler


# ---- layers


def second_layer(kind: type, scale: float = 1.0, n: int = 60, **settings: object) -> Transitions:
    torch.manual_seed(0)
    network = Network([kind(40, n, **settings), kind(n, n, **settings)], 3)
    with torch.no_grad():
        for cell in network.cells:
            cell.w_in.mul_(3)
            cell.w_rec.mul_(scale)
    transitions, outputs = follow(network, (torch.rand(30, 3, 40) < 0.3).double(), torch.arange(4, 30, 8))
    assert all(0 < z.mean() < 1 for z in outputs)
    return transitions[1]


REGIMES = {
    "plus-minus": (ALIFPlusMinus, {}),
    "recurrence": (ALIFPlus, {"scale": 20.0, "adaptation": 0.1}),
    "slow voltage": (ALIFPlus, {"tau_v": 20.0, "reset_gradient": True}),
    "LIF": (LIF, {"tau_v": 2.0, "threshold": 0.2, "n": 100}),
}


@pytest.mark.parametrize("regime", REGIMES)
def test_radii_are_right_and_gradients_those_of_an_eigenvalue_within_one_per_cent(regime):
    kind, settings = REGIMES[regime]
    t = second_layer(kind, **settings)
    m = time_derivative(t).detach()
    exact = largest(m)
    with torch.no_grad():
        fast = time_radius(t, 1)
    assert fast.exact.sum() < len(m) / 4
    torch.testing.assert_close(fast.radius, exact, rtol=0.01, atol=0)
    parameters = [p for p in t.cell.parameters() if p is not t.cell.w_in]

    def flat_gradient(value: Tensor) -> Tensor:
        gradients = torch.autograd.grad(value, parameters, retain_graph=True, materialize_grads=True, allow_unused=True)
        return torch.cat([g.flatten() for g in gradients])

    radius = time_radius(t, 1).radius
    values, right = torch.linalg.eig(m)
    left = torch.linalg.inv(right)
    for i in range(0, len(m), 6):
        gradient, distances = flat_gradient(radius[i]), []
        for k in (values[i].abs() >= 0.99 * exact[i]).nonzero().flatten():
            # the product of Re(conj(l)/|l| y^H dM x) with the dense derivative's own gradient
            slope = (values[i, k].conj() / values[i, k].abs() * torch.outer(left[i, k], right[i, :, k])).real
            expected = flat_gradient((time_derivative(t.at(slice(i, i + 1)))[0] * slope).sum())
            distances.append((gradient - expected).norm() / expected.norm())
        assert min(distances) < 1e-5


@pytest.mark.parametrize("large", [False, True], ids=["factorised", "two bases"])
def test_convolutional_layers_of_another_library(large, monkeypatch):
    snn = pytest.importorskip("snntorch")
    if large:
        monkeypatch.setattr(module, "FACTORED_BELOW", 10)
    first = snn.RLeaky(beta=0.9, init_hidden=True, conv2d_channels=4, kernel_size=3)
    second = snn.Leaky(beta=0.8, init_hidden=True, reset_delay=False)
    below, above = nn.Conv2d(1, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
    network = wrap([below, first, above, second, nn.Flatten(), nn.Linear(196, 3)], input_shape=(1, 7, 7))
    transitions, outputs = follow(network, (torch.rand(9, 2, 49) < 0.4).double() * 4, torch.tensor([3, 7]))
    assert all(z.any() for z in outputs)
    parameters = [first.recurrent.weight, above.weight]
    for radius in (
        lambda method: time_radius(transitions[0], 0, method),
        lambda method: depth_radius(transitions[1], 1, "submatrix", torch.Generator(), method),
    ):
        fast, exact = radius("krylov"), radius("exact")
        torch.testing.assert_close(fast.radius, exact.radius, rtol=0.01, atol=0)
        gradients = [
            torch.autograd.grad(r.radius.sum(), parameters, allow_unused=True, materialize_grads=True)
            for r in (fast, exact)
        ]
        for of_fast, of_exact in zip(*gradients, strict=True):
            torch.testing.assert_close(of_fast, of_exact, rtol=1e-2, atol=1e-3)
        assert any(g.any() for g in gradients[0])


# ---- random layers


@pytest.mark.parametrize(
    ("number", "direction"),
    [
        pytest.param(1414, "depth", id="nilpotent: rounding has eigenvalues of its own"),
        pytest.param(1736, "time", id="a neuron's value corrected to none of the eigenvalues"),
        pytest.param(1593, "time", id="a start with hardly a part in the largest"),
        pytest.param(1173, "depth", id="chains through the input weights"),
        pytest.param(1102, "depth", id="chains in layers without a closed form"),
        pytest.param(346, "depth", id="such chains of neurons all alike"),
        pytest.param(2434, "depth", id="next to nothing"),
    ],
)
def test_layers_on_which_radii_were_wrong(number, direction):
    torch.set_default_dtype(torch.float32)
    (points,) = [p for p in layer(number) if p.direction == direction]
    assert not check(points).wrong.any()


def test_radii_of_some_random_layers_are_right():
    torch.set_default_dtype(torch.float32)
    rows = survey(range(0, 720, 61))
    assert sum(r.points for r in rows) > 100
    assert not [r for r in rows if r.wrong]


@pytest.mark.long
def test_radii_of_all_random_layers_are_right():
    torch.set_default_dtype(torch.float32)
    rows = survey(range(ALL))
    assert sum(r.points for r in rows) >= 1_400
    layers = [r for r in rows if r.direction == "time"]
    assert sum(r.rate > 0.01 for r in layers) > len(layers) / 2, "most layers spike"
    assert not [r for r in rows if r.wrong]
