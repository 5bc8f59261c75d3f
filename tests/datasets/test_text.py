"""Words: vocabularies, windows of a text, published texts, and errors."""

import re
from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from neurolsc import GRU, Embedding, Network
from neurolsc.datasets import PennTreebank, Text, Vocabulary, WikiText2, Words, collate
from neurolsc.datasets.batches import drawn_from, epoch_of_training
from neurolsc.datasets.sequences import END, UNKNOWN, read_words
from neurolsc.tasks import ClassPerStep
from neurolsc.training import train

SPLITS = ("train", "validation", "test")
WORD = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=6)


def numbers(n: int) -> tuple[torch.Tensor, Vocabulary]:
    """A text 0, 1, 2, ... of as many words."""
    return torch.arange(n), Vocabulary(f"w{i}" for i in range(n))


@given(st.lists(WORD, min_size=1), st.integers(1, 3))
def test_a_vocabulary_is_ordered_by_frequency_and_then_by_the_alphabet(words: list[str], at_least: int):
    vocabulary = Vocabulary.of(words, at_least=at_least)
    shown = [w if words.count(w) >= at_least or w == UNKNOWN else UNKNOWN for w in words]
    counts = Counter(shown)
    assert list(vocabulary) == sorted(counts, key=lambda w: (-counts[w], w))
    assert vocabulary.decode(vocabulary.encode(words)) == shown


# windows


@given(st.integers(2, 60), st.integers(1, 12), st.integers(1, 3), st.integers(1, 5))
def test_every_word_but_the_first_is_predicted_once(n: int, steps: int, repeat: int, batch: int):
    text, vocabulary = numbers(n)
    if n - 1 < steps:
        with pytest.raises(ValueError, match=f"take a text of {steps + 1} words, got {n}:"):
            Words(text, vocabulary, "train", steps=steps, repeat=repeat)
        return
    words = Words(text, vocabulary, "train", steps=steps, repeat=repeat)
    assert len(words) == -(-(n - 1) // steps)
    seen = []
    for start in range(0, len(words), batch):
        x, y, *masks = collate(words.__getitems__(range(start, min(start + batch, len(words)))))
        mask = masks[0] if masks else torch.ones(y.shape, dtype=torch.bool)
        assert (x.dtype, x.shape) == (torch.int64, (*y.shape, 1))
        assert not masks or not mask.all()
        assert_close(x[..., 0][mask] + 1, y[mask])
        assert mask[0].all() and mask.any(1).all()
        seen += y.T[mask.T].tolist()
    assert seen == torch.arange(1, n).repeat_interleave(repeat).tolist()
    assert [y for i in range(len(words)) for y in words[i][1].tolist()] == seen


def test_streams_go_on_where_they_ended():
    text, vocabulary = numbers(50)
    words = Words(text, vocabulary, "train", steps=5, repeat=1, streams=3)
    assert (words.streams, len(words)) == (3, 9)
    items = [words[i] for i in range(9)]
    assert all(items[i][1][-1] == items[i + 3][0][0] for i in range(6))
    assert [int(x[0]) for x, _ in items[:3]] == [0, 15, 30]
    with pytest.raises(ValueError, match=r"3 x 20 words take a text of 61 words, got 50: .* fewer streams"):
        Words(text, vocabulary, "train", steps=20, streams=3)
    assert not hasattr(Words(text, vocabulary, "train", steps=5), "streams")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"streams": 0}, "streams must be at least 1, got 0"),
        ({"switch": 1.0}, r"switch must be a probability in \[0, 1\)"),
    ],
)
def test_options_out_of_range_are_refused(more, message):
    with pytest.raises(ValueError, match=message):
        Words(*numbers(20), "train", **({"steps": 5} | more))


def test_a_vocabulary_of_one_word_has_no_other_to_switch_to():
    text = torch.zeros(20, dtype=torch.int64)
    assert len(Words(text, ["a"], "train", steps=5)) == 4
    with pytest.raises(ValueError, match=r"switch=0.1 takes another word for a word, but the vocabulary has one"):
        Words(text, ["a"], "train", steps=5, switch=0.1)


