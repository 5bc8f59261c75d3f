"""Pictures: a file of the format that its suffix names, whole, and no figure left open. Tables of text, and bars."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.figure import Figure

from neurolsc import LIF, Network, RadiusProfile, plots, pretrain, radius_profile, scale_to_radius, train
from neurolsc.display import Table, progress_bar

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


def test_the_suffix_chooses_the_format_and_an_unknown_one_leaves_nothing(profile, tmp_path):
    with pytest.raises(ValueError, match="abc"):
        profile.plot(tmp_path / "profile.abc")
    assert not list(tmp_path.iterdir())
    with plt.rc_context({"svg.fonttype": "none"}):
        profile.plot(tmp_path / "profile.svg")
    assert is_a_picture(tmp_path / "profile.svg")
    text = (tmp_path / "profile.svg").read_text(encoding="utf-8")
    for words in ("layer 1 (from the input)*", "layer 2: mean", "target 0.5", "sub-matrix", "leak", "time step"):
        assert words in text


MONITORED = (
    *("rate", "dead", "saturated", "similarity", "active", "gradient", "radius_time", "radius_depth", "step"),
    *("threshold", "weights", "recurrent"),
)


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
        "monitor": partial(
            plots.plot_monitor,
            updates=[0, 100],
            loss={"loss": [2.0, 1.0]},
            findings=[(100, 1, "layer 1 has fallen silent")],
            **{name: [[0.1, 0.2]] for name in MONITORED},
        ),
        "diagnosis": partial(
            plots.plot_diagnosis,
            activity=layers,
            stretch=layers,
            back=None,
            gradient=None,
            findings=[],
        ),
    }


@pytest.mark.long
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


def test_a_notebook_gets_a_figure_as_png_once(profile):
    assert profile.plot()._repr_png_().startswith(STARTS["png"])
    assert not plt.get_fignums()  # what pyplot knows, the inline backend of a notebook shows once more


def test_learning_curves_have_other_dashes_where_the_colours_repeat():
    row = {"epoch": 1, "validation_loss": 1.0, "validation_mode_accuracy": 0.5, "firing_rate": [0.1]}
    figure = plots.plot_learning_curves({f"run {number}": [row] for number in range(9)})
    lines = figure.axes[0].lines
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == 9


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
    arms = {"one": {"Default": [0.2, 0.4], "LayerwiseScaling()": [0.9]}, "other": {"LayerwiseScaling()": [0.5, 0.7]}}
    figure = plots.plot_scores(arms, over="init", score="accuracy")
    (ax,) = figure.axes
    assert [label.get_text() for label in ax.get_yticklabels()] == ["Default", "LayerwiseScaling()"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1] and ax.get_xlim() == (0, 1)
    strokes, dots = ([line for line in ax.lines if line.get_marker() == marker] for marker in ("|", "."))
    means = [point for line in strokes for point in line.get_xydata().tolist()]
    assert [x for x, _ in means] == pytest.approx([0.3, 0.9, 0.6])
    assert [round(y) for _, y in means] == [0, 1, 1] and len({y for _, y in means}) == 3
    assert sorted(x for line in dots for x in line.get_xdata()) == [0.2, 0.4, 0.5, 0.7, 0.9]


# results show themselves as text; long work has a bar


def test_a_table_has_words_to_the_left_numbers_to_the_right_and_nothing_after_the_last_word():
    table = Table(("layer", "radius", "held by"), [("1", "0.5 *", "leak"), ("10", "0.25  ", "feedback, reset")])
    assert str(table) == ("layer  radius  held by\n    1   0.5 *  leak\n   10  0.25    feedback, reset")


@pytest.mark.parametrize("shown", [True, False])
def test_every_long_work_has_a_bar_and_can_be_quiet(shown, capsys):
    network, x = Network([LIF(6, 5)], n_out=2), (torch.rand(4, 4, 6) < 0.4).float()
    items = [(x[:, i], i % 2) for i in range(4)]
    pretrain(network, [x], target=0.5, max_steps=2, progress=shown)
    scale_to_radius(network, x, target=0.5, progress=shown)
    radius_profile(network, x, progress=shown)
    train(network, items, items, epochs=1, batch_size=2, progress=shown)
    bars = capsys.readouterr().err
    for desc, last in ("pretrain", "2/2"), ("scale", "measurement"), ("radii", "100%"), ("epoch 1/1", "loss"):
        assert (f"{desc}: " in bars and last in bars) == shown
    radius_profile(network, x)  # quick ones show nothing unless they are to
    assert capsys.readouterr().err == ""


def test_a_bar_in_a_log_is_not_renewed_at_every_step(capsys):
    with progress_bar(10_000, desc="work", unit="piece") as bar:
        for _ in range(10_000):
            bar.update()
    assert capsys.readouterr().err.count("\r") <= 3
