"""Slots of queries in ATIS's layout: what is read, what is refused, and the score of spans."""

from pathlib import Path

import pytest
import torch

from neurolsc import LSTM, FeedForward, Network, evaluate, train
from neurolsc.datasets import ATIS
from neurolsc.datasets.sequences import SLOT_FILES, UNKNOWN, read_slots
from neurolsc.metrics import span_f1
from neurolsc.tasks import ClassPerStep

CITIES = ("boston", "new york", "dallas", "san diego")


def write(folder: Path) -> Path:
    """Small files in the layout: queries of two cities each."""
    folder.mkdir(exist_ok=True)
    for part, name in SLOT_FILES.items():
        lines = []
        for start in CITIES:
            for end in CITIES:
                words, tags = ["BOS", "fly", "from"], ["O", "O", "O"]
                for city, slot in ((start, "fromloc"), (end, "toloc")):
                    words += city.split()
                    tags += [f"B-{slot}", f"I-{slot}"][: len(city.split())]
                    words.append("to" if slot == "fromloc" else "please")
                    tags.append("O")
                words[-1] = "EOS"
                tags[-1] = "atis_flight"
                lines.append(" ".join(words) + "\t" + " ".join(tags))
        if part == "train":
            lines.append("BOS hello EOS\tO O atis_greeting")
        (folder / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def test_queries_are_read_with_the_vocabulary_of_the_training(tmp_path: Path):
    data = ATIS(write(tmp_path), "test")
    assert len(data) == 16 and len(ATIS(tmp_path, "train")) == 17
    assert sorted(data.tags) == ["B-fromloc", "B-toloc", "I-fromloc", "I-toloc", "O"]
    assert UNKNOWN in data.vocabulary and "hello" not in data.vocabulary  # which comes once
    x, y = data[1]
    words = [data.vocabulary[i] for i in x.argmax(1).tolist()]
    assert words == ["fly", "from", "boston", "to", "new", "york"] and x.sum(1).tolist() == [1] * 6
    assert data.tags.decode(y) == ["O", "O", "B-fromloc", "O", "B-toloc", "I-toloc"]
    batch = data.__getitems__([0, 1])
    assert batch.mask.sum(0).tolist() == [5, 6] and not batch.x[5, 0].any()


def test_slots_are_learnt_and_scored(tmp_path: Path):
    torch.manual_seed(0)
    parts = {split: ATIS(write(tmp_path), split) for split in ("train", "validation", "test")}
    test = parts["test"]
    cells = [FeedForward(test.n_in, 12, activation="linear"), LSTM(12, 16)]
    network = Network(cells, test.n_classes, layer_delay=0, readout_bias=True)

    def score() -> float:
        batch = test.__getitems__(range(len(test)))
        guesses, found = network(batch.x.float()).argmax(-1), [[], []]
        for b in range(len(test)):
            for tags, numbers in zip(found, (guesses, batch.labels), strict=True):
                tags.append(test.tags.decode(numbers[batch.mask[:, b], b]))
        return span_f1(*found)

    before = score()
    train(network, parts["train"], parts["validation"], task=ClassPerStep(), epochs=40, lr=0.02, progress=False)
    assert before < 0.5 and score() > 0.95
    assert evaluate(network, test, task=ClassPerStep()).step_accuracy > 0.95


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("BOS fly EOS\tO O\n", "line 1 must be .* got 3 words and 2 tags"),
        ("\nfly to EOS\tO O x\n", "line 2 must be 'BOS word ... EOS'"),
        ("BOS fly EOS O O x\n", "line 1 must be"),
        ("BOS fly EOS\tO fromloc x\n", "line 1: a tag must be O, B-slot or I-slot, got .*fromloc"),
        ("\n\n", "it has no query"),
    ],
)
def test_another_layout_is_refused(text: str, message: str, tmp_path: Path):
    path = tmp_path / "slots.iob"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_slots(path)
    with pytest.raises(FileNotFoundError):
        ATIS(tmp_path, "train")
    path.write_bytes(b"BOS \xff EOS\tO O x")
    with pytest.raises(ValueError, match="no file of slots in UTF-8"):
        read_slots(path)


@pytest.mark.parametrize(
    ("predicted", "true", "wanted"),
    [
        (["O", "O"], ["O", "O"], 1.0),
        (["B-a", "O"], ["O", "O"], 0.0),
        (["B-a", "I-a"], ["B-a", "I-a"], 1.0),
        (["B-a", "I-a"], ["B-a", "B-a"], 0.0),
        (["I-a", "I-a"], ["B-a", "I-a"], 1.0),  # begins without B
        (["B-a", "I-b"], ["B-a", "B-b"], 1.0),  # another name begins
        (["B-a", "O", "B-b"], ["B-a", "O", "B-a"], 0.5),
    ],
)
def test_spans_are_scored_as_wholes(predicted: list[str], true: list[str], wanted: float):
    assert span_f1([predicted], [true]) == pytest.approx(wanted)
    both = span_f1([predicted, ["B-c"]], [true, ["B-c"]])
    assert both >= wanted and span_f1([true], [predicted]) == pytest.approx(wanted)


def test_tags_of_other_lengths_are_refused():
    with pytest.raises(ValueError, match=r"same lengths, got \[1\] and \[2\]"):
        span_f1([["O"]], [["O", "O"]])
