"""Settings of a run, each declared once: default, help, and the data sets that it belongs to.

The command line, TOML files, grids of sweeps and saved runs read the fields of these classes.
"""

import inspect
import reprlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch

from neurolsc import datasets
from neurolsc.datasets.batches import BatchDataset, By, Split
from neurolsc.datasets.images import check_shift
from neurolsc.datasets.sequences import PERIOD
from neurolsc.datasets.speech import UNITS
from neurolsc.init import LSC, named
from neurolsc.init.spectral import Method
from neurolsc.io import clean, load
from neurolsc.network import Embedding, Network
from neurolsc.neurons.cell import CELLS, SURROGATES
from neurolsc.neurons.spiking import ResetName
from neurolsc.stability.rules import LoopName
from neurolsc.tasks import BinaryPerStep, Classification, ClassPerStep
from neurolsc.training import TrainSettings
from neurolsc.validation import meant, number, probability, setting, whole, words_of

DataName = Literal[
    "sl-mnist",
    "shd",
    "store-recall",
    "jsb",
    "text",
    "ptb",
    "ptb-characters",
    "wikitext-2",
    "mnist",
    "smnist",
    "psmnist",
    "cifar10",
    "cifar100",
]
DataTask = Classification | ClassPerStep | BinaryPerStep

# ---- the network

OF_A_CELL = ("tau_v", "tau_theta", "b_theta", "adaptation", "reset", "reset_gradient", "activation", "exterior_dropout")
OF_A_SPIKE = ("surrogate", "dampening", "sharpness", "learnable")


@dataclass(frozen=True)
class NetworkSettings:
    """The network."""

    cell: str = setting("ALIFPlus", "neuron of every layer: a known one, or package.module:Class")
    layers: int = setting(2, "number of layers")
    width: int = setting(128, "neurons per layer")
    surrogate: str = setting("FastSigmoid", "shape of the surrogate gradient: a known one, or package.module:Class")
    dampening: float = setting(0.5, "height of the surrogate")
    sharpness: float = setting(1.0, "sharpness of the surrogate")
    learnable: bool = setting(False, "train dampening and sharpness, one pair per layer")
    tau_v: float = setting(0.1, "mean time constant of the voltage, in steps (the paper's 0.1: no memory)")
    tau_theta: float = setting(100.0, "mean time constant of the threshold, in steps")
    b_theta: float = setting(0.01, "mean constant input of the threshold")
    adaptation: float = setting(1.8, "mean rise of the threshold at a spike")
    reset: ResetName = setting("subtract", "what a spike does to the voltage")
    reset_gradient: bool = setting(False, "let a gradient through the reset")
    activation: str = setting("relu", "activation of RNN and FeedForward: relu, sigmoid, tanh, swish, sine, ...")
    exterior_dropout: float = setting(0.0, "LRU: dropout of a layer's input, before its norm and its skip connection")
    layer_delay: int = setting(1, "steps until a layer reads the one below: 1 (paper) or 0")
    readout_bias: bool = setting(False, "give the readout a bias")
    embedding: int = setting(0, "words: entries of their vectors, and width of the last layer; 0: the width of all")
    weights: str = setting("", "start from this network file; other settings of the network are then not used")
    seed: int = setting(0, "of weights, batches and everything that is drawn")

    def __post_init__(self) -> None:
        for name in ("layers", "width"):
            whole(name, getattr(self, name))
        whole("embedding", self.embedding, at_least=0)
        _check_seed("seed", self.seed, bits=44)  # pre-training multiplies it by a million, and torch takes 64 bits

    def check(self, *, of_words: bool) -> None:
        """Raise a ``ValueError`` for a setting with which no network can be built, whatever the data.

        Args:
            of_words: True for data that are words.
        """
        cell, _ = self._cell(of_words)
        # a cell of one's own may need the number of inputs that the data have
        if cell.__module__.startswith("neurolsc.") and not self.weights:
            with torch.random.fork_rng(devices=[]):
                self.build(self.width, self.width, self.width if of_words else None)

    def _cell(self, of_words: bool) -> tuple[type[Any], set[str]]:
        """Return the class of the cells, and the arguments of its constructor.

        Raises:
            ValueError: if there is no such cell, it does not take a setting that differs from its default, or a setting
                is for other data.
        """
        cell = CELLS.find(self.cell)  # imports the module of a cell of one's own, which `load` needs as well
        taken: set[str] = set()
        for base in cell.__mro__:
            if "__init__" in vars(base):
                parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
                taken |= {p.name for p in parameters}
                if not any(p.kind is p.VAR_KEYWORD for p in parameters):
                    break  # it passes nothing on to the constructor of the next base
        if self.weights:
            return cell, taken
        not_taken = set(OF_A_CELL) - taken
        if "spike" not in taken:  # the cell takes no surrogate, which the settings of OF_A_SPIKE make
            not_taken |= set(OF_A_SPIKE)
        if refused := [f.name for f in fields(self) if f.name in not_taken and getattr(self, f.name) != f.default]:
            raise ValueError(f"a cell {self.cell} does not take {', '.join(refused)}.")
        if (not of_words and self.embedding) or (of_words and self.readout_bias):
            raise ValueError("embedding is only for data that are words, readout_bias only for others.")
        return cell, taken

    def build(self, n_in: int, n_out: int, words: int | None = None) -> Network:
        """Return the network of the file `weights`, or a new one with weights drawn from the seed.

        Args:
            n_in: number of inputs.
            n_out: number of classes.
            words: size of the vocabulary, if inputs are token indices: an embedding reads and predicts them.

        Raises:
            ValueError: if cell or surrogate are not known, the cell does not take a setting that differs from its
                default, or an embedding is set for data without words.
        """
        cell, taken = self._cell(words is not None)
        if self.weights:
            return load(self.weights)
        torch.manual_seed(self.seed)
        widths = [n_in, *[self.width] * self.layers]
        if words is not None:  # the first layer reads vectors of words; the last one's output is compared with them
            widths[0] = widths[-1] = self.embedding or self.width
        arguments: dict[str, Any] = {name: getattr(self, name) for name in OF_A_CELL if name in taken}
        surrogate: Any = SURROGATES.find(self.surrogate) if "spike" in taken else None
        cells = []
        for below, width in pairwise(widths):
            if surrogate is not None:  # a new one for each layer: it may be learnable
                arguments["spike"] = surrogate(self.dampening, self.sharpness, learnable=self.learnable)
            cells.append(cell(below, width, **arguments))
        options: Any = {"layer_delay": self.layer_delay, "readout_bias": self.readout_bias}
        if words is None:
            return Network(cells, n_out, **options)
        return Network(cells, embedding=Embedding(words, widths[0]), **options)


