"""The contestants of layers.py in jax, run by the interpreter of `make peers-env`.

    python _layers_jax.py TASK.npz

Each is what `jax.lax.scan` and `jax.jit` make of our equations (eq. 49 of arXiv:2308.12075) with
our weights, or of spyx's RLIF, which sends its spikes one step late. Weights lie as the products
want them; the input of all steps is projected at once; the gradients are written into the memory of
the last ones. On standard input stand lines of a name and what to do (`both`, `forward`, `rates`,
`peak` or `save FILE`), answered by one line of JSON each. jax takes one thread. Imports nothing of
torch or neurolsc.
"""

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from spyx import axn
from spyx import nn as spyx

Params = dict[str, dict[str, jax.Array]]


def slope(distance: jax.Array) -> jax.Array:
    """The derivative of neurolsc's default surrogate."""
    return 0.5 / (1 + jnp.abs(distance)) ** 2


@jax.custom_jvp
def spike(distance: jax.Array) -> jax.Array:
    """1 where positive."""
    return (distance > 0).astype(distance.dtype)


@spike.defjvp
def _(primals: tuple, tangents: tuple) -> tuple:
    return spike(*primals), tangents[0] * slope(*primals)


def alif(c: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Spikes (T, B, N) of ALIF+."""
    decay, decay_theta = jnp.exp(-1 / c["tau_v"]), jnp.exp(-1 / c["tau_theta"])

    def step(state: tuple, drive: jax.Array) -> tuple:
        z, v, theta = state
        v = decay * v + drive + z @ c["w_rec"] - jax.lax.stop_gradient(theta * z)
        theta = decay_theta * theta + c["b_theta"] + c["adaptation"] * z
        z = spike(v - theta)
        return (z, v, theta), z

    still = jnp.zeros((x.shape[1], len(decay)), x.dtype)
    theta = c["b_theta"] / (1 - decay_theta) + still
    return jax.lax.scan(step, (spike(still - theta), still, theta), x @ c["w_in"] + c["b_v"])[1]


def lif(c: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Spikes (T, B, N) of LIF."""
    decay = jnp.exp(-1 / c["tau_v"])

    def step(state: tuple, drive: jax.Array) -> tuple:
        z, v = state
        v = decay * v + drive + z @ c["w_rec"] - jax.lax.stop_gradient(c["theta"] * z)
        z = spike(v - c["theta"])
        return (z, v), z

    still = jnp.zeros((x.shape[1], len(decay)), x.dtype)
    return jax.lax.scan(step, (still, still), x @ c["w_in"] + c["b_v"])[1]


def spyx_rlif(c: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Spikes (T, B, N) of spyx's RLIF, run by spyx."""
    hidden = len(c["tau_v"])
    graph, state = nnx.split(spyx.RLIF((hidden,), 0.5, activation=axn.custom(slope), rngs=nnx.Rngs(0)))
    state["beta"].value, state["recurrent_w"].value = jnp.exp(-1 / c["tau_v"]), c["w_rec"]
    neurons = nnx.merge(graph, state)
    start = jnp.zeros((x.shape[1], hidden), x.dtype)
    return spyx.run(neurons, x @ c["w_in"] + c["b_v"], start)[0]


CONTESTANTS: dict[str, tuple[str, Callable]] = {
    "jax.lax.scan ALIF+": ("ALIF", alif),
    "jax.lax.scan LIF": ("LIF", lif),
    "spyx RLIF": ("LIF", spyx_rlif),
}


def spikes(layer: Callable, params: Params, x: jax.Array) -> list[jax.Array]:
    """The spikes of every layer."""
    sent = []
    for name in sorted(key for key in params if key.isdigit()):
        x = layer(params[name], x)
        sent.append(x)
    return sent


def logits(layer: Callable, params: Params, x: jax.Array) -> jax.Array:
    """What the readout makes of them."""
    return spikes(layer, params, x)[-1] @ params["readout"]["weight"]


def gradients(layer: Callable, params: Params, x: jax.Array, last: Params) -> tuple[jax.Array, Params]:
    """The loss of layers.py and its gradients; the last ones give their memory."""
    del last
    return jax.value_and_grad(lambda params: jnp.square(logits(layer, params, x)).mean())(params)


class Task:
    """Weights and input from a file."""

    def __init__(self, path: str) -> None:
        with np.load(path) as file:
            self.x = jnp.asarray(file["x"])
            self.params: dict[str, Params] = {}
            for key in file.files:
                if key != "x":
                    kind, layer, name = key.split(".")
                    self.params.setdefault(kind, {}).setdefault(layer, {})[name] = jnp.asarray(file[key])

    @cache  # noqa: B019
    def way(self, name: str, what: str) -> Callable[[], object]:
        """Compiled."""
        kind, layer = CONTESTANTS[name]
        params = self.params[kind]
        if what == "forward":
            forward = jax.jit(partial(logits, layer)).lower(params, self.x).compile()
            return lambda: jax.block_until_ready(forward(params, self.x))
        last = jax.tree.map(jnp.zeros_like, params)
        both = (
            jax.jit(partial(gradients, layer), donate_argnums=2, keep_unused=True).lower(params, self.x, last).compile()
        )

        def again() -> Params:
            nonlocal last
            _, last = jax.block_until_ready(both(params, self.x, last))
            return last

        return again

    def rates(self, name: str) -> list[float]:
        """The share of steps in which the neurons of each layer fire."""
        kind, layer = CONTESTANTS[name]
        return [round(z.mean().item(), 4) for z in spikes(layer, self.params[kind], self.x)]

    def save(self, name: str, path: str) -> None:
        """Spikes and gradients for a comparison."""
        kind, layer = CONTESTANTS[name]
        found = {f"spikes.{i}": z for i, z in enumerate(spikes(layer, self.params[kind], self.x))}
        for part, by_name in self.way(name, "both")().items():
            found |= {f"{part}.{key}": g for key, g in by_name.items()}
        np.savez(path, **found)


def milliseconds(way: Callable[[], object]) -> float:
    """Processor time."""
    started = time.process_time()
    way()
    return 1e3 * (time.process_time() - started)


def peak(way: Callable[[], object]) -> float:
    """MB by which the resident set rises in one pass."""

    def status(key: str) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024

    way()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    way()
    return round(status("VmHWM") - before, 1)


def main() -> None:
    task = Task(sys.argv[1])
    for line in sys.stdin:
        name, what, *rest = json.loads(line)
        if what == "rates":
            answer: object = task.rates(name)
        elif what == "save":
            answer = task.save(name, *rest)
        elif what == "peak":
            answer = peak(task.way(name, "both"))
        else:
            answer = milliseconds(task.way(name, what))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
