"""A doctor for networks that do not learn: figures, what is wrong, why, and what to try.

`diagnose` (in `examine`) looks at a network on a `batch`, whose axes may be in the wrong `order`,
and collects `figures`; `faults` names what is wrong with layers, `training_faults` what is wrong
with data and training. The `report` holds all that. `cures` are the things to try, `trial` tries
them with a few `updates` on copies.
"""

from neurolsc.diagnosis.examine import diagnose
from neurolsc.diagnosis.report import Diagnosis, Trial
from neurolsc.diagnosis.trial import try_cures

__all__ = ["Diagnosis", "Trial", "diagnose", "try_cures"]
