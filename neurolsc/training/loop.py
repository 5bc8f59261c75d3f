"""The training loop: settings, updates, early stopping, and checkpoints that survive a kill."""

import copy
import hashlib
import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from functools import partial
from numbers import Real
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from neurolsc.datasets.batches import drawn_from
from neurolsc.display import Displayed, Table, or_dash, progress_bar
from neurolsc.interop.ranks import from_rank_0
from neurolsc.io import (
    check_finite,
    data_fingerprint,
    locked,
    network_fingerprint,
    read_checkpoint,
    refusing,
    write_tree,
)
from neurolsc.metrics import SHARE, BatchMetric, MetricSpec
from neurolsc.network import Network, as_network
from neurolsc.stability.indicators import exponent_loss
from neurolsc.stability.loops import adabelief_lookahead
from neurolsc.surroundings import rank_of_processes
from neurolsc.tasks import Classification, Task, loss_of, measures_of, metric_spec, refuse_no_task
from neurolsc.training.evaluation import Data, batches, carry_state, evaluate, unpack
from neurolsc.training.optim import (
    COURSES,
    FromTorch,
    bound_weights,
    condition_gradients,
    parameter_groups,
    scheduled,
)
from neurolsc.training.ranks import Share, begin_alike, draws_of_rank, gathered, lowest, sum_gradients, summed
from neurolsc.validation import flag, known_options, number, one_of, positive, setting, shown, whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from neurolsc.monitor import Monitor

FLOSSED = 8  # samples of a batch whose exponents are regularised
OPTIMIZERS = {"adam": torch.optim.Adam, "adabelief-lookahead": adabelief_lookahead}
PAPER: dict[str, Any] = {
    "batch_size": 256,
    "lr": 1e-3,
    "by_gain": False,
    "schedule": "constant",
    "optimizer": "adabelief-lookahead",
    "clip_gradient": 0.0,
    "centralize": False,
}
"""The paper's training (arXiv:2308.12075, Sec. II-G), as settings of :func:`train`."""

RATES = r"'(base_lrs|_last_lr)': \[[^\]]*\],? ?"  # the learning rates in the repr of a scheduler's state
Row = dict[str, Any]  # one epoch of a history


