"""How fast are radii, layers and batches next to others, and are radii right?"""

from statistics import mean

from docs.tables.results import caption, grouped, read, rows, table


def radii(name: str) -> list[str]:
    """Time of a radius next to others', by regime and width."""
    found = read(name)
    rivals = [name for name in dict.fromkeys(run["contestant"] for run in found["speed"]) if name != "ours"]
    body = []
    for (regime, n, direction), runs in grouped(found["speed"], "regime", "n", "direction").items():
        by = {run["contestant"]: run for run in runs}
        ours = by["ours"]
        line = [regime, n, direction, f"{ours['ms']:.2f}", f"{ours['p99']:.3%}", f"{ours['max']:.3%}"]
        line += [f"{by[rival]['ratio']:.2g}" if rival in by else "" for rival in rivals]
        body.append([*line, f"{ours['dense']:.0%}", f"{ours['firing_rate']:.4f}"])
    head = ["regime", "N", "through", "ours, ms a point", "error, 99th percentile", "largest error"]
    head += [f"{rival}, times ours" for rival in rivals]
    return [*rows([*head, "went dense", "spikes per step"], body), *caption(found["about"])]


table(radii, "radii", "radii")
table(radii, "radii-gpu", "radii_cuda")


@table
def radii_layers() -> list[str]:
    """Points of random layers against LAPACK, by family."""
    found = read("radii_layers")
    body = []
    for (direction, family), some in grouped(found["layers"], "direction", "family").items():
        points, wrong, ill, dense = (sum(row[key] for row in some) for key in ("points", "wrong", "ill", "dense"))
        far = max((row["error"] for row in some if not row["ill"]), default=0)
        rates = [row["rate"] for row in some]
        body.append([direction, family, points, wrong, ill, f"{dense / points:.0%}", f"{far:.2%}"])
        body[-1].append(f"{min(rates):.3f} to {max(rates):.3f}")
    head = ["through", "weights", "points", "wrong", "ill", "went dense", "largest error, layers without ill points"]
    return [*rows([*head, "spikes per step"], body), *caption(found["about"])]


@table
def radii_gradient() -> list[str]:
    """Time of a radius with its gradient."""
    found = read("radii")
    body = [
        [run["regime"], run["n"], run["direction"], run["contestant"], f"{run['ms']:.2f}", f"{run['ratio']:.3g}"]
        for run in found["gradient"]
    ]
    return [*rows(["regime", "N", "through", "by", "ms a point", "times ours"], body), *caption(found["about"])]


def _title(setting: dict) -> str:
    return f"2 x {setting['width']}, T = {setting['steps']}, {setting['rate']:.0%} fire"


@table
def layers() -> list[str]:
    """The fastest other's time by ours."""
    found = read("layers")
    columns = list(found["layers"][0]["ratios"]["both"])
    body = []
    for run in found["layers"]:
        for key, what in (("both", "forward and backward"), ("forward", "forward alone")):
            ratios = [run["ratios"][key][column] for column in columns]
            cells = [f"{ratio['peer / ours']} ({ratio['best peer']})" for ratio in ratios]
            rate = mean(run["rates"]["neurolsc ALIF+"])
            body.append(
                [f"{_title(run['setting'])}, input {run['setting']['density']:.0%}", what, *cells, f"{rate:.3f}"]
            )
    head = ["setting", "", *(f"{column}: fastest other / ours" for column in columns), "our rate"]
    return [*rows(head, body), *caption(found["about"])]


@table
def layers_memory() -> list[str]:
    """Peak memory of a forward and backward pass."""
    found = read("layers")
    runs = [run for run in found["layers"] if "peak MB" in run]
    names = list(runs[0]["peak MB"])
    body = ([name, *(run["peak MB"][name] for run in runs)] for name in names)
    return [*rows(["peak MB", *(_title(run["setting"]) for run in runs)], body), *caption(found["about"])]


@table
def layers_digits() -> list[str]:
    """A training step of spike-latency MNIST."""
    found = read("layers")
    step = found["digits"]
    ours = step["ms"]["neurolsc ALIF+"]
    body = (
        [name, ms, f"{ms / ours:.2f}", ", ".join(f"{rate:.3f}" for rate in step["rates"][name])]
        for name, ms in step["ms"].items()
    )
    return [*rows(["", "ms", "times ours", "rates"], body), *caption(found["about"])]


@table
def layers_gpu() -> list[str]:
    """Times and memory on a GPU."""
    found = read("layers_gpu")
    body = []
    for run in found["layers"]:
        ours = run["ms"]["neurolsc ALIF+"]
        for name, ms in run["ms"].items():
            rates = ", ".join(f"{rate:.3f}" for rate in run["rates"][name])
            body.append([f"T = {run['steps']}", name, f"{ms:.1f}", f"{ms / ours:.2f}", run["peak MB"][name], rates])
    head = ["", "by", "ms", "times ours", "peak MB", "rates"]
    return [*rows(head, body), *caption(found["about"])]


