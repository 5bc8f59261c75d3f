"""The command ``neurolsc``.

- commands: the group of all commands, its errors, and most commands
- export, demo: the two longer ones
- options: settings as flags and from a TOML file
"""

from neurolsc.cli.commands import app

__all__ = ["app"]
