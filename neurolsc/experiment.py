"""Settings in, a run folder out: what commands, demo, benchmarks and sweeps call."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from neurolsc import checkpoint
from neurolsc.config import (
    KINDS,
    DataSettings,
    NetworkSettings,
    PretrainSettings,
    StartSettings,
    TrainSettings,
    as_dict,
    make,
)
from neurolsc.datasets import Pixels, Words, collate, input_batches
from neurolsc.datasets.batches import fetch
from neurolsc.datasets.splits import who_is_where
from neurolsc.devices import usable
from neurolsc.diagnosis import Diagnosis, diagnose, try_cures
from neurolsc.evaluation import Scores, evaluate
from neurolsc.frames import stretch
from neurolsc.initialisers import StartReport
from neurolsc.network import Network
from neurolsc.runs import (
    NETWORK,
    PRETRAINING,
    START,
    TRAINING,
    read_settings,
    run_folder,
    write_json,
    write_split,
    write_text,
)
from neurolsc.stability import PretrainResult, RadiusProfile, radius_profile
from neurolsc.stability.findings import Finding
from neurolsc.tasks import Classification
from neurolsc.training import TrainResult


@dataclass(frozen=True)
class Outcome:
    """What a run left besides its files."""

    network: Network
    pretraining: PretrainResult | None
    training: TrainResult | None


@dataclass(frozen=True)
class Experiment:
    """What a run is made of, and the run itself."""

    network: NetworkSettings
    data: DataSettings
    pretraining: PretrainSettings | None = None
    """None, or one whose target is 'none': radii are left as they are"""
    training: TrainSettings | None = None
    """None: the network is not trained"""
    start: StartSettings = StartSettings()
    """how the network is set before the other two; see `beginning`"""
    device: str = "cpu"
    """where it runs, as torch calls it; no part of what the run is, nor of its settings"""

    @classmethod
    def of(cls, run: str | PathLike[str], *, device: str = "cpu") -> "Experiment":
        """The experiment of a finished run; what its settings lack takes its default.

        Raises:
            ValueError: if the folder is not that of a finished run.
        """
        given = read_settings(run)
        return cls(*(make(kind, given) for kind in KINDS), device=device)

    @property
    def sets_radii(self) -> bool:
        """Whether the radii are set, to a target."""
        return self.pretraining is not None and self.pretraining.parsed_target() is not None

    @property
    def beginning(self) -> StartSettings:
        """The start that is given.

        Else it is Relay(), but Default where weights are read, radii are set, or the cell does not
        say what Relay would have to know.
        """
        if self.start.start:
            return self.start
        left = self.sets_radii or self.network.weights or not self.network.can_be_set
        return StartSettings("Default" if left else "Relay()")

    @property
    def title(self) -> str:
        """Network, data and seed in one line, for pictures."""
        given = self.network
        cell = given.cell.rpartition(":")[2]
        network = (
            f"network of {Path(given.weights).name}" if given.weights else f"{given.layers} x {given.width} {cell}"
        )
        return f"{network}, {self.data.title}, seed {given.seed}"

    def settings(self) -> dict[str, Any]:
        """All settings as one flat dictionary, as they stand in a run folder.

        Raises:
            FileNotFoundError: if the file of weights is not there.
        """
        parts = (self.network.noted(), self.data, self.pretraining, self.training, self.beginning)
        return as_dict(*(part for part in parts if part is not None))

    def build(self) -> Network:
        """The network before anything is done to it; its weights are the same on every device.

        Raises:
            ValueError: if torch cannot use the device, the network of a file reads other data, or
                the data last one step and no layer would see them in it.
        """
        training = self.data.load("train")
        words = training.n_words if isinstance(training, Words) else None
        network = self.network.build(training.n_in, training.n_classes, words)
        if words is None and network.n_in != training.n_in:
            raise ValueError(
                f"the network of {self.network.weights} reads {network.n_in} inputs, and data = {self.data.data} have "
                f"{training.n_in}: give the data that it was made for."
            )
        if isinstance(training, Pixels) and network.layer_delay:
            raise ValueError(
                f"data = {self.data.data} last one step, in which no layer reads the one below unless layer_delay = 0."
            )
        return self.placed(network)

    def placed(self, network: Network) -> Network:
        """A network, moved to the device.

        Raises:
            ValueError: if torch cannot use it.
        """
        return network.to(usable(self.device))

    def first_samples(self, split: Literal["train", "validation"], count: int) -> tuple[Tensor, ...]:
        """The first samples of a split: x (T, B, n_in), labels (B,), a mask if lengths differ."""
        dataset = self.data.load(split)
        return collate(fetch(dataset, range(min(count, len(dataset)))))

    def first_inputs(self, split: Literal["train", "validation"], count: int) -> Tensor:
        """Their inputs x alone, as long as the shortest of them lasts."""
        x, _, *mask = self.first_samples(split, count)
        return stretch(x, 0, int(mask[0].sum(0).min())) if mask else x

    def run(
        self,
        out: str | PathLike[str],
        *,
        say: Callable[[object], object] = lambda _: None,
        look: Callable[[Network, Path], object] = lambda *_: None,
        look_back: Callable[[Network, Path], object] = lambda *_: None,
        progress: bool = True,
    ) -> Outcome:
        """Build the network, start it, set its radii, train it, and keep all of that in a folder.

        A run that was stopped goes on where it was: :func:`neurolsc.runs.run_folder`.

        Args:
            out: the folder; must not exist.
            say: called with the findings of the start, one by one, and with the result of
                pre-training, before the training.
            look: called with the network before the training, and the folder of the unfinished run.
            look_back: the same after the training.
            progress: show bars.

        Raises:
            FileExistsError: if the folder is there.
            BlockingIOError: if another process is at work there.
            ValueError: if a setting is wrong, an unfinished run has other settings, or its file of
                weights has another content.
            FileNotFoundError: if the file of weights is not there.
            FloatingPointError: if the loss becomes NaN or infinite; the best network until then is
                left in the unfinished run.
        """
        pretraining = training = None
        noted = replace(self, network=self.network.noted())  # the file may change between the next two lines
        with run_folder(out, noted.settings(), say) as folder:
            noted.check(say)
            network = noted.started(folder, say)
            if self.training is not None:
                self.training.conditioning.check(network)
            if self.pretraining is not None and self.pretraining.parsed_target() is not None:
                pretraining = self.set_radii(network, self.pretraining, folder, progress=progress)
                say(pretraining)
            look(network, folder)
            if self.training is not None:
                training = self._train_or_leave_best(network, self.training, folder, progress)
            look_back(network, folder)
            checkpoint.save(network, folder / NETWORK)
        return Outcome(network, pretraining, training)

    def check(self, say: Callable[[object], object] = lambda _: None) -> None:
        """Refuse, before any work, a device that cannot be used and data that cannot be read.

        Args:
            say: called with the speakers that are held out, if they are.
        """
        usable(self.device)
        if self.training is not None:
            training, validation = self.data.load("train"), self.data.load("validation")
            if self.data.split_by == "speaker":
                say(who_is_where(training, validation))

    def begin(self) -> tuple[Network, tuple[Finding, ...]]:
        """A fresh network after its start, and what that could not reach.

        Raises:
            TypeError: if its cells lack what the start needs.
        """
        network = self.build()
        if self.beginning.start == "Default":
            return network, ()
        return network, self.beginning.run(network, self._inputs(), self.network.seed)

    def started(self, folder: Path, say: Callable[[object], object]) -> Network:
        """The network as the training finds it, with what the start could not reach in a folder.

        What a start has set is kept there, and taken from there if the run was stopped.
        """
        if self.beginning.start == "Default":
            return self.build()
        kept, told = folder / START, folder / "start.json"
        if kept.exists():
            network = self.placed(self.network.load(kept))
        else:
            began = time.perf_counter()
            network, found = self.begin()
            seconds = time.perf_counter() - began
            lines = str(found).splitlines() if isinstance(found, StartReport) else [str(f) for f in found]
            write_json(told, {"start": self.beginning.start, "seconds": seconds, "findings": lines})
            checkpoint.save(network, kept)
        for finding in json.loads(told.read_text())["findings"]:
            say(finding)
        return network

    def _inputs(self) -> list[Tensor]:
        """The batches that a start and the pre-training look at."""
        return input_batches(self.data.load("train"), 32, seed=self.network.seed)

    def _train_or_leave_best(
        self, network: Network, settings: TrainSettings, folder: Path, progress: bool
    ) -> TrainResult:
        try:
            return self.train(network, settings, folder, progress=progress)
        except FloatingPointError as error:
            checkpoint.save(network, folder / NETWORK)
            raise FloatingPointError(f"{error} They are kept in {folder / NETWORK}.") from error

    def set_radii(
        self, network: Network, settings: PretrainSettings, folder: Path, *, progress: bool = True
    ) -> PretrainResult:
        """Pre-train a network on the training data, with pictures and JSON in a folder."""
        seed = self.network.seed
        if not (folder / "radii_before.json").exists():  # else this goes on after a stop
            x = self.first_inputs("train", settings.pretrain_samples)
            steps = min(settings.pretrain_times, x.shape[0])
            before = radius_profile(network, x, steps=steps, seed=seed, progress=None if progress else False)
            write_profile(before, folder / "radii_before", f"{self.title}, before pre-training")
        result = settings.run(network, self._inputs(), seed=seed, checkpoint=folder / PRETRAINING, progress=progress)
        write_profile(result.profile, folder / "radii_after", f"{self.title}, after pre-training")
        told = {name: getattr(result, name) for name in ("converged", "steps", "seconds")}
        told |= {"findings": [str(finding) for finding in result.findings], "history": result.history}
        write_json(folder / "pretraining.json", told)
        if settings.method != "scale":
            result.plot(folder / "pretraining.png", title=self.title)
        return result

    def train(self, network: Network, settings: TrainSettings, folder: Path, *, progress: bool = True) -> TrainResult:
        """Train a network, with its history, learning curves and a checkpoint in a folder."""
        parts = self.data.load("train"), self.data.load("validation")
        write_split(folder, *parts)
        where = folder / TRAINING
        result = settings.run(
            network, *parts, seed=self.network.seed, task=self.data.task, checkpoint=where, progress=progress
        )
        result.to_csv(folder / "history.csv")
        result.to_json(folder / "history.json")
        radii = f", radii set to {self.pretraining.target}" if self.pretraining and self.sets_radii else ""
        title = f"{self.title}, start {self.beginning.start}{radii}"
        chance = 1 / network.n_out if isinstance(self.data.task, Classification) else None
        result.plot(folder / "learning.png", chance=chance, title=title)
        return result


def load_network(run: str | PathLike[str], *, device: str = "cpu") -> Network:
    """The network of a finished run, also one of a cell named package.module:Class.

    Raises:
        ValueError: if the folder is not that of a finished run, or torch cannot use the device.
    """
    experiment = Experiment.of(run, device=device)
    return experiment.placed(experiment.network.load(Path(run) / NETWORK))


def score(
    run: str | PathLike[str], split: Literal["test", "validation"], *, batch_size: int = 256, device: str = "cpu"
) -> Scores:
    """Score a finished run, and write the scores into its folder.

    Raises:
        ValueError: if the folder is not that of a finished run, or torch cannot use the device.
    """
    settings, network = Experiment.of(run).data, load_network(run, device=device)
    scores = evaluate(network, settings.load(split), task=settings.task, batch_size=batch_size)
    write_json(Path(run) / f"{split}.json", scores.to_dict())
    return scores


def diagnose_run(run: str | PathLike[str], *, samples: int = 64, cures: bool = False) -> Diagnosis:
    """Look at the network of a finished run with samples drawn from its training split.

    Classes are looked for in the labels of the whole split, the learning rate is that of the run,
    and its history is read if it was trained.

    Args:
        run: the folder.
        samples: how many to draw, by the run's seed.
        cures: try the cure of every finding as well.

    Raises:
        ValueError: if the folder is not that of a finished run.
    """
    experiment, network = Experiment.of(run), load_network(run)
    data, seed = experiment.data.load("train"), experiment.network.seed
    drawn = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:samples]
    batch = collate(fetch(data, drawn.tolist()))
    history = Path(run) / "history.json"
    rows = json.loads(history.read_text(encoding="utf-8"))["history"] if history.exists() else []
    lr = (experiment.training or TrainSettings()).lr
    task = experiment.data.task
    labels = getattr(data, "labels", None)  # music has none
    found = diagnose(network, batch, task=task, labels=labels, history=rows, lr=lr, seed=seed)
    return replace(found, trials=try_cures(network, batch, found, task=task, lr=lr)) if cures else found


def write_diagnosis(diagnosis: Diagnosis, folder: Path, title: str) -> None:
    """Write a diagnosis into a folder as text, as a picture and as JSON, which comes last."""
    write_text(folder / "diagnosis.txt", f"{diagnosis}\n")
    diagnosis.plot(folder / "diagnosis.png", title=title)
    write_json(folder / "diagnosis.json", diagnosis.to_dict())


def write_profile(profile: RadiusProfile, path: Path, title: str) -> None:
    """Write a profile as a picture and as JSON, whose suffixes are added to the path; JSON last."""
    profile.plot(path.with_name(f"{path.name}.png"), title=title)
    write_json(path.with_name(f"{path.name}.json"), profile.to_dict())
