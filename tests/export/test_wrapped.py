"""Networks of snnTorch, norse and spikingjelly, exported: their spikes, ours, and the files'."""

import copy
import itertools
import re
import warnings
from typing import Any

import nir
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from neurolsc import GRU, LIF, ALIFPlus, Network, load, neurons, save, wrap
from neurolsc.export import (
    QuantizationAware,
    delayed,
    dequantize,
    from_nir,
    from_wrapped,
    quantize,
    read_netx,
    refusals,
    to_netx,
    to_nir,
    verify,
)
from tests.export.networks import spikes

snn = pytest.importorskip("snntorch")
with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # norse's import uses torch.jit
    norse = pytest.importorskip("norse.torch")

neuron = pytest.importorskip("spikingjelly.activation_based.neuron")
containers = pytest.importorskip("spikingjelly.activation_based.layer")

STEPS, N_IN, WIDTH = 60, 30, 24
AT_ONCE = {"init_hidden": True, "reset_mechanism": "zero", "reset_delay": False}
READ = {"init_hidden": True, "output": True, "reset_mechanism": "none"}  # a snnTorch layer whose membrane is read


def stack(neuron, gain: float = 4.0, tail: nn.Module | None = None) -> nn.Module:
    parts = [nn.Linear(N_IN, WIDTH), neuron(), nn.Linear(WIDTH, WIDTH), neuron(), nn.Linear(WIDTH, 4)]
    parts += [] if tail is None else [tail]
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


def leaky(**settings: Any) -> nn.Module:
    return snn.Leaky(**({"beta": 0.9, "init_hidden": True} | settings))


def rleaky(**settings: Any) -> nn.Module:
    return snn.RLeaky(beta=0.9, **({"init_hidden": True, "linear_features": WIDTH} | settings))


def synaptic() -> nn.Module:
    return snn.Synaptic(alpha=0.8, beta=0.9, **AT_ONCE)


MODELS = {
    "Leaky": lambda: stack(lambda: leaky(beta=torch.linspace(0.5, 0.95, WIDTH))),
    "RLeaky": lambda: stack(rleaky),
    "RLeaky, zero": lambda: stack(lambda: rleaky(**AT_ONCE)),
    "RLeaky, one to one": lambda: stack(lambda: rleaky(V=0.3, all_to_all=False, linear_features=None)),
    "Synaptic": lambda: stack(synaptic),
    "LIF": lambda: stack(norse.LIFCell, 12.0),
    "LIFRecurrent": recurrent_norse,
    "LIFNode, subtract": lambda: stack(lambda: neuron.LIFNode(tau=3.0, v_reset=None), 8.0),
    "LIFNode, number": lambda: stack(lambda: neuron.LIFNode(tau=3.0, v_reset=-0.2, decay_input=False)),
    "ParametricLIFNode": lambda: stack(lambda: neuron.ParametricLIFNode(init_tau=4.0, v_threshold=0.8), 8.0),
    "LinearRecurrentContainer": recurrent_spikingjelly,
    "Leaky, then a Leaky without reset": lambda: stack(leaky, tail=leaky(beta=0.95, **READ)),
    "Leaky, zero, then a Synaptic without reset": lambda: stack(
        lambda: leaky(reset_mechanism="zero"), tail=snn.Synaptic(alpha=0.7, beta=torch.linspace(0.5, 0.95, 4), **READ)
    ),
    "LIF, then LI": lambda: stack(norse.LIFCell, 12.0, norse.LICell()),
    "LIF, then LI with its weights": lambda: stack(norse.LIFCell, 12.0, norse.LILinearCell(4, 4)),
    "LIFBox, then LIBox": lambda: stack(norse.LIFBoxCell, 20.0, norse.LIBoxCell()),
}


