"""The study: what came of each arm, and which measure before training goes with the score."""

import csv
import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from statistics import mean, stdev
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import spearmanr, ttest_1samp

from docs.tables.results import RESULTS, grouped, read, rows, table
from neurolsc.diagnosis import Bounds

_STATISTICS = {
    "time_radius": "radius through time",
    "depth_radius": "radius through depth",
    "recurrence_radius": "radius of the recurrence",
    "firing_rate": "spikes per neuron and step",
    "exponent": "Lyapunov exponent",
    "singular_time": "singular value through time",
    "singular_depth": "singular value through depth",
    "active_surrogate_fraction": "active-surrogate fraction",
    "similarity_to_input": "similarity to the input",
    "gradient": "norm of the gradient",
    "noise": "signal to noise of the gradient",
}
_TRAINED: dict[str, Callable[[dict[str, str]], str]] = {
    "by_gain": lambda row: "" if row["by_gain"] == "True" else "one rate for all",
    "centralize": lambda row: "" if row["centralize"] == "True" else "not centralized",
    "clip_gradient": lambda row: "" if float(row["clip_gradient"]) else "gradients not clipped",
    "clip_spectrum": lambda row: "recurrent weights clipped" if float(row["clip_spectrum"]) else "",
    "shift": lambda row: "" if row["shift"] == "0" else "images moved by a pixel",
}  # how the training of an arm differs from the default
_ARM = ("cell", "tau_v", "dampening", "layer_delay", "layers", "init", *_TRAINED)
# sweeps on spoken digits of people with the default training
_SPEECH = ("depth", "speech", "initialisations", "initialisations-higher", "dampening", "ablation", "cells", "lif")
STEPS = 50  # of an utterance in them
_LEAST = 8  # fewer trials give no correlation


