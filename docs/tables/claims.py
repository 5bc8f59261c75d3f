"""What of the paper is found at the small size, claim by claim."""

from docs.tables.results import caption, read, rows, table

_RESULT = {True: "yes", False: "no", None: "undecided"}


@table
def claims() -> list[str]:
    """Every figure and table of the paper, judged from its trials."""
    found = read("claims")
    body = [
        [figure, one["claim"], _RESULT[one["holds"]], one["found"].split("; ")[0].split(": ")[0]]
        for figure, judged in found["figures"].items()
        for one in judged
    ]
    counted = [sum(line[2] == word for line in body) for word in _RESULT.values()]
    summary = ", ".join(f"{word} {count}" for count, word in zip(counted, _RESULT.values(), strict=True) if count)
    about = {name: value for name, value in found.items() if name != "figures"}
    return [*rows(["paper", "claim", "found", "numbers"], body), *caption(about, summary)]
