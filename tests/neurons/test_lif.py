"""LIF: closed forms, eq. 49 written out in numpy, starting values, arguments."""

import inspect
import math
import re

import numpy as np
import pytest
import snntorch
import torch
from numpy.typing import NDArray

from neurolsc import LIF, ALIFPlus, ALIFPlusMinus, LIFState
from neurolsc.neurons import LI
from neurolsc.neurons.cell import ELSEWHERE
from neurolsc.surrogate import FastSigmoid

pytestmark = pytest.mark.usefixtures("float64")


def one_neuron(*, decay_v: float, threshold: float = 1.0, **settings: object) -> LIF:
    """A neuron that reads its input with weight 1 and not itself."""
    cell = LIF(1, 1, threshold=threshold, **settings)
    cell.tau_v = -1 / math.log(decay_v)
    with torch.no_grad():
        cell.w_in.fill_(1)
        cell.w_rec.fill_(0)
    return cell


def drive(cell: LIF, inputs: list[float]) -> tuple[list[float], list[float]]:
    """Voltages and spikes of the one neuron."""
    state, v, z = cell.initial_state(1), [], []
    for value in inputs:
        out, state = cell.step(torch.tensor([[value]]), state)
        v.append(state.v.item())
        z.append(out.item())
    return v, z


@pytest.mark.parametrize("kind", [LIF, ALIFPlus, ALIFPlusMinus])
@pytest.mark.parametrize("word", ELSEWHERE)
def test_a_word_of_another_library_is_refused_with_what_it_is_here(kind, word):
    if word in inspect.signature(kind).parameters:  # a LIF's threshold
        assert kind(2, 3, **{word: 0.5}).theta[0] == 0.5
        return
    with pytest.raises(TypeError, match=re.escape(f"{kind.__name__} takes no {word}: {ELSEWHERE[word]}")):
        kind(2, 3, **{word: 0.9})
    with pytest.raises(TypeError, match="unexpected keyword argument 'bta'"):
        kind(2, 3, bta=0.9)


def test_the_decay_of_a_beta_that_is_refused_is_that_of_the_tau_v_that_is_named():
    layer, cell = snntorch.Leaky(beta=0.9), LIF(1, 1, tau_v=-1 / math.log(0.9))
    cell.tau_v = torch.full((1,), -1 / math.log(0.9))
    assert "tau_v = -1 / ln(beta)" in ELSEWHERE["beta"]
    assert cell.decay_v.item() == pytest.approx(layer.beta.item())


def test_below_threshold_follows_the_geometric_sum():
    v, z = drive(one_neuron(decay_v=0.9), [0.05] * 40)  # tends to 0.5 < 1: no spike
    assert v == pytest.approx([0.05 * (1 - 0.9**t) / (1 - 0.9) for t in range(1, 41)], rel=1e-12)
    assert not any(z)


def test_an_integrator_answers_one_input_with_the_difference_of_two_decays():
    cell = LI(1, 1, tau_v=-1 / math.log(0.9), tau_i=-1 / math.log(0.5))
    with torch.no_grad():
        cell.w_in.fill_(2.0)
    v, _ = cell.run(torch.eye(30)[:, :1, None], cell.initial_state(1))
    assert v.flatten().tolist() == pytest.approx([2 * (0.9**t - 0.5**t) / (0.9 - 0.5) for t in range(1, 31)])


def test_voltage_at_the_threshold_does_not_spike():
    assert drive(one_neuron(decay_v=0.5, threshold=0.25), [0.25])[1] == [0]
    assert drive(one_neuron(decay_v=0.5, threshold=0.25), [np.nextafter(0.25, 1)])[1] == [1]


@pytest.mark.parametrize(("reset", "after"), [("subtract", 0.5 * 1.5 - 1), ("static", 0.5 * 1.5 - 1), ("zero", 0)])
def test_reset_acts_at_the_step_after_the_spike(reset, after):
    v, z = drive(one_neuron(decay_v=0.5, reset=reset), [1.5, 0.0, 0.0])
    assert z == [1, 0, 0]
    assert v == pytest.approx([1.5, after, after / 2])


