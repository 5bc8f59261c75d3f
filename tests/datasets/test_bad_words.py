"""Files in SHD's layout that somebody made on purpose: what leads elsewhere, names, claims."""

import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

from neurolsc.cli import app
from neurolsc.datasets import EventFile
from tests.words import Words, draw_words, write_words

PARTS = ("spikes/times", "spikes/units", "labels", "extra/speaker", "extra/keys")


def put(name: str, value: Any) -> Callable[[h5py.File], None]:
    def spoil(file: h5py.File) -> None:
        del file[name]
        file[name] = value

    return spoil


def other_file(folder: Path) -> Path:
    return write_words(folder / "other.h5", draw_words(12, seed=5))


@pytest.mark.parametrize("name", [*PARTS, "extra", "spikes"])
def test_a_link_to_another_file_is_not_followed(tmp_path: Path, name: str):
    link = h5py.ExternalLink(str(other_file(tmp_path)), name)
    path = write_words(tmp_path / "words.h5", spoil=put(name, link))
    with pytest.raises(ValueError, match=rf"words\.h5: {name}.* is a ExternalLink, which is not followed"):
        EventFile(path)


@pytest.mark.parametrize("name", PARTS)
def test_a_soft_link_is_not_followed_not_even_in_a_circle(tmp_path: Path, name: str):
    path = write_words(tmp_path / "words.h5", spoil=put(name, h5py.SoftLink(f"/{name}")))
    with pytest.raises(ValueError, match=rf"words\.h5: {name} is a SoftLink"):
        EventFile(path)


@pytest.mark.parametrize("name", ["labels", "extra/speaker", "extra/keys"])
def test_bytes_of_another_file_do_not_become_values(tmp_path: Path, name: str):
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(range(12)))

    def spoil(file: h5py.File) -> None:
        del file[name]
        kind = "S1" if name == "extra/keys" else "u1"
        file.create_dataset(name, (12,), kind, external=[(str(secret), 0, 12)])

    with pytest.raises(ValueError, match=f"{name} takes its values from another file"):
        EventFile(write_words(tmp_path / "words.h5", spoil=spoil))


@pytest.mark.parametrize("source", ["other.h5", "missing.h5", "."])
def test_a_virtual_data_set_is_refused_whether_its_source_is_there_or_not(tmp_path: Path, source: str):
    other_file(tmp_path)

    def spoil(file: h5py.File) -> None:
        del file["labels"]
        layout = h5py.VirtualLayout((12,), "u2")
        layout[:] = h5py.VirtualSource(source if source == "." else tmp_path / source, "labels", (12,))
        file.create_virtual_dataset("labels", layout)

    with pytest.raises(ValueError, match="labels takes its values from another file"):
        EventFile(write_words(tmp_path / "words.h5", spoil=spoil))


def never_written(name: str, **options: Any) -> Callable[[h5py.File], None]:
    def spoil(file: h5py.File) -> None:
        del file[name]
        file.create_dataset(name, (12,), "u2", **options)

    return spoil


@pytest.mark.parametrize("options", [{}, {"chunks": (5,)}, {"compression": "gzip", "chunks": (5,)}], ids=str)
def test_labels_that_were_never_written_are_not_taken_for_zeros(tmp_path: Path, options: dict[str, Any]):
    with pytest.raises(ValueError, match=r"labels states .* the file holds 0 of"):
        EventFile(write_words(tmp_path / "words.h5", spoil=never_written("labels", **options)))


def chunked_spikes(words: Words, **options: Any) -> Callable[[h5py.File], None]:
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
    "options",
    [{}, {"shuffle": True}, {"compression": "gzip"}, {"compression": "gzip", "shuffle": True}],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["f2", ">f4", "f8"])
def test_spikes_in_chunks_are_read_as_hdf5_reads_them(tmp_path: Path, options: dict[str, Any], dtype: str):
    words = draw_words(12, dtype=dtype)
    path = write_words(tmp_path / "words.h5", words, spoil=chunked_spikes(words, **options))
    for where in (path, tmp_path / "words.xz"):
        if where.suffix == ".xz":
            where.write_bytes(lzma.compress(path.read_bytes(), preset=0))
        read = EventFile(where).read([11, 0, 4])
        np.testing.assert_array_equal(read.times, np.concatenate([words[i][0] for i in (11, 0, 4)]))
        np.testing.assert_array_equal(read.units, np.concatenate([words[i][1] for i in (11, 0, 4)]))
    if dtype != ">f4":  # h5py 3.16 reads lists of numbers in the other order of bytes wrongly
        with h5py.File(path) as file:
            np.testing.assert_array_equal(file["spikes/times"][4], words[4][0])


def test_spikes_packed_by_a_filter_that_a_plugin_would_bring_are_refused(tmp_path: Path):
    path = write_words(tmp_path / "words.h5", spoil=chunked_spikes(draw_words(), compression="lzf"))
    with pytest.raises(ValueError, match=r"words\.h5: spikes/times is packed by filter 32000"):
        EventFile(path).read([0])


