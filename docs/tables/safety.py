"""Damaged files, what became of them, and what the checks cost."""

from docs.tables.results import caption, read, rows, table

ENDS = ("clean", "same", "undetectable", "raw", "over time", "over memory", "silent and wrong")


@table
def fuzz() -> list[str]:
    """How the damaged files of every reader ended."""
    found = read("fuzz")
    body = [
        [run["reader"], run["files"], *(run["counts"].get(end, 0) for end in ENDS), f"{run['peak'] / 1e6:.0f}"]
        for run in found["readers"]
    ]
    total = [sum(line[i] for line in body) for i in range(1, len(ENDS) + 2)]
    body.append(["all", *total, f"{max(run['peak'] for run in found['readers']) / 1e6:.0f}"])
    return [*rows(["reader", "files", *ENDS, "most memory, MB"], body), *caption(found["about"])]


@table
def bombs() -> list[str]:
    """The memory that small files take which ask for much."""
    found = read("fuzz")
    body = [[b["name"], f"{b['size'] / 1e3:.1f}", b["end"], f"{b['peak'] / 1e6:.0f}"] for b in found["bombs"]]
    return [*rows(["file", "kB", "end", "memory, MB"], body), *caption(found["about"])]


@table
def checks() -> list[str]:
    """What readers and caches take, beside plain calls."""
    found = read("checks")
    body = [
        [r["reader"], f"{r['ms']:.2f}", f"{r['plain_ms']:.2f}", f"{r['ms'] - r['plain_ms']:+.2f}"]
        for r in found["readers"]
    ]
    return [*rows(["reader", "ms", "plain calls, ms", "difference, ms"], body), *caption(found["about"])]
