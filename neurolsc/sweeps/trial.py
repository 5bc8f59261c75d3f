"""One trial of a sweep: an experiment, and where it is kept."""

import hashlib
import re
import shutil
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import tomli_w

from neurolsc.config import KINDS, DataSettings, check_names, make
from neurolsc.experiment import Experiment
from neurolsc.locks import alone
from neurolsc.runs import UNFINISHED

PATHS = ("root", "cache", "weights")
"""settings that hold paths: of those only the last name is shown"""
FAILED = ".failed.json"
"""what the name of the note ends in that a trial came to an error"""
_READABLE = 80
"""characters of a folder's name before the digest"""


@dataclass(frozen=True)
class Trial:
    """An experiment of a sweep; its folder's name follows from its settings alone."""

    experiment: Experiment

    @classmethod
    def of(cls, given: dict[str, Any]) -> "Trial":
        """The trial with these settings; what is missing takes its default.

        Raises:
            ValueError: if a name is unknown, or a value of the wrong kind.
        """
        check_names(given, KINDS, "grid")
        return cls(Experiment(*(make(kind, given) for kind in KINDS)))

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All settings, those with their default included."""
        return self.experiment.settings()

    @cached_property
    def name(self) -> str:
        """What tells the trial from others, readable in part, and a digest.

        Both are made of the settings that differ from their defaults; so a setting that a later
        version adds leaves the name as it is.
        """
        defaults = {f.name: f.default for kind in KINDS for f in fields(kind)}
        odd = {name: value for name, value in self.settings.items() if value != defaults[name]}
        digest = hashlib.sha256(tomli_w.dumps(dict(sorted(odd.items()))).encode()).hexdigest()[:12]
        untold = {f.name for f in fields(DataSettings)} - {"data"} | {"weights", "weights_sha256"}
        told = ",".join(f"{name}={value}" for name, value in odd.items() if name not in untold)
        readable = re.sub(r"[^A-Za-z0-9.=,_-]+", "-", told)[:_READABLE].strip("-,.=")
        return f"{readable}-{digest}" if readable else digest

    def __repr__(self) -> str:
        return f"Trial({self.name})"

    def folder(self, sweep: Path) -> Path:
        """The run folder of the trial, once it is finished."""
        return sweep / self.name

    def unfinished(self, sweep: Path) -> Path:
        """Its folder until then."""
        return sweep / (self.name + UNFINISHED)

    def failure(self, sweep: Path) -> Path:
        """The note of an error, if it came to one."""
        return sweep / (self.name + FAILED)

    def forget(self, sweep: Path) -> None:
        """Remove what makes it a failure: the note with what is unfinished, else a damaged run.

        Raises:
            BlockingIOError: if a process is at work on it.
        """
        failure, unfinished = self.failure(sweep), self.unfinished(sweep)
        with alone(self.folder(sweep)):
            if not failure.exists():
                shutil.rmtree(self.folder(sweep))
            elif unfinished.exists():
                shutil.rmtree(unfinished)
            failure.unlink(missing_ok=True)

    def shown(self) -> dict[str, Any]:
        """The settings without paths of this machine."""
        return {name: Path(value).name if name in PATHS else value for name, value in self.settings.items()}
