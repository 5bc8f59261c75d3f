"""Step an exported file in Lava's bit-accurate simulator, or in nengo-loihi's emulator of Loihi 1.

A script for the Python of the simulator's environment, which imports nothing of this package, nor torch::

    python -I simulator.py Lava|nengo-loihi FILE.net INPUT.npz OUTPUT.npz

INPUT holds ``spikes`` (T, B, N), 0 or 1. OUTPUT gets, for each layer i from 1, ``spikes_i`` (T, B, M) and the states
after each step, ``u_i`` or ``theta_i`` and ``v_i``, and ``versions``; nengo-loihi has no readout.
"""

# pyright: reportMissingImports=false
import dataclasses
import importlib.metadata
import importlib.util
import itertools
import logging
import sys
import types
import warnings
from pathlib import Path
from typing import Any

import h5py
import numpy as np

Arrays = dict[str, "np.ndarray[Any, Any]"]  # of one sample, by name
UNIT = 64  # of a state, for 1 of a weight, threshold or bias in the file
LIMIT = 2**23 - 1
FULL_DECAY = 4096  # a decay k takes k / 4096 of a state in a step

# Lava


def prepare_lava() -> None:
    """Make Lava importable in Python 3.11 and later and without torch, and silence its log."""
    original = dataclasses._get_field  # type: ignore[attr-defined]

    def get_field(cls: type, name: str, *rest: Any) -> Any:
        """Give a default a hash: from Python 3.11 on dataclasses refuse defaults without one, such as Lava's."""
        default = getattr(cls, name, None)
        if dataclasses.is_dataclass(default) and not isinstance(default, type) and type(default).__hash__ is None:
            type(default).__hash__ = object.__hash__  # type: ignore[assignment, method-assign]
        return original(cls, name, *rest)

    dataclasses._get_field = get_field  # type: ignore[attr-defined]
    spec = importlib.util.find_spec("lava.lib.dl")
    assert spec is not None and spec.submodule_search_locations is not None
    folder = Path(next(iter(spec.submodule_search_locations))) / "netx"
    # NetX needs no torch, but its packages import it: empty modules take their place
    for name in ("slayer", "slayer.neuron", "slayer.neuron.rf", "netx", "netx.sequential_modules"):
        module: Any = types.ModuleType(f"lava.lib.dl.{name}")
        module.__file__ = str(folder / "__init__.py")
        module.__path__ = []
        if name == "netx":  # its own modules, such as hdf5, are Lava's
            module.__path__ = [str(folder)]
        module.neuron_params = None  # NetX imports it from slayer.neuron.rf
        sys.modules[module.__name__] = module
    logging.disable(logging.WARNING)


def alif_block(group: Any) -> Any:
    """Build an ALIF layer, for which NetX has no reader, from its group of a file.

    Returns:
        An object with what :func:`run_in_lava` reads of a layer: ``inp`` and ``out``, the ports of its input and its
        spikes, ``neuron``, the ATRLIF process, and ``variables``, names of its states.
    """
    from lava.proc.atrlif.process import ATRLIF
    from lava.proc.dense.process import Dense

    value = {name: group[name][()] for name in group if name != "neuron"}
    value |= {name: entry[()] for name, entry in group["neuron"].items()}
    m = int(np.prod(value["shape"]))
    biased = "bias" in group
    synapse = Dense(weights=value["weight"].astype(int), weight_exp=int(value["weightExp"]))
    recurrence = Dense(weights=value["weight_rec"].astype(int), weight_exp=int(value["weightRecExp"]))
    reset = np.diag(np.broadcast_to(value["resetMant"], (m,))).astype(int)  # synapses of each neuron to itself
    neuron = ATRLIF(
        shape=(m,),
        delta_i=(value["iDecay"] - 1) / FULL_DECAY,  # the neuron adds 1
        delta_v=value["vDecay"] / FULL_DECAY,
        delta_theta=value["thDecay"] / FULL_DECAY,
        delta_r=value["refDecay"] / FULL_DECAY,
        theta=value["vThMant"],
        theta_0=value["vThMant"],
        theta_step=int(value["vThStep"]),
        bias_mant=value["bias"].astype(int) if biased else 0,
        bias_exp=int(value["biasExp"]) if biased else 0,
    )
    synapse.a_out.connect(neuron.a_in)
    for loop in (recurrence, Dense(weights=-reset, weight_exp=int(value["resetExp"]))):
        neuron.s_out.connect(loop.s_in)
        loop.a_out.connect(neuron.a_in)
    return types.SimpleNamespace(inp=synapse.s_in, out=neuron.s_out, neuron=neuron, variables=("theta", "v"))


