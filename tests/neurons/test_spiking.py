"""LIF and ALIF: eq. 49 written out in numpy, closed forms, initial values, refusals."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from neurolsc import LIF, ALIFLowPass, ALIFPlus, ALIFPlusMinus, ALIFPositive, ALIFState, SpikingCell
from neurolsc.neurons import LI
from neurolsc.stability import PaperRule
from neurolsc.surrogate import FastSigmoid
from tests.neurons.steps import RESETS

pytestmark = pytest.mark.usefixtures("float64")

both = pytest.mark.parametrize("kind", [ALIFPlus, ALIFPlusMinus])
every_reset = pytest.mark.parametrize("reset", RESETS)
HIGH: dict[str, Any] = {"tau_v": 3.0, "tau_theta": 20.0, "b_theta": 0.4, "adaptation": 3.0}  # a low pass that fires


def eq_49(cell: SpikingCell, x: np.ndarray) -> dict[str, np.ndarray]:
    """v, theta and z, each (T, B, N), by the formulas of each class, in numpy."""
    array: Callable[[str], np.ndarray] = lambda name: getattr(cell, name).detach().numpy()  # noqa: E731
    w_in, w_rec, tau_v = map(array, ("w_in", "w_rec", "tau_v"))
    low = isinstance(cell, ALIFLowPass)
    if isinstance(cell, LIF):
        rest, slow, b, beta = array("theta"), 1.0, 0.0, 0.0
    else:
        slow, b, beta = np.exp(-1 / array("tau_theta")), array("b_theta"), array("adaptation")
        rest = b if low else b / (1 - slow)
    if low:  # as the released code has it: a trace of the spikes, and no self-connections
        w_rec, b, beta = w_rec * (1 - np.eye(len(w_rec))), (1 - slow) * b, (1 - slow) * beta
    v, z = (np.zeros((len(x) + 1, x.shape[1], cell.n_hidden)) for _ in range(2))
    theta = np.tile(rest, (*v.shape[:2], 1))
    for t in range(1, len(v)):
        theta[t] = slow * theta[t - 1] + b + beta * z[t - 1]
        carried = np.exp(-1 / tau_v) * v[t - 1]
        match cell.reset.name:
            case "subtract":
                carried -= theta[t if low else t - 1] * z[t - 1]
            case "static":
                carried -= rest * z[t - 1]
            case "zero":
                carried *= 1 - z[t - 1]
        v[t] = carried + x[t - 1] @ w_in.T + z[t - 1] @ w_rec.T
        z[t] = v[t] > theta[t]
    return {"v": v[1:], "theta": theta[1:], "z": z[1:]}


ALIF = {"tau_v": 3.0, "tau_theta": 20.0, "b_theta": 0.01, "adaptation": 0.3}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (LIF, {"tau_v": 3.0, "threshold": 0.4}),
        (ALIFPlus, ALIF),
        (ALIFPlusMinus, ALIF),
        (ALIFPositive, ALIF),
        (ALIFLowPass, HIGH),
    ],
)
@every_reset
@pytest.mark.parametrize("gradient", [False, True])
def test_step_and_run_are_eq_49_written_out(kind, settings, reset, gradient, make_spikes):
    cell, x = kind(9, 7, reset=reset, reset_gradient=gradient, **settings), make_spikes(T=20, B=3, N=9, rate=0.4)
    with torch.no_grad():
        cell.w_rec.diagonal().normal_(0, 0.1)
    wanted, state = eq_49(cell, x.numpy()), cell.initial_state(3)
    for t in range(20):
        z, state = cell.step(x[t], state)
        for name, value in state._asdict().items():
            np.testing.assert_allclose(value.detach().numpy(), wanted[name][t], rtol=1e-12, atol=1e-12)
        assert (z.detach().numpy() == wanted["z"][t]).all()
    assert 0.03 < wanted["z"].mean() < 0.8
    at_once, last = cell.run(x, cell.initial_state(3))
    assert (at_once.detach().numpy() == wanted["z"]).all()
    torch.testing.assert_close(last, state)


def test_an_integrators_voltage_after_one_input_is_the_difference_of_two_decays():
    cell = LI(1, 1, tau_v=-1 / math.log(0.9), tau_i=-1 / math.log(0.5))
    with torch.no_grad():
        cell.w_in.fill_(2.0)
    v, _ = cell.run(torch.eye(30)[:, :1, None], cell.initial_state(1))
    assert v.flatten().tolist() == pytest.approx([2 * (0.9**t - 0.5**t) / (0.9 - 0.5) for t in range(1, 31)])


def test_voltage_at_the_threshold_does_not_spike():
    cell = LIF(1, 1, threshold=0.25)
    with torch.no_grad():
        cell.w_in.fill_(1)
    z, _ = cell.step(torch.tensor([[0.25], [np.nextafter(0.25, 1)]]), cell.initial_state(2))
    assert z.tolist() == [[0], [1]]


@pytest.mark.parametrize(
    ("kind", "bad", "message"),
    [
        (LIF, {"n_in": 0}, "n_in must be"),
        (LIF, {"n_hidden": 2.0}, "n_hidden must be an int"),
        (LIF, {"tau_v": math.nan}, "tau_v must be positive and finite"),
        (LIF, {"threshold": -1.0}, "threshold must be positive and finite"),
        (ALIFPlus, {"b_theta": -1.0}, "b_theta must be positive and finite"),
        (ALIFPlus, {"adaptation": torch.ones(2)}, r"adaptation must be one number, got a tensor of shape \(2,\)"),
        (ALIFPlus, {"adaptation": [0.1, 0.2]}, r"adaptation must be one number, got"),
        (LIF, {"reset": "hard"}, "reset must be one of 'subtract'"),
        (LIF, {"spike": FastSigmoid(torch.ones(3))}, r"dampening of spike must be one number or \(2,\), got \(3,\)"),
        (LIF, {"recurrent_init": "he"}, "recurrent_init must be one of 'glorot'"),
        (ALIFPlus, {"beta": 0.9}, r"ALIFPlus takes no beta: .* give tau_v = -1 / math\.log\(beta\)"),
    ],
)
def test_arguments_are_refused_with_what_was_wanted(kind, bad, message):
    with pytest.raises((ValueError, TypeError), match=message):
        kind(**{"n_in": 3, "n_hidden": 2} | bad)


@both
def test_resting_threshold_can_be_set(kind):
    cell = kind(4, 6)
    before = cell.tau_theta.clone()
    torch.testing.assert_close(cell.theta_rest, cell.b_theta / (1 - torch.exp(-1 / cell.tau_theta)))
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
        assert mean * (1 - 6 / 7) <= value.min() < mean * 0.2 < value.max() <= mean * (1 + 6 / 7)
        assert value.mean().item() == pytest.approx(mean, rel=0.02)
        # a standard Gaussian truncated at ±2 has deviation 0.880
        assert value.std().item() == pytest.approx(0.880 * 3 / 7 * mean, rel=0.04)
    w = LIF(3, 20, recurrent_init="orthogonal").w_rec
    torch.testing.assert_close(w @ w.T, torch.eye(20))
    adaptation = ALIFPlusMinus(30, 4000).adaptation  # around zero
    assert abs(adaptation.mean().item()) < 0.1 / 30
    assert adaptation.std().item() == pytest.approx(1.8 / 30, rel=0.05)


def test_time_constants_survive_a_violent_optimizer():
    torch.set_default_dtype(torch.float32)
    cell = ALIFPlus(4, 6)
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


@both
@every_reset
def test_silent_surrogate_leaves_exactly_the_leaks_as_eigenvalues(kind, reset):
    cell = kind(3, 4, reset=reset, reset_gradient=True, tau_v=3.0, spike=FastSigmoid(dampening=0.0))
    state = ALIFState(torch.randn(5, 4), 0.3 * torch.rand(5, 4))
    z = cell.output(state)
    assert z.any() and not z.all()
    voltage = cell.decay_v * (1 - z) if reset == "zero" else cell.decay_v.expand(5, -1)
    expected = torch.cat((voltage, cell.decay_theta.expand(5, -1)), 1)
    eigenvalues = torch.linalg.eigvals(sum(cell.derivatives().by_state(None, state).values()))
    torch.testing.assert_close(eigenvalues.real.sort().values, expected.sort().values)
    torch.testing.assert_close(eigenvalues.imag, torch.zeros(5, 8))


# ---- ALIFPositive


def test_positive_parameters_are_set_and_what_is_not_positive_is_refused():
    cell = ALIFPositive(4, 3)
    cell.theta_rest = torch.tensor([0.5, 1.0, 2.0])
    torch.testing.assert_close(cell.theta_rest, torch.tensor([0.5, 1.0, 2.0]))
    cell.adaptation = torch.full((3,), 0.7)
    torch.testing.assert_close(cell.adaptation, torch.full((3,), 0.7))
    with pytest.raises(ValueError, match="b_theta must be positive and finite, got -"):
        cell.theta_rest = -1.0
    PaperRule().apply(cell, time=1.0, depth=1.1)
    torch.testing.assert_close(cell.adaptation, torch.full((3,), 0.77))


# ---- resets and positive parameters


@pytest.mark.parametrize("bad", [0.0, math.nan, torch.tensor([1.0, -2.0])], ids=str)
def test_a_positive_parameter_refuses_what_is_not_positive_and_stays(bad):
    cell = LIF(3, 2)
    before = cell.tau_v.clone()
    with pytest.raises(ValueError, match="tau_v must be positive and finite, got"):
        cell.tau_v = bad
    with pytest.raises(ValueError, match=r"tau_v has shape \(2,\), got \(3,\)"):
        cell.tau_v = torch.ones(3)
    assert torch.equal(cell.tau_v, before)


def test_a_positive_parameter_is_one_trainable_logarithm_and_setting_it_stays_that():
    cell = LIF(3, 2)
    assert {n for n, _ in cell.named_parameters()} == {"w_in", "w_rec", "log_tau_v"}
    parameter = cell.log_tau_v
    cell.tau_v = 5.0
    assert cell.log_tau_v is parameter
    (gradient,) = torch.autograd.grad((cell.tau_v**2).sum(), parameter)
    torch.testing.assert_close(gradient, torch.full((2,), 50.0))  # d tau² / d log tau = 2 tau²
