import lzma
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from neurolsc.datasets import EventFile
from tests.words import draw_words, write_words


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_words(tmp_path / "words.h5")


@pytest.mark.parametrize("indices", [[0, 1, 2], [7, 2, 2, 11], [5], range(12)], ids=str)
def test_spikes_come_in_the_order_that_was_asked_for_as_the_file_has_them(path: Path, indices):
    words = draw_words()
    events = EventFile(path).read(indices)
    assert events.times.dtype == np.float16
    for i, index in enumerate(indices):
        part = slice(events.offsets[i], events.offsets[i + 1])
        np.testing.assert_array_equal(events.times[part], words[index][0])
        np.testing.assert_array_equal(events.units[part], words[index][1])
    assert events.counts.tolist() == [len(words[i][0]) for i in indices]
    assert events.owners.tolist() == [i for i, n in enumerate(events.counts) for _ in range(n)]


def test_labels_speakers_and_names_are_those_of_the_file(path: Path):
    file = EventFile(path)
    assert len(file) == 12
    assert file.labels.tolist() == [3 * i % 20 for i in range(12)]
    assert file.speakers.tolist() == [i % 4 for i in range(12)]
    assert (
        EventFile(write_words(path.with_name("nobody.h5"), spoil=replace("extra/speaker", None))).speakers.max() == -1
    )
    assert file.names[7] == "word 7"
    assert EventFile(write_words(path.with_name("without_keys.h5"), keys=False)).names == [str(i) for i in range(20)]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_times_of_other_precisions_stay_as_they_are(tmp_path: Path, dtype: str):
    words = draw_words(dtype=dtype)
    events = EventFile(write_words(tmp_path / "words.h5", words)).read([4])
    assert events.times.dtype == dtype
    np.testing.assert_array_equal(events.times, words[4][0])


def test_a_file_packed_by_xz_is_told_by_its_content(path: Path):
    packed = path.with_name("packed")
    packed.write_bytes(lzma.compress(path.read_bytes()))
    for got, wanted in zip(EventFile(packed).read([3, 9]), EventFile(path).read([3, 9]), strict=True):
        np.testing.assert_array_equal(got, wanted)


def test_an_opened_file_can_be_sent_to_another_process_and_used_after_a_fork(path: Path):
    file = EventFile(path)
    wanted = file.read([1]).times
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(file)).read([1]).times, wanted)
    before = file._file()
    assert file._file() is before  # opened once in a process
    child = os.fork()
    if child == 0:
        same = file.read([1]).times.tolist() == wanted.tolist()
        os._exit(0 if same and file._file() is not before else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("index", [-1, 12])
def test_an_utterance_that_is_not_there_is_refused(path: Path, index: int):
    with pytest.raises(IndexError, match=r"words\.h5: utterances run from 0 to 11"):
        EventFile(path).read([0, index])


# damaged files


def replace(name: str, values: Any) -> Callable[[h5py.File], None]:
    def spoil(file: h5py.File) -> None:
        del file[name]
        if values is not None:
            file[name] = values

    return spoil


def fixed_length(file: h5py.File) -> None:
    del file["spikes/times"]
    file["spikes/times"] = np.zeros(12, np.float16)


def one_more(file: h5py.File) -> None:
    replace("labels", np.arange(13))(file)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (replace("spikes/times", None), "has a data set spikes/times, this one has none"),
        (replace("spikes", None), "has a data set spikes/times, this one has none"),
        (replace("spikes/units", None), "has a data set spikes/units, this one has none"),
        (replace("labels", None), "has a data set labels, this one has none"),
        (one_more, "as many entries.*12 in spikes/times, 12 in spikes/units, 13 in labels, 12 in extra/speaker"),
        (fixed_length, "spikes/times must hold floats of variable length, got float16"),
        (replace("labels", np.zeros(12)), "labels must hold integers, got float64"),
        (replace("labels", np.zeros((12, 1), int)), r"labels must have one entry for each utterance, got \(12, 1\)"),
        (replace("labels", np.array([0] * 11 + [20])), r"labels must lie in 0 \.\.\. 19, got 20 for utterance 11"),
        (replace("labels", np.array([0] * 4 + [-1] * 8)), "labels must lie in .*, got -1 for utterance 4"),
    ],
)
def test_a_file_of_another_layout_is_refused_at_once(tmp_path: Path, spoil, told: str):
    path = write_words(tmp_path / "words.h5", spoil=spoil)
    with pytest.raises(ValueError, match=rf"words\.h5: .*{told}"):
        EventFile(path)


