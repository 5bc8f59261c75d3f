import csv
import itertools
import json
import math
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from neurolsc import LIF, ALIFPlus, LIFState, Network, evaluate, metrics, train
from neurolsc.checkpoint import read_tree, write_tree
from neurolsc.datasets import collate
from neurolsc.evaluation import cross_entropy
from neurolsc.neurons import Cell

T, N, CLASSES = 12, 6, 3


class Patterns:
    """Class c sends more spikes through channels 2c and 2c + 1; drawn from a seed, kept in memory."""

    def __init__(self, size: int, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.arange(size) % CLASSES
        rate = torch.full((size, N), 0.1)
        rate[torch.arange(size).unsqueeze(1), 2 * self.labels.unsqueeze(1) + torch.tensor([0, 1])] = 0.7
        self.x = (torch.rand(size, T, N, generator=generator) < rate.unsqueeze(1)).to(torch.uint8)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int, /) -> tuple[Tensor, int]:
        return self.x[index], int(self.labels[index])


def make_network(seed: int = 0, readout_bias: bool = False) -> Network:
    torch.manual_seed(seed)
    cells = [ALIFPlus(N, 8, tau_theta=10.0), LIF(8, 8, threshold=0.3)]
    return Network(cells, CLASSES, readout_bias=readout_bias)


def weights(network: Network) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


def same_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k].view(torch.int32), b[k].view(torch.int32)) for k in a)


QUIET: dict[str, Any] = {"batch_size": 8, "lr": 5e-3, "progress": False}


# the loss


def test_cross_entropy_is_the_mean_over_steps_and_samples_of_minus_the_log_of_the_label():
    torch.manual_seed(0)
    logits, labels = torch.randn(4, 3, 5, dtype=torch.float64), torch.tensor([4, 0, 2])
    by_hand = [-math.log(logits[t, b].softmax(0)[labels[b]]) for t in range(4) for b in range(3)]
    torch.testing.assert_close(cross_entropy(logits, labels), torch.tensor(sum(by_hand) / 12, dtype=torch.float64))


# evaluation


@pytest.mark.parametrize("batch_size", [1, 4, 7, 100])
def test_scores_are_those_of_all_samples_at_once_however_they_are_cut(batch_size: int):
    data, network = Patterns(11), make_network(readout_bias=True).double()
    x, labels = collate([data[i] for i in range(11)])
    with torch.no_grad():
        run = network.run(x)
    assert all(layer.any() for layer in run.spikes)

    scores = evaluate(network, data, batch_size=batch_size)

    assert scores.loss == pytest.approx(cross_entropy(run.logits, labels).item(), rel=1e-12)
    assert scores.mode_accuracy == pytest.approx(metrics.mode_accuracy(run.logits, labels))
    assert scores.mean_accuracy == pytest.approx(metrics.mean_accuracy(run.logits, labels))
    assert scores.share_without_vote == pytest.approx(metrics.share_without_vote(run.logits))
    assert scores.firing_rate == pytest.approx([metrics.firing_rate(layer) for layer in run.spikes])
    assert scores.sparsity == pytest.approx([1 - metrics.firing_rate(layer) for layer in run.spikes])
    assert scores.silent_steps == pytest.approx(metrics.silent_steps(run.spikes[-1]))
    # input -> 8; each of 8 -> its own 8 and the next 8; each of 8 -> its own 8 and 3 readouts
    spikes = [int(layer.sum()) for layer in (x, *run.spikes)]
    synops = (8 * spikes[0] + 16 * spikes[1] + 11 * spikes[2]) / 11
    assert scores.synops == pytest.approx(synops)


class Leak(Cell):
    """Differentiable, without spikes: h[t] = h[t-1] / 2 + W x."""

    def __init__(self, n_in: int, n_hidden: int, dropout: float = 0.0) -> None:
        super().__init__(n_in, n_hidden)
        self.w = nn.Parameter(torch.randn(n_hidden, n_in))
        self.dropout = nn.Dropout(dropout)

    def initial_state(self, batch: int) -> Any:
        return LIFState(torch.zeros(batch, self.n_hidden))

    def output(self, state: Any) -> Tensor:
        return state.v

    def update(self, x: Tensor, z: Tensor, state: Any) -> Any:
        return type(state)(state.v / 2 + self.dropout(x) @ self.w.T)


def test_a_layer_that_does_not_spike_has_no_firing_rate_but_its_network_has_a_score():
    scores = evaluate(Network([LIF(N, 8, threshold=0.2), Leak(8, 4)], CLASSES), Patterns(5), batch_size=2)
    assert scores.firing_rate[0] is not None
    assert scores.firing_rate[0] > 0
    assert (scores.firing_rate[1], scores.sparsity[1], scores.silent_steps, scores.synops) == (None,) * 4


