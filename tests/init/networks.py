"""Networks of every library on which initialisers are tried, and an input under which they fire."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from neurolsc import LIF, ALIFLowPass, ALIFPlus, ALIFPlusMinus, Network, wrap
from neurolsc.surrogate import FastSigmoid

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # norse's import: `torch.jit.script` is deprecated
    import norse.torch as norse
import snntorch as snn

N_IN, WIDTH = 40, 32


def seeded(build: Callable[[], Network]) -> Callable[[], Network]:
    def made() -> Network:
        torch.manual_seed(0)
        return build()

    return made


def ours(cell: type, **settings: object) -> Callable[[], Network]:
    return seeded(lambda: Network([cell(N_IN, WIDTH, **settings), cell(WIDTH, WIDTH, **settings)], 4))


def recurrent_snntorch() -> Network:
    def layer() -> nn.Module:
        return snn.RLeaky(0.8, linear_features=WIDTH, spike_grad=FastSigmoid())

    return wrap([nn.Linear(N_IN, WIDTH), layer(), nn.Linear(WIDTH, WIDTH), layer(), nn.Linear(WIDTH, 4)])


def recurrent_norse() -> Network:
    return wrap([norse.LIFRecurrent(N_IN, WIDTH), norse.LIFRecurrent(WIDTH, WIDTH), nn.Linear(WIDTH, 4)])


NETWORKS: dict[str, Callable[[], Network]] = {
    "LIF": ours(LIF, tau_v=5.0),
    "ALIFPlus": ours(ALIFPlus, tau_v=5.0),
    "ALIFPlusMinus": ours(ALIFPlusMinus),
    "ALIFLowPass": ours(ALIFLowPass, b_theta=1.0),
    "snntorch": seeded(recurrent_snntorch),
    "norse": seeded(recurrent_norse),
}


def spikes(T: int = 50, B: int = 8, N: int = N_IN, rate: float = 0.2, seed: int = 1) -> Tensor:
    drawn = torch.rand(T, B, N, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (drawn < rate).to(torch.get_default_dtype())


def weights(network: Network) -> dict[str, Tensor]:
    """Everything that an initialiser may set."""
    found = {name: value.detach().clone() for name, value in network.state_dict().items()}
    for i, cell in enumerate(network.cells):
        for part in (p for p in cell.modules() if isinstance(p, FastSigmoid)):
            found |= {f"{i}.{name}": torch.as_tensor(getattr(part, name)) for name in ("dampening", "sharpness")}
    return found


def all_voltages(network: Network, x: Tensor) -> list[Tensor]:
    """The voltages of every layer along a run (T, B, N)."""
    with torch.no_grad():
        seen = [m.after.layers for m in network.records(x)]
    variable = "mem" if hasattr(seen[0][0], "mem") else "v"
    return [torch.stack([getattr(layers[i], variable) for layers in seen]) for i in range(len(network.cells))]


def rates(network: Network, x: Tensor) -> list[float]:
    with torch.no_grad():
        return [z.mean().item() for z in network.run(x).spikes]
