"""A training under way: one epoch of updates, its scores, and the state that a checkpoint keeps."""

import math
from os import PathLike
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader
from tqdm import tqdm

from neurolsc.conditioning import Conditioning
from neurolsc.evaluation import Data, Scores, carried, evaluate, sizes, unpack
from neurolsc.files import read_tree
from neurolsc.identity import differences
from neurolsc.measure import Part
from neurolsc.network import Network
from neurolsc.schedule import FromTorch, Schedule
from neurolsc.stability.findings import surrogate_fault
from neurolsc.tasks import Task, measure_of
from neurolsc.untrusted.refusal import refusing
from neurolsc.untrusted.tensors import check_finite
from neurolsc.validation import positive

Row = dict[str, Any]
"""One epoch of a history."""
OF_THE_RUN = ("share_without_vote", "firing_rate", "silent_steps", "synops")
"""Scores that no task decides."""


class Fit:
    """A training under way: what its next epoch depends on besides the settings."""

    def __init__(
        self,
        network: Network,
        task: Task,
        optimizer: Optimizer,
        conditioning: Conditioning,
        schedule: Schedule | FromTorch,
        epochs: int,
        average_from: int | None = None,
    ) -> None:
        self.network, self.task, self.optimizer, self.conditioning = network, task, optimizer, conditioning
        self.schedule, self.epochs = schedule, epochs
        self.average_from = average_from
        self.average = None if average_from is None else AveragedModel(network)
        self.full_rates = [group["lr"] for group in optimizer.param_groups]
        self.scheduler = schedule.of(optimizer) if isinstance(schedule, FromTorch) else None
        self.history: list[Row] = []
        self.best_epoch = 0
        self.best = copied(network)

    @property
    def shown(self) -> Network:
        """What is scored and kept: the network, or its mean over epochs once that has begun."""
        begun = self.average is not None and int(self.average.n_averaged) > 0
        return self.average.module if begun else self.network  # type: ignore[union-attr,return-value]

    @property
    def waited(self) -> int:
        """Epochs since the best one."""
        return len(self.history) - self.best_epoch

    def epoch(
        self,
        batches: "DataLoader[tuple[Tensor, ...]]",
        dataset: Data,
        bar: tqdm,
    ) -> tuple[float, float]:
        """One pass over the batches of a data set: mean loss and score while the weights move."""
        device = self.network.dtype_and_device["device"]
        samples, total, states = 0, 0.0, None
        scores: list[Part] = []
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
            self._set_rates((len(self.history) + (number - 1) / len(batches)) / self.epochs)
            self.conditioning.before_update(self.network)
            self.optimizer.step()
            self.conditioning.after_update(self.network)
            self._step("update")
            size, steps = sizes(x, mask)
            samples += size
            total += size * value
            scores.append(Part(self.task.measures(logits.detach(), targets, mask)[self.task.score], size, steps))
            bar.set_postfix_str(f"loss {total / samples:.3f}", refresh=False)
            bar.update()
        score = measure_of(self.task, self.task.score).mean(scores)
        if not math.isfinite(score):
            raise FloatingPointError(f"the {self.task.score} is {score} in epoch {len(self.history) + 1}")
        return total / samples, score

    def _set_rates(self, done: float) -> None:
        """The learning rates of the next update, after a share of all epochs."""
        if isinstance(self.schedule, FromTorch):
            return
        factor = self.schedule(done)
        for group, rate in zip(self.optimizer.param_groups, self.full_rates, strict=True):
            group["lr"] = factor * rate

    def _step(self, after: str, loss: float | None = None) -> None:
        """A step of torch's scheduler, if there is one and its time has come."""
        if not isinstance(self.schedule, FromTorch) or self.scheduler is None or after != self.schedule.every:
            return
        scheduler: Any = self.scheduler
        scheduler.step(*([loss] if isinstance(scheduler, ReduceLROnPlateau) else []))

    def scored(self, validation: Data, batch_size: int) -> Scores:
        """Scores after the epoch."""
        if self.average is not None and self.average_from is not None and len(self.history) + 1 >= self.average_from:
            self.average.update_parameters(self.network)
        try:
            return evaluate(self.shown, validation, task=self.task, batch_size=batch_size)
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
            self.best = copied(self.shown)
        self.history.append(row)
        self._step("epoch", scores.loss)

    def diverged(self, what: str, lr: float) -> str:
        """What to say of a loss that is no number any more, and what to try."""
        held = f"epoch {self.best_epoch}, its best" if self.best_epoch else "before the training"
        fault = next(filter(None, (surrogate_fault(cell, i) for i, cell in enumerate(self.network.cells))), None)
        cure = str(fault or f"lower the learning rate (now {lr:g}), or set the radii first (neurolsc.pretrain).")
        return f"{what}: {cure} The network holds the weights of {held}."

    def state(self) -> dict[str, Any]:
        """What :meth:`restore` needs."""
        more = {} if self.scheduler is None else {"scheduler": self.scheduler.state_dict()}
        more |= {} if self.average is None else {"average": self.average.state_dict()}
        return more | {
            "network": self.network.state_dict(),
            "best": self.best,
            "best_epoch": self.best_epoch,
            "optimizer": self.optimizer.state_dict(),
            "full_rates": self.full_rates,
            "history": self.history,
        }

    def restore(self, path: str | PathLike[str], settings: dict[str, Any]) -> None:
        """Go on from a file.

        Raises:
            ValueError: if it was written under other settings or by something else, or if its
                weights are not finite or do not fit.
        """
        state = read_tree(path)
        parts = self.state().keys() | {"settings", "scheduler"}  # the last only with one of torch
        if not isinstance(state, dict) or state.keys() | {"scheduler"} != parts:
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
            if self.average is not None:
                check_finite(state["average"])
                self.average.load_state_dict(state["average"])
            if self.scheduler is not None:
                self.scheduler.load_state_dict(state["scheduler"])
            self.history, self.best, self.best_epoch = state["history"], state["best"], state["best_epoch"]
            if len(state["full_rates"]) != len(self.full_rates):
                raise ValueError(f"it has {len(state['full_rates'])} learning rates, not {len(self.full_rates)}.")
            # gains were those of the weights that the training began with
            self.full_rates = [positive("full_rates", rate).item() for rate in state["full_rates"]]


def copied(network: Network) -> dict[str, Tensor]:
    """The weights of now."""
    return {name: value.detach().clone() for name, value in network.state_dict().items()}
