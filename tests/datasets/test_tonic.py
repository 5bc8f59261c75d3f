"""Items of tonic's own data sets, on files written here, beside what tonic's transforms make."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tonic
import torch
from tonic import transforms
from torch.utils.data import DataLoader

from neurolsc import LIF, ALIFPlus, Network, train
from neurolsc.datasets import SHD, collate, from_tonic
from tests.patterns import QUIET, same_bits, weights
from tests.words import write_words

FIELDS = [("t", int), ("x", int), ("y", int), ("p", int)]


def shd(root: Path, **changes: Any) -> Any:
    """tonic's SHD on a file of twelve utterances, of which some last for more than a second."""
    if not (root / "SHD").exists():
        write_words(root / "SHD" / "shd_train.h5")
        (root / "SHD" / "shd_train.h5.zip").touch()  # tonic looks for the archive beside the file
    return tonic.datasets.SHD(str(root), train=True, **changes)


def gestures(root: Path, **changes: Any) -> Any:
    """tonic's DVSGesture on as many files as it wants: x, y, polarity, milliseconds."""
    above = root / "DVSGesture" / "ibmGestureTrain"
    if not above.exists():
        random = np.random.default_rng(0)
        for i in range(110):
            folder = above / f"user{i // 11:02}_led"
            folder.mkdir(parents=True, exist_ok=True)
            times = np.sort(random.integers(500, 700, 200))
            np.save(folder / f"{i % 11}.npy", np.c_[random.integers(0, 128, (200, 2)), times % 2, times])
        (root / "DVSGesture" / "ibmGestureTrain.tar.gz").touch()
    return tonic.datasets.DVSGesture(str(root), train=True, **changes)


