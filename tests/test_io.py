"""Networks and trees in files, whole-or-nothing writing, and refusals of bad files."""

import json
import math
import os
import pickle
import resource
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import Subset, TensorDataset

from neurolsc import LIF, ALIFPlus, ALIFPlusMinus, Cell, Network, load, neurons, save, surrogate
from neurolsc.io import atomic_write, data_fingerprint, locked, read_tree, write_tree
from neurolsc.neurons.cell import CELLS, SURROGATES

ROOT = Path(__file__).parents[1]
same = {"rtol": 0, "atol": 0, "equal_nan": True}

# networks

NETWORKS = {
    "paper": lambda: Network([ALIFPlus(4, 3), ALIFPlusMinus(3, 5)], 2),
    "options": lambda: Network(
        [ALIFPlus(4, 3, reset="static", reset_gradient=True, recurrent_init="orthogonal", tau_theta=250.0)],
        2,
        layer_delay=0,
        readout_bias=True,
    ),
    "lif": lambda: Network([LIF(4, 3, threshold=0.7, tau_v=2.0, reset="zero")], 2),
    "lobes": lambda: Network([LIF(4, 3, spike=surrogate.MultiGaussian(0.3, 2.0, height=0.2, scale=4.0))], 2),
    "learnable per neuron": lambda: Network(
        [LIF(4, 3, spike=surrogate.Logistic(torch.tensor([0.1, 0.2, 0.3]), learnable=True))], 2
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_read_back_bit_by_bit_and_runs_alike(name: str, tmp_path: Path):
    network, dtype = NETWORKS[name](), torch.float32
    if name == "options":
        network, dtype = network.double(), torch.float64
    with torch.no_grad():  # away from the initial values, which no constructor could give again
        for parameter in network.parameters():
            parameter.mul_(1 + 0.1 * torch.randn_like(parameter)).add_(1e-3)
        for cell in network.cells:  # enough input for spikes
            cell.get_buffer("b_v").copy_(torch.linspace(0, 4, cell.n_hidden))
    network.cells[0].w_rec.requires_grad_(False)
    save(network, tmp_path / "n")
    before = torch.get_rng_state()
    again = load(tmp_path / "n")
    assert torch.equal(torch.get_rng_state(), before)
    assert_close(dict(again.state_dict()), dict(network.state_dict()), **same)
    assert repr(again) == repr(network)
    assert [p.requires_grad for p in again.parameters()] == [p.requires_grad for p in network.parameters()]
    theirs = safetensors.torch.load_file(tmp_path / "n")
    assert_close(theirs, {name: theirs[name] for name in network.state_dict()}, **same)
    x = (torch.rand(30, 8, 4) < 0.5).to(dtype)
    with torch.no_grad():
        ours, theirs = network.run(x), again.run(x)
    assert any(layer.any() for layer in ours.spikes)
    assert torch.equal(ours.logits, theirs.logits)


def test_the_registries_name_every_cell_and_surrogate_of_the_package(tmp_path: Path):
    public = {c for c in vars(neurons).values() if isinstance(c, type) and issubclass(c, Cell)}
    assert {c for c in public if not c.__abstractmethods__} <= set(CELLS.values())  # examples register their own
    assert set(surrogate.__all__) - {"Surrogate"} <= set(SURROGATES)
    for kind in SURROGATES.values():
        network = Network([LIF(2, 3, spike=kind(0.3, 1.7))], 2)
        save(network, tmp_path / "n")
        assert repr(load(tmp_path / "n")) == repr(network)


class OtherCell(LIF):
    """A cell that is not registered."""


def test_a_network_that_a_file_cannot_describe_is_refused_when_it_is_saved(tmp_path: Path):
    with pytest.raises(ValueError, match=r"OtherCell is not a known cell; known are ALIFLowPass, ALIFPlus, "):
        save(Network([OtherCell(2, 3)], 2), tmp_path / "n")
    with pytest.raises(TypeError, match="only surrogates of neurolsc"):
        save(Network([LIF(2, 3, spike=torch.sign)], 2), tmp_path / "n")
    extended = Network([LIF(2, 3)], 2)
    extended.extra = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"extra\.bias, extra\.weight would differ"):
        save(extended, tmp_path / "n")
    spike = surrogate.FastSigmoid(learnable=True)
    with pytest.raises(ValueError, match="share a parameter"):
        save(Network([LIF(2, 3, spike=spike), LIF(3, 3, spike=spike)], 2), tmp_path / "n")
    assert not list(tmp_path.iterdir())


def rewrite(path: Path, **changes: Any) -> None:
    """Change the header or, under its own keys, the content of a saved file, which then has no digest."""
    data = path.read_bytes()
    header = json.loads(json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]["neurolsc"])
    del header["digest"]
    for key, value in changes.items():
        (header if key in header else header["content"])[key] = value
    path.write_bytes(safetensors.torch.save(safetensors.torch.load(data), {"neurolsc": json.dumps(header)}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cells": [{"class": "os.system", "n_in": 4, "n_hidden": 3}]}, "unknown cell 'os.system'; known are"),
        (
            {"cells": [{"class": "LIF", "n_in": 4, "n_hidden": 3, "spike": {"name": "eval"}}]},
            "unknown surrogate 'eval'",
        ),
        ({"cells": [{"class": "LIF", "n_in": 3, "n_hidden": 4}]}, r"cells\.0\.w_in"),
        ({"cells": [{"class": "LIF", "n_in": 4, "n_hidden": 12_000}]}, "needs 144000000 numbers at once"),
        ({"cells": [{"class": "LIF", "n_in": 4, "n_hidden": 3}] * 1000}, "has 1000 cells and only"),
        ({"cells": [{"class": "ALIFPlus", "n_in": 4, "n_hidden": 3}]}, r"cells\.0\.log_tau_theta"),
        ({"frozen": ["nothing"]}, "nothing"),
        ({"format": 1, "version": "9.9"}, "wanted a network in format 3, got a network in format 1, by neurolsc 9.9"),
        ({"content": None}, "does not describe a network"),
    ],
)
def test_a_file_with_an_unknown_layout_is_refused_by_name(changes: dict[str, Any], message: str, tmp_path: Path):
    path = tmp_path / "changed.safetensors"
    save(Network([LIF(4, 3)], 2), path)
    rewrite(path, **changes)
    with pytest.raises(ValueError, match=r"changed\.safetensors(.|\n)*" + message):
        load(path)


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_weights_that_are_not_finite_are_refused_by_name(tmp_path: Path, value: float):
    network = Network([LIF(3, 2)], 2)
    with torch.no_grad():
        network.cells[0].w_rec[1, 0] = value
    save(network, tmp_path / "bad")
    with pytest.raises(ValueError, match=r"bad: cells\.0\.w_rec must be finite, got (nan|-inf)"):
        load(tmp_path / "bad")


