"""The contestants in jax as seen from layers.py: a process of another environment."""

from pathlib import Path

import numpy as np
from _jax_process import JaxProcess, at_hand
from _layers import Ours
from torch import Tensor

SAME = {
    "ALIF": ("neurolsc ALIF+", "jax.lax.scan ALIF+"),
    "LIF": ("neurolsc LIF", "jax.lax.scan LIF", "spyx RLIF"),
}
"""Which networks have our weights, ours first."""


def names() -> list[str]:
    """The contestants in jax; none without the environment."""
    return [name for same in SAME.values() for name in same[1:]] if at_hand("jax and spyx") else []


class Child(JaxProcess):
    """A process that runs these networks.

    Args:
        networks: ours by kind, ALIF or LIF.
        x: the input.
        file: where weights and input are handed over.
    """

    def __init__(self, networks: dict[str, Ours], x: Tensor, file: Path) -> None:
        pairs = [(f"{kind}.{name}", p) for kind, network in networks.items() for name, p in numbers(network).items()]
        # matrices lie as rows x W wants them
        np.savez(file, x=x.numpy(), **{name: p.detach().t().contiguous().numpy() for name, p in pairs})
        super().__init__("_layers_jax.py", file, wide=x.element_size() == 8)


def numbers(network: Ours) -> dict[str, Tensor]:
    """The numbers of a network by name."""
    found = {f"readout.{name}": p for name, p in network.network.readout.named_parameters()}
    for i, cell in enumerate(network.cells):
        moving = ("tau_theta", "b_theta", "adaptation") if hasattr(cell, "adaptation") else ("theta",)
        found |= {f"{i}.{name}": getattr(cell, name) for name in ("w_in", "w_rec", "b_v", "tau_v", *moving)}
    return found
