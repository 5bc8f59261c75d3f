"""Images, events, music and words in, batches ``(x (T, B, N), labels (B,))`` out.

- Images: ``mnist`` (the data set), ``mnist_files`` and ``idx`` (its files), ``latency`` (pixels as
  the time of one spike), ``released`` (the same as the paper's released code has it); ``pixels``
  (images as they are), ``cifar`` and ``cifar_files``.
- Music: ``jsb`` (chorales), ``jsb_files`` (their file).
- Words: ``words`` (a text in windows), ``vocabulary``, ``text`` (files of one's own), ``ptb`` and
  ``wikitext`` (published ones), ``word_switch`` (changed words).
- Events: ``shd`` (the data set), ``shd_files`` (its files), ``events`` (spikes and their reader),
  ``binning`` (spikes into frames), ``augment`` (changed spikes), ``summary`` (a file in numbers).
- Of others: ``from_tonic`` (any event data set of tonic).
- Made, not read: ``recall`` (a value to store and to recall).
- Kept on disk: ``event_cache`` (spikes), ``frame_cache`` (frames), ``cache`` (what both share),
  ``store`` (folders with checksums).
- From elsewhere: ``download``.
- Batches: ``collate`` (items into one), ``batches`` (inputs for pre-training), ``splits`` (parts).
"""

from neurolsc.datasets.augment import ChannelJitter, SpikeDrop, TimeStretch
from neurolsc.datasets.batches import input_batches
from neurolsc.datasets.binning import Binning
from neurolsc.datasets.cifar import CIFAR10, CIFAR100
from neurolsc.datasets.collate import Batch, collate, collate_padded
from neurolsc.datasets.event_cache import EventCache
from neurolsc.datasets.events import EventFile, Events
from neurolsc.datasets.frame_cache import FrameCache
from neurolsc.datasets.from_tonic import TonicFrames, from_tonic
from neurolsc.datasets.idx import read_idx
from neurolsc.datasets.jsb import JSBChorales
from neurolsc.datasets.latency import LatencyEncoding, latency_frames, spike_latency
from neurolsc.datasets.mnist import SpikeLatencyMNIST
from neurolsc.datasets.pixels import MNISTPixels, Pixels
from neurolsc.datasets.ptb import PennTreebank
from neurolsc.datasets.recall import StoreRecall
from neurolsc.datasets.released import ReleasedEncoding
from neurolsc.datasets.shd import SHD
from neurolsc.datasets.splits import hold_out
from neurolsc.datasets.text import Text
from neurolsc.datasets.vocabulary import Vocabulary
from neurolsc.datasets.wikitext import WikiText2
from neurolsc.datasets.word_switch import WordSwitch
from neurolsc.datasets.words import Words

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "SHD",
    "Batch",
    "Binning",
    "ChannelJitter",
    "EventCache",
    "EventFile",
    "Events",
    "FrameCache",
    "JSBChorales",
    "LatencyEncoding",
    "MNISTPixels",
    "PennTreebank",
    "Pixels",
    "ReleasedEncoding",
    "SpikeDrop",
    "SpikeLatencyMNIST",
    "StoreRecall",
    "Text",
    "TimeStretch",
    "TonicFrames",
    "Vocabulary",
    "WikiText2",
    "WordSwitch",
    "Words",
    "collate",
    "collate_padded",
    "from_tonic",
    "hold_out",
    "input_batches",
    "latency_frames",
    "read_idx",
    "spike_latency",
]
