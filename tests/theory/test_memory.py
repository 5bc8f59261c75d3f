"""The curse of memory: moments against the paper's numbers, sums over all lags and autograd."""

import math
import re

import pytest
import torch
from torch import Tensor

from neurolsc import GRU, LIF, ALIFPlus, Network, save, theory
from neurolsc.theory import (
    DoubleExponential,
    Level,
    Polar,
    RootTime,
    Tanh,
    autocorrelation,
    eigenvalue_hessian,
    input_scale,
    level_time_constants,
    plain_time_constants,
    sensitivity_covariance,
    state_covariance,
    time_constant_sensitivity,
)

pytestmark = pytest.mark.usefixtures("float64")
SPIRAL = 0.9 * complex(math.cos(0.4), math.sin(0.4))

# ---- moments


@pytest.mark.parametrize(
    ("eigenvalue", "rho", "state", "sensitivity"),
    [
        (0.9, 0.0, 5.263, 263.89),
        (0.99, 0.0, 50.25, 251_262.6),
        (0.99, 0.5, 148.76, 753_639.6),
        (0.99, 0.9, 871.79, 4_737_807),
    ],
)
def test_moments_of_geometric_autocorrelations(eigenvalue: float, rho: float, state: float, sensitivity: float):
    assert state_covariance(eigenvalue, correlation=rho).item() == pytest.approx(state, rel=1e-4)
    assert sensitivity_covariance(eigenvalue, correlation=rho).item() == pytest.approx(sensitivity, rel=1e-4)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("pair", [(0.9,), (-0.7,), (SPIRAL,), (0.6 + 0.3j, -0.4 + 0.5j)], ids=str)
def test_moments_are_the_double_sums_over_all_lags(pair: tuple[complex, ...], rho: float):
    """Of one eigenvalue with its conjugate, of two with each other."""
    n = torch.arange(500)  # 0.9^500 is 1e-23
    r = rho ** (n[:, None] - n).abs()
    both = [torch.tensor(z, dtype=torch.complex128) for z in (pair if len(pair) == 2 else (*pair, pair[0].conjugate()))]
    powers, slopes = [z**n for z in both], [n * z ** (n - 1) for z in both]
    for (left, right), moment in ((powers, state_covariance), (slopes, sensitivity_covariance)):
        found = moment(*pair, correlation=rho)
        torch.testing.assert_close(found.to(torch.complex128), (left[:, None] * right * r).sum())


def test_an_array_of_autocorrelations_gives_what_its_formula_gives():
    rho, lags = 0.8, torch.arange(200)
    for eigenvalue in (0.95, SPIRAL):
        for moment in (state_covariance, sensitivity_covariance):
            exact = moment(eigenvalue, correlation=rho)
            torch.testing.assert_close(moment(eigenvalue, correlation=rho**lags), exact)
    each = torch.stack([0.3**lags, 2 * 0.8**lags], 1)  # one for each eigenvalue
    found = sensitivity_covariance(torch.tensor([0.9, 0.9]), correlation=each)
    wanted = [sensitivity_covariance(0.9, correlation=0.3), 2 * sensitivity_covariance(0.9, correlation=0.8)]
    torch.testing.assert_close(found, torch.stack(wanted))


@pytest.mark.parametrize(("rho", "slope"), [(0.0, -3), (0.5, -3), (0.9, -3), (1.0, -4)])
def test_the_sensitivity_grows_with_the_third_power_of_the_memory_and_with_the_fourth_for_constant_inputs(rho, slope):
    gap = torch.tensor([1e-4, 1e-5])
    logs = sensitivity_covariance(1 - gap, correlation=rho).log()
    assert (logs.diff() / gap.log().diff()).item() == pytest.approx(slope, abs=1e-3)


@pytest.mark.parametrize("eigenvalue", [1.0, -1.2, 1j, math.nan])
def test_eigenvalues_on_or_outside_the_unit_circle_are_refused(eigenvalue: complex):
    for moment in (state_covariance, sensitivity_covariance, input_scale):
        with pytest.raises(ValueError, match="an eigenvalue must have a modulus below 1, got"):
            moment(eigenvalue)


