"""Images, events, music and words in, batches ``(x (T, B, N), labels (B,))`` out.

- ``speech``: spoken words (SHD), binned, of ``events`` (their reader, random changes).
- ``images``: MNIST as spike latencies or grey levels, and CIFAR.
- ``music``: JSB chorales. ``text``: words of published texts or of one's own.
- ``tonic``: event data sets of tonic. ``synthetic``: a value to store and to recall.
- ``batches``: items into batches, inputs for pre-training, parts of a data set.
- ``download``: published files, verified.
"""

from neurolsc.datasets.batches import Batch, collate, hold_out, input_batches
from neurolsc.datasets.events import ChannelJitter, EventFile, Events, SpikeDrop, TimeStretch
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
from neurolsc.datasets.music import JSBChorales
from neurolsc.datasets.speech import SHD, Binning
from neurolsc.datasets.synthetic import StoreRecall
from neurolsc.datasets.text import PennTreebank, Text, Vocabulary, WikiText2, Words
from neurolsc.datasets.tonic import from_tonic

__all__ = [
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
