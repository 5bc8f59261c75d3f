"""One row of the table: what is told of a trial, read from its folder."""

import itertools
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from neurolsc.config.data import DataTask
from neurolsc.files import read_tree
from neurolsc.identity import differences
from neurolsc.runs import TRAINING, read_settings
from neurolsc.sweeps.grid import Figures
from neurolsc.sweeps.trial import PATHS, Trial
from neurolsc.sweeps.work import AFTER, BEFORE, TEST
from neurolsc.tasks import measure_of
from neurolsc.untrusted.refusal import refusing

Row = dict[str, Any]
START = "start.json"
_OF_A_RUN = ("share_without_vote", "firing_rate", "silent_steps", "synops")
_OF_A_TEST = ("share_without_vote", "silent_steps", "synops")


def make_row(trial: Trial, sweep: Path, figures: Figures) -> Row | None:
    """What is told of a trial that is over, a dictionary without lists; None of another.

    Of a failed one the error is told, and what was found until then.
    """
    failure, folder = trial.failure(sweep), trial.folder(sweep)
    row: Row = {"trial": trial.name, "finished": folder.exists(), "error": None}
    found: Row = {}
    try:
        if failure.exists():
            note = _read(failure)
            row["error"], found = note["error"], _environment(note)
        elif not row["finished"]:
            return None
        if not row["finished"]:
            folder = trial.unfinished(sweep)
        else:
            _check_settings(trial, folder)
        found |= _figures(trial, folder, figures)
    except (ValueError, OSError) as error:
        row["error"] = row["error"] or f"{type(error).__name__}: {error}"
    if row["error"] is not None:
        row["error"] = _without_paths(row["error"], sweep, trial)
    return row | trial.shown() | flat(found)


def flat(values: Row) -> Row:
    """Lists as one entry a layer: name_1, name_2, ..."""
    told: Row = {}
    for name, value in values.items():
        listed = isinstance(value, list)
        told |= {f"{name}_{i}": v for i, v in enumerate(value, start=1)} if listed else {name: value}
    return told


def _figures(trial: Trial, folder: Path, figures: Figures) -> Row:
    before = _read(folder / BEFORE) if (folder / BEFORE).exists() else {}
    told = _environment(before) | {"start_seconds": sum(map(_seconds, (folder / START, folder / "pretraining.json")))}
    told |= {f"start_{name}": value for name, value in before.get("statistics", {}).items()}
    if history := read_history(folder):
        with refusing(folder, "damaged: its history is not that of a training"):
            budgets = [n for n in figures.budgets if n <= trial.settings["epochs"]]
            told |= _of_history(history, budgets, figures, trial.experiment.data.task)
    if (folder / AFTER).exists():
        after = _read(folder / AFTER)
        with refusing(folder / AFTER, "damaged"):
            told |= {f"end_{name}": value for name, value in after["time_constants"].items()}
    if (folder / TEST).exists():
        test = _read(folder / TEST)
        names = ("loss", *trial.experiment.data.task.kinds, *_OF_A_TEST)
        told |= {f"test_{name}": test.get(name) for name in names}
    return told


def read_history(folder: Path) -> list[Row]:
    """The epochs of a finished training, or of one that was not finished."""
    if (folder / "history.json").exists():
        return _read(folder / "history.json")["history"]
    return read_tree(folder / TRAINING)["history"] if (folder / TRAINING).exists() else []


def _of_history(history: list[Row], budgets: Iterable[int], figures: Figures, task: DataTask) -> Row:
    so_far = best_so_far(history)
    best = so_far[-1]
    told: Row = {"epochs_run": len(history), "best_epoch": best["epoch"]}
    told |= {name: best[name] for name in ("train_loss", "validation_loss", *(f"validation_{m}" for m in task.kinds))}
    told |= {f"end_{name}": best[name] for name in _OF_A_RUN}
    score, measure = f"validation_{task.score}", measure_of(task, task.score)
    values = [row[score] for row in history]
    if measure.lower_is_better:
        told[f"lowest_{score}"] = min(values)
    else:
        told[f"highest_{score}"] = max(values)
    told |= {f"after_{n}_{score}": so_far[:n][-1][score] for n in budgets}
    if figures.reach is not None:
        reached = (row["epoch"] for row in history if measure.reaches(row[score], figures.reach))
        told["epochs_to_reach"] = next(reached, None)
    if figures.learns is not None:
        told["learns"] = measure.better(best[score], figures.learns)
    told["train_seconds"] = sum(row["seconds"] for row in history)
    return told


def best_so_far(history: list[Row]) -> list[Row]:
    """After every epoch the row that early stopping would keep: of the lowest validation loss."""
    return list(itertools.accumulate(history, lambda a, b: b if b["validation_loss"] < a["validation_loss"] else a))


def _seconds(path: Path) -> float:
    """What a start or a pre-training took; nothing if there was none."""
    return _read(path)["seconds"] if path.exists() else 0.0


def _environment(told: Row) -> Row:
    return dict(told.get("environment", {}))


def _check_settings(trial: Trial, folder: Path) -> None:
    """Refuse a folder of other settings, whose name is the same: made when defaults were others."""
    if changed := differences(Trial.of(read_settings(folder)).settings, trial.settings):
        raise ValueError(
            f"{folder.name} was run when defaults were others ({changed}): say these settings in the grid file, "
            "use another folder, or run it anew by --retry."
        )


def _without_paths(text: str, sweep: Path, trial: Trial) -> str:
    """A message with names instead of the places where they lie."""
    text = text.replace(f"{sweep}{os.sep}", "")
    for name in PATHS:
        if value := trial.settings[name]:
            text = text.replace(value, Path(value).name)
    return text


def _read(path: Path) -> Any:
    with refusing(path, "damaged"):
        return json.loads(path.read_text(encoding="utf-8"))
