"""What a number that a task gives is: of what it is the mean, which of two is better, its looks."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["SHARE", "Measure", "Part"]


class Part(NamedTuple):
    """A measure of one batch, and how large the batch is."""

    value: float
    samples: int
    steps: int
    """of all samples together, those in the mask"""


@dataclass(frozen=True)
class Measure:
    r"""How a measure of a data set follows from those of its batches, and how it is read.

    With weights w, the samples or the steps of the batches, and their measures m:

    .. math:: \frac{\sum w m}{\sum w}, \quad
        \text{or } \exp \frac{\sum w \log m}{\sum w} \text{ where it is geometric}

    Attributes:
        lower_is_better: of two values the lower is the better one.
        of_steps: a mean over all steps of a data set, in which a longer sample counts more; else
            one over samples, in which each counts the same.
        geometric: the mean is the geometric one, as that of a perplexity.
        share: from 0 to 1, and shown in per cent; else shown as a number.

    Example:
        >>> perplexity = Measure(lower_is_better=True, of_steps=True, geometric=True, share=False)
        >>> parts = Part(2.0, samples=1, steps=30), Part(16.0, samples=1, steps=10)
        >>> round(perplexity.mean(parts), 3)
        3.364
        >>> perplexity.better(3.0, 4.0), perplexity.text(3.36358), Measure().text(0.5)
        (True, '3.364', '50.0%')
    """

    lower_is_better: bool = False
    of_steps: bool = False
    geometric: bool = False
    share: bool = True

    def mean(self, parts: Iterable[Part]) -> float:
        """The measure of all batches together; infinite or NaN if one of them is."""
        total = size = 0.0
        for value, samples, steps in parts:
            weight = steps if self.of_steps else samples
            size += weight
            total += weight * (math.log(value) if self.geometric else value)
        return math.exp(total / size) if self.geometric else total / size

    def better(self, value: float, other: float) -> bool:
        """Whether a value is strictly better than another."""
        return value < other if self.lower_is_better else value > other

    def reaches(self, value: float, bound: float) -> bool:
        """Whether a value is as good as a bound."""
        return not self.better(bound, value)

    def text(self, value: float) -> str:
        """A value as it is shown."""
        return f"{value:.1%}" if self.share else f"{value:.4g}"


SHARE = Measure()
"""Such as an accuracy: a share of samples, the higher the better."""
