"""Which data."""

from dataclasses import dataclass, fields
from typing import Any, Literal

from neurolsc.config.setting import setting
from neurolsc.datasets import SHD, ChannelJitter, SpikeDrop, SpikeLatencyMNIST, StoreRecall, TimeStretch
from neurolsc.datasets.augment import Augmentation
from neurolsc.datasets.events import UNITS
from neurolsc.datasets.recall import PERIOD
from neurolsc.datasets.shd import Cached
from neurolsc.datasets.splits import By
from neurolsc.tasks import Classification


@dataclass(frozen=True)
class DataSettings:
    """Which data."""

    data: Literal["sl-mnist", "shd", "store-recall"] = setting(
        "sl-mnist", "data set: spike-latency MNIST, spoken digits in SHD's form, or values to store and recall"
    )
    root: str = setting("", "folder of the full data set, downloaded if missing; empty: the sample in the package")
    split_seed: int = setting(0, "of the split into training and validation; of the samples that are made")
    split_by: By = setting("random", "shd: hold out random utterances for validation, or whole speakers")
    split_share: float = setting(0.1, "shd: share of the training utterances or speakers held out")
    shift: int = setting(0, "sl-mnist, training only: most pixels by which an image is moved")
    dt: float = setting(4e-3, "shd: width of a bin, in seconds")
    window: float = setting(1.0, "shd: length of the recording, in seconds; 0: each utterance to its last spike")
    channels: int = setting(UNITS, "shd: number of inputs; a divisor of 700 counts neighbouring units together")
    repeat: int = setting(2, "shd: how often each frame is shown")
    binary: bool = setting(False, "shd: 1 for every count above 0")
    channel_jitter: float = setting(0.0, "shd, training only: deviation by which spikes change units")
    time_stretch: float = setting(0.0, "shd, training only: times scaled by 1 - this to 1 + this")
    spike_drop: float = setting(0.0, "shd, training only: probability that a spike is left out")
    delay: int = setting(100, "store-recall: steps between storing and recalling")
    cache: str = setting("", "shd: folder for copies that are read without HDF5; empty: none")
    cached: Cached = setting("spikes", "shd: what is kept there: spikes, or frames, which are faster and larger")

    @property
    def title(self) -> str:
        """What the data are, in words."""
        if self.data == "store-recall":
            return f"store and recall after {self.delay} steps"
        name = "spike-latency MNIST" if self.data == "sl-mnist" else "spoken digits"
        return name if self.root else f"{name} (sample in the package)"

    @property
    def task(self) -> Classification:
        """What is asked of a network: the label at every step, or what was stored, in the end."""
        return Classification(last=PERIOD) if self.data == "store-recall" else Classification()

    def load(self, split: Literal["train", "validation", "test"]) -> SpikeLatencyMNIST | SHD | StoreRecall:
        """One split of the data.

        Raises:
            ValueError: if a setting of one data set is given with another, or the data are damaged.
        """
        self._refuse_others()
        if self.data == "store-recall":
            return StoreRecall(split, seed=self.split_seed, delay=self.delay)
        if self.data == "sl-mnist":
            shift = self.shift if split == "train" else 0
            if self.root:
                return SpikeLatencyMNIST(self.root, split, seed=self.split_seed, shift=shift)
            return SpikeLatencyMNIST.embedded(split, seed=self.split_seed, shift=shift)
        given: dict[str, Any] = {name: getattr(self, name) for name in ("dt", "channels", "repeat", "binary")}
        given |= {"by": self.split_by, "share": self.split_share, "seed": self.split_seed}
        given |= {"window": self.window or None, "cache": self.cache or None, "cached": self.cached}
        given["augment"] = self._augmentations() if split == "train" else ()
        return SHD(self.root, split, **given) if self.root else SHD.embedded(split, **given)

    def _refuse_others(self) -> None:
        """Refuse settings of another data set."""
        for owner in ("sl-mnist", "shd", "store-recall"):
            own = [f for f in fields(self) if f.metadata["help"].startswith(owner)]
            odd = [f.name for f in own if getattr(self, f.name) != f.default]
            if odd and self.data != owner:
                raise ValueError(f"{', '.join(odd)}: for data = {owner} only, got data = {self.data}.")
        if self.data == "store-recall" and self.root:
            raise ValueError("root: data = store-recall are made, not read.")

    def _augmentations(self) -> list[Augmentation]:
        wanted: list[Augmentation] = []
        if self.channel_jitter:
            wanted.append(ChannelJitter(self.channel_jitter))
        if self.time_stretch:
            wanted.append(TimeStretch(1 - self.time_stretch, 1 + self.time_stretch))
        if self.spike_drop:
            wanted.append(SpikeDrop(self.spike_drop))
        return wanted
