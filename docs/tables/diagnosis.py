"""The faults that `diagnose` finds, from its own table."""

from docs.tables.results import rows, table
from neurolsc.diagnosis import FAULTS


@table
def faults() -> list[str]:
    """Each kind of fault, when it is one, and what is to be done."""
    body = [[fault.name, fault.condition, fault.advice, "yes" if fault.treatment else ""] for fault in FAULTS]
    return rows(["fault", "it is one if", "what to do", "tried"], body)
