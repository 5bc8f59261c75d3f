"""The golden samples of a file: what it holds, and what a changed file does with them."""

import math
from collections.abc import Callable
from pathlib import Path

import h5py
import nir
import numpy as np
import pytest
import torch

from neurolsc.export import (
    QuantizedNetwork,
    from_nir,
    quantize,
    read_netx,
    to_netx,
    to_nir,
    verify,
    verify_nir,
    write_netx,
)
from neurolsc.export.loihi.netx import GOLDEN_SAMPLES
from tests.export.networks import KINDS, N_IN, WIDTH, make, spikes

STEPS, SAMPLES = 60, 6
X = spikes(STEPS, SAMPLES)


def written(kind: str, path: Path) -> QuantizedNetwork:
    """A file with golden samples, without the report of ``to_netx``, which takes a second."""
    quantized = quantize(make(kind))
    write_netx(quantized, path, golden=X[:, :GOLDEN_SAMPLES])
    return quantized


def bits(file: h5py.File, i: int, n: int) -> np.ndarray:
    """Golden spikes of layer i, 0 for the input, read as docs/export.md says."""
    return np.unpackbits(file[f"neurolsc/golden/spikes_{i}"][()], axis=2, count=n)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_holds_what_the_integers_fire_on_the_first_samples(kind, tmp_path):
    to_netx(make(kind), tmp_path / "a.net", X)
    quantized = read_netx(tmp_path / "a.net")
    run = quantized.run(X[:, :GOLDEN_SAMPLES])
    blank = quantized.blank_steps
    with h5py.File(tmp_path / "a.net") as file:
        assert np.array_equal(bits(file, 0, N_IN)[blank:], X[:, :GOLDEN_SAMPLES].numpy())
        assert not bits(file, 0, N_IN)[:blank].any()
        for i, (layer, z) in enumerate(zip(quantized.layers, run.spikes, strict=True), start=1):
            assert z.sum() > 200
            assert np.array_equal(bits(file, i, layer.size)[blank:, :, : z.shape[2]], z.numpy())
        assert file["neurolsc/golden/readout"].dtype == np.int32
        assert np.array_equal(file["neurolsc/golden/readout"][()][blank:], run.logits.numpy())


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_as_it_was_written_is_exact_without_a_simulator(kind, tmp_path):
    run = written(kind, tmp_path / "a.net").run(X[:, :GOLDEN_SAMPLES])
    found = verify(tmp_path / "a.net")
    assert found.exact
    assert not found.simulated
    assert (found.steps, found.samples, found.readout_difference) == (STEPS, GOLDEN_SAMPLES, None)
    for layer, ours, z in zip(found.layers, found.spikes, run.spikes, strict=True):
        assert layer.spikes > 200
        assert (layer.agreement, layer.first_difference) == (1, None)
        assert torch.equal(ours, z)
    text = "golden samples through the integers of the file: 4 samples of 60 steps"
    assert str(found).splitlines()[0] == text


def change(path: Path, name: str, by: Callable[[np.ndarray], np.ndarray]) -> None:
    with h5py.File(path, "r+") as file:
        value = by(file[name][()])
        del file[name]
        file[name] = value


def nudge(at: tuple[int, ...], by: int) -> Callable[[np.ndarray], np.ndarray]:
    def changed(value: np.ndarray) -> np.ndarray:
        value = np.array(value)
        value[at] += by
        return value

    return changed


