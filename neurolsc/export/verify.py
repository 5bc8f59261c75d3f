"""The exported file against Lava's bit-accurate simulator, spike by spike."""

from dataclasses import dataclass
from os import PathLike

import torch
from torch import Tensor

from neurolsc.export.fixed_point import LIMIT, UNIT, AlifState, clip, moments
from neurolsc.export.nengo_emulator import ask_nengo_loihi
from neurolsc.export.netx import read_netx
from neurolsc.export.opinions import Opinion
from neurolsc.export.simulators import find_python, simulate

__all__ = ["LayerAgreement", "Verification", "verify"]


@dataclass(frozen=True)
class LayerAgreement:
    """One layer of the integer model beside the same layer in the simulator."""

    spikes: int
    """spikes of the integer model; agreement of silence says little"""
    agreement: float
    """share of (step, sample, neuron) triples with the same spike"""
    state_agreement: float
    """the same of current and voltage, or voltage and threshold, after every step"""
    first_difference: int | None
    """the first step at which a spike differs, counted from 0 with blank steps; None if none does"""


@dataclass(frozen=True)
class Verification:
    """What :func:`verify` found."""

    layers: tuple[LayerAgreement, ...]
    """first layer first, readout left out"""
    steps: int
    samples: int
    tools: tuple[str, ...]
    """names and versions of what ran"""
    spikes: tuple[Tensor, ...]
    """the simulator's, each (T, B, M), without blank steps and bias neurons"""
    logits: Tensor
    """integer readout of them at every step (T, B, C)"""
    expected_logits: Tensor
    """the same of the integer model's spikes"""
    readout_agreement: float
    """share of (step, sample, class) triples in which the simulator's readout holds the sum of the logits so far"""
    opinions: tuple[Opinion, ...] = ()
    """of other simulators on the same file and spikes"""

    @property
    def exact(self) -> bool:
        """Whether every spike and every state is the same, and the readout's sums are."""
        return self.readout_agreement == 1 and all(
            layer.agreement == layer.state_agreement == 1 for layer in self.layers
        )

    def __str__(self) -> str:
        """One line per layer."""
        lines = [f"{', '.join(self.tools)}: {self.samples} samples of {self.steps} steps"]
        for i, layer in enumerate(self.layers, start=1):
            where = "" if layer.first_difference is None else f", first difference at step {layer.first_difference}"
            lines.append(
                f"layer {i}: {layer.spikes} spikes, {layer.agreement:.4%} equal; states {layer.state_agreement:.4%} equal{where}"
            )
        lines.append(f"readout: {self.readout_agreement:.4%} of the sums equal")
        lines += [f"second opinion: {opinion}" for opinion in self.opinions]
        return "\n".join(lines)


def verify(
    path: str | PathLike[str], spikes: Tensor, *, python: str | PathLike[str] | None = None, timeout: float = 600.0
) -> Verification:
    """Run an exported file in Lava's simulator and compare it with the integer model, spike by spike.

    Lava runs in a process of its own, in another environment; when the time is up, it and all that it started are killed.

    Args:
        path: the file.
        spikes: input (T, B, n_in), 0 or 1; every sample is a run of its own, which takes a second or two.
        python: Python of the Lava environment; by default ``NEUROLSC_LAVA_PYTHON``, else ``.lava-env`` below this folder.
        timeout: seconds for all samples.

    Returns:
        The agreement per layer.

    Raises:
        ValueError: if the file or the spikes do not fit.
        FileNotFoundError: if there is no Lava environment.
        TimeoutError: if the simulator does not finish.
        RuntimeError: if it fails; with what it said.
    """
    quantized = read_netx(path)
    x = quantized.padded(spikes)
    result = simulate("Lava", find_python("Lava", python), path, x, timeout)
    run = list(moments(quantized.layers, x))
    agreements, simulated = [], []
    for i in range(len(quantized.layers)):
        ours = torch.stack([moment.spikes[i] for moment in run])
        theirs = torch.from_numpy(result[f"spikes_{i + 1}"])
        names = AlifState._fields if isinstance(run[0].states[i], AlifState) else ("u", "v")
        equal = [
            (torch.stack([getattr(m.states[i], name) for m in run]) == torch.from_numpy(result[f"{name}_{i + 1}"]))
            .double()
            .mean()
            .item()
            for name in names
        ]
        differs = (ours != theirs).flatten(1).any(1).nonzero()
        agreements.append(
            LayerAgreement(
                spikes=int(ours.sum()),
                agreement=(ours == theirs).double().mean().item(),
                state_agreement=min(equal),
                first_difference=int(differs[0]) if len(differs) else None,
            )
        )
        simulated.append(theirs)
    logits = simulated[-1].double() @ quantized.readout.T
    sums = torch.from_numpy(result[f"v_{len(quantized.layers) + 1}"])
    expected = UNIT * (logits.cumsum(0) - logits)  # the readout reads the last layer one step late
    inside = (expected - 1 + LIMIT) % (2 * LIMIT) + 1 - LIMIT  # a sum may wrap more than once
    return Verification(
        tuple(agreements),
        steps=spikes.shape[0],
        samples=spikes.shape[1],
        tools=tuple(str(tool) for tool in result["versions"]),
        spikes=quantized.cropped(simulated),
        logits=logits[quantized.blank_steps :],
        expected_logits=torch.stack([m.spikes[-1] for m in run])[quantized.blank_steps :] @ quantized.readout.T,
        readout_agreement=(clip(inside) == sums).double().mean().item(),
        opinions=(ask_nengo_loihi(path, spikes, timeout=timeout),),
    )
