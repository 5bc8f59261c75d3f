"""The leaky voltage that LIF and ALIF share, in NIR's numbers and back."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from neurolsc.export.nir.graph import ChainLayer
from neurolsc.export.nir.nodes import CLOSE, array, load_nir, notes, values
from neurolsc.neurons import LI, SpikingCell
from neurolsc.neurons.reset import ZeroReset
from neurolsc.positive import raw

__all__ = ["agree", "check_finite", "check_voltage", "fill", "fill_tau", "fill_voltage", "gain", "recurrent", "width"]

NO_MEMORY = 1e-3
"""a time constant in steps of which exp(-1/tau) is 0"""


def check_finite(layer: str, name: str, value: Tensor) -> None:
    """Refuse what is not finite.

    Raises:
        ValueError: if something is not.
    """
    if not value.isfinite().all():
        raise ValueError(f"{layer}: {name} must be finite, got {value[~value.isfinite()][0].item()}.")


def check_voltage(layer: str, cell: SpikingCell | LI, decays: dict[str, Tensor], threshold: Tensor, delay: int) -> None:
    """Refuse what NIR cannot say of a voltage.

    Args:
        layer: its name.
        cell: the cell.
        decays: shares kept in a step, by the names of their time constants.
        threshold: at rest.
        delay: ``layer_delay`` of the network.

    Raises:
        ValueError: naming the layer and the number.
    """
    for name, value in cell.state_dict().items():
        check_finite(layer, name, value)
    if cell.w_in.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"{layer} has the dtype {cell.w_in.dtype}; wanted torch.float32 or torch.float64.")
    for name, decay in decays.items():
        if (decay == 1).any():
            raise ValueError(
                f"{layer}: {name} reaches {getattr(cell, name).max():.3g} steps, of which {decay.dtype} makes a "
                "decay of 1: the time constant in seconds would be infinite."
            )
    if not (threshold > 0).all():
        raise ValueError(f"{layer}: thresholds must be positive, got {threshold.min():.4g}.")
    if delay and cell.b_v.any():
        raise ValueError(
            f"{layer}: its bias (up to {cell.b_v.abs().max():.4g}) acts from the first step on, before the "
            "delayed input arrives, and NIR's readers have no latency between layers: use layer_delay=0, or no bias."
        )


def gain(decay: Tensor) -> np.ndarray:
    """1 / (1 - a) of the share a that a step keeps, float64: a time constant in steps of NIR."""
    return 1 / (1 - array(decay).astype(np.float64))


def recurrent(cell: SpikingCell, threshold: Tensor) -> Any:
    """The recurrent weights with the reset by subtraction in them, and their own diagonal."""
    nir = load_nir()
    if isinstance(cell.reset, ZeroReset):
        return nir.Linear(array(cell.w_rec))
    return nir.Linear(
        array(cell.w_rec - torch.diag(threshold)), metadata={"neurolsc": {"diagonal": array(cell.w_rec.diagonal())}}
    )


def width(layer: ChainLayer) -> tuple[int, int]:
    """Neurons and inputs of a layer.

    Raises:
        ValueError: if its weights are no matrix.
    """
    shape = np.shape(layer.weight.weight)
    if len(shape) != 2:
        raise ValueError(f"the weights before {layer.name} have shape {shape}, wanted a matrix.")
    return shape[0], shape[1]


def fill_voltage(
    cell: SpikingCell | LI, layer: ChainLayer, lost: np.ndarray, gain: np.ndarray, threshold: Tensor
) -> None:
    """Set weights, bias and time constant.

    Args:
        cell: a cell whose threshold is set.
        layer: the nodes.
        lost: the share of its voltage that a step loses (n_hidden,).
        gain: what a unit of input adds to the voltage (n_hidden,).
        threshold: what a spike subtracts, if the reset subtracts.

    Raises:
        ValueError: if a shape does not fit, or something is not finite or positive.
    """
    n = cell.n_hidden
    if np.allclose(gain, 1, rtol=CLOSE, atol=0):
        gain = np.ones(n)
    fill_tau(cell, "tau_v", lost, layer.about)
    fill(cell.w_in, _scaled(np.asarray(layer.weight.weight), gain))
    fill(cell.b_v, gain * (_bias(layer.weight, n) + _bias(layer.recurrent, n)))
    if isinstance(cell, SpikingCell):
        fill(cell.w_rec, _scaled(_matrix(layer, n), gain))
        if not isinstance(cell.reset, ZeroReset):
            _restore_diagonal(cell, layer.recurrent, threshold)
    if not (threshold > 0).all():
        raise ValueError(f"node {layer.name}: thresholds must be positive, got {threshold.min():g}.")
    for name, value in cell.state_dict().items():
        if not value.isfinite().all():
            raise ValueError(f"node {layer.name}: {name} would not be finite.")


def fill_tau(cell: SpikingCell | LI, name: str, lost: np.ndarray, about: dict[str, Any]) -> None:
    """Set a time constant by the share that a step loses; the one we noted, if it is that one."""
    with np.errstate(divide="ignore"):
        tau = np.maximum(-1 / np.log1p(-lost), NO_MEMORY)
    parameter = cell.get_parameter(raw(name))
    fill(parameter, np.log(tau))
    noted = about.get(raw(name))
    if noted is not None and agree(np.exp(-np.exp(-np.asarray(noted, np.float64))), 1 - lost, parameter):
        fill(parameter, noted)


def agree(noted: Any, said: np.ndarray, like: Tensor) -> bool:
    """Whether what we noted of a parameter is what the graph says still, but for rounding."""
    few = 8 * torch.finfo(like.dtype).eps
    return np.shape(noted) == said.shape and np.allclose(noted, said, rtol=few, atol=few)


def fill(tensor: Tensor, value: Any) -> None:
    """Copy numbers into a tensor."""
    tensor.copy_(torch.from_numpy(np.array(value)))


def _matrix(layer: ChainLayer, n: int) -> np.ndarray:
    if layer.recurrent is None:
        return np.zeros((n, n))
    weight = np.asarray(layer.recurrent.weight)
    if weight.shape != (n, n):
        raise ValueError(f"the recurrent weights of {layer.name} have shape {weight.shape}, wanted {(n, n)}.")
    return weight


def _bias(node: Any, n: int) -> np.ndarray:
    return np.zeros(n) if getattr(node, "bias", None) is None else values(node, "bias", (n,))


def _scaled(weight: np.ndarray, gain: np.ndarray) -> np.ndarray:
    return weight if (gain == 1).all() else weight * gain[:, None]


def _restore_diagonal(cell: SpikingCell, recurrent: Any, threshold: Tensor) -> None:
    """Take the reset out of the recurrent weights."""
    noted = None if recurrent is None else notes(recurrent).get("diagonal")
    diagonal = cell.w_rec.diagonal()
    exact = diagonal + threshold
    if noted is not None:
        before = torch.as_tensor(np.asarray(noted), dtype=diagonal.dtype)
        exact = torch.where(before - threshold == diagonal, before, exact)
    diagonal.copy_(exact)
