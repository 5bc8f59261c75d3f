"""The command ``neurolsc export``."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch

from neurolsc.cli import options
from neurolsc.experiment import Experiment, load_network
from neurolsc.experiment.run import NETWORK, TRAINING, run_folder
from neurolsc.export import QuantizationAware, quantize, to_netx, to_nir, verify
from neurolsc.io import load, save, write_text
from neurolsc.metrics import is_binary
from neurolsc.training import train

SAMPLES = 200  # of a run, compared
SIMULATED = 20  # of these that Lava runs, a second or two each
SLOWER = 5  # the run's learning rate over that of fine-tuning


@click.command()
@click.argument("run", metavar="RUN|FILE", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--to",
    "target",
    type=click.Choice(["netx", "nir"]),
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
@click.option("--samples", type=click.IntRange(1), help=f"netx: validation samples compared. [default: {SAMPLES}]")
@click.option("--fine-tune", type=click.IntRange(0), help="netx: epochs of training through the integers first.")
@click.option(
    "--verify",
    "simulate",
    is_flag=True,
    help=f"netx: replay the file's golden samples, and run {SIMULATED} samples in Lava where it is installed.",
)
@click.option("--dt", type=float, help="nir: seconds per time step; must be given.")
def export(
    run: Path,
    target: str,
    out: Path | None,
    inputs: Path | None,
    samples: int | None,
    fine_tune: int | None,
    simulate: bool,
    dt: float | None,
) -> None:
    """Export the network of a finished run, or a saved one, for neuromorphic chips.

    netx: the network becomes integers, written as network.net for Lava, with a report (report.json, .txt) of what that
    changed on validation samples of the run. With --fine-tune it is first trained through its integers on the run's
    training samples, at a fifth of its learning rate, and saved as network.safetensors. With --verify Lava's own
    simulator runs the file, compared spike by spike, if it is there (make lava-env). If this is stopped, the same
    command goes on where it was. nir: the network is written as network.nir.

    A FILE has no data: of netx its samples come from --inputs; without them overflows are not looked for.
    """
    flags = {"inputs": inputs, "samples": samples, "fine-tune": fine_tune, "verify": simulate, "dt": dt}
    fitting = ["inputs", "verify"] if run.is_file() else ["samples", "fine-tune", "verify"]
    fitting = ["dt"] if target == "nir" else fitting
    for name, value in flags.items():
        if value and name not in fitting:
            raise click.UsageError(f"--{name} does not fit {run} and --to {target}.")
    experiment = None if run.is_file() else Experiment.of(run)
    network = load(run) if experiment is None else load_network(run)
    out = out or (run.with_name(f"{run.stem}-{target}") if experiment is None else run / target)
    if target == "nir":
        if dt is None:
            raise click.UsageError("--to nir needs --dt, the seconds that a time step stands for.")
        with run_folder(out, {"to": "nir", "dt": dt}) as folder:
            to_nir(network, folder / "network.nir", dt=dt)
        click.echo(f"written to {out}")
        return
    quantize(network)  # refuses a network that does not fit before any data are read
    settings: dict[str, Any] = {"to": "netx"}
    x, labels = None, None
    if experiment is not None:
        x, labels, *mask = experiment.first_samples("validation", samples or SAMPLES)
        if mask:
            raise ValueError("the run's samples have unequal lengths; export needs one length: train with a --window.")
        if not is_binary(x):
            raise ValueError(f"an input of the run is {x.max()}, exported networks take 0 or 1: train with --binary.")
        settings |= {"samples": x.shape[1], "fine_tune": fine_tune or 0}
    elif inputs is not None:
        wanted = f"{inputs} must be an .npy file of spikes, 0 or 1, of shape (T, B, {network.n_in})"
        try:
            x = torch.from_numpy(np.load(inputs, allow_pickle=False).astype(np.float32))
        except (ValueError, EOFError, AttributeError) as error:  # the last of an .npz file
            raise ValueError(f"{wanted}.") from error
        if x.ndim != 3 or x.shape[2] != network.n_in or not x.numel() or not is_binary(x):
            raise ValueError(f"{wanted}, got {tuple(x.shape)}.")
        settings["inputs"] = str(inputs)
    elif simulate:
        raise click.UsageError("--verify runs samples, and a file of a network has none: give --inputs.")
    with run_folder(out, settings) as folder:
        if fine_tune and experiment is not None and experiment.training is not None:
            how = vars(replace(experiment.training, epochs=fine_tune, lr=experiment.training.lr / SLOWER))
            sets: Any = (experiment.data.load("train"), experiment.data.load("validation"))
            seed, checkpoint = experiment.network.seed, folder / TRAINING
            train(QuantizationAware(network, x), *sets, seed=seed, checkpoint=checkpoint, **how)
            save(network, folder / NETWORK)
        report = to_netx(network, folder / "network.net", x, labels=labels)
        report.to_json(folder / "report.json")
        text = str(report)
        if simulate and x is not None:
            try:
                text += f"\n{verify(folder / 'network.net', x[:, :SIMULATED])}"
            except RuntimeError as error:
                raise click.ClickException(str(error)) from error
        write_text(folder / "report.txt", f"{text}\n")
    click.echo(f"{text}\nwritten to {out}")