@pytest.mark.parametrize("bad", ["x", None, [0.5, "x"]])
def test_what_is_no_number_is_refused_by_what_came(bad):
    for moment in (state_covariance, sensitivity_covariance, input_scale):
        with pytest.raises(TypeError, match=f"an eigenvalue must be a number, .* got {re.escape(repr(bad))}"):
            moment(bad)
        with pytest.raises(TypeError, match=f"correlation must be a number, got {re.escape(repr(bad))}"):
            moment(0.5, correlation=bad)
    with pytest.raises(TypeError, match="correlation must be a number, got 1j"):
        Level(1j)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0.0, 0.0], r"R\(0\) > 0, got R\(0\) = 0"),
        ([1.0, 0.2, -1.3], r"exceeds R\(0\), got 1.3 R\(0\)"),
        ([1.0, 0.6], "no negative power at any frequency"),  # 1/2 is the most that one neighbour can have
        ([1.0, 1j], "real inputs"),
    ],
)
def test_what_is_no_autocorrelation_is_refused(values: list[complex], message: str):
    with pytest.raises(ValueError, match=message):
        state_covariance(0.5, correlation=torch.tensor(values))
    assert state_covariance(0.5, correlation=torch.tensor([1.0, 0.5])) > 0
    with pytest.raises(ValueError, match=r"in \[-1, 1\], got 1.5"):
        state_covariance(0.5, correlation=1.5)


# ---- estimates


def test_estimated_autocorrelations_are_those_of_the_pairs():
    x = torch.randn(30, 5, 1).cumsum(0) + 1
    for unbiased in (False, True):
        found = autocorrelation(x, 4, unbiased=unbiased)
        for lag in range(5):
            pairs = (x[: 30 - lag] * x[lag:]).mean(1).sum(0)
            torch.testing.assert_close(found[lag], pairs / (30 - lag if unbiased else 30))
    torch.testing.assert_close(autocorrelation(x, 4, centred=True), autocorrelation(x - x.mean((0, 1)), 4))
    with pytest.raises(ValueError, match="fewer than the 30 steps, got 30"):
        autocorrelation(x, 30)
    with pytest.raises(ValueError, match=r"real, of shape \(T, B, N\)"):
        autocorrelation(x[0], 3)


# ---- input scale and parametrisations

MEMORIES = torch.tensor([0.9, 0.99, 0.999, 0.9999], dtype=torch.float64)


def test_the_scale_for_uncorrelated_inputs_levels_the_state_of_these_only():
    scale = input_scale(MEMORIES)
    torch.testing.assert_close(scale, (1 - MEMORIES**2).sqrt())
    level = scale**2 * state_covariance(MEMORIES)
    torch.testing.assert_close(level, torch.ones(4))
    for rho in (0.5, 0.9):
        tilted = scale**2 * state_covariance(MEMORIES, correlation=rho)
        assert tilted[-1] == pytest.approx((1 + rho) / (1 - rho), rel=1e-2) and tilted[-1] > 1.05 * tilted[0]
        own = input_scale(MEMORIES, correlation=rho) ** 2 * state_covariance(MEMORIES, correlation=rho)
        torch.testing.assert_close(own, torch.ones(4))
    grows = scale**2 * state_covariance(MEMORIES, correlation=1.0)
    assert grows[-1] > 900 * grows[0]


