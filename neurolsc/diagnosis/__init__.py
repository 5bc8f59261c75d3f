"""A doctor for networks that do not learn: what is wrong, why, and what to try.

`diagnose` (in `report`) takes `measurements` of a network on a batch and applies rules to them; the `Diagnosis` has
both. `try_cures` (in `cures`) tries what may help, with a few updates on copies.
"""

from neurolsc.diagnosis.cures import try_cures
from neurolsc.diagnosis.report import Diagnosis, Trial, diagnose

__all__ = ["Diagnosis", "Trial", "diagnose", "try_cures"]
