"""The training loop: a task's loss, early stopping, and checkpoints that survive a kill."""

import csv
import hashlib
import io
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from tqdm.auto import tqdm

from neurolsc.datasets.augment import drawn_from
from neurolsc.evaluation import Samples, Scores, batches, carried, evaluate, unpack
from neurolsc.files import atomic_write, read_tree, write_tree
from neurolsc.identity import differences, of_data, of_network
from neurolsc.locks import alone_if
from neurolsc.network import Network, as_network
from neurolsc.optimizer import adabelief_lookahead
from neurolsc.tasks import Classification, Task
from neurolsc.untrusted.refusal import refusing
from neurolsc.untrusted.tensors import check_finite
from neurolsc.validation import positive, whole

__all__ = ["Scores", "TrainResult", "evaluate", "train"]

Row = dict[str, Any]
"""One epoch of a history."""
OF_THE_RUN = ("share_without_vote", "firing_rate", "silent_steps", "synops")
"""Scores that no task decides."""


@dataclass(frozen=True)
class TrainResult:
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

    def to_json(self, path: str | PathLike[str]) -> None:
        """Write all of it as JSON.

        Raises:
            OSError: if the file cannot be written.
        """
        text = json.dumps(asdict(self), indent=2, allow_nan=False) + "\n"
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
    training: Samples,
    validation: Samples,
    *,
    epochs: int,
    task: Task = Classification(),
    batch_size: int = 256,
    lr: float = 1e-3,
    patience: int = 10,
    seed: int = 0,
    optimizer: Callable[[Iterable[nn.Parameter], float], Optimizer] = adabelief_lookahead,
    checkpoint: str | PathLike[str] | None = None,
    progress: bool = True,
    on_epoch: Callable[[Sequence[Row]], object] | None = None,
) -> TrainResult:
    """Train a network in place, with early stopping on the validation loss.

    All that is random in an epoch, the order of the samples and dropout, is drawn from (seed,
    epoch) alone. On a CPU a run that was killed and resumed ends in the very weights of one that
    was not, bit by bit.

    Args:
        network: the network; it ends with the weights of its best epoch.
        training: items (x (T, N), label), shuffled anew in every epoch; or with targets for every
            step, or pieces of long streams: :class:`neurolsc.evaluation.Samples`.
        validation: items that decide when to stop and which weights are best; never the test set.
        epochs: most epochs, those before a resumption counted.
        task: what is asked of the network; by default the label of the sample at every step.
        batch_size: samples per step; the last batch of an epoch may be smaller.
        lr: learning rate.
        patience: stop after this many epochs without a lower validation loss.
        seed: of order and dropout.
        optimizer: makes the optimizer from parameters and learning rate; ``torch.optim.Adam`` does.
        checkpoint: file that keeps the state after every epoch; if it exists, training goes on from
            it. Epochs and patience may then be new; the other settings, the network but for its
            weights, and the data may not. Nobody else may train with this file meanwhile.
        progress: show a bar over the batches.
        on_epoch: called with the history so far after every epoch.

    Returns:
        History and best epoch.

    Raises:
        ValueError: if a data set is empty or does not fit, a setting is out of range, or the
            checkpoint is damaged or of a run with other settings, which the message names.
        TypeError: if network, data or a setting are of the wrong kind.
        FloatingPointError: if the loss becomes NaN or infinite; the message names the epoch and
            what to try. The network then holds the weights of its best epoch, or those that it had
            before the first.
        BlockingIOError: if somebody else is at work with the checkpoint; the message names it.
        OSError: if the checkpoint cannot be read or written.

    Source: arXiv:2308.12075, Sec. II-G (patience 10, AdaBelief in Lookahead).
    """
    as_network(network)
    for name, value in (("epochs", epochs), ("patience", patience)):
        whole(name, value)
    whole("seed", seed, at_least=0)
    positive("lr", lr)
    if not callable(optimizer):
        raise TypeError(f"optimizer must make one from (parameters, lr), got a {type(optimizer).__name__}.")
    order = torch.Generator()
    train_batches = batches("training", training, batch_size, order)
    batches("validation", validation, batch_size)  # refuses before the first epoch, not after it
    fit = _Fit(network, task, optimizer(network.parameters(), lr))
    settings: dict[str, Any] = {}
    if checkpoint is not None:
        settings = {"task": repr(task), "seed": seed, "batch_size": batch_size, "lr": lr}
        settings |= {"optimizer": type(fit.optimizer).__name__} | of_network(network)
        settings |= of_data("training", training) | of_data("validation", validation)
    with alone_if(checkpoint):
        if checkpoint is not None and Path(checkpoint).exists():
            fit.restore(checkpoint, settings)
        while len(fit.history) < epochs and fit.waited < patience:
            epoch = len(fit.history) + 1
            started = time.perf_counter()
            bar = tqdm(total=len(train_batches), desc=f"epoch {epoch}/{epochs}", unit="batch", disable=not progress)
            with torch.random.fork_rng(devices=_cuda_devices(network)), bar, drawn_from(_mix(seed, epoch)):
                torch.manual_seed(_mix(seed, epoch))
                order.manual_seed(_mix(seed, epoch))
                try:
                    loss, score = fit.epoch(train_batches, training, bar)
                    scores = fit.scored(validation, batch_size)
                except FloatingPointError as error:
                    network.load_state_dict(fit.best)
                    raise FloatingPointError(fit.diverged(str(error), lr)) from error
                told = f"{scores.loss:.3f} {scores.measures[task.score]:.1%}"
                bar.set_postfix_str(f"loss {loss:.3f}, validation {told}")
            fit.note(loss, score, scores, time.perf_counter() - started)
            if checkpoint is not None:
                write_tree(checkpoint, fit.state() | {"settings": settings})
            if on_epoch is not None:
                on_epoch(fit.history)
    network.load_state_dict(fit.best)
    return TrainResult(fit.history, fit.best_epoch, fit.waited >= patience)


