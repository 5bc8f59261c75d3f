"""Networks from graphs of NIR: our own to the last bit, those of other programs where our cells say the same."""

import os
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from neurolsc.export.nir import array
from neurolsc.export.nir_graph import Layer, notes, read_chain, values
from neurolsc.export.nir_package import load_nir
from neurolsc.network import Network
from neurolsc.neurons import LIF, ALIFPlus, ALIFPlusMinus
from neurolsc.neurons.alif import ALIF
from neurolsc.neurons.spiking import SpikingCell
from neurolsc.validation import number

if TYPE_CHECKING:
    import nir

__all__ = ["from_nir", "read_nir"]

CLOSE = 1e-6
"""relative; other programs store float32"""
NO_MEMORY = 1e-3
"""a time constant in steps of which exp(-1/tau) is 0"""

Built = tuple[LIF | ALIF, np.ndarray, np.ndarray]
"""a cell, the share of its voltage that a step loses, and what a unit of input adds to it, each (n_hidden,)"""


def from_nir(source: "nir.NIRGraph | str | PathLike[str]", *, dt: float | None = None) -> Network:
    """Make a network of a graph of NIR.

    A graph of :func:`neurolsc.export.to_nir` comes back with every parameter and ``layer_delay``, in its dtype; surrogates are the
    default. Of other programs' graphs, chains of ``Linear`` or ``Affine`` and ``LIF`` or ``CubaLIF`` nodes can be read, each with
    its own recurrence, as their Euler step of dt seconds does them; layers then read the one below in the same step.

    Args:
        source: the graph, or the file that holds it.
        dt: seconds per time step, for files that do not say it: 1e-4 for snnTorch's; norse 1.1 writes time constants too small by
            the factor dt, so that its own (default 1e-3) takes 1e-6 here.

    Returns:
        The network. Without a readout in the graph it is the identity.

    Raises:
        ValueError: if the file is damaged, dt is missing or contradicts the file, or our cells cannot say the same; the message
            names the node and its type.
        TypeError: if the source is neither a graph nor a path.
        ImportError: if nir is not installed.
        OSError: if the file cannot be read.

    Example:
        >>> from neurolsc.export import to_nir
        >>> network = Network([LIF(30, 8)], n_out=4)
        >>> again = from_nir(to_nir(network, dt=1e-4))
        >>> torch.equal(again.cells[0].w_rec, network.cells[0].w_rec)
        True
    """
    graph = read_nir(source) if isinstance(source, str | PathLike) else source
    if not isinstance(graph, load_nir().NIRGraph):
        raise TypeError(f"wanted a NIRGraph or the path of a file, got {type(graph).__name__}.")
    about = notes(graph)
    dt = _step(about, dt)
    chain = read_chain(graph)
    cells = [_cell(layer, dt) for layer in chain.layers]
    readout = _readout(chain.readout, cells[-1])
    with torch.random.fork_rng(devices=[]):
        delay: Literal[0, 1] = 1 if int(about.get("layer_delay", 0)) else 0
        return Network(cells, readout, layer_delay=delay)


def read_nir(path: str | PathLike[str]) -> "nir.NIRGraph":
    """The graph in a file.

    Raises:
        ValueError: if the file is damaged, or holds something else.
        OSError: if it cannot be read.
    """
    nir = load_nir()
    name = os.fspath(path)
    with open(path, "rb"):  # else a missing file and a damaged one give the same error
        pass
    try:
        return nir.read(
            name, type_check=False
        )  # it refuses a batch axis, which other writers leave in; shapes are checked here
    except (OSError, KeyError, ValueError, TypeError, AttributeError, AssertionError, RuntimeError) as error:
        said = f"nir {nir.version} says {type(error).__name__}: {error}"
        raise ValueError(f"{name} is damaged or does not hold a graph of NIR: {said}") from error


def _step(about: dict[str, Any], dt: float | None) -> float:
    if "dt" in about:
        said = float(about["dt"])
        if dt is not None and not np.isclose(dt, said):
            raise ValueError(f"the graph was written with dt = {said:g} s, got dt = {dt:g} s.")
        return number("dt", said)
    if dt is None:
        raise ValueError(
            "the graph does not say how long a time step is: give dt in seconds (snnTorch writes for 1e-4)."
        )
    return number("dt", dt)


