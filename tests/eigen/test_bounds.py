"""Radii between two bounds: right to the tolerance where that is said, whatever the spectrum."""

import math

import pytest
import torch
from torch import Tensor

from neurolsc import GRU, LSTM, RNN, Network, radius_profile
from neurolsc.eigen import bounds
from neurolsc.eigen import radii as radii_module
from neurolsc.eigen.krylov import Dominant
from neurolsc.eigen.maps import Cycle
from neurolsc.eigen.radii import radii
from neurolsc.neurons.derivatives import Matrices

pytestmark = pytest.mark.usefixtures("float64")

N = 100


def between(m: Tensor, tolerance: float) -> tuple[Tensor, Tensor]:
    """Radii, and where they are shown."""
    found = bounds.between(m, tolerance)
    return found.value.abs(), found.settled


def orthogonal(n: int = N) -> Tensor:
    return torch.linalg.qr(torch.randn(n, n))[0]


def with_values(values: Tensor) -> Tensor:
    """A symmetric matrix."""
    q = orthogonal(len(values))
    return q @ torch.diag(values) @ q.T


def turned(m: Tensor, condition: float = 1.0) -> Tensor:
    """A similar matrix, far from normal where the condition number is large."""
    by = orthogonal(len(m)) @ torch.diag(torch.logspace(0, math.log10(condition), len(m)))
    return by @ m @ by.inverse()


def jordan(value: float, size: int) -> Tensor:
    return value * torch.eye(size) + torch.diag(torch.ones(size - 1), 1)


def rotation(angle: float) -> Tensor:
    return torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])


def beside(large: Tensor, size: float = 0.9) -> Tensor:
    """A block above random eigenvalues of modulus up to `size`."""
    rest = N - len(large)
    return torch.block_diag(large, size * (0.5 + torch.rand(rest, 1) / 2) * orthogonal(rest))


SHOWN = {
    "all eigenvalues on a ring": (lambda: orthogonal(), 1.0),
    "a ring above leaks": (
        lambda: torch.block_diag(1.02 * orthogonal(30), torch.diag(0.9 + torch.rand(70) / 10)),
        1.02,
    ),
    "a cluster below one value": (lambda: with_values(torch.cat((torch.ones(1), 0.97 + 0.029 * torch.rand(99)))), 1.0),
    "equal leaks": (lambda: 0.95 * torch.eye(N), 0.95),
    "one value above a ring": (lambda: beside(torch.tensor([[1.03]]), 1.0), 1.03),
    "a pair above a ring": (lambda: beside(1.03 * rotation(1.0), 1.0), 1.03),
    "plus and minus": (lambda: beside(torch.diag(torch.tensor([1.0, -1.0]))), 1.0),
}
"""matrices and their radii"""
SENSITIVE = {
    "a Jordan block of two": (lambda: turned(beside(jordan(1.0, 2), 0.8)), 1.0),
    "a Jordan block of five": (lambda: turned(beside(jordan(1.0, 5), 0.8)), 1.0),
    "far from normal": (lambda: turned(beside(torch.ones(1, 1), 0.95), 1e4), 1.0),
    "farther from normal": (lambda: turned(beside(torch.ones(1, 1), 0.95), 1e9), 1.0),
    "a long Jordan block": (lambda: turned(jordan(1.0, N)), 1.0),
    "a triangle": (lambda: turned(torch.eye(N) + torch.randn(N, N).triu(1)), 1.0),
}
"""those whose powers lose digits"""


@pytest.mark.parametrize("name", SHOWN)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_radii_of_hard_spectra_are_shown_and_right(name, dtype):
    torch.manual_seed(0)
    make, radius = SHOWN[name]
    found, shown = between(torch.stack([make() for _ in range(3)]).to(dtype), 0.01)
    assert shown.all()
    torch.testing.assert_close(found, torch.full((3,), radius), rtol=0.01, atol=0)


@pytest.mark.parametrize("name", SENSITIVE)
def test_radii_of_sensitive_spectra_are_right_or_not_said(name):
    torch.manual_seed(0)
    make, radius = SENSITIVE[name]
    found, shown = between(torch.stack([make() for _ in range(3)]), 0.01)
    torch.testing.assert_close(found[shown], torch.full_like(found[shown], radius), rtol=0.01, atol=0)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_a_factor_is_a_factor_of_the_radius(scale):
    m = torch.randn(2, N, N).float()
    found, shown = between(scale * m, 0.01)
    assert shown.all()
    torch.testing.assert_close(found, scale * between(m, 0.01)[0], rtol=1e-6, atol=0)


