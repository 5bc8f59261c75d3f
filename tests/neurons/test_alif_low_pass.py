"""The released code's neuron: with its own trace, in numpy, and the ALIF+ that it equals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

import neurolsc
from neurolsc import ALIFLowPass, ALIFPlus, ALIFState, PaperRule, TransitionRule, pretrain, radius_profile
from neurolsc.export import quantize, to_netx, to_nir
from neurolsc.neurons.cell import Cell

pytestmark = pytest.mark.usefixtures("float64")

every_reset = pytest.mark.parametrize("reset", ["subtract", "static", "zero"])
HIGH: dict[str, Any] = {"tau_v": 3.0, "tau_theta": 20.0, "b_theta": 0.4, "adaptation": 3.0}
"""thresholds at which it fires now and then"""


def by_trace(cell: ALIFLowPass, x: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
    """The state (v, a) and spikes in numpy, each (T, B, N), with the threshold b + beta a."""
    names = ("w_in", "w_rec", "tau_v", "tau_theta", "b_theta", "adaptation")
    w_in, w_rec, tau_v, tau_theta, b, beta = (getattr(cell, name).detach().numpy() for name in names)
    w_rec = w_rec * (1 - np.eye(len(w_rec)))
    keep = np.exp(-1 / tau_theta)
    v, a, z = (np.zeros((len(x) + 1, x.shape[1], cell.n_hidden)) for _ in range(3))
    for t in range(1, len(x) + 1):
        a[t] = keep * a[t - 1] + (1 - keep) * z[t - 1]
        theta = b + beta * a[t]
        carried = np.exp(-1 / tau_v) * v[t - 1]
        match cell.reset_name:
            case "subtract":
                carried -= theta * z[t - 1]
            case "static":
                carried -= b * z[t - 1]
            case "zero":
                carried *= 1 - z[t - 1]
        v[t] = carried + x[t - 1] @ w_in.T + z[t - 1] @ w_rec.T
        z[t] = v[t] > theta
    return {"v": v[1:], "theta": b + beta * a[1:], "z": z[1:]}


def run(cell: Cell, x: Tensor, state: ALIFState | None = None) -> tuple[Tensor, ALIFState]:
    """The spikes and the states of a run (T, B, N)."""
    state, spikes, states = state or cell.initial_state(x.shape[1]), [], []
    with torch.no_grad():
        for now in x:
            z, state = cell.step(now, state)
            spikes.append(z)
            states.append(state)
    return torch.stack(spikes), ALIFState(*(torch.stack(part) for part in zip(*states, strict=True)))


def with_self_connections(cell: ALIFLowPass) -> ALIFLowPass:
    """The same, with something on the diagonal of w_rec."""
    with torch.no_grad():
        cell.w_rec.diagonal().normal_()
    return cell


def as_alif(cell: ALIFLowPass) -> ALIFPlus:
    """The ALIF+ of the same thresholds."""
    plain = ALIFPlus(cell.n_in, cell.n_hidden, reset=cell.reset_name, reset_gradient=cell.reset.gradient)
    new = 1 - cell.decay_theta
    with torch.no_grad():
        plain.w_in.copy_(cell.w_in)
        plain.w_rec.copy_(cell.w_rec).fill_diagonal_(0)
        plain.b_theta.copy_(new * cell.b_theta)
        plain.adaptation.copy_(new * cell.adaptation)
    plain.tau_v, plain.tau_theta = cell.tau_v, cell.tau_theta
    return plain


@every_reset
def test_it_is_the_neuron_of_the_released_code(reset, make_spikes):
    cell = with_self_connections(ALIFLowPass(9, 7, reset=reset, **HIGH))
    x = make_spikes(T=60, B=3, N=9, rate=0.4)
    wanted = by_trace(cell, x.numpy())
    z, states = run(cell, x)
    assert 0.03 < z.mean() < 0.8
    assert np.array_equal(z.numpy(), wanted["z"])
    for name in ("v", "theta"):
        np.testing.assert_allclose(getattr(states, name).numpy(), wanted[name], rtol=1e-12, atol=1e-12)
    at_once, last = cell.run(x, cell.initial_state(3))
    assert torch.equal(at_once, z)
    torch.testing.assert_close(last, ALIFState(states.v[-1], states.theta[-1]))


@pytest.mark.parametrize("reset", ["static", "zero"])
def test_with_the_other_resets_it_is_an_alif_plus_of_other_numbers(reset, make_spikes):
    cell = ALIFLowPass(9, 7, reset=reset, **HIGH)
    x = make_spikes(T=60, B=3, N=9, rate=0.4)
    (z, states), (others, theirs) = run(cell, x), run(as_alif(cell), x)
    assert 0.03 < z.mean() < 0.8
    assert torch.equal(z, others)
    torch.testing.assert_close(states, theirs, rtol=1e-12, atol=1e-12)


def test_a_spike_takes_off_more_than_of_an_alif_plus_by_as_much_as_is_said():
    cell = ALIFLowPass(9, 7, **HIGH)
    state, x = ALIFState(torch.randn(5, 7), 0.3 * torch.rand(5, 7)), torch.randn(5, 9)
    (_, ours), (_, theirs) = cell.step(x, state), as_alif(cell).step(x, state)
    fired = cell.output(state)
    more = (1 - cell.decay_theta) * (cell.b_theta + cell.adaptation - state.theta) * fired
    assert 0 < fired.mean() < 1
    torch.testing.assert_close(ours.theta, theirs.theta)
    torch.testing.assert_close(ours.v, theirs.v - more)


def test_where_both_leaks_are_equal_an_alif_plus_sends_the_same_spikes(make_spikes):
    cell = ALIFLowPass(9, 7, **HIGH)
    cell.tau_v = cell.tau_theta = torch.linspace(2, 9, 7)
    x = make_spikes(T=80, B=3, N=9, rate=0.4)
    plain, kept = as_alif(cell), cell.decay_theta.detach()
    rise = plain.adaptation.detach().clone()
    input_ = (1 - kept) * rise
    with torch.no_grad():
        plain.b_v.copy_(input_)
        plain.b_theta.add_(input_)
        plain.adaptation.mul_(kept)
        plain.w_rec.sub_(torch.diag(input_))
    start = plain.initial_state(3)
    (z, states), (others, theirs) = run(cell, x), run(plain, x, start._replace(v=rise.expand(3, -1)))
    assert 0.03 < z.mean() < 0.8
    assert torch.equal(z, others)
    torch.testing.assert_close(states.v - states.theta, theirs.v - theirs.theta, rtol=1e-11, atol=1e-11)
    assert not torch.equal(run(plain, x)[0], z)  # from rest it is not


def test_derivatives_with_a_detached_reset_are_those_of_the_alif_plus(make_network, make_spikes):
    cell = ALIFLowPass(9, 7, **HIGH)
    state = ALIFState(torch.randn(5, 7), 0.3 * torch.rand(5, 7))
    ours, theirs = (sum(c.derivatives().by_state(None, state).values()) for c in (cell, as_alif(cell)))  # type: ignore[union-attr]
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("reset_gradient", [False, True])
@every_reset
@pytest.mark.parametrize("width", [6, 40])
def test_radii_are_those_of_the_steps_jacobian(reset, reset_gradient, width, make_network, make_spikes):
    settings = HIGH | {"reset": reset, "reset_gradient": reset_gradient}
    network, x = make_network(ALIFLowPass, width=width, gain=3, **settings), make_spikes(T=6, B=2)
    for cell in network.cells:
        assert isinstance(cell, ALIFLowPass)
        with_self_connections(cell)
    profile = radius_profile(network, x)
    fired = []
    for k, moment in enumerate(network.moments(x)):
        for layer, cell in enumerate(network.cells):
            before = moment.before.layers[layer]
            read = moment.before.x if layer == 0 else network.cells[0].output(moment.before.layers[0])
            fired.append(cell.output(before).mean().item())

            def after(v: Tensor, theta: Tensor, cell=cell, read=read) -> tuple[Tensor, ...]:
                return tuple(cell.step(read, ALIFState(v, theta))[1])

            blocks = torch.autograd.functional.jacobian(after, tuple(before))
            m = torch.cat([torch.cat([b[torch.arange(2), :, torch.arange(2)] for b in row], 2) for row in blocks], 1)
            radii = torch.linalg.eigvals(m).abs().amax(1)
            torch.testing.assert_close(profile.time[layer, k], radii, rtol=1e-2 if width == 40 else 1e-9, atol=1e-12)
    assert 0 < sum(fired) / len(fired) < 1


@pytest.mark.parametrize("kappa", [0.85, 1.1, 0.3])
@pytest.mark.parametrize("hold", [False, True])
def test_our_rule_multiplies_the_derivative_by_exactly_kappa_and_keeps_the_resting_threshold(kappa, hold):
    cell = ALIFLowPass(6, 5, tau_v=2.0, tau_theta=20.0)
    cell.tau_theta = cell.tau_theta.clamp(max=9.0)  # a decay times 1.1 stays below 1
    state = ALIFState(torch.randn(3, 5), torch.randn(3, 5))
    known = cell.derivatives()
    assert known is not None
    before, rest = sum(known.by_state(torch.zeros(0), state).values()), cell.theta_rest.clone()
    TransitionRule(hold).apply(cell, time=kappa, depth=1 / kappa)
    torch.testing.assert_close(sum(known.by_state(torch.zeros(0), state).values()), kappa * before)
    assert torch.equal(cell.theta_rest, rest)


def test_what_is_frozen_stays_and_the_papers_rule_moves_what_the_paper_lists():
    for frozen, stays in (("log_tau_theta", "tau_theta"), ("adaptation", "adaptation")):
        cell = ALIFLowPass(6, 5)
        cell.get_parameter(frozen).requires_grad_(False)
        before = getattr(cell, stays).clone()
        TransitionRule().apply(cell, time=0.9, depth=1.1)
        assert torch.equal(getattr(cell, stays), before)
    cell = ALIFLowPass(6, 5)
    before = {name: getattr(cell, name).clone() for name in ("tau_theta", "b_theta", "adaptation")}
    PaperRule().apply(cell, time=0.9, depth=1.1)
    for name, factor in (("tau_theta", 0.9), ("b_theta", 1.1), ("adaptation", 1.1)):
        torch.testing.assert_close(getattr(cell, name), factor * before[name])


@pytest.mark.parametrize("kappa", [0.85, 1.15])
def test_a_rule_that_runs_away_stays_finite(kappa):
    torch.set_default_dtype(torch.float32)
    cell = ALIFLowPass(6, 5)
    for _ in range(1000):
        TransitionRule().apply(cell, time=kappa, depth=1.0)
        with torch.no_grad():
            cell.adaptation.clamp_(max=1e6)
    cell.kept = torch.zeros(5)  # what a decay becomes that is multiplied too often
    assert cell.adaptation.isfinite().all() and (cell.tau_theta > 0).all()
    assert cell.initial_state(2).theta.isfinite().all()


def test_no_neuron_hears_itself():
    cell = ALIFLowPass(4, 5)
    assert not cell.w_rec.diagonal().any() and cell.recurrent_synapses == 4
    state = ALIFState(torch.rand(3, 5), 0.1 * torch.rand(3, 5))
    _, before = cell.step(torch.rand(3, 4, generator=torch.Generator().manual_seed(2)), state)
    with_self_connections(cell)
    _, after = cell.step(torch.rand(3, 4, generator=torch.Generator().manual_seed(2)), state)
    torch.testing.assert_close(after, before)
    before.v.sum().backward()
    assert cell.w_rec.grad is not None and cell.w_rec.grad.any() and not cell.w_rec.grad.diagonal().any()


def test_its_start_is_at_rest_and_resting_thresholds_can_be_set():
    cell = ALIFLowPass(4, 5)
    start = cell.initial_state(2)
    assert torch.equal(start.theta, cell.b_theta.expand(2, -1)) and not start.v.any()
    torch.testing.assert_close(cell.step(torch.zeros(2, 4), start)[1], start)
    cell.theta_rest = torch.linspace(0.1, 2, 5)
    torch.testing.assert_close(cell.theta_rest.detach(), torch.linspace(0.1, 2, 5))
    with pytest.raises(ValueError, match=r"theta_rest must be finite, one number or \(5,\)"):
        cell.theta_rest = torch.ones(4)
    thresholds = cell.thresholds()
    x, state = torch.rand(2, 4), ALIFState(torch.rand(2, 5), 0.2 * torch.rand(2, 5))
    z, before = torch.ones(2, 5), cell.update(x, torch.ones(2, 5), state)
    rest = thresholds.rest()
    assert rest is not None and torch.equal(rest, cell.b_theta)
    thresholds.scale(3.0)
    torch.testing.assert_close(cell.update(x, z, state._replace(theta=3 * state.theta)).theta, 3 * before.theta)


def test_starting_values_are_those_of_alif_plus():
    cells = []
    for kind in (ALIFPlus, ALIFLowPass):
        torch.manual_seed(3)
        cells.append(kind(8, 30))
    for name in ("w_in", "tau_v", "tau_theta", "b_theta", "adaptation"):
        assert torch.equal(*(getattr(cell, name) for cell in cells)), name
    off = ~torch.eye(30, dtype=torch.bool)
    assert torch.equal(*(cell.w_rec[off] for cell in cells))


def test_saved_and_loaded_it_is_the_same(tmp_path: Path, make_network, make_spikes):
    network, x = make_network(ALIFLowPass, gain=3, reset="zero", reset_gradient=True, **HIGH), make_spikes()
    neurolsc.save(network, tmp_path / "n")
    again = neurolsc.load(tmp_path / "n")
    assert [repr(cell) for cell in again.cells] == [repr(cell) for cell in network.cells]
    assert network.run(x).spikes[1].any()
    assert torch.equal(again.run(x).logits, network.run(x).logits)


def test_exports_refuse_it_by_name(make_network, tmp_path: Path):
    network = make_network(ALIFLowPass, reset="static")
    for export in (lambda: quantize(network), lambda: to_netx(network, tmp_path / "n.net")):
        with pytest.raises(TypeError, match="layer 1 is a ALIFLowPass, whose step is not that of ALIF; only"):
            export()
    with pytest.raises(TypeError, match="layer 1 is a ALIFLowPass, whose step is not that of ALIF; only"):
        to_nir(network, dt=1e-3)


@pytest.mark.parametrize("target", [0.5, "balanced"])
def test_pre_training_reaches_its_target_by_its_own_rule(target, make_network, make_spikes):
    torch.set_default_dtype(torch.float32)
    network, x = make_network(ALIFLowPass, width=24, gain=2, tau_theta=20.0), make_spikes(T=20, B=8)
    result = pretrain(network, [x], target=target, rule=TransitionRule(), steps=8, max_steps=60, progress=False)
    assert result.converged, result.findings
    assert all(0 < layer.mean() < 1 for layer in network.run(x).spikes)
