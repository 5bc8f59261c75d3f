"""The neurons of today: what breaks first, and gradients on psMNIST (registration.md, sections 4 and 5)."""

import math
from collections.abc import Callable
from statistics import mean

import numpy as np
from scipy.stats import rankdata

from docs.tables.results import grouped, rows, table
from docs.tables.study import of_layers, read_rows

OWN, RATE_MATCHED, SPEECH = "Default()", "FiringRate(0.1)", ("speech", "0")
INITIALISERS = {
    OWN: "own",
    RATE_MATCHED: "rate-matched",
    "LSC(1.0, direction='time', method='scale', samples=2, steps=4)": "LSC",
    "Relay(rate=0.1)": "identity",
}
NAMES = INITIALISERS | {
    initialiser.replace("1.0", size): f"LSC {size}"
    for size in ("0.5", "1.0")
    for initialiser in list(INITIALISERS)[2:3]
}
NAMES |= {"FluctuationDriven()": "balanced"}
NEURONS, SAMPLES, PSMNIST = 13, 2000, 39  # of a whole block; of the bootstrap; trials of section 5 (a)
TRAININGS = {"ALIF as theirs": 42, "ALIF+": 42, "BRF": 6}  # of section 5 (b)
BROKEN = 1.01  # radii of whole steps are measured to 1 %
Row = dict[str, str]
MEASURES: dict[str, Callable[[Row], float]] = {
    "radius below threshold": lambda row: max(of_layers(row, "below_threshold")),
    "radius of the whole step": lambda row: max(of_layers(row, "radius")),
    "share outside": lambda row: mean(of_layers(row, "outside")),
    "Lyapunov exponent": lambda row: max(of_layers(row, "exponent")),
    "spikes per neuron and step": lambda row: min(of_layers(row, "rate")),
}
"""before training, the layer where it is larger; of spikes the one where they are fewer"""


def whole_blocks() -> dict[tuple[str, str, str], list[Row]]:
    """Trials by task, seed and initialisation, of blocks that have all neurons."""
    blocks = grouped(read_rows("today"), "task", "seed", "init")
    return {key: found for key, found in blocks.items() if len(found) == NEURONS}


def predicting() -> list[Row]:
    """The trials of speech with seed 0 that were trained."""
    return [row for key, found in whole_blocks().items() if key[:2] == SPEECH for row in found if row["validation"]]


def ends(row: Row, column: str, form: str) -> str:
    """A number of the lower and the upper layer."""
    return " / ".join(f"{value:{form}}" for value in of_layers(row, column)) or "-"


@table
def study_today() -> list[str]:
    """Each neuron with seed 0: condition, radius and gradients of both layers, and learning, by initialisation."""
    blocks, body = whole_blocks(), []
    for initialiser, name in INITIALISERS.items():
        for row in blocks.get((*SPEECH, initialiser), []):
            back = of_layers(row, "back_1")
            cells = [row["neuron"], name, ends(row, "outside", ".0%"), ends(row, "below_threshold", ".2f")]
            cells += [ends(row, "radius", ".2f"), ends(row, "radius_after", ".2f"), ends(row, "rate", ".2f")]
            cells += [ends(row, "rate_after", ".2f"), ends(row, "gradient", ".1e"), ends(row, "gradient_after", ".1e")]
            cells.append(f"{back[-1] / back[0]:.0e}" if back and back[0] else "-")
            cells.append(f"{100 * float(row['validation']):.0f}" if row["validation"] else "-")
            body.append(cells)
    head = [
        "neuron",
        "initialisation",
        "outside",
        "below threshold",
        "whole step",
        "after",
        "spikes",
        "after",
        "gradient",
    ]
    return rows([*head, "after", "back", "validation, %"], body)


@table
def study_today_long() -> list[str]:
    """Each neuron as built, at 25 and at 100 steps of the same words: radius, exponent, rate and gradient."""
    blocks, body = whole_blocks(), []
    pairs = zip(*(blocks.get((task, "0", OWN), []) for task in ("speech", "long speech")), strict=False)
    for pair in pairs:
        cells = [pair[0]["neuron"]]
        for name in ("radius", "exponent", "rate"):
            cells += [ends(row, name, ".2f") for row in pair]
        cells += [f"{of_layers(row, 'back_1')[-1] / (of_layers(row, 'back_1')[0] or math.nan):.0e}" for row in pair]
        body.append(cells)
    head = [f"{name}, {steps}" for name in ("whole step", "exponent", "spikes", "back") for steps in (25, 100)]
    return rows(["neuron", *head], body)


@table
def study_today_breaks() -> list[str]:
    """Of how many neurons the condition, and the radius of the whole step, is broken before and after training."""
    body = []
    for (task, seed, initialiser), found in whole_blocks().items():
        if seed == "0":
            cells = [f"{INITIALISERS[initialiser]}, {task}"]
            for name, limit in (("outside", 0.0), ("radius", BROKEN)):
                for when in ("", "_after"):
                    values = [of_layers(row, name + when) for row in found if row[name + when]]
                    cells.append(f"{sum(max(value) > limit for value in values)} of {len(values)}" if values else "-")
            body.append(cells)
    return rows(["seed 0", "condition broken", "after training", f"whole step above {BROKEN}", "after training"], body)