def recorded(model: nn.Module, layers: list[Any], x: Tensor) -> list[Tensor]:
    """The output of every layer of neurons over x, by the model's own calls, and the model's."""

    def read(layer: nn.Module, out: Any) -> Tensor:  # the membrane of a snnTorch layer that returns (spk, mem)
        return out[-1 if isinstance(layer, snn.SpikingNeuron) else 0] if isinstance(out, tuple) else out

    sent: list[list[Tensor]] = [[] for _ in layers]
    for layer, frames in zip(layers, sent, strict=True):
        if isinstance(layer, snn.SpikingNeuron):  # whose spikes are float32 of whatever input
            spike = layer.spike_grad
            layer.spike_grad = lambda v, spike=spike: spike(v).to(v.dtype)
        layer.register_forward_hook(lambda layer, _x, out, frames=frames: frames.append(read(layer, out)))
    state, out = None, []
    with torch.no_grad():
        for frame in x:
            y, state = model(frame, state)
            out.append(y[-1] if isinstance(y, tuple) else y)
    return [torch.stack(frames) for frames in (*sent, out)]


@pytest.mark.parametrize("name", MODELS)
def test_every_spike_is_that_of_their_own_library_and_with_delay_l_steps_later(name):
    model, x = MODELS[name]().double(), spikes(STEPS, 3, N_IN, rate=0.3).double()
    network: Any = wrap(model)
    ours, late = from_wrapped(network), delayed(from_wrapped(network))
    *theirs, logits = recorded(model, [cell.layer for cell in network.cells], x)
    layers = len(network.cells)
    with torch.no_grad():
        run = ours.run(x)
        later = late.run(torch.cat((x, x.new_zeros(layers, 3, N_IN))))
    for i in network.spiking:
        z = theirs[i]
        assert z.sum() > 50
        assert torch.equal(run.spikes[i], z)
        assert torch.equal(later.spikes[i][i + 1 : i + 1 + STEPS, :, : z.shape[2]], z)
    torch.testing.assert_close(run.logits, logits)
    torch.testing.assert_close(later.logits[layers:], logits)


FILES = ["RLeaky", "Leaky, zero, then a Synaptic without reset", "LIF, then LI"]


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_file_holds_it_and_comes_back(name, tmp_path):
    x, network = spikes(STEPS, 3, N_IN, rate=0.3), wrap(MODELS[name]().double())
    report = to_netx(network, tmp_path / "a.net", x)
    assert "spikes equal in 100.0000% of" in str(report)
    assert report.activity is not None
    assert all(abs(a.rate_float - a.rate_integer) < 0.02 < a.rate_float for a in report.activity)
    to_nir(network, tmp_path / "a.nir", dt=1e-3)
    save(network, tmp_path / "a.safetensors")
    again = (from_nir(tmp_path / "a.nir"), load(tmp_path / "a.safetensors"))
    with torch.no_grad():
        ours, *others = (net.run(x.double()).spikes for net in (from_wrapped(network), *again))
    assert all(torch.equal(a, b) for other in others for a, b in zip(ours, other, strict=True))
    assert from_nir(tmp_path / "a.nir", layer_delay=1).layer_delay == 1


def test_a_batch_norm_and_a_weight_norm_before_a_layer_are_folded_into_its_weights():
    torch.manual_seed(0)
    norm: Any = nn.BatchNorm1d(WIDTH).double()
    for values, low, high in ((norm.running_var, 0.5, 2), (norm.running_mean, -0.5, 0.5), (norm.bias.data, -0.5, 0.5)):
        values.uniform_(low, high)
    linear = nn.utils.parametrizations.weight_norm(nn.Linear(N_IN, WIDTH)).double()
    model = nn.Sequential(linear, norm, leaky().double(), nn.Linear(WIDTH, 4).double()).eval()
    cell: Any = from_wrapped(wrap(model)).cells[0]
    x = torch.rand(7, N_IN, dtype=torch.float64)
    torch.testing.assert_close(x @ cell.w_in.T + cell.b_v, norm(linear(x)))


def test_an_export_runs_a_network_that_is_in_training_mode_in_evaluation_mode(tmp_path):
    model = nn.Sequential(
        nn.Linear(N_IN, WIDTH), nn.BatchNorm1d(WIDTH), leaky(), nn.Dropout(0.5), nn.Linear(WIDTH, WIDTH)
    )
    model.append(leaky()).append(
        nn.Linear(WIDTH, 4, bias=False)
    ).double()  # no voltage is a rounding from its threshold
    model[1].running_var.fill_(0.01)
    report = to_netx(wrap(model), tmp_path / "a.net", x := spikes(40, 8, N_IN, rate=0.2))
    assert (model[1].num_batches_tracked, model[1].training) == (0, True)
    assert re.search(r"spikes equal in 100\.0000% of \d\d+, 100\.0000% of \d\d", report.remarks[-1])
    assert wrap(model).eval().run(x.double()).spikes[1].any()


