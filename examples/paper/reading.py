"""What is and what is not reproduced, in one line that follows from what was found."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Judgement:
    """One claim of the paper, and what was found of it.

    Attributes:
        claim: the claim, in a few words.
        holds: whether it was found; None: it cannot be told at this size.
        found: the numbers that it was judged by.
    """

    claim: str
    holds: bool | None
    found: str

    def __str__(self) -> str:
        return f"{self.claim} ({self.found})"


@dataclass(frozen=True)
class Count:
    """How often something was so.

    Attributes:
        yes: how often.
        total: of how many.
    """

    yes: int
    total: int

    @property
    def share(self) -> float:
        """Which part; 0 of none."""
        return self.yes / self.total if self.total else 0.0

    def above(self, share: float) -> bool | None:
        """Whether it was so more often than in this share; None if nothing was compared."""
        return self.share > share if self.total else None

    def __str__(self) -> str:
        return f"{self.yes} of {self.total}"


def sentence(title: str, judged: Iterable[Judgement], notes: Iterable[str] = ()) -> str:
    """The reading of a figure, one line.

    Args:
        title: the figure and its size.
        judged: its claims.
        notes: what else the reader has to know.

    Example:
        >>> grows, falls = Judgement("it grows", True, "2"), Judgement("it falls", False, "none")
        >>> sentence("Fig. 9", [grows, falls])
        'Fig. 9: reproduced: it grows (2); not reproduced: it falls (none).'
    """
    told = []
    judged = list(judged)
    for words, holds in (("reproduced", True), ("not reproduced", False), ("not to be told", None)):
        if found := [str(one) for one in judged if one.holds is holds]:
            told.append(f"{words}: {', '.join(found)}")
    return " ".join([f"{title}: {'; '.join(told)}.", *(f"{note[0].upper()}{note[1:]}." for note in notes)])
