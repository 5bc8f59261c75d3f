"""The table of a sweep: a row per trial, as CSV, and arms over seeds as Markdown and pictures."""

import itertools
import json
import math
import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

import torch

import neurolsc
from neurolsc import metrics
from neurolsc.diagnosis.losses import objective
from neurolsc.diagnosis.measurements import Batch, measure
from neurolsc.experiment.former import STATISTICS, init_report
from neurolsc.experiment.run import TRAINING, UNFINISHED, Experiment
from neurolsc.interop.prepared import prepare
from neurolsc.io import differences, read_tree, refusing, spread
from neurolsc.network import Network
from neurolsc.stability.indicators import recurrence_radius
from neurolsc.stability.transitions import draw_steps, follow
from neurolsc.surroundings import eval_mode
from neurolsc.tasks import metric_spec

if TYPE_CHECKING:
    from neurolsc.experiment.grid import Grid

Row = dict[str, Any]
TABLE = "table.csv"
BEFORE = "before_training.json"
TEST = "test.json"
FAILED = ".failed.json"  # end of the name of the note that a trial failed
SAMPLES = 32  # training samples on which rates are measured
FEW = 4  # of these, on which derivatives are measured
TIMES = 8  # time steps at which derivatives are measured, drawn at random

# measured while a trial runs


def statistics(network: Network, experiment: Experiment) -> Row:
    """Measure a network before its training: radii, rates, and the measures of diagnose.

    Returns:
        For each measure a list with a number per layer, None where a layer has no such number. They become the columns
        ``init_...`` of the table.
    """
    batch = Batch.of(prepare(network, experiment.first_samples("train", SAMPLES)))
    x = batch.first(FEW)
    steps = len(x)
    seed = experiment.network.seed
    loss = objective(experiment.data.task)
    measured = measure(network, batch, loss, samples=FEW, steps=TIMES, seed=seed, progress=False)
    with eval_mode(network), torch.no_grad():
        spikes = network.run(batch.x, mask=batch.mask).spikes
        times = draw_steps(steps, min(TIMES, steps), torch.Generator().manual_seed(seed))
        transitions, _ = follow(network, x, times)
        recurrence = [recurrence_radius(layer).mean().item() for layer in transitions]
    row: Row = {
        "time_radius": measured.profile.time_mean.tolist(),
        "depth_radius": measured.profile.depth_mean.tolist(),
        "recurrence_radius": recurrence,
        "firing_rate": [],
        "silent_steps": [],
    }
    for z in spikes:
        binary = metrics.is_binary(z)  # the outputs of an integrator or of a GRU are no spikes
        row["firing_rate"].append(metrics.firing_rate(z, batch.mask) if binary else None)
        row["silent_steps"].append(metrics.silent_steps(z, batch.mask) if binary else None)
    for name in (
        "exponent",
        "singular_time",
        "singular_depth",
        "active_surrogate_fraction",
        "similarity_to_input",
        "gradient",
        "noise",
    ):
        values = [getattr(layer, name) for layer in measured.layers]
        # JSON has no NaN and no infinity
        row[name] = [value if value is not None and math.isfinite(value) else None for value in values]
    return row


def environment(device: str = "cpu") -> Row:
    """Return versions of the software, and the kind of machine and device, by name; the machine stays nameless."""
    gpu = device.startswith("cuda") and torch.cuda.is_available()
    return {
        "neurolsc": neurolsc.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "device": torch.cuda.get_device_name(device) if gpu else device,
    }


# a row


def visible(trial: Experiment) -> Row:
    """Return a trial's settings as the table shows them: of a path the last part, as its folders are one machine's."""
    return {name: Path(value).name if name in ("root", "weights") else value for name, value in trial.settings.items()}