def run_in_lava(path: str, spikes: "np.ndarray[Any, Any]") -> Arrays:
    """Run one sample (T, N) in Lava; return spikes (T, M) and states (T, M) of every layer, the readout among them.

    NetX builds all layers but those of ALIF.
    """
    from lava.lib.dl.netx import hdf5
    from lava.lib.dl.netx.utils import NetDict
    from lava.magma.core.run_conditions import RunSteps
    from lava.magma.core.run_configs import Loihi2SimCfg
    from lava.proc.io.sink import RingBuffer as Sink
    from lava.proc.io.source import RingBuffer as Source
    from lava.proc.monitor.process import Monitor

    with h5py.File(path, "r") as opened:
        file: Any = opened
        groups = [file["layer"][str(i)] for i in range(1, len(file["layer"]))]  # layer 0 is the input
        adaptive = [group["neuron/type"][()] == b"ALIF" if "neuron" in group else False for group in groups]
        if any(adaptive):  # NetX cannot build the network as a whole
            layers: list[Any] = [
                alif_block(group)
                if adapts
                else hdf5.Network.create_dense(NetDict(f=group), rec="weight_rec" in group)[0]
                for group, adapts in zip(groups, adaptive, strict=True)
            ]
            for below, above in itertools.pairwise(layers):
                below.out.connect(above.inp)
            process = layers[0].neuron  # running one process runs all that are connected with it
        else:
            process = hdf5.Network(path)
            layers = list(process.layers)
    steps = len(spikes)
    source = Source(data=spikes.T.astype(int))
    source.s_out.connect(layers[0].inp)
    sinks = []
    monitors = {}
    for i, layer in enumerate(layers, start=1):
        sink = Sink(shape=layer.out.shape, buffer=steps)
        layer.out.connect(sink.a_in)
        sinks.append(sink)
        for name in getattr(layer, "variables", ("u", "v")):
            monitors[f"{name}_{i}"] = monitor = Monitor()
            monitor.probe(getattr(layer.neuron, name), steps)
    process.run(condition=RunSteps(num_steps=steps), run_cfg=Loihi2SimCfg(select_tag="fixed_pt"))
    try:
        result = {f"spikes_{i}": sink.data.get().T.astype(np.uint8) for i, sink in enumerate(sinks, start=1)}
        for name, monitor in monitors.items():
            # a monitor holds one process, and of it one variable
            (variables,) = monitor.get_data().values()
            (values,) = variables.values()
            result[name] = values.astype(np.int32)
        return result
    finally:
        process.stop()


# nengo-loihi. The emulator's blocks are made as its builder makes them, and hold the file's integers
# where its discretisation would put its own.


def run_in_nengo(path: str, spikes: "np.ndarray[Any, Any]") -> Arrays:
    """Run one sample (T, N) in nengo-loihi; return spikes (T, M) and states (T, M) of every layer that has neurons."""
    from nengo_loihi.block import Axon, LoihiBlock, Synapse
    from nengo_loihi.emulator import EmulatorInterface
    from nengo_loihi.inputs import SpikeInput

    def connect(source: Any, target: Any, weight: "np.ndarray[Any, Any]") -> None:
        """Connect N neurons of a source with M of a target by weights (M, N), in integers."""
        synapse = Synapse(weight.shape[1])
        synapse.set_weights(np.ascontiguousarray(weight.T, dtype=np.float32))  # for the shapes that it sets
        # the file's integers replace the weights that set_weights has rounded
        synapse.weights = [UNIT * np.rint(row).astype(np.int32) for row in synapse.weights]
        target.add_synapse(synapse)
        axon = Axon(weight.shape[1])
        axon.target = synapse
        axon.set_compartment_axon_map(np.arange(weight.shape[1]))
        source.add_axon(axon)

    source: Any = SpikeInput(spikes.shape[1])
    for t, frame in enumerate(spikes, start=1):
        source.add_spikes(t, frame.nonzero()[0])
    blocks: list[Any] = []
    with h5py.File(path, "r") as opened:
        file: Any = opened
        for i in range(1, len(file["layer"])):  # layer 0 is the input
            group = file["layer"][str(i)]
            if "neuron" not in group:  # the readout
                continue
            m = int(np.prod(group["shape"][()]))
            decay_u, decay_v, threshold, bias = (
                np.broadcast_to(group[place][()] if place in group else 0, (m,)).astype(np.int32)
                for place in ("neuron/iDecay", "neuron/vDecay", "neuron/vThMant", "bias")
            )
            block = LoihiBlock(m)
            compartment = block.compartment
            compartment.decay_u = decay_u - 1  # the chip adds 1 to this decay
            compartment.decay_v = decay_v
            compartment.vth = UNIT * threshold
            compartment.bias = UNIT * bias
            compartment.refract_delay[:] = 1
            compartment.vmin = -LIMIT
            compartment.vmax = LIMIT
            compartment.scale_u = compartment.scale_v = False
            connect(blocks[-1] if blocks else source, block, group["weight"][()])
            if "weight_rec" in group:
                connect(block, block, group["weight_rec"][()])
            blocks.append(block)
    EmulatorInterface.strict = True  # else an overflow is but a warning
    emulator = EmulatorInterface(types.SimpleNamespace(blocks=blocks, inputs=[source], probes=[], dt=0.001), seed=0)
    seen: dict[str, list[Any]] = {}
    for _ in spikes:
        emulator.step()
        for i, block in enumerate(blocks, start=1):
            where = emulator.block_info.slices[block]  # the block's compartments among all of the emulator
            for name, key in (("spikes", "spiked"), ("u", "current"), ("v", "voltage")):
                seen.setdefault(f"{name}_{i}", []).append(getattr(emulator.compartment, key)[where].astype(np.int32))
    return {name: np.stack(steps) for name, steps in seen.items()}


def main(simulator: str, path: str, source: str, target: str) -> None:
    """Run all samples of the file `source`, one after the other, and write their spikes and states to `target`."""
    warnings.simplefilter("ignore")
    if simulator == "Lava":
        prepare_lava()  # before anything of Lava is imported
    run, packages = {
        "Lava": (run_in_lava, ("lava-nc", "lava-dl", "numpy")),
        "nengo-loihi": (run_in_nengo, ("nengo-loihi", "nengo", "numpy")),
    }[simulator]
    versions = [
        *(f"{name} {importlib.metadata.version(name)}" for name in packages),
        f"Python {sys.version.split()[0]}",
    ]
    with np.load(source, allow_pickle=False) as file:
        runs = [run(path, sample) for sample in file["spikes"].swapaxes(0, 1)]
    stacked = {name: np.stack([arrays[name] for arrays in runs], axis=1) for name in runs[0]}
    np.savez(target, allow_pickle=False, versions=np.array(versions), **stacked)


if __name__ == "__main__":
    main(*sys.argv[1:])