class _Fit:
    """A training under way: what its next epoch depends on besides the settings."""

    def __init__(self, network: Network, task: Task, optimizer: Optimizer) -> None:
        self.network, self.task, self.optimizer = network, task, optimizer
        self.history: list[Row] = []
        self.best_epoch = 0
        self.best = _copied(network)

    @property
    def waited(self) -> int:
        """Epochs since the best one."""
        return len(self.history) - self.best_epoch

    def epoch(
        self,
        batches: Iterable[tuple[Tensor, ...]],
        dataset: Samples,
        bar: "tqdm[NoReturn]",
    ) -> tuple[float, float]:
        """One pass over the batches of a data set: mean loss and score while the weights move."""
        device = self.network.dtype_and_device["device"]
        samples, total, score, states = 0, 0.0, 0.0, None
        self.network.train()
        for number, batch in enumerate(batches, start=1):
            x, targets, mask = unpack(batch, device)
            run = self.network.run(x, states, mask=mask)
            logits, states = run.logits, carried(dataset, run)
            del run  # the spikes need not live as long as the loss
            loss = self.task.loss(logits, targets, mask)
            if not math.isfinite(value := loss.item()):
                raise FloatingPointError(f"the loss is {value} in epoch {len(self.history) + 1}, batch {number}")
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            size = x.shape[1]
            samples += size
            total += size * value
            score += size * self.task.measures(logits.detach(), targets, mask)[self.task.score]
            bar.set_postfix_str(f"loss {total / samples:.3f}", refresh=False)
            bar.update()
        return total / samples, score / samples

    def scored(self, validation: Samples, batch_size: int) -> Scores:
        """Scores after the epoch."""
        try:
            return evaluate(self.network, validation, task=self.task, batch_size=batch_size)
        except FloatingPointError as error:
            raise FloatingPointError(f"the validation loss is not finite in epoch {len(self.history) + 1}") from error

    def note(self, loss: float, score: float, scores: Scores, seconds: float) -> None:
        """Add an epoch to the history, and keep its weights if they are the best so far."""
        epoch = len(self.history) + 1
        row: Row = {"epoch": epoch, "train_loss": loss, f"train_{self.task.score}": score}
        row |= {"validation_loss": scores.loss}
        row |= {f"validation_{name}": value for name, value in scores.measures.items()}
        row |= {name: getattr(scores, name) for name in OF_THE_RUN} | {"seconds": seconds}
        if not self.history or scores.loss < self.history[self.best_epoch - 1]["validation_loss"]:
            self.best_epoch = epoch
            self.best = _copied(self.network)
        self.history.append(row)

    def diverged(self, what: str, lr: float) -> str:
        """What to say of a loss that is no number any more, and what to try."""
        held = f"epoch {self.best_epoch}, its best" if self.best_epoch else "before the training"
        return (
            f"{what}: lower the learning rate (now {lr:g}), or set the radii first (neurolsc.pretrain). "
            f"The network holds the weights of {held}."
        )

    def state(self) -> dict[str, Any]:
        """What :meth:`restore` needs."""
        return {
            "network": self.network.state_dict(),
            "best": self.best,
            "best_epoch": self.best_epoch,
            "optimizer": self.optimizer.state_dict(),
            "history": self.history,
        }

    def restore(self, path: str | PathLike[str], settings: dict[str, Any]) -> None:
        """Go on from a file.

        Raises:
            ValueError: if it was written under other settings or by something else, or if its
                weights are not finite or do not fit.
        """
        state = read_tree(path)
        if not isinstance(state, dict) or state.keys() != self.state().keys() | {"settings"}:
            raise ValueError(f"{path} is not the checkpoint of a training.")
        if changed := differences(state["settings"], settings, "{name} = {before}, now it is {now}"):
            raise ValueError(
                f"{path} is of a training with {changed}: give the old settings, or another checkpoint file."
            )
        with refusing(path, "does not fit this training"):
            for part in ("best", "network"):  # both have to fit
                check_finite(state[part])
                self.network.load_state_dict(state[part])
            self.optimizer.load_state_dict(state["optimizer"])
            self.history, self.best, self.best_epoch = state["history"], state["best"], state["best_epoch"]


def _copied(network: Network) -> dict[str, Tensor]:
    """The weights of now."""
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


def _mix(seed: int, epoch: int) -> int:
    """One seed from two, such that neighbours have nothing in common."""
    return int.from_bytes(hashlib.sha256(f"{seed} {epoch}".encode()).digest()[:4])


def _cuda_devices(network: Network) -> list[torch.device]:
    device = network.dtype_and_device["device"]
    return [device] if device.type == "cuda" else []
