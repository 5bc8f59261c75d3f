"""Trainings and pre-trainings that go on from a checkpoint: in equal bits, or not at all."""

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Subset

from neurolsc import LIF, Network, TrainResult, pretrain, train
from neurolsc.datasets import SHD, ChannelJitter, SpikeDrop, TimeStretch, collate
from neurolsc.io import read_tree, write_tree
from neurolsc.surrogate import FastSigmoid
from neurolsc.tasks import ClassPerStep
from neurolsc.training import FromTorch
from tests.patterns import CLASSES, QUIET, Leak, N, Patterns, Spy, same_bits, small_network, weights

Loader = partial(DataLoader, collate_fn=collate)
SPOKEN: dict[str, Any] = {"dt": 0.05, "channels": 70, "repeat": 1}
DATA: dict[str, Any] = {"training": Patterns(24), "validation": Patterns(12)}


def lif(reset: str = "subtract", cell: Any = LIF, **spike: Any) -> Network:
    torch.manual_seed(0)
    return Network([LIF(N, 8, threshold=0.3), cell(8, 8, reset=reset, spike=FastSigmoid(**spike))], CLASSES)


def inputs(count: int, steps: int = 12) -> list[torch.Tensor]:
    return [(torch.rand(steps, 8, N, generator=torch.Generator().manual_seed(s)) < 0.4).float() for s in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("read", [lambda data: data, partial(Loader, batch_size=4, shuffle=True, num_workers=1)])
def test_a_resumed_training_of_a_data_set_or_loader_ends_in_the_same_bits_and_history(read: Any, tmp_path: Path):
    def start() -> Network:
        torch.manual_seed(0)  # learnt numbers of a surrogate are weights and no settings
        cells = [LIF(N, 8, threshold=0.3, spike=FastSigmoid(learnable=True)), Leak(8, 4, dropout=0.5)]
        network = Network(cells, CLASSES)
        torch.seed()  # is of no consequence
        return network

    settings: dict[str, Any] = QUIET | {"training": read(Patterns(20)), "validation": read(Patterns(12))}
    settings |= {"floss": 1.0, "floss_every": 4}
    through = train(whole := start(), epochs=5, **settings)
    # of the loader 10 batches, no multiple of Lookahead's 6
    train(start(), epochs=2, checkpoint=tmp_path / "c", **settings)
    other = start()
    with torch.no_grad():
        other.readout.weight.zero_()  # what the network was before is of no consequence
    resumed = train(other, epochs=5, checkpoint=tmp_path / "c", **settings)
    assert same_bits(weights(whole), weights(other))
    for a, b in zip(through.history, resumed.history, strict=True):
        assert a | {"seconds": 0} == b | {"seconds": 0}
    assert (through.best_epoch, through.stopped_early) == (resumed.best_epoch, resumed.stopped_early)


def test_augmentations_follow_from_seed_and_epoch(tmp_path: Path):
    training = SHD.embedded("train", augment=[ChannelJitter(20.0), TimeStretch(0.8, 1.2), SpikeDrop(0.3)], **SPOKEN)
    settings: dict[str, Any] = {"batch_size": 16, "lr": 1e-2, "progress": False, "schedule": "constant"}
    settings |= {"training": training, "validation": SHD.embedded("validation", **SPOKEN)}

    def fresh() -> Network:
        torch.manual_seed(0)
        return Network([LIF(70, 8, threshold=0.3)], 20)

    def go(network: Network, epochs: int, **more: Any) -> tuple[list[float], Any]:
        history = train(network, epochs=epochs, **settings | more).history
        return [row["train_loss"] for row in history], weights(network)

    losses, through = go(fresh(), 3)
    go(fresh(), 1, checkpoint=tmp_path / "c")
    resumed, after = go(fresh(), 3, checkpoint=tmp_path / "c")
    assert resumed == losses and same_bits(after, through)

    assert go(fresh(), 1, seed=1)[0][0] != losses[0]
    training.augment = ()
    assert go(fresh(), 1)[0][0] != losses[0]  # they matter


def test_a_finished_training_is_not_run_again_but_gives_its_best_weights(tmp_path: Path):
    first, second, data = small_network(), small_network(seed=1), Spy(24)
    result = train(first, data, Patterns(12), epochs=2, checkpoint=tmp_path / "c", **QUIET)
    asked = len(data.asked)
    assert train(second, data, Patterns(12), epochs=2, checkpoint=tmp_path / "c", **QUIET) == result
    assert len(data.asked) == asked
    assert same_bits(weights(first), weights(second))


def test_a_training_that_stopped_early_goes_on_with_more_patience(tmp_path: Path):
    def go(**more: Any) -> TrainResult:
        return train(small_network(), **DATA | QUIET | {"lr": 0.2, "epochs": 15, "optimizer": "adam"} | more)

    through, impatient = go(patience=15), go(patience=1, checkpoint=tmp_path / "c")
    resumed = go(patience=15, checkpoint=tmp_path / "c")
    assert impatient.stopped_early
    assert len(impatient.history) < len(resumed.history) == 15
    assert [row["train_loss"] for row in resumed.history] == [row["train_loss"] for row in through.history]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "seed was 0, is now 1"),
        ({"task": ClassPerStep()}, r"task was 'Classification\(last=None\)', is now 'ClassPerStep"),
        ({"floss": 2.0}, r"floss was 0\.0, is now 2\.0"),
        ({"clip_spectrum": 2.0}, r"clip_spectrum was 0\.0, is now 2\.0"),
        ({"schedule": FromTorch(lambda o: StepLR(o, 3))}, r"schedule was 'constant'.*is now .StepLR.*'step_size': 3"),
        ({"network": lif().double()}, r"torch\.float32', is now .*float64"),
        ({"network": lif("zero")}, "reset of layer 2 was 'subtract', is now 'zero'"),
        ({"network": lif(dampening=0.3)}, r"spike of layer 2 was .*'dampening': 0\.5.*, is now .*'dampening': 0\.3"),
        ({"network": Network([LIF(N, 8), Leak(8, 8)], CLASSES)}, "cell of layer 2 was 'LIF', is now 'Leak"),
        ({"network": Network([LIF(N, 8)], CLASSES, layer_delay=0)}, "layer_delay was 1, is now 0"),
    ],
)
def test_a_resumption_with_other_settings_is_refused_by_name(changes: dict[str, Any], message: str, tmp_path: Path):
    arguments: dict[str, Any] = DATA | QUIET | {"epochs": 1, "checkpoint": tmp_path / "run.checkpoint"}
    train(lif(), **arguments)
    network = changes.get("network", lif())
    before = weights(network)
    with pytest.raises(ValueError, match=r"run\.checkpoint is .*" + message):
        train(**arguments | {"network": network, "epochs": 2} | changes)
    assert same_bits(before, weights(network))