@pytest.mark.parametrize("training", [True, False])
def test_evaluation_leaves_network_mode_and_random_numbers_alone(training: bool):
    network = Network([Leak(N, 8, dropout=0.5)], CLASSES).train(training)
    before, rng = weights(network), torch.random.get_rng_state()
    first, second = evaluate(network, Patterns(9)), evaluate(network, Patterns(9))
    assert first == second  # no dropout
    assert network.training is training
    assert same_bits(before, weights(network))
    assert torch.equal(rng, torch.random.get_rng_state())


def test_evaluation_refuses_what_it_cannot_score():
    network = make_network()
    with pytest.raises(ValueError, match="dataset is empty"):
        evaluate(network, Patterns(0))
    with pytest.raises(TypeError, match=r"length.*got generator"):
        evaluate(network, (i for i in ()))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        evaluate(network, Patterns(3), batch_size=0)
    with pytest.raises(ValueError, match=r"0 \.\.\. 1.*got 2"):
        evaluate(Network([LIF(N, 4)], 2), Patterns(3))
    with pytest.raises(ValueError, match=r"\(T, B, 7\)"):
        evaluate(Network([LIF(7, 4)], CLASSES), Patterns(3))
    with torch.no_grad():
        network.readout.weight.fill_(math.nan)
    with pytest.raises(FloatingPointError, match="nan in an evaluation"):
        evaluate(network, Patterns(3))


# training


def test_training_learns_the_patterns():
    network = make_network()
    before = evaluate(network, Patterns(60, seed=1))
    result = train(network, Patterns(120), Patterns(60, seed=1), epochs=15, batch_size=8, lr=2e-2, progress=False)
    after = evaluate(network, Patterns(60, seed=2))
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]
    assert before.mode_accuracy < 0.6
    assert after.mode_accuracy > 0.9


def by_hand(network: Network, data: Patterns, order: list[list[int]], lr: float) -> float:
    """One epoch of plain SGD over batches in an order; the mean loss over samples."""
    total = 0.0
    for batch in order:
        x, labels = collate([data[i] for i in batch])
        loss = cross_entropy(network(x), labels)
        network.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in network.parameters():
                parameter -= lr * parameter.grad  # type: ignore[operator]
        total += loss.item() * len(batch)
    return total / len(data)


class Spy(Patterns):
    """Notes in which order its items are asked for."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.asked: list[int] = []

    def __getitem__(self, index: int, /) -> tuple[Tensor, int]:
        self.asked.append(index)
        return super().__getitem__(index)


def test_an_epoch_is_one_step_per_batch_over_all_samples():
    data, network, twin = Spy(11), make_network(), make_network()
    result = train(
        network, data, Patterns(3), epochs=1, batch_size=4, lr=0.1, optimizer=torch.optim.SGD, progress=False
    )
    assert sorted(data.asked) == list(range(11))
    assert data.asked != list(range(11))
    loss = by_hand(twin, data, [data.asked[i : i + 4] for i in (0, 4, 8)], 0.1)
    assert result.history[0]["train_loss"] == pytest.approx(loss, rel=1e-6)
    for ours, theirs in zip(network.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def orders(seed: int, epochs: int) -> list[list[int]]:
    data = Spy(16)
    train(make_network(), data, Patterns(3), epochs=epochs, seed=seed, progress=False)
    return [data.asked[i : i + 16] for i in range(0, 16 * epochs, 16)]


def test_the_order_of_the_samples_follows_from_seed_and_epoch_alone():
    first = orders(3, 3)
    torch.manual_seed(123)
    assert orders(3, 2) == first[:2]
    assert len({tuple(order) for order in first + orders(4, 2)}) == 5  # all differ


def test_training_leaves_the_random_numbers_of_the_caller_alone():
    network = Network([Leak(N, 8, dropout=0.5)], CLASSES)
    rng = torch.random.get_rng_state()
    train(network, Patterns(9), Patterns(3), epochs=2, **QUIET)
    assert torch.equal(rng, torch.random.get_rng_state())


@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_seed_gives_the_same_weights_with_dropout_and_another_seed_others(seed: int):
    def trained(seed: int) -> dict[str, Tensor]:
        torch.manual_seed(0)
        network = Network([Leak(N, 8, dropout=0.5)], CLASSES)
        torch.manual_seed(time.time_ns() % 1000)  # is of no consequence
        train(network, Patterns(9), Patterns(3), epochs=2, seed=seed, **QUIET)
        return weights(network)

    assert same_bits(trained(0), trained(seed)) == (seed == 0)


def test_the_best_weights_are_put_back_and_the_patience_ends_the_training():
    """A step so long that the second epoch is worse: the loss then never falls below the first one's."""
    network = make_network()
    seen: list[tuple[float, dict[str, Tensor]]] = []
    result = train(
        network,
        Patterns(24),
        Patterns(12, seed=1),
        epochs=30,
        patience=3,
        batch_size=8,
        lr=0.5,
        progress=False,
        on_epoch=lambda history: seen.append((history[-1]["validation_loss"], weights(network))),
    )
    losses = [loss for loss, _ in seen]
    assert result.best_epoch == 1 + losses.index(min(losses))
    assert result.best["validation_loss"] == min(losses)
    assert result.stopped_early
    assert len(losses) == result.best_epoch + 3 < 30
    assert same_bits(weights(network), seen[result.best_epoch - 1][1])
    assert not same_bits(weights(network), seen[-1][1])
    assert evaluate(network, Patterns(12, seed=1), batch_size=8).loss == min(losses)


