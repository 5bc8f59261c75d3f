"""The samples of music and text, their cards and their recipes agree."""

import gzip
import hashlib
import json
import re
import runpy
from pathlib import Path

import pytest

import neurolsc.datasets
from neurolsc.datasets.jsb_files import fetch_jsb

SAMPLES = Path(neurolsc.datasets.__file__).parent / "samples"
CARDS = Path(__file__).parents[2] / "datasets"
CARD = (CARDS / "README.md").read_text(encoding="utf-8")


def test_the_music_has_the_size_and_the_checksum_on_its_card():
    ((size, sha256),) = re.findall(r"^\| jsb-chorales-sample\.json\.gz \| (\d+) \| ([0-9a-f]{64}) \|$", CARD, re.M)
    packed = (SAMPLES / "jsb" / "jsb-chorales-sample.json.gz").read_bytes()
    assert (len(packed), hashlib.sha256(gzip.decompress(packed)).hexdigest()) == (int(size), sha256)


def test_the_texts_have_the_counts_and_checksums_on_their_card():
    listed = re.findall(r"^\| (\w+\.txt) \| ([\d,]+), (\d+) \| ([0-9a-f]{64}) \|$", CARD, re.M)
    assert {name for name, *_ in listed} == {path.name for path in (SAMPLES / "text").iterdir()}
    for name, words, lines, sha256 in listed:
        content = (SAMPLES / "text" / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == sha256
        assert (len(content.split()), content.count(b"\n")) == (int(words.replace(",", "")), int(lines))
        assert re.fullmatch(r"(?:[a-z']+(?: [a-z']+)*\n)+", content.decode())


def test_the_recipe_makes_the_music_again(jsb_root, tmp_path, monkeypatch):
    recipe = CARDS / "make_jsb_sample.py"
    monkeypatch.setattr("sys.argv", [str(recipe), str(jsb_root), str(tmp_path)])
    runpy.run_path(str(recipe), run_name="__main__")
    made, kept = ((folder / "jsb-chorales-sample.json.gz").read_bytes() for folder in (tmp_path, SAMPLES / "jsb"))
    assert gzip.decompress(made) == gzip.decompress(kept)
    whole = json.loads(fetch_jsb(jsb_root).read_text())
    assert all(piece in whole[part] for part, pieces in json.loads(gzip.decompress(kept)).items() for piece in pieces)


def test_the_recipe_of_the_text_takes_three_chapters_and_words_alone(tmp_path, monkeypatch):
    book = tmp_path / "book.txt"
    chapters = "".join(
        f"CHAPTER {number}\n\n   Its Title\n\n\n  One {word}, isn't it?  `Two--three,' said\nshe!  *\n\n  Four.\n\n\n"
        for number, word in zip(("I", "II", "III", "IV"), ("a", "b", "c", "d"), strict=True)
    )
    book.write_text(f"Preface\n\n{chapters}")
    recipe = CARDS / "make_text_sample.py"
    monkeypatch.setattr("sys.argv", [str(recipe), str(book), str(tmp_path / "out")])
    runpy.run_path(str(recipe), run_name="__main__")
    made = {path.stem: path.read_text().splitlines() for path in (tmp_path / "out").iterdir()}
    of_one = ["one a isn't it", "two three said she", "four"]
    assert made["train"] == [*of_one, *(line.replace(" a ", " b ") for line in of_one)]
    assert made["validation"] + made["test"] == [line.replace(" a ", " c ") for line in of_one]


@pytest.mark.parametrize("name", ["jsb", "text"])
def test_samples_are_small(name: str):
    assert sum(path.stat().st_size for path in (SAMPLES / name).iterdir()) < 40_000