def make_row(trial: Experiment, sweep: Path, grid: "Grid") -> Row | None:
    """Return the row of a trial that has finished or failed, else None.

    Its columns are the trial's settings and results; the column ``error`` is None if nothing failed. For a failed
    trial they are its error, and what was measured until then.

    Args:
        trial: the trial.
        sweep: folder of the sweep.
        grid: the grid, whose budgets say after which epochs the score so far is a column.
    """
    folder = sweep / trial.name
    failure = sweep / (trial.name + FAILED)
    task = trial.data.task
    row: Row = {"trial": trial.name, "finished": folder.exists(), "error": None}
    if not row["finished"] and not failure.exists():
        return None
    columns: Row = {}
    try:
        if failure.exists():
            note = _read(failure)
            row["error"] = note["error"]
            columns = note["environment"]
        if not row["finished"]:
            folder = sweep / (trial.name + UNFINISHED)
        elif changed := differences(Experiment.of(folder).settings, trial.settings):
            # the folder's name tells only settings that differ from their defaults, and a default has changed since
            raise ValueError(
                f"{folder.name} was run when defaults were others ({changed}): write these settings into the grid file, "
                "or run it anew by --retry."
            )
        before = {}
        if (folder / BEFORE).exists():
            before = _read(folder / BEFORE)
        reports = [file for file in (init_report(folder), folder / "pretraining.json") if file.exists()]
        columns |= before.get("environment", {})
        columns["init_seconds"] = sum(_read(file)["seconds"] for file in reports)
        for name, value in before.get("statistics", {}).items():
            columns[f"init_{STATISTICS.get(name, name)}"] = value  # by its current name
        if history := read_history(folder):
            with refusing(folder, "damaged: its history is not that of a training"):
                score = f"validation_{task.score}"
                so_far = best_so_far(history)
                best = so_far[-1]
                columns |= {"epochs_run": len(history), "best_epoch": best["epoch"], "train_loss": best["train_loss"]}
                columns |= {f"validation_{name}": best[f"validation_{name}"] for name in ("loss", *task.kinds)}
                at_end = ("share_without_vote", "firing_rate", "silent_steps", "synops")
                columns |= {f"end_{name}": best[name] for name in at_end}
                scores = [epoch[score] for epoch in history]
                if metric_spec(task, task.score).lower_is_better:
                    columns[f"lowest_{score}"] = min(scores)
                else:
                    columns[f"highest_{score}"] = max(scores)
                for epochs in grid.budgets:
                    if epochs <= trial.settings["epochs"]:
                        # if training stopped earlier, the best of all epochs
                        columns[f"after_{epochs}_{score}"] = so_far[:epochs][-1][score]
                columns["train_seconds"] = sum(epoch["seconds"] for epoch in history)
        if (folder / TEST).exists():
            test = _read(folder / TEST)
            names = ("loss", *task.kinds, "share_without_vote", "silent_steps", "synops")
            columns |= {f"test_{name}": test.get(name) for name in names}
    except (ValueError, OSError) as error:  # of a damaged file; the trial's own error comes first
        row["error"] = row["error"] or f"{type(error).__name__}: {error}"
    if row["error"] is not None:  # the paths of this machine are taken out
        row["error"] = row["error"].replace(f"{sweep}{os.sep}", "")
        if (root := trial.data.root) and Path(root).is_absolute():
            row["error"] = row["error"].replace(root, Path(root).name)
    return row | visible(trial) | spread(columns)  # a list, with a number per layer, is a column for each


def read_history(folder: Path) -> list[Row]:
    """Return a run's history, a row per epoch: from its last checkpoint if unfinished, empty without a training."""
    if (folder / "history.json").exists():
        return _read(folder / "history.json")["history"]
    if (folder / TRAINING).exists():
        return read_tree(folder / TRAINING)["history"]
    return []


def best_so_far(history: list[Row]) -> list[Row]:
    """Return for every epoch the row of the epoch with the lowest validation loss so far."""

    def better(best: Row, epoch: Row) -> Row:
        if epoch["validation_loss"] < best["validation_loss"]:
            return epoch
        return best

    return list(itertools.accumulate(history, better))


