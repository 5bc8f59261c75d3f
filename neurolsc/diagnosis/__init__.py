"""A doctor for networks that do not learn: what is wrong, why, and what to try.

`diagnose` (in `report`) takes `measurements` of a network on a batch and judges them by the table of `faults`, whose
`rules` read a `case`; the `Diagnosis` has both. `losses` reads the user's loss, `causes` measures what a fault comes
from, `cures` treats and trains copies, and `try_cures` (in `trials`) compares treated copies with an untreated one.
"""

from neurolsc.diagnosis.faults import FAULTS, Bounds, Fault
from neurolsc.diagnosis.report import Diagnosis, Trial, diagnose
from neurolsc.diagnosis.trials import try_cures

__all__ = ["FAULTS", "Bounds", "Diagnosis", "Fault", "Trial", "diagnose", "try_cures"]
