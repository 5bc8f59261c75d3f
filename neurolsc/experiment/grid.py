"""The grid file of a sweep: its trials, and how one setting is chosen for each arm."""

import itertools
import re
from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from statistics import fmean
from typing import Any

from neurolsc.experiment.config import check_names, setting_names
from neurolsc.experiment.former import read_settings
from neurolsc.experiment.run import Experiment
from neurolsc.io import clean
from neurolsc.metrics import MetricSpec
from neurolsc.tasks import metric_spec
from neurolsc.validation import one_of


@dataclass(frozen=True)
class Choice:
    """A setting chosen for each arm, by its best mean score over some seeds."""

    setting: str
    by: str  # validation_loss, or a measure of the task, such as validation_mode_accuracy
    seeds: tuple[int, ...]
    lower_is_better: bool

    def best(self, scores: Mapping[Experiment, float | None]) -> Any:
        """Return the value of the setting with the best mean score, the first one of equal means.

        Args:
            scores: the score of every deciding trial of an arm; None if it failed.

        Returns:
            The value; None if every value of the setting has a failed trial.
        """
        by_value: dict[Any, list[Any]] = {}
        for trial, score in scores.items():
            by_value.setdefault(trial.settings[self.setting], []).append(score)
        means = {value: fmean(of_seeds) for value, of_seeds in by_value.items() if None not in of_seeds}
        sign = -1 if self.lower_is_better else 1
        return max(means, key=lambda value: sign * means[value], default=None)


@dataclass(frozen=True)
class Grid:
    """The trials of a sweep; see :func:`read_grid`.

    Attributes:
        name: name of the sweep.
        content: content of the grid's file.
        fixed: settings that all trials share.
        factors: alternatives of each factor; the trials are their product.
        test: score chosen trials on the test set.
        choice: how each arm chooses the value of a setting; None: all trials are run.
        budgets: epochs after which the score so far is a column of the table.
    """

    name: str
    content: dict[str, Any]
    fixed: dict[str, Any]
    factors: tuple[tuple[dict[str, Any], ...], ...]
    test: bool
    choice: Choice | None = None
    budgets: tuple[int, ...] = (10, 20, 40)

    def __repr__(self) -> str:
        return f"Grid({self.name}: {self.total()} trials over {', '.join(self.varied) or 'nothing'})"

    @property
    def score(self) -> str:
        """Name of the task's score."""
        return self.trials[0].data.task.score

    @property
    def measure(self) -> MetricSpec:
        """The specification of the score."""
        return metric_spec(self.trials[0].data.task, self.score)

    @cached_property
    def varied(self) -> tuple[str, ...]:
        """The settings of the factors, in the order of the file."""
        return tuple(dict.fromkeys(name for factor in self.factors for option in factor for name in option))

    @cached_property
    def arm_settings(self) -> tuple[str, ...]:
        """The varied settings that make an arm: all but the seed and the chosen one."""
        others = ["seed"]
        if self.choice:
            others.append(self.choice.setting)
        return tuple(name for name in self.varied if name not in others)

    @cached_property
    def trials(self) -> tuple[Experiment, ...]:
        """All combinations of the factors' alternatives; those of the first seed come first.

        Raises:
            ValueError: if a name is no setting, or a value has the wrong type or is out of range.
        """
        points = [dict(ChainMap(*options, self.fixed)) for options in itertools.product(*self.factors)]
        check_names([name for point in points for name in point], setting_names(), "setting")
        seeds = list(dict.fromkeys(point.get("seed") for point in points))
        points.sort(key=lambda point: seeds.index(point.get("seed")))
        return tuple(map(Experiment.from_settings, points))

    def arm(self, trial: Experiment) -> tuple[Any, ...]:
        """Return the values of a trial's arm settings."""
        return tuple(trial.settings[name] for name in self.arm_settings)

    def total(self, rows: Iterable[Mapping[str, Any]] = ()) -> int:
        """Return the number of trials that the whole sweep runs.

        Args:
            rows: the table so far. An arm is the trials that differ only in seed and chosen value. An arm for which the
                table shows that no value can be chosen (:meth:`without_choice`) runs no further seeds. Every other arm
                is counted as if a value will be chosen.
        """
        if self.choice is None:
            return len(self.trials)
        without_choice = self.without_choice(rows)
        deciding = 0
        others = set()
        for trial in self.trials:
            seed = trial.settings["seed"]
            arm = self.arm(trial)
            if seed in self.choice.seeds:
                deciding += 1
            elif arm not in without_choice:
                others.add((arm, seed))  # a single trial, with the chosen value, not one trial for each value
        return deciding + len(others)

    def _deciding(self) -> dict[tuple[Any, ...], list[Experiment]]:
        """Return, for each arm, the trials with the seeds by which a value of the chosen setting is picked.

        Trials of an arm differ in that setting and in their seed. Empty for a grid without a choice.
        """
        arms: dict[tuple[Any, ...], list[Experiment]] = {}
        if self.choice is not None:
            for trial in self.trials:
                if trial.settings["seed"] in self.choice.seeds:
                    arms.setdefault(self.arm(trial), []).append(trial)
        return arms

    def without_choice(self, rows: Iterable[Mapping[str, Any]]) -> set[tuple[Any, ...]]:
        """Return the arms for which no value can be chosen, as every value of the setting has a failed trial.

        Args:
            rows: the table so far. An arm is judged once all its deciding trials are in the table.
        """
        is_chosen = {row["trial"]: row["chosen"] for row in rows}
        arms = set()
        for arm, trials in self._deciding().items():
            chosen = [is_chosen.get(trial.name) for trial in trials]  # None: the trial is not over yet
            if None not in chosen and not any(chosen):
                arms.add(arm)
        return arms

    def wanted(self, scores: Mapping[Experiment, float | None]) -> dict[Experiment, bool]:
        """Return the trials to be run, as far as they are known by now, each with True if it is chosen.

        Without a choice these are all trials, and all are chosen. With a choice these are the deciding trials, and once
        all deciding trials of an arm are over, also the trials of the other seeds with the chosen value.

        Args:
            scores: the score of every trial that is over; None if it failed.
        """
        if self.choice is None:
            return dict.fromkeys(self.trials, True)
        chosen = {}
        for arm, trials in self._deciding().items():
            if all(trial in scores for trial in trials):
                chosen[arm] = self.choice.best({trial: scores[trial] for trial in trials})
        plan = {}
        for trial in self.trials:
            best = chosen.get(self.arm(trial))  # None: not decided yet, or all values have failed
            is_chosen = best is not None and trial.settings[self.choice.setting] == best
            if is_chosen or trial.settings["seed"] in self.choice.seeds:
                plan[trial] = is_chosen
        return plan