@pytest.mark.parametrize(
    "magnitude",
    [DoubleExponential(), Tanh(), RootTime(), Level(), Level(scaled=False), Level(0.7)],
    ids=repr,
)
def test_a_parametrisation_has_the_derivative_and_the_inverse_that_it_says(magnitude):
    free = magnitude.inverse(MEMORIES)
    torch.testing.assert_close(magnitude.value(free), MEMORIES, rtol=1e-12, atol=0)
    step = 1e-5
    numeric = (magnitude.value(free + step) - magnitude.value(free - step)) / (2 * step)
    torch.testing.assert_close(magnitude.derivative(free), numeric, rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize(
    ("magnitude", "scaled", "limit"),
    [
        (DoubleExponential(), True, 0.5),
        (Tanh(), True, 2.0),
        (RootTime(), False, 1.0),
        (Level(), True, 1.0),
        (Level(scaled=False), False, 1.0),
    ],
    ids=repr,
)
def test_the_sensitivity_is_level_as_memory_grows(magnitude, scaled: bool, limit: float):
    def moment(nu: Tensor) -> Tensor:
        found = magnitude.derivative(magnitude.inverse(nu)) ** 2 * sensitivity_covariance(nu)
        return found * input_scale(nu) ** 2 if scaled else found

    torch.testing.assert_close(moment(MEMORIES[1:]), torch.full((3,), limit), rtol=0.02, atol=0)
    assert (moment(torch.linspace(0.1, 0.9999, 50)) < 1.001 * max(limit, 1)).all()
    if isinstance(magnitude, DoubleExponential):  # a logarithm of tau alone does not do it
        bare = magnitude.derivative(magnitude.inverse(MEMORIES)) ** 2 * sensitivity_covariance(MEMORIES)
        assert bare[-1] == pytest.approx(1e4 / 4, rel=1e-3)


@pytest.mark.parametrize("angle", ["plain", "exponential", "level"])
def test_of_a_polar_form_the_moments_are_those_of_the_kernels_derivatives(angle):
    polar, eigenvalue, lags = Polar(Tanh(), angle), torch.tensor([SPIRAL]), torch.arange(300)
    free = polar.inverse(eigenvalue)
    torch.testing.assert_close(polar.value(*free), eigenvalue)

    def kernel(modulus: Tensor, turn: Tensor) -> Tensor:
        return torch.view_as_real(polar.value(modulus, turn) ** lags)

    by_both = torch.autograd.functional.jacobian(kernel, free)
    for by_one, derivative in zip(by_both, polar.derivatives(*free), strict=True):
        wanted = by_one.square().sum()  # of uncorrelated inputs the power of a sum is the sum of powers
        torch.testing.assert_close(sensitivity_covariance(SPIRAL) * derivative.abs().squeeze() ** 2, wanted)
    if angle == "level":
        near = polar.inverse(torch.polar(MEMORIES, torch.full((4,), 0.3)))
        moments = polar.derivatives(*near)[1].abs() ** 2 * sensitivity_covariance(MEMORIES) * input_scale(MEMORIES) ** 2
        torch.testing.assert_close(moments, torch.ones(4))
    with pytest.raises(ValueError, match="angle must be one of"):
        Polar(angle="round")  # type: ignore[arg-type]


# ---- the Hessian


@pytest.mark.parametrize("rho", [0.0, 0.6])
def test_the_hessian_is_that_of_autograd(rho: float):
    n, steps = 3, 250
    eigenvalues = torch.polar(0.4 + 0.4 * torch.rand(n), 3 * torch.randn(n))
    into, out = torch.randn(2, n, dtype=torch.complex128)
    t = torch.arange(steps)
    r = rho ** (t[:, None] - t).abs()

    def kernel(parts: Tensor) -> Tensor:
        return ((into * out) * torch.complex(parts[:n], parts[n:]) ** t.unsqueeze(1)).real.sum(1)

    at = torch.cat([eigenvalues.real, eigenvalues.imag])

    def loss(parts: Tensor) -> Tensor:
        apart = kernel(parts) - kernel(at)
        return apart @ r @ apart / 2

    exact = torch.autograd.functional.hessian(loss, at)
    torch.testing.assert_close(eigenvalue_hessian(eigenvalues, into, out, correlation=rho), exact, rtol=1e-6, atol=1e-8)


# ---- time constants of networks


def spiking(tau_theta: float, steps: int) -> tuple[Network, Tensor]:
    cell = ALIFPlus(20, 12, tau_v=5.0, tau_theta=tau_theta)
    with torch.no_grad():
        cell.w_in.mul_(4)
    return Network([cell], 2, layer_delay=0), (torch.rand(steps, 16, 20) < 0.1).double()


def test_the_sensitivity_to_time_constants_is_that_of_autograd_with_the_drive_fixed():
    network, x = spiking(30.0, 25)
    assert 0.01 < network.run(x).spikes[0].mean() < 0.5
    cell, z = network.cells[0], network.run(x).spikes[0].detach()
    found = {entry.name: entry for entry in time_constant_sensitivity(network, x)}
    assert set(found) == {"tau_v", "tau_theta"}

    def thresholds(log_tau: Tensor) -> Tensor:
        decay = torch.exp(-1 / log_tau.exp())
        theta = (cell.b_theta.detach() / (1 - decay)).expand(16, -1)
        steps = []
        for before in [torch.zeros_like(z[0]), *z[:-1]]:
            theta = decay * theta + cell.b_theta.detach() + cell.adaptation.detach() * before
            steps.append(theta)
        return torch.stack(steps)

    at = cell.log_tau_theta.detach()
    theta, slopes = torch.func.jvp(thresholds, (at,), (torch.ones_like(at),))  # neurons do not mix
    torch.testing.assert_close(found["tau_theta"].measured, slopes.square().mean((0, 1)))
    torch.testing.assert_close(found["tau_theta"].state, theta.square().mean((0, 1)))
    torch.testing.assert_close(found["tau_theta"].tau, cell.tau_theta.detach())


@pytest.mark.parametrize("steps", [150, 202, 500])
def test_a_run_of_any_length_has_an_autocorrelation(steps):
    network = Network([ALIFPlus(20, 16, tau_v=5.0), ALIFPlus(16, 16, tau_v=5.0)], 3)
    found = time_constant_sensitivity(network, (torch.rand(steps, 4, 20) < 0.1).double() * 2)
    assert [entry.stationary.isfinite().all() for entry in found] == [True] * 4


def test_over_long_runs_the_sensitivity_tends_to_the_closed_form():
    network, x = spiking(30.0, 1500)
    for entry in time_constant_sensitivity(network, x):
        assert (entry.tau < 100).all()
        assert ((entry.measured / entry.stationary).log().abs() < 0.15).all()  # the start counts, too


# ---- level time constants


@pytest.mark.parametrize("scale", [None, "variance", "mean"])
def test_level_time_constants_change_what_is_trained_and_nothing_else(scale, tmp_path):
    network, x = spiking(100.0, 40)
    network = Network([*network.cells, LIF(12, 8, tau_v=20.0, threshold=0.2)], 2)
    before, values = network.run(x), {name: p.detach().clone() for name, p in network.named_parameters()}
    assert before.spikes[1].any()
    level_time_constants(network, scale=scale)
    after = network.run(x)
    assert torch.equal(after.spikes[1], before.spikes[1])
    assert set(values) != {name for name, _ in network.named_parameters()}
    assert network.cells[0]._defined_with_its_step("run_at_once")  # as fast as before
    after.logits.square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())
    with pytest.raises(ValueError, match=r"ParametrizedALIFPlus .* by neurolsc\.theory\.plain_time_constants"):
        save(network, tmp_path / "network.safetensors")
    plain_time_constants(network)
    for name, p in network.named_parameters():
        torch.testing.assert_close(p.detach(), values[name])
    assert type(network.cells[0]) is ALIFPlus
    save(network, tmp_path / "network.safetensors")


