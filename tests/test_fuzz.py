"""Damaged files for every reader: they are read, or refused by one error that names the file.

    make fuzz  (FUZZ_SECONDS of it from file FUZZ_SEED on)

Files are read in a process of their own, which may take 20 seconds and 300 MB for each. HDF5 files
are whole ones with other content, or cut off: of damaged bytes the library itself may never return.
"""

import gzip
import io
import json
import lzma
import multiprocessing
import os
import resource
import struct
import time
from collections.abc import Callable
from functools import partial
from importlib import resources
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
import torch

from neurolsc import LIF, ALIFPlus, Network, load, save
from neurolsc.datasets import EventFile, JSBChorales, read_idx
from neurolsc.datasets.images import read_records
from neurolsc.datasets.sequences import read_words
from neurolsc.export import from_nir, quantize, read_netx, to_nir, write_netx
from tests.words import draw_words, write_words

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc"),
]
SECONDS, MEMORY = 20.0, 300e6  # of one file
SEED = int(os.environ.get("FUZZ_SEED", 0))
Damage = Callable[[bytes, Random], bytes]
ODD_NUMBERS = (0, 1, 2, 7, 255, 256, 65535, 2**20, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63, 2**64 - 1)


# Damage


def some_bytes(data: bytes, random: Random) -> bytes:
    """Flip, cut, insert, leave out, blank or copy some bytes, or set a field to an odd number."""
    at, other, size = random.randrange(len(data)), random.randrange(len(data)), random.choice((1, 4, 8, 64, 512))
    number = random.choice(ODD_NUMBERS).to_bytes(8, random.choice(("little", "big")))
    field = random.randrange(0, max(min(len(data), random.choice((2048, len(data)))) // 8 * 8, 1), 4)
    return random.choice(
        (
            data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :],
            data[:at],
            data[:at] + random.randbytes(size) + data[at:],
            data[:at] + data[at + size :],
            data[:at] + random.choice((b"\0", b"\xff")) * size + data[at + size :],
            data[:at] + data[other : other + size] + data[at + size :],
            data[:field] + number + data[field + 8 :],
        )
    )


def cut_off(data: bytes, random: Random) -> bytes:
    return data[: random.randrange(len(data))]


def hdf5_object(data: bytes, random: Random) -> bytes:
    """Replace one object of an HDF5 file by another, through the library itself."""
    buffer = io.BytesIO(data)
    with h5py.File(buffer, "r+") as file:
        names: list[str] = []
        file.visit(names.append)
        name, other = random.choice(names), random.choice(names)
        shape, dtype = getattr(file[name], "shape", None) or (4,), getattr(file[name], "dtype", np.dtype("f4"))
        plain = dtype if dtype.kind in "iuf" else np.dtype("f4")
        del file[name]
        virtual = h5py.VirtualLayout(shape, plain)
        virtual[...] = h5py.VirtualSource("missing.h5", "x", shape)
        values = (
            h5py.ExternalLink("/etc/hostname", "/x"),
            h5py.SoftLink(f"/{other}"),
            np.zeros(shape, random.choice(("f8", "i1", "S4", "c16", [("a", "i4"), ("b", "f8", (3,))]))),
            np.full(shape, random.choice((0, 1, 100)), plain),
            np.zeros(random.choice(((), (0,), (3, 3), (100,))), plain),
            random.choice(("", "x" * 40_000, "\x1b[2J$\\alpha$")),
        )
        random.choice(
            (
                lambda: file.create_group(name),
                lambda: file.create_dataset(name, shape, "u1", external=[("/etc/hostname", 0, h5py.h5f.UNLIMITED)]),
                lambda: file.create_virtual_dataset(name, virtual),
                lambda: file.create_dataset(name, (2**20, 2**20), plain, chunks=True),
                *(lambda value=value: file.__setitem__(name, value) for value in values),
            )
        )()
    return buffer.getvalue()


# Readers


class Reader(NamedTuple):
    """A reader, a good file for it, and how such a file is damaged."""

    read: Callable[[Path], Any]
    good: bytes
    damages: tuple[Damage, ...] = (some_bytes,)


def read_spikes(path: Path) -> None:
    file = EventFile(path)
    assert (file.labels < len(file.names)).all() and (file.events.units < 700).all() and (file.events.counts > 0).all()
    assert np.isfinite(file.events.times).all() and (file.events.times >= 0).all()
    assert all(name.isprintable() and len(name) <= 80 for name in file.names)


def read_network(path: Path) -> None:
    assert all(value.isfinite().all() for value in load(path).state_dict().values() if value.is_floating_point())


def readers(folder: Path) -> dict[str, Reader]:
    torch.manual_seed(0)

    def made(write: Callable[[Path], object]) -> bytes:
        path = folder / "made"
        write(path)
        return path.read_bytes()

    idx = b"\0\0\x08\x03" + struct.pack(">3I", 12, 9, 7) + bytes(range(256)) * 2 + bytes(12 * 9 * 7 - 512)
    spikes = made(lambda p: write_words(p, draw_words(6, most=60)))
    deep = Network([ALIFPlus(6, 5), LIF(5, 4)], 3, readout_bias=True)
    plain = Network([LIF(3, 2)], 2)
    music = (resources.files("neurolsc.datasets") / "samples" / "jsb" / "jsb-chorales-sample.json.gz").read_bytes()
    few = json.dumps({part: pieces[:2] for part, pieces in json.loads(gzip.decompress(music)).items()}).encode()
    hdf5 = (cut_off, hdf5_object, hdf5_object)
    return {
        "idx": Reader(read_idx, idx),
        "idx.gz": Reader(read_idx, gzip.compress(idx)),
        "shd": Reader(read_spikes, spikes, hdf5),
        "shd.xz": Reader(read_spikes, lzma.compress(spikes)),
        "music": Reader(lambda p: JSBChorales.from_file(p, "test"), few),
        "text": Reader(read_words, "".join(f"ein wörtchen {i}\n" for i in range(40)).encode()),
        "cifar": Reader(lambda p: read_records(p, (20, 100), 4), (bytes(range(20)) * 615)[: 4 * 3074]),
        "network": Reader(read_network, made(lambda p: save(deep, p))),
        "nir": Reader(lambda p: from_nir(p, dt=1e-3), made(lambda p: to_nir(plain, p, dt=1e-3)), hdf5),
        "netx": Reader(read_netx, made(lambda p: write_netx(quantize(plain), p)), hdf5),
    }


NAMES = ("idx", "idx.gz", "shd", "shd.xz", "music", "text", "cifar", "network", "nir", "netx")


def watched(cases: Callable[[int], tuple[Callable[[Path], Any], bytes]], numbers: range, path: Path) -> list[str]:
    """Read each case in a forked process; errors, times and memory that should not be, with its number."""
    context = multiprocessing.get_context("fork")
    now, odd = context.Value("q", numbers.start), context.SimpleQueue()

    def work() -> None:
        for number in numbers:
            read, data = cases(number)
            path.write_bytes(data)
            Path("/proc/self/clear_refs").write_text("5")  # the peak is counted anew
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            now.value = number
            try:
                read(path)
            except (ValueError, OSError) as error:
                text = str(error)
                if path.name not in text or len(text) > 4000 or not text.replace("\n", "").isprintable():
                    odd.put(f"{number}: {type(error).__name__}: {text[:300]!r}")
            except BaseException as error:
                odd.put(f"{number}: {type(error).__name__}: {str(error)[:300]!r}")
            if (taken := 1e3 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)) > MEMORY:
                odd.put(f"{number}: took {taken / 1e6:.0f} MB")
        now.value = numbers.stop

    process = context.Process(target=work)
    process.start()
    at, since, found = numbers.start, time.monotonic(), []
    while process.is_alive() or not odd.empty():
        process.join(0.05)
        if now.value != at:
            at, since = now.value, time.monotonic()
        elif process.is_alive() and time.monotonic() - since > SECONDS:
            process.kill()
            process.join()
            found.append(f"{at}: over {SECONDS} s")
        while not odd.empty():
            found.append(odd.get())
    if process.exitcode and not found:
        found.append(f"{at}: the process died ({process.exitcode})")
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_damaged_file_is_read_or_refused_by_name(tmp_path: Path, name: str):
    reader = readers(tmp_path)[name]
    (tmp_path / "good").write_bytes(reader.good)
    reader.read(tmp_path / "good")

    def case(number: int) -> tuple[Callable[[Path], Any], bytes]:
        random = Random(f"{name} {number}")
        try:
            return reader.read, random.choice(reader.damages)(reader.good, random)
        except (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError):
            return reader.read, reader.good[:-1]  # the library would not make such a file

    until = time.monotonic() + float(os.environ.get("FUZZ_SECONDS", 0)) / len(NAMES)
    start = SEED
    while start == SEED or time.monotonic() < until:
        assert not (odd := watched(case, range(start, start + 15), tmp_path / "victim.file")), "\n".join(odd)
        start += 15


