"""LIF, ALIF+ and ALIF± as recurrent modules of norse, among norse's own modules and against our cells."""

import copy
import inspect

import pytest
import torch
from norse.torch import LI, LIFRecurrent, Lift, SequentialState
from torch import nn
from torch.testing import assert_close

from neurolsc import Network, neurons, pretrain
from neurolsc.interop import norse as views

I, H, B, T = 6, 8, 4, 12  # noqa: E741
CELLS = (views.LIFRecurrentCell, views.ALIFPlusRecurrentCell, views.ALIFPlusMinusRecurrentCell)
LAYERS = (views.LIFRecurrent, views.ALIFPlusRecurrent, views.ALIFPlusMinusRecurrent)
OURS = (neurons.LIF, neurons.ALIFPlus, neurons.ALIFPlusMinus)
every_cell = pytest.mark.parametrize("view", CELLS)
every_view = pytest.mark.parametrize("view", (*CELLS, *LAYERS))


def make(view, n_in=I, n=H, **settings):
    """A module that fires under `inputs`."""
    if "ALIF" in view.__name__:
        settings = {"beta": 0.3, "tau_adapt_inv": 50.0} | settings
    return view(n_in, n, **{"input_weights": torch.rand(n, n_in)} | settings)


def inputs(*shape):
    spikes = torch.rand(*(shape or (T, B, I)), generator=torch.Generator().manual_seed(1)) < 0.3
    return spikes.to(torch.get_default_dtype())


def over_time(module, x, state=None):
    if type(module) in LAYERS:
        return module(x, state)
    outputs = []
    for frame in x:
        z, state = module(frame, state)
        outputs.append(z)
    return torch.stack(outputs), state


@pytest.mark.parametrize("reset", ["subtract", "static", "zero"])
@pytest.mark.parametrize(("view", "ours"), list(zip(CELLS, OURS, strict=True)))
def test_n1_spikes_and_states_are_those_of_our_cell(view, ours, reset, float64):
    cell, plain = make(view, reset=reset), ours(I, H, reset=reset)
    with torch.no_grad():
        plain.w_in.copy_(cell.input_weights)
        plain.w_rec.copy_(cell.recurrent_weights)
        plain.tau_v = cell.tau_v
        if ours is not neurons.LIF:
            plain.tau_theta, plain.theta_rest = cell.tau_theta, cell.theta_rest
            plain.adaptation.copy_(cell.adaptation)
    ours_state, state, spikes = plain.initial_state(B), None, 0
    for frame in inputs():
        ours_z, ours_state = plain.step(frame, ours_state)
        z, state = cell(frame, state=state)
        spikes += z.sum()
        assert torch.equal(z, ours_z) and torch.equal(state.z, z)
        assert_close(tuple(state[1:]), tuple(ours_state))
    assert spikes > 0


@pytest.mark.parametrize(("cell", "layer"), list(zip(CELLS, LAYERS, strict=True)))
def test_n4_a_layer_is_the_loop_over_its_cell_norses_lift_of_it_and_its_own_parts(cell, layer):
    whole, single, recorded = make(layer), make(cell), make(layer, record_states=True)
    for module in (single, recorded):
        module.load_state_dict(whole.state_dict())
    x = inputs()
    z, state = whole(x)
    first, between = whole(x[:5])
    second, after = whole(x[5:], state=between)
    _, states = recorded(x)
    assert z.shape == (T, B, H) and z.sum() > 0
    assert torch.equal(states.z, z) and all(leaf.shape == (T, B, H) for leaf in states)
    for other, end in (over_time(single, x), Lift(single)(x), (torch.cat((first, second)), after)):
        assert torch.equal(z, other)
        for leaves in zip(state, end, (leaf[-1] for leaf in states), strict=True):
            assert torch.equal(leaves[0], leaves[1]) and torch.equal(leaves[0], leaves[2])


