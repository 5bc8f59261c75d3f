"""Draw the pictures of docs/study.md and docs/study_tables.md, from the tables of the study."""

from pathlib import Path
from statistics import mean

import matplotlib as mpl
from matplotlib.lines import Line2D
from matplotlib.ticker import MultipleLocator

from docs.tables.neurons import INITIALISERS as OF_NEURONS
from docs.tables.neurons import MEASURES, predicting, whole_blocks
from docs.tables.results import grouped
from docs.tables.study import (
    INITIALISERS,
    Comparison,
    baselines,
    chosen_of,
    headline,
    layers_of,
    of_layers,
    over_all,
    rank_of,
    read_rows,
    speech_of_one,
)
from docs.tables.users import ARMS, LOSSES, mean_score, rates_of, reported
from neurolsc.plots import COLORS, STYLE, finish, panels

PICTURES = Path(__file__).parent / "pictures"
NEURONS = {"ALIFPlus": ("ALIF+", "depth"), "ALIFPlusMinus": ("ALIF±", "cells"), "LIF": ("LIF", "lif")}
"""what a neuron is called, and the sweep that has it at several depths"""
DEPTHS = (2, 5, 10)
COMPARED = ("identity", "from layer 2 on", "radii by source", "rate-matched")
"""the initialisations at several depths"""
SHOWN = {
    "similarity_to_input": "similarity to the input",
    "depth_radius": "radius through depth",
    "firing_rate": "spikes per neuron and step",
    "time_radius": "radius through time",
}
"""before training, the mean over layers"""
FAMILIES = {
    "identity": ("Relay",),
    "radii by source": ("LayerwiseScaling",),
    "rate-matched": ("FiringRate", "Orthogonal() + FiringRate"),
    "LSC": ("LSC",),
    "default": ("Default",),
    "published initialisations": ("",),
}
"""of each what the texts of its initialisations begin with; the first that fits counts"""
WORDS = {name: name for name in COMPARED} | {
    "identity": "identity from layer 3 on",
    "from layer 2 on": "identity from layer 2 on",
    "rate-matched": "scaled to the same rate",
}
DAMPED = ("o", "^", "s")
"""marks of dampenings"""
MARKERS = {"2": "v", "5": "o", "10": "s"}
"""of networks with so many layers"""


def family(initialiser: str) -> str:
    """The family of an initialisation."""
    return next(name for name, words in FAMILIES.items() if initialiser.startswith(words))


def draw_depth(path: Path) -> None:
    """Score over the number of layers, a panel for each neuron, a mark for each trial."""
    looks = {name: {"color": color, "linestyle": "-"} for name, color in zip(COMPARED, COLORS, strict=False)}
    looks["from layer 2 on"]["linestyle"] = ":"
    with mpl.rc_context(STYLE):
        figure, grid = panels(1, len(NEURONS), figsize=(9.6, 3.7), sharey=True)
        for ax, (cell, (title, sweep)) in zip(grid.flat, NEURONS.items(), strict=True):
            trials = [row for row in chosen_of(sweep) if row["cell"] == cell and not row["error"]]
            for place, name in enumerate(COMPARED):
                scores = {depth: _scores(trials, name, depth) for depth in DEPTHS}
                means = {depth: mean(found) for depth, found in scores.items() if found}
                ax.plot([DEPTHS.index(depth) for depth in means], list(means.values()), **looks[name])
                for depth, found in scores.items():
                    at = [DEPTHS.index(depth) + 0.04 * (place - 1.5)] * len(found)
                    ax.plot(at, found, "o", color=COLORS[place], markersize=4, alpha=0.65, markeredgewidth=0)
            ax.set(xticks=range(len(DEPTHS)), xticklabels=DEPTHS, xlim=(-0.3, len(DEPTHS) - 0.7))
            ax.set(xlabel="layers", ylim=(0, 1), title=title)
        grid.flat[0].set_ylabel("mode accuracy, test")
        handles = [Line2D([], [], label=WORDS[name], **look) for name, look in looks.items()]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize="small")
        finish(figure, path, "digits that five people spoke; layers of 128 neurons, a mark for each seed")


