"""Spikes of files in SHD's layout: read, or refused by their place; random changes of spikes."""

import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import tonic
from scipy import stats

from neurolsc.datasets import ChannelJitter, EventFile, Events, SpikeDrop, TimeStretch
from tests.words import Words, draw_words, events_of, write_words


def put(name: str, value: Any) -> Callable[[h5py.File], None]:
    def spoil(file: h5py.File) -> None:
        del file[name]
        if value is not None:
            file[name] = value

    return spoil


def made(name: str, *shape_and_dtype: Any, **options: Any) -> Callable[[h5py.File], None]:
    """A data set of which nothing is written."""

    def spoil(file: h5py.File) -> None:
        del file[name]
        file.create_dataset(name, *shape_and_dtype, **options)

    return spoil


def chunked(words: Words, **options: Any) -> Callable[[h5py.File], None]:
    """The spikes in chunks, as other programs write them."""

    def spoil(file: h5py.File) -> None:
        for i, name in enumerate(("spikes/times", "spikes/units")):
            made(name, (len(words),), h5py.vlen_dtype(words[0][i].dtype), chunks=(5,), maxshape=(None,), **options)(
                file
            )
            for j, word in enumerate(words):
                file[name][j] = word[i]

    return spoil


@pytest.mark.parametrize(
    ("options", "dtype", "pack"),
    [(None, "f2", bytes), ({}, "f4", lzma.compress), ({"compression": "gzip", "shuffle": True}, "f8", bytes)],
)
def test_every_layout_precision_and_packing_is_read_in_the_order_of_the_indices(tmp_path, options, dtype, pack):
    words = draw_words(12, dtype=dtype)
    spoil = put("labels", np.arange(12)) if options is None else chunked(words, **options)
    path = write_words(tmp_path / "words.h5", words, spoil=spoil)
    path.write_bytes(pack(path.read_bytes()))
    indices = [11, 0, 4, 4]
    read = EventFile(path).events.take(np.array(indices))
    np.testing.assert_array_equal(read.times, np.concatenate([words[i][0] for i in indices]))
    np.testing.assert_array_equal(read.units, np.concatenate([words[i][1] for i in indices]))
    assert (read.times.dtype, read.units.dtype) == (dtype, np.uint16)
    assert read.counts.tolist() == [len(words[i][0]) for i in indices]
    assert read.owners.tolist() == [i for i, n in enumerate(read.counts) for _ in range(n)]


def test_labels_speakers_and_names_are_those_of_the_file(tmp_path: Path):
    file = EventFile(write_words(tmp_path / "words.h5"))
    assert len(file) == 12
    assert file.labels.tolist() == [3 * i % 20 for i in range(12)]
    assert file.speakers.tolist() == [i % 4 for i in range(12)]
    assert file.names[7] == "word 7"
    bare = EventFile(write_words(tmp_path / "bare.h5", keys=False, spoil=put("extra/speaker", None)))
    assert bare.speakers.max() == -1 and bare.names == [str(i) for i in range(20)]


# Files that are refused


def of_another_file(file: h5py.File) -> None:
    secret = Path(file.filename).with_name("secret")
    secret.write_bytes(bytes(range(12)))
    made("labels", (12,), "u1", external=[(str(secret), 0, 12)])(file)


BAD = {
    "no times": (put("spikes/times", None), "it holds no spikes/times; SHD's layout is in docs/data.md"),
    "one more": (put("labels", np.arange(13)), r"one entry for each utterance, got .*\(12,\) in .*\(13,\) in labels"),
    "fixed length": (put("spikes/times", np.zeros(12, "f2")), "spikes/times must hold floats of variable length"),
    "byte order": (chunked(draw_words(dtype=">f4")), "spikes/times must hold floats .* in native byte order, got >f4"),
    "negative": (put("labels", np.array([0] * 4 + [-1] * 8)), "labels must lie in .*, got -1 for utterance 4"),
    "of another file": (of_another_file, "labels takes its values from another file"),
}


@pytest.mark.parametrize(("spoil", "message"), BAD.values(), ids=BAD)
def test_a_file_of_another_layout_is_refused(tmp_path: Path, spoil, message: str):
    with pytest.raises(ValueError, match=rf"words\.h5: .*{message}"):
        EventFile(write_words(tmp_path / "words.h5", spoil=spoil))


@pytest.mark.parametrize("name", ["labels", "spikes"])
def test_no_link_is_followed(tmp_path: Path, name: str):
    other = write_words(tmp_path / "other.h5", draw_words(12, seed=5))
    for link in (h5py.ExternalLink(str(other), name), h5py.SoftLink(f"/{name}")):
        path = write_words(tmp_path / "words.h5", spoil=put(name, link))
        with pytest.raises(ValueError, match=rf"words\.h5: {name}.* is a {type(link).__name__}, which is not followed"):
            EventFile(path)


