"""Table and picture of `radii.py`."""

from pathlib import Path


def table(rows: list[dict]) -> str:
    """A line for each contestant in each regime and direction."""
    lines = [
        "| regime | N | direction | contestant | ms a point | of ours | products | dense | error p50 | p99 | max "
        "| settings | different | rate |",
        "| --- " * 14 + "|",
    ]
    for r in rows:
        cells = [r["regime"], r["n"], r["direction"], r["contestant"], f"{r['ms']:.3f}", f"{r['ratio']:.2f}"]
        if "p99" in r:
            cells += [f"{r['products']:.0f}", f"{r['dense']:.1%}"]
            cells += [f"{r['p50']:.3%}", f"{r['p99']:.3%}", f"{r['max']:.3%}", r["settings"]]
        else:
            cells += [""] * 6
        cells += [f"{r['different']:.0%}", f"{r['firing_rate']:.4f}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def draw(rows: list[dict], path: Path) -> None:
    """Time a point by regime and by width."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.6), layout="constrained")
    for axes, direction in zip(figure.subplots(1, 3), ("time", "depth", None), strict=True):
        if direction is None:
            shown = [r for r in rows if r["regime"] == "default" and r["direction"] == "time"]
            axes.set(xscale="log", xlabel="neurons N", title="default, through time")
        else:
            shown = [r for r in rows if r["n"] == 256 and r["direction"] == direction]
            axes.set_title(f"N = 256, through {direction}")
        names = list(dict.fromkeys(r["contestant"] for r in shown if "0.1 %" not in r["contestant"]))
        for name in names:
            points = sorted((r for r in shown if r["contestant"] == name), key=lambda r: r["n"])
            places = [r["n"] if direction is None else r["regime"] for r in points]
            axes.plot(places, [r["ms"] for r in points], "o-" if direction is None else "o", label=name)
        axes.set(yscale="log", ylabel="ms a point")
        if direction is None:
            widths = sorted({r["n"] for r in shown})
            axes.set_xticks(widths, map(str, widths))
            axes.minorticks_off()
        else:
            axes.tick_params(axis="x", rotation=90)
    figure.legend(*figure.axes[-1].get_legend_handles_labels(), fontsize=8, ncols=6, loc="outside lower center")
    figure.savefig(path.with_suffix(".png"), dpi=110)
