"""How fast do batches (T, B, N) come from a file in SHD's layout, next to tonic, and from the
cache?

    python benchmarks/shd_loader.py [--file train.h5] [--rounds 7]

All times are processor time, the best of several rounds in one process and one thread, in which
every way takes its turn; before a cold one the file is dropped from the page cache. tonic's way is
the one that its documentation shows: SHD with ToFrame, and PadTensors in a DataLoader. What is
compared is equal, bin for bin. The contiguous read is a copy of the same dense batch from a
memory-mapped file into fresh memory, by NumPy (which asks for huge pages) and by torch (which does
not). Memory is the anonymous part of the resident set, sampled after every batch of a pass in a
process of its own. Writes results/shd_loader.json and .md; takes a minute or two.
"""

import argparse
import json
import lzma
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import tonic
import torch
from torch.utils.data import DataLoader, Subset

from neurolsc.datasets import SHD, Binning, EventFile, Events, collate

BATCH, BINS, DT, SEED = 256, 250, 4e-3, 0
RESULTS = Path(__file__).parent / "results"


def forget(path: Path) -> None:
    """Drop a file from the page cache."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def race(
    ways: dict[str, Callable[[], object]], rounds: int, before: Callable[[], object] = lambda: None
) -> dict[str, float]:
    """Milliseconds of each way, the best of several rounds in turn."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, way in ways.items():
            before()
            started = time.process_time()
            way()
            best[name] = min(best[name], 1e3 * (time.process_time() - started))
    return best