def _check_seed(name: str, value: int, *, bits: int) -> None:
    """Raise a ``ValueError`` if a seed is negative or has more bits."""
    if whole(name, value, at_least=0) >= 2**bits:
        raise ValueError(f"{name} must be below {2**bits}, got {value}.")


# ---- the data

TEXTS: tuple[DataName, ...] = ("text", "ptb", "ptb-characters", "wikitext-2")
WITHOUT_SAMPLE = (*TEXTS[1:], "cifar10", "cifar100")
DATA: dict[DataName, tuple[str, DataTask, type[Any]]] = {  # title, task, class
    "sl-mnist": ("spike-latency MNIST", Classification(), datasets.SpikeLatencyMNIST),
    "shd": ("spoken digits", Classification(), datasets.SHD),
    "store-recall": ("store and recall", Classification(last=PERIOD), datasets.StoreRecall),
    "jsb": ("JSB Chorales", BinaryPerStep(), datasets.JSBChorales),
    "text": ("text", ClassPerStep(), datasets.Text),
    "ptb": ("Penn Treebank", ClassPerStep(), datasets.PennTreebank),
    "ptb-characters": ("Penn Treebank, characters", ClassPerStep(), datasets.PennTreebank),
    "wikitext-2": ("WikiText-2", ClassPerStep(), datasets.WikiText2),
    "mnist": ("MNIST pixels", Classification(), datasets.MNISTPixels),
    "smnist": ("sequential MNIST", Classification(), datasets.SequentialMNIST),
    "psmnist": ("permuted sequential MNIST", Classification(), datasets.SequentialMNIST),
    "cifar10": ("CIFAR-10", Classification(), datasets.CIFAR10),
    "cifar100": ("CIFAR-100", Classification(), datasets.CIFAR100),
}


