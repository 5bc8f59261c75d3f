"""Small files that ask for much memory, or for all the time there is."""

import gzip
import io
import json
import lzma
import struct
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import safetensors.torch
import torch

from neurolsc import LIF, Network, save
from neurolsc.datasets import EventFile, read_idx
from neurolsc.export import from_nir, quantize, read_netx, to_nir, write_netx
from neurolsc.io import read_toml, read_tree, write_tree
from tests.fuzz import pool
from tests.fuzz.readers import _network, _safetensors, _words
from tests.words import write_words

MOST = 300e6
"""bytes of memory that reading one may take"""
GIGA = 10**9


class Bomb(NamedTuple):
    """A file that must be refused."""

    name: str
    data: Callable[[Path], bytes]
    read: Callable[[Path], Any]


class Blown(NamedTuple):
    """What reading one did."""

    name: str
    size: int
    end: str
    peak: int


def _xz_zeros(_: Path) -> bytes:
    packer, zeros = lzma.LZMACompressor(preset=0), bytes(2**24)
    return b"".join([*(packer.compress(zeros) for _ in range(72)), packer.flush()])


def _xz_dictionary(_: Path) -> bytes:
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1_610_612_736, "mf": lzma.MF_HC3, "mode": lzma.MODE_FAST}]
    whole = bytearray(lzma.compress(b"x" * 100, filters=[{"id": lzma.FILTER_LZMA2, "preset": 0}]))
    whole[16] = 40  # dictionary of 4 GiB, in the block's header
    whole[20:24] = zlib.crc32(whole[12:20]).to_bytes(4, "little")
    del filters
    return bytes(whole)


def _gzip_zeros(head: bytes) -> Callable[[Path], bytes]:
    def make(_: Path) -> bytes:
        buffer, zeros = io.BytesIO(), bytes(2**24)
        with gzip.open(buffer, "wb") as file:
            file.write(head)
            for _ in range(72):
                file.write(zeros)
        return buffer.getvalue()

    return make


def _idx(*shape: int) -> bytes:
    return struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape)


def _words_with(change: Callable[[Any], object]) -> Callable[[Path], bytes]:
    def make(path: Path) -> bytes:
        return write_words(path, spoil=change).read_bytes()

    return make


def _replace(name: str, shape: tuple[int, ...], dtype: str, **options: Any) -> Callable[[Any], None]:
    def change(file: Any) -> None:
        if name in file:
            del file[name]
        file.create_dataset(name, shape, dtype, **options)

    return change


def _zeros_in_gzip(name: str, count: int, dtype: str) -> Callable[[Any], None]:
    def change(file: Any) -> None:
        del file[name]
        data = file.create_dataset(name, (count,), dtype, chunks=(2**24,), compression="gzip", compression_opts=9)
        chunk = zlib.compress(bytes(2**24 * np.dtype(dtype).itemsize), 9)
        for at in range(0, count, 2**24):
            data.id.write_direct_chunk((at,), chunk)

    return change


def _long_stream(file: Any) -> None:
    """A chunk that states 12 numbers, and unpacks to a gigabyte."""
    del file["labels"]
    data = file.create_dataset("labels", (12,), "u2", chunks=(12,), compression="gzip")
    packer, zeros = zlib.compressobj(9), bytes(2**24)
    data.id.write_direct_chunk((0,), b"".join([*(packer.compress(zeros) for _ in range(64)), packer.flush()]))


def _shared(path: Path) -> bytes:
    """4,000 utterances that are all the same megabyte of the file."""
    count, size = 4000, 250_000
    with h5py.File(path, "w") as file:
        places = []
        for name, part in (
            ("times", np.sort(np.random.default_rng(0).random(size, "f4"))),
            ("units", np.zeros(size, "u4")),
        ):
            data = file.create_dataset(f"spikes/{name}", (count,), h5py.vlen_dtype(part.dtype))
            data[0] = part
            file.flush()
            places.append(data.id.get_offset())
        file["labels"] = file["extra/speaker"] = np.zeros(count, int)
    whole = bytearray(path.read_bytes())
    for place in places:
        whole[place : place + 16 * count] = whole[place : place + 16] * count
    return bytes(whole)


