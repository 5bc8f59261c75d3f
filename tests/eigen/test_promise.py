"""Radii at points of random layers: within 1 % of LAPACK in float64, or dense and said to be."""

import pytest
import torch

from neurolsc import ALIFPlus, Network, radius_profile
from neurolsc.surrogate import Rectangular
from tests.eigen.promise import ALL, by_family, survey, worst
from tests.eigen.random_layers import FAMILIES, KINDS, layer


@pytest.mark.slow
def test_a_ring_larger_than_the_leaks_is_seen():
    torch.manual_seed(0)
    spike = Rectangular(1.0)
    cell = ALIFPlus(20, 256, recurrent_init="orthogonal", spike=spike, tau_theta=20.0, b_theta=0.005, adaptation=0.01)
    network = Network([cell], 5)
    found = radius_profile(network, torch.zeros(6, 2, 20))
    exact = radius_profile(network, torch.zeros(6, 2, 20), method="exact")
    torch.testing.assert_close(found.time, exact.time, rtol=0.01, atol=0)


def test_a_layer_is_drawn_again_from_its_number():
    for number in (3, 5):
        first, again = layer(number), layer(number)
        assert [p.what for p in first] == [p.what for p in again]
        for one, other in zip(first, again, strict=True):
            assert torch.equal(one.matrices(torch.float64), other.matrices(torch.float64))


def test_both_forms_of_the_derivatives_are_the_same():
    for number in range(0, 720, 37):
        for points in layer(number):
            m = points.matrices(torch.float64)
            assert torch.allclose(points.matrices(torch.float32).double(), m, rtol=0, atol=1e-5 * m.abs().max())


def test_radii_of_some_random_layers_are_what_is_promised():
    rows = survey(range(0, 720, 31))
    assert sum(r.points for r in rows) > 200
    assert not any(r.wrong for r in rows), worst(rows, 5)


@pytest.mark.slow
def test_radii_of_all_random_layers_are_what_is_promised():
    rows = survey(range(ALL))
    assert sum(r.points for r in rows) >= 10_000
    layers = [r for r in rows if r.direction == "time"]
    assert sum(r.rate > 0.01 for r in layers) > len(layers) / 2, "most layers spike"
    assert ALL >= 500 and 5 * len(KINDS) * len(FAMILIES) <= ALL
    assert not any(r.wrong for r in rows), f"{by_family(rows)}\n\n{worst(rows)}"
