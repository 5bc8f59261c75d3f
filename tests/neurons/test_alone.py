"""What is left of a time derivative when no neuron hears another: its diagonal blocks, and where
they are shown to hold the radius."""

import pytest
import torch
from torch import Tensor

from neurolsc import LIF, ALIFLowPass, ALIFPlus, ALIFPlusMinus
from neurolsc.neurons.derivatives import Linearised, SpikingStep
from neurolsc.neurons.isolated import Alone, _below_one, held_alone
from neurolsc.stability import arnoldi as radii_module
from neurolsc.stability.arnoldi import radii
from neurolsc.stability.profile import depth_radius, time_radius
from neurolsc.stability.transitions import OperatorProduct, Transitions, follow, time_derivative, time_product

pytestmark = pytest.mark.usefixtures("float64")


def blocks(m: Tensor, neurons: int) -> Tensor:
    """m (P, n, n) with all entries between different neurons put to 0."""
    variables = m.shape[1] // neurons
    return m * torch.eye(neurons).repeat(variables, variables)


@pytest.mark.parametrize("kind", [LIF, ALIFPlus, ALIFPlusMinus, ALIFLowPass])
@pytest.mark.parametrize("reset", ["subtract", "static", "zero"])
@pytest.mark.parametrize("right", [True, False], ids=["right", "left"])
def test_neurons_alone_are_the_diagonal_blocks_of_the_derivative(kind, reset, right, make_network, make_spikes):
    network = make_network(kind, width=6, gain=6, tau_v=2.0, reset=reset, reset_gradient=True)
    transitions, outputs = follow(network, make_spikes(T=6, B=2), torch.arange(6))
    t = transitions[1]
    assert 0 < outputs[1].mean() < 1
    d = blocks(time_derivative(t).detach(), 6)
    d = d if right else d.mT
    linearised = t.cell.linearised(t.before)
    largest = torch.linalg.eigvals(d).abs().amax(1)
    alone = Alone.of(linearised)
    torch.testing.assert_close(alone.modulus.amax(1), largest)
    real = alone.real.gather(1, alone.modulus.argmax(1, keepdim=True)).squeeze(1)
    assert real.any()
    known = held_alone(linearised, right, 0.01)
    x, value = known.vector.unsqueeze(2)[real], known.value[real]
    torch.testing.assert_close(value.abs(), largest[real])
    torch.testing.assert_close(d.to(x.dtype)[real] @ x, value[:, None, None] * x)
    torch.testing.assert_close(x.norm(dim=1).squeeze(1), torch.ones(len(x)))


def test_a_neuron_without_a_surrogate_derivative_is_its_leaks():
    n = 3
    s = torch.zeros(1, n)
    d, e = torch.full((1, n), 0.2), torch.full((1, n), 0.1)
    decay = torch.tensor([0.5, 0.9, 0.7])
    known = held_alone(Linearised(torch.randn(n, n), s, d, e, s, torch.ones(n), decay), True, 0.01)
    assert known.largest.all()
    torch.testing.assert_close(known.value.real, torch.tensor([0.9]))
    vector = known.vector[0].real
    torch.testing.assert_close(vector.abs() / vector.abs().max(), torch.tensor([0, 1 / 7, 0, 0, 1, 0]))