def test_a_file_that_is_not_a_whole_hdf5_file_is_refused_by_name(tmp_path: Path):
    whole = write_words(tmp_path / "words.h5").read_bytes()
    for name, content in (
        ("text.h5", b"no HDF5"),
        ("cut.h5", whole[: len(whole) // 2]),
        ("cut.xz", lzma.compress(whole)[:-20]),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=rf"{name}: .*(not a whole HDF5 file|damaged)"):
            EventFile(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        EventFile(tmp_path / "nothing.h5")


T, U = np.array([0.1, 0.2, 0.3], np.float16), np.array([1, 2, 3], np.uint16)


@pytest.mark.parametrize(
    ("times", "units", "message"),
    [
        (T, U[:2], "utterance 6 has 3 times in spikes/times and 2 units in spikes/units"),
        (T, np.uint16([1, 2, 700]), r"spikes/units must lie in 0 \.\.\. 699, got 700 in utterance 6"),
        (np.float16([0.1, np.nan, 0.3]), U, "finite .* got nan in utterance 6"),
        (np.float16([0.1, 0.3, 0.2]), U, r"must ascend, got 0\.\d+ in utterance 6"),
    ],
)
def test_a_damaged_utterance_is_named(tmp_path, times, units, message):
    words = draw_words()
    words[6] = (times, units)
    with pytest.raises(ValueError, match=rf"words\.h5: .*{message}"):
        EventFile(write_words(tmp_path / "words.h5", words))


# Random changes, each against its formula, and in law against tonic's transform where there is one


LEVEL = 1e-3  # of the tests of law: seeded, so they pass or fail for good


@pytest.fixture
def events() -> Events:
    return events_of(draw_words(8, most=3000))


def random(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("change", [ChannelJitter(20.0), TimeStretch(0.8, 1.2), SpikeDrop(0.3)], ids=repr)
def test_a_change_follows_its_seed_and_leaves_its_input_alone(events: Events, change):
    before = [part.copy() for part in events]
    one, again, other = (change(events, random(seed)) for seed in (0, 0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    assert all(np.array_equal(a, b) for a, b in zip(events, before, strict=True))
    assert len(one.times) == len(one.units) == one.offsets[-1]
    assert (len(one.offsets), one.units.dtype) == (len(events.offsets), np.uint16)
    falls = np.diff(one.times) < 0
    assert not falls[np.setdiff1d(np.arange(len(falls)), one.offsets[1:-1] - 1)].any()  # still ascending


def test_channel_jitter_moves_units_by_rounded_normal_numbers(events: Events):
    middle = events._replace(units=np.full_like(events.units, 350))
    shift = ChannelJitter(20.0)(middle, random()).units.astype(int) - 350
    edges = np.arange(-60, 61, 5)
    seen = np.histogram(shift, [-1e9, *edges, 1e9])[0]
    expected = np.diff(stats.norm(0, 20).cdf([-np.inf, *(edges - 0.5), np.inf])) * len(shift)
    assert stats.chisquare(seen, expected).pvalue > LEVEL
    assert np.array_equal(ChannelJitter(0.0)(events, random()).units, events.units)


def test_time_stretch_scales_each_utterance_by_one_uniform_factor(events: Events):
    slow = TimeStretch(0.8, 1.2)(events, random())
    assert np.array_equal(slow.units, events.units) and np.array_equal(slow.offsets, events.offsets)
    for a, b in zip(events.offsets[:-1], events.offsets[1:], strict=True):
        late = events.times[a:b] > 0
        assert np.ptp(slow.times[a:b][late] / events.times[a:b][late].astype(np.float32)) < 1e-6
    one = Events(np.ones(4000, np.float16), np.zeros(4000, np.uint16), np.arange(4001))
    drawn = TimeStretch(0.8, 1.2)(one, random()).times
    np.random.seed(0)
    theirs = tonic.transforms.TimeSkew(coefficient=(0.8, 1.2))
    skewed = [theirs(np.array([(1.0,)], [("t", float)]))["t"][0] for _ in range(4000)]
    assert stats.kstest(drawn, stats.uniform(0.8, 0.4).cdf).pvalue > LEVEL
    assert stats.ks_2samp(drawn, skewed).pvalue > LEVEL


def test_spike_drop_drops_each_spike_alone_with_the_mean_of_tonics():
    p, n = 0.3, 200
    one = Events(np.zeros(500 * n, np.float16), np.tile(np.arange(n, dtype=np.uint16), 500), np.arange(501) * n)
    left = SpikeDrop(p)(one, random())
    law, edges = stats.binom(n, 1 - p), np.arange(126, 155, 4)
    expected = 500 * np.diff(law.cdf([-np.inf, *edges, np.inf]))
    assert stats.chisquare(np.histogram(left.counts, [-np.inf, *(edges + 0.5), np.inf])[0], expected).pvalue > LEVEL
    theirs = len(tonic.transforms.DropEvent(p)(np.zeros(n, [("t", int)])))
    assert left.counts.mean() == pytest.approx(theirs, abs=3 * np.sqrt(n * p * (1 - p) / 500))
    assert stats.chisquare(np.bincount(left.units, minlength=n)).pvalue > LEVEL
    three = Events(np.float16([0.1, 0.2, 0.3]), np.uint16([1, 2, 3]), np.arange(4))
    assert (len(SpikeDrop(0.9)(three, random(1)).offsets), SpikeDrop(0.9)(three, random(1)).counts.min()) == (4, 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ChannelJitter(-1.0), "sigma must be zero or positive"),
        (lambda: TimeStretch(1.2, 0.8), "low must not be above high, got 1.2 and 0.8"),
        (lambda: SpikeDrop(1.0), r"p must be a probability in \[0, 1\), got 1.0"),
    ],
)
def test_numbers_out_of_range_are_refused(make, message: str):
    with pytest.raises(ValueError, match=message):
        make()