def test_another_network_does_not_continue_a_pretraining(tmp_path: Path):
    network, settings = lif("zero"), {"checkpoint": tmp_path / "p", "progress": False, "max_steps": 1}
    before = weights(network)
    pretrain(lif(), inputs(1), **settings)
    with pytest.raises(ValueError, match="of layer 2 was"):
        pretrain(network, inputs(1), **settings)
    assert same_bits(before, weights(network))


def spoken(**more: Any) -> Callable[[], SHD]:
    return lambda: SHD.embedded("train", **SPOKEN | more)  # no HDF5 file is open longer than the test


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        (spoken(), spoken(dt=0.1), r"dt=0\.05.* is now .*dt=0\.1"),
        (
            spoken(),
            spoken(augment=[SpikeDrop(0.1)]),
            r"training\.augment was '\(\)', is now '\(SpikeDrop\(p=0\.1\),\)'",
        ),
        (Patterns(24), Patterns(24, seed=1), r"training\.x was '\(24, 12, 6\) torch\.uint8, sha256"),
        (Subset(Patterns(24), range(12)), Subset(Patterns(24), range(12, 24)), r"training\.indices"),
    ],
)
def test_other_data_do_not_continue_a_training(before: Any, now: Any, message: str, tmp_path: Path):
    def go(data: Any, epochs: int) -> None:
        data = data() if callable(data) else data
        torch.manual_seed(0)
        x, _ = collate([data[0]])
        network = Network([LIF(x.shape[2], 4)], data.n_classes if isinstance(data, SHD) else CLASSES)
        train(network, data, [data[0]], epochs=epochs, checkpoint=tmp_path / "t", **QUIET)

    go(before, 1)
    go(before, 2)
    with pytest.raises(ValueError, match=r"is of a training with .*" + message):
        go(now, 3)