@dataclass(frozen=True)
class TrainSettings:
    """The training.

    These are the keywords of :func:`train`, the flags of ``neurolsc train``, and the names in grids and in a run's
    settings.toml. From Python, ``schedule`` may also be a :class:`neurolsc.training.FromTorch`, and ``optimizer`` a
    function that makes one from parameters, or groups of them, and a learning rate.

    Raises:
        TypeError: if a value is of another kind.
        ValueError: if a number is out of range, or a word is unknown.

    Source: the defaults are ours, from the study in the documentation; patience: arXiv:2308.12075, Sec. II-G; average:
    arXiv:1803.05407, as arXiv:2308.12075 does on words. The paper's training is :data:`neurolsc.training.PAPER`.
    """

    epochs: int = setting(20, "most epochs")
    batch_size: int = setting(32, "samples per batch")
    lr: float = setting(5e-3, "learning rate; deeper networks take less: of ten layers 2e-3 was best")
    by_gain: bool = setting(True, "divide it, for b_theta, by how far b_theta moves the threshold")
    schedule: Literal["constant", "cosine", "cosine-to-tenth"] | FromTorch = setting(
        "cosine",
        "course of the learning rate over all epochs: it stays, rises for 5 % of them and falls to 0, or falls to a "
        "tenth",
    )
    patience: int = setting(10, "stop after this many epochs without a better validation loss")
    optimizer: Literal["adabelief-lookahead", "adam"] | Callable[[Iterable[Any], float], Optimizer] = setting(
        "adam", "Adam, or AdaBelief in Lookahead (the paper's)"
    )
    clip_gradient: float = setting(1.0, "largest norm of the gradient; 0: not clipped")
    centralize: bool = setting(True, "take the mean of every row from the gradients of the cells' matrices")
    clip_spectrum: float = setting(0.0, "largest singular value of the recurrent weights; 0: not clipped")
    clip_weight: float = setting(0.0, "largest weight of a cell, in resting thresholds of its neuron; 0: not clipped")
    floss: float = setting(
        0.0, "weight of squared distances of Lyapunov exponents to a target, in updates of their own; 0: none"
    )
    floss_target: float = setting(0.0, "their target, in nats per step")
    floss_every: int = setting(10, "such an update after every so many others")
    average: float = setting(
        0.0, "last share of the epochs whose weights are averaged: the mean is validated and kept; 0: not averaged"
    )

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "patience", "floss_every"):
            whole(name, getattr(self, name))
        positive("lr", self.lr)
        for name in ("clip_gradient", "clip_spectrum", "clip_weight", "floss"):
            number(name, getattr(self, name), zero_allowed=True)
        for name in ("by_gain", "centralize"):
            flag(name, getattr(self, name))
        if not (isinstance(self.average, Real) and 0 <= self.average < 1):
            raise ValueError(f"average must be a share of the epochs, from 0 to below 1, got {self.average!r}.")
        if not (isinstance(self.floss_target, Real) and math.isfinite(self.floss_target)):
            raise ValueError(f"floss_target must be a finite number of nats per step, got {self.floss_target!r}.")
        if isinstance(self.schedule, str):
            one_of("schedule", self.schedule, ("constant", *COURSES))
        elif not isinstance(self.schedule, FromTorch):
            wanted = "schedule must be a name, or a scheduler of torch as FromTorch(make)"
            raise TypeError(f"{wanted}, got a {type(self.schedule).__name__}.")
        if isinstance(self.optimizer, str):
            one_of("optimizer", self.optimizer, tuple(OPTIMIZERS))
        elif not callable(self.optimizer):
            raise TypeError(f"optimizer must make one from (parameters, lr), got a {type(self.optimizer).__name__}.")


@dataclass(frozen=True, repr=False)
class TrainResult(Displayed):
    """Result of :func:`train`; the network itself has the weights of the best epoch.

    Attributes:
        history: one row per epoch: epoch (from 1), train_loss and train_<score> (means while the weights move),
            validation_loss, validation_<measure>, seconds, and of the validation samples as in :class:`Scores`
            share_without_vote, firing_rate, silent_steps, synops.
        best_epoch: epoch with the lowest validation loss, from 1.
        stopped_early: True if the patience ran out.
        measure: the specification of the score, which the task gives.
    """

    history: list[Row]
    best_epoch: int
    stopped_early: bool
    measure: MetricSpec = SHARE

    @property
    def best(self) -> Row:
        """The row of the best epoch."""
        return self.history[self.best_epoch - 1]

    @property
    def score(self) -> str:
        """Name of the task's score: the history has it in a column ``train_<score>`` beside ``train_loss``."""
        names = (name.removeprefix("train_") for name in self.history[0] if name.startswith("train_"))
        return next(name for name in names if name != "loss")

    def plot(
        self, path: str | PathLike[str] | None = None, *, chance: float | None = None, title: str = ""
    ) -> "Figure":
        """Draw validation loss, score and firing rate of the last layer over the epochs.

        Args:
            path: file to save the figure to; None: it is only returned.
            chance: score of a guess, drawn as a line; None: no line.
            title: title of the figure.
        """
        from neurolsc.plots import plot_learning_curves  # matplotlib is slow to import and few runs draw

        return plot_learning_curves(
            {"": self.history}, path, chance=chance, score=self.score, share=self.measure.share, title=title
        )

    def parts(self) -> list[str | Table]:
        score = self.score
        name = score.replace("_", " ")
        rows = []
        for epoch in sorted({1, self.best_epoch, len(self.history)}):  # the first, the best and the last, each once
            row = self.history[epoch - 1]
            losses = [f"{row[f'{part}_loss']:.3f}" for part in ("train", "validation")]
            scores = [self.measure.text(row[f"{part}_{score}"]) for part in ("train", "validation")]
            rows.append((str(epoch), *losses, *scores, " ".join(or_dash(rate, ".4f") for rate in row["firing_rate"])))
        head = ("epoch", "train loss", "validation loss", f"train {name}", f"validation {name}", "spikes/neuron/step")
        ended = "stopped early" if self.stopped_early else "all run"
        seconds = sum(row["seconds"] for row in self.history)
        summary = f"best epoch {self.best_epoch} of {len(self.history)}, {ended}, {seconds:.1f} s"
        return [summary, Table(head, rows)]