# switched words


def test_switched_words_are_others_each_as_likely_and_targets_stay():
    text, vocabulary = torch.randint(7, (60_001,), generator=torch.Generator().manual_seed(0)), Vocabulary("abcdefg")
    still, switched = (Words(text, vocabulary, "train", steps=300, switch=p) for p in (0.0, 0.05))
    with drawn_from(3):
        x, y = collate(switched.__getitems__(range(200)))
    was, wanted = collate(still.__getitems__(range(200)))
    assert_close(y, wanted)
    assert_close(x[::2], x[1::2])  # both steps of a word show the same
    changed = (x != was)[::2]
    assert changed.double().mean() == pytest.approx(0.05, abs=0.003)
    table = torch.zeros(7, 7).index_put_((was[::2][changed], x[::2][changed]), torch.tensor(1.0), accumulate=True)
    away = table[~torch.eye(7, dtype=torch.bool)]
    assert (table.diag() == 0).all() and away.min() > 0.5 * away.mean() and away.max() < 1.5 * away.mean()
    for seed in (3, 4):
        with drawn_from(seed):
            assert torch.equal(collate(switched.__getitems__(range(200)))[0], x) is (seed == 3)


def test_words_are_switched_in_the_first_epochs_of_a_training_alone(monkeypatch):
    text, vocabulary = torch.arange(2001) % 3, Vocabulary("abcde")
    words = Words(text, vocabulary, "train", steps=10, repeat=1, switch=0.5, switch_epochs=2)
    for epoch, switched in ((1, True), (2, True), (3, False), (None, True)):
        with drawn_from(0, epoch):
            x = words.__getitems__(range(200)).x
        assert (x.transpose(0, 1).flatten() != text[:-1]).any() == switched
    seen = []
    monkeypatch.setattr("neurolsc.datasets.sequences.epoch_of_training", lambda: seen.append(epoch_of_training()) or 1)
    network = Network([GRU(4, 4)], embedding=Embedding(5, 4))
    train(network, words, Words(text, vocabulary, "validation"), task=ClassPerStep(), epochs=2, progress=False)
    assert set(seen) == {1, 2}


# files


def test_a_file_is_read_with_an_end_behind_every_line(tmp_path):
    path = tmp_path / "t.txt"
    path.write_bytes("\ufeffa b\r\n\n  é <unk> \nlast".encode())
    assert read_words(path) == ["a", "b", END, END, "é", "<unk>", END, "last", END]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it has no word"),
        (b"good\nbad \xff\n", "a text must be UTF-8"),
    ],
)
def test_a_bad_text_is_refused(tmp_path, content, message):
    path = tmp_path / "t.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}: {message}"):
        Text.from_files("train", train=path, test=path)


def lines(n: int) -> str:
    return "".join(f"w{i % 7} w{i % 3}\n" for i in range(n))


def test_the_last_lines_are_held_out_where_no_file_is_for_validation(tmp_path):
    train, test = tmp_path / "train.txt", tmp_path / "test.txt"
    train.write_text(lines(100))
    test.write_text(lines(30))
    parts = [Text.from_files(s, train=train, test=test, steps=5) for s in SPLITS]  # type: ignore[arg-type]
    assert [len(part.text) for part in parts] == [270, 30, 90]
    assert len({part.vocabulary.words for part in parts}) == 1
    whole = read_words(train)
    assert parts[0].vocabulary.decode(torch.cat([parts[0].text, parts[1].text])) == whole
    assert parts[0].vocabulary.decode(parts[0].text[-1:]) == [END]
    for share, message in ((0.0, "share must be between 0 and 1"), (0.001, "leaves nothing to validate with")):
        with pytest.raises(ValueError, match=message):
            Text.from_files("validation", train=train, test=test, share=share, steps=5)