def test_a_file_without_utterances_is_refused(tmp_path: Path):
    def empty(file: h5py.File) -> None:
        for name in ("spikes/times", "spikes/units", "labels", "extra/speaker"):
            kind = file[name].dtype
            del file[name]
            file.create_dataset(name, (0,), kind)

    with pytest.raises(ValueError, match="as many entries as there are utterances, got 0 in spikes/times"):
        EventFile(write_words(tmp_path / "words.h5", spoil=empty))


T, U = np.array([0.1, 0.2, 0.3], np.float16), np.array([1, 2, 3], np.uint16)


@pytest.mark.parametrize(
    ("times", "units", "told"),
    [
        (T, U[:2], "utterance 6 has 3 times in spikes/times and 2 units in spikes/units"),
        (T[:0], U[:0], "utterance 6 has no spike in spikes/times"),
        (T, np.uint16([1, 2, 700]), r"spikes/units must lie in 0 \.\.\. 699, got 700 at spike 2 of utterance 6"),
        (np.float16([-0.1, 0.2, 0.3]), U, r"not negative and ascending, got -0\.\d+ s at spike 0 of utterance 6"),
        (np.float16([0.1, np.nan, 0.3]), U, "finite, .* got nan s at spike 1 of utterance 6"),
        (np.float16([0.1, 0.2, np.inf]), U, "finite, .* got inf s at spike 2 of utterance 6"),
        (np.float16([0.1, 0.3, 0.2]), U, r"ascending, got 0\.\d+ s after 0\.\d+ s at spike 2 of utterance 6"),
    ],
    ids=["lengths", "empty", "unit", "negative", "nan", "infinite", "unsorted"],
)
@pytest.mark.parametrize("around", [[6], [5, 6, 7], [11, 6, 0]], ids=str)
def test_a_damaged_utterance_is_named_when_it_is_read_and_the_others_are_not_touched(
    tmp_path, times, units, told, around
):
    words = draw_words()
    words[6] = (times, units)
    file = EventFile(write_words(tmp_path / "words.h5", words))
    file.read([0, 5, 7])
    with pytest.raises(ValueError, match=rf"words\.h5: .*{told}"):
        file.read(around)


def test_minus_zero_is_zero(tmp_path: Path):
    words = [(np.float16([-0.0, 0.0, 0.1]), U)]
    assert str(EventFile(write_words(tmp_path / "words.h5", words)).read([0]).times[0]) == "0.0"


def test_what_is_no_whole_hdf5_file_is_refused_by_name(path: Path, tmp_path: Path):
    whole = path.read_bytes()
    for name, content in (("text.h5", b"no HDF5"), ("empty.h5", b""), ("cut.h5", whole[: len(whole) // 2])):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=rf"{name}: not a whole HDF5 file"):
            EventFile(tmp_path / name)
    (tmp_path / "cut.xz").write_bytes(lzma.compress(whole)[:-20])
    with pytest.raises(ValueError, match=r"cut\.xz: not a whole HDF5 file"):
        EventFile(tmp_path / "cut.xz")
    with pytest.raises(FileNotFoundError):
        EventFile(tmp_path / "nothing.h5")


def test_spikes_that_cannot_be_read_are_told(path: Path):
    damaged = bytearray(path.read_bytes())
    while (at := damaged.find(b"GCOL")) >= 0:  # the heaps in which the spikes lie
        damaged[at : at + 4] = b"XXXX"
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match=r"words\.h5: spikes/times: the heap at byte .* is damaged"):
        EventFile(path).read([0])


def test_a_file_that_changes_under_an_open_one_is_told(path: Path):
    file = EventFile(path)
    write_words(path.with_name("new.h5"), draw_words(seed=1)).replace(path)
    with pytest.raises(ValueError, match=r"words\.h5: the file has changed since it was opened"):
        file.read([0])
