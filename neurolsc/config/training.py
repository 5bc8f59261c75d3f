"""How the network is trained."""

from dataclasses import dataclass
from typing import Any, Literal

import torch

from neurolsc.conditioning import Conditioning
from neurolsc.config.setting import setting
from neurolsc.evaluation import Samples
from neurolsc.network import Network
from neurolsc.optimizer import adabelief_lookahead
from neurolsc.schedule import Constant, Cosine, CosineTo, Schedule
from neurolsc.training import TrainResult, train
from neurolsc.validation import positive, whole

SCHEDULES: dict[str, Schedule] = {"constant": Constant(), "cosine": Cosine(), "cosine-to-tenth": CosineTo(0.1)}
OPTIMIZERS = {"adabelief-lookahead": adabelief_lookahead, "adam": torch.optim.Adam}


@dataclass(frozen=True)
class TrainSettings:
    """The training.

    Raises:
        ValueError: if a number is out of range.
    """

    epochs: int = setting(20, "most epochs")
    batch_size: int = setting(32, "samples per batch")
    lr: float = setting(5e-3, "learning rate; deeper networks take less: of ten layers 2e-3 was best")
    by_gain: bool = setting(True, "divide it, for b_theta, by how far b_theta moves the threshold")
    schedule: Literal["constant", "cosine", "cosine-to-tenth"] = setting(
        "cosine",
        "course of the learning rate over all epochs: it stays, rises for 5 % of them and falls to 0, or falls to a "
        "tenth",
    )
    average_from: int = setting(
        0, "epoch from which on the mean of the weights over epochs is scored and kept; 0: never"
    )
    patience: int = setting(10, "stop after this many epochs without a better validation loss")
    optimizer: Literal["adabelief-lookahead", "adam"] = setting("adam", "Adam, or AdaBelief in Lookahead (the paper's)")
    clip_gradient: float = setting(1.0, "largest norm of the gradient; 0: not clipped")
    centralize: bool = setting(True, "take the mean of every row from the gradients of the cells' matrices")
    clip_spectrum: float = setting(0.0, "largest singular value of the recurrent weights; 0: not clipped")
    clip_weight: float = setting(0.0, "largest weight of a cell, in resting thresholds of its neuron; 0: not clipped")

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "patience"):
            whole(name, getattr(self, name))
        whole("average_from", self.average_from, at_least=0)
        positive("lr", self.lr)
        _ = self.conditioning  # which refuses bounds

    @property
    def conditioning(self) -> Conditioning:
        """What is done to gradients and weights at every update."""
        names = ("clip_gradient", "clip_spectrum", "centralize", "clip_weight")
        return Conditioning(**{name: getattr(self, name) for name in names})

    def run(self, network: Network, training: Samples, validation: Samples, *, seed: int, **more: Any) -> TrainResult:
        """Train a network; more: keywords of :func:`neurolsc.train`."""
        own = {name: getattr(self, name) for name in ("epochs", "batch_size", "lr", "by_gain", "patience")}
        own |= {"average_from": self.average_from or None}
        own |= {"optimizer": OPTIMIZERS[self.optimizer], "schedule": SCHEDULES[self.schedule]}
        own["conditioning"] = self.conditioning
        return train(network, training, validation, seed=seed, **own, **more)
