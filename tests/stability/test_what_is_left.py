"""What a layer keeps of its input, which spikes can learn, and what neurons do."""

import math

import pytest
import torch

from neurolsc import LIF, ALIFPlus, Network, wrap
from neurolsc.stability import activity, surviving_share, time_constants, usable_share
from neurolsc.stability.transition import follow
from neurolsc.surrogate import FastSigmoid, MultiGaussian, Rectangular

pytestmark = pytest.mark.usefixtures("float64")


# ---- survival


def samples(samples: int = 40) -> torch.Tensor:
    """Inputs whose rates differ from sample to sample (T, B, N)."""
    rates = torch.rand(1, samples, 30)
    return (torch.rand(50, samples, 30) < 0.3 * rates).double()


def test_an_identity_a_rotation_and_a_scale_keep_all_of_it():
    x = samples()
    rotation = torch.linalg.qr(torch.randn(30, 30))[0]
    for layer in (x, -3 * x, x @ rotation, x[..., torch.randperm(30)], x + 5):
        assert surviving_share(x, layer) == pytest.approx(1)


def test_a_layer_that_is_dead_or_the_same_for_all_keeps_nothing():
    x = samples()
    assert surviving_share(x, torch.zeros(50, 40, 8)) == 0
    assert surviving_share(x, torch.rand(50, 1, 8).expand(50, 40, 8)) == 0


def test_noise_that_knows_nothing_of_the_input_keeps_about_nothing():
    shares = [surviving_share(samples(), torch.randn(50, 40, 200)) for _ in range(20)]
    assert max(shares) < 0.02
    assert sum(shares) / 20 < 3 / 40**2  # O(1 / B^2)


def test_more_noise_leaves_less():
    x = samples()
    noise = torch.randn_like(x)
    shares = [surviving_share(x, x + size * noise) for size in (0.0, 0.3, 1.0, 3.0)]
    assert shares == sorted(shares, reverse=True)
    assert shares[1] > 0.5 > shares[3]


def test_a_step_of_delay_hardly_matters():
    x = samples()
    assert surviving_share(x, torch.cat([x[:1] * 0, x[:-1]]), windows=2) > 0.9


def test_too_few_samples_tell_nothing_and_others_are_refused():
    x = samples(3)
    assert math.isnan(surviving_share(x, x))
    assert math.isnan(surviving_share(torch.zeros(50, 40, 3), samples()))
    with pytest.raises(ValueError, match="of the same steps and samples"):
        surviving_share(x, samples())


# ---- usable derivatives


@pytest.mark.parametrize("spike", [FastSigmoid(), FastSigmoid(0.3, 20.0), Rectangular(), MultiGaussian()], ids=repr)
@pytest.mark.parametrize("cell", [LIF, ALIFPlus])
def test_the_share_is_that_of_the_formula(cell, spike, make_network, make_spikes):
    network, x = make_network(cell, gain=3, spike=spike, tau_v=5.0), make_spikes()
    found = usable_share(network, x, threshold=0.2)
    transitions, outputs = follow(network, x, torch.arange(len(x)))
    for layer, t in enumerate(transitions):
        assert outputs[layer].any()
        slopes = spike.derivative(t.cell.distance(t.before)).abs()
        largest = spike.derivative(torch.zeros(()))
        wanted = (slopes >= 0.2 * largest).double().mean()
        assert 0 < wanted < 1
        assert found[layer] == pytest.approx(wanted.item(), abs=1e-6)


def test_neurons_that_are_far_from_their_threshold_have_none():
    cell = LIF(5, 4, threshold=1e4, spike=FastSigmoid(sharpness=10.0))
    assert usable_share(Network([cell], 2), torch.ones(6, 2, 5)).item() == 0


def test_layers_of_other_libraries_are_asked_by_autograd():
    snn = pytest.importorskip("snntorch")
    leaky = snn.Leaky(beta=0.8, threshold=1.0, spike_grad=snn.surrogate.fast_sigmoid(slope=25))
    network = wrap([torch.nn.Linear(6, 20), leaky, torch.nn.Linear(20, 2)])
    x = 5 * torch.rand(12, 4, 6)
    (t,), (spikes,) = follow(network, x, torch.arange(12))
    assert spikes.any()
    wanted = ((1 + 25 * (t.before.mem - 1).abs()) ** -2 >= 0.1).double().mean()
    assert 0 < wanted < 1
    assert usable_share(network, x).item() == pytest.approx(wanted.item(), abs=1e-6)