def _cell(layer: Layer, dt: float) -> LIF | ALIF:
    weight = np.asarray(layer.weight.weight)
    if weight.ndim != 2:
        raise ValueError(f"the weights before {layer.name} have shape {weight.shape}, wanted a matrix.")
    n = weight.shape[0]
    _constant(layer, layer.neuron, "v_leak", 0.0, n)
    neuron = {"LIF": _lif, "CubaLIF": _cuba}.get(type(layer.neuron).__name__, _alif)
    with torch.random.fork_rng(devices=[]):
        cell, leak, gain = neuron(layer, dt, weight.shape[1], n)
    cell = cell.double() if weight.dtype == np.float64 else cell.float()
    if np.allclose(gain, 1, rtol=CLOSE, atol=0):
        gain = np.ones(1)
    with torch.no_grad():
        _fill_tau(cell, "tau_v", leak, layer.about)
        if isinstance(cell, LIF):
            threshold = cell.theta
            _fill(threshold, values(layer.neuron, "v_threshold", (n,)))
        else:
            _fill_adaptation(cell, layer, dt)
            threshold = cell.theta_rest
        _fill(cell.w_in, _scaled(weight, gain))
        _fill(cell.w_rec, _scaled(_matrix(layer, n), gain))
        _fill(cell.b_v, gain * (_bias(layer.weight, n) + _bias(layer.recurrent, n)))
        if cell.reset_name != "zero":
            _restore_diagonal(cell, layer.recurrent, threshold)
    if not (threshold > 0).all():
        raise ValueError(f"node {layer.name}: thresholds must be positive, got {threshold.min():g}.")
    for name, value in cell.state_dict().items():
        if not value.isfinite().all():
            raise ValueError(f"node {layer.name}: {name} would not be finite.")
    return cell


def _lif(layer: Layer, dt: float, n_in: int, n: int) -> Built:
    _constant(layer, layer.neuron, "v_reset", 0.0, n)
    leak = _leak(layer, layer.neuron, "tau", dt, n)
    return LIF(n_in, n, reset="zero"), leak, leak * values(layer.neuron, "r", (n,))


def _cuba(layer: Layer, dt: float, n_in: int, n: int) -> Built:
    node = layer.neuron
    _constant(layer, node, "v_reset", 0.0, n)
    mem, syn = (_leak(layer, node, name, dt, n) for name in ("tau_mem", "tau_syn"))
    gain = mem * syn * values(node, "r", (n,)) * values(node, "w_in", (n,))
    in_current, in_voltage = np.allclose(mem, 1, rtol=CLOSE), np.allclose(syn, 1, rtol=CLOSE)
    noted = str(layer.about.get("reset", "zero"))
    if in_current and (not in_voltage or noted != "zero"):
        return LIF(n_in, n, reset="static" if noted == "static" else "subtract"), syn, gain
    if in_voltage:
        return LIF(n_in, n, reset="zero"), mem, gain
    raise ValueError(
        f"node {layer.name} (CubaLIF) keeps a current and a voltage, where our LIF has one state: tau_syn = "
        f"{values(node, 'tau_syn', (n,)).max():g} s and tau_mem = {values(node, 'tau_mem', (n,)).max():g} s, of which one must be "
        f"dt = {dt:g} s."
    )


def _alif(layer: Layer, dt: float, n_in: int, n: int) -> Built:
    _constant(layer, layer.adaptation, "v_leak", 0.0, n)
    kind = ALIFPlusMinus if layer.about.get("cell") == "ALIFPlusMinus" else ALIFPlus
    leak = _leak(layer, layer.neuron, "tau", dt, n)
    return kind(n_in, n, reset="static"), leak, leak * values(layer.neuron, "r", (n,))


def _fill_adaptation(cell: ALIF, layer: Layer, dt: float) -> None:
    n = cell.n_hidden
    leak = _leak(layer, layer.adaptation, "tau", dt, n)
    _fill_tau(cell, "tau_theta", leak, layer.about)
    rest = values(layer.threshold, "threshold", (n,))
    rise, noted = -leak * values(layer.adaptation, "r", (n,)), layer.about
    _fill(cell.adaptation, noted["adaptation"] if _agree(noted.get("adaptation"), rise, cell.adaptation) else rise)
    cell.theta_rest = torch.tensor(rest)
    if "b_theta" in noted:
        from_graph = cell.b_theta.clone()
        _fill(cell.b_theta, noted["b_theta"])
        if not _agree(array(cell.theta_rest), rest, from_graph):
            cell.b_theta.copy_(from_graph)


