import itertools
from functools import partial
from typing import Any

import pytest
import torch
from scipy import stats
from torch.testing import assert_close
from torch.utils.data import DataLoader, Subset

from neurolsc.datasets import LatencyEncoding, SpikeLatencyMNIST, collate, latency_frames, spike_latency
from neurolsc.datasets.augment import drawn_from
from neurolsc.datasets.mnist import FULL_SIZES, SPLITS
from neurolsc.datasets.mnist_files import TEST, TRAIN, fetch_mnist, read_pair
from neurolsc.datasets.splits import carve
from neurolsc.experiment.config import DataSettings
from neurolsc.training.fingerprint import data_fingerprint


def rows(images):
    return {bytes(row.tolist()) for row in images}


def spike_bins(x):
    return torch.tensordot(torch.arange(50), x[::2].long(), dims=1)


def test_parts_have_their_sizes_and_share_no_item():
    parts = carve(60_000, FULL_SIZES, seed=0)
    assert [len(parts[name]) for name in ("train", "validation")] == [45_000, 5_000]
    drawn = torch.cat([*parts.values()])
    assert len(drawn.unique()) == 50_000
    assert drawn.min() >= 0
    assert drawn.max() < 60_000
    assert 0.4 < (drawn < 30_000).double().mean() < 0.6


def test_a_seed_names_the_same_parts_in_every_release():
    assert carve(60_000, FULL_SIZES, 0)["validation"][:6].tolist() == [3048, 19563, 58303, 8870, 40228, 31488]
    assert carve(60_000, FULL_SIZES, 1)["validation"][:6].tolist() != [3048, 19563, 58303, 8870, 40228, 31488]


def test_parts_larger_than_the_whole_and_odd_seeds_are_refused():
    with pytest.raises(ValueError, match="need 50000 items, got 49999"):
        carve(49_999, FULL_SIZES, 0)
    with pytest.raises(ValueError, match="seed must be at least 0, got -1"):
        carve(60_000, FULL_SIZES, -1)


def test_train_and_validation_are_carved_from_the_training_file_and_test_is_the_test_file(root):
    paths = fetch_mnist(root)
    train_images, train_labels = read_pair(*(paths[name] for name in TRAIN))
    test_images, test_labels = read_pair(*(paths[name] for name in TEST))
    train, validation, test = (SpikeLatencyMNIST(root, split, seed=3) for split in SPLITS)
    assert [len(train), len(validation), len(test)] == [18, 4, 12]
    assert rows(train.images).isdisjoint(rows(validation.images))
    assert rows(train.images) | rows(validation.images) < rows(train_images.flatten(1))
    assert_close(test.images, test_images.flatten(1))
    assert_close(test.labels, test_labels.long())
    label_of = {bytes(i.flatten().tolist()): int(label) for i, label in zip(train_images, train_labels, strict=True)}
    for part in (train, validation):
        assert [label_of[bytes(row.tolist())] for row in part.images] == part.labels.tolist()


def test_the_same_seed_draws_the_same_images_and_another_draws_others(root):
    first, again, other = (SpikeLatencyMNIST(root, "train", seed=seed) for seed in (0, 0, 1))
    assert_close(first.images, again.images)
    assert rows(first.images) != rows(other.images)


def test_missing_files_are_downloaded_on_first_use(served, tmp_path):
    assert len(SpikeLatencyMNIST(tmp_path / "root", "test")) == 12
    assert sorted(path.name for path in (tmp_path / "root").iterdir()) == sorted(f"{name}.gz" for name in TEST)


def test_an_unknown_split_is_answered_with_the_known_ones_before_any_file_is_touched(tmp_path):
    unknown: Any = "valid"
    for make in (partial(SpikeLatencyMNIST, tmp_path), SpikeLatencyMNIST.embedded):
        with pytest.raises(ValueError, match=r"one of 'train', 'validation', 'test', got 'valid'"):
            make(unknown)
    assert not [*tmp_path.iterdir()]


def test_an_item_is_the_encoded_image_and_its_digit():
    digits = SpikeLatencyMNIST.embedded("test")
    x, label = digits[7]
    assert (x.shape, x.dtype, type(label)) == ((digits.steps, digits.n_in), torch.uint8, int)
    assert (digits.steps, digits.n_in, digits.n_classes) == (100, 784, 10)
    assert label == digits.labels[7]
    pixels = digits.images[7].double() / 255
    assert x.sum() == 2 * (spike_latency(pixels) < 50).sum() > 100


def test_a_batch_is_the_encoding_of_its_images():
    digits = SpikeLatencyMNIST.embedded("test")
    x, labels = collate(digits.__getitems__(range(300)))
    assert_close(x, latency_frames(spike_latency(digits.images[:300].double() / 255)))
    assert_close(labels, digits.labels[:300])


def test_items_asked_for_together_are_the_items_asked_for_one_by_one():
    digits = SpikeLatencyMNIST.embedded("validation")
    indices = [5, 0, 199, 5]
    for (x, label), i in zip(digits.__getitems__(indices), indices, strict=True):
        assert_close(x, digits[i][0])
        assert label == digits[i][1]
        assert type(label) is int


def test_an_index_beyond_the_last_item_is_an_index_error():
    with pytest.raises(IndexError):
        SpikeLatencyMNIST.embedded("validation")[200]


