"""The command ``neurolsc``, and all its commands."""

import hashlib
import os
import shlex
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import click
from click.core import ParameterSource
from torch import Tensor

import neurolsc
from neurolsc import experiment as experiments
from neurolsc.cli import options
from neurolsc.diagnosis import diagnose as diagnose_network
from neurolsc.display import Table, in_80_columns
from neurolsc.experiment import DataSettings, Experiment, InitSettings, Stopped
from neurolsc.experiment.config import setting_names
from neurolsc.experiment.run import NETWORK, SETTINGS, TRAINING, refuse_existing, run_folder, write_profile
from neurolsc.experiment.table import TABLE, read_history
from neurolsc.export import QuantizationAware, delayed, quantize, to_netx, to_nir, verify
from neurolsc.io import save, write_json, write_text
from neurolsc.metrics import is_binary
from neurolsc.stability import neurons_below_threshold, plot_neurons, radius_profile, truncation_errors
from neurolsc.tasks import Classification, metric_spec
from neurolsc.training import train as train_network
from neurolsc.validation import whole


class _Group(click.Group):
    """Turns errors of the package into one line, and leaves other errors to Python."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; show an expected error without a traceback, and after Ctrl-C how to resume."""
        try:
            return super().invoke(ctx)
        except Stopped as error:
            click.echo(f"\nStopped; {error}. To go on:\n\n  {shlex.join(['neurolsc', *sys.argv[1:]])}", err=True)
            ctx.exit(130)
        except (ValueError, TypeError, FloatingPointError, OSError, ImportError) as error:
            # A TypeError of a line without `raise` comes from Python or torch, mostly through a mistake in a neuron of
            # one's own: its traceback is kept.
            line = str(traceback.extract_tb(error.__traceback__)[-1].line)
            if isinstance(error, TypeError) and not line.startswith("raise "):
                raise
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(neurolsc.__version__)
def app() -> None:
    """Make deep recurrent spiking networks trainable by setting their local stability first.

    A usual day, on the digits that come with the package:

    \b
      neurolsc radii                                  the radii of an untrained network
      neurolsc radii --init "Identity()"              and after an initialisation
      neurolsc pretrain --target 0.5 --out runs/half  set its radii
      neurolsc train --for netx --epochs 10 --out runs/digits
                                                      train one that fits a chip
      neurolsc radii runs/digits                      the radii of that one
      neurolsc diagnose runs/digits                   what is wrong with it, if anything
      neurolsc evaluate runs/digits                   open the test set, once
      neurolsc export runs/digits --to netx           integers for a neuromorphic chip
      neurolsc demo                                   five initialisations compared, with a report

    Settings come from flags, from a TOML file (--config), and else from the defaults that --help
    shows. A finished run has its own, in settings.toml, which --config takes as it is.
    """  # noqa: D301  a \b is the character that keeps lines as they are
    if os.getcwd() not in sys.path:  # where --cell module:Class finds modules
        sys.path.append(os.getcwd())


OF_AN_INIT = ("network", "data", "init")


def _use_run(ctx: click.Context, _: click.Parameter, saved: Path | None) -> Path | None:
    """Take a run's settings of network, data and init as defaults of the flags, and return its network file.

    Anything but a folder names a network file, or a trained network in the package, and is returned as it is.
    """
    if saved is not None and saved.is_dir():
        Experiment.of(saved)  # refuses any folder but a finished run
        options.use_file(ctx, saved / SETTINGS, OF_AN_INIT)
        return saved / NETWORK
    return saved


