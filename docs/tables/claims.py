"""The paper's central claims, each found, not found or undecided (registration.md, section 21)."""

import csv
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from scipy.stats import binomtest, ttest_1samp

from docs.tables.results import RESULTS, rows, table
from docs.tables.study import holm

CHOSE = {"0", "1", "2", "3"}
REPORTED = {"4", "5", "6", "7"}
STEPS = 50  # of the spoken digits
_NAMED = {"ALIFPlus": "ALIF+"}
_SPIKING = (
    ("radius 1", "none"),
    ("radius 0.5", "none"),
    ("radius 0.5", "radius 1"),
    ("balanced", "none"),
    ("radius 1", "rate-matched"),
    ("radius 0.5", "rate-matched"),
    ("balanced", "rate-matched"),
)
_GATED = (("radius 0.5", "radius 1"), ("radius 0.5", "none"), ("balanced", "none"))
# of each part the networks (cell, layers), and the comparisons of each
PARTS: dict[str, tuple[tuple[tuple[str, str], ...], Sequence[tuple[str, str]]]] = {
    "a": ((("ALIFPlus", "2"),), _SPIKING),
    "b": ((("ALIFPlus", "5"),), _SPIKING),
    "c": ((("LSTM", "2"), ("LSTM", "5"), ("GRU", "2"), ("GRU", "5")), _GATED),
    "d": ((("ALIFPlus", "2"),), (("radius 1", "none"),)),
}
# "More so with depth": of each row the parts of two and of five layers, the cell and the comparison.
DEPTHS = (
    ("a", "b", "ALIFPlus", ("radius 1", "none")),
    ("c", "c", "LSTM", ("radius 0.5", "none")),
    ("c", "c", "GRU", ("radius 0.5", "none")),
)
DEEPER = "5 - 2"  # the layers of such a row
OWN_RATE = 0.001  # the paper's for speech

Network = tuple[str, str, str]  # part, cell, layers
Scores = dict[tuple[Network, str], dict[str, float]]  # test scores in per cent by network, arm and seed


class Comparison(NamedTuple):
    """A comparison whose trials are over."""

    network: Network
    arms: tuple[str, str]
    differences: list[float]  # in points, one for each seed
    p: float
    corrected: float

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean difference; of equal differences that difference."""
        if len(set(self.differences)) == 1:
            return self.differences[0], self.differences[0]
        low, high = ttest_1samp(self.differences, 0).confidence_interval(0.95)
        return low, high

    @property
    def sort(self) -> str:
        """What may be said of it, in one word or two."""
        low, high = self.interval
        sure = self.corrected < 0.05
        if not claimed(self.network, self.arms):
            return ("better" if low > 0 else "worse") if sure else "no difference shown"
        if sure and low > 0:
            return "found"
        return "not found" if high < 3 or (sure and high < 0) else "undecided"

    def said(self) -> str:
        """What may be said of it; of what is undecided also why, and whether the networks learn at all."""
        if not any(self.differences):  # with real scores that happens at chance alone
            return f"{self.sort}: both arms stay at chance"
        if self.sort != "undecided":
            return self.sort
        low, high = self.interval
        why = f"{low:+.0f} to {high:+.0f} points"
        if low > 0:
            why += f", and p is {self.corrected:.2f} after the correction"
        return f"undecided: {why}"


def claimed(network: Network, arms: tuple[str, str]) -> bool:
    """True if the paper says that the first arm is ahead.

    Of 0.5 against no pre-training in two layers of LSTM or GRU it says that the two are level.
    """
    _, cell, layers = network
    if cell == "ALIFPlus":
        return arms == ("radius 1", "none")
    return arms == ("radius 0.5", "radius 1") or (arms == ("radius 0.5", "none") and layers != "2")


def scores_of(trials: Sequence[dict[str, str]]) -> Scores:
    """Test scores of the seeds that are reported."""
    found: Scores = {}
    for row in trials:
        if row["seed"] in REPORTED:
            network = row["part"], row["cell"], row["layers"]
            found.setdefault((network, row["init"]), {})[row["seed"]] = 100 * float(row["test"])
    return found


def differences_of(scores: Scores, network: Network, arms: tuple[str, str]) -> dict[str, float]:
    """First arm minus second of a comparison, by seed, as far as both have run."""
    first, second = (scores.get((network, arm), {}) for arm in arms)
    both = sorted(first.keys() & second.keys())
    return {seed: round(first[seed] - second[seed], 6) for seed in both}  # equal ones differ by rounding else


def registered(scores: Scores) -> list[list[tuple[Network, tuple[str, str], dict[str, float]]]]:
    """All registered comparisons, by family of Holm's correction: network, arms and differences by seed."""
    families = []
    for part, (networks, pairs) in PARTS.items():
        of_part: list[Network] = [(part, cell, layers) for cell, layers in networks]
        families.append([(n, arms, differences_of(scores, n, arms)) for n in of_part for arms in pairs])
    deeper = []
    for shallow, deep, cell, arms in DEPTHS:
        two = differences_of(scores, (shallow, cell, "2"), arms)
        five = differences_of(scores, (deep, cell, "5"), arms)
        gain = {seed: round(five[seed] - two[seed], 6) for seed in five if seed in two}
        parts = ", ".join(dict.fromkeys((shallow, deep)))
        deeper.append(((parts, cell, DEEPER), arms, gain))
    return [*families, deeper]


