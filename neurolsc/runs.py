"""Run folders: a folder holds a finished run, and has another name while it is not finished."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any

import tomli_w

from neurolsc.files import atomic_write
from neurolsc.identity import differences
from neurolsc.locks import alone, lock_of
from neurolsc.temporaries import remove_dead
from neurolsc.untrusted.toml import read_toml

SETTINGS = "settings.toml"
NETWORK = "network.safetensors"
UNFINISHED = ".partial"
"""What the name of an unfinished run's folder ends in."""
START, PRETRAINING, TRAINING = "start.checkpoint", "pretrain.checkpoint", "train.checkpoint"
"""What an unfinished run goes on from, as any file ``*.checkpoint`` in it; removed once it is
finished."""
OF_A_START = {
    SETTINGS,
    START,
    "start.json",
    "split.json",
    "radii_before.png",
    "radii_before.json",
    "report_before.json",
}
"""What a run writes before the first checkpoint that took longer than a start."""


class Stopped(KeyboardInterrupt):
    """Ctrl-C in a run that can go on; the message says where it is kept."""


@contextlib.contextmanager
def run_folder(
    path: str | PathLike[str], settings: dict[str, Any], say: Callable[[str], object] = lambda _: None
) -> Iterator[Path]:
    """Give a folder to work in, and its final name once the work is done.

    While the run goes on its files lie in ``<path>.partial``, and it alone may use the folder: see
    :func:`neurolsc.locks.alone`. If that folder is there already, from a run that was stopped, the
    new run takes it over and can go on from the checkpoints in it, provided that its settings are
    the same. A run that fails before it leaves a checkpoint or a network leaves nothing, nor does
    one whose training refuses a setting. Under other settings a folder in which nothing but a start
    is, which takes seconds, is overwritten; any other is refused.

    Args:
        path: the folder that shall hold the finished run.
        settings: what the run is made of; written to ``settings.toml``, and compared with those of
            an unfinished run.
        say: called with a line about a start that is overwritten.

    Yields:
        The folder to write into. The checkpoints in it, ``*.checkpoint``, are removed at the end.

    Raises:
        FileExistsError: if the finished run is there already.
        BlockingIOError: if another process or thread is at work there; the message names it.
        ValueError: if an unfinished run has other settings, which the message names, or the path
            has the ending of one.
        OSError: if the folder cannot be made or written.
        Stopped: for a KeyboardInterrupt after which the run can go on.
    """
    final = Path(path)
    _refuse_finished(final)
    partial = final.with_name(final.name + UNFINISHED)
    with _explained(final.parent):
        final.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        with _explained(final):
            stack.enter_context(alone(final))
        if os.path.lexists(final):
            raise FileExistsError(_exists(final))
        fresh = not partial.exists()
        with _explained(partial):
            partial.mkdir(exist_ok=True)
            remove_dead(partial)
            _claim(partial, settings, say)
        try:
            yield partial
        except BaseException as error:
            refused = isinstance(error, ValueError | TypeError) and not _progress(partial)
            if refused or not (_checkpoints(partial) or (partial / NETWORK).exists()):
                if fresh:
                    with contextlib.suppress(OSError):
                        _remove(partial)
            elif isinstance(error, KeyboardInterrupt):
                raise Stopped(f"what was done is kept in {partial}") from error
            raise
        os.replace(partial, final)
        _tidy(final)


def _refuse_finished(final: Path) -> None:
    if final.name.endswith(UNFINISHED):
        raise ValueError(f"{final} would be the name of an unfinished run: leave out {UNFINISHED}.")
    if not os.path.lexists(final):
        return
    if final.name and (lock_of(final).exists() or _checkpoints(final)):
        with contextlib.suppress(OSError), alone(final):  # its process was killed between the last two lines above
            _tidy(final)
    raise FileExistsError(_exists(final))


def _exists(final: Path) -> str:
    return f"{final} exists already; choose another folder, or remove it."


def _remove(partial: Path) -> None:
    """Remove a folder, last of all that which says whose it is."""
    for entry in partial.iterdir():
        if entry.name != SETTINGS:
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    shutil.rmtree(partial)


def _tidy(final: Path) -> None:
    """Remove what only an unfinished run needs."""
    for file in _checkpoints(final):
        lock_of(file).unlink(missing_ok=True)  # of a training that could not remove it
        file.unlink()
    remove_dead(final)


def _checkpoints(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.checkpoint"))


def _progress(partial: Path) -> bool:
    """Whether it holds more than a start, which takes seconds."""
    return any(file.name != START for file in _checkpoints(partial)) or (partial / NETWORK).exists()


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Let an error of the disk say what it was about."""
    try:
        yield
    except BlockingIOError:
        raise
    except OSError as error:
        raise OSError(error.errno, f"cannot write the run folder ({error.strerror})", str(path)) from error


def _claim(partial: Path, settings: dict[str, Any], say: Callable[[str], object]) -> None:
    """Make a folder that of a run; of other settings one with nothing but a start is emptied."""
    written = partial / SETTINGS
    if written.exists() and {entry.name for entry in partial.iterdir()} <= OF_A_START:
        try:
            changed = differences(read_toml(written), settings)
        except ValueError:
            changed = "they cannot be read"
        if changed:
            say(f"{partial} holds no more than the start of other settings, and is overwritten ({changed}).")
            _remove(partial)
            partial.mkdir()
    if not written.exists():
        atomic_write(written, lambda file: file.write(tomli_w.dumps(settings).encode()))
    elif changed := differences(read_toml(written), settings):
        raise ValueError(
            f"{partial} holds an unfinished run with other settings ({changed}). Use the same settings to "
            "go on, another folder, or remove it."
        )


def read_settings(path: str | PathLike[str]) -> dict[str, Any]:
    """The settings of a finished run.

    Raises:
        ValueError: if the folder is not that of a finished run.
    """
    folder = Path(path)
    if not (folder / SETTINGS).exists() or not (folder / NETWORK).exists():
        raise ValueError(f"{folder} is not the folder of a finished run: it has no {SETTINGS} and {NETWORK}.")
    return read_toml(folder / SETTINGS)


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
        if hasattr(part, "speakers") and (part.speakers >= 0).all()
    }
    if told:
        write_json(folder / "split.json", told)
