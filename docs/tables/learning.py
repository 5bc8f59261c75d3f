"""Does a radius help to learn? Scores, with rates and thresholds beside."""

from statistics import mean

from docs.tables.results import NO_THRESHOLD, caption, ends, grouped, percent, read, rows, table


def learning(name: str, script: str) -> list[str]:
    """Scores of the arms, with rates and thresholds beside."""
    found = read(name, script)
    voices = "new voices" in found["runs"][0]
    head = ["arm", "seeds", "test mode accuracy", *(["new voices"] if voices else [])]
    head += ["before training: rate", "time radius", "resting threshold", "after: rate", "target reached"]
    body = []
    for (arm,), runs in grouped(found["runs"], "arm").items():
        rests = [mean(column) for column in zip(*(run["before"]["theta_rest"] for run in runs), strict=True)]
        left = "" if min(rests) > NO_THRESHOLD else " (a layer has no threshold left: no control)"
        line = [arm + left, len(runs), percent([run["test"]["mode_accuracy"] for run in runs])]
        line += [percent([run["new voices"]["mode_accuracy"] for run in runs])] if voices else []
        line += [ends(runs, "before", "firing_rate", ".4f"), ends(runs, "before", "time", ".2f")]
        line += [ends(runs, "before", "theta_rest", ".2g"), ends(runs, "test", "firing_rate", ".2f")]
        reached = [run["pretraining"]["converged"] for run in runs if "converged" in run["pretraining"]]
        body.append([*line, f"{sum(reached)} of {len(reached)}" if reached else ""])
    epochs = found["about"]
    return [*rows(head, body), *caption(epochs, "rates, radii and thresholds of the first and the last layer")]


table(learning, "sl-mnist", "sl_mnist", "sl_mnist.py")
table(learning, "spoken-digits", "spoken_digits", "spoken_digits.py")
table(learning, "spoken-digits-alif-pm", "spoken_digits_ALIFPlusMinus", "spoken_digits.py")
table(learning, "spoken-digits-5", "spoken_digits_5", "spoken_digits.py")
table(learning, "spoken-digits-5-slow", "spoken_digits_5_0.003", "spoken_digits.py")