def draw_registered(path: Path, found: list[Comparison]) -> None:
    """Registered differences and their intervals, a row for each from the top, colored by what may be said of it.

    Marks of those that Holm's correction over all sections leaves significant are filled, those of the others open.
    """
    found = found[::-1]
    colors = {"better": COLORS[0], "worse": COLORS[1], "level": COLORS[2], "no difference shown": "0.5"}
    with mpl.rc_context(STYLE):
        figure, grid = panels(1, 1, figsize=(9.2, 1.6 + 0.32 * len(found)))
        ax = grid.flat[0]
        ax.axvspan(-3, 3, color="0.93", linewidth=0)
        ax.axvline(0, color="0.4", linestyle=":", linewidth=1)
        for at, comparison in enumerate(found):
            low, high = comparison.test.confidence_interval(0.95)
            color = colors[comparison.said()]
            inside = color if over_all()[comparison.name] < 0.05 else "white"
            ax.plot([low, high], [at, at], color=color, linewidth=2)
            ax.plot((low + high) / 2, at, "o", color=color, markersize=6, markerfacecolor=inside)
        ax.set_yticks(range(len(found)), [comparison.name for comparison in found])
        ax.xaxis.set_major_locator(MultipleLocator(10))
        ax.set_ylim(-0.7, len(found) - 0.3)
        ax.set_xlabel("difference in mode accuracy on the test, points")
        handles = [Line2D([], [], marker="o", color=color, label=said) for said, color in colors.items()]
        for words, inside in (("significant over all sections", "0.2"), ("not significant over all sections", "white")):
            handles.append(Line2D([], [], marker="o", color="0.2", markerfacecolor=inside, linestyle="", label=words))
        figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize="small")
        finish(figure, path, "registered; eight new seeds an arm, 95 % intervals; gray: within 3 points")


def draw_radius(path: Path) -> None:
    """Score over the larger of two radii through time, a mark for each trial."""
    with mpl.rc_context(STYLE):
        figure, grid = panels(1, 1, figsize=(7.6, 4.2))
        ax, trials = grid.flat[0], [row for row in chosen_of("radius") if not row["error"]]
        initialisers, dampings = (list(dict.fromkeys(row[name] for row in trials)) for name in ("init", "dampening"))
        for row in trials:
            look = {
                "color": COLORS[initialisers.index(row["init"])],
                "marker": DAMPED[dampings.index(row["dampening"])],
            }
            at = max(layers_of(row, "time_radius")), float(row["test_mode_accuracy"])
            ax.plot(*at, linestyle="", alpha=0.75, markeredgewidth=0, **look)
        handles = [
            Line2D([], [], marker="o", linestyle="", color=color, label=initialiser)
            for initialiser, color in zip(initialisers, COLORS, strict=False)
        ]
        handles += [
            Line2D([], [], marker=marker, linestyle="", color="0.4", label=f"dampening {value}")
            for value, marker in zip(dampings, DAMPED, strict=False)
        ]
        ax.axvline(1, color="0.4", linestyle=":", linewidth=1)
        ax.set(xlabel="radius through time before training, the larger of two layers", ylim=(0, 1))
        ax.set_ylabel("mode accuracy, test")
        figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize="small")
        finish(figure, path, "1,800 digits, 2 x 64 LIF that fire 0.1, each at its chosen rate")


def _scores(trials: list[dict[str, str]], name: str, depth: int) -> list[float]:
    """Test scores of an initialisation at a depth."""
    found = [row for row in trials if row["layers"] == str(depth) and row["init"] in INITIALISERS[name]]
    return [float(row["test_mode_accuracy"]) for row in found]


def draw_statistics(path: Path) -> None:
    """Score over four measures of the network before its training, a mark for each trial."""
    trials = speech_of_one()
    colors = dict(zip(FAMILIES, COLORS, strict=False))
    with mpl.rc_context(STYLE):
        figure, grid = panels(2, 2, figsize=(9.2, 7.4), sharey=True)
        for ax, (name, words) in zip(grid.flat, SHOWN.items(), strict=True):
            for row in trials:
                if layers := layers_of(row, name):
                    look = {"marker": MARKERS[row["layers"]], "color": colors[family(row["init"])]}
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
        finish(figure, path, f"{about}; measures before training, means over layers")


