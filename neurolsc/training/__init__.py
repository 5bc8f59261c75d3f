"""Training and evaluation.

- loop: the settings, the loop with its checkpoints, and the history
- evaluation: batches, and the scores of a network on a data set
- ranks: several processes, each with its share of every batch
- optim: optimizer, learning rates, gradients and bounds
"""

from neurolsc.stability.loops import adabelief_lookahead
from neurolsc.training.evaluation import Samples, Scores, evaluate
from neurolsc.training.loop import PAPER, TrainResult, TrainSettings, train
from neurolsc.training.optim import FromTorch, parameter_groups

__all__ = [
    "PAPER",
    "FromTorch",
    "Samples",
    "Scores",
    "TrainResult",
    "TrainSettings",
    "adabelief_lookahead",
    "evaluate",
    "parameter_groups",
    "train",
]
