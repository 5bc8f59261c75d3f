"""Initialisations in a user's own loop (benchmarks/users.py): networks x learning rates."""

import csv
import math
from statistics import mean, median, stdev

from scipy import stats

from docs.tables.results import RESULTS, caption, grouped, rows, table

ARMS = {"built": "as built", "by hand": "by hand", "kaiming": "Kaiming", "Identity()": "`initialize`"}
FRONT = ("built", "Identity()")
REPORTED = 20  # the first seed that chose nothing
FEWEST = 4  # seeds of a network that is shown
MOST = 8  # seeds that were planned for each network
SHORT, LONG = 5, 30  # epochs
AT_CHANCE = 15  # test, %, of ten classes: a network whose best score is not above has nothing to lose
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
        compared = [row for row in of_network if row["arm"] in ARMS]  # other arms ran in some networks alone
        by_seed = grouped(compared, "seed").values()
        complete = [of_seed for of_seed in by_seed if len(of_seed) == trials]
        if len(complete) >= FEWEST:
            shown += [row for of_seed in complete for row in of_seed]
    return shown


def unfinished(epochs: int = SHORT) -> list[dict[str, str]]:
    """Rows of networks of which some arms have fewer than four seeds, and all have one at each learning rate."""
    shown = {(row["network"], row["loss"]) for row in reported(epochs)}
    found = [row for row in read(epochs) if row["arm"] in ARMS]
    cells = len(ARMS) * len({row["lr"] for row in found})
    few = []
    for key, of_network in grouped(found, "network", "loss").items():
        if key not in shown and len({(row["arm"], row["lr"]) for row in of_network}) == cells:
            few += of_network
    return few


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
    """A line for each network and loss: as built and initialised at each learning rate; by hand at its best one."""
    rates = rates_of(found)
    body = []
    for (network, loss), of_network in grouped(found, "network", "loss").items():
        cells = []
        for rate in rates:
            built, initialised = (mean_score(of_network, arm, rate) for arm in FRONT)
            cells.append(f"{built:.0f} → {initialised:.0f}")
        by_hand = max(mean_score(of_network, "by hand", rate) for rate in rates)
        body.append([f"{network}, {LOSSES[loss]}", *cells, f"{by_hand:.0f}"])
    head = ["network, loss", *(f"{rate:g}" for rate in rates), "by hand"]
    return [*rows(head, body), *about(found, "test, %, mean")]


@table
def users_front() -> list[str]:
    """Five epochs, each network with the loss of its tutorial, which stands first among its results."""
    first: dict[str, str] = {}
    for row in reported():
        first.setdefault(row["network"], row["loss"])
    return before_and_after([row for row in reported() if row["loss"] == first[row["network"]]])


@table
def users_long() -> list[str]:
    """Thirty epochs."""
    return before_and_after(reported(LONG))


@table
def users() -> list[str]:
    """Five epochs, all arms."""
    return of_all_arms(SHORT)