def saccades(root: Path, kind: Any, folder: str, names: list[str], files: int, **changes: Any) -> Any:
    """A set of five bytes an event, on a file for each class with as many links as tonic wants."""
    above = root / kind.__name__
    if not above.exists():
        random = np.random.default_rng(0)
        for name in names:
            (above / folder / name).mkdir(parents=True)
            times = np.sort(random.integers(0, 300_000, 150))
            raw = np.zeros((150, 5), np.uint8)
            raw[:, :2] = random.integers(0, 34, (150, 2))
            raw[:, 2] = (random.integers(0, 2, 150) << 7) | (times >> 16)
            raw[:, 3], raw[:, 4] = (times >> 8) & 255, times & 255
            (above / folder / name / "0.bin").write_bytes(raw.tobytes())
            for i in range(1, files // len(names) + 1):
                os.link(above / folder / name / "0.bin", above / folder / name / f"{i}.bin")
        (above / getattr(kind, "train_filename", getattr(kind, "filename", None))).touch()
    return kind(str(root), **changes)


def digits(root: Path, **changes: Any) -> Any:
    return saccades(root, tonic.datasets.NMNIST, "Train", [str(i) for i in range(10)], 10_000, **changes)


def flat(frames: np.ndarray) -> torch.Tensor:
    return torch.as_tensor(frames).flatten(1)


@pytest.mark.parametrize("bins", [100, 250])
def test_shd_is_as_tonics_frames_and_as_our_own_reader_gives_it(bins: int, tmp_path: Path):
    words = from_tonic(shd(tmp_path), dt=1 / bins, window=1.0)
    to_frame = transforms.ToFrame(tonic.datasets.SHD.sensor_size, time_window=1e6 / bins, start_time=0, end_time=1e6)
    framed = shd(tmp_path, transform=to_frame)
    ours = SHD.from_file(tmp_path / "SHD" / "shd_train.h5", dt=1 / bins, repeat=1)
    assert len(words) == 12
    assert (words.steps, words.n_in, words.n_classes) == (bins, 700, len(ours.names))
    assert words.names == ours.names
    for i in range(12):
        x, label = words[i]
        assert (x.dtype, x.shape, label) == (torch.uint8, (bins, 700), ours[i][1])
        assert x.sum() > 50
        assert torch.equal(x, ours[i][0])
        assert torch.equal(x.long(), flat(framed[i][0]).long())


def test_n_mnist_is_as_tonics_frames_in_the_order_polarity_row_column(tmp_path: Path):
    items = from_tonic(digits(tmp_path), dt=0.01, window=0.3)
    to_frame = transforms.ToFrame(tonic.datasets.NMNIST.sensor_size, time_window=1e4, start_time=0, end_time=3e5)
    framed = digits(tmp_path, transform=to_frame)
    assert (items.n_in, items.n_classes, items.names[3]) == (2 * 34 * 34, 10, "3 - three")
    for i in range(0, len(items), 1001):
        frames, label = framed[i]
        x = items[i][0]
        assert frames.shape == (30, 2, 34, 34)
        assert torch.equal(x.long(), flat(frames).long())
        assert (x.sum(), items[i][1]) == (150, label)
    events = digits(tmp_path)[0][0][:1]
    one = from_tonic([(events, 0)], dt=0.3, window=0.3, sensor_size=(34, 34, 2), classes=["0"])[0][0]
    (place,) = one.flatten().nonzero().flatten().tolist()
    assert place == (events["p"][0] * 34 + events["y"][0]) * 34 + events["x"][0]


def test_gestures_start_with_their_first_event_and_are_downsampled_by_tonic(tmp_path: Path):
    smaller = transforms.Downsample(spatial_factor=0.25)
    items = from_tonic(
        gestures(tmp_path, transform=smaller), dt=0.02, window=0.2, start="first", sensor_size=(32, 32, 2)
    )
    to_frame = transforms.ToFrame((32, 32, 2), time_window=2e4)
    framed = gestures(tmp_path, transform=transforms.Compose([smaller, to_frame]))
    assert (len(items), items.n_classes) == (110, 11)
    for i in range(0, 11):
        frames = flat(framed[i][0]).long()
        assert len(frames) >= 8
        assert torch.equal(items[i][0][: len(frames)].long(), frames)
        assert items[i][0].sum() > 190


def test_labels_that_are_names_become_numbers_and_a_sensor_must_be_known(tmp_path: Path):
    pictures = saccades(tmp_path, tonic.datasets.NCALTECH101, "Caltech101", ["yin_yang", "ant", "crab"], 8709)
    with pytest.raises(ValueError, match=r"the data set has no sensor_size: give one, \(W, H, P\)"):
        from_tonic(pictures, dt=0.1, window=0.3)
    items = from_tonic(pictures, dt=0.1, window=0.3, sensor_size=(34, 34, 2))
    assert items.names == ["ant", "crab", "yin_yang"]
    found = {pictures[i][1]: items[i][1] for i in range(0, len(items), 2903)}
    assert found == {"ant": 0, "crab": 1, "yin_yang": 2}
    turned = from_tonic(pictures, dt=0.1, window=0.3, sensor_size=(34, 34, 2), classes=["yin_yang", "crab", "ant"])
    assert {name: 2 - number for name, number in found.items()} == {
        pictures[i][1]: turned[i][1] for i in range(0, len(items), 2903)
    }
    with pytest.raises(ValueError, match=r"the label 'yin_yang' of item \d+ is none of the classes"):
        from_tonic(pictures, dt=0.1, window=0.3, sensor_size=(34, 34, 2), classes=["ant", "crab"])


def test_frames_that_tonic_made_are_taken_as_they_are(tmp_path: Path):
    to_frame = transforms.ToFrame(tonic.datasets.SHD.sensor_size, n_time_bins=40)
    items = from_tonic(shd(tmp_path, transform=to_frame))
    x, labels = collate(items.__getitems__(range(5)))
    assert (x.shape, x.dtype, labels.shape) == ((40, 5, 700), torch.int16, (5,))
    assert torch.equal(x[:, 3], flat(shd(tmp_path, transform=to_frame)[3][0]))
    shown = from_tonic(shd(tmp_path, transform=to_frame), binary=True)[3][0]
    assert torch.equal(shown, (x[:, 3] > 0).to(torch.uint8))
    counted = from_tonic(shd(tmp_path, transform=transforms.ToFrame((700, 1, 1), event_count=20)))
    assert len(collate(counted.__getitems__([0, 1]))) == 3  # unequal lengths, and a mask


def test_without_a_window_items_last_until_their_last_event_and_batches_have_a_mask(tmp_path: Path):
    items = from_tonic(shd(tmp_path), dt=0.01)
    ours = SHD.from_file(tmp_path / "SHD" / "shd_train.h5", dt=0.01, window=None, repeat=1)
    assert items.steps is None
    for mine, other in zip(collate(items.__getitems__(range(6))), collate(ours.__getitems__(range(6))), strict=True):
        assert torch.equal(mine, other)


def test_a_training_on_it_resumes_and_not_with_another_grid(tmp_path: Path):
    def go(epochs: int, data: Any, **more: Any) -> Any:
        torch.manual_seed(0)
        network = Network([ALIFPlus(700, 8), LIF(8, 8, threshold=0.2)], 20)
        history = train(network, data, data, epochs=epochs, **QUIET | more).history
        return [row["train_loss"] for row in history], weights(network)

    items = from_tonic(shd(tmp_path), dt=0.02)
    loader = DataLoader(items, batch_size=8, shuffle=True, collate_fn=collate)
    go(1, loader, checkpoint=tmp_path / "c")
    losses, resumed = go(3, loader, checkpoint=tmp_path / "c")
    assert losses[-1] < losses[0] and same_bits(resumed, go(3, loader)[1])
    other = DataLoader(from_tonic(shd(tmp_path), dt=0.04), batch_size=8, shuffle=True, collate_fn=collate)
    with pytest.raises(ValueError, match=r"training\.dt = 0\.02, now it is 0\.04"):
        go(4, other, checkpoint=tmp_path / "c")


def recording(*events: tuple[int, int, int, int]) -> np.ndarray:
    return np.array(list(events), dtype=FIELDS)


GOOD = (recording((0, 1, 1, 0), (15_000, 2, 0, 1)), 1)
SMALL: dict[str, Any] = {"dt": 0.01, "window": 0.02, "sensor_size": (3, 2, 2), "classes": ["a", "b"]}


def test_bins_are_cut_at_whole_microseconds_and_the_end_is_outside():
    for dt, steps in ((0.001, 1000), (0.007, 100), (1e-6, 7), (0.0003, 10), (0.00102, 20)):
        width = round(dt * 1e6)
        edges = np.arange(steps + 1) * width
        events = np.zeros(2 * steps + 1, dtype=FIELDS)
        events["t"] = np.r_[edges, edges[1:] - 1]
        x = from_tonic([(events, 0)], **SMALL | {"dt": dt, "window": dt * steps})[0][0]
        assert x[:, 0].tolist() == [2] * steps  # an edge and what stands before the next one
        assert int(x.sum()) == 2 * steps


def test_counts_and_binary():
    item = (recording(*[(5, 0, 0, 0)] * 255), 0)
    assert from_tonic([item], **SMALL)[0][0].max() == 255
    many = (recording(*[(5, 0, 0, 0)] * 256), 0)
    with pytest.raises(ValueError, match=r"a bin of 10 ms holds 256 events in item 0, at most 255 fit"):
        from_tonic([many], **SMALL)[0]
    assert from_tonic([many], **SMALL, binary=True)[0][0].sum() == 1


@pytest.mark.parametrize("label", [1, np.int64(1), np.array(1), torch.tensor(1), "b", b"b"])
def test_labels_of_any_kind(label: Any):
    number = from_tonic([(GOOD[0], label)], **SMALL)[0][1]
    assert type(number) is int
    assert number == 1


class Named(list[Any]):
    """Items with attributes of tonic's data sets."""

    sensor_size = (3, 2, 2)


def test_classes_are_those_of_the_data_set_or_of_all_its_targets_in_order():
    items, grid = Named([(GOOD[0], "b"), (GOOD[0], "a")]), {"dt": 0.01, "window": 0.02}
    items.targets = ["b", "a"]  # as NCALTECH101 has them
    assert from_tonic(items, **grid).names == ["a", "b"]
    items.classes = {"b": 1, "c": 2, "a": 0}  # as CIFAR10DVS has them
    assert from_tonic(items, **grid).names == ["a", "b", "c"]
    assert from_tonic(items, **grid)[0][1] == 1
    items.classes, items.targets = [], [3, 0]
    assert from_tonic(items, **grid).n_classes == 4


def of(item: Any, **changes: Any) -> Any:
    return lambda: from_tonic([item], **SMALL | changes)[0]


@pytest.mark.parametrize(
    ("read", "error", "message"),
    [
        (lambda: from_tonic(iter([GOOD]), **SMALL), TypeError, r"items \(events, label\), got list_iterator"),
        (of(GOOD, dt=None), ValueError, "window needs dt"),
        (of(GOOD, sensor_size=(3, 2)), ValueError, r"sensor_size must be \(W, H, P\), got \(3, 2\)"),
        (of(GOOD, classes=None), ValueError, "does not say which classes there are: give classes"),
        (of(GOOD[0]), TypeError, r"items must be pairs \(events, label\), got ndarray \(2,\) in item 0"),
        (of((np.zeros((2, 2, 2, 3)), 1)), TypeError, r"got ndarray \(2, 2, 2, 3\) in item 0; items are frames already"),
        (of(("events", 1)), TypeError, "items must be events, a structured array with t, x, y, p, got str in item 0"),
        (of((GOOD[0][["t", "x", "p"]], 1)), TypeError, r"sensor \(3, 2, 2\) must have t, x, y, p.*y is missing"),
        (of((recording((0, 3, 0, 0)), 1)), ValueError, r"x of events must be from 0 to 2 .* got 3 to 3 in item 0"),
        (of((recording((-5, 0, 0, 0)), 1)), ValueError, r"times must be microseconds from 0, got -5 in item 0"),
        (of((GOOD[0], 2)), ValueError, "the label of item 0 must be a class from 0 to 1, got 2; classes= names all"),
        (of((GOOD[0], "c")), ValueError, "the label 'c' of item 0 is none of the classes"),
        (of((GOOD[0], {"box": 1})), TypeError, "a label must be a number or a name, got dict in item 0"),
        (of(GOOD, dt=None, window=None), ValueError, r"items are events, fields \('t', 'x', 'y', 'p'\): give dt"),
        (of((np.zeros(3), 1), dt=None, window=None), TypeError, r"frames \(T, P, H, W\), got ndarray \(3,\) in item 0"),
        (
            of((np.zeros((5, 7)), 1), dt=None, window=None),
            ValueError,
            r"frames have 7 values, and the sensor \(3, 2, 2\) has 12",
        ),
    ],
)
def test_what_are_no_events_is_refused_with_its_number(read: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        read()


def test_times_start_with_the_first_event_where_asked():
    item = (recording((1_005_000, 0, 0, 0), (1_020_000, 1, 0, 0)), 0)
    assert from_tonic([item], **SMALL)[0][0].sum() == 0
    x = from_tonic([item], **SMALL, start="first")[0][0]
    assert x.nonzero().tolist() == [[0, 0], [1, 1]]
