"""Radius profile: the radii of the dense derivatives, layer by layer, and what holds them."""

import copy
import json
import math

import pytest
import torch
from torch import nn
from torch.autograd.function import once_differentiable

from neurolsc import (
    LIF,
    LRU,
    ALIFLowPass,
    ALIFPlus,
    ALIFPlusMinus,
    Network,
    diagnose,
    evaluate,
    pretrain,
    radius_profile,
    spectral_radius,
    wrap,
)
from neurolsc.neurons import DiagonalRNN
from neurolsc.stability.transitions import follow
from neurolsc.surrogate import FastSigmoid
from tests.stability.dense import depth_derivative, time_derivative_by_autograd

pytestmark = pytest.mark.usefixtures("float64")

every_cell = pytest.mark.parametrize("kind", [LIF, ALIFPlusMinus, ALIFLowPass])


@every_cell
@pytest.mark.parametrize("layer_delay", [0, 1])
def test_radii_are_those_of_the_dense_derivatives(kind, layer_delay, make_network, make_spikes):
    network = make_network(kind, width=6, gain=4, layers=3, layer_delay=layer_delay, tau_v=2.0)
    x = make_spikes(T=5, B=3)
    profile = radius_profile(network, x)
    assert profile.time.shape == profile.depth.shape == (3, 5, 3)
    assert profile.steps.tolist() == list(range(5))
    transitions, outputs = follow(network, x, torch.arange(5))
    for layer, t in enumerate(transitions):
        dense = torch.linalg.eigvals(time_derivative_by_autograd(t)).abs().amax(-1)
        torch.testing.assert_close(profile.time[layer].flatten(), dense)
        if layer:
            # the profile takes B A in place of A B
            dense = torch.linalg.eigvals(depth_derivative(t)).abs().amax(-1)
            torch.testing.assert_close(profile.depth[layer].flatten(), dense)
            assert profile.non_square[layer] is None
        assert outputs[layer].any()
        assert profile.firing_rate[layer] == outputs[layer].mean()
        assert profile.silent_steps[layer] == (outputs[layer].sum(-1) == 0).double().mean()
    torch.testing.assert_close(profile.time_mean, profile.time.flatten(1).mean(1))
    torch.testing.assert_close(profile.depth_mean, profile.depth.flatten(1).mean(1))


def test_first_depth_row_is_the_derivative_by_the_input(make_spikes):
    square = LIF(8, 8)
    profile = radius_profile(Network([square], 2), make_spikes(T=4, B=2, N=8))
    torch.testing.assert_close(profile.depth[0], spectral_radius(square.w_in).expand(4, 2))
    assert profile.non_square == (None,)

    square = ALIFPlus(10, 5)  # ten inputs, ten state variables: (w_in; 0) is square
    profile = radius_profile(Network([square], 2), make_spikes(T=4, B=2, N=10))
    torch.testing.assert_close(profile.depth[0], spectral_radius(square.w_in[:, :5]).expand(4, 2))


@every_cell
def test_cells_without_a_closed_form_give_the_same_radii(kind, make_network, make_spikes):
    x, spike = make_spikes(T=5, B=2), FastSigmoid()
    settings = {"width": 6, "gain": 4, "reset_gradient": True}
    closed = radius_profile(make_network(kind, spike=spike, **settings), x)
    opaque = make_network(kind, spike=lambda v: spike(v), **settings)
    assert opaque.cells[0].derivatives() is None
    autograd = radius_profile(opaque, x)
    torch.testing.assert_close((autograd.time, autograd.depth), (closed.time, closed.depth))
    for own, known in zip(autograd.contributions, closed.contributions, strict=True):
        assert own["recurrence"] == pytest.approx(known["recurrence"], abs=1e-4)
        assert sum(own.values()) == pytest.approx(sum(known.values()), abs=1e-4)
        assert set(own) == {"leak or reset", "recurrence"}
    alone = make_network(kind, spike=lambda v: spike(v), **settings)
    for cell in alone.cells:
        cell.scaled_parameters = tuple(p for p in cell.scaled_parameters if p.parameter != "w_rec")
    for own, mean in zip((found := radius_profile(alone, x)).contributions, found.time_mean, strict=True):
        assert own == {"leak or reset": pytest.approx(mean.item(), abs=1e-4)}


# ---- contributions of terms


def test_the_table_says_which_sum_a_mean_radius_is(make_network, make_spikes):
    network = make_network(LIF, layers=1, gain=4)
    with torch.no_grad():
        network.cells[0].tau_v = torch.full_like(network.cells[0].tau_v, 50.0)
    profile = radius_profile(network, make_spikes())
    (parts,) = profile.contributions
    assert sum(parts.values()) == pytest.approx(profile.time_mean.item(), rel=1e-4)
    assert parts["leak"] == pytest.approx(math.exp(-1 / 50), rel=1e-2)
    assert parts["recurrence"] > 0.01
    assert f"leak 0.98 + recurrence {parts['recurrence']:.2f}" in str(profile)


