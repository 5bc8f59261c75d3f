"""Truncated models and truncated gradients: bounds against true errors, closed forms, runs with detached states."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from neurolsc import LIF, LRU, LSTM, RNN, ALIFPlus, Cell, Network
from neurolsc.neurons.derivatives import flat
from neurolsc.stability import (
    certificate,
    gradient_bounds,
    parameter_gradients,
    project,
    truncated_states,
    truncation_errors,
)
from neurolsc.stability.truncation import GradientBounds
from neurolsc.tasks import Classification
from tests.stability.linear_cell import Linear

pytestmark = pytest.mark.usefixtures("float64")


def scalar(a: float, b: float = 1.0, activation: str = "linear") -> RNN:
    """h[t] = a h[t-1] + b x[t]."""
    cell = RNN(1, 1, activation=activation)
    with torch.no_grad():
        for p, value in ((cell.w_rec, a), (cell.w_in, b), (cell.bias, 0.0)):
            p.fill_(value)
    return cell


# ---- states


def test_truncated_states_are_those_of_a_run_over_the_last_inputs():
    for cell in (LSTM(3, 4), ALIFPlus(3, 4, tau_v=5.0), LRU(3, 4).eval()):
        x = 3 * torch.rand(12, 2, 3)
        for context in (0, 1, 5, 12, 20):
            states = truncated_states(cell, x, context)
            for t in (0, 3, 11):
                state = cell.initial_state(2)
                for frame in x[max(0, t + 1 - context) : t + 1]:
                    state = cell.update(frame, cell.output(state), state)
                torch.testing.assert_close(states[t], flat(state))


def grid_cell(kind: str, seed: int, rate: float) -> Cell:
    torch.manual_seed(seed)
    if kind == "LRU":
        cell: Cell = LRU(3, 8).eval()
        cell.modulus = cell.modulus.clamp(max=rate)
        return cell
    cell = LSTM(3, 8) if kind == "LSTM" else RNN(3, 8, activation=kind)
    with torch.no_grad():
        for p in cell.parameters():
            p.normal_()
    project(cell, 1.0, rate=rate)
    return cell


@pytest.mark.parametrize("rate", [0.7, 0.95])
@pytest.mark.parametrize("kind", ["linear", "tanh", "relu", "LSTM", "LRU"])
def test_the_true_error_of_truncation_respects_lemma_1(kind: str, rate: float):
    for seed in range(2):
        cell = grid_cell(kind, seed, rate)
        x = torch.randn(60, 4, 3)
        x = x / (x.abs().amax(2, keepdim=True) if kind == "LSTM" else x.norm(dim=2, keepdim=True))
        sure, full = certificate(cell, 1.0), truncated_states(cell, x, 60)
        assert sure.rate <= rate + 1e-9
        assert full.norm(p=sure.norm, dim=2).max() <= sure.state_bound or kind == "LRU"
        errors = []
        for context in (1, 2, 4, 8, 16, 32):
            error = (full - truncated_states(cell, x, context)).norm(p=sure.norm, dim=2).max().item()
            assert error <= sure.truncation_error(context)
            errors.append(error)
        assert errors[0] > 1e-6


def test_lemma_1_is_sharp_for_a_scalar_system_with_constant_input():
    cell, x = scalar(0.9, 2.0), torch.full((400, 1, 1), 3.0)
    sure = certificate(cell, 3.0)
    for context in (0, 5, 50):
        error = (truncated_states(cell, x, 400) - truncated_states(cell, x, context)).abs().max().item()
        assert error == pytest.approx(sure.truncation_error(context), rel=1e-9)
    assert sure.truncation_error(5) == pytest.approx(0.9**5 * 6 / 0.1)


@pytest.mark.parametrize(("tolerance", "lipschitz"), [(1e-3, 1.0), (0.1, 7.0), (59.9, 1.0), (60.1, 1.0)])
def test_the_needed_context_is_the_least_that_keeps_the_bound(tolerance: float, lipschitz: float):
    sure = certificate(scalar(0.9, 2.0), 3.0)
    k = sure.context(tolerance / lipschitz)
    assert lipschitz * sure.truncation_error(k) <= tolerance
    assert k == 0 or lipschitz * sure.truncation_error(k - 1) > tolerance
    assert certificate(scalar(0.0), 3.0).context(tolerance) == int(tolerance < 3)


# ---- gradients of an unstable and of a stable scalar system


def identity_gradient(a: float, steps: int) -> float:
    """The gradient by a of half the squared error of h[T], inputs and targets 1: Proposition 1, eq. 6."""
    h = (1 - a**steps) / (1 - a)
    return (h - 1) * ((1 - a**steps) / (1 - a) ** 2 - steps * a ** (steps - 1) / (1 - a))


def by_iteration(a: float, steps: int) -> float:
    cell = scalar(a)
    z, _ = cell.run(torch.ones(steps, 1, 1), cell.initial_state(1))
    (gradient,) = torch.autograd.grad((z[-1] - 1).square().sum() / 2, cell.w_rec)
    return gradient.item()


@pytest.mark.parametrize("a", [-1.3, -0.4, 0.5, 1.5, 4.0])
def test_the_gradient_of_proposition_1_is_that_of_the_iteration(a: float):
    for steps in (2, 7, 20):
        assert identity_gradient(a, steps) == pytest.approx(by_iteration(a, steps), rel=1e-9)
    # the source has T a^(2T-3) for large T, without the factor (a / (a - 1))²
    if a > 1:
        assert identity_gradient(a, 120) == pytest.approx(120 * a**237 * (a / (a - 1)) ** 2, rel=0.04)


def test_descent_diverges_from_outside_of_the_stable_region_and_converges_from_inside_proposition_1():
    courses = {}
    for start in (1.5, 0.5):
        a, gradients = start, []
        for i in range(1, 200):
            gradients.append(abs(by_iteration(a, 4)))
            if gradients[-1] > 1e60:
                break
            a -= 0.3 / i * identity_gradient(a, 4)
        courses[start] = abs(a), gradients
    far, gradients = courses[1.5]
    assert far > 1e3 and gradients == sorted(gradients) and gradients[-1] > 1e60
    near, gradients = courses[0.5]
    assert near < 0.1 and gradients[-1] < 0.1 * gradients[0]


@pytest.mark.parametrize("a", [0.3, 0.9])
def test_lemma_2_of_a_scalar_system_is_its_closed_form(a: float):
    steps, cell = 400, scalar(a)
    x = torch.ones(steps, 1, 1)
    bounds = gradient_bounds(cell, 1.0, loss_lipschitz=1.0, loss_smoothness=0.0)
    for k in (1, 3, 10, 40):
        full, cut = (truncated_states(cell, x, context)[-1].sum() for context in (steps, k))
        apart = torch.autograd.grad(full - cut, cell.w_rec)[0].item()
        assert apart == pytest.approx(k * a ** (k - 1) / (1 - a) + a**k / (1 - a) ** 2, rel=1e-6)
        assert apart <= bounds.truncation(k) + 1e-14  # rounding


# ---- gradients and weights of a stable system


def smooth_rnn(activation: str, rate: float, seed: int = 0) -> RNN:
    torch.manual_seed(seed)
    cell = RNN(2, 5, activation=activation)
    project(cell, 1.0, rate=rate)
    return cell


def loss_gradient(cell: RNN, x: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
    z, _ = cell.run(x, cell.initial_state(x.shape[1]))
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss(z[-1]), list(cell.parameters()))])


LOSSES: dict[str, tuple[Callable[[Tensor], Tensor], float, float]] = {  # with constants L and P
    "linear": (lambda h: h.sum() / math.sqrt(5), 1.0, 0.0),
    "log cosh": (lambda h: torch.log(torch.cosh(h - 0.3)).sum(), math.sqrt(5), 1.0),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("activation", ["linear", "tanh", "sigmoid", "swish", "sine"])
def test_gradients_of_full_and_truncated_models_respect_lemmas_2_and_3(activation: str, loss: str):
    function, lipschitz, smoothness = LOSSES[loss]
    for seed, rate in ((0, 0.5), (1, 0.9)):
        cell = smooth_rnn(activation, rate, seed)
        x = torch.randn(60, 1, 2)
        x = x / x.norm(dim=2, keepdim=True)
        bounds = gradient_bounds(cell, 1.0, loss_lipschitz=lipschitz, loss_smoothness=smoothness)
        full = loss_gradient(cell, x, function)
        for context in (1, 3, 10, 30):
            error = (full - loss_gradient(cell, x[-context:], function)).norm().item()
            assert error <= bounds.truncation(context)
            assert error > 0 or context == 30  # where rounding may leave nothing
        other = smooth_rnn(activation, rate, seed)
        with torch.no_grad():
            for p in other.parameters():
                p.mul_(1 - 1e-3 * torch.rand(1))  # norms stay within those of the cell
        moved = torch.cat(
            [(a - b).flatten() for a, b in zip(cell.parameters(), other.parameters(), strict=True)]
        ).norm()
        change = (full - loss_gradient(other, x, function)).norm()
        assert change <= bounds.beta * moved


def test_the_weights_of_full_and_truncated_descent_respect_proposition_4():
    x = torch.randn(40, 1, 2)
    x = x / x.norm(dim=2, keepdim=True)
    function, lipschitz, smoothness = LOSSES["log cosh"]
    updates, lr, found = 30, 0.02, []
    bounds = gradient_bounds(smooth_rnn("tanh", 0.5), 1.0, loss_lipschitz=lipschitz, loss_smoothness=smoothness)
    for context in (2, 5, 10, 40):
        cell = smooth_rnn("tanh", 0.5)
        for i in range(1, updates + 1):
            step = loss_gradient(cell, x[-context:], function)
            with torch.no_grad():
                for p, g in zip(cell.parameters(), step.split([p.numel() for p in cell.parameters()]), strict=True):
                    p -= lr / i * g.view_as(p)
            project(cell, 1.0, rate=0.5)
        found.append(torch.cat([p.detach().flatten() for p in cell.parameters()]))
    apart = [(w - found[-1]).norm().item() for w in found[:-1]]
    assert apart[0] > apart[1] > apart[2] > 0
    for context, distance in zip((2, 5, 10), apart, strict=True):
        assert distance <= bounds.proximity(context, updates, lr=lr)
    k = bounds.context(1e-3, updates, lr=lr)
    assert bounds.proximity(k, updates, lr=lr) <= 1e-3 < bounds.proximity(k - 1, updates, lr=lr)
    assert bounds.proximity(1, 10**6, lr=10.0) == math.inf
    assert bounds.context(1e300, 2, lr=1e-3) == 1


@pytest.mark.parametrize("rate", [1e-6, 0.3, 0.49, 0.5, 0.65, 0.9, 0.97])
@pytest.mark.parametrize("updates", [1, 30])
def test_from_the_needed_context_on_all_bounds_are_within_the_tolerance(rate: float, updates: int):
    bounds = GradientBounds(rate, gamma=3.0, beta=0.5)
    found = [bounds.proximity(k, updates, lr=0.7) for k in range(1, 1000)]
    for share in (1e-3, 0.3, 0.92, 0.985, 0.999, 1.001):
        tolerance = share * max(found)
        needed = max((k for k, bound in enumerate(found, start=1) if bound > tolerance), default=0) + 1
        assert bounds.context(tolerance, updates, lr=0.7) == needed


@pytest.mark.parametrize(
    ("updates", "lr", "message"),
    [
        (0, 1.0, "updates must be at least 1"),
        (3, -1.0, "lr must be"),
        (3, math.inf, "lr must be"),
        (3, math.nan, "lr must"),
    ],
)
def test_updates_and_learning_rates_out_of_range_are_refused(updates: int, lr: float, message: str):
    bounds = GradientBounds(0.5, gamma=3.0, beta=0.5)
    for ask in (lambda: bounds.context(0.1, updates, lr=lr), lambda: bounds.proximity(2, updates, lr=lr)):
        with pytest.raises(ValueError, match=message):
            ask()


def test_bounds_of_gradients_are_refused_where_they_mean_nothing():
    with pytest.raises(TypeError, match="bounds of the gradient are of RNN, got LSTM"):
        gradient_bounds(LSTM(2, 3), 1.0)
    with pytest.raises(ValueError, match="need a smooth activation, got 'relu'"):
        gradient_bounds(smooth_rnn("relu", 0.5), 1.0)
    with pytest.raises(ValueError, match=r"needs a stable system, whose rate is below 1, got 2"):
        gradient_bounds(scalar(2.0), 1.0)


# ---- measured


def last(logits: Tensor) -> Tensor:
    return logits[-1].sum()


def test_the_window_of_a_scalar_linear_network_is_a_power_of_its_rate():
    a = torch.tensor([[0.8]])
    cell = Linear(a, torch.ones(1, 1))
    cell.a.requires_grad_(False)
    network = Network([cell], nn.Identity(), layer_delay=0)
    found = truncation_errors(network, torch.ones(80, 1, 1), last)
    expected = 0.8 ** torch.arange(1, 81) * (1 - 0.8 ** torch.arange(79, -1, -1)) / (1 - 0.8**80)
    torch.testing.assert_close(found.window[0], expected, atol=1e-12, rtol=0)
    assert found.needed() == [math.ceil(math.log(0.01) / math.log(0.8))] == [21]
    assert found.needed(0.5) == [4]
    torch.testing.assert_close(found.decay * torch.arange(80, 0, -1), 0.8 ** torch.arange(80))
    # of a loss of the last step alone a chunk goes back to its start
    sizes = found.sizes.tolist()
    expected = torch.tensor([0.8 ** (80 - 79 // k * k) for k in sizes]) - 0.8**80
    torch.testing.assert_close(found.chunks[0], expected / (1 - 0.8**80), atol=1e-12, rtol=0)


def cut(state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return type(state)(*(leaf.detach() for leaf in state))


@pytest.mark.parametrize("delay", [0, 1])
@pytest.mark.parametrize("kind", [LIF, ALIFPlus, LSTM])
def test_windows_and_chunks_are_those_of_detached_states(kind: type[Cell], delay: int, make_spikes):
    torch.manual_seed(0)
    more = {"tau_v": 5.0} if kind is not LSTM else {}
    network = Network([kind(30, 6, **more), kind(6, 5, **more)], 3, layer_delay=delay)
    network.cells[0].w_in.data *= 4
    network.cells[1].w_in.data *= 4
    x, labels = make_spikes(T=12, B=3), torch.tensor([0, 2, 1])
    assert network.run(x).spikes[1].count_nonzero() > 0

    def loss(logits: Tensor) -> Tensor:
        return Classification().loss(logits, labels)

    found = truncation_errors(network, x, loss)
    whole = parameter_gradients(network, x, loss)[:2]

    def error(gradients: list[Tensor], layer: int) -> float:
        full = torch.cat([g.flatten() for g in whole[layer].values()])
        return ((torch.cat([g.flatten() for g in gradients]) - full).norm() / full.norm()).item()

    by_logits = network(x).detach().requires_grad_()
    (by_logits,) = torch.autograd.grad(loss(by_logits), by_logits)
    parameters = [list(cell.parameters()) for cell in network.cells]

    def gradients(logits: Tensor, weights: Tensor) -> list[Tensor]:
        every = [p for own in parameters for p in own]
        found = torch.autograd.grad((logits * weights).sum(), every, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for g, p in zip(found, every, strict=True)]

    def split(sums: list[Tensor]) -> list[list[Tensor]]:
        return [sums[: len(parameters[0])], sums[len(parameters[0]) :]]

    for k in (1, 2, 5, 11):
        sums = [torch.zeros_like(p) for own in parameters for p in own]
        for s in range(12):
            start = max(0, s - k + 1)
            states = network.run(x[:start]).states.detach() if start else None
            parts = gradients(network.run(x[start : s + 1], states).logits[-1], by_logits[s])
            sums = [a + b for a, b in zip(sums, parts, strict=True)]
        for layer, part in enumerate(split(sums)):
            assert found.window[layer, k - 1].item() == pytest.approx(error(part, layer), abs=1e-9)
    for k in (2, 5, 8):
        sums, states = [torch.zeros_like(p) for own in parameters for p in own], None
        for start in range(0, 12, k):
            run = network.run(x[start : start + k], states)
            sums = [a + b for a, b in zip(sums, gradients(run.logits, by_logits[start : start + k]), strict=True)]
            states = run.states.detach()
        for layer, part in enumerate(split(sums)):
            at = found.sizes.tolist().index(k)
            assert found.chunks[layer, at].item() == pytest.approx(error(part, layer), abs=1e-9)
    assert not found.window[:, -1].any()
    assert not found.chunks[:, -1].any()
    assert not any(p.grad is not None for p in network.parameters())


def test_the_decay_is_the_mean_gradient_by_the_input_so_far_before(make_spikes):
    network = Network([LSTM(30, 6)], 3, layer_delay=0)
    x = make_spikes(T=7, B=2).requires_grad_()
    found = truncation_errors(network, x.detach(), lambda logits: logits.square().sum())
    logits = network(x)
    norms = torch.stack(
        [torch.autograd.grad(o.square().sum(), x, retain_graph=True)[0].norm(dim=2).mean(1) for o in logits]
    )
    torch.testing.assert_close(found.decay, torch.stack([norms.diagonal(-i).mean() for i in range(7)]))


def test_a_layer_without_a_gradient_needs_no_number_of_steps():
    network = Network([LIF(3, 4, threshold=1e4), LIF(4, 4)], 2)
    for p in network.cells[0].parameters():
        p.requires_grad_(False)
    found = truncation_errors(network, torch.rand(9, 2, 3), lambda logits: logits.sum())
    assert found.needed()[0] is None
    assert "      -" in str(found).splitlines()[2]
    with pytest.raises(TypeError, match=r"network must be a neurolsc\.Network"):
        truncation_errors(nn.Linear(2, 3), torch.rand(9, 2, 3), last)