HEADS = {
    "length": (0, 4, "entry 3 is damaged: .* elements"),
    "heap": (4, 8, "the heap at byte .* is damaged"),
    "index": (12, 4, "entry 3 is damaged"),
}


@pytest.mark.parametrize("field", HEADS)
@pytest.mark.parametrize("value", [0, 1, 2**31, 2**32 - 1, 2**64 - 1])
def test_a_place_that_leads_nowhere_is_refused(tmp_path: Path, field: str, value: int):
    path = write_words(tmp_path / "words.h5")
    with h5py.File(path) as file:
        at = file["spikes/times"].id.get_offset() + 3 * 16
    start, size, _ = HEADS[field]
    data = bytearray(path.read_bytes())
    data[at + start : at + start + size] = (value % 2 ** (8 * size)).to_bytes(size, "little")
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"words\.h5: .*(utterance|entry) 3|words\.h5: spikes.*(heap|longer than)"):
        EventFile(path).read([3])


@pytest.mark.parametrize("blank", [8, 48, 4000])
def test_a_heap_that_was_blanked_is_refused_where_hdf5_goes_round_for_ever(tmp_path: Path, blank: int):
    path = write_words(tmp_path / "words.h5")
    data = bytearray(path.read_bytes())
    at = data.index(b"GCOL") + 16
    data[at : at + blank] = bytes(blank)
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"words\.h5: spikes/times: entry 0 is damaged"):
        EventFile(path).read(range(12))


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("labels", h5py.Empty("u2"), "labels is empty"),
        ("extra/keys", h5py.Empty("S3"), "extra/keys is empty"),
        ("extra/keys", np.zeros(20), "extra/keys must hold texts, got float64"),
        ("extra/keys", np.zeros((4, 5), "S3"), "extra/keys must have 1 axes"),
        ("extra/keys", np.zeros(10_001, "S1"), "extra/keys holds 10001 texts, at most 10000"),
        ("labels", np.zeros(12, "f2"), "labels must hold integers, got float16"),
        ("labels", np.zeros(12, [("a", "i4")]), "labels must hold integers"),
        ("extra/speaker", np.full(12, -1), "extra/speaker must lie in 0 ... 99999, got -1 for utterance 0"),
        ("extra/speaker", np.full(12, 10**12), "extra/speaker must lie in"),
        ("extra/speaker", np.full(12, 2**64 - 1, "u8"), "extra/speaker must lie in"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_no_such_file_holds_is_refused_by_place(tmp_path: Path, name: str, value: Any, told: str):
    with pytest.raises(ValueError, match=rf"words\.h5: {told}"):
        EventFile(write_words(tmp_path / "words.h5", spoil=put(name, value)))


def test_a_group_where_a_data_set_belongs_is_refused(tmp_path: Path):
    def spoil(file: h5py.File) -> None:
        del file["extra/keys"]
        file.create_group("extra/keys")

    with pytest.raises(ValueError, match="wanted a data set extra/keys, there is a group"):
        EventFile(write_words(tmp_path / "words.h5", spoil=spoil))


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


def test_names_come_cleaned_and_cut_and_make_a_table_and_a_picture(tmp_path: Path, monkeypatch):
    path = write_words(
        tmp_path / "words.h5", labels=[i % 8 for i in range(12)], spoil=put("extra/keys", np.array(NAMES, object))
    )
    names = EventFile(path).names
    assert names[:2] == [r"\x1b[2Jsix", r"drei\u202eierd"] and names[-1] == "sieben-é"
    assert all(name.isprintable() and len(name) <= 80 for name in names)
    assert names[4] == "x" * 79 + "…"
    monkeypatch.chdir(tmp_path)
    for utterance in (2,):
        picture = f"{utterance}.png"
        result = CliRunner().invoke(
            app, ["data", "info", str(path), "--utterance", str(utterance), "--picture", picture]
        )
        assert result.exit_code == 0, result.output
        assert result.output.replace("\n", "").isprintable()
        assert (tmp_path / picture).exists()


def test_info_never_writes_over_a_file_nor_through_a_link(tmp_path: Path, monkeypatch):
    path = write_words(tmp_path / "words.h5")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words.png").write_text("mine")
    (tmp_path / "link.png").symlink_to(tmp_path / "nothing.png")
    for more in ([], ["--picture", "words.png"], ["--picture", "words.h5"], ["--picture", "link.png"]):
        result = CliRunner().invoke(app, ["data", "info", str(path), *more])
        assert result.exit_code == 2 and "exists already" in result.output
    assert (tmp_path / "words.png").read_text() == "mine"
    assert not (tmp_path / "nothing.png").exists()


def test_speakers_of_large_numbers_are_counted_and_drawn(tmp_path: Path, monkeypatch):
    path = write_words(tmp_path / "words.h5", speakers=[0, 65_000] * 6)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["data", "info", str(path)])
    assert result.exit_code == 0 and "speaker 65000" in result.output
