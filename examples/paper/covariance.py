"""Fig. S2 and S3: sizes of derivatives at distant steps, before and after pre-training."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from examples.paper.figure import ALWAYS, PICTURE, Count, Figure, Judgement, Scale
from examples.paper.pictures import plot_covariances
from examples.paper.recurrent import TASKS, network, of_network
from examples.paper.trials import Row, Trial
from neurolsc import theory
from neurolsc.datasets import Words, input_batches
from neurolsc.experiment.config import DataSettings, NetworkSettings, make
from neurolsc.init import named
from neurolsc.stability import singular_values

CELLS = ("LSTM", "ALIF+")
WIDTH = 16  # of a layer at the small size
SAMPLES = 24  # of which sizes are taken
_SMALL: dict[str, dict[str, Any]] = {
    "sl-mnist": {},
    "shd": {"dt": 0.02, "channels": 140, "repeat": 1},
    "ptb": {"words": 25},
}


@dataclass(frozen=True)
class Decay:
    """How the 2-norm of a layer's derivative through time goes together with that at one step."""

    data: str  # the data set, in words
    cell: str  # LSTM or ALIF+
    step: int  # the one step
    samples: int  # how many
    mean: float  # of the norm over steps and samples
    decay: theory.CovarianceDecay  # covariance, correlation and p-value (T,)

    @property
    def far(self) -> Tensor:
        """Which steps lie further off than a quarter of all, and have a correlation (T,)."""
        steps = len(self.decay.correlation)
        apart = [abs(t - self.step) > steps / 4 for t in range(steps)]
        return self.decay.correlation.new_tensor(apart).bool() & self.decay.correlation.isfinite()

    @property
    def chance(self) -> float:
        """Share of the distant steps with a p-value above 0.05; NaN if no step has one."""
        return float((self.decay.p_value[self.far] > 0.05).double().mean()) if self.far.any() else math.nan

    @property
    def left(self) -> float:
        """The largest covariance with a distant step; 0 where nothing varies."""
        away = self.decay.covariance[self.far].abs()
        return float(away.max()) if len(away) else 0.0


def decay(task: str, cell: str, init: str, width: int | None, data: dict[str, Any]) -> Row:
    """Measure a network of Table S1, or of another width: covariances with one step, that step, and the mean 2-norm."""
    settings = of_network(network(cell, task) | TASKS[task])
    if width is not None:
        settings |= {name: width for name in ("width", "embedding") if name in settings}
    loaded = DataSettings(**data).load("train")
    words = loaded.n_words if isinstance(loaded, Words) else None
    made = make(NetworkSettings, settings).build(loaded.n_in, loaded.n_classes, words)
    batches = input_batches(loaded, SAMPLES, seed=0)
    named(init).apply(made, batches)
    sizes = singular_values(made, batches[0])[0][0]
    # at rest the derivative is the same in all samples: the first step at which most have a size of their own
    step = next((step for step, row in enumerate(sizes) if len(row.unique()) > len(row) / 2), 0)
    found = theory.covariance_decay(sizes, step=step)._asdict()
    about = {"step": step, "samples": sizes.shape[1], "mean": float(sizes.mean())}
    return about | {part: values.tolist() for part, values in found.items()}


class CovarianceFigure(Figure[list[Decay]]):
    """Fig. S2."""

    name, title = "S2", "Fig. S2"
    init: ClassVar[str] = "Default"

    def datasets(self, scale: Scale) -> set[str]:
        return {scale.data(task)["data"] for task in TASKS}

    def trials(self, scale: Scale) -> list[Trial]:
        trials = []
        for task in TASKS:
            data = scale.data(task) | ({} if scale.full else _SMALL[task])
            for cell in CELLS:
                how = {"init": self.init, "width": None if scale.full else WIDTH, "data": data}
                trials.append(Trial(decay, {"task": task, "cell": cell} | how))
        return trials

    def measure(self, scale: Scale, results: Sequence[Row]) -> list[Decay]:
        found = []
        for row in results:
            parts = (torch.tensor(row[part], dtype=torch.float64) for part in theory.CovarianceDecay._fields)
            of = DataSettings(**row["data"]).title
            covariances = theory.CovarianceDecay(*parts)
            found.append(Decay(of, row["cell"], row["step"], row["samples"], row["mean"], covariances))
        return found

    def draw(self, found: list[Decay], out: Path) -> None:
        rows: dict[str, dict[str, theory.CovarianceDecay]] = {}
        for d in found:
            rows.setdefault(d.data, {})[f"{d.cell}, with step {d.step}"] = d.decay
        title = f"{self.title}: 2-norm of the derivative through time of layer 1, {found[0].samples} samples"
        plot_covariances(rows, out / PICTURE, samples=found[0].samples, title=title)

    def judge(self, found: list[Decay]) -> list[Judgement]:
        """Of steps that lie further away than a quarter of all."""
        known = [d for d in found if not math.isnan(d.chance)]
        chance = Count(sum(d.chance >= 0.9 for d in known), len(known))
        shares = ", ".join(f"{d.cell} on {d.data} {d.chance:.0%}" for d in known)
        claim = "correlations with distant steps are not significant"
        return [
            Count(sum(d.left < 0.01 for d in found), len(found)).judge("far covariances are below 0.01", ALWAYS),
            Judgement(claim, chance.above(ALWAYS), f"{chance}; steps with p > 0.05: {shares}"),
        ]

    def notes(self) -> list[str]:
        return ["steps are compared with the first at which samples differ, the paper's with step 0"]


class PretrainedCovariance(CovarianceFigure):
    """Fig. S3."""

    name, title = "S3", "Fig. S3"
    init = "LSCSingular(1.0)"

    def judge(self, found: list[Decay]) -> list[Judgement]:
        near = Count(sum(abs(d.mean - 1) <= 0.05 for d in found), len(found))
        means = ", ".join(f"{d.cell} on {d.data} {d.mean:.3f}" for d in found)
        return [Judgement("mean 2-norms are 1", near.above(ALWAYS), f"{near}: {means}"), *super().judge(found)]

    def notes(self) -> list[str]:
        return [*super().notes(), "norms were set by scales of weights (LSCSingular), not by the paper's loop"]
