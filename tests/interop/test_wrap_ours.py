"""`wrap` of networks that hold our own cells: snnTorch's with our layers, norse's with ours, and
lists of both."""

import pytest
import snntorch as snn
import torch
from torch import nn

from neurolsc import ALIFPlus, pretrain, radius_profile, wrap
from neurolsc.interop import norse as in_norse
from neurolsc.interop import snntorch as in_snntorch
from neurolsc.interop.foreign import PrecededCell
from neurolsc.stability.transitions import follow, time_derivative
from neurolsc.surrogate import FastSigmoid

LAYERS = {"LIF": in_snntorch.LIF, "ALIF+": in_snntorch.ALIFPlus, "ALIF±": in_snntorch.ALIFPlusMinus}


@pytest.fixture
def x() -> torch.Tensor:
    return (torch.rand(12, 6, 20, generator=torch.Generator().manual_seed(0)) < 0.3).float()


def stack(kind: str, *, init_hidden: bool = True, **settings: object) -> nn.Sequential:
    torch.manual_seed(0)
    layers = [
        LAYERS[kind](beta=0.8, linear_features=16, threshold=0.3, init_hidden=init_hidden, **settings) for _ in "ab"
    ]
    return nn.Sequential(nn.Linear(20, 16), layers[0], nn.Linear(16, 16), layers[1], nn.Linear(16, 3))


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("mechanism", ["subtract", "zero", "none"])
def test_a_wrapped_snntorch_network_of_our_layers_computes_what_it_computes(kind, mechanism, x):
    net = stack(kind, reset_mechanism=mechanism)
    expected = torch.stack([net(frame) for frame in x])
    states = {name: buffer.clone() for name, buffer in net.named_buffers()}
    run = wrap(net).run(x)
    torch.testing.assert_close(run.logits, expected, rtol=0, atol=0)
    assert all(layer.any() for layer in run.spikes)
    for name, buffer in net.named_buffers():
        torch.testing.assert_close(buffer, states[name], rtol=0, atol=0)  # its hidden states were not touched


@pytest.mark.parametrize("reset_gradient", [False, True])
def test_the_derivative_of_a_wrapped_alif_layer_is_the_closed_form_of_our_cell(reset_gradient, x, float64):
    x = x.double()
    net = stack("ALIF+", spike_grad=FastSigmoid(), reset_gradient=reset_gradient)[:2]
    view = net[1]
    cell = ALIFPlus(20, 16, reset_gradient=reset_gradient)
    with torch.no_grad():
        cell.w_in.copy_(net[0].weight)
        cell.b_v.copy_(net[0].bias)
        cell.w_rec.copy_(view.recurrent.weight)
        cell.adaptation.copy_(view.adaptation)
        cell.tau_v, cell.tau_theta, cell.theta_rest = -1 / view.beta.log(), view.tau_theta.detach(), view.threshold
    network = wrap(net)
    (wrapped,), _ = follow(network, x, torch.arange(12))
    reference = type(wrapped)(
        cell, wrapped.x, cell.initial_state(1)._replace(v=wrapped.before.mem, theta=wrapped.before.thr), None, None
    )
    by_autograd = time_derivative(wrapped)
    expected = time_derivative(reference)  # in (v, theta); the layer's state is (thr, mem)
    swap = torch.cat((torch.arange(16, 32), torch.arange(16)))
    torch.testing.assert_close(by_autograd, expected[:, swap][:, :, swap])


@pytest.mark.parametrize("kind", ["LIF", "ALIF+"])
def test_our_layers_in_a_snntorch_network_are_pretrained_in_place(kind, x):
    net = stack(kind, spike_grad=FastSigmoid())
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    result = pretrain(wrap(net), [x], target=0.5, progress=False)
    assert result.converged, result
    assert (result.profile.firing_rate > 0).all()
    changed = {name for name, p in net.named_parameters() if not torch.equal(p, before[name])}
    assert {"0.weight", "1.recurrent.weight", "2.weight", "3.recurrent.weight"} <= changed
    assert not {"4.weight", "4.bias", "0.bias"} & changed


def test_a_cell_of_ours_is_taken_as_it_is_and_with_its_closed_form(x):
    cell, out = in_norse.ALIFPlusRecurrentCell(20, 16, v_th=0.3), nn.Linear(16, 3)
    network = wrap([cell, out])
    assert network.cells[0] is cell
    state, logits = None, []
    for frame in x:
        z, state = cell(frame, state)
        logits.append(out(z))
    run = network.run(x)
    assert run.spikes[0].any()
    torch.testing.assert_close(run.logits, torch.stack(logits), rtol=0, atol=0)


def test_modules_before_a_cell_of_ours_belong_to_it(x):
    torch.manual_seed(0)
    cell = ALIFPlus(16, 16, b_theta=0.003)
    plain = nn.Linear(20, 16)
    network = wrap([nn.Flatten(), plain, cell, nn.Linear(16, 3)])
    assert isinstance(network.cells[0], PrecededCell)
    state, spikes = cell.initial_state(6), []
    for frame in x:
        z, state = cell.step(plain(frame), state)
        spikes.append(z)
    run = network.run(x)
    assert run.spikes[0].any()
    torch.testing.assert_close(run.spikes[0], torch.stack(spikes), rtol=0, atol=0)
    weight, rest = plain.weight.clone(), cell.theta_rest.clone()
    w_rec = cell.w_rec.clone()
    pretrain(network, [x], target=0.5, max_steps=2, progress=False)
    assert torch.equal(plain.weight, weight)
    assert not torch.equal(cell.w_rec, w_rec) and not torch.equal(cell.theta_rest, rest)


def test_layers_of_all_makes_stand_in_one_network(x):
    torch.manual_seed(0)
    modules = [
        nn.Linear(20, 16),
        in_snntorch.ALIFPlus(beta=0.8, linear_features=16, threshold=0.3),
        in_norse.LIFRecurrentCell(16, 12, v_th=0.3),
        nn.Linear(12, 8),
        snn.Leaky(beta=0.8, threshold=0.3),
        nn.LSTM(8, 6),
    ]
    network = wrap(modules)
    assert len(network.cells) == 4
    profile = radius_profile(network, x, steps=4)
    assert profile.time.isfinite().all() and (profile.time_mean > 0).all()
