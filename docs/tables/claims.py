"""The paper's central claims, each found, not found or undecided (registration.md, section 21)."""

import csv
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from scipy.stats import binomtest, ttest_1samp

from docs.tables.results import RESULTS, rows, table
from docs.tables.study import holm

REPORTED = {"4", "5", "6", "7"}
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
# comparisons that the paper says the first of is ahead in, by whether the cell spikes
CLAIMED = {True: {("radius 1", "none")}, False: {("radius 0.5", "radius 1"), ("radius 0.5", "none")}}

Network = tuple[str, str, str]  # part, cell, layers
Scores = dict[tuple[Network, str], dict[str, float]]  # test scores in per cent by network, arm and seed


class Comparison(NamedTuple):
    """A comparison whose trials are over."""

    network: Network
    arms: tuple[str, str]
    differences: list[float]
    test: Any
    corrected: float

    @property
    def claimed(self) -> bool:
        return self.arms in CLAIMED[self.network[1] == "ALIFPlus"]

    def said(self) -> str:
        """What may be said of it."""
        low, high = self.test.confidence_interval(0.95)
        sure = self.corrected < 0.05
        if not self.claimed:
            return ("better" if low > 0 else "worse") if sure else "no difference shown"
        if sure and low > 0:
            return "found"
        return "not found" if high < 3 or (sure and high < 0) else "undecided"


def scores_of(trials: Sequence[dict[str, str]]) -> Scores:
    """Test scores of the seeds that are reported."""
    found: Scores = {}
    for row in trials:
        if row["seed"] in REPORTED:
            network = row["part"], row["cell"], row["layers"]
            found.setdefault((network, row["init"]), {})[row["seed"]] = 100 * float(row["test"])
    return found


def compared(scores: Scores) -> list[Comparison]:
    """The comparisons whose eight trials are over, with Holm's correction over all of a part."""
    found = []
    for part, (networks, pairs) in PARTS.items():
        over = []
        for cell, layers in networks:
            network = part, cell, layers
            for first, second in pairs:
                a, b = scores.get((network, first), {}), scores.get((network, second), {})
                if len(a) == len(b) == len(REPORTED):
                    differences = [a[seed] - b[seed] for seed in sorted(a)]
                    over.append((network, (first, second), differences, ttest_1samp(differences, 0)))
        # a comparison that is not over counts as p = 1, which corrects the others as if all were
        p = [test.pvalue for *_, test in over] + [1.0] * (len(networks) * len(pairs) - len(over))
        found += [Comparison(*each, corrected) for each, corrected in zip(over, holm(p), strict=False)]
    return found


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
    return f"{part}: {layers} layers of {_NAMED.get(cell, cell)}"


NOTHING = ["No comparison is over yet."]
"""in place of a table without rows"""


@table
def study_claims() -> list[str]:
    """Comparisons, and what is said of each."""
    body = []
    for comparison in compared(scores_of(_trials())):
        low, high = comparison.test.confidence_interval(0.95)
        p = f"{comparison.test.pvalue:.3f}", f"{comparison.corrected:.3f}"
        first, second = comparison.arms
        line = [_name(comparison.network), f"{first} - {second}", f"{(low + high) / 2:+.1f}"]
        body.append([*line, f"{low:+.1f} to {high:+.1f}", *p, comparison.said()])
    head = ["network", "test, points", "mean", "95 % interval", "p", "p, Holm", "said"]
    return rows(head, body) if body else NOTHING


@table
def study_claims_shares() -> list[str]:
    """The paper's 63 and 70 %."""
    found = compared(scores_of(_trials()))
    if not any(comparison.network[1] in ("LSTM", "GRU") for comparison in found):
        return []
    body = []
    for second, layers, printed in (("radius 1", "2 5", 0.63), ("none", "5", 0.7), ("none", "2", 0.5)):
        which = [c for c in found if c.arms == ("radius 0.5", second) and c.claimed and c.network[2] in layers.split()]
        ahead, of, said = share(which, printed)
        said = "-" if printed == 0.5 else said  # as many as not is no claim of one sign
        words = f"LSTM and GRU, 0.5 against {second}, {layers.replace(' ', ' and ')} layers"
        body.append([words, f"{printed:.0%}", f"{ahead} of {of}", said])
    return rows(["claim", "printed", "pairs with its sign", "said"], body)


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