def compared(scores: Scores) -> list[Comparison]:
    """The comparisons whose trials are over, with Holm's correction over all of a family."""
    found = []
    for family in registered(scores):
        over = [(network, arms, list(d.values())) for network, arms, d in family if len(d) == len(REPORTED)]
        p = [_p(differences) for *_, differences in over]
        # a comparison that is not over counts as p = 1, which corrects the others as if all were
        corrected = holm(p + [1.0] * (len(family) - len(over)))
        found += [Comparison(*each, p[i], corrected[i]) for i, each in enumerate(over)]
    return found


def _p(differences: list[float]) -> float:
    """p of the paired t-test; of equal differences 1 if they are 0, else 0."""
    if len(set(differences)) == 1:
        return float(not any(differences))
    test: Any = ttest_1samp(differences, 0)
    return float(test.pvalue)


def share(comparisons: Sequence[Comparison], printed: float) -> tuple[int, int, str]:
    """How many of the pairs (network, seed) have the claimed sign, of how many, and what may be said of it."""
    differences = [value for comparison in comparisons for value in comparison.differences if value]
    ahead = sum(value > 0 for value in differences)
    if not differences:
        return 0, 0, "undecided"
    low, high = binomtest(ahead, len(differences)).proportion_ci(0.95)
    said = "found" if low > 0.5 else "not found" if high < printed else "undecided"
    return ahead, len(differences), said


def _trials() -> list[dict[str, str]]:
    path = RESULTS / "study_claims.csv"
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _name(network: Network) -> str:
    part, cell, layers = network
    if layers == DEEPER:
        layers = "five minus two"
    return f"{part}: {layers} layers of {_NAMED.get(cell, cell)}"


@table
def study_claims() -> list[str]:
    """All registered comparisons, what is said of each, and a count of the claims."""
    scores = scores_of(_trials())
    over = {(c.network, c.arms): c for c in compared(scores)}
    body = []
    counts: dict[str, int] = dict.fromkeys(("found", "not found", "undecided", "not run"), 0)
    for network, arms, differences in (one for family in registered(scores) for one in family):
        claim = claimed(network, arms)
        line = [_name(network), " - ".join(arms), "yes" if claim else "", str(len(differences))]
        sort = "not run"
        if c := over.get((network, arms)):
            low, high = c.interval
            sort = c.sort
            figures = f"{fmean(c.differences):+.1f}", f"{low:+.1f} to {high:+.1f}", f"{c.p:.3f}", f"{c.corrected:.3f}"
            body.append([*line, *figures, c.said()])
        else:
            body.append([*line, *"----", sort])
        if claim:
            counts[sort] += 1
    head = ["network", "test, points", "claim", "seeds", "mean", "95 % interval", "p", "p, Holm", "said"]
    counted = ", ".join(f"{sort} {count}" for sort, count in counts.items())
    return [*rows(head, body), "", f"*{counted.capitalize()} of {sum(counts.values())} claims the paper makes.*"]


@table
def study_claims_shares() -> list[str]:
    """The paper's 63 and 70 %, for each depth."""
    found = compared(scores_of(_trials()))
    networks = PARTS["c"][0]
    body = []
    for second, layers, printed in (
        ("radius 1", "2", 0.63),
        ("radius 1", "5", 0.63),
        ("none", "5", 0.7),
        ("none", "2", None),
    ):
        which = [
            c for c in found if c.network[0] == "c" and c.arms == ("radius 0.5", second) and c.network[2] == layers
        ]
        counted, said = "-", "not run"
        if len(which) == sum(depth == layers for _, depth in networks):
            ahead, of, said = share(which, printed or 0.5)
            counted = f"{ahead} of {of}"
            if printed is None:  # as many as not is no claim of one sign
                said = "-"
        shown = (
            "as many as not" if printed is None else f"more than {printed:.0%}" if printed == 0.63 else f"{printed:.0%}"
        )
        body.append([f"LSTM and GRU, 0.5 ahead of {second}, {layers} layers", shown, counted, said])
    return rows(["claim", "printed", "pairs with its sign", "said"], body)


@table
def study_claims_own_rate() -> list[str]:
    """Test scores of all arms at the paper's own rate, of the seeds that chose; no test."""
    scores: Scores = {}
    for row in _trials():
        if row["seed"] in CHOSE and float(row["lr"]) == OWN_RATE:
            network = row["part"], row["cell"], row["layers"]
            scores.setdefault((network, row["init"]), {})[row["seed"]] = 100 * float(row["test"])
    arms = ("none", "radius 1", "rate-matched", "radius 0.5", "balanced")
    body = []
    for part, (networks, pairs) in PARTS.items():
        if part == "d":  # it has no seeds that chose
            continue
        has = {arm for pair in pairs for arm in pair}
        for cell, layers in networks:
            line = [_name((part, cell, layers))]
            for arm in arms:
                values = list(scores.get(((part, cell, layers), arm), {}).values())
                shown = "not run" if arm in has else "-"
                if len(values) == len(CHOSE):
                    shown = f"{fmean(values):.1f}±{stdev(values):.1f}"
                line.append(shown)
            body.append(line)
    return rows(["test, %", *arms], body)


