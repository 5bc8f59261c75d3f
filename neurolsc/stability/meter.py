"""How pre-training measures: the inputs it draws from, and radii at as many points as their means need."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor

from neurolsc.io import network_fingerprint
from neurolsc.metrics import firing_rate, is_binary
from neurolsc.network import Network
from neurolsc.stability.profile import RadiusProfile, depth_radius, radius_profile, time_radius
from neurolsc.stability.rules import LayerRadii, PretrainOptions, RadiusTarget, as_rule
from neurolsc.stability.transitions import draw_steps, follow

# Time steps of a closer measurement in those of a step: radii differ more along a run than among samples.
CLOSER = 4


class InputStream:
    """The inputs of batches, again and again; `taken` counts them, `steps` are the T of the first."""

    def __init__(self, batches: Iterable[Any]) -> None:
        if isinstance(batches, Tensor | Iterator) or not isinstance(batches, Iterable):
            got = f"one tensor {tuple(batches.shape)}" if isinstance(batches, Tensor) else type(batches).__name__
            raise TypeError(f"batches must be a list, or other repeatable iterable, of inputs (T, B, n_in), got {got}.")
        self.batches, self.taken = batches, 0
        self.size = len(batches) if isinstance(batches, Sequence) else math.inf  # then known after one round
        rounds = self._rounds()
        first = next(rounds)
        self.steps, self._inputs = len(first), chain([first], rounds)

    def _rounds(self) -> Iterator[Tensor]:
        while True:
            place = 0
            for place, batch in enumerate(self.batches, start=1):
                yield input_of(batch, place)
            self.size = place
            if not place:
                raise ValueError("pretrain needs at least one batch of inputs, got none.")

    def take(self) -> Tensor:
        self.taken += 1
        return next(self._inputs)


def input_of(batch: Any, place: int) -> Tensor:
    """The input of a batch x, (x, labels) or (x, targets, mask).

    Of a batch with a mask (T, B) the samples that last at least as long as the middle one are taken, cut to its length,
    so that no step is padding.
    """
    x, labels, mask, *_ = *(batch if isinstance(batch, tuple | list) else (batch,)), None, None, None
    if not isinstance(x, Tensor):
        got = f"{type(batch).__name__} of {type(x).__name__}" if x is not batch else type(x).__name__
        raise TypeError(f"batch {place} must be an input (T, B, n_in) or a tuple (input, labels), got {got}.")
    if x.ndim != 3:
        raise ValueError(f"inputs must be (T, B, n_in), got {tuple(x.shape)} in batch {place}.")
    if isinstance(labels, Tensor) and labels.ndim == 1 and x.shape[0] == len(labels) != x.shape[1]:
        raise ValueError(
            f"inputs must be (T, B, n_in), but batch {place} has {len(labels)} labels and x {tuple(x.shape)}, which "
            "is batch first: give (x.transpose(0, 1), labels)."
        )
    if mask is None:
        return x
    if mask.dtype != torch.bool or mask.shape != x.shape[:2]:
        raise ValueError(
            f"the mask of batch {place} must be bool {tuple(x.shape[:2])}, got {mask.dtype} {tuple(mask.shape)}."
        )
    lengths = mask.long().cumprod(0).sum(0)
    steps = max(int(lengths.median()), 1)
    return x[:steps, (lengths >= steps).to(x.device)]


def pick(x: Tensor, samples: Tensor) -> Tensor:
    """Some samples of an input (T, B, n_in)."""
    return x.index_select(1, samples.to(x.device))


def standard_error(radii: Tensor, total: int) -> float:
    r"""Standard error of a mean radius, from its points.

    .. math:: s^2 = \frac{\mathrm{var}_b\,\bar r_b}{B}
              + \Big(1 - \frac K T\Big) \frac{\sum_k (\bar r_{k+1} - \bar r_k)^2}{2 K (K - 1)}

    of radii (K, B) of a run of T steps. The first term says how far the means of samples lie apart. All samples share
    the same steps, one from each of K stretches of the run; the second term is the error of that draw.

    Source: successive differences: Wolter, Introduction to Variance Estimation, 2007, Sec. 8.2.
    """
    radii = radii.detach().double()
    steps, samples = radii.shape
    squared = radii.mean(0).var().item() / samples if samples > 1 else 0.0
    if steps > 1:
        across = radii.mean(1).diff().square().sum().item() / (2 * steps * (steps - 1))
        squared += (1 - steps / total) * across
    return math.sqrt(squared)


class Measurement(NamedTuple):
    """Radii of every layer at the points (step, sample), each (K, B), and firing rates."""

    time: list[Tensor]
    depth: list[Tensor]
    rates: list[float | None]  # None of a layer that does not send spikes


@dataclass(frozen=True)
class Meter:
    """Measures the radii of a network, at points drawn anew in each step."""

    network: Network
    goal: RadiusTarget
    options: PretrainOptions
    seed: int

    def __post_init__(self) -> None:
        if self.goal.time is None and len(self.network.cells) == 1 and not self.options.include_input:
            raise ValueError(
                "one layer has a radius through depth from its input alone: with include_input=False there is none to set."
            )

    def settings(self) -> dict[str, Any]:
        """What the steps depend on besides inputs, max_steps and criteria."""
        found = {f.name: getattr(self.options, f.name) for f in fields(PretrainOptions)}
        del found["max_steps"], found["criteria"], found["direction"]
        found["rule"] = as_rule(self.options.rule, self.options.target).name
        return found | {"target": tuple(self.goal), "seed": self.seed} | network_fingerprint(self.network)

    def generator(self, step: int) -> torch.Generator:
        """A generator of its own for each step: a resumed run draws what an uninterrupted one does."""
        return torch.Generator().manual_seed(self.seed * 1_000_003 + step)

    def count(self, x: Tensor, times: int = 1) -> int | None:
        """How many time steps of an input are measured, or `times` as many; None: all."""
        return None if self.options.steps is None else min(times * self.options.steps, x.shape[0])

    def counted(self, measured: Measurement | RadiusProfile, total: int) -> list[LayerRadii]:
        """The layers and directions that have a target, with their radii on inputs of `total` steps."""
        found = []
        for direction, target in zip(("time", "depth"), self.goal, strict=True):
            for layer, radii in enumerate(getattr(measured, direction)):
                if target is not None and (self.options.include_input or direction == "time" or layer):
                    allowed = self.options.criteria.allowed(self.goal, target)
                    found.append(LayerRadii(layer, direction, radii, standard_error(radii, total), target, allowed))
        return found

    def measure(self, x: Tensor, step: int, samples: int | None = None, times: int = 1) -> Measurement:
        """Radii at the steps and samples drawn for a step, with gradient where it is enabled."""
        drawn = torch.randperm(x.shape[1], generator=self.generator(step))[: samples or self.options.samples]
        x, generator = pick(x, drawn), self.generator(step)
        transitions, outputs = follow(self.network, x, draw_steps(len(x), self.count(x, times), generator))
        time = [time_radius(t, i).radius for i, t in enumerate(transitions)]
        depth = [depth_radius(t, i, self.options.non_square, generator).radius for i, t in enumerate(transitions)]
        along, across = ([r.view(-1, x.shape[1]) for r in radii] for radii in (time, depth))
        return Measurement(along, across, [firing_rate(z) if is_binary(z) else None for z in outputs])

    def closer(self, x: Tensor, step: int) -> Measurement:
        """The same without gradient, at `CLOSER` times the steps and up to 4 times the samples.

        As many samples as bring the standard error of every mean to half a tolerance.
        """
        with torch.no_grad():
            seen = self.measure(x, step, times=CLOSER)
            wanted = self._enough(self.counted(seen, len(x)), 0.5, most=4)
            more = min(wanted, x.shape[1]) > self.options.samples
            return self.measure(x, step, wanted, times=CLOSER) if more else seen

    def fresh(self, inputs: InputStream, step: int) -> RadiusProfile:
        """Radii on the inputs that come next, each taken once, if they are as long as the first.

        As many samples as bring the standard error of every mean to a quarter of the tolerance, at most 16 times a
        step's; the first few only if these already show that a mean misses its target.
        """
        generator, taken, wanted = self.generator(-2 - step), 0, 2 * self.options.samples
        x, profile = None, None
        for _ in range(2):
            while x is None or (x.shape[1] < wanted and taken < inputs.size):
                following, taken = inputs.take(), taken + 1
                if x is None or len(following) == len(x):
                    mixed = pick(following, torch.randperm(following.shape[1], generator=generator))
                    x = mixed if x is None else torch.cat([x, mixed], 1)
            if profile is not None and x.shape[1] <= profile.time.shape[2]:
                break
            profile = radius_profile(
                self.network,
                pick(x, torch.arange(min(wanted, x.shape[1]))),
                steps=self.count(x, CLOSER),
                non_square=self.options.non_square,
                target=self.goal,
                seed=self.seed * 1_000_003 - 2 - step,
                progress=False,
            )
            measured = self.counted(profile, len(x))
            wanted = self._enough(measured, 0.25, most=16)
            if wanted <= profile.time.shape[2] or any(m.miss > m.allowed + 3 * m.error for m in measured):
                break
        assert profile is not None
        return profile

    def _enough(self, measured: list[LayerRadii], doubt: float, most: int) -> int:
        """Samples that bring the standard errors of all means to `doubt` tolerances."""
        now = max(m.error / m.allowed if m.allowed else math.inf for m in measured)
        most = most * self.options.samples
        return most if now == math.inf else min(math.ceil(measured[0].radii.shape[1] * (now / doubt) ** 2), most)
