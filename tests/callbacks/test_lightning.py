"""The callback in a real Lightning training."""

import csv
import os
from pathlib import Path
from typing import Any

import pytest
import snntorch as snn
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import multiprocessing, nn
from torch.utils.data import DataLoader, TensorDataset

from neurolsc import Monitor, radius_profile, wrap
from neurolsc.callbacks.lightning import Flossing, InitCallback, MonitorCallback
from neurolsc.init import LSC, Relay
from neurolsc.stability import lyapunov_exponents
from tests.interop.test_ranks import free_port

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # inside Lightning
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class Model(LightningModule):
    """Layers of snnTorch, of which the first Linear alone is trained, at a learning rate of 0."""

    def __init__(self) -> None:
        super().__init__()
        leaky = [snn.Leaky(0.9, threshold=0.1, learn_beta=True) for _ in "ab"]
        self.net = nn.Sequential(nn.Linear(6, 16), leaky[0], nn.Linear(16, 16), leaky[1], nn.Linear(16, 3))

    def training_step(self, batch, _):
        return self.net[0](batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.0)


def fit(model: LightningModule, callback: Callback, folder, ckpt_path: Path | None = None, **settings) -> Trainer:
    data = TensorDataset(torch.randn(32, 10, 6), torch.randint(3, (32,)))
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu", "log_every_n_steps": 1}
    trainer = Trainer(default_root_dir=folder, logger=CSVLogger(folder), callbacks=[callback], **quiet, **settings)
    trainer.fit(model, DataLoader(data, batch_size=16), ckpt_path=ckpt_path)
    return trainer


def rows(trainer: Trainer) -> list[dict[str, str]]:
    with open(f"{trainer.logger.log_dir}/metrics.csv") as file:
        return list(csv.DictReader(file))


def test_the_callback_pretrains_before_the_first_epoch_and_logs_radii(tmp_path):
    model = Model()
    callback = InitCallback(LSC(0.5, max_steps=60, direction="time"), "net", batch_first=True)
    trainer = fit(model, callback, tmp_path, max_epochs=2, enable_checkpointing=False)
    assert callback.findings == ()
    profile = radius_profile(wrap(model.net), torch.randn(10, 32, 6))
    assert profile.time_mean.tolist() == pytest.approx([0.5, 0.5], abs=0.06)
    logged = [row for row in rows(trainer) if row["radius_time_1"]]
    assert len(logged) == 3  # before the first step and after two epochs
    for row in logged:
        assert float(row["radius_time_2"]) == pytest.approx(0.5, abs=0.06)
        assert float(row["radius_depth_1"]) > 0
    assert trainer.callback_metrics["radius_time_1"] == pytest.approx(float(logged[-1]["radius_time_1"]))


def test_a_loader_whose_labels_say_that_it_is_batch_first_is_refused_and_an_initialiser_by_name(tmp_path):
    with pytest.raises(
        ValueError, match=r"x \(16, 10, 6\) looks batch first, .* or InitCallback\(..., batch_first=True\)"
    ):
        fit(Model(), InitCallback(Relay(), "net"), tmp_path, max_epochs=1, enable_checkpointing=False)
    with pytest.raises(ValueError, match=r"or Flossing\(..., batch_first=True\)"):
        fit(Model(), Flossing(1.0, module="net", every=1), tmp_path, max_epochs=1, enable_checkpointing=False)
    with pytest.raises(TypeError, match="init must be an initialiser, such as Identity"):
        InitCallback("Relay()", "net")


def test_an_initialisation_is_printed_and_a_resumed_training_is_not_initialised_again(tmp_path, capsys):
    first, again = (InitCallback(Relay(), "net", batch_first=True) for _ in "ab")
    fit(Model(), first, tmp_path, max_epochs=1).save_checkpoint(tmp_path / "last.ckpt")
    assert first.findings == () and "spikes per neuron and step" in capsys.readouterr().out
    fit(Model(), again, tmp_path, tmp_path / "last.ckpt", max_epochs=2)
    assert again.findings is None


def test_flossing_moves_exponents_to_their_target_in_a_training_by_lightning(tmp_path):
    class Trained(Model):
        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.1)

        def training_step(self, batch, _):
            return 0 * self.net[0](batch[0]).sum()

    def exponents(model: Model) -> torch.Tensor:
        x = torch.randn(10, 32, 6, generator=torch.Generator().manual_seed(0))
        return lyapunov_exponents(wrap(model.net), x).mean(1).squeeze(1)

    torch.manual_seed(0)
    model = Trained()
    before = exponents(model)
    callback = Flossing(1.0, -0.5, every=1, module="net", batch_first=True)
    fit(model, callback, tmp_path, max_epochs=8, enable_checkpointing=False)
    assert (before + 0.5).abs().min() > 0.3
    assert (exponents(model) + 0.5).abs().max() < 0.15


def test_a_monitor_counts_the_updates_of_a_training_with_accumulated_gradients(tmp_path):
    model = Model()
    monitor = Monitor(model.net, torch.randn(10, 16, 6), torch.randint(3, (16,)), loss="membrane", every=2)
    fit(model, MonitorCallback(monitor), tmp_path, max_epochs=8, enable_checkpointing=False, accumulate_grad_batches=2)
    assert monitor.updates == 8
    assert [row["update"] for row in monitor.rows] == [0, 2, 4, 6, 8]
    assert all("loss" in row for row in monitor.rows[1:])
    with pytest.raises(TypeError, match=r"monitor must be a neurolsc\.Monitor, got Model"):
        MonitorCallback(model)


def in_parallel(rank: int, port: int, folder: Path) -> None:
    """What a process of a training by two does."""
    torch.set_num_threads(1)
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test"}
    os.environ.update({name: str(value) for name, value in (ranks | places).items()})
    torch.manual_seed(rank)  # data of its own, on which another initialisation follows
    model = Model()
    callback = InitCallback(Relay(), "net", batch_first=True)
    how: dict[str, Any] = {"strategy": "ddp_find_unused_parameters_true", "devices": 2, "max_epochs": 1}
    fit(model, callback, folder, enable_checkpointing=False, **how)
    torch.save((model.net.state_dict(), str(callback.findings)), folder / f"{rank}.pt")


@pytest.mark.slow
def test_in_two_processes_all_ranks_begin_with_the_values_of_rank_0(tmp_path):
    multiprocessing.spawn(in_parallel, (free_port(), tmp_path), nprocs=2)  # type: ignore[attr-defined]
    (first, report), (second, other) = (torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in (0, 1))
    assert report == other
    assert not torch.equal(first["1.threshold"], torch.tensor(0.1)), "it was initialised"
    for name, value in first.items():
        if "mem" not in name:  # the state of another batch
            torch.testing.assert_close(value, second[name], rtol=0, atol=0)
