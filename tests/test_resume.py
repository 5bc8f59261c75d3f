import copy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Subset, TensorDataset

from neurolsc import LIF, ALIFPlus, Criteria, Network, PretrainResult, TrainResult, pretrain, scale_to_radius, train
from neurolsc.datasets import SHD, ChannelJitter, SpikeDrop, TimeStretch, collate
from neurolsc.io import read_tree, write_tree
from neurolsc.stability.lsc.look import Look
from neurolsc.surrogate import Arctan, FastSigmoid
from neurolsc.training import PAPER
from neurolsc.training.fingerprint import digest
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
    settings: dict[str, Any] = PAPER | {"batch_size": 16, "lr": 1e-2, "progress": False}
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


def test_augmentations_draw_the_same_numbers_whichever_threads_draw_beside_them():
    training = SHD.embedded("train", augment=[ChannelJitter(20.0), SpikeDrop(0.3)], **SPOKEN)
    stop = threading.Event()

    def draw() -> None:
        while not stop.is_set():
            torch.rand(3)
            time.sleep(1e-4)

    def go(threads: int) -> Any:
        stop.clear()
        torch.manual_seed(0)
        network = Network([LIF(70, 8, threshold=0.3)], 20)
        beside = [threading.Thread(target=draw) for _ in range(threads)]
        for thread in beside:
            thread.start()
        try:
            train(network, training, training, epochs=2, batch_size=8, lr=1e-2, progress=False)
        finally:
            stop.set()
            for thread in beside:
                thread.join()
        return weights(network)

    with_none, with_two = go(0), go(2)
    assert same_bits(with_none, with_two)


def test_two_trainings_in_two_threads_draw_what_each_draws_alone():
    training = SHD.embedded("train", augment=[SpikeDrop(0.3)], **SPOKEN)

    def go(seed: int, found: dict[int, Any]) -> None:
        network = networks[seed]
        train(network, training, training, epochs=2, batch_size=8, lr=1e-2, seed=seed, progress=False)
        found[seed] = weights(network)

    def fresh() -> list[Network]:
        torch.manual_seed(0)
        return [Network([LIF(70, 8, threshold=0.3)], 20) for _ in range(2)]

    alone: dict[int, Any] = {}
    together: dict[int, Any] = {}
    networks = fresh()
    for seed in range(2):
        go(seed, alone)
    networks = fresh()
    threads = [threading.Thread(target=go, args=(seed, together)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(same_bits(alone[seed], together[seed]) for seed in range(2))


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
        ({"training": Patterns(25)}, "length of training = 24, now it is 25"),
        ({"validation": Patterns(13)}, "length of validation = 12, now it is 13"),
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


def lif(reset: str = "subtract", cell: Any = LIF, **spike: Any) -> Network:
    torch.manual_seed(0)
    return Network([LIF(N, 8, threshold=0.3), cell(8, 8, reset=reset, spike=FastSigmoid(**spike))], CLASSES)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (lif("zero"), "reset of layer 2 = subtract, now it is zero"),
        (lif(cell=ALIFPlus), "cell of layer 2 = LIF, now it is ALIFPlus"),
        (lif(dampening=0.3), r"spike of layer 2 = .*'dampening': 0\.5.*, now it is .*'dampening': 0\.3"),
        (Network([LIF(N, 8), LIF(8, 8, spike=Arctan())], CLASSES), "spike of layer 2 = .*FastSigmoid.* now .*Arctan"),
        (Network([LIF(N, 8), LIF(8, 8, reset_gradient=True)], CLASSES), "reset_gradient of layer 2 = False"),
        (Network([LIF(N, 8), Leak(8, 8)], CLASSES), "cell of layer 2 = LIF, now it is Leak"),
    ],
)
def test_another_network_does_not_take_over_a_training_nor_a_pretraining(
    network: Network, message: str, tmp_path: Path
):
    arguments: dict[str, Any] = {"training": Patterns(24), "validation": Patterns(12), **QUIET}
    train(lif(), checkpoint=tmp_path / "t", epochs=1, **arguments)
    before = weights(network)
    with pytest.raises(ValueError, match=message):
        train(network, checkpoint=tmp_path / "t", epochs=2, **arguments)
    x = [(torch.rand(12, 4, N) < 0.4).float()]
    settings: dict[str, Any] = {"checkpoint": tmp_path / "p", "checkpoint_every": 1, "progress": False}
    pretrain(lif(), x, max_steps=1, **settings)
    with pytest.raises(ValueError, match=message.replace(" = ", " was .*").replace(", now it is ", ".*, is now .*")):
        pretrain(network, x, max_steps=2, **settings)
    scale_to_radius(lif(), x[0], checkpoint=tmp_path / "s", progress=False)
    with pytest.raises(ValueError, match="of layer 2 was"):
        scale_to_radius(network, x[0], checkpoint=tmp_path / "s", progress=False)
    assert same_bits(before, weights(network))