@every_view
def test_n5_weights_are_parameters_under_norses_names_and_may_be_given(view):
    module = make(view)
    learnt = {"log_tau_v", "input_weights", "recurrent_weights"}
    learnt |= {"log_tau_theta", "b_theta", "adaptation"} if "ALIF" in view.__name__ else set()
    named = dict(module.named_parameters())
    assert set(named) == learnt <= set(module.state_dict())
    assert named["input_weights"].shape == (H, I) and named["recurrent_weights"].shape == (H, H)
    w_in, w_rec = torch.randn(H, I), torch.randn(H, H)
    given = make(view, input_weights=w_in, recurrent_weights=w_rec, autapses=True)
    assert torch.equal(given.input_weights, w_in) and torch.equal(given.recurrent_weights, w_rec)
    without = make(view, input_weights=w_in, recurrent_weights=w_rec)
    assert torch.equal(without.recurrent_weights, w_rec.clone().fill_diagonal_(0))
    assert w_rec.diagonal().all()  # theirs stay as they are
    assert "input_size=6" in repr(module) and "hidden_size=8" in repr(module)


@every_view
def test_n5_an_optimizer_moves_all_parameters_but_the_diagonal(view):
    module = copy.deepcopy(make(view))
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1, weight_decay=0.1)
    before = module.recurrent_weights.clone()
    z, state = over_time(module, inputs())
    (z.mean() + sum(leaf.mean() for leaf in state)).backward()
    assert all(p.grad.abs().sum() > 0 for p in module.parameters())
    optimizer.step()
    assert not module.recurrent_weights.diagonal().any()
    assert not torch.equal(module.recurrent_weights, before)


def test_n5_the_diagonal_stays_zero_through_pre_training():
    cells = [make(views.LIFRecurrentCell, 10, H), make(views.ALIFPlusRecurrent, H, H)]
    before = [cell.recurrent_weights.clone() for cell in cells]
    network = Network(cells, n_out=3, layer_delay=0)
    pretrain(network, [inputs(6, 3, 10)], target=0.5, max_steps=2, samples=2, steps=4, progress=False)
    for cell, old in zip(cells, before, strict=True):
        assert not torch.equal(cell.recurrent_weights, old)
        assert (cell.recurrent_weights != 0).sum() == H * (H - 1) and not cell.recurrent_weights.diagonal().any()


@every_cell
def test_n5_a_rate_is_an_euler_step_of_dt(view, float64):
    rates = torch.linspace(10.0, 900.0, H)
    cell = make(view, tau_mem_inv=rates, dt=1e-3, v_th=100.0, input_weights=torch.zeros(H, I))
    state = cell.initial_state(inputs()[0])._replace(v=torch.ones(B, H))
    for t in range(1, 6):
        _, state = cell(torch.zeros(B, I), state)
        assert_close(state.v[0], (1 - 1e-3 * rates) ** t)


@pytest.mark.parametrize("layer", LAYERS)
def test_n6_a_view_runs_among_norses_modules_with_hooks(layer):
    network = SequentialState(
        make(layer), nn.RNN(H, 5), LIFRecurrent(5, 4), make(layer, 4, 3, input_weights=3 * torch.rand(3, 4)), LI()
    )
    seen = []
    network.register_forward_state_hooks(lambda module, given, result: seen.append((type(module), result[1])))
    out, states = network(inputs())
    assert out.shape == (T, B, 3)
    assert [kind for kind, _ in seen] == [layer, nn.RNN, LIFRecurrent, layer, LI]
    assert seen[0][1] is states[0] and states[0].v.shape == (B, H)
    network.remove_forward_state_hooks()
    assert not torch.equal(network(inputs(), states)[0], out)


@every_view
def test_n1_norse_finds_the_state_by_its_name_and_a_step_too_long_for_a_rate_is_refused(view):
    assert list(inspect.signature(make(view).forward).parameters) == ["input_tensor", "state"]
    with pytest.raises(ValueError, match=r"dt tau_mem_inv must be below 1, got 2"):
        make(view, dt=0.02)
