"""Networks of snnTorch and norse, exported: their own spikes, then ours, then the file's."""

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from neurolsc import load, save, wrap
from neurolsc.export import QuantizationAware, delayed, from_nir, from_wrapped, to_netx, to_nir, verify
from neurolsc.export.simulators import find_python
from tests.export.networks import spikes

snn = pytest.importorskip("snntorch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # norse's import uses torch.jit
    norse = pytest.importorskip("norse.torch")

neuron = pytest.importorskip("spikingjelly.activation_based.neuron")
containers = pytest.importorskip("spikingjelly.activation_based.layer")

STEPS, N_IN, WIDTH = 60, 30, 24
ROOT = Path(__file__).parents[2]
AT_ONCE = {"reset_mechanism": "zero", "reset_delay": False}


def stack(neuron, gain: float = 4.0) -> nn.Module:
    parts = [nn.Linear(N_IN, WIDTH), neuron(), nn.Linear(WIDTH, WIDTH), neuron(), nn.Linear(WIDTH, 4)]
    with torch.no_grad():
        for linear in parts[::2]:
            linear.weight.mul_(gain)
    return norse.SequentialState(*parts)


def recurrent_norse() -> nn.Module:
    layer = norse.LIFRecurrentCell(N_IN, WIDTH)
    with torch.no_grad():
        layer.input_weights.mul_(20)
        layer.recurrent_weights.mul_(5)
    return norse.SequentialState(layer, nn.Linear(WIDTH, 4))


def recurrent_spikingjelly() -> nn.Module:
    layer = containers.LinearRecurrentContainer(neuron.LIFNode(v_reset=None), WIDTH, WIDTH)
    linear = nn.Linear(N_IN, WIDTH)
    with torch.no_grad():
        layer.rc.weight.mul_(4)
        linear.weight.mul_(4)
    return norse.SequentialState(linear, layer, nn.Linear(WIDTH, 4))


MODELS = {
    "Leaky": lambda: stack(lambda: snn.Leaky(beta=torch.linspace(0.5, 0.95, WIDTH), init_hidden=True)),
    "Leaky, zero": lambda: stack(lambda: snn.Leaky(beta=0.9, reset_mechanism="zero", init_hidden=True)),
    "RLeaky": lambda: stack(lambda: snn.RLeaky(beta=0.9, linear_features=WIDTH, init_hidden=True)),
    "RLeaky, zero": lambda: stack(lambda: snn.RLeaky(beta=0.9, linear_features=WIDTH, init_hidden=True, **AT_ONCE)),
    "RLeaky, one to one": lambda: stack(lambda: snn.RLeaky(beta=0.9, V=0.3, all_to_all=False, init_hidden=True)),
    "Synaptic": lambda: stack(lambda: snn.Synaptic(alpha=0.8, beta=0.9, init_hidden=True, **AT_ONCE)),
    "LIF": lambda: stack(norse.LIFCell, 12.0),
    "LIFBox": lambda: stack(norse.LIFBoxCell, 20.0),
    "LIFRecurrent": recurrent_norse,
    "LIFNode": lambda: stack(lambda: neuron.LIFNode(tau=3.0), 8.0),
    "LIFNode, subtract": lambda: stack(lambda: neuron.LIFNode(tau=3.0, v_reset=None), 8.0),
    "LIFNode, number": lambda: stack(lambda: neuron.LIFNode(tau=3.0, v_reset=-0.2, decay_input=False)),
    "ParametricLIFNode": lambda: stack(lambda: neuron.ParametricLIFNode(init_tau=4.0, v_threshold=0.8), 8.0),
    "LinearRecurrentContainer": recurrent_spikingjelly,
}


@pytest.fixture(params=MODELS)
def model(request) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[request.param]().double()


def recorded(model: nn.Module, layers: list[Any], x: Tensor) -> list[Tensor]:
    """The output of every layer of neurons over x, by the model's own calls, and the model's."""
    sent: list[list[Tensor]] = [[] for _ in layers]
    for layer, seen in zip(layers, sent, strict=True):
        if isinstance(layer, snn.SpikingNeuron):  # whose spikes are float32 of whatever input
            spike = layer.spike_grad
            layer.spike_grad = lambda v, spike=spike: spike(v).to(v.dtype)
        layer.register_forward_hook(
            lambda _m, _x, out, seen=seen: seen.append(out[0] if isinstance(out, tuple) else out)
        )
    state, out = None, []
    with torch.no_grad():
        for frame in x:
            y, state = model(frame, state)
            out.append(y)
    return [torch.stack(frames) for frames in (*sent, out)]


def test_a_batch_norm_before_a_layer_is_folded_into_its_weights():
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(WIDTH).double()
    for values in (norm.running_var, norm.weight.data):
        assert values is not None
        values.uniform_(0.5, 2)
    for values in (norm.running_mean, norm.bias.data):
        assert values is not None
        values.uniform_(-0.5, 0.5)
    linear, tail = nn.Linear(N_IN, WIDTH).double(), nn.Linear(WIDTH, 4).double()
    model = nn.Sequential(linear, norm, snn.Leaky(beta=0.9, init_hidden=True).double(), tail).eval()
    cell: Any = from_wrapped(wrap(model)).cells[0]
    x = torch.rand(7, N_IN, dtype=torch.float64)
    torch.testing.assert_close(x @ cell.w_in.T + cell.b_v, norm(linear(x)))


def test_every_spike_is_that_of_their_own_library_and_with_delay_l_steps_later(model):
    x = spikes(STEPS, 3, N_IN, rate=0.3).double()
    network: Any = wrap(model)
    ours, late = from_wrapped(network), delayed(from_wrapped(network))
    *theirs, logits = recorded(model, [cell.layer for cell in network.cells], x)
    layers = len(network.cells)
    with torch.no_grad():
        run = ours.run(x)
        later = late.run(torch.cat((x, x.new_zeros(layers, 3, N_IN))))
    for i, z in enumerate(theirs, start=1):
        assert z.sum() > 50
        assert torch.equal(run.spikes[i - 1], z)
        assert torch.equal(later.spikes[i - 1][i : i + STEPS, :, : z.shape[2]], z)
    torch.testing.assert_close(run.logits, logits)
    torch.testing.assert_close(later.logits[layers:], logits)


def test_a_voltage_at_the_threshold_fires_as_in_spikingjelly():
    model = nn.Sequential(nn.Linear(1, 1, bias=False), neuron.LIFNode(decay_input=False), nn.Linear(1, 1)).double()
    nn.init.ones_(model[0].weight)
    x = torch.ones(5, 1, 1, dtype=torch.float64)
    network = wrap(model)
    for net in (network, from_wrapped(network), delayed(from_wrapped(network))):
        assert net.run(torch.cat((x, x))).spikes[0][1:6, 0, 0].tolist() == [1.0] * 5


def test_a_file_holds_it_and_comes_back(model, tmp_path):
    x, network = spikes(STEPS, 3, N_IN, rate=0.3), wrap(model)
    ours = from_wrapped(network)
    report = to_netx(network, tmp_path / "a.net", x)
    assert "spikes equal in 100.0000% of" in str(report)
    assert report.activity is not None
    assert all(abs(a.rate_float - a.rate_integer) < 0.02 < a.rate_float for a in report.activity)
    to_nir(network, tmp_path / "a.nir", dt=1e-3)
    save(ours, tmp_path / "a.safetensors")
    with torch.no_grad():
        spikes_, z = ours.run(x.double()).spikes, from_nir(tmp_path / "a.nir").run(x.double()).spikes
        again = load(tmp_path / "a.safetensors").run(x.double()).spikes
    assert all(torch.equal(a, b) and torch.equal(a, c) for a, b, c in zip(spikes_, z, again, strict=True))
    assert from_nir(tmp_path / "a.nir", layer_delay=1).layer_delay == 1


@pytest.mark.slow
def test_lava_and_nengo_loihi_make_every_spike_of_the_integers(model, tmp_path):
    try:
        lava = find_python("Lava", os.environ.get("NEUROLSC_LAVA_PYTHON") or ROOT / ".lava-env" / "bin" / "python")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    x = spikes(STEPS, 1, N_IN, rate=0.3)
    to_netx(wrap(model), tmp_path / "a.net", x)
    found = verify(tmp_path / "a.net", x, python=lava)
    assert all(layer.spikes > 20 for layer in found.layers)
    assert found.exact
    assert all(opinion.exact or opinion.reason for opinion in found.opinions)


@pytest.mark.parametrize(
    ("neuron", "told"),
    [
        (
            lambda: snn.RLeaky(beta=0.9, linear_features=WIDTH, reset_mechanism="zero"),
            r"layer 1 .*train with reset_delay=False",
        ),
        (
            lambda: snn.Synaptic(alpha=0.8, beta=0.9),
            r'layer 1 .*train with reset_mechanism="zero" and reset_delay=False',
        ),
        (lambda: snn.Leaky(beta=1.0), r"layer 1 .*its voltage keeps 1 of itself"),
        (lambda: snn.Leaky(beta=0.9, graded_spikes_factor=2.0), r"layer 1 .*wanted graded_spikes_factor=1"),
        (lambda: snn.Alpha(alpha=0.9, beta=0.8), r"layer 1 .*use Leaky, RLeaky, Synaptic or RSynaptic"),
        (lambda: neuron.IFNode(), r"layer 1 .*use LIFNode or ParametricLIFNode, which leak"),
        (
            lambda: norse.LIFCell(norse.LIFParameters(v_reset=torch.tensor(0.5))),
            r"layer 1 .*v_reset is 0\.5 and v_leak 0",
        ),
    ],
)
@pytest.mark.parametrize("to", [to_netx, to_nir])
def test_what_has_no_counterpart_is_refused_by_name_and_leaves_nothing(neuron, told, to, tmp_path):
    network = wrap([nn.Linear(N_IN, WIDTH), neuron(), nn.Linear(WIDTH, 4)])
    with pytest.raises((TypeError, ValueError), match=told):
        to(network, tmp_path / "a", **({"dt": 1e-3} if to is to_nir else {}))
    assert not list(tmp_path.iterdir())


def test_a_membrane_that_is_read_and_reset_is_refused():
    network = wrap([nn.Linear(N_IN, WIDTH), snn.Leaky(beta=0.9)], output="membrane")
    with pytest.raises(ValueError, match=r'layer 1 .*train with reset_mechanism="none"'):
        from_wrapped(network)


def test_a_relu_is_refused_by_name_and_fine_tuning_of_a_copy_too():
    with pytest.raises(TypeError, match=r"before layer 1: ReLU cannot be exported"):
        from_wrapped(wrap([nn.Linear(N_IN, WIDTH), nn.ReLU(), snn.Leaky(beta=0.9)]))
    with pytest.raises(ValueError, match=r"delayed\(from_wrapped\(network\)\)"):
        QuantizationAware(wrap([nn.Linear(N_IN, WIDTH), snn.Leaky(beta=0.9)]))