@torch.inference_mode(False)  # which also turns gradients on
def train(
    network: Network,
    training: Data,
    validation: Data,
    *,
    task: Task = Classification(),
    seed: int = 0,
    checkpoint: str | PathLike[str] | None = None,
    progress: bool = True,
    on_epoch: Callable[[Sequence[Row]], object] | None = None,
    monitor: "Monitor | None" = None,
    **settings: Any,
) -> TrainResult:
    r"""Train a network in place, with early stopping on the validation loss.

    All random numbers of an epoch follow from (seed, epoch) alone. On a CPU a run that was killed and resumed ends with
    the same weights as one that ran through, bit by bit.

    Under ``torchrun``, after ``torch.distributed.init_process_group``, all ranks call it with the same arguments. Each
    runs its share of every batch, and the weights become those of one process to rounding; dropout draws other numbers.
    Rank 0 validates, writes the checkpoint, shows the bar, calls on_epoch and measures for a monitor.

    Args:
        network: the network; it ends with the weights of its best epoch.
        training: items, shuffled anew in every epoch: :class:`neurolsc.training.Samples`. Or a ``DataLoader`` of
            time-first batches (``collate_fn=neurolsc.datasets.collate``) with its own order and batch size.
        validation: items that decide when to stop and which weights are best; never the test set.
        task: the task; by default classification, with the sample's label as the target of every step.
        seed: seed of order and dropout.
        checkpoint: file of the state after every epoch, locked meanwhile; if it exists, training goes on from it.
            Patience may then differ, and with a constant learning rate the epochs; all else must be the same.
        progress: show a bar over the batches of each epoch.
        on_epoch: called with the history so far after every epoch.
        monitor: a :class:`neurolsc.Monitor` of the network, called after every update. It counts those before the
            checkpoint, too.
        settings: fields of :class:`TrainSettings`: epochs, batch_size, lr, schedule, optimizer ...

    Returns:
        The history, a row per epoch, and which epoch was the best.

    Raises:
        ValueError: if a data set is empty or does not fit, a setting is out of range, the checkpoint is damaged or
            of a run with other settings, which the message names, or ranks differ in what they were given.
        TypeError: if network, data or a setting are of the wrong kind.
        FloatingPointError: if the loss, the gradient or the score becomes NaN or infinite; the message names the layer.
            The network then has the weights of its best epoch, or those before the first.
        BlockingIOError: if another process trains with the checkpoint.

    Source: arXiv:2308.12075, Sec. II-G.
    """
    if "loss" in settings:
        raise TypeError(
            "train() takes no loss: give a task, which has one, such as task=neurolsc.tasks.ClassPerStep()."
        )
    known_options("train", settings, [f.name for f in fields(TrainSettings)])
    chosen = TrainSettings(**settings)
    network = as_network(network)
    rank, processes = rank_of_processes()
    whole("seed", seed, at_least=0)
    refuse_no_task(task)
    if on_epoch is not None and not callable(on_epoch):
        raise TypeError(f"on_epoch must be a function of the history, got {shown(on_epoch)}.")
    if monitor is not None and not callable(getattr(monitor, "step", None)):
        raise TypeError(f"monitor must be a neurolsc.Monitor, got {shown(monitor)}.")
    if not any(p.requires_grad for p in network.parameters()):
        raise ValueError("train needs parameters to move: all are frozen (requires_grad=False).")
    if chosen.clip_weight:
        bound_weights(network, weight=torch.inf, spectrum=0)  # refuses a cell that does not name its voltage
    device = network.dtype_and_device["device"]
    metric = metric_spec(task, task.score)
    order = torch.Generator()  # of the samples; seeded anew in every epoch
    train_batches = batches("training", training, chosen.batch_size, generator=order)
    batches("validation", validation, chosen.batch_size)  # refuses before the first epoch, not after it
    if processes > 1:
        call: dict[str, Any] = {n: value for n, value in vars(chosen).items() if isinstance(value, str | int | float)}
        call |= {"task": repr(task), "seed": seed, "a checkpoint": checkpoint is not None}
        call |= {"number of batches": len(train_batches)}
        call |= network_fingerprint(network)
        call |= data_fingerprint("training", training) | data_fingerprint("validation", validation)
        begin_alike(network, [training, validation], call)
    schedule = scheduled(chosen.schedule, chosen.epochs * len(train_batches))
    make: Any = OPTIMIZERS[chosen.optimizer] if isinstance(chosen.optimizer, str) else chosen.optimizer
    optimizer = make(parameter_groups(network, chosen.lr, by_gain=chosen.by_gain), chosen.lr)
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"optimizer must make a torch.optim.Optimizer from (parameters, lr), got {shown(optimizer)}.")
    scheduler: Any = None if schedule is None else schedule.scheduler(optimizer)
    step_every = None if schedule is None else schedule.every
    history: list[Row] = []
    best_epoch = 0  # before the training
    averaged: AveragedModel | None = None  # the mean of the weights at the ends of the last epochs
    averages_from = chosen.epochs - math.floor(chosen.average * chosen.epochs) + 1  # the first of these epochs
    best = copy.deepcopy(network.state_dict())

    def diverged(what: str, cure: str = f"lower the learning rate (now {chosen.lr:g})") -> FloatingPointError:
        """Give the network its best weights, and return the error to be raised."""
        network.load_state_dict(best)
        epoch = f"epoch {best_epoch}, its best" if best_epoch else "before the training"
        return FloatingPointError(
            f"{what}: see what neurolsc.diagnose finds, {cure}, or set the radii first (neurolsc.pretrain). "
            f"The network has the weights of {epoch}."
        )

    def state() -> dict[str, Any]:
        """What a checkpoint holds, besides the settings."""
        return {
            "network": network.state_dict(),
            "best": best,
            "best_epoch": best_epoch,
            "history": history,
            "optimizer": optimizer.state_dict(),
            "scheduler": None if scheduler is None else scheduler.state_dict(),
            "averaged": None if averaged is None else averaged.state_dict(),
        }

    with ExitStack() as stack:

        def lock() -> None:
            stack.enter_context(locked(checkpoint))

        from_rank_0(lock)
        fingerprint: dict[str, Any] = {}
        if checkpoint is not None:
            fingerprint = fingerprint_of(chosen, optimizer, scheduler, task, seed) | network_fingerprint(network)
            for name, data in (("training", training), ("validation", validation)):
                refuse_own_draws(name, data)
                fingerprint |= data_fingerprint(name, data)
            keys = list(state())
            if saved := from_rank_0(lambda: read_checkpoint(checkpoint, keys, settings=fingerprint, of="training")):
                with refusing(checkpoint, "does not fit this training"):
                    for part in ("best", "network"):  # both have to fit; the last one stays in the network
                        check_finite(saved[part])
                        network.load_state_dict(saved[part])
                    for part, value in (("optimizer", optimizer), ("scheduler", scheduler)):
                        if value is not None:
                            value.load_state_dict(saved[part])
                    if saved["averaged"] is not None:
                        averaged = AveragedModel(network)
                        averaged.load_state_dict(saved["averaged"])
                    history = saved["history"]
                    best = saved["best"]
                    best_epoch = saved["best_epoch"]
                if monitor is not None:
                    monitor.go_on_from(len(history) * len(train_batches))

        while len(history) < chosen.epochs and len(history) - best_epoch < chosen.patience:
            epoch = len(history) + 1
            started = time.perf_counter()
            # a hash: neighbouring seeds and epochs must not draw alike
            epoch_seed = int.from_bytes(hashlib.sha256(f"{seed} {epoch}".encode()).digest()[:4])
            length = len(train_batches)
            visible = progress and rank == 0
            bar = progress_bar(length, desc=f"epoch {epoch}/{chosen.epochs}", unit="batch", shown=visible)
            cuda = [device] if device.type == "cuda" else []
            with torch.random.fork_rng(devices=cuda), bar, drawn_from(epoch_seed, epoch):
                torch.manual_seed(epoch_seed)
                order.manual_seed(epoch_seed)
                network.train()
                samples = 0
                total = 0.0  # sum of the samples' losses
                states = None  # at rest
                parts: list[BatchMetric] = []  # the score of each batch
                for index, batch in enumerate(train_batches, start=1):
                    where = f"in epoch {epoch}, batch {index}"
                    x, targets, mask = unpack(batch, device)
                    first = x[:, :FLOSSED]
                    size = x.shape[1]  # of all ranks together
                    share = Share(size)
                    x = share.of(x, 1)
                    targets = share.of(targets, 0 if targets.ndim == 1 else 1)
                    mask = None if mask is None else share.of(mask, 1)
                    with draws_of_rank(epoch_seed + index, device):
                        run = network.run(x, states, mask=mask)
                    logits = run.logits
                    states, (_, steps) = carry_state(training, run, mask)
                    loss = loss_of(task, logits, targets, mask)
                    loss = share.weight * loss  # a mean over samples: those of all ranks sum to that of the batch
                    value = summed(loss.item(), device)
                    if not math.isfinite(value):
                        bad = [i for i, z in enumerate(run.spikes, start=1) if not z.isfinite().all()]
                        # the lowest layer on any rank: a run goes up
                        layer = lowest(bad[0] if bad else len(run.spikes) + 1, device)
                        at = f"layer {layer}" if layer <= len(run.spikes) else "the readout"
                        raise diverged(f"the loss is {value} {where}, from {at} on")
                    measures = measures_of(task, logits.detach(), targets, mask)
                    del run  # the spikes need not live as long as the loss
                    optimizer.zero_grad()
                    loss.backward()
                    sum_gradients(network)
                    norm = condition_gradients(network, centralize=chosen.centralize, clip=chosen.clip_gradient)
                    if not norm.isfinite():
                        bad = []
                        for i, cell in enumerate(network.cells, start=1):
                            grads = [p.grad for p in cell.parameters() if p.grad is not None]
                            if not all(grad.isfinite().all() for grad in grads):
                                bad.append(i)
                        at = "the readout"
                        if bad:  # the topmost: backward goes down
                            at = f"layer {bad[-1]}, a {type(network.cells[bad[-1] - 1]).__name__},"
                        raise diverged(
                            f"the gradient of {at} is not finite {where}, at a loss of {value:.3g}",
                            cure="use a surrogate whose derivative is finite everywhere, such as fast_sigmoid or atan",
                        )
                    optimizer.step()
                    update = (epoch - 1) * length + index
                    # an update of its own: beside an exploding gradient of the loss this one would vanish
                    if chosen.floss and update % chosen.floss_every == 0:
                        optimizer.zero_grad()
                        penalty = chosen.floss * exponent_loss(network, first, chosen.floss_target, seed=update)
                        (penalty / processes).backward()  # the same on all ranks, but for rounding
                        sum_gradients(network)
                        condition_gradients(network, centralize=chosen.centralize, clip=chosen.clip_gradient)
                        optimizer.step()
                    bound_weights(network, weight=chosen.clip_weight, spectrum=chosen.clip_spectrum)
                    if step_every == "update":
                        scheduler.step()  # type: ignore[call-arg]
                    if monitor is not None:
                        monitor.step(value)
                    samples += size
                    total += size * value
                    if share.samples:  # a rank without samples of this batch has run one that counts nothing
                        parts.append(BatchMetric(measures[task.score], share.samples, steps))
                    bar.set_postfix_str(f"loss {total / samples:.3f}", refresh=False)
                    bar.update()
                score = metric.mean(gathered(parts))
                if not math.isfinite(score):
                    raise diverged(f"the {task.score} is {score} in epoch {epoch}")

                judged: Any = network
                if epoch >= averages_from:
                    averaged = averaged or AveragedModel(network)
                    averaged.update_parameters(network)
                    judged = averaged.module
                try:
                    # on rank 0 alone, so that all ranks agree on the best epoch and on when to stop
                    scores = from_rank_0(partial(evaluate, judged, validation, task=task, batch_size=chosen.batch_size))
                except FloatingPointError as error:
                    raise diverged(f"the validation loss is not finite in epoch {epoch}") from error
                measured = metric.text(scores.measures[task.score])
                bar.set_postfix_str(f"loss {total / samples:.3f}, validation {scores.loss:.3f} {measured}")

            row: Row = {"epoch": epoch, "train_loss": total / samples, f"train_{task.score}": score}
            row |= {"validation_loss": scores.loss}
            row |= {f"validation_{name}": value for name, value in scores.measures.items()}
            row |= {name: getattr(scores, name) for name in ("share_without_vote", "firing_rate", "silent_steps")}
            row |= {"synops": scores.synops, "seconds": time.perf_counter() - started}
            if not history or scores.loss < history[best_epoch - 1]["validation_loss"]:
                best_epoch = epoch
                best = copy.deepcopy(judged.state_dict())
            history.append(row)
            if isinstance(scheduler, ReduceLROnPlateau):
                scheduler.step(scores.loss)
            elif step_every == "epoch":
                scheduler.step()
            if checkpoint is not None:
                from_rank_0(lambda: write_tree(checkpoint, state() | {"settings": fingerprint}))
            if on_epoch is not None and rank == 0:
                on_epoch(history)
    network.load_state_dict(best)
    stopped_early = len(history) - best_epoch >= chosen.patience
    return TrainResult(history, best_epoch, stopped_early, metric)


