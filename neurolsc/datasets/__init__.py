"""Images and events in, batches ``(x (T, B, N), labels (B,))`` out."""

from neurolsc.datasets.batches import input_batches
from neurolsc.datasets.collate import collate
from neurolsc.datasets.idx import read_idx
from neurolsc.datasets.latency import LatencyEncoding, latency_frames, spike_latency
from neurolsc.datasets.mnist import SpikeLatencyMNIST

__all__ = [
    "LatencyEncoding",
    "SpikeLatencyMNIST",
    "collate",
    "input_batches",
    "latency_frames",
    "read_idx",
    "spike_latency",
]