def read_rows(name: str) -> list[dict[str, str]]:
    """The rows of a file of the study."""
    with (RESULTS / f"study_{name.replace('-', '_')}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _trials(name: str) -> list[dict[str, str]]:
    """The trials of a sweep of the study, as its table.csv has them."""
    found = read_rows(name)
    if failed := [row["error"] for row in found if row["error"] and not row["error"].startswith("FloatingPointError")]:
        raise ValueError(f"a trial of {name} failed for another reason than a loss that is not finite: {failed[0]}")
    return found


def _whole(runs: list[dict[str, str]]) -> list[dict[str, str]]:
    """Those whose loss did not diverge."""
    return [row for row in runs if not row["error"]]


def layers_of(row: dict[str, str], name: str) -> list[float]:
    """A column with one entry a layer; those that are there."""
    named = (f"init_{name}_{i}" for i in range(1, int(row["layers"]) + 1))
    return [float(row[column]) for column in named if row.get(column)]


def _scored(chosen: list[dict[str, str]], score: str = "mode_accuracy") -> str:
    """Mean±sample deviation over seeds of a test score; the number of seeds where it is not four."""
    found = [float(row[f"test_{score}"]) for row in _whole(chosen) if row.get(f"test_{score}")]
    if not found:
        return "-"
    share = score.endswith("accuracy")
    values = [(100 if share else 1) * value for value in found]
    form = ".1f" if share else ".2f"
    text = f"{mean(values):{form}}" + (f"±{stdev(values):{form}}" if len(values) > 1 else "")
    if len(_whole(chosen)) < len(chosen):
        return f"{text} ({len(found)} of {len(chosen)})"
    return text if len(found) == 4 else f"{text} ({len(found)} seeds)"


def _parts(row: dict[str, str]) -> list[str]:
    """An arm's network and training, in words."""
    leak = f"tau_v {float(row['tau_v']):g}" if float(row["tau_v"]) > 1 else ""
    damped = f"dampening {row['dampening']}" if row["dampening"] != "0.5" else ""
    at_once = "no delay" if row["layer_delay"] == "0" else ""
    trained = (words(row) for words in _TRAINED.values())
    size = f"{row['layers']} x {row['width']}"
    return [part for part in (size, row["cell"], leak, damped, at_once, *trained) if part]


def _arms(*sweeps: str, score: str = "mode_accuracy", besides: Sequence[dict[str, str]] = ()) -> list[str]:
    """A row for each arm of some sweeps, and of other trials besides, which stand first."""
    found = [*besides, *(row for name in sweeps for row in _trials(name))]
    arms = [[row for row in arm if row["chosen"] == "True"] for arm in grouped(found, *_ARM).values()]
    arms = [arm for arm in arms if arm]
    parts = [_parts(arm[0]) for arm in arms]
    common = [part for part in parts[0] if all(part in some for some in parts)]
    differ = any(set(some) - set(common) for some in parts)
    body = []
    for arm, some in zip(arms, parts, strict=True):
        network = [", ".join(part for part in some if part not in common) or "as it is"] if differ else []
        body.append([*network, f"`{arm[0]['init']}`", _scored(arm, score)])
    unit = "%" if score == "mode_accuracy" else score
    head = [*(["network"] if differ else []), "initialisation", f"test, {unit}"]
    files = ", ".join(f"`study_{name}.csv`" for name in sweeps)
    epochs = ", ".join(sorted({row["epochs"] for row in found}))
    about = f"{', '.join(common)}; {len(found) - len(besides)} trials, {epochs} epochs, {files}"
    return [*rows(head, body), "", f"*{about}.*"]


INITIALISERS = {
    "identity": ("Relay()", "Relay(rate=0.1)"),
    "from layer 2 on": ("Relay(drawn=1)", "Relay(recurrence=0, rate=0.1, drawn=1)"),
    "radii by source": ("LayerwiseScaling()", "LayerwiseScaling(recurrence=0, rate=0.1)"),
    "rate-matched": ("FiringRate(0.15)", "FiringRate(0.1)", "FiringRate(0.2)"),
    "LSC 0.5": ("LSC(0.5)",),
    "thresholds fixed": ("LSC(0.5, rule='hold-threshold', method='scale')", "LSC(0.5, rule='hold-threshold')"),
    "LSC 1": ("LSC(1.0)",),
    "as built": ("Default",),
}  # initialisations that were tried on more than one task
_ROWS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "speech, ALIF+, 2 layers": (("depth",), {"layers": "2"}),
    "speech, ALIF+, 5 layers": (("depth", "initialisations", "initialisations-higher"), {"layers": "5"}),
    "speech, ALIF+, 10 layers": (("depth",), {"layers": "10"}),
    "speech, ALIF±, 2 layers": (("cells",), {"layers": "2"}),
    "speech, ALIF±, 5 layers": (("cells",), {"layers": "5"}),
    "speech, ALIF±, 10 layers": (("cells",), {"layers": "10"}),
    "speech, LIF, 2 layers": (("lif",), {"layers": "2"}),
    "speech, LIF, 5 layers": (("lif",), {"layers": "5"}),
    "speech, LIF, 10 layers": (("lif",), {"layers": "10"}),
    "synthetic speech, 5 layers": (("synthetic",), {}),
    "1,800 digits, 2 layers": (("digits",), {"cell": "ALIFPlus", "shift": "0"}),
    "all of MNIST, 2 layers": (("sl-mnist",), {}),
    "recall, 2 layers": (("recall",), {}),
    "recall, 5 layers": (("recall-deep",), {}),
}  # sweeps of a row, and settings of their trials


def study_summary(*initialisers: str) -> list[str]:
    """Test scores of some initialisations on all tasks."""
    body = []
    for title, (sweeps, wanted) in _ROWS.items():
        chosen = [row for row in chosen_of(*sweeps) if wanted.items() <= row.items()]
        body.append(
            [title, *(_scored([row for row in chosen if row["init"] in INITIALISERS[name]]) for name in initialisers)]
        )
    return rows(["test, %", *initialisers], [line for line in body if set(line[1:]) != {"-"}])


table(study_summary, "study-summary", *list(INITIALISERS)[:4])
table(study_summary, "study-lsc", *list(INITIALISERS)[4:])


# cells of the study's depths, with their sweep and the initialisations that are compared
_CELLS = {
    "ALIF±": ("cells", "Relay()", "FiringRate(0.15)"),
    "ALIF+": ("depth", "Relay()", "FiringRate(0.15)"),
    "LIF": ("lif", "Relay(rate=0.1)", "FiringRate(0.1)"),
}


