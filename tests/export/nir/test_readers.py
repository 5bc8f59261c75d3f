"""Our NIR files in the readers of norse, snnTorch, spikingjelly, rockpool, and theirs in ours."""

import itertools
import math
import re
import sys
import warnings

import nir
import numpy as np
import pytest
import snntorch
import torch
from rockpool.nn.modules.torch.nir import from_nir as import_rockpool
from snntorch.export_nir import export_to_nir
from spikingjelly.activation_based.nir_exchange import import_from_nir as import_spikingjelly
from torch import Tensor, nn

from neurolsc import LIF, ALIFPlus, Network
from neurolsc.export import Opinion, ask_norse, ask_spikingjelly, from_nir, to_nir
from tests.export.networks import N_IN, N_OUT, WIDTH, alif, lif, make, spikes

DT = 1e-4
STEPS = 100
NORSE_DT = 1e-6  # norse writes dt / tau_inv where 1 / tau_inv belongs, with dt = 1e-3

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import norse.torch
    from snntorch.import_nir import import_from_nir

LIF_KINDS = ("feed-forward, subtract", "feed-forward, zero", "recurrent, subtract", "recurrent, zero")


@pytest.mark.parametrize("layer_delay", [0, 1])
@pytest.mark.parametrize("kind", LIF_KINDS)
def test_norse_fires_as_the_network_does(kind, layer_delay):
    network = make(kind)
    network.layer_delay = layer_delay
    opinion = ask_norse(network, spikes(STEPS))
    print(opinion)
    assert all(
        layer.spikes > 0.1 * STEPS * 3 * cell.n_hidden
        for layer, cell in zip(opinion.layers, network.cells, strict=True)
    )
    assert opinion.exact
    assert re.match(r"norse 1\.\d.* through nir 1\.\d.* beside the floats, 3 samples of 100 steps", str(opinion))


@pytest.mark.parametrize("kind", ["bias, subtract", "bias, zero"])
def test_norse_fires_as_a_network_with_biases_does(kind):
    network = make(kind)
    network.layer_delay = 0
    assert ask_norse(network, spikes(STEPS)).exact


def test_a_difference_is_found_at_its_step_and_layer():
    a, b = torch.eye(5).unsqueeze(1), torch.eye(5).unsqueeze(1)
    early = b.roll(-2, 0)
    early[3:] = 7.0  # no step of ours is left to compare these with
    a[:2] = 0
    assert Opinion.of("other", [b.roll(1, 0).tril(-1), a], [b, early], latency=1).layers[1].first_difference is None
    early[1, 0, 3] = 0
    opinion = Opinion.of("other", [a, a], [a.roll(-1, 0), early], latency=1)
    assert [layer.first_difference for layer in opinion.layers] == [None, 3]
    assert opinion.layers[1].agreement == 24 / 25
    assert str(opinion) == (
        "other, 1 samples of 5 steps: layer 1: 3 spikes, 100.0000% equal; layer 2: 3 spikes, 96.0000% equal, first difference at "
        "step 3"
    )


def test_norses_output_is_the_readout():
    network = make("recurrent, subtract").double()
    network.layer_delay = 0
    x = spikes(STEPS).double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        module = norse.torch.from_nir(to_nir(network, dt=DT), dt=DT).double()
    state, logits = None, []
    with torch.no_grad():
        for frame in x:
            out, state = module(frame, state)
            logits.append(out)
    torch.testing.assert_close(torch.stack(logits), network(x), atol=1e-6, rtol=0)


def test_snntorch_fires_as_the_network_does(capsys):
    network = Network([cell(), cell(WIDTH, 16)], N_OUT, layer_delay=0)
    module = import_from_nir(to_nir(network, dt=DT, reader="snntorch"))
    x = spikes(STEPS)
    with torch.no_grad():
        run = network.run(x)
        state, theirs = None, []
        for frame in x:
            out, state = module(frame, state)
            theirs.append(out)
    assert all(z.mean() > 0.1 for z in run.spikes)
    torch.testing.assert_close(torch.stack(theirs), run.logits)
    capsys.readouterr()  # its reader prints


def cell(n_in: int = N_IN, width: int = WIDTH) -> LIF:
    made = lif(n_in, width, reset="zero", recurrent=False)
    made.tau_v = torch.full((width,), 5.0)
    with torch.no_grad():
        made.theta.fill_(1.0)
    return made


