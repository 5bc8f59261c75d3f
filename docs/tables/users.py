"""Initialisations in a user's own loop (benchmarks/users.py): networks x learning rates."""

import csv
import math
from statistics import mean, stdev

from scipy import stats

from docs.tables.results import RESULTS, caption, grouped, rows, table

ARMS = {"built": "as built", "by hand": "by hand", "kaiming": "Kaiming", "Identity()": "`initialize`"}
FRONT = ("built", "Identity()")
REPORTED = 20  # the first seed that chose nothing
FEWEST = 4  # seeds of a network that is shown
SHORT, LONG = 5, 30  # epochs
LOSSES = {"count": "spike counts", "membrane": "membrane", "step": "each step"}


def read(epochs: int) -> list[dict[str, str]]:
    """Rows of seeds that chose nothing, after so many epochs."""
    with (RESULTS / "users.csv").open(encoding="utf-8", newline="") as file:
        found = list(csv.DictReader(file))
    return [row for row in found if int(row["seed"]) >= REPORTED and int(row["epochs"]) == epochs]


def reported(epochs: int = SHORT) -> list[dict[str, str]]:
    """Rows of seeds of which all arms and learning rates are there, for at least four seeds."""
    found = read(epochs)
    trials = len(ARMS) * len({row["lr"] for row in found})
    shown = []
    for of_network in grouped(found, "network", "loss").values():
        by_seed = grouped(of_network, "seed").values()
        complete = [of_seed for of_seed in by_seed if len(of_seed) == trials]
        if len(complete) >= FEWEST:
            shown += [row for of_seed in complete for row in of_seed]
    return shown


def unfinished(epochs: int = SHORT) -> list[dict[str, str]]:
    """Rows of networks of which some arms have fewer than four seeds."""
    shown = {(row["network"], row["loss"]) for row in reported(epochs)}
    return [row for row in read(epochs) if (row["network"], row["loss"]) not in shown]


def cell(runs: list[dict[str, str]]) -> str:
    """Mean and deviation of test scores over seeds, in %; of fewer than four seeds the mean and their number."""
    scores = [100 * float(run["test"]) for run in runs]
    if len(scores) < FEWEST:
        return f"{mean(scores):.0f} (n={len(scores)})"
    return f"{mean(scores):.0f}±{stdev(scores):.0f}"


def about(found: list[dict[str, str]], note: str) -> list[str]:
    """The caption: how many seeds, and how networks were trained."""
    counts = {len({row["seed"] for row in of_one}) for of_one in grouped(found, "network", "loss").values()}
    seeds = " to ".join(map(str, sorted({min(counts), max(counts)})))
    (epochs,) = {row["epochs"] for row in found}
    said = {
        "date": max(row["date"] for row in found),
        "data": f"{seeds} seeds not used to choose the method; trained on 1,000 digits, written or spoken, for {epochs} "
        "epochs of plain Adam, tested on 500 written or 250 spoken ones",
    }
    return caption(said, note)


def rates_of(found: list[dict[str, str]]) -> list[float]:
    """All learning rates."""
    return sorted({float(row["lr"]) for row in found})


def runs_of(found: list[dict[str, str]], arm: str, rate: float) -> list[dict[str, str]]:
    """Runs of an arm at a learning rate."""
    return [run for run in found if run["arm"] == arm and float(run["lr"]) == rate]


def mean_score(found: list[dict[str, str]], arm: str, rate: float) -> float:
    """The mean test score of an arm at a learning rate, in %."""
    return mean(100 * float(run["test"]) for run in runs_of(found, arm, rate))


def before_and_after(found: list[dict[str, str]]) -> list[str]:
    """A line for each network and loss, a column for each learning rate: as built, then initialised."""
    rates = rates_of(found)
    body = []
    for (network, loss), of_network in grouped(found, "network", "loss").items():
        cells = []
        for rate in rates:
            built, initialised = (mean_score(of_network, arm, rate) for arm in FRONT)
            cells.append(f"{built:.0f} → {initialised:.0f}")
        body.append([f"{network}, {LOSSES[loss]}", *cells])
    head = ["network, loss", *(f"{rate:g}" for rate in rates)]
    return [*rows(head, body), *about(found, "test, %, mean")]


