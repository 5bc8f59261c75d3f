"""Initialisation, flossing and a monitor as callbacks of Lightning."""

from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import grad
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from neurolsc.init import Initialiser, InitReport
from neurolsc.interop.prepared import Reader
from neurolsc.interop.ranks import call_on_rank_0
from neurolsc.interop.wrap import wrap
from neurolsc.monitor import Monitor
from neurolsc.network import Network
from neurolsc.neurons.cell import dtype_and_device
from neurolsc.stability.conditions import Finding
from neurolsc.stability.indicators import exponent_loss
from neurolsc.stability.profile import radius_profile
from neurolsc.surroundings import full_precision, original
from neurolsc.training.loop import FLOSSED
from neurolsc.validation import BatchParts, as_batch, number, swapped_axes, whole

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError("the callback needs Lightning: pip install 'lightning>=2.4'") from error


STEPS, SAMPLES = 8, 4  # numbers of those of the first batch at which the logged radii are measured


class Reading:
    """The network in a LightningModule, and how it reads the batches of a loader.

    A module of another library is called with a batch, which shows the order of its layers and whether it takes time
    or batch first. The loader may give the other of the two.

    Args:
        callback: the callback; its settings say which module it is, and what the loader gives.
        pl_module: the LightningModule.
        batch: a batch of the loader.

    Attributes:
        net: the module of another library, or a :class:`neurolsc.Network`, without ``torch.compile``.
        batch_first: whether the module takes batch first, or images (B, ...) for all steps.
        reader: lays a batch out as the network reads it, (T, B, n_in), from the layout that the module takes.

    Raises:
        TypeError: if the module cannot be wrapped, as by :func:`neurolsc.initialize`.
        ValueError: likewise.
    """

    def __init__(self, callback: "InitCallback | Flossing", pl_module: LightningModule, batch: Any) -> None:
        self.callback = callback
        self.net = original(pl_module.get_submodule(callback.module), parallel=False)
        if isinstance(self.net, nn.ModuleList):  # it cannot be called, and is in the order of use
            self.net = wrap(self.net, input_shape=callback.input_shape)
        errors = []
        for batch_first in (callback.batch_first, not callback.batch_first):
            self.batch_first = batch_first
            x = self.taken(batch)
            try:
                with full_precision(self.net):
                    self.reader = Reader.of(self.net, BatchParts(x))
            except Exception as error:  # of any kind: the module's own code may fail on the other order
                errors.append(error)
                continue
            # The module may have read the axes in another order than the one that was tried: then the other order is
            # tried. Batch first includes an image (B, ...) for all steps.
            axes = ["time first"]
            if batch_first:
                axes = ["batch first", "every step"]
            if self.reader.layout is None or self.reader.layout.axes in axes:  # None: of a network, read (T, B, n_in)
                return
        if errors:  # the first is that of the loader's own order, unless only the other one failed
            raise errors[0]
        raise ValueError(f"x must have an axis of time and one of samples, got {tuple(x.shape)} read as {self.reader}.")

    def taken(self, batch: Any) -> Tensor:
        """Return the inputs of a batch, x or (x, targets, ...), as the module takes them.

        Raises:
            ValueError: if the number of targets shows that time and batch are the other way round.
        """
        x, targets, _ = as_batch(batch)
        batch_first = self.callback.batch_first
        shape = self.callback.input_shape
        like = dtype_and_device(self.net)
        if batch_first:
            x = x.transpose(0, 1)
        if swapped := swapped_axes(x, targets):
            raise ValueError(f"{swapped}, or {type(self.callback).__name__}(..., batch_first={not batch_first}).")
        if isinstance(self.net, Network):
            return x.flatten(2).to(like["device"])
        if shape is not None:
            x = x.flatten(2).unflatten(2, (shape,) if isinstance(shape, int) else shape)
        if self.batch_first:
            x = x.transpose(0, 1)
        return x.contiguous().to(**like)

    def read(self, batch: Any) -> Tensor:
        """Return the inputs of a batch as the network reads them, (T, B, n_in)."""
        return self.reader.read(BatchParts(self.taken(batch))).x


def refuse_other_strategies(callback: Callback, trainer: Trainer, cure: str = "") -> None:
    """Refuse a training by several processes in which each does not hold the whole module, as it does with DDP."""
    if trainer.world_size > 1 and not isinstance(trainer.strategy.model, DistributedDataParallel):
        raise ValueError(
            f"{type(callback).__name__} works in one process or with strategy='ddp', got "
            f"{type(trainer.strategy).__name__} with {trainer.world_size} processes{cure}."
        )


