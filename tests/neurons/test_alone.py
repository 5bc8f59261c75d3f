"""What is left of a time derivative when no neuron hears another: its diagonal blocks, and what is guessed from them."""

import pytest
import torch
from torch import Tensor

from neurolsc import LIF, ALIFPlus, ALIFPlusMinus
from neurolsc.eigen import krylov
from neurolsc.eigen import radii as radii_module
from neurolsc.eigen.acceptance import Acceptance
from neurolsc.eigen.guess import Guess
from neurolsc.eigen.krylov import dominant
from neurolsc.eigen.maps import Cycle
from neurolsc.eigen.radii import radii
from neurolsc.neurons.alone import Alone
from neurolsc.neurons.linear_maps import GUESSES, SpikingStep
from neurolsc.neurons.linearised import Linearised
from neurolsc.stability.cycles import time_cycle
from neurolsc.stability.measure import depth_radius, time_radius
from neurolsc.stability.transition import Transitions, follow, time_derivative

pytestmark = pytest.mark.usefixtures("float64")


def blocks(m: Tensor, neurons: int) -> Tensor:
    """m (P, n, n) with all entries between different neurons put to 0."""
    variables = m.shape[1] // neurons
    return m * torch.eye(neurons).repeat(variables, variables)


@pytest.mark.parametrize("kind", [LIF, ALIFPlus, ALIFPlusMinus])
@pytest.mark.parametrize("reset", ["subtract", "static", "zero"])
@pytest.mark.parametrize("right", [True, False], ids=["right", "left"])
def test_neurons_alone_are_the_diagonal_blocks_of_the_derivative(kind, reset, right, make_network, make_spikes):
    network = make_network(kind, width=6, gain=6, tau_v=2.0, reset=reset, reset_gradient=True)
    transitions, outputs = follow(network, make_spikes(T=6, B=2), torch.arange(6))
    t = transitions[1]
    assert 0 < outputs[1].mean() < 1
    d = blocks(time_derivative(t).detach(), 6)
    d = d if right else d.mT
    alone = Alone(t.cell.linearised(t.before), right)
    torch.testing.assert_close(alone.values().abs().amax(1), torch.linalg.eigvals(d).abs().amax(1))
    value = torch.tensor(0.3 + 0.2j).expand(len(d))
    x = torch.complex(torch.randn(d.shape[:2]), torch.randn(d.shape[:2]))
    solved = alone.solve(x, value, torch.arange(len(d)))
    shifted = d - 0.3 * torch.eye(d.shape[1]) - 0.2j * torch.eye(d.shape[1])
    torch.testing.assert_close((shifted @ solved.unsqueeze(2)).squeeze(2), x)
    leading = alone.leading(3)
    torch.testing.assert_close(leading @ leading.mT, torch.eye(3).expand(len(d), 3, 3))
    values = alone.values().abs().topk(3, 1).values
    real = alone.values().imag.abs().amax(1) < 1e-12
    assert real.any()
    after = (leading @ d.mT)[real]
    torch.testing.assert_close(after.norm(dim=2), values[real])
    torch.testing.assert_close((after * leading[real]).sum(2).abs(), values[real])


def test_a_neuron_without_a_surrogate_derivative_is_its_leaks():
    n = 3
    s = torch.zeros(1, n)
    d, e = torch.full((1, n), 0.2), torch.full((1, n), 0.1)
    decay = torch.tensor([0.5, 0.9, 0.7])
    alone = Alone(Linearised(torch.randn(n, n), s, d, e, s, torch.ones(n), decay), True)
    torch.testing.assert_close(alone.values().real, decay.unsqueeze(0))
    (leading,) = alone.leading(1)[0]
    torch.testing.assert_close(leading.abs() / leading.abs().max(), torch.tensor([0, 1 / 7, 0, 0, 1, 0]))


def test_of_a_neuron_that_keeps_all_alike_the_voltage_is_guessed():
    zero, half = torch.zeros(1, 2), torch.full((1, 2), 0.5)
    alone = Alone(Linearised(torch.randn(2, 2), zero, half, zero, zero, torch.ones(2), torch.tensor([0.5, 0.4])), True)
    assert alone.leading(1).tolist() == [[[1.0, 0.0, 0.0, 0.0]]]


def step(n: int, coupling: float, seed: int = 0, points: int = 1) -> Linearised:
    """An ALIF layer with slow thresholds, of a given radius of its coupling."""
    g = torch.Generator().manual_seed(seed)
    w_rec = torch.randn(n, n, generator=g) * coupling / n**0.5
    s = torch.ones(points, n)
    decay = 0.9 + 0.09 * torch.rand(n, generator=g)
    zero = torch.zeros(points, n)
    return Linearised(w_rec, s, zero, zero, zero, torch.full((n,), 0.001), decay)


def exact(cycle: Cycle, like: Tensor) -> Tensor:
    return torch.linalg.eigvals(cycle.matrices(like)).abs().amax(1)


@pytest.mark.parametrize("coupling", [0.1, 0.7, 0.95, 1.05, 1.5])
def test_leaks_and_networks_that_compete_for_the_radius(coupling):
    for seed in range(4):
        cycle = Cycle([SpikingStep(step(100, coupling, seed))], 1)
        like = torch.zeros(1)
        with torch.no_grad():
            found = radii(cycle, like)
        torch.testing.assert_close(found.radius, exact(cycle, like), rtol=0.01, atol=0)