def _compared() -> dict[tuple[str, str, str], Any]:
    """Paired tests by cell, difference and depth, over the seeds that chose no rate."""
    scores: dict[tuple[str, str, str], dict[str, float]] = {}
    for cell, (sweep, *initialisers) in _CELLS.items():
        for row in _whole(_trials(sweep)):
            if row["chosen"] == "True" and row["init"] in initialisers and row["seed"] != "0":
                kind = "identity" if row["init"] == initialisers[0] else "rate-matched"
                of_arm = scores.setdefault((cell, row["layers"], kind), {})
                of_arm[row["seed"]] = 100 * float(row["test_mode_accuracy"])

    def test(cell: str, n: str, m: str, other: str) -> Any:
        pairs = scores[cell, n, "identity"], scores[cell, m, other]
        return ttest_1samp([pairs[0][seed] - pairs[1][seed] for seed in pairs[1]], 0)

    leads = {
        (cell, "identity - rate-matched", n): test(cell, n, n, "rate-matched")
        for n in ("2", "5", "10")
        for cell in _CELLS
    }
    deeper = (("5", "2"), ("10", "5"))
    return leads | {
        (cell, "identity", f"{n} - {m}"): test(cell, n, m, "identity") for n, m in deeper for cell in _CELLS
    }


@table
def study_differences() -> list[str]:
    """Identity against rate-matched networks, and depths of identity layers; p alone, and after Holm's correction."""
    tests, body = _compared(), []
    for name, test, corrected in zip(tests, tests.values(), holm([t.pvalue for t in tests.values()]), strict=True):
        low, high = test.confidence_interval(0.95)
        p = f"{test.pvalue:.3f}", f"{corrected:.3f}"
        body.append([", ".join(name) + " layers", f"{(low + high) / 2:+.1f}", f"{low:+.1f} to {high:+.1f}", *p])
    return rows(["test, points", "mean", "95 % interval", "p", "p, Holm"], body)


Arm = tuple[str, str, str]  # a cell, layers, an initialisation in the words of the tables
_NAMED = {"ALIFPlusMinus": "ALIF±", "ALIFPlus": "ALIF+", "LIF": "LIF"}


_INITIALISED = {
    r"FiringRate\(.*\) \+ Scaled\(8\)": "as rate-matched, times 8",
    r"PartOfRelay\('adaptation', .*\) \+ Scaled\(0.125\)": "adaptation, times 1/8",
    r"WeakAdaptation\(0.01\) \+ FiringRate\(.*": "weak adaptation",
    r"PartOfRelay\('(.+)', .*": r"\1",
    r"Relay\((rate=[\d.]+)?\)": "identity",
    r"LayerwiseScaling\(depth=0.*": "bounded",
    r"FiringRate\(.*": "rate-matched",
}


def _arm_of(row: dict[str, str]) -> Arm:
    initialiser = row["init"]
    for written, words in _INITIALISED.items():
        initialiser = re.sub(f"^{written}$", words, initialiser)
    return row["cell"], row["layers"], initialiser


class Trials(NamedTuple):
    """The registered trials of seeds that chose no rate."""

    scores: dict[Arm, dict[int, float]]  # test scores by arm and seed
    fire: dict[Arm, list[float]]  # what all layers of an arm fire at the end


def new_seeds(rows: Iterable[dict[str, str]]) -> Trials:
    """Those among the rows of a file."""
    scores: dict[Arm, dict[int, float]] = {}
    fire: dict[Arm, list[float]] = {}
    for row in rows:
        if int(row["seed"]) >= 4:
            arm = _arm_of(row)
            scores.setdefault(arm, {})[int(row["seed"])] = 100 * float(row["test"])
            own = "branch_rates" if row.get("branch_rates") else "end_rates"
            fire.setdefault(arm, []).extend(of_layers(row, own))
    return Trials(scores, fire)


def _registered(*names: str) -> Trials:
    return new_seeds(row for name in names for row in _trials(name))


class Comparison(NamedTuple):
    """A registered comparison whose trials are over."""

    name: str
    arms: tuple[Arm, Arm]
    test: Any  # of the paired differences
    corrected: float  # its p after Holm's correction

    def said(self) -> str:
        """What may be said of it (registration.md, section 1)."""
        low, high = self.test.confidence_interval(0.95)
        if self.corrected < 0.05:
            return "better" if low > 0 else "worse"
        return "level" if low >= -3 and high <= 3 else "no difference shown"


