"""The grid file: which trials there are, and how one setting is chosen for each arm."""

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from os import PathLike
from statistics import fmean
from typing import Any

from neurolsc.config.data import DataTask
from neurolsc.measure import SHARE, Measure
from neurolsc.sweeps.trial import Trial
from neurolsc.tasks import measure_of
from neurolsc.untrusted.toml import read_toml
from neurolsc.untrusted.words import clean
from neurolsc.validation import meant, one_of

LOSS = "validation_loss"
Arm = tuple[tuple[str, Any], ...]
"""Names and values of the settings that trials of one arm share."""

_KEYS = ("name", "fixed", "grid", "either", "choose", "table", "test")


@dataclass(frozen=True)
class Choice:
    """A setting chosen for each arm, by its best value with one seed, or mean over some."""

    setting: str
    by: str
    """validation_loss, or a measure of the task, such as validation_mode_accuracy"""
    seeds: tuple[int, ...]
    measure: Measure = SHARE
    """what decides, if it is no loss"""

    def best(self, found: Mapping[Trial, float | None]) -> Trial | None:
        """A trial of an arm with the setting's best value, the first of equals; None of none.

        Args:
            found: of the arm's trials with these seeds what decides; None if one failed, and with
                it the setting's value.
        """
        groups: dict[Any, list[Trial]] = {}
        for trial in found:
            groups.setdefault(trial.settings[self.setting], []).append(trial)
        means = {
            group[0]: fmean(values)
            for group in groups.values()
            if len(values := [value for trial in group if (value := found[trial]) is not None]) == len(group)
        }
        sign = -1 if self.by == LOSS or self.measure.lower_is_better else 1
        return max(means, key=lambda trial: sign * means[trial], default=None)


@dataclass(frozen=True)
class Figures:
    """What is told of a learning curve."""

    budgets: tuple[int, ...] = (10, 20, 40)
    """epochs after which the score so far is told"""
    reach: float | None = 0.8
    """validation score whose first epoch is told; None: it is not told"""
    learns: float | None = 0.5
    """validation score that a trial must beat at the best epoch to count as one that learns"""


@dataclass(frozen=True)
class Grid:
    """What a sweep is made of; see :func:`read_grid`."""

    name: str
    fixed: dict[str, Any]
    factors: tuple[tuple[dict[str, Any], ...], ...]
    """of each factor its alternatives; the trials are the product of the factors"""
    choice: Choice | None
    figures: Figures
    given: dict[str, Any]
    """the file's content"""
    test: bool
    """whether chosen trials are scored on the test set"""

    def __repr__(self) -> str:
        return f"Grid({self.name}: {self.total} trials over {', '.join(self.varied) or 'nothing'})"

    @property
    def score(self) -> str:
        """What the task calls its score; that of all trials."""
        return self._task.score

    @property
    def measure(self) -> Measure:
        """What the score is."""
        return measure_of(self._task, self.score)

    @property
    def _task(self) -> DataTask:
        return self.trials[0].experiment.data.task

    @cached_property
    def varied(self) -> tuple[str, ...]:
        """The settings of the factors, in the order of the file."""
        return tuple(dict.fromkeys(name for factor in self.factors for given in factor for name in given))

    @cached_property
    def arm_settings(self) -> tuple[str, ...]:
        """The varied settings that make an arm: all but the seed and the chosen one."""
        left = {"seed"} if self.choice is None else {"seed", self.choice.setting}
        return tuple(name for name in self.varied if name not in left)

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """All points of the product; those of the first seed come first."""
        points = [self.fixed | _joined(combination) for combination in itertools.product(*self.factors)]
        seeds = list(dict.fromkeys(point.get("seed") for point in points))
        return tuple(Trial.of(point) for point in sorted(points, key=lambda point: seeds.index(point.get("seed"))))

    def arm(self, trial: Trial) -> Arm:
        """The arm of a trial."""
        return tuple((name, trial.settings[name]) for name in self.arm_settings)

    @cached_property
    def total(self) -> int:
        """How many trials will have been run in the end, if each arm finds its choice."""
        if self.choice is None:
            return len(self.trials)
        deciding = sum(self._decides(trial) for trial in self.trials)
        return deciding + len({(self.arm(t), t.settings["seed"]) for t in self.trials if not self._decides(t)})

    def wanted(self, found: Mapping[Trial, float | None]) -> dict[Trial, bool]:
        """The trials that are to be run as far as can be said, each with whether it is chosen.

        Without a choice these are all trials, and all are chosen. With one they are those of the
        choosing seeds first, and once all of an arm are found, those of the other seeds with the
        chosen value.

        Args:
            found: of every trial that is over what decides the choice; None if it failed.
        """
        if self.choice is None:
            return dict.fromkeys(self.trials, True)
        setting, chosen = self.choice.setting, set()
        for arm, group in _grouped(filter(self._decides, self.trials), self.arm):
            if all(trial in found for trial in group):
                best = self.choice.best({trial: found[trial] for trial in group})
                chosen |= set() if best is None else {(arm, best.settings[setting])}
        plan = {}
        for trial in self.trials:
            is_chosen = (self.arm(trial), trial.settings[setting]) in chosen
            if is_chosen or self._decides(trial):
                plan[trial] = is_chosen
        return plan

    def _decides(self, trial: Trial) -> bool:
        """Whether a trial has a seed that chooses."""
        return self.choice is not None and trial.settings["seed"] in self.choice.seeds


