"""All trials as one table, a row each."""

import csv
import io
from collections.abc import Iterable
from pathlib import Path

from neurolsc.runs import write_text
from neurolsc.sweeps.row import Row

TABLE = "table.csv"


def write_table(rows: Iterable[Row], path: Path) -> None:
    """Write rows as CSV, whole or not at all; columns that a row lacks are empty."""
    rows = list(rows)
    columns = dict.fromkeys(name for row in rows for name in row)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())
