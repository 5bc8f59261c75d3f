"""Eigenvalues that a basis leaves out: what is excluded is not there; what else a value needs."""

import math

import pytest
import torch
from torch import Tensor

from neurolsc.eigen import compiled, exclusion
from neurolsc.eigen import radii as radii_module
from neurolsc.eigen.acceptance import Acceptance
from neurolsc.eigen.basis import Basis, RitzPairs, widen
from neurolsc.eigen.exclusion import CHANCE, beyond, kernel
from neurolsc.eigen.krylov import dominant
from neurolsc.eigen.maps import Cycle
from neurolsc.eigen.radii import _by_products, radii
from neurolsc.neurons.derivatives import LinearOperator, Weights
from neurolsc.neurons.isolated import has_few
from tests.eigen.promise import check
from tests.eigen.random_layers import Dense, layer

pytestmark = pytest.mark.usefixtures("float64")


def gaussian(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) / shape[-1] ** 0.5


def basis(m: Tensor, q: Tensor, count: int) -> Basis:
    """Of one matrix."""
    made = Basis(lambda _: lambda x: x @ m.T, q.unsqueeze(0), count, 1e-6)
    made.follow(count)
    return made


# ---- the kernel


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("mu", [1.1, -0.8, 0.9 + 0.7j])
def test_the_kernel_is_that_of_the_smallest_polynomial_of_the_products(mu, plain, monkeypatch):
    if plain:
        monkeypatch.setattr(compiled, "at_hand", lambda _: False)
    m, q, steps = gaussian(0, 60, 60), gaussian(1, 60), 8
    q = q / q.norm()
    # p(x) = 1 + (x - mu) r(x): the smallest of q + (M - mu) (powers of M) q
    powers = [q.to(torch.complex128)]
    for _ in range(steps - 1):
        powers.append(m.to(torch.complex128) @ powers[-1])
    columns = torch.stack([m.to(torch.complex128) @ x - mu * x for x in powers], 1)
    least = torch.linalg.lstsq(columns, -q.to(torch.complex128).unsqueeze(1)).solution
    smallest = (columns @ least).squeeze(1) + q
    k = kernel(basis(m, q, steps).h, torch.tensor([[mu]], dtype=torch.complex128))
    assert k.shape == (1, steps + 1, 1)
    torch.testing.assert_close(k[0, -1, 0], smallest.norm() ** -2, rtol=1e-8, atol=0)


def test_at_an_eigenvalue_the_kernel_stays_below_what_its_left_vector_has_of_the_start():
    m, q = gaussian(2, 40, 40), gaussian(3, 40)
    q = q / q.norm()
    values, right = torch.linalg.eig(m)
    left = torch.linalg.inv(right)
    share = (left @ q.to(left.dtype)).abs() / left.norm(dim=1)
    k = kernel(basis(m, q, 30).h, values.unsqueeze(0))[0, -1]
    assert (k <= share**-2 * (1 + 1e-6)).all()
    off = kernel(basis(m, q, 30).h, 1.2 * values.abs().max() * torch.ones(1, 1).to(values.dtype))
    assert off[0, -1, 0] > 1e4 * 40, "of others it does not"


def test_a_basis_that_holds_all_of_the_start_excludes_all_else():
    few = torch.zeros(50)
    few[:3] = torch.tensor([1.0, 0.5, -0.2])
    made = basis(torch.diag(few), torch.ones(50), 20)
    shown = beyond(made.h, torch.ones(1, dtype=torch.complex128), 0.01, 50)
    assert shown.share.item() > 1e10


@pytest.mark.parametrize("chance", ["real", "complex"])
def test_the_chance_of_a_start_with_less_is_one_in_four_hundred(chance):
    g = torch.Generator().manual_seed(0)
    q = torch.randn(200_000, 2, generator=g)  # what y is along: one direction, or two of half the square each
    z = q[:, 0].abs() if chance == "real" else q.norm(dim=1) / 2**0.5
    assert 0.0015 < (z < CHANCE[chance]).double().mean() < 0.004