@dataclass(frozen=True)
class DataSettings:
    """The data."""

    data: DataName = setting(
        "sl-mnist",
        "data set: spike-latency MNIST, spoken digits in SHD's form, values to store and recall, chorales, words of a "
        "text, of the Penn Treebank or of WikiText-2, or images as they are or "
        "pixel by pixel, in order (smnist) or permuted (psmnist)",
    )
    root: str = setting(
        "", "folder of the full data set, into which missing files are downloaded; empty: the sample in the package"
    )
    split_seed: int = setting(0, "of the split into training and validation; of the samples that are made")
    split_by: By = setting("random", "hold out random utterances for validation, or whole speakers", "shd")
    split_share: float = setting(0.1, "share of the training utterances, speakers or words held out", "shd", "text")
    shift: int = setting(0, "training only: most pixels by which an image is moved", "sl-mnist")
    encoding: Literal["text", "released"] = setting(
        "text", "spikes as the paper's text has them, or as its released code, where time is place", "sl-mnist"
    )
    dt: float = setting(4e-3, "width of a bin, in seconds", "shd")
    window: float = setting(1.0, "length of the recording, in seconds; 0: each utterance to its last spike", "shd")
    channels: int = setting(UNITS, "number of inputs; a divisor of 700 counts neighbouring units together", "shd")
    repeat: int = setting(2, "how often each frame or word is shown", "shd", *TEXTS)
    binary: bool = setting(False, "1 for every count above 0", "shd")
    channel_jitter: float = setting(0.0, "training only: deviation by which spikes change units", "shd")
    time_stretch: float = setting(0.0, "training only: times scaled by 1 - this to 1 + this", "shd")
    spike_drop: float = setting(0.0, "training only: probability that a spike is left out", "shd")
    delay: int = setting(100, "steps between storing and recalling", "store-recall")
    words: int = setting(100, "words in a window", *TEXTS)
    streams: int = setting(0, "parts read in parallel, with a state that goes on; 0: each window by itself", *TEXTS)
    word_switch: float = setting(0.0, "training only: probability that a word read is another", *TEXTS)
    word_switch_epochs: int = setting(0, "the first epochs, in which words are switched; 0: all", *TEXTS)
    text_train: str = setting("train.txt", "file in the root that is trained on", "text")
    text_validation: str = setting(
        "",
        "file in the root for early stopping; empty: the last lines of the training file, by split_share",
        "text",
    )
    text_test: str = setting("test.txt", "file in the root for the test", "text")
    rare: int = setting(1, "words that are rarer in the training file are <unk>", "text")

    def __post_init__(self) -> None:
        # checked here as well, so that an error names the settings and not the arguments of the data sets
        _check_seed("split_seed", self.split_seed, bits=32)  # as NumPy takes them
        for name in ("delay", "streams", "word_switch_epochs"):
            whole(name, getattr(self, name), at_least=0)
        for name in ("channels", "repeat", "words", "rare"):
            whole(name, getattr(self, name))
        number("dt", self.dt)
        for name in ("window", "channel_jitter"):
            number(name, getattr(self, name), zero_allowed=True)
        for name in ("spike_drop", "word_switch"):
            probability(name, getattr(self, name))
        if number("time_stretch", self.time_stretch, zero_allowed=True) >= 1:
            raise ValueError(
                f"time_stretch must be below 1, since times are scaled by 1 - this, got {self.time_stretch}."
            )
        if not 0 < self.split_share < 1:
            raise ValueError(f"split_share must be between 0 and 1, got {self.split_share}.")
        check_shift(self.shift)

    @property
    def title(self) -> str:
        """What the data are, in words."""
        title = DATA[self.data][0]
        if self.data == "store-recall":
            return f"{title} after {self.delay} steps"
        if self.encoding == "released":
            title += ", released encoding"
        if self.data == "text" and self.root:
            name = Path(self.root).name
            if Path(self.root).is_file():
                return f"{title} ({name})"
            return f"{title} ({name}: {self.text_train})"
        if not self.root:
            return f"{title} (sample in the package)"
        return title

    @property
    def task(self) -> DataTask:
        """The task of a network on these data."""
        return DATA[self.data][1]

    def check(self) -> None:
        """Raise a ``ValueError`` if a setting is of other data, or a root is needed or not; no file is read."""
        changed = [f for f in fields(self) if getattr(self, f.name) != f.default]
        if foreign := [f for f in changed if f.metadata["data"] and self.data not in f.metadata["data"]]:
            owners = foreign[0].metadata["data"]  # the message names all settings of the same owners
            names = ", ".join(f.name for f in foreign if f.metadata["data"] == owners)
            raise ValueError(f"{names}: for data = {' or '.join(owners)} only, got data = {self.data}.")
        if self.data in WITHOUT_SAMPLE and not self.root:
            raise ValueError(f"root: the package holds no sample of {self.data}; name a folder to download it to.")
        if self.data == "store-recall" and self.root:
            raise ValueError(
                f"root: the samples of store-recall are made, not read from files; got root = {self.root}."
            )
        # settings that name files in a root
        named_files = [f.name for f in changed if f.name in ("text_train", "text_validation", "text_test")]
        if self.data == "text" and named_files and Path(self.root).is_file():
            raise ValueError(f"{', '.join(named_files)}: for a root that is a folder, got the file {self.root}.")
        # settings that say how texts in a root are read
        of_files = [f.name for f in changed if f.metadata["data"] == ("text",) or f.name == "split_share"]
        if self.data == "text" and not self.root and of_files:
            raise ValueError(f"{', '.join(of_files)}: for texts in a root; the sample in the package has its own.")

    def load(self, split: Split) -> BatchDataset:
        """Load one split of the data.

        Raises:
            ValueError: if a setting is of another data set or out of range, a root is needed, or a file is damaged.
            FileNotFoundError: if there is no such root, or a file of a text is missing.
            ConnectionError: if a missing file could not be downloaded.
        """
        self.check()
        if self.root and not Path(self.root).exists():
            raise FileNotFoundError(
                f"root: there is no {self.root}. Make the folder first, and what is missing is downloaded into it; without "
                "a root the sample in the package is taken."
            )
        root = self.root
        training = split == "train"
        kind = DATA[self.data][2]
        options: dict[str, Any] = {}
        match self.data:
            case "store-recall":
                return kind(split, seed=self.split_seed, delay=self.delay)
            case "mnist" | "smnist" | "psmnist" | "cifar10" | "cifar100":
                options = {"seed": self.split_seed}
                if self.data == "psmnist":
                    options["permutation"] = 0  # its seed: one permutation for all runs
            case "sl-mnist":
                options = {"seed": self.split_seed, "shift": self.shift if training else 0}
                if self.encoding == "released":
                    options["encoding"] = datasets.ReleasedEncoding()
            case "shd":
                augment: list[Any] = []
                stretch = self.time_stretch
                if training and self.channel_jitter:
                    augment.append(datasets.ChannelJitter(self.channel_jitter))
                if training and stretch:
                    augment.append(datasets.TimeStretch(1 - stretch, 1 + stretch))
                if training and self.spike_drop:
                    augment.append(datasets.SpikeDrop(self.spike_drop))
                options = {name: getattr(self, name) for name in ("dt", "channels", "repeat", "binary")}
                options |= {"window": self.window or None, "augment": augment}  # 0: Binning takes None for no window
                options |= {"by": self.split_by, "share": self.split_share, "seed": self.split_seed}
            case "text" | "ptb" | "ptb-characters" | "wikitext-2":
                options = {"steps": self.words, "repeat": self.repeat, "streams": self.streams or None}
                if self.data == "ptb-characters":
                    options["characters"] = True
                if training:
                    options |= {"switch": self.word_switch, "switch_epochs": self.word_switch_epochs}
        if self.data == "text" and root and Path(root).is_file():  # one file, from which validation is held out
            if split == "test":
                raise ValueError(
                    f"root: {root} is for training and validation; a test takes a folder with {self.text_test}."
                )
            # test=root is not opened for these splits
            return kind.from_files(split, train=root, test=root, share=self.split_share, at_least=self.rare, **options)
        if self.data == "text" and root:
            files: dict[str, Any] = {"train": Path(root) / self.text_train, "test": Path(root) / self.text_test}
            if self.text_validation:
                files["validation"] = Path(root) / self.text_validation
            return kind.from_files(split, **files, share=self.split_share, at_least=self.rare, **options)
        if root:
            return kind(root, split, **options)
        return kind.embedded(split, **options)


