"""Networks, and trees of tensors and numbers, as safetensors files that are whole or not there.

A file holds tensors and one JSON text that says what they belong to. Reading one builds known
classes only and runs nothing that the file brings along. Every write goes to a temporary file in
the same folder, which then takes the place of the old one, so that a crash or a full disk leaves
the old file as it was.
"""

import errno
import os
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from neurolsc.embedding import Embedding, Tied
from neurolsc.files import plain, read, write
from neurolsc.network import Network, as_network
from neurolsc.neurons.cell import CELLS, SURROGATES, Cell
from neurolsc.untrusted.refusal import refusing
from neurolsc.untrusted.tensors import check_finite
from neurolsc.untrusted.words import clean

__all__ = ["file_of", "load", "save", "trained"]

TRAINED = Path(__file__).parent / "trained"
FORMS: list[Callable[[Network], Network]] = []
"""what makes our cells of those of another library, for a file; `export.wrapped` enters its own"""


def save(network: Network, path: str | PathLike[str]) -> None:
    """Write a network: parameters and buffers bit by bit, its layout, and what is frozen.

    Args:
        network: cells and surrogates of this package, and registered ones
            (:func:`neurolsc.register`). Of what :func:`neurolsc.wrap` made the same network in our
            own cells is written (:func:`neurolsc.export.from_wrapped`), where it has the same
            spikes: :func:`load` gives that, with default surrogates.
        path: the file to write, usually ``*.safetensors``.

    Raises:
        TypeError: if a surrogate, the readout or a wrapped layer cannot be described in a file, or
            a tensor has no form in one (sparse, complex128).
        ValueError: if a cell is not registered, two share a parameter, or the network has tensors
            that its layout does not explain.
        OSError: if the file cannot be written; the message names it.

    Example:
        >>> import tempfile
        >>> from neurolsc import ALIFPlus
        >>> network = Network([ALIFPlus(3, 2)], n_out=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save(network, f"{folder}/network.safetensors")
        ...     again = load(f"{folder}/network.safetensors")
        >>> torch.equal(again.cells[0].tau_v, network.cells[0].tau_v)
        True
    """
    network = as_network(network)
    for in_our_cells in FORMS:
        network = in_our_cells(network)
    if len(list(network.parameters())) != len(list(network.named_parameters(remove_duplicate=False))):
        raise ValueError("two parts of the network share a parameter, which a file cannot tell; make copies.")
    if not isinstance(network.readout, torch.nn.Linear | Tied):
        raise TypeError(f"only a linear readout can be described in a file, got {type(network.readout).__name__}.")
    config = {
        "n_out": network.n_out,
        "layer_delay": network.layer_delay,
        "readout_bias": getattr(network.readout, "bias", None) is not None,
        "cells": [{"class": CELLS.name_of(type(cell))} | cell.config() for cell in network.cells],
        **({} if network.embedding is None else {"embedding": network.embedding.config()}),
        "frozen": [name for name, parameter in network.named_parameters() if not parameter.requires_grad],
    }
    tensors = {name: plain(name, value) for name, value in network.state_dict().items()}
    shapes = {name: value.shape for name, value in tensors.items()}
    built = {name: value.shape for name, value in _build(config, tensors).state_dict().items()}
    if shapes != built:
        odd = sorted(name for name in shapes.keys() | built.keys() if shapes.get(name) != built.get(name))
        raise ValueError(f"the network could not be built again from its layout: {', '.join(odd)} would differ.")
    write(path, "network", config, tensors)


def load(path: str | PathLike[str]) -> Network:
    """Read a network that :func:`save` wrote, onto the CPU, in the dtypes that it had.

    Args:
        path: the file, or the name of one of the trained networks in the package:
            ``"sl-mnist-alif"`` or ``"spoken-digits-alif"``. Their cards, with the commands that
            made them, lie beside them in neurolsc/trained.

    Returns:
        The network; the random number generator stays as it was.

    Raises:
        ValueError: if the file is damaged, holds something else, names a class that is not known,
            claims other sizes than its tensors have, or holds NaN or infinity.
        FileNotFoundError: if there is neither a file nor a trained network of that name.
        OSError: if it cannot be read.

    Example:
        >>> load("sl-mnist-alif").n_in
        784
    """
    path = file_of(path)
    config, tensors = read(path, "network")
    with refusing(path, "does not describe a network of this version"):
        check_finite(tensors)
        network = _build(config, tensors)
        network.load_state_dict(tensors, assign=True)
        for name in config["frozen"]:
            network.get_parameter(name).requires_grad_(False)
    return network


def file_of(path: str | PathLike[str]) -> Path:
    """The file that :func:`load` reads.

    Raises:
        FileNotFoundError: if there is neither a file nor a trained network of that name.
    """
    if os.path.exists(path):
        return Path(path)
    name = os.fspath(path)
    if name not in trained():
        wanted = f"neither a file nor one of the trained networks in the package ({', '.join(trained())})"
        raise FileNotFoundError(errno.ENOENT, wanted, name)
    return TRAINED / f"{name}.safetensors"


def trained() -> list[str]:
    """The names of the trained networks in the package, which :func:`load` takes."""
    return sorted(file.stem for file in TRAINED.glob("*.safetensors"))


def _build(config: dict[str, Any], tensors: dict[str, Tensor]) -> Network:
    """A network of the layout, with starting values that the caller replaces by the tensors.

    A layout may claim any size: nothing is made that is much larger than the largest tensor, and
    each cell is compared with its tensors before the next one is made.
    """
    most = 2**20 + 4 * max((value.numel() for value in tensors.values()), default=0)
    cells = []
    with torch.random.fork_rng(devices=[]):
        for i, told in enumerate(config["cells"]):
            with _NothingLarger(most):
                cells.append(_build_cell(dict(told)))
            _compare(f"cells.{i}.", cells[-1], tensors)
        rest = {name: config[name] for name in ("layer_delay", "readout_bias")}
        with _NothingLarger(most):
            embedding = Embedding(**config["embedding"]) if "embedding" in config else None
            tied = embedding is not None and embedding.tied
            return Network(cells, None if tied else config["n_out"], embedding=embedding, **rest)


class _NothingLarger(TorchFunctionMode):
    """Inside, a tensor of more than some elements is refused before it is filled.

    Nor are the starting values of matrices drawn, which takes longest: they are replaced anyway.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") == "uniform_" and args and args[0].ndim > 1:
            return args[0]
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor) and made.numel() > self.most:
            raise ValueError(f"its layout asks for {made.numel()} numbers at once, its tensors allow {self.most}.")
        return made


def _compare(prefix: str, cell: Cell, tensors: dict[str, Tensor]) -> None:
    """Refuse a cell whose tensors are not those that are given."""
    for name, built in cell.state_dict(prefix=prefix).items():
        given = tensors.get(name)
        if given is None:
            raise ValueError(f"it has no tensor {clean(name)}, which its layout needs.")
        kinds = [(value.is_floating_point(), value.is_complex()) for value in (given, built)]
        if given.shape != built.shape or kinds[0] != kinds[1]:
            raise ValueError(
                f"{clean(name)} is {given.dtype} {tuple(given.shape)}, its layout needs {built.dtype} {tuple(built.shape)}."
            )


def _build_cell(config: dict[str, Any]) -> Cell:
    if "spike" in config:
        spike = dict(config["spike"])
        config["spike"] = SURROGATES.known(spike.pop("name"))(**spike)
    return CELLS.known(config.pop("class"))(**config)