@pytest.mark.parametrize(
    ("made", "reader", "dt", "message"),
    [
        (
            lambda: [lif(), alif(WIDTH, 16)],
            "norse",
            DT,
            r"layer 2 is an ALIF, .* the NIR reader of norse .*from_nir, or use LIF",
        ),
        (lambda: [lif(), alif(WIDTH, 16)], "snntorch", DT, r"layer 1 has reset=\"subtract\".*use reset=\"zero\""),
        (lambda: [alif()], "snntorch", DT, r"layer 1 is an ALIF, .* the NIR reader of snntorch"),
        (lambda: [cell(), lif(WIDTH, 16, reset="zero")], "snntorch", DT, r"layer 2 has recurrent weights up to 0\.\d"),
        (lambda: [lif(reset="zero", recurrent=False)], "snntorch", DT, r"layer 1 has theta from 0\.8 to 1\.2"),
        (lambda: [cell()], "snntorch", 1e-3, r"snnTorch's NIR reader supposes dt = 0\.0001 s, got 0\.001 s"),
        (
            lambda: [lif(recurrent=False)],
            "spikingjelly",
            DT,
            r"layer 1 has theta from 0\.8 to 1\.2; .* of spikingjelly holds",
        ),
        (
            lambda: [cell(), alif(WIDTH, 16)],
            "spikingjelly",
            DT,
            r"layer 2 is an ALIF, .* the NIR reader of spikingjelly",
        ),
        (
            lambda: [cell()],
            "rockpool",
            DT,
            r"rockpool's NIR reader makes another network .* smallest tau_mem / \(1 \+ r\)",
        ),
        (lambda: [cell()], "nest", DT, r"one of 'norse', 'snntorch', 'spikingjelly', 'rockpool', got 'nest'"),
    ],
)
def test_what_a_reader_cannot_hold_is_refused_by_name(made, reader, dt, message):
    with pytest.raises(ValueError, match=message):
        to_nir(Network(made(), N_OUT), dt=dt, reader=reader)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Network([alif()], N_OUT), r"^norse: not run: layer 1 is an ALIF"),
        (lambda: Network([ALIFPlus(N_IN, 4)], N_OUT), r"^norse: not run: layer 1 is an ALIF"),
        (lambda: Network([lif(bias=0.1)], N_OUT), r"^norse: not run: layer 1: its bias \(up to 0\.15\)"),
    ],
)
def test_what_norse_is_not_asked_has_its_reason(made, message):
    opinion = ask_norse(made(), spikes(5))
    assert re.match(message, str(opinion))
    assert not opinion.exact


def test_a_missing_norse_is_a_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "norse.torch", None)
    assert "not run: the package norse is missing: pip install 'norse>=1.1'" in str(
        ask_norse(make("recurrent, zero"), spikes(5))
    )


# files of other programs


