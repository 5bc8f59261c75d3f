"""Networks in NeuroBench's own harness, next to its own models, to `evaluate` and to closed forms."""

import pytest
import snntorch as snn
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from neurolsc import GRU, LIF, LRU, ALIFPlus, Embedding, Network, evaluate, wrap
from neurolsc.neurons.cell import CELLS
from tests.interop.layers import EVERY

pytest.importorskip("neurobench")
from neurobench.benchmarks import Benchmark
from neurobench.metrics import static, workload
from neurobench.models import SNNTorchModel, TorchModel
from neurobench.processors.postprocessors import ChooseMaxCount

from neurolsc.interop.neurobench import model

B, T, N_IN, CLASSES = 10, 6, 8, 3
STATIC = [static.Footprint, static.ParameterCount, static.ConnectionSparsity]
WORKLOAD = [workload.ClassificationAccuracy, workload.ActivationSparsity, workload.ActivationSparsityByLayer]
WORKLOAD += [workload.SynapticOperations, workload.MembraneUpdates]


def harness(model, x, y=None, metrics=WORKLOAD, batch_size=4):
    """What NeuroBench returns of inputs (B, T, ...) and labels."""
    data = TensorDataset(x, torch.zeros(len(x), dtype=torch.int64) if y is None else y)
    return Benchmark(model, DataLoader(data, batch_size), [], [ChooseMaxCount()], [STATIC, metrics]).run(quiet=True)


def inputs(*, spikes: bool = True) -> torch.Tensor:
    x = torch.rand(B, T, N_IN, generator=torch.Generator().manual_seed(1))
    return (x < 0.4).float() if spikes else x


@pytest.mark.parametrize("layer_delay", [0, 1])
def test_logits_are_the_networks_own_from_rest_and_it_stays_as_it_is(layer_delay):
    readout = nn.Sequential(nn.Dropout(0.5), nn.Linear(7, CLASSES, bias=False))
    network = Network([LIF(12, 7, threshold=0.1)], readout, layer_delay=layer_delay).eval()
    harnessed, x = model(network), torch.rand(B, T, 3, 4)
    logits = network(x.flatten(2).transpose(0, 1)).transpose(0, 1)
    network.train()
    assert logits.any()
    harnessed.register_hooks()
    for _ in "ab":
        assert torch.equal(harnessed(x), logits)
    assert network.training and not harnessed(x).requires_grad
    with pytest.raises(ValueError, match=r"shape \(B, T, ...\), batch first, got \(10, 6\)"):
        harnessed(torch.rand(B, T))
    with torch.no_grad():
        network.cells[0].w_rec.zero_()
    harnessed(x)
    assert not harnessed.connection_hooks[-1].layer.weight.any()  # as they are at the call


def test_figures_of_a_pruned_network_are_those_counted_by_hand_where_the_harness_alone_sees_the_readout():
    torch.manual_seed(0)
    network = Network([ALIFPlus(N_IN, 7, tau_v=5.0), LIF(7, 5, threshold=0.2)], CLASSES)
    harnessed, x, y = model(network), inputs(), torch.randint(CLASSES, (B,))
    with torch.no_grad():
        network.cells[0].w_in[:, :4] = 0
        network.cells[1].w_rec.zero_()
        run = network.run(x.transpose(0, 1))
    first, second = spikes = [int(z.sum()) for z in run.spikes]
    assert all(spikes)

    results = harness(harnessed, x, y)

    assert results["ClassificationAccuracy"] == pytest.approx((run.logits.sum(0).argmax(1) == y).double().mean().item())
    assert results["ActivationSparsity"] == pytest.approx(1 - (first + second) / (B * T * 12))
    by_layer = {"cells.0": 1 - first / (B * T * 7), "cells.1": 1 - second / (B * T * 5)}
    assert results["ActivationSparsityByLayer"] == pytest.approx(by_layer)
    acs = int(x[..., 4:].sum()) * 7 + first * (7 + 5) + second * CLASSES
    weights = 7 * N_IN + 7 * 7 + 5 * 7 + 5 * 5 + CLASSES * 5
    assert results["SynapticOperations"] == {"Effective_MACs": 0, "Effective_ACs": acs / B, "Dense": T * weights}
    assert results["ConnectionSparsity"] == round((7 * 4 + 5 * 5) / weights, 4)
    assert results["ParameterCount"] == sum(p.numel() for p in network.parameters())
    assert results["Footprint"] == 4 * sum(t.numel() for t in (*network.parameters(), *network.buffers()))

    alone = harness(TorchModel(network), x.transpose(0, 1), batch_size=T)  # its first axis is that of samples
    assert alone["ConnectionSparsity"] == alone["ActivationSparsity"] == 0
    assert alone["SynapticOperations"]["Effective_ACs"] == second * CLASSES / T


