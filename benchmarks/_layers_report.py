"""Table, picture and JSON of layers.py."""

import json
from pathlib import Path

OURS = {"ALIF": "neurolsc ALIF+", "LIF": "neurolsc LIF"}


def against(ours: float, peers: dict[str, float]) -> dict[str, object]:
    """Our time or memory next to the best of the others."""
    best = min(peers, key=peers.__getitem__)
    return {"best peer": best, "peer / ours": round(peers[best] / ours, 2), "ours / peer": round(ours / peers[best], 2)}


def ratios(ms: dict[str, float]) -> dict[str, dict[str, object]]:
    """Ours next to the fastest of its kind, ALIF next to those whose thresholds move, and ALIF next
    to the fastest of all."""
    peers = {name: each for name, each in ms.items() if not name.startswith("neurolsc")}
    moving = {name: each for name, each in peers.items() if "ALIF" in name or "LSNN" in name}
    fixed = {name: each for name, each in peers.items() if name not in moving}
    return {
        "ALIF+ and moving thresholds": against(ms[OURS["ALIF"]], moving),
        "LIF and fixed thresholds": against(ms[OURS["LIF"]], fixed),
        "ALIF+ and all": against(ms[OURS["ALIF"]], peers),
    }


def title(setting: dict) -> str:
    """What was run."""
    return f"2 x {setting['width']}, T = {setting['steps']}, {setting['rate']:.0%} fire, input {setting['density']:.0%}"


def write(report: dict, folder: Path) -> None:
    """Write layers.json, layers.md and layers.png."""
    for run in report["layers"]:
        run["ratios"] = {what: ratios(ms) for what, ms in run["ms"].items()}
    (folder / "layers.json").write_text(json.dumps(report, indent=1) + "\n")
    lines = [", ".join(f"{key} {value}" for key, value in report["about"].items()), ""]
    lines += [f"Import of neurolsc beyond torch: {report['import of neurolsc beyond torch, s']} s.", ""]
    lines += summary(report) + details(report) + sweeps(report)
    checked = ", ".join(f"{name} {far:.0e}" for name, far in report["gradients apart by"].items())
    lines += ["", f"Spikes equal to ours in a small case, and gradients apart by at most: {checked}."]
    (folder / "layers.md").write_text("\n".join(lines) + "\n")
    draw(report, folder / "layers.png")


def table(*head: str) -> list[str]:
    """The first two lines of a table."""
    return ["| " + " | ".join(head) + " |", "| --- " * len(head) + "|"]


def summary(report: dict) -> list[str]:
    """Times of the fastest peer by ours."""
    columns = list(ratios(report["layers"][0]["ms"]["both"]))
    lines = table("fastest peer's time / ours", "", *columns)
    for run in report["layers"]:
        for what, found in run["ratios"].items():
            cells = [f"{found[column]['peer / ours']} ({found[column]['best peer']})" for column in columns]
            lines.append("| " + " | ".join([title(run["setting"]), WHAT[what], *cells]) + " |")
    return lines


WHAT = {"both": "forward and backward", "forward": "forward alone"}


def details(report: dict) -> list[str]:
    """Every time, memory and rate."""
    lines: list[str] = []
    for run in report["layers"]:
        mb, (both, forward) = run.get("peak MB", {}), (run["ms"][what] for what in WHAT)
        lines += ["", *table(title(run["setting"]), "both, ms", "/ ours", "forward, ms", "/ ours", "peak MB", "rates")]
        for name in both:
            times = (f"{ms[name]} | {ms[name] / ms[OURS['ALIF']]:.2f}" for ms in (both, forward))
            lines.append(f"| {name} | {' | '.join(times)} | {mb.get(name, '')} | {rates(run['rates'][name])} |")
    return lines


def sweeps(report: dict) -> list[str]:
    """The training step, and our time over sizes."""
    lines = ["", *table("training step of sl-MNIST, 2 x 128", "ms", "/ ours", "rates")]
    step = report["digits"]
    for name, ms in step["ms"].items():
        lines.append(f"| {name} | {ms} | {ms / step['ms'][OURS['ALIF']]:.2f} | {rates(step['rates'][name])} |")
    lines += ["", *table("from 2 x 256, T = 50, B = 100", "value", "ours, ms", "snnTorch, ms", "ratio")]
    for row in report["growth"]:
        ms = row["ms"]
        other = [ms["snnTorch"], f"{ms['snnTorch'] / ms['ours']:.2f}"] if "snnTorch" in ms else ["", ""]
        lines.append("| " + " | ".join(map(str, [row["over"], row[row["over"]], ms["ours"], *other])) + " |")
    return lines


def rates(values: list[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)


def draw(report: dict, path: Path) -> None:
    """Times in four settings, forward and backward with forward alone inside, and memory in two."""
    from matplotlib.figure import Figure

    runs = [run for run in report["layers"] if run["setting"]["width"] == 256][:4]
    figure = Figure(figsize=(12, 10), layout="constrained")
    panels = figure.subplots(3, 2, sharey=True).flatten()
    for axes, run in zip(panels, runs, strict=False):
        bars(axes, run["ms"]["both"], alpha=0.6)
        axes.barh(
            list(run["ms"]["forward"]), run["ms"]["forward"].values(), height=0.3, color="k", label="forward alone"
        )
        axes.set(title=title(run["setting"]) + ": ms")
        axes.legend(loc="lower right")
    for axes, run in zip(panels[4:], [run for run in runs if "peak MB" in run], strict=False):
        bars(axes, run["peak MB"])
        axes.set(title=title(run["setting"]) + ": peak MB")
    panels[0].invert_yaxis()
    figure.savefig(path, dpi=110)


def bars(axes, values: dict[str, float], **style: float) -> None:
    """A bar for each, ours in blue."""
    colors = ["C0" if name.startswith("neurolsc") else "0.6" for name in values]
    axes.bar_label(axes.barh(list(values), values.values(), color=colors, **style), fmt="%.0f", padding=2)
    axes.margins(x=0.12)