@table
def users_hours() -> list[str]:
    """Core hours of all trials, by file."""
    body = []
    for name in ("users", "users_choosing"):
        with (RESULTS / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            found = list(csv.DictReader(file))
        seconds = [float(row["seconds"]) for row in found]
        seeds = sorted({int(row["seed"]) for row in found})
        body.append(
            [
                f"`{name}.csv`",
                len(found),
                ", ".join(map(str, seeds)),
                f"{min(seconds):.1f} to {max(seconds):.0f}",
                f"{sum(seconds) / 3600:.1f}",
            ]
        )
    return rows(["results", "trials", "seeds", "seconds of a trial", "core hours"], body)


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


CONTROLS = {"Identity()": "`initialize`", "LSUV()": "`LSUV`", "FluctuationDriven()": "`FluctuationDriven`"}


@table
def users_controls() -> list[str]:
    """Initialisations of others next to the recommended one, on the seeds of which all of them are there."""
    found = [row for row in read(SHORT) if row["arm"] in CONTROLS]
    trials = len(CONTROLS) * len({row["lr"] for row in found})
    shown = []
    body = []
    for (network, loss), of_network in grouped(found, "network", "loss").items():
        by_seed = grouped(of_network, "seed").values()
        of_all = [row for of_seed in by_seed if len(of_seed) == trials for row in of_seed]
        if not of_all:
            continue
        shown += of_all
        for arm, called in CONTROLS.items():
            by_rate = [cell(runs_of(of_all, arm, rate)) for rate in rates_of(found)]
            body.append([f"{network}, {LOSSES[loss]}", called, *by_rate])
    head = ["network, loss", "", *(f"{rate:g}" for rate in rates_of(found))]
    return [*rows(head, body), *about(shown, "test, %, mean±deviation")]


# other networks in the place of eight Leaky, and which of their arms are shown
OTHERS = {
    ("8 Leaky", "built"): "as built",
    ("8 Leaky", "Identity()"): "`initialize`",
    ("8 Leaky normed", "built"): "batch norm",
    ("8 Leaky normed", "Identity()"): "batch norm, `initialize`",
    ("8 Leaky with skips", "built"): "skips",
}


@table
def users_changed() -> list[str]:
    """Eight Leaky, read by spike counts: initialised, and with batch norm or skips in place of that."""
    found = [row for row in read(SHORT) if row["loss"] == "count" and (row["network"], row["arm"]) in OTHERS]
    fewest = {row["seed"] for row in found if row["network"] == "8 Leaky with skips"}
    shown = [row for row in found if row["seed"] in fewest]
    body = []
    for (network, arm), called in OTHERS.items():
        runs = [row for row in shown if (row["network"], row["arm"]) == (network, arm)]
        if not runs:
            continue
        by_rate = [cell([row for row in runs if float(row["lr"]) == rate]) for rate in rates_of(shown)]
        before = [float(fires) for run in runs for fires in run["rates_before"].split()]
        body.append([called, *by_rate, f"{min(before):.2g} to {max(before):.2g}"])
    head = ["8 Leaky", *(f"{rate:g}" for rate in rates_of(shown)), "spikes before"]
    return [*rows(head, body), *about(shown, "test, %, mean±deviation")]


# ---------------------------------------------------------------- what counts


def differences(of_network: list[dict[str, str]], rate: float) -> list[float]:
    """Points by which initialised networks are above those as built, of each seed that both have."""
    scores = {(run["arm"], run["seed"]): 100 * float(run["test"]) for run in of_network if float(run["lr"]) == rate}
    seeds = {seed for arm, seed in scores if arm == "built"} & {seed for arm, seed in scores if arm == "Identity()"}
    return [scores["Identity()", seed] - scores["built", seed] for seed in sorted(seeds)]


def paired(of_network: list[dict[str, str]], rate: float) -> tuple[float, float, float]:
    """Points by which initialised networks are above those as built: mean and 95 % interval over seeds."""
    values = differences(of_network, rate)
    half = stats.t.ppf(0.975, len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return mean(values), mean(values) - half, mean(values) + half


def epochs_to(of_network: list[dict[str, str]], arm: str, rate: float, score: float) -> float:
    """Epochs until the mean curve of an arm reaches a score; infinite if it does not."""
    curves = [[float(point) for point in run["curve"].split()] for run in runs_of(of_network, arm, rate)]
    for epoch, points in enumerate(zip(*curves, strict=True), start=1):
        if 100 * mean(points) >= score:
            return epoch
    return math.inf


class Judged:
    """What counts, of one network with its loss.

    Attributes:
        called: the network and its loss, in words.
        runs: its rows.
        rates: all learning rates.
        means: mean test scores in %, by arm and learning rate.
        best: the best of them.
        at_chance: whether the network as built is at chance at all learning rates.
    """

    def __init__(self, network: str, loss: str, runs: list[dict[str, str]]) -> None:
        self.called = f"{network}, {LOSSES[loss]}"
        self.runs = runs
        self.rates = rates_of(runs)
        self.means = {arm: {rate: mean_score(runs, arm, rate) for rate in self.rates} for arm in ARMS}
        self.best = max(max(of_arm.values()) for of_arm in self.means.values())
        self.at_chance = self.best_of("built") <= AT_CHANCE

    def best_of(self, arm: str) -> float:
        """The best score of an arm."""
        return max(self.means[arm].values())

    def learns_as_built(self) -> list[float]:
        """Learning rates at which the network as built reaches 90 % of its own best; none if it is at chance."""
        if self.at_chance:
            return []
        return [rate for rate, score in self.means["built"].items() if score >= 0.9 * self.best_of("built")]

    def rival(self, rate: float) -> tuple[float, str]:
        """The better score at a learning rate of by hand and Kaiming, and which it is."""
        return max((of_arm[rate], ARMS[arm]) for arm, of_arm in self.means.items() if arm not in FRONT)

    def near_the_best(self, arm: str) -> int:
        """The number of learning rates at which an arm is within 5 points of the best score of all."""
        return sum(score >= self.best - 5 for score in self.means[arm].values())

    def epochs(self, arm: str) -> float:
        """Epochs to 95 % of what the network as built reaches, both at the rate that is best as built."""
        rate = max(self.rates, key=self.means["built"].__getitem__)
        return epochs_to(self.runs, arm, rate, 0.95 * self.best_of("built"))


def judged(found: list[dict[str, str]]) -> list[Judged]:
    """The networks of some rows."""
    return [Judged(*key, runs) for key, runs in grouped(found, "network", "loss").items()]


@table
def users_counts() -> list[str]:
    """No harm, gain, basin and speed, of each network and loss."""
    found = reported()
    body = []
    for of_one in judged(found):
        smallest, epochs = "at chance as built", "-"
        if not of_one.at_chance:
            middle, low, high, rate = min((*paired(of_one.runs, rate), rate) for rate in of_one.learns_as_built())
            smallest = f"{middle:+.1f} ({low:+.1f} to {high:+.1f}) at {rate:g}"
            epochs = " → ".join(f"{of_one.epochs(arm):g}" for arm in FRONT)
        rival, called = max(of_one.rival(rate) for rate in of_one.rates)
        body.append(
            [
                of_one.called,
                len({run["seed"] for run in of_one.runs}),
                smallest,
                " → ".join(f"{of_one.best_of(arm):.0f}" for arm in FRONT),
                f"{called} {rival:.0f}",
                " → ".join(f"{of_one.near_the_best(arm)}" for arm in FRONT),
                epochs,
            ]
        )
    head = [
        "network, loss",
        "seeds",
        "smallest gain",
        "best score",
        "best of the others",
        "rates near the best",
        "epochs",
    ]
    return [*rows(head, body), *about(found, "95 % intervals, paired by seed; as built → initialised")]


def harm() -> list[str]:
    """No harm: in how many cells, and where not."""
    cells, missed = 0, []
    for of_one in judged([*reported(), *unfinished()]):
        for rate in of_one.learns_as_built():
            if len(differences(of_one.runs, rate)) < FEWEST:
                continue
            cells += 1
            middle, low, high = paired(of_one.runs, rate)
            if middle < -3 or low <= -5:
                missed.append(f"{of_one.called} at {rate:g}: {middle:+.1f} ({low:+.1f} to {high:+.1f})")
    demand = (
        "**No harm**: where the network as built reaches 90 % of its best score, `initialize` is at most 3 points behind "
        "it, and the 95 % interval excludes a loss of 5"
    )
    return [demand, f"{cells - len(missed)} of {cells} cells", "; ".join(missed)]


def gain() -> list[str]:
    """Gain: in how many cells, and where not."""
    cells, missed = 0, []
    for of_one in judged(reported()):
        for rate in of_one.rates:
            rival, called = of_one.rival(rate)
            if rival <= of_one.means["built"][rate] + 5:
                continue
            cells += 1
            behind = rival - of_one.means["Identity()"][rate]
            if behind > 3:
                missed.append(f"{of_one.called} at {rate:g}: {behind:.1f} behind {called}")
    demand = (
        "**Gain**: where by hand or Kaiming is more than 5 points above the network as built, `initialize` is at most "
        "3 points behind that"
    )
    return [demand, f"{cells - len(missed)} of {cells} cells", "; ".join(missed)]


def basin() -> list[str]:
    """A wider basin: in how many networks, and where not."""
    met, missed = [], []
    for epochs, words in ((SHORT, "five epochs"), (LONG, "thirty")):
        shown = judged(reported(epochs))
        shown += [of_one for of_one in judged(unfinished(epochs)) if not of_one.at_chance]
        narrower = [of_one for of_one in shown if of_one.near_the_best("Identity()") < of_one.near_the_best("built")]
        met.append(f"{len(shown) - len(narrower)} of {len(shown)} networks after {words}")
        for of_one in narrower:
            built, initialised = of_one.near_the_best("built"), of_one.near_the_best("Identity()")
            # the rate that would make up for it
            short = min(
                of_one.best - 5 - score for score in of_one.means["Identity()"].values() if score < of_one.best - 5
            )
            missed.append(
                f"{of_one.called}, after {words}: {initialised} in place of {built}, the next is {short:.1f} points short"
            )
    demand = (
        "**A wider basin**: `initialize` is within 5 points of the best score at no fewer learning rates than the network "
        "as built"
    )
    return [demand, "; ".join(met), "; ".join(missed)]


def sooner() -> list[str]:
    """Sooner: the ratio of epochs, over networks."""
    ratios = {
        of_one.called: of_one.epochs("Identity()") / of_one.epochs("built")
        for of_one in judged(reported())
        if not of_one.at_chance
    }
    fewer = sum(ratio < 1 for ratio in ratios.values())
    missed = [f"{called}: {ratio:.2g} times as many" for called, ratio in ratios.items() if ratio > 1]
    as_many = [called for called, ratio in ratios.items() if ratio == 1]
    if as_many:
        missed.append(f"as many epochs in {'; '.join(as_many)}")
    demand = "**Sooner**: `initialize` takes fewer epochs to 95 % of the best score of the network as built"
    met = f"{fewer} of {len(ratios)} networks; median ratio of epochs {median(ratios.values()):.2g}"
    return [demand, met, "; ".join(missed)]


@table
def users_demands() -> list[str]:
    """What counts, line by line: where it is met, and by how much it is missed."""
    found = reported()
    by_network = grouped(found, "network", "loss").values()
    full = sum(len({run["seed"] for run in runs}) >= MOST for runs in by_network)
    nothing_to_choose = [
        "**Nothing to choose**: it reads one batch of inputs, neither labels nor the learning rate",
        "all networks",
        "`loss=` says which is read, where a network returns spikes and membranes",
    ]
    body = [harm(), gain(), basin(), sooner(), nothing_to_choose]
    note = (
        "a cell: network, loss and learning rate; the first and fourth line leave out networks at chance as built; the "
        "third has tutorial 6 and 2 ALIF+ with fewer seeds; "
        f"{full} of {len(by_network)} networks have all {MOST} seeds that were planned"
    )
    return [*rows(["what counts", "met in", "missed in"], body), *about(found, note)]