def test_a_voltage_at_the_threshold_fires_as_in_spikingjelly():
    model = nn.Sequential(nn.Linear(1, 1, bias=False), neuron.LIFNode(decay_input=False), nn.Linear(1, 1)).double()
    nn.init.ones_(model[0].weight)
    x = torch.ones(5, 1, 1, dtype=torch.float64)
    network = wrap(model)
    for net in (network, from_wrapped(network), delayed(from_wrapped(network))):
        assert net.run(torch.cat((x, x))).spikes[0][1:6, 0, 0].tolist() == [1.0] * 5


def lif_and(*tail: nn.Module) -> Any:
    return wrap(norse.SequentialState(nn.Linear(N_IN, WIDTH), norse.LIFCell(), nn.Linear(WIDTH, 4), *tail))


first_of_four = nn.Linear(4, 3, bias=False)  # the identity, but for the last output
nn.init.eye_(first_of_four.weight)


def one(*parts: nn.Module) -> Any:
    return wrap([nn.Linear(N_IN, WIDTH), *parts, nn.Linear(WIDTH, 4)])


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: one(rleaky(reset_mechanism="zero")), r"layer 1 .*train with reset_delay=False"),
        (lambda: one(snn.Leaky(beta=1.0)), r"layer 1 .*a state retains 1 of itself"),
        (
            lambda: one(snn.Leaky(beta=0.9, graded_spikes_factor=2.0)),
            r"layer 1 .*graded spikes, .* have no counterpart",
        ),
        (
            lambda: one(snn.RSynaptic(alpha=0.8, beta=0.9, linear_features=WIDTH)),
            r"layer 1 \(snntorch RSynaptic\) has no counterpart: use Leaky, RLeaky .* or Synaptic",
        ),
        (lambda: one(neuron.IFNode()), r"layer 1 .*use LIFNode or ParametricLIFNode, which leak"),
        (
            lambda: one(norse.LIFCell(norse.LIFParameters(v_reset=torch.tensor(0.5)))),
            r"layer 1 .*v_leak is 0\.0, wanted 0\.5, its v_reset",
        ),
        (lambda: one(nn.ReLU(), leaky()), r"before layer 1: ReLU cannot be exported"),
        (lambda: lif_and(norse.LICell(), nn.Linear(4, 3)), "after an integrator the readout must be the identity"),
        (lambda: lif_and(norse.LICell(), first_of_four), "after an integrator the readout must be the identity"),
        (
            lambda: Network([LIF(N_IN, 4), neurons.LI(4, 4)], nn.LayerNorm(4, elementwise_affine=False)),
            "after an integrator the readout must be the identity, got LayerNorm",
        ),
        (
            lambda: lif_and(norse.LICell(), nn.Linear(4, 3), norse.LICell()),
            "layer 2 is an integrator, .* it must be the last",
        ),
        (
            lambda: lif_and(norse.LICell(norse.LIParameters(v_leak=torch.tensor(0.5)))),
            r"layer 2 .*v_leak is 0\.5, wanted 0",
        ),
        (
            lambda: wrap([nn.Linear(N_IN, WIDTH), snn.Leaky(beta=0.9)], output="membrane"),
            r'layer 1 .*train with reset_mechanism="none"',
        ),
    ],
)
def test_layers_without_counterpart_are_refused_by_name(made, message):
    with pytest.raises((TypeError, ValueError), match=message):
        quantize(made())


