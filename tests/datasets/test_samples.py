"""The samples in the package, their cards and their recipes agree."""

import gzip
import hashlib
import json
import lzma
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

import neurolsc.datasets
from neurolsc.datasets import EventFile

SAMPLES = Path(neurolsc.datasets.__file__).parent / "samples"
CARDS = Path(__file__).parents[2] / "datasets"
CARD = (CARDS / "README.md").read_text(encoding="utf-8")


LISTED = re.findall(r"^\| (\S+\.(?:gz|xz)) \| (\d+) \| ([0-9a-f]{64}) \|$", CARD, re.M)


def run_recipe(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: Path) -> None:
    monkeypatch.setattr("sys.argv", [name, *map(str, arguments)])
    runpy.run_path(str(CARDS / name), run_name="__main__")


def test_every_packed_sample_has_the_size_and_checksum_on_its_card():
    packed = {path.name: path for path in SAMPLES.rglob("*.?z")}
    assert sorted(packed) == sorted(name for name, _, _ in LISTED)
    for name, size, sha256 in LISTED:
        content = packed[name].read_bytes()
        unpack = gzip.decompress if name.endswith("gz") else lzma.decompress
        assert (len(content), hashlib.sha256(unpack(content)).hexdigest()) == (int(size), sha256)
    assert sum(path.stat().st_size for path in SAMPLES.rglob("*.*")) < 2_000_000


def test_the_recipe_makes_the_digits_again(mnist_root, tmp_path, monkeypatch):
    run_recipe("make_mnist_sample.py", monkeypatch, mnist_root, tmp_path)
    for path in (SAMPLES / "mnist").iterdir():  # another zlib may pack the same digits differently
        assert gzip.decompress((tmp_path / path.name).read_bytes()) == gzip.decompress(path.read_bytes())


@pytest.mark.slow
def test_the_recipe_makes_the_spoken_digits_again(recordings_root, tmp_path, monkeypatch):
    run_recipe("make_spoken_digits_sample.py", monkeypatch, recordings_root, tmp_path)
    for part in ("train", "test"):
        made, kept = (EventFile(folder / f"{part}.h5.xz") for folder in (tmp_path, SAMPLES / "spoken_digits"))
        for name in ("labels", "speakers", "names"):
            assert np.array_equal(getattr(made, name), getattr(kept, name))
        assert all(map(np.array_equal, made.events, kept.events))


def test_the_texts_have_the_counts_and_checksums_on_their_card():
    listed = re.findall(r"^\| (\w+\.txt) \| ([\d,]+), (\d+) \| ([0-9a-f]{64}) \|$", CARD, re.M)
    assert {name for name, *_ in listed} == {path.name for path in (SAMPLES / "text").iterdir()}
    for name, words, lines, sha256 in listed:
        content = (SAMPLES / "text" / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == sha256
        assert (len(content.split()), content.count(b"\n")) == (int(words.replace(",", "")), int(lines))
        assert re.fullmatch(r"(?:[a-z']+(?: [a-z']+)*\n)+", content.decode())


def test_the_recipe_makes_the_music_again(jsb_root, tmp_path, monkeypatch):
    run_recipe("make_jsb_sample.py", monkeypatch, jsb_root, tmp_path)
    made, kept = ((folder / "jsb-chorales-sample.json.gz").read_bytes() for folder in (tmp_path, SAMPLES / "jsb"))
    assert gzip.decompress(made) == gzip.decompress(kept)
    whole = json.loads((jsb_root / "jsb-chorales-quarter.json").read_text())
    assert all(piece in whole[part] for part, pieces in json.loads(gzip.decompress(kept)).items() for piece in pieces)


def test_the_recipe_of_the_text_takes_three_chapters_and_words_alone(tmp_path, monkeypatch):
    book = tmp_path / "book.txt"
    chapters = "".join(
        f"CHAPTER {number}\n\n   Its Title\n\n\n  One {word}, isn't it?  `Two--three,' said\nshe!  *\n\n  Four.\n\n\n"
        for number, word in zip(("I", "II", "III", "IV"), ("a", "b", "c", "d"), strict=True)
    )
    book.write_text(f"Preface\n\n{chapters}")
    run_recipe("make_text_sample.py", monkeypatch, book, tmp_path / "out")
    made = {path.stem: path.read_text().splitlines() for path in (tmp_path / "out").iterdir()}
    of_one = ["one a isn't it", "two three said she", "four"]
    assert made["train"] == [*of_one, *(line.replace(" a ", " b ") for line in of_one)]
    assert made["validation"] + made["test"] == [line.replace(" a ", " c ") for line in of_one]
