"""Items of tonic's own data sets, on files written here, beside what tonic's transforms make."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tonic
import torch
from tonic import transforms

from neurolsc.datasets import SHD, collate, from_tonic
from tests.words import write_words

FIELDS = [("t", int), ("x", int), ("y", int), ("p", int)]


def shd(root: Path, **changes: Any) -> Any:
    """tonic's SHD on a file of twelve utterances, of which some last for more than a second."""
    if not (root / "SHD").exists():
        write_words(root / "SHD" / "shd_train.h5")
        (root / "SHD" / "shd_train.h5.zip").touch()  # tonic looks for the archive beside the file
    return tonic.datasets.SHD(str(root), train=True, **changes)


def flat(frames: np.ndarray) -> torch.Tensor:
    return torch.as_tensor(frames).flatten(1)


@pytest.mark.parametrize("bins", [125, 250])
def test_shd_is_as_tonics_frames_and_as_our_own_reader_gives_it(tmp_path: Path, bins: int):
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


@pytest.mark.parametrize("start", ["zero", "first"])
def test_pictures_are_as_tonics_frames_in_the_order_polarity_row_column(start: Any):
    random = np.random.default_rng(0)
    events = np.zeros(150, FIELDS)
    events["t"] = np.sort(random.integers(0 if start == "zero" else 500_000, 799_999, 150))
    for name, size in (("x", 34), ("y", 20), ("p", 2)):
        events[name] = random.integers(0, size, 150)
    about: dict[str, Any] = {"sensor_size": (34, 20, 2), "classes": ["ant", "crab"], "start": start}
    x, label = from_tonic([(events, "crab")], dt=0.02, window=0.8, **about)[0]
    end = {"start_time": 0, "end_time": 8e5} if start == "zero" else {}
    frames = transforms.ToFrame((34, 20, 2), time_window=2e4, **end)(events)
    assert (x.shape, int(x.sum()), label) == ((40, 2 * 20 * 34), 150, 1)
    assert torch.equal(x[: len(frames)].long(), flat(frames).long())
    place = (events["p"][0] * 20 + events["y"][0]) * 34 + events["x"][0]
    assert x[0 if start == "first" else events["t"][0] // 20_000, place] > 0


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
    assert from_tonic([(GOOD[0], b"b"), (GOOD[0], torch.tensor(1))], **SMALL)[0][1] == 1
    items.classes, items.targets = [], [3, 0]
    assert from_tonic(items, **grid).n_classes == 4


LATE = np.array([(0.0, 0, 0, 0), (np.inf, 0, 0, 0)], [("t", float), *FIELDS[1:]])


def of(item: Any, **changes: Any) -> Any:
    return lambda: from_tonic([item], **SMALL | changes)[0]


@pytest.mark.parametrize(
    ("read", "error", "message"),
    [
        (of(GOOD, sensor_size=(3, 2)), ValueError, r"sensor_size must be \(W, H, P\), got \(3, 2\)"),
        (of(GOOD, classes=None), ValueError, "does not say which classes there are: give classes"),
        (of((np.zeros((2, 2, 2, 3)), 1)), TypeError, r"got ndarray; of frames leave out dt in item 0"),
        (of((GOOD[0][["t", "x", "p"]], 1)), TypeError, r"sensor \(3, 2, 2\) must be .* with t, x, y, p, got fields"),
        (of((recording((0, 3, 0, 0)), 1)), ValueError, r"x of events must be from 0 to 2 .* got 3 to 3 in item 0"),
        (of((LATE, 1)), ValueError, "times must be microseconds from 0, got 0.0 to inf in item 0"),
        (of((LATE, 1), window=None), ValueError, "times must be microseconds from 0, got 0.0 to inf in item 0"),
        (
            of((recording((10**15, 0, 0, 0)), 1), window=None),
            ValueError,
            r"the last event of item 0 is at 1e\+09 s: .* steps of",
        ),
        (of((GOOD[0], 1), window=10**7), ValueError, r"steps of .* take a shorter window, or a larger dt"),
        (of((GOOD[0][:0], 1), window=10**7), ValueError, r"steps of .* take a shorter window, or a larger dt"),
        (of((recording((-5, 0, 0, 0)), 1)), ValueError, r"times must be microseconds from 0, got -5 to -5 in item 0"),
        (of((GOOD[0], 2)), ValueError, "the label 2 of item 0 is none of the 2 classes a, b"),
        (of(GOOD, dt=None, window=None), ValueError, "items are events: give dt"),
    ],
)
def test_what_are_no_events_is_refused_with_its_number(read: Any, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        read()