class Reached(NamedTuple):
    """The pre-trained networks of an arm; of every network the radii of the weights that are trained."""

    reached: int  # networks whose loop met its criteria
    time: list[list[float]]  # radii through time, of each network and layer
    depth: list[list[float]]
    pooled: list[float]  # mean of all radii in the last step of each network's loop
    distances: list[float]  # from the target, of all networks, layers and directions


def reached_of(trials: Sequence[dict[str, str]]) -> dict[tuple[Network, str], Reached]:
    """The pre-trained networks by network and arm, one for each seed: all learning rates begin with the same."""
    seen: dict[tuple[Network, str], dict[str, dict[str, str]]] = {}
    for row in trials:
        if row["pooled"]:  # else it has no pre-training, or that ended in NaN
            seen.setdefault(((row["part"], row["cell"], row["layers"]), row["init"]), {})[row["seed"]] = row
    found = {}
    for (network, arm), by_seed in seen.items():
        time, depth = ([_numbers(row[name]) for row in by_seed.values()] for name in ("time_radius", "depth_radius"))
        of_time, of_depth = targets(network, arm)
        distances = [abs(r - of_time) for radii in time for r in radii]
        distances += [abs(r - of_depth) for radii in depth for r in radii]
        reached = sum(row["reached"] == "True" for row in by_seed.values())
        found[network, arm] = Reached(reached, time, depth, [float(r["pooled"]) for r in by_seed.values()], distances)
    return found


def targets(network: Network, arm: str) -> tuple[float, float]:
    """The target radii of an arm through time and depth."""
    layers = int(network[2])
    if arm == "balanced":
        return STEPS / (STEPS + layers), layers / (STEPS + layers)
    radius = float(arm.removeprefix("radius "))
    return radius, radius


def _numbers(text: str) -> list[float]:
    return [float(number) for number in text.split()]


def _by_layer(radii: list[list[float]]) -> str:
    return ", ".join(f"{fmean(layer):.2f}" for layer in zip(*radii, strict=True))


@table
def study_claims_radii() -> list[str]:
    """Radii of the weights that training begins with, and a sentence on ALIF+ and radius 1."""
    found = reached_of(_trials())
    body = []
    for (network, arm), of in found.items():
        wanted = ", ".join(dict.fromkeys(f"{target:.2g}" for target in targets(network, arm)))
        pooled = f"{min(of.pooled):.2f} to {max(of.pooled):.2f}"
        line = [
            _name(network),
            arm,
            wanted,
            f"{of.reached} of {len(of.pooled)}",
            _by_layer(of.time),
            _by_layer(of.depth),
        ]
        body.append([*line, f"{fmean(of.distances):.2f}, {max(of.distances):.2f}", pooled])
    head = ["network", "arm", "target", "radii reached", "through time", "through depth"]
    lines = rows([*head, "from the target, mean and most", "mean of all, last step"], body)
    towards_1 = [of for (network, arm), of in found.items() if network[1] == "ALIFPlus" and arm == "radius 1"]
    if not towards_1:
        return lines
    distances = [distance for of in towards_1 for distance in of.distances]
    networks = sum(len(of.pooled) for of in towards_1)
    sentence = (
        f"*By the printed loop, in at most 200 time steps, ALIF+ reaches radius 1 in {sum(of.reached for of in towards_1)} "
        f"of {networks} networks. The radii of the weights that are trained are {fmean(distances):.2f} from 1 on average, "
        f"and {max(distances):.2f} at most.*"
    )
    return [*lines, "", sentence]


@table
def study_claims_arms() -> list[str]:
    """Test scores, learning rates and pre-trainings of each arm whose reported seeds are over."""
    trials = _trials()
    body = []
    for (network, arm), scores in scores_of(trials).items():
        if len(scores) < len(REPORTED):
            continue
        mine = [row for row in trials if (row["part"], row["cell"], row["layers"], row["init"]) == (*network, arm)]
        new = [row for row in mine if row["seed"] in REPORTED]
        values = list(scores.values())
        done = [row["reached"] for row in new if row["reached"]]
        reached = f"{done.count('True')} of {len(done)}" if done else "-"
        hours = sum(float(row["core_seconds"] or 0) for row in mine) / 3600
        line = [_name(network), arm, reached, f"{float(new[0]['lr']):g}", f"{fmean(values):.1f}±{stdev(values):.1f}"]
        rates = [[float(rate) for rate in row["end_rates"].split()] for row in new if row["end_rates"]]
        ends = ", ".join(f"{fmean(layer):.2f}" for layer in zip(*rates, strict=True)) if rates else "-"
        body.append([*line, ends, f"{hours:.1f}"])
    head = ["network", "arm", "radii reached", "learning rate", "test, %", "spikes after training", "core hours"]
    return rows(head, body) if body else []
