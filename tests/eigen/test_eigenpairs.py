"""Left and right eigenvectors that belong together."""

import pytest
import torch
from torch import Tensor

from neurolsc.eigen.eigenpairs import matched
from neurolsc.eigen.krylov import Dominant
from neurolsc.eigen.maps import Cycle
from neurolsc.eigen.radii import radii
from neurolsc.eigen.radius import leading_pair
from neurolsc.neurons.derivatives import Matrices

pytestmark = pytest.mark.usefixtures("float64")


def one(value: complex, *vector: complex) -> Dominant:
    x = torch.tensor([vector], dtype=torch.complex128)
    return Dominant(torch.tensor([value], dtype=torch.complex128), x / x.norm(), torch.tensor([True]))


@pytest.mark.parametrize(("overlap", "found"), [(1e-3, True), (1e-7, True), (1e-9, False), (1e-12, False), (0, False)])
def test_vectors_at_a_right_angle_are_no_pair(overlap, found):
    pairs = matched(one(0.9, 1.0, 0.0), one(0.9, overlap, 1.0), 1e-3)
    assert pairs.found.item() == found
    assert pairs.left.isfinite().all()
    if found:
        torch.testing.assert_close(inner(pairs.left, pairs.right), torch.ones(1, dtype=torch.complex128))


@pytest.mark.parametrize(("other", "found"), [(0.9005, True), (0.902, False)])
def test_values_that_differ_by_more_than_the_tolerance_are_no_pair(other, found):
    assert matched(one(0.9, 1.0, 0.5), one(other, 1.0, 0.2), 1e-3).found.item() == found


def test_the_other_of_a_complex_pair_is_turned():
    pairs = matched(one(0.5 + 0.5j, 1.0, 1j), one(0.5 - 0.5j, 1.0, -1j), 1e-3)
    assert pairs.found.all()
    torch.testing.assert_close(inner(pairs.left, pairs.right), torch.ones(1, dtype=torch.complex128))


def test_a_zero_matrix_has_complex_vectors_of_zeros():
    value, right, left = leading_pair(torch.zeros(3, 3))
    assert value == 0
    assert right.dtype == left.dtype == torch.complex128
    assert not right.any()
    assert not left.any()


def test_radii_of_small_matrices_are_all_said_to_be_dense():
    m = torch.eye(4).expand(3, -1, -1)
    exact = radii(Cycle([Matrices(m)], 3), m).exact
    assert exact.dtype == torch.bool
    assert exact.tolist() == [True] * 3


def inner(y: Tensor, x: Tensor) -> Tensor:
    return (y.conj() * x).sum(1)
