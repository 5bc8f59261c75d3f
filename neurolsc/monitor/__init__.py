"""A monitor for any training loop: what changed in a network, at which update, and what changed before it.

`Monitor` (in `report`) takes a row of `measurements` every so many updates; `rules` read the rows.
"""

from neurolsc.monitor.report import Monitor
from neurolsc.monitor.rules import Event

__all__ = ["Event", "Monitor"]