@pytest.mark.parametrize("layer", [1, 2])
@pytest.mark.parametrize(
    ("kind", "name", "by"),
    [
        ("recurrent, zero", "weight", nudge((3, 5), 120)),
        ("recurrent, zero", "weight_rec", nudge((2, 7), 60)),
        ("recurrent, zero", "neuron/vDecay", lambda value: value + 40),
        ("recurrent, subtract", "neuron/iDecay", lambda value: value + 40),
        ("bias, subtract", "neuron/vThMant", lambda value: value - 2),
        ("ALIF", "neuron/thDecay", lambda value: value + 10),
        ("ALIF", "neuron/resetMant", lambda value: value - 3),
        ("ALIF", "weight", nudge((1, 1), 12)),
    ],
)
def test_an_integer_that_was_changed_is_found_in_its_layer_at_its_first_step(kind, name, by, layer, tmp_path):
    path = tmp_path / "a.net"
    quantized = written(kind, path)
    before, blank = quantized.run(X[:, :GOLDEN_SAMPLES]).spikes[layer - 1], quantized.blank_steps
    change(path, f"layer/{layer}/{name}", by)
    found = verify(path)
    assert not found.exact
    assert found.layers[2 - layer].agreement == 1
    assert [lay.state_agreement == 1 for lay in found.layers] == [i != layer for i in (1, 2)]
    # the layers below are as they were, so that a run of the whole file first differs there, too
    after = read_netx(path).run(X[:, :GOLDEN_SAMPLES]).spikes[layer - 1]
    spiked = (before != after).flatten(1).any(1).nonzero() + blank
    first = found.layers[layer - 1].first_difference
    assert first is not None
    assert len(spiked) == 0 or first <= spiked[0]  # a state differs before a spike does
    assert found.readout_difference is None
    assert f"layer {layer}: {found.layers[layer - 1].spikes} spikes, " in str(found)
    assert f"first difference at step {first}" in str(found)


def test_one_unit_in_a_weight_that_changes_no_spike_is_found_where_its_input_first_fires(tmp_path):
    path = tmp_path / "a.net"
    written("recurrent, zero", path)
    change(path, "layer/1/weight", nudge((3, 5), 1))
    found = verify(path)
    assert not found.exact
    assert [layer.agreement for layer in found.layers] == [1, 1]
    assert found.layers[0].first_difference == X[:, :GOLDEN_SAMPLES, 5].any(1).nonzero()[0].item() + 1


def test_a_changed_weight_of_the_readout_is_found_at_its_first_step(tmp_path):
    path = tmp_path / "a.net"
    fired = written("recurrent, zero", path).run(X[:, :GOLDEN_SAMPLES]).spikes[1][:, :, 3]
    change(path, "layer/3/weight", nudge((2, 3), 1))
    found = verify(path)
    assert all(layer.agreement == 1 for layer in found.layers)
    assert found.readout_agreement == pytest.approx(1 - fired.mean().item() / 4)
    assert found.readout_difference == fired.any(1).nonzero()[0].item()
    assert not found.exact


def test_a_changed_bit_of_the_golden_spikes_is_found(tmp_path):
    path = tmp_path / "a.net"
    written("recurrent, zero", path)
    with h5py.File(path, "r+") as file:
        file["neurolsc/golden/spikes_2"][9, 1, 0] ^= 0b10000000
    found = verify(path)
    assert [layer.first_difference for layer in found.layers] == [None, 9]
    assert found.layers[1].agreement == pytest.approx(1 - 1 / (STEPS * GOLDEN_SAMPLES * 16))
    assert found.readout_difference == 9


@pytest.mark.parametrize("samples", [0, 1, 6, 99])
def test_as_many_samples_as_wanted_are_in_the_file(samples, tmp_path):
    path = tmp_path / "a.net"
    to_netx(make("recurrent, zero"), path, X.to_sparse(), golden=samples)
    if samples:
        assert verify(path).samples == min(samples, SAMPLES)
    else:
        with pytest.raises(ValueError, match=r"a\.net holds no golden samples: write it with to_netx or"):
            verify(path)


def test_a_negative_number_of_samples_is_refused(tmp_path):
    with pytest.raises(ValueError, match="golden must be a number of samples, 0 or more, got -1"):
        to_netx(make("recurrent, zero"), tmp_path / "a.net", X, golden=-1)
    assert not list(tmp_path.iterdir())


def test_without_data_a_file_holds_a_sample_of_random_spikes(tmp_path):
    to_netx(make("recurrent, subtract"), tmp_path / "a.net")
    found = verify(tmp_path / "a.net")
    assert found.exact
    assert (found.steps, found.samples) == (50, 1)
    assert all(layer.spikes > 50 for layer in found.layers)


