"""Settings in TOML."""

import tomllib
from os import PathLike
from typing import Any

from neurolsc.untrusted.refusal import refusing

__all__ = ["read_toml"]

LONGEST = 2**20
"""bytes up to which settings are read"""


def read_toml(path: str | PathLike[str]) -> dict[str, Any]:
    """Read settings from a TOML file: names of the flags without dashes, at the top level.

    Raises:
        ValueError: if the file cannot be read, is not TOML or 1 MiB long; the message names it.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(LONGEST)
    except OSError as error:
        raise ValueError(f"cannot read the settings in {path}: {error.strerror}.") from error
    with refusing(path, "not a TOML file"):
        if len(data) == LONGEST:
            raise ValueError(f"settings take less than {LONGEST} bytes.")
        try:
            return tomllib.loads(data.decode())
        except tomllib.TOMLDecodeError as error:
            raise ValueError(f"not a TOML file: {error}.") from error