def read_grid(path: str | PathLike[str]) -> Grid:
    """Read a grid file.

    Tables of the file: ``[fixed]``, settings that all trials share; ``[grid]``, lists of values; ``[[either]]`` or
    ``[[either.NAME]]``, alternatives of several settings at once; ``[choose]``, a setting to be chosen for each arm
    (``setting``, ``by``, ``seeds``). Keys: ``name``; ``test``: score chosen trials on the test set, by default if
    there is a ``[choose]``; ``budgets``: epochs after which the score is a column of the table.

    Raises:
        ValueError: if the file cannot be read, or is no grid; the message names the file.
    """
    content = read_settings(path)
    try:
        return make_grid(content)
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not the grid of a sweep: {error}") from error


def make_grid(content: dict[str, Any]) -> Grid:
    """Make a grid from the content of a grid file, as :func:`read_grid` describes it.

    Raises:
        ValueError: if the content is no grid.
        TypeError, AttributeError: if a value has another kind, such as a number in the place of a table.
    """

    def require(fits: bool, wanted: str, value: object) -> None:
        if not fits:
            raise ValueError(f"{wanted}, got {clean(repr(value))}.")

    check_names(content, ("name", "fixed", "grid", "either", "choose", "test", "budgets"), "key")
    for key in ("fixed", "grid", "choose"):
        require(isinstance(content.get(key, {}), dict), f"{key} must be a table of settings", content.get(key))
    name = content.get("name", "sweep")
    test = content.get("test", "choose" in content)
    # no "/"; and not dots alone
    fits = isinstance(name, str) and re.fullmatch(r"[\w.=, -]*\w[\w.=, -]*", name) is not None
    require(fits, "name must be a text that can be a folder's", name)
    require(isinstance(test, bool), "test must be true or false", test)
    budgets = content.get("budgets", Grid.budgets)
    good = isinstance(budgets, list | tuple) and all(type(n) is int and n > 0 for n in budgets)
    require(good, "budgets must be a list of numbers of epochs", budgets)
    fixed = content.get("fixed", {})
    factors = []
    for setting, values in content.get("grid", {}).items():
        good = isinstance(values, list) and bool(values)
        require(good, f"grid: {clean(setting)} must be a list of at least one value", values)
        factors.append(tuple({setting: value} for value in values))
    either = content.get("either", [])
    # [[either.NAME]] is a table of lists, [[either]] one list
    for alternatives in either.values() if isinstance(either, dict) else [either]:
        good = isinstance(alternatives, list) and all(isinstance(option, dict) for option in alternatives)
        require(good, "either must be tables [[either]] or [[either.NAME]]", alternatives)
        if alternatives:
            factors.append(tuple(map(dict, alternatives)))
    # a setting that stood in two places would have two values in one trial
    names_of_factors = [{name for option in factor for name in option} for factor in factors]
    places = [set(fixed), *names_of_factors]
    if twice := {name for place, other in itertools.combinations(places, 2) for name in place & other}:
        raise ValueError(f"{', '.join(sorted(twice))}: more than once in fixed, grid and either.")

    grid = Grid(name, content, fixed, tuple(factors), test, budgets=tuple(budgets))  # with its choice at the end
    scores = dict.fromkeys(trial.data.task.score for trial in grid.trials)
    if len(scores) > 1:
        raise ValueError(f"all trials of a sweep must have one score, got tasks with {', '.join(scores)}.")
    if len(set(grid.trials)) < len(grid.trials):
        raise ValueError("two points of the grid are the same trial: a value or an alternative stands there twice.")
    if not (choose := content.get("choose", {})):
        return grid
    check_names(choose, ("setting", "by", "seeds"), "key of [choose]")
    setting = choose.get("setting")
    task = grid.trials[0].data.task
    varies = setting != "seed" and setting in grid.varied
    require(varies, "choose: setting must be one that varies, but not the seed", setting)
    lower = {f"validation_{name}": metric_spec(task, name).lower_is_better for name in task.kinds}
    lower["validation_loss"] = True
    by = one_of("choose: by", choose.get("by", f"validation_{task.score}"), tuple(lower))
    known = list(dict.fromkeys(trial.settings["seed"] for trial in grid.trials))  # seeds of the grid
    seeds = choose.get("seeds", known[:1])
    good = isinstance(seeds, list) and bool(seeds) and all(seed in known for seed in seeds)
    require(good, f"choose: seeds must be a list of {known}", seeds)
    return replace(grid, choice=Choice(setting, by, tuple(seeds), lower[by]))