def fires_alike(ours: Network, x: Tensor, theirs: Tensor) -> None:
    with torch.no_grad():
        run = ours.run(x)
    assert all(0.05 < z.mean() < 0.6 for z in run.spikes)
    torch.testing.assert_close(run.logits, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("neuron", ["Leaky", "RLeaky"])
def test_what_snntorch_writes_is_read(neuron, tmp_path, capsys):
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
    fires_alike(from_nir(tmp_path / "a.nir", dt=DT), x, theirs)
    capsys.readouterr()


def test_what_norse_writes_is_read(tmp_path):
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
    x, state, theirs = spikes(STEPS), None, []
    with torch.no_grad():
        for frame in x:
            out, state = module(frame, state)
            theirs.append(out)
    fires_alike(from_nir(tmp_path / "a.nir", dt=NORSE_DT), x, torch.stack(theirs))


def chain(*middle, edges=()) -> nir.NIRGraph:
    """input -> 0 -> 1 -> ... -> output, and more edges."""
    names = ["input", *map(str, range(len(middle))), "output"]
    nodes = dict(zip(names, (nir.Input(np.array([3])), *middle, nir.Output(np.array([2]))), strict=True))
    return nir.NIRGraph(nodes, [*itertools.pairwise(names), *edges], type_check=False)


def numbers(value: float, n: int = 2) -> np.ndarray:
    return np.full(n, value)


def neurons(kind=nir.LIF, **changes) -> nir.NIRNode:
    base = {"tau": 1e-3, "r": 1.0, "v_leak": 0.0, "v_threshold": 1.0, "v_reset": 0.0}
    if kind is nir.CubaLIF:
        base |= {"tau_mem": base.pop("tau"), "tau_syn": 1e-4, "w_in": 1.0}
    if kind in (nir.IF, nir.LI):
        base = {
            name: base[name] for name in (("r", "v_threshold", "v_reset") if kind is nir.IF else ("tau", "r", "v_leak"))
        }
    return kind(**{name: numbers(value) for name, value in (base | changes).items()})


LIF_FIELDS = ("tau", "r", "v_leak", "v_threshold", "v_reset")
W, W_REC, W_OUT = np.ones((2, 3)), np.ones((2, 2)), np.ones((2, 2))


def linear(weight=W):
    return nir.Linear(weight)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (
            lambda: chain(linear(), neurons(nir.IF), linear(W_OUT)),
            r"node 1 \(IF\) stands where LIF or CubaLIF or LI or CubaLI was expected",
        ),
        (
            lambda: chain(nir.Flatten({"input": np.array([3])}, 0, -1), linear()),
            r"node 0 \(Flatten\) stands where Linear or Affine",
        ),
        (lambda: chain(linear(), nir.Delay(numbers(1e-4)), neurons()), r"node 1 \(Delay\) stands where"),
        (lambda: chain(linear(), neurons(v_reset=-0.5)), r"node 1 \(LIF\): v_reset must be 0, .* got -0\.5"),
        (lambda: chain(linear(), neurons(nir.CubaLIF, v_reset=-0.5)), r"node 1 \(CubaLIF\): v_reset must be 0"),
        (lambda: chain(linear(), neurons(v_leak=0.2)), r"node 1 \(LIF\): v_leak must be 0, .* got 0\.2"),
        (
            lambda: chain(linear(), neurons(tau=5e-5)),
            r"node 1 \(LIF\): tau must be at least dt = 0\.0001 s and finite, got 5e-05",
        ),
        (lambda: chain(linear(), neurons(tau=math.inf)), r"node 1 \(LIF\): tau must be .* finite, got inf"),
        (lambda: chain(linear()), r"has no layer of neurons"),
        (
            lambda: chain(linear(), neurons(nir.LI), linear(W_OUT)),
            r"node 2 \(Linear\) stands where Threshold was expected",
        ),
        (
            lambda: chain(linear(), neurons(), linear(W_REC), neurons(), edges=[("1", "3")]),
            r"wanted one node after node 1 \(LIF\), got 2, 3",
        ),
        (
            lambda: chain(linear(), neurons(), linear(W_REC), neurons(), linear(W_OUT), edges=[("3", "2")]),
            r"wanted one node after node 3 \(LIF\), got 2, 4",
        ),
        (lambda: chain(linear(), neurons(v_threshold=0.0)), r"node 1: thresholds must be positive, got 0"),
        (lambda: chain(linear(W * math.nan), neurons()), r"node 1: w_in would not be finite"),
        (
            lambda: chain(linear(), neurons(), linear(np.ones((2, 7)))),
            r"readout have shape \(2, 7\), wanted \(classes, 2\)",
        ),
        (lambda: chain(linear(np.ones((5, 3))), neurons()), r"v_leak of a LIF has shape \(2,\), wanted \(5,\)"),
    ],
)
def test_a_graph_that_is_none_of_our_networks_is_refused_by_node_and_type(graph, message):
    with pytest.raises(ValueError, match=message):
        from_nir(graph(), dt=DT)


def test_one_neuron_alone_is_scaled_as_many_are():
    weight = np.array([[1.0, 0.5, -0.25]])
    node = nir.LIF(**{name: value[:1] for name, value in vars(neurons(r=3.0)).items() if name in LIF_FIELDS})
    cell = from_nir(chain(linear(weight), node, linear(np.ones((2, 1)))), dt=DT).cells[0]
    gain = 3.0 * DT / 1e-3  # an Euler step adds r dt / tau of its input
    np.testing.assert_allclose(cell.w_in.detach().numpy(), gain * weight)
    np.testing.assert_allclose(cell.decay_v.item(), 0.9)


def test_the_step_must_be_known_and_one():
    graph = chain(linear(), neurons())
    with pytest.raises(ValueError, match="does not say how long a time step is: give dt"):
        from_nir(graph)
    ours = to_nir(make("recurrent, zero"), dt=DT)
    with pytest.raises(ValueError, match=r"written with dt = 0\.0001 s, got dt = 0\.001 s"):
        from_nir(ours, dt=1e-3)