def family_of(pairs: dict[str, tuple[Arm, Arm]], scores: dict[Arm, dict[int, float]]) -> list[Comparison]:
    """The comparisons whose sixteen trials are over, with Holm's correction over all."""
    over = {name: pair for name, pair in pairs.items() if all(len(scores.get(arm, ())) == 8 for arm in pair)}
    tests = [ttest_1samp([scores[a][seed] - scores[b][seed] for seed in scores[b]], 0) for a, b in over.values()]
    # a comparison that is not over counts as p = 1, which corrects the others as if all were
    p = [test.pvalue for test in tests] + [1.0] * (len(pairs) - len(tests))
    return [Comparison(*each) for each in zip(over, over.values(), tests, holm(p), strict=False)]


def headline() -> list[Comparison]:
    """Initialisations and depths (registration.md, sections 1 and 8)."""
    initialisers = {
        f"{cell}, {n} layers, identity - rate-matched": ((c, n, "identity"), (c, n, "rate-matched"))
        for n in ("2", "5", "10")
        for c, cell in _NAMED.items()
    }
    depths = {
        f"{cell}, identity, {n} - {m} layers": ((c, n, "identity"), (c, m, "identity"))
        for n, m in (("5", "2"), ("10", "5"))
        for c, cell in _NAMED.items()
    }
    one = {
        f"{cell}, 5 identity layers - 1 layer, rate-matched": ((c, "5", "identity"), (c, "1", "rate-matched"))
        for c, cell in _NAMED.items()
    }
    scores, _ = _registered("headline")
    return [found for family in (initialisers, depths, one) for found in family_of(family, scores)]


def baselines() -> list[Comparison]:
    """Skips, GRU, LSTM, normalised currents, other initialisations, compared with `Relay()` (sections 6, 10)."""
    identity, skip = ("ALIFPlus", "5", "identity"), ("SkipALIFPlus", "5", "RateMatchedBranches(0.15)")
    pairs = {
        "skip - identity": (skip, identity),
        "skip - rate-matched": (skip, ("ALIFPlus", "5", "rate-matched")),
        "GRU - identity": (("GRU", "2", "Default()"), identity),
        "LSTM - identity": (("LSTM", "2", "Default()"), identity),
    }
    others = {
        "normalised": ("NormedALIFPlus", "RateMatchedNorms(0.15)", "ALIFPlus"),
        "orthogonal, LIF": ("LIF", "Orthogonal() + FiringRate(0.1)", "LIF"),
        "fluctuation-driven, LIF": ("LIF", "FluctuationDriven() + FiringRate(0.1)", "LIF"),
    }
    rate_matched: dict[str, tuple[Arm, Arm]] = {
        f"{name} - {other}": ((cell, "5", initialiser), (plain, "5", other))
        for name, (cell, initialiser, plain) in others.items()
        for other in ("identity", "rate-matched")
    }
    scores, _ = _registered("headline", "baselines")
    return family_of(pairs, scores) + family_of(rate_matched, scores)


def apart() -> list[Comparison]:
    """Networks with some parts of `Relay()`, compared with those that have all or none (sections 9, 14 to 18, 20)."""
    parts = ("recurrence of layers 1 and 2", "all but w_in", "w_in", "w_rec", "all but adaptation")
    scores, _ = _registered("headline", "baselines", "apart")
    families = (
        [("ALIFPlus", "5", part) for part in parts],
        [("ALIFPlus", "5", "adaptation")],
        [("ALIFPlus", "5", scaled) for scaled in ("as rate-matched, times 8", "adaptation, times 1/8")],
        [("ALIFPlus", "10", "all but w_in")],
        [("LIF", "5", "all but w_in")],
        [("LIF", "5", "bounded")],
        [("ALIFPlus", layers, "weak adaptation") for layers in ("2", "5", "10")],
    )
    found = []
    for arms in families:
        pairs = {
            f"{_NAMED[cell]}, {layers} layers, {part} - {other}": ((cell, layers, part), (cell, layers, other))
            for cell, layers, part in arms
            for other in ("identity", "rate-matched")
        }
        found += family_of(pairs, scores)
    return found


def _interval(test: Any) -> str:
    low, high = test.confidence_interval(0.95)
    return f"{(low + high) / 2:+.1f} ({low:+.1f} to {high:+.1f})"


@cache
def over_all() -> dict[str, float]:
    """The p of each registered comparison after Holm's correction over all sections, by name."""
    from docs.tables.elsewhere import libraries  # reads this module

    found = [*headline(), *baselines(), *apart(), *libraries()]
    return dict(zip([each.name for each in found], holm([each.test.pvalue for each in found]), strict=True))