@table
def users_speed_front() -> list[str]:
    """Users' networks over 100 steps, accelerated, next to themselves."""
    found = read("users_speed")
    body = []
    for (network, steps), runs in grouped(found["runs"], "network", "steps").items():
        if steps != 100:
            continue
        by = {run["contestant"]: run for run in runs}
        own = by["own"]
        fast = by["accelerated"]
        times = f"{own['both'] / fast['both']:.1f}"
        memory = f"{own['memory']:.0f} to {fast['memory']:.0f}"
        body.append([network, f"{own['both']:.0f}", f"{fast['both']:.0f}", times, memory])
    head = ["network, 100 steps", "its own loop, ms", "accelerated, ms", "times as fast", "MiB"]
    return [*rows(head, body), *caption(found["about"], "forward and backward, processor time")]


@table
def users_speed() -> list[str]:
    """Users' networks, accelerated, next to themselves."""
    found = read("users_speed")
    body = []
    for (network, steps), runs in grouped(found["runs"], "network", "steps").items():
        by = {run["contestant"]: run for run in runs}
        own = by["own"]
        fast = by["accelerated"]
        memory = ""
        if "memory" in own:
            memory = f"{own['memory']:.0f} and {fast['memory']:.0f}"
        compiled = f"{by['torch.compile']['both']:.0f}" if "torch.compile" in by else ""
        line = [network, steps, f"{own['both']:.0f}", compiled, f"{fast['both']:.0f}"]
        times = [f"{own[what] / fast[what]:.1f}" for what in ("both", "forward", "no gradients")]
        body.append([*line, *times, memory])
    head = ["network", "T", "its own loop, ms", "torch.compile, ms", "accelerated, ms", "times as fast as its loop"]
    head += ["forward alone", "under no_grad", "MiB, loop and accelerated"]
    return [*rows(head, body), *caption(found["about"], "forward and backward, processor time")]


def _two(ms: dict[str, float], other: str) -> str:
    return f"{ms['ours']:.2f} ({ms[other] / ms['ours']:.2f})"


@table
def rate_cells() -> list[str]:
    """Runs and steps of the cells that send numbers."""
    found = read("rate_cells")
    step = {(run["cell"], run["n"]): run["ms"] for run in found["steps"]}
    body = []
    for run in found["layers"]:
        line = [run["cell"], run["n"], run["batch"], *(_two(run[what], "PyTorch") for what in ("both", "forward"))]
        one = step.get((run["cell"], run["n"]))
        body.append([*line, _two(one, "PyTorch") if one else ""])
    head = ["cell", "N", "B", "forward and backward, ms (PyTorch's, times ours)", "forward", "one step"]
    return [*rows(head, body), *caption(found["about"])]


@table
def linear_scan() -> list[str]:
    """The LRU's run next to its steps."""
    found = read("rate_cells")
    body = [
        [run["n"], run["batch"], run["steps"], *(_two(run[what], "steps") for what in ("block", "alone"))]
        for run in found["scan"]
    ]
    head = ["N", "B", "T", "LRU block, ms (steps, times ours)", "the recurrence alone"]
    return [*rows(head, body), *caption(found["about"], "forward and backward")]


@table
def minimal_lru() -> list[str]:
    """The LRU's run next to minimal-LRU's."""
    found = read("rate_cells")
    body = []
    for both in grouped(found["minimal-LRU"], "n", "batch", "steps").values():
        by = {run["part"]: run for run in both}
        line = [by["block"][key] for key in ("n", "batch", "steps")]
        ways = [by[part][what] for part in ("block", "recurrence") for what in ("both", "forward")]
        body.append([*line, *(f"{ms['ours']:.2f} ({ms['ratio']:.2f})" for ms in ways)])
    head = ["N", "B", "T", "block, forward and backward, ms (minimal-LRU's, times ours)", "forward"]
    head += ["without norm and GLU, forward and backward", "forward"]
    return [*rows(head, body), *caption(found["about"], "processor time, medians")]


@table
def rate_radii() -> list[str]:
    """Radii of the cells that send numbers."""
    found = read("rate_cells")
    body = []
    for run in found["radii"]:
        ms = run["ms"]
        line = [run["cell"], run["n"], run["through"], f"{run['radius']:.3f}", f"{ms['ours']:.2f}"]
        line += [f"{ms['dense'] / ms['ours']:.2g}", f"{ms['ARPACK'] / ms['ours']:.2g}", f"{run['went dense']:.0%}"]
        body.append([*line, f"{run['error']:.2%}", f"{run['error of ARPACK']:.2%}"])
    head = ["cell", "N", "through", "radius", "ours, ms a point", "dense, times ours", "ARPACK, times ours"]
    head += ["went dense", "largest error", "of ARPACK"]
    return [*rows(head, body), *caption(found["about"], "untrained networks")]
