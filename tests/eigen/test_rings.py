"""Rings of eigenvalues that products with vectors do not resolve: their radius is right, or it is
dense and counted."""

import math

import pytest
import torch
from torch import Tensor

from neurolsc import ALIFPlus, Network, radius_profile
from neurolsc.eigen import radii as radii_module
from neurolsc.eigen.acceptance import Acceptance
from neurolsc.eigen.eigenpairs import Pairs
from neurolsc.eigen.krylov import Dominant
from neurolsc.eigen.maps import Cycle
from neurolsc.eigen.powers import dominant_pairs
from neurolsc.eigen.radii import Radii, radii
from neurolsc.neurons.derivatives import Linearised, Matrices, SpikingStep
from neurolsc.neurons.isolated import hears_few
from neurolsc.surrogate import Rectangular

pytestmark = pytest.mark.usefixtures("float64")


def orthogonal(n: int) -> Tensor:
    return torch.linalg.qr(torch.randn(n, n))[0]


def found(m: Tensor, tolerance: float = 0.01) -> Radii:
    with torch.no_grad():
        return radii(Cycle([Matrices(m.float().expand(2, -1, -1))], 2), m.float(), tolerance)


def largest(m: Tensor) -> Tensor:
    return torch.linalg.eigvals(m.double()).abs().amax(-1)


def test_a_ring_above_the_leaks_of_a_layer_is_not_missed():
    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    settings = {"tau_theta": 20.0, "b_theta": 0.005, "adaptation": 0.01}
    cell = ALIFPlus(20, 256, recurrent_init="orthogonal", spike=Rectangular(1.0), **settings)
    radius = radius_profile(Network([cell], 5), torch.zeros(2, 1, 20))
    torch.testing.assert_close(radius.time, torch.full((1, 2, 1), 1.0053), rtol=0.01, atol=0)


@pytest.mark.parametrize("n", [200, 300])
@pytest.mark.parametrize("share", [0.05, 0.5, 1.0])
def test_rings_beside_leaks_as_bare_matrices(n, share):
    torch.manual_seed(1)
    k = int(share * n)
    m = torch.block_diag(1.02 * orthogonal(k), torch.diag(0.9 + 0.07 * torch.rand(n - k)))
    torch.testing.assert_close(found(m).radius.double(), torch.full((2,), 1.02), rtol=0.01, atol=0)


@pytest.mark.parametrize("scale", [0.95, 1.0, 1.05])
@pytest.mark.parametrize("silent", [20, 100])
def test_rings_beside_silent_neurons_of_a_layer(scale, silent):
    torch.manual_seed(2)
    n = 150
    s = torch.ones(2, n)
    s[:, :silent] = 0
    zero = torch.zeros(2, n)
    w = torch.block_diag(torch.zeros(silent, silent), scale * orthogonal(n - silent))
    step = Linearised(w, s, zero, zero, zero, torch.full((n,), 0.001), 0.9 + 0.07 * torch.rand(n))
    cycle = Cycle([SpikingStep(step)], 2)
    with torch.no_grad():
        radius = radii(cycle, s).radius
    torch.testing.assert_close(radius, largest(cycle.matrices(s)), rtol=0.01, atol=0)


@pytest.mark.parametrize("size", [0.01, 0.05, 0.3])
def test_a_circle_around_one(size):
    m = torch.eye(120) + size * torch.roll(torch.eye(120), 1, 0)
    torch.testing.assert_close(found(m).radius.double(), torch.full((2,), 1 + size), rtol=0.01, atol=0)


def test_circles_of_two_neurons_are_not_left_to_a_guess():
    torch.manual_seed(4)
    assert not hears_few(torch.randn(100, 100))
    assert not hears_few(orthogonal(100))
    assert not hears_few(torch.zeros(100, 100))
    assert hears_few(torch.eye(100)[torch.randperm(100)])
    one = torch.randn(100, 100)
    one[3, 7] = 50
    assert hears_few(one)


def test_values_too_sensitive_for_their_residual_do_not_count():
    # a chain of neurons that ends nowhere: all its eigenvalues are 0.5, those of the basis are not
    m = 0.5 * torch.eye(200) + torch.diag(torch.ones(199), 1)
    assert found(m).exact.all()
    torch.testing.assert_close(found(m).radius.double(), torch.full((2,), 0.5), rtol=0.01, atol=0)