def test_an_eigenvalue_of_which_the_start_has_hardly_anything_is_waited_for():
    """A real one above a pair, of which the start has an 80th of its average part."""
    n = 152
    turn = torch.tensor([[math.cos(0.05), -math.sin(0.05)], [math.sin(0.05), math.cos(0.05)]])
    m = torch.block_diag(1.012 * torch.ones(1, 1), turn, 0.9 * gaussian(4, n - 3, n - 3))
    q = torch.randn(1, n, generator=torch.Generator().manual_seed(5))
    q[0, 0] = 0.0126
    found = dominant(lambda _: lambda x: x @ m.T, q, criteria=Acceptance.within(0.01))
    assert not found.settled.item() or found.value.abs().item() == pytest.approx(1.012, rel=1e-3)


def test_less_is_excluded_with_a_smaller_tolerance():
    made, one = basis(gaussian(6, 100, 100), gaussian(7, 100), 30), torch.ones(1, dtype=torch.complex128)
    shares = [beyond(made.h, one, tolerance, 100).share.item() for tolerance in (0.001, 0.01, 0.1)]
    assert shares[0] < shares[1] < shares[2]


# ---- what else counts


def pairs(value: float, residual: float, condition: float) -> RitzPairs:
    one = torch.ones(1)
    return RitzPairs(value * one + 0j, torch.ones(1, 4) / 2 + 0j, residual * one, condition * one)


CLEAR = torch.nn.functional.pad(0.5 * torch.eye(4), (0, 0, 1, 0)).unsqueeze(0)
"""H of a process that excludes all beyond 1"""


@pytest.mark.parametrize(
    ("value", "residual", "condition", "least", "counts"),
    [
        (1.0, 1e-4, 1.0, 0.0, True),
        (1.0, 6e-3, 0.1, 0.0, False),  # the residual
        (1.0, 1e-3, 1.9, 0.0, True),
        (1.0, 1e-3, 2.1, 0.0, False),  # with a sensitive value
        (1.0, 1e-12, 1e9, 0.0, False),  # rounding, in single precision
        (1.0, 1.0, 1e9, 0.997, True),  # not larger than a known one by half the tolerance
        (1.0, 1.0, 1e9, 0.99, False),
        (1e-3, 1e-6, 1.0, 0.0, False),  # far below the norm
    ],
)
def test_what_a_value_needs_to_count(value, residual, condition, least, counts, monkeypatch):
    monkeypatch.setattr(
        "neurolsc.eigen.acceptance.beyond", lambda *_: exclusion.Shown(2 * torch.ones(1), torch.ones(1))
    )
    known = least * torch.ones(1) + 0j
    h = CLEAR.float()
    assert Acceptance.within(0.01).met(pairs(value, residual, condition), h, 4, known)[0].item() == counts


def test_what_is_left_out_keeps_a_value_from_counting(monkeypatch):
    monkeypatch.setattr(
        "neurolsc.eigen.acceptance.beyond", lambda *_: exclusion.Shown(torch.ones(1) / 2, torch.ones(1))
    )
    done, more = Acceptance.within(0.01).met(pairs(1.0, 1e-5, 1.0), CLEAR.float(), 4, torch.zeros(1) + 0j)
    assert not done.item()
    assert more.item() == pytest.approx(math.log(2)), "products that it may take"


def test_products_too_small_to_be_squared_do_not_count():
    torch.manual_seed(0)
    m = (torch.randn(2, 100, 100) / 10).float()
    with torch.no_grad():
        for scale, counts in ((1.0, True), (1e-21, False)):
            cycle = Cycle([Dense(scale * m)], 2)
            settled = _by_products(cycle, m, Acceptance.within(0.01), torch.zeros(2), right=True).settled
            assert settled.tolist() == [counts, counts]
        tiny = radii(Cycle([Dense(1e-21 * m)], 2), m)
    largest = torch.linalg.eigvals((1e-21 * m).double()).abs().amax(1)
    torch.testing.assert_close(tiny.radius.double(), largest, rtol=0.01, atol=0)


def test_the_radius_of_nothing_is_known_at_once():
    m = torch.zeros(3, 120, 120)
    m[1] = gaussian(8, 120, 120)
    with torch.no_grad():
        found = radii(Cycle([Dense(m)], 3), m)
    assert not found.exact.any()
    torch.testing.assert_close(found.radius, torch.linalg.eigvals(m).abs().amax(1), rtol=0.01, atol=0)
    assert found.radius[0] == 0


