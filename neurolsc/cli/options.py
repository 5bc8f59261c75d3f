"""Settings as flags and from a TOML file, and flags that several commands have."""

import dataclasses
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from neurolsc.experiment import Experiment
from neurolsc.experiment.config import PARTS, check_names, setting_names
from neurolsc.experiment.former import read_settings
from neurolsc.validation import words_of

Function = Callable[..., None]
NEW_FOLDER = click.Path(path_type=Path)
# settings under which a network can be exported to Loihi however long it is trained
NETX: dict[str, Any] = {
    "cell": "LIF",
    "tau_v": 50.0,
    "lr": 2e-3,
    "clip_weight": 3.0,
}


out = click.option("--out", required=True, type=NEW_FOLDER, help="Folder for the results; must not exist.")

READERS = {".nir": "neurolsc.export.from_nir(path, dt=...)", ".net": "neurolsc.export.read_netx(path)"}


class RunFolder(click.Path):
    """An argument that names the folder of a run; the error for a file of another format says what reads it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(value)
        if path.is_file() and path.suffix in READERS:
            self.fail(f"{path} holds a network, but no run: in Python {READERS[path.suffix]} reads it.", param, ctx)
        return super().convert(value, param, ctx)


run = click.argument("run", type=RunFolder(exists=True, file_okay=False, path_type=Path))
sweep = click.argument("sweep", type=click.Path(exists=True, file_okay=False, path_type=Path))
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
chip = click.option(
    "--for",
    "chip",
    type=click.Choice(["netx"]),
    help="Choose settings without a flag so that the network can be exported, and print them: netx, for Loihi.",
)


class Command(click.Command):
    """A command whose --help shows the settings of each kind under a heading."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # for each setting the first sentence of its dataclass
        headings = {
            f.name: (kind.__doc__ or "").partition(".")[0] for kind in PARTS.values() for f in dataclasses.fields(kind)
        }
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for flag in self.get_params(ctx):
            if isinstance(flag, click.Option) and (record := flag.get_help_record(ctx)) is not None:
                sections.setdefault(headings.get(str(flag.name), "Options"), []).append(record)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def settings(*parts: str) -> Callable[[Function], Function]:
    """Decorate a command with --config, --device, and a flag for each setting of some parts of an experiment.

    The command is called with the Experiment of these settings, and with its own flags as keywords.

    Args:
        *parts: names of the parts, such as "network".
    """

    def decorate(command: Function) -> Function:
        names = setting_names(parts)

        def call(**flags: Any) -> None:
            values = {name: flags.pop(name) for name in names}
            device_name = flags.pop("device")
            if flags.get("chip"):  # --for, which only some commands have
                values = _fit_to_chip(values)
            command(Experiment.from_settings(values, parts=parts, device=device_name), **flags)

        # click reads from a function its help, its name, and the flags that decorators have given it
        call.__doc__ = command.__doc__
        call.__name__ = command.__name__
        call.__click_params__ = list(getattr(command, "__click_params__", []))  # type: ignore[attr-defined]
        call = device(call)  # adds --device
        # click lists flags from the last decorator to the first
        for f in reversed([f for part in parts for f in dataclasses.fields(PARTS[part])]):
            flag = "--" + f.name.replace("_", "-")
            words = words_of(f.type)
            more: dict[str, Any] = {"type": click.Choice(words) if words else f.type}
            if f.type is bool:  # click takes no type with a pair of flags
                flag = f"{flag}/--no-{flag[2:]}"
                more = {}
            data_names = ", ".join(f.metadata["data"])  # the only data sets with this setting; empty: it is for all
            if data_names:
                text = f"{data_names}: {f.metadata['help']}"
            else:
                text = f.metadata["help"]
            shown = f.default != ""  # the help itself says what an empty text means
            call = click.option(flag, f.name, default=f.default, show_default=shown, help=text, **more)(call)
        return click.option(
            "--config",
            type=click.Path(dir_okay=False, path_type=Path),
            is_eager=True,
            expose_value=False,
            callback=lambda ctx, _, path: use_file(ctx, path, parts),
            help="TOML file with settings, such as a run's settings.toml; flags win.",
        )(call)

    return decorate


def _fit_to_chip(values: dict[str, Any]) -> dict[str, Any]:
    """Set what an export needs, except where the user gave a setting, and print as flags what is set.

    Where the network is read from a file, no setting of a network is set: none is used.

    Args:
        values: the settings of a command, by name.

    Returns:
        All settings, with those of :data:`NETX` in place of their defaults.

    Raises:
        ValueError: if the user gave a cell other than that of :data:`NETX`.
    """
    source = click.get_current_context().get_parameter_source
    wanted = dict(NETX)
    if values["data"] == "shd":  # counts above 1 cannot be exported
        wanted["binary"] = True
    free = {name: value for name, value in wanted.items() if source(name) is ParameterSource.DEFAULT}
    if values["weights"]:
        free = {name: value for name, value in free.items() if name not in setting_names(["network"])}
    elif "cell" not in free and values["cell"] != NETX["cell"]:
        raise ValueError(f"--for netx trains cells {NETX['cell']}, which fit it for sure, got {values['cell']}.")
    words: list[str] = []
    for name, value in free.items():
        if value != values[name]:
            words.append(f"--{name.replace('_', '-')}")
            if value is not True:  # a flag that is set has no value
                words.append(str(value))
    click.echo(f"--for netx sets {shlex.join(words) or 'nothing: every setting has a flag'}")
    return values | free


def use_file(ctx: click.Context, path: Path | None, parts: tuple[str, ...]) -> None:
    """Take settings from a TOML file, as defaults of the flags; a flag on the command line wins.

    Args:
        ctx: context of the command.
        path: the file; None: nothing is taken.
        parts: the parts of an experiment that the command has flags for; settings of other parts are ignored.

    Raises:
        ValueError: if the file cannot be read, or has an unknown setting or a wrong value.
    """
    if path is None:
        return
    values = read_settings(path)
    try:
        check_names(values, setting_names(), "setting")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    values = {name: value for name, value in values.items() if name in setting_names(parts)}
    Experiment.from_settings(values, parts=parts)  # refuses a wrong value by its name
    ctx.default_map = dict(ctx.default_map or {}) | values  # from which click takes defaults of flags