def cold(path: Path, folder: Path, indices: list[int], rounds: int) -> dict[str, float]:
    """One batch of scattered utterances from a file that is opened anew."""
    (folder / "SHD").mkdir()
    (folder / "SHD" / "shd_train.h5").symlink_to(path)
    (folder / "SHD" / "shd_train.h5.zip").touch()

    def theirs() -> torch.Tensor:
        sensor = tonic.datasets.SHD.sensor_size
        to_frame = tonic.transforms.ToFrame(sensor_size=sensor, time_window=1e6 * DT, start_time=0, end_time=1e6)
        data = Subset(tonic.datasets.SHD(str(folder), train=True, transform=to_frame), indices)
        return next(iter(DataLoader(data, BATCH, collate_fn=tonic.collation.PadTensors(batch_first=False))))[0]

    def ours(sparse: bool = False) -> torch.Tensor:
        data = SHD.from_file(path, dt=DT, repeat=1, sparse=sparse)
        return next(iter(DataLoader(Subset(data, indices), BATCH, collate_fn=collate)))[0]

    assert torch.equal(theirs()[:, :, 0].to(torch.uint8), ours()), "contents differ"
    assert torch.equal(ours(sparse=True).to_dense(), ours())
    found = race({"ours": ours, "ours, sparse": lambda: ours(sparse=True)}, rounds, lambda: forget(path))
    return found | race({"tonic": theirs}, max(1, rounds // 3), lambda: forget(path))


def cached(path: Path, folder: Path, indices: list[int], rounds: int) -> dict[str, float]:
    """The same batch from the cache, as counted once and as the default shows it twice; and copies
    of the same bytes."""
    ways: dict[str, Callable[[], object]] = {}
    for name, repeat in (("", 1), (", every step twice", 2)):
        data = SHD.from_file(path, dt=DT, repeat=repeat, cache=folder / "cache")
        dense = folder / f"dense{len(ways)}"
        collate(data.__getitems__(indices))[0].numpy().tofile(dense)
        same = np.asarray(np.memmap(dense, np.uint8, "r"))
        ways[f"spikes{name}"] = lambda data=data: collate(data.__getitems__(indices))
        ways[f"numpy copies the bytes{name}"] = same.copy
        ways[f"torch copies the bytes{name}"] = torch.from_numpy(same.copy()).clone
    return race(ways, rounds)


def growth(path: Path, rounds: int) -> dict[str, dict[str, float]]:
    """How the time of binning grows with spikes, bins and batch."""
    file = EventFile(path)
    whole = file.read(range(min(512, len(file))))

    def some(batch: int, share: float = 1.0) -> Events:
        keep = np.random.default_rng(SEED).random(whole.offsets[batch]) < share
        kept = np.concatenate([[0], np.cumsum(keep)])
        end = whole.offsets[batch]
        return Events(whole.times[:end][keep], whole.units[:end][keep], kept[whole.offsets[: batch + 1]])

    half = len(whole.offsets) // 2
    cases = {
        "spikes": {f"{share:.0%}": (some(half, share), DT) for share in (0.25, 0.5, 1.0)},
        "bins": {str(bins): (some(half), 1 / bins) for bins in (125, 250, 500)},
        "batch": {str(batch): (some(batch), DT) for batch in (half // 2, half, 2 * half)},
    }
    return {
        what: race(
            {name: lambda e=e, dt=dt: Binning(dt, 1.0, repeat=1).dense(e) for name, (e, dt) in given.items()}, rounds
        )
        for what, given in cases.items()
    }


def memory(path: Path, cache: Path | None, utterances: int) -> float:
    """MB of anonymous memory beyond the start, the most seen in a pass, in a process of its own."""
    script = f"""
import torch
from neurolsc.datasets import SHD, collate
def anonymous():
    return int(next(l for l in open("/proc/self/status") if l.startswith("RssAnon")).split()[1]) / 1e3
data = SHD.from_file({str(path)!r}, dt={DT}, repeat=1, cache={str(cache) if cache else None!r})
start, most = anonymous(), 0.0
for part in torch.randperm({utterances}, generator=torch.Generator().manual_seed(0)).split(64):
    x, _ = collate(data.__getitems__(part.tolist()))
    most = max(most, anonymous() - start)
print(most)
"""
    return float(subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout)


def table(found: dict) -> str:
    """The results in words and numbers."""
    cold, cached = found["cold"], found["cached"]
    lines = [f"{found['about']}", "", "| batch of {} | ms | ratio |".format(found["batch"]), "| --- | --- | --- |"]
    for name in ("tonic", "ours", "ours, sparse"):
        lines.append(
            f"| from a cold HDF5 file: {name} | {cold[name]:.1f} | {cold['tonic'] / cold[name]:.1f} times as fast as tonic |"
        )
    for suffix in ("", ", every step twice"):
        copies = {who: cached[f"{who} copies the bytes{suffix}"] for who in ("numpy", "torch")}
        lines += [f"| {who} copies the same bytes{suffix} | {copy:.1f} | |" for who, copy in copies.items()]
        mine = cached[f"spikes{suffix}"]
        ratios = " and ".join(f"{mine / copy:.2f} times as long as {who}'s copy" for who, copy in copies.items())
        lines.append(f"| from the cache of spikes{suffix} | {mine:.1f} | {ratios} |")
    lines += ["", "Binning alone, dense, in ms:", ""]
    for what, row in found["growth"].items():
        lines.append(f"- {what}: " + ", ".join(f"{name} {ms:.1f}" for name, ms in row.items()))
    lines += ["", "Anonymous memory beyond the start, in MB, batches of 64:", ""]
    for name, row in found["memory"].items():
        lines.append(f"- {name}: " + ", ".join(f"{n} utterances {mb:.0f}" for n, mb in row.items()))
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write."""
    data = os.environ.get("NEUROLSC_DATA")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", type=Path, default=Path(data, "spoken_digits", "train.h5") if data else None)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder, path = Path(temporary), args.file
        if path is None:
            path = folder / "train.h5"
            path.write_bytes(lzma.decompress(SHD.embedded("train").path.read_bytes()))
        n = len(EventFile(path))
        indices = np.random.RandomState(SEED).permutation(n)[:BATCH].tolist()
        found = {
            "about": f"{path.name}, {n} utterances, {BINS} bins of 4 ms, 700 channels, one thread, {time.strftime('%Y-%m-%d')}",
            "batch": len(indices),
            "cold": cold(path, folder, indices, args.rounds),
            "cached": cached(path, folder, indices, 3 * args.rounds),
            "growth": growth(path, args.rounds),
            "memory": {
                name: {str(size): memory(path, cache, size) for size in (n // 4, n // 2, n)}
                for name, cache in (("HDF5", None), ("cache of spikes", folder / "cache"))
            },
        }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "shd_loader.json").write_text(json.dumps(found, indent=1))
    (args.out / "shd_loader.md").write_text(table(found))
    print(table(found))


if __name__ == "__main__":
    main()