# ---- small blocks


def test_rows_with_few_entries():
    rows = torch.zeros(5, 20)
    rows[1, 3] = 1
    rows[2, :4] = 1
    rows[3, :20] = 0.01
    rows[3, 5] = 1
    rows[4] = 1
    assert has_few(rows).tolist() == [False, True, False, True, False]


@pytest.mark.parametrize("weights", ["permutation", "identity + shift"])
def test_small_circles_through_weights_between_layers_are_not_left_to_products(weights):
    n = 100
    shift = torch.eye(n).roll(1, 0)
    w = torch.eye(n)[torch.randperm(n)] if weights == "permutation" else torch.eye(n) + 0.05 * shift
    assert Weights(w).splits
    assert not Weights(torch.randn(n, n)).splits
    assert not Weights(torch.randn(n, 80)).splits


def test_where_a_map_does_not_tell_some_rows_are_looked_at():
    n = 100
    chain = torch.eye(n) + 0.05 * torch.diag(torch.ones(n - 1), -1)
    m = torch.stack((gaussian(9, n, n), chain, gaussian(10, n, n)))
    cycle = Cycle([Dense(m)], 3)
    assert cycle.hears_few(m).tolist() == [False, True, False]
    with torch.no_grad():
        found = radii(cycle, m)
    assert found.exact[1]
    assert not found.exact[[0, 2]].all()
    torch.testing.assert_close(found.radius, torch.linalg.eigvals(m).abs().amax(1), rtol=0.01, atol=0)


def test_products_are_not_made_where_a_map_tells_of_small_blocks():
    class Told(Dense):
        splits = True

    m = gaussian(13, 3, 100, 100)
    assert Cycle([Told(m)], 3).hears_few(m).all()
    with torch.no_grad():
        assert radii(Cycle([Told(m)], 3), m).exact.all()


def test_a_large_map_that_does_not_tell_is_not_made_dense_for_that(monkeypatch):
    monkeypatch.setattr(radii_module, "FACTORED_BELOW", 10)
    m = torch.diag(torch.linspace(0.1, 1.0, 100)) + 0.01 * torch.eye(100).roll(1, 0)
    with torch.no_grad():
        assert not radii(Cycle([Dense(m.unsqueeze(0))], 1), m).exact.any()


def test_maps_tell_nothing_by_default():
    assert LinearOperator.splits is None


# ---- compiled loops


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_compiled_loops_are_the_plain_ones(dtype, monkeypatch):
    m, q = gaussian(11, 70, 70).to(dtype), gaussian(12, 6, 70).to(dtype)
    q[1, 5:] = 0  # a start that the process exhausts
    wide = torch.block_diag(m[:5, :5], m[5:, 5:])
    at = torch.polar(1.1 * torch.ones(6, 4), torch.linspace(0, 3, 4).expand(6, 4)).to(m.dtype.to_complex())

    def made() -> tuple[Tensor, Tensor, Tensor]:
        b = Basis(lambda _: lambda x: x @ wide.T, q, 20, 1e-6)
        b.follow(20)
        return b.vectors, b.h, kernel(b.h, at)[[0, 2, 3, 4, 5]]

    quick = made()
    monkeypatch.setattr(compiled, "at_hand", lambda _: False)
    tolerance = 1e-9 if dtype is torch.float64 else 5e-3
    for one, other in zip(quick, made(), strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance * other.abs().max().clamp(max=1).item())


def test_products_that_share_memory_with_the_basis_are_not_changed(monkeypatch):
    vectors, columns = torch.zeros(1, 3, 8), torch.zeros(1, 2, 3)
    vectors[0, 0, 0] = 1
    widen(vectors, columns, 1, vectors[:, 0])  # the identity, which returns what it is given
    assert vectors[0].tolist() == [[1.0] + [0.0] * 7, [0.0] * 8, [0.0] * 8]
    assert columns[0, 0].tolist() == [1.0, 0.0, 0.0]


# ---- layers on which radii were wrong


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