@every_cell
def test_the_main_term_is_the_leak_the_recurrence_or_the_reset_that_was_made_large(kind, make_network, make_spikes):
    wide = FastSigmoid(sharpness=1e-3)  # which large voltages do not silence
    network = make_network(kind, layers=3, recurrent_init="orthogonal", reset_gradient=True, spike=wide)
    silent, recurrent, reset = network.cells
    silent.spike = FastSigmoid(dampening=0.0)
    with torch.no_grad():
        recurrent.w_rec.mul_(1000)
    if kind is LIF:
        reset.theta.fill_(100.0)
    else:
        reset.theta_rest = 100.0
    profile = radius_profile(network, make_spikes(), steps=20)
    assert [profile.main_term(i).name for i in range(3)] == ["leak", "recurrence", "reset"]
    slowest = silent.decay_v.max() if kind is LIF else silent.decay_theta.max()
    torch.testing.assert_close(profile.time[0], slowest.expand(20, 6))


@pytest.mark.parametrize("widths", [(30, 6, 9), (9, 6, 4)])
def test_between_unequal_widths_the_treatment_is_named(widths, make_spikes):
    n_in, first, second = widths
    network, x = Network([ALIFPlus(n_in, first), ALIFPlus(first, second)], 2), make_spikes(T=5, B=2, N=n_in)
    singular, drawn = (radius_profile(network, x, non_square=rule) for rule in ("singular", "submatrix"))
    torch.testing.assert_close(singular.depth[0], torch.linalg.matrix_norm(network.cells[0].w_in, 2).expand(5, 2))
    for profile, name in ((singular, "largest singular value"), (drawn, "radius of a random square sub-matrix")):
        assert f"* between unequal widths: {name}" in str(profile)
    assert (drawn.depth <= singular.depth + 1e-12).all()
    assert not torch.equal(drawn.depth, radius_profile(network, x, seed=1).depth)
    with pytest.raises(ValueError, match="non_square must be one of 'submatrix', 'singular', got 'norm'"):
        radius_profile(network, x, non_square="norm")


# ---- sub-sampling and errors


def test_drawn_steps_have_the_radii_of_all_steps_there(make_network, make_spikes):
    network, x = make_network(n_in=32), make_spikes(N=32)  # the input is as wide as the state: nothing else is drawn
    every, some = radius_profile(network, x), radius_profile(network, x, steps=5, seed=3)
    assert some.time.shape == (2, 5, 6)
    assert torch.equal(some.time, every.time[:, some.steps])
    assert torch.equal(some.depth, every.depth[:, some.steps])
    assert torch.equal(some.firing_rate, every.firing_rate), "rates are those of the whole run"
    assert not torch.equal(some.steps, radius_profile(network, x, steps=5, seed=4).steps)


@pytest.mark.parametrize(("layer", "parameter"), [(0, "w_in"), (1, "w_rec"), (1, "b_theta")])
def test_nan_is_an_error_that_names_the_layer(layer, parameter, make_network, make_spikes):
    network = make_network(gain=2)
    with torch.no_grad():
        getattr(network.cells[layer], parameter).flatten()[0] = math.nan
    with pytest.raises(FloatingPointError, match=f"layer {layer + 1}: the derivative through time holds NaN"):
        radius_profile(network, make_spikes())


# ---- as numbers and as text


def test_to_dict_is_json_and_complete(make_network, make_spikes):
    profile = radius_profile(make_network(), make_spikes(T=4), target=(0.5, 0.25))
    values = json.loads(json.dumps(profile.to_dict()))
    assert torch.equal(torch.tensor(values["time"]), profile.time)
    assert torch.equal(torch.tensor(values["depth"]), profile.depth)
    assert values["time_mean"] == profile.time_mean.tolist()
    assert values["target"] == [0.5, 0.25]
    assert values["non_square"] == ["submatrix", None]
    assert [sum(parts.values()) for parts in values["contributions"]] == pytest.approx(profile.time_mean.tolist())


@pytest.mark.parametrize(
    "target", [(0.5, 0.5, 0.5), 0.5, "balanced", (None, None), (0.5, -1.0), (0.5, "a"), (0.5, torch.nan)]
)
def test_a_target_that_is_no_pair_of_radii_is_refused(target, make_network, make_spikes):
    with pytest.raises(ValueError, match=r"target must be two radii in \(0, inf\), \(time, depth\).*got"):
        radius_profile(make_network(), make_spikes(T=4), target=target)


def test_a_layer_that_does_not_spike_has_no_firing_rate_and_is_not_called_too_busy(tmp_path):
    torch.manual_seed(0)
    network = wrap([torch.nn.LSTM(6, 5), torch.nn.Linear(5, 2)])
    x = torch.rand(8, 3, 6)
    profile = radius_profile(network, x)
    assert profile.firing_rate.isnan().all() and profile.silent_steps.isnan().all()
    assert profile.to_dict()["firing_rate"] == [None]
    assert " - " in str(profile) and "nan" not in str(profile)
    profile.plot(tmp_path / "profile.png")
    assert not any("fires" in finding.problem for finding in diagnose(network, x))


