"""A start with its radii, and a diagnosis, as callbacks of Lightning."""

import math
from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch import Tensor, nn

from neurolsc.diagnosis import Diagnosis, diagnose
from neurolsc.initialisers import Initialiser
from neurolsc.interop.wrap import wrap
from neurolsc.network import Network
from neurolsc.stability.findings import Finding
from neurolsc.stability.profile import radius_profile
from neurolsc.tasks import Classification, Task
from neurolsc.validation import whole

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError("the callbacks need Lightning: pip install 'lightning>=2.4'") from error


STEPS, SAMPLES = 8, 4  # of a batch, at which the logged radii are measured


class _OnNetwork(Callback):
    """Base of the callbacks: finds the network in the model, and the axes of its inputs."""

    def __init__(self, module: str, batch_first: bool, input_shape: int | tuple[int, ...] | None) -> None:
        self.module, self.batch_first, self.input_shape = module, batch_first, input_shape

    def network(self, pl_module: LightningModule) -> Network:
        """The network of a model."""
        module: nn.Module = pl_module.get_submodule(self.module)
        return module if isinstance(module, Network) else wrap(module, input_shape=self.input_shape)

    def batches(self, trainer: Trainer, pl_module: LightningModule) -> Iterator[tuple[Tensor, ...]]:
        """The training data, inputs flat and time first, where the model is."""
        loader: Any = trainer.train_dataloader
        for batch in loader:
            x, *more = batch if isinstance(batch, tuple | list) else (batch,)
            samples, other = x.shape[:2] if self.batch_first else x.shape[1::-1]
            if more and isinstance(more[0], Tensor) and more[0].ndim == 1 and other == len(more[0]) != samples:
                raise ValueError(
                    f"the training data have {len(more[0])} labels and inputs {tuple(x.shape)}: give "
                    f"{type(self).__name__}(..., batch_first={not self.batch_first})."
                )
            x = x.transpose(0, 1) if self.batch_first else x
            yield tuple(part.to(pl_module.device) for part in (x.flatten(2), *more))

    def log_at_once(self, trainer: Trainer, values: dict[str, float]) -> None:
        """Log before the first step; ``log_dict`` would wait for the end of the epoch."""
        for logger in trainer.loggers:
            logger.log_metrics(values, step=trainer.global_step)


class Starting(_OnNetwork):
    """Start a model before its first epoch, and log its radii before the first step and after every epoch.

    Radii are logged as ``radius_time_1``, ``radius_depth_1``, ... (layers counted from 1). A run that goes on from a
    checkpoint is not started again. Training in several processes is refused: each would start from other weights.

    Args:
        start: any of :mod:`neurolsc.initialisers`, such as ``Relay()``.
        module: name of the attribute of the LightningModule that holds the network, a :class:`neurolsc.Network` or what
            :func:`neurolsc.wrap` takes; dotted names reach further down. Empty: the LightningModule itself.
        batches: start on so many batches of the training data.
        batch_first: whether the inputs are (B, T, ...), as most loaders have them, instead of (T, B, ...); it is an
            error if the number of labels shows the other.
        input_shape: shape of one sample of a step's input, as in :func:`neurolsc.wrap`.
        seed: of what the start draws.

    Attributes:
        findings: what the start missed, printed with its summary; None before it.

    Example:
        >>> Trainer(callbacks=[Starting(Relay(), "net", batch_first=True)])  # doctest: +SKIP
    """

    def __init__(
        self,
        start: Initialiser,
        module: str = "",
        *,
        batches: int = 4,
        batch_first: bool = False,
        input_shape: int | tuple[int, ...] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(module, batch_first, input_shape)
        if not isinstance(start, Initialiser):
            raise TypeError(f"start must be an initialiser, such as Relay(), got {type(start).__name__}.")
        self.start_by, self.seed = start, seed
        self.count = whole("batches", batches)
        self.findings: tuple[Finding, ...] | None = None
        self._inputs: list[Tensor] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start, unless training goes on from a checkpoint, and log the radii."""
        if trainer.world_size > 1:
            raise ValueError(
                f"{type(self).__name__} works in one process, got {trainer.world_size}; start the network beforehand."
            )
        network = self.network(pl_module)
        self._inputs = [x for x, *_ in islice(self.batches(trainer, pl_module), self.count)]
        if trainer.global_step == 0:
            self.findings = self.start_by.apply(network, self._inputs, seed=self.seed)
            for line in filter(None, (getattr(self.findings, "summary", ""), *self.findings)):
                pl_module.print(line)
        self.log_at_once(trainer, self._radii(network))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the radii."""
        pl_module.log_dict(self._radii(self.network(pl_module)))

    def _radii(self, network: Network) -> dict[str, float]:
        x = self._inputs[0][:, :SAMPLES]
        profile = radius_profile(network, x, steps=min(STEPS, len(x)))
        means = {"time": profile.time_mean.tolist(), "depth": profile.depth_mean.tolist()}
        return {f"radius_{d}_{i}": mean for d in means for i, mean in enumerate(means[d], start=1)}


class Diagnosing(_OnNetwork):
    """Diagnose a network while it trains: before the first step and after every few epochs.

    Logged are the number of ``findings`` and, of each layer counted from 1, ``rate_1``, ``exponent_1`` and
    ``gradient_1``, where these are known. A finding is printed when it is first made. The batch is always the first one
    of the training data.

    Args:
        module: as in :class:`Starting`, like the next two.
        batch_first: the same.
        input_shape: the same.
        every: epochs between two diagnoses.
        task: the loss at the batch's targets; None: nothing that needs a loss is measured.
        settings: more arguments of :func:`neurolsc.diagnose`, such as ``samples``.

    Attributes:
        diagnoses: all that were made, by epochs done.

    Example:
        >>> Trainer(callbacks=[Diagnosing("net", every=5)])  # doctest: +SKIP
    """

    def __init__(
        self,
        module: str = "",
        *,
        every: int = 1,
        task: Task | None = Classification(),
        batch_first: bool = False,
        input_shape: int | tuple[int, ...] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(module, batch_first, input_shape)
        self.every, self.settings = whole("every", every), settings
        self.task = task
        self.diagnoses: dict[int, Diagnosis] = {}

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Diagnose before the first step."""
        self.log_at_once(trainer, self._diagnose(trainer, pl_module, trainer.current_epoch))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Diagnose after some of the epochs."""
        done = trainer.current_epoch + 1
        if done % self.every == 0:
            pl_module.log_dict(self._diagnose(trainer, pl_module, done))

    def _diagnose(self, trainer: Trainer, pl_module: LightningModule, epoch: int) -> dict[str, float]:
        batch = next(self.batches(trainer, pl_module))
        with_task = {} if self.task is None else {"task": self.task}
        found = diagnose(self.network(pl_module), batch if self.task else batch[:1], **with_task, **self.settings)
        known = {(f.layer, f.name) for earlier in self.diagnoses.values() for f in earlier}
        for finding in found:
            if (finding.layer, finding.name) not in known:
                pl_module.print(f"epoch {epoch}: {finding}")
        self.diagnoses[epoch] = found
        logged = {"findings": float(len(found))}
        for i, layer in enumerate(found.measurements.layers, start=1):
            values = {"rate": layer.activity.rate, "exponent": layer.exponent, "gradient": layer.gradient}
            logged |= {f"{k}_{i}": v for k, v in values.items() if v is not None and math.isfinite(v)}
        return logged