def test_learnt_numbers_of_a_surrogate_are_weights_and_no_settings(tmp_path: Path):
    arguments: dict[str, Any] = {"training": Patterns(24), "validation": Patterns(12), **QUIET | {"lr": 0.1}}
    train(network := lif(learnable=True), checkpoint=tmp_path / "t", epochs=1, **arguments)
    assert network.cells[1].spike.dampening != 0.5
    assert len(train(network, checkpoint=tmp_path / "t", epochs=2, **arguments).history) == 2


SPOKEN: dict[str, Any] = {"dt": 0.05, "channels": 70, "repeat": 1}


@pytest.mark.parametrize(
    ("before", "now", "message"),
    [
        (
            lambda: SHD.embedded("train", **SPOKEN),
            lambda: SHD.embedded("train", **SPOKEN | {"dt": 0.1}),
            r"dt = 0\.05, now it is 0\.1",
        ),
        (
            lambda: SHD.embedded("train", **SPOKEN),
            lambda: SHD.embedded("train", **SPOKEN, seed=1),
            r"training\.indices = .*sha256",
        ),
        (
            lambda: SHD.embedded("train", **SPOKEN),
            lambda: SHD.embedded("train", **SPOKEN, by="speaker", share=0.25),
            "indices",
        ),
        (
            lambda: SHD.embedded("train", **SPOKEN),
            lambda: SHD.embedded("train", **SPOKEN, augment=[SpikeDrop(0.1)]),
            r"training\.augment = \(\), now it is \(SpikeDrop\(p=0\.1\),\)",
        ),
        (
            lambda: SHD.embedded("train", **SPOKEN),
            lambda: SHD.embedded("train", **SPOKEN, binary=True),
            "binary = False, now it is True",
        ),
        (Patterns(24), Patterns(24, seed=1), r"training\.x = \(24, 12, 6\) torch\.uint8, sha256"),
        (Subset(Patterns(24), range(12)), Subset(Patterns(24), range(12, 24)), r"training\.indices"),
        (Subset(Patterns(24), range(12)), Subset(Patterns(24, seed=1), range(12)), r"training\.dataset\.x"),
        ([*Patterns(6)], [*Patterns(6, seed=1)], "items of training = 6 items, sha256"),
        (TensorDataset(torch.zeros(6, 12, N), torch.zeros(6).long()), Patterns(6), r"training\.tensors"),
    ],
)
def test_other_data_do_not_take_over_a_training(before: Any, now: Any, message: str, tmp_path: Path):
    def go(data: Any, epochs: int) -> None:
        data = data() if callable(data) else data  # no HDF5 file is open longer than the test
        torch.manual_seed(0)
        x, _ = collate([data[0]])
        classes = data.n_classes if isinstance(data, SHD) else CLASSES
        network = Network([LIF(x.shape[2], 4)], classes)
        train(network, data, [data[0]], epochs=epochs, checkpoint=tmp_path / "t", **QUIET)

    go(before, 1)
    go(before, 2)
    with pytest.raises(ValueError, match=r"is of a training with .*" + message):
        go(now, 3)


