"""Tables in README, docs, cards and benchmarks/README.md: `make tables`.

A table stands between two comments, `table: NAME` and `end`. A function of that name makes it from
benchmarks/results; a test makes it again and compares. results: reading and writing; reached, speed,
elsewhere, study, neurons, claims, users: the tables; diagnosis: those of `diagnose`, made from its code.
"""

import re
from pathlib import Path

from docs.tables import (  # noqa: F401  they enter their tables
    claims,
    diagnosis,
    elsewhere,
    neurons,
    reached,
    speed,
    study,
    users,
)
from docs.tables.results import TABLES

ROOT = Path(__file__).parents[2]
_FOLDERS = (ROOT / "docs", ROOT / "neurolsc" / "trained")
PAGES = [
    ROOT / "README.md",
    ROOT / "benchmarks" / "README.md",
    *(page for folder in _FOLDERS for page in sorted(folder.glob("*.md"))),
]


def filled(text: str) -> str:
    """The text with all its tables made anew."""
    return re.sub(
        r"(<!-- table: (.+?) -->\n).*?(<!-- end -->)",
        lambda place: "\n".join([place[1], *TABLES[place[2]](), "", place[3]]),
        text,
        flags=re.S,
    )