@pytest.mark.parametrize(("scale", "power"), [("variance", 0.5), ("mean", 0.0)])
def test_an_input_scale_follows_tau(scale, power: float):
    network, _ = spiking(100.0, 1)
    cell = network.cells[0]
    level_time_constants(network, scale=scale)
    rest, weight = cell.theta_rest.detach(), cell.w_in.detach()
    decay = cell.decay_theta.detach()
    cell.tau_theta = 10 * cell.tau_theta.detach()
    grown = (1 - decay) / (1 - cell.decay_theta.detach())
    if scale == "variance":
        grown = grown * ((1 + cell.decay_theta.detach()) / (1 + decay))
    torch.testing.assert_close(cell.theta_rest.detach(), rest * grown**power)
    torch.testing.assert_close(cell.w_in.detach(), weight)  # follows the voltage's
    cell.tau_v = 1e6 * torch.ones(12)
    assert (cell.w_in.detach().abs() < 4e-3 * weight.abs()).all()


def test_the_free_parameter_without_a_scale_is_the_root_of_tau():
    network, x = spiking(100.0, 30)
    cell, tau = network.cells[0], network.cells[0].tau_theta.detach().clone()
    network.run(x).logits.square().sum().backward()
    by_log = cell.log_tau_theta.grad.clone()
    level_time_constants(network, scale=None)
    root = cell.parametrizations.log_tau_theta.original
    torch.testing.assert_close(root.detach(), tau.sqrt())
    root.grad = None
    network.run(x).logits.square().sum().backward()
    torch.testing.assert_close(root.grad, by_log * 2 / tau.sqrt())
    cell.tau_theta = torch.tensor(50.0)
    torch.testing.assert_close(root.detach(), torch.full((12,), 50.0).sqrt())


