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
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import multiprocessing, nn
from torch.utils.data import DataLoader, TensorDataset

from neurolsc import LIF, Monitor, Network, initialize, radius_profile, wrap
from neurolsc.callbacks.lightning import Flossing, InitCallback, MonitorCallback
from neurolsc.init import LSC, Identity, Relay
from neurolsc.stability import lyapunov_exponents
from tests.interop.test_ranks import free_port

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # inside Lightning
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class UpperFirst(nn.Module):
    """Two layers of snnTorch, of which the upper one is defined first."""

    axis = 0  # of time

    def __init__(self) -> None:
        super().__init__()
        self.fc2, self.lif2 = nn.Linear(16, 16), snn.Leaky(0.9)
        self.fc1, self.lif1 = nn.Linear(6, 16), snn.Leaky(0.9)
        self.out = nn.Linear(16, 3)

    def step(self, x, mem1, mem2):
        spk1, mem1 = self.lif1(self.fc1(x), mem1)
        spk2, mem2 = self.lif2(self.fc2(spk1), mem2)
        return self.out(spk2), mem1, mem2

    def forward(self, x):
        mem1, mem2, out = self.lif1.init_leaky(), self.lif2.init_leaky(), []
        for now in x.unbind(self.axis):
            y, mem1, mem2 = self.step(now, mem1, mem2)
            out.append(y)
        return torch.stack(out, self.axis)


class BatchFirst(UpperFirst):
    axis = 1


class Static(UpperFirst):
    def forward(self, x):
        return super().forward(x.expand(10, *x.shape))


class OneStep(UpperFirst):
    """A call is one step, from the states that its layers keep."""

    def __init__(self) -> None:
        super().__init__()
        self.lif1, self.lif2 = snn.Leaky(0.9, init_hidden=True), snn.Leaky(0.9, init_hidden=True)

    def forward(self, x):
        return self.out(self.lif2(self.fc2(self.lif1(self.fc1(x)))))


class Flat(UpperFirst):
    """Reads images, of which the loader has the pixels in a row."""

    def forward(self, x):
        assert x.shape[2:] == (2, 3)
        return super().forward(x.flatten(2))


class Skip(UpperFirst):
    def step(self, x, mem1, mem2):
        spk1, mem1 = self.lif1(self.fc1(x), mem1)
        spk2, mem2 = self.lif2(self.fc2(spk1) + spk1, mem2)
        return self.out(spk2), mem1, mem2


