"""Pre-training and radii as a callback of Lightning."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch import Tensor, nn

from neurolsc.interop.wrap import wrap
from neurolsc.network import Network
from neurolsc.stability.lsc.pretrain import PretrainResult, pretrain
from neurolsc.stability.lsc.targets import Target
from neurolsc.stability.profile import radius_profile

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ImportError as error:
    raise ImportError("LSCPretraining needs Lightning: pip install neurolsc[lightning]") from error


class LSCPretraining(Callback):
    """Pre-train a model before its first epoch, and log its radii after every epoch.

    Radii are logged as ``radius_time_1``, ``radius_depth_1``, ... (layers counted from 1), once
    before the first step and after each epoch. A run that goes on from a checkpoint is not
    pre-trained again. For training in one process: several would each pre-train on their own share
    of the data and start from different weights.

    Args:
        module: name of the attribute of the LightningModule that holds the network, a
            :class:`neurolsc.Network` or what :func:`neurolsc.wrap` takes; dotted names reach
            further down. Empty: the LightningModule itself.
        target: the radius, as in :func:`neurolsc.pretrain`.
        batches: pre-train on so many batches of the training data, gone through again and again.
        batch_first: whether the inputs are (B, T, ...) instead of (T, B, ...).
        input_shape: shape of one sample of a step's input, as in :func:`neurolsc.wrap`.
        steps: time steps of a batch at which the logged radii are measured.
        samples: samples at which they are measured.
        settings: more arguments of :func:`neurolsc.pretrain`, such as ``max_steps`` or ``seed``.

    Attributes:
        result: what pre-training did; None before it.

    Raises:
        ImportError: when this file is imported without Lightning; the message names the extra to
            install.

    Example:
        >>> Trainer(callbacks=[LSCPretraining("net", target=0.5)])  # doctest: +SKIP
    """

    def __init__(
        self,
        module: str = "",
        *,
        target: Target = 1.0,
        batches: int = 4,
        batch_first: bool = False,
        input_shape: int | tuple[int, ...] | None = None,
        steps: int = 8,
        samples: int = 4,
        **settings: Any,
    ) -> None:
        self.target: Target = target
        self.module, self.batches = module, batches
        self.batch_first, self.input_shape = batch_first, input_shape
        self.steps, self.samples = steps, samples
        self.settings: dict[str, Any] = {"progress": False} | settings
        self.result: PretrainResult | None = None
        self._inputs: list[Tensor] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Pre-train, unless training goes on from a checkpoint, and log the radii.

        Raises:
            ValueError: if there is more than one process.
        """
        if trainer.world_size > 1:
            raise ValueError(
                f"LSCPretraining works in one process, got {trainer.world_size}; call pretrain beforehand."
            )
        network = self._network(pl_module)
        self._inputs = list(islice(self._frames(trainer.train_dataloader, pl_module), self.batches))
        if trainer.global_step == 0:
            self.result = pretrain(network, self._inputs, target=self.target, **self.settings)
        radii = self._radii(network)
        for logger in trainer.loggers:  # log_dict would wait for the end of the epoch
            logger.log_metrics(radii, step=trainer.global_step)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log the radii."""
        pl_module.log_dict(self._radii(self._network(pl_module)))

    def _network(self, pl_module: LightningModule) -> Network:
        module: nn.Module = pl_module.get_submodule(self.module)
        return module if isinstance(module, Network) else wrap(module, input_shape=self.input_shape)

    def _frames(self, loader: Any, pl_module: LightningModule) -> Iterator[Tensor]:
        """The inputs of the training data, flat and time first, where the model is."""
        for batch in loader:
            x: Tensor = batch[0] if isinstance(batch, tuple | list) else batch
            x = x.transpose(0, 1) if self.batch_first else x
            yield x.flatten(2).to(pl_module.device)

    def _radii(self, network: Network) -> dict[str, float]:
        x = self._inputs[0][:, : self.samples]
        profile = radius_profile(network, x, steps=min(self.steps, len(x)))
        means = {"time": profile.time_mean.tolist(), "depth": profile.depth_mean.tolist()}
        return {f"radius_{d}_{i}": mean for d in means for i, mean in enumerate(means[d], start=1)}
