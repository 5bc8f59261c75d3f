"""Step an exported file in Lava's bit-accurate simulator.

A script for the Python of the Lava environment, and for nobody else::

    python -I lava_runner.py FILE.net INPUT.npz OUTPUT.npz

INPUT holds ``spikes`` (T, B, N), 0 or 1. OUTPUT gets, for each layer i from 1, ``spikes_i`` (T, B,
M) and the states ``u_i`` or ``theta_i`` and ``v_i`` after each step, and ``versions``. A line says
when a sample is done. Imports nothing of this package, nor torch.
"""

# pyright: reportMissingImports=false
import dataclasses
import importlib.metadata
import importlib.util
import itertools
import logging
import sys
import types
from pathlib import Path
from typing import Any

import h5py
import numpy as np


def let_dataclasses_hash() -> None:
    """From Python 3.11 on defaults without hash are refused; one of Lava's classes has them."""
    original = dataclasses._get_field  # type: ignore[attr-defined]

    def get_field(cls: type, name: str, *rest: Any) -> Any:
        default = getattr(cls, name, None)
        if dataclasses.is_dataclass(default) and not isinstance(default, type) and type(default).__hash__ is None:
            type(default).__hash__ = object.__hash__  # type: ignore[assignment, method-assign]
        return original(cls, name, *rest)

    dataclasses._get_field = get_field  # type: ignore[attr-defined]


def leave_out_slayer() -> None:
    """NetX needs no torch, but its packages import it: empty modules take their place."""
    spec = importlib.util.find_spec("lava.lib.dl")
    assert spec is not None and spec.submodule_search_locations is not None
    folder = Path(next(iter(spec.submodule_search_locations))) / "netx"
    for name in ("slayer", "slayer.neuron", "slayer.neuron.rf", "netx", "netx.sequential_modules"):
        module: Any = types.ModuleType(f"lava.lib.dl.{name}")
        module.__file__ = str(folder / "__init__.py")
        module.__path__ = [str(folder)] if name == "netx" else []
        module.neuron_params = None
        sys.modules[module.__name__] = module


class AlifBlock:
    """An ALIF layer, for which NetX has no reader: ATRLIF neurons and their synapses."""

    def __init__(self, group: Any) -> None:
        from lava.proc.atrlif.process import ATRLIF
        from lava.proc.dense.process import Dense

        def value(name: str) -> Any:
            return group[name][()]

        m = int(np.prod(value("shape")))
        self.synapse = Dense(weights=value("weight").astype(int), weight_exp=int(value("weightExp")))
        self.recurrence = Dense(weights=value("weight_rec").astype(int), weight_exp=int(value("weightRecExp")))
        reset = np.diag(np.broadcast_to(value("neuron/resetMant"), (m,))).astype(int)
        self.reset = Dense(weights=-reset, weight_exp=int(value("neuron/resetExp")))
        self.neuron = ATRLIF(
            shape=(m,),
            delta_i=(value("neuron/iDecay") - 1) / 4096,
            delta_v=value("neuron/vDecay") / 4096,
            delta_theta=value("neuron/thDecay") / 4096,
            delta_r=value("neuron/refDecay") / 4096,
            theta=value("neuron/vThMant"),
            theta_0=value("neuron/vThMant"),
            theta_step=int(value("neuron/vThStep")),
            bias_mant=value("bias").astype(int) if "bias" in group else 0,
            bias_exp=int(value("biasExp")) if "bias" in group else 0,
        )
        self.inp = self.synapse.s_in
        self.out = self.neuron.s_out
        self.synapse.a_out.connect(self.neuron.a_in)
        for loop in (self.recurrence, self.reset):
            self.neuron.s_out.connect(loop.s_in)
            loop.a_out.connect(self.neuron.a_in)


def neuron_type(group: Any) -> str:
    """The neuron of a layer, "" for one without."""
    return group["neuron/type"][()].decode() if "neuron" in group else ""


def build(path: str) -> tuple[Any, list[Any]]:
    """The process to run, and the layers, first layer first; NetX builds all that it can."""
    from lava.lib.dl.netx import hdf5
    from lava.lib.dl.netx.utils import NetDict

    with h5py.File(path, "r") as opened:
        file: Any = opened
        groups = [file["layer"][str(i)] for i in range(1, len(file["layer"]))]
        kinds = [neuron_type(group) for group in groups]
        if "ALIF" not in kinds:
            net = hdf5.Network(path)
            return net, list(net.layers)
        layers: list[Any] = []
        for group, kind in zip(groups, kinds, strict=True):
            if kind == "ALIF":
                layers.append(AlifBlock(group))
            else:
                recurrent = "weight_rec" in group
                layers.append(hdf5.Network.create_dense(NetDict(f=group), rec=recurrent)[0])
        for below, above in itertools.pairwise(layers):
            below.out.connect(above.inp)
        return layers[0].neuron, layers


def run(path: str, spikes: "np.ndarray[Any, Any]") -> dict[str, "np.ndarray[Any, Any]"]:
    """One sample (T, N): spikes (T, M) and states (T, M) of every layer."""
    from lava.magma.core.run_conditions import RunSteps
    from lava.magma.core.run_configs import Loihi2SimCfg
    from lava.proc.io.sink import RingBuffer as Sink
    from lava.proc.io.source import RingBuffer as Source
    from lava.proc.monitor.process import Monitor

    steps = len(spikes)
    process, layers = build(path)
    source = Source(data=spikes.T.astype(int))
    source.s_out.connect(layers[0].inp)
    sinks, monitors = [], {}
    for i, layer in enumerate(layers, start=1):
        sink = Sink(shape=layer.out.shape, buffer=steps)
        layer.out.connect(sink.a_in)
        sinks.append(sink)
        for name in ("theta", "v") if isinstance(layer, AlifBlock) else ("u", "v"):
            monitor = Monitor()
            monitor.probe(getattr(layer.neuron, name), steps)
            monitors[f"{name}_{i}"] = monitor
    process.run(condition=RunSteps(num_steps=steps), run_cfg=Loihi2SimCfg(select_tag="fixed_pt"))
    try:
        result = {f"spikes_{i}": sink.data.get().T.astype(np.uint8) for i, sink in enumerate(sinks, start=1)}
        for name, monitor in monitors.items():
            (variables,) = monitor.get_data().values()
            (values,) = variables.values()
            result[name] = values.astype(np.int32)
        return result
    finally:
        process.stop()


def main(path: str, source: str, target: str) -> None:
    """Run all samples, one after the other."""
    let_dataclasses_hash()  # both before anything of Lava is imported
    leave_out_slayer()
    logging.disable(logging.WARNING)
    with np.load(source, allow_pickle=False) as file:
        spikes = file["spikes"]
    runs = []
    for b in range(spikes.shape[1]):
        runs.append(run(path, spikes[:, b]))
        print("neurolsc: a sample is done", flush=True)
    stacked = {name: np.stack([one[name] for one in runs], axis=1) for name in runs[0]}
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("lava-nc", "lava-dl", "numpy")]
    np.savez(target, allow_pickle=False, versions=np.array([*versions, f"Python {sys.version.split()[0]}"]), **stacked)


if __name__ == "__main__":
    main(*sys.argv[1:])
