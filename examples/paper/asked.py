"""How large a figure is made, and of which data."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from neurolsc.experiment.config import WITHOUT_SAMPLE
from neurolsc.validation import one_of, whole

Size = Literal["small", "paper"]
STANDS_FOR = {"ptb": "text"}
"""what the package holds no sample of, and what is taken in its place"""
PAPER_SEEDS = 4
SIZES: tuple[Size, ...] = ("small", "paper")


@dataclass(frozen=True)
class Asked:
    """How large a figure is made, and of which data.

    Attributes:
        size: ``"small"``, minutes on a CPU; or ``"paper"``, the paper's own grid.
        root: folder that holds one of every data set by its name, ``root/mnist``, ``root/ptb``, to
            which they are downloaded if missing; empty: the samples in the package.
        epochs: most epochs of a training; None: those of the size.
        seeds: of every arm; None: those of the size, one or four.

    Raises:
        ValueError: if the size is unknown, or epochs or seeds are below 1.
    """

    size: Size = "small"
    root: str = ""
    epochs: int | None = None
    seeds: int | None = None

    def __post_init__(self) -> None:
        one_of("size", self.size, SIZES)
        for name in ("epochs", "seeds"):
            if (given := getattr(self, name)) is not None:
                whole(name, given)

    @property
    def whole(self) -> bool:
        """Whether it is the paper's own size."""
        return self.size == "paper"

    @property
    def seed(self) -> list[int]:
        """The seeds, as a grid has them."""
        return list(range(self.seeds or (PAPER_SEEDS if self.whole else 1)))

    def data(self, name: str) -> dict[str, Any]:
        """The settings of a data set, by its name in settings, or of what stands for it."""
        if self.root:
            return {"data": name, "root": str(Path(self.root) / name)}
        return {"data": name if self.whole else STANDS_FOR.get(name, name)}

    def check(self, data: set[str]) -> None:
        """Refuse to train without the data that are wanted.

        Raises:
            ValueError: if the paper's size, or data that the package holds no sample of, are asked
                for without a root.
        """
        if self.root or not data:
            return
        if self.whole:
            raise ValueError(
                f"size paper takes whole data sets: name with --root a folder that holds {', '.join(sorted(data))}, "
                "a folder each, into which they are downloaded if missing."
            )
        if missing := sorted(data & set(WITHOUT_SAMPLE)):
            raise ValueError(f"the package holds no sample of {', '.join(missing)}: name a folder with --root.")
