"""The training loop: loaders, updates, random numbers, early stopping, history, divergence, refusals."""

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import snntorch as snn
import torch
from pytorch_optimizer import AdaBelief, Lookahead
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

import neurolsc
from neurolsc import Network, evaluate, train, wrap
from neurolsc.datasets import collate
from neurolsc.tasks import ClassPerStep, cross_entropy
from neurolsc.training import PAPER, adabelief_lookahead
from tests.patterns import CLASSES, QUIET, Leak, N, Patterns, Spy, same_bits, small_network, weights

Loader = partial(DataLoader, collate_fn=collate)
STEP = partial(torch.optim.lr_scheduler.StepLR, step_size=2)
DATA: dict[str, Any] = {"training": Patterns(24), "validation": Patterns(12, seed=1)}


def test_training_learns_the_patterns():
    network = small_network()
    before = evaluate(network, Patterns(60, seed=1))
    result = train(network, Patterns(120), Patterns(60, seed=1), epochs=15, batch_size=8, lr=2e-2, progress=False)
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]
    assert before.mode_accuracy < 0.6
    assert evaluate(network, Patterns(60, seed=2)).mode_accuracy > 0.9


def test_an_epoch_is_one_step_per_batch_over_all_samples():
    data, network, twin, total = Spy(11), small_network(), small_network(), 0.0
    sgd: dict[str, Any] = {"batch_size": 4, "lr": 0.1, "optimizer": torch.optim.SGD}
    result = train(network, data, Patterns(3), epochs=1, **QUIET | sgd)
    order = list(data.asked)
    assert sorted(order) == list(range(11)) != order
    for batch in (order[:4], order[4:8], order[8:]):  # by hand
        x, labels = collate([data[i] for i in batch])
        loss = cross_entropy(twin(x), labels)
        twin.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter -= 0.1 * parameter.grad  # type: ignore[operator]
        total += loss.item() * len(batch)
    assert result.history[0]["train_loss"] == pytest.approx(total / 11, rel=1e-6)
    torch.testing.assert_close(weights(network), weights(twin))


def test_the_papers_training_is_adabelief_in_lookahead_at_one_rate():
    made: list[Any] = []

    def watched(parameters: Any, lr: float) -> Any:
        made.append(adabelief_lookahead(parameters, lr))
        return made[0]

    train(small_network(), Patterns(300), Patterns(9), epochs=2, progress=False, **PAPER | {"optimizer": watched})
    (optimizer,) = made
    assert isinstance(optimizer, Lookahead) and isinstance(optimizer.optimizer, AdaBelief)
    (group,) = optimizer.param_groups
    assert (group["lr"], group["counter"]) == (1e-3, 4)  # at its end as at first; two batches an epoch


def test_the_order_of_the_samples_follows_from_seed_and_epoch_alone():
    def orders(seed: int, epochs: int) -> list[list[int]]:
        data = Spy(16)
        train(small_network(), data, Patterns(3), epochs=epochs, seed=seed, progress=False)
        return [data.asked[i : i + 16] for i in range(0, 16 * epochs, 16)]

    first = orders(3, 3)
    torch.manual_seed(123)
    assert orders(3, 2) == first[:2]
    assert len({tuple(order) for order in first + orders(4, 2)}) == 5  # all differ


def test_dropout_follows_from_the_seed_and_random_numbers_of_the_caller_stay():
    def trained(seed: int, training: bool = True) -> dict[str, Tensor]:
        torch.manual_seed(0)
        network = Network([Leak(N, 8, dropout=0.5)], CLASSES).train(training)
        torch.manual_seed(time.time_ns() % 1000)  # is of no consequence
        before = torch.random.get_rng_state()
        train(network, Patterns(9), Patterns(3), epochs=2, seed=seed, **QUIET)
        assert torch.equal(before, torch.random.get_rng_state())
        return weights(network)

    assert same_bits(trained(0), trained(0))
    assert same_bits(trained(0), trained(0, training=False))  # it always trains in training mode
    assert not same_bits(trained(0), trained(1))


def test_the_best_weights_are_restored_and_the_patience_ends_the_training():
    network = small_network()
    seen: list[tuple[float, dict[str, Tensor]]] = []
    settings = {"epochs": 30, "patience": 3, "batch_size": 8, "lr": 0.2, "progress": False}
    result = train(
        network, **DATA, **settings, on_epoch=lambda rows: seen.append((rows[-1]["validation_loss"], weights(network)))
    )
    losses = [loss for loss, _ in seen]
    assert result.best_epoch == 1 + losses.index(min(losses))
    assert result.best["validation_loss"] == min(losses)
    assert result.stopped_early
    assert 3 < len(losses) == result.best_epoch + 3 < 30
    assert same_bits(weights(network), seen[result.best_epoch - 1][1])
    assert not same_bits(weights(network), seen[-1][1])
    assert evaluate(network, DATA["validation"], batch_size=8).loss == min(losses)


