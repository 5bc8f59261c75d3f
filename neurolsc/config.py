"""What a run is made of: plain settings, from flags or a TOML file, each with its one verb."""

import inspect
import reprlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from os import PathLike
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from neurolsc.checkpoint import file_of, load
from neurolsc.datasets import SHD, ChannelJitter, SpikeDrop, SpikeLatencyMNIST, TimeStretch
from neurolsc.datasets.augment import Augmentation
from neurolsc.datasets.events import UNITS
from neurolsc.datasets.shd import Cached
from neurolsc.datasets.splits import By
from neurolsc.files import sha256_of
from neurolsc.network import Network
from neurolsc.neurons.registry import CELLS, SURROGATES
from neurolsc.neurons.reset import ResetName
from neurolsc.stability import PaperRule, PretrainResult, Rule, TransitionRule, pretrain, scale_to_radius
from neurolsc.stability.lsc.targets import Target
from neurolsc.training import Samples, TrainResult, train
from neurolsc.untrusted.words import clean

RuleName = Literal["default", "transition", "hold-threshold", "paper"]

_RULES: dict[str, Rule] = {
    "transition": TransitionRule(),
    "hold-threshold": TransitionRule(hold_threshold=True),
    "paper": PaperRule(),
}


def setting(default: Any, help: str) -> Any:
    """A field with its default and the line that --help shows."""
    return field(default=default, metadata={"help": help})


OF_A_CELL = ("tau_v", "tau_theta", "b_theta", "adaptation", "reset", "reset_gradient")
"""Settings that a cell's constructor may take."""
OF_A_SPIKE = ("surrogate", "dampening", "sharpness", "learnable")
"""Settings of what it may take as `spike`."""


@dataclass(frozen=True)
class NetworkSettings:
    """Which network."""

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
    layer_delay: int = setting(1, "steps until a layer reads the one below: 1 (paper) or 0")
    readout_bias: bool = setting(False, "give the readout a bias")
    weights: str = setting("", "start from this network file; what else is said of the network is then not used")
    weights_sha256: str = setting("", "what that file must be; a run notes it, and goes on from no other content")
    seed: int = setting(0, "of weights, batches and everything that is drawn")

    def build(self, n_in: int, n_out: int) -> Network:
        """The network of the file `weights`, or a fresh one with weights drawn from the seed.

        Raises:
            ValueError: if cell or surrogate are not known, the cell's constructor does not take a
                setting that differs from its default, or the file is not the one that it was.
        """
        if self.weights:
            found = sha256_of(file_of(self.weights))
            if self.weights_sha256 not in ("", found):
                raise ValueError(
                    f"weights: {self.weights} has changed, weights_sha256 = {clean(self.weights_sha256)}, now {found}."
                )
            return self.load(self.weights)
        if self.weights_sha256:
            raise ValueError("weights_sha256 is of a file of weights, and there is none.")
        cell = CELLS.find(self.cell)
        taken = arguments_of(cell)
        own = {name: getattr(self, name) for name in OF_A_CELL if name in taken}
        wants_spike = "spike" in taken
        left = [*(set(OF_A_CELL) - taken), *(() if wants_spike else OF_A_SPIKE)]
        odd = [f.name for f in fields(self) if f.name in left and getattr(self, f.name) != f.default]
        if odd:
            raise ValueError(f"a cell {self.cell} does not take {', '.join(odd)}.")
        torch.manual_seed(self.seed)
        cells = []
        for below in [n_in, *[self.width] * (self.layers - 1)]:
            if wants_spike:
                shape: Any = SURROGATES.find(self.surrogate)
                own["spike"] = shape(self.dampening, self.sharpness, learnable=self.learnable)
            cells.append(cell(below, self.width, **own))
        return Network(cells, n_out, layer_delay=self.layer_delay, readout_bias=self.readout_bias)  # type: ignore[arg-type]

    def noted(self) -> "NetworkSettings":
        """These settings, with the digest of the file of weights that is there now.

        Raises:
            FileNotFoundError: if there is none of that name.
        """
        if not self.weights or self.weights_sha256:
            return self
        return replace(self, weights_sha256=sha256_of(file_of(self.weights)))

    def load(self, path: str | PathLike[str]) -> Network:
        """The network of a file, which may be of the cell that is named here."""
        CELLS.find(self.cell)  # imports and registers a cell of one's own
        return load(path)


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
    pretrain_steps: int = setting(200, "give up after this many pre-training steps (gradient only)")
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

    def run(
        self, network: Network, inputs: Sequence[Tensor], *, seed: int, progress: bool = True, **more: Any
    ) -> PretrainResult:
        """Set the radii of a network on batches of inputs (T, B, n_in).

        More keywords are those of :func:`neurolsc.pretrain`, or of
        :func:`neurolsc.scale_to_radius`.

        Raises:
            ValueError: if the target is 'none', a setting does not belong to the method, or as
                these.
        """
        target = self.parsed_target()
        if target is None:
            raise ValueError("target is 'none'; there is no radius to set.")
        more |= {
            "target": target,
            "rule": _RULES.get(self.rule),
            "seed": seed,
            "samples": self.pretrain_samples,
            "steps": min(self.pretrain_times, inputs[0].shape[0]),
            "progress": progress,
        }
        if self.method == "gradient":
            return pretrain(network, inputs, max_steps=self.pretrain_steps, **more)
        if self.pretrain_steps != PretrainSettings.pretrain_steps:
            raise ValueError(f"pretrain_steps: for method = gradient only, got method = {self.method}.")
        return scale_to_radius(network, inputs[0], **more)


