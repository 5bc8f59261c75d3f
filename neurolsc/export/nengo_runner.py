"""Step an exported file in nengo-loihi's emulator of Loihi 1.

A script for the Python of its environment, and for nobody else::

    python -I nengo_runner.py FILE.net INPUT.npz OUTPUT.npz

INPUT holds ``spikes`` (T, B, N), 0 or 1. OUTPUT gets, for each layer i from 1 that has neurons,
``spikes_i`` (T, B, M) and the states ``u_i`` and ``v_i`` after each step, and ``versions``. Imports
nothing of this package.

The emulator's blocks are made as its builder makes them, and hold the file's integers where its
discretisation would put its own.
"""

# pyright: reportMissingImports=false
import importlib.metadata
import sys
import types
import warnings
from typing import Any

import h5py
import numpy as np

UNIT = 64
LIMIT = 2**23 - 1


def block(group: Any) -> Any:
    """The compartments of a layer."""
    from nengo_loihi.block import LoihiBlock

    def integers(name: str) -> "np.ndarray[Any, Any]":
        return np.broadcast_to(group[name][()], (m,)).astype(np.int32)

    m = int(np.prod(group["shape"][()]))
    made = LoihiBlock(m)
    compartment = made.compartment
    compartment.decay_u = integers("neuron/iDecay") - 1  # the chip adds 1
    compartment.decay_v = integers("neuron/vDecay")
    compartment.vth = UNIT * integers("neuron/vThMant")
    compartment.bias = UNIT * (integers("bias") if "bias" in group else np.zeros(m, np.int32))
    compartment.refract_delay[:] = 1
    compartment.vmin, compartment.vmax = -LIMIT, LIMIT
    compartment.scale_u = compartment.scale_v = False
    return made


def connect(source: Any, target: Any, weight: "np.ndarray[Any, Any]") -> None:
    """Synapses (M, N) of a block, and the axons that reach them."""
    from nengo_loihi.block import Axon, Synapse

    synapse = Synapse(weight.shape[1])
    synapse.set_weights(np.ascontiguousarray(weight.T, dtype=np.float32))
    synapse.weights = [UNIT * np.rint(row).astype(np.int32) for row in synapse.weights]
    target.add_synapse(synapse)
    axon = Axon(weight.shape[1])
    axon.target = synapse
    axon.set_compartment_axon_map(np.arange(weight.shape[1]))
    source.add_axon(axon)


def run(path: str, spikes: "np.ndarray[Any, Any]") -> dict[str, "np.ndarray[Any, Any]"]:
    """One sample (T, N): spikes (T, M) and states (T, M) of every layer."""
    from nengo_loihi.emulator import EmulatorInterface
    from nengo_loihi.inputs import SpikeInput

    source: Any = SpikeInput(spikes.shape[1])
    for t, frame in enumerate(spikes, start=1):
        source.add_spikes(t, frame.nonzero()[0])
    blocks: list[Any] = []
    with h5py.File(path, "r") as opened:
        file: Any = opened
        for i in range(1, len(file["layer"])):
            group = file["layer"][str(i)]
            if "neuron" not in group:
                continue
            blocks.append(block(group))
            connect(blocks[-2] if i > 1 else source, blocks[-1], group["weight"][()])
            if "weight_rec" in group:
                connect(blocks[-1], blocks[-1], group["weight_rec"][()])
    EmulatorInterface.strict = True  # else an overflow is but a warning
    emulator = EmulatorInterface(types.SimpleNamespace(blocks=blocks, inputs=[source], probes=[], dt=0.001), seed=0)
    seen: dict[str, list[Any]] = {}
    for _ in spikes:
        emulator.step()
        for i, one in enumerate(blocks, start=1):
            where = emulator.block_info.slices[one]
            for name, key in (("spikes", "spiked"), ("u", "current"), ("v", "voltage")):
                seen.setdefault(f"{name}_{i}", []).append(getattr(emulator.compartment, key)[where].astype(np.int32))
    return {name: np.stack(steps) for name, steps in seen.items()}


def main(path: str, source: str, target: str) -> None:
    """Run all samples, one after the other."""
    warnings.simplefilter("ignore")
    with np.load(source, allow_pickle=False) as file:
        spikes = file["spikes"]
    runs = []
    for b in range(spikes.shape[1]):
        runs.append(run(path, spikes[:, b]))
        print("neurolsc: a sample is done", flush=True)
    stacked = {name: np.stack([one[name] for one in runs], axis=1) for name in runs[0]}
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("nengo-loihi", "nengo", "numpy")]
    np.savez(target, allow_pickle=False, versions=np.array([*versions, f"Python {sys.version.split()[0]}"]), **stacked)


if __name__ == "__main__":
    main(*sys.argv[1:])
