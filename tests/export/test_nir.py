"""NIR there and back: to the last bit, the file's equations, and refusals."""

import copy
import itertools
import math
import pickle
import sys
from typing import Any

import nir
import numpy as np
import pytest
import torch
from torch import nn

from neurolsc import LIF, ALIFPlusMinus, Network, wrap
from neurolsc.export import from_nir, to_nir
from tests.export.networks import KINDS, N_IN, N_OUT, WIDTH, lif, make, spikes

DT = 1e-4
STEPS = 100


def network(kind: str, layer_delay: int, dtype: torch.dtype) -> Network:
    made = make(kind).to(dtype)
    if layer_delay:  # a bias acts before the delayed input arrives, which is refused below
        for cell in made.cells:
            cell.b_v.zero_()
    made.layer_delay = layer_delay
    return made


def assert_the_same(a: Network, b: Network) -> None:
    """Parameters, and spikes and states of all steps, bit by bit, in networks that fire."""
    before, after = a.state_dict(), b.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) and before[name].dtype == after[name].dtype for name in before)
    assert [type(cell) for cell in a.cells] == [type(cell) for cell in b.cells]
    x = spikes(STEPS).to(before["readout.weight"].dtype)
    rates = torch.zeros(len(a.cells))
    for one, other in zip(a.records(x), b.records(x), strict=True):
        assert all(torch.equal(p, q) for p, q in zip(one.outputs, other.outputs, strict=True))
        for p, q in zip(one.after.layers, other.after.layers, strict=True):
            assert type(p) is type(q)
            assert all(torch.equal(u, v) for u, v in zip(p, q, strict=True))
        rates += torch.stack([z.mean() for z in one.outputs]) / STEPS
    assert (rates > 0.1).all()