def _read(path: Path) -> Any:
    with refusing(path, "damaged"):
        return json.loads(path.read_text(encoding="utf-8"))


# arms: means over seeds


@dataclass(frozen=True)
class Arm:
    """Trials that have some settings in common, and mostly differ in their seed alone."""

    settings: Row  # the settings in common, by which arms differ from each other
    rows: tuple[Row, ...]  # of the table, one per trial

    @property
    def finished(self) -> list[Row]:
        """Rows without an error."""
        return [row for row in self.rows if row["error"] is None]

    @property
    def name(self) -> str:
        """The settings in words; "all" if there are none."""
        return ", ".join(f"{name} {shown(value)}" for name, value in self.settings.items()) or "all"

    def values(self, column: str) -> list[float]:
        """Return the values of a column, of the finished trials that have one."""
        return [row[column] for row in self.finished if row.get(column) is not None]


def arms(grid: "Grid", rows: Iterable[Row], by: Sequence[str] = ()) -> list[Arm]:
    """Group the chosen trials into arms, in the order of the grid; an arm with no choice keeps all its trials.

    Args:
        grid: the grid of the sweep.
        rows: its table.
        by: names of the settings that make an arm; by default all that vary, but the seed and the setting
            that is chosen within each arm.

    Returns:
        The arms that have a row.

    Raises:
        ValueError: if a name is not a setting of the trials.
    """
    by = by or grid.arm_settings
    if unknown := [name for name in by if name not in grid.trials[0].settings]:
        raise ValueError(f"there is no setting {', '.join(unknown)}; those that vary are {', '.join(grid.varied)}.")
    rows = list(rows)
    without_choice = grid.without_choice(rows)
    grouped: dict[tuple[Any, ...], list[Row]] = {}
    shown_trials = {row["trial"] for row in rows if row["chosen"]}
    for trial in grid.trials:
        grouped[tuple(visible(trial)[name] for name in by)] = []  # empty ones first: they set the order
        if grid.arm(trial) in without_choice:
            shown_trials.add(trial.name)
    for row in rows:
        if row["trial"] in shown_trials:
            grouped[tuple(row[name] for name in by)].append(row)
    return [Arm(dict(zip(by, values, strict=True)), tuple(group)) for values, group in grouped.items() if group]


def markdown(grid: "Grid", rows: Iterable[Row], by: Sequence[str] = ()) -> str:
    """Return the arms (:func:`arms`) as a table in Markdown: mean ± sample deviation over seeds."""
    score = f"validation_{grid.score}"
    share = grid.measure.share

    # these three functions read `arm`, the variable of the loop below, and return "" if that arm has no value

    def over_seeds(column: str, form: str, factor: float = 1) -> str:
        """Return mean and deviation of a column, times a factor, each in a form such as ``.1f``."""
        values = [factor * value for value in arm.values(column)]
        if not values:
            return ""
        deviation = ""
        if len(values) > 1:
            deviation = f" ± {stdev(values):{form}}"
        return f"{mean(values):{form}}{deviation}"

    def scores(column: str) -> str:
        """Return mean and deviation of a column of scores, in per cent if they are shares."""
        if not share:
            return over_seeds(column, ".4g")
        text = over_seeds(column, ".1f", factor=100)
        return text and f"{text} %"

    def layers(column: str) -> str:
        """Return as text the lowest and the highest of the layers' means over trials."""
        means = []
        while values := arm.values(f"{column}_{len(means) + 1}"):  # columns are numbered from 1
            means.append(mean(values))
        if not means:
            return ""
        ends = dict.fromkeys(f"{value:.2g}" for value in (min(means), max(means)))  # a single one if they are equal
        return " to ".join(ends)

    lines = []
    for arm in arms(grid, rows, by):
        line = {name: shown(value) for name, value in arm.settings.items()}
        if grid.choice is not None:
            chosen = grid.choice.setting
            line[f"{chosen} (chosen)"] = ", ".join(
                dict.fromkeys(shown(row[chosen]) for row in arm.rows if row["chosen"])
            )
        failed = len(arm.rows) - len(arm.finished)
        line["seeds"] = f"{len(arm.rows)} ({failed} failed)" if failed else str(len(arm.rows))
        line |= {f"after {n} epochs": scores(f"after_{n}_{score}") for n in grid.budgets}
        named = "" if share else f" {grid.score}"
        line[f"validation{named}"] = scores(score)
        line[f"test{named}"] = scores(f"test_{grid.score}")
        line["best epoch"] = over_seeds("best_epoch", ".0f")
        line["rate before training"] = layers("init_firing_rate")
        line["at end"] = layers("end_firing_rate")
        line["radius through time"] = layers("init_time_radius")
        line["through depth"] = layers("init_depth_radius")
        line["initialisation, s"] = over_seeds("init_seconds", ".3g")
        line["training, s"] = over_seeds("train_seconds", ".3g")
        lines.append(line)
    titles = []
    if lines:
        titles = [title for title in lines[0] if any(line[title] for line in lines)]  # leaves out empty columns
    cells = [titles, ["---"] * len(titles)]
    for line in lines:
        cells.append([line[title] or "-" for title in titles])
    return "\n".join("| " + " | ".join(row) + " |" for row in cells) + "\n"


