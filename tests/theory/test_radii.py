"""Expected radii of random matrices: sampled, integrated, and as the paper has them."""

import math

import pytest
import torch
from scipy import integrate, special

from neurolsc.theory import (
    chi_mean,
    expected_radius,
    gaussian,
    ginibre_modulus,
    ginibre_radius,
    glorot,
    he_relu,
    orthogonal,
)


@pytest.fixture(scope="module")
def complex_moduli() -> torch.Tensor:
    """Moduli of the eigenvalues of complex Gaussian matrices of 8 rows, E|m|^2 = 1 (samples, 8)."""
    draws = torch.randn(20_000, 8, 8, dtype=torch.complex128, generator=torch.Generator().manual_seed(0))
    return torch.linalg.eigvals(draws).abs()


def test_the_moduli_of_a_complex_matrix_are_as_a_set_those_of_independent_gammas(complex_moduli):
    mean = sum(ginibre_modulus(k) for k in range(1, 9)) / 8
    assert mean == pytest.approx(1.972, abs=5e-4)
    assert complex_moduli.mean().item() == pytest.approx(mean, abs=0.003)
    fourth = sum(k * (k + 1) for k in range(1, 9)) / 8
    assert complex_moduli.pow(4).mean().item() == pytest.approx(fourth, rel=0.01)
    assert sum(ginibre_modulus(k) for k in (1, 2)) / 2 == pytest.approx(1.108, abs=5e-4)


def test_the_radius_of_a_complex_matrix_is_the_largest_of_them(complex_moduli):
    radius = complex_moduli.amax(1)
    error = radius.std().item() / math.sqrt(len(radius))
    assert ginibre_radius(8) == pytest.approx(radius.mean().item(), abs=3.5 * error)
    assert ginibre_radius(8) > 1.08 * math.sqrt(8)


@pytest.mark.parametrize("n", [1, 2, 8, 30])
def test_its_mean_is_that_of_another_quadrature(n):
    k = torch.arange(1, n + 1).numpy()

    def above(r: float) -> float:
        return 1 - special.gammainc(k, r * r).prod()

    middle = math.sqrt(n)
    pieces = [
        integrate.quad(above, *ends, epsabs=1e-13, epsrel=1e-13)[0] for ends in ((0, middle), (middle, middle + 9))
    ]
    assert ginibre_radius(n) == pytest.approx(sum(pieces), rel=1e-10)


def test_lemma_1_is_right_to_leading_order_only():
    assert chi_mean(1) == pytest.approx(math.sqrt(2 / math.pi))
    assert ginibre_modulus(1) == pytest.approx(math.sqrt(math.pi) / 2)
    for k in (10, 100, 1000):
        assert chi_mean(k) / math.sqrt(k) == pytest.approx(1 - 1 / (4 * k), abs=1 / k**2)
        assert ginibre_modulus(k) / math.sqrt(k) == pytest.approx(1 - 1 / (8 * k), abs=1 / k**2)
    # "vanishing variance": of chi it tends to a half, of the moduli to a quarter
    assert 1000 - chi_mean(1000) ** 2 == pytest.approx(0.5, abs=1e-3)
    assert 1000 - ginibre_modulus(1000) ** 2 == pytest.approx(0.25, abs=1e-3)


def test_a_real_matrix_has_a_larger_radius_than_lemma_1_gives_it():
    found = expected_radius(gaussian, 8, samples=4000)
    assert found.mean == pytest.approx(1.06 * math.sqrt(8), abs=0.01 * math.sqrt(8))
    assert found.mean - 20 * found.error > chi_mean(8)
    one = expected_radius(gaussian, 1, samples=20_000)
    assert one.mean == pytest.approx(chi_mean(1), abs=4 * one.error)  # at n = 1 the lemma is right


# Corollary 1


@pytest.mark.parametrize("n", [2, 16, 64])
def test_orthogonal_layers_have_the_radius_one(n):
    found = expected_radius(orthogonal, n, samples=20)
    assert found.mean == pytest.approx(1, abs=1e-6) and found.error < 1e-6


def test_glorot_tends_to_one_from_above():
    found = [expected_radius(glorot, n, samples=samples) for n, samples in ((8, 4000), (32, 600), (128, 60))]
    assert found[0].mean > found[-1].mean  # 4 standard errors above
    assert all(1 + 5 * one.error < one.mean for one in found)
    assert found[-1].mean == pytest.approx(1.05, abs=0.02)


def test_he_has_the_radius_of_a_linear_layer_of_the_neurons_that_are_on():
    found = expected_radius(he_relu, 16, samples=8000)
    narrow = [0.0, *(expected_radius(gaussian, m, samples=1500).mean for m in range(1, 17))]
    wanted = sum(math.comb(16, m) / 2**16 * narrow[m] * math.sqrt(2 / 16) for m in range(17))
    assert found.mean == pytest.approx(wanted, abs=4 * found.error)
    wide = expected_radius(he_relu, 128, samples=100)
    assert wide.mean == pytest.approx(1.05, abs=0.02) and wide.mean > 1 + 4 * wide.error
