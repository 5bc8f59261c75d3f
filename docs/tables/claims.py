"""Claims of the paper, judged from runs at the small size."""

from docs.tables.results import caption, read, table

_RESULTS = {True: "Found", False: "Not found", None: "Undecided"}


def _number(one: dict[str, str]) -> str:
    return one["found"].split("; ")[0].split(": ")[0]


@table
def claims() -> list[str]:
    """A line for each figure and table of the paper."""
    results = read("claims")
    lines, counts = [], dict.fromkeys(_RESULTS, 0)
    for figure, judged in results["figures"].items():
        parts = []
        for holds, word in _RESULTS.items():
            some = [one for one in judged if one["holds"] is holds]
            counts[holds] += len(some)
            if some:
                shown = (one["claim"] if holds else f"{one['claim']} ({_number(one)})" for one in some)
                parts.append(f"*{word}:* {'; '.join(shown)}")
        lines.append(f"- **{figure}**. {'. '.join(parts)}.")
    summary = ", ".join(f"{word.lower()} {counts[holds]}" for holds, word in _RESULTS.items())
    return [*lines, *caption({key: value for key, value in results.items() if key != "figures"}, summary)]