def draw_layers(path: Path) -> None:
    """Probes of every layer before and after training, and scores with one layer put back, or all above it."""
    runs = {key: found for key, found in grouped(read_rows("layers"), "cell", "layers").items() if key[1] != "2"}
    drawn = {
        "input and layers, before training": ("probes_before", "0.5", "--"),
        "after training": ("probes_after", COLORS[0], "-"),
    }
    backs = {
        "one layer as it began": ("put_back", COLORS[1], "-"),
        "it and all above": ("put_back_upwards", COLORS[2], ":"),
    }
    with mpl.rc_context(STYLE):
        figure, grid = panels(2, len(runs), figsize=(3.4 * len(runs), 6.0), sharey=True)
        for column, ((cell, layers), found) in enumerate(runs.items()):
            top, bottom = grid[0][column], grid[1][column]
            first = mean(float(row["input_probe"]) for row in found)
            for ax, lines in ((top, drawn), (bottom, backs)):
                for name, (values, color, style) in lines.items():
                    each = [of_layers(row, values) for row in found]
                    before = [first] if ax is top else []
                    at = range(1 - len(before), int(layers) + 1)
                    for one in each:
                        ax.plot(at[len(before) :], one, "o", color=color, markersize=3, alpha=0.5, markeredgewidth=0)
                    ax.plot(
                        at, [*before, *map(mean, zip(*each, strict=True))], color=color, linestyle=style, label=name
                    )
            bottom.axhline(mean(float(row["test"]) for row in found), color="0.4", linewidth=1, label="trained")
            top.set(title=f"{layers} layers of {NEURONS[cell][0]}", ylim=(0, 1))
            bottom.set_xlabel("layer (0: the input)")
        grid[0][0].set_ylabel("logistic regression, test")
        grid[1][0].set_ylabel("mode accuracy, test")
        for row in grid:
            row[2].legend(fontsize="small", loc="lower right")
        finish(figure, path, "spoken digits, identity layers; a mark for each of four seeds")


def draw_today(path: Path) -> None:
    """Score of each neuron over its radius below threshold and over that of the whole step, before training."""
    trials, marks = predicting(), dict(zip(OF_NEURONS, ("o", "^", "s", "v"), strict=True))
    neurons = list(dict.fromkeys(row["neuron"] for row in trials))
    colors = {name: mpl.colormaps["tab20"](i) for i, name in enumerate(neurons)}
    initialisers = [initialiser for initialiser in OF_NEURONS if any(row["init"] == initialiser for row in trials)]
    with mpl.rc_context(STYLE):
        figure, grid = panels(1, 2, figsize=(9.4, 4.6), sharex=True, sharey=True)
        for ax, (name, of) in zip(grid.flat, list(MEASURES.items())[:2], strict=True):
            for row in trials:
                at = of(row), float(row["validation"])
                ax.plot(*at, marks[row["init"]], color=colors[row["neuron"]], markersize=7, markeredgewidth=0)
            ax.axvline(1, color="0.4", linestyle=":", linewidth=1)
            ax.axhline(0.1, color="0.4", linestyle=":", linewidth=1)
            ax.set(xlabel=name + ", the larger of two layers", ylim=(0, None), xscale="log")
            ax.set_xticks([0.5, 1, 2], ["0.5", "1", "2"])
            ax.set_xticks([], minor=True)
        grid.flat[0].set_ylabel("validation mode accuracy")
        handles = [Line2D([], [], marker="o", linestyle="", color=color, label=n) for n, color in colors.items()]
        handles += [
            Line2D([], [], marker=marks[s], linestyle="", color="0.4", label=OF_NEURONS[s]) for s in initialisers
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=6, fontsize="small")
        finish(figure, path, "spoken digits, 2 x 64 neurons, 64 updates at one learning rate")


def draw_today_back(path: Path) -> None:
    """How the gradient of the last step's loss grows or fades going back, a line for each neuron."""
    shown = [key for key in whole_blocks() if key[1] == "0"]
    with mpl.rc_context(STYLE):
        figure, grid = panels(1, len(shown), figsize=(3.1 * len(shown) + 0.6, 4.4), sharey=True)
        for ax, (task, seed, initialiser) in zip(grid.flat, shown, strict=True):
            steps = 100 if task != "speech" else 25
            for i, row in enumerate(whole_blocks()[task, seed, initialiser]):
                sizes = of_layers(row, "back_1")
                if sizes and sizes[0]:
                    at = [(steps - 1) * part // 4 for part in range(5)]
                    look = {"color": mpl.colormaps["tab20"](i), "label": row["neuron"]}
                    ax.plot(at, [size / sizes[0] for size in sizes], marker="o", markersize=3, **look)
            ax.set(
                yscale="log", ylim=(1e-9, 1e9), xlabel="steps back", title=f"{OF_NEURONS[initialiser]}, {steps} steps"
            )
            ax.axhline(1, color="0.4", linestyle=":", linewidth=1)
        grid.flat[0].set_ylabel("gradient by the lower layer's state")
        figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=7, fontsize="small")
        finish(figure, path, "gradient of the last step's loss over that by the last state; before training")


