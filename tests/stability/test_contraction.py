"""Certificates of contraction, projections that enforce them, and rates measured on data."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.utils import parametrize

from neurolsc import GRU, LIF, LRU, LSTM, RNN, ALIFPlus, Cell, FeedForward, Network, surrogate
from neurolsc.neurons.derivatives import flat
from neurolsc.neurons.rate import ACTIVATIONS, HiddenState, LSTMState
from neurolsc.neurons.spiking import LIFState, Reset
from neurolsc.stability import (
    RowBalls,
    SpectralBall,
    backward_norms,
    certificate,
    measured_rate,
    parametrise,
    project,
    singular_values,
    stable_sets,
    surrogate_rate,
)
from neurolsc.stability.contraction import SLOPES
from neurolsc.stability.transitions import follow, time_operator
from neurolsc.surrogate import FastSigmoid, MultiGaussian
from neurolsc.training.optim import clip_singular_values
from tests.stability.linear_cell import Linear

pytestmark = pytest.mark.usefixtures("float64")
SURROGATES = [getattr(surrogate, name) for name in surrogate.__all__ if name != "Surrogate"]


def drawn(cell: Cell, scale: float) -> Cell:
    """The cell with Gaussian parameters."""
    with torch.no_grad():
        for p in cell.parameters():
            p.copy_(scale * torch.randn_like(p))
    return cell


def step(cell: Cell, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return cell.update(x, cell.output(state), state)


# ---- certificates


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_slopes_are_the_largest_of_the_activation(activation: str):
    x = torch.linspace(-8, 8, 40_001, requires_grad=True)
    (slope,) = torch.autograd.grad(ACTIVATIONS[activation](x).sum(), x, create_graph=True)
    first, second = SLOPES[activation]
    assert first - 1e-6 <= slope.abs().max() <= first
    if activation == "relu":
        assert math.isnan(second)
    elif activation != "linear":
        (curve,) = torch.autograd.grad(slope.sum(), x)
        assert second - 1e-6 <= curve.abs().max() <= second + 1e-12


def lstm_states(cell: LSTM, largest: float, count: int) -> LSTMState:
    h, c = torch.rand(2, count, cell.n_hidden) * 2 - 1
    return LSTMState(h, c * largest)


@pytest.mark.parametrize("make", [RNN, LSTM, LRU, FeedForward])
def test_no_two_states_part_faster_than_certified(make: Callable[..., Cell]):
    for seed in range(5):
        torch.manual_seed(seed)
        cell = make(4, 6, activation="tanh") if make in (RNN, FeedForward) else make(4, 6)
        if make is not LRU:
            drawn(cell, 0.3)
        x = torch.rand(64, 4) * 2 - 1
        sure = certificate(cell.eval(), 1.0)
        if make is LSTM:
            gate = cell.bias.chunk(4)[1].abs().max() + sum(
                w.chunk(4)[1].abs().sum(1).max() for w in (cell.w_rec, cell.w_in)
            )
            states = [lstm_states(cell, 1 / (1 - torch.sigmoid(gate)).item(), 64) for _ in range(2)]
        elif make is LRU:
            states = [cell.initial_state(64)._replace(x=torch.randn(64, 6, dtype=torch.complex128)) for _ in range(2)]
        else:
            states = [HiddenState(torch.randn(64, 6)) for _ in range(2)]
        (a, b), (after_a, after_b) = (map(flat, pair) for pair in (states, [step(cell, x, s) for s in states]))
        before, after = ((one - two).norm(p=sure.norm, dim=1) for one, two in ((a, b), (after_a, after_b)))
        assert (after <= sure.rate * before + 1e-12).all()
        if make is RNN:
            assert (after > 0.3 * sure.rate * before).any()  # the bound has the right size
        inputs = torch.rand(64, 4) * 2 - 1
        moved = (flat(step(cell, inputs, states[0])) - after_a).norm(p=sure.norm, dim=1)
        if make is not LRU:
            assert (moved <= sure.by_input * (inputs - x).norm(p=sure.norm, dim=1) + 1e-12).all()


def proposition_2(forget: float, n: int = 8, n_in: int = 4) -> LSTM:
    """An LSTM whose rows are just within the conditions of Proposition 2, for inputs within 1."""
    cell = LSTM(n_in, n)
    limits = 1 - forget, (1 - forget) ** 2, (1 - forget) / 4, 1 - forget
    with torch.no_grad():
        rows = torch.randn(4 * n, n)
        most = torch.tensor(limits).repeat_interleave(n).unsqueeze(1)
        cell.w_rec.copy_(0.999 * most * rows / rows.abs().sum(1, keepdim=True))
        w_f = cell.w_rec.chunk(4)[1].abs().sum(1).max()
        left = math.log(forget / (1 - forget)) - w_f
        cell.w_in.copy_(torch.randn_like(cell.w_in))
        u_f = cell.w_in[n : 2 * n]
        u_f *= 0.999 * left / u_f.abs().sum(1).max()
    return cell


@pytest.mark.parametrize("forget", [0.6, 0.64, 0.9])
def test_an_lstm_under_the_conditions_of_proposition_2_is_certified(forget: float):
    cell = proposition_2(forget)
    sure = certificate(cell, 1.0)
    assert forget < sure.rate < 1
    assert sure.norm == math.inf
    with torch.no_grad():
        cell.w_rec.mul_(1.2)
    assert certificate(cell, 1.0).rate > 1


def test_the_forget_gate_and_memory_of_an_lstm_stay_below_lemma_4():
    cell = drawn(LSTM(4, 6), 0.4)
    x = (torch.rand(200, 16, 4) * 2 - 1).sign()
    w_f, u_f, b_f = (p.chunk(4)[1] for p in (cell.w_rec, cell.w_in, cell.bias))
    bound = torch.sigmoid(w_f.abs().sum(1).max() + u_f.abs().sum(1).max() + b_f.abs().max())
    state, largest, memory = cell.initial_state(16), 0.0, 0.0
    for frame in x:
        gate = torch.sigmoid(frame @ u_f.T + state.h @ w_f.T + b_f)
        state = cell.update(frame, state.h, state)
        largest, memory = max(largest, gate.max().item()), max(memory, state.c.abs().max().item())
    assert 0.8 * bound < largest <= bound
    assert memory <= 1 / (1 - bound)


class Doubled(RNN):
    """An RNN with another step."""

    def update(self, x: Tensor, z: Tensor, state: HiddenState) -> HiddenState:
        return HiddenState(2 * super().update(x, z, state).h)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: GRU(2, 3), TypeError, "certified are FeedForward, RNN, LSTM and LRU, got GRU"),
        (lambda: Doubled(2, 3), TypeError, "got Doubled"),
        (lambda: torch.nn.RNN(2, 3), TypeError, "got RNN"),
        (lambda: LIF(2, 3), TypeError, "LIF has no contraction certificate: a spike is a jump"),
        (lambda: ALIFPlus(2, 3), TypeError, "surrogate_rate and backward_norms"),
    ],
)
def test_a_cell_without_certificate_is_refused_by_name(make: Callable[[], Cell], error: type[Exception], words: str):
    with pytest.raises(error, match=words):
        certificate(make(), 1.0)


def test_what_a_bound_cannot_mean_is_refused():
    cell = RNN(2, 3, activation="tanh")
    with torch.no_grad():
        cell.w_rec.copy_(1.5 * torch.eye(3))
    sure = certificate(cell, 1.0)
    assert (sure.rate, sure.stable) == (1.5, False)
    for bound in (lambda: sure.state_bound, lambda: sure.truncation_error(3), lambda: sure.context(0.1)):
        with pytest.raises(ValueError, match=r"needs a stable system, whose rate is below 1, got 1\.5"):
            bound()
    with pytest.raises(ValueError, match="input_bound must be zero or positive and finite, got -1"):
        certificate(cell, -1.0)


# ---- spikes


@pytest.mark.parametrize("reset", ["subtract", "static", "zero"])
@pytest.mark.parametrize("spike", SURROGATES)
@pytest.mark.parametrize("make", [LIF, ALIFPlus])
def test_the_surrogate_rate_bounds_the_derivative_in_every_state(make: type[Cell], spike: type, reset: str):
    cell = make(3, 5, spike=spike(dampening=0.8), tau_v=4.0, reset=reset)
    bound = surrogate_rate(cell)
    network = Network([cell], 2)
    (t,), _ = follow(network, 8 * torch.rand(40, 4, 3), torch.arange(40))
    unit = torch.eye(t.states)
    norms = [
        torch.linalg.matrix_norm(time_operator(t.at(torch.full((t.states,), i))).matvec(unit), 2) for i in range(160)
    ]
    assert max(norms) <= bound
    assert max(norms) > 0.3 * bound


def test_the_surrogate_rate_of_a_lif_is_met_at_its_threshold():
    cell = LIF(1, 1, spike=FastSigmoid(0.5), tau_v=2.0, reset_gradient=True)
    with torch.no_grad():
        cell.w_rec.fill_(3.0)
    (t,), _ = follow(Network([cell], 1), torch.zeros(1, 1, 1), torch.arange(1))
    at_threshold = t._replace(before=LIFState(torch.ones(1, 1)))
    m = time_operator(at_threshold).matvec(torch.ones(1, 1)).item()
    assert surrogate_rate(cell) == pytest.approx(m) == pytest.approx(cell.decay_v.item() + 0.5 * (3 - 1))


def test_surrogate_rates_that_nobody_knows_are_refused():
    class Own(FastSigmoid):
        def derivative(self, v: Tensor) -> Tensor:
            return 7 * super().derivative(v)

    class Peaked(surrogate.Surrogate):
        def shape(self, x: Tensor) -> Tensor:
            return 1 / (1 + (x - 1) ** 2)

        def shape_integral(self, x: Tensor) -> Tensor:
            return torch.atan(x - 1)

    class Steeper(MultiGaussian):
        def shape(self, x: Tensor) -> Tensor:
            return 7 * super().shape(x)

        def shape_integral(self, x: Tensor) -> Tensor:
            return 7 * super().shape_integral(x)

    class OwnLobes(MultiGaussian):
        def _lobes(self, function: Callable[[Tensor, float, float], Tensor], x: Tensor) -> Tensor:
            return 7 * super()._lobes(function, x)

    class Harder(Reset):
        def carry(self, leaked: Tensor, z: Tensor, theta: Tensor) -> Tensor:
            return leaked - 9 * theta * z

    def reset_harder() -> LIF:
        cell = LIF(2, 3)
        cell.reset = Harder(gradient=True)
        return cell

    for make, words in (
        (reset_harder, "a reset by a Harder is not known"),
        (lambda: RNN(2, 3), "got RNN"),
        (lambda: LIF(2, 3, spike=Own()), "largest derivative of the surrogate Own is not known"),
        (lambda: LIF(2, 3, spike=Peaked()), "largest derivative of the surrogate Peaked is not known"),
        (lambda: LIF(2, 3, spike=Steeper()), "largest derivative of the surrogate Steeper is not known"),
        (lambda: LIF(2, 3, spike=OwnLobes()), "largest derivative of the surrogate OwnLobes is not known"),
    ):
        with pytest.raises(TypeError, match=words):
            surrogate_rate(make())
    for cell in (ALIFPlus(2, 3, reset_gradient=True), LIF(2, 3, reset="zero", reset_gradient=True)):
        with pytest.raises(ValueError, match="grows with its state while a gradient passes its reset"):
            surrogate_rate(cell)
    assert surrogate_rate(LIF(2, 3, spike=MultiGaussian(height=9.0, scale=0.5))) > 10


# ---- projections


def test_a_spectral_ball_is_reached_by_singular_value_clipping():
    w, ball = torch.randn(6, 6), SpectralBall(0.9)
    torch.testing.assert_close(ball(w), clip_singular_values(w, 0.9))  # the nearest matrix: test_optim.py
    inside = 0.5 * w / torch.linalg.matrix_norm(w, 2)
    torch.testing.assert_close(ball(inside), inside)
    with pytest.raises(ValueError, match=r"a spectral ball is of square matrices, got \(2, 3\)"):
        ball(torch.zeros(2, 3))


def test_the_derivative_of_clipping_is_exact_where_singular_values_are_equal():
    ball = SpectralBall(1.0)
    for w in (
        torch.randn(4, 4),
        1.7 * torch.linalg.qr(torch.randn(4, 4)).Q,
        torch.diag(torch.tensor([2.0, 2, 0.5, 0])),
    ):
        assert torch.autograd.gradcheck(ball, w.clone().requires_grad_())


def test_row_rescaling_is_idempotent_and_keeps_directions():
    w, most = torch.randn(7, 5), torch.tensor([0.1, 1.0, 2.0, 3.0, 100.0, math.inf, 0.5])
    ball = RowBalls(most)
    p = ball(w)
    torch.testing.assert_close(ball(p), p)
    assert (p.abs().sum(1) <= most + 1e-12).all()
    torch.testing.assert_close(torch.cosine_similarity(w, p), torch.ones(7))
    torch.testing.assert_close(p[4:6], w[4:6])
    assert not ball(torch.zeros(7, 3)).any()


@pytest.mark.parametrize("make", [lambda: RNN(4, 6, activation="swish"), lambda: LSTM(4, 6)])
def test_a_projected_cell_is_certified_at_the_rate(make: Callable[[], Cell]):
    cell = drawn(make(), 1.0)
    assert certificate(cell, 2.0).rate > 1
    project(cell, 2.0, rate=0.95)
    assert 0.7 < certificate(cell, 2.0).rate <= 0.95 + 1e-12
    before = [p.clone() for p in cell.parameters()]
    project(cell, 2.0, rate=0.95)
    torch.testing.assert_close(list(cell.parameters()), before)


@pytest.mark.parametrize("how", ["project", "parametrise"])
@pytest.mark.parametrize("make", [lambda: RNN(4, 6, activation="tanh"), lambda: LSTM(4, 6)])
def test_a_cell_stays_stable_while_it_is_trained(make: Callable[[], Cell], how: str):
    torch.manual_seed(0)
    cell = make()
    if how == "parametrise":
        parametrise(cell, 1.0, rate=0.9)
    optimizer = torch.optim.SGD(cell.parameters(), 2.0)
    if how == "project":
        optimizer.register_step_post_hook(lambda *_: project(cell, 1.0, rate=0.9))
    x = (torch.rand(12, 8, 4) < 0.5).double()
    losses = []
    for _ in range(30):
        z, _ = cell.run(x, cell.initial_state(8))
        loss = (z[-1].mean(1) - 0.4 * x[-3, :, 0]).square().mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert certificate(cell, 1.0).rate <= 0.9 + 1e-9
    assert losses[-1] < 0.9 * losses[0]
    if how == "parametrise":
        assert sorted(cell.parametrizations) == sorted(stable_sets(make(), 1.0))
        for name in list(cell.parametrizations):
            parametrize.remove_parametrizations(cell, name)
        assert certificate(cell, 1.0).rate <= 0.9 + 1e-9


@pytest.mark.parametrize(
    ("make", "options", "error", "words"),
    [
        (lambda: LRU(2, 3), {}, TypeError, "an RNN or an LSTM can be projected, got LRU, which is stable as it is"),
        (lambda: LIF(2, 3), {}, TypeError, "a spike is a jump"),
        (lambda: RNN(2, 3), {"rate": 1.0}, ValueError, r"rate must be in \(0, 1\), got 1.0"),
        (lambda: LSTM(2, 3), {"forget": 0.5}, ValueError, "forget must be below the rate 0.99 and leave its gate"),
        (lambda: LSTM(2, 3), {"forget": 0.995}, ValueError, "got 0.995"),
        (lambda: RNN(2, 3), {"rate": "a"}, TypeError, "rate must be a number, got 'a'"),
        (lambda: LSTM(2, 3), {"forget": "a"}, TypeError, "forget must be a number, got 'a'"),
        (lambda: LSTM(2, 3), {"forget": math.nan}, ValueError, "forget must be finite, got nan"),
    ],
)
def test_what_cannot_be_projected_is_refused(make, options, error, words):
    with pytest.raises(error, match=words):
        project(make(), 1.0, **options)


# ---- measured on data


@pytest.mark.parametrize("steps", [1, 4])
def test_the_measured_rate_of_a_linear_system_is_the_norm_of_its_power(steps: int):
    a = torch.randn(5, 5) / 3
    rate = measured_rate(Linear(a, torch.randn(5, 3)), torch.randn(30, 4, 3), steps=steps)
    norm = torch.linalg.matrix_norm(torch.linalg.matrix_power(a, steps), 2).item()
    assert 0.99 * norm <= rate <= norm * (1 + 1e-9)


def test_the_measured_rate_depends_on_the_data_and_stays_below_the_certificate():
    cell = RNN(1, 1, activation="tanh")
    with torch.no_grad():
        cell.w_rec.fill_(2.0)
        cell.w_in.fill_(1.0)
        cell.bias.zero_()
    small = measured_rate(cell, 1e-3 * torch.randn(5, 8, 1))
    assert small == pytest.approx(2, rel=1e-3)
    driven = measured_rate(cell, 3 + torch.rand(20, 8, 1))  # saturated after the first step
    assert driven < 0.3
    assert measured_rate(FeedForward(1, 2, activation="tanh"), torch.rand(20, 8, 1)) == 0
    lstm = proposition_2(0.64)
    assert 0.1 < measured_rate(lstm, torch.rand(20, 8, 4) * 2 - 1) < math.sqrt(16) * certificate(lstm, 1.0).rate


def test_measured_rates_refuse_spikes_and_data_that_do_not_fit():
    cell = RNN(2, 3)
    with pytest.raises(TypeError, match="measured_rate is of cells without spikes, got LIF: take backward_norms"):
        measured_rate(LIF(2, 3), torch.zeros(5, 1, 2))
    with pytest.raises(ValueError, match=r"x must have shape \(T >= 6, B, 2\), got \(5, 1, 2\)"):
        measured_rate(cell, torch.zeros(5, 1, 2), steps=6)
    for wrong in ({"pairs": 0}, {"pairs": -1}, {"ascent": -1}):
        (name,) = wrong
        with pytest.raises(ValueError, match=f"{name} must be at least"):
            measured_rate(cell, torch.zeros(5, 1, 2), **wrong)
    with torch.no_grad():
        cell.bias.zero_()
    with pytest.raises(ValueError, match="does not move on these data"):
        measured_rate(cell, torch.zeros(5, 1, 2))


@pytest.mark.parametrize("cell", [LIF, ALIFPlus, LSTM])
def test_backward_norms_are_those_of_products_of_derivatives(cell: type[Cell], make_spikes):
    spiking = {"tau_v": 5.0} if cell is not LSTM else {}
    network = Network([cell(30, 8, **spiking), cell(8, 6, **spiking)], 3)
    x = 6 * make_spikes(T=9, B=2)
    transitions, outputs = follow(network, x, torch.arange(9))
    assert outputs[0].count_nonzero() > 0
    norms = backward_norms(network, x, steps=3)
    assert norms.shape == (2, 7, 2)
    for layer, t in enumerate(transitions):
        unit = torch.eye(t.states)
        for start in range(7):
            for sample in range(2):
                product = unit
                for s in range(start, start + 3):
                    points = t.at(torch.full((t.states,), 2 * s + sample))
                    product = time_operator(points).matvec(product)
                expected = torch.linalg.matrix_norm(product, 2).item()
                assert norms[layer, start, sample].item() == pytest.approx(expected, rel=0.01, abs=1e-12)
    torch.testing.assert_close(backward_norms(network, x), singular_values(network, x)[0], rtol=0.02, atol=1e-9)
    with pytest.raises(ValueError, match="steps must be at most the 9 steps of the input, got 10"):
        backward_norms(network, x, steps=10)