NOT_SHOWN = {
    "one cycle of all neurons, whose trace is 0": lambda: torch.eye(N).roll(1, 0),
    "nilpotent": lambda: turned(torch.randn(N, N).triu(1)),
    "nothing": lambda: torch.zeros(N, N),
    "a chain with no end": lambda: torch.diag(torch.ones(N - 1), 1),
    "a chain with a weak end": lambda: torch.cat((1e-9 * torch.eye(N)[:1], torch.eye(N)[1:])).roll(1, 1),
}


@pytest.mark.parametrize("name", NOT_SHOWN)
def test_where_trace_or_digits_are_lost_nothing_is_said(name):
    found, shown = between(NOT_SHOWN[name]().unsqueeze(0), 0.01)
    assert not shown.any() and not found.any()


@pytest.mark.parametrize("tolerance", [0.1, 0.01, 0.003])
def test_radii_of_random_matrices_are_within_the_tolerance(tolerance):
    torch.manual_seed(1)
    random = torch.randn(20, N, N)
    steep = turned(torch.eye(N), 1e3)
    m = torch.cat((random, random.tril(3), random.triu(-3), steep @ random @ steep.inverse(), random.relu()))
    found, shown = between(m, tolerance)
    assert shown.double().mean() > 0.5
    torch.testing.assert_close(found[shown], torch.linalg.eigvals(m).abs().amax(1)[shown], rtol=tolerance, atol=0)


def test_a_tolerance_below_what_twelve_squarings_tell_is_not_met():
    assert not between(torch.randn(1, N, N), 1e-5)[1].any()


@pytest.mark.parametrize("make", [lambda n: RNN(n, n, activation="sigmoid"), lambda n: GRU(n, n), lambda n: LSTM(n, n)])
def test_untrained_wide_layers_go_no_dense_way(make):
    torch.manual_seed(0)
    network, x = Network([make(128).float()], 3).float(), torch.randn(3, 2, 128).float()
    found, exact = (radius_profile(network, x, method=method) for method in ("krylov", "exact"))
    assert not found.exact[0]
    torch.testing.assert_close(found.time, exact.time, rtol=0.01, atol=0)


def test_the_gradient_is_that_of_an_eigenvalue_as_large_as_the_radius():
    torch.manual_seed(0)
    m = torch.stack([(0.9 + 0.1 * torch.rand(150, 1)) * orthogonal(150) for _ in range(3)]).requires_grad_()
    found = radii(Cycle([Matrices(m)], 3), m)
    assert not found.exact.all()
    torch.testing.assert_close(found.radius.detach(), torch.linalg.eigvals(m).abs().amax(1), rtol=0.01, atol=0)
    (gradient,) = torch.autograd.grad(found.radius.sum(), m)
    torch.testing.assert_close((gradient * m).sum((1, 2)), found.radius, rtol=0.01, atol=0)  # Euler: homogeneous


def test_the_vector_is_that_of_the_largest_eigenvalue():
    torch.manual_seed(0)
    m = torch.stack([beside(large, 0.9) for large in (torch.ones(1, 1), -torch.ones(1, 1), rotation(1.0))])
    value, vector, settled = bounds.between(m, 0.01)
    assert settled.all()
    product = torch.complex(*((m @ part.unsqueeze(2)).squeeze(2) for part in (vector.real, vector.imag)))
    torch.testing.assert_close(product, value.unsqueeze(1) * vector, rtol=0, atol=0.003)


def test_where_bounds_do_not_meet_lapack_is_asked(monkeypatch):
    said = Dominant(
        torch.tensor([7.0 + 0j, 0j]), torch.zeros(2, N, dtype=torch.complex128), torch.tensor([True, False])
    )
    monkeypatch.setattr(radii_module, "between", lambda *_: said)
    m = orthogonal().expand(2, -1, -1)
    with torch.no_grad():
        found = radii(Cycle([Matrices(m)], 2), m)
    assert found.exact.tolist() == [False, True]
    torch.testing.assert_close(found.radius, torch.tensor([7.0, 1.0]))