def draw_music(path: Path) -> None:
    """Negative log-likelihoods on the JSB Chorales, a row for each cell, a dot for each trial, a bar at each mean."""
    trials = chosen_of("jsb")
    cells = list(dict.fromkeys(row["cell"] for row in trials))
    initialisers = list(dict.fromkeys(row["init"] for row in trials))
    with mpl.rc_context(STYLE):
        figure, grid = panels(1, 1, figsize=(8.6, 4.6))
        ax = grid.flat[0]
        for at, cell in enumerate(cells):
            of_cell = grouped([row for row in trials if row["cell"] == cell], "init")
            for place, ((initialiser,), runs) in enumerate(of_cell.items()):
                color = COLORS[initialisers.index(initialiser)]
                y = at + 0.16 * (place - (len(of_cell) - 1) / 2)
                scores = [float(row["test_nll"]) for row in runs]
                ax.plot(scores, [y] * len(scores), "o", color=color, markersize=5, alpha=0.65, markeredgewidth=0)
                ax.plot(mean(scores), y, "|", color=color, markersize=13, markeredgewidth=2)
        ax.set_yticks(range(len(cells)), [NEURONS.get(cell, (cell,))[0] for cell in cells])
        ax.set_ylim(len(cells) - 0.5, -0.5)
        ax.grid(axis="x", color="0.9")
        ax.set_xlabel("negative log-likelihood of a step, test (nats)")
        handles = [
            Line2D([], [], marker="o", linestyle="", color=color, label=initialiser)
            for initialiser, color in zip(initialisers, COLORS, strict=False)
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize="small")
        finish(figure, path, "JSB Chorales, two layers of 128; a dot for each of four seeds, a bar at their mean")


def draw_users(path: Path) -> None:
    """Score over the learning rate in a plain loop, a panel for each network and loss, a line for each arm."""
    # losses of one network stand side by side
    by_network = grouped(reported(), "network")
    networks = {key: runs for of_one in by_network.values() for key, runs in grouped(of_one, "network", "loss").items()}
    across = 4
    with mpl.rc_context(STYLE):
        down = -(-len(networks) // across)
        figure, grid = panels(down, across, figsize=(11.6, 0.8 + 2.0 * down), sharey=True, sharex=True)
        for ax in grid.flat[len(networks) :]:
            ax.set_visible(False)
        for ax, ((network, loss), found) in zip(grid.flat, networks.items(), strict=False):
            rates = rates_of(found)
            for arm, color in zip(ARMS, COLORS, strict=False):
                scores = [mean_score(found, arm, rate) for rate in rates]
                ax.plot(range(len(rates)), scores, marker="o", markersize=4, color=color)
            ax.set(title=f"{network}, {LOSSES[loss]}", ylim=(0, 100))
            ax.set_xticks(range(len(rates)), [f"{rate:g}" for rate in rates])
            ax.tick_params(labelbottom=True)
            ax.axhline(10, color="0.4", linestyle=":", linewidth=1)
        for ax in grid[:, 0]:
            ax.set_ylabel("test (%)")
        for ax in grid[-1]:
            ax.set_xlabel("learning rate")
        handles = [
            Line2D([], [], marker="o", markersize=4, color=color, label=name.replace("`", ""))
            for name, color in zip(ARMS.values(), COLORS, strict=False)
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize="small")
        finish(figure, path, "Five epochs of plain Adam in a plain loop; mean over seeds, dotted: chance")


draw_users(PICTURES / "study_users.png")
draw_music(PICTURES / "study_music.png")
draw_depth(PICTURES / "study_depth.png")
draw_registered(PICTURES / "study_registered.png", headline() + baselines())
draw_radius(PICTURES / "study_radius.png")
draw_statistics(PICTURES / "study_statistics.png")
draw_layers(PICTURES / "study_layers.png")
draw_today(PICTURES / "study_today.png")
draw_today_back(PICTURES / "study_today_back.png")