def test_only_cells_with_leaky_states_have_level_time_constants():
    with pytest.raises(TypeError, match="layer 2 must be a LIF or ALIF with its own parameters, got GRU"):
        level_time_constants(Network([LIF(4, 3), GRU(3, 3)], 2))
    with pytest.raises(ValueError, match="scale must be one of"):
        level_time_constants(Network([LIF(4, 3)], 2), scale="all")  # type: ignore[arg-type]


# ---- parametrisations of an integrator


@pytest.mark.parametrize("angle", ["plain", "exponential", "level"])
def test_the_derivatives_of_a_polar_form_are_finite_differences_also_where_the_modulus_is_not_positive(angle):
    polar = theory.Polar(theory.Tanh(), angle)
    modulus, turn = torch.tensor([-0.7, -0.1, 0.0, 0.7], dtype=torch.double), torch.full((4,), 0.3, dtype=torch.double)
    if angle == "level":  # whose scale is infinite at 0
        modulus = modulus[modulus != 0]
        turn = turn[:3]
    by_modulus, by_angle = polar.derivatives(modulus, turn)
    step = 1e-6
    numeric = (polar.value(modulus, turn + step) - polar.value(modulus, turn - step)) / (2 * step)
    torch.testing.assert_close(by_angle, numeric, rtol=1e-6, atol=1e-9)
    numeric = (polar.value(modulus + step, turn) - polar.value(modulus - step, turn)) / (2 * step)
    if angle == "level":  # its scale counts as a constant
        numeric = polar.magnitude.derivative(modulus) * polar.value(modulus, turn) / polar.magnitude.value(modulus)
    torch.testing.assert_close(by_modulus, numeric, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("rho", [-0.9, 0.0, 0.5])
def test_a_level_modulus_is_exact_where_it_is_nearly_one(rho: float, scaled: bool):
    level = theory.Level(rho, scaled)
    for sign in (1, -1):
        nu = torch.tanh(sign * torch.tensor([12.0, 14.0, 17.0], dtype=torch.double))
        free = level.inverse(nu)
        torch.testing.assert_close(level.value(free), nu, rtol=1e-15, atol=0)
        # the derivative of the scaled one by artanh nu tends to the root of 2, that of the other grows as cosh
        wanted = math.sqrt(2) * torch.atanh(nu)
        if not scaled:
            wanted = torch.sinh(torch.atanh(nu)) * math.sqrt(2 * (1 + sign * rho) / (1 - sign * rho))
        torch.testing.assert_close(free.diff(), wanted.diff(), rtol=1e-8, atol=0)


@pytest.mark.parametrize("rho", [1.0, -1.0])
def test_of_inputs_that_never_change_no_modulus_is_level_and_of_nearly_such_ones_it_is_nearly_their_integral(
    rho: float,
):
    with pytest.raises(ValueError, match=rf"needs a correlation between -1 and 1, one number, got {rho}"):
        theory.Level(rho)
    nu = torch.linspace(-0.9, 0.9, 7, dtype=torch.double)
    for scaled, integral in ((True, -rho * torch.log(1 - rho * nu)), (False, nu / (1 - rho * nu))):
        level = theory.Level(rho * (1 - 1e-9), scaled)
        torch.testing.assert_close(level.inverse(nu), integral, rtol=1e-5, atol=1e-12)
        assert level.value(torch.tensor([-5.0, 5.0])).isfinite().all()
