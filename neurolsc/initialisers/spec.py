"""Initialisers as texts: in a grid file, in settings, on a command line."""

import ast
from dataclasses import MISSING, fields, is_dataclass
from typing import TypeVar

from neurolsc.initialisers.initialiser import Initialiser
from neurolsc.io import clean
from neurolsc.validation import meant

I = TypeVar("I", bound=type[Initialiser])  # noqa: E741

INITIALISERS: dict[str, type[Initialiser]] = {}
"""Initialisers by name; each enters itself, as one of a user does."""

LONGEST = 1000
"""characters of a text that is read"""


def register(cls: I) -> I:
    """Make an initialiser known to :func:`named` under the name of its class.

    Args:
        cls: a frozen dataclass derived from :class:`neurolsc.initialisers.Initialiser`.

    Returns:
        The class, so that it can be used as a decorator.

    Raises:
        TypeError: if it is not such a class.
        ValueError: if another class has the name.
    """
    if not (isinstance(cls, type) and issubclass(cls, Initialiser) and is_dataclass(cls)):
        raise TypeError(f"register takes a dataclass derived from Initialiser, got {cls!r}.")
    there = INITIALISERS.get(cls.__name__, cls)
    if (there.__module__, there.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(f"{cls.__name__!r} is another initialiser already, {there.__module__}.{there.__qualname__}.")
    INITIALISERS[cls.__name__] = cls  # a class of the same place is the same one, defined anew in a notebook
    return cls


def named(spec: str) -> Initialiser:
    """The initialiser that a text names; nothing in it is executed.

    Args:
        spec: a name, with numbers and words in brackets where it takes some, or several joined by
            ``+``: ``"Default"``, ``"LSUV(variance=0.5)"``, ``"Orthogonal() + RateMatching(0.15)"``.

    Raises:
        TypeError: if it is no text.
        ValueError: if it cannot be read, or names what is not known; the message lists what is.

    Example:
        >>> named("Orthogonal(inputs=True)+RateMatching(0.15)").parts
        (Orthogonal(gain=1.0, inputs=True), RateMatching(rate=0.15, tolerance=0.1))
    """
    if not isinstance(spec, str):
        raise TypeError(f"an initialiser is named by a text, such as 'LSUV()', got {type(spec).__name__}.")
    if len(spec) > LONGEST:
        raise ValueError(f"the text of an initialiser has at most {LONGEST} characters, got {len(spec)}.")
    try:
        tree = ast.parse(spec.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise _unreadable(spec) from error
    return _made(tree, spec)


def _made(tree: ast.expr, spec: str) -> Initialiser:
    match tree:
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _made(left, spec) + _made(right, spec)
        case ast.Name(id=name):
            return _called(name, [], {})
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
            try:
                values = [ast.literal_eval(arg) for arg in args]
                words = {word.arg or "**": ast.literal_eval(word.value) for word in keywords}
            except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
                raise _unreadable(spec) from error
            return _called(name, values, words)
    raise _unreadable(spec)


def _called(name: str, values: list[object], words: dict[str, object]) -> Initialiser:
    if name not in INITIALISERS:
        known = sorted(INITIALISERS)
        raise ValueError(f"unknown initialiser {clean(name)}; known are {', '.join(known)}{meant(known, name)}")
    cls = INITIALISERS[name]
    known = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    takes = f"{name} takes {', '.join(known) or 'nothing'}"
    if len(values) > len(known):
        raise ValueError(f"{takes}, got {len(values)} values.")
    given = dict(zip(known, values, strict=False))
    for word, value in words.items():
        if word not in known:
            raise ValueError(f"{takes}, not {clean(word)}{meant(known, word)}")
        if word in given:
            raise ValueError(f"{name} got {word} twice.")
        given[word] = value
    missing = [f.name for f in fields(cls) if f.name not in given and f.default is MISSING]  # type: ignore[arg-type]
    if missing:
        raise ValueError(f"{name} needs {', '.join(missing)}, as in {name}({missing[0]}=...).")
    try:
        return cls(**given)
    except TypeError as error:
        raise ValueError(f"{name}: {error}") from error


def _unreadable(spec: str) -> ValueError:
    return ValueError(
        f"{clean(repr(spec))} is no initialiser: write a name, with numbers or words in brackets, such as "
        f"RateMatching(0.15), or several joined by +; known are {', '.join(sorted(INITIALISERS))}."
    )