def test_training_that_uses_all_its_epochs_did_not_stop_early():
    result = train(make_network(), Patterns(24), Patterns(12), epochs=2, **QUIET)
    assert not result.stopped_early
    assert [row["epoch"] for row in result.history] == [1, 2]


def test_frozen_parameters_stay():
    network = make_network()
    network.cells[0].get_parameter("w_in").requires_grad_(False)
    before = weights(network)
    train(network, Patterns(24), Patterns(12), epochs=2, **QUIET)
    after = weights(network)
    assert torch.equal(before["cells.0.w_in"], after["cells.0.w_in"])
    assert not torch.equal(before["readout.weight"], after["readout.weight"])


def test_the_progress_bar_names_epoch_and_loss(capsys: pytest.CaptureFixture[str]):
    train(make_network(), Patterns(24), Patterns(12), epochs=2, batch_size=8)
    shown = capsys.readouterr().err
    assert "epoch 1/2" in shown
    assert "epoch 2/2" in shown
    assert "loss 1." in shown
    assert "validation 1." in shown


def test_history_files_hold_the_history(tmp_path: Path):
    network = Network([LIF(N, 8, threshold=0.3), Leak(8, 4)], CLASSES)
    result = train(network, Patterns(24), Patterns(12), epochs=2, **QUIET)
    result.to_json(tmp_path / "h.json")
    result.to_csv(tmp_path / "h.csv")

    read = json.loads((tmp_path / "h.json").read_text())
    assert read == {"history": result.history, "best_epoch": result.best_epoch, "stopped_early": False}
    with open(tmp_path / "h.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows] == [1, 2]
    for row, original in zip(rows, result.history, strict=True):
        assert float(row["validation_loss"]) == original["validation_loss"]
        assert float(row["firing_rate_1"]) == original["firing_rate"][0]
        assert row["firing_rate_2"] == ""  # no spikes, no rate
    with pytest.raises(FileNotFoundError, match=r"nowhere/h\.csv"):
        result.to_csv(tmp_path / "nowhere" / "h.csv")


def test_a_loss_that_is_not_finite_names_epoch_and_batch_and_touches_no_weight():
    network = make_network()
    numbers = itertools.count(1)

    def spoil(module: nn.Module, inputs: Any, logits: Tensor) -> Tensor:
        return logits * math.nan if module.training and next(numbers) == 5 else logits

    network.readout.register_forward_hook(spoil)
    with torch.no_grad():
        network.readout.weight.zero_()
    with pytest.raises(FloatingPointError, match=r"loss is nan in epoch 2, batch 2: lower.*\(now 0\.005\).*pretrain"):
        train(network, Patterns(24), Patterns(12), epochs=3, **QUIET)
    assert all(value.isfinite().all() for value in weights(network).values())


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"training": Patterns(0)}, ValueError, "training is empty"),
        ({"validation": Patterns(0)}, ValueError, "validation is empty"),
        ({"training": iter(())}, TypeError, "training must be a data set with a length"),
        ({"epochs": 0}, ValueError, "epochs must be at least 1, got 0"),
        ({"epochs": 1.5}, TypeError, "epochs must be an int"),
        ({"patience": 0}, ValueError, "patience"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"seed": -1}, ValueError, "seed"),
        ({"lr": 0.0}, ValueError, "lr must be positive"),
        ({"lr": math.nan}, ValueError, "lr must be positive"),
        ({"optimizer": torch.optim.SGD([torch.zeros(1)], 0.1)}, TypeError, r"\(parameters, lr\), got a SGD"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_anything_runs(
    changes: dict[str, Any], error: type[Exception], message: str
):
    network = make_network()
    before = weights(network)
    arguments = {"training": Patterns(6), "validation": Patterns(3), "epochs": 1, **QUIET} | changes
    with pytest.raises(error, match=message):
        train(network, **arguments)
    assert same_bits(before, weights(network))


# checkpoints

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


def test_a_finished_training_is_not_run_again_but_gives_its_best_weights(tmp_path: Path):
    first, second = make_network(), make_network(seed=1)
    data, path = Spy(24), tmp_path / "c"
    result = train(first, data, Patterns(12), epochs=2, checkpoint=path, **QUIET)
    asked = len(data.asked)
    again = train(second, data, Patterns(12), epochs=2, checkpoint=path, **QUIET)
    assert len(data.asked) == asked
    assert again == result
    assert same_bits(weights(first), weights(second))


def test_a_training_that_stopped_early_goes_on_with_more_patience(tmp_path: Path):
    settings: dict[str, Any] = {"batch_size": 8, "lr": 0.5, "progress": False, "epochs": 30}
    through = train(make_network(), Patterns(24), Patterns(12), patience=4, **settings)
    for patience in (1, 2, 4):
        network = make_network()
        resumed = train(network, Patterns(24), Patterns(12), patience=patience, checkpoint=tmp_path / "c", **settings)
        assert resumed.stopped_early
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
        ({"network": make_network(readout_bias=True)}, r"readout\.bias = None, now it is \(3,\)"),
        ({"network": make_network().double()}, r"torch\.float32, now it is .*float64"),
        ({"network": Network([LIF(N, 8)], CLASSES, layer_delay=0)}, "layer_delay = 1, now it is 0"),
    ],
)
def test_a_resumption_with_other_settings_is_refused_by_name(changes: dict[str, Any], message: str, tmp_path: Path):
    path = tmp_path / "run.checkpoint"
    arguments: dict[str, Any] = {"training": Patterns(24), "validation": Patterns(12), "epochs": 1, **QUIET}
    train(make_network(), checkpoint=path, **arguments)
    arguments |= {"network": make_network(), "epochs": 2} | changes
    before = weights(arguments["network"])
    with pytest.raises(ValueError, match=r"run\.checkpoint is of a training with .*" + message):
        train(checkpoint=path, **arguments)
    assert same_bits(before, weights(arguments["network"]))