def test_all_that_an_export_would_refuse_is_said_at_once_before_training(tmp_path):
    layers = [nn.Linear(N_IN, WIDTH), rleaky(reset_mechanism="zero"), nn.Linear(WIDTH, WIDTH), nn.ReLU(), leaky()]
    net = nn.Sequential(*layers, nn.Linear(WIDTH, 4), nn.ReLU())
    x = spikes(STEPS)[0]
    found = refusals(net, x[None])
    assert [line.partition(":")[0] for line in found] == [
        "layer 1 (snntorch RLeaky)",
        "before layer 2",
        "the readout",
    ]
    for export in (lambda: to_nir(net, dt=1e-3), lambda: to_netx(net, tmp_path / "a.net"), lambda: quantize(wrap(net))):
        with pytest.raises(TypeError) as error:
            export()
        assert str(error.value).splitlines() == list(found)
    assert refusals(one(leaky())) == ()
    two = Network([ALIFPlus(N_IN, 8), GRU(8, 8)], n_out=4)
    assert [line[:7] for line in refusals(two)] == ["layer 1", "layer 2"]
    with pytest.raises(ValueError, match="there is no recurrent layer"):
        refusals(nn.Sequential(nn.Linear(3, 4)))


@pytest.mark.parametrize(
    ("neuron", "message"),
    [
        (lambda: snn.Synaptic(alpha=0.8, beta=0.9), 'layer 1 .*train with reset_mechanism="zero"'),
        (lambda: snn.Leaky(beta=0.9, reset_delay=False), "layer 1 .*train with reset_delay=True"),
    ],
)
def test_save_refuses_models_that_it_cannot_describe_and_names_torch_save(neuron, message, tmp_path):
    with pytest.raises(TypeError, match=message) as error:
        save(one(neuron()), tmp_path / "a")
    assert "neurolsc.save(net, path)" in str(error.value)
    assert not list(tmp_path.iterdir())


# an integrator at the end


def test_a_bias_among_small_weights_takes_a_coarser_scale(tmp_path):
    """The weights alone would leave 7,000 units per threshold, and the neuron that brings a bias no room."""
    lif = leaky(**AT_ONCE)
    network = wrap(nn.Sequential(nn.Linear(784, 24, bias=False), lif, nn.Linear(24, 10)))
    to_netx(network, tmp_path / "x.net", x := spikes(25, 4, 784, rate=0.1), labels=torch.zeros(4, dtype=torch.long))
    assert 4000 < read_netx(tmp_path / "x.net").layers[0].bias.max() <= 4095
    assert verify(tmp_path / "x.net").exact and network.run(x.float()).spikes[0].sum() > 10


def test_an_integrator_with_a_long_memory_gets_the_scale_that_its_sums_leave(tmp_path):
    torch.manual_seed(0)
    network = lif_and(norse.LICell(norse.LIParameters(torch.tensor(50.0), torch.tensor(20.0))))
    with torch.no_grad():
        network.cells[0].before[0].weight.mul_(12)
        network.cells[1].before[0].weight.abs_()  # all of one sign: 50 steps of memory add up
    x = spikes(120, 1, N_IN, rate=0.5)
    assert quantize(network).run(x).extremes[-1].reach > 0.9
    report = to_netx(network, tmp_path / "a.net", x)
    assert report.readout is not None
    assert 0.2 < report.readout.reach <= 0.5
    with pytest.raises(ValueError, match=r"delayed\(network\)"):
        QuantizationAware(network)
    ours = delayed(network)
    run = QuantizationAware(ours, x).run(x)
    run.logits.sum().backward()
    assert ours.cells[-1].get_parameter("w_in").grad.any()  # type: ignore[union-attr]
    with torch.no_grad():
        exact = dequantize(network, quantize(network, x)).run(x.double()).logits
    assert (run.logits - exact).abs().max() < 0.1 * exact.abs().max()


# training through the integers