@pytest.mark.parametrize(("layer_delay", "dtype"), [(0, torch.float64), (1, torch.float32)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_returns_the_network_bit_by_bit(kind, layer_delay, dtype, tmp_path):
    a = network(kind, layer_delay, dtype)
    state = torch.get_rng_state()
    to_nir(a, tmp_path / "a.nir", dt=DT)
    b = from_nir(tmp_path / "a.nir")
    assert torch.equal(state, torch.get_rng_state())
    assert b.layer_delay == layer_delay
    assert_the_same(a, b)


def test_alif_plus_minus_readout_bias_and_the_papers_lack_of_memory_come_back():
    torch.manual_seed(0)
    cells = [ALIFPlusMinus(N_IN, WIDTH, reset="static"), LIF(WIDTH, 16, reset="static"), LIF(16, 16, reset="zero")]
    with torch.no_grad():
        for cell in cells:
            cell.w_in.mul_(5)
        cells[0].tau_theta = torch.linspace(50, 5000, WIDTH)
        cells[0].theta_rest = 0.8
    a = Network(cells, N_OUT, readout_bias=True)
    with torch.no_grad():
        a.readout.bias.uniform_()
    b = from_nir(to_nir(a, dt=DT))
    assert [cell.reset.name for cell in b.cells] == ["static", "static", "zero"]
    assert_the_same(a, b)


def test_samples_without_a_file_are_refused():
    with pytest.raises(ValueError, match="golden samples are written beside the file: give a path"):
        to_nir(network(KINDS[0], 1, torch.float32), dt=DT, golden=spikes(STEPS))


def test_samples_of_another_width_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match=rf"golden must have shape \(T, B, {N_IN}\), got \(7, 1, 5\)"):
        to_nir(network(KINDS[0], 1, torch.float32), tmp_path / "a.nir", dt=DT, golden=torch.zeros(7, 1, 5))
    assert not list(tmp_path.iterdir())


def test_samples_beside_a_file_are_what_its_network_makes_of_them(tmp_path):
    a, x = network(KINDS[0], 1, torch.float32), spikes(STEPS)
    to_nir(a, tmp_path / "a.nir", dt=DT, golden=x)
    samples = nir.read_data(tmp_path / "a.nir.data")
    samples.check_nodes(nir.read(tmp_path / "a.nir"))
    found = {name: torch.from_numpy(node.observables["output"].data).mT for name, node in samples.nodes.items()}
    assert torch.equal(found["input"].permute(2, 0, 1), x)
    run = from_nir(tmp_path / "a.nir", layer_delay=0).run(x)
    outputs = [*run.spikes, run.logits]
    assert all(z.mean() > 0.1 for z in run.spikes)
    assert len(found) == len(outputs) + 1
    for made, read in zip(outputs, list(found.values())[1:], strict=True):
        assert torch.allclose(made, read.permute(2, 0, 1))


def test_the_readout_may_be_missing():
    a = network("zero", 0, torch.float64)
    graph = to_nir(a, dt=DT)
    nodes = {name: node for name, node in graph.nodes.items() if name not in ("readout", "output")}
    edges = [edge for edge in graph.edges if "readout" not in edge]
    cut = nir.NIRGraph(nodes | {"output": nir.Output(np.array([16]))}, [*edges, ("lif_2", "output")])
    x = spikes().double()
    assert torch.equal(from_nir(cut, dt=DT)(x), a.run(x).spikes[-1])


def test_euler_steps_of_an_alifs_nodes_fire_as_the_network_does():  # of LIF other readers' do: test_nir_readers.py
    a = network("ALIF", 0, torch.float64)
    nodes: Any = to_nir(a, dt=DT).nodes
    inner, w_in = nodes["alif_1"].nodes, nodes["w_in_1"]
    x, seen = spikes(STEPS, 1).double(), []
    v, rise, z = np.zeros((3, WIDTH))

    def euler(state: np.ndarray, node: Any, drive: np.ndarray) -> np.ndarray:
        return state + DT / node.tau * (node.r * drive - state)

    for frame in x[:, 0].numpy():
        v = euler(v, inner["membrane"], w_in.weight @ frame + inner["w_rec"].weight @ z + w_in.bias)
        rise = euler(rise, inner["adaptation"], z)
        z = (v + rise > inner["threshold"].threshold).astype(float)
        seen.append(z)
    ours = a.run(x).spikes[0][:, 0].detach().numpy()
    assert 0.1 < ours.mean() < 0.5
    assert np.array_equal(np.array(seen), ours)


def test_numbers_changed_in_the_graph_win_over_what_was_noted():
    a = network("ALIF", 1, torch.float64)
    graph: Any = to_nir(a, dt=DT)
    graph.nodes["lif_3"].tau_syn = graph.nodes["lif_3"].tau_syn * 2
    graph.nodes["lif_3"].w_in = graph.nodes["lif_3"].w_in * 2
    graph.nodes["w_rec_3"].weight[0, 0] += 0.25
    inner = graph.nodes["alif_1"].nodes
    inner["adaptation"].r = inner["adaptation"].r * 3
    inner["threshold"].threshold = inner["threshold"].threshold * 1.5
    b = from_nir(graph)
    torch.testing.assert_close(1 - b.cells[2].decay_v, (1 - a.cells[2].decay_v) / 2)
    torch.testing.assert_close(b.cells[2].w_rec[0, 0], a.cells[2].w_rec[0, 0] + 0.25)
    torch.testing.assert_close(b.cells[0].adaptation, a.cells[0].adaptation * 3)
    torch.testing.assert_close(b.cells[0].theta_rest, a.cells[0].theta_rest * 1.5)
    inner["adaptation"].v_leak = np.full(WIDTH, 0.25)
    with pytest.raises(ValueError, match=r"node alif_1 \(LI\): v_leak must be 0, .* got 0\.25"):
        from_nir(graph)
    graph.nodes["alif_1"].edges.append(("w_rec", "threshold"))
    with pytest.raises(ValueError, match=r"node alif_1 is a graph"):
        from_nir(graph)


# refusals of to_nir


def changed(cell: Any, **values: float) -> Any:
    with torch.no_grad():
        for name, value in values.items():
            getattr(cell, name)[3] = value
    return cell


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: wrap(nn.GRU(WIDTH, 16)).cells[0], r"layer 2 is a torch GRU, which has no counterpart"),
        (lambda: lif(WIDTH, 16, bias=0.1), r"layer 2: its bias \(up to 0\.15\).*layer_delay=0"),
        (lambda: changed(lif(WIDTH, 16), log_tau_v=math.log(1e9)), r"layer 2: tau_v reaches 1e\+09 steps"),
    ],
)
def test_networks_that_nir_cannot_express_are_refused_by_layer_and_number(made, message, tmp_path):
    with pytest.raises((TypeError, ValueError), match=message):
        to_nir(Network([lif(), made()], N_OUT), tmp_path / "a.nir", dt=DT)
    assert not list(tmp_path.iterdir())


