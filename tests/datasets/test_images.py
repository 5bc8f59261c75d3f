"""Images: spike latencies by the paper's text and by its code, MNIST, pixels and CIFAR."""

import gzip
import hashlib
import itertools
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from torch.testing import assert_close

from neurolsc.datasets import (
    CIFAR10,
    CIFAR100,
    LatencyEncoding,
    MNISTPixels,
    ReleasedEncoding,
    SequentialMNIST,
    SpikeLatencyMNIST,
    collate,
    images,
    read_idx,
    spike_latency,
)
from neurolsc.datasets.batches import SPLITS, drawn_from
from neurolsc.datasets.images import read_records

PIXELS = 784


def float64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def rows(images: torch.Tensor) -> set[bytes]:
    return {bytes(row.tolist()) for row in images}


# Spike latency


def test_the_spike_time_is_the_closed_form():
    times = spike_latency(float64(1.0, 0.5, 0.4, 0.25))
    assert_close(times, 50 * float64(math.log(5 / 4), math.log(5 / 3), math.log(2), math.log(5)))
    for dtype in (torch.float32, torch.float64):  # at the threshold it is silent, just above it spikes late
        at = torch.tensor(0.2, dtype=dtype)
        assert 50 < spike_latency(at.nextafter(torch.ones((), dtype=dtype))) < spike_latency(at) == math.inf


@given(
    st.lists(st.floats(0, 100) | st.just(math.inf), min_size=1, max_size=20),
    st.sampled_from([(1.0, 50.0), (0.5, 50.0), (0.1, 10.0), (4.0, 100.0)]),
    st.integers(1, 3),
)
def test_frames_are_those_of_a_loop_over_the_spikes(times, bins, repeat):
    dt, window = bins
    expected = torch.zeros(round(window / dt) * repeat, len(times), dtype=torch.uint8)
    for n, t in enumerate(times):
        if t < window:
            first = math.floor(t / dt) * repeat
            expected[first : first + repeat, n] = 1
    assert_close(LatencyEncoding(dt=dt, window=window, repeat=repeat).frames(float64(*times)), expected)


def test_a_spike_just_before_the_end_stays_in_the_last_bin_when_the_division_rounds_up():
    dt, window = 0.1, 0.1 * 17
    t = math.nextafter(window, 0)
    assert math.floor(t / dt) == round(window / dt)
    frames = LatencyEncoding(dt=dt, window=window, repeat=1).frames(float64(t))
    assert frames.flatten().nonzero().item() == len(frames) - 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dt": 3.0}, "whole number of bins, got 50.0 ms with bins of 3.0 ms"),
        ({"repeat": 0}, "repeat must be at least 1"),
        ({"tau": math.nan}, "tau must be positive"),
        ({"threshold": 1.0}, r"threshold must be a brightness in \[0, 1\), got 1.0"),
    ],
)
def test_an_encoding_and_pixels_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        LatencyEncoding(**arguments)
    for pixel in (-0.01, 255.0):
        with pytest.raises(ValueError, match=rf"pixels must lie in \[0, 1\], got {pixel:g}"):
            spike_latency(torch.tensor([0.5, pixel]))


# The released code's latencies


def one_hot_and_reshaped(grey: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """An image (784,) as (100, 784): the released code's steps, one by one, in float32."""
    scaled = (grey / 255).astype(np.float32) * np.float32(50)
    spikes = scaled > np.float32(0.2)
    late = np.log(scaled[spikes] / (scaled[spikes] - np.float32(0.2)))
    times = np.full(PIXELS, np.inf, dtype=np.float32)
    times[spikes] = 50 * late * 10
    bins = np.rint(times)
    one_hot = np.zeros((PIXELS, 100), dtype=np.uint8)
    for pixel in range(PIXELS):
        if bins[pixel] < 100:
            one_hot[pixel, int(bins[pixel])] = 1
    return one_hot.reshape(100, PIXELS)


def test_a_data_set_gives_the_batches_of_its_images_in_the_released_code():
    digits = SpikeLatencyMNIST.embedded("test", encoding=ReleasedEncoding())
    x, _ = collate(digits.__getitems__(range(8)))
    assert (x.shape, x.dtype, digits.steps) == ((200, 8, PIXELS), torch.uint8, 200)
    for b in range(8):
        assert_close(x[::2, b].numpy(), one_hot_and_reshaped(digits.images[b].numpy()))
    assert_close(digits[3][0], x[:, 3])


# Files of MNIST


def idx_bytes(array: torch.Tensor) -> bytes:
    return struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape) + array.numpy().tobytes()


DATA = idx_bytes(torch.arange(30, dtype=torch.uint8).view(5, 3, 2))


