"""Cells and surrogates by name: one table for files, the command line, and what a user adds.

A file that names a class builds one of these and imports nothing; who reads a network of cells of
their own imports the module that registers them first.
"""

from importlib import import_module
from typing import Any, TypeVar

from torch import nn

from neurolsc import surrogate
from neurolsc.neurons.cell import Cell
from neurolsc.surrogate import Surrogate
from neurolsc.validation import meant

T = TypeVar("T", bound=nn.Module)
C = TypeVar("C", bound=type[nn.Module])


class Table(dict[str, type[T]]):
    """Classes of a kind by name.

    Args:
        kind: what they are called in messages.
        base: the class that all of them derive from.
        classes: the first ones.
    """

    def __init__(self, kind: str, base: type[T], *classes: type[T]) -> None:
        super().__init__({c.__name__: c for c in classes})
        self.kind, self.base = kind, base

    def known(self, name: str) -> type[T]:
        """The class of that name.

        Raises:
            ValueError: if there is none; the message lists the known ones.
        """
        if name not in self:
            known = ", ".join(sorted(self))
            raise ValueError(
                f"unknown {self.kind} {name!r}; known are {known}{meant(self, name)} One of your own is known after "
                "neurolsc.register(ITS_CLASS), so import its module first."
            )
        return self[name]

    def name_of(self, cls: type) -> str:
        """The name of a class.

        Raises:
            ValueError: if it is not in the table.
        """
        for name, known in self.items():
            if known is cls:
                return name
        raise ValueError(
            f"{cls.__name__} is not a known {self.kind}; known are {', '.join(sorted(self))}. Make it known with "
            f"neurolsc.register({cls.__name__})."
        )

    def find(self, text: str) -> type[T]:
        """The class of a name in the table, or of ``package.module:Class``, imported and entered.

        Raises:
            ValueError: if there is none, the module cannot be imported, or holds no such class.
        """
        module, colon, name = text.partition(":")
        if not colon:
            return self.known(text)
        try:
            found: Any = getattr(import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f"there is no {self.kind} {text!r}: {error}.") from error
        if not (isinstance(found, type) and issubclass(found, self.base)):
            raise ValueError(f"{text!r} must be a class of {self.base.__name__}, got {found!r}.")
        if found not in self.values():
            self.enter(found, found.__name__)
        return found

    def enter(self, cls: type[T], name: str) -> None:
        """Put a class into the table.

        Raises:
            ValueError: if the name stands for another class already.
        """
        there = self.get(name, cls)
        if there is not cls and (there.__module__, there.__qualname__) != (cls.__module__, cls.__qualname__):
            raise ValueError(f"{name!r} is another {self.kind} already, {there.__module__}.{there.__qualname__}.")
        self[name] = cls  # a class of the same place is the same one, defined anew in a notebook


CELLS: Table[Cell] = Table("cell", Cell)  # each enters itself, as one of a user does
SURROGATES: Table[Surrogate] = Table(
    "surrogate",
    Surrogate,
    surrogate.Arctan,
    surrogate.Exponential,
    surrogate.FastSigmoid,
    surrogate.Gaussian,
    surrogate.Logistic,
    surrogate.MultiGaussian,
    surrogate.Rectangular,
    surrogate.Triangular,
)


def register(cls: C, *, name: str | None = None) -> C:
    """Make a cell or a surrogate of your own known.

    Then :func:`neurolsc.save`, :func:`neurolsc.load` and the command line take it.

    Args:
        cls: the class; its constructor takes what its ``config()`` gives.
        name: what files and commands call it; by default the name of the class.

    Returns:
        The class, so that it can be used as a decorator.

    Raises:
        TypeError: if it is neither a class of cells nor one of surrogates.
        ValueError: if another class has the name.

    Example:
        >>> from neurolsc import ALIFPlus, register
        >>> @register
        ... class Quick(ALIFPlus):
        ...     pass
        >>> CELLS.name_of(Quick)
        'Quick'
    """
    tables: Any = (CELLS, SURROGATES)
    for table in tables:
        if isinstance(cls, type) and issubclass(cls, table.base):
            table.enter(cls, name or cls.__name__)
            return cls
    raise TypeError(f"register takes a class of neurolsc.Cell or neurolsc.surrogate.Surrogate, got {cls!r}.")
