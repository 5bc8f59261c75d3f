"""The file: its layout as NetX reads it, there and back, and what is refused."""

import h5py
import numpy as np
import pytest
import torch

from neurolsc import ALIFPlus, Network
from neurolsc.export import quantize, read_netx, to_netx, write_netx
from tests.export.networks import KINDS, N_IN, N_OUT, WIDTH, lif, make, spikes


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_read_back_steps_as_the_integers_it_was_made_from(kind, tmp_path):
    quantized = quantize(make(kind))
    write_netx(quantized, tmp_path / "a.net")
    a, b = quantized.run(spikes()), read_netx(tmp_path / "a.net").run(spikes())
    assert all(layer.mean() > 0.05 for layer in a.spikes)
    assert all(torch.equal(one, other) for one, other in zip((a.logits, *a.spikes), (b.logits, *b.spikes), strict=True))
    assert a.extremes == b.extremes


def tree(path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Every data set of a file except our own: its kind of number and shape."""
    found = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, item: found.update({name: (item.dtype.kind, item.shape)}) if hasattr(item, "dtype") else None
        )
    return {name: entry for name, entry in found.items() if not name.startswith("neurolsc")}


def test_the_layout_of_a_recurrent_lif_is_the_documented_one(tmp_path):
    cell = lif(reset="zero", bias=0.1)
    cell.tau_v = torch.full((WIDTH,), 5.0)
    to_netx(Network([cell], N_OUT), tmp_path / "a.net")
    assert tree(tmp_path / "a.net") == {
        "layer/0/type": ("S", (1,)),
        "layer/0/shape": ("i", (1,)),
        "layer/1/type": ("S", (1,)),
        "layer/1/shape": ("i", (1,)),
        "layer/1/inFeatures": ("i", ()),
        "layer/1/outFeatures": ("i", ()),
        "layer/1/weight": ("f", (WIDTH, N_IN)),
        "layer/1/weight_rec": ("f", (WIDTH, WIDTH)),
        "layer/1/bias": ("i", (WIDTH,)),
        "layer/1/neuron/type": ("S", ()),
        "layer/1/neuron/iDecay": ("i", ()),
        "layer/1/neuron/vDecay": ("i", ()),
        "layer/1/neuron/vThMant": ("i", ()),
        "layer/1/neuron/refDelay": ("i", ()),
        "layer/1/neuron/gradedSpike": ("b", ()),
        "layer/2/type": ("S", (1,)),
        "layer/2/shape": ("i", (1,)),
        "layer/2/inFeatures": ("i", ()),
        "layer/2/outFeatures": ("i", ()),
        "layer/2/weight": ("f", (N_OUT, WIDTH)),
        "simulation/Ts": ("i", ()),
        "simulation/tSample": ("i", ()),
    }
    with h5py.File(tmp_path / "a.net") as file:
        assert file["layer/1/type"][0] == b"dense_rec"
        assert file["layer/1/weight"].dtype == np.float32
        assert file["layer/1/neuron/iDecay"][()] == 4096
        assert file["layer/1/neuron/vDecay"][()] == round(4096 * (1 - np.exp(-0.2)))


def test_an_alif_adds_its_own_entries(tmp_path):
    to_netx(make("ALIF"), tmp_path / "a.net")
    names = {name.removeprefix("layer/1/") for name in tree(tmp_path / "a.net")}
    assert {"weightExp", "weightRecExp", "biasExp"} <= names
    assert {f"neuron/{n}" for n in ("thDecay", "refDecay", "vThStep", "resetMant", "resetExp")} <= names


def test_a_bias_with_reset_by_subtraction_adds_a_neuron_and_a_blank_step(tmp_path):
    to_netx(make("bias, subtract"), tmp_path / "a.net", spikes())
    with h5py.File(tmp_path / "a.net") as file:
        assert file["layer/1/weight"].shape == (WIDTH + 1, N_IN)
        assert file["layer/2/weight"].shape == (17, WIDTH + 1)
        assert not file["layer/2/weight"][:, -1].any()
        assert file["layer/1/bias"][-1] == file["layer/1/neuron/vThMant"][()] + 1
        assert file["neurolsc"].attrs["blank_steps"] == 1
        assert file["simulation/tSample"][()] == len(spikes()) + 1


def damaged(tmp_path, change) -> str:
    path = tmp_path / "a.net"
    to_netx(make("ALIF"), path)
    with h5py.File(path, "r+") as file:
        change(file)
    return str(path)


def put(file, name, value):
    del file[name]
    file[name] = value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: put(f, "layer/1/weight", np.zeros((WIDTH, 7))), r"layer/1/weight has shape \(20, 7\)"),
        (lambda f: put(f, "layer/2/weight_rec", np.zeros((3, 3))), r"layer/2/weight_rec has shape \(3, 3\)"),
        (
            lambda f: put(f, "layer/1/weight", np.full((WIDTH, N_IN), 0.5)),
            r"layer/1/weight must hold integers from -256",
        ),
        (
            lambda f: put(f, "layer/1/weight", np.full((WIDTH, N_IN), 300)),
            r"layer/1/weight must hold integers from -256 to 255",
        ),
        (lambda f: put(f, "layer/1/neuron/vDecay", 4096), r"neuron/vDecay must hold integers from 0 to 4095"),
        (lambda f: put(f, "layer/1/neuron/vThMant", 2**17), r"neuron/vThMant must hold integers from 1 to 131071"),
        (lambda f: put(f, "layer/1/neuron/type", np.bytes_("SDNN")), r"layer/1/neuron/type is 'SDNN'"),
        (lambda f: f.__delitem__("layer/1/neuron/thDecay"), r"thDecay"),
        (lambda f: f.__delitem__("neurolsc"), r"another program wrote it"),
        (lambda f: f["neurolsc"].attrs.__setitem__("format", 99), r"format 99, this version reads 2"),
    ],
    ids=["width", "recurrence", "fraction", "range", "decay", "threshold", "neuron", "missing", "foreign", "format"],
)
def test_a_file_that_does_not_fit_is_refused_by_place(change, message, tmp_path):
    path = damaged(tmp_path, change)
    with pytest.raises(ValueError, match=message) as error:
        read_netx(path)
    assert path in str(error.value)


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "a.net"
    path.write_bytes(b"a text")
    with pytest.raises(ValueError, match="not an HDF5 file"):
        read_netx(path)
    path.write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    with pytest.raises(ValueError, match="not a network"):
        read_netx(path)
    with pytest.raises(FileNotFoundError):
        read_netx(tmp_path / "none.net")


def test_an_export_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.net"
    to_netx(make("recurrent, zero"), path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="reset='static'"):
        to_netx(Network([ALIFPlus(3, 2)], 2), path)
    assert path.read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.slow
def test_a_readout_whose_sum_would_leave_24_bits_is_made_coarser(tmp_path):
    network = make("recurrent, zero")
    with torch.no_grad():
        network.readout.weight.abs_()
    x = spikes(600, 1)
    assert quantize(network).run(x).extremes[-1].wraps > 0
    report = to_netx(network, tmp_path / "a.net", x)
    assert report.readout is not None
    assert report.readout.wraps == 0
    assert 0.45 * 2**23 < report.readout.v[1] < 0.55 * 2**23
    assert read_netx(tmp_path / "a.net").readout_scale == report.readout_scale
