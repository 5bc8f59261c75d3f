"""Settings as flags, and from a TOML file."""

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import click
from click.core import ParameterSource

from neurolsc.config import CHIPS, KINDS, Settings, check_names, fitted, make
from neurolsc.untrusted.toml import read_toml

Command = Callable[..., None]

out = click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="Folder for the results; must not exist."
)
run = click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
"""The folder of a finished run."""
chip = click.option(
    "--for",
    "chip",
    type=click.Choice([*CHIPS]),
    help="Choose, where they are not given, settings of a network that can be exported: netx, for Loihi.",
)
device = click.option(
    "--device", default="cpu", show_default=True, help="Where the network runs, as torch calls it: cpu, cuda, cuda:1."
)
workers = click.option(
    "--workers",
    type=click.IntRange(1),
    default=os.cpu_count() or 1,
    show_default="one per core",
    help="Processes at work, one thread each.",
)
sweep = click.argument("sweep", type=click.Path(exists=True, file_okay=False, path_type=Path))
"""The folder of a sweep."""


def settings(*kinds: type[Settings]) -> Callable[[Command], Command]:
    """Give a command a flag per setting, and --config; it gets the settings, an object per kind."""

    def decorate(command: Command) -> Command:
        names = [f.name for kind in kinds for f in dataclasses.fields(kind)]

        def call(**given: Any) -> None:
            values = {name: given.pop(name) for name in names}
            if chip := given.get("chip"):
                source = click.get_current_context().get_parameter_source
                values = fitted(chip, values, [name for name in names if source(name) is ParameterSource.DEFAULT])
            command(*(make(kind, values) for kind in kinds), **given)

        call.__doc__, call.__name__ = command.__doc__, command.__name__
        call.__click_params__ = list(getattr(command, "__click_params__", []))  # type: ignore[attr-defined]
        for kind in reversed(kinds):
            for f in reversed(dataclasses.fields(kind)):
                call = _flag(f)(call)
        reader = click.option(
            "--config",
            type=click.Path(dir_okay=False, path_type=Path),
            is_eager=True,
            expose_value=False,
            callback=lambda ctx, _, path: _use_file(ctx, path, kinds),
            help="TOML file with settings; flags go before it.",
        )
        return reader(call)

    return decorate


def _flag(f: dataclasses.Field[Any]) -> Callable[[Command], Command]:
    name = "--" + f.name.replace("_", "-")
    words = get_args(f.type)
    if f.type is bool:
        return click.option(
            f"{name}/--no-{name[2:]}", f.name, default=f.default, show_default=True, help=f.metadata["help"]
        )
    kind = click.Choice(words) if words else f.type
    return click.option(name, f.name, type=kind, default=f.default, show_default=True, help=f.metadata["help"])


def _use_file(ctx: click.Context, path: Path | None, kinds: tuple[type[Settings], ...]) -> None:
    if path is not None:
        given = read_toml(path)
        check_names(given, KINDS, str(path))
        mine = {f.name for kind in kinds for f in dataclasses.fields(kind)}
        given = {name: value for name, value in given.items() if name in mine}
        for kind in kinds:
            make(kind, given)  # a wrong value is told here, with its name
        ctx.default_map = dict(ctx.default_map or {}) | given