class Holds(LightningModule):
    """Holds a network, and trains nothing."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.unused = nn.Parameter(torch.zeros(()))

    def training_step(self, batch, _):
        return 0 * self.unused

    def configure_optimizers(self):
        return torch.optim.SGD([self.unused], lr=0.0)


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


class Trained(Model):
    """Its loss has no gradient: nothing but flossing moves it."""

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.1)

    def training_step(self, batch, _):
        return 0 * self.net[0](batch[0]).sum()


class Learns(Model):
    """Notes its losses, and the gradient of each update."""

    def __init__(self, skipped: int | None = None) -> None:
        super().__init__()
        self.skipped = skipped  # the batch of which it returns no loss
        self.losses: list[float] = []
        self.gradients: list[torch.Tensor | None] = []

    def training_step(self, batch, i):
        loss = self.net[0](batch[0]).square().mean()
        self.losses.append(loss.item())
        return None if i == self.skipped else loss

    def on_before_optimizer_step(self, optimizer):
        self.gradients.append(self.net[0].weight.grad)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=0.0)  # it counts the updates of a parameter


class ByHand(Learns):
    """Accumulates the gradients of two batches by hand, and sets them to 0 after an update instead of before one."""

    automatic_optimization = False

    def training_step(self, batch, i):
        self.manual_backward(super().training_step(batch, i))
        if i % 2:
            optimizer = self.optimizers()
            optimizer.step()
            optimizer.zero_grad()


def fit(
    model: LightningModule, callback: Callback, folder, ckpt_path: Path | None = None, x=None, **settings
) -> Trainer:
    x = torch.randn(32, 10, 6) if x is None else x
    data = TensorDataset(x, torch.randint(3, (len(x),)))
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


once = {"max_epochs": 1, "enable_checkpointing": False}


@pytest.mark.filterwarnings("error::neurolsc.WrappedNeuronWarning")
@pytest.mark.parametrize(
    ("kind", "shape", "given", "settings"),
    [
        (UpperFirst, (10, 6), lambda x: x.transpose(0, 1), {}),
        (BatchFirst, (10, 6), lambda x: x, {}),
        (OneStep, (10, 6), lambda x: x.transpose(0, 1), {}),
        (Static, (6,), lambda x: x, {}),
        (Flat, (10, 6), lambda x: x.transpose(0, 1).unflatten(2, (2, 3)), {"input_shape": (2, 3)}),
        # as many steps as samples
        (UpperFirst, (16, 6), lambda x: x.transpose(0, 1), {}),
        (BatchFirst, (16, 6), lambda x: x, {}),
    ],
)
def test_the_callback_sets_what_initialize_sets_whatever_the_module_takes(
    kind, shape, given, settings, tmp_path, capsys
):
    x = 3 * torch.rand(32, *shape)
    by_hand, net = kind(), kind()
    net.load_state_dict(by_hand.state_dict())
    before = by_hand.fc2.weight.clone()
    report = initialize(by_hand, given(x[:16]))
    assert not torch.equal(by_hand.fc2.weight, before), "the upper layer is the identity"
    callback = InitCallback(Identity(), "net", batch_first=True, **settings)
    trainer = fit(Holds(net), callback, tmp_path, x=x, **once)
    for name, value in by_hand.named_parameters():
        torch.testing.assert_close(net.get_parameter(name), value)
    assert str(report) in capsys.readouterr().out
    profile = radius_profile(by_hand, given(x[:4]), steps=8)
    logged = float(next(row for row in rows(trainer) if row["radius_depth_2"])["radius_depth_2"])
    assert logged == pytest.approx(profile.depth_mean[1].item(), rel=1e-4)


@pytest.mark.parametrize("callback", [InitCallback(Identity(), "net"), Flossing(1.0, module="net", every=1)])
def test_a_compiled_network_is_read_as_the_one_inside_without_a_run_of_the_compiler(callback, tmp_path):
    def backend(graph, inputs):
        raise AssertionError("compiled")

    callback.batch_first = True
    net, x = Network([LIF(6, 16), LIF(16, 16)], 3), torch.rand(32, 10, 6)
    trainer = fit(Holds(torch.compile(net, backend=backend)), callback, tmp_path, x=x, **once)
    reading = callback._reading
    assert reading.read([x[:5], torch.zeros(5)]).shape == (10, 5, 6)
    assert reading.net is net
    if isinstance(callback, InitCallback):
        profile = radius_profile(net, x[:4].transpose(0, 1), steps=8)
        logged = float(next(row for row in rows(trainer) if row["radius_time_2"])["radius_time_2"])
        assert logged == pytest.approx(profile.time_mean[1].item(), rel=1e-4)


def test_a_module_in_the_order_of_use_alone_is_read_by_its_images(tmp_path):
    """Layers that return tuples cannot be called in a Sequential."""
    layers = [nn.Conv2d(1, 2, 3), snn.Leaky(0.9), nn.Flatten(), nn.Linear(32, 3), snn.Leaky(0.9)]
    callback = InitCallback(Identity(), "net", batch_first=True)
    fit(Holds(nn.Sequential(*layers)), callback, tmp_path, x=torch.rand(32, 10, 1, 6, 6), **once)
    assert [layer.done for layer in callback.findings.layers] == ["drawn", "drawn"]
    listed = InitCallback(Identity(), "net", batch_first=True, input_shape=(1, 6, 6))
    fit(Holds(nn.ModuleList(layers)), listed, tmp_path, x=torch.rand(32, 10, 36), **once)
    assert [layer.done for layer in listed.findings.layers] == ["drawn", "drawn"]


@pytest.mark.parametrize("callback", [InitCallback(Identity(), "net"), Flossing(1.0, module="net", every=1)])
def test_a_module_that_initialize_refuses_the_callbacks_refuse_with_the_same_words(callback, tmp_path):
    callback.batch_first = True
    net = Skip()
    with pytest.raises(ValueError) as refused:
        initialize(net, torch.rand(10, 16, 6))
    before = {name: value.clone() for name, value in net.named_parameters()}
    with pytest.raises(ValueError) as by_callback:
        fit(Holds(net), callback, tmp_path, **once)
    assert str(by_callback.value) == str(refused.value)
    for name, value in net.named_parameters():
        assert torch.equal(value, before[name])


def test_a_module_without_a_forward_is_refused_by_what_it_lacks(tmp_path):
    with pytest.raises(ValueError, match=r"the model cannot read x: Module \[Holds\] is missing the required"):
        fit(Holds(UpperFirst()), InitCallback(Identity(), batch_first=True), tmp_path, **once)


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


@pytest.mark.parametrize(("kind", "batches"), [(Learns, 1), (Learns, 2), (Learns, 3), (ByHand, 1)])
def test_flossing_leaves_accumulated_gradients_and_acts_after_every_kth_update(kind, batches, tmp_path):
    x = torch.randn(96, 10, 6)
    found = []
    for callback in (Callback(), Flossing(1.0, module="net", batch_first=True, every=2)):
        torch.manual_seed(0)
        model = kind()
        trainer = fit(model, callback, tmp_path, x=x, accumulate_grad_batches=batches, **once)
        found.append(model.gradients)
    torch.testing.assert_close(found[1], found[0])
    flossed = trainer.optimizers[0].state[model.net[1].beta]["step"]  # the loss does not depend on it
    assert flossed == trainer.global_step // 2 > 0


def test_flossing_clips_without_the_gradients_of_parameters_that_are_not_trained(tmp_path):
    class Partly(Trained):
        def training_step(self, batch, i):
            return super().training_step(batch, i) + 1e9 * self.net[3].beta

        def configure_optimizers(self):
            self.net[0].weight.requires_grad_(False)
            return torch.optim.SGD([self.net[0].weight, self.net[1].beta], lr=0.1)

    model = Partly()
    fit(model, Flossing(1e6, module="net", batch_first=True, every=2), tmp_path, **once)
    assert abs(model.net[1].beta.item() - 0.9) == pytest.approx(0.1, rel=1e-3)


@pytest.mark.parametrize("batches", [1, 2, 4])
def test_a_monitor_gets_the_loss_that_the_module_returned_however_many_are_accumulated(batches, tmp_path):
    model = Learns()
    monitor = Monitor(model.net, torch.randn(10, 16, 6), torch.randint(3, (16,)), loss="membrane", every=1)
    fit(model, MonitorCallback(monitor), tmp_path, accumulate_grad_batches=batches, **once)
    of_updates = model.losses if batches == 1 else model.losses[-1:]
    assert [row["loss"] for row in monitor.rows[1:]] == pytest.approx(of_updates)


@pytest.mark.filterwarnings("ignore:`training_step` returned `None`")
def test_a_monitor_counts_an_update_of_which_the_module_returned_no_loss(tmp_path):
    model = Learns(skipped=0)
    monitor = Monitor(model.net, torch.randn(10, 16, 6), torch.randint(3, (16,)), loss="membrane", every=1)
    fit(model, MonitorCallback(monitor), tmp_path, **once)
    assert ["loss" in row for row in monitor.rows] == [False, False, True]


def test_a_monitor_counts_the_updates_of_a_training_with_accumulated_gradients(tmp_path):
    model = Model()
    monitor = Monitor(model.net, torch.randn(10, 16, 6), torch.randint(3, (16,)), loss="membrane", every=2)
    fit(model, MonitorCallback(monitor), tmp_path, max_epochs=8, enable_checkpointing=False, accumulate_grad_batches=2)
    assert monitor.updates == 8
    assert [row["update"] for row in monitor.rows] == [0, 2, 4, 6, 8]
    assert all("loss" in row for row in monitor.rows[1:])
    with pytest.raises(TypeError, match=r"monitor must be a neurolsc\.Monitor, got Model"):
        MonitorCallback(model)


def in_parallel(rank: int, port: int, folder: Path, kind: type[Model], callback: Callback, strategy: Any) -> None:
    """What a process of a training by two does."""
    torch.set_num_threads(1)
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    places = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test"}
    os.environ.update({name: str(value) for name, value in (ranks | places).items()})
    torch.manual_seed(rank)  # data of its own, on which another initialisation follows
    model = kind()
    try:
        fit(model, callback, folder, enable_checkpointing=False, strategy=strategy, devices=2, max_epochs=3)
        report = str(getattr(callback, "findings", None))
    except ValueError as error:
        report = str(error)
    torch.save((model.net.state_dict(), report), folder / f"{rank}.pt")


def by_two(
    folder: Path, kind: type[Model], callback: Callback, strategy: Any = "ddp_find_unused_parameters_true"
) -> list[tuple[dict[str, torch.Tensor], str]]:
    """Return what both ranks hold after a training, and what was said there."""
    arguments = (free_port(), folder, kind, callback, strategy)
    multiprocessing.spawn(in_parallel, arguments, nprocs=2)  # type: ignore[attr-defined]
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.mark.long  # tests/interop/test_ranks.py shows the same without Lightning
def test_in_two_processes_all_ranks_begin_with_the_values_of_rank_0(tmp_path):
    (first, report), (second, other) = by_two(tmp_path, Model, InitCallback(Relay(), "net", batch_first=True))
    assert report == other
    assert not torch.equal(first["1.threshold"], torch.tensor(0.1)), "it was initialised"
    for name, value in first.items():
        if "mem" not in name:  # the state of another batch
            torch.testing.assert_close(value, second[name], rtol=0, atol=0)


class Recurrent(Trained):
    """Through its recurrent weights, exponents depend on the samples."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Network([LIF(6, 8)], 3)

    def training_step(self, batch, _):
        return 0 * self.net(batch[0].transpose(0, 1)).sum()


@pytest.mark.long
def test_in_two_processes_flossing_moves_the_weights_of_all_ranks_alike(tmp_path):
    flossing = Flossing(1.0, -0.5, every=1, module="net", batch_first=True)
    (first, _), (second, _) = by_two(tmp_path, Recurrent, flossing, "ddp")
    torch.manual_seed(0)
    assert not torch.equal(first["cells.0.w_rec"], Recurrent().net.cells[0].w_rec), "they were moved"
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


class Sharded(Model):
    """May be trained by a strategy in which a process holds a part of the module."""

    def configure_model(self):
        pass


@pytest.mark.long
@pytest.mark.parametrize("callback", [InitCallback(Relay(), "net"), Flossing(1.0, module="net")])
def test_other_strategies_of_several_processes_are_refused_by_name(callback, tmp_path):
    refused = f"{type(callback).__name__} works in one process or with strategy='ddp', got ModelParallelStrategy with 2"
    for _, said in by_two(tmp_path, Sharded, callback, ModelParallelStrategy()):
        assert said.startswith(refused)