@pytest.mark.parametrize("angle", [0.0, 1.0, math.pi])
def test_condition_numbers_are_those_of_the_eigenvectors(angle):
    torch.manual_seed(7)
    block = torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    inner = torch.block_diag(block if math.sin(angle) > 0.1 else block[:1, :1], 0.5 * torch.randn(6, 6) / 6**0.5)
    change = torch.eye(len(inner)) + torch.triu(torch.randn(len(inner), len(inner)), 1)
    m = change @ inner @ change.inverse()
    values, right = torch.linalg.eig(m)
    left, i = torch.linalg.inv(right), values.abs().argmax()
    expected = right[:, i].norm() * left[i].norm()
    torch.testing.assert_close(dominant_pairs(m.unsqueeze(0))[2], expected.unsqueeze(0), rtol=1e-2, atol=0)


def test_a_looser_tolerance_is_kept_and_costs_fewer_products():
    torch.manual_seed(5)
    m = torch.randn(6, 200, 200) / 200**0.5

    class Counted(Matrices):
        def rmatvec(self, y: Tensor) -> Tensor:
            made.append(len(y))
            return super().rmatvec(y)

        def take(self, index: Tensor) -> "Counted":
            return Counted(self.m[index])

    products = []
    for tolerance in (0.001, 0.01, 0.1):
        made: list[int] = []
        with torch.no_grad():
            got = radii(Cycle([Counted(m)], 6), m, tolerance)
        torch.testing.assert_close(got.radius, largest(m), rtol=tolerance, atol=0)
        products.append(sum(made))
    assert products[0] > products[1] > products[2]


@pytest.mark.parametrize("tolerance", [0.0, -1.0, 0.2, math.nan])
def test_a_tolerance_out_of_range_is_refused(tolerance):
    with pytest.raises(ValueError, match=r"tolerance must be above 0 and at most 0\.1, got"):
        found(torch.eye(100), tolerance)


def claimed(value: float, m: Tensor, monkeypatch: pytest.MonkeyPatch) -> Radii:
    """Radii with gradient where the search claims a value for the leading left vector."""
    values, vectors = torch.linalg.eig(m.T)
    y = vectors[:, values.abs().argmax()]
    true = torch.ones(1, dtype=torch.bool)
    said = Dominant(torch.tensor([value + 0j]), y.unsqueeze(0), true)
    monkeypatch.setattr(radii_module, "_dominant", lambda *_, **__: said)
    return radii(Cycle([Matrices(m.unsqueeze(0).requires_grad_())], 1), m)


def symmetric() -> Tensor:
    torch.manual_seed(6)
    q = orthogonal(100)
    return q @ torch.diag(torch.cat((torch.tensor([1.0, 0.8]), 0.5 * torch.rand(98)))) @ q.T


def test_a_gradient_of_a_far_smaller_eigenvalue_is_not_taken(monkeypatch):
    got = claimed(1.2, symmetric(), monkeypatch)  # the nearest eigenvalue is 1
    assert got.exact.all()
    torch.testing.assert_close(got.radius.detach(), torch.ones(1))


def test_a_larger_value_found_on_the_way_to_the_gradient_is_the_radius(monkeypatch):
    got = claimed(0.996, symmetric(), monkeypatch)
    assert not got.exact.any()
    torch.testing.assert_close(got.radius.detach(), torch.ones(1))


def test_strict_criteria_leave_some_of_the_tolerance():
    loose, strict = Acceptance.within(0.01), Acceptance.within(0.01, strict=True)
    assert strict.residual < loose.residual < 0.01


def test_a_pair_of_a_smaller_value_nearby_gives_the_gradient_and_not_the_radius(monkeypatch):
    torch.manual_seed(6)
    q, values = orthogonal(100), torch.cat((torch.tensor([1.0, 0.997]), 0.5 * torch.rand(98)))
    x = q[:, 1].to(torch.complex128).unsqueeze(0)
    pair = Pairs(torch.tensor([0.997 + 0j]), x, x, torch.ones(1, dtype=torch.bool))
    monkeypatch.setattr(radii_module, "pairs_near", lambda *_: pair)
    got = claimed(1.0, q @ torch.diag(values) @ q.T, monkeypatch)
    assert not got.exact.any()
    torch.testing.assert_close(got.radius.detach(), torch.ones(1))
