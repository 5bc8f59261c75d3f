"""Draw the pictures of method.md, theory.md, surrogates.md and data.md, and measure a table of method.md.

Takes two minutes.
"""

import json
import time
from pathlib import Path

import torch
from torch import nn

from examples.paper.figure import PICTURE, Scale
from examples.paper.landscapes import LandscapeFigure
from examples.paper.pictures import plot_covariances, plot_pascal, plot_paths
from neurolsc import ALIFPlus, Network, PaperRule, TransitionRule, pretrain, radius_profile, surrogate, theory, wrap
from neurolsc.datasets import SHD, SpikeLatencyMNIST, input_batches
from neurolsc.plots import plot_raster, plot_surrogates
from neurolsc.stability import singular_values

TARGET, PAPER_STEPS, SEED = 0.5, 40, 0
FOLDER = Path(__file__).parent / "pictures"
TABLE = Path(__file__).parents[1] / "benchmarks" / "results" / "one_half.json"
DIGITS = f"spike-latency MNIST (sample in the package), seed {SEED}"


def alif(width: int) -> Network:
    """The same 2 layers of ALIF+ every time."""
    torch.manual_seed(SEED)
    return Network([ALIFPlus(784, width), ALIFPlus(width, width)], n_out=10)


def draw_data() -> None:
    """Spoken digits."""
    words = SHD.embedded("test", dt=1e-3, channels=700, repeat=1)
    spikes = {}
    for (x, label), speaker in zip((words[i] for i in range(3)), words.speakers, strict=False):
        spikes[f'"{words.names[int(label)]}", speaker {speaker}'] = x
    plot_raster(
        spikes,
        FOLDER / "spoken_digits.png",
        title="Spoken digits in the package, from the Free Spoken Digit Dataset; steps of 1 ms",
    )


def draw_surrogates() -> None:
    """Derivatives and primitives of all surrogates."""
    v = torch.linspace(-3, 3, 601)
    names = (
        "FastSigmoid",
        "MultiGaussian",
        "Arctan",
        "Logistic",
        "Triangular",
        "Rectangular",
        "Gaussian",
        "Exponential",
    )
    curves = {}
    for name in names:
        spike = getattr(surrogate, name)()
        curves[name] = (spike.derivative(v).detach(), spike.primitive(v).detach())
    plot_surrogates(v, curves, FOLDER / "surrogates.png", title="Dampening 0.5, sharpness 1")