@app.command(cls=options.Command)
@click.argument(
    "saved", metavar="[RUN]", required=False, type=options.RunFolder(path_type=Path), is_eager=True, callback=_use_run
)
@options.settings(*OF_AN_INIT)
@click.option("--samples", default=4, show_default=True, help="Samples measured.")
@click.option("--times", default=24, show_default=True, help="Time steps measured, drawn at random.")
@click.option("--truncation", is_flag=True, help="Also measure how many steps back gradients have to go.")
@click.option(
    "--out", type=options.NEW_FOLDER, help="Folder for profile.json, profile.png and neurons.png; must not exist."
)
def radii(
    experiment: Experiment, saved: Path | None, samples: int, times: int, truncation: bool, out: Path | None
) -> None:
    """Measure the radii of a new network, a run or a saved network.

    RUN is the folder of a finished run, a file of neurolsc.save, or the name of a trained network in the package.
    Without it the network is a new one of the settings, as built, or as --init leaves it.

    A radius is what is left of a gradient after one step back in time, or one layer down. One row
    per layer: the mean radius through time and through depth, how much the layer fires, and which
    term holds the radius through time; of the cells in the package the leaks exp(-1/tau), the
    reset, the feedback of a spike on the threshold, or the recurrent weights.

    A second table is of single neurons below threshold, without spikes and weights: their radius, the
    share of those that grow (outside), and of those that oscillate.

    With --truncation the gradient of the task's loss is taken apart, too: over how many steps
    truncated backpropagation has to go back from each loss, or how many steps long the chunks
    between two detached states have to be, until each layer's gradient is within 1 %.
    """
    if out is not None:
        refuse_existing(out)  # before anything is measured
    source = click.get_current_context().get_parameter_source
    seed = experiment.network.seed
    if saved is not None:
        # a saved network has all settings of a network but the seed; cell names the module that defines its cells
        fixed = [name for name in setting_names(["network"]) if name not in ("cell", "seed")]
        flags = [f"--{name.replace('_', '-')}" for name in fixed if source(name) is ParameterSource.COMMANDLINE]
        if flags:
            raise click.UsageError(f"{saved} is a whole network; leave out {', '.join(flags)}.")
        experiment = replace(experiment, network=replace(experiment.network, weights=str(saved)))
    # without --init a network is measured as it is built; a saved one has its initialisation behind it
    if source("init") is not ParameterSource.COMMANDLINE and (saved is not None or not experiment.init.init):
        experiment = replace(experiment, init=InitSettings("Default"))
    network, findings = experiment.begin()
    for finding in findings:
        click.echo(in_80_columns(finding))
    x = experiment.first_inputs("train", samples)
    profile = radius_profile(network, x, steps=min(times, x.shape[0]), seed=seed, progress=True)
    click.echo(profile)
    if neurons := neurons_below_threshold(network):  # by layer; empty if no layer has this measure
        rows = [
            (
                name,
                f"{layer.radius.mean():.3f}",
                f"{layer.radius.max():.3f}",
                f"{layer.outside:.0%}",
                f"{layer.oscillating:.0%}",
            )
            for name, layer in neurons.items()
        ]
        click.echo(Table(("below threshold", "mean radius", "largest", "outside", "oscillating"), rows))
    for finding in diagnose_network(network, x, seed=seed):
        click.echo(in_80_columns(finding))
    if truncation:
        _, targets, *_ = experiment.first_samples("train", samples)
        if targets.ndim > 1:  # one for every step, of which x may have fewer
            targets = targets[: len(x)]
        targets = targets.to(network.dtype_and_device["device"])
        task = experiment.data.task
        click.echo(truncation_errors(network, x, lambda logits: task.loss(logits, targets), progress=True))
    if out is not None:
        with run_folder(out, experiment.settings) as folder:
            write_profile(profile, folder / "profile", experiment.title)
            # the picture is of neurons with two variables: with one they have no trace and determinant
            if drawn := {name: layer for name, layer in neurons.items() if layer.matrix.shape[1] > 1}:
                plot_neurons(drawn, folder / "neurons.png", title=experiment.title)


@app.command(cls=options.Command)
@options.settings(*OF_AN_INIT, "pretraining")
@options.out
def pretrain(experiment: Experiment, out: Path) -> None:
    """Set the radii of a network by pre-training, and save it.

    The folder gets network.safetensors, the radii before and after (JSON and pictures) and the course of pre-training.
    A target that is not reached is reported with the reason, and the best network is saved. If this is stopped, the
    same command goes on where it was.
    """
    if experiment.lsc is None:
        raise click.UsageError("pretrain needs a --target: a number such as 0.5, or balanced.")
    experiment.run(out, say=click.echo)
    click.echo(f"written to {out}")


@app.command(cls=options.Command)
@options.settings(*OF_AN_INIT, "pretraining", "training")
@options.chip
@click.option(
    "--monitor",
    is_flag=False,
    flag_value=100,
    default=0,
    type=click.IntRange(0),
    metavar="[UPDATES]",
    help="Say what happens to a layer when it happens; rows every so many updates (100) in monitor.jsonl.",
)
@options.out
def train(experiment: Experiment, chip: str | None, monitor: int, out: Path) -> None:
    """Initialise a network and train it.

    First --init initialises it, then its radii are set if a --target is given. The loss is that of the task (for labels
    cross-entropy at every time step); training stops early on the validation loss. The folder gets network.safetensors
    (the best epoch), history.csv and .json, and the learning curves. If this is stopped, the same command goes on where
    it was. If the loss becomes NaN, the network of the best epoch is left in the folder of the unfinished run.
    """
    if chip is not None:
        _samples_for_chip(experiment, SAMPLES)
        try:
            quantize(experiment.build(), force=True)  # refuses cells that do not fit, whatever their weights are now
        except (TypeError, ValueError) as error:
            raise click.UsageError(f"not for {chip}: {error}") from error
    result = experiment.run(out, say=click.echo, monitor=monitor).training
    assert result is not None
    score = experiment.data.task.score
    best = metric_spec(experiment.data.task, score).text(result.best[f"validation_{score}"])
    click.echo(f"best epoch {result.best_epoch}: validation {score.replace('_', ' ')} {best}")
    click.echo(f"written to {out}")


