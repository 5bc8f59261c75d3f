"""minimal-LRU's layer with the weights of ours, run by the interpreter of `make peers-env`.

    python _lru_jax.py FOLDER TASK.npz

FOLDER is a checkout of github.com/NicolasZucchet/minimal-LRU. On standard input stand lines of a
part, `block` (its SequenceLayer, normed first, without dropout) or `recurrence` (its LRU), and what
to do with it, `forward` or `both`, which are answered by milliseconds, or `apart`, by how far its
outputs are from those of the task. One core. Imports nothing of torch or neurolsc.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from functools import cache, partial

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})  # jax counts its threads by this

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, sys.argv[1])

from lru.model import LRU, SequenceLayer  # type: ignore[import-not-found]

OURS = {"nu_log": "nu_log", "gamma_log": "gamma_log", "D": "d"}
OURS |= {f"{theirs}_{part[:2]}": f"{theirs.lower()}_{part}" for theirs in "BC" for part in ("real", "imag")}
"""the names of their weights, and of ours"""


class Task:
    """Weights, an input (T, B, N) and our outputs, from a file."""

    def __init__(self, path: str) -> None:
        with np.load(path) as file:
            given = {name: jnp.asarray(file[name]) for name in file.files}
        self.x = given["x"].swapaxes(0, 1)
        self.wanted = {part: given[part].swapaxes(0, 1) for part in ("block", "recurrence")}
        recurrence = {theirs: given[ours] for theirs, ours in OURS.items()} | {"theta_log": jnp.log(given["phase"])}
        dense = (given["glu_weight"].T, given["glu_bias"])
        block = {
            "seq": recurrence,
            "normalization": {"scale": given["norm_weight"], "bias": given["norm_bias"]},
            **{
                name: {"kernel": w, "bias": b}
                for name, w, b in zip(("out1", "out2"), *(jnp.split(each, 2, -1) for each in dense), strict=True)
            },
        }
        self.params = {"block": {"params": block}, "recurrence": {"params": recurrence}}
        n_state, n = given["b_real"].shape
        lru = partial(LRU, d_hidden=n_state, d_model=n)
        layers = {"block": SequenceLayer(lru=lru, d_model=n, prenorm=True, training=False), "recurrence": lru()}
        self.runs = {part: jax.vmap(layer.apply, in_axes=(None, 0)) for part, layer in layers.items()}

    @cache  # noqa: B019
    def way(self, part: str, what: str) -> Callable[[], object]:
        """Compiled."""
        run = self.runs[part]

        def loss(params: dict, x: jax.Array) -> jax.Array:
            return jnp.square(run(params, x)).mean()

        compiled = jax.jit(run if what == "forward" else jax.grad(loss)).lower(self.params[part], self.x).compile()
        return lambda: jax.block_until_ready(compiled(self.params[part], self.x))

    def apart(self, part: str) -> float:
        """By how far the outputs differ from ours."""
        return jnp.abs(self.way(part, "forward")() - self.wanted[part]).max().item()


def milliseconds(way: Callable[[], object]) -> float:
    """Processor time."""
    started = time.process_time()
    way()
    return 1e3 * (time.process_time() - started)


def main() -> None:
    task = Task(sys.argv[2])
    for line in sys.stdin:
        part, what = json.loads(line)
        print(task.apart(part) if what == "apart" else milliseconds(task.way(part, what)), flush=True)


if __name__ == "__main__":
    main()
