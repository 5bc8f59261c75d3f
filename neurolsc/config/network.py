"""Which network."""

import inspect
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from os import PathLike
from typing import Any

import torch

from neurolsc.checkpoint import file_of, load
from neurolsc.config.setting import setting
from neurolsc.embedding import Embedding
from neurolsc.files import sha256_of
from neurolsc.network import Network
from neurolsc.neurons.cell import CELLS, SURROGATES, Cell
from neurolsc.neurons.reset import ResetName
from neurolsc.untrusted.words import clean

OF_A_CELL = ("tau_v", "tau_theta", "b_theta", "adaptation", "reset", "reset_gradient", "activation", "exterior_dropout")
"""Settings that a cell's constructor may take."""
OF_A_SPIKE = ("surrogate", "dampening", "sharpness", "learnable")
"""Settings of what it may take as `spike`."""


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
    exterior_dropout: float = setting(
        0.0, "LRU: dropout of what a layer reads, before its norm and its skip connection"
    )
    layer_delay: int = setting(1, "steps until a layer reads the one below: 1 (paper) or 0")
    readout_bias: bool = setting(False, "give the readout a bias")
    embedding: int = setting(0, "words: entries of their vectors, and width of the last layer; 0: the width of all")
    weights: str = setting("", "start from this network file; what else is said of the network is then not used")
    weights_sha256: str = setting("", "what that file must be; a run notes it, and goes on from no other content")
    seed: int = setting(0, "of weights, batches and everything that is drawn")

    def build(self, n_in: int, n_out: int, words: int | None = None) -> Network:
        """The network of the file `weights`, or a fresh one with weights drawn from the seed.

        Args:
            n_in: number of inputs.
            n_out: number of classes.
            words: how many there are, if inputs are numbers of words: they are read, and told, by a
                tied embedding.

        Raises:
            ValueError: if cell or surrogate are not known, the cell's constructor does not take a
                setting that differs from its default, an embedding is asked for where there are no
                words, or the file is not the one that it was.
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
        of_others = {"embedding": words is None, "readout_bias": words is not None}
        odd = [name for name, other in of_others.items() if other and getattr(self, name)]
        if odd:
            raise ValueError(f"{odd[0]}: only for data that are {'words' if words is None else 'no words'}.")
        torch.manual_seed(self.seed)
        widths = [n_in, *[self.width] * self.layers]
        if words is not None:
            widths[0] = widths[-1] = self.embedding or self.width
        cells = []
        for below, width in pairwise(widths):
            if wants_spike:
                shape: Any = SURROGATES.find(self.surrogate)
                own["spike"] = shape(self.dampening, self.sharpness, learnable=self.learnable)
            cells.append(cell(below, width, **own))
        rest: Any = {"layer_delay": self.layer_delay, "readout_bias": self.readout_bias}
        if words is None:
            return Network(cells, n_out, **rest)
        return Network(cells, embedding=Embedding(words, widths[0], tied=True), **rest)

    @property
    def can_be_set(self) -> bool:
        """Whether the cell names its input matrix, its voltage and how thresholds scale."""
        try:
            cell = CELLS.find(self.cell)
        except ValueError:
            return True  # who builds it will say so
        offers = cell.thresholds is not Cell.thresholds and cell.membrane is not Cell.membrane
        return offers and any(answer.radius == "depth" for answer in cell.answers)

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