# ---- the initialisation, radii before training, the training


@dataclass(frozen=True)
class InitSettings:
    """The initialisation. It comes before the radii and the training."""

    init: str = setting(
        "",
        "initialiser, such as 'LSUV + FiringRate(0.15)'; empty: Identity(), or Default if radii are set by a target",
    )

    def __post_init__(self) -> None:
        if self.init:
            named(self.init)


def _of_lsc(name: str) -> Any:
    """Return a setting with the default and the help of LSC's field `name`; the setting may have another name."""
    declared = LSC.__dataclass_fields__[name]
    return setting(declared.default, declared.metadata["help"])


@dataclass(frozen=True)
class PretrainSettings:
    """Radii before training.

    These are settings of :class:`neurolsc.init.LSC` under the names of flags; a target may also be 'none'.
    """

    target: str = setting("none", "radius to pre-train to: a number, 'balanced', or 'none'")
    rule: Literal["default", "transition", "hold-threshold", "paper"] = _of_lsc("rule")
    method: Method = _of_lsc("method")
    loop: LoopName = _of_lsc("loop")
    pretrain_steps: int = setting(0, "give up after this many pre-training steps; 0: as many as the loop takes at most")
    pretrain_samples: int = _of_lsc("samples")
    pretrain_times: int = setting(LSC.steps, _of_lsc("steps").metadata["help"].removesuffix("; None: all"))

    def __post_init__(self) -> None:
        # checked here as well, so that an error names the flags and not the arguments of LSC
        whole("pretrain_steps", self.pretrain_steps, at_least=0)
        whole("pretrain_samples", self.pretrain_samples)
        whole("pretrain_times", self.pretrain_times)
        _ = self.lsc  # raises if another setting is wrong

    @property
    def lsc(self) -> LSC | None:
        """The initialiser that sets the radii; None if the target is 'none'."""
        if self.target == "none":
            return None
        target: Any = self.target
        try:
            if target != "balanced":
                target = float(target)
        except ValueError:
            raise ValueError(f"target must be a number, 'balanced' or 'none', got {self.target!r}.") from None
        return LSC(
            target,
            self.rule,
            method=self.method,
            loop=self.loop,
            max_steps=self.pretrain_steps or None,
            samples=self.pretrain_samples,
            steps=self.pretrain_times,
        )


