"""What stands between a file and its reader."""

import gzip
import json
import lzma
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

import neurolsc
from neurolsc import LIF, Network, load, save
from neurolsc.files import read_tree, write_tree
from neurolsc.untrusted.packed import opened, read_most
from neurolsc.untrusted.refusal import FAULTS, refusing
from neurolsc.untrusted.room import Room
from neurolsc.untrusted.tensors import METADATA, sealed
from neurolsc.untrusted.words import clean
from tests.fuzz.readers import _reseal


@given(st.text(), st.integers(1, 100))
def test_a_cleaned_text_is_printable_on_one_line_and_short(text: str, most: int):
    found = clean(text, most)
    assert found.isprintable() and len(found) <= most
    assert clean(found, most) == found
    if text.isprintable() and len(text) <= most:
        assert found == text


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_every_fault_becomes_one_error_with_its_cause(fault: type[Exception]):
    with pytest.raises(ValueError, match=r"^a/b\.h5: ") as error, refusing("a/b.h5", "damaged"):
        raise fault("inside")
    assert isinstance(error.value.__cause__, fault)


def test_errors_that_no_file_causes_are_left_alone():
    for other in (KeyboardInterrupt, SystemExit, NameError, ImportError):
        with pytest.raises(other), refusing("a", "damaged"):
            raise other


def test_the_room_of_a_file_is_64_mebibytes_and_16_times_its_length():
    room = Room(1000)
    room.take(2**26, "a")
    room.take(16_000, "b")
    with pytest.raises(ValueError, match="c would fill"):
        room.take(1, "c")


PACKED = {
    "one gzip": lambda data: gzip.compress(data),
    "two gzips and padding": lambda data: gzip.compress(data[:999]) + gzip.compress(data[999:]) + bytes(7),
    "one xz": lambda data: lzma.compress(data, preset=0),
    "two xz": lambda data: lzma.compress(data[:999], preset=0) + bytes(8) + lzma.compress(data[999:], preset=0),
    "plain": lambda data: data,
}


@pytest.mark.parametrize("pack", PACKED.values(), ids=PACKED)
@pytest.mark.parametrize("size", [0, 1, 1000, 3_000_000])
def test_what_was_packed_is_unpacked(tmp_path: Path, pack, size: int):
    data = bytes(range(251)) * (size // 251) + b"x" * (size % 251)
    path = tmp_path / "a"
    path.write_bytes(pack(data))
    with opened(path) as (content, _):
        assert read_most(content, size) == data
    with opened(path) as (content, _):
        assert len(read_most(content, size // 2)) == min(size, size // 2 + 1)


def test_a_network_saves_to_the_same_bytes_which_other_readers_read(tmp_path: Path):
    network = Network([LIF(3, 2)], 2).double()
    for name in "ab":
        save(network, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    state = network.state_dict()
    theirs = safetensors.torch.load_file(tmp_path / "a")
    assert theirs.keys() == state.keys()
    assert all(torch.equal(theirs[name], state[name]) for name in state)
    with safe_open(tmp_path / "a", "pt") as file:
        assert len(file.metadata()["crc32"]) == 8


def test_every_bit_of_a_file_of_ours_is_under_its_checksum(tmp_path: Path):
    path = tmp_path / "t"
    write_tree(path, {"a": torch.arange(3.0), "b": [1, None]})
    whole = path.read_bytes()
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        with pytest.raises(ValueError, match="t: "):
            read_tree(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_weights_that_are_not_finite_are_refused_by_name(tmp_path: Path, value: float, dtype: torch.dtype):
    network = Network([LIF(3, 2)], 2).to(dtype)
    save(network, tmp_path / "good")
    load(tmp_path / "good")
    with torch.no_grad():
        network.cells[0].w_rec[1, 0] = value
    save(network, tmp_path / "bad")
    with pytest.raises(ValueError, match=r"bad: cells\.0\.w_rec must be finite, got (nan|-?inf)"):
        load(tmp_path / "bad")


def test_large_finite_weights_whose_sum_is_not_are_loaded(tmp_path: Path):
    network = Network([LIF(3, 2)], 2).half()
    with torch.no_grad():
        network.cells[0].w_in.fill_(6e4)
    save(network, tmp_path / "a")
    assert load(tmp_path / "a").cells[0].w_in.max() > 5e4


HEADERS = {
    "overlap": lambda header: header["b"].update(data_offsets=[0, 8]),
    "gap": lambda header: header["b"].update(data_offsets=[20, 28]),
    "backwards": lambda header: header["b"].update(data_offsets=[20, 12]),
    "huge": lambda header: header["b"].update(shape=[2**50], data_offsets=[12, 12 + 2**52]),
    "negative": lambda header: header["b"].update(shape=[-1, -2]),
    "fraction": lambda header: header["b"].update(shape=[2.0]),
    "boolean": lambda header: header["b"].update(shape=[True, 2]),
    "dtype": lambda header: header["b"].update(dtype="F7"),
    "no dtype": lambda header: header["b"].pop("dtype"),
    "no tensor": lambda header: header.update(b=None),
    "shorter": lambda header: header.pop("b"),
    "metadata": lambda header: header[METADATA].update(more=1),
    "no metadata": lambda header: header.update({METADATA: []}),
}


@pytest.mark.parametrize("change", HEADERS.values(), ids=HEADERS)
def test_a_header_that_does_not_fit_is_refused_even_with_a_right_checksum(tmp_path: Path, change):
    told = {"neurolsc": "tree", "format": "2", "version": "0", "content": "null"}
    data = b"".join(sealed({"a": torch.zeros(3), "b": torch.ones(2)}, told))
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    change(header)
    (tmp_path / "t").write_bytes(_reseal(header, data[8 + size :]))
    with pytest.raises(ValueError, match="t: "):
        read_tree(tmp_path / "t")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["tensor", "dict", "list", "tuple", "a"]), inner)
    ),
    max_leaves=12,
)


@settings(max_examples=200)
@given(json_values)
def test_any_structure_is_read_or_refused_by_name(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "any.tree"
    told = {"neurolsc": "tree", "format": "2", "version": "0", "content": json.dumps(content)}
    path.write_bytes(b"".join(sealed({"0": torch.zeros(2)}, told)))
    try:
        read_tree(path)
    except ValueError as error:
        assert "any.tree: " in str(error)


def test_loading_makes_no_matrix_of_its_own_and_draws_nothing(tmp_path: Path):
    torch.manual_seed(0)
    network = neurolsc.Network([neurolsc.ALIFPlus(30, 20), neurolsc.LIF(20, 5)], 3)
    save(network, tmp_path / "a")
    state = torch.get_rng_state()
    again = load(tmp_path / "a")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(
        torch.equal(a, b) for a, b in zip(network.state_dict().values(), again.state_dict().values(), strict=True)
    )


def test_numbers_that_are_none_are_told_once_and_not_by_numpy():
    signalling = np.array([0x7FA00000], np.uint32).view(np.float32)  # a NaN that arithmetic complains of
    with pytest.raises(ValueError, match=r"^a\.net: no numbers$"), refusing("a.net", "damaged"):
        if not np.isfinite(signalling.astype(np.float64)).all():
            raise ValueError("no numbers")
    with pytest.warns(RuntimeWarning, match="invalid value"):
        signalling.astype(np.int32)
