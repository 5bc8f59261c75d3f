"""``python -m neurolsc``: the command line."""

from neurolsc.cli import app

app(prog_name="neurolsc")