def test_unknown_words_and_short_texts_are_refused_by_file(tmp_path):
    train, test = tmp_path / "train.txt", tmp_path / "test.txt"
    train.write_text(lines(50))
    test.write_text("w1 w2 zebra\n" * 9)
    with pytest.raises(ValueError, match=rf"^{re.escape(str(test))}: 9 of 36 words .* the first is 'zebra'"):
        Text.from_files("test", train=train, test=test, steps=5)
    train.write_text("once " + lines(50))
    known = Text.from_files("test", train=train, test=test, at_least=2, steps=5)
    assert known.vocabulary.decode(known.text)[:3] == ["w1", "w2", UNKNOWN]
    with pytest.raises(ValueError, match="1 x 100 words take a text of 101 words, got 36"):
        Text.from_files("test", train=train, test=test, at_least=2)
    test.write_text("\n")
    with pytest.raises(ValueError, match=rf"^{re.escape(str(test))}: it has no word in 1 lines\.$"):
        Text.from_files("test", train=train, test=test, steps=5)
    test.unlink()
    assert len(Text.from_files("train", train=train, test=test, steps=5)) > 0  # the test is not opened
    with pytest.raises(FileNotFoundError, match=re.escape(str(test))):
        Text.from_files("test", train=train, test=test, steps=5)


def test_the_sample_is_a_text_of_three_chapters():
    parts = [Text.embedded(split) for split in SPLITS]
    assert [len(part.text) for part in parts] == [4_480, 971, 852]
    assert parts[0].n_words == 444
    assert max(float((part.text == part.vocabulary.index(UNKNOWN)).double().mean()) for part in parts) < 0.35


@pytest.mark.parametrize(("kind", "name"), [(PennTreebank, "ptb.{}.txt"), (WikiText2, "wiki.{}.tokens")])
def test_published_texts_share_the_vocabulary_of_training(kind, name, tmp_path, publish):
    for i, part in enumerate(("train", "valid", "test")):
        if kind is PennTreebank:
            publish(lines(60 + i).encode(), name.format(part))
        else:  # an archive of three
            (tmp_path / name.format(part)).write_text(lines(60 + i))
    parts = [kind(tmp_path, split, steps=5) for split in SPLITS]
    assert [len(part.text) for part in parts] == [180, 183, 186]
    assert len({part.vocabulary.words for part in parts}) == 1
    with pytest.raises(ValueError, match="split must be one of"):
        kind(tmp_path, "valid")


def test_characters_of_the_penn_treebank_are_its_letters_blanks_and_ends_of_lines(tmp_path, publish):
    for part in ("train", "valid", "test"):
        publish(b" an <unk> \n N b\n", f"ptb.{part}.txt")
    text = PennTreebank(tmp_path, "test", characters=True, steps=5)
    shown = [text.vocabulary.words[i] for i in text.text.tolist()]
    assert " ".join(shown) == "a n _ < u n k > <eos> N _ b <eos>"


def test_the_real_texts_have_the_published_counts(wikitext_root):
    counts = [len(read_words(wikitext_root / f"{name}.txt")) for name in ("valid", "test")]
    assert counts == [217_646, 245_569]


def test_the_sample_is_read_by_characters():
    words, letters = Text.embedded("train"), Text.embedded("train", characters=True)
    assert len(letters.vocabulary) < 70 and len(letters.text) > 4 * len(words.text)
    shown = "".join(letters.vocabulary.decode(letters.text[:400])).replace("_", " ").split(END)
    lines = (line.split() for line in shown[:-1])
    assert [[word if word in words.vocabulary else UNKNOWN for word in line] for line in lines] == [
        words.vocabulary.decode(part) for part in first_lines(words, len(shown) - 1)
    ]


def first_lines(text: Text, count: int) -> list[list[int]]:
    """The numbers of the words of the first lines."""
    lines: list[list[int]] = [[]]
    for number in text.text.tolist():
        if text.vocabulary[number] == END:
            lines.append([])
        else:
            lines[-1].append(number)
    return lines[:count]
