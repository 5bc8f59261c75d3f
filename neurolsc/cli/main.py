"""The command ``neurolsc``: all commands in one group."""

import os
import shlex
import sys
import traceback
from pathlib import Path
from typing import Any

import click

import neurolsc
from neurolsc.cli.data import data
from neurolsc.cli.demo import demo
from neurolsc.cli.diagnose import diagnose
from neurolsc.cli.evaluate import evaluate
from neurolsc.cli.export import export
from neurolsc.cli.figure import figure
from neurolsc.cli.pretrain import pretrain
from neurolsc.cli.radii import radii
from neurolsc.cli.sweep import sweep
from neurolsc.cli.table import table
from neurolsc.cli.train import train
from neurolsc.runs import Stopped

INTERRUPTED = 130
"""what a shell expects of a command that Ctrl-C has ended"""


class _Group(click.Group):
    """Turns the package's own errors into one line, and leaves the others to Python."""

    def make_context(self, info_name: str | None, args: list[str], *others: Any, **more: Any) -> click.Context:
        given = shlex.join(["neurolsc", *args])
        context = super().make_context(info_name, args, *others, **more)
        context.obj = given
        return context

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except Stopped as error:
            click.echo(f"\nStopped; {error}. To go on:\n\n  {ctx.obj}", err=True)
            ctx.exit(INTERRUPTED)
        except (ValueError, FloatingPointError, OSError) as error:
            raise click.ClickException(str(error)) from error
        except TypeError as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            if Path(neurolsc.__file__).parent not in Path(last.filename).parents or not str(last.line).startswith(
                "raise "
            ):
                raise  # no refusal of this package, but a mistake: maybe in a cell of one's own
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(neurolsc.__version__)
def app() -> None:
    """Make deep recurrent spiking networks trainable by setting their local stability first.

    A usual day, on the digits that come with the package:

    \b
      neurolsc radii                                  the radii of an untrained network
      neurolsc radii --start "Relay()"                and after a start
      neurolsc pretrain --target 0.5 --out runs/half  set its radii
      neurolsc train --for netx --epochs 10 --out runs/digits
                                                      train one that fits a chip
      neurolsc radii runs/digits                      the radii of that one
      neurolsc diagnose runs/digits                   what is wrong with it, if anything
      neurolsc evaluate runs/digits                   open the test set, once
      neurolsc export runs/digits --to netx           integers for a neuromorphic chip
      neurolsc demo                                   five starts side by side, with a report
      neurolsc data info train.h5                     what is in a file of spoken words

    Settings come from flags, from a TOML file (--config), and else from the defaults that --help
    shows. A finished run has its own, in settings.toml, which --config takes as it is.
    """  # noqa: D301  a \b is the character that keeps lines as they are
    if os.getcwd() not in sys.path:  # where --cell module:Class finds modules
        sys.path.append(os.getcwd())


for command in (radii, pretrain, train, diagnose, evaluate, export, demo, data, sweep, table, figure):
    app.add_command(command)
