"""Our NIR files read by norse, snnTorch and spikingjelly, and theirs by us."""

import warnings
from typing import Any

import nir
import pytest
import snntorch
import torch
from snntorch.export_nir import export_to_nir
from spikingjelly.activation_based.neuron import IFNode
from spikingjelly.activation_based.nir_exchange import export_to_nir as export_spikingjelly
from spikingjelly.activation_based.nir_exchange import import_from_nir as import_spikingjelly
from torch import Tensor, nn

from neurolsc import Network
from neurolsc.export import from_nir, to_nir
from tests.export.networks import N_IN, N_OUT, WIDTH, lif, make, spikes
from tests.export.test_wrapped import recorded

DT = 1e-4
STEPS = 100
NORSE_DT = 1e-6  # norse writes dt / tau_inv where 1 / tau_inv belongs, with dt = 1e-3

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import norse.torch
    from snntorch.import_nir import import_from_nir as import_snntorch

SETTINGS = [("subtract", 1), ("bias, subtract", 0), ("zero", 0)]


def even(network: Network) -> Network:
    """One threshold and one time constant per layer, as snnTorch and spikingjelly read them."""
    for cell in network.cells:
        cell.tau_v = torch.full((cell.n_hidden,), 5.0)
        with torch.no_grad():
            cell.theta.fill_(1.0)
    return network


def import_norse(path: Any, dt: float) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return norse.torch.from_nir(nir.read(path, type_check=False), dt=dt).double()


@pytest.mark.parametrize("reader", ["norse", "spikingjelly"])
@pytest.mark.parametrize(("kind", "layer_delay"), SETTINGS)
def test_every_spike_is_the_networks(kind, layer_delay, reader, tmp_path):
    """Layers of NIR have no delay: with layer_delay=1 layer l fires there l steps earlier."""
    network = (make(kind) if reader == "norse" else even(make(kind))).double()
    network.layer_delay = layer_delay
    to_nir(network, tmp_path / "a.nir", dt=DT)
    if reader == "norse":
        module = import_norse(tmp_path / "a.nir", DT)
    else:
        module = import_spikingjelly(tmp_path / "a.nir", dt=DT, dtype=torch.float64)
    x = spikes(STEPS).double()
    neurons = [module.get_submodule(name) for name in ("lif_1", "lif_2")]
    *theirs, outputs = recorded(module, neurons, x)
    with torch.no_grad():
        run = network.run(x)
    for i, (a, b) in enumerate(zip(run.spikes, theirs, strict=True), start=1):
        late = i * layer_delay
        assert a.mean() > 0.08
        assert not a[:late].any()
        assert torch.equal(a[late:], b[: STEPS - late])
    if not layer_delay:
        torch.testing.assert_close(outputs, run.logits, rtol=0, atol=1e-5)


def test_snntorch_fires_as_a_network_without_recurrence_and_reset_to_zero_does(capsys):
    cells = [lif(n_in, width, reset="zero", recurrent=False) for n_in, width in ((N_IN, WIDTH), (WIDTH, 16))]
    network = even(Network(cells, N_OUT, layer_delay=0))
    x = spikes(STEPS)
    (theirs,) = recorded(import_snntorch(to_nir(network, dt=DT)), [], x)
    with torch.no_grad():
        run = network.run(x)
    assert all(z.mean() > 0.1 for z in run.spikes)
    torch.testing.assert_close(theirs, run.logits)
    capsys.readouterr()  # its reader prints


# files of other programs


