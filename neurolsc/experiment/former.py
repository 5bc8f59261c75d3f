"""Settings, runs and sweeps of earlier versions, in which some things had other names."""

import os
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neurolsc.io import locked, read_toml

if TYPE_CHECKING:
    from neurolsc.experiment.run import Experiment

SETTINGS = {"start": "init"}
FILES = {"start.json": "init.json", "start.checkpoint": "init.checkpoint"}  # of a run folder
STATISTICS = {"usable": "active_surrogate_fraction", "survives": "similarity_to_input"}  # of before_training.json


def read_settings(path: str | PathLike[str]) -> dict[str, Any]:
    """Read a TOML file of settings, or of a grid of them; former names become those of today.

    Raises:
        ValueError: if the file cannot be read, or has a setting under both of its names.
    """

    def renamed(part: Any) -> Any:
        if isinstance(part, list):
            return [renamed(item) for item in part]
        if not isinstance(part, dict):
            return part
        for former, name in SETTINGS.items():
            if former in part and name in part:
                raise ValueError(f"{path}: {former} is the former name of {name}; leave one of them out.")
        return {SETTINGS.get(name, name): renamed(value) for name, value in part.items()}

    return renamed(read_toml(path))


def rename_files(folder: Path) -> None:
    """Give the files of an unfinished run their names of today."""
    for former, name in FILES.items():
        if (folder / former).exists():
            os.replace(folder / former, folder / name)


def init_report(folder: Path) -> Path:
    """The path of the report on the initialisation in a run folder."""
    former = folder / "start.json"
    return former if former.exists() else folder / "init.json"


def rename_trials(sweep: Path, trials: Iterable["Experiment"], ends: Iterable[str]) -> None:
    """Give the folders of trials their names of today.

    Args:
        sweep: folder of the sweep.
        trials: its trials.
        ends: what the names of a trial's folders and notes end in.

    Raises:
        BlockingIOError: if a process uses a folder under its former name.
    """
    called = {name: former for former, name in SETTINGS.items()}
    for trial in trials:
        former = trial.name_with(called)
        found = [end for end in ends if former != trial.name and (sweep / f"{former}{end}").exists()]
        if found:
            with locked(sweep / former):
                for end in found:
                    os.replace(sweep / f"{former}{end}", sweep / f"{trial.name}{end}")
