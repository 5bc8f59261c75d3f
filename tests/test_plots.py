"""Pictures: a file of the format that its suffix names, whole, and no figure left open."""

from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
import torch

from neurolsc import (
    LIF,
    ALIFPlus,
    Network,
    RadiusProfile,
    plots,
    plots_data,
    pretrain,
    radius_profile,
    scale_to_radius,
    surrogate,
)
from neurolsc.datasets import SHD, EventFile
from neurolsc.datasets.summary import summarize

STARTS = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}


@pytest.fixture(autouse=True)
def nothing_left_open() -> Iterator[None]:
    plt.switch_backend("Agg")
    settings = dict(mpl.rcParams)
    yield
    assert not plt.get_fignums()
    assert dict(mpl.rcParams) == settings


@pytest.fixture
def profile(make_network, make_spikes) -> RadiusProfile:
    return radius_profile(make_network(width=6), make_spikes(T=4, B=2), target=(0.5, 0.5))


def is_a_picture(path: Path) -> bool:
    content = path.read_bytes()
    return content.startswith(STARTS[path.suffix[1:]]) and len(content) > 5000 and len(list(path.parent.iterdir())) == 1


@pytest.mark.parametrize("suffix", STARTS)
def test_suffix_chooses_the_format(profile, suffix, tmp_path):
    profile.plot(tmp_path / f"profile.{suffix}")
    assert is_a_picture(tmp_path / f"profile.{suffix}")


def test_unknown_suffix_or_folder_is_an_error_and_leaves_nothing(profile, tmp_path):
    with pytest.raises(ValueError, match="abc"):
        profile.plot(tmp_path / "profile.abc")
    with pytest.raises(OSError, match="could not write the file"):
        profile.plot(tmp_path / "missing" / "profile.png")
    assert not list(tmp_path.iterdir())


def test_svg_says_what_is_shown(profile, tmp_path):
    with plt.rc_context({"svg.fonttype": "none"}):
        profile.plot(tmp_path / "profile.svg")
    text = (tmp_path / "profile.svg").read_text(encoding="utf-8")
    for words in ("layer 1 (from the input)*", "layer 2: mean", "target 0.5", "sub-matrix", "leak", "time step"):
        assert words in text


def test_profile_without_closed_form_target_or_several_steps(make_spikes, tmp_path):
    network = Network([LIF(6, 6, spike=lambda v: surrogate.FastSigmoid()(v))], 2)
    radius_profile(network, make_spikes(T=5, B=1, N=6), steps=1).plot(tmp_path / "profile.png")
    assert is_a_picture(tmp_path / "profile.png")


def test_pretraining(make_network, make_spikes, tmp_path):
    network, x = make_network(width=6), make_spikes(T=8, B=2)
    history = pretrain(network, [x], max_steps=2, progress=False).history
    plots.plot_pretraining(history, (1.0, 1.0), tmp_path / "pretraining.png")
    assert is_a_picture(tmp_path / "pretraining.png")
    history = scale_to_radius(network, x, progress=False).history
    for rows in (history, []):
        with pytest.raises(ValueError, match="only the history of pretrain can"):
            plots.plot_pretraining(rows, None, tmp_path / "none.png")


def test_learning_curves(tmp_path):
    history = [
        {"epoch": e, "validation_loss": 2 / (e + 1), "validation_mode_accuracy": 0.1 * e, "firing_rate": [0.1, 0.02]}
        for e in range(4)
    ]
    plots.plot_learning_curves({"a": history, "b": history[:1]}, tmp_path / "curves.png", chance=0.1)
    assert is_a_picture(tmp_path / "curves.png")


def test_raster(make_spikes, tmp_path):
    layers = [make_spikes(T=30, B=1, N=12)[:, 0], torch.zeros(30, 5)]
    plots.plot_raster(layers, ["input", "silent"], tmp_path / "raster.png")
    assert is_a_picture(tmp_path / "raster.png")


def test_surrogates(tmp_path):
    kinds = [getattr(surrogate, name) for name in surrogate.__all__ if name != "Surrogate"]
    plots.plot_surrogates([kind() for kind in kinds[:5]], tmp_path / "surrogates.png")
    assert is_a_picture(tmp_path / "surrogates.png")


def test_a_learnable_surrogate_and_an_alif_of_it(make_spikes, tmp_path):
    spike = surrogate.Gaussian(learnable=True)
    plots.plot_surrogates([spike], tmp_path / "surrogate.png")
    assert is_a_picture(tmp_path / "surrogate.png")
    radius_profile(Network([ALIFPlus(6, 4, spike=spike)], 2), make_spikes(T=3, B=1, N=6)).plot(
        tmp_path / "surrogate.png"
    )
    assert is_a_picture(tmp_path / "surrogate.png")


# data


def test_utterances_are_drawn_spike_by_spike_with_the_activity_of_every_unit(tmp_path, monkeypatch):
    words = SHD.embedded("test")
    figures = []
    monkeypatch.setattr(plots_data, "save_figure", lambda figure, path: figures.append(figure))
    events = words.events([3, 5])
    plots_data.plot_utterances(events, ["one", "other"], tmp_path / "words.png")
    (figure,) = figures
    for row, part in enumerate((slice(*events.offsets[:2]), slice(*events.offsets[1:]))):
        raster, activity = figure.axes[2 * row : 2 * row + 2]
        drawn = raster.collections[0].get_offsets()
        assert drawn[:, 0].tolist() == events.times[part].tolist()
        assert drawn[:, 1].tolist() == events.units[part].tolist()
        assert raster.get_title(loc="left") == f"{['one', 'other'][row]}: {len(drawn)} spikes"
        assert activity.lines[0].get_xdata().sum() == len(drawn)
    plt.close(figure)


def test_a_summary_of_a_file_is_drawn_with_all_its_utterances(tmp_path):
    file = EventFile(SHD.embedded("train").path)
    numbers = summarize(file)
    assert numbers.spikes.sum() == pytest.approx(len(file) * numbers.activity.sum())
    plots_data.plot_summary(numbers, file.read([0]), "one", tmp_path / "file.png")
    assert is_a_picture(tmp_path / "file.png")