def test_the_encoding_can_be_another():
    code = LatencyEncoding(dt=2.0, window=40.0, repeat=1)
    digits = SpikeLatencyMNIST.embedded("validation", encoding=code)
    assert digits.steps == 20
    assert digits[0][0].shape == (20, 784)
    assert "LatencyEncoding(tau=50.0, threshold=0.2, dt=2.0, window=40.0, repeat=1)" in repr(digits)


def test_shifted_images_are_whole_pixels_away_all_shifts_as_likely():
    still, moved = SpikeLatencyMNIST.embedded("train"), SpikeLatencyMNIST.embedded("train", shift=2)
    assert repr(moved).endswith("shift=2)") and "shift" not in repr(still)
    with drawn_from(0):
        x = moved.__getitems__(range(1000)).x.transpose(0, 1).reshape(1000, -1, 28, 28)
    whole = still.__getitems__(range(1000)).x.transpose(0, 1).reshape(1000, -1, 28, 28)
    padded = torch.nn.functional.pad(whole, (2,) * 4)
    seen = torch.zeros(5, 5)
    for image, frame in zip(x, padded, strict=True):
        fits = [
            (i, j)
            for i, j in itertools.product(range(5), range(5))
            if torch.equal(image, frame[:, i : i + 28, j : j + 28])
        ]
        assert len(fits) == 1
        seen[fits[0]] += 1
    assert stats.chisquare(seen.flatten()).pvalue > 1e-3


def test_shifts_follow_from_seed_and_indices_or_from_torch():
    moved = SpikeLatencyMNIST.embedded("train", shift=1)
    drawn = []
    for seed, items in ((0, range(40)), (0, range(40)), (1, range(40)), (0, range(39, -1, -1))):
        with drawn_from(seed):
            drawn.append(moved.__getitems__(items).x)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[0], drawn[3].flip(1))
    torch.manual_seed(0)
    one = [moved[3][0] for _ in range(20)]
    torch.manual_seed(0)
    assert all(map(torch.equal, one, [moved[3][0] for _ in range(20)]))
    assert not all(torch.equal(one[0], other) for other in one)


@pytest.mark.parametrize(
    ("split", "shift", "error", "told"),
    [
        ("train", -1, ValueError, "shift must be"),
        ("train", 1.0, TypeError, "shift must be an int"),
        ("validation", 1, ValueError, "shift is for the training split; of 'validation' every image stays"),
    ],
)
def test_a_shift_that_makes_no_sense_is_refused(split, shift, error, told):
    with pytest.raises(error, match=told):
        SpikeLatencyMNIST.embedded(split, shift=shift)


def test_settings_shift_the_training_images_alone():
    settings = DataSettings(shift=1)
    assert [settings.load(split).shift for split in SPLITS] == [1, 0, 0]
    told = [data_fingerprint("x", SpikeLatencyMNIST.embedded("train", shift=shift)) for shift in (0, 1)]
    assert {name for name in told[0] if told[0][name] != told[1][name]} == {"x.shift"}  # no training goes on with it
    with pytest.raises(ValueError, match="shift: for data = sl-mnist only, got data = shd"):
        DataSettings("shd", shift=1).load("train")


def test_late_pixels_are_counted():
    digits = SpikeLatencyMNIST.embedded("validation")
    times = spike_latency(digits.images.double() / 255)
    assert digits.left_out == (times.isfinite() & (times >= 50)).sum() > 0
    x, _ = collate(digits.__getitems__(range(200)))
    assert x.sum() // 2 + digits.left_out == (digits.images > 51).sum()


def test_the_repr_tells_split_size_and_shape():
    assert repr(SpikeLatencyMNIST.embedded("train")) == (
        "SpikeLatencyMNIST(split='train', 1800 items, x (100, 784), 10 classes, "
        "LatencyEncoding(tau=50.0, threshold=0.2, dt=1.0, window=50.0, repeat=2))"
    )


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_gives_every_item_once_time_first(workers):
    digits = SpikeLatencyMNIST.embedded("validation")
    loader = DataLoader(digits, batch_size=64, shuffle=True, num_workers=workers, collate_fn=collate)
    batches = [*loader]
    assert [x.shape for x, _ in batches] == [(100, n, 784) for n in (64, 64, 64, 8)]
    labels = torch.cat([labels for _, labels in batches])
    assert_close(torch.bincount(labels), torch.bincount(digits.labels))
    everything, _ = collate(digits.__getitems__(range(200)))
    assert rows(spike_bins(torch.cat([x for x, _ in batches], dim=1))) == rows(spike_bins(everything))


def test_a_subset_collates_to_the_same_batch():
    digits = SpikeLatencyMNIST.embedded("test")
    (x, labels), *rest = DataLoader(Subset(digits, [3, 1, 2]), batch_size=3, collate_fn=collate)
    assert not rest
    assert_close(labels, digits.labels[[3, 1, 2]])
    assert_close(x, torch.stack([digits[i][0] for i in (3, 1, 2)], dim=1))


def test_the_real_splits_have_the_sizes_of_the_paper(mnist_root):
    train, validation, test = (SpikeLatencyMNIST(mnist_root, split) for split in SPLITS)
    assert [len(train), len(validation), len(test)] == [45_000, 5_000, 10_000]
    assert (torch.bincount(train.labels, minlength=10) > 4_000).all()
    x, labels = collate(train.__getitems__(range(256)))
    assert x.shape == (100, 256, 784)
    assert_close(labels, train.labels[:256])
    assert_close(x[::2].sum(0).bool(), train.images[:256] >= 81)  # 50 ms: x > 0.2 e / (e - 1), 80.68 of 255