def test_of_a_neuron_that_keeps_all_alike_the_voltage_is_taken():
    zero, half = torch.zeros(1, 2), torch.full((1, 2), 0.5)
    linearised = Linearised(torch.randn(2, 2), zero, half, zero, zero, torch.ones(2), torch.tensor([0.5, 0.4]))
    assert held_alone(linearised, True, 0.01).vector.real.tolist() == [[1.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize("kind", [LIF, ALIFPlus, ALIFPlusMinus, ALIFLowPass])
@pytest.mark.parametrize("reset", ["subtract", "zero"])
def test_the_answer_of_a_neuron_to_a_current_is_bounded_beyond_its_eigenvalues(kind, reset, make_network, make_spikes):
    network = make_network(kind, width=9, gain=6, tau_v=2.0, reset=reset, reset_gradient=True)
    t = follow(network, make_spikes(T=6, B=2), torch.arange(6))[0][1]
    linearised = t.cell.linearised(t.before)
    alone = Alone.of(linearised)
    radius = 1.05 * alone.modulus.amax(1, keepdim=True)
    bound = alone.answer(linearised, radius).detach()
    d = blocks(time_derivative(t).detach(), 9)
    variables = d.shape[1] // 9
    into = torch.eye(d.shape[1])[:, :9].to(torch.complex128)
    out = torch.cat((torch.eye(9), -torch.eye(9)), 1)[:, : 9 * variables].to(torch.complex128)
    largest = torch.zeros_like(bound)
    for angle in torch.linspace(0, 3.14159, 60):
        for far in (1.0, 1.5):
            mu = torch.polar(far * radius, angle.expand_as(radius)).unsqueeze(2)
            resolvent = torch.linalg.inv(mu * torch.eye(d.shape[1]) - d)
            g = linearised.s * (out @ resolvent @ into).diagonal(dim1=1, dim2=2)
            largest = torch.maximum(largest, g.abs().detach())
    assert (largest <= (1 + 1e-9) * bound).all()
    assert (largest > 0.98 * bound).double().mean() > 0.9, "nor is it far above"


@pytest.mark.parametrize("size", [0.5, 0.9, 0.99, 1.01, 1.5])
def test_norms_below_one_are_shown_and_no_others(size):
    n = 100
    w, root = torch.randn(n, n, generator=torch.Generator().manual_seed(0)), 0.5 + torch.rand(4, n)
    norms = torch.linalg.matrix_norm(root.unsqueeze(2) * w * root.unsqueeze(1), 2)
    shown = _below_one(w, root * (size / norms).sqrt().unsqueeze(1))
    assert not shown.any() or size < 1
    assert shown.all() or size > 0.95


def test_no_weights_are_below_one():
    assert _below_one(torch.zeros(80, 80), torch.ones(2, 80)).all()


def step(n: int, coupling: float, seed: int = 0, points: int = 1) -> Linearised:
    """An ALIF layer with slow thresholds, of a given radius of its coupling."""
    g = torch.Generator().manual_seed(seed)
    w_rec = torch.randn(n, n, generator=g) * coupling / n**0.5
    s = torch.ones(points, n)
    decay = 0.9 + 0.09 * torch.rand(n, generator=g)
    zero = torch.zeros(points, n)
    return Linearised(w_rec, s, zero, zero, zero, torch.full((n,), 0.001), decay)


def exact(cycle: OperatorProduct, like: Tensor) -> Tensor:
    return torch.linalg.eigvals(cycle.matrices(like)).abs().amax(1)


@pytest.mark.parametrize("coupling", [0.1, 0.7, 0.95, 1.05, 1.5])
def test_leaks_and_networks_that_compete_for_the_radius(coupling):
    for seed in range(4):
        cycle = OperatorProduct([SpikingStep(step(100, coupling, seed))], 1)
        like = torch.zeros(1)
        with torch.no_grad():
            found = radii(cycle, like)
        torch.testing.assert_close(found.radius, exact(cycle, like), rtol=0.01, atol=0)


@pytest.mark.parametrize("grad", [False, True])
def test_where_leaks_hold_the_radius_no_product_is_made(grad):
    made = []

    class Counted(SpikingStep):
        def rmatvec(self, y: Tensor) -> Tensor:
            made.append(len(y))
            return super().rmatvec(y)

        def take(self, index: Tensor) -> "Counted":
            return Counted(super().take(index).step)

    cycle = OperatorProduct([Counted(step(100, 0.1, points=3))], 3)
    with torch.set_grad_enabled(grad):
        found = radii(cycle, torch.zeros(1))
    assert not found.exact.any()
    torch.testing.assert_close(found.radius, exact(cycle, torch.zeros(1)), rtol=1e-4, atol=0)
    assert made == [] or grad, "but for the gradient"


def test_what_neurons_alone_have_is_no_radius_where_the_network_has_more():
    for seed in range(4):
        known = held_alone(step(100, 1.05, seed), False, 0.01)
        assert not known.largest.any()
        mild = held_alone(step(100, 0.4, seed), False, 0.01)
        assert mild.exists.all()
        assert mild.largest.all()


def test_an_eigenvalue_that_the_network_moves_is_not_taken():
    one = step(100, 0.4)
    s, adaptation = one.s.clone(), one.adaptation.clone()
    s[:, 7], adaptation[7], decay = 1.0, -0.6, one.decay_theta.clone()
    decay[7] = 0.6  # the largest eigenvalue, 1.2, of a neuron that the others hear
    w_rec = one.w_rec.clone()
    w_rec[7], w_rec[:, 7] = 3 * w_rec[7], 3 * w_rec[:, 7]
    known = held_alone(one._replace(s=s, adaptation=adaptation, decay_theta=decay, w_rec=w_rec), False, 0.01)
    assert known.value.abs() > 1.1
    assert not known.exists.any()
    assert not known.largest.any()


def test_points_that_are_known_and_points_that_are_not_stand_where_they_belong():
    s = torch.cat([torch.full((1, 100), x) for x in (0.1, 15.0, 0.1, 15.0)])
    zero = torch.zeros(4, 100)
    cycle = OperatorProduct([SpikingStep(step(100, 0.1)._replace(s=s, d=zero, e=zero, r=zero))], 4)
    with torch.no_grad():
        known, found = cycle.known(False, 0.01), radii(cycle, torch.zeros(1))
    assert known.largest.tolist() == [True, False, True, False]
    values = exact(cycle, torch.zeros(1))
    assert values[3] > 1.2 > values[0]
    torch.testing.assert_close(found.radius, values, rtol=5e-3, atol=0)


@pytest.mark.parametrize("direction", ["time", "depth"])
def test_points_that_are_alike_are_measured_once(direction, make_network, make_spikes, monkeypatch):
    network = make_network(width=50, gain=4)
    x = make_spikes(T=8, B=3)
    x[:, 1] = x[:, 0]
    t = follow(network, x, torch.arange(2, 8))[0][1]
    counts = []
    monkeypatch.setattr(
        "neurolsc.stability.profile.radii",
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
    assert time_product(t).points == 18
