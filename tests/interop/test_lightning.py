"""The callback in a real Lightning training."""

import csv

import pytest
import snntorch as snn
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from neurolsc import LIF, Network, radius_profile, wrap
from neurolsc.initialisers import LSC, Relay
from neurolsc.interop.lightning import Diagnosing, Starting
from neurolsc.tasks import cross_entropy

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # inside Lightning
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class Classifier(LightningModule):
    """An LSTM read out at the last step."""

    def __init__(self, lr: float = 0.0) -> None:
        super().__init__()
        self.net = nn.ModuleDict({"lstm": nn.LSTM(6, 16, batch_first=True), "out": nn.Linear(16, 3)})
        self.lr = lr

    def training_step(self, batch, _):
        x, y = batch
        logits = self.net["out"](self.net["lstm"](x)[0][:, -1])
        return nn.functional.cross_entropy(logits, y)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)


class OfSnnTorch(Classifier):
    """Layers of snnTorch, at a learning rate of 0."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 16), snn.Leaky(0.9), nn.Linear(16, 16), snn.Leaky(0.9), nn.Linear(16, 3))

    def training_step(self, batch, _):
        return self.net[0](batch[0]).sum()


def fit(model: LightningModule, callback: Callback, folder, **settings) -> Trainer:
    data = TensorDataset(torch.randn(32, 10, 6), torch.randint(3, (32,)))
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu", "log_every_n_steps": 1}
    trainer = Trainer(default_root_dir=folder, logger=CSVLogger(folder), callbacks=[callback], **quiet, **settings)
    trainer.fit(model, DataLoader(data, batch_size=16))
    return trainer


def rows(trainer: Trainer) -> list[dict[str, str]]:
    with open(f"{trainer.logger.log_dir}/metrics.csv") as file:
        return list(csv.DictReader(file))


def test_the_callback_pretrains_before_the_first_epoch_and_logs_radii(tmp_path):
    model = Classifier()
    callback = Starting(LSC(0.5, max_steps=60, direction="time"), "net", batch_first=True)
    trainer = fit(model, callback, tmp_path, max_epochs=2, enable_checkpointing=False)
    assert callback.findings == ()
    profile = radius_profile(wrap(model.net), torch.randn(10, 32, 6))
    assert profile.time_mean.item() == pytest.approx(0.5, abs=0.06)
    logged = [row for row in rows(trainer) if row["radius_time_1"]]
    assert len(logged) == 3  # before the first step and after two epochs, at a learning rate of 0
    for row in logged:
        assert float(row["radius_time_1"]) == pytest.approx(0.5, abs=0.06)
        assert float(row["radius_depth_1"]) > 0
    assert trainer.callback_metrics["radius_time_1"] == pytest.approx(float(logged[-1]["radius_time_1"]))


def test_any_start_is_applied_before_the_first_epoch_to_the_users_own_layers(tmp_path, capsys):
    torch.manual_seed(0)
    model = OfSnnTorch()
    callback = Starting(Relay(), "net", batch_first=True)
    trainer = fit(model, callback, tmp_path, max_epochs=1, enable_checkpointing=False)
    profile = radius_profile(wrap(model.net), torch.randn(10, 64, 6))
    assert profile.firing_rate.tolist() == pytest.approx([0.15, 0.15], abs=0.03)
    assert callback.findings == ()
    assert "spikes per neuron and step" in capsys.readouterr().out
    assert len([row for row in rows(trainer) if row["radius_time_2"]]) == 2
    with pytest.raises(TypeError, match="start must be an initialiser, such as Relay"):
        Starting("Relay()", "net")


def test_a_loader_whose_labels_say_that_it_is_batch_first_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"16 labels and inputs \(16, 10, 6\): give Starting\(..., batch_first=True\)"):
        fit(Classifier(), Starting(Relay(), "net"), tmp_path, max_epochs=1, enable_checkpointing=False)


def test_a_resumed_training_is_not_started_again(tmp_path):
    model = Classifier(lr=0.1)
    trainer = fit(model, Starting(LSC(0.5, max_steps=3), "net", batch_first=True), tmp_path, max_epochs=1)
    path = f"{tmp_path}/last.ckpt"
    trainer.save_checkpoint(path)
    again, callback = Classifier(lr=0.0), Starting(LSC(0.5, max_steps=3), "net", batch_first=True)
    data = DataLoader(TensorDataset(torch.randn(32, 10, 6), torch.randint(3, (32,))), batch_size=16)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu", "logger": False}
    Trainer(default_root_dir=tmp_path, max_epochs=2, callbacks=[callback], **quiet).fit(again, data, ckpt_path=path)
    assert callback.findings is None


class Spiking(Classifier):
    """A network of ours."""

    def __init__(self, threshold: float) -> None:
        super().__init__(lr=0.01)
        self.net = Network([LIF(6, 12, threshold=0.1), LIF(12, 12, threshold=threshold)], 3)

    def training_step(self, batch, _):
        x, y = batch
        return cross_entropy(self.net(x.transpose(0, 1)), y)


def test_a_network_is_diagnosed_while_it_trains(tmp_path, capsys):
    model, callback = Spiking(threshold=1e6), Diagnosing("net", every=2, batch_first=True, samples=2, steps=2)
    trainer = fit(model, callback, tmp_path, max_epochs=3, enable_checkpointing=False)
    assert list(callback.diagnoses) == [0, 2]
    for diagnosis in callback.diagnoses.values():
        assert [(f.layer, f.name) for f in diagnosis if f.name == "dead layer"] == [(2, "dead layer")]
        assert diagnosis.measurements.layers[0].activity.rate > 0
        assert diagnosis.measurements.loss is not None
    assert capsys.readouterr().out.count("layer 2: never fires") == 1
    logged = [row for row in rows(trainer) if row["findings"]]
    assert len(logged) == 2
    assert float(logged[0]["rate_1"]) == pytest.approx(callback.diagnoses[0].measurements.layers[0].activity.rate)
    assert float(logged[-1]["rate_2"]) == 0