@app.command()
@options.run
@click.option(
    "--split",
    type=click.Choice(["test", "validation"]),
    default="test",
    show_default=True,
    help="Which samples; the test set is for the end.",
)
@click.option("--batch-size", default=256, show_default=True, help="Samples at a time; the scores do not depend on it.")
@options.device
def evaluate(run: Path, split: Literal["test", "validation"], batch_size: int, device: str) -> None:
    """Score a finished run, by default on the test set, and write test.json or validation.json into its folder.

    Mode accuracy is the paper's: every step votes for its largest logit, and the class with most votes is the decision.
    A step whose largest logits tie does not vote.
    """
    click.echo(f"{run}, {split}\n{experiments.score(run, split, batch_size=batch_size, device=device)}")


@app.command()
@options.run
@click.option("--try", "cures", is_flag=True, help="Try the cure of each finding on copies, for 20 updates.")
@click.option("--samples", default=64, show_default=True, help="Samples of the training split, drawn at random.")
@click.option("--out", type=options.NEW_FOLDER, help="Folder for diagnosis.json, .txt, .png; must not exist.")
def diagnose(run: Path, cures: bool, samples: int, out: Path | None) -> None:
    """Say what is wrong with a finished run, why, and what to try.

    A line per layer: what its neurons do, radii, Lyapunov exponents, singular values, active-surrogate fraction,
    similarity to the input, and the gradient of the loss. Then the findings, from dead layers to a learning rate that
    is too high.
    """
    whole("samples", samples)
    if out is None:
        click.echo(experiments.diagnose_run(run, samples=samples, cures=cures))
        return
    experiment = Experiment.of(run)
    with run_folder(out, experiment.settings) as folder:
        found = experiments.diagnose_run(run, samples=samples, cures=cures)
        write_text(folder / "diagnosis.txt", f"{found}\n")
        found.plot(folder / "diagnosis.png", title=f"{experiment.title}, as it ended")
        write_json(folder / "diagnosis.json", found.to_dict())
    click.echo(found)
    click.echo(f"written to {out}")


SAMPLES = 200  # validation samples of a run, on which the network and its integers are compared
SIMULATED = 20  # how many of these Lava runs, a second or two each
SLOWER = 5  # fine-tuning divides the run's learning rate by this


def _samples_for_chip(experiment: Experiment, count: int) -> tuple[Tensor, Tensor]:
    """Return the first validation samples that an export to netx compares, inputs (T, B, n_in) and labels (B,).

    Raises:
        ValueError: if the data cannot be exported; the message names a cure that the data set has.
    """
    data = experiment.data
    other_data = "train on other data, such as sl-mnist"

    def cure(setting: str, flag: str) -> str:
        """Return a flag as the cure if the data set has its setting, and else other data."""
        if data.data in DataSettings.__dataclass_fields__[setting].metadata["data"]:
            return f"train with {flag}"
        return other_data

    if not isinstance(data.task, Classification):
        raise ValueError(
            f"data = {data.data} have targets at every step, export needs one decision for each sample: {other_data}."
        )
    x, labels, *mask = experiment.first_samples("validation", count)
    if mask:
        raise ValueError(f"samples have unequal lengths, export needs one length: {cure('window', '--window 1')}.")
    if not is_binary(x):
        wrong = x[(x != 0) & (x != 1)][0].item()
        raise ValueError(f"an input is {wrong:g}, exported networks take 0 or 1: {cure('binary', '--binary')}.")
    return x, labels