def test_spikes_that_are_a_state_of_their_own_are_asked_a_step_on():
    norse = pytest.importorskip("norse.torch")
    network = wrap([norse.LIFRecurrentCell(6, 20), torch.nn.Linear(20, 2)])
    x = (torch.rand(20, 4, 6) < 0.5).double()
    assert network.run(x).spikes[0].any()
    (t,), _ = follow(network, x, torch.arange(20))
    layer = network.cells[0].layer
    v = t.before.v.clone().requires_grad_()
    z, _ = layer(t.x, network.cells[0].like._replace(z=t.before.z, v=v, i=t.before.i))
    (slopes,) = torch.autograd.grad(z.sum(), v)
    largest = 1 - layer.dt * layer.p.tau_mem_inv  # the surrogate's is 1, of the leaked voltage
    wanted = (slopes >= 0.3 * largest).double().mean().item()
    assert 0 < wanted < 1
    assert usable_share(network, x, threshold=0.3).item() == pytest.approx(wanted, abs=1e-6)


def test_a_layer_that_does_not_spike_has_no_share():
    network = wrap([torch.nn.LSTM(5, 4), torch.nn.Linear(4, 2)])
    assert usable_share(network, torch.randn(3, 2, 5)).isnan().all()
    with pytest.raises(ValueError, match="threshold must be above 0 and at most 1, got 2"):
        usable_share(network, torch.randn(3, 2, 5), threshold=2)


# ---- activity


def test_shares_and_rate_are_counted():
    spikes = torch.zeros(10, 2, 4)
    spikes[:, :, 0] = 1
    spikes[3, 1, 1] = 1
    found = activity(spikes)
    assert (found.rate, found.dead, found.saturated) == (21 / 80, 0.5, 0.25)
    assert math.isnan(activity(spikes / 2).rate)
    assert all(math.isnan(activity(torch.ones(steps, 2, 4)).synchrony) for steps in range(2, 60))


def test_synchrony_is_one_for_copies_and_one_in_n_for_strangers():
    one = (torch.rand(2000, 3, 1) < 0.2).double()
    assert activity(one.expand(2000, 3, 50)).synchrony == pytest.approx(1)
    assert activity((torch.rand(2000, 3, 50) < 0.2).double()).synchrony == pytest.approx(1 / 50, rel=0.1)


def test_steps_outside_the_mask_do_not_count():
    spikes = (torch.rand(12, 1, 6) < 0.4).double()
    longer = torch.cat([spikes, torch.zeros(8, 1, 6)])
    mask = torch.arange(20).unsqueeze(1) < 12
    torch.testing.assert_close(activity(longer, mask), activity(spikes))
    assert activity(longer).rate < activity(spikes).rate


# ---- time constants


def test_time_constants_say_whether_they_move(make_network):
    cell = make_network().cells[0]
    tau = torch.full((16,), 20.0)
    tau[:4] = 1e9
    cell.tau_theta = tau
    cell.log_tau_v.requires_grad_(False)
    gradients = {"log_tau_theta": torch.full((16,), 0.5)}
    voltage, threshold = time_constants(cell, gradients)
    assert (voltage.name, voltage.given, voltage.trained, voltage.gradient) == ("tau_v", False, False, None)
    assert (threshold.name, threshold.trained, threshold.stuck, threshold.gradient) == ("tau_theta", True, 0.25, 2.0)
    assert threshold.decay == pytest.approx((12 * math.exp(-1 / 20) + 4) / 16)


@pytest.mark.parametrize("tau", [1e-9, 0.1, 20.0, 1e20])
def test_a_time_constant_is_told_in_steps(make_network, tau: float):
    cell = make_network().cells[0]
    cell.tau_theta = torch.full((16,), tau)
    assert time_constants(cell)[1].steps == pytest.approx({1e-9: 0.0, 1e20: math.inf}.get(tau, tau))


def test_a_decay_that_was_given_as_a_number_is_neither_frozen_nor_stuck():
    snn = pytest.importorskip("snntorch")
    given, learnt = (
        time_constants(wrap([torch.nn.Linear(3, 4), snn.Leaky(beta=0.9, learn_beta=learn)]).cells[0])[0]
        for learn in (False, True)
    )
    assert (given.given, given.trained, given.stuck) == (True, False, 0)
    assert (learnt.given, learnt.trained, learnt.decay) == (False, True, pytest.approx(0.9))