class InitCallback(Callback):
    """Initialise a model before its first epoch, and log its radii before the first step and after every epoch.

    Radii are logged as ``radius_time_1``, ``radius_depth_1``, ... (layers counted from 1). A run that goes on from a
    checkpoint is not initialised again. With the strategy ``"ddp"`` rank 0 initialises, on its own batches, and all
    ranks begin with its values; other strategies of several processes are refused.

    Args:
        init: any of :mod:`neurolsc.init`, such as ``Identity()``.
        module: name of the attribute of the LightningModule that holds the network, a :class:`neurolsc.Network` or what
            :func:`neurolsc.wrap` takes; dotted names reach further down. Empty: the LightningModule itself.
        batches: initialise on so many batches of the training data.
        batch_first: whether the loader's inputs are (B, T, ...), as most have them, or images (B, ...) for all steps,
            instead of (T, B, ...). It is an error if the number of labels shows the other order. The module itself may
            take either: a call with a batch shows which.
        input_shape: shape of the input of one sample at one step, such as (1, 28, 28), if the module takes another
            than the loader gives.
        seed: seed of the initialiser's draws.

    Attributes:
        findings: what the initialisation missed, printed with its summary; None before it.

    Example:
        >>> Trainer(callbacks=[InitCallback(Identity(), "net", batch_first=True)])  # doctest: +SKIP
    """

    def __init__(
        self,
        init: Initialiser,
        module: str = "",
        *,
        batches: int = 4,
        batch_first: bool = False,
        input_shape: int | tuple[int, ...] | None = None,
        seed: int = 0,
    ) -> None:
        if not isinstance(init, Initialiser):
            raise TypeError(f"init must be an initialiser, such as Identity(), got {type(init).__name__}.")
        self.initialiser = init
        self.module = module
        self.batches = whole("batches", batches)
        self.batch_first = batch_first
        self.input_shape = input_shape
        self.seed = seed
        self.findings: tuple[Finding, ...] | None = None
        self._batches: list[Any] = []
        self._reading: Reading | None = None  # of this training: made once, as it runs the module on a batch

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Initialise the network, unless training goes on from a checkpoint; log its radii through time and depth."""
        refuse_other_strategies(self, trainer, "; initialise beforehand")
        # A training that goes on from a checkpoint needs the inputs, too: radii are measured on the first of them.
        loader: Any = trainer.train_dataloader
        self._batches = list(islice(loader, self.batches))
        self._reading = None
        if trainer.global_step == 0:  # else it goes on from a checkpoint
            if trainer.world_size > 1:
                parallel: Any = trainer.strategy.model
                self.findings = call_on_rank_0(parallel, lambda: self._initialise(pl_module))
            else:
                self.findings = self._initialise(pl_module)
            report = self.findings
            if not isinstance(report, InitReport):  # an initialiser of the user may return a plain tuple
                report = InitReport(report, title=str(self.initialiser))
            pl_module.print(report)
        for logger in trainer.loggers:  # log_dict would wait for the end of the epoch
            logger.log_metrics(self._radii(pl_module), step=trainer.global_step)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the radii of each layer through time and depth."""
        pl_module.log_dict(self._radii(pl_module))

    def _initialise(self, pl_module: LightningModule) -> tuple[Finding, ...]:
        """Initialise the network on the inputs, and return what the initialiser missed."""
        reading = self._read(pl_module)
        inputs = [reading.taken(batch) for batch in self._batches]
        apply: Any = self.initialiser.apply  # declared for a Network; its decorator wraps any other module
        return apply(reading.net, inputs, seed=self.seed)

    def _read(self, pl_module: LightningModule) -> Reading:
        """Return how the module reads the batches."""
        if self._reading is None:
            self._reading = Reading(self, pl_module, self._batches[0])
        return self._reading

    def _radii(self, pl_module: LightningModule) -> dict[str, float]:
        """Measure the spectral radii of each layer, means over steps and samples, by the names under which they go."""
        reading = self._read(pl_module)
        x = reading.read(self._batches[0])[:, :SAMPLES]
        profile = radius_profile(reading.reader.network, x, steps=min(STEPS, len(x)))
        radii = {}
        for direction, means in (("time", profile.time_mean), ("depth", profile.depth_mean)):
            for layer, mean in enumerate(means.tolist(), start=1):
                radii[f"radius_{direction}_{layer}"] = mean
        return radii