def test_other_inputs_do_not_take_over_a_pretraining(tmp_path: Path):
    x = (torch.rand(12, 4, N) < 0.4).float()

    def go(batches: Any, **more: Any) -> None:
        pretrain(lif(), batches, checkpoint=tmp_path / "p", progress=False, **more)

    go([x], max_steps=1)
    go([x], max_steps=2)
    with pytest.raises(ValueError, match=r"steps of the inputs was 12, is now 10; items of inputs was .*, is now .*"):
        go([x[:10]], max_steps=3)
    with pytest.raises(ValueError, match="length of inputs was 1, is now 2"):
        go([x, x], max_steps=3)


def test_a_large_array_is_told_from_another_by_some_of_its_rows():
    a = torch.zeros(2**14, 2**13, dtype=torch.uint8)
    before = digest(a)
    a[-1, -1] = 1
    assert digest(a) != before


@pytest.mark.parametrize("method", ["gradient", "scale"])
def test_a_finished_pretraining_is_not_repeated(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    x = [(torch.rand(12, 8, N, generator=torch.Generator().manual_seed(s)) < 0.4).float() for s in range(3)]

    def go(network: Network, path: str, **more: Any) -> PretrainResult:
        settings: dict[str, Any] = {"target": 0.5, "progress": False, "checkpoint": tmp_path / path} | more
        return pretrain(network, x, **settings) if method == "gradient" else scale_to_radius(network, x[0], **settings)

    first, second = lif(), lif()
    result = go(first, "c")
    with monkeypatch.context() as patched:
        patched.setattr(Look, "_measure", None)  # no radius is measured again
        again = go(second, "c")
    assert str(again) == str(result)
    assert again.findings == result.findings
    assert again.history == result.history
    assert again.options == result.options
    assert torch.equal(again.profile.time, result.profile.time)
    assert again.profile.terms == result.profile.terms
    assert same_bits(weights(first), weights(second))
    assert not same_bits(weights(first), weights(lif()))
    if method == "gradient":  # to more steps it goes on as if it had never ended
        never = {"criteria": Criteria(tolerance=1e-9)}
        go(lif(), "short", max_steps=3, **never)
        assert go(goes_on := lif(), "short", max_steps=5, **never).steps == 5
        go(whole := lif(), "long", max_steps=5, **never)
        assert same_bits(weights(goes_on), weights(whole))


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
    path.unlink()
    go()
    kept = read_tree(path)
    for part in ("network", "best"):
        for change in (lambda w: w.mul_(torch.nan), lambda w: w.resize_(0)):
            other = copy.deepcopy(kept)
            change(other[part]["readout.weight"])
            write_tree(path, other)
            with pytest.raises(ValueError, match=r"run\.checkpoint: (readout\.weight must be finite|does not fit)"):
                go()


@pytest.mark.parametrize("method", ["train", "pretrain", "scale_to_radius"])
@pytest.mark.parametrize("linked", [False, True], ids=["file", "link"])
def test_two_at_one_checkpoint_do_not_mix_the_second_is_refused_by_the_name_of_the_first(method, linked, tmp_path):
    path = other = tmp_path / "a.checkpoint"
    if linked:
        (other := tmp_path / "link").symlink_to(path)
    x = (torch.rand(12, 8, N, generator=torch.Generator().manual_seed(0)) < 0.4).float()
    refused = []

    def second(*_: object) -> None:
        with pytest.raises(BlockingIOError, match="is in use by another") as error:
            go(lif(), other)
        refused.append(error)

    def go(network: Network, checkpoint: Path, during: Callable[..., object] = lambda *_: None) -> None:
        if method == "train":
            data = Patterns(6), Patterns(3)
            train(small_network(), *data, epochs=2, checkpoint=checkpoint, on_epoch=during, **QUIET)
            return
        with pytest.MonkeyPatch.context() as patched:
            begin = Look.__init__
            patched.setattr(Look, "__init__", lambda self, *a: (during(), begin(self, *a))[1])
            settings: dict[str, Any] = {"target": 0.5, "progress": False, "checkpoint": checkpoint}
            pretrain(network, [x], **settings) if method == "pretrain" else scale_to_radius(network, x, **settings)

    go(lif(), path, second)
    assert refused
    assert {p.name for p in tmp_path.iterdir()} == {path.name, other.name}
    go(lif(), other)


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