@pytest.mark.parametrize(("shape", "pack"), [((7,), bytes), ((4, 3, 2), gzip.compress), ((0, 28, 28), bytes)])
def test_an_idx_file_is_read_back_whatever_its_name(tmp_path, shape, pack):
    array = torch.randint(256, shape, dtype=torch.uint8)
    (tmp_path / "some.bin").write_bytes(pack(idx_bytes(array)))
    assert_close(read_idx(tmp_path / "some.bin"), array)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (DATA[:11], "not an IDX file"),
        (DATA[:-1], r"the header states \(5, 3, 2\), so 30 bytes after it, got 29"),
        (struct.pack(">HBBI", 0, 0x0C, 1, 1) + bytes(4), "0x000008 and 1 to 8 axes, got 0x00000c01"),
    ],
)
def test_a_damaged_idx_file_is_refused_by_name(tmp_path, data, message):
    (tmp_path / "damaged.gz").write_bytes(data)
    with pytest.raises(ValueError, match=rf"damaged\.gz: .*{message}"):
        read_idx(tmp_path / "damaged.gz")


def test_train_and_validation_are_drawn_from_the_training_file_and_test_is_the_test_file(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "MNIST_SIZES", {"validation": 4, "train": 18})
    for part, n in (("train", 24), ("t10k", 12)):
        pictures, digits = torch.randint(256, (n, 28, 28)).byte(), torch.randint(10, (n,)).byte()
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(pictures)))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(idx_bytes(digits))
    everything = read_idx(tmp_path / "train-images-idx3-ubyte.gz").flatten(1)
    labels = read_idx(tmp_path / "train-labels-idx1-ubyte").tolist()
    digit_of = {bytes(image.tolist()): label for image, label in zip(everything, labels, strict=True)}
    train, validation, test = (SpikeLatencyMNIST(tmp_path, split, seed=3) for split in SPLITS)
    assert [len(train), len(validation), len(test)] == [18, 4, 12]
    assert rows(train.images).isdisjoint(rows(validation.images))
    assert rows(train.images) | rows(validation.images) < rows(everything)
    for part in (train, validation):
        assert [digit_of[bytes(row.tolist())] for row in part.images] == part.labels.tolist()
    assert_close(test.images, read_idx(tmp_path / "t10k-images-idx3-ubyte.gz").flatten(1))
    assert rows(SpikeLatencyMNIST(tmp_path, "train", seed=3).images) == rows(train.images)
    assert rows(SpikeLatencyMNIST(tmp_path, "train", seed=0).images) != rows(train.images)
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(idx_bytes(torch.full((24,), 11).byte()))
    with pytest.raises(ValueError, match=r"train must hold images \(n, 28, 28\) with n digits 0 to 9, got .* up to 11"):
        SpikeLatencyMNIST(tmp_path, "train")


# Spiking digits


def test_a_batch_is_the_encoding_of_its_images():
    digits = SpikeLatencyMNIST.embedded("test")
    x, labels = collate(digits.__getitems__(range(300)))
    assert_close(x, LatencyEncoding().frames(spike_latency(digits.images[:300].double() / 255)))
    assert_close(labels, digits.labels[:300])
    assert (x.shape, x.dtype, digits.n_in, digits.n_classes) == ((100, 300, 784), torch.uint8, 784, 10)
    item, label = digits[7]
    assert_close(item, x[:, 7])
    assert label == digits.labels[7] and type(label) is int
    assert_close(x.flatten(0, 1).sum(0) > 0, (digits.images[:300] >= 81).any(0))  # 50 ms: x > 0.2 e / (e - 1)


@pytest.mark.parametrize("kind", [SpikeLatencyMNIST, MNISTPixels])
def test_items_and_splits_that_are_not_there_are_refused(kind):
    with pytest.raises(IndexError):
        kind.embedded("validation")[200]
    with pytest.raises(ValueError, match="split must be one of 'train', 'validation', 'test', got 'valid'"):
        kind.embedded("valid")


def test_shifted_images_are_whole_pixels_away_all_shifts_as_likely():
    still, moved = SpikeLatencyMNIST.embedded("train"), SpikeLatencyMNIST.embedded("train", shift=2)
    with drawn_from(0):
        x = moved.__getitems__(range(300)).x.transpose(0, 1).reshape(300, -1, 28, 28)
    whole = still.__getitems__(range(300)).x.transpose(0, 1).reshape(300, -1, 28, 28)
    padded = torch.nn.functional.pad(whole, (2,) * 4)
    seen, places = torch.zeros(5, 5), list(itertools.product(range(5), range(5)))
    for image, frame in zip(x, padded, strict=True):
        fits = [(i, j) for i, j in places if torch.equal(image, frame[:, i : i + 28, j : j + 28])]
        assert len(fits) == 1
        seen[fits[0]] += 1
    assert stats.chisquare(seen.flatten()).pvalue > 1e-3
    with pytest.raises(ValueError, match="shift is for the training split, got 1 for 'validation'"):
        SpikeLatencyMNIST.embedded("validation", shift=1)
    with pytest.raises(ValueError, match="shift must be below 28, by which a digit leaves the image, got 28"):
        SpikeLatencyMNIST.embedded("train", shift=28)


