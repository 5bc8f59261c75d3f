"""Training through the integers."""

from typing import Any

import pytest
import torch

from neurolsc import LIF, ALIFPlus, Network, evaluate, train
from neurolsc.export import QuantizationAware, dequantize, quantize, read_netx, to_netx
from tests.export.networks import KINDS, make, spikes
from tests.patterns import CLASSES, QUIET, N, Patterns


@pytest.mark.parametrize("kind", KINDS)
def test_it_runs_as_the_integers_do(kind):
    network = make(kind)
    x = spikes()
    run, integer = QuantizationAware(network).run(x), quantize(network).run(x)
    assert all(layer.mean() > 0.05 for layer in run.spikes)
    assert all(torch.equal(a, b) for a, b in zip(run.spikes, integer.spikes, strict=True))
    torch.testing.assert_close(run.logits, integer.logits / quantize(network).readout_scale)


def gradients(network: Network, model: Network, x: torch.Tensor) -> dict[str, torch.Tensor]:
    network.zero_grad()
    model(x).square().mean().backward()
    return {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", ["recurrent, zero", "ALIF"])
def test_its_gradient_is_that_of_the_float_network_with_the_rounded_parameters(kind, float64):
    network = make(kind)
    rounded = dequantize(network, quantize(network))
    x = spikes(5, 8).double()  # few steps: a state's rounding flips a spike now and then, which changes those after it
    exact, integer = gradients(rounded, rounded, x), gradients(network, QuantizationAware(network), x)
    assert exact.keys() == integer.keys()
    for name, gradient in exact.items():
        cosine = torch.nn.functional.cosine_similarity(gradient.flatten(), integer[name].flatten(), dim=0)
        assert gradient.abs().max() > 0, name
        assert cosine > 0.94, name


def coarse_network(cell: Any) -> Network:
    """Large weights beside small ones: few units are left for most."""
    torch.manual_seed(0)
    made = cell()
    with torch.no_grad():
        made.w_in.mul_(0.5)
        made.w_in[:, 0] += 3.0 * (-1) ** torch.arange(made.n_hidden)
    return Network([made], CLASSES)


@pytest.mark.parametrize(
    "cell",
    [
        lambda: LIF(N, 12, tau_v=3.0, reset="zero"),
        lambda: ALIFPlus(N, 12, tau_v=3.0, tau_theta=5.0, b_theta=0.2, adaptation=0.5, reset="static"),
    ],
    ids=["LIF", "ALIF"],
)
def test_training_it_lowers_the_loss_of_the_integers_and_what_is_exported_is_what_was_trained(cell, tmp_path):
    network, data = coarse_network(cell), Patterns(48)
    for each in network.cells:
        if isinstance(each, ALIFPlus):
            each.adaptation.requires_grad_(False)
            each.b_theta.requires_grad_(False)
    aware = QuantizationAware(network)
    before = evaluate(aware, data)
    train(aware, data, data, epochs=4, **(QUIET | {"lr": 2e-2}))
    after = evaluate(aware, data)
    assert after.loss < 0.9 * before.loss
    assert after.firing_rate[0] > 0.02
    x = torch.stack([data[i][0] for i in range(len(data))], 1)
    to_netx(network, tmp_path / "a.net", x)
    exported, again = read_netx(tmp_path / "a.net").run(x), aware.run(x)
    assert torch.equal(exported.spikes[0], again.spikes[0])


def test_it_shares_its_parameters_with_the_network():
    network = make("ALIF")
    aware = QuantizationAware(network)
    assert {id(p) for p in aware.parameters()} == {id(p) for p in network.parameters()}


def test_it_refuses_what_cannot_be_exported_and_states():
    with pytest.raises(ValueError, match=r"reset='static'"):
        QuantizationAware(Network([ALIFPlus(3, 2)], 2))
    aware = QuantizationAware(make("recurrent, zero"))
    with pytest.raises(ValueError, match="starts at rest"):
        aware.run(spikes(), aware.initial_states(3))
    with pytest.raises(ValueError, match=r"0 or 1, got 0\.5"):
        aware(0.5 * spikes())
