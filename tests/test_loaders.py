"""Training and evaluation on a DataLoader: its own batches in its own order."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from neurolsc import ALIFPlus, Network, evaluate, train
from neurolsc.datasets import collate
from tests.patterns import CLASSES, QUIET, Leak, N, Patterns, Spy, same_bits, small_network, weights

Loader = partial(DataLoader, collate_fn=collate)


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


@pytest.mark.parametrize(
    ("loader", "error", "message"),
    [
        (DataLoader(Patterns(6)), ValueError, r"torch's default collate_fn, which makes batches \(B, T, N\)"),
        (
            DataLoader(Patterns(6), batch_size=4, collate_fn=batches_first),
            ValueError,
            r"got \(4, 12, 6\) and \(4,\)",
        ),
        (DataLoader(Patterns(6), collate_fn=list), TypeError, r"a batch must be tensors x \(T, B, N\).*got a list"),
        (Loader(Patterns(3), batch_size=4, drop_last=True), ValueError, "is an empty DataLoader"),
        (Loader(Streams(6)), ValueError, "has streams"),
    ],
)
def test_a_loader_of_other_batches_is_refused(loader: Any, error: type[Exception], message: str):
    network = small_network()
    with pytest.raises(error, match=message):
        evaluate(network, loader)
    with pytest.raises(error, match=message):
        train(network, loader, Patterns(3), epochs=1, **QUIET)


# resuming


def test_a_resumed_training_ends_in_the_same_bits(tmp_path: Path):
    loader = partial(Loader, batch_size=4, shuffle=True, num_workers=1)

    def go(epochs: int, **more: Any) -> tuple[Any, dict[str, Tensor]]:
        torch.manual_seed(0)
        network = Network([ALIFPlus(N, 8, tau_theta=10.0), Leak(8, 4, dropout=0.5)], CLASSES)
        torch.manual_seed(epochs)  # is of no consequence
        history = train(network, loader(Patterns(20)), loader(Patterns(9)), epochs=epochs, **QUIET | more)
        return [row | {"seconds": 0} for row in history.history], weights(network)

    through = go(3, patience=9)
    go(1, checkpoint=tmp_path / "c")
    resumed = go(3, checkpoint=tmp_path / "c", patience=9)
    assert resumed[0] == through[0]
    assert same_bits(resumed[1], through[1])


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
        (Loader(Patterns(20), batch_size=5), r"training\.batch_size = 4, now it is 5"),
        (Loader(Patterns(20), batch_size=4, shuffle=True), r"training\.sampler = SequentialSampler, now it is RandomS"),
    ],
)
def test_a_training_does_not_go_on_with_another_loader(loader: Any, message: str, tmp_path: Path):
    settings: dict[str, Any] = QUIET | {"checkpoint": tmp_path / "c"}
    train(small_network(), Loader(Patterns(20), batch_size=4), Patterns(3), epochs=1, **settings)
    with pytest.raises(ValueError, match=message):
        train(small_network(), loader, Patterns(3), epochs=3, **settings)
