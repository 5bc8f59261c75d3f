"""Deep recurrent spiking networks made trainable: local stability is set before training."""

from neurolsc import datasets, export, init, metrics, surrogate, tasks, theory
from neurolsc.advice import initialize
from neurolsc.diagnosis import Diagnosis, diagnose, try_cures
from neurolsc.interop.accelerate import NotAcceleratedWarning, accelerate
from neurolsc.interop.saved import load, save
from neurolsc.interop.wrap import wrap
from neurolsc.interop.wrapped import WrappedNeuronWarning
from neurolsc.monitor import Monitor
from neurolsc.network import Embedding, Network, NetworkState, Run
from neurolsc.neurons import (
    GRU,
    LIF,
    LRU,
    LSTM,
    RNN,
    ALIFLowPass,
    ALIFPlus,
    ALIFPlusMinus,
    ALIFPositive,
    ALIFState,
    Cell,
    FeedForward,
    LIFState,
    ScaledParameter,
    SpikingCell,
    register,
)
from neurolsc.stability import (
    Criteria,
    PaperRule,
    PretrainResult,
    RadiusProfile,
    TransitionRule,
    match_firing_rates,
    pretrain,
    radius_profile,
    scale_to_radius,
    spectral_radius,
)
from neurolsc.training import Scores, TrainResult, evaluate, train

__version__ = "0.1.0"

__all__ = [
    "GRU", "LIF", "LRU", "LSTM", "RNN", "ALIFLowPass", "ALIFPlus", "ALIFPlusMinus", "ALIFPositive", "ALIFState",
    "Cell", "Criteria", "Diagnosis", "Embedding", "FeedForward", "LIFState", "Monitor", "Network", "NetworkState",
    "NotAcceleratedWarning", "PaperRule", "PretrainResult", "RadiusProfile", "Run", "ScaledParameter", "Scores", "SpikingCell",
    "TrainResult", "TransitionRule", "WrappedNeuronWarning", "accelerate", "datasets", "diagnose", "evaluate", "export",
    "init", "initialize", "load", "match_firing_rates", "metrics", "pretrain", "radius_profile", "register",
    "save", "scale_to_radius", "spectral_radius", "surrogate", "tasks", "theory", "train", "try_cures", "wrap",
]  # fmt: skip
