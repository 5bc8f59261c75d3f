"""The dominant pair of small matrices by repeated squaring is the one of LAPACK, whatever the
matrices are like."""

import math

import pytest
import torch
from torch import Tensor

from neurolsc.eigen import powers
from neurolsc.eigen.powers import dominant_pairs

TURN = torch.tensor([[math.cos(1.0), -math.sin(1.0)], [math.sin(1.0), math.cos(1.0)]])


def gaussian(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) / shape[-1] ** 0.5


def similar(values: Tensor) -> Tensor:
    """A matrix with some blocks on its diagonal, in another basis."""
    basis = torch.eye(len(values), dtype=torch.float64) + gaussian(len(values), len(values)) / 4
    return basis @ values.double() @ torch.linalg.inv(basis)


def checked(h: Tensor, tolerance: float) -> Tensor:
    """The values, of unit vectors that are eigenvectors."""
    value, vector, condition = dominant_pairs(h)
    assert (condition >= 1 - 1e-3).all()
    torch.testing.assert_close(vector.norm(dim=1), torch.ones(len(h), dtype=h.dtype))
    miss = ((h.to(vector.dtype) @ vector.unsqueeze(2)).squeeze(2) - value.unsqueeze(1) * vector).norm(dim=1)
    assert (miss <= tolerance * value.abs() + 1e-30).all()
    return value


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [1, 2, 3, 16, 48])
def test_gaussian_matrices(size, dtype):
    h = gaussian(200, size, size).to(dtype)
    largest = torch.linalg.eigvals(h.double()).abs().amax(1)
    torch.testing.assert_close(checked(h, 1.1e-3).abs().double(), largest, rtol=2e-3, atol=0)


@pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
def test_single_values_pairs_and_ties(scale):
    small = [torch.tensor([[0.3]]), torch.tensor([[-0.2]])]
    blocks = {
        "positive": [torch.tensor([[0.9]]), *small],
        "negative": [torch.tensor([[-0.9]]), *small],
        "both signs": [torch.tensor([[0.9]]), torch.tensor([[-0.9]]), small[0]],
        "complex": [0.9 * TURN, small[0]],
        "nearly equal": [torch.tensor([[0.9]]), torch.tensor([[0.9 * (1 - 1e-6)]]), small[0]],
        "three alike": [0.9 * TURN, torch.tensor([[0.9]])],
    }
    h = torch.stack([similar(torch.block_diag(*parts)) for parts in blocks.values()]) * scale
    value = checked(h, 1e-3) / scale
    torch.testing.assert_close(value.abs(), torch.full((6,), 0.9, dtype=torch.float64), rtol=1e-3, atol=0)
    assert value[3].imag.abs() > 0.7
    torch.testing.assert_close(value[:2].real, torch.tensor([0.9, -0.9], dtype=torch.float64))


def test_only_what_squaring_cannot_do_goes_to_lapack(monkeypatch):
    asked = []
    lapack = powers._by_lapack
    monkeypatch.setattr(powers, "_by_lapack", lambda h: asked.append(len(h)) or lapack(h))
    nilpotent = torch.diag(torch.ones(7, dtype=torch.float64), 1)
    ring = torch.roll(torch.eye(8, dtype=torch.float64), 1, 0)  # all eight values have modulus 1
    leaks = torch.diag(torch.linspace(0.1, 0.98, 8, dtype=torch.float64))
    value = checked(torch.stack([torch.zeros(8, 8, dtype=torch.float64), leaks, nilpotent, ring]), 1e-3)
    torch.testing.assert_close(value.abs(), torch.tensor([0.0, 0.98, 0.0, 1.0], dtype=torch.float64))
    assert asked == [3]
    steep = torch.triu(gaussian(50, 8, 8) * 30, 1) + leaks  # y^T H y may be far above every eigenvalue
    checked(steep, 1e-3)
    assert asked == [3]
    dominant_pairs(gaussian(300, 20, 20))
    assert sum(asked[1:]) <= 6