class Flossing(Callback):
    r"""Pull the Lyapunov exponents of a model to a target while it trains ("gradient flossing").

    After every k-th update the first optimizer makes one more, by the gradient of weight times the mean of
    :math:`(\lambda - \lambda^*)^2` (:func:`neurolsc.stability.exponent_loss`), measured on 8 samples of the batch and
    clipped to a norm of 1. If an exploding gradient of the loss were added to it, clipping would leave nothing of it.
    Gradients of the loss stay as they are. With the strategy ``"ddp"`` it is the mean gradient of all ranks; other
    strategies of several processes are refused.

    Args:
        weight: weight of the squared distance.
        target: :math:`\lambda^*`, in nats per step.
        every: k, counted in the trainer's updates: batches whose gradients are accumulated make one together.
        module: as in :class:`InitCallback`.
        batch_first: as in :class:`InitCallback`; True if inputs are (B, T, N).
        input_shape: as in :class:`InitCallback`.

    Source: Engelken, arXiv:2312.17306.

    Example:
        >>> Trainer(callbacks=[Flossing(0.1, module="net", batch_first=True)])  # doctest: +SKIP
    """

    def __init__(
        self,
        weight: float,
        target: float = 0.0,
        *,
        every: int = 10,
        module: str = "",
        batch_first: bool = False,
        input_shape: int | tuple[int, ...] | None = None,
    ) -> None:
        self.weight = number("weight", weight)
        self.target = target
        self.every = whole("every", every)
        self.module = module
        self.batch_first = batch_first
        self.input_shape = input_shape
        self._reading: Reading | None = None  # of this training
        self._updates = 0  # those that the trainer had made at the last batch

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Forget how the module of an earlier training reads batches; start from the updates made before."""
        refuse_other_strategies(self, trainer)
        self._reading = None
        self._updates = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Make the update, if the batch ended in a k-th one."""
        before = self._updates
        self._updates = trainer.global_step
        if self._updates // self.every == before // self.every:
            return  # none yet, or not the k-th
        if self._reading is None:
            self._reading = Reading(self, pl_module, batch)
        x = self._reading.read(batch)[:, :FLOSSED]
        loss = self.weight * exponent_loss(self._reading.reader.network, x, self.target, seed=trainer.global_step)
        optimizer = trainer.optimizers[0]
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        held = [parameter.grad for parameter in parameters]  # those of the loss, put aside
        for parameter in parameters:
            parameter.grad = None
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        # not by backward(), which would call the hooks of DistributedDataParallel
        for parameter, gradient in zip(trained, grad(loss, trained, allow_unused=True), strict=True):
            if gradient is not None:
                own = gradient.clone(memory_format=torch.contiguous_format)  # two parameters may share a gradient
                parameter.grad = trainer.strategy.reduce(own, reduce_op="mean")
        clip_grad_norm_(trained, max_norm=1.0)
        optimizer.step()
        for parameter, gradient in zip(parameters, held, strict=True):
            parameter.grad = gradient


class MonitorCallback(Callback):
    """Count the updates of a training in a :class:`neurolsc.Monitor`, with the loss of the last batch of each.

    Args:
        monitor: a monitor of the network in the LightningModule.

    Example:
        >>> Trainer(callbacks=[MonitorCallback(Monitor(model.net, x, y, loss="count"))])  # doctest: +SKIP
    """

    def __init__(self, monitor: Monitor) -> None:
        if not isinstance(monitor, Monitor):
            raise TypeError(f"monitor must be a neurolsc.Monitor, got {type(monitor).__name__}.")
        self.monitor = monitor
        self._updates = 0  # those that the trainer had made at the last batch

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start from the updates that the trainer has made before, in its checkpoint: they are not counted anew."""
        self._updates = trainer.global_step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count an update, if the batch ended in one."""
        if trainer.global_step == self._updates:
            return  # no update yet: gradients of several batches are summed for one
        self._updates = trainer.global_step
        loss = outputs.get("loss")  # None if the step of the module returned none
        if loss is not None:
            loss = loss * trainer.accumulate_grad_batches  # by which the trainer has divided it
        self.monitor.step(loss, scaler=getattr(trainer.precision_plugin, "scaler", None))
