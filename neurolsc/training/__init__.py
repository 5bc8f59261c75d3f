"""Training and evaluation.

Map: `loop` has the settings, the loop with its checkpoints, and the history; `evaluation` the scores of a network on a
data set; `optim` what an update is made of; `fingerprint` what has to be equal where a run goes on.
"""

from neurolsc.training.evaluation import Samples, Scores, evaluate
from neurolsc.training.loop import PAPER, TrainResult, TrainSettings, train
from neurolsc.training.optim import adabelief_lookahead, parameter_groups

__all__ = [
    "PAPER",
    "Samples",
    "Scores",
    "TrainResult",
    "TrainSettings",
    "adabelief_lookahead",
    "evaluate",
    "parameter_groups",
    "train",
]
