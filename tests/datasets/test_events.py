"""Spikes of files in SHD's layout: read, cached, or refused by their place."""

import lzma
import multiprocessing
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

from neurolsc.cli import app
from neurolsc.datasets import SHD, EventCache, EventFile
from tests.words import Words, draw_words, write_words

PARTS = ("spikes/times", "spikes/units", "labels", "extra/speaker", "extra/keys")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_words(tmp_path / "words.h5")


def equal(one: Any, other: Any) -> bool:
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(one, other, strict=True))


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


@pytest.mark.parametrize("indices", [[0, 1, 2], [7, 2, 2, 11], [5], range(12)], ids=str)
def test_spikes_come_in_the_order_of_the_indices_as_the_file_has_them(path: Path, indices):
    words = draw_words()
    events = EventFile(path).read(indices)
    assert events.times.dtype == np.float16
    for i, index in enumerate(indices):
        part = slice(events.offsets[i], events.offsets[i + 1])
        np.testing.assert_array_equal(events.times[part], words[index][0])
        np.testing.assert_array_equal(events.units[part], words[index][1])
    assert events.counts.tolist() == [len(words[i][0]) for i in indices]
    assert events.owners.tolist() == [i for i, n in enumerate(events.counts) for _ in range(n)]
    with pytest.raises(IndexError, match=r"words\.h5: utterances run from 0 to 11"):
        EventFile(path).read([0, 12])


def test_labels_speakers_and_names_are_those_of_the_file(path: Path):
    file = EventFile(path)
    assert len(file) == 12
    assert file.labels.tolist() == [3 * i % 20 for i in range(12)]
    assert file.speakers.tolist() == [i % 4 for i in range(12)]
    assert file.names[7] == "word 7"
    bare = EventFile(write_words(path.with_name("bare.h5"), keys=False, spoil=put("extra/speaker", None)))
    assert bare.speakers.max() == -1 and bare.names == [str(i) for i in range(20)]


def chunked(words: Words, **options: Any) -> Callable[[h5py.File], None]:
    """The spikes in chunks, as other programs write them."""

    def spoil(file: h5py.File) -> None:
        for i, name in enumerate(("spikes/times", "spikes/units")):
            del file[name]
            kind = h5py.vlen_dtype(words[0][i].dtype)
            new = file.create_dataset(name, (len(words),), kind, chunks=(5,), maxshape=(None,), **options)
            for j, word in enumerate(words):
                new[j] = word[i]

    return spoil


@pytest.mark.parametrize(
    "options", [None, {}, {"shuffle": True}, {"compression": "gzip"}, {"compression": "gzip", "shuffle": True}], ids=str
)
@pytest.mark.parametrize("dtype", ["f2", ">f4", "f8"])
@pytest.mark.parametrize("pack", [bytes, lzma.compress])
def test_every_layout_precision_and_packing_is_read_the_same(tmp_path, options, dtype, pack):
    words = draw_words(12, dtype=dtype)
    spoil = {} if options is None else {"spoil": chunked(words, **options)}
    path = write_words(tmp_path / "words.h5", words, **spoil)
    path.write_bytes(pack(path.read_bytes()))
    file = EventFile(path)
    for read in (file.read([11, 0, 4]), pickle.loads(pickle.dumps(file)).read([11, 0, 4])):
        np.testing.assert_array_equal(read.times, np.concatenate([words[i][0] for i in (11, 0, 4)]))
        np.testing.assert_array_equal(read.units, np.concatenate([words[i][1] for i in (11, 0, 4)]))
        assert read.times.dtype == np.dtype(dtype).newbyteorder("=")


def test_minus_zero_is_zero(tmp_path: Path):
    words = [(np.float16([-0.0, 0.0, 0.1]), np.uint16([1, 2, 3]))]
    assert str(EventFile(write_words(tmp_path / "words.h5", words)).read([0]).times[0]) == "0.0"


# Files that are refused when they are opened


def no_utterances(file: h5py.File) -> None:
    for name in PARTS[:4]:
        made(name, (0,), file[name].dtype)(file)


