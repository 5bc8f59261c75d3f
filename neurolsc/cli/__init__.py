"""The command ``neurolsc``: ``commands`` has all of its commands, ``options`` their flags."""

from neurolsc.cli.commands import app

__all__ = ["app"]
