"""The contestants in jax as seen from layers.py: a process of another environment."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
from _layers import Ours
from torch import Tensor

ENVIRONMENT = Path(__file__).parent.parent / ".peers-env"
SAME = {
    "ALIF": ("neurolsc ALIF+", "jax.lax.scan ALIF+"),
    "LIF": ("neurolsc LIF", "jax.lax.scan LIF", "spyx RLIF"),
}
"""Which networks have our weights, ours first."""


def names() -> list[str]:
    """The contestants in jax; none, and a line that says why, without the environment."""
    if (ENVIRONMENT / "bin/python").exists():
        return [name for same in SAME.values() for name in same[1:]]
    print("jax and spyx do not take part: there is no .peers-env (make peers-env).", flush=True)
    return []


class Child:
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
        wide = {"JAX_ENABLE_X64": str(int(x.element_size() == 8))}
        command = [ENVIRONMENT / "bin/python", Path(__file__).parent / "_layers_jax.py", file]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | wide
        )

    def ask(self, name: str, *what: str) -> Any:
        """The answer to one question."""
        assert self.process.stdin and self.process.stdout
        print(json.dumps([name, *what]), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def numbers(network: Ours) -> dict[str, Tensor]:
    """The numbers of a network by name."""
    found = {f"readout.{name}": p for name, p in network.network.readout.named_parameters()}
    for i, cell in enumerate(network.cells):
        moving = ("tau_theta", "b_theta", "adaptation") if hasattr(cell, "adaptation") else ("theta",)
        found |= {f"{i}.{name}": getattr(cell, name) for name in ("w_in", "w_rec", "b_v", "tau_v", *moving)}
    return found