def test_where_leaks_hold_the_radius_the_first_look_settles_it(monkeypatch):
    made = []

    class Counted(SpikingStep):
        def transposed(self, y: Tensor) -> Tensor:
            made.append(len(y))
            return super().transposed(y)

        def take(self, index: Tensor) -> "Counted":
            return Counted(super().take(index).step)

    cycle = Cycle([Counted(step(100, 0.1, points=3))], 3)
    with torch.no_grad():
        found = radii(cycle, torch.zeros(1))
    torch.testing.assert_close(found.radius, exact(cycle, torch.zeros(1)), rtol=1e-4, atol=0)
    assert len(made) <= krylov.LOOKS[0] + GUESSES + krylov.CORRECTIONS


def test_as_many_other_points_are_other_points(monkeypatch):
    # the first two are held by leaks, need corrections and leave the basis; those that remain are as many, and others
    corrected = []
    solve = Alone.solve
    monkeypatch.setattr(Alone, "solve", lambda alone, x, value, at: corrected.append(at) or solve(alone, x, value, at))
    s = torch.cat([torch.full((2, 100), 7.0), torch.full((2, 100), 15.0)])
    zero = torch.zeros(4, 100)
    cycle = Cycle([SpikingStep(step(100, 0.1)._replace(s=s, d=zero, e=zero, r=zero))], 4)
    with torch.no_grad():
        found = radii(cycle, torch.zeros(1))
    values = exact(cycle, torch.zeros(1))
    assert values[3] > 1.2 > values[0]
    assert corrected[-1].tolist() == [0, 1]
    torch.testing.assert_close(found.radius, values, rtol=1e-3, atol=0)


def test_a_wrong_guess_does_no_harm():
    generator = torch.Generator().manual_seed(0)
    m = torch.randn(5, 100, 100, generator=generator) / 10
    wrong = torch.nn.functional.normalize(torch.randn(5, 1, 100, generator=generator), dim=2)
    guess = Guess(torch.full((5,), 9.0), wrong, lambda x, value, at: x)
    result = dominant(
        lambda x, at: (m[at] @ x.unsqueeze(2)).squeeze(2),
        torch.randn(5, 100, generator=generator),
        guess,
        criteria=Acceptance.within(0.01),
    )
    largest = torch.linalg.eigvals(m).abs().amax(1)
    torch.testing.assert_close(result.value.abs()[result.settled], largest[result.settled], rtol=0.01, atol=0)
    assert result.settled.sum() >= 3


@pytest.mark.parametrize("n", [60, 120])
def test_a_guess_counts_only_where_the_eigenvector_lies_in_it(n):
    diagonal = torch.cat([torch.ones(1), torch.linspace(0, 0.98, n - 1)])
    unit = torch.eye(n)

    def products(at: int) -> int:
        made = []
        guess = Guess(torch.ones(1), unit[None, at : at + 1], lambda x, value, points: x)
        start = torch.ones(1, n) + 0.1 * torch.randn(1, n)
        found = dominant(
            lambda x, _: made.append(x) or x * diagonal,
            start,
            guess,
            criteria=Acceptance.within(0.003),
            looks=(24, 36, 48),
        )
        torch.testing.assert_close(found.value.abs(), torch.ones(1), rtol=1e-3, atol=0)
        return len(made)

    assert products(0) == 25
    assert products(5) > 25 or n == 60, "there is but one look where the matrix is small"


@pytest.mark.parametrize("direction", ["time", "depth"])
def test_points_that_are_alike_are_measured_once(direction, make_network, make_spikes, monkeypatch):
    network = make_network(width=50, gain=4)
    x = make_spikes(T=8, B=3)
    x[:, 1] = x[:, 0]
    t = follow(network, x, torch.arange(2, 8))[0][1]
    counts = []
    monkeypatch.setattr(
        "neurolsc.stability.measure.radii",
        lambda cycle, like, tolerance: counts.append(cycle.points) or radii_module.radii(cycle, like, tolerance),
    )

    def measured(t: Transitions) -> Tensor:
        if direction == "time":
            return time_radius(t, 1).radius
        return depth_radius(t, 1, "submatrix", torch.Generator()).radius

    radius = measured(t)
    assert counts[0] <= 12, "of 18"
    exactly = time_radius(t, 1, "exact") if direction == "time" else depth_radius(t, 1, "submatrix", None, "exact")
    torch.testing.assert_close(radius, exactly.radius, rtol=0.01, atol=0)
    parameters = [t.cell.w_rec, t.cell.w_in]
    one_by_one = [
        torch.autograd.grad(r, parameters, allow_unused=True, materialize_grads=True, retain_graph=True)
        for r in exactly.radius
    ]
    together = torch.autograd.grad(radius.sum(), parameters, allow_unused=True, materialize_grads=True)
    for found, parts in zip(together, zip(*one_by_one, strict=True), strict=True):
        torch.testing.assert_close(found, sum(parts), rtol=0.05, atol=1e-3)


def test_first_layers_points_through_depth_are_one(make_network, make_spikes):
    network = make_network(width=50, gain=4)
    t = follow(network, make_spikes(T=8, B=3), torch.arange(2, 8))[0][0]
    found = depth_radius(t, 0, "singular", torch.Generator())
    assert found.radius.shape == found.exact.shape == (18,)
    assert time_cycle(t).points == 18
