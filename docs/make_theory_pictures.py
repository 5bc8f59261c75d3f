"""Draw the pictures of docs/theory.md, in docs/pictures. Takes a minute."""

from pathlib import Path

import torch
from torch import nn

from examples.paper.pictures import plot_covariance, plot_growth, plot_pascal, plot_paths
from neurolsc import ALIFPlus, Network, TransitionRule, pretrain, theory, wrap
from neurolsc.datasets import SpikeLatencyMNIST, input_batches
from neurolsc.stability import singular_values

FOLDER = Path(__file__).parent / "pictures"
STEPS, LAYERS, SAMPLES, SEED = 100, 10, 6, 0
WIDTH, CHANGED, ONE_STEP = 48, 25, 30
ABOUT = f"Spike-latency MNIST (sample in the package), seed {SEED}"


def draw_paths(path: Path) -> None:
    """Fig. 1 b: gradient paths over steps, over layers, and over both."""
    n = torch.arange(201)
    together = torch.arange(21)

    def of_both(steps: torch.Tensor, layers: torch.Tensor) -> dict:
        at = layers if layers.numel() > 1 else steps
        return {f"layer_delay={d}": (at, theory.log_paths(steps, layers, layer_delay=d)) for d in (0, 1)}

    panels = {
        "5 layers": of_both(n, torch.tensor(5)),
        "5 steps": of_both(torch.tensor(5), n),
        "100 steps for each layer": of_both(100 * together, together),
    }
    plot_paths(panels, path, over=["steps", "layers", "layers"])


def draw_pascal(path: Path) -> None:
    """Fig. 1 c, upper panels: the PascalRNN at 0.5 and at 1."""
    torch.manual_seed(SEED)
    x, curves = 2 * torch.randn(STEPS, SAMPLES, 1, dtype=torch.float64), {}
    for size in (0.5, 1.0):
        cells = [theory.PascalRNN(time=size, depth=size) for _ in range(LAYERS)]
        network = Network(cells, nn.Identity(), layer_delay=0).double()
        bound = theory.log_paths(torch.arange(STEPS - 1, -1, -1), LAYERS, layer_delay=0) * (size == 1)
        derivative = theory.log_input_derivatives(STEPS, LAYERS, time=size, depth=size, layer_delay=0)
        curves[f"radii {size:g}"] = (network(x)[..., 0], derivative, bound)
    plot_pascal(curves, path, title=f"PascalRNN of {LAYERS} layers, layer_delay=0")


def alif() -> Network:
    torch.manual_seed(SEED)
    return Network([ALIFPlus(784, WIDTH), ALIFPlus(WIDTH, WIDTH)], n_out=10).double()


def gru() -> Network:
    torch.manual_seed(SEED)
    return wrap([nn.GRU(784, WIDTH), nn.GRU(WIDTH, WIDTH), nn.Linear(WIDTH, 10)]).double()


FOLDER.mkdir(exist_ok=True)
draw_paths(FOLDER / "theory_paths.png")
draw_pascal(FOLDER / "theory_pascal.png")

batches = input_batches(SpikeLatencyMNIST.embedded("train"), 64, seed=SEED)
x = batches[0]
growths, covariances = {}, {}
for name, network in (("GRU", gru()), ("ALIF+", alif())):
    for state in ("untrained", "at 0.5"):
        if state == "at 0.5":
            result = pretrain(network, batches, target=0.5, rule=TransitionRule(hold_threshold=True), seed=SEED)
            print(name, "converged" if result.converged else "missed", result.steps)
        size = 1e-3 if name == "GRU" else 1.0
        growths[f"{name} {state}"] = theory.perturbation_growth(network, x[:, :16], step=CHANGED, size=size)
        sizes, _ = singular_values(network, x)
        decay = theory.covariance_decay(sizes, step=ONE_STEP)
        covariances[f"{name} {state}, layer 1"] = tuple(part[0] for part in decay)
plot_growth(growths, FOLDER / "theory_growth.png", title=f"{ABOUT}: a change at step {CHANGED}, a loss at the last")
plot_covariance(
    covariances, FOLDER / "theory_covariance.png", steps=range(len(x)), step=ONE_STEP, samples=x.shape[1], title=ABOUT
)
