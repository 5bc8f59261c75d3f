"""The command ``neurolsc``: radii, pretrain, train, evaluate, export, demo, data."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import click
from torch import Tensor

from neurolsc import __version__, checkpoint, runs
from neurolsc.config import (
    DataSettings,
    NetworkSettings,
    PretrainSettings,
    Settings,
    TrainSettings,
    as_dict,
    check_names,
    make,
    read_toml,
)
from neurolsc.data_command import data
from neurolsc.datasets import collate, input_batches
from neurolsc.export_command import export_command
from neurolsc.network import Network
from neurolsc.plots import plot_learning_curves, plot_pretraining
from neurolsc.stability import PretrainResult, RadiusProfile, diagnose, pretrain, radius_profile, scale_to_radius
from neurolsc.training import Scores, evaluate, train


class _Group(click.Group):
    """Turns the package's own errors into one line, and leaves the others to Python."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (ValueError, FloatingPointError, OSError) as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__)
def app() -> None:
    r"""Make deep recurrent spiking networks trainable by setting their local stability first.

    A usual day, on the digits that come with the package:

    \b
      neurolsc radii                                  what an untrained network looks like
      neurolsc pretrain --target 0.5 --out runs/half  set its radii
      neurolsc train --target 0.5 --out runs/digits   the same, then train it
      neurolsc evaluate runs/digits                   open the test set, once
      neurolsc export runs/digits --to netx           integers for a neuromorphic chip (reset = static)
      neurolsc demo                                   all of it, with a report
      neurolsc data info train.h5                     what is in a file of spoken words

    Settings come from flags, from a TOML file (--config), and else from the defaults that --help shows. A finished run
    has its own, in settings.toml, which --config takes as it is.
    """


