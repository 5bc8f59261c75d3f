"""The training loop: a task's loss, early stopping, and checkpoints that survive a kill."""

import csv
import hashlib
import io
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from neurolsc.conditioning import Conditioning
from neurolsc.datasets.augment import drawn_from
from neurolsc.display import Displayed, Table
from neurolsc.evaluation import Data, Scores, batches, evaluate, rates
from neurolsc.files import atomic_write, write_tree
from neurolsc.fit import Fit, Row
from neurolsc.identity import of_data, of_network
from neurolsc.locks import alone_if
from neurolsc.measure import SHARE, Measure
from neurolsc.network import Network, as_network
from neurolsc.optimizer import adabelief_lookahead, parameter_groups
from neurolsc.progress import progress_bar
from neurolsc.schedule import Constant, Cosine, FromTorch, Schedule
from neurolsc.tasks import Classification, Task, measure_of
from neurolsc.validation import positive, whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PAPER", "Scores", "TrainResult", "evaluate", "train"]

PAPER: dict[str, Any] = {
    "batch_size": 256,
    "lr": 1e-3,
    "by_gain": False,
    "schedule": Constant(),
    "optimizer": adabelief_lookahead,
    "conditioning": Conditioning(),
}
"""The paper's training (arXiv:2308.12075, Sec. II-G), as keywords of :func:`train`: AdaBelief in
Lookahead at one learning rate, gradients as they are."""