@table
def users_front() -> list[str]:
    """Five epochs."""
    return before_and_after(reported())


@table
def users_long() -> list[str]:
    """Thirty epochs."""
    return before_and_after(reported(LONG))


@table
def users() -> list[str]:
    """Five epochs, all arms."""
    return of_all_arms(SHORT)


@table
def users_long_arms() -> list[str]:
    """Thirty epochs, all arms."""
    return of_all_arms(LONG)


def of_all_arms(epochs: int) -> list[str]:
    """A line for each network, loss and arm, with the firing rates of single layers before training."""
    found = reported(epochs)
    few = unfinished(epochs)
    rates = rates_of(found)
    body = []
    for (network, loss), of_network in grouped([*found, *few], "network", "loss").items():
        for arm, called in ARMS.items():
            by_rate = [cell(runs_of(of_network, arm, rate)) for rate in rates]
            runs = [run for run in of_network if run["arm"] == arm]
            before = [float(fires) for run in runs for fires in run["rates_before"].split()]
            span = f"{min(before):.2g} to {max(before):.2g}"
            body.append([f"{network}, {LOSSES[loss]}", called, *by_rate, span])
    head = ["network, loss", "", *(f"{rate:g}" for rate in rates), "spikes before"]
    note = "test, %, mean±deviation"
    if few:
        note += "; n: of fewer seeds, the mean over n"
    return [*rows(head, body), *about(found, note)]


# ---------------------------------------------------------------- what counts


def paired(of_network: list[dict[str, str]], rate: float) -> tuple[float, float, float]:
    """Points by which initialised networks are above those as built: mean and 95 % interval over seeds."""
    scores = {(run["arm"], run["seed"]): 100 * float(run["test"]) for run in of_network if float(run["lr"]) == rate}
    seeds = {seed for arm, seed in scores if arm == "built"} & {seed for arm, seed in scores if arm == "Identity()"}
    values = [scores["Identity()", seed] - scores["built", seed] for seed in seeds]
    half = stats.t.ppf(0.975, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return mean(values), mean(values) - half, mean(values) + half


def epochs_to(of_network: list[dict[str, str]], arm: str, rate: float, score: float) -> str:
    """Epochs until the mean curve of an arm reaches a score."""
    curves = [[float(point) for point in run["curve"].split()] for run in runs_of(of_network, arm, rate)]
    for epoch, points in enumerate(zip(*curves, strict=True), start=1):
        if 100 * mean(points) >= score:
            return str(epoch)
    return "more"


@table
def users_counts() -> list[str]:
    """No harm, gain, basin and speed, of each network and loss."""
    found = reported()
    rates = rates_of(found)
    body = []
    for (network, loss), of_network in grouped(found, "network", "loss").items():
        means = {arm: {rate: mean_score(of_network, arm, rate) for rate in rates} for arm in ARMS}
        built, initialised = means["built"], means["Identity()"]
        near = [rate for rate in rates if built[rate] >= 0.9 * max(built.values())]
        worst = min(near, key=lambda rate: paired(of_network, rate)[1])
        middle, low, high = paired(of_network, worst)
        others = {arm: max(of_arm.values()) for arm, of_arm in means.items() if arm != "Identity()"}
        rival = max(others, key=others.__getitem__)
        best = max(others[rival], max(initialised.values()))
        within = {arm: sum(score >= best - 5 for score in means[arm].values()) for arm in FRONT}
        top = max(built, key=built.__getitem__)
        epochs = {arm: epochs_to(of_network, arm, top, 0.95 * built[top]) for arm in FRONT}
        body.append(
            [
                f"{network}, {LOSSES[loss]}",
                f"{middle:+.1f} ({low:+.1f} to {high:+.1f}) at {worst:g}",
                f"{max(initialised.values()):.0f} ({ARMS[rival]} {others[rival]:.0f})",
                f"{within['Identity()']} ({within['built']})",
                f"{epochs['Identity()']} ({epochs['built']})",
            ]
        )
    head = ["network, loss", "smallest gain", "best score", "learning rates near it", "epochs"]
    return [
        *rows(head, body),
        *about(found, "95 % intervals, paired by seed; in brackets the best other arm, or as built"),
    ]