@dataclass(frozen=True)
class TrainSettings:
    """How the network is trained."""

    epochs: int = setting(20, "most epochs")
    batch_size: int = setting(256, "samples per batch")
    lr: float = setting(1e-3, "learning rate of AdaBelief in Lookahead")
    patience: int = setting(10, "stop after this many epochs without a better validation loss")

    def run(self, network: Network, training: Samples, validation: Samples, *, seed: int, **more: Any) -> TrainResult:
        """Train a network; more: keywords of :func:`neurolsc.train`."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        return train(network, training, validation, seed=seed, **own, **more)


Settings = NetworkSettings | DataSettings | PretrainSettings | TrainSettings
KINDS = (NetworkSettings, DataSettings, PretrainSettings, TrainSettings)


def check_names(given: dict[str, Any], kinds: tuple[type[Settings], ...], where: str) -> None:
    """Refuse settings that none of the kinds knows.

    Raises:
        ValueError: naming the unknown and the known names.
    """
    known = [f.name for kind in kinds for f in fields(kind)]
    unknown = [name for name in given if name not in known]
    if unknown:
        told = clean(", ".join(unknown))
        raise ValueError(f"{where}: unknown setting {told}; known are {', '.join(known)}.")


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
            value = float(value) if abs(value) < 2**53 else value  # else it is told as what it is
        if f.name == "target" and isinstance(value, int | float):
            value = str(value)
        if not isinstance(value, wanted) or (wanted is not bool and isinstance(value, bool)):
            raise ValueError(f"{f.name} must be {wanted.__name__}, got {clean(reprlib.repr(value))}.")
        if words and value not in words:
            raise ValueError(f"{f.name} must be one of {', '.join(words)}, got {clean(repr(value))}.")
        values[f.name] = value
    return kind(**values)


def arguments_of(cls: type) -> set[str]:
    """The names that a class's constructor takes, those that it hands on as **keywords included."""
    names: set[str] = set()
    for base in cls.__mro__:
        if "__init__" in vars(base):
            parameters = inspect.signature(vars(base)["__init__"]).parameters.values()
            names |= {p.name for p in parameters}
            if not any(p.kind is p.VAR_KEYWORD for p in parameters):
                break
    return names


def as_dict(*settings: Settings) -> dict[str, Any]:
    """All settings as one flat dictionary."""
    return {name: value for s in settings for name, value in asdict(s).items()}
