"""How fast do batches (T, B, N) come from a file in SHD's layout, next to tonic?

    python benchmarks/shd_loader.py [--file train.h5] [--rounds 7]

All times are processor time, the best of several rounds in one process and one thread, in which
every way takes its turn. An epoch is all utterances once, in batches of 256 in a random order; before
a first epoch, which opens the file, it is dropped from the page cache. tonic's way is the one that its
documentation shows: SHD with ToFrame, and PadTensors in a DataLoader. Frames are equal, bin for bin. A
copy is one of the same dense batch from memory into fresh memory, by NumPy (which takes huge pages)
and by torch (which does not). Memory is the anonymous part of the resident set, sampled after every
batch of an epoch in a process of its own. Writes results/shd_loader.json and .md; takes a minute or
two.
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


def epochs(path: Path, folder: Path, order: list[int], rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds of the first epoch, from a file that is opened anew, and of a later one."""
    (folder / "SHD").mkdir()
    (folder / "SHD" / "shd_train.h5").symlink_to(path)
    (folder / "SHD" / "shd_train.h5.zip").touch()
    sensor = tonic.datasets.SHD.sensor_size
    to_frame = tonic.transforms.ToFrame(sensor_size=sensor, time_window=1e6 * DT, start_time=0, end_time=1e6)
    padded = tonic.collation.PadTensors(batch_first=False)

    def theirs() -> DataLoader:
        data = Subset(tonic.datasets.SHD(str(folder), train=True, transform=to_frame), order)
        return DataLoader(data, BATCH, collate_fn=padded)

    def ours() -> DataLoader:
        return DataLoader(Subset(SHD.from_file(path, dt=DT, repeat=1), order), BATCH, collate_fn=collate)

    def run(loader: DataLoader) -> None:
        for _ in loader:
            pass

    assert torch.equal(next(iter(theirs()))[0][:, :, 0].to(torch.uint8), next(iter(ours()))[0]), "contents differ"
    mine, few = ours(), max(1, rounds // 3)
    first = race({"ours": lambda: run(ours())}, rounds, lambda: forget(path))
    first |= race({"tonic": lambda: run(theirs())}, few, lambda: forget(path))
    return {"first epoch": first, "later epoch": race({"ours": lambda: run(mine)}, rounds)}


def copies(path: Path, indices: list[int], rounds: int) -> dict[str, float]:
    """A batch, as counted once and as the default shows it twice; and copies of the same bytes."""
    ways: dict[str, Callable[[], object]] = {}
    for name, repeat in (("", 1), (", every step twice", 2)):
        data = SHD.from_file(path, dt=DT, repeat=repeat)
        same = collate(data.__getitems__(indices))[0].numpy().copy()
        ways[f"spikes{name}"] = lambda data=data: collate(data.__getitems__(indices))
        ways[f"numpy copies the bytes{name}"] = same.copy
        ways[f"torch copies the bytes{name}"] = torch.from_numpy(same).clone
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
            {name: lambda e=e, dt=dt: Binning(dt, 1.0, repeat=1).frames(e) for name, (e, dt) in row.items()}, rounds
        )
        for what, row in cases.items()
    }


def memory(path: Path) -> dict[str, float]:
    """MB of anonymous memory beyond the start, with the file open and the most seen in an epoch."""
    script = f"""
import torch
from neurolsc.datasets import SHD, collate
def anonymous():
    return int(next(l for l in open("/proc/self/status") if l.startswith("RssAnon")).split()[1]) / 1e3
start, most = anonymous(), 0.0
data = SHD.from_file({str(path)!r}, dt={DT}, repeat=1)
opened = anonymous() - start
for part in torch.randperm(len(data), generator=torch.Generator().manual_seed(0)).split(64):
    x, _ = collate(data.__getitems__(part.tolist()))
    most = max(most, anonymous() - start)
print(opened, most)
"""
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return dict(zip(("opened", "in batches of 64"), map(float, done.stdout.split()), strict=True))


def table(found: dict) -> str:
    """The results in words and numbers."""
    lines = [found["about"], "", "| | ms |", "| --- | --- |"]
    for what, row in found["epochs"].items():
        lines += [f"| {what}: {name} | {ms:.0f} |" for name, ms in row.items()]
    lines += [f"| a batch of {found['batch']}: {name} | {ms:.1f} |" for name, ms in found["batches"].items()]
    lines += ["", "Binning alone, in ms:", ""]
    for what, row in found["growth"].items():
        lines.append(f"- {what}: " + ", ".join(f"{name} {ms:.1f}" for name, ms in row.items()))
    memory = ", ".join(f"{name} {mb:.0f}" for name, mb in found["memory"].items())
    return "\n".join([*lines, "", f"Anonymous memory beyond the start, in MB: {memory}."]) + "\n"


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
        order = np.random.RandomState(SEED).permutation(n).tolist()
        found = {
            "about": f"{path.name}, {n} utterances, {BINS} bins of 4 ms, 700 channels, one thread, {time.strftime('%Y-%m-%d')}",
            "batch": min(BATCH, n),
            "epochs": epochs(path, folder, order, args.rounds),
            "batches": copies(path, order[:BATCH], 3 * args.rounds),
            "growth": growth(path, args.rounds),
            "memory": memory(path),
        }
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "shd_loader.json").write_text(json.dumps(found, indent=1))
    (args.out / "shd_loader.md").write_text(table(found))
    print(table(found))


if __name__ == "__main__":
    main()
