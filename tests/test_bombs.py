"""Small files that state or unpack to much are refused by name, in little memory."""

import lzma
import multiprocessing
import resource
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import pytest

from neurolsc import LIF, Network
from neurolsc.datasets import EventFile, read_idx
from neurolsc.export import from_nir, to_nir
from tests.words import write_words

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc"),
]
MEMORY = 300e6


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
    "xz of 400 MB": (EventFile, lambda _: lzma.compress(bytes(400_000_000), preset=0)),
    "IDX of 4 billion squared": (read_idx, lambda _: struct.pack(">HBBII", 0, 8, 2, 2**32 - 1, 2**32 - 1) + b"123"),
    "8 billion names": (EventFile, words_with("extra/keys", (2**33,), "S1")),
    "a chunk of 4 GB": (EventFile, words_with("labels", (12,), "i4", chunks=(2**30 - 1,), maxshape=(None,))),
    "groups in a circle": (from_nir, circle),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused_within_300_megabytes(tmp_path: Path, name: str):
    read, make = BOMBS[name]
    path = tmp_path / "victim.file"
    path.write_bytes(make(tmp_path / "made"))
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()

    def work() -> None:  # in a process of its own, whose peak is counted anew
        Path("/proc/self/clear_refs").write_text("5")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            results.put((repr(read(path)), 0.0))
        except (ValueError, OSError) as error:
            results.put((str(error), 1e3 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)))

    process = context.Process(target=work)
    process.start()
    process.join(20)
    process.kill()
    assert process.exitcode == 0
    message, taken = results.get()
    assert message.startswith(f"{path}: ")
    assert taken < MEMORY
