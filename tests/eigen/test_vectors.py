"""Start vectors and unit vectors."""

import pytest
import torch

from neurolsc.eigen.vectors import start, unit


@pytest.mark.parametrize("default", [torch.float32, torch.float64])
def test_a_start_is_the_same_whatever_the_default_dtype(default):
    torch.set_default_dtype(default)
    drawn = start(6, torch.zeros(1, dtype=torch.float64))
    assert drawn.dtype == torch.float64
    assert torch.equal(drawn, torch.randn(6, generator=seeded(6), dtype=torch.float64))
    single = start(6, torch.zeros(1, dtype=torch.float32))
    assert single.dtype == torch.float32
    assert torch.equal(single, drawn.float())


def test_a_complex_start_has_real_and_imaginary_parts():
    drawn = start(6, torch.zeros(1, dtype=torch.complex64))
    assert drawn.dtype == torch.complex64
    assert drawn.real.all()
    assert drawn.imag.all()


def test_unit_vectors_have_norm_one_and_zeros_stay():
    x = torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    assert unit(x).tolist() == [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    torch.testing.assert_close(unit(torch.tensor([3j, 4.0])), torch.tensor([0.6j, 0.8]))


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