def test_shifts_follow_from_seed_and_indices_or_from_torch():
    moved = SpikeLatencyMNIST.embedded("train", shift=1)
    drawn = []
    for seed, items in ((0, range(40)), (0, range(40)), (1, range(40)), (0, range(39, -1, -1))):
        with drawn_from(seed):
            drawn.append(moved.__getitems__(items).x)
    assert [torch.equal(drawn[0], other) for other in (drawn[1], drawn[2], drawn[3].flip(1))] == [True, False, False]
    for same in (True, False):
        torch.manual_seed(0)
        one = moved.__getitems__(range(40)).x
        torch.manual_seed(not same)
        assert torch.equal(one, moved.__getitems__(range(40)).x) == same


def test_the_real_splits_have_the_sizes_of_the_paper(mnist_root):
    train, validation, test = (SpikeLatencyMNIST(mnist_root, split) for split in SPLITS)
    assert [len(train), len(validation), len(test)] == [45_000, 5_000, 10_000]
    assert (torch.bincount(train.labels, minlength=10) > 4_000).all()
    x, labels = collate(train.__getitems__(range(256)))
    assert_close(labels, train.labels[:256])
    assert_close(x[::2].sum(0).bool(), train.images[:256] >= 81)  # 50 ms: x > 0.2 e / (e - 1), 80.68 of 255


# Pixels and CIFAR


def test_digits_as_pixels_are_the_images_of_the_spiking_set():
    for split in SPLITS:
        pixels, spikes = MNISTPixels.embedded(split), SpikeLatencyMNIST.embedded(split)
        assert_close(pixels.images, spikes.images)
        assert_close(pixels.labels, spikes.labels)
    x, label = pixels[7]
    assert (x.shape, x.dtype, label) == ((1, 784), torch.float32, int(pixels.labels[7]))
    assert_close(x[0], pixels.images[7] / 255)
    assert repr(pixels) == "MNISTPixels(split='test', 500 items, x (1, 784), 10 classes)"


def test_a_sequence_shows_a_pixel_a_step_in_an_order_that_its_seed_fixes():
    still, mixed = (SequentialMNIST.embedded("test", permutation=p) for p in (None, 0))
    pixels, order = MNISTPixels.embedded("test"), mixed.permutation
    (x, labels), (permuted, _) = (collate(data.__getitems__(range(5))) for data in (still, mixed))
    assert (x.shape, still.n_in, still.steps, still.n_classes) == ((784, 5, 1), 1, 784, 10)
    assert_close(x[:, :, 0].T, pixels.images[:5] / 255)
    assert_close(labels, pixels.labels[:5])
    assert_close(permuted, x[order])
    assert (
        hashlib.sha256(order.numpy().astype("<i8").tobytes()).hexdigest()
        == "fe62e3fef305ce16e55f08cd0056a8b237e12af6c9523ff3fb35395f6ec55222"
    )
    assert_close(SequentialMNIST.embedded("test", permutation=order).images, mixed.images)


@pytest.mark.parametrize("wrong", [torch.arange(783), torch.zeros(784, dtype=torch.int64)])
def test_a_permutation_of_another_length_or_with_a_place_twice_is_refused(wrong):
    with pytest.raises(
        ValueError, match=r"permutation must hold each of the places 0 ... 783 once, .* got torch.int64"
    ):
        SequentialMNIST.embedded("test", permutation=wrong)


def records(path: Path, classes: Any, n: int) -> torch.Tensor:
    """Write random images with their labels, and return both, a row an image."""
    labels = torch.stack([torch.randint(c, (n,)) for c in classes], 1)
    table = torch.cat([labels, torch.randint(256, (n, 3072))], 1).byte()
    path.write_bytes(table.numpy().tobytes())
    return table


@pytest.mark.parametrize("kind", [CIFAR10, CIFAR100])
def test_cifar_is_read_by_its_records_and_split_with_the_seed(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(kind, "_sizes", {"train": 100, "test": 20})
    head, n = len(kind._classes), 100 // len(kind._train)
    whole = torch.cat([records(tmp_path / name, kind._classes, n) for name in kind._train])
    table, test = records(tmp_path / kind._test, kind._classes, 20), kind(tmp_path, "test")
    assert_close(test.images, table[:, head:])
    assert_close(test.labels, table[:, head - 1].long())
    train, validation = kind(tmp_path, "train"), kind(tmp_path, "validation")
    assert (len(train), len(validation), train.n_classes, train.n_in) == (90, 10, kind._classes[-1], 3072)
    assert rows(train.images) | rows(validation.images) == rows(whole[:, head:])
    assert rows(kind(tmp_path, "validation", seed=1).images) != rows(validation.images)


def test_files_of_another_size_and_labels_out_of_range_are_refused(tmp_path):
    path = tmp_path / "batch.bin"
    records(path, (20, 100), 9)
    with pytest.raises(ValueError, match=r"batch.bin: 10 images are 30,740 bytes, 3,074 each, got 27,666"):
        read_records(path, (20, 100), 10)
    path.write_bytes(bytes([19, 100]) + bytes(3072))
    with pytest.raises(ValueError, match=r"labels must lie in 0 \.\.\. 99, got 100"):
        read_records(path, (20, 100), 1)