def shown(value: Any) -> str:
    """Return a setting as text."""
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def draw(grid: "Grid", rows: Iterable[Row], sweep: Path, over: str | None = None) -> list[Path]:
    """Draw learning.png and scores.png into the folder of a sweep; return their paths.

    Scores are those of the epoch with the lowest validation loss so far. Failed trials are left out.

    Args:
        grid: the grid of the sweep.
        rows: its table.
        sweep: its folder.
        over: the setting along the axis of the scores, with a panel of learning curves for each of its values; by
            default layers, or the first that varies.

    Raises:
        ValueError: if the setting does not vary, or no chosen trial is over.
    """
    from neurolsc.plots import plot_bands, plot_scores  # matplotlib is slow to import

    varied = grid.arm_settings
    column = f"validation_{grid.score}"
    share = grid.measure.share
    if not over:
        if "layers" in varied or not varied:  # where nothing varies, there is one panel and one score
            over = "layers"
        else:
            over = varied[0]
    if varied and over not in varied:
        raise ValueError(f"over must be a setting that varies from arm to arm, {', '.join(varied)}, got {over!r}.")
    rest = [name for name in varied if name != over]
    panels: dict[str, dict[str, list[list[float]]]] = {}
    scores: dict[str, dict[Any, list[float]]] = {}
    for arm in arms(grid, rows, [over, *rest]):
        value = arm.settings[over]
        name = Arm({name: arm.settings[name] for name in rest}, ()).name  # names the other settings in the legend
        if arm.values(column):
            histories = [best_so_far(read_history(sweep / row["trial"])) for row in arm.finished]
            curves = [[epoch[column] for epoch in history] for history in histories]
            panels.setdefault(f"{over} {shown(value)}", {})[name] = curves
            scores.setdefault(name, {})[value] = arm.values(column)
    if not scores:
        raise ValueError("there is nothing to draw: no trial that was chosen is over.")
    settings = grid.trials[0].settings
    common = [f"{name} {shown(settings[name])}" for name in ("cell", "layers", "width") if name not in grid.varied]
    if not {"data", "root"} & set(grid.varied):
        common.append(grid.trials[0].data.title)
    title = f"{grid.name}: {', '.join(common)}"
    score = column.replace("_", " ")
    learning = sweep / "learning.png"
    bands = f"{title}; bands from lowest to highest seed"
    plot_bands(panels, learning, score=f"{score}\nof the best epoch so far", share=share, log=not share, title=bands)
    plot_scores(scores, sweep / "scores.png", over=over, score=score, share=share, title=title)
    return [learning, sweep / "scores.png"]
