"""The command ``neurolsc export``."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from torch import Tensor

from neurolsc import checkpoint
from neurolsc.cli import options
from neurolsc.experiment import Experiment, load_network
from neurolsc.export import ExportReport, QuantizationAware, fit_scales, quantize, to_netx, verify
from neurolsc.export.loihi.compare import make_report
from neurolsc.export.simulators import find_python
from neurolsc.metrics import is_binary
from neurolsc.network import Network
from neurolsc.runs import NETWORK, TRAINING, run_folder, write_text

SIMULATED = 20
"""samples that Lava runs, a second or two each"""
SLOWER = 5
"""fine-tuning starts from a trained network, by default at the run's learning rate over this"""
FLAGS = {"samples": "netx", "fine_tune": "netx", "lr": "netx", "simulate": "netx", "force": "netx", "dt": "nir"}
"""which format a flag is for"""


@click.command()
@options.run
@click.option(
    "--to",
    "target",
    type=options.Choice(["netx", "nir"]),
    required=True,
    help="netx: Lava's format for Loihi; nir: the interchange format.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for the results; must not exist. [default: RUN/netx, RUN/nir]",
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
    "--verify", "simulate", is_flag=True, help=f"netx: run {SIMULATED} of the samples in Lava's simulator, too."
)
@click.option("--force", is_flag=True, help="netx: accept few weight units per threshold.")
@click.option("--dt", type=float, help="nir: seconds per time step; must be given.")
@click.pass_context
def export(ctx: click.Context, run: Path, target: str, out: Path | None, dt: float | None, **netx: Any) -> None:
    """Export the network of a finished run for neuromorphic chips.

    netx: the network becomes integers, written as network.net for Lava, with a report (report.json,
    .txt and .png) of what that changed on validation samples of the run. The test set is not
    opened. With --fine-tune the network is first trained through its integers on the run's training
    samples, and kept as network.safetensors. With --verify Lava's own simulator runs the file,
    compared spike by spike, if its environment is there (make lava-env). If this is stopped, the
    same command goes on where it was.

    nir: the network is written as network.nir.
    """
    for flag in ctx.command.params:
        if (
            FLAGS.get(str(flag.name), target) != target
            and ctx.get_parameter_source(str(flag.name)) is ParameterSource.COMMANDLINE
        ):
            raise click.UsageError(f"{flag.opts[0]} is not for --to {target}.")
    experiment, network = Experiment.of(run), load_network(run)
    out = run / target if out is None else out
    if target == "nir":
        _to_nir(network, out, dt)
    else:
        _to_netx(network, experiment, out, **netx)
    click.echo(f"written to {out}")


def _to_nir(network: Network, out: Path, dt: float | None) -> None:
    if dt is None:
        raise click.UsageError("--to nir needs --dt, the seconds that a time step stands for.")
    from neurolsc.export import to_nir

    with run_folder(out, {"to": "nir", "dt": dt}) as folder:
        to_nir(network, folder / "network.nir", dt=dt)


def _to_netx(
    network: Network,
    experiment: Experiment,
    out: Path,
    *,
    samples: int,
    fine_tune: int,
    lr: float | None,
    simulate: bool,
    force: bool,
) -> None:
    quantize(network, force=force)  # what cannot be expressed is told before any data are read
    data, training = experiment.data, experiment.training
    assert training is not None
    x, labels = _binary_samples(experiment, samples)
    rate = training.lr / SLOWER if lr is None else lr
    told = {"to": "netx", "samples": x.shape[1], "fine_tune": fine_tune, "lr": rate, "force": force}
    with run_folder(out, told) as folder:
        if fine_tune:
            halvings = fit_scales(network, x, force=force)
            before = make_report(network, quantize(network, force=force, halvings=halvings), x, labels)
            before.to_json(folder / "report_before.json")
            click.echo(f"before fine-tuning: {before.decisions}")
            replace(training, epochs=fine_tune, lr=rate).run(
                QuantizationAware(network, x, force=force),
                data.load("train"),
                data.load("validation"),
                seed=experiment.network.seed,
                checkpoint=folder / TRAINING,
            )
            checkpoint.save(network, folder / NETWORK)
        report = to_netx(network, folder / "network.net", x, labels=labels, force=force)
        if simulate:
            report = _simulate(report, network, folder / "network.net", x[:, :SIMULATED], labels[:SIMULATED])
        report.to_json(folder / "report.json")
        write_text(folder / "report.txt", f"{report}\n")
        report.plot(folder / "report.png", title=f"{experiment.title}, in integers")
    click.echo(report)


def _simulate(report: ExportReport, network: Network, path: Path, x: Tensor, labels: Tensor) -> ExportReport:
    try:
        find_python("Lava")
    except FileNotFoundError as error:
        return replace(report, verification=f"not run: {error}")
    try:
        found = verify(path, x, progress=True)
    except RuntimeError as error:
        raise click.ClickException(str(error)) from error
    return report.with_simulator(network, x, found, labels)


def _binary_samples(experiment: Experiment, count: int) -> tuple[Tensor, Tensor]:
    """The first validation samples (T, B, n_in), 0 or 1, and their classes (B,).

    Raises:
        ValueError: if they are graded, or of unequal length.
    """
    x, labels, *mask = experiment.first_samples("validation", count)
    if mask:
        raise ValueError("the run's samples have unequal lengths; export needs one length: train with a --window.")
    if not is_binary(x):
        raise ValueError(f"an input of the run is {x.max()}, but exported networks take 0 or 1: train with --binary.")
    return x, labels