def test_a_checkpoint_that_is_damaged_or_something_else_is_refused_by_name(tmp_path: Path):
    path = tmp_path / "run.checkpoint"

    def go() -> None:
        train(small_network(), Patterns(6), Patterns(3), epochs=1, checkpoint=path, **QUIET)

    path.write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match=r"run\.checkpoint: damaged"):
        go()
    write_tree(path, {"network": {}})
    with pytest.raises(ValueError, match=r"run\.checkpoint is not the checkpoint of a training"):
        go()
    path.unlink()
    go()
    saved = read_tree(path)
    for change, message in ((lambda w: w.mul_(torch.nan), "must be finite"), (lambda w: w.resize_(0), "does not fit")):
        other = copy.deepcopy(saved)
        change(other["best"]["readout.weight"])
        write_tree(path, other)
        with pytest.raises(ValueError, match=rf"run\.checkpoint: .*{message}"):
            go()


@pytest.mark.parametrize(
    "options",
    [{"shuffle": True, "generator": torch.Generator()}, {"num_workers": 1, "persistent_workers": True}],
    ids=["generator", "worker"],
)
def test_a_loader_with_a_state_of_its_own_takes_no_checkpoint(options: Any, tmp_path: Path):
    loader = Loader(Patterns(6), **options)
    with pytest.raises(ValueError, match="training is a DataLoader with a generator of its own or persistent workers"):
        train(small_network(), loader, Patterns(3), epochs=1, checkpoint=tmp_path / "c", **QUIET)
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (Loader(Patterns(20), batch_size=5), r"training\.batch_size was 4, is now 5"),
        (
            Loader(Patterns(20), batch_size=4, shuffle=True),
            r"training\.sampler was 'SequentialSampler', is now 'RandomS",
        ),
    ],
)
def test_a_training_does_not_go_on_with_another_loader(loader: Any, message: str, tmp_path: Path):
    settings: dict[str, Any] = QUIET | {"checkpoint": tmp_path / "c"}
    train(small_network(), Loader(Patterns(20), batch_size=4), Patterns(3), epochs=1, **settings)
    with pytest.raises(ValueError, match=message):
        train(small_network(), loader, Patterns(3), epochs=3, **settings)


def test_two_trainings_at_one_checkpoint_do_not_mix(tmp_path: Path):
    path, link = tmp_path / "a.checkpoint", tmp_path / "link"
    link.symlink_to(path)
    settings: dict[str, Any] = DATA | QUIET | {"epochs": 2}

    def second(_: object) -> None:
        with pytest.raises(BlockingIOError, match=r"link is in use by another"):
            train(small_network(), checkpoint=link, **settings)
        with pytest.raises(BlockingIOError, match=r"link is in use by another"):
            pretrain(lif(), inputs(1), checkpoint=link)

    train(small_network(), checkpoint=path, on_epoch=second, **settings)
    assert {p.name for p in tmp_path.iterdir()} == {path.name, link.name}
