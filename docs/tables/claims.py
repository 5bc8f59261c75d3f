"""What of the paper is found at the small size, claim by claim."""

from docs.tables.results import caption, read, rows, table

_TOLD = {True: "reproduced", False: "not reproduced", None: "not to be told"}


@table
def claims() -> list[str]:
    """Every figure and table of the paper, judged from its trials."""
    found = read("claims")
    body = [
        [figure, one["claim"], _TOLD[one["holds"]], one["found"]]
        for figure, judged in found["figures"].items()
        for one in judged
    ]
    counted = [sum(line[2] == word for line in body) for word in _TOLD.values()]
    told = ", ".join(f"{count} {word}" for count, word in zip(counted, _TOLD.values(), strict=True) if count)
    about = {name: value for name, value in found.items() if name != "figures"}
    return [*rows(["paper", "claim", "at the small size", "found"], body), *caption(about, told)]