def by_hand(cell: LIF, x: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The LIF of eq. 49 in numpy, one sample and neuron at a time: voltages and spikes (T, B,
    N)."""
    w_in, w_rec, tau, theta = (p.detach().numpy() for p in (cell.w_in, cell.w_rec, cell.tau_v, cell.theta))
    T, B, N = x.shape[0], x.shape[1], cell.n_hidden
    v, z = np.zeros((T + 1, B, N)), np.zeros((T + 1, B, N))
    for t in range(1, T + 1):
        for b in range(B):
            for i in range(N):
                carried = np.exp(-1 / tau[i]) * v[t - 1, b, i]
                if z[t - 1, b, i]:
                    carried = 0 if cell.reset_name == "zero" else carried - theta[i]
                v[t, b, i] = carried + w_in[i] @ x[t - 1, b] + w_rec[i] @ z[t - 1, b]
                z[t, b, i] = float(v[t, b, i] > theta[i])
    return v[1:], z[1:]


@pytest.mark.parametrize("reset", ["subtract", "static", "zero"])
def test_step_is_eq_49_written_out(reset, make_spikes):
    cell = LIF(9, 7, reset=reset, tau_v=3.0, threshold=0.4, reset_gradient=True)
    x = make_spikes(T=25, B=3, N=9, rate=0.4)
    expected_v, expected_z = by_hand(cell, x.numpy())
    state = cell.initial_state(3)
    for t in range(25):
        z, state = cell.step(x[t], state)
        torch.testing.assert_close(state.v.detach().numpy(), expected_v[t], rtol=1e-12, atol=1e-12)
        assert (z.detach().numpy() == expected_z[t]).all()
    assert 0.05 < expected_z.mean() < 0.8


@pytest.mark.parametrize("reset", ["subtract", "static", "zero"])
def test_silent_surrogate_leaves_the_leaks_as_eigenvalues(reset):
    cell = LIF(3, 5, tau_v=4.0, reset=reset, reset_gradient=True, spike=FastSigmoid(dampening=0.0))
    state = LIFState(torch.tensor([[2.0, 0.1, 3.0, -1.0, 0.5]]))
    z = cell.output(state)
    assert z.any()
    left = cell.decay_v * (1 - z) if reset == "zero" else cell.decay_v.expand(1, 5)
    derivative = sum(cell.derivatives().by_state(None, state).values())
    eigenvalues = torch.linalg.eigvals(derivative).real.sort().values
    torch.testing.assert_close(eigenvalues, left.sort().values)


def test_starting_values():
    torch.manual_seed(1)
    cell = LIF(60, 400, tau_v=5.0)
    for weights, fans in ((cell.w_in, 460), (cell.w_rec, 800)):
        bound = math.sqrt(6 / fans)  # Glorot uniform
        assert weights.abs().max() <= bound
        assert weights.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    tau = cell.tau_v
    assert tau.min() >= 5 * (1 / 7)
    assert tau.max() <= 5 * (13 / 7)
    assert tau.mean().item() == pytest.approx(5, rel=0.05)
    assert (cell.theta == 1).all()
    assert not cell.b_v.any()


def test_recurrence_may_start_orthogonal():
    w = LIF(3, 20, recurrent_init="orthogonal").w_rec
    torch.testing.assert_close(w @ w.T, torch.eye(20))


def test_time_constants_survive_a_violent_optimizer():
    torch.set_default_dtype(torch.float32)
    cell = LIF(4, 6)
    optimizer = torch.optim.SGD(cell.parameters(), lr=1e4)
    for sign in (1, 1, -1, -1, -1):
        optimizer.zero_grad()
        state = cell.initial_state(2)
        for _ in range(3):
            _, state = cell.step(torch.ones(2, 4), state)
        (sign * state.v.sum() + sign * cell.tau_v.sum()).backward()
        optimizer.step()
        assert ((cell.tau_v > 0) & cell.tau_v.isfinite()).all()
        assert cell.decay_v.isfinite().all()


def test_trainable_parameters_are_those_of_the_paper():
    assert {n for n, _ in LIF(3, 2).named_parameters()} == {"w_in", "w_rec", "log_tau_v"}


def test_arguments_are_refused_with_what_was_wanted():
    for bad in ({"n_in": 0}, {"n_hidden": -1}, {"tau_v": 0.0}, {"threshold": -1.0}, {"tau_v": math.nan}):
        with pytest.raises(ValueError, match=f"{next(iter(bad))} must be"):
            LIF(**{"n_in": 3, "n_hidden": 2} | bad)
    with pytest.raises(TypeError, match="n_hidden must be an int"):
        LIF(3, 2.0)
    with pytest.raises(ValueError, match="reset must be one of 'subtract'"):
        LIF(3, 2, reset="hard")
    with pytest.raises(ValueError, match="recurrent_init must be one of 'glorot'"):
        LIF(3, 2, recurrent_init="he")
    cell = LIF(3, 2)
    for shape in ((3,), (4, 2), (1, 4, 3)):
        with pytest.raises(ValueError, match=r"x must have shape \(B, 3\)"):
            cell.step(torch.zeros(shape), cell.initial_state(4))


def test_config_makes_a_cell_of_the_same_layout():
    cell = LIF(3, 2, reset="zero", reset_gradient=True)
    config = cell.config()
    assert config.pop("spike")["name"] == "FastSigmoid"
    assert str(LIF(**config)) == str(cell)
    with pytest.raises(TypeError, match="only surrogates of neurolsc can be saved"):
        LIF(3, 2, spike=torch.sign).config()
