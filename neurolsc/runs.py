"""Run folders: a folder holds a finished run, and has another name while it is not finished."""

import contextlib
import json
import os
import shutil
import tomllib
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import tomli_w

from neurolsc.files import atomic_write

SETTINGS = "settings.toml"
NETWORK = "network.safetensors"


@contextlib.contextmanager
def run_folder(path: str | PathLike[str], settings: dict[str, Any]) -> Iterator[Path]:
    """Give a folder to work in, and its final name once the work is done.

    While the run goes on its files lie in ``<path>.partial``. If that folder is there already, from
    a run that was stopped, the new run takes it over and can go on from the checkpoints in it,
    provided that its settings are the same. A run that fails before its first checkpoint leaves
    nothing.

    Args:
        path: the folder that shall hold the finished run.
        settings: what the run is made of; written to ``settings.toml``, and compared with those of
            an unfinished run.

    Yields:
        The folder to write into.

    Raises:
        FileExistsError: if the finished run is there already.
        ValueError: if an unfinished run that left a checkpoint has other settings; the message
            names them.
        OSError: if the folder cannot be made or written.
    """
    final = Path(path)
    if final.exists():
        raise FileExistsError(f"{final} exists already; choose another folder, or remove it.")
    partial = final.with_name(final.name + ".partial")
    fresh = not partial.exists()
    try:
        partial.mkdir(parents=True, exist_ok=True)
        _claim(partial, settings)
    except OSError as error:
        raise OSError(error.errno, f"cannot write the run folder ({error.strerror})", str(partial)) from error
    try:
        yield partial
    except BaseException:
        if fresh and not any(partial.glob("*.checkpoint")):
            shutil.rmtree(partial)
        raise
    os.replace(partial, final)


def _claim(partial: Path, settings: dict[str, Any]) -> None:
    written = partial / SETTINGS
    if written.exists() and any(partial.glob("*.checkpoint")):
        before = tomllib.loads(written.read_text(encoding="utf-8"))
        names = before.keys() | settings.keys()
        changed = [
            f"{name} was {before.get(name)!r}, is now {settings.get(name)!r}"
            for name in sorted(names)
            if before.get(name) != settings.get(name)
        ]
        if changed:
            raise ValueError(
                f"{partial} holds an unfinished run with other settings ({'; '.join(changed)}). Use the same settings to "
                "go on, another folder, or remove it."
            )
    else:
        atomic_write(written, lambda file: file.write(tomli_w.dumps(settings).encode()))


def read_settings(path: str | PathLike[str]) -> dict[str, Any]:
    """The settings of a finished run.

    Raises:
        ValueError: if the folder is not that of a finished run.
    """
    folder = Path(path)
    if not (folder / SETTINGS).exists() or not (folder / NETWORK).exists():
        raise ValueError(f"{folder} is not the folder of a finished run: it has no {SETTINGS} and {NETWORK}.")
    return tomllib.loads((folder / SETTINGS).read_text(encoding="utf-8"))


def write_json(path: Path, content: object) -> None:
    """Write JSON, whole or not at all."""
    atomic_write(path, lambda file: file.write(json.dumps(content, indent=1).encode()))


def write_text(path: Path, content: str) -> None:
    """Write text, whole or not at all."""
    atomic_write(path, lambda file: file.write(content.encode()))


def write_split(folder: Path, *parts: Any) -> None:
    """Note which speakers each part of the data holds, where the data have speakers."""
    told = {
        part.split: {"utterances": len(part), "speakers": part.speakers.unique().tolist()}
        for part in parts
        if hasattr(part, "speakers")
    }
    if told:
        write_json(folder / "split.json", told)
