"""The optional package nir, and the numbers of its nodes."""

from types import ModuleType
from typing import Any

import numpy as np
from torch import Tensor

__all__ = ["array", "check_constant", "linear", "load_nir", "lost_share", "notes", "values"]

CLOSE = 1e-6
"""relative; other programs store float32"""


def load_nir() -> ModuleType:
    """The module ``nir``.

    Raises:
        ImportError: if it is not installed; the message names the extra that brings it.
    """
    try:
        import nir
    except ImportError as error:
        raise ImportError("export to and from NIR needs the package nir: pip install 'nir>=1.0.7'.") from error
    return nir


def array(value: Tensor) -> np.ndarray:
    """A tensor's values as a contiguous array of its own."""
    return np.ascontiguousarray(value.detach().cpu().numpy()).copy()


def linear(weight: Tensor, bias: Tensor | None = None) -> Any:
    """A node for weights, with a bias if there is one that is not zero."""
    nir = load_nir()
    if bias is None or not bias.any():
        return nir.Linear(array(weight))
    return nir.Affine(array(weight), array(bias))


def notes(node: Any) -> dict[str, Any]:
    """What we noted beside a node."""
    found = node.metadata.get("neurolsc", {})
    return found if isinstance(found, dict) else {}


def values(node: Any, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A parameter of a node in float64, one number for all neurons spread over them.

    Raises:
        ValueError: if there are neither one nor as many as neurons.
    """
    value = np.asarray(getattr(node, name), dtype=np.float64)
    if value.size != 1 and value.shape != shape:
        raise ValueError(f"{name} of a {type(node).__name__} has shape {value.shape}, wanted {shape}.")
    return np.broadcast_to(value.reshape(()) if value.size == 1 else value, shape)


def lost_share(layer: str, node: Any, name: str, dt: float, n: int) -> np.ndarray:
    """The share of a state that a step loses, dt / tau, in (0, 1].

    Raises:
        ValueError: if the time constant of that name is shorter than dt or infinite.
    """
    tau = values(node, name, (n,))
    with np.errstate(divide="ignore"):
        lost = dt / tau
    if not ((lost > 0) & (lost <= 1 + CLOSE)).all():
        raise ValueError(
            f"node {layer} ({type(node).__name__}): {name} must be at least dt = {dt:g} s and finite, got "
            f"{tau.min():g} to {tau.max():g} s."
        )
    return np.minimum(lost, 1)


def check_constant(layer: str, node: Any, name: str, wanted: float, n: int) -> None:
    """Demand that a parameter is one number.

    Raises:
        ValueError: if it is another.
    """
    value = values(node, name, (n,))
    if not np.allclose(value, wanted):
        odd = value[~np.isclose(value, wanted)][0]
        raise ValueError(
            f"node {layer} ({type(node).__name__}): {name} must be {wanted:g}, as our cells have it, got {odd:g}."
        )
