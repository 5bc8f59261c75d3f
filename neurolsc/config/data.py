"""Which data."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from neurolsc.config.setting import setting
from neurolsc.datasets import (
    CIFAR10,
    CIFAR100,
    SHD,
    ChannelJitter,
    JSBChorales,
    MNISTPixels,
    PennTreebank,
    Pixels,
    ReleasedEncoding,
    SpikeDrop,
    SpikeLatencyMNIST,
    StoreRecall,
    Text,
    TimeStretch,
    WikiText2,
    Words,
    WordSwitch,
)
from neurolsc.datasets.augment import Augmentation
from neurolsc.datasets.events import UNITS
from neurolsc.datasets.recall import PERIOD
from neurolsc.datasets.shd import Cached
from neurolsc.datasets.splits import By
from neurolsc.datasets.words import WordOptions
from neurolsc.tasks import BinaryPerStep, Classification, ClassPerStep

Name = Literal["sl-mnist", "shd", "store-recall", "jsb", "text", "ptb", "wikitext-2", "mnist", "cifar10", "cifar100"]
Split = Literal["train", "validation", "test"]
EncodingName = Literal["text", "released"]
DataTask = Classification | ClassPerStep | BinaryPerStep
"""Tasks that the settings know."""
Loaded = SpikeLatencyMNIST | SHD | StoreRecall | JSBChorales | Words | Pixels

TITLES: Mapping[str, str] = {
    "sl-mnist": "spike-latency MNIST",
    "shd": "spoken digits",
    "jsb": "JSB Chorales",
    "text": "text",
    "ptb": "Penn Treebank",
    "wikitext-2": "WikiText-2",
    "mnist": "MNIST pixels",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
}
OF_WORDS = ("text", "ptb", "wikitext-2")
WITHOUT_SAMPLE = ("ptb", "wikitext-2", "cifar10", "cifar100")
"""of which the package holds nothing"""


@dataclass(frozen=True)
class DataSettings:
    """The data."""

    data: Name = setting(
        "sl-mnist",
        "data set: spike-latency MNIST, spoken digits in SHD's form, values to store and recall, chorales, words of a "
        "text, of the Penn Treebank or of WikiText-2, or images as they are",
    )
    root: str = setting("", "folder of the full data set, downloaded if missing; empty: the sample in the package")
    split_seed: int = setting(0, "of the split into training and validation; of the samples that are made")
    split_by: By = setting("random", "shd: hold out random utterances for validation, or whole speakers")
    split_share: float = setting(0.1, "shd, text: share of the training utterances, speakers or words held out")
    shift: int = setting(0, "sl-mnist, training only: most pixels by which an image is moved")
    encoding: EncodingName = setting(
        "text", "sl-mnist: spikes as the paper's text has them, or as its released code, where time is place"
    )
    dt: float = setting(4e-3, "shd: width of a bin, in seconds")
    window: float = setting(1.0, "shd: length of the recording, in seconds; 0: each utterance to its last spike")
    channels: int = setting(UNITS, "shd: number of inputs; a divisor of 700 counts neighbouring units together")
    repeat: int = setting(2, "shd, text, ptb, wikitext-2: how often each frame or word is shown")
    binary: bool = setting(False, "shd: 1 for every count above 0")
    channel_jitter: float = setting(0.0, "shd, training only: deviation by which spikes change units")
    time_stretch: float = setting(0.0, "shd, training only: times scaled by 1 - this to 1 + this")
    spike_drop: float = setting(0.0, "shd, training only: probability that a spike is left out")
    delay: int = setting(100, "store-recall: steps between storing and recalling")
    words: int = setting(100, "text, ptb, wikitext-2: words in a window")
    streams: int = setting(
        0, "text, ptb, wikitext-2: parts read side by side, with a state that goes on; 0: every window by itself"
    )
    word_switch: float = setting(0.0, "text, ptb, wikitext-2, training only: probability that a word read is another")
    word_switch_epochs: int = setting(0, "text, ptb, wikitext-2: the first epochs, in which they are; 0: all")
    text_train: str = setting("train.txt", "text: file in the root that is trained on")
    text_validation: str = setting(
        "", "text: file in the root that decides when to stop; empty: the last lines of the other, by split_share"
    )
    text_test: str = setting("test.txt", "text: file in the root that is kept for the test")
    rare: int = setting(1, "text: words that are rarer in what is trained on are <unk>")
    cache: str = setting("", "shd: folder for copies that are read without HDF5; empty: none")
    cached: Cached = setting("spikes", "shd: what is kept there: spikes, or frames, which are faster and larger")

    @property
    def title(self) -> str:
        """What the data are, in words."""
        if self.data == "store-recall":
            return f"store and recall after {self.delay} steps"
        name = TITLES[self.data] + (", released encoding" if self.encoding == "released" else "")
        if self.data == "text" and self.root:
            return f"{name} ({Path(self.root).name}: {self.text_train})"
        return name if self.root else f"{name} (sample in the package)"

    @property
    def task(self) -> DataTask:
        """What is asked of a network: the label, what was stored, the next chord or word."""
        if self.data == "store-recall":
            return Classification(last=PERIOD)
        if self.data == "jsb":
            return BinaryPerStep()
        return ClassPerStep() if self.data in OF_WORDS else Classification()

    def load(self, split: Split) -> Loaded:
        """One split of the data.

        Raises:
            ValueError: if a setting of one data set is given with another, a root is missing, or
                the data are damaged.
        """
        self._refuse_others()
        match self.data:
            case "store-recall":
                return StoreRecall(split, seed=self.split_seed, delay=self.delay)
            case "sl-mnist":
                return self._latencies(split)
            case "jsb":
                return JSBChorales(self.root, split) if self.root else JSBChorales.embedded(split)
            case "mnist":
                seed = self.split_seed
                return MNISTPixels(self.root, split, seed=seed) if self.root else MNISTPixels.embedded(split, seed=seed)
            case "cifar10":
                return CIFAR10(self.root, split, seed=self.split_seed)
            case "cifar100":
                return CIFAR100(self.root, split, seed=self.split_seed)
            case "shd":
                return self._spoken(split)
        return self._words(split)

    def _latencies(self, split: Split) -> SpikeLatencyMNIST:
        given: dict[str, Any] = {"seed": self.split_seed, "shift": self.shift if split == "train" else 0}
        if self.encoding == "released":
            given["encoding"] = ReleasedEncoding()
        return SpikeLatencyMNIST(self.root, split, **given) if self.root else SpikeLatencyMNIST.embedded(split, **given)

    def _spoken(self, split: Split) -> SHD:
        given: dict[str, Any] = {name: getattr(self, name) for name in ("dt", "channels", "repeat", "binary")}
        given |= {"by": self.split_by, "share": self.split_share, "seed": self.split_seed}
        given |= {"window": self.window or None, "cache": self.cache or None, "cached": self.cached}
        given["augment"] = self._augmentations() if split == "train" else ()
        return SHD(self.root, split, **given) if self.root else SHD.embedded(split, **given)

    def _words(self, split: Split) -> Words:
        switch = (
            (WordSwitch(self.word_switch, self.word_switch_epochs),) if self.word_switch and split == "train" else ()
        )
        given: WordOptions = {"steps": self.words, "repeat": self.repeat, "augment": switch}
        given["streams"] = self.streams or None
        if self.data == "ptb":
            return PennTreebank(self.root, split, **given)
        if self.data == "wikitext-2":
            return WikiText2(self.root, split, **given)
        if not self.root:
            return Text.embedded(split, **given)
        root = Path(self.root)
        return Text.from_files(
            split,
            train=root / self.text_train,
            validation=root / self.text_validation if self.text_validation else None,
            test=root / self.text_test,
            share=self.split_share,
            at_least=self.rare,
            **given,
        )

    def _refuse_others(self) -> None:
        """Refuse settings of another data set."""
        odd: dict[tuple[str, ...], list[str]] = {}
        for f in fields(self):
            owners = owners_of(f.metadata["help"])
            if owners and self.data not in owners and getattr(self, f.name) != f.default:
                odd.setdefault(owners, []).append(f.name)
        for owners, names in odd.items():
            raise ValueError(f"{', '.join(names)}: for data = {' or '.join(owners)} only, got data = {self.data}.")
        if self.word_switch_epochs and not self.word_switch:
            raise ValueError("word_switch_epochs: of a word_switch above 0, and it is 0.")
        if self.data == "store-recall" and self.root:
            raise ValueError("root: data = store-recall are made, not read.")
        if self.data in WITHOUT_SAMPLE and not self.root:
            raise ValueError(f"root: the package holds no sample of {self.data}; name a folder to keep it in.")
        if self.data == "text" and not self.root:
            files = ("split_share", "text_train", "text_validation", "text_test", "rare")
            given = [f.name for f in fields(self) if f.name in files and getattr(self, f.name) != f.default]
            if given:
                raise ValueError(f"{', '.join(given)}: for texts in a root; the sample in the package has its own.")

    def _augmentations(self) -> list[Augmentation]:
        wanted: list[Augmentation] = []
        if self.channel_jitter:
            wanted.append(ChannelJitter(self.channel_jitter))
        if self.time_stretch:
            wanted.append(TimeStretch(1 - self.time_stretch, 1 + self.time_stretch))
        if self.spike_drop:
            wanted.append(SpikeDrop(self.spike_drop))
        return wanted


def owners_of(text: str) -> tuple[str, ...]:
    """The data sets that a setting belongs to, which its help begins with; none: all."""
    words = text.partition(":")[0].split(", ")
    return tuple(word for word in words if word in get_args(Name))