def test_what_is_no_network_is_refused_and_wrap_is_named_where_it_helps():
    with pytest.raises(TypeError, match=r"must be a neurolsc\.Network, got LSTM: give neurolsc\.wrap\(module\)"):
        evaluate(nn.LSTM(3, 4), torch.zeros(5, 2, 3))  # type: ignore[arg-type]
    for function in (radius_profile, diagnose):
        with pytest.raises(TypeError, match="got 'network'"):
            function("network", torch.zeros(5, 2, 3))  # type: ignore[arg-type]


# ---- points that are alike


@pytest.mark.parametrize(("kind", "layers"), [(nn.LSTM, 1), (nn.GRU, 2)])
def test_points_of_one_state_but_other_inputs_are_measured_apart(kind, layers):
    network = wrap(kind(3, 6, num_layers=layers))
    with torch.no_grad():
        for cell in network.cells:
            getattr(cell.layer, f"weight_ih{cell.suffix}").mul_(3)
    x = 2 * torch.randn(1, 8, 3)  # at the first step the states of all samples are at rest
    found = radius_profile(network, x, non_square="singular")
    exact = radius_profile(network, x, non_square="singular", method="exact")
    for radii, wanted in ((found.time, exact.time), (found.depth, exact.depth)):
        assert (wanted.amax(-1) > 1.05 * wanted.amin(-1)).all()
        torch.testing.assert_close(radii, wanted, rtol=1e-3, atol=0)


# ---- surrogates and states of which autograd alone would take another derivative


def cut(how: str):
    """A user's surrogate whose backward is right, but cuts the graph, or changes its argument in place."""

    class Spike(torch.autograd.Function):
        @staticmethod
        def forward(ctx, v):
            ctx.save_for_backward(v)
            return (v > 0).to(v)

        @staticmethod
        def backward(ctx, g):
            (v,) = ctx.saved_tensors
            slope = 0.5 / (1 + v.abs()) ** 2
            if how == ".data":
                return g.data * slope
            if how == "in place":
                return g.mul_(slope)
            return g * slope

    if how == "once":
        Spike.backward = staticmethod(once_differentiable(Spike.backward))
    return Spike.apply


@pytest.mark.parametrize("how", ["once", ".data", "in place"])
def test_a_surrogate_that_cuts_the_graph_in_its_backward_has_the_radii_of_one_that_does_not(how, make_spikes):
    snn = pytest.importorskip("snntorch")
    x = 3 * make_spikes(T=6, B=3, N=6)

    def network(how: str) -> Network:
        torch.manual_seed(0)
        theirs = wrap(
            [
                nn.Linear(8, 8),
                snn.RLeaky(0.9, linear_features=8, init_hidden=True, spike_grad=cut(how)),
                nn.Linear(8, 8),
                snn.Leaky(0.9, init_hidden=True, spike_grad=cut(how)),
            ]
        )
        ours = [ALIFPlus(6, 8, spike=cut(how)), ALIFPlus(8, 8, spike=cut(how))]
        return Network([*ours, *theirs.cells], 2, layer_delay=0).double()

    found = radius_profile(network(how), x)
    wanted = radius_profile(network("differentiable"), x)
    torch.testing.assert_close(found.time, wanted.time)
    torch.testing.assert_close(found.depth, wanted.depth)
    assert (wanted.depth_mean > 0.05).all()
    net = network(how)
    before = copy.deepcopy(net.state_dict())
    if how == "in place":  # which can be differentiated
        return
    with pytest.raises(ValueError, match=r"the backward of a surrogate cannot be differentiated.*once_differentiable"):
        pretrain(net, [x], max_steps=1, progress=False)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize("cell", [LRU, DiagonalRNN])
def test_depth_radii_of_linear_memories_are_of_the_memory_alone(cell):
    torch.manual_seed(0)
    network = Network([cell(6, 9), cell(9, 9), LIF(9, 18)], 2, layer_delay=0).eval()  # without dropout
    x = torch.randn(5, 3, 6)
    profile = radius_profile(network, x)
    first, second, third = follow(network, x, torch.arange(5))[0]
    assert (first.depth_shape, second.depth_shape, third.depth_shape) == ((18, 6), (18, 18), (18, 18))
    assert profile.non_square == ("submatrix", None, None)
    memory = depth_derivative(second)[:, :18, :18]  # the input in the state comes last
    dense = torch.linalg.eigvals(memory).abs().amax(-1)
    torch.testing.assert_close(profile.depth[1].flatten(), dense)
    below = depth_derivative(third)[:, :, :18]
    torch.testing.assert_close(profile.depth[2].flatten(), torch.linalg.eigvals(below).abs().amax(-1))


def test_of_one_sample_it_is_not_said_how_much_samples_differ(make_network, make_spikes):
    network, x = make_network(ALIFPlus, gain=2), make_spikes(T=6, B=3)
    one = str(radius_profile(network, x[:, :1]))
    assert "means over all 6 steps of 1 sample; how much samples differ is not known" in one
    assert "standard errors" in str(radius_profile(network, x))
