"""Every reader with good files for it, what it makes of them, and how such files are damaged."""

import gzip
import hashlib
import json
import lzma
import shutil
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch

from neurolsc import LIF, ALIFPlus, Network, load, save, surrogate
from neurolsc.datasets import Binning, EventCache, EventFile, FrameCache, JSBChorales, Vocabulary, read_idx
from neurolsc.datasets.cifar_files import CIFAR100_FILES, read_records
from neurolsc.datasets.summary import summarize
from neurolsc.datasets.words import read_words
from neurolsc.experiment.config import KINDS, check_names, make
from neurolsc.export import from_nir, quantize, to_nir, write_netx
from neurolsc.export.netx import parse
from neurolsc.io import read_toml, read_tree, write_tree
from tests.export.networks import make as make_exported
from tests.export.networks import spikes as input_spikes
from tests.fuzz import mutations
from tests.fuzz.mutations import Change, any_bytes
from tests.words import draw_words, write_words

GRID = Binning(dt=0.02, window=0.6, channels=70, repeat=2)
LISTED = 80
"""most characters of a name that may be shown"""


@dataclass(frozen=True)
class Reader:
    """A reader, and how files for it are made and damaged."""

    name: str
    files: tuple[bytes, ...]
    """good ones"""
    read: Callable[[Path], Any]
    """what it makes of a file; refuses by ValueError"""
    changes: tuple[Change, ...] = (any_bytes,)
    sealed: bool = False
    """whether a checksum stands over all of the content: then no other content may be read"""
    sound: Callable[[Any], bool] = field(default=lambda found: True)
    """whether what was read of a file without checksum may be what somebody wrote"""


def digest(value: Any) -> str:
    """One text for everything that was read."""
    found = hashlib.sha256()

    def take(node: Any) -> None:
        found.update(type(node).__name__.encode())
        if isinstance(node, torch.Tensor):
            node = node.detach().numpy()
        if isinstance(node, np.ndarray):
            found.update(f"{node.dtype} {node.shape}".encode() + np.ascontiguousarray(node).tobytes())
        elif isinstance(node, dict):
            for key in sorted(node, key=str):
                take(key)
                take(node[key])
        elif isinstance(node, list | tuple):
            for item in node:
                take(item)
        else:
            found.update(repr(node).encode())

    take(value)
    return found.hexdigest()


def _network(path: Path) -> Any:
    network = load(path)
    frozen = [p.requires_grad for p in network.parameters()]
    return {"layout": repr(network), "state": network.state_dict(), "frozen": frozen}


def _words(path: Path) -> Any:
    file = EventFile(path)
    summary = summarize(file)
    str(summary)
    return [file.labels, file.speakers, file.names, *file.read(range(len(file)))]


def _words_sound(found: Any) -> bool:
    labels, _, names, times, units, offsets = found
    good = (labels >= 0).all() and (labels < len(names)).all() and (units < 700).all() and (times >= 0).all()
    shown = all(name.isprintable() and len(name) <= LISTED for name in names)
    return bool(good and shown and np.isfinite(times).all() and (np.diff(offsets) > 0).all())


def _integers(path: Path) -> Any:
    found, golden = parse(path.read_bytes(), str(path))
    layers = [{name: value for name, value in vars(layer).items()} for layer in found.layers]
    about = [found.readout, found.readout_scale, found.bias_neurons, found.blank_steps, found.remarks]
    return [layers, *about, golden]


def _graph(path: Path) -> Any:
    network = from_nir(path, dt=1e-3)
    return {"layout": repr(network), "delay": network.layer_delay, "state": network.state_dict()}


def _music(path: Path) -> Any:
    found = JSBChorales.from_file(path, "test")
    return [found.keys, found.starts]


def _music_sound(found: Any) -> bool:
    keys, starts = found
    return bool((keys <= 1).all() and (starts.diff() >= 2).all() and starts[-1] == len(keys))


