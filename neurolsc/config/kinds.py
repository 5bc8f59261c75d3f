"""All kinds of settings, from names and values and back."""

import reprlib
from dataclasses import asdict, fields
from typing import Any, get_args

from neurolsc.config.data import DataSettings
from neurolsc.config.network import NetworkSettings
from neurolsc.config.pretraining import PretrainSettings
from neurolsc.config.start import StartSettings
from neurolsc.config.training import TrainSettings
from neurolsc.untrusted.words import clean
from neurolsc.validation import meant

Settings = NetworkSettings | DataSettings | PretrainSettings | TrainSettings | StartSettings
KINDS = (NetworkSettings, DataSettings, PretrainSettings, TrainSettings, StartSettings)


def check_names(given: dict[str, Any], kinds: tuple[type[Settings], ...], where: str) -> None:
    """Refuse settings that none of the kinds knows.

    Raises:
        ValueError: naming the unknown and the known names.
    """
    known = [f.name for kind in kinds for f in fields(kind)]
    unknown = [name for name in given if name not in known]
    if unknown:
        told = clean(", ".join(unknown))
        raise ValueError(f"{where}: unknown setting {told}; known are {', '.join(known)}{meant(known, *unknown)}")


def make(kind: type[Any], given: dict[str, Any]) -> Any:
    """Settings of one kind from names and values; what is missing takes its default.

    Raises:
        ValueError: if a value has the wrong type or is not one of the known words.
    """
    values = {}
    for f in fields(kind):
        if f.name not in given:
            continue
        value = given[f.name]
        words = get_args(f.type)
        wanted: Any = str if words else f.type
        if wanted is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value) if abs(value) < 2**53 else value  # else it is told as what it is
        if f.name == "target" and isinstance(value, int | float):
            value = str(value)
        if not isinstance(value, wanted) or (wanted is not bool and isinstance(value, bool)):
            raise ValueError(f"{f.name} must be {wanted.__name__}, got {clean(reprlib.repr(value))}.")
        if words and value not in words:
            end = meant(words, value)
            raise ValueError(f"{f.name} must be one of {', '.join(words)}, got {clean(repr(value))}{end}")
        values[f.name] = value
    return kind(**values)


def as_dict(*settings: Settings) -> dict[str, Any]:
    """All settings as one flat dictionary."""
    return {name: value for s in settings for name, value in asdict(s).items()}
