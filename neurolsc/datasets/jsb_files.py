"""The file of JSB Chorales, and any music in its layout: found or downloaded, verified, read."""

import json
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from neurolsc.datasets.download import downloaded, first_there
from neurolsc.io import clean, refusing, sha256_of
from neurolsc.untrusted.packed import opened, read_most

NAME = "jsb-chorales-quarter.json"
ADDRESSES: tuple[str, ...] = (
    "https://raw.githubusercontent.com/czhuang/JSB-Chorales-dataset/9a7f733ddb4ed91f48da64ac7f0f621c34aadd4d/" + NAME,
    "https://raw.githubusercontent.com/czhuang/JSB-Chorales-dataset/master/" + NAME,
)
SHA256 = "2db9329f1881a1d3f49703ec556bf1d6f84b4f6c1d702c156536e93cf31e1c91"
LOWEST, HIGHEST = 21, 108
"""MIDI numbers of the keys of a piano, A0 to C8"""
KEYS = HIGHEST - LOWEST + 1
PARTS = {"train": "train", "validation": "valid", "test": "test"}
"""name of each split in the file"""
MOST = 2**23
"""bytes of a file: Python takes some 20 times as many to hold its lists"""


def fetch_jsb(root: str | Path) -> Path:
    """Return the path of ``jsb-chorales-quarter.json``, after downloading it if it is missing.

    Args:
        root: the folder; made if need be.

    Raises:
        ValueError: if the file in the folder is another.
        ConnectionError: if it could not be downloaded.
    """
    root = Path(root)
    there = first_there(root, (NAME, f"jsb/{NAME}"))
    if there is not None:
        _verify(there)
        return there
    otherwise = f"Put it into {root} by hand, or use JSBChorales.embedded(split)."
    return downloaded(root, NAME, ADDRESSES, _verify, called=NAME, otherwise=otherwise)


def read_pieces(path: str | PathLike[str], part: str) -> list[np.ndarray]:
    """Read the pieces of one part of a file of music.

    The file is one JSON object, plain or packed by gzip or xz, with a list of pieces for each part;
    a piece is a list of steps, a step the list of the MIDI numbers that sound in it, each once.

    Args:
        path: the file.
        part: its name in the file.

    Returns:
        Of each piece its keys, (steps, 88) uint8 zeros and ones, the lowest first.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is none, is larger than 8 MiB, lacks the part, has no piece or one of
            fewer than two steps, or a note is not a number from 21 to 108 or stands twice in a
            step; the message names the file, the piece and the step.
    """
    with opened(path) as (content, room), refusing(path, "damaged: it is not a JSON file of music"):
        text = read_most(content, MOST)
        if len(text) > MOST:
            raise ValueError(f"a file of music has at most {MOST:,} bytes, got more.")
        room.take(len(text), "its content")
        told = json.loads(text)
        if not isinstance(told, dict) or not isinstance(told.get(part), list):
            found = ", ".join(map(repr, told)) if isinstance(told, dict) else type(told).__name__
            raise ValueError(f"wanted is an object with a list {part!r} of pieces, got {clean(found)}.")
        if not told[part]:
            raise ValueError(f"{part} has no piece.")
        room.take(sum(len(p) for p in told[part] if isinstance(p, list)) * KEYS, f"the keys of {part}")
        return [_keys(piece, f"{part}, piece {i}") for i, piece in enumerate(told[part])]


def _keys(piece: Any, where: str) -> np.ndarray:
    """The keys of a piece."""
    if not isinstance(piece, list) or len(piece) < 2:
        got = f"{len(piece)}" if isinstance(piece, list) else clean(repr(piece))
        raise ValueError(f"{where}: a piece is a list of at least two steps, got {got}.")
    keys = np.zeros((len(piece), KEYS), np.uint8)
    for step, notes in enumerate(piece):
        if not isinstance(notes, list):
            raise ValueError(f"{where}, step {step}: a step is a list of notes, got {clean(repr(notes))}.")
        for note in notes:
            if type(note) is not int or not LOWEST <= note <= HIGHEST:
                raise ValueError(
                    f"{where}, step {step}: a note is a MIDI number from {LOWEST} to {HIGHEST}, got {clean(repr(note))}."
                )
            if keys[step, note - LOWEST]:
                raise ValueError(f"{where}, step {step}: note {note} stands there twice.")
            keys[step, note - LOWEST] = 1
    return keys


def _verify(path: Path) -> None:
    if (got := sha256_of(path)) != SHA256:
        raise ValueError(f"{path}: not the {NAME} of the repository; its sha256 is {got}, wanted {SHA256}.")