def _shared_names(path: Path) -> bytes:
    """5,000 names that are all the same megabyte."""
    count = 5000

    def change(file: Any) -> None:
        del file["extra/keys"]
        data = file.create_dataset("extra/keys", (count,), h5py.string_dtype())
        data[0] = "x" * 10**6
        file.flush()
        place.append(data.id.get_offset())

    place: list[int] = []
    whole = bytearray(write_words(path, spoil=change).read_bytes())
    whole[place[0] : place[0] + 16 * count] = whole[place[0] : place[0] + 16] * count
    return bytes(whole)


def _blank_heap(path: Path) -> bytes:
    """A heap whose free object has no size: HDF5 2.0 goes round for ever."""
    whole = bytearray(write_words(path).read_bytes())
    at = whole.index(b"GCOL")
    whole[at + 16 : at + 64] = bytes(48)
    return bytes(whole)


def _layout(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], bytes]:
    """A saved network whose layout was changed, with the right checksum."""

    def make(path: Path) -> bytes:
        save(Network([LIF(3, 2)], 2), path)
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        content = json.loads(header["__metadata__"]["content"])
        change(content)
        header["__metadata__"]["content"] = json.dumps(content)
        return _safetensors(header, data[8 + size :])

    return make


def _tree_of(text: str) -> Callable[[Path], bytes]:
    def make(path: Path) -> bytes:
        write_tree(path, {"a": torch.zeros(2)})
        data = path.read_bytes()
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        header["__metadata__"]["content"] = text
        return _safetensors(header, data[8 + size :])

    return make


def _claims_a_long_header(_: Path) -> bytes:
    return (2**62).to_bytes(8, "little") + safetensors.torch.save({"a": torch.zeros(9)})[8:]


def _graph_with(change: Callable[[Any], object]) -> Callable[[Path], bytes]:
    def make(path: Path) -> bytes:
        to_nir(Network([LIF(3, 2)], 2), path, dt=1e-3)
        with h5py.File(path, "r+") as file:
            change(file)
        return path.read_bytes()

    return make


def _many_neurons(file: Any) -> None:
    n, nodes = 60_000, file["node/nodes"]
    del nodes["w_in_1/weight"]
    nodes["w_in_1/weight"] = np.ones((n, 1), "f4")
    for name in nodes["lif_1"]:
        if isinstance(nodes[f"lif_1/{name}"], h5py.Dataset) and nodes[f"lif_1/{name}"].shape == (2,):
            value = nodes[f"lif_1/{name}"][0]
            del nodes[f"lif_1/{name}"]
            nodes[f"lif_1/{name}"] = np.full(n, value)
    del file["node/edges"], nodes["readout"], nodes["w_rec_1"]
    edges = [("input", "w_in_1"), ("w_in_1", "lif_1"), ("lif_1", "output")]
    file["node"].create_dataset("edges", data=np.array(edges, object), dtype=h5py.string_dtype())


def _doubling(file: Any) -> None:
    """Groups that hold the next one twice: 2^40 paths."""
    inner = file.create_group("deepest")
    for i in range(40):
        outer = file.create_group(f"level_{i}")
        outer["a"] = outer["b"] = inner
        inner = outer
    file["node/metadata/more"] = inner


def _circle(file: Any) -> None:
    file["node/nodes/input/metadata/self"] = file["node"]


def _integers_with(change: Callable[[Any], object]) -> Callable[[Path], bytes]:
    def make(path: Path) -> bytes:
        write_netx(quantize(Network([LIF(3, 2)], 2)), path)
        with h5py.File(path, "r+") as file:
            change(file)
        return path.read_bytes()

    return make


def _scalar_weight(file: Any) -> None:
    del file["layer/1/weight"], file["layer/1/shape"]
    file["layer/1/weight"], file["layer/1/shape"] = np.float32(1), np.array([2**31 - 1])


def _cells(n: int) -> Callable[[dict[str, Any]], object]:
    return lambda content: content["cells"][0].update(n_in=784, n_hidden=n)


