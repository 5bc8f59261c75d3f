"""The command ``neurolsc``, one command a file.

- main: the group of all commands, and what becomes of errors
- options: settings as flags and from a TOML file
- radii, pretrain, train, diagnose, evaluate, export, demo, data, sweep, table, figure:
  what is called so
"""

from neurolsc.cli.main import app

__all__ = ["app"]
