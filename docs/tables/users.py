"""Initialisations in a user's own loop (benchmarks/users.py): networks x learning rates."""

import csv
from statistics import mean, stdev

from docs.tables.results import RESULTS, caption, grouped, rows, table

ARMS = {"built": "as built", "by hand": "by hand", "kaiming": "Kaiming", "Identity()": "`initialize`"}
FRONT = ("built", "Identity()")
REPORTED = 20  # the first seed that chose nothing
LOSSES = {"count": "spike counts", "membrane": "membrane", "step": "each step"}


def reported() -> list[dict[str, str]]:
    """Rows of seeds that chose nothing."""
    with (RESULTS / "users.csv").open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if int(row["seed"]) >= REPORTED]


def cell(runs: list[dict[str, str]]) -> str:
    """Mean and deviation of test scores over seeds, in %."""
    scores = [100 * float(run["test"]) for run in runs]
    return f"{mean(scores):.0f}±{stdev(scores):.0f}"


def about(found: list[dict[str, str]]) -> list[str]:
    """The caption: how many seeds, and how networks were trained."""
    seeds = len({row["seed"] for row in found})
    said = {
        "date": max(row["date"] for row in found),
        "data": f"{seeds} seeds that chose nothing; 64 wide, 25 steps, 1,000 digits, 5 epochs of plain Adam",
    }
    return caption(said, "test, %, mean±deviation")


def body_of(found: list[dict[str, str]], arms: tuple[str, ...]) -> tuple[list[str], list[list[str]]]:
    """The head and the lines of a table of arms by learning rate."""
    rates = sorted({float(row["lr"]) for row in found})
    head = ["network, loss", "", *(f"{rate:g}" for rate in rates), "spikes before"]
    body = []
    for (network, loss), of_network in grouped(found, "network", "loss").items():
        for arm in arms:
            runs = [run for run in of_network if run["arm"] == arm]
            by_rate = [cell([run for run in runs if float(run["lr"]) == rate]) for rate in rates]
            before = [float(fires) for run in runs for fires in run["rates_before"].split()]
            span = f"{min(before):.2g} to {max(before):.2g}"
            body.append([f"{network}, {LOSSES[loss]}", ARMS[arm], *by_rate, span])
    return head, body


@table
def users_front() -> list[str]:
    """As built and initialised."""
    found = reported()
    head, body = body_of(found, FRONT)
    return [*rows(head[:-1], [line[:-1] for line in body]), *about(found)]


@table
def users() -> list[str]:
    """All arms, with the firing rates of single layers before training."""
    found = reported()
    head, body = body_of(found, tuple(ARMS))
    return [*rows(head, body), *about(found)]