def test_a_file_that_is_none_is_refused(tmp_path):
    path = tmp_path / "a.nir"
    with pytest.raises(FileNotFoundError):
        from_nir(path)
    path.write_bytes(b"a text")
    with pytest.raises(ValueError, match=r"a\.nir: damaged, or does not hold a graph of NIR \(OSError"):
        from_nir(path)
    to_nir(make("recurrent, zero"), path, dt=DT)
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(ValueError, match=r"a\.nir: damaged"):
        from_nir(path)
    with pytest.raises(TypeError, match="wanted a NIRGraph or the path of a file, got LIF"):
        from_nir(neurons())


# the third reader, and one that makes other networks


def even(network: Network) -> Network:
    """One threshold and one time constant per layer."""
    for layer in network.cells:
        layer.tau_v = torch.full((layer.n_hidden,), 5.0)
        with torch.no_grad():
            layer.theta.fill_(1.0)
    return network


SETTINGS = [(kind, delay) for kind in LIF_KINDS for delay in (0, 1)] + [("bias, subtract", 0), ("bias, zero", 0)]


@pytest.mark.parametrize(("kind", "layer_delay"), SETTINGS)
def test_spikingjelly_fires_as_the_network_does(kind, layer_delay):
    network = even(make(kind))
    network.layer_delay = layer_delay
    opinion = ask_spikingjelly(network, spikes(STEPS))
    print(opinion)
    for layer, ours in zip(opinion.layers, network.cells, strict=True):
        assert layer.spikes > 0.08 * STEPS * 3 * ours.n_hidden
    assert opinion.exact
    told = r"spikingjelly 2\.\d.* through nir 1\.\d.* beside the floats, 3 samples of 100 steps"
    assert re.match(told, str(opinion))


@pytest.mark.parametrize("dt", [1e-4, 1e-3])
def test_spikingjelly_reads_a_file_of_float32_and_its_output_is_the_readout(dt, tmp_path):
    network = even(make("recurrent, static"))
    network.layer_delay = 0
    to_nir(network, tmp_path / "a.nir", dt=dt, reader="spikingjelly")
    module = import_spikingjelly(tmp_path / "a.nir", dt=dt)
    state, logits = None, []
    with torch.no_grad():
        for frame in spikes(STEPS):
            out, state = module(frame, state)
            logits.append(out)
    torch.testing.assert_close(torch.stack(logits), network(spikes(STEPS)), rtol=0, atol=1e-5)


def test_spikingjelly_fires_at_the_threshold_where_we_do_not():
    network = Network([LIF(1, 1, threshold=1.0, reset="zero")], 1, layer_delay=0)
    with torch.no_grad():
        network.cells[0].get_parameter("w_in").fill_(1.0)
    x = torch.zeros(3, 1, 1)
    x[1] = 1.0
    opinion = ask_spikingjelly(network, x)
    assert [(layer.spikes, layer.first_difference) for layer in opinion.layers] == [(0, 1)]


def test_a_missing_spikingjelly_is_a_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "spikingjelly.activation_based.nir_exchange", None)
    told = str(ask_spikingjelly(even(make("recurrent, zero")), spikes(5)))
    assert "not run: spikingjelly or what its reader needs is missing: pip install 'spikingjelly[nir]>=2'" in told


@pytest.mark.parametrize("reset", ["zero", "subtract", "static"])
def test_rockpool_makes_another_network_by_the_rules_that_are_told(reset, tmp_path):
    cell = lif(reset=reset)
    network = Network([cell], nn.Linear(WIDTH, WIDTH, bias=False), layer_delay=0)
    with torch.no_grad():
        network.readout.weight.copy_(torch.eye(WIDTH))
    graph = to_nir(network, tmp_path / "a.nir", dt=DT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it uses a function that nirtorch means to replace
        module = import_rockpool(tmp_path / "a.nir")
    theirs = module(spikes(STEPS).transpose(0, 1))[0].transpose(0, 1)

    node = graph.nodes["lif_1"]
    mem, syn, threshold = (torch.from_numpy(a).float() for a in (node.tau_mem, node.tau_syn, node.v_threshold))
    dt = float((node.tau_mem / (1 + node.r)).min())
    current, v, fired = torch.zeros(3, WIDTH), torch.zeros(3, WIDTH), []
    for frame in spikes(STEPS):
        current = (current + frame @ cell.w_in.detach().T) * torch.exp(-dt / syn)
        v = v * torch.exp(-dt / mem) + current
        fired.append((v / threshold).floor().clamp(min=0))
        v = v - fired[-1] * threshold
    assert torch.equal(torch.stack(fired), theirs)
    assert theirs.max() > 1
    with torch.no_grad():
        assert (network.run(spikes(STEPS)).spikes[0] == theirs).double().mean() < 0.9
