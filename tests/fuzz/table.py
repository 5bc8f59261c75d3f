"""The table: how many files of each reader ended how."""

import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.fuzz import pool
from tests.fuzz.readers import Reader, all_readers, digest

SECONDS = 20.0
"""for one file"""
MEMORY = 300e6
"""bytes for one file"""
GOOD = ("clean", "same", "undetectable")
KINDS = (*GOOD, "raw", "over time", "over memory", "silent and wrong")


@dataclass
class Row:
    """How the files of one reader ended."""

    reader: str
    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    peak: int = 0
    odd: list[str] = field(default_factory=list)
    """the first ends that should not be, with the seed that makes the file again"""

    @property
    def bad(self) -> int:
        return sum(n for kind, n in self.counts.items() if kind not in GOOD)

    def to_dict(self) -> dict[str, object]:
        return {"reader": self.reader, "seed": self.seed, "files": self.counts.total()} | {
            "counts": dict(self.counts),
            "peak": self.peak,
            "odd": self.odd,
        }


def damaged(reader: Reader, seed: int) -> tuple[bytes, bytes]:
    """A good file, and one made of it, that differ."""
    random = Random(f"{reader.name} {seed}")
    good = random.choice(reader.files)
    change = random.choice(reader.changes)
    for _ in range(20):
        try:
            bad = change(good, random)
        except (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError):
            continue  # the library would not make such a file
        if bad != good:
            return good, bad
    return good, good[:-1]


def judge(reader: Reader, bad: bytes, wanted: str, path: Path) -> tuple[str, str]:
    """How reading a file ends."""
    path.write_bytes(bad)
    try:
        found = reader.read(path)
    except ValueError as error:
        named = str(path.stem) in str(error) or "unknown setting" in str(error) or reader.name == "TOML"
        shown = all(c.isprintable() or c in "\n\t" for c in str(error)) and len(str(error)) < 4000
        return ("clean", "") if named and shown else ("raw", f"ValueError: {str(error)[:200]!r}")
    except BaseException as error:
        return "raw", f"{type(error).__name__}: {str(error)[:200]!r}"
    if digest(found) == wanted:
        return "same", ""
    if reader.sealed or not reader.sound(found):
        return "silent and wrong", str(found)[:200]
    return "undetectable", ""


def fuzz(
    readers: Sequence[Reader], cases: int, *, seed: int, folder: Path, until: float = float("inf")
) -> Iterator[Row]:
    """A row for each reader: cases files each, or fewer when the time is over."""
    for n, reader in enumerate(readers):
        path, row = folder / "victim.file", Row(reader.name, seed)
        wanted = {}
        for good in reader.files:
            path.write_bytes(good)
            wanted[good] = digest(reader.read(path))

        def do(case: int, reader=reader, path=path, wanted=wanted) -> tuple[str, str]:
            good, bad = damaged(reader, case)
            return judge(reader, bad, wanted[good], path)

        share = time.monotonic() + (until - time.monotonic()) / (len(readers) - n)
        for outcome in pool.run(cases, do, seconds=SECONDS, first=seed):
            kind = {"time": "over time", "killed": "raw"}.get(outcome.kind, outcome.kind)
            if kind in GOOD and outcome.peak > MEMORY:
                kind = "over memory"
            row.counts[kind] += 1
            row.peak = max(row.peak, outcome.peak)
            if kind not in GOOD and len(row.odd) < 20:
                row.odd.append(f"{reader.name} {outcome.case}: {kind}, {outcome.said}")
            if time.monotonic() > share:
                break
        yield row


def lines(rows: Sequence[Row]) -> list[str]:
    """The table as Markdown."""
    head = ["reader", "files", *KINDS, "peak, MB"]
    body = [
        [row.reader, row.counts.total(), *(row.counts[kind] for kind in KINDS), f"{row.peak / 1e6:.0f}"] for row in rows
    ]
    body.append(
        [
            "all",
            *(sum(row[i] for row in body) for i in range(1, len(head) - 1)),
            max((row[-1] for row in body), key=float),
        ]
    )
    return ["| " + " | ".join(map(str, line)) + " |" for line in (head, ["---"] * len(head), *body)]


def make(cases: int, *, seed: int = 0, seconds: float = float("inf"), only: str = "") -> list[Row]:
    """All readers, or those whose name begins so."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        readers = [reader for reader in all_readers(folder) if reader.name.startswith(only)]
        return list(fuzz(readers, cases, seed=seed, folder=folder, until=time.monotonic() + seconds))
