"""Radii of matrices: known values, invariances, a gradient right in float32, in clusters and under threads; by
squaring, LAPACK's values whatever the spectrum."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck

from neurolsc import ALIFPlus, ALIFPlusMinus, ALIFState, spectral_radius
from neurolsc.neurons.derivatives import lu_factors
from neurolsc.stability.eigen import bounded_radius, dominant_pairs, unit

pytestmark = pytest.mark.usefixtures("float64")

seeds, sizes = st.integers(0, 2**31), st.integers(1, 9)
# rounded: LAPACK does not converge for some float64 matrices below 1e-140
N = 100


def gaussian(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def radius_and_gradient(m: Tensor) -> tuple[Tensor, Tensor]:
    m = m.detach().requires_grad_()
    radius = spectral_radius(m)
    return radius.detach(), torch.autograd.grad(radius.sum(), m)[0]


def rotation(angle: float) -> Tensor:
    c, s = math.cos(angle), math.sin(angle)
    return torch.tensor([[c, -s], [s, c]])


def orthogonal(n: int = N) -> Tensor:
    return torch.linalg.qr(torch.randn(n, n))[0]


# ---- values


@pytest.mark.parametrize("r", [0.0, 1e-3, 7.5])
@pytest.mark.parametrize("angle", [0.0, 0.3, math.pi / 2, math.pi])
def test_rotation_scaled_by_r_has_radius_r(angle, r):
    torch.testing.assert_close(spectral_radius(r * rotation(angle)), torch.tensor(r))


@given(seeds, sizes, st.floats(-100, 100))
def test_is_homogeneous_and_similar_matrices_have_equal_radius(seed, n, c):
    m, q = gaussian(seed, n, n), torch.linalg.qr(gaussian(seed + 1, n, n)).Q
    torch.testing.assert_close(spectral_radius(c * m), abs(c) * spectral_radius(m), rtol=1e-9, atol=1e-9)
    p = q * (1 + torch.arange(n)) ** 0.5  # a change of base with condition number sqrt(n)
    torch.testing.assert_close(spectral_radius(p @ m @ torch.linalg.inv(p)), spectral_radius(m), rtol=1e-7, atol=1e-9)


# ---- gradient


def test_gradient_agrees_with_finite_differences_and_is_zero_at_zero():
    assert gradcheck(spectral_radius, gaussian(0, 2, 5, 5).requires_grad_())
    radius, gradient = radius_and_gradient(torch.zeros(2, 4, 4))
    assert not radius.any() and not gradient.any()


@given(seeds, st.integers(1, 30))
def test_terms_of_a_sum_share_the_radius_after_euler(seed, n):
    m = gaussian(seed, n, n)
    radius, gradient = radius_and_gradient(m)
    torch.testing.assert_close((gradient * m).sum(), radius, rtol=1e-6, atol=0)


@pytest.mark.parametrize("seed", [0, 4])
def test_equal_rows_on_which_lapack_may_not_converge(seed):
    row = torch.rand(64, generator=torch.Generator().manual_seed(seed)).mul_(2).sub_(1).mul_(0.17).double()
    both = torch.stack([row.expand(64, 64), torch.eye(64)])
    torch.testing.assert_close(spectral_radius(both), torch.stack([row.sum().abs(), torch.tensor(1.0)]))
    gradient = radius_and_gradient(both[0])[1]  # of rank 1: the right vector is 1, the left the row
    torch.testing.assert_close(gradient, (row / row.sum().abs()).unsqueeze(1).expand(64, 64))


def test_nearly_defective_matrices_have_a_finite_gradient_and_are_counted():
    jordan = torch.diag(torch.ones(8)) + torch.diag(torch.ones(7), 1)
    radius, gradient = radius_and_gradient(torch.stack((jordan, gaussian(0, 8, 8), jordan)))
    assert radius[0].item() == pytest.approx(1)
    assert gradient[[0, 2]].flatten(1).norm(dim=1).max() <= torch.finfo(torch.float64).eps ** -0.5 * 1.001


def relative_errors(single: Tensor, double: Tensor) -> Tensor:
    """Distance of the float32 gradients from the exact gradient of any eigenvalue within 1 % of the largest."""
    errors = []
    for m32, m64 in zip(single, double, strict=True):
        gradient = radius_and_gradient(m32)[1].double()
        eigenvalues, right = torch.linalg.eig(m64)
        left = torch.linalg.inv(right)  # rows y^H with y^H x = 1
        leading = eigenvalues.abs() >= 0.99 * eigenvalues.abs().max()
        phase = (eigenvalues.conj() / eigenvalues.abs())[leading]
        exact = torch.einsum("k,ki,jk->kij", phase, left[leading], right[:, leading]).real
        distance = (gradient - exact).flatten(1).norm(dim=1) / exact.flatten(1).norm(dim=1)
        errors.append(distance.min())
    return torch.stack(errors)


def transition_matrices(kind: type[ALIFPlus], n: int, count: int) -> Tensor:
    torch.manual_seed(0)
    cell = kind(n, n, tau_v=2.0)
    state = ALIFState(torch.randn(count, n), torch.rand(count, n))
    with torch.no_grad():
        return sum(cell.derivatives().by_state(None, state).values())


def test_gradient_in_float32_is_within_one_percent_of_the_exact_one():
    m = transition_matrices(ALIFPlusMinus, 80, 4)
    assert relative_errors(m.float(), m).max() < 0.01


@pytest.mark.parametrize("left", [0.0, 1e-18, 1e-30])
def test_inverse_iteration_survives_a_pivot_that_is_nearly_zero(left):
    """Equal slow leaks of a silent layer: the shifted matrix keeps a pivot far below its rounding error."""
    factors = lu_factors(torch.diag(torch.tensor([1.0, 0.5, left, 0.3])))
    x = torch.ones(4)
    for _ in range(2):
        x = unit(factors.solve(x))
    torch.testing.assert_close(x, torch.tensor([0.0, 0.0, 1.0, 0.0]), rtol=0, atol=1e-6)


# ---- by squaring


def dominant_values(h: Tensor) -> Tensor:
    """The values, of unit vectors that are eigenvectors."""
    value, vector, condition = dominant_pairs(h)
    assert (condition >= 1 - 1e-3).all()
    torch.testing.assert_close(vector.norm(dim=1), torch.ones(len(h), dtype=h.dtype))
    miss = ((h.to(vector.dtype) @ vector.unsqueeze(2)).squeeze(2) - value.unsqueeze(1) * vector).norm(dim=1)
    assert (miss <= 1.1e-3 * value.abs() + 1e-30).all()
    return value


def similar(values: Tensor) -> Tensor:
    """A matrix with some blocks on its diagonal, in another basis."""
    basis = torch.eye(len(values)) + gaussian(0, len(values), len(values)) / 8
    return basis @ values.double() @ torch.linalg.inv(basis)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_dominant_pairs_of_single_values_pairs_ties_rings_and_nilpotent_matrices(scale):
    one = torch.tensor([[0.9]])
    blocks = [
        torch.block_diag(one, torch.diag(torch.tensor([0.3, -0.2]))),
        torch.block_diag(-one, torch.diag(torch.tensor([0.3, -0.2]))),
        torch.block_diag(one, -one, one / 3),
        torch.block_diag(0.9 * rotation(1.0), one / 3),
        torch.block_diag(one, one * (1 - 1e-6), one / 3),
        torch.block_diag(0.9 * rotation(1.0), one),
        0.9 * torch.eye(3).roll(1, 0),
    ]
    value = dominant_values(torch.stack([similar(b) for b in blocks]) * scale) / scale
    torch.testing.assert_close(value.abs(), torch.full((7,), 0.9), rtol=1e-3, atol=0)
    assert value[3].imag.abs() > 0.7
    assert not dominant_values(torch.stack([torch.zeros(8, 8), torch.diag(torch.ones(7), 1)])).any()


def turned(m: Tensor, condition: float = 1.0) -> Tensor:
    """A similar matrix, far from normal where the condition number is large."""
    by = orthogonal(len(m)) @ torch.diag(torch.logspace(0, math.log10(condition), len(m)))
    return by @ m @ by.inverse()


def jordan_block(size: int) -> Tensor:
    return torch.eye(size) + torch.diag(torch.ones(size - 1), 1)


def above(large: Tensor, size: float = 0.9) -> Tensor:
    """A block above random eigenvalues of modulus up to `size`."""
    rest = N - len(large)
    return torch.block_diag(large, size * (0.5 + torch.rand(rest, 1) / 2) * orthogonal(rest))


BOUNDED = {
    "all eigenvalues on a ring": (lambda: orthogonal(), 1.0),
    "a ring above leaks": (
        lambda: torch.block_diag(1.02 * orthogonal(30), torch.diag(0.9 + torch.rand(70) / 10)),
        1.02,
    ),
    "equal leaks": (lambda: 0.95 * torch.eye(N), 0.95),
    "one value above a ring": (lambda: above(torch.tensor([[1.03]]), 1.0), 1.03),
    "a pair above a ring": (lambda: above(1.03 * rotation(1.0), 1.0), 1.03),
    "plus and minus": (lambda: above(torch.diag(torch.tensor([1.0, -1.0]))), 1.0),
}
SENSITIVE = {  # their powers lose digits
    "a Jordan block of five": lambda: turned(above(jordan_block(5), 0.8)),
    "far from normal": lambda: turned(above(torch.ones(1, 1), 0.95), 1e4),
    "farther from normal": lambda: turned(above(torch.ones(1, 1), 0.95), 1e9),
    "a long Jordan block": lambda: turned(jordan_block(N)),
    "a triangle": lambda: turned(torch.eye(N) + torch.randn(N, N).triu(1)),
}
UNBOUNDED = {
    "one cycle of all neurons, whose trace is 0": lambda: torch.eye(N).roll(1, 0),
    "nilpotent": lambda: turned(torch.randn(N, N).triu(1)),
    "zero": lambda: torch.zeros(N, N),
    "a chain with a weak end": lambda: torch.cat((1e-9 * torch.eye(N)[:1], torch.eye(N)[1:])).roll(1, 1),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_bounds_meet_on_hard_spectra(name):
    make, radius = BOUNDED[name]
    found = bounded_radius(torch.stack([make() for _ in range(3)]).float(), 0.01)
    assert found.settled.all()
    torch.testing.assert_close(found.value.abs(), torch.full((3,), radius), rtol=0.01, atol=0, check_dtype=False)


@pytest.mark.parametrize("name", SENSITIVE)
def test_bounds_of_sensitive_spectra_are_right_or_do_not_meet(name):
    value, _, met = bounded_radius(torch.stack([SENSITIVE[name]() for _ in range(3)]), 0.01)
    torch.testing.assert_close(value[met].abs(), torch.ones_like(value[met].real), rtol=0.01, atol=0)


@pytest.mark.parametrize("name", UNBOUNDED)
def test_bounds_do_not_meet_where_trace_or_digits_are_lost(name):
    found = bounded_radius(UNBOUNDED[name]().unsqueeze(0), 0.01)
    assert not found.settled.any() and not found.value.any()


# ---- sub-matrices and errors


def test_what_is_not_square_or_not_finite_is_refused():
    with pytest.raises(ValueError, match=r"square matrices \(\.\.\., N, N\), got \(2, 3, 4\)"):
        spectral_radius(torch.zeros(2, 3, 4))
    with pytest.raises(ValueError, match="needs finite matrices, got NaN or infinity"):
        spectral_radius(torch.tensor([[1.0, math.nan], [0.0, 1.0]]))


def test_subnormal_numbers_do_not_stop_lapack():
    assert spectral_radius(torch.tensor([[0.5, 5e-324], [1e-310, 0.25]])) == 0.5