def _lexicon(path: Path) -> Any:
    return list(Vocabulary.load(path))


def _lexicon_sound(found: Any) -> bool:
    return len(set(found)) == len(found) > 0 and all(word.split() == [word] for word in found)


def _pictures_sound(found: Any) -> bool:
    images, labels = found
    return images.shape == (4, 3072) and bool((labels < 100).all())


def _finite(found: Any) -> bool:
    return all(bool(value.isfinite().all()) for value in found["state"].values())


def _settings(path: Path) -> Any:
    given = read_toml(path)
    check_names(given, KINDS, str(path))
    return [repr(make(kind, given)) for kind in KINDS]


def _safetensors(header: dict[str, Any], body: bytes) -> bytes:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + body


def within(pack: Callable[[bytes], bytes], unpack: Callable[[bytes], bytes], change: Change) -> Change:
    """Damage what is packed, and pack it again."""
    return lambda data, random: pack(change(unpack(data), random))


def _xz(data: bytes) -> bytes:
    return lzma.compress(data, preset=0)


def _cache(kind: str, folder: Path) -> tuple[tuple[bytes, ...], Callable[[Path], Any], Change]:
    """A cache as one file: damaged, it must give the same all the same."""
    source = write_words(folder / f"{kind}.h5", draw_words(8, most=120))
    file = EventFile(source)

    def open_in(where: Path) -> EventCache | FrameCache:
        return EventCache(file, where) if kind == "spikes" else FrameCache(file, where, GRID)

    first = open_in(folder / kind)
    parts = sorted(p.name for p in first.path.iterdir())

    def packed(path: Path) -> bytes:
        data = [(path / name).read_bytes() for name in parts]
        head = json.dumps([len(part) for part in data]).encode()
        return head + b"\n" + b"".join(data)

    def unpack(data: bytes) -> list[bytes]:
        head, body = data.split(b"\n", 1)
        sizes, at, found = json.loads(head), 0, []
        for size in sizes:
            found.append(body[at : at + size])
            at += size
        return found

    def change(data: bytes, random: Random) -> bytes:
        found = unpack(data)
        at = random.randrange(len(found))
        found[at] = (
            _about(found[at], random)
            if parts[at] == "about.json" and random.random() < 0.7
            else any_bytes(found[at], random)
        )
        return json.dumps([len(part) for part in found]).encode() + b"\n" + b"".join(found)

    def read(path: Path) -> Any:
        where = path.with_suffix(".folder")
        shutil.rmtree(where, ignore_errors=True)
        shutil.copytree(folder / kind, where)
        for name, data in zip(parts, unpack(path.read_bytes()), strict=True):
            (where / first.path.name / name).write_bytes(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = open_in(where)
            return [x for x in found.read(range(8)) if x is not None]

    return (packed(first.path),), read, change


def _about(data: bytes, random: Random) -> bytes:
    return json.dumps(mutations.json_value(json.loads(data), random)).encode()


def all_readers(folder: Path) -> list[Reader]:
    """The readers, with files that are made in a folder."""
    torch.manual_seed(0)
    np.random.seed(0)

    def made(write: Callable[[Path], object]) -> bytes:
        path = folder / "made"
        write(path)
        data = path.read_bytes()
        path.unlink()
        return data

    images = np.random.default_rng(0).integers(0, 256, (12, 9, 7), np.uint8)
    idx = b"\0\0\x08\x03" + np.array(images.shape, ">u4").tobytes() + images.tobytes()
    words = made(lambda p: write_words(p, draw_words(6, most=60)))
    full = made(lambda p: write_words(p, draw_words(40, most=200, dtype="f4"), keys=False))
    spike = surrogate.MultiGaussian(learnable=True)
    small = Network([ALIFPlus(6, 5, spike=spike), LIF(5, 4)], 3, readout_bias=True)
    small.cells[0].w_in.requires_grad_(False)
    networks = tuple(made(lambda p, n=n: save(n, p)) for n in (small, Network([LIF(3, 2)], 2).double()))
    tree = {
        "a": [1, 2.5, None, True, "x"],
        ("b", 3): torch.arange(40.0),
        "c": {"d": (torch.zeros(3, dtype=torch.int32), -1)},
    }
    trees = (made(lambda p: write_tree(p, tree)),)
    golden = input_spikes(8, 2)
    exported = [make_exported(kind) for kind in ("ALIF", "recurrent, zero")]
    netx = tuple(made(lambda p, n=n: write_netx(quantize(n), p, golden=golden)) for n in exported)
    graphs = (Network([ALIFPlus(6, 5, reset="static")], 3), exported[1])
    nir = tuple(made(lambda p, n=n: to_nir(n, p, dt=1e-3)) for n in graphs)
    settings = {name: value for kind in KINDS for name, value in vars(kind()).items()}
    toml = "\n".join(f"{name} = {json.dumps(value)}" for name, value in settings.items()).encode()
    header = mutations.safetensors_header(_safetensors)
    with resources.as_file(resources.files("neurolsc.datasets") / "samples" / "jsb") as jsb:
        music = gzip.decompress((jsb / "jsb-chorales-sample.json.gz").read_bytes())
    few = json.dumps({part: pieces[:2] for part, pieces in json.loads(music).items()}).encode()
    lexicon = made(lambda p: Vocabulary([f"word{i}" for i in range(40)]).save(p))
    text = "".join(f"ein wörtchen {i}\n" for i in range(40)).encode()
    pictures = np.random.default_rng(0).integers(0, 20, (4, 2 + 3072), np.uint8).tobytes()
    spikes, read_spikes, change_spikes = _cache("spikes", folder)
    frames, read_frames, change_frames = _cache("frames", folder)
    hdf5 = (any_bytes, mutations.hdf5_object)
    in_gzip, in_xz = (
        (lambda c, p=p, u=u: within(p, u, c)) for p, u in ((gzip.compress, gzip.decompress), (_xz, lzma.decompress))
    )
    return [
        Reader("IDX", (idx,), read_idx, (any_bytes, mutations.idx_header)),
        Reader(
            "IDX in gzip",
            (gzip.compress(idx),),
            read_idx,
            (any_bytes, in_gzip(any_bytes), in_gzip(mutations.idx_header)),
        ),
        Reader("SHD (HDF5)", (words, full), _words, hdf5, sound=_words_sound),
        Reader(
            "SHD in xz",
            (_xz(words),),
            _words,
            (any_bytes, in_xz(any_bytes), in_xz(mutations.hdf5_object)),
            sound=_words_sound,
        ),
        Reader("network (safetensors)", networks, _network, (any_bytes,), sealed=True),
        Reader("network, checksum forged", networks, _network, (header,), sound=_finite),
        Reader("tree of a resume file", trees, read_tree, (any_bytes,), sealed=True),
        Reader("tree, checksum forged", trees, read_tree, (header,)),
        Reader("NetX", netx, _integers, hdf5),
        Reader("NIR", nir, _graph, hdf5, sound=_finite),
        Reader("TOML", (toml,), _settings, (any_bytes, mutations.toml_line)),
        Reader("music (JSON)", (few,), _music, (any_bytes, _about), sound=_music_sound),
        Reader("music in gzip", (gzip.compress(few),), _music, (any_bytes, in_gzip(_about)), sound=_music_sound),
        Reader("vocabulary (JSON)", (lexicon,), _lexicon, (any_bytes, _about), sound=_lexicon_sound),
        Reader("text", (text,), read_words, sound=lambda found: all(word.split() == [word] for word in found)),
        Reader("pictures", (pictures,), lambda p: read_records(p, CIFAR100_FILES, 4), sound=_pictures_sound),
        Reader("cache of spikes", spikes, read_spikes, (change_spikes,), sealed=True),
        Reader("cache of frames", frames, read_frames, (change_frames,), sealed=True),
    ]
