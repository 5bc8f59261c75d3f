"""Trials that are known from a table: they are over, and their folders are elsewhere or gone."""

import csv
import io
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from neurolsc.sweeps.row import Row
from neurolsc.sweeps.table import write_table
from neurolsc.sweeps.trial import Trial
from neurolsc.sweeps.work import Job
from neurolsc.untrusted.refusal import refusing
from neurolsc.untrusted.words import clean

KNOWN = "known.csv"
LONGEST = 2**26
"""bytes up to which a table is read"""
_NEEDED = ("trial", "finished", "error")
_TESTED = "test_loss"
"""a column that a trial has once it is scored on the test set"""
_WORDS = ("trial", "neurolsc", "commit", "python", "torch", "system", "device")
"""columns that are texts, whatever they look like"""


class Known:
    """Finished trials, as rows of a table.

    Args:
        rows: of each, what is told of it, by its name.
    """

    def __init__(self, rows: Mapping[str, Row]) -> None:
        self.rows = dict(rows)

    def __or__(self, other: "Known") -> "Known":
        """Both together; what both know, the other knows better."""
        return Known(self.rows | other.rows)

    def covers(self, job: Job) -> bool:
        """Whether nothing of a job is left to be done."""
        row = self.rows.get(job.trial.name)
        return row is not None and (not job.test or row.get(_TESTED) is not None)

    def row(self, trial: Trial) -> Row | None:
        """What is told of a trial; None of one that is not known.

        Raises:
            ValueError: if it was run with other settings, whose name is the same: made when
                defaults were others.
        """
        row = self.rows.get(trial.name)
        if row is None:
            return None
        settings = trial.shown()
        for name, value in settings.items():
            if name in row and row[name] != _value(name, "" if value is None else str(value)):
                raise ValueError(
                    f"{trial.name} is known with {name} {clean(repr(row[name]), 80)}, and {value!r} is asked for: "
                    "it was run when defaults were others. Say these settings in the grid file."
                )
        return row | settings

    def write(self, sweep: Path) -> None:
        """Keep them in the folder of a sweep."""
        write_table(self.rows.values(), sweep / KNOWN)


def read_known(path: Path) -> Known:
    """The finished trials of a table as :func:`neurolsc.sweeps.run_sweep` writes it.

    Rows of trials that came to an error are left out: they may be run again.

    Raises:
        ValueError: if it cannot be read, or is no such table; the message names it.
    """
    try:
        with path.open("rb") as file:
            data = file.read(LONGEST)
    except OSError as error:
        raise ValueError(f"cannot read the table {path}: {error.strerror}.") from error
    with refusing(path, "not the table of a sweep"):
        if len(data) == LONGEST:
            raise ValueError(f"a table takes less than {LONGEST} bytes.")
        reader = csv.DictReader(io.StringIO(data.decode(), newline=""), strict=True)
        if missing := [name for name in _NEEDED if name not in (reader.fieldnames or ())]:
            raise ValueError(f"not the table of a sweep: it has no column {', '.join(missing)}.")
        rows: dict[str, Row] = {}
        for number, cells in enumerate(reader, start=1):
            if None in cells or None in cells.values():
                raise ValueError(f"row {number}: a row has a cell for each of {len(reader.fieldnames or ())} columns.")
            row = {name: _value(name, cell) for name, cell in cells.items() if name != "chosen"}
            if row["finished"] is True and row["error"] is None:
                rows[cells["trial"]] = row
    return Known(rows)


def _value(name: str, cell: str) -> bool | int | float | str | None:
    """What a cell was before it was written; None of an empty one."""
    if not cell:
        return None
    if name in _WORDS:
        return cell
    if cell in ("True", "False"):
        return cell == "True"
    for kind in (int, float):
        with suppress(ValueError):
            return kind(cell)
    return cell