@pytest.mark.parametrize("spikes", [True, False])
@pytest.mark.parametrize("kind", sorted(CELLS.keys() - {"LRU", "DiagonalRNN"}))
def test_operations_of_every_cell_are_those_of_evaluate(kind, spikes):
    torch.manual_seed(0)
    cell, x = CELLS[kind](N_IN, 6), inputs(spikes=spikes)
    network = Network([cell], CLASSES)
    with torch.no_grad():
        cell.w_in.copy_(100 * cell.w_in.abs())
        z = network.run(x.transpose(0, 1)).spikes[0]
    assert z.any()
    weights = sum(p.numel() for p in network.parameters() if p.ndim == 2)
    unused = 6 if cell.recurrent_synapses == 5 else 0  # a diagonal
    read = (weights - unused - cell.w_in.numel()) // 6  # by the cell and the readout
    done = int(x.count_nonzero()) * len(cell.w_in) + int(z.count_nonzero()) * read

    results = harness(model(network), x)

    operations = results["SynapticOperations"]
    assert operations["Effective_ACs"] + operations["Effective_MACs"] == pytest.approx(done / B, rel=1e-12)
    assert operations["Dense"] == T * weights
    assert results["ConnectionSparsity"] == round(unused / weights, 4)
    sparsity = 0 if cell.integrator else 1 - int(z.count_nonzero()) / z.numel()
    assert results["ActivationSparsity"] == pytest.approx(sparsity)
    scores = evaluate(network, [(sample, torch.tensor(0)) for sample in x])
    if scores.synops is not None:
        assert scores.synops == pytest.approx(done / B, rel=1e-12)
        assert operations["Effective_MACs"] == (0 if spikes else T * cell.w_in.numel())
        assert results["ActivationSparsity"] == pytest.approx(1 - scores.firing_rate[0])
    parameters = [p.clone() for p in network.double().parameters()]
    model(network).connection_layers()  # copies weights, and leaves out a diagonal in the copy alone
    assert all(map(torch.equal, parameters, network.parameters()))


@pytest.mark.filterwarnings("ignore::neurolsc.WrappedNeuronWarning")
@pytest.mark.parametrize("name", [name for name in EVERY if not name.endswith("-passed") and "conv" not in name])
def test_every_matrix_of_a_wrapped_layer_is_counted_once(name):
    modules, shape = EVERY[name][0](), EVERY[name][1]
    network = wrap([*modules, nn.Linear(5, CLASSES)], input_shape=shape)
    results = harness(model(network), torch.rand(2, T, *shape))
    assert results["SynapticOperations"]["Dense"] == T * sum(p.numel() for p in network.parameters() if p.ndim == 2)


def test_a_wrapped_layer_is_counted_at_what_the_modules_before_it_send():
    torch.manual_seed(0)
    network, x = wrap([first := nn.Linear(N_IN, 4), nn.ReLU(), nn.GRUCell(4, 5), nn.Linear(5, CLASSES)]), inputs()
    sent = int((first(x) > 0).sum())
    assert 0 < sent < B * T * 4
    done = harness(model(network), x)["SynapticOperations"]
    numbers = sent * 15 + B * T * 5 * (15 + CLASSES)
    assert done["Effective_ACs"] + done["Effective_MACs"] == (int(x.sum()) * 4 + numbers) / B


@pytest.mark.parametrize("spikes", [True, False])
@pytest.mark.parametrize("neuron", [snn.RLeaky, snn.Leaky])
def test_a_network_of_snntorch_has_the_figures_of_neurobenchs_own_model(neuron, spikes):
    torch.manual_seed(0)
    widths = [{"linear_features": n} if neuron is snn.RLeaky else {} for n in (16, CLASSES)]
    first = neuron(0.9, threshold=0.3, init_hidden=True, **widths[0])
    last = neuron(0.8, threshold=0.3, init_hidden=True, output=True, **widths[1])
    net = nn.Sequential(nn.Linear(N_IN, 16), first, nn.Linear(16, CLASSES), last)
    with torch.no_grad():
        net[0].weight[:, ::2] = 0
    x, y = inputs(spikes=spikes), torch.randint(CLASSES, (B,))

    ours, theirs = (
        harness(m, x, y, [*WORKLOAD, workload.NeuronOperations]) for m in (model(wrap(net)), SNNTorchModel(net))
    )

    assert torch.equal(model(wrap(net))(x), SNNTorchModel(net)(x))
    by_layer = [list(results.pop("ActivationSparsityByLayer").values()) for results in (ours, theirs)]
    assert by_layer[0] == by_layer[1]
    assert ours == theirs
    assert 0 < ours["ActivationSparsity"] < 1 and ours["ConnectionSparsity"] > 0.1
    assert ours["SynapticOperations"]["Effective_MACs"] == (0 if spikes else T * 16 * N_IN / 2)


def test_operations_beyond_two_to_the_24_are_exact():
    n = 257  # an odd number of products, which float32 does not hold
    results = harness(model(Network([LIF(n, n)], n)), torch.ones(n, 1, n), batch_size=n)
    assert n**3 > 2**24
    assert results["SynapticOperations"]["Dense"] == 3 * n * n
    assert results["SynapticOperations"]["Effective_ACs"] >= n * n


def test_membranes_are_updated_where_they_change():
    cell = LIF(1, 2, tau_v=5.0, threshold=10.0)
    with torch.no_grad():
        cell.w_in.copy_(torch.tensor([[1.0], [0.0]]))  # the second neuron stays at rest
    x = torch.zeros(4, T, 1)
    x[:, 1] = 1
    results = harness(model(Network([cell], CLASSES, layer_delay=0)), x)
    assert results["MembraneUpdates"] == 2 + (T - 1)  # the first step counts whole


def test_weights_that_would_not_be_counted_are_refused():
    for network, name in [
        (Network([LRU(N_IN, 4)], CLASSES), r"cells\.0\.w_in, cells"),
        (Network([GRU(4, 4)], embedding=Embedding(9, 4)), r"embedding\.weight\."),
    ]:
        with pytest.raises(TypeError, match=f"cannot count: {name}"):
            model(network)