@pytest.mark.parametrize(("name", "counts"), [("Leaky", (1, 1)), ("LIF, then LI", (1, 2, 0))])
def test_training_through_the_integers_changes_biases_but_not_what_makes_a_bias_neuron_fire(name, counts):
    torch.manual_seed(0)
    x = spikes(40, 8, N_IN, rate=0.3)
    tuned = copy.deepcopy(delayed(wrap(MODELS[name]())))
    before = {key: value.clone() for key, value in tuned.state_dict().items()}
    aware = QuantizationAware(tuned, x, force=True)
    optimizer = torch.optim.AdamW(aware.parameters(), lr=3e-3, weight_decay=1.0)
    for _ in range(20):
        aware.run(x).logits.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    run = aware.run(x)
    quantized = quantize(tuned, x, force=True)
    assert quantized.bias_neurons == counts
    for i in tuned.spiking:
        count = counts[i]
        for key, parameter in tuned.cells[i].named_parameters():
            assert torch.equal(parameter[-count:], before[f"cells.{i}.{key}"][-count:])
        bias = tuned.cells[i].get_parameter("w_rec")[:-count, -count]
        assert (bias != before[f"cells.{i}.w_rec"][:-count, -count]).all()
        for neuron in range(count):  # each fires a step after the one that switches it on
            assert run.spikes[i][i + neuron + 1 :, :, WIDTH + neuron].all()
        assert quantized.run(x).spikes[i].shape[2] == WIDTH


def test_a_report_of_a_delayed_network_leaves_its_bias_neurons_out(tmp_path):
    x, late = spikes(STEPS, 3, N_IN, rate=0.3), delayed(wrap(MODELS["Leaky"]().double()))
    report = to_netx(late, tmp_path / "a.net", x, force=True)
    assert report.activity is not None
    with torch.no_grad():
        rates = [z[:, :, :WIDTH].mean().item() for z in late.run(x.double()).spikes]
    assert [layer.rate_float for layer in report.activity] == pytest.approx(rates)
    assert read_netx(tmp_path / "a.net").run(x).spikes[0].shape[2] == WIDTH


def test_a_module_that_is_no_network_is_refused_with_what_to_call():
    model, x = nn.Sequential(nn.Linear(N_IN, WIDTH), leaky(), nn.Linear(WIDTH, 4)), spikes(STEPS)
    for function in (quantize, lambda net, x: delayed(net), lambda net, x: from_wrapped(net)):
        with pytest.raises(
            TypeError, match=r"network must be a neurolsc\.Network, got Sequential: give neurolsc\.wrap\("
        ):
            function(model, x)
    with pytest.raises(TypeError, match=r"got Sequential: .* tuned = delayed\(neurolsc\.wrap\(module\)\)"):
        QuantizationAware(model, x)  # type: ignore[arg-type]
    assert QuantizationAware(delayed(wrap(model)), x, force=True).run(x).logits.shape == (STEPS, 3, 4)


@pytest.mark.parametrize("kind", [nir.LI, nir.CubaLI])
def test_an_integrator_of_another_program_is_read_as_its_euler_step(kind):
    tau, tau_syn, r, w_in = np.array([1e-2, 2e-2]), np.array([5e-3, 4e-3]), np.array([3.0, 5.0]), np.array([2.0, 4.0])
    if kind is nir.LI:
        node, tau_syn, w_in = nir.LI(tau, r, np.zeros(2)), np.full(2, 1e-3), np.ones(2)  # a current that is the input
    else:
        node = nir.CubaLI(tau_syn, tau, r, np.zeros(2), w_in=w_in)
    ones, weight = np.ones(3), np.linspace(-1, 1, 6).reshape(2, 3)
    lif = nir.LIF(tau=2e-3 * ones, r=2 * ones, v_leak=0 * ones, v_threshold=0.5 * ones, v_reset=0 * ones)
    parts = [nir.Input(np.array([3])), nir.Linear(np.eye(3)), lif, nir.Linear(weight), node, nir.Output(np.array([2]))]
    nodes = dict(zip("abcdef", parts, strict=True))
    network = from_nir(nir.NIRGraph(nodes, [*itertools.pairwise(nodes)]), dt=1e-3)
    with torch.no_grad():
        run = network.run(spikes(STEPS, 2, 3, rate=0.5).double())
    assert run.spikes[0].sum() > 20
    i, v, expected = np.zeros((2, 2)), np.zeros((2, 2)), []
    for z in run.spikes[0].numpy():  # as norse steps a current: what arrives acts at once
        i = i + 1e-3 / tau_syn * (w_in * (z @ weight.T) - i)
        v = v + 1e-3 / tau * (r * i - v)
        expected.append(v)
    torch.testing.assert_close(run.logits, torch.tensor(np.array(expected)))
    assert not network.readout.weight.requires_grad