def compared_rows(found: list[Comparison], trials: Trials) -> list[str]:
    """A table of comparisons; p is corrected over the section, and over all sections."""
    scores, fire = trials
    body = []
    for name, pair, test, corrected in found:
        means = [f"{mean(scores[arm].values()):.1f}±{stdev(scores[arm].values()):.1f}" for arm in pair]
        spikes = ", ".join(f"{min(fire[arm]):.2f} to {max(fire[arm]):.2f}" if fire[arm] else "-" for arm in pair)
        corrections = [f"{p:.2g}" for p in (test.pvalue, corrected, over_all()[name])]
        body.append([name, *means, _interval(test), *corrections, spikes])
    head = ["test, %", "first", "second", "difference", "p", "Holm", "Holm, all", "spikes of layers"]
    return rows(head, body)


@table
def study_headline() -> list[str]:
    """The registered comparisons of initialisations and depths whose trials are all over."""
    return compared_rows(headline(), _registered("headline"))


@table
def study_baselines() -> list[str]:
    """The registered comparisons of skips, GRU and LSTM whose trials are all over."""
    return compared_rows(baselines(), _registered("headline", "baselines"))


@table
def study_apart() -> list[str]:
    """The registered comparisons of parts of `Relay()` whose trials are all over."""
    return compared_rows(apart(), _registered("headline", "baselines", "apart"))


def _folds(name: str, fold: str, pairs: Iterable[tuple[Arm, Arm]], factor: float = 1.0) -> list[list[str]]:
    """Arms on each of five folds left out, and the differences of those whose trials are all over.

    Differences are spread by a factor before they are tested.
    """
    trials, body, tests = read_rows(name), [], []
    for pair in pairs:
        runs = [[row for row in trials if _arm_of(row) == arm] for arm in pair]
        if min(map(len, runs)) < 10:
            continue
        means = []
        for (cell, layers, initialiser), own in zip(pair, runs, strict=True):
            means.append(
                np.mean([[100 * float(r["test"]) for r in own if r[fold] == str(i)] for i in range(5)], axis=1)
            )
            fire = [[rate for row in own for rate in of_layers(row, when)] for when in ("firing_rate", "end_rates")]
            spikes = ", then ".join(f"{min(rates):.2f} to {max(rates):.2f}" for rates in fire)
            scores = (f"{score:.1f}" for score in (*means[-1], means[-1].mean()))
            body.append([f"{_NAMED[cell]}, {layers} layers, {initialiser}", *scores, spikes, "", "", ""])
        lead = means[0] - means[1]
        tests.append(ttest_1samp(lead.mean() + factor * (lead - lead.mean()), 0))
    corrected = holm([test.pvalue for test in tests] + [1.0] * (2 - len(tests)))  # as in _family
    for row, test, p in zip(body[::2], tests, corrected, strict=False):
        row[-3:] = [_interval(test), f"{test.pvalue:.2g}", f"{p:.2g}"]
    return body


def _fold_rows(fold: str, body: list[list[str]]) -> list[str]:
    head = [
        "test, %",
        *(f"{fold} {i}" for i in range(5)),
        "mean",
        "spikes",
        "difference to the next row",
        "p",
        "p, Holm",
    ]
    return rows(head, body)


def _initialisations_of(*cells: str) -> list[tuple[Arm, Arm]]:
    return [((cell, "5", "identity"), (cell, "5", "rate-matched")) for cell in cells]


@table
def study_voices() -> list[str]:
    """A voice that training never heard (registration.md, sections 7 and 12)."""
    cells = "ALIFPlus", "ALIFPlusMinus"
    initialisers = _folds("voices", "voice", _initialisations_of(*cells))
    depths = _folds("voices", "voice", [((cell, "5", "identity"), (cell, "2", "identity")) for cell in cells])
    shallow = [100 * found["test"] for found in read("study_shallow")["voices"]]
    no_network = ["no network", *(f"{score:.1f}" for score in (*shallow, mean(shallow))), "", "", "", ""]
    return _fold_rows("voice", [*initialisers, *depths, no_network])


@table
def study_utterances() -> list[str]:
    """Other utterances of known voices (section 11); folds share what they learn from: variance (1/5 + 1/4) s^2."""
    return _fold_rows(
        "fold", _folds("folds", "utterance", _initialisations_of("ALIFPlus", "LIF"), math.sqrt(5 * (1 / 5 + 1 / 4)))
    )