def test_files_that_are_damaged_or_something_else_are_refused_by_name(tmp_path: Path):
    path = tmp_path / "broken"
    network, tree = Network([LIF(4, 3)], 2), {"a": torch.zeros(50)}
    for read, write in ((load, lambda: save(network, path)), (read_tree, lambda: write_tree(path, tree))):
        write()
        whole = path.read_bytes()
        for content in (b"", whole[: len(whole) // 2], b"\xff" * 100, pickle.dumps(print)):
            path.write_bytes(content)
            with pytest.raises(ValueError, match=r"broken: damaged"):
                read(path)
    path.write_bytes(safetensors.torch.save({"a": torch.zeros(2)}))
    with pytest.raises(ValueError, match=r"broken: not a network of this version"):
        load(path)
    with pytest.raises(FileNotFoundError, match="missing"):
        load(tmp_path / "missing")
    with pytest.raises(IsADirectoryError, match=r"give the file in it, of a run network\.safetensors"):
        load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"nowhere/n"):
        save(network, tmp_path / "nowhere" / "n")
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        load(tmp_path)


def test_a_file_in_which_one_byte_has_changed_is_refused_though_it_could_be_read(tmp_path: Path):
    path = tmp_path / "turned"
    network, tree = Network([LIF(4, 3)], 2), {"a": torch.zeros(50), "b": [torch.ones(3, dtype=torch.int64), 0.25]}
    save(network, path)
    whole = path.read_bytes()
    places = [len(whole) - 1, whole.index(b"layer_delay") + len(b'layer_delay\\": ')]  # a weight, and a setting
    for place, byte in zip(places, (whole[-1] ^ 1, ord("0")), strict=True):
        path.write_bytes(whole[:place] + bytes([byte]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"turned: damaged: its content is not what was written"):
            load(path)
    write_tree(path, tree)
    whole = path.read_bytes()
    for part in (torch.ones(3, dtype=torch.int64).numpy().tobytes(), struct.pack(">d", 0.25)):
        place = whole.index(part)
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"turned: damaged: .* in it is not what was written"):
            read_tree(path)


def test_a_network_file_of_an_earlier_version_has_no_digest_and_is_read(tmp_path: Path):
    network = Network([LIF(4, 3)], 2)
    save(network, tmp_path / "n")
    rewrite(tmp_path / "n", version="0.0.1")
    assert_close(dict(load(tmp_path / "n").state_dict()), dict(network.state_dict()), **same)


# trees


def test_a_tree_is_read_back_and_nothing_in_it_is_executed(tmp_path: Path):
    tensors = {str(t): torch.tensor([1.5, -2.0, math.nan]).to(t) for t in (torch.float64, torch.bfloat16)}
    tree = {
        "plain": [None, True, -3, 2**70, "ü", 5e-324],
        (0, 1): {1: (1, (2.5,))},
        "strided": torch.arange(6).view(2, 3).T,
    }
    write_tree(tmp_path / "t", tree | tensors)
    again = read_tree(tmp_path / "t")
    assert {name: again[name] for name in ("plain", (0, 1))} == {name: tree[name] for name in ("plain", (0, 1))}
    assert_close({name: again[name] for name in ("strided", *tensors)}, {"strided": tree["strided"]} | tensors, **same)
    write_tree(tmp_path / "t", torch.zeros(1000))
    (tmp_path / "t").write_bytes((tmp_path / "t").read_bytes()[:-5])  # cut short
    with pytest.raises(ValueError, match=r"t: damaged or not a checkpoint"):
        read_tree(tmp_path / "t")
    torch.save({"f": os.system}, tmp_path / "t")
    with pytest.raises(ValueError, match=r"t: damaged or not a checkpoint"):
        read_tree(tmp_path / "t")


# writing


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(file: BinaryIO) -> None:
        file.write(b"half of the new")
        raise KeyError("the writer broke")

    with pytest.raises(KeyError, match="the writer broke"):
        atomic_write(path, fail)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limit[1]))  # like a full disk
    try:
        with pytest.raises(OSError, match=r"could not write .*File too large.*file"):
            write_tree(path, {"a": torch.zeros(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


# locks


def test_a_locked_path_is_locked_by_every_name_for_threads_and_processes(tmp_path: Path):
    (tmp_path / "link").symlink_to(tmp_path / "n")
    code = f"from neurolsc.io import locked\nwith locked({str(tmp_path / 'link')!r}): pass"
    with locked(tmp_path / "n"):
        with pytest.raises(BlockingIOError, match="link is in use by another"), locked(tmp_path / "link"):
            pass
        other = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
        assert "BlockingIOError" in other.stderr
    missing = pytest.raises(FileNotFoundError, match="nowhere")
    with locked(tmp_path / "link"), locked(None), missing, locked(tmp_path / "nowhere" / "n"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_a_fingerprint_tells_how_items_are_grouped_and_what_their_shapes_are():
    alike = [[[1, 23.5], 4], [[1], 23.5, 4], [[12, 3.5], 4]]
    arrays = [[np.zeros((2, 3))], [np.zeros((3, 2))], [np.zeros(6)]]
    large = torch.zeros(2000)  # of more numbers than its repr shows
    inside = [[{"x": large}], [{"x": large + (torch.arange(2000) == 1000)}], [{"y": large}]]
    dated = [[np.array(["2026-01-01"], "M8[D]")], [np.array(["2026-01-02"], "M8[D]")]]
    for family in (alike, arrays, inside, dated):
        assert len({str(data_fingerprint("x", items)) for items in family}) == len(family)


def test_a_fingerprint_is_the_same_in_another_process_and_for_integers_of_numpy():
    class Plain:  # its repr is its address
        pass

    assert data_fingerprint("x", [Plain()]) == data_fingerprint("x", [Plain()])
    picked = [Subset(TensorDataset(torch.zeros(4)), indices) for indices in ([0, 2], np.array([0, 2]))]
    assert data_fingerprint("x", picked[0]) == data_fingerprint("x", picked[1])
