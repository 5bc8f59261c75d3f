"""The command ``neurolsc export``."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from click.core import ParameterSource
from torch import Tensor

from neurolsc.cli import options
from neurolsc.experiment import Experiment, load_network
from neurolsc.experiment.run import NETWORK, TRAINING, run_folder
from neurolsc.export import QuantizationAware, fit_scales, make_report, quantize, to_netx, to_nir, verify
from neurolsc.io import load, save, write_text
from neurolsc.metrics import is_binary
from neurolsc.network import Network
from neurolsc.training import train

SIMULATED = 20  # samples that Lava runs, a second or two each
SLOWER = 5  # the run's learning rate over that of fine-tuning
FORMATS = {name: "netx" for name in ("inputs", "samples", "fine_tune", "lr", "simulate", "force")} | {"dt": "nir"}
OF_A_RUN = ("samples", "fine_tune", "lr")


@click.command()
@click.argument("run", metavar="RUN|FILE", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--to",
    "target",
    type=options.Choice(["netx", "nir"]),
    required=True,
    help="netx: Lava's format for Loihi; nir: the interchange format.",
)
@click.option(
    "--out",
    type=options.NEW_FOLDER,
    help="Folder for the results; must not exist. [default: RUN/netx, RUN/nir; of a FILE: in its folder]",
)
@click.option(
    "--inputs",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="netx, of a FILE: an .npy file of samples (T, B, inputs), 0 or 1, to compare on.",
)
@click.option(
    "--samples", type=click.IntRange(1), default=200, show_default=True, help="netx: validation samples compared."
)
@click.option(
    "--fine-tune",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="netx: epochs of training through the integers first.",
)
@click.option("--lr", type=float, help=f"netx: learning rate of --fine-tune. [default: the run's / {SLOWER}]")
@click.option(
    "--verify",
    "simulate",
    is_flag=True,
    help=f"netx: replay the file's golden samples, and run {SIMULATED} samples in Lava where it is installed.",
)
@click.option("--force", is_flag=True, help="netx: accept few weight units per threshold.")
@click.option("--dt", type=float, help="nir: seconds per time step; must be given.")
@click.pass_context
def export(ctx: click.Context, run: Path, target: str, out: Path | None, dt: float | None, **netx: Any) -> None:
    """Export the network of a finished run, or a saved one, for neuromorphic chips.

    netx: the network becomes integers, written as network.net for Lava, with a report (report.json, .txt and .png) of
    what that changed on validation samples of the run. The test set is not opened. With --fine-tune the network is
    first trained through its integers on the run's training samples, and saved as network.safetensors. With --verify
    Lava's own simulator runs the file, compared spike by spike, if its environment is there (make lava-env); the golden
    samples in the file are replayed without it. If this is stopped, the same command goes on where it was.

    nir: the network is written as network.nir.

    A FILE has no data: of netx its samples come from --inputs; without them overflows are not looked for.
    """
    for flag in ctx.command.params:
        name = str(flag.name)
        if ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        if FORMATS.get(name, target) != target:
            raise click.UsageError(f"{flag.opts[0]} is not for --to {target}.")
        if name in OF_A_RUN and run.is_file():
            raise click.UsageError(f"{flag.opts[0]} needs the data of a run, got the file {run}: give --inputs.")
        if name == "inputs" and not run.is_file():
            raise click.UsageError(f"--inputs is for a file of a network; the samples of {run} are those of its run.")
    if run.is_file():
        experiment, network = None, load(run)
        out = out or run.with_name(f"{run.stem}-{target}")
    else:
        experiment, network = Experiment.of(run), load_network(run)
        out = out or run / target
    if target == "nir":
        if dt is None:
            raise click.UsageError("--to nir needs --dt, the seconds that a time step stands for.")
        with run_folder(out, {"to": "nir", "dt": dt}) as folder:
            to_nir(network, folder / "network.nir", dt=dt)
    else:
        _to_netx(network, experiment, out, title=run.name if experiment is None else experiment.title, **netx)
    click.echo(f"written to {out}")


def _to_netx(
    network: Network,
    experiment: Experiment | None,
    out: Path,
    *,
    title: str,
    inputs: Path | None,
    samples: int,
    fine_tune: int,
    lr: float | None,
    simulate: bool,
    force: bool,
) -> None:
    quantize(network, force=force)  # refuses a network that does not fit before any data are read
    settings: dict[str, Any] = {"to": "netx", "force": force}
    x, labels = None, None
    if experiment is not None:
        x, labels, *mask = experiment.first_samples("validation", samples)
        if mask:
            raise ValueError("the run's samples have unequal lengths; export needs one length: train with a --window.")
        if not is_binary(x):
            raise ValueError(f"an input of the run is {x.max()}, exported networks take 0 or 1: train with --binary.")
        assert experiment.training is not None
        rate = experiment.training.lr / SLOWER if lr is None else lr
        settings |= {"samples": x.shape[1], "fine_tune": fine_tune, "lr": rate}
    elif inputs is not None:
        x = _read_samples(inputs, network.n_in)
        settings["inputs"] = str(inputs)
    elif simulate:
        raise click.UsageError("--verify runs samples, and a file of a network has none: give --inputs.")
    with run_folder(out, settings) as folder:
        if fine_tune and x is not None and experiment is not None and experiment.training is not None:
            halvings = fit_scales(network, x, force=force)
            before = make_report(network, quantize(network, force=force, halvings=halvings), x, labels)
            before.to_json(folder / "report_before.json")
            click.echo(f"before fine-tuning: {before.decisions}")
            how = vars(replace(experiment.training, epochs=fine_tune, lr=settings["lr"]))
            sets: Any = (experiment.data.load("train"), experiment.data.load("validation"))
            seed, checkpoint = experiment.network.seed, folder / TRAINING
            train(QuantizationAware(network, x, force=force), *sets, seed=seed, checkpoint=checkpoint, **how)
            save(network, folder / NETWORK)
        report = to_netx(network, folder / "network.net", x, labels=labels, force=force)
        if simulate and x is not None:
            some = None if labels is None else labels[:SIMULATED]
            try:
                found = verify(folder / "network.net", x[:, :SIMULATED])
            except RuntimeError as error:
                raise click.ClickException(str(error)) from error
            report = report.with_simulator(network, x[:, :SIMULATED], found, some)
        report.to_json(folder / "report.json")
        write_text(folder / "report.txt", f"{report}\n")
        report.plot(folder / "report.png", title=f"{title}, in integers")
    click.echo(report)


def _read_samples(path: Path, n_in: int) -> Tensor:
    """Samples (T, B, n_in), 0 or 1, of an .npy file."""
    wanted = f"{path} must be an .npy file of spikes, 0 or 1, of shape (T, B, {n_in})"
    try:
        x = torch.from_numpy(np.load(path, allow_pickle=False).astype(np.float32))
    except (ValueError, EOFError, AttributeError) as error:  # the last of an .npz file
        raise ValueError(f"{wanted}.") from error
    if x.ndim != 3 or x.shape[2] != n_in or not x.numel() or not is_binary(x):
        raise ValueError(f"{wanted}, got {tuple(x.shape)} with values from {x.min():g} to {x.max():g}.")
    return x