BOMBS = [
    Bomb("xz: 1.2 GB of zeros", _xz_zeros, _words),
    Bomb("xz: a dictionary of 4 GiB", _xz_dictionary, _words),
    Bomb("gzip: 1.2 GB of zeros for an IDX of 9 bytes", _gzip_zeros(_idx(9)), read_idx),
    Bomb("gzip: 1.2 GB of zeros, as the header says", _gzip_zeros(_idx(72 * 2**24)), read_idx),
    Bomb("IDX: a header of 4 billion times 4 billion", lambda _: _idx(2**32 - 1, 2**32 - 1) + b"123", read_idx),
    Bomb("HDF5: 8 billion labels, none written", _words_with(_replace("labels", (2**33,), "u1")), _words),
    Bomb("HDF5: the same in chunks", _words_with(_replace("labels", (2**33,), "u1", chunks=(2**20,))), _words),
    Bomb(
        "HDF5: one chunk of 4 GB",
        _words_with(_replace("labels", (12,), "i4", chunks=(2**30 - 1,), maxshape=(None,))),
        _words,
    ),
    Bomb("HDF5: 1 GB of labels in gzip", _words_with(_zeros_in_gzip("labels", 2**27, "i8")), _words),
    Bomb("HDF5: a chunk of 24 bytes that unpacks to 1 GB", _words_with(_long_stream), _words),
    Bomb("HDF5: 4,000 utterances share 1 MB", _shared, _words),
    Bomb("HDF5: 5,000 names share 1 MB", _shared_names, EventFile),
    Bomb("HDF5: a heap without an end", _blank_heap, _words),
    Bomb("network: claims 12,000 neurons", _layout(_cells(12_000)), _network),
    Bomb("network: claims a million neurons", _layout(_cells(10**6)), _network),
    Bomb("network: claims a billion classes", _layout(lambda c: c.update(n_out=10**9)), _network),
    Bomb("network: a million cells", _layout(lambda c: c.update(cells=c["cells"] * 10**5)), _network),
    Bomb("safetensors: claims a header of 2^62 bytes", _claims_a_long_header, read_tree),
    Bomb("tree: 100,000 lists in each other", _tree_of("[" * 10**5 + "]" * 10**5), read_tree),
    Bomb("tree: 5 million empty lists", _tree_of("[" + "[]," * (5 * 10**6) + "[]]"), read_tree),
    Bomb(
        "NIR: 1 GB of weights in gzip", _graph_with(_zeros_in_gzip("node/nodes/w_in_1/weight", 2**27, "f8")), from_nir
    ),
    Bomb("NIR: 60,000 neurons of one input", _graph_with(_many_neurons), from_nir),
    Bomb("NIR: groups of which each holds the next twice", _graph_with(_doubling), from_nir),
    Bomb("NIR: a group that holds itself", _graph_with(_circle), from_nir),
    Bomb("NetX: one weight for 2 billion neurons", _integers_with(_scalar_weight), read_netx),
    Bomb("TOML: 100,000 lists in each other", lambda _: b"width = " + b"[" * 10**5 + b"]" * 10**5, read_toml),
    Bomb("TOML: 60 MB", lambda _: b"a = [" + b"1," * (3 * 10**7) + b"]", read_toml),
]


def blow(bombs: list[Bomb], seconds: float = 20.0) -> list[Blown]:
    """Read each in a process of its own limits."""
    with tempfile.TemporaryDirectory() as name:
        files = []
        for i, bomb in enumerate(bombs):
            path = Path(name) / f"bomb_{i}"
            data = bomb.data(path.with_suffix(".made"))
            path.write_bytes(data)
            path.with_suffix(".made").unlink(missing_ok=True)
            files.append(path)

        def do(case: int) -> tuple[str, str]:
            try:
                bombs[case].read(files[case])
            except ValueError as error:
                return ("clean", "") if files[case].name in str(error) else ("raw", f"ValueError {error}")
            except BaseException as error:
                return "raw", f"{type(error).__name__} {error}"
            return "read", ""

        outcomes = pool.run(len(bombs), do, seconds=seconds)
        return [
            Blown(
                bombs[o.case].name,
                files[o.case].stat().st_size,
                o.kind if o.kind == "clean" else f"{o.kind} {o.said}",
                o.peak,
            )
            for o in outcomes
        ]


def lines(blown: list[Blown]) -> list[str]:
    """The table as Markdown."""
    head = ["file", "kB", "end", "peak, MB"]
    body = [[b.name, f"{b.size / 1e3:.0f}", b.end[:60], f"{b.peak / 1e6:.0f}"] for b in blown]
    return ["| " + " | ".join(map(str, line)) + " |" for line in (head, ["---"] * len(head), *body)]