def test_integers_written_by_themselves_hold_samples_if_some_are_given(tmp_path):
    quantized = quantize(make("bias, subtract"))
    write_netx(quantized, tmp_path / "a.net")
    with pytest.raises(ValueError, match=r"no golden samples: .* write_netx\(\.\.\., golden=x\), or give spikes"):
        verify(tmp_path / "a.net")
    write_netx(quantized, tmp_path / "a.net", golden=X)
    found = verify(tmp_path / "a.net")
    assert found.exact
    assert found.samples == SAMPLES
    assert all(torch.equal(a, b) for a, b in zip(found.spikes, quantized.run(X).spikes, strict=True))
    with pytest.raises(ValueError, match="graded"):
        write_netx(quantized, tmp_path / "b.net", golden=X / 2)
    assert not (tmp_path / "b.net").exists()


def test_golden_samples_take_about_a_bit_for_each_neuron_and_step(tmp_path):
    quantized, x = quantize(make("recurrent, zero")), spikes(400, 4)
    sizes = []
    for golden in (None, x):
        write_netx(quantized, tmp_path / "a.net", golden=golden)
        sizes.append((tmp_path / "a.net").stat().st_size)
    packed = sum(400 * 4 * math.ceil(n / 8) for n in (N_IN, WIDTH, 16))
    sums = 400 * 4 * (4 * 2 + 2 * 3)  # of four classes and of two layers' states, two and three bytes each
    assert sizes[1] - sizes[0] < packed + sums + 14_000


def put(name: str, value: np.ndarray) -> Callable[[h5py.File], None]:
    def changed(file: h5py.File) -> None:
        del file[f"neurolsc/golden/{name}"]
        file.create_dataset(f"neurolsc/golden/{name}", data=value, compression="gzip")

    return changed


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (put("spikes_1", np.zeros((STEPS, 4, 9), np.uint8)), r"golden/spikes_1 has shape \(60, 4, 9\), wanted bytes \(60, 4, 3\)"),
        (put("spikes_2", np.zeros((STEPS, 3, 2), np.uint8)), r"golden/spikes_2 has shape \(60, 3, 2\), wanted bytes"),
        (put("states_2", np.zeros((STEPS, 3), int)), r"golden/states_2 has shape \(60, 3\)"),
        (put("spikes_0", np.zeros((STEPS, 4, 4))), r"golden/spikes_0 must hold integers"),
        (put("spikes_0", np.zeros((0, 4, 4), np.uint8)), r"golden/spikes_0 has shape \(0, 4, 4\)"),
        (put("spikes_0", np.zeros((2**22, 1, 4), np.uint8)), r"golden/spikes_0 would fill 0\.134 GB more"),
        (put("readout", np.zeros((STEPS, 4, 5), np.int32)), r"golden/readout has shape \(60, 4, 5\)"),
        (lambda file: file.__delitem__("neurolsc/golden/readout"), r"golden/readout, there is nothing of that name"),
    ],
    ids=["width", "samples", "states", "floats", "empty", "large", "classes", "missing"],
)  # fmt: skip
def test_golden_samples_that_do_not_fit_are_refused_by_place(spoil, message, tmp_path):
    path = tmp_path / "a.net"
    written("recurrent, zero", path)
    with h5py.File(path, "r+") as file:
        spoil(file)
    with pytest.raises(ValueError, match=message) as error:
        verify(path)
    assert str(path) in str(error.value)


def test_without_lava_the_golden_samples_are_replayed_and_lava_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEUROLSC_LAVA_PYTHON", "elsewhere/python")
    monkeypatch.setenv("NEUROLSC_NENGO_PYTHON", "elsewhere/python")
    written("recurrent, zero", Path("a.net"))
    found = verify("a.net", spikes(5, 1))
    assert found.exact
    assert not found.simulated
    assert found.samples == GOLDEN_SAMPLES
    assert [(o.tool, o.exact) for o in found.opinions] == [("Lava", False), ("nengo-loihi", False)]
    assert "Lava: not run: no Lava environment: elsewhere/python is not there" in str(found)
    with pytest.raises(FileNotFoundError, match="nowhere/python is not there"):
        verify("a.net", spikes(5, 1), python="nowhere/python")
    with pytest.raises(ValueError, match="which needs spikes to run: give both or none"):
        verify("a.net", python="nowhere/python")


