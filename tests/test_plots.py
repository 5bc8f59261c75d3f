"""Pictures: a file of the format that its suffix names, whole, and no figure left open."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.figure import Figure

from neurolsc import RadiusProfile, plots, radius_profile

STARTS = {"png": b"\x89PNG", "svg": b"<?xml"}


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


def test_unknown_suffix_or_folder_is_an_error_and_leaves_nothing(profile, tmp_path):
    with pytest.raises(ValueError, match="abc"):
        profile.plot(tmp_path / "profile.abc")
    with pytest.raises(OSError, match="could not write the file"):
        profile.plot(tmp_path / "missing" / "profile.png")
    assert not list(tmp_path.iterdir())


def test_suffix_chooses_the_format(profile, tmp_path):
    with plt.rc_context({"svg.fonttype": "none"}):
        profile.plot(tmp_path / "profile.svg")
    assert is_a_picture(tmp_path / "profile.svg")
    text = (tmp_path / "profile.svg").read_text(encoding="utf-8")
    for words in ("layer 1 (from the input)*", "layer 2: mean", "target 0.5", "sub-matrix", "leak", "time step"):
        assert words in text


def test_pretraining_without_steps_and_curves_without_spikes():
    with pytest.raises(ValueError, match="only the history of pretrain can"):
        plots.plot_pretraining([{"layer": 1, "scale": 1.0, "time": 0.5}], None)
    row = {"epoch": 1, "validation_loss": 2.0, "validation_mode_accuracy": 0.1, "firing_rate": [None]}
    assert plots.plot_learning_curves({"": [row]}, chance=0.1).axes[2].get_ylim()[0] == 0


def test_a_raster_has_a_colour_for_each_layer_and_says_label_and_decision(make_spikes):
    layers = [make_spikes(T=30, B=1, N=12)[:, 0], make_spikes(T=30, B=1, N=5)[:, 0]]
    named = dict(zip(["input", "layer 1"], layers, strict=True))
    figure = plots.plot_raster(named, label="7", decision="1", title="2 x 6, seed 0")
    assert figure.get_suptitle() == "label 7, the network says 1; 2 x 6, seed 0"
    black, blue = (ax.collections[0].get_facecolor()[0] for ax in figure.axes)
    assert tuple(black) == mpl.colors.to_rgba("black") and tuple(blue) == mpl.colors.to_rgba(plots.COLORS[0])


@pytest.fixture
def every_picture(profile, make_spikes) -> dict[str, Callable[..., Figure]]:
    """All that draws, by name, called with a path or without, and with a title."""
    row = {"epoch": 1, "validation_loss": 2.0, "validation_mode_accuracy": 0.1, "firing_rate": [0.1]}
    radii = {"step": 0, "time": [0.5], "depth": [0.5], "firing_rate": [0.1]}
    v, step = torch.linspace(-1, 1, 5), torch.ones(5)
    layers = {"a": [0.1, 0.2]}
    return {
        "profile": profile.plot,
        "pretraining": partial(plots.plot_pretraining, [radii], (0.5, None)),
        "learning_curves": partial(plots.plot_learning_curves, {"a": [row]}),
        "raster": partial(plots.plot_raster, {"input": make_spikes(T=9, B=1, N=4)[:, 0]}),
        "surrogates": partial(plots.plot_surrogates, v, {"a": (step, step)}),
        "bands": partial(plots.plot_bands, {"": {"a": [[0.1, 0.2]]}}, score="s"),
        "scores": partial(plots.plot_scores, {"a": {1: [0.1]}}, over="layers", score="s"),
        "stable_region": partial(plots.plot_stable_region, {"a": (v, v)}, outside={"a": 0.5}),
        "diagnosis": partial(
            plots.plot_diagnosis,
            activity=layers,
            stretch=layers,
            back=None,
            gradient=None,
            findings=[],
        ),
    }


def test_every_picture_is_a_figure_with_the_title_that_it_is_given_and_is_written_where_a_path_is(
    every_picture, tmp_path
):
    drawing = {name for name in plots.__all__ if name.startswith("plot_")}
    assert drawing == {f"plot_{name}" for name in every_picture}
    for name, draw in every_picture.items():
        figure = draw(title="2 x 6 neurons, $seed 0")
        assert isinstance(figure, Figure) and figure.get_suptitle() == "2 x 6 neurons, $seed 0", name
        (tmp_path / name).mkdir()
        written = draw(tmp_path / name / "picture.png")
        assert isinstance(written, Figure) and is_a_picture(tmp_path / name / "picture.png"), name
        assert written.get_suptitle() == "", name


def test_a_notebook_gets_a_figure_as_png_once_and_has_none_to_close(profile):
    figure = profile.plot()
    content = figure._repr_png_()
    assert content.startswith(STARTS["png"])
    assert not plt.get_fignums()  # what pyplot knows, the inline backend of a notebook shows once more


# ---- what the radius is due to


def test_a_term_has_the_colour_of_its_cell_and_a_new_one_another_of_the_palette():
    radii, shares = torch.rand(3, 4, 2), [{"leak": 0.25, "oscillation": 0.75}, {"oscillation": 0.5, "twist": 0.5}, {}]
    figure = plots.plot_profile(
        steps=torch.arange(4),
        time=radii,
        depth=radii,
        due_to=shares,
        colors={"leak": "#009e73", "oscillation": "#ff0000", "unused": "#0072b2"},
        firing_rate=[0.1, 0.2, float("nan")],
        starred=[True, False, False],
    )
    ax = figure.axes[2]
    assert [text.get_text() for text in ax.texts] == ["not known"]
    assert figure.axes[1].lines[0].get_label().startswith("layer 1 (from the input)*: mean")
    names = ["layer 1: 0.1 spikes", "layer 2: 0.2 spikes", "layer 3"]
    assert [text.get_text() for text in ax.get_yticklabels()] == names
    bars = {c.get_label(): c for c in ax.containers}
    widths = {"leak": [0.25, 0, 0], "oscillation": [0.75, 0.5, 0], "twist": [0, 0.5, 0]}
    assert {name: [bar.get_width() for bar in c] for name, c in bars.items()} == widths
    colors = {name: c[0].get_facecolor() for name, c in bars.items()}
    assert colors["leak"] == mpl.colors.to_rgba("#009e73") and colors["oscillation"] == mpl.colors.to_rgba("#ff0000")
    palette = {mpl.colors.to_rgba(color) for color in plots.COLORS}
    assert colors["twist"] in palette - {colors["leak"], mpl.colors.to_rgba("#0072b2")}


def test_bands_reach_from_the_lowest_to_the_highest_run_and_a_short_run_keeps_its_last_score():
    panels = {"layers 2": {"a": [[0.1, 0.2, 0.6], [0.3, 0.4]], "b": [[0.5]]}, "layers 5": {"b": [[0.1, 0.2]]}}
    figure = plots.plot_bands(panels, score="accuracy")
    first, second = (ax for ax in figure.axes if ax.get_visible())
    assert [ax.get_title(loc="left") for ax in (first, second)] == ["layers 2", "layers 5"]
    mean, single = first.lines
    assert mean.get_xydata().tolist() == [[1, 0.2], [2, pytest.approx(0.3)], [3, 0.5]]
    vertices = first.collections[0].get_paths()[0].vertices
    at_the_end = vertices[vertices[:, 0] == 3][:, 1]
    assert (at_the_end.min(), at_the_end.max()) == (0.4, 0.6)
    assert second.lines[0].get_color() == single.get_color() != mean.get_color()


def test_scores_stand_at_their_setting_in_order_with_every_run_as_a_dot():
    figure = plots.plot_scores({"one": {value: [0.2, 0.4] for value in (1e-1, 1e-3)}}, over="rate", score="accuracy")
    (ax,) = figure.axes
    line, *dots = ax.lines
    assert line.get_xydata().tolist() == [[place, pytest.approx(0.3)] for place in (0, 1)]
    assert sorted(y for dot in dots for y in dot.get_ydata()) == [0.2, 0.2, 0.4, 0.4]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0.001", "0.1"]


def test_where_there_are_words_every_value_has_a_row_from_the_top():
    arms = {"one": {"Default": [0.2, 0.4], "BySource()": [0.9]}, "other": {"BySource()": [0.5, 0.7]}}
    figure = plots.plot_scores(arms, over="start", score="accuracy")
    (ax,) = figure.axes
    assert [label.get_text() for label in ax.get_yticklabels()] == ["Default", "BySource()"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1] and ax.get_xlim() == (0, 1)
    strokes, dots = ([line for line in ax.lines if line.get_marker() == marker] for marker in ("|", "."))
    means = [point for line in strokes for point in line.get_xydata().tolist()]
    assert [x for x, _ in means] == pytest.approx([0.3, 0.9, 0.6])
    assert [round(y) for _, y in means] == [0, 1, 1] and len({y for _, y in means}) == 3
    assert sorted(x for line in dots for x in line.get_xdata()) == [0.2, 0.4, 0.5, 0.7, 0.9]