# ---- all settings, as names and values

PARTS: dict[str, type[Any]] = {  # of an Experiment: attribute and class of its settings
    "network": NetworkSettings,
    "data": DataSettings,
    "pretraining": PretrainSettings,
    "training": TrainSettings,
    "init": InitSettings,
}


def check_names(names: Collection[str], known: Collection[str], what: str) -> None:
    """Raise a ``ValueError`` if some names are unknown; it lists the known ones and guesses which are meant."""
    if unknown := list(dict.fromkeys(name for name in names if name not in known)):
        shown = clean(", ".join(unknown))
        raise ValueError(f"unknown {what} {shown}; known are {', '.join(known)}{meant(known, *unknown)}")


def setting_names(parts: Iterable[str] = PARTS) -> list[str]:
    """Return the names of all settings of some parts of an experiment."""
    return [f.name for part in parts for f in fields(PARTS[part])]


def make(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """Make the settings of one kind from values by name; missing settings take their default.

    Args:
        kind: a dataclass of settings, such as :class:`NetworkSettings`.
        values: settings by name; names that the dataclass does not have are ignored.

    Raises:
        ValueError: if a value has the wrong type, is not one of the known words, or is out of range.
    """
    taken = {}
    for f in fields(kind):
        if f.name not in values:
            continue
        value = values[f.name]
        words = words_of(f.type)
        wanted: Any = str if words else f.type  # a Literal is text
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        # a whole number may stand for a float, and any number for a target, which is text: a number, or a word
        if is_number and (wanted is float or f.name == "target"):
            value = wanted(value)
        if type(value) is not wanted:
            raise ValueError(f"{f.name} must be {wanted.__name__}, got {clean(reprlib.repr(value))}.")
        if words and value not in words:
            end = meant(words, value)
            raise ValueError(f"{f.name} must be one of {', '.join(words)}, got {clean(repr(value))}{end}")
        taken[f.name] = value
    return kind(**taken)