@app.command()
@options.run
@click.option(
    "--to",
    "target",
    type=click.Choice(["netx", "nir"]),
    required=True,
    help="netx: Lava's format for Loihi; nir: the interchange format.",
)
@click.option(
    "--out", type=options.NEW_FOLDER, help="Folder for the results; must not exist. [default: RUN/netx, RUN/nir]"
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
    samples: int | None,
    fine_tune: int | None,
    simulate: bool,
    dt: float | None,
) -> None:
    """Export the network of a finished run for neuromorphic chips.

    netx: the network becomes integers, written as network.net for Lava, with a report (report.json, .txt) of what that
    changed on validation samples of the run. With --fine-tune it is first trained through its integers on the run's
    training samples, at a fifth of its learning rate, and saved as network.safetensors; a network with --layer-delay 0
    gets the chip's delay between layers before. With --verify Lava's own simulator runs the file, compared spike by
    spike, if it is there (make lava-env). If this is stopped, the same command goes on where it was. nir: the network
    is written as network.nir.
    """
    of_the_other: dict[str, Any] = {"samples": samples, "fine-tune": fine_tune, "verify": simulate}
    if target == "netx":
        of_the_other = {"dt": dt}
    for name, value in of_the_other.items():
        if value is not None and value is not False:  # 0 was given on the command line, too
            raise click.UsageError(f"--{name} does not fit --to {target}.")
    experiment = Experiment.of(run)
    network = experiments.load_network(run)
    out = out or run / target
    if target == "nir":
        if dt is None:
            raise click.UsageError("--to nir needs --dt, the seconds that a time step stands for.")
        with run_folder(out, {"to": "nir", "dt": dt}) as folder:
            to_nir(network, folder / "network.nir", dt=dt)
        click.echo(f"written to {out}")
        return
    quantize(network)  # refuses a network that does not fit before any data are read
    x, labels = _samples_for_chip(experiment, samples or SAMPLES)
    task = experiment.data.task
    assert isinstance(task, Classification)  # else _samples_for_chip has refused it
    # the weights by their digest: a checkpoint of another network does not fit
    digest = hashlib.sha256((run / NETWORK).read_bytes()).hexdigest()[:16]
    settings = {"to": "netx", "samples": x.shape[1], "fine_tune": fine_tune or 0, "network": digest}
    with run_folder(out, settings) as folder:
        if fine_tune and experiment.training is not None:
            training = vars(replace(experiment.training, epochs=fine_tune, lr=experiment.training.lr / SLOWER))
            training["task"] = task
            sets: Any = (experiment.data.load("train"), experiment.data.load("validation"))
            seed = experiment.network.seed
            checkpoint = folder / TRAINING
            network = delayed(network)
            train_network(QuantizationAware(network, x), *sets, seed=seed, checkpoint=checkpoint, **training)
            save(network, folder / NETWORK)
        report = to_netx(network, folder / "network.net", x, labels=labels, task=task)
        write_json(folder / "report.json", report.to_dict())
        text = str(report)
        if simulate:
            try:
                text += f"\n{verify(folder / 'network.net', x[:, :SIMULATED])}"
            except RuntimeError as error:
                raise click.ClickException(str(error)) from error
        write_text(folder / "report.txt", f"{text}\n")
    click.echo(f"{text}\nwritten to {out}")