@dataclass(frozen=True, repr=False)
class TrainResult(Displayed):
    """What :func:`train` returns; the network itself carries the weights of the best epoch."""

    history: list[Row]
    """one row per epoch: epoch (from 1), train_loss and the task's score (means while the weights
    move; train_mode_accuracy), validation_loss and the task's measures (validation_mode_accuracy,
    validation_mean_accuracy), then of the validation samples as in :class:`Scores`
    share_without_vote, firing_rate, silent_steps and synops, and seconds"""
    best_epoch: int
    """epoch with the lowest validation loss, counted from 1"""
    stopped_early: bool
    """whether the patience ran out"""
    measure: Measure = SHARE
    """what the score is"""

    @property
    def best(self) -> Row:
        """The row of the best epoch."""
        return self.history[self.best_epoch - 1]

    @property
    def findings(self) -> tuple[str, ...]:
        """What looks wrong in the course of it, and what to try: a loss that only grows."""
        losses = [row["train_loss"] for row in self.history]
        if len(losses) < 3 or min(losses[1:]) <= losses[0]:
            return ()
        return (
            f"the training loss only grew, from {losses[0]:.3g} in epoch 1 to {losses[-1]:.3g} in epoch {len(losses)}: "
            "lower the learning rate, or set the radii first (neurolsc.pretrain).",
        )

    @property
    def score(self) -> str:
        """What the task calls its score."""
        names = (name.removeprefix("train_") for name in self.history[0] if name.startswith("train_"))
        return next(name for name in names if name != "loss")

    def plot(
        self, path: str | PathLike[str] | None = None, *, chance: float | None = None, title: str = ""
    ) -> "Figure":
        """Draw validation loss, score and firing rate of the last layer over the epochs.

        Args:
            path: a file to write as well, whose suffix chooses the format.
            chance: the score of a guess.
            title: of the whole.

        Returns:
            The figure, which a notebook shows.
        """
        from neurolsc.plots import plot_learning_curves  # matplotlib is slow to import and few runs draw

        return plot_learning_curves(
            {"": self.history}, path, chance=chance, score=self.score, share=self.measure.share, title=title
        )

    def parts(self) -> list[str | Table]:
        """What is shown: how it ended, its first, best and last epoch, and what looks wrong."""
        score, ended = self.score, "stopped early" if self.stopped_early else "all run"
        seconds = sum(row["seconds"] for row in self.history)
        rows = []
        for epoch in sorted({1, self.best_epoch, len(self.history)}):
            row = self.history[epoch - 1]
            losses = [f"{row[f'{of}_loss']:.3f}" for of in ("train", "validation")]
            scores = [self.measure.text(row[f"{of}_{score}"]) for of in ("train", "validation")]
            rows.append((str(epoch), *losses, *scores, rates(row["firing_rate"])))
        name = score.replace("_", " ")
        head = ("epoch", "train loss", "validation loss", f"train {name}", f"validation {name}", "spikes/neuron/step")
        told = f"best epoch {self.best_epoch} of {len(self.history)}, {ended}, {seconds:.1f} s"
        return [told, Table(head, rows), *self.findings]

    def to_json(self, path: str | PathLike[str]) -> None:
        """Write history, best epoch and whether it stopped early as JSON.

        Raises:
            OSError: if the file cannot be written.
        """
        told = {name: getattr(self, name) for name in ("history", "best_epoch", "stopped_early")}
        text = json.dumps(told, indent=2, allow_nan=False) + "\n"
        atomic_write(path, lambda file: file.write(text.encode()))

    def to_csv(self, path: str | PathLike[str]) -> None:
        """Write the history as a table; rates of layers are firing_rate_1, firing_rate_2, ...

        Raises:
            OSError: if the file cannot be written.
        """
        rows = []
        for row in self.history:
            rates = {f"firing_rate_{i}": rate for i, rate in enumerate(row["firing_rate"], start=1)}
            rows.append({key: value for key, value in row.items() if key != "firing_rate"} | rates)
        text = io.StringIO()
        writer = csv.DictWriter(text, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        atomic_write(path, lambda file: file.write(text.getvalue().encode()))


def train(
    network: Network,
    training: Data,
    validation: Data,
    *,
    epochs: int,
    task: Task = Classification(),
    batch_size: int = 32,
    lr: float = 5e-3,
    patience: int = 10,
    seed: int = 0,
    by_gain: bool = True,
    schedule: Schedule | FromTorch = Cosine(),
    optimizer: Callable[[Iterable[Any], float], Optimizer] = torch.optim.Adam,
    conditioning: Conditioning = Conditioning(clip_gradient=1.0, centralize=True),
    average_from: int | None = None,
    checkpoint: str | PathLike[str] | None = None,
    progress: bool = True,
    on_epoch: Callable[[Sequence[Row]], object] | None = None,
) -> TrainResult:
    r"""Train a network in place, with early stopping on the validation loss.

    All that is random in an epoch, the order of the samples and dropout, is drawn from (seed,
    epoch) alone. On a CPU a run that was killed and resumed ends in the very weights of one that
    was not, bit by bit.

    Args:
        network: the network; it ends with the weights of its best epoch.
        training: items (x (T, N), label), shuffled anew in every epoch; or with targets for every
            step, or pieces of long streams: :class:`neurolsc.evaluation.Samples`. Or a
            ``DataLoader`` of time-first batches (``collate_fn=neurolsc.datasets.collate``), which
            keeps its order and batch size. What it draws from torch's global random numbers, as
            ``shuffle=True`` does, follows from (seed, epoch) as well.
        validation: items that decide when to stop and which weights are best; never the test set.
        epochs: most epochs, those before a resumption counted.
        task: what is asked of the network; by default the label of the sample at every step.
        batch_size: samples per step; the last batch of an epoch may be smaller. A ``DataLoader``
            has its own.
        lr: learning rate; the more layers, the lower: of ten, 2e-3 was best in the study.
        by_gain: divide the learning rate of a parameter by how far it moves the state at rest; that
            of :math:`b_\vartheta` of an ALIF is divided by 100 with its default time constants:
            :func:`neurolsc.optimizer.parameter_groups`.
        schedule: how the learning rates go over all epochs;
            :class:`neurolsc.schedule.Constant` lets them stay, and
            :class:`neurolsc.schedule.FromTorch` takes any scheduler of ``torch.optim``.
        patience: stop after this many epochs without a lower validation loss.
        seed: of order and dropout.
        optimizer: makes the optimizer from parameters, or groups of them, and learning rate.
        conditioning: what is done to gradients and weights at every update; by default gradients
            are centralized and their norm is clipped at 1, ``Conditioning()`` leaves them.
        average_from: the epoch from which on the mean of the weights at the end of each epoch is
            what is scored and kept, while the training goes on from those of the last one
            (stochastic weight averaging, arXiv:1803.05407); None: never.
        checkpoint: file that keeps the state after every epoch; if it exists, training goes on from
            it. Patience may then be new, and so may the epochs where the learning rate stays; the
            other settings, the network but for its weights, and the data may not. Nobody else may
            train with this file meanwhile. A ``DataLoader`` with a generator of its own or with
            persistent workers is refused, for no checkpoint holds where these are; a sampler of
            your own should draw from torch's global random numbers only.
        progress: show a bar over the batches of each epoch, or a line off a terminal
            (:mod:`neurolsc.progress`).
        on_epoch: called with the history so far after every epoch.

    Returns:
        History and best epoch.

    Raises:
        ValueError: if a data set is empty or does not fit, a setting is out of range, or the
            checkpoint is damaged or of a run with other settings, which the message names.
        TypeError: if network, data or a setting are of the wrong kind.
        FloatingPointError: if the loss or the score becomes NaN or infinite; the message names the
            epoch and what to try. The network then holds the weights of its best epoch, or those
            that it had before the first.
        BlockingIOError: if somebody else is at work with the checkpoint; the message names it.
        OSError: if the checkpoint cannot be read or written.

    Source: arXiv:2308.12075, Sec. II-G (patience 10); the defaults are ours, from the study in the
    documentation. The paper's training is ``**neurolsc.training.PAPER``.
    """
    as_network(network)
    for name, value in (("epochs", epochs), ("patience", patience)):
        whole(name, value)
    whole("seed", seed, at_least=0)
    positive("lr", lr)
    if average_from is not None:
        whole("average_from", average_from)
    if not callable(optimizer):
        raise TypeError(f"optimizer must make one from (parameters, lr), got a {type(optimizer).__name__}.")
    if not callable(schedule) and not isinstance(schedule, FromTorch):
        kind = type(schedule).__name__
        raise TypeError(f"schedule must be a function of the share done, or of torch as FromTorch(make), got a {kind}.")
    conditioning.check(network)
    order, measure = torch.Generator(), measure_of(task, task.score)
    train_batches = batches("training", training, batch_size, order)
    batches("validation", validation, batch_size)  # refuses before the first epoch, not after it
    groups = parameter_groups(network, lr, by_gain=by_gain)
    fit = Fit(network, task, optimizer(groups, lr), conditioning, schedule, epochs, average_from)
    settings: dict[str, Any] = {}
    if checkpoint is not None:
        for name, data in (("training", training), ("validation", validation)):
            _check_resumable(name, data)
        settings = {"task": repr(task), "seed": seed, "lr": lr}
        settings |= {} if isinstance(training, DataLoader) else {"batch_size": batch_size}
        settings |= {
            "optimizer": type(fit.optimizer).__name__,
            "conditioning": repr(conditioning),
            "by_gain": by_gain,
            "average_from": average_from,
        }
        settings |= of_network(network)
        if isinstance(schedule, FromTorch) and fit.scheduler is not None:
            settings |= {"schedule": schedule.told(fit.scheduler)}
        else:
            settings |= {"schedule": repr(schedule)}
            settings |= {} if schedule == Constant() else {"epochs": epochs}  # which rate comes next depends on it
        settings |= of_data("training", training) | of_data("validation", validation)
    with alone_if(checkpoint):
        if checkpoint is not None and Path(checkpoint).exists():
            fit.restore(checkpoint, settings)
        while len(fit.history) < epochs and fit.waited < patience:
            epoch = len(fit.history) + 1
            started = time.perf_counter()
            bar = progress_bar(len(train_batches), desc=f"epoch {epoch}/{epochs}", unit="batch", shown=progress)
            with torch.random.fork_rng(devices=_cuda_devices(network)), bar, drawn_from(_mix(seed, epoch), epoch):
                torch.manual_seed(_mix(seed, epoch))
                order.manual_seed(_mix(seed, epoch))
                try:
                    loss, score = fit.epoch(train_batches, training, bar)
                    scores = fit.scored(validation, batch_size)
                except FloatingPointError as error:
                    network.load_state_dict(fit.best)
                    raise FloatingPointError(fit.diverged(str(error), lr)) from error
                score_text = measure.text(scores.measures[task.score])
                bar.set_postfix_str(f"loss {loss:.3f}, validation {scores.loss:.3f} {score_text}")
            fit.note(loss, score, scores, time.perf_counter() - started)
            if checkpoint is not None:
                write_tree(checkpoint, fit.state() | {"settings": settings})
            if on_epoch is not None:
                on_epoch(fit.history)
    network.load_state_dict(fit.best)
    return TrainResult(fit.history, fit.best_epoch, fit.waited >= patience, measure)


def _check_resumable(name: str, data: Data) -> None:
    """Refuse loaders whose order, or whose random changes, a resumed training could not repeat."""
    if not isinstance(data, DataLoader):
        return
    parts = (data, data.sampler, data.batch_sampler, getattr(data.batch_sampler, "sampler", None))
    if any(getattr(part, "generator", None) is not None for part in parts):
        raise ValueError(
            f"{name} is a DataLoader with a generator of its own, whose state no checkpoint holds: leave it out, and "
            "the order is drawn from (seed, epoch); or train without checkpoint."
        )
    if data.persistent_workers:
        raise ValueError(
            f"{name} is a DataLoader with persistent workers, whose random numbers no checkpoint holds: "
            "persistent_workers=False, or train without checkpoint."
        )


def _mix(seed: int, epoch: int) -> int:
    """One seed from two, such that neighbours have nothing in common."""
    return int.from_bytes(hashlib.sha256(f"{seed} {epoch}".encode()).digest()[:4])


def _cuda_devices(network: Network) -> list[torch.device]:
    device = network.dtype_and_device["device"]
    return [device] if device.type == "cuda" else []
