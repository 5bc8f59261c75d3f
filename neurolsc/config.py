"""What a run is made of: plain settings, checked once, from flags or a TOML file, written beside every result."""

import tomllib
from dataclasses import asdict, dataclass, field, fields
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from neurolsc.checkpoint import load
from neurolsc.datasets import SHD, ChannelJitter, SpikeDrop, SpikeLatencyMNIST, TimeStretch
from neurolsc.datasets.augment import Augmentation
from neurolsc.datasets.events import UNITS
from neurolsc.datasets.shd import Cached
from neurolsc.datasets.splits import By
from neurolsc.network import Network
from neurolsc.neurons.registry import CELLS, SURROGATES
from neurolsc.neurons.reset import ResetName
from neurolsc.stability.lsc.rules import PaperRule, Rule, TransitionRule
from neurolsc.stability.lsc.targets import Target

CellName = Literal["LIF", "ALIFPlus", "ALIFPlusMinus", "ALIFPositive"]
SurrogateName = Literal[
    "FastSigmoid",
    "MultiGaussian",
    "Arctan",
    "Logistic",
    "Triangular",
    "Rectangular",
    "Gaussian",
    "Exponential",
]
RuleName = Literal["default", "transition", "hold-threshold", "paper"]

_RULES: dict[str, Rule] = {
    "transition": TransitionRule(),
    "hold-threshold": TransitionRule(hold_threshold=True),
    "paper": PaperRule(),
}


