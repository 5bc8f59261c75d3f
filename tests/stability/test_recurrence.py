"""What spikes do to their own layer, against closed forms."""

import norse
import pytest
import snntorch
import torch

from neurolsc import LIF, ALIFLowPass, ALIFPlus, ALIFPlusMinus, wrap
from neurolsc.stability.recurrence import recurrence_radius, recurrence_share
from neurolsc.stability.transition import follow


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("cell", [LIF, ALIFPlus, ALIFPlusMinus, ALIFLowPass])
def test_it_is_the_radius_of_the_weights_times_the_surrogate(cell, make_network, make_spikes):
    network, x = make_network(cell, gain=4), make_spikes()
    transitions, spikes = follow(network, x, torch.tensor([5, 12, 19]))
    for layer, t in enumerate(transitions):
        assert spikes[layer].any()
        s = t.cell.spike_derivative(t.before)
        wanted = torch.linalg.eigvals(s.unsqueeze(-1) * t.cell.w_rec).abs().amax(-1)
        torch.testing.assert_close(recurrence_radius(t), wanted)


@pytest.mark.usefixtures("float64")
def test_a_factor_of_the_weights_is_one_of_the_radius_and_weights_come_back(make_network, make_spikes):
    network, x = make_network(gain=4), make_spikes()
    t, before = follow(network, x, torch.tensor([12]))[0][1], network.cells[1].w_rec.clone()
    once = recurrence_radius(t)
    assert torch.equal(network.cells[1].w_rec, before)
    network.cells[1].w_rec.data.mul_(3)
    torch.testing.assert_close(recurrence_radius(t), 3 * once)


@pytest.mark.usefixtures("float64")
def test_layers_of_other_libraries(make_spikes):
    fast = snntorch.surrogate.fast_sigmoid(slope=2)
    ours = snntorch.RLeaky(beta=0.8, linear_features=8, spike_grad=fast, threshold=0.3)
    model = torch.nn.Sequential(torch.nn.Linear(30, 8), ours, torch.nn.Linear(8, 2))
    network, x = wrap(model), make_spikes()
    (t,), (spikes,) = follow(network, x, torch.tensor([5, 12]))
    assert spikes.any()
    s = 1 / (1 + 2 * (t.before.mem.flatten(1) - 0.3).abs()) ** 2
    wanted = torch.linalg.eigvals(s.unsqueeze(-1) * ours.recurrent.weight).abs().amax(-1)
    torch.testing.assert_close(recurrence_radius(t), wanted)


@pytest.mark.usefixtures("float64")
def test_without_recurrent_synapses_it_is_zero(make_spikes):
    network = wrap([torch.nn.Linear(30, 8), norse.torch.LIFCell(), torch.nn.Linear(8, 2)])
    (t,), _ = follow(network, 5 * make_spikes(), torch.tensor([5, 12]))
    assert recurrence_radius(t).tolist() == [0] * 12


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("cell", [LIF, ALIFPlus])
def test_the_share_is_that_of_the_currents(cell, make_network, make_spikes):
    t = follow(make_network(cell, gain=4), make_spikes(), torch.tensor([5, 12, 19]))[0][1]
    z = t.cell.output(t.before)
    assert z.any() and t.x.any()
    wanted = (z @ t.cell.w_rec.T).norm() / (t.x @ t.cell.w_in.T).norm()
    assert recurrence_share(t) == pytest.approx(wanted.item())
