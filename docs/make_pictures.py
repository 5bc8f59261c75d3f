"""Draw the pictures in docs/pictures and measure for a table of method.md. Takes a minute."""

import json
import time
from itertools import pairwise
from pathlib import Path

import torch

from examples.paper.pictures import plot_paths
from neurolsc import ALIFPlus, Network, PaperRule, TransitionRule, pretrain, radius_profile, surrogate, theory
from neurolsc.datasets import SHD, EventFile, SpikeLatencyMNIST, input_batches
from neurolsc.datasets.events import UNITS
from neurolsc.datasets.speech import summarize
from neurolsc.plots import plot_surrogates, plot_utterances

WIDTH, TARGET, PAPER_STEPS, SEED = 64, 0.5, 40, 0
ABOUT = f"2 x {WIDTH} ALIFPlus, spike-latency MNIST (sample in the package), seed {SEED}"
FOLDER = Path(__file__).parent / "pictures"
TABLE = Path(__file__).parents[1] / "benchmarks" / "results" / "one_half.json"
SURROGATES = (
    surrogate.FastSigmoid,
    surrogate.MultiGaussian,
    surrogate.Arctan,
    surrogate.Logistic,
    surrogate.Triangular,
    surrogate.Rectangular,
    surrogate.Gaussian,
    surrogate.Exponential,
)


def draw_paths(path: Path) -> None:
    """The derivative over time of the PascalRNN, with all radii 1 and with all 0.5."""
    steps = torch.arange(1, 61)
    panels = {}
    for name, layers in (("down 3 layers", 3), ("down one layer for every two steps", steps // 2)):
        panels[name] = {
            f"all radii {radius:g}": (
                steps,
                theory.log_derivative(steps, layers, time=radius, depth=radius, layer_delay=1),
            )
            for radius in (0.5, 1.0)
        }
    plot_paths(panels, path, over=["steps back in time"] * 2, counted="derivative", shared=True)


def untrained() -> Network:
    """The same 2 x 64 ALIF+ every time."""
    torch.manual_seed(SEED)
    return Network([ALIFPlus(784, WIDTH), ALIFPlus(WIDTH, WIDTH)], n_out=10)


def row(rule: str, network: Network) -> dict:
    """One line of the table: radii, and what became of thresholds, adaptation and rates."""
    profile = radius_profile(network, x)
    found = {"rule": rule, "time": profile.time_mean.tolist(), "depth": profile.depth_mean.tolist()}
    for quantity in ("tau_theta", "theta_rest", "adaptation"):
        found[quantity] = [getattr(cell, quantity).mean().item() for cell in network.cells]
    return found | {"firing_rate": profile.firing_rate.tolist()}


FOLDER.mkdir(exist_ok=True)
words = SHD.embedded("test")
labels = [words.names[label] for label in words.labels[:3]]
titles = [f'"{label}", speaker {speaker}' for label, speaker in zip(labels, words.speakers, strict=False)]
events = words.events(range(3))
spikes = [(events.times[a:b], events.units[a:b]) for a, b in pairwise(events.offsets)]
plot_utterances(
    spikes, titles, FOLDER / "spoken_digits.png", units=UNITS, title="Spoken digits, synthetic, in the package"
)
sample = EventFile(SHD.embedded("train").path)
summarize(sample).plot(
    FOLDER / "data_info.png", example=sample.read([0]), example_title=f'"{sample.names[sample.labels[0]]}"'
)

draw_paths(FOLDER / "paths.png")
v = torch.linspace(-3, 3, 601)
curves = {make.__name__: (make().derivative(v).detach(), make().primitive(v).detach()) for make in SURROGATES}
plot_surrogates(v, curves, FOLDER / "surrogates.png", title="Dampening 0.5, sharpness 1")

batches = input_batches(SpikeLatencyMNIST.embedded("train"), 32, seed=SEED)
x = batches[0][:, :8]
goal = (TARGET, TARGET)
before = untrained()
radius_profile(before, x, target=goal).plot(FOLDER / "radii_before.png", title=f"{ABOUT}, untrained")
lines = [row("untrained", before)]

for name, rule in (("ours", TransitionRule()), ("ours, threshold fixed", TransitionRule(hold_threshold=True))):
    network = untrained()
    result = pretrain(network, batches, target=TARGET, rule=rule, seed=SEED)
    lines.append(row(f"{name}: {result.steps} steps", network))
    if name == "ours":
        radius_profile(network, x, target=goal).plot(FOLDER / "radii_after.png", title=f"{ABOUT}, after pre-training")
        result.plot(FOLDER / "pretraining.png", title=ABOUT)

network = untrained()
result = pretrain(network, batches, target=TARGET, rule=PaperRule(), seed=SEED, max_steps=PAPER_STEPS, polish=False)
missed = "" if result.converged else ", target missed"
lines.append(row(f"paper's: best of {result.steps} steps{missed}", network))
result.plot(FOLDER / "pretraining_paper_rule.png", title=f"{ABOUT}, the paper's rule")

about = {"torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
TABLE.write_text(json.dumps({"about": about, "runs": lines}, indent=1) + "\n")