def setting(default: Any, help: str) -> Any:
    """A field with its default and the line that --help shows."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class NetworkSettings:
    """Which network."""

    cell: CellName = setting("ALIFPlus", "neuron of every layer")
    layers: int = setting(2, "number of layers")
    width: int = setting(128, "neurons per layer")
    surrogate: SurrogateName = setting("FastSigmoid", "shape of the surrogate gradient")
    dampening: float = setting(0.5, "height of the surrogate")
    sharpness: float = setting(1.0, "sharpness of the surrogate")
    learnable: bool = setting(False, "train dampening and sharpness, one pair per layer")
    tau_v: float = setting(0.1, "mean time constant of the voltage, in steps (the paper's 0.1: no memory)")
    tau_theta: float = setting(100.0, "mean time constant of the threshold, in steps (not of a LIF)")
    b_theta: float = setting(0.01, "mean constant input of the threshold (not of a LIF)")
    adaptation: float = setting(1.8, "mean rise of the threshold at a spike (not of a LIF)")
    reset: ResetName = setting("subtract", "what a spike does to the voltage")
    reset_gradient: bool = setting(False, "let a gradient through the reset")
    layer_delay: int = setting(1, "steps until a layer reads the one below: 1 (paper) or 0")
    readout_bias: bool = setting(False, "give the readout a bias")
    weights: str = setting("", "start from this network file; what is said of the network above is then not used")
    seed: int = setting(0, "of weights, batches and everything that is drawn")

    def build(self, n_in: int, n_out: int) -> Network:
        """The network of the file `weights`, or a fresh one with weights drawn from the seed."""
        if self.weights:
            return load(self.weights)
        torch.manual_seed(self.seed)
        options: dict[str, Any] = {"tau_v": self.tau_v, "reset": self.reset, "reset_gradient": self.reset_gradient}
        if self.cell != "LIF":
            options |= {"tau_theta": self.tau_theta, "b_theta": self.b_theta, "adaptation": self.adaptation}
        cells = []
        for i in range(self.layers):
            options["spike"] = SURROGATES[self.surrogate](self.dampening, self.sharpness, learnable=self.learnable)
            cells.append(CELLS[self.cell](n_in if i == 0 else self.width, self.width, **options))
        return Network(cells, n_out, layer_delay=self.layer_delay, readout_bias=self.readout_bias)  # type: ignore[arg-type]


@dataclass(frozen=True)
class DataSettings:
    """Which data."""

    data: Literal["sl-mnist", "shd"] = setting(
        "sl-mnist", "data set: spike-latency MNIST, or spoken digits in SHD's form"
    )
    root: str = setting("", "folder of the full data set, downloaded if missing; empty: the sample in the package")
    split_seed: int = setting(0, "of the split into training and validation")
    split_by: By = setting("random", "shd: hold out random utterances for validation, or whole speakers")
    split_share: float = setting(0.1, "shd: share of the training utterances or speakers held out")
    dt: float = setting(4e-3, "shd: width of a bin, in seconds")
    window: float = setting(1.0, "shd: length of the recording, in seconds; 0: each utterance to its last spike")
    channels: int = setting(UNITS, "shd: number of inputs; a divisor of 700 counts neighbouring units together")
    repeat: int = setting(2, "shd: how often each frame is shown")
    binary: bool = setting(False, "shd: 1 for every count above 0")
    channel_jitter: float = setting(0.0, "shd, training only: deviation by which spikes change units")
    time_stretch: float = setting(0.0, "shd, training only: times scaled by 1 - this to 1 + this")
    spike_drop: float = setting(0.0, "shd, training only: probability that a spike is left out")
    cache: str = setting("", "shd: folder for copies that are read without HDF5; empty: none")
    cached: Cached = setting("spikes", "shd: what is kept there: spikes, or frames, which are faster and larger")

    def load(self, split: Literal["train", "validation", "test"]) -> SpikeLatencyMNIST | SHD:
        """One split of the data.

        Raises:
            ValueError: if a setting of one data set is given with another, or the data are damaged.
        """
        if self.data == "sl-mnist":
            odd = [
                f.name
                for f in fields(self)
                if f.metadata["help"].startswith("shd") and getattr(self, f.name) != f.default
            ]
            if odd:
                raise ValueError(f"{', '.join(odd)}: for data = shd only, got data = {self.data}.")
            if self.root:
                return SpikeLatencyMNIST(self.root, split, seed=self.split_seed)
            return SpikeLatencyMNIST.embedded(split, seed=self.split_seed)
        given: dict[str, Any] = {name: getattr(self, name) for name in ("dt", "channels", "repeat", "binary")}
        given |= {"by": self.split_by, "share": self.split_share, "seed": self.split_seed}
        given |= {"window": self.window or None, "cache": self.cache or None, "cached": self.cached}
        given["augment"] = self._augmentations() if split == "train" else ()
        return SHD(self.root, split, **given) if self.root else SHD.embedded(split, **given)

    def _augmentations(self) -> list[Augmentation]:
        wanted: list[Augmentation] = []
        if self.channel_jitter:
            wanted.append(ChannelJitter(self.channel_jitter))
        if self.time_stretch:
            wanted.append(TimeStretch(1 - self.time_stretch, 1 + self.time_stretch))
        if self.spike_drop:
            wanted.append(SpikeDrop(self.spike_drop))
        return wanted


@dataclass(frozen=True)
class PretrainSettings:
    """How radii are set before training."""

    target: str = setting("none", "radius to pre-train to: a number, 'balanced', or 'none'")
    rule: RuleName = setting(
        "default", "which parameters follow which radius; default: paper for balanced, else transition"
    )
    method: Literal["gradient", "scale"] = setting("gradient", "the paper's loop, or root finding on layer scales")
    pretrain_steps: int = setting(200, "give up after this many pre-training steps")
    pretrain_samples: int = setting(4, "samples looked at in each pre-training step")
    pretrain_times: int = setting(8, "time steps looked at in each pre-training step")

    def parsed_target(self) -> Target | None:
        """The target as pretrain() takes it; None for no pre-training.

        Raises:
            ValueError: if it is neither a number, 'balanced' nor 'none'.
        """
        if self.target in ("none", "balanced"):
            return None if self.target == "none" else "balanced"
        try:
            return float(self.target)
        except ValueError:
            raise ValueError(f"target must be a number, 'balanced' or 'none', got {self.target!r}.") from None

    def rule_object(self) -> Rule | None:
        """The rule of that name; None: the default of pretrain()."""
        return _RULES.get(self.rule)


@dataclass(frozen=True)
class TrainSettings:
    """How the network is trained."""

    epochs: int = setting(20, "most epochs")
    batch_size: int = setting(256, "samples per batch")
    lr: float = setting(1e-3, "learning rate of AdaBelief in Lookahead")
    patience: int = setting(10, "stop after this many epochs without a better validation loss")


Settings = NetworkSettings | DataSettings | PretrainSettings | TrainSettings


def read_toml(path: str | PathLike[str]) -> dict[str, Any]:
    """Read settings from a TOML file: names of the flags without dashes, at the top level.

    Raises:
        ValueError: if the file cannot be read or is not TOML; the message names it.
    """
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read the settings in {path}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a TOML file: {error}.") from error


def check_names(given: dict[str, Any], kinds: tuple[type[Settings], ...], where: str) -> None:
    """Refuse settings that none of the kinds knows.

    Raises:
        ValueError: naming the unknown and the known names.
    """
    known = [f.name for kind in kinds for f in fields(kind)]
    unknown = [name for name in given if name not in known]
    if unknown:
        raise ValueError(f"{where}: unknown setting {', '.join(unknown)}; known are {', '.join(known)}.")


def make(kind: type[Any], given: dict[str, Any]) -> Any:
    """Settings of one kind from names and values; what is missing takes its default.

    Raises:
        ValueError: if a value has the wrong type or is not one of the known words.
    """
    values = {}
    for f in fields(kind):
        if f.name not in given:
            continue
        value = given[f.name]
        words = get_args(f.type)
        wanted: Any = str if words else f.type
        if wanted is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if f.name == "target" and isinstance(value, int | float):
            value = str(value)
        if not isinstance(value, wanted) or (wanted is not bool and isinstance(value, bool)):
            raise ValueError(f"{f.name} must be {wanted.__name__}, got {value!r}.")
        if words and value not in words:
            raise ValueError(f"{f.name} must be one of {', '.join(words)}, got {value!r}.")
        values[f.name] = value
    return kind(**values)


def as_dict(*settings: Settings) -> dict[str, Any]:
    """All settings as one flat dictionary."""
    return {name: value for s in settings for name, value in asdict(s).items()}
