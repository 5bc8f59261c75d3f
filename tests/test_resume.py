import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from neurolsc import LIF, Network, TrainResult, train
from neurolsc.datasets import SHD, ChannelJitter, SpikeDrop, TimeStretch
from neurolsc.files import read_tree, write_tree
from tests.killed_training import EPOCHS, SAMPLES
from tests.patterns import CLASSES, QUIET, Leak, N, Patterns, Spy, same_bits, small_network, weights

MAKERS: dict[str, dict[str, Any]] = {
    "adabelief in lookahead": {},
    "adam": {"optimizer": torch.optim.Adam},
}


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_resumed_training_ends_in_the_same_bits_and_history(maker: str, dropout: float, tmp_path: Path):
    def start() -> Network:
        torch.manual_seed(0)
        return Network([LIF(N, 8, threshold=0.3), Leak(8, 4, dropout)], CLASSES)

    settings: dict[str, Any] = QUIET | MAKERS[maker] | {"training": Patterns(20), "validation": Patterns(9)}
    path = tmp_path / "c"
    whole = start()
    through = train(whole, epochs=5, **settings)
    train(start(), epochs=2, checkpoint=path, **settings)  # 3 batches an epoch: Lookahead is out of step with them
    other = start()
    with torch.no_grad():
        other.readout.weight.zero_()  # what the network was before is of no consequence
    resumed = train(other, epochs=5, checkpoint=path, **settings)

    assert same_bits(weights(whole), weights(other))
    for a, b in zip(through.history, resumed.history, strict=True):
        assert a | {"seconds": 0} == b | {"seconds": 0}
    assert (through.best_epoch, through.stopped_early) == (resumed.best_epoch, resumed.stopped_early)


def test_a_resumed_training_draws_the_augmentations_that_it_would_have_drawn(tmp_path: Path):
    form: dict[str, Any] = {"dt": 0.05, "channels": 70, "repeat": 1}
    changes = [ChannelJitter(20.0), TimeStretch(0.8, 1.2), SpikeDrop(0.3)]
    training = SHD.embedded("train", augment=changes, **form)
    settings: dict[str, Any] = {"batch_size": 16, "lr": 1e-2, "progress": False}
    settings |= {"training": training, "validation": SHD.embedded("validation", **form)}

    def go(epochs: int, **more: Any) -> tuple[Any, Any]:
        torch.manual_seed(0)
        network = Network([LIF(70, 8, threshold=0.3)], 20)
        return train(network, epochs=epochs, **settings, **more).history, weights(network)

    history, through = go(3)
    go(1, checkpoint=tmp_path / "c")
    resumed, after = go(3, checkpoint=tmp_path / "c")
    assert [row["train_loss"] for row in resumed] == [row["train_loss"] for row in history]
    assert same_bits(after, through)
    training.augment = ()
    assert go(1)[0][0]["train_loss"] != history[0]["train_loss"]  # they matter


def test_a_finished_training_is_not_run_again_but_gives_its_best_weights(tmp_path: Path):
    first, second = small_network(), small_network(seed=1)
    data, path = Spy(24), tmp_path / "c"
    result = train(first, data, Patterns(12), epochs=2, checkpoint=path, **QUIET)
    asked = len(data.asked)
    again = train(second, data, Patterns(12), epochs=2, checkpoint=path, **QUIET)
    assert len(data.asked) == asked
    assert again == result
    assert same_bits(weights(first), weights(second))


def test_a_training_that_stopped_early_goes_on_with_more_patience(tmp_path: Path):
    def go(**more: Any) -> TrainResult:
        settings: dict[str, Any] = {"batch_size": 8, "lr": 0.2, "progress": False, "epochs": 15}
        return train(small_network(), Patterns(24), Patterns(12, seed=1), **settings, **more)

    through = go(patience=15)
    impatient = go(patience=1, checkpoint=tmp_path / "c")
    resumed = go(patience=15, checkpoint=tmp_path / "c")
    assert impatient.stopped_early
    assert len(impatient.history) < len(resumed.history) == 15
    assert [row["train_loss"] for row in resumed.history] == [row["train_loss"] for row in through.history]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "seed = 0, now it is 1"),
        ({"batch_size": 4}, "batch_size = 8, now it is 4"),
        ({"lr": 1e-3}, r"lr = 0\.005, now it is 0\.001"),
        ({"optimizer": torch.optim.Adam}, "optimizer = Lookahead, now it is Adam"),
        ({"training": Patterns(25)}, "number of training samples = 24, now it is 25"),
        ({"validation": Patterns(13)}, "number of validation samples = 12, now it is 13"),
        ({"network": small_network(readout_bias=True)}, r"readout\.bias = None, now it is \(3,\)"),
        ({"network": small_network().double()}, r"torch\.float32, now it is .*float64"),
        ({"network": Network([LIF(N, 8)], CLASSES, layer_delay=0)}, "layer_delay = 1, now it is 0"),
    ],
)
def test_a_resumption_with_other_settings_is_refused_by_name(changes: dict[str, Any], message: str, tmp_path: Path):
    path = tmp_path / "run.checkpoint"
    arguments: dict[str, Any] = {"training": Patterns(24), "validation": Patterns(12), "epochs": 1, **QUIET}
    train(small_network(), checkpoint=path, **arguments)
    arguments |= {"network": small_network(), "epochs": 2} | changes
    before = weights(arguments["network"])
    with pytest.raises(ValueError, match=r"run\.checkpoint is of a training with .*" + message):
        train(checkpoint=path, **arguments)
    assert same_bits(before, weights(arguments["network"]))


def test_a_checkpoint_that_is_damaged_or_something_else_is_refused_by_name(tmp_path: Path):
    path = tmp_path / "run.checkpoint"

    def go() -> None:
        train(small_network(), Patterns(6), Patterns(3), epochs=1, checkpoint=path, **QUIET)

    path.write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match=r"run\.checkpoint: damaged"):
        go()
    for other in ({"network": {}}, ["network"]):
        write_tree(path, other)
        with pytest.raises(ValueError, match=r"run\.checkpoint is not the checkpoint of a training"):
            go()
    with pytest.raises(FileNotFoundError, match="nowhere"):
        train(small_network(), Patterns(6), Patterns(3), epochs=1, checkpoint=tmp_path / "nowhere" / "c", **QUIET)


@pytest.mark.slow
def test_a_training_killed_in_a_batch_and_in_a_write_and_resumed_ends_in_the_same_bits(tmp_path: Path):
    path, through = tmp_path / "run.checkpoint", tmp_path / "through.checkpoint"

    def go(path: Path, item: int = 0, write: int = 0) -> int:
        command = [sys.executable, "-m", "tests.killed_training", str(path), str(item), str(write)]
        return subprocess.run(command, cwd=Path(__file__).parents[1], check=False).returncode

    assert go(path, item=2 * SAMPLES + 13) == -signal.SIGKILL  # in the second batch of the third epoch
    assert len(read_tree(path)["history"]) == 2
    assert go(path, write=2) == -signal.SIGKILL  # in the write after the fourth epoch
    assert len(read_tree(path)["history"]) == 3
    assert not (tmp_path / "run.checkpoint.weights").exists()
    assert go(path) == 0
    assert len(read_tree(path)["history"]) == EPOCHS
    assert go(through) == 0

    resumed, whole = (read_tree(tmp_path / f"{name}.checkpoint.weights") for name in ("run", "through"))
    assert same_bits(resumed, whole)
    assert not same_bits(whole, weights(small_network()))