def _leak(layer: Layer, node: Any, name: str, dt: float, n: int) -> np.ndarray:
    """The share of a state that a step loses, dt / tau, in (0, 1]."""
    tau = values(node, name, (n,))
    with np.errstate(divide="ignore"):
        leak = dt / tau
    if not ((leak > 0) & (leak <= 1 + CLOSE)).all():
        raise ValueError(
            f"node {layer.name} ({type(node).__name__}): {name} must be at least dt = {dt:g} s and finite, got "
            f"{tau.min():g} to {tau.max():g} s."
        )
    return np.minimum(leak, 1)


def _constant(layer: Layer, node: Any, name: str, wanted: float, n: int) -> None:
    value = values(node, name, (n,))
    if not np.allclose(value, wanted):
        odd = value[~np.isclose(value, wanted)][0]
        raise ValueError(
            f"node {layer.name} ({type(node).__name__}): {name} must be {wanted:g}, as our cells have it, got {odd:g}."
        )


def _matrix(layer: Layer, n: int) -> np.ndarray:
    if layer.recurrent is None:
        return np.zeros((n, n))
    weight = np.asarray(layer.recurrent.weight)
    if weight.shape != (n, n):
        raise ValueError(f"the recurrent weights of {layer.name} have shape {weight.shape}, wanted {(n, n)}.")
    return weight


def _bias(node: Any, n: int) -> np.ndarray:
    return np.zeros(n) if getattr(node, "bias", None) is None else values(node, "bias", (n,))


def _scaled(weight: np.ndarray, gain: np.ndarray) -> np.ndarray:
    return weight if gain.size == 1 else weight * gain[:, None]


def _restore_diagonal(cell: SpikingCell, recurrent: Any, threshold: Tensor) -> None:
    """Take the reset out of the recurrent weights."""
    noted = None if recurrent is None else notes(recurrent).get("diagonal")
    diagonal = cell.w_rec.diagonal()
    exact = diagonal + threshold
    if noted is not None:
        before = torch.as_tensor(np.asarray(noted), dtype=diagonal.dtype)
        exact = torch.where(before - threshold == diagonal, before, exact)
    diagonal.copy_(exact)


def _fill_tau(cell: SpikingCell, name: str, leak: np.ndarray, about: dict[str, Any]) -> None:
    """Set a time constant by the share that a step loses; the one we noted, if it is that one."""
    with np.errstate(divide="ignore"):
        tau = np.maximum(-1 / np.log1p(-leak), NO_MEMORY)
    parameter = cell.get_parameter(f"log_{name}")
    _fill(parameter, np.log(tau))
    noted = about.get(f"log_{name}")
    if noted is not None and _agree(np.exp(-np.exp(-np.asarray(noted, np.float64))), 1 - leak, parameter):
        _fill(parameter, noted)


def _agree(noted: Any, said: np.ndarray, like: Tensor) -> bool:
    """Whether what we noted of a parameter is what the graph says still, but for rounding."""
    few = 8 * torch.finfo(like.dtype).eps
    return noted is not None and np.shape(noted) == said.shape and np.allclose(noted, said, rtol=few, atol=few)


def _fill(tensor: Tensor, value: Any) -> None:
    tensor.copy_(torch.from_numpy(np.array(value)))


def _readout(node: Any | None, cell: SpikingCell) -> nn.Linear:
    kind = cell.dtype_and_device["dtype"]
    weight = np.eye(cell.n_hidden) if node is None else np.asarray(node.weight)
    if weight.ndim != 2 or weight.shape[1] != cell.n_hidden:
        raise ValueError(f"the weights of the readout have shape {weight.shape}, wanted (classes, {cell.n_hidden}).")
    bias = None if node is None else getattr(node, "bias", None)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        readout = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, dtype=kind)
        _fill(readout.weight, weight)
        if bias is not None:
            _fill(readout.bias, np.asarray(bias))
    return readout