def of_layers(row: dict[str, str], column: str) -> list[float]:
    """A value for each layer, as the registered scripts write them."""
    return [float(value) for value in row[column].split()]


@table
def study_layers() -> list[str]:
    """What identity layers do once trained (registration.md, section 2), means over seeds."""
    body = []
    for (cell, layers), runs in grouped(read_rows("layers"), "cell", "layers").items():
        if len(runs) < 4:
            continue

        def over(column: str, runs: list[dict[str, str]] = runs) -> np.ndarray:
            return 100 * np.array([of_layers(row, column) for row in runs])

        test, back = 100 * np.array([float(row["test"]) for row in runs]), over("put_back")
        works, probes = ((test[:, None] - back) > 5).all(0), over("probes_after")
        risen = _interval(ttest_1samp(probes[:, -1] - probes[:, 1], 0))
        half, rates = over("put_back_upwards")[:, (int(layers) + 1) // 2], over("rates_after").mean(0) / 100
        body.append(
            [
                f"{layers} of {'ALIF±' if cell == 'ALIFPlusMinus' else 'ALIF+'}",
                f"{test.mean():.1f}±{test.std(ddof=1):.1f}",
                *(f"{probes[:, i].mean():.1f}" for i in (1, -1)),
                risen if layers != "2" else "",
                f"{works.sum()} of {layers}",
                f"{half.mean():.1f}",
                f"{rates.min():.2f} to {rates.max():.2f}",
                min(row["passed_on"] for row in runs) if layers != "2" else "",
            ]
        )
    head = ["layers", "test, %", "probe of layer 2", "of the top", "top - layer 2", "work", "upper half put back"]
    return rows([*head, "spikes", "passed on at first"], body)


@table
def study_flossing() -> list[str]:
    """Exponents held while training (registration.md, section 3); of a delay nothing until its 18 trials are over."""
    body, found = [], grouped(read_rows("flossing"), "delay")
    for delay in ("100", "200", "400"):
        if len(of_delay := found.get((delay,), [])) < 18:
            body.append([delay, f"{len(of_delay)} of 18 trials are over", *[""] * 5])
            continue
        chosen: dict[str, list[dict[str, str]]] = {}
        for (arm,), of_arm in grouped(of_delay, "arm").items():
            rates = sorted(grouped(of_arm, "lr").values(), key=lambda runs: float(runs[0]["lr"]))  # the lower of equals
            best = max(rates, key=lambda runs: mean(float(row["validation"]) for row in runs))
            chosen[arm] = sorted(best, key=lambda row: row["seed"])
        scores = {arm: [100 * float(row["test"]) for row in runs] for arm, runs in chosen.items()}
        for arm, runs in chosen.items():
            gaps = [a - b for a, b in zip(scores["flossing"], scores[arm], strict=True)]
            each = f"{mean(gaps):+.1f} ({', '.join(f'{gap:+.1f}' for gap in gaps)})" if arm != "flossing" else ""
            test = f"{mean(scores[arm]):.1f}±{stdev(scores[arm]):.1f}"
            changes = []
            for name in ("exponent", "rate"):
                ends = (
                    [float(r[f"{name}_{when}"]) for r in runs if r[f"{name}_{when}"]] for when in ("before", "after")
                )
                changes.append(" to ".join(f"{mean(end):.2f}" if end else "-" for end in ends))
            body.append([delay, arm, runs[0]["lr"], test, each, *changes])
    head = ["delay", "arm", "learning rate", "test, %", "flossing minus this, by seed", "exponent", "spikes"]
    return rows(head, body)


def holm(p: list[float]) -> list[float]:
    """Holm's corrected p of a family of tests."""
    order = np.argsort(p)
    raised = np.maximum.accumulate(np.asarray(p)[order] * np.arange(len(p), 0, -1))
    return np.minimum(raised, 1)[np.argsort(order)].tolist()


@table
def study_ablation() -> list[str]:
    """LSC whole and without one of its parts, and published initialisations, at five layers."""
    return _arms("initialisations", "ablation")


@table
def study_training() -> list[str]:
    """Five layers by the default training (trials of the sweep depth), and by parts of it."""
    initialisers = ("Relay(drawn=1)", "FiringRate(0.15)")
    default = [
        row
        for row in chosen_of("depth")
        if row["cell"] == "ALIFPlus" and row["layers"] == "5" and row["init"] in initialisers
    ]
    return _arms("training", "training-identity", besides=default)


@table
def study_music() -> list[str]:
    """The paper's cells and ALIF+ on the JSB Chorales, as built and pre-trained."""
    return _arms("jsb", score="nll")


@table
def study_released() -> list[str]:
    """The neuron of the released code, from that code's loop and with other initialisations."""
    return _arms("released")


@table
def study_correlations() -> list[str]:
    """Rank correlation of each measure before training with the score, over chosen trials."""
    of_one = speech_of_one()
    groups = {
        "speech": of_one,
        "5 layers": [row for row in of_one if row["layers"] == "5"],
        "digits": _whole(chosen_of("digits")),
        "MNIST": _whole(chosen_of("sl-mnist")),
        "recall": _whole(chosen_of("recall", "recall-deep")),
    }
    body = [[words, *(rank_of(found, name, mean) for found in groups.values())] for name, words in _STATISTICS.items()]
    body.append(["trials", *map(len, groups.values())])
    return rows(["before training", *groups], body)


@table
def study_faults() -> list[str]:
    """What rules of `diagnose` say of chosen trials on speech before training: ill is below 70 % of validation."""

    bounds = Bounds()

    def is_dead(row: dict[str, str]) -> bool:
        return min(layers_of(row, "firing_rate")) == 0

    def has_lost_the_input(row: dict[str, str]) -> bool:
        first, *upper = layers_of(row, "similarity_to_input")
        lost = "".join("x" if value < bounds.lost else " " for value in upper)
        return first > 10 * bounds.lost and "x" * bounds.lost_layers in lost

    def vanishes(row: dict[str, str]) -> bool:
        sizes = layers_of(row, "gradient")
        return bool(sizes) and bounds.faded * min(sizes) < max(sizes)

    def explodes_in_time(row: dict[str, str]) -> bool:
        return max(layers_of(row, "exponent")) * STEPS > math.log(bounds.growth)

    def explodes_in_depth(row: dict[str, str]) -> bool:
        return math.prod(layers_of(row, "singular_depth")[1:]) > bounds.across

    rules: dict[str, Callable[[dict[str, str]], bool]] = {
        "dead layer": is_dead,
        "lost signal": has_lost_the_input,
        "vanishing gradient": vanishes,
        "exploding through time": explodes_in_time,
        "exploding through depth": explodes_in_depth,
    }
    faults = tuple(rules.values())
    rules["any of these faults"] = lambda row: any(fault(row) for fault in faults)
    everything = _whole(chosen_of(*_SPEECH))
    groups = {
        words: [r for r in everything if r["cell"] == cell]
        for words, cell in (("ALIF+", "ALIFPlus"), ("LIF", "LIF"), ("ALIF±", "ALIFPlusMinus"))
    }
    ill = {cell: [r for r in found if float(r["validation_mode_accuracy"]) < 0.7] for cell, found in groups.items()}
    body = []
    for words, rule in rules.items():
        cells = []
        for cell, found in groups.items():
            sick, well = ill[cell], [r for r in found if r not in ill[cell]]
            cells += [f"{sum(map(rule, sick))} of {len(sick)}", f"{sum(map(rule, well))} of {len(well)}"]
        body.append([words, *cells])
    return rows(["rule", *(f"{cell}, {which}" for cell in groups for which in ("ill", "well"))], body)


def speech_of_one() -> list[dict[str, str]]:
    """The chosen trials with ALIF+ on spoken digits of people that came to no error."""
    return _whole([row for row in chosen_of(*_SPEECH) if row["cell"] == "ALIFPlus"])


def chosen_of(*sweeps: str) -> list[dict[str, str]]:
    """The chosen trials of some sweeps that are over, with the training as the commands do it."""
    found = []
    for name in sweeps:
        found += _trials(name)
    whole = {"chosen": "True", "by_gain": "True", "centralize": "True", "shift": "0"}
    return [row for row in found if all(row[setting] == value for setting, value in whole.items())]


def rank_of(found: list[dict[str, str]], name: str, of: Callable[[list[float]], float]) -> str:
    """Spearman's rank correlation with the validation score; of what varies."""
    pairs = []
    for row in found:
        if layers := layers_of(row, name):
            pairs.append((of(layers), float(row["validation_mode_accuracy"])))
    if len({value for value, _ in pairs}) <= 2 or len(pairs) < _LEAST:
        return "-"
    return f"{spearmanr(*zip(*pairs, strict=True)).statistic:.2f}"
