"""NIR there and back: networks to the last bit, the file's equations, and what is refused."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nir
import numpy as np
import pytest
import torch
from torch import nn

from neurolsc import LIF, ALIFPlus, ALIFPlusMinus, Network, wrap
from neurolsc.export import from_nir, to_nir
from tests.export.networks import KINDS, N_IN, N_OUT, WIDTH, alif, lif, make, spikes

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
    for one, other in zip(a.moments(x), b.moments(x), strict=True):
        assert all(torch.equal(p, q) for p, q in zip(one.outputs, other.outputs, strict=True))
        for p, q in zip(one.after.layers, other.after.layers, strict=True):
            assert type(p) is type(q)
            assert all(torch.equal(u, v) for u, v in zip(p, q, strict=True))
        rates += torch.stack([z.mean() for z in one.outputs]) / STEPS
    assert (rates > 0.1).all()


@pytest.mark.parametrize(("layer_delay", "dtype"), [(0, torch.float64), (1, torch.float32)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_gives_back_the_network_bit_by_bit(kind, layer_delay, dtype, tmp_path):
    a = network(kind, layer_delay, dtype)
    to_nir(a, tmp_path / "a.nir", dt=DT)
    b = from_nir(tmp_path / "a.nir")
    assert b.layer_delay == layer_delay
    assert_the_same(a, b)


def test_a_graph_does_as_well_as_its_file_and_draws_nothing():
    a = network("ALIF below LIF", 1, torch.float32)
    state = torch.get_rng_state()
    assert_the_same(a, from_nir(to_nir(a, dt=DT)))
    assert torch.equal(state, torch.get_rng_state())


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
    assert [cell.reset_name for cell in b.cells] == ["static", "static", "zero"]
    assert_the_same(a, b)


def test_the_readout_may_be_missing():
    a = network("recurrent, zero", 0, torch.float64)
    graph = to_nir(a, dt=DT)
    nodes = {name: node for name, node in graph.nodes.items() if name not in ("readout", "output")}
    edges = [edge for edge in graph.edges if "readout" not in edge]
    cut = nir.NIRGraph(nodes | {"output": nir.Output(np.array([16]))}, [*edges, ("lif_2", "output")])
    x = spikes().double()
    assert torch.equal(from_nir(cut, dt=DT)(x), a.run(x).spikes[-1])


# the equations in the file, stepped by hand in numpy: what another reader makes of it


def euler(state: np.ndarray, tau: np.ndarray, r: np.ndarray, drive: np.ndarray) -> np.ndarray:
    return state + DT / tau * (r * drive - state)


def fired(v: np.ndarray, threshold: np.ndarray) -> np.ndarray:
    return (v > threshold).astype(float)


@pytest.mark.parametrize("reset", ["zero", "subtract"])
def test_the_constants_of_a_cubalif_are_the_documented_ones(reset):
    cell = lif(reset=reset)
    node = to_nir(Network([cell], N_OUT), dt=DT).nodes["lif_1"]
    slow = 1 / (1 - cell.decay_v.detach().double().numpy())
    fast = np.ones(WIDTH)
    syn, mem = (fast, slow) if reset == "zero" else (slow, fast)
    for name, value in {
        "tau_syn": DT * syn,
        "w_in": syn,
        "tau_mem": DT * mem,
        "r": mem,
        "v_leak": 0,
        "v_reset": 0,
    }.items():
        np.testing.assert_allclose(getattr(node, name), np.broadcast_to(value, WIDTH), rtol=1e-12, err_msg=name)
    np.testing.assert_array_equal(node.v_threshold, cell.theta.numpy())


@pytest.mark.parametrize("kind", ["recurrent, zero", "recurrent, subtract", "bias, zero"])
def test_euler_steps_of_the_cubalif_equations_fire_as_the_network_does(kind):
    a = network(kind, 0, torch.float64)
    nodes = to_nir(a, dt=DT).nodes
    x = spikes(STEPS, 1).double()
    node, i, v, z = nodes["lif_1"], np.zeros(WIDTH), np.zeros(WIDTH), np.zeros(WIDTH)
    seen = []
    for frame in x[:, 0].numpy():
        drive = nodes["w_in_1"].weight @ frame + nodes["w_rec_1"].weight @ z + getattr(nodes["w_in_1"], "bias", 0)
        i = euler(i, node.tau_syn, node.w_in, drive)
        v = euler(v, node.tau_mem, node.r, i)
        z = fired(v, node.v_threshold)
        v = np.where(z, node.v_reset, v)
        seen.append(z)
    ours = a.run(x).spikes[0][:, 0].detach().numpy()
    assert 0.1 < ours.mean() < 0.5
    assert np.array_equal(np.array(seen), ours)


def test_euler_steps_of_the_alifs_sub_graph_fire_as_the_network_does():
    a = network("ALIF", 0, torch.float64)
    graph = to_nir(a, dt=DT)
    w_in, nodes = graph.nodes["w_in_1"], graph.nodes["alif_1"].nodes
    x = spikes(STEPS, 1).double()
    v, rise, z = np.zeros(WIDTH), np.zeros(WIDTH), np.zeros(WIDTH)
    seen = []
    for frame in x[:, 0].numpy():
        drive = w_in.weight @ frame + w_in.bias + nodes["w_rec"].weight @ z
        v = euler(v, nodes["membrane"].tau, nodes["membrane"].r, drive)
        rise = euler(rise, nodes["adaptation"].tau, nodes["adaptation"].r, z)
        z = fired(v + rise, nodes["threshold"].threshold)
        seen.append(z)
    ours = a.run(x).spikes[0][:, 0].detach().numpy()
    assert 0.1 < ours.mean() < 0.5
    assert rise.min() < -0.1  # the thresholds did move
    assert np.array_equal(np.array(seen), ours)


def test_numbers_changed_in_the_graph_win_over_what_was_noted():
    a = network("ALIF below LIF", 1, torch.float64)
    graph = to_nir(a, dt=DT)
    graph.nodes["lif_2"].tau_syn = graph.nodes["lif_2"].tau_syn * 2
    graph.nodes["lif_2"].w_in = graph.nodes["lif_2"].w_in * 2
    graph.nodes["w_rec_2"].weight[0, 0] += 0.25
    inner = graph.nodes["alif_1"].nodes
    inner["adaptation"].r = inner["adaptation"].r * 3
    inner["threshold"].threshold = inner["threshold"].threshold * 1.5
    b = from_nir(graph)
    torch.testing.assert_close(1 - b.cells[1].decay_v, (1 - a.cells[1].decay_v) / 2)
    torch.testing.assert_close(b.cells[1].w_rec[0, 0], a.cells[1].w_rec[0, 0] + 0.25)
    torch.testing.assert_close(b.cells[0].adaptation, a.cells[0].adaptation * 3)
    torch.testing.assert_close(b.cells[0].theta_rest, a.cells[0].theta_rest * 1.5)


# refusals of to_nir


def one(cell, n_out=N_OUT, **settings) -> Network:
    return Network([lif(), cell], n_out, **settings)


def changed(cell, **values):
    with torch.no_grad():
        for name, value in values.items():
            getattr(cell, name)[3] = value
    return cell


def slow(cell, name):
    setattr(cell, name, torch.full((16,), 1e9))
    return cell


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        (
            lambda: one(ALIFPlus(WIDTH, 16)),
            ValueError,
            r"layer 2: NIR cannot say an ALIF with reset='subtract'.*static",
        ),
        (lambda: one(ALIFPlus(WIDTH, 16, reset="zero")), ValueError, r"layer 2: .*reset='zero'.*neurolsc\.save"),
        (lambda: one(wrap(nn.GRU(WIDTH, 16)).cells[0]), TypeError, r"layer 2 is a torch GRU, which has no counterpart"),
        (
            lambda: one(lif(WIDTH, 16), nn.Sequential(nn.Linear(16, 3))),
            TypeError,
            r"readout must be linear, got Sequential",
        ),
        (lambda: one(changed(lif(WIDTH, 16), w_in=float("nan"))), ValueError, r"layer 2: w_in must be finite, got nan"),
        (
            lambda: one(changed(lif(WIDTH, 16), theta=-0.5)),
            ValueError,
            r"layer 2: thresholds must be positive, got -0\.5",
        ),
        (
            lambda: one(changed(alif(WIDTH, 16), b_theta=-1.0)),
            ValueError,
            r"layer 2: thresholds must be positive, got -",
        ),
        (lambda: one(lif(WIDTH, 16, bias=0.1)), ValueError, r"layer 2: its bias \(up to 0\.15\).*layer_delay=0"),
        (lambda: one(slow(lif(WIDTH, 16), "tau_v")), ValueError, r"layer 2: tau_v reaches 1e\+09 steps"),
        (lambda: one(slow(alif(WIDTH, 16), "tau_theta")), ValueError, r"layer 2: tau_theta reaches 1e\+09 steps"),
        (lambda: one(lif(WIDTH, 16)).to(torch.bfloat16), ValueError, r"layer 1 has the dtype torch\.bfloat16"),
    ],
)
def test_what_nir_cannot_say_is_refused_by_layer_and_number(made, error, message, tmp_path):
    with pytest.raises(error, match=message):
        to_nir(made(), tmp_path / "a.nir", dt=DT)
    assert not list(tmp_path.iterdir())


def test_a_readout_that_is_not_finite_is_refused():
    a = network("recurrent, zero", 1, torch.float32)
    with torch.no_grad():
        a.readout.weight[0, 0] = float("inf")
    with pytest.raises(ValueError, match="readout: weight must be finite, got inf"):
        to_nir(a, dt=DT)


@pytest.mark.parametrize("dt", [0.0, -1e-3, float("nan")])
def test_a_step_without_length_is_refused(dt):
    with pytest.raises(ValueError, match="dt must be positive"):
        to_nir(make("recurrent, zero"), dt=dt)


def test_without_nir_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "nir", None)  # as if it were not installed
    with pytest.raises(ImportError, match=r"pip install 'nir>=1\.0\.7'"):
        to_nir(make("recurrent, zero"), dt=DT)
    with pytest.raises(ImportError, match=r"pip install 'nir>=1\.0\.7'"):
        from_nir(tmp_path / "a.nir")


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    path = tmp_path / "a.nir"
    path.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left on device"):
        to_nir(make("recurrent, zero"), path, dt=DT)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.slow
def test_a_kill_in_the_middle_leaves_a_whole_file(tmp_path):
    path = tmp_path / "a.nir"
    code = (
        "import sys\nfrom neurolsc import LIF, Network\nfrom neurolsc.export import to_nir\n"
        "network = Network([LIF(200, 200)], 4)\n"
        "while True:\n    to_nir(network, sys.argv[1], dt=1e-4); print(flush=True)"
    )
    for wait in (0.0, 0.003, 0.009):
        with subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(wait)
            writer.send_signal(signal.SIGKILL)
        assert from_nir(path).cells[0].n_hidden == 200


def test_files_are_reached_by_any_kind_of_path(tmp_path):
    to_nir(make("recurrent, zero"), str(tmp_path / "a.nir"), dt=DT)
    assert len(from_nir(Path(tmp_path, "a.nir")).cells) == 2


@pytest.mark.parametrize("name", ["membrane", "adaptation"])
def test_an_alif_whose_integrators_rest_elsewhere_is_refused(name):
    graph = to_nir(make("ALIF kept positive"), dt=DT)
    graph.nodes["alif_2"].nodes[name].v_leak = np.full(16, 0.25)
    with pytest.raises(ValueError, match=r"node alif_2\.membrane \(LI\): v_leak must be 0, .* got 0\.25"):
        from_nir(graph)
