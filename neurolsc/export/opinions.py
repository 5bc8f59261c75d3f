"""What another simulator says about the spikes of an exported network, beside the one that the export is made for."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["LayerOpinion", "Opinion"]


@dataclass(frozen=True)
class LayerOpinion:
    """One layer here and there."""

    spikes: int
    """ours; agreement of silence says little"""
    agreement: float
    """share of (step, sample, neuron) triples with the same spike"""
    first_difference: int | None
    """the first of our steps at which a spike differs, counted from 0; None if none does"""


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

    @classmethod
    def of(cls, tool: str, ours: Sequence[Tensor], theirs: Sequence[Tensor], latency: int = 0) -> "Opinion":
        """Compare spikes.

        Args:
            tool: who says it.
            ours: of every layer (T, B, M).
            theirs: likewise.
            latency: layer l, counted from 1, fires there this many times l steps earlier than here.
        """
        layers = []
        for i, (a, b) in enumerate(zip(ours, theirs, strict=True), start=1):
            late = i * latency
            same = a[late:] == b[: len(b) - late]
            # what ours sent before anything of the input could arrive there has no counterpart: it must be silence
            equal = torch.cat((a[:late] == 0, same))
            differs = (~equal).flatten(1).any(1).nonzero()
            first = int(differs[0]) if len(differs) else None
            layers.append(LayerOpinion(int(a.sum()), equal.double().mean().item(), first))
        return cls(tool, tuple(layers), ours[0].shape[0], ours[0].shape[1])

    @property
    def exact(self) -> bool:
        """Whether it ran and every spike is the same."""
        return self.reason is None and all(layer.agreement == 1 for layer in self.layers)

    def __str__(self) -> str:
        """One line."""
        if self.reason is not None:
            return f"{self.tool}: not run: {self.reason}"
        said = []
        for i, layer in enumerate(self.layers, start=1):
            where = "" if layer.first_difference is None else f", first difference at step {layer.first_difference}"
            said.append(f"layer {i}: {layer.spikes} spikes, {layer.agreement:.4%} equal{where}")
        return f"{self.tool}, {self.samples} samples of {self.steps} steps: {'; '.join(said)}"