def assert_alike(ours: Network, x: Tensor, theirs: Tensor) -> None:
    with torch.no_grad():
        run = ours.run(x)
    assert all(0.05 < z.mean() < 0.6 for z in run.spikes)
    torch.testing.assert_close(run.logits, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("neuron", ["Leaky", "RLeaky"])
def test_a_file_of_snntorch_is_read(neuron, tmp_path, capsys):
    torch.manual_seed(0)
    settings = {"init_hidden": True, "reset_mechanism": "zero", "reset_delay": False}
    if neuron == "Leaky":
        layer = snntorch.Leaky(beta=torch.linspace(0.5, 0.9, WIDTH), threshold=torch.ones(WIDTH), **settings)
    else:
        layer = snntorch.RLeaky(beta=0.8, linear_features=WIDTH, **settings)
    module = nn.Sequential(nn.Linear(N_IN, WIDTH), layer, nn.Linear(WIDTH, N_OUT))
    with torch.no_grad():
        module[0].weight.mul_(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        nir.write(tmp_path / "a.nir", export_to_nir(module, torch.rand(1, N_IN), ignore_dims=[0]))
    layer.reset_mem()
    x = spikes(STEPS)
    with torch.no_grad():
        theirs = torch.stack([module(frame) for frame in x])
    assert_alike(from_nir(tmp_path / "a.nir", dt=DT), x, theirs)
    capsys.readouterr()


def test_a_file_of_norse_is_read(tmp_path):
    torch.manual_seed(0)
    p = norse.torch.LIFBoxParameters(
        tau_mem_inv=torch.linspace(100.0, 300.0, WIDTH), v_th=torch.full((WIDTH,), 0.3), v_leak=torch.zeros(WIDTH)
    )
    module = norse.torch.SequentialState(nn.Linear(N_IN, WIDTH), norse.torch.LIFBoxCell(p), nn.Linear(WIDTH, N_OUT))
    with torch.no_grad():
        module[0].weight.mul_(8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        nir.write(tmp_path / "a.nir", norse.torch.to_nir(module, torch.rand(N_IN)))
    x = spikes(STEPS)
    assert_alike(from_nir(tmp_path / "a.nir", dt=NORSE_DT), x, *recorded(module, [], x))


@pytest.mark.parametrize(
    ("cell", "p", "factor", "kind"),
    [
        ("LIFCell", "LIFParameters", "w_in", nir.CubaLIF),
        ("IAFCell", "IAFParameters", "r", nir.IF),
    ],
)
def test_a_factor_that_norse_leaves_out_is_named_and_with_it_every_spike_is_equal(cell, p, factor, kind):
    """norse 1.1 adds the whole input, and its file says that a step adds a part of it."""
    torch.manual_seed(0)
    parameters = getattr(norse.torch, p)(v_th=torch.tensor(0.5))
    module = norse.torch.SequentialState(nn.Linear(N_IN, WIDTH), getattr(norse.torch, cell)(parameters))
    with torch.no_grad():
        module[0].weight.mul_(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        graph = norse.torch.to_nir(module, torch.rand(N_IN))
    (node,) = [node for node in graph.nodes.values() if isinstance(node, kind)]
    x = spikes(STEPS)
    (theirs,) = recorded(module, [], x)
    with pytest.warns(UserWarning, match=rf"{factor} is 1, .* set {factor} of the node to"):
        part = from_nir(graph, dt=NORSE_DT)
    assert part.run(x).logits.sum() < 0.5 * theirs.sum()
    setattr(node, factor, getattr(node, factor) * (node.tau_syn if factor == "w_in" else 1) / NORSE_DT)
    assert 0.05 < theirs.mean() < 0.9
    assert torch.equal(from_nir(graph, dt=NORSE_DT).run(x).logits, theirs)


def test_an_if_node_of_spikingjelly_is_read():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(N_IN, WIDTH), IFNode(v_threshold=0.7), nn.Linear(WIDTH, N_OUT, bias=False))
    graph = export_spikingjelly(module, torch.rand(1, N_IN), dt=DT)
    x = spikes(STEPS)
    with torch.no_grad():
        theirs = torch.stack([module(frame) for frame in x])
    assert_alike(from_nir(graph, dt=DT), x, theirs)
    again = import_spikingjelly(to_nir(from_nir(graph, dt=DT), dt=DT), dt=DT)
    (read,) = recorded(again, [], x)
    torch.testing.assert_close(read, theirs, rtol=0, atol=1e-4)
