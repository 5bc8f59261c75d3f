"""How the spikes of a simulator agree with ours, layer by layer."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from neurolsc.display import Displayed

__all__ = ["LayerAgreement", "LayerOpinion", "Opinion", "Verification"]


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
    """the first step at which a spike differs, counted from 0 with blank steps; None if none
    does"""


@dataclass(frozen=True)
class LayerOpinion:
    """One layer here and there."""

    spikes: int
    """ours; agreement of silence says little"""
    agreement: float
    """share of (step, sample, neuron) triples with the same spike"""
    first_difference: int | None
    """the first of our steps at which a spike differs, counted from 0; None if none does"""

    @classmethod
    def of(cls, ours: Tensor, theirs: Tensor, late: int = 0) -> "LayerOpinion":
        """Compare spikes (T, B, M); there each comes so many steps earlier than here."""
        same = ours[late:] == theirs[: len(theirs) - late]
        # what ours sent before anything of the input could arrive there has no counterpart: it must
        # be silence
        equal = torch.cat((ours[:late] == 0, same))
        differs = (~equal).flatten(1).any(1).nonzero()
        first = int(differs[0]) if len(differs) else None
        return cls(int(ours.sum()), equal.double().mean().item(), first)


@dataclass(frozen=True)
class Opinion:
    """The spikes of another simulator beside ours, or why it did not run."""

    tool: str
    """names and versions, and which of our models it was compared with"""
    layers: tuple[LayerOpinion, ...] = ()
    """first layer first"""
    steps: int = 0
    samples: int = 0
    reason: str | None = None
    """why it did not run; None if it did"""
    readout: float | None = None
    """share of (step, sample, class) triples with the same voltage of an integrator at the end"""

    @classmethod
    def of(cls, tool: str, ours: Sequence[Tensor], theirs: Sequence[Tensor], latency: int = 0) -> "Opinion":
        """Compare spikes.

        Args:
            tool: who says it.
            ours: of every layer (T, B, M).
            theirs: likewise.
            latency: layer l, counted from 1, fires there this many times l steps earlier than here.
        """
        pairs = enumerate(zip(ours, theirs, strict=True), start=1)
        layers = tuple(LayerOpinion.of(a, b, i * latency) for i, (a, b) in pairs)
        return cls(tool, layers, ours[0].shape[0], ours[0].shape[1])

    @property
    def exact(self) -> bool:
        """Whether it ran and every spike is the same."""
        return self.reason is None and self.readout in (None, 1) and all(layer.agreement == 1 for layer in self.layers)

    def __str__(self) -> str:
        """One line."""
        if self.reason is not None:
            return f"{self.tool}: not run: {self.reason}"
        said = [
            f"layer {i}: {layer.spikes} spikes, {layer.agreement:.4%} equal{_where(layer.first_difference)}"
            for i, layer in enumerate(self.layers, start=1)
        ]
        said += [] if self.readout is None else [f"readout: {self.readout:.4%} of the voltages equal"]
        return f"{self.tool}, {self.samples} samples of {self.steps} steps: {'; '.join(said)}"


@dataclass(frozen=True, repr=False)
class Verification(Displayed):
    """What :func:`neurolsc.export.verify` found."""

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
    """share of (step, sample, class) triples in which the simulator's readout holds the sum of the
    logits so far, or the same current and voltage of an integrator"""
    opinions: tuple[Opinion, ...] = ()
    """of other simulators on the same file and spikes"""

    @property
    def exact(self) -> bool:
        """Whether every spike and every state is the same, and the readout's sums are."""
        return self.readout_agreement == 1 and all(
            layer.agreement == layer.state_agreement == 1 for layer in self.layers
        )

    def parts(self) -> list[str]:
        """What is shown: a line for each layer."""
        lines = [f"{', '.join(self.tools)}: {self.samples} samples of {self.steps} steps"]
        for i, layer in enumerate(self.layers, start=1):
            equal = f"{layer.spikes} spikes, {layer.agreement:.4%} equal; states {layer.state_agreement:.4%} equal"
            lines.append(f"layer {i}: {equal}{_where(layer.first_difference)}")
        lines.append(f"readout: {self.readout_agreement:.4%} of the sums or voltages equal")
        lines += [f"second opinion: {opinion}" for opinion in self.opinions]
        return lines


def _where(first_difference: int | None) -> str:
    return "" if first_difference is None else f", first difference at step {first_difference}"
