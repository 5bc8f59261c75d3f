"""Data sets of images, events, music and words as batches ``(x (T, B, N), labels (B,))``.

- ``speech``: spoken words (SHD), their spikes counted in bins, and random changes of their spikes.
- ``images``: MNIST as spike latencies or grey levels, and CIFAR.
- ``sequences``: words of texts, slots of queries, chorales, a value to store and to recall.
- ``tonic``: event data sets of tonic.
- ``batches``: items into batches, inputs for pre-training, parts of a data set.
- ``download``: published files, verified.
"""

from neurolsc.datasets.batches import Batch, collate, hold_out, input_batches
from neurolsc.datasets.images import (
    CIFAR10,
    CIFAR100,
    LatencyEncoding,
    MNISTPixels,
    Pixels,
    ReleasedEncoding,
    SequentialMNIST,
    SpikeLatencyMNIST,
    read_idx,
    spike_latency,
)
from neurolsc.datasets.sequences import (
    ATIS,
    JSBChorales,
    PennTreebank,
    StoreRecall,
    Text,
    Vocabulary,
    WikiText2,
    Words,
)
from neurolsc.datasets.speech import SHD, Binning, ChannelJitter, EventFile, Events, SpikeDrop, TimeStretch
from neurolsc.datasets.tonic import from_tonic

__all__ = [
    "ATIS",
    "CIFAR10",
    "CIFAR100",
    "SHD",
    "Batch",
    "Binning",
    "ChannelJitter",
    "EventFile",
    "Events",
    "JSBChorales",
    "LatencyEncoding",
    "MNISTPixels",
    "PennTreebank",
    "Pixels",
    "ReleasedEncoding",
    "SequentialMNIST",
    "SpikeDrop",
    "SpikeLatencyMNIST",
    "StoreRecall",
    "Text",
    "TimeStretch",
    "Vocabulary",
    "WikiText2",
    "Words",
    "collate",
    "from_tonic",
    "hold_out",
    "input_batches",
    "read_idx",
    "spike_latency",
]
