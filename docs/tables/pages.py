"""Fill the tables of figures in README, docs, cards and benchmarks/README.md: `make tables`.

A table stands between two comments, `table: NAME` and `end`. What is between them is made by the
function of that name beside this file from the results in benchmarks/results, and is never
typed. A test makes it again and compares.
"""

import re
from collections.abc import Callable
from pathlib import Path

from docs.tables import claims, elsewhere, reached, speed, study  # noqa: F401  they enter their tables
from docs.tables.results import TABLES

ROOT = Path(__file__).parents[2]
_FOLDERS = (ROOT / "docs", ROOT / "neurolsc" / "trained")
PAGES = [
    ROOT / "README.md",
    ROOT / "benchmarks" / "README.md",
    *(page for folder in _FOLDERS for page in sorted(folder.glob("*.md"))),
]
_PLACE = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)", re.S)


def places(text: str) -> list[str]:
    """The names of the tables in a text, in its order."""
    return [match[2] for match in _PLACE.finditer(text)]


def filled(text: str, tables: dict[str, Callable[[], list[str]]] = TABLES) -> str:
    """The text with all its tables made anew.

    Raises:
        ValueError: if it names a table that nobody makes.
    """

    def table(match: re.Match[str]) -> str:
        if match[2] not in tables:
            raise ValueError(f"there is no table {match[2]!r}; known are {', '.join(tables)}.")
        return "\n".join([match[1], *tables[match[2]](), "", match[3]])

    return _PLACE.sub(table, text)
