"""A field of settings: its default, and what it is."""

from dataclasses import field
from typing import Any


def setting(default: Any, help: str) -> Any:
    """A field with its default and the line that --help shows."""
    return field(default=default, metadata={"help": help})
