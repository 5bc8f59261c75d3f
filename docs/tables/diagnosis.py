"""The faults that `diagnose` finds, from its own table; and how often it is right (benchmarks/diagnoses.py)."""

import csv
from statistics import mean

from docs.tables.results import RESULTS, caption, grouped, rows, table
from docs.tables.users import LOSSES, reported, unfinished
from neurolsc.diagnosis import FAULTS
from neurolsc.diagnosis.faults import OF_THE_RATE

SET = ("Leaky", "RLeaky", "RLeaky atan")  # families on which the rules were set; the last has another surrogate
OF_THE_DATA = (
    "input batch first",
    "missing class",
    "fresh batch norm",
)  # kinds that ask for other data or more of them
FAILS, LEARNS = 0.5, 0.9  # shares of the best score

Cell = tuple[str, str, str, float]  # network, loss, initialisation, learning rate


@table
def faults() -> list[str]:
    """Each kind of fault, when it is one, and what is to be done."""
    body = [[fault.name, fault.condition, fault.advice, "yes" if fault.treatment else ""] for fault in FAULTS]
    return rows(["fault", "it is one if", "what to do", "tried"], body)


def cell_of(row: dict[str, str]) -> Cell:
    """The cell of a row of results."""
    return row["network"], row["loss"], row["arm"], float(row["lr"])


def outcomes() -> dict[Cell, str]:
    """What became of each cell: "fails", "learns" or "between"."""
    scores: dict[Cell, list[float]] = {}
    for row in [*reported(), *unfinished()]:
        scores.setdefault(cell_of(row), []).append(float(row["test"]))
    means = {cell: mean(each) for cell, each in scores.items()}
    best: dict[tuple[str, str], float] = {}
    for (network, loss, *_), score in means.items():
        best[network, loss] = max(best.get((network, loss), 0.0), score)
    found = {}
    for cell, score in means.items():
        share = score / best[cell[:2]]
        found[cell] = "fails" if share < FAILS else "between"
        if share >= LEARNS:
            found[cell] = "learns"
    return found


def found_of(row: dict[str, str]) -> list[str]:
    """Kinds of faults that say why a network would not learn."""
    return [name for name in row["findings"].split("; ") if name and name not in OF_THE_DATA]


def told_to_change(row: dict[str, str]) -> bool:
    """True if weights, thresholds or the surrogate are to be changed."""
    return any(name not in OF_THE_RATE for name in found_of(row))


def told_to_slow_down(row: dict[str, str]) -> bool:
    """True if the learning rate is to be lowered."""
    return any(name in OF_THE_RATE for name in found_of(row))


def diagnoses() -> list[dict[str, str]]:
    """All diagnoses of benchmarks/diagnoses.py."""
    with (RESULTS / "diagnoses.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@table
def diagnosis_seconds() -> list[str]:
    """Processor seconds of a diagnosis as built, by network; one seed, measured while nothing else ran."""
    found = [row for row in diagnoses() if row["arm"] == "built" and row["seed"] == "20"]
    body = []
    for (network, loss), runs in grouped(found, "network", "loss").items():
        body.append([f"{network}, {LOSSES[loss]}", f"{mean(float(row['seconds']) for row in runs):.1f}"])
    said = {"date": max(row["date"] for row in found), "data": "networks as built"}
    return [*rows(["network, loss", "seconds"], body), *caption(said, "processor time of one core")]


@table
def diagnosis_counts() -> list[str]:
    """Of each family: failing cells that are named, and learning ones that are told to change something."""
    found = diagnoses()
    became = outcomes()
    found = [row for row in found if cell_of(row) in became]
    set_on = [row for row in found if row["family"] in SET]
    held_back = [row for row in found if row["family"] not in SET]
    groups = {"**rules set on**": set_on, "**tested on**": held_back}
    groups |= {family: of_family for (family,), of_family in grouped(found, "family").items()}
    body = []
    for name, of_group in groups.items():
        ends = {end: [row for row in of_group if became[cell_of(row)] == end] for end in ("fails", "learns", "between")}
        named = {end: sum(bool(found_of(row)) for row in of_end) for end, of_end in ends.items()}
        alarms = sum(map(told_to_change, ends["learns"]))
        of_rate = sum(map(told_to_slow_down, ends["learns"]))
        body.append(
            [
                name,
                f"{named['fails']} of {len(ends['fails'])}",
                f"{alarms} of {len(ends['learns'])}",
                f"{of_rate} of {len(ends['learns'])}",
                f"{named['between']} of {len(ends['between'])}",
            ]
        )
    head = [
        "family",
        "fail, and something is found",
        "learn, advised to change the network",
        "learn, advised to lower the rate",
        "between, and something is found",
    ]
    said = {"date": max(row["date"] for row in found), "data": "cells: network, loss, initialisation, learning rate"}
    return [*rows(head, body), *caption(said)]
