import csv
import itertools
import json
import math
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_optimizer import AdaBelief, Lookahead
from torch import Tensor, nn
from torch.utils.data import DataLoader

from neurolsc import LIF, Network, TrainResult, evaluate, train
from neurolsc.datasets import collate
from neurolsc.experiment.config import TrainSettings
from neurolsc.tasks import cross_entropy
from neurolsc.training import PAPER, adabelief_lookahead
from tests.patterns import CLASSES, QUIET, Leak, N, Patterns, Spy, same_bits, small_network, weights

STEP = partial(torch.optim.lr_scheduler.StepLR, step_size=2)


def test_training_learns_the_patterns():
    network = small_network()
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


def test_an_epoch_is_one_step_per_batch_over_all_samples():
    data, network, twin = Spy(11), small_network(), small_network()
    sgd: dict[str, Any] = {"batch_size": 4, "lr": 0.1, "optimizer": torch.optim.SGD}
    result = train(network, data, Patterns(3), epochs=1, **QUIET | sgd)
    assert sorted(data.asked) == list(range(11))
    assert data.asked != list(range(11))
    loss = by_hand(twin, data, [data.asked[i : i + 4] for i in (0, 4, 8)], 0.1)
    assert result.history[0]["train_loss"] == pytest.approx(loss, rel=1e-6)
    for ours, theirs in zip(network.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def orders(seed: int, epochs: int) -> list[list[int]]:
    data = Spy(16)
    train(small_network(), data, Patterns(3), epochs=epochs, seed=seed, progress=False)
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
    def trained(seed: int, training: bool = True) -> dict[str, Tensor]:
        torch.manual_seed(0)
        network = Network([Leak(N, 8, dropout=0.5)], CLASSES).train(training)
        torch.manual_seed(time.time_ns() % 1000)  # is of no consequence
        train(network, Patterns(9), Patterns(3), epochs=2, seed=seed, **QUIET)
        return weights(network)

    assert same_bits(trained(0), trained(seed)) == (seed == 0)
    assert same_bits(trained(seed), trained(seed, training=False))  # it is always trained in training mode


def test_the_best_weights_are_put_back_and_the_patience_ends_the_training():
    network = small_network()
    seen: list[tuple[float, dict[str, Tensor]]] = []
    result = train(
        network,
        Patterns(24),
        Patterns(12, seed=1),
        epochs=30,
        patience=3,
        batch_size=8,
        lr=0.2,
        progress=False,
        on_epoch=lambda history: seen.append((history[-1]["validation_loss"], weights(network))),
    )
    losses = [loss for loss, _ in seen]
    assert result.best_epoch == 1 + losses.index(min(losses))
    assert result.best["validation_loss"] == min(losses)
    assert result.stopped_early
    assert 3 < len(losses) == result.best_epoch + 3 < 30
    assert same_bits(weights(network), seen[result.best_epoch - 1][1])
    assert not same_bits(weights(network), seen[-1][1])
    assert evaluate(network, Patterns(12, seed=1), batch_size=8).loss == min(losses)


def test_weights_are_averaged_over_epochs_while_the_training_goes_on(tmp_path: Path):
    sets = {"training": Patterns(24), "validation": Patterns(12, seed=1)}
    seen: list[dict[str, Tensor]] = []

    def trained(epochs: int, **more: Any) -> tuple[Network, TrainResult]:
        network = small_network()
        result = train(
            network, **sets, epochs=epochs, **QUIET, **more, on_epoch=lambda _: seen.append(weights(network))
        )
        return network, result

    network, result = trained(5, average_from=3)
    assert result.best_epoch > 3
    averaged = seen[2 : result.best_epoch]
    wanted = {name: torch.stack([epoch[name] for epoch in averaged]).mean(0) for name in seen[0]}
    torch.testing.assert_close(weights(network), wanted)
    assert not same_bits(weights(network), averaged[-1])
    assert evaluate(network, sets["validation"], batch_size=8).loss == result.best["validation_loss"]
    plain = list(seen)
    seen.clear()
    trained(5)
    assert all(same_bits(a, b) for a, b in zip(plain, seen, strict=True))  # the training itself is the same
    trained(4, average_from=3, checkpoint=tmp_path / "state")
    again, resumed = trained(5, average_from=3, checkpoint=tmp_path / "state")
    assert same_bits(weights(again), weights(network))
    timeless = [{k: v for k, v in row.items() if k != "seconds"} for row in result.history]
    assert [{k: v for k, v in row.items() if k != "seconds"} for row in resumed.history] == timeless
    with pytest.raises(ValueError, match="average_from = 3, now it is 2"):
        trained(5, average_from=2, checkpoint=tmp_path / "state")


def test_an_epoch_that_is_only_as_good_is_no_better():
    """No spikes, no logits: the loss stays at the logarithm of the number of classes."""
    network = Network([LIF(N, 8, threshold=1e6)], CLASSES)
    result = train(network, Patterns(9), Patterns(3), epochs=30, patience=2, **QUIET)
    assert [row["validation_loss"] for row in result.history] == pytest.approx([math.log(3)] * 3)
    assert (result.best_epoch, result.stopped_early) == (1, True)


def test_training_that_uses_all_its_epochs_did_not_stop_early():
    result = train(small_network(), Patterns(24), Patterns(12), epochs=2, **QUIET)
    assert not result.stopped_early
    assert [row["epoch"] for row in result.history] == [1, 2]


def test_frozen_parameters_stay():
    network = small_network()
    network.cells[0].get_parameter("w_in").requires_grad_(False)
    before = weights(network)
    train(network, Patterns(24), Patterns(12), epochs=2, **QUIET)
    after = weights(network)
    assert torch.equal(before["cells.0.w_in"], after["cells.0.w_in"])
    assert not torch.equal(before["readout.weight"], after["readout.weight"])


def test_the_progress_bar_names_epoch_and_loss(capsys: pytest.CaptureFixture[str]):
    train(small_network(), Patterns(24), Patterns(12), epochs=2, batch_size=8)
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
    network = small_network()
    numbers = itertools.count(1)

    def spoil(module: nn.Module, inputs: Any, logits: Tensor) -> Tensor:
        return logits * math.nan if module.training and next(numbers) == 5 else logits

    network.readout.register_forward_hook(spoil)
    with torch.no_grad():
        network.readout.weight.zero_()
    with pytest.raises(FloatingPointError, match=r"loss is nan in epoch 2, batch 2: lower.*\(now 0\.005\).*pretrain"):
        train(network, Patterns(24), Patterns(12), epochs=3, **QUIET)
    assert all(value.isfinite().all() for value in weights(network).values())


def diverges(network: Network, at: int) -> None:
    """Make the loss NaN in one batch of training."""
    numbers = itertools.count(1)

    def spoil(module: nn.Module, inputs: Any, logits: Tensor) -> Tensor:
        return logits * math.nan if module.training and next(numbers) == at else logits

    network.readout.register_forward_hook(spoil)


@pytest.mark.parametrize(("epochs", "best"), [(0, "before the training"), (1, "epoch 1, its best"), (4, "epoch")])
def test_after_a_divergence_the_network_holds_its_best_weights(epochs: int, best: str):
    network, seen = small_network(), []
    start = weights(network)
    diverges(network, at=epochs * 3 + 2)  # in the second batch of the next epoch
    with pytest.raises(FloatingPointError, match=rf"in epoch {epochs + 1}, batch 2: .*holds the weights of {best}"):
        train(
            network,
            Patterns(24),
            Patterns(12),
            epochs=9,
            on_epoch=lambda history: seen.append((history[-1]["validation_loss"], weights(network))),
            **QUIET | {"lr": 0.2},
        )
    assert len(seen) == epochs
    assert same_bits(weights(network), min(seen, key=lambda one: one[0])[1] if seen else start)


def test_weights_that_diverged_in_the_last_batch_of_an_epoch_are_told_with_the_epoch():
    network = small_network()

    def spoil(module: nn.Module, inputs: Any, logits: Tensor) -> Tensor:
        return logits if module.training else logits * math.inf

    network.readout.register_forward_hook(spoil)
    before = weights(network)
    with pytest.raises(FloatingPointError, match=r"validation loss is not finite in epoch 1: lower the learning rate"):
        train(network, Patterns(24), Patterns(12), epochs=3, **QUIET)
    assert same_bits(weights(network), before)


@pytest.mark.parametrize(
    ("losses", "found"),
    [
        ([1.0, 2.0, 3.0], "only grew, from 1 in epoch 1 to 3 in epoch 3: lower the learning rate"),
        ([1.0, 3.0, 2.0, 4.0], "only grew, from 1 in epoch 1 to 4 in epoch 4"),
        ([1.0, 2.0], None),
        ([1.0, 2.0, 0.9, 5.0], None),
        ([1.0, 1.0, 1.0], None),
    ],
)
def test_a_loss_that_only_grows_is_named(losses: list[float], found: str | None):
    result = TrainResult([{"train_loss": loss} for loss in losses], 1, False)
    if found is None:
        assert result.findings == ()
    else:
        assert found in result.findings[0]


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"training": Patterns(0)}, ValueError, "training is empty"),
        ({"validation": Patterns(0)}, ValueError, "validation is empty"),
        ({"training": iter(())}, TypeError, "training must be a data set with a length"),
        ({"training": torch.zeros(6, 12, N)}, TypeError, "training must be a data set with .*got Tensor"),
        (
            {"training": DataLoader(Patterns(6))},
            ValueError,
            r"training .*\(B, T, N\).*collate_fn=neurolsc\.datasets\.collate",
        ),
        ({"validation": DataLoader(Patterns(6))}, ValueError, "validation is a DataLoader with torch's default"),
        (
            {"schedule": STEP(torch.optim.SGD([torch.zeros(1)], 0.1))},
            TypeError,
            r"of torch as FromTorch\(make\), got a StepLR",
        ),
        ({"network": nn.LSTM(N, 4)}, TypeError, r"a neurolsc\.Network, got LSTM: give neurolsc\.wrap"),
        ({"training": [(torch.zeros(12, N), 1.5)]}, TypeError, r"a label must be an integer, got 1\.5 in item 0"),
        ({"training": [(torch.zeros(N, 12), 1)]}, ValueError, r"x must have shape \(T, B, 6\).*got \(6, 1, 12\)"),
        ({"training": [(torch.zeros(12, N) + 0j, 1)]}, TypeError, "x must be real, got torch.complex64"),
        ({"epochs": 0}, ValueError, "epochs must be at least 1, got 0"),
        ({"epochs": 1.5}, TypeError, "epochs must be an int"),
        ({"patience": 0}, ValueError, "patience"),
        ({"batch_size": 0}, ValueError, "batch_size"),
        ({"seed": -1}, ValueError, "seed"),
        ({"average_from": -1}, ValueError, "average_from must be at least 0, got -1"),
        ({"lr": 0.0}, ValueError, "lr must be positive"),
        ({"lr": math.nan}, ValueError, "lr must be positive"),
        ({"optimizer": torch.optim.SGD([torch.zeros(1)], 0.1)}, TypeError, r"\(parameters, lr\), got a SGD"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_anything_runs(
    changes: dict[str, Any], error: type[Exception], message: str
):
    network = small_network()
    before = weights(network)
    arguments = {"network": network, "training": Patterns(6), "validation": Patterns(3), "epochs": 1, **QUIET} | changes
    with pytest.raises(error, match=message):
        train(**arguments)
    assert same_bits(before, weights(network))


def test_the_function_and_the_command_train_alike_if_nothing_is_said():
    ours, theirs = small_network(), small_network()
    sets = {"training": Patterns(40), "validation": Patterns(9)}
    train(ours, **sets, epochs=2, progress=False)
    TrainSettings(epochs=2).run(theirs, **sets, seed=0, progress=False)
    assert same_bits(weights(ours), weights(theirs))
    other = small_network()
    train(other, **sets, epochs=2, progress=False, **PAPER)
    assert not same_bits(weights(ours), weights(other))


def test_the_papers_training_is_adabelief_in_lookahead_at_one_rate():
    made: list[Any] = []

    def watched(parameters: Any, lr: float) -> Any:
        made.append(adabelief_lookahead(parameters, lr))
        return made[0]

    data = Patterns(300)
    train(small_network(), data, Patterns(9), epochs=2, progress=False, **PAPER | {"optimizer": watched})
    (optimizer,) = made
    assert isinstance(optimizer, Lookahead) and isinstance(optimizer.optimizer, AdaBelief)
    (group,) = optimizer.param_groups
    assert (group["lr"], group["counter"]) == (1e-3, 4)  # at its end as at first; two batches an epoch