# Small files that state or unpack to much


def words_with(name: str, *shape_and_dtype: Any, **options: Any) -> Callable[[Path], bytes]:
    """A file of words with another data set in the place of one."""

    def change(file: Any) -> None:
        del file[name]
        file.create_dataset(name, *shape_and_dtype, **options)

    return lambda path: write_words(path, spoil=change).read_bytes()


def circle(path: Path) -> bytes:
    to_nir(Network([LIF(3, 2)], 2), path, dt=1e-3)
    with h5py.File(path, "r+") as file:
        file["node/nodes/input/metadata/self"] = file["node"]
    return path.read_bytes()


BOMBS: dict[str, tuple[Callable[[Path], Any], Callable[[Path], bytes]]] = {
    "xz of 400 MB": (read_spikes, lambda _: lzma.compress(bytes(400_000_000), preset=0)),
    "IDX of 4 billion squared": (read_idx, lambda _: struct.pack(">HBBII", 0, 8, 2, 2**32 - 1, 2**32 - 1) + b"123"),
    "8 billion names": (read_spikes, words_with("extra/keys", (2**33,), "S1")),
    "a chunk of 4 GB": (read_spikes, words_with("labels", (12,), "i4", chunks=(2**30 - 1,), maxshape=(None,))),
    "groups in a circle": (from_nir, circle),
}


@pytest.mark.slow
def test_every_bomb_is_refused_within_300_megabytes(tmp_path: Path):
    def refused(read: Callable[[Path], Any], path: Path) -> None:
        read(path)
        raise AssertionError("it was read")

    made = [(partial(refused, read), make(tmp_path / f"made_{i}")) for i, (read, make) in enumerate(BOMBS.values())]
    odd = watched(made.__getitem__, range(len(made)), tmp_path / "victim.file")
    assert not odd, "\n".join(f"{list(BOMBS)[int(line.split(':')[0])]}: {line}" for line in odd)