def test_a_checkpoint_that_is_damaged_or_something_else_is_refused_by_name(tmp_path: Path):
    path = tmp_path / "run.checkpoint"

    def go() -> None:
        train(make_network(), Patterns(6), Patterns(3), epochs=1, checkpoint=path, **QUIET)

    path.write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match=r"run\.checkpoint is damaged"):
        go()
    write_tree(path, {"network": {}})
    with pytest.raises(ValueError, match=r"run\.checkpoint is not the checkpoint of a training"):
        go()
    with pytest.raises(FileNotFoundError, match="nowhere"):
        train(make_network(), Patterns(6), Patterns(3), epochs=1, checkpoint=tmp_path / "nowhere" / "c", **QUIET)


def run_in_process(path: Path) -> None:
    """What the process does that is killed: eight epochs with a checkpoint each. Not a test."""
    network = make_network()
    train(network, Patterns(40), Patterns(12), epochs=8, checkpoint=path, **QUIET)
    write_tree(path.with_suffix(".weights"), dict(network.state_dict()))


def wait_until(condition: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, "the training ended before it was killed"
        assert time.monotonic() < deadline, "no checkpoint came"
        time.sleep(0.002)


@pytest.mark.slow
def test_a_training_killed_at_any_moment_and_resumed_ends_in_the_same_bits(tmp_path: Path):
    code = (
        "import importlib.util, pathlib, sys\n"
        f"spec = importlib.util.spec_from_file_location('training_tests', {__file__!r})\n"
        "tests = importlib.util.module_from_spec(spec); spec.loader.exec_module(tests)\n"
        "tests.run_in_process(pathlib.Path(sys.argv[1]))"
    )
    path = tmp_path / "run.checkpoint"
    epochs_done = [0]
    for _ in range(2):
        process = subprocess.Popen([sys.executable, "-c", code, str(path)])

        def further() -> bool:
            return path.exists() and len(read_tree(path)["history"]) > epochs_done[-1]

        wait_until(further, process)
        time.sleep(0.01)  # somewhere in the next epoch
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        epochs_done.append(len(read_tree(path)["history"]))
    assert 0 < epochs_done[1] < epochs_done[2] < 8, "the kills came too late to test anything"
    assert not path.with_suffix(".weights").exists()

    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "through.checkpoint")], check=True)

    resumed, through = (read_tree(tmp_path / f"{name}.weights") for name in ("run", "through"))
    assert same_bits(resumed, through)
    assert not same_bits(through, weights(make_network()))