@pytest.mark.parametrize("layer_delay", [0, 1])
@pytest.mark.parametrize("kind", ["recurrent, subtract", "recurrent, zero", "ALIF below LIF"])
def test_a_nir_file_holds_what_a_network_without_delay_fires_as_nir_data(kind, layer_delay, tmp_path):
    network, x = make(kind).double(), X[:, :2]
    for cell in network.cells:
        cell.b_v.data.zero_()
    network.layer_delay = layer_delay
    to_nir(network, tmp_path / "a.nir", dt=1e-3, golden=x)
    data = nir.read_data(tmp_path / "a.nir")
    data.check_nodes(nir.read(tmp_path / "a.nir"))
    names = [name for name in data.nodes if name not in ("input", "output")]
    network.layer_delay = 0
    with torch.no_grad():
        run = network.run(x.double())
    for name, z in zip(["input", *names], (x, *run.spikes), strict=True):
        grid = data.nodes[name].observables["spikes"]
        assert grid.data.dtype == bool
        assert grid.dt == 1e-3
        assert z.sum() > 200
        assert np.array_equal(grid.data, z.transpose(0, 1).numpy())
    assert np.array_equal(data.nodes["output"].observables["values"].data, run.logits.transpose(0, 1).numpy())
    found = verify_nir(tmp_path / "a.nir")
    assert found.exact
    assert not found.simulated
    assert all(layer.spikes > 200 for layer in found.layers)
    assert all(torch.equal(a, b) for a, b in zip(found.spikes, run.spikes, strict=True))


def test_a_changed_weight_of_a_nir_file_is_found_in_its_layer(tmp_path):
    network, path = make("recurrent, zero").double(), tmp_path / "a.nir"
    network.layer_delay = 0
    to_nir(network, path, dt=1e-3, golden=X)
    change(path, "node/nodes/w_in_2/weight", lambda value: value * 1.05)
    found = verify_nir(path)
    assert [layer.agreement == 1 for layer in found.layers] == [True, False]
    assert found.readout_difference is None
    with torch.no_grad():
        before, after = network.run(X.double()).spikes[1], from_nir(path).run(X.double()).spikes[1]
    assert found.layers[1].first_difference == (before != after).flatten(1).any(1).nonzero()[0].item()
    change(path, "node/nodes/readout/weight", lambda value: value + 1)
    assert verify_nir(path).readout_difference == before.flatten(1).any(1).nonzero()[0].item()


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda file: file.__delitem__("nodes"), r"holds no golden samples: write it with to_nir\(\.\.\., golden=x\)"),
        (
            lambda file: file.__delitem__("nodes/lif_2"),
            r"nodes/lif_2/observables/values/data, there is nothing of that",
        ),
        (
            lambda file: (file.move("nodes/lif_1", "old"), file.copy("nodes/lif_2", "nodes/lif_1")),
            r"nodes/lif_1/observables has data of shape \(6, 60, 16\), which do not fit 20 neurons",
        ),
    ],
    ids=["none", "missing", "width"],
)
def test_a_nir_file_whose_golden_samples_do_not_fit_is_refused_by_name(spoil, message, tmp_path):
    path = tmp_path / "a.nir"
    to_nir(make("recurrent, zero"), path, dt=1e-3, golden=X)
    with h5py.File(path, "r+") as file:
        spoil(file)
    with pytest.raises(ValueError, match=message) as error:
        verify_nir(path)
    assert str(path) in str(error.value)
    assert from_nir(path).cells[0].n_hidden == WIDTH  # the graph is as it was


def test_golden_samples_of_a_graph_want_a_path():
    with pytest.raises(ValueError, match="golden samples are written to a file: give its path"):
        to_nir(make("recurrent, zero"), dt=1e-3, golden=X)
