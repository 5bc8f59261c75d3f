"""Table, picture and JSON of layers.py."""

import json
from pathlib import Path


def write(report: dict, folder: Path) -> None:
    """Write layers.json, layers.md and layers.png."""
    (folder / "layers.json").write_text(json.dumps(report, indent=1) + "\n")
    about = report["about"]
    lines = [", ".join(f"{key} {value}" for key, value in about.items()), ""]
    lines += [
        f"Import of neurolsc beyond torch: {report['import of neurolsc beyond torch, s']} s.",
        "",
        "| forward and backward, 2 x 256 | T | ms | times ours | peak MB | of the leanest peer | rates |",
        "| --- " * 7 + "|",
    ]
    for run in report["layers"]:
        ours, least = next(iter(run["ms"].values())), run["peak MB"][run["memory"]["best peer"]]
        for name, ms in run["ms"].items():
            mb = run["peak MB"][name]
            cells = [name, run["steps"], ms, f"{ms / ours:.2f}", mb, f"{mb / least:.2f}", rates(run["rates"][name])]
            lines.append("| " + " | ".join(map(str, cells)) + " |")
        lines.append(f"| floor: dense products | {run['steps']} | {run['floor ms']} | | | | |")
    lines += ["", "| training step of sl-MNIST, 2 x 128 | ms | times ours | rates |", "| --- " * 4 + "|"]
    step = report["digits"]
    ours = next(iter(step["ms"].values()))
    for name, ms in step["ms"].items():
        lines.append(f"| {name} | {ms} | {ms / ours:.2f} | {rates(step['rates'][name])} |")
    lines += ["", "| from 2 x 256, T = 50, B = 100 | value | ours, ms | snnTorch, ms | ratio |", "| --- " * 5 + "|"]
    for row in report["growth"]:
        ms = row["ms"]
        other = [ms["snnTorch"], f"{ms['snnTorch'] / ms['ours']:.2f}"] if "snnTorch" in ms else ["", ""]
        lines.append("| " + " | ".join(map(str, [row["over"], row[row["over"]], ms["ours"], *other])) + " |")
    (folder / "layers.md").write_text("\n".join(lines) + "\n")
    draw(report, folder / "layers.png")


def rates(values: list[float]) -> str:
    return ", ".join(f"{value:.3f}" for value in values)


def draw(report: dict, path: Path) -> None:
    """Times of the three tasks with the floor, and memory."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 6), layout="constrained")
    panels = figure.subplots(2, 2, sharey=True).flatten()
    tasks = [(f"2 x 256, T = {run['steps']}: ms", run["ms"], run["floor ms"]) for run in report["layers"]]
    tasks.append(("training step of sl-MNIST: ms", report["digits"]["ms"], None))
    last = report["layers"][-1]
    tasks.append((f"2 x 256, T = {last['steps']}: peak MB", last["peak MB"], None))
    for axes, (title, values, least) in zip(panels, tasks, strict=True):
        names = list(values)
        colors = ["C0" if name.startswith("neurolsc") else "0.6" for name in names]
        axes.bar_label(axes.barh(names, values.values(), color=colors), fmt="%.0f", padding=2)
        if least is not None:
            axes.axvline(least, color="C3", linestyle=":", label="dense products")
            axes.legend(loc="upper right")
        axes.set(title=title)
        axes.margins(x=0.15)
    panels[0].invert_yaxis()
    figure.savefig(path, dpi=110)