def of_another_file(file: h5py.File) -> None:
    secret = Path(file.filename).with_name("secret")
    secret.write_bytes(bytes(range(12)))
    made("labels", (12,), "u1", external=[(str(secret), 0, 12)])(file)


def virtual(file: h5py.File) -> None:
    del file["labels"]
    layout = h5py.VirtualLayout((12,), "u2")
    layout[:] = h5py.VirtualSource(".", "extra/speaker", (12,))
    file.create_virtual_dataset("labels", layout)


BAD = {
    "no times": (put("spikes/times", None), "wanted a data set spikes/times with values, got nothing"),
    "no spikes": (put("spikes", None), "wanted a data set spikes/times with values, got nothing"),
    "no labels": (put("labels", None), "wanted a data set labels"),
    "one more": (put("labels", np.arange(13)), r"one entry for each utterance, got .*\(12,\) in .*\(13,\) in labels"),
    "two axes": (put("labels", np.zeros((12, 1), int)), r"one entry for each utterance, got .*\(12, 1\) in labels"),
    "no utterances": (no_utterances, "one entry for each utterance"),
    "fixed length": (put("spikes/times", np.zeros(12, "f2")), "spikes/times must hold floats of variable length"),
    "float labels": (put("labels", np.zeros(12)), "labels must hold integers, got float64"),
    "compound": (put("labels", np.zeros(12, [("a", "i4")])), "labels must hold integers"),
    "large label": (
        put("labels", np.array([0] * 11 + [20])),
        r"labels must lie in 0 \.\.\. 19, got 20 for utterance 11",
    ),
    "negative": (put("labels", np.array([0] * 4 + [-1] * 8)), "labels must lie in .*, got -1 for utterance 4"),
    "speaker": (put("extra/speaker", np.full(12, 2**64 - 1, "u8")), "extra/speaker must lie in"),
    "empty": (put("labels", h5py.Empty("u2")), "wanted a data set labels with values"),
    "keys": (put("extra/keys", np.zeros(20)), "extra/keys must hold texts, got float64"),
    "keys (2)": (put("extra/keys", np.zeros((4, 5), "S3")), "extra/keys must have 1 axes"),
    "group": (lambda f: (put("extra/keys", None)(f), f.create_group("extra/keys")), "wanted a data set extra/keys"),
    "of another file": (of_another_file, "labels takes its values from another file"),
    "virtual": (virtual, "labels takes its values from another file"),
    "never written": (made("labels", (12,), "u2"), "labels states 24 bytes, which the file does not hold"),
    "no chunks": (made("labels", (12,), "u2", chunks=(5,)), "labels states 3 chunks, the file holds 0"),
    "no packed chunks": (
        made("labels", (12,), "u2", chunks=(5,), compression="gzip"),
        "labels states 3 chunks, the file holds 0",
    ),
    "plugin": (chunked(draw_words(), compression="lzf"), "spikes/times is packed by filter 32000"),
}


@pytest.mark.parametrize(("spoil", "message"), BAD.values(), ids=BAD)
def test_a_file_of_another_layout_is_refused_at_once(tmp_path: Path, spoil, message: str):
    with pytest.raises(ValueError, match=rf"words\.h5: .*{message}"):
        EventFile(write_words(tmp_path / "words.h5", spoil=spoil))


@pytest.mark.parametrize("name", [*PARTS, "extra", "spikes"])
def test_no_link_is_followed(tmp_path: Path, name: str):
    other = write_words(tmp_path / "other.h5", draw_words(12, seed=5))
    for link in (h5py.ExternalLink(str(other), name), h5py.SoftLink(f"/{name}")):
        path = write_words(tmp_path / "words.h5", spoil=put(name, link))
        with pytest.raises(ValueError, match=rf"words\.h5: {name}.* is a {type(link).__name__}, which is not followed"):
            EventFile(path)