@app.command()
@click.argument("grid", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the sweep. [default: runs/<name of the grid>]")
@options.workers
@options.device
@click.option(
    "--ray",
    is_flag=False,
    flag_value="",
    metavar="[ADDRESS]",
    help="Run on the Ray cluster at this address; without an address on that of this machine, else on a new one.",
)
@click.option("--retry", is_flag=True, help="Run failed trials anew.")
def sweep(grid: Path, out: Path | None, workers: int, device: str, ray: str | None, retry: bool) -> None:
    """Train a network for every trial of a grid file.

    A trial is a combination of settings. Each is a run with a folder of its own in the sweep's; all of them are rows of
    table.csv. Whatever stops the sweep, the same command goes on where it was: no finished trial is repeated.
    """
    trials = experiments.read_grid(grid)
    if out is None:
        out = Path("runs") / trials.name
    if ray is None:
        pool = experiments.Processes(workers)
    else:
        pool = experiments.RayTasks(ray)
    rows = experiments.run_sweep(trials, out, pool, retry=retry, device=device)
    click.echo(f"{len(rows)} trials in {out / TABLE}")
    _report_failures(rows)


def _report_failures(rows: list[dict[str, Any]]) -> None:
    """Print why trials failed; raise an error, with which the command ends, if all of them did."""
    failed = [row for row in rows if row["error"]]
    for row in failed:
        click.echo(f"{row['trial']}: {row['error']}", err=True)
    if failed and len(failed) == len(rows):
        raise click.ClickException(f"all {len(rows)} trials failed.")


@app.command()
@options.sweep
@click.option("--by", multiple=True, help="A setting that makes an arm; more than once for more. [default: all varied]")
def table(sweep: Path, by: tuple[str, ...]) -> None:
    """Print a sweep as a table, and write it as table.md.

    A line for each combination of settings but the seed: mean ± deviation over seeds. If the
    grid has a part [choose], only the trials that it has chosen count. While the sweep goes on, the table shows the
    trials that are over.
    """
    grid, rows = experiments.read_sweep(sweep)
    text = experiments.markdown(grid, rows, by)
    write_text(sweep / "table.md", text)
    click.echo(text, nl=False)
    if failed := sum(row["error"] is not None for row in rows):
        click.echo(f"\n{failed} trials failed: the column error of table.csv says why.")
    if (total := grid.total(rows)) > len(rows):
        click.echo(f"\n{total - len(rows)} of {total} trials are not over.")


@app.command()
@options.sweep
@click.option(
    "--over", help="The setting along the axis, and of the panels. [default: layers, or the first that varies]"
)
def figure(sweep: Path, over: str | None) -> None:
    """Draw learning curves and scores of a sweep, as learning.png and scores.png in its folder.

    A curve for each combination of settings but the seed; bands reach from the lowest to the highest seed.
    """
    grid, rows = experiments.read_sweep(sweep)
    for path in experiments.draw(grid, rows, sweep, over):
        click.echo(f"drawn in {path}")


# The initialisation varies; in the last arm the neuron and the images differ, too. Learning rates are those that did
# best on validation among 2e-3, 5e-3 and 1e-2, in benchmarks/study/digits.toml.
DEMO: dict[str, Any] = {
    "name": "demo",
    "test": True,
    "fixed": {"width": 64, "layer_delay": 0},
    "either": [
        {"init": "Default", "lr": 1e-2},
        {"init": "LSC(0.5, rule='hold-threshold', method='scale')", "lr": 1e-2},
        {"init": "FiringRate(0.15)", "lr": 5e-3},
        {"init": "Identity()", "lr": 1e-2},
        {"init": "Identity()", "lr": 2e-3, "cell": "LIF", "tau_v": 50.0, "shift": 1},
    ],
    "budgets": [3, 6],
}
REPORT = """# neurolsc demo

Two layers of {width} neurons on 1,800 spike-latency MNIST digits, {epochs} epochs with the same batches,
each at the learning rate that did best on validation among 0.002, 0.005 and 0.01; scores on 200
validation and 500 test digits, a standard error of 1.5 to 3 points. Made in {seconds:.0f} s.

{table}
*Default*: the paper's initial values, which hardly fire. *LSC*: radii through time and depth set to 0.5, thresholds
fixed. *FiringRate*: thresholds scaled until a layer fires 0.15 spikes per neuron and step; a control: the rate
changes, no radius is set. *Identity*: the upper layer begins by passing on the spikes that it reads. In the last arm
the neuron keeps its voltage for 50 steps and has no recurrence, and training images are moved by up to a pixel.

![learning curves](learning.png)
"""


@app.command()
@click.option("--out", default=Path("runs/demo"), show_default=True, type=options.NEW_FOLDER, help="Folder of all.")
@click.option("--epochs", type=click.IntRange(1), default=12, show_default=True, help="Epochs of every training.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of weights and order, for all.")
@options.workers
def demo(out: Path, epochs: int, seed: int, workers: int) -> None:
    """Compare five initialisations on the digits in the package.

    Networks of two layers are initialised in five ways and trained alike, each at its best learning rate. A table,
    learning curves and a report, in a minute or two. If this is stopped, the same command goes on where it was.
    """
    from neurolsc.plots import plot_learning_curves  # matplotlib is slow to import

    began = time.perf_counter()
    fixed = DEMO["fixed"] | {"epochs": epochs, "patience": epochs, "seed": seed}
    grid = experiments.make_grid(DEMO | {"fixed": fixed})
    click.echo(f"{grid.total()} networks, trained with {workers} processes in {out}")
    rows = experiments.run_sweep(grid, out, experiments.Processes(workers))
    curves = {}
    for trial in grid.trials:
        chosen = trial.settings
        name = chosen["init"]
        if chosen["shift"]:  # the last arm
            name += f", {chosen['cell']}, images moved"
        history = read_history(out / trial.name)
        if history:  # else the trial failed
            curves[name] = history
    title = f"Initialisations of two layers of {fixed['width']} neurons, 1,800 spike-latency MNIST digits, seed {seed}"
    plot_learning_curves(curves, out / "learning.png", chance=0.1, title=title)
    table = experiments.markdown(grid, rows)
    seconds = time.perf_counter() - began
    write_text(out / "report.md", REPORT.format(width=fixed["width"], epochs=epochs, seconds=seconds, table=table))
    click.echo(f"\n{table}\n{seconds:.0f} s. The report with its picture: {out / 'report.md'}")
    _report_failures(rows)
