"""Fig. S2 and S3: sizes of derivatives at distant steps, before and after pre-training."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from examples.paper.asked import Asked
from examples.paper.figure import PICTURE, Figure, Result
from examples.paper.parameters import TASKS, network
from examples.paper.pictures import plot_covariances
from examples.paper.reading import Judgement
from neurolsc import theory
from neurolsc.datasets import Words, input_batches
from neurolsc.experiment.config import DataSettings, NetworkSettings, make
from neurolsc.initialisers import named
from neurolsc.stability import singular_values

CELLS = ("LSTM", "ALIF+")
_SMALL: dict[str, dict[str, Any]] = {
    "sl-mnist": {},
    "shd": {"dt": 0.02, "channels": 140, "repeat": 1},
    "ptb": {"words": 25},
}


@dataclass(frozen=True)
class Decay:
    """How the 2-norm of a layer's derivative through time goes together with that at one step.

    Attributes:
        data: the data set, in words.
        cell: LSTM or ALIF+.
        step: the one step.
        samples: how many.
        mean: of the norm over steps and samples.
        decay: covariance, correlation and p-value (T,).
        missed: layers whose norm pre-training did not bring to its target.
    """

    data: str
    cell: str
    step: int
    samples: int
    mean: float
    decay: theory.CovarianceDecay
    missed: int

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


@dataclass(frozen=True)
class CovarianceFigure(Figure[list[Decay]]):
    """Fig. S2.

    Attributes:
        width: neurons of a layer at the small size.
        samples: how many sizes are taken of.
        tasks: which of the paper's.
    """

    name, title = "S2", "Fig. S2"
    claim = "As networks start, sizes of derivatives at distant steps do not go together."
    start: ClassVar[str] = "Default"
    width: int = 16
    samples: int = 24
    tasks: tuple[str, ...] = tuple(TASKS)

    def datasets(self, asked: Asked) -> set[str]:
        """Those of the tasks."""
        return {asked.data(task)["data"] for task in self.tasks}

    def measure(self, asked: Asked, results: Sequence[Result]) -> list[Decay]:
        """Of the first layer, on every task."""
        return [self._decay(asked, task, cell) for task in self.tasks for cell in CELLS]

    def _decay(self, asked: Asked, task: str, cell: str) -> Decay:
        own = asked.data(task)
        settings = DataSettings(**own, **({} if asked.whole else _SMALL[task]))
        data = settings.load("train")
        given = {name: v for name, v in (network(cell, task) | TASKS[task]).items() if name not in ("lr", "batch_size")}
        if not asked.whole:
            given |= {"width": self.width} | ({"embedding": self.width} if "embedding" in given else {})
        words = data.n_words if isinstance(data, Words) else None
        made = make(NetworkSettings, given).build(data.n_in, data.n_classes, words)
        batches = input_batches(data, self.samples, seed=0)
        missed = len(named(self.start).apply(made, batches))
        sizes = singular_values(made, batches[0])[0][0]
        step = _step(sizes)
        return Decay(
            settings.title,
            cell,
            step,
            sizes.shape[1],
            float(sizes.mean()),
            theory.covariance_decay(sizes, step=step),
            missed,
        )

    def draw(self, found: list[Decay], out: Path) -> None:
        """A row for every task."""
        rows: dict[str, dict[str, tuple[int, theory.CovarianceDecay]]] = {}
        for d in found:
            rows.setdefault(d.data, {})[f"{d.cell}, with step {d.step}"] = (d.step, d.decay)
        title = f"{self.title}: 2-norm of the derivative through time of layer 1, {found[0].samples} samples"
        plot_covariances(rows, out / PICTURE, samples=found[0].samples, title=title)

    def judge(self, found: list[Decay]) -> list[Judgement]:
        """Of steps that lie further away than a quarter of all."""
        told = [d for d in found if not math.isnan(d.chance)]
        small = [d for d in found if d.left < 0.01]
        insignificant = [d for d in told if d.chance >= 0.9]
        shares = ", ".join(f"{d.cell} on {d.data} {d.chance:.0%}" for d in told)
        count = f"{len(insignificant)} of {len(told)}; steps with p > 0.05: {shares}"
        return [
            Judgement("far covariances are below 0.01", len(small) == len(found), f"{len(small)} of {len(found)}"),
            Judgement(
                "correlations with distant steps are not significant",
                len(insignificant) == len(told) if told else None,
                count,
            ),
        ]

    def notes(self, asked: Asked) -> list[str]:
        """Which step the others are compared with."""
        return ["steps are compared with the first at which samples differ, the paper's with step 0"]


class PretrainedCovariance(CovarianceFigure):
    """Fig. S3."""

    name, title = "S3", "Fig. S3"
    claim = "Nor do they after the 2-norms were pre-trained to 1."
    start = "LSCSingular(1.0)"

    def judge(self, found: list[Decay]) -> list[Judgement]:
        """As before, and whether the norms are 1."""
        near = [d for d in found if abs(d.mean - 1) <= 0.05]
        means = ", ".join(f"{d.cell} on {d.data} {d.mean:.3f}" for d in found)
        set_ = Judgement("mean 2-norms are 1", len(near) == len(found), f"{len(near)} of {len(found)}: {means}")
        return [set_, *super().judge(found)]

    def notes(self, asked: Asked) -> list[str]:
        """How the norms were set."""
        return [*super().notes(asked), "norms were set by scales of weights (LSCSingular), not by the paper's loop"]


def _step(sizes: Tensor) -> int:
    """The first step at which most samples have a size of their own; 0 if there is none.

    A network at rest has the same derivative in all samples.
    """
    for step, row in enumerate(sizes):
        if len(row.unique()) > len(row) / 2:
            return step
    return 0
