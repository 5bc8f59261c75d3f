"""A host on this machine, and the folders of real data."""

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from neurolsc.datasets import download


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


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


@pytest.fixture
def publish(host: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Serve some bytes as the archive of published files."""
    folder, address = host

    def publish(data: bytes, *names: str, absent_first: bool = False) -> None:
        for name in names:
            remote = download.FILES[name]
            (folder / remote.archive).write_bytes(data)
            addresses = (f"{address}absent/", address) if absent_first else (address,)
            changed = replace(remote, addresses=addresses, known_hash=f"md5:{hashlib.md5(data).hexdigest()}")
            monkeypatch.setitem(download.FILES, name, changed)

    return publish


def root_of(name: str) -> Callable[[], Path]:
    """A fixture: a folder in NEUROLSC_DATA."""

    def root() -> Path:
        data = os.environ.get("NEUROLSC_DATA")
        if data is None or not (Path(data) / name).is_dir():
            pytest.skip(f"needs {name}: set NEUROLSC_DATA to a folder that contains it")
        return Path(data) / name

    return pytest.fixture(root)


mnist_root = root_of("mnist")
jsb_root = root_of("jsb")
wikitext_root = root_of("wikitext-2")
recordings_root = root_of("real_digits")
