"""Tiny files in MNIST's layout, and a mirror of them on this machine."""

import gzip
import hashlib
import os
import struct
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from torch import Tensor

from neurolsc.datasets import mnist, mnist_files

N_TRAIN, N_TEST = 24, 12


def idx_bytes(array: Tensor) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + bytes(array.flatten().tolist())


@pytest.fixture
def contents(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """The four uncompressed files of a tiny MNIST, which the package takes for the real one in this
    test."""
    random = torch.Generator().manual_seed(0)
    files = {}
    for n, (images, labels) in ((N_TRAIN, mnist_files.TRAIN), (N_TEST, mnist_files.TEST)):
        files[images] = idx_bytes(torch.randint(256, (n, 28, 28), generator=random))
        files[labels] = idx_bytes(torch.randint(10, (n,), generator=random))
    for name, data in files.items():
        monkeypatch.setitem(mnist_files.SHA256, name, hashlib.sha256(data).hexdigest())
    monkeypatch.setattr(mnist, "FULL_SIZES", {"validation": 4, "train": 18})
    monkeypatch.setattr(mnist_files, "MIRRORS", ())
    return files


@pytest.fixture
def root(contents: dict[str, bytes], tmp_path: Path) -> Path:
    """A folder with the tiny MNIST, half of it plain and half of it compressed."""
    folder = tmp_path / "root"
    folder.mkdir()
    for i, (name, data) in enumerate(contents.items()):
        if i % 2:
            (folder / name).write_bytes(data)
        else:
            (folder / f"{name}.gz").write_bytes(gzip.compress(data))
    return folder


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def served(contents: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the compressed tiny MNIST, served over HTTP by the only mirror that the package
    knows."""
    folder = tmp_path / "served"
    folder.mkdir()
    for name, data in contents.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(data))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        monkeypatch.setattr(mnist_files, "MIRRORS", (f"http://127.0.0.1:{server.server_port}/",))
        yield folder
        server.shutdown()
        thread.join()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """An empty folder, and the address under which it is served."""
    folder = tmp_path / "host"
    folder.mkdir()
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def folder(name: str, what: str) -> Path:
    """A folder in NEUROLSC_DATA."""
    data = os.environ.get("NEUROLSC_DATA")
    if data is None or not (Path(data) / name).is_dir():
        pytest.skip(f"needs {what}: set NEUROLSC_DATA to a folder that contains {name}/")
    return Path(data) / name


@pytest.fixture
def mnist_root() -> Path:
    """The folder of the real MNIST."""
    return folder("mnist", "the real MNIST")


@pytest.fixture
def jsb_root() -> Path:
    """The folder of the whole JSB Chorales."""
    return folder("jsb", "the whole JSB Chorales")


@pytest.fixture
def wikitext_root() -> Path:
    """The folder of WikiText-2's validation and test text."""
    return folder("wikitext-2", "texts of WikiText-2")


@pytest.fixture
def digits_root() -> Path:
    """The folder of the synthetic spoken digits."""
    return folder("spoken_digits", "the synthetic spoken digits")


@pytest.fixture
def recordings_root() -> Path:
    """The folder of the spoken digits of people."""
    return folder("real_digits", "the spoken digits of people")