def settings(*kinds: type[Settings]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one flag per setting, and --config; the command gets the settings, one object per kind."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        names = [f.name for kind in kinds for f in dataclasses.fields(kind)]

        def call(**given: Any) -> None:
            values = {name: given.pop(name) for name in names}
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


def _flag(f: dataclasses.Field[Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
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
        known = (NetworkSettings, DataSettings, PretrainSettings, TrainSettings)
        check_names(given, known, str(path))
        mine = {f.name for kind in kinds for f in dataclasses.fields(kind)}
        given = {name: value for name, value in given.items() if name in mine}
        for kind in kinds:
            make(kind, given)  # a wrong value is told here, with its name
        ctx.default_map = dict(ctx.default_map or {}) | given


_out = click.option(
    "--out", required=True, type=click.Path(path_type=Path), help="Folder for the results; must not exist."
)


@app.command()
@settings(NetworkSettings, DataSettings)
@click.option("--samples", default=4, show_default=True, help="Samples measured.")
@click.option("--times", default=24, show_default=True, help="Time steps measured, drawn at random.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for profile.json and profile.png; must not exist.")
def radii(network: NetworkSettings, data: DataSettings, samples: int, times: int, out: Path | None) -> None:
    """Measure the radii of a network's transition derivatives.

    One row per layer: the mean radius through time and through depth, how much the layer fires, and which of four terms
    holds the radius through time: the leaks exp(-1/tau), the reset, the feedback of a spike on the threshold, or the
    recurrent weights.
    """
    net = _network(network, data)
    x = first_batch(data, samples)
    profile = radius_profile(net, x, steps=min(times, x.shape[0]), seed=network.seed, progress=True)
    click.echo(profile)
    for finding in diagnose(net, x, seed=network.seed):
        click.echo(finding)
    if out is not None:
        with runs.run_folder(out, as_dict(network, data)) as folder:
            _write_profile(profile, folder, "profile")


@app.command("pretrain")
@settings(NetworkSettings, DataSettings, PretrainSettings)
@_out
def pretrain_command(network: NetworkSettings, data: DataSettings, before: PretrainSettings, out: Path) -> None:
    """Set the radii of a network, and keep it.

    The folder gets network.safetensors, the radii before and after (JSON and pictures) and the course of pre-training. A
    target that is not reached is reported with the reason; the best network is kept all the same. If this is stopped, the
    same command goes on where it was.
    """
    if before.parsed_target() is None:
        raise click.UsageError("pretrain needs a --target: a number such as 0.5, or balanced.")
    net = _network(network, data)
    with runs.run_folder(out, as_dict(network, data, before)) as folder:
        click.echo(set_radii(net, network.seed, data, before, folder))
        checkpoint.save(net, folder / runs.NETWORK)
        _forget_checkpoints(folder)
    click.echo(f"written to {out}")


@app.command("train")
@settings(NetworkSettings, DataSettings, PretrainSettings, TrainSettings)
@_out
def train_command(
    network: NetworkSettings,
    data: DataSettings,
    before: PretrainSettings,
    training: TrainSettings,
    out: Path,
) -> None:
    """Train a network, after setting its radii if a --target is given.

    Cross-entropy at every time step, AdaBelief in Lookahead, early stopping on the validation loss. The folder gets
    network.safetensors (the best epoch), history.csv and .json, and the learning curves. The test set is not opened:
    neurolsc evaluate does that. If this is stopped, the same command goes on where it was.
    """
    target = before.parsed_target()
    net = _network(network, data)
    with runs.run_folder(out, as_dict(network, data, before, training)) as folder:
        if target is not None:
            click.echo(set_radii(net, network.seed, data, before, folder))
        parts = data.load("train"), data.load("validation")
        runs.write_split(folder, *parts)
        result = train(
            net,
            *parts,
            epochs=training.epochs,
            batch_size=training.batch_size,
            lr=training.lr,
            patience=training.patience,
            seed=network.seed,
            checkpoint=folder / "train.checkpoint",
        )
        result.to_csv(folder / "history.csv")
        result.to_json(folder / "history.json")
        plot_learning_curves({"run": result.history}, folder / "learning.png", chance=1 / net.n_out)
        checkpoint.save(net, folder / runs.NETWORK)
        _forget_checkpoints(folder)
    best = result.best
    click.echo(f"best epoch {result.best_epoch}: validation mode accuracy {best['validation_mode_accuracy']:.1%}")
    click.echo(f"written to {out}")


@app.command("evaluate")
@click.argument("run", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--split", type=click.Choice(["test", "validation"]), default="test", show_default=True)
@click.option("--batch-size", default=256, show_default=True)
def evaluate_command(run: Path, split: str, batch_size: int) -> None:
    """Score a finished run, by default on the test set, and write the scores into its folder.

    Mode accuracy is the paper's: every step votes for its largest logit, and the class with most votes is the answer. A step
    whose largest logits tie does not vote.
    """
    settings_ = runs.read_settings(run)
    data = make(DataSettings, settings_)
    scores = evaluate(checkpoint.load(run / runs.NETWORK), data.load(split), batch_size=batch_size)  # type: ignore[arg-type]
    runs.write_json(run / f"{split}.json", dataclasses.asdict(scores))
    click.echo(scores_table({str(run): scores}))


@app.command("demo")
@click.option("--out", default=Path("runs/demo"), show_default=True, type=click.Path(path_type=Path))
@click.option("--epochs", default=8, show_default=True)
@click.option("--seed", default=0, show_default=True)
def demo_command(out: Path, epochs: int, seed: int) -> None:
    """Show what pre-training does, on the digits in the package: a table, pictures and a report, in a few minutes."""
    from neurolsc.demo import demo

    demo(out, epochs=epochs, seed=seed)


app.add_command(export_command)
app.add_command(data)


def set_radii(net: Network, seed: int, data: DataSettings, before: PretrainSettings, folder: Path) -> PretrainResult:
    """Pre-train a network on its training data, with pictures and JSON in a folder."""
    target = before.parsed_target()
    assert target is not None
    x = first_batch(data, before.pretrain_samples)
    steps = min(before.pretrain_times, x.shape[0])
    profile = folder / "radii_before.json"
    if not profile.exists():  # else this goes on after a stop, and the network to be measured is gone
        _write_profile(radius_profile(net, x, steps=steps, seed=seed), folder, "radii_before")
    batches, rule = input_batches(data.load("train"), 32, seed=seed), before.rule_object()
    if before.method == "scale":
        result = scale_to_radius(
            net, batches[0], target=target, rule=rule, seed=seed, samples=before.pretrain_samples, steps=steps
        )
    else:
        result = pretrain(
            net,
            batches,
            target=target,
            rule=rule,
            seed=seed,
            max_steps=before.pretrain_steps,
            samples=before.pretrain_samples,
            steps=steps,
            checkpoint=folder / "pretrain.checkpoint",
        )
    _write_profile(result.profile, folder, "radii_after")
    runs.write_json(
        folder / "pretraining.json",
        {
            "converged": result.converged,
            "steps": result.steps,
            "seconds": result.seconds,
            "findings": [str(finding) for finding in result.findings],
            "history": result.history,
        },
    )
    if before.method == "gradient":
        plot_pretraining(result.history, result.profile.target, folder / "pretraining.png")
    return result


def first_batch(data: DataSettings, samples: int) -> Tensor:
    """The inputs of the first training samples (T, B, n_in)."""
    dataset = data.load("train")
    return collate(dataset.__getitems__(range(min(samples, len(dataset)))))[0]


def scores_table(rows: dict[str, Scores]) -> str:
    """Scores as text, a line each."""
    width = max(map(len, rows), default=0)
    lines = [
        f"{'':{width}}  mode acc.  mean acc.  loss   no vote  silent last layer  spikes/neuron/step    synops/sample"
    ]
    for name, s in rows.items():
        rates = " ".join(f"{rate:.4f}" for rate in s.firing_rate)
        lines.append(
            f"{name:{width}}  {s.mode_accuracy:>8.1%}  {s.mean_accuracy:>8.1%}  {s.loss:.3f}  {s.share_without_vote:>6.1%}"
            f"  {s.silent_steps:>17.1%}  {rates:<20}  {s.synops:>13,.0f}"
        )
    return "\n".join(lines)


def _network(network: NetworkSettings, data: DataSettings) -> Network:
    dataset = data.load("train")
    return network.build(dataset.n_in, dataset.n_classes)


def _write_profile(profile: RadiusProfile, folder: Path, name: str) -> None:
    runs.write_json(folder / f"{name}.json", profile.to_dict())
    profile.plot(folder / f"{name}.png")


def _forget_checkpoints(folder: Path) -> None:
    for file in folder.glob("*.checkpoint"):
        file.unlink()
