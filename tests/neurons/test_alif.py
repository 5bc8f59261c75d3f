"""ALIF+ and ALIF±: eq. 49 written out in numpy, rest, starting values, Table S1, eigenvalues."""

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from neurolsc import ALIFPlus, ALIFPlusMinus, ALIFState, Network
from neurolsc.surrogate import FastSigmoid

pytestmark = pytest.mark.usefixtures("float64")

both = pytest.mark.parametrize("kind", [ALIFPlus, ALIFPlusMinus])
every_reset = pytest.mark.parametrize("reset", ["subtract", "static", "zero"])


def by_hand(cell: ALIFPlus, x: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """Eq. 49 in numpy, one sample and neuron at a time: v, theta and z, each (T, B, N)."""
    names = ("w_in", "w_rec", "tau_v", "tau_theta", "b_theta", "adaptation")
    w_in, w_rec, tau_v, tau_theta, b, beta = (getattr(cell, name).detach().numpy() for name in names)
    rest = b / (1 - np.exp(-1 / tau_theta))
    T, B, N = x.shape[0], x.shape[1], cell.n_hidden
    v, theta, z = np.zeros((T + 1, B, N)), np.tile(rest, (T + 1, B, 1)), np.zeros((T + 1, B, N))
    for t in range(1, T + 1):
        for n in range(B):
            for i in range(N):
                fired = z[t - 1, n, i]
                carried = np.exp(-1 / tau_v[i]) * v[t - 1, n, i]
                match cell.reset_name:
                    case "subtract":
                        carried -= theta[t - 1, n, i] * fired
                    case "static":
                        carried -= rest[i] * fired
                    case "zero" if fired:
                        carried = 0
                v[t, n, i] = carried + w_in[i] @ x[t - 1, n] + w_rec[i] @ z[t - 1, n]
                theta[t, n, i] = np.exp(-1 / tau_theta[i]) * theta[t - 1, n, i] + b[i] + beta[i] * fired
                z[t, n, i] = float(v[t, n, i] > theta[t, n, i])
    return {"v": v[1:], "theta": theta[1:], "z": z[1:]}


@both
@every_reset
def test_step_is_eq_49_written_out(kind, reset, make_spikes):
    cell = kind(9, 7, reset=reset, tau_v=3.0, tau_theta=20.0, b_theta=0.01, adaptation=0.3)
    x = make_spikes(T=25, B=3, N=9, rate=0.4)
    expected = by_hand(cell, x.numpy())
    state = cell.initial_state(3)
    for t in range(25):
        z, state = cell.step(x[t], state)
        torch.testing.assert_close(state.v.detach().numpy(), expected["v"][t], rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(state.theta.detach().numpy(), expected["theta"][t], rtol=1e-12, atol=1e-12)
        assert (z.detach().numpy() == expected["z"][t]).all()
    assert 0.03 < expected["z"].mean() < 0.8


@both
def test_starts_at_rest_and_stays_there_without_input(kind):
    cell = kind(4, 6)
    state = start = cell.initial_state(3)
    torch.testing.assert_close(start.theta, (cell.b_theta / (1 - torch.exp(-1 / cell.tau_theta))).expand(3, -1))
    for _ in range(300):
        z, state = cell.step(torch.zeros(3, 4), state)
        assert not z.any()
    torch.testing.assert_close(state, start, rtol=1e-12, atol=1e-12)


def test_spike_at_the_threshold_needs_more_than_equality():
    cell = ALIFPlus(2, 3)
    theta = torch.rand(4, 3)
    assert not cell.output(ALIFState(theta, theta)).any()
    assert cell.output(ALIFState(torch.nextafter(theta, torch.ones(())), theta)).all()


@both
def test_resting_threshold_can_be_set(kind):
    cell = kind(4, 6)
    before = cell.tau_theta.clone()
    for rest in (torch.linspace(0.1, 2, 6), torch.tensor(0.7), 0.3):
        cell.theta_rest = rest
        expected = torch.as_tensor(rest).expand(6)
        torch.testing.assert_close(cell.theta_rest, expected)
        torch.testing.assert_close(cell.initial_state(2).theta, expected.expand(2, -1))
    assert torch.equal(cell.tau_theta, before)
    assert isinstance(cell.b_theta, torch.nn.Parameter)


def test_starting_values_are_truncated_gaussians():
    cell = ALIFPlus(10, 4000, tau_v=0.1, tau_theta=100.0, b_theta=0.01, adaptation=1.8)
    means = {"tau_v": 0.1, "tau_theta": 100, "b_theta": 0.01, "adaptation": 1.8}
    for name, mean in means.items():
        value = getattr(cell, name)
        assert value.min() >= mean * (1 - 6 / 7)
        assert value.max() <= mean * (1 + 6 / 7)
        assert value.min() < mean * 0.2, "reaches down to two deviations"
        assert value.mean().item() == pytest.approx(mean, rel=0.02)
        # a standard Gaussian truncated at ±2 has deviation 0.880
        assert value.std().item() == pytest.approx(0.880 * 3 / 7 * mean, rel=0.04)


@pytest.mark.parametrize("n_in", [3, 30])
def test_alif_plus_minus_draws_the_adaptation_around_zero(n_in):
    adaptation = ALIFPlusMinus(n_in, 4000).adaptation
    assert abs(adaptation.mean().item()) < 0.1 / n_in
    assert adaptation.std().item() == pytest.approx(1.8 / n_in, rel=0.05)


@both
@pytest.mark.parametrize(
    ("n_in", "width", "n_out", "count"), [(784, 128, 10, 151_818), (700, 256, 20, 382_996)], ids=["sl-MNIST", "SHD"]
)
def test_parameters_are_as_many_as_in_table_s1(kind, n_in, width, n_out, count):
    # lsc.md, part 2: the paper's table, which prints 2 more, counts a readout bias
    network = Network([kind(n_in, width), kind(width, width)], n_out, readout_bias=True)
    assert sum(p.numel() for p in network.parameters() if p.requires_grad) == count


@both
def test_time_constants_survive_a_violent_optimizer(kind):
    torch.set_default_dtype(torch.float32)
    cell = kind(4, 6)
    optimizer = torch.optim.SGD([cell.log_tau_v, cell.log_tau_theta], lr=1e4)
    for sign in (1, 1, -1, -1, -1):
        optimizer.zero_grad()
        state = cell.initial_state(2)
        for _ in range(3):
            _, state = cell.step(torch.ones(2, 4), state)
        (sign * (state.theta.sum() + cell.tau_v.sum() + cell.tau_theta.sum())).backward()
        optimizer.step()
        for value in (cell.tau_v, cell.tau_theta, cell.decay_v, cell.decay_theta, cell.theta_rest):
            assert value.isfinite().all()
        assert ((cell.tau_v > 0) & (cell.tau_theta > 0)).all()


def points(n: int) -> ALIFState:
    """States with and without a spike."""
    return ALIFState(torch.randn(5, n), 0.3 * torch.rand(5, n))


@both
@every_reset
def test_silent_surrogate_leaves_exactly_the_leaks_as_eigenvalues(kind, reset):
    cell = kind(3, 4, reset=reset, reset_gradient=True, tau_v=3.0, spike=FastSigmoid(dampening=0.0))
    state = points(4)
    z = cell.output(state)
    assert z.any()
    assert not z.all()
    voltage = cell.decay_v * (1 - z) if reset == "zero" else cell.decay_v.expand(5, -1)
    expected = torch.cat((voltage, cell.decay_theta.expand(5, -1)), 1)
    eigenvalues = torch.linalg.eigvals(sum(cell.derivatives().by_state(None, state).values()))
    torch.testing.assert_close(eigenvalues.real.sort().values, expected.sort().values)
    torch.testing.assert_close(eigenvalues.imag, torch.zeros(5, 8))


@both
@every_reset
@pytest.mark.parametrize("reset_gradient", [False, True])
def test_eigenvalues_are_those_written_out_in_distance_and_threshold(kind, reset, reset_gradient):
    # lsc.md, part 3: in (u = v - theta, theta)
    cell = kind(3, 4, reset=reset, reset_gradient=reset_gradient, tau_v=3.0)
    state, g = points(4), float(reset_gradient)
    z = cell.output(state)
    s = 0.5 / (1 + (state.v - state.theta).abs()) ** 2
    decay, slow = torch.exp(-1 / cell.tau_v), torch.exp(-1 / cell.tau_theta)
    rest = cell.b_theta / (1 - slow)
    r, d, e = {
        "subtract": (state.theta, decay.expand_as(z), -g * z),
        "static": (rest.expand_as(z), decay.expand_as(z), 0 * z),
        "zero": (decay * state.v, decay * (1 - z), 0 * z),
    }[reset]
    diag = torch.diag_embed
    k = (cell.w_rec - g * diag(r)) @ diag(s)
    beta = cell.adaptation * s
    upper = torch.cat((diag(d) + k - diag(beta), diag(d + e - slow)), -1)
    lower = torch.cat((diag(beta), diag(slow.expand_as(z))), -1)

    def power_sums(m: torch.Tensor) -> torch.Tensor:  # equal for all powers up to N: equal eigenvalues, in any order
        return torch.stack([torch.linalg.matrix_power(m, p).diagonal(dim1=-2, dim2=-1).sum(-1) for p in range(1, 9)])

    derivative = sum(cell.derivatives().by_state(None, state).values())
    torch.testing.assert_close(power_sums(derivative), power_sums(torch.cat((upper, lower), -2)))


def test_arguments_are_refused_with_what_was_wanted():
    for name in ("tau_v", "tau_theta", "b_theta", "adaptation"):
        for bad in (0.0, -1.0, math.nan):
            with pytest.raises(ValueError, match=f"{name} must be positive and finite"):
                ALIFPlus(3, 2, **{name: bad})
        with pytest.raises(TypeError, match=rf"{name} must be one number, got a tensor of shape \(2,\)"):
            ALIFPlus(3, 2, **{name: torch.ones(2)})
    for bad in (math.inf, torch.ones(3)):
        with pytest.raises(ValueError, match=r"theta_rest must be finite, one number or \(2,\)"):
            ALIFPlus(3, 2).theta_rest = bad
    with pytest.raises(ValueError, match=r"x must have shape \(B, 3\)"):
        cell = ALIFPlus(3, 2)
        cell.step(torch.zeros(5, 4), cell.initial_state(5))
    with pytest.raises(ValueError, match="batch must be at least 1"):
        Network([ALIFPlus(3, 2)], 2).initial_states(0)


def test_a_resting_threshold_that_is_set_brings_no_history(float64):
    cell = ALIFPlus(4, 3)
    del cell.b_theta
    cell.register_buffer("b_theta", torch.ones(3))  # what is no parameter is replaced, not copied into
    cell.theta_rest = 0.4
    assert not cell.b_theta.requires_grad
    torch.testing.assert_close(cell.theta_rest.detach(), torch.full((3,), 0.4))
