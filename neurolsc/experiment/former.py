"""Former names in settings, runs and sweeps of earlier versions, turned into the current ones."""

import os
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from neurolsc.io import locked, read_toml

if TYPE_CHECKING:
    from neurolsc.experiment.run import Experiment

# each from the former name to the current one
SETTINGS = {"start": "init"}
FILES = {"start.json": "init.json", "start.checkpoint": "init.checkpoint"}  # of a run folder
STATISTICS = {"usable": "active_surrogate_fraction", "survives": "similarity_to_input"}  # of before_training.json


def read_settings(path: str | PathLike[str]) -> dict[str, Any]:
    """Read a TOML file of settings, or of a grid of them; former names become the current ones.

    Raises:
        ValueError: if the file cannot be read, or has a setting under both of its names.
    """

    def with_current_names(part: Any) -> Any:
        """Return a table or list with settings under their current names, at every depth; return a value as it is."""
        if isinstance(part, list):
            return [with_current_names(item) for item in part]
        if not isinstance(part, dict):
            return part
        for former, current in SETTINGS.items():
            if former in part and current in part:
                raise ValueError(f"{path}: {former} is the former name of {current}; leave one of them out.")
        return {SETTINGS.get(name, name): with_current_names(value) for name, value in part.items()}

    return with_current_names(read_toml(path))


def rename_files(folder: Path) -> None:
    """Give the files of an unfinished run their current names."""
    for former, current in FILES.items():
        if (folder / former).exists():
            os.replace(folder / former, folder / current)


def init_report(folder: Path) -> Path:
    """Return the path of the initialisation's report in a run folder: its former name if that file exists."""
    former = folder / "start.json"
    if former.exists():
        return former
    return folder / "init.json"


def rename_trials(sweep: Path, trials: Iterable["Experiment"], ends: Iterable[str]) -> None:
    """Rename the folders of trials that were run before a setting got another name, which their names hold.

    Args:
        sweep: folder of the sweep.
        trials: its trials.
        ends: what follows a trial's name in the names of its folders and of the note of its failure.

    Raises:
        BlockingIOError: if a process uses a folder under its former name.
    """
    former_names = {current: former for former, current in SETTINGS.items()}
    for trial in trials:
        former = trial.name_with(former_names)
        if former == trial.name:
            continue
        existing = [end for end in ends if (sweep / f"{former}{end}").exists()]
        if existing:
            with locked(sweep / former):
                for end in existing:
                    os.replace(sweep / f"{former}{end}", sweep / f"{trial.name}{end}")