@pytest.mark.parametrize(("epochs", "best"), [(0, "before the training"), (3, "epoch")])
def test_after_a_divergence_the_network_has_its_best_weights(epochs: int, best: str):
    network, batches = small_network(), itertools.count(1)
    seen: list[tuple[float, dict[str, Tensor]]] = [(math.inf, weights(network))]

    def spoil(module: nn.Module, inputs: Any, logits: Tensor) -> Tensor:
        return logits * math.nan if module.training and next(batches) == epochs * 3 + 2 else logits

    network.readout.register_forward_hook(spoil)
    message = (
        rf"loss is nan in epoch {epochs + 1}, batch 2, from the readout on: .*\(now 0\.2\).*has the weights of {best}"
    )
    with pytest.raises(FloatingPointError, match=message):
        noting = lambda rows: seen.append((rows[-1]["validation_loss"], weights(network)))  # noqa: E731
        train(network, **DATA, epochs=9, on_epoch=noting, **QUIET | {"lr": 0.2})
    assert len(seen) == epochs + 1
    assert same_bits(weights(network), min(seen, key=lambda one: one[0])[1])


class Overflowing(torch.autograd.Function):
    """A logistic surrogate whose exponential overflows far above the threshold, as snnTorch's does in plain steps."""

    @staticmethod
    def forward(ctx: Any, v: Tensor) -> Tensor:
        ctx.save_for_backward(v)
        return (v > 0).to(v.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        grown = torch.exp(25 * ctx.saved_tensors[0])
        return gradients[0] * 25 * grown / (grown + 1) ** 2


def overflowing(v: Tensor) -> Tensor:
    return Overflowing.apply(v)


def test_the_layer_whose_surrogate_has_no_finite_derivative_is_named():
    layer, spikes = 1, {1: overflowing, 2: snn.surrogate.fast_sigmoid()}
    torch.manual_seed(0)
    first, second = (snn.RLeaky(0.9, linear_features=8, spike_grad=spikes[i]) for i in (1, 2))
    network = wrap([nn.Linear(N, 8), first, nn.Linear(8, 8), second, nn.Linear(8, CLASSES)])
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(8)  # voltages far from the threshold
    with pytest.raises(
        FloatingPointError, match=rf"gradient of layer {layer}, a SnnTorchCell, is not finite in epoch 1"
    ):
        train(network, **DATA, epochs=2, **QUIET)
    assert neurolsc.diagnose(network, collate([DATA["training"][i] for i in range(8)]))[0].layer == layer


@dataclass(frozen=True)
class Odd:
    """A task whose loss and measures are what it is given; a loss of None is the mean square of the logits."""

    loss_given: Any = None
    measures_given: Any = None
    score = "accuracy"

    def loss(self, logits, targets, mask=None):
        return logits.square().mean() if self.loss_given is None else self.loss_given

    def measures(self, logits, targets, mask=None):
        return self.measures_given


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"training": Patterns(0)}, ValueError, "training is empty"),
        ({"network": nn.LSTM(N, 4)}, TypeError, r"a neurolsc\.Network, got LSTM: give neurolsc\.wrap"),
        ({"training": [(torch.zeros(N, 12), 1)]}, ValueError, r"x must have shape \(T, B, 6\).*got \(6, 1, 12\)"),
        ({"epochs": 0}, ValueError, "epochs must be at least 1, got 0"),
        ({"lr": math.nan}, ValueError, "lr must be positive"),
        ({"average": 1.0}, ValueError, r"average must be a share of the epochs, from 0 to below 1, got 1\.0"),
        ({"average": math.nan}, ValueError, "average must be a share of the epochs"),
        ({"optimizer": "adm"}, ValueError, "did you mean adam"),
        ({"schedule": "cosin"}, ValueError, "did you mean cosine"),
        ({"schedule": STEP(torch.optim.SGD([torch.zeros(1)], 0.1))}, TypeError, r"FromTorch\(make\), got a StepLR"),
        ({"optimizer": torch.optim.SGD([torch.zeros(1)], 0.1)}, TypeError, r"\(parameters, lr\), got a SGD"),
        ({"optimizer": lambda parameters, lr: None}, TypeError, r"a torch\.optim\.Optimizer from .*, got None"),
        ({"lr": "a"}, TypeError, "lr must be a number, got 'a'"),
        ({"clip_spectrum": "a"}, TypeError, "clip_spectrum must be a number, got 'a'"),
        ({"average": "a"}, ValueError, "average must be a share of the epochs, from 0 to below 1, got 'a'"),
        ({"floss_target": "a"}, ValueError, "floss_target must be a finite number of nats per step, got 'a'"),
        ({"centralize": "no"}, TypeError, "centralize must be True or False, got 'no'"),
        ({"on_epoch": 3}, TypeError, "on_epoch must be a function of the history, got 3"),
        ({"monitor": 3}, TypeError, r"monitor must be a neurolsc\.Monitor, got 3"),
        ({"loss": "count"}, TypeError, r"train\(\) takes no loss: give a task"),
        ({"network": small_network().requires_grad_(False)}, ValueError, "train needs parameters to move"),
        (
            {"task": ClassPerStep},
            TypeError,
            r"task must be an object, got the class ClassPerStep: give ClassPerStep\(\)",
        ),
        ({"task": "step"}, TypeError, "'step' has no score, loss, measures"),
        ({"task": Odd(3.0)}, TypeError, r"Odd\.loss must return a tensor of one number, got 3\.0"),
        ({"task": Odd(torch.ones(2))}, ValueError, r"Odd\.loss must return one number, got a tensor \(2,\)"),
        ({"task": Odd(torch.ones(()))}, ValueError, r"Odd\.loss must have a gradient by the logits"),
        (
            {"task": Odd(None, {"other": 1.0})},
            TypeError,
            r"Odd\.measures must return .* the score 'accuracy' .*'other'",
        ),
        ({"task": Odd(None, 0.5)}, TypeError, r"Odd\.measures must return a dict .*, got 0\.5"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_anything_runs(
    changes: dict[str, Any], error: type[Exception], message: str
):
    network = small_network()
    before = weights(network)
    with pytest.raises(error, match=message):
        train(**{"network": network, **DATA, "epochs": 1, **QUIET} | changes)
    assert same_bits(before, weights(network))


# a DataLoader: its own batches in its own order


def test_a_loader_is_taken_in_its_own_order_and_batch_size():
    data = Spy(11)
    backwards = [[10, 9, 8], [7, 6], [5, 4, 3, 2, 1, 0]]
    ours, theirs = small_network(), small_network()
    train(ours, Loader(data, batch_sampler=backwards), Patterns(3), epochs=2, **QUIET)
    assert data.asked == [*range(10, -1, -1)] * 2

    x, labels = collate([data[i] for i in range(11)])
    by_hand = [(x[:, part], labels[part]) for part in backwards]
    train(theirs, DataLoader(by_hand, batch_size=None), Patterns(3), epochs=2, **QUIET)  # batches as items
    assert same_bits(weights(ours), weights(theirs))


def batches_first(items: Any) -> tuple[Tensor, Tensor]:
    x, labels = collate(items)
    return x.transpose(0, 1), labels


class Streams(Patterns):
    streams = 3


class Iterated(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([])


@pytest.mark.parametrize(
    ("loader", "error", "message"),
    [
        (DataLoader(Patterns(6)), ValueError, r"torch's default collate_fn, which makes batches \(B, T, N\)"),
        (
            DataLoader(Patterns(6), batch_size=4, collate_fn=batches_first),
            ValueError,
            r"got \(4, 12, 6\) and \(4,\)|x \(4, 12, 6\) looks batch first",
        ),
        (DataLoader(Patterns(6), collate_fn=list), TypeError, r"a batch must be (tensors x|a tensor x).*got"),
        (Loader(Patterns(3), batch_size=4, drop_last=True), ValueError, "is an empty DataLoader"),
        (Loader(Streams(6)), ValueError, "has streams"),
        (Loader(Iterated()), TypeError, "is a DataLoader of an IterableDataset without a length"),
    ],
)
def test_a_loader_of_other_batches_is_refused(loader: Any, error: type[Exception], message: str):
    network = small_network()
    with pytest.raises(error, match=message):
        evaluate(network, loader)
    with pytest.raises(error, match=message):
        train(network, loader, Patterns(3), epochs=1, **QUIET)


AVERAGED: dict[str, Any] = {"epochs": 5, "average": 0.5, "patience": 5, "schedule": "constant"}  # of epochs 4 and 5


def test_averaged_weights_are_validated_and_kept():
    network = small_network()
    after: list[dict[str, Tensor]] = []
    result = train(network, on_epoch=lambda _: after.append(weights(network)), **QUIET | DATA | AVERAGED)
    assert len(after) == 5
    judged = [*after[:4], {name: (after[3][name] + after[4][name]) / 2 for name in after[4]}]
    end = small_network()
    for epoch, mean in enumerate(judged, start=1):
        end.load_state_dict(mean)
        loss = evaluate(end, DATA["validation"]).loss
        assert loss == pytest.approx(result.history[epoch - 1]["validation_loss"], rel=1e-5)
        if epoch == result.best_epoch:
            torch.testing.assert_close(weights(network), mean)
    assert not same_bits(after[3], after[4])


def test_averaged_weights_survive_a_stop(tmp_path: Path):
    through = small_network()
    history = train(through, **QUIET | DATA | AVERAGED).history

    def stops(rows: Sequence[Any]) -> None:
        if len(rows) == 4:  # one of the two is in the mean
            raise KeyboardInterrupt

    stopped = small_network()
    with pytest.raises(KeyboardInterrupt):
        train(stopped, checkpoint=tmp_path / "c", on_epoch=stops, **QUIET | DATA | AVERAGED)
    resumed = small_network()
    again = train(resumed, checkpoint=tmp_path / "c", **QUIET | DATA | AVERAGED).history
    assert [row["validation_loss"] for row in again] == [row["validation_loss"] for row in history]
    assert same_bits(weights(resumed), weights(through))
    with pytest.raises(ValueError, match=r"average was 0\.5, is now 0\.0"):
        train(small_network(), checkpoint=tmp_path / "c", **QUIET | DATA | AVERAGED | {"average": 0.0})
