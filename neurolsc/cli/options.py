"""Settings as flags, and from a TOML file."""

import dataclasses
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import click
from click.core import ParameterSource

from neurolsc.config import CHIPS, KINDS, Settings, check_names, fitted, make
from neurolsc.untrusted.toml import read_toml
from neurolsc.validation import meant

Function = Callable[..., None]


class Command(click.Command):
    """A command whose --help shows the flags of every kind of settings under a heading."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for flag in self.get_params(ctx):
            if isinstance(flag, click.Option) and (shown := flag.get_help_record(ctx)) is not None:
                sections.setdefault(getattr(flag, "section", "Options"), []).append(shown)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


class Flag(click.Option):
    """The flag of a setting, shown under the heading of its kind."""

    def __init__(self, *args: Any, section: str, **more: Any) -> None:
        super().__init__(*args, **more)
        self.section = section


class Choice(click.Choice):  # type: ignore[type-arg]
    """One of some words; an error names the nearest."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter as error:
            self.fail(error.message.rstrip(".") + meant(map(str, self.choices), value), param, ctx)


out = click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="Folder for the results; must not exist."
)
run = click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
"""The folder of a finished run."""
chip = click.option(
    "--for",
    "chip",
    type=Choice([*CHIPS]),
    help="Set what is not given so that the network can be exported, and print it: netx, for Loihi.",
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


def settings(*kinds: type[Settings]) -> Callable[[Function], Function]:
    """Give a command a flag per setting, and --config; it gets the settings, an object per kind."""

    def decorate(command: Function) -> Function:
        names = [f.name for kind in kinds for f in dataclasses.fields(kind)]

        def call(**given: Any) -> None:
            values = {name: given.pop(name) for name in names}
            if chip := given.get("chip"):
                source = click.get_current_context().get_parameter_source
                chosen = fitted(chip, values, [name for name in names if source(name) is ParameterSource.DEFAULT])
                changed = {name: value for name, value in chosen.items() if value != values[name]}
                click.echo(f"--for {chip} sets {_as_flags(changed) if changed else 'nothing: all is given'}")
                values = chosen
            command(*(make(kind, values) for kind in kinds), **given)

        call.__doc__, call.__name__ = command.__doc__, command.__name__
        call.__click_params__ = list(getattr(command, "__click_params__", []))  # type: ignore[attr-defined]
        for kind in reversed(kinds):
            for f in reversed(dataclasses.fields(kind)):
                call = _flag(f, (kind.__doc__ or "").partition(".")[0])(call)
        reader = click.option(
            "--config",
            type=click.Path(dir_okay=False, path_type=Path),
            is_eager=True,
            expose_value=False,
            callback=lambda ctx, _, path: use_file(ctx, path, kinds),
            help="TOML file with settings, such as a run's settings.toml; flags win.",
        )
        return reader(call)

    return decorate


def _as_flags(values: dict[str, Any]) -> str:
    words: list[str] = []
    for name, value in values.items():
        flag = name.replace("_", "-")
        words += [f"--{'' if value else 'no-'}{flag}"] if isinstance(value, bool) else [f"--{flag}", f"{value}"]
    return shlex.join(words)


def _flag(f: dataclasses.Field[Any], section: str) -> Callable[[Function], Function]:
    name, words = "--" + f.name.replace("_", "-"), get_args(f.type)
    more: dict[str, Any] = {"type": Choice(words) if words else f.type}
    if f.type is bool:
        name, more = f"{name}/--no-{name[2:]}", {}
    shown = f.default != ""  # else the help says what an empty text means
    return click.option(
        name, f.name, cls=Flag, section=section, default=f.default, show_default=shown, help=f.metadata["help"], **more
    )


def use_file(ctx: click.Context, path: Path | None, kinds: tuple[type[Settings], ...]) -> None:
    """Let a TOML file of settings say what no flag says."""
    if path is not None:
        given = read_toml(path)
        check_names(given, KINDS, str(path))
        mine = {f.name for kind in kinds for f in dataclasses.fields(kind)}
        given = {name: value for name, value in given.items() if name in mine}
        for kind in kinds:
            make(kind, given)  # a wrong value is told here, with its name
        ctx.default_map = dict(ctx.default_map or {}) | given
