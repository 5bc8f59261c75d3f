"""Draw the picture of docs/study.md that no sweep draws, from the tables of the study."""

from pathlib import Path
from statistics import mean

import matplotlib as mpl
from matplotlib.lines import Line2D

from docs.tables.study import layers_of, rank_of, speech_of_one
from neurolsc.plots.style import COLORS, STYLE, finish, panels

PATH = Path(__file__).parent / "pictures" / "study_statistics.png"
SHOWN = {
    "survives": "share of the input that survives",
    "depth_radius": "radius through depth",
    "firing_rate": "spikes per neuron and step",
    "time_radius": "radius through time",
}
"""before training, the mean over layers"""
FAMILIES = {
    "relays": ("Relay",),
    "radii by source": ("BySource",),
    "woken": ("RateMatching", "Orthogonal() + RateMatching"),
    "LSC": ("LSC",),
    "default": ("Default",),
    "published starts": ("",),
}
"""of each what its starts begin with; the first that fits counts"""
MARKERS = {"2": "v", "5": "o", "10": "s"}
"""of networks with so many layers"""


def family(start: str) -> str:
    """What a start is one of."""
    return next(name for name, words in FAMILIES.items() if start.startswith(words))


def draw(path: Path) -> None:
    """Score over four figures of the network before its training, a mark for each trial."""
    trials = speech_of_one()
    colors = dict(zip(FAMILIES, COLORS, strict=False))
    with mpl.rc_context(STYLE):
        figure, grid = panels(2, 2, figsize=(9.2, 7.4), sharey=True)
        for ax, (name, words) in zip(grid.flat, SHOWN.items(), strict=True):
            for row in trials:
                if layers := layers_of(row, name):
                    look = {"marker": MARKERS[row["layers"]], "color": colors[family(row["start"])]}
                    score = float(row["validation_mode_accuracy"])
                    ax.plot(mean(layers), score, linestyle="", markersize=6, alpha=0.65, markeredgewidth=0, **look)
            ax.set(xlabel=words, ylim=(0, 1), title=f"rank correlation {rank_of(trials, name, mean)}")
        for row in grid:
            row[0].set_ylabel("validation mode accuracy")
        handles = [Line2D([], [], marker="o", linestyle="", color=colors[name], label=name) for name in FAMILIES]
        handles += [
            Line2D([], [], marker=marker, linestyle="", color="0.4", label=f"{depth} layers")
            for depth, marker in MARKERS.items()
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=5, fontsize="small")
        about = f"{len(trials)} trials with ALIF+ on spoken digits of people, each at a chosen rate"
        finish(figure, path, f"{about}; figures before training, means over layers")


draw(PATH)
