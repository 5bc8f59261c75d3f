"""How the spikes of a simulator agree with ours, layer by layer."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from neurolsc.display import Displayed

__all__ = ["LayerAgreement", "Opinion", "Verification", "first_step"]


@dataclass(frozen=True)
class LayerAgreement:
    """One layer of ours and the same layer of another run."""

    spikes: int
    """ours; agreement of silence says little"""
    agreement: float
    """share of (step, sample, neuron) triples with the same spike"""
    state_agreement: float | None = None
    """the same of current and voltage, or voltage and threshold, after every step; of golden
    samples, the share of steps and samples with the same sum of a layer's states; None where only
    spikes are compared"""
    first_difference: int | None = None
    """the first of our steps at which a spike differs (of golden samples: or a sum of states),
    counted from 0 with blank steps; None if none does"""

    @classmethod
    def of(cls, ours: Tensor, theirs: Tensor, late: int = 0) -> "LayerAgreement":
        """Compare spikes (T, B, M); there each comes so many steps earlier than here."""
        same = ours[late:] == theirs[: len(theirs) - late]
        # what ours sent before anything of the input could arrive there has no counterpart: it must
        # be silence
        equal = torch.cat((ours[:late] == 0, same))
        return cls(int(ours.sum()), equal.double().mean().item(), first_difference=first_step(~equal))


@dataclass(frozen=True)
class Opinion:
    """The spikes of another simulator beside ours, or why it did not run."""

    tool: str
    """names and versions, and which of our models it was compared with"""
    layers: tuple[LayerAgreement, ...] = ()
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
        layers = tuple(LayerAgreement.of(a, b, i * latency) for i, (a, b) in pairs)
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
    """of what ran, each (T, B, M), without blank steps and bias neurons"""
    logits: Tensor
    """integer readout of them at every step (T, B, C)"""
    expected_logits: Tensor
    """the same of the spikes that they are compared with: the integer model's, or the golden"""
    readout_agreement: float
    """share of (step, sample, class) triples in which the simulator's readout holds the sum of the
    logits so far, or the same current and voltage of an integrator; of golden samples, those with
    the same logit"""
    opinions: tuple[Opinion, ...] = ()
    """of other simulators on the same file and spikes"""
    readout_difference: int | None = None
    """the first step at which a logit of a golden sample differs; None if none does"""
    golden: "Verification | None" = None
    """of the golden samples, where a simulator ran on other spikes"""
    simulated: bool = True
    """False where only the golden samples were replayed, without a simulator"""

    @property
    def exact(self) -> bool:
        """Whether every spike and every state is the same, and the readout's sums are."""
        return (
            self.readout_agreement == 1
            and all(layer.agreement == 1 and layer.state_agreement in (None, 1) for layer in self.layers)
            and (self.golden is None or self.golden.exact)
        )

    def parts(self) -> list[str]:
        """What is shown: a line for each layer."""
        lines = self.golden.parts() if self.golden is not None else []
        lines.append(f"{', '.join(self.tools)}: {self.samples} samples of {self.steps} steps")
        for i, layer in enumerate(self.layers, start=1):
            states = "" if layer.state_agreement is None else f"; states {layer.state_agreement:.4%} equal"
            equal = f"{layer.spikes} spikes, {layer.agreement:.4%} equal{states}"
            lines.append(f"layer {i}: {equal}{_where(layer.first_difference)}")
        lines.append(f"readout: {self.readout_agreement:.4%} equal{_where(self.readout_difference)}")
        return lines + [str(opinion) for opinion in self.opinions]


def first_step(differs: Tensor) -> int | None:
    """The first step of (T, ...) at which something differs; None if nothing does."""
    steps = differs.flatten(1).any(1).nonzero()
    return int(steps[0]) if len(steps) else None


def _where(first_difference: int | None) -> str:
    return "" if first_difference is None else f", first difference at step {first_difference}"
