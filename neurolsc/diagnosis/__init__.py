"""A doctor for networks that do not learn: what is wrong, why, and what to try.

`diagnose` (in `report`) takes `measurements` of a network on a batch and applies the rules of `faults` to them; the
`Diagnosis` holds both. `try_cures` tries what may help, with a few updates on copies.
"""

from neurolsc.diagnosis.report import Diagnosis, Trial, diagnose, try_cures

__all__ = ["Diagnosis", "Trial", "diagnose", "try_cures"]
