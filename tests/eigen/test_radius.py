"""Spectral radius: known values, invariances, and a gradient that is right in float32, in clusters
and under threads."""

import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor
from torch.autograd import gradcheck

import neurolsc
from neurolsc import (
    ALIFPlus,
    ALIFPlusMinus,
    ALIFState,
    largest_singular_value,
    random_submatrix,
    spectral_radius,
)
from neurolsc.eigen import radius_and_gradient
from neurolsc.eigen.vectors import unit
from neurolsc.neurons.derivatives import lu_factors

pytestmark = pytest.mark.usefixtures("float64")

seeds = st.integers(0, 2**31)
sizes = st.integers(1, 9)
# rounded: LAPACK does not converge for some float64 matrices below 1e-140
ELEMENTS = st.floats(-1e3, 1e3).map(lambda x: round(x, 9))


def gaussian(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotation(angle: float) -> Tensor:
    c, s = math.cos(angle), math.sin(angle)
    return torch.tensor([[c, -s], [s, c]])


# ---- values


@pytest.mark.parametrize("r", [0.0, 1e-3, 1.0, 7.5])
@pytest.mark.parametrize("angle", [0.0, 0.3, math.pi / 2, math.pi])
def test_rotation_scaled_by_r_has_radius_r(angle, r):
    torch.testing.assert_close(spectral_radius(r * rotation(angle)), torch.tensor(r))


def test_agrees_with_numpy_on_a_batch_and_keeps_its_shape():
    m = gaussian(0, 3, 4, 6, 6)
    expected = np.abs(np.linalg.eigvals(m.numpy())).max(-1)
    torch.testing.assert_close(spectral_radius(m), torch.from_numpy(expected))
    assert spectral_radius(m[0, 0]).shape == ()
    assert spectral_radius(m.float()).dtype == torch.float32


@given(seeds, sizes, st.floats(-100, 100))
def test_is_homogeneous(seed, n, c):
    m = gaussian(seed, n, n)
    torch.testing.assert_close(spectral_radius(c * m), abs(c) * spectral_radius(m), rtol=1e-9, atol=1e-9)


@given(seeds, sizes)
def test_similar_matrices_have_equal_radius(seed, n):
    m, q = gaussian(seed, n, n), torch.linalg.qr(gaussian(seed + 1, n, n)).Q
    p = q * (1 + torch.arange(n)) ** 0.5  # a change of base with condition number sqrt(n)
    torch.testing.assert_close(spectral_radius(p @ m @ torch.linalg.inv(p)), spectral_radius(m), rtol=1e-7, atol=1e-9)


@given(hnp.arrays(np.float64, sizes.map(lambda n: (n, n)), elements=ELEMENTS))
def test_is_not_above_the_largest_singular_value(m):
    m = torch.from_numpy(m)
    assert spectral_radius(m) <= largest_singular_value(m) * (1 + 1e-9) + 1e-12


@given(seeds, sizes, sizes)
def test_largest_singular_value_is_the_root_of_the_radius_of_m_m_transposed(seed, rows, columns):
    m = gaussian(seed, rows, columns)
    torch.testing.assert_close(largest_singular_value(m) ** 2, spectral_radius(m @ m.T), rtol=1e-9, atol=1e-12)


def test_glorot_and_orthogonal_weights_have_the_radii_of_the_paper():
    w = torch.stack([torch.nn.init.xavier_uniform_(torch.empty(128, 128)) for _ in range(20)])
    assert spectral_radius(w).mean().item() == pytest.approx(1.05, abs=0.03)  # lsc.md, parts 4 and 8
    assert largest_singular_value(w).mean().item() == pytest.approx(1.95, abs=0.04)
    q = torch.nn.init.orthogonal_(torch.empty(64, 64))
    torch.testing.assert_close(spectral_radius(q), torch.tensor(1.0))


# ---- gradient


@pytest.mark.parametrize("seed", range(5))
def test_gradient_agrees_with_finite_differences(seed):
    assert gradcheck(spectral_radius, gaussian(seed, 2, 5, 5).requires_grad_())


@pytest.mark.parametrize("n", [1, 2, 40])
def test_gradient_is_that_of_torchs_eigenvalues(n):
    m = gaussian(n, 6, n, n).requires_grad_()
    by_torch = torch.stack([torch.linalg.eigvals(single).abs().max() for single in m])
    weights = gaussian(1, 6)
    (expected,) = torch.autograd.grad(weights @ by_torch, m)
    (gradient,) = torch.autograd.grad(weights @ spectral_radius(m), m)
    torch.testing.assert_close(gradient, expected, rtol=1e-7, atol=1e-9)


def test_gradient_of_a_complex_pair_is_that_of_the_scale():
    m = (1.7 * rotation(0.8)).requires_grad_()
    (gradient,) = torch.autograd.grad(spectral_radius(m), m)
    torch.testing.assert_close(gradient, rotation(0.8) / 2)  # radius² = det


@given(seeds, st.integers(1, 30))
def test_terms_of_a_sum_share_the_radius_after_euler(seed, n):
    m = gaussian(seed, n, n)
    radius, gradient, capped = radius_and_gradient(m)
    torch.testing.assert_close((gradient * m).sum(), radius, rtol=1e-6, atol=0)
    assert not capped


@pytest.mark.parametrize("seed", [0, 4, 5, 6])
def test_equal_rows_on_which_lapack_may_not_converge(seed):
    row = torch.rand(64, generator=torch.Generator().manual_seed(seed)).mul_(2).sub_(1).mul_(0.17).double()
    both = torch.stack([row.expand(64, 64), torch.eye(64, dtype=torch.float64)])
    torch.testing.assert_close(spectral_radius(both), torch.stack([row.sum().abs(), torch.tensor(1.0).double()]))
    gradient = radius_and_gradient(both[0]).gradient  # of rank 1: the right vector is 1, the left the row
    torch.testing.assert_close(gradient, (row / row.sum().abs()).unsqueeze(1).expand(64, 64))


def test_zero_matrix_has_radius_and_gradient_zero():
    m = torch.zeros(2, 4, 4, requires_grad=True)
    radius = spectral_radius(m)
    (gradient,) = torch.autograd.grad(radius.sum(), m)
    assert not radius.any()
    assert not gradient.any()


@pytest.mark.parametrize("exponent", [-38, -30, -15, 0, 15, 30])
def test_gradient_does_not_depend_on_the_scale_in_float32(exponent):
    m = gaussian(0, 8, 8).float()
    gradient = radius_and_gradient(m * 10.0**exponent).gradient
    torch.testing.assert_close(gradient, radius_and_gradient(m).gradient, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("r", [0.3, -2.0])
def test_all_eigenvalues_equal(r, dtype):
    # of r I any vector is an eigenvector: a mean of projections, times the sign of r
    radius, gradient, capped = radius_and_gradient(r * torch.eye(12, dtype=dtype))
    assert radius.item() == pytest.approx(abs(r))
    mean = math.copysign(1, r) * gradient
    assert mean.trace().item() == pytest.approx(1, rel=1e-4)
    torch.testing.assert_close(mean, mean.T)
    assert torch.linalg.eigvalsh(mean).min() > -1e-5
    assert capped == 0


def test_nearly_defective_matrices_have_a_finite_gradient_and_are_counted():
    jordan = torch.diag(torch.ones(8)) + torch.diag(torch.ones(7), 1)
    radius, gradient, capped = radius_and_gradient(torch.stack((jordan, gaussian(0, 8, 8), jordan)))
    assert radius[0].item() == pytest.approx(1)
    assert gradient[[0, 2]].flatten(1).norm(dim=1).max() <= torch.finfo(torch.float64).eps ** -0.5 * 1.001
    assert capped == 2


def relative_errors(single: Tensor, double: Tensor) -> Tensor:
    """Distance of the float32 gradients from the exact gradient of any eigenvalue within 1 % of the
    largest."""
    errors = []
    for m32, m64 in zip(single, double, strict=True):
        gradient = radius_and_gradient(m32).gradient.double()
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


@pytest.mark.parametrize("n", [20, 80])
@pytest.mark.parametrize("kind", [ALIFPlus, ALIFPlusMinus])
def test_gradient_in_float32_is_within_one_percent_of_the_exact_one(kind, n):
    m = transition_matrices(kind, n, 8)
    assert relative_errors(m.float(), m).max() < 0.01


def test_gradient_in_float32_of_glorot_weights_is_within_one_percent():
    m = torch.stack([torch.nn.init.xavier_uniform_(torch.empty(160, 160)) for _ in range(8)])
    assert relative_errors(m.float(), m).max() < 0.01


def check_under_threads() -> None:
    """Runs in a process of its own: torch.set_num_threads acts on all of it."""
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(2)
    m = transition_matrices(ALIFPlus, 80, 3)
    m32 = m.float().requires_grad_()
    (batched,) = torch.autograd.grad(spectral_radius(m32).sum(), m32)
    for gradient, single in zip(batched, m32, strict=True):
        torch.testing.assert_close(gradient, radius_and_gradient(single).gradient)
    assert relative_errors(m.float(), m).max() < 0.01


@pytest.mark.slow
def test_gradient_is_right_after_set_num_threads_where_torchs_batched_lu_is_not():
    # pytorch#142815: from about 150 wide
    root = Path(neurolsc.__file__).parents[1]
    path = os.pathsep.join((str(Path(__file__).parent), str(root)))
    environment = os.environ | {"PYTHONPATH": path, "OMP_WAIT_POLICY": "passive"}  # passive: fast on a busy machine too
    command = [sys.executable, "-c", "import test_radius; test_radius.check_under_threads()"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


# ---- sub-matrices and errors


@pytest.mark.parametrize("shape", [(7, 4), (4, 7)])
def test_random_submatrix_takes_lines_of_the_longer_side_drawn_for_each_matrix(shape):
    m = torch.arange(56.0).view(2, *shape)

    def draw(seed: int) -> Tensor:
        return random_submatrix(m, torch.Generator().manual_seed(seed))

    def places(whole: Tensor, part: Tensor) -> list[int]:
        lines, chosen = (x.tolist() if shape[0] == 7 else x.T.tolist() for x in (whole, part))
        return [lines.index(line) for line in chosen]

    assert draw(0).shape == (2, 4, 4)
    assert torch.equal(draw(0), draw(0))
    drawn = [tuple(places(*pair)) for seed in range(300) for pair in zip(m, draw(seed), strict=True)]
    assert all(len(set(lines)) == 4 for lines in drawn)
    assert len(set(drawn)) > 300, "of 840 choices in order"
    assert drawn[0] != drawn[1]
    for line in range(7):  # each as often as any other: 4 of 7
        assert sum(line in lines for lines in drawn) / len(drawn) == pytest.approx(4 / 7, abs=0.07)


def test_random_submatrix_of_a_square_matrix_is_the_matrix():
    m = gaussian(0, 5, 5)
    assert torch.equal(random_submatrix(m, torch.Generator()), m)


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (5,)])
@pytest.mark.parametrize("function", [spectral_radius, radius_and_gradient])
def test_refuses_what_is_not_square_and_names_the_alternatives(function, shape):
    with pytest.raises(
        ValueError, match=r"square matrices \(\.\.\., N, N\), got.*largest_singular_value or random_subm"
    ):
        function(torch.zeros(shape))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("function", [spectral_radius, radius_and_gradient])
def test_refuses_nan_and_infinity(function, bad):
    m = torch.eye(3)
    m[1, 2] = bad
    with pytest.raises(ValueError, match="needs finite matrices, got NaN or infinity"):
        function(m)


def test_subnormal_numbers_do_not_stop_lapack(monkeypatch):
    """Eigenvalues by LAPACK may fail to converge where a matrix holds them; a number below 1e-307
    tells nothing."""
    asked, eigvals = [], torch.linalg.eigvals
    monkeypatch.setattr(torch.linalg, "eigvals", lambda m: asked.append(m) or eigvals(m))
    m = torch.tensor([[0.5, 5e-324], [1e-310, 0.25]], dtype=torch.float64)
    assert spectral_radius(m) == 0.5
    (given_to_lapack,) = asked
    assert torch.equal(given_to_lapack, torch.diag(m.diagonal()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128], ids=str)
def test_unit_vectors_of_any_size(dtype):
    largest = torch.finfo(dtype).max
    for size in (1e-3 * largest, 1.0, 1e-3 / largest):
        x = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=dtype) * size
        expected = torch.tensor([[0.6, 0.8], [0.0, 0.0]], dtype=dtype)
        torch.testing.assert_close(unit(x), expected if size > 1e-30 else unit(x))
        assert unit(x).isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("left", [0.0, 1e-18, 1e-30])
def test_inverse_iteration_survives_a_pivot_that_is_nearly_zero(left, dtype):
    """Equal slow leaks of a silent layer: the shifted matrix keeps a pivot far below its rounding
    error."""
    m = torch.diag(torch.tensor([1.0, 0.5, left, 0.3], dtype=dtype))
    factors = lu_factors(m)
    x = torch.ones(4, dtype=dtype)
    for _ in range(2):
        x = unit(factors.solve(x))
        assert factors.solve(x).abs().max() <= 1 / torch.finfo(dtype).eps
    torch.testing.assert_close(x, torch.tensor([0.0, 0.0, 1.0, 0.0], dtype=dtype), rtol=0, atol=1e-6)
