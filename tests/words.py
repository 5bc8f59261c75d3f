"""Tiny files in SHD's layout, written by the tests themselves."""

from collections.abc import Callable, Sequence
from pathlib import Path

import h5py
import numpy as np

from neurolsc.datasets import Events

Words = list[tuple[np.ndarray, np.ndarray]]


def draw_words(n: int = 12, *, longest: float = 1.3, most: int = 300, seed: int = 0, dtype: str = "f2") -> Words:
    """Times and units of n utterances; their lengths differ, and some spikes come after 1 s."""
    random = np.random.default_rng(seed)
    words = []
    for _ in range(n):
        size = int(random.integers(most // 3, most))
        times = np.sort(random.uniform(0, random.uniform(0.8, 1) * longest, size)).astype(dtype)
        words.append((times, random.integers(0, 700, size).astype(np.uint16)))
    return words


def events_of(words: Words) -> Events:
    """Their spikes one after the other."""
    offsets = np.concatenate([[0], np.cumsum([len(t) for t, _ in words])])
    return Events(np.concatenate([t for t, _ in words]), np.concatenate([u for _, u in words]), offsets)


def write_words(
    path: Path,
    words: Words | None = None,
    *,
    labels: Sequence[int] | None = None,
    speakers: Sequence[int] | None = None,
    keys: bool = True,
    spoil: Callable[[h5py.File], object] = lambda file: None,
) -> Path:
    """Write a file in SHD's layout, and spoil it."""
    words = draw_words() if words is None else words
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for name, parts in (("times", [t for t, _ in words]), ("units", [u for _, u in words])):
            data = file.create_dataset(f"spikes/{name}", (len(parts),), h5py.vlen_dtype(parts[0].dtype))
            for i, part in enumerate(parts):
                data[i] = part
        file["labels"] = np.asarray([3 * i % 20 for i in range(len(words))] if labels is None else labels, np.uint16)
        file["extra/speaker"] = np.asarray(
            [i % 4 for i in range(len(words))] if speakers is None else speakers, np.uint16
        )
        if keys:
            file["extra/keys"] = np.array([f"word {i}".encode() for i in range(20)])
        spoil(file)
    return path