def draw_method(width: int = 64) -> None:
    """Radii before and after pre-training by our rule and the paper's; measures the table."""
    batches = input_batches(SpikeLatencyMNIST.embedded("train"), 32, seed=SEED)
    x, about = batches[0][:, :8], f"2 x {width} ALIFPlus, {DIGITS}"

    def row(rule: str, network: Network) -> dict:
        profile = radius_profile(network, x)
        found = {"rule": rule, "time": profile.time_mean.tolist(), "depth": profile.depth_mean.tolist()}
        for quantity in ("tau_theta", "theta_rest", "adaptation"):
            found[quantity] = [getattr(cell, quantity).mean().item() for cell in network.cells]
        return found | {"firing_rate": profile.firing_rate.tolist()}

    def draw_radii(network: Network, name: str, title: str) -> None:
        profile = radius_profile(network, x, target=(TARGET, TARGET))
        profile.plot(FOLDER / f"{name}.png", title=f"{about}, {title}")

    draw_radii(alif(width), "radii_before", "untrained")
    lines = [row("untrained", alif(width))]
    for name, rule in (("ours", TransitionRule()), ("ours, threshold fixed", TransitionRule(hold_threshold=True))):
        network = alif(width)
        result = pretrain(network, batches, target=TARGET, rule=rule, seed=SEED)
        lines.append(row(f"{name}: {result.steps} steps", network))
        if name == "ours":
            draw_radii(network, "radii_after", "after pre-training")
            result.plot(FOLDER / "pretraining.png", title=about)

    network = alif(width)
    result = pretrain(network, batches, target=TARGET, rule=PaperRule(), seed=SEED, max_steps=PAPER_STEPS, polish=False)
    missed = "" if result.converged else ", target missed"
    lines.append(row(f"paper's: best of {result.steps} steps{missed}", network))
    result.plot(FOLDER / "pretraining_paper_rule.png", title=f"{about}, the paper's rule")
    versions = {"torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
    TABLE.write_text(json.dumps({"about": versions, "runs": lines}, indent=1) + "\n")


def draw_paths() -> None:
    """Fig. 1 b: gradient paths over steps, over layers, and over both; derivatives of the PascalRNN."""
    n, together, steps = torch.arange(201), torch.arange(21), torch.arange(1, 61)

    def both(steps: torch.Tensor, layers: torch.Tensor) -> dict:
        over = layers if layers.numel() > 1 else steps
        return {f"layer_delay={d}": (over, theory.log_paths(steps, layers, layer_delay=d)) for d in (0, 1)}

    panels = {
        "5 layers": both(n, torch.tensor(5)),
        "5 steps": both(torch.tensor(5), n),
        "100 steps for each layer": both(100 * together, together),
    }
    plot_paths(panels, FOLDER / "theory_paths.png", over=["steps", "layers", "layers"])
    panels = {}
    for name, layers in (("down 3 layers", 3), ("down one layer for every two steps", steps // 2)):
        panels[name] = {
            f"all radii {radius:g}": (
                steps,
                theory.log_paths(steps, layers, time=radius, depth=radius, layer_delay=1),
            )
            for radius in (0.5, 1.0)
        }
    plot_paths(panels, FOLDER / "paths.png", over=["steps back in time"] * 2, counted="derivative", shared=True)


def draw_pascal(steps: int = 100, layers: int = 10) -> None:
    """Fig. 1 c, upper panels: the PascalRNN at 0.5 and at 1."""
    torch.manual_seed(SEED)
    x, curves = 2 * torch.randn(steps, 6, 1, dtype=torch.float64), {}
    for size in (0.5, 1.0):
        cells = [theory.PascalRNN(time=size, depth=size) for _ in range(layers)]
        network = Network(cells, nn.Identity(), layer_delay=0).double()
        bound = theory.log_paths(torch.arange(steps - 1, -1, -1), layers, layer_delay=0) * (size == 1)
        derivative = theory.log_input_derivatives(steps, layers, time=size, depth=size, layer_delay=0)
        curves[f"radii {size:g}"] = (network(x)[..., 0], derivative, bound)
    plot_pascal(curves, FOLDER / "theory_pascal.png", title=f"PascalRNN of {layers} layers, layer_delay=0")


def draw_covariance(width: int = 48, one_step: int = 30) -> None:
    """Covariance of singular values with those of one step."""
    batches, covariances = input_batches(SpikeLatencyMNIST.embedded("train"), 64, seed=SEED), {}
    torch.manual_seed(SEED)
    gru = wrap([nn.GRU(784, width), nn.GRU(width, width), nn.Linear(width, 10)])
    for name, network in (("GRU", gru.double()), ("ALIF+", alif(width).double())):
        for state in ("untrained", "at 0.5"):
            if state == "at 0.5":
                pretrain(network, batches, target=0.5, rule=TransitionRule(hold_threshold=True), seed=SEED)
            decay = theory.covariance_decay(singular_values(network, batches[0])[0], step=one_step)
            covariances[f"{name} {state}, layer 1"] = tuple(part[0] for part in decay)
    path = FOLDER / "theory_covariance.png"
    plot_covariances({f"with step {one_step}": covariances}, path, samples=batches[0].shape[1], title=DIGITS)


def draw_memory() -> None:
    """Fig. 1 of arXiv:2405.21064: sensitivity and losses of one integrator."""
    figure = LandscapeFigure()
    figure.draw(figure.measure(Scale(), []), FOLDER)
    (FOLDER / PICTURE).rename(FOLDER / "theory_memory.png")


for draw in (draw_data, draw_surrogates, draw_method, draw_paths, draw_pascal, draw_covariance, draw_memory):
    draw()
