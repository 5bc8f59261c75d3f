"""Which class defines a cell's step, and what a subclass keeps of the offers that describe it.

A cell has a step, and may make *offers*, which say something about that step: its derivative in
closed form, a faster way to run it, what scales its thresholds, what is its voltage, how far a
parameter moves its state, what multipliers move. A subclass
that changes the step and passes an offer on would lie. So an offer is withdrawn from every class
that overrides a part of the step it describes, unless that class offers anew:

- a part of the step is all that the offering class or its bases define, but for starting values
  and descriptions (:data:`BESIDES`);
- filling in what a base leaves abstract is no change;
- a function that is set on one instance counts as an override, too.

A cell without offers is right and slower: it is run step by step and differentiated by autograd.
"""

from abc import ABC
from types import FunctionType
from typing import Any

from torch import nn

OFFERS = ("run", "derivatives", "thresholds", "membrane", "gains", "recurrent_synapses", "answers", "paper_answers")
"""names on a cell that describe its step; ``Cell`` says what they are where nothing is offered"""

BESIDES = frozenset({"initial_state", "pretrained", "config", "extra_repr", "draw_adaptation"})
"""names on a cell that no step depends on: starting values, and descriptions"""

_OUTSIDE = frozenset((*nn.Module.__mro__, ABC))


def withdraw(cls: type, base: type) -> None:
    """Set offers that a new class inherits, but whose step it changes, back to the base's."""
    for name in OFFERS:
        if _changed(cls, next(c for c in cls.__mro__ if name in vars(c))):
            setattr(cls, name, vars(base)[name])


def withdraw_here(cell: Any, base: type, name: str) -> None:
    """The same for one instance, on which a name is set that may be a part of its step."""
    part = isinstance(getattr(type(cell), name, None), FunctionType)
    if part and name not in BESIDES and name not in OFFERS:
        for offer in OFFERS:
            value = vars(base)[offer]
            cell.__dict__[offer] = value.__get__(cell) if isinstance(value, FunctionType) else value


def step_of(cls: type) -> type:
    """The class that defines a cell's step: the lowest that has ``update`` or changes a part.

    Example:
        >>> from neurolsc import ALIFPlus
        >>> step_of(ALIFPlus).__name__
        'ALIF'
    """
    owner = next(c for c in cls.__mro__ if "update" in vars(c))
    return next((c for c in _below(cls, owner) if _parts(c) & _step(owner)), owner)


def _changed(cls: type, owner: type) -> bool:
    return any(_parts(c) & _step(owner) for c in _below(cls, owner))


def _below(cls: type, owner: type) -> tuple[type, ...]:
    """The classes that come before the owner in the order of inheritance."""
    return cls.__mro__[: cls.__mro__.index(owner)]


def _step(owner: type) -> set[str]:
    """What the step of a class may consist of: all that it has and does not leave abstract."""
    abstract = getattr(owner, "__abstractmethods__", frozenset())
    return {name for c in owner.__mro__ for name in _parts(c)} - abstract


def _parts(cls: type) -> set[str]:
    """The names that a class itself defines and that may be a part of a step."""
    if cls in _OUTSIDE:
        return set()
    return {name for name in vars(cls) if not name.startswith(("__", "_abc"))} - BESIDES - set(OFFERS)
