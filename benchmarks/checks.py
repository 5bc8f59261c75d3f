"""What do the checks of files and caches cost?  python benchmarks/checks.py [--rounds 15]

Each reader beside the plainest calls of a library that give the same arrays, or the same network,
and look at nothing: h5py, `np.load`, `np.fromfile`, safetensors, `torch.load`, `nir.read`.
Processor time of one thread, the best of several rounds in which both take their turn; all files
lie in the page cache. 1,200 drawn utterances, networks of 2 x 128 ALIF+ and, for exports, LIF.
Writes results/checks.json and .md; takes a minute.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1]))  # the tests

import h5py
import nir
import numpy as np
import safetensors.torch
import torch

from neurolsc import LIF, ALIFPlus, Network, load, save
from neurolsc.datasets import Binning, EventCache, EventFile, FrameCache, read_idx
from neurolsc.export import from_nir, quantize, read_netx, to_nir, write_netx
from neurolsc.files import read_tree, write_tree
from tests.words import draw_words, write_words

RESULTS = Path(__file__).parent / "results"
UTTERANCES, BATCH = 1200, 256
SMALL, LARGE = Binning(dt=0.02, channels=140, repeat=1), Binning(repeat=1)
Way = Callable[[], object]


def of_words(folder: Path, order: np.ndarray) -> dict[str, tuple[Way, Way]]:
    """A file in SHD's layout, and its caches."""
    path = write_words(folder / "words.h5", draw_words(UTTERANCES, longest=1.0, most=3000))
    file, batch = EventFile(path), order[:BATCH]
    spikes = file.read(range(UTTERANCES))
    for name, part in zip(("times", "units"), spikes, strict=False):
        np.save(folder / name, part)
    plain = {name: np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r")) for name in ("times", "units")}
    opened, offsets = h5py.File(path), spikes.offsets
    cache = EventCache(file, folder / "cache")

    def by_h5py() -> list[np.ndarray]:
        whole = [opened[f"spikes/{name}"] for name in ("times", "units")]
        return [np.concatenate([part[i] for i in batch.tolist()]) for part in whole]

    def by_numpy() -> list[np.ndarray]:
        return [np.concatenate([part[offsets[i] : offsets[i + 1]] for i in batch]) for part in plain.values()]

    def opened_anew() -> list[Any]:
        with h5py.File(path) as anew:
            return [anew[name][()] for name in ("labels", "extra/speaker", "extra/keys")]

    ways: dict[str, tuple[Way, Way]] = {
        "SHD (HDF5): open": (lambda: EventFile(path), opened_anew),
        f"SHD (HDF5): {BATCH} utterances": (lambda: file.read(batch), by_h5py),
        f"cache of spikes: {BATCH} utterances": (lambda: cache.read(batch), by_numpy),
    }
    for name, grid, mode in (("in memory", SMALL, None), ("on disk", LARGE, "r")):
        frames, copy = FrameCache(file, folder / "cache", grid), folder / f"{name}.npy"
        np.save(copy, frames.read(range(UTTERANCES)).x.transpose(0, 1).numpy())
        plain_frames = np.load(copy, mmap_mode=mode)
        first = f"cache of frames {name}: open, and all {UTTERANCES} utterances"
        ways[first] = (
            lambda grid=grid: _all(FrameCache(file, folder / "cache", grid).read, order),
            lambda copy=copy, mode=mode: _all(np.load(copy, mmap_mode=mode).__getitem__, order),
        )
        ways[f"cache of frames {name}: {BATCH} utterances"] = (
            lambda frames=frames: frames.read(batch),
            lambda plain_frames=plain_frames: plain_frames[batch],
        )
    return ways


def _all(read: Callable[[np.ndarray], object], order: np.ndarray) -> None:
    for start in range(0, len(order), BATCH):
        read(order[start : start + BATCH])


def of_networks(folder: Path) -> dict[str, tuple[Way, Way]]:
    """Networks, exports, and what a training goes on from."""
    torch.manual_seed(0)
    network, exported = (Network([cell(700, 128), cell(128, 128)], 20) for cell in (ALIFPlus, LIF))
    names = ("network.safetensors", "tree.safetensors", "tree.pt", "graph.nir", "integers.net")
    stored, tree, pickled, graph, integers = (folder / name for name in names)
    state = {"network": network.state_dict(), "history": [{"epoch": i, "loss": 1 / (i + 1)} for i in range(50)]}
    save(network, stored)
    write_tree(tree, state)
    torch.save(state, pickled)
    to_nir(exported, graph, dt=1e-3)
    write_netx(quantize(exported), integers)

    def by_safetensors() -> Network:
        made = Network([ALIFPlus(700, 128), ALIFPlus(128, 128)], 20)
        made.load_state_dict(safetensors.torch.load_file(stored))
        return made

    def by_h5py() -> list[np.ndarray]:
        found: list[np.ndarray] = []
        with h5py.File(integers) as file:
            file.visititems(lambda _, part: found.append(part[()]) if isinstance(part, h5py.Dataset) else None)
        return found

    return {
        "network (safetensors)": (lambda: load(stored), by_safetensors),
        "tree of a resume file": (lambda: read_tree(tree), lambda: torch.load(pickled, weights_only=True)),
        "NIR": (lambda: from_nir(graph), lambda: from_nir(nir.read(graph))),
        "NetX": (lambda: read_netx(integers), by_h5py),
    }


def of_images(folder: Path) -> dict[str, tuple[Way, Way]]:
    """Images of MNIST's size."""
    path, images = folder / "images", np.random.default_rng(0).integers(0, 256, (20_000, 28, 28), np.uint8)
    path.write_bytes(b"\0\0\x08\x03" + np.array(images.shape, ">u4").tobytes() + images.tobytes())
    return {"IDX": (lambda: read_idx(path), lambda: np.fromfile(path, np.uint8, offset=16).reshape(images.shape))}


def race(ways: dict[str, tuple[Way, Way]], rounds: int) -> list[dict[str, Any]]:
    """Milliseconds of both ways, the best of several rounds in turn."""
    best = {name: [float("inf")] * 2 for name in ways}
    for _ in range(rounds):
        for name, pair in ways.items():
            for i, way in enumerate(pair):
                started = time.process_time()
                way()
                best[name][i] = min(best[name][i], 1e3 * (time.process_time() - started))
    return [{"reader": name, "ms": ours, "plain_ms": plain} for name, (ours, plain) in best.items()]


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    order = np.random.RandomState(0).permutation(UTTERANCES)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = race(of_words(folder, order) | of_networks(folder) | of_images(folder), rounds)
    about = {"date": time.strftime("%Y-%m-%d"), "rounds": rounds, "torch": torch.__version__, "numpy": np.__version__}
    about |= {"h5py": h5py.__version__}
    (RESULTS / "checks.json").write_text(json.dumps({"about": about, "readers": found}, indent=1) + "\n")
    lines = ["| reader | ms | plain calls, ms | difference, ms |", "| --- | --- | --- | --- |"]
    for row in found:
        ms, plain = row["ms"], row["plain_ms"]
        lines.append(f"| {row['reader']} | {ms:.2f} | {plain:.2f} | {ms - plain:+.2f} |")
    (RESULTS / "checks.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
