"""A table as CSV and as Markdown."""

from pathlib import Path
from typing import Any

from neurolsc.experiment.table import TABLE
from neurolsc.io import write_csv, write_text

MARKDOWN = "table.md"


def write_tables(rows: list[dict[str, Any]], out: Path) -> None:
    """Write rows, whose columns are those of the first, as table.csv and table.md."""
    write_csv(out / TABLE, rows)
    titles = list(rows[0])
    lines = [titles, ["---"] * len(titles), *([told(row[title]) for title in titles] for row in rows)]
    write_text(out / MARKDOWN, "".join(f"| {' | '.join(line)} |\n" for line in lines))


def told(value: Any) -> str:
    """A cell of a table as text."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