def test_what_is_no_whole_hdf5_file_is_refused_by_name(path: Path, tmp_path: Path):
    whole = path.read_bytes()
    for name, content in (
        ("text.h5", b"no HDF5"),
        ("empty.h5", b""),
        ("cut.h5", whole[: len(whole) // 2]),
        ("cut.xz", lzma.compress(whole)[:-20]),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=rf"{name}: .*(not a whole HDF5 file|damaged)"):
            EventFile(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        EventFile(tmp_path / "nothing.h5")


# Damaged utterances


T, U = np.array([0.1, 0.2, 0.3], np.float16), np.array([1, 2, 3], np.uint16)


@pytest.mark.parametrize(
    ("times", "units", "message"),
    [
        (T, U[:2], "utterance 6 has 3 times in spikes/times and 2 units in spikes/units"),
        (T[:0], U[:0], "utterance 6 has 0 times in spikes/times"),
        (T, np.uint16([1, 2, 700]), r"spikes/units must lie in 0 \.\.\. 699, got 700 at spike 2 of utterance 6"),
        (np.float16([-0.1, 0.2, 0.3]), U, r"not negative and ascending, got -0\.\d+ s at spike 0 of utterance 6"),
        (np.float16([0.1, np.nan, 0.3]), U, "finite, .* got nan s at spike 1 of utterance 6"),
        (np.float16([0.1, 0.2, np.inf]), U, "finite, .* got inf s at spike 2 of utterance 6"),
        (np.float16([0.1, 0.3, 0.2]), U, r"ascending, got 0\.\d+ s after 0\.\d+ s at spike 2 of utterance 6"),
    ],
    ids=["lengths", "empty", "unit", "negative", "nan", "infinite", "unsorted"],
)
def test_a_damaged_utterance_is_named_when_it_is_read_and_leaves_no_cache(tmp_path, times, units, message):
    words = draw_words()
    words[6] = (times, units)
    file = EventFile(write_words(tmp_path / "words.h5", words))
    file.read([0, 5, 7])
    for indices in ([6], [5, 6, 7], [11, 6, 0]):
        with pytest.raises(ValueError, match=rf"words\.h5: .*{message}"):
            file.read(indices)
    with pytest.raises(ValueError, match=message):
        EventCache(file, tmp_path / "cache")
    assert not [p for p in (tmp_path / "cache").glob("words*") if p.is_dir() and p.suffix != ".making"]


@pytest.mark.parametrize("field", [slice(0, 4), slice(4, 12), slice(12, 16)], ids=["length", "heap", "index"])
@pytest.mark.parametrize("value", [0, 1, 2**31, 2**32 - 1, 2**64 - 1])
def test_an_entry_that_leads_nowhere_is_refused(path: Path, field: slice, value: int):
    with h5py.File(path) as file:
        at = file["spikes/times"].id.get_offset() + 3 * 16
    data = bytearray(path.read_bytes())
    size = field.stop - field.start
    data[at + field.start : at + field.stop] = (value % 2 ** (8 * size)).to_bytes(size, "little")
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"words\.h5: .*(utterance 3|entry 3|the heap at byte|longer than the file)"):
        EventFile(path).read([3])


@pytest.mark.parametrize("blank", [slice(0, 4), slice(16, 24), slice(16, 64), slice(16, 4016)])
def test_a_blanked_heap_on_which_hdf5_never_returns_is_refused(path: Path, blank: slice):
    data = bytearray(path.read_bytes())
    at = data.index(b"GCOL")
    data[at + blank.start : at + blank.stop] = bytes(blank.stop - blank.start)
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"words\.h5: spikes/times: (entry 0 is|the heap at byte \d+ is) damaged"):
        EventFile(path).read(range(12))


# The cache


@pytest.mark.parametrize("dtype", ["f2", "f4"])
@pytest.mark.parametrize("indices", [[3], [7, 2, 2, 29], range(30)], ids=str)
def test_the_cache_gives_what_the_file_gives(tmp_path: Path, dtype: str, indices, monkeypatch):
    monkeypatch.setattr("neurolsc.datasets.events.CHUNK", 7)  # several parts
    file = EventFile(write_words(tmp_path / "words.h5", draw_words(30, dtype=dtype)))
    cache = EventCache(file, tmp_path / "cache")
    assert equal(cache.read(indices), file.read(indices))
    assert equal(pickle.loads(pickle.dumps(cache)).read(indices), file.read(indices))
    with pytest.raises(IndexError, match="utterances run from 0 to 29"):
        cache.read([30])
    assert (cache.path / "units.npy").stat().st_size == 2 * file.counts.sum() + 128


def test_one_cache_serves_all_settings_without_hdf5_and_another_file_has_its_own(
    path: Path, tmp_path: Path, monkeypatch
):
    folder = tmp_path / "cache"
    first = SHD.from_file(path, cache=folder)
    monkeypatch.setattr(EventFile, "read", None)  # nothing is read from HDF5 again
    for settings in ({"dt": 0.01, "channels": 70}, {"window": None}):
        assert equal(SHD.from_file(path, cache=folder, **settings).events([4]), first.events([4]))
    monkeypatch.undo()
    write_words(path.with_name("new.h5"), draw_words(seed=1)).replace(path)
    assert equal(SHD.from_file(path, cache=folder).events([4]), EventFile(path).read([4]))
    assert len([p for p in folder.iterdir() if p.is_dir()]) == 2


@pytest.mark.parametrize("damage", ["missing", "cut off", "empty", "other lengths", "unfinished"])
def test_a_damaged_cache_is_made_anew(path: Path, tmp_path: Path, damage: str):
    file = EventFile(path)
    where = EventCache(file, tmp_path / "cache").path
    units = where / "units.npy"
    if damage == "missing":
        units.unlink()
    elif damage == "other lengths":
        np.save(units, np.zeros(3, np.uint16))
    elif damage == "unfinished":
        shutil.move(where, where.with_suffix(".making"))
    else:
        units.write_bytes(units.read_bytes()[: -100 if damage == "cut off" else 0])
    assert equal(EventCache(file, tmp_path / "cache").read(range(12)), file.read(range(12)))
    assert [p.name for p in where.parent.iterdir() if p.is_dir()] == [where.name]


def build(path: Path, folder: Path, barrier, results) -> None:
    file = EventFile(path)
    barrier.wait()
    results.put(equal(EventCache(file, folder).read(range(12)), file.read(range(12))))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_processes_that_build_it_at_once_all_end_with_a_good_one(path: Path, tmp_path: Path):
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(4), context.Queue()
    processes = [context.Process(target=build, args=(path, tmp_path / "c", barrier, results)) for _ in range(4)]
    for process in processes:
        process.start()
    assert [results.get(timeout=60) for _ in processes] == [True] * 4
    for process in processes:
        process.join()


# The command on a file


NAMES = [
    b"\x1b[2Jsix",
    "drei\u202eierd".encode(),
    b"$\\alpha_{",
    b"a\nb",
    b"x" * 40_000,
    b"\xff\xfe",
    b"",
    "sieben-é".encode(),
]


def test_names_are_cleaned_and_cut_and_make_a_table_and_a_picture(tmp_path: Path, monkeypatch):
    path = write_words(
        tmp_path / "words.h5", labels=[i % 8 for i in range(12)], spoil=put("extra/keys", np.array(NAMES, object))
    )
    names = EventFile(path).names
    assert names[:2] == [r"\x1b[2Jsix", r"drei\u202eierd"] and names[-1] == "sieben-é"
    assert all(name.isprintable() and len(name) <= 80 for name in names)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["data", "info", str(path), "--utterance", "2", "--picture", "2.png"])
    assert result.exit_code == 0, result.output
    assert result.output.replace("\n", "").isprintable()
    assert (tmp_path / "2.png").exists()


def test_info_never_writes_over_a_file(tmp_path: Path, monkeypatch):
    path = write_words(tmp_path / "words.h5")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.png").write_text("mine")
    for more in ([], ["--picture", "words.h5"]):
        result = CliRunner().invoke(app, ["data", "info", str(path), *more])
        assert result.exit_code == 2 and "exists already" in result.output
    assert (tmp_path / "words.png").read_text() == "mine"