def fingerprint_of(
    chosen: TrainSettings, optimizer: Optimizer, scheduler: Any, task: Task, seed: int
) -> dict[str, Any]:
    """Return the settings that a checkpoint and a training that goes on from it must share, besides network and data.

    Patience may differ, and with a constant learning rate and no average the number of epochs.
    """
    apart = ("epochs", "patience", "schedule", "optimizer")  # free to change, or compared in another form below
    common = {name: value for name, value in vars(chosen).items() if name not in apart}
    common |= {"optimizer": type(optimizer).__name__, "schedule": chosen.schedule, "task": repr(task), "seed": seed}
    if isinstance(chosen.schedule, FromTorch):
        # without its learning rates: they follow from the gains of the weights that the network happens to have
        at_first = re.sub(RATES, "", repr(scheduler.state_dict()))
        common["schedule"] = f"{type(scheduler).__name__}, every {chosen.schedule.every}, {at_first}"
    elif chosen.schedule != "constant":
        common["epochs"] = chosen.epochs  # the next learning rate depends on it
    if chosen.average:
        common["epochs"] = chosen.epochs  # the first epoch whose weights are averaged depends on it
    return common


def refuse_own_draws(name: str, data: Data) -> None:
    """Refuse a DataLoader with a generator or workers of its own, whose state no checkpoint holds."""
    if not isinstance(data, DataLoader):
        return
    inner = getattr(data.batch_sampler, "sampler", None)
    drawing = (data, data.sampler, data.batch_sampler, inner)
    has_generator = any(getattr(part, "generator", None) is not None for part in drawing)
    if data.persistent_workers or has_generator:  # workers that live on from epoch to epoch have a state, too
        raise ValueError(
            f"{name} is a DataLoader with a generator of its own or persistent workers: leave these out, and its random "
            "numbers follow from (seed, epoch); or train without checkpoint."
        )