def read_grid(path: str | PathLike[str]) -> Grid:
    """Read a grid file.

    Tables of the file: ``[fixed]``, settings that all trials share; ``[grid]``, lists of values;
    ``[[either]]`` or ``[[either.NAME]]``, alternatives of several settings at once; ``[choose]``,
    the setting that is chosen for each arm (``setting``, ``by``, ``seeds``); ``[table]``, what is
    told of a learning curve (``budgets``, ``reach``, ``learns``). Keys: ``name``, and ``test``,
    whether chosen trials are scored on the test set, by default those that were chosen.

    Raises:
        ValueError: if the file cannot be read, or is no grid; the message says what is wrong.
    """
    try:
        return make_grid(read_toml(path))
    except ValueError as error:
        told = str(error)
        raise ValueError(told if told.startswith(str(path)) else f"{path}: {told}") from error


def make_grid(given: dict[str, Any]) -> Grid:
    """The grid of what a grid file holds; see :func:`read_grid`.

    Raises:
        ValueError: if it is no grid.
    """
    _known("key", given, _KEYS)
    fixed, lists = _table(given, "fixed"), _table(given, "grid")
    factors = [tuple({name: value} for value in _values(name, values)) for name, values in lists.items()]
    either = given.get("either", [])
    factors += [_alternatives(part) for part in (either.values() if isinstance(either, dict) else [either]) if part]
    settings = [list(fixed), *({name for option in factor for name in option} for factor in factors)]
    everywhere = list(itertools.chain.from_iterable(settings))
    if twice := {name for name in everywhere if everywhere.count(name) > 1}:
        raise ValueError(f"{', '.join(sorted(twice))}: given more than once; fixed, grid or either may hold it, once.")
    name, test = given.get("name", "sweep"), given.get("test", "choose" in given)
    if not isinstance(name, str) or not re.fullmatch(r"[\w.=, -]*\w[\w.=, -]*", name):
        raise ValueError(f"name must be a text that can be a folder's, got {_told(name)}.")
    if not isinstance(test, bool):
        raise ValueError(f"test must be true or false, got {_told(test)}.")
    grid = Grid(name, fixed, tuple(factors), None, Figures(), given, test)
    trials = grid.trials  # a wrong name or value is told here
    if len(scores := dict.fromkeys(trial.experiment.data.task.score for trial in trials)) > 1:
        raise ValueError(f"all trials of a sweep must have one score, got tasks with {', '.join(scores)}.")
    if len(set(trials)) < len(trials):
        raise ValueError("two points of the grid are the same trial: a value or an alternative is given twice.")
    return replace(grid, choice=_choice(given, grid), figures=_figures(_table(given, "table"), grid.measure))


def _choice(given: dict[str, Any], grid: Grid) -> Choice | None:
    if "choose" not in given:
        return None
    told = _table(given, "choose")
    _known("key of [choose]", told, ("setting", "by", "seeds"))
    setting = told.get("setting")
    if setting == "seed" or setting not in grid.varied:
        raise ValueError(f"choose: setting must be one that varies, but not the seed, got {_told(setting)}.")
    task = grid.trials[0].experiment.data.task
    known = (*(f"validation_{name}" for name in task.kinds), LOSS)
    by = one_of("choose: by", told.get("by", f"validation_{task.score}"), known)
    seeds = list(dict.fromkeys(trial.settings["seed"] for trial in grid.trials))
    with_seeds = told.get("seeds", seeds[:1])
    if (
        not isinstance(with_seeds, list)
        or not with_seeds
        or any(type(s) is not int or s not in seeds for s in with_seeds)
    ):
        raise ValueError(f"choose: seeds must be a list of {', '.join(map(str, seeds))}, got {_told(with_seeds)}.")
    return Choice(setting, by, tuple(with_seeds), measure_of(task, by.removeprefix("validation_")))


def _figures(given: dict[str, Any], measure: Measure) -> Figures:
    _known("key of [table]", given, [f.name for f in fields(Figures)])
    budgets = given.get("budgets", list(Figures.budgets))
    if not isinstance(budgets, list) or not all(type(n) is int and n > 0 for n in budgets):
        raise ValueError(f"table: budgets must be a list of numbers of epochs, got {_told(budgets)}.")
    most, wanted = (1.0, "a share from 0 to 1") if measure.share else (math.inf, "a number from 0")
    bounds = {name: given.get(name, getattr(Figures, name) if measure.share else None) for name in ("reach", "learns")}
    for name, bound in bounds.items():
        if bound is None:
            continue  # no number is a good one for every task
        if isinstance(bound, bool) or not isinstance(bound, int | float) or not 0 <= bound <= most:
            raise ValueError(f"table: {name} must be {wanted}, got {_told(bound)}.")
    return Figures(tuple(budgets), **bounds)


def _values(name: str, values: Any) -> list[Any]:
    if not isinstance(values, list) or not values:
        raise ValueError(f"grid: {clean(name)} must be a list of at least one value, got {_told(values)}.")
    return values


def _alternatives(part: Any) -> tuple[dict[str, Any], ...]:
    if not isinstance(part, list) or not part or not all(isinstance(option, dict) for option in part):
        raise ValueError(f"either must be tables of settings, [[either]] or [[either.NAME]], got {_told(part)}.")
    return tuple(part)


def _table(given: dict[str, Any], name: str) -> dict[str, Any]:
    table = given.get(name, {})
    if not isinstance(table, dict):
        raise ValueError(f"{name} must be a table, [{name}], got {_told(table)}.")
    return table


def _known(what: str, given: Iterable[str], known: Sequence[str]) -> None:
    if unknown := [name for name in given if name not in known]:
        told = clean(", ".join(unknown))
        raise ValueError(f"unknown {what} {told}; known are {', '.join(known)}{meant(known, *unknown)}")


def _told(value: Any) -> str:
    return clean(repr(value))


def _joined(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part.items()}


def _grouped(trials: Iterable[Trial], key: Any) -> Iterable[tuple[Arm, list[Trial]]]:
    groups: dict[Arm, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(key(trial), []).append(trial)
    return groups.items()
