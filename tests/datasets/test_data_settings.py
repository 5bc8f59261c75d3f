"""Settings of data sets: which belong to which, what is loaded, and the commands on them."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

import neurolsc
from neurolsc.datasets import JSBChorales, MNISTPixels, ReleasedEncoding, SequentialMNIST, SpikeLatencyMNIST, Text
from neurolsc.experiment import Experiment
from neurolsc.experiment.config import DataSettings, NetworkSettings
from neurolsc.io import data_fingerprint
from neurolsc.tasks import BinaryPerStep
from tests.patterns import succeed

QUICK = ("--width", "8", "--layers", "1", "--epochs", "2", "--init", "Default")


def test_what_is_loaded_is_what_the_settings_say(tmp_path):
    assert len(DataSettings("jsb").load("train")) == 60
    assert isinstance(DataSettings("jsb").load("test"), JSBChorales)
    pixels = DataSettings("mnist", split_seed=3).load("validation")
    assert isinstance(pixels, MNISTPixels)
    assert torch.equal(pixels.images, MNISTPixels.embedded("validation", seed=3).images)
    orders = [DataSettings(name).load("test").permutation for name in ("smnist", "psmnist")]  # type: ignore[union-attr]
    assert [torch.equal(order, torch.arange(784)) for order in orders] == [True, False]
    assert torch.equal(orders[1], SequentialMNIST.embedded("test", permutation=0).permutation)
    settings = DataSettings("text", words=30, repeat=1, word_switch=0.1, streams=4)
    train, validation = settings.load("train"), settings.load("validation")
    assert isinstance(train, Text) and isinstance(validation, Text)
    assert (train.window, train.repeat, train.streams, train.switch) == (30, 1, 4, 0.1)
    assert validation.switch == 0
    (tmp_path / "valid.txt").write_text("once " + "".join(f"word{i % 5} and\n" for i in range(200)))
    (tmp_path / "held.txt").write_text("word1 and\n" * 30)
    texts = DataSettings("text", root=str(tmp_path), text_train="valid.txt", text_test="held.txt", words=50)
    assert [len(texts.load(split).text) for split in ("train", "validation", "test")] == [541, 60, 90]  # type: ignore[union-attr]
    assert ["once" in replace(texts, rare=rare).load("train").vocabulary for rare in (1, 2)] == [True, False]  # type: ignore[union-attr]
    own = replace(texts, text_validation="held.txt", text_test="test.txt")
    assert len(own.load("validation").text) == 90  # type: ignore[union-attr]
    one_file = DataSettings("text", root=str(tmp_path / "valid.txt"), words=50)
    assert [len(one_file.load(split).text) for split in ("train", "validation")] == [541, 60]  # type: ignore[union-attr]
    assert one_file.title.endswith("(valid.txt)")
    with pytest.raises(ValueError, match=r"is for training and validation; a test takes a folder with test\.txt"):
        one_file.load("test")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": "jsb", "dt": 0.01, "shift": 1}, "shift: for data = sl-mnist only, got data = jsb"),
        ({"data": "shd", "words": 10, "streams": 2}, "words, streams: for data = text or ptb or ptb-characters or"),
        ({"data": "text", "rare": 2, "text_test": "x"}, "text_test, rare: for texts in a root; the sample"),
        (
            {"data": "text", "root": __file__, "text_train": "a.txt", "text_validation": "b.txt"},
            "text_train, text_validation: for a root that is a folder, got the file",
        ),
        ({"data": "text", "root": __file__, "text_test": "b.txt"}, "text_test: for a root that is a folder"),
        ({"data": "store-recall", "root": "."}, r"root: the samples of store-recall are made, .*; got root = \."),
        ({"data": "cifar10"}, "root: the package holds no sample of cifar10; name a folder"),
    ],
)
def test_settings_of_others_and_a_missing_root_are_refused(settings: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        DataSettings(**settings).load("train")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"time_stretch": 1.5}, r"time_stretch must be below 1, .*, got 1\.5"),
        ({"split_share": 0.0}, r"split_share must be between 0 and 1, got 0\.0"),
        ({"spike_drop": 1.5}, r"spike_drop must be a probability in \[0, 1\), got 1\.5"),
        ({"channel_jitter": -1.0}, "channel_jitter must be zero or positive and finite, got -1"),
        ({"words": 0}, "words must be at least 1, got 0"),
        ({"shift": 28}, "shift must be below 28, by which a digit leaves the image, got 28"),
        ({"split_seed": 2**32}, "split_seed must be below 4294967296, got 4294967296"),
    ],
)
def test_a_setting_out_of_range_is_refused_under_its_own_name(settings: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        DataSettings(**settings)


def test_a_root_that_is_not_there_is_refused_and_nothing_is_made(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no .*/new\. Make the folder first"):
        DataSettings("shd", root=str(tmp_path / "new")).load("train")
    assert not list(tmp_path.iterdir())


def test_words_are_read_by_an_embedding_pixels_one_by_one_and_single_steps_without_delay_alone():
    network = Experiment(NetworkSettings(cell="GRU", width=9, embedding=7), DataSettings("text")).build()
    assert (network.n_in, network.n_out, network.embedding.words, network.embedding.width) == (1, 444, 444, 7)
    pixels = Experiment.from_settings({"data": "smnist", "width": 2}).build()
    assert (pixels.n_in, pixels.layer_delay) == (1, 1)
    with pytest.raises(ValueError, match=r"data = mnist last one step, .* unless layer_delay = 0"):
        Experiment(NetworkSettings(), DataSettings("mnist")).build()


def test_music_is_trained_on_and_scored_by_the_commands(tmp_path):
    run = tmp_path / "run"
    output = succeed("train", "--data", "jsb", *QUICK, "--batch-size", "30", "--out", run)
    history = json.loads((run / "history.json").read_text())["history"]
    assert f"best epoch 2: validation nll {history[1]['validation_nll']:.4g}\n" in output
    assert {"train_nll", "validation_nll", "validation_step_overlap"} <= history[0].keys()
    output = succeed("evaluate", run)
    scores = json.loads((run / "test.json").read_text())
    given = neurolsc.load(run / "network.safetensors"), JSBChorales.embedded("test")
    assert scores["nll"] == neurolsc.evaluate(*given, task=BinaryPerStep()).nll
    assert f"{scores['nll']:.4g}" in output


def test_images_are_shifted_in_training_alone_and_no_training_goes_on_with_another_code():
    settings = DataSettings(shift=1, encoding="released")
    assert settings.title == "spike-latency MNIST, released encoding (sample in the package)"
    parts: list[Any] = [settings.load(split) for split in ("train", "validation", "test")]
    assert [(part.shift, part.encoding) for part in parts] == [(n, ReleasedEncoding()) for n in (1, 0, 0)]
    other = data_fingerprint("x", SpikeLatencyMNIST.embedded("train"))
    assert {"x.encoding", "x.shift"} <= {
        name for name, value in data_fingerprint("x", parts[0]).items() if value != other[name]
    }
