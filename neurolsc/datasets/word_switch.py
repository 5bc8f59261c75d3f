"""An augmentation of texts: words that are others."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from neurolsc.datasets.augment import epoch_of_training
from neurolsc.validation import whole


class WordAugmentation(Protocol):
    """What changes the words that a network reads at random, not those that it is to tell."""

    def __call__(self, words: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
        """Changed numbers of words, of a vocabulary of so many; the given ones stay as they are."""
        ...


@dataclass(frozen=True)
class WordSwitch:
    """Put another word in the place of some, each of the others as likely.

    Attributes:
        p: probability that a word is switched, for every word by itself.
        epochs: of a training the first ones, in which words are switched; 0: all.

    Raises:
        ValueError: if p is not in [0, 1), or epochs are below 0; when it is used, if there is no
            other word.

    Source: Herranz-Celotti & Rouat, arXiv:2308.12075, App. H (5 % of the input words, in the first
    3 epochs).
    """

    p: float = 0.05
    epochs: int = 0

    def __post_init__(self) -> None:
        """Refuse what is no probability, and no number of epochs."""
        if not 0 <= self.p < 1:
            raise ValueError(f"p must be a probability in [0, 1), got {self.p}.")
        whole("epochs", self.epochs, at_least=0)

    def __call__(self, words: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
        """Draw one uniform number and one other word for every word."""
        if count < 2:
            raise ValueError(f"switching words takes a vocabulary of at least 2, got {count}.")
        if self.epochs and (epoch_of_training() or 1) > self.epochs:
            return words
        switched = random.random(words.shape) < self.p
        others = random.integers(0, count - 1, words.shape)
        return np.where(switched, others + (others >= words), words)