def test_a_step_without_length_and_a_missing_nir_are_named(monkeypatch):
    network, text = make("subtract"), r"dt must be .*got '1e-4'"
    with pytest.raises(TypeError, match=text):
        to_nir(network, dt="1e-4")  # type: ignore[arg-type]
    graph = to_nir(network, dt=DT)
    with pytest.raises(TypeError, match=text):
        from_nir(graph, dt="1e-4")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dt must be positive"):
        to_nir(make("subtract"), dt=0.0)
    monkeypatch.setitem(sys.modules, "nir", None)  # as if it were not installed
    with pytest.raises(ImportError, match=r"pip install 'nir>=1\.0\.8'"):
        to_nir(make("subtract"), dt=DT)


# refusals of from_nir


def chain(*middle, edges=()) -> nir.NIRGraph:
    """input -> 0 -> 1 -> ... -> output, and more edges."""
    names = ["input", *map(str, range(len(middle))), "output"]
    nodes = dict(zip(names, (nir.Input(np.array([3])), *middle, nir.Output(np.array([2]))), strict=True))
    return nir.NIRGraph(nodes, [*itertools.pairwise(names), *edges], type_check=False)


FIELDS = {
    nir.LIF: ("tau", "r", "v_leak", "v_threshold", "v_reset"),
    nir.CubaLIF: ("tau_mem", "tau_syn", "w_in", "r", "v_leak", "v_threshold", "v_reset"),
    nir.IF: ("r", "v_threshold", "v_reset"),
    nir.LI: ("tau", "r", "v_leak"),
}


def neurons(kind=nir.LIF, n: int = 2, **changes) -> nir.NIRNode:
    base = {"tau": 1e-3, "tau_mem": 1e-3, "tau_syn": 1e-4, "w_in": 1.0, "r": 1.0}
    base |= {"v_leak": 0.0, "v_threshold": 1.0, "v_reset": 0.0} | changes
    return kind(**{name: np.full(n, base[name]) for name in FIELDS[kind]})


def linear(rows: int = 2, columns: int = 3, value: float = 1.0) -> nir.Linear:
    return nir.Linear(np.full((rows, columns), value))


def convolution() -> nir.Conv2d:
    return nir.Conv2d((4, 4), np.ones((2, 1, 3, 3)), 1, 0, 1, 1, np.zeros(2))


def flat(shape: tuple[int, ...], start: int = 0) -> nir.Flatten:
    return nir.Flatten({"input": np.array(shape)}, start_dim=start)


@pytest.mark.parametrize("shape", [(12,), (1, 12), (3, 2, 2)])
@pytest.mark.parametrize("between", [False, True])
def test_flatten_changes_nothing(shape, between, tmp_path):
    """The first example of NIR has one before its weights."""
    weights, more = nir.Linear(2 * np.eye(5, 12)), nir.Linear(2 * np.eye(2, 5))
    inner = [flat((5,))] if between else []
    graph = chain(flat(shape), weights, neurons(n=5), *inner, more, neurons(n=2))
    nir.write(tmp_path / "a.nir", graph)
    x = (torch.rand(40, 3, 12) < 0.8).double()
    plain = from_nir(chain(weights, neurons(n=5), more, neurons(n=2)), dt=1e-3).run(x)
    assert plain.logits.sum() > 10
    for source in (graph, tmp_path / "a.nir"):
        assert torch.equal(from_nir(source, dt=1e-3).run(x).logits, plain.logits)