@table
def study_today_predicts() -> list[str]:
    """Rank correlation of measures before training with the validation score, over neurons and initialisations."""
    found = predicting()
    scores = np.array([float(row["validation"]) for row in found])
    values = {name: np.array([of(row) for row in found]) for name, of in MEASURES.items()}
    drawing = np.random.default_rng(0)
    by_trial = drawing.integers(len(found), size=(SAMPLES, len(found)))
    of_neuron = grouped([{"neuron": row["neuron"], "at": i} for i, row in enumerate(found)], "neuron").values()
    most = max(map(len, of_neuron))  # a neuron of which an initialisation failed is not drawn
    places = np.array([[row["at"] for row in some] for some in of_neuron if len(some) == most])
    by_neuron = places[drawing.integers(len(places), size=(SAMPLES, len(places)))].reshape(SAMPLES, -1)

    def interval(found: np.ndarray) -> str:
        return "{:+.2f} to {:+.2f}".format(*np.nanpercentile(found, (2.5, 97.5)))

    sizes, body = [], []
    for name, value in values.items():
        drawn = [correlations(value[draws], scores[draws]) for draws in (by_trial, by_neuron)]
        sizes.append(np.abs(drawn))
        body.append([name, f"{correlations(value[None], scores[None])[0]:+.2f}", *map(interval, drawn)])
    body.append(["size of the second - of the first", "", *map(interval, sizes[1] - sizes[0])])
    return rows([f"before training, {len(found)} trials", "rank correlation", "95 %, by trial", "by neuron"], body)


def correlations(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation of each row of x (K, n) with that of y; nan where all are equal."""
    a, b = (ranks - ranks.mean(1, keepdims=True) for ranks in (rankdata(x, axis=1), rankdata(y, axis=1)))
    with np.errstate(invalid="ignore"):
        return (a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))


@table
def study_psmnist() -> list[str]:
    """Gradients on psMNIST before training over three seeds, means and medians (back); none before all are over."""
    body, found = [], [row for row in read_rows("psmnist") if float(row["lr"]) == 0]
    for (neuron, initialiser), runs in grouped(found, "neuron", "init").items() if len(found) == PSMNIST else ():
        if errors := {row["error"].split(":")[0] for row in runs if row["error"]}:
            body.append([neuron, NAMES.get(initialiser, initialiser), *errors, *[""] * 6])
            continue
        of = {name: mean(float(row[name]) for row in runs) for name in ("rate", "radius", "exponent", "cosine")}
        back = np.median([of_layers(row, "back") for row in runs], axis=0)
        noise = [f"{mean(float(row[f'noise_{kind}']) for row in runs):.2f}" for kind in ("full", "truncated")]
        body.append(
            [
                neuron,
                NAMES.get(initialiser, initialiser),
                f"{of['rate']:.3f}",
                f"{of['radius']:.2f}",
                f"{of['exponent']:+.3f}",
            ]
        )
        body[-1] += [*(f"{back[i]:.0e}" for i in (1, -1)), *noise, f"{of['cosine']:.2f}"]
    head = [
        "neuron",
        "initialisation",
        "spikes",
        "radius",
        "exponent",
        "50 back",
        "783 back",
        "SNR, full",
        "SNR, truncated",
    ]
    return rows([*head, "cosine"], body)


@table
def study_psmnist_trained() -> list[str]:
    """Trainings on psMNIST over three seeds, each arm at its better rate; of a neuron nothing until all are over."""
    body = []
    for (neuron,), of_neuron in grouped([r for r in read_rows("psmnist") if float(r["lr"])], "neuron").items():
        if len(of_neuron) < TRAININGS[neuron]:
            continue
        for (initialiser, truncated), runs in grouped(of_neuron, "init", "truncated").items():
            by_rate = sorted(grouped(runs, "lr").values(), key=lambda some: float(some[0]["lr"]))  # the lower of equals
            best = max(by_rate, key=lambda some: mean(float(row["validation"]) for row in some))
            scores = [100 * float(row["validation"]) for row in best]
            ended = f"{mean(float(row['rate']) for row in best if row['rate']):.2f}"
            minutes = f"{sum(float(row['core_seconds']) for row in runs) / 60:.0f}"
            kind = f"truncated at {truncated}" if truncated != "0" else "full"
            each = f"{mean(scores):.1f} ({', '.join(f'{score:.1f}' for score in scores)})"
            body.append([neuron, NAMES.get(initialiser, initialiser), kind, best[0]["lr"], each, ended, minutes])
    head = [
        "neuron",
        "initialisation",
        "back-propagation",
        "learning rate",
        "validation, % (by seed)",
        "spikes",
        "core minutes",
    ]
    return rows(head, body)