@pytest.mark.parametrize("recurrent", [False, True])
def test_an_if_node_adds_up_its_input_and_comes_back(recurrent, tmp_path):
    loop = [("1", "2"), ("2", "1")] if recurrent else []
    graph = chain(linear(value=0.2), neurons(nir.IF, r=1 / DT))
    if recurrent:
        graph.nodes["2"] = nir.Linear(np.full((2, 2), -0.1))
        graph = nir.NIRGraph(graph.nodes, [*graph.edges, *loop], type_check=False)
    network = from_nir(graph, dt=DT)
    x = (torch.rand(60, 4, 3) < 0.5).double()
    v, z, sent = torch.zeros(4, 2).double(), torch.zeros(4, 2).double(), []
    for step in x:
        v = v * (1 - z) + 0.2 * step.sum(1, keepdim=True) - 0.1 * recurrent * z.sum(1, keepdim=True)
        z = (v > 1).double()
        sent.append(z)
    assert torch.stack(sent).sum() > 50
    assert torch.equal(network.run(x).logits, torch.stack(sent))
    written = to_nir(network, tmp_path / "a.nir", dt=DT)
    assert isinstance(written.nodes["lif_1"], nir.IF)
    again = from_nir(tmp_path / "a.nir")
    assert torch.equal(again.run(x).logits, torch.stack(sent))
    assert torch.equal(again.cells[0].theta, network.cells[0].theta)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (lambda: chain(linear(), nir.Threshold(np.ones(2))), r"one LIF or CubaLIF or .* after 0, got 1 \(Threshold\)"),
        (lambda: chain(convolution(), linear(), neurons()), r"0 \(Conv2d\) cannot be read yet: layers must be dense"),
        (lambda: chain(linear(), neurons(), nir.AvgPool2d(2, 2, 0)), r"2 \(AvgPool2d\) cannot be read yet"),
        (
            lambda: chain(flat((3, 4, 5), start=1), linear(2, 60), neurons()),
            r"0 \(Flatten\) leaves .* \(3, 20\), wanted",
        ),
        (lambda: chain(linear(), neurons(v_reset=-0.5)), r"node 1 \(LIF\): v_reset must be 0, .* got -0\.5"),
        (
            lambda: chain(linear(), neurons(tau=5e-5)),
            r"node 1 \(LIF\): tau must be at least dt = 0\.0001 s .* got 5e-05",
        ),
        (lambda: chain(linear()), r"has no layer of neurons"),
        (
            lambda: chain(linear(), neurons(), linear(2, 2), neurons(), edges=[("1", "3")]),
            r"wanted one Linear or Affine after 1, got 2 \(Linear\), 3 \(LIF\): only chains",
        ),
        (lambda: chain(linear(3, 3), neurons(n=3), edges=[("1", "0")]), r"(0|1).*only chains"),
        (lambda: chain(linear(value=math.nan), neurons()), r"cells\.0\.w_in must be finite, got nan"),
        (lambda: chain(linear(), neurons(), linear(2, 7)), r"readout have shape \(2, 7\), wanted \(classes, 2\)"),
        (lambda: chain(linear(5, 3), neurons()), r"v_leak has shape \(2,\), wanted \(5,\)"),
    ],
)
def test_a_graph_that_is_none_of_our_networks_is_refused_by_node_and_type(graph, message):
    with pytest.raises(ValueError, match=message):
        from_nir(graph(), dt=DT)


def test_the_step_must_be_known_and_one():
    with pytest.raises(ValueError, match="does not say how long a step is: give dt"):
        from_nir(chain(linear(), neurons()))
    with pytest.raises(ValueError, match=r"written with dt = 0\.0001 s, got dt = 0\.001 s"):
        from_nir(to_nir(make("subtract"), dt=DT), dt=1e-3)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "a.nir"
    with pytest.raises(FileNotFoundError):
        from_nir(path)
    to_nir(make("subtract"), path, dt=DT)
    for data in (b"a text", path.read_bytes()[:3000]):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"a\.nir: damaged"):
            from_nir(path)
    with pytest.raises(TypeError, match="wanted a NIRGraph or the path of a file, got LIF"):
        from_nir(neurons())


def test_a_graph_is_printed_as_one_line_and_copied_and_pickled():
    graph = to_nir(make("subtract"), dt=DT)
    assert len(repr(graph)) < 100 and "\n" not in str(graph)
    assert repr(graph).startswith("NIRGraph(9 nodes: input, w_in_1, lif_1,") and repr(graph).endswith("dt=0.0001 s)")
    deep = to_nir(Network([lif(N_IN, 4), *(lif(4, 4) for _ in range(9))], 2), dt=DT)
    assert len(repr(deep)) < 100
    x = spikes(STEPS)
    wanted = from_nir(graph).run(x).logits
    for again in (copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        assert torch.equal(from_nir(again).run(x).logits, wanted)
