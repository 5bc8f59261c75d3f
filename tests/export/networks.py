"""Networks of every kind that can be exported, with inputs under which they fire."""

from typing import Any

import torch
from torch import Tensor

from neurolsc import LIF, ALIFPlus, ALIFPositive, Network

T, N_IN, WIDTH, N_OUT = 60, 30, 20, 4


def lif(n_in: int = N_IN, width: int = WIDTH, *, bias: float = 0.0, recurrent: bool = True, **settings: Any) -> LIF:
    """Thresholds, decays and biases differ from neuron to neuron."""
    cell = LIF(n_in, width, **({"tau_v": 5.0} | settings))
    with torch.no_grad():
        cell.theta.copy_(torch.linspace(0.8, 1.2, width))
        cell.w_in.mul_(3)
        if bias:
            cell.b_v.copy_(torch.linspace(0.5, 1.5, width) * bias)
        if not recurrent:
            cell.w_rec.zero_()
    return cell


def alif(
    n_in: int = N_IN, width: int = WIDTH, *, kind: type[ALIFPlus] = ALIFPlus, bias: float = 0.0, **settings: Any
) -> ALIFPlus:
    usual: dict[str, Any] = {"tau_v": 5.0, "tau_theta": 20.0, "b_theta": 0.05, "adaptation": 0.3, "reset": "static"}
    cell = kind(n_in, width, **(usual | settings))
    with torch.no_grad():
        cell.w_in.mul_(3)
        cell.b_v.fill_(bias)
    return cell


MADE = {
    "subtract": lambda: [lif(), lif(WIDTH, 16, recurrent=False)],
    "zero": lambda: [lif(reset="zero", bias=0.1), lif(WIDTH, 16, recurrent=False, reset="zero")],
    "bias, subtract": lambda: [lif(bias=0.1), lif(WIDTH, 16, bias=0.2)],
    "ALIF": lambda: [alif(bias=0.02), alif(WIDTH, 16, kind=ALIFPositive), lif(16, 16)],
}
KINDS = tuple(MADE)


def make(kind: str, seed: int = 0) -> Network:
    """A network of one kind, the same for the same seed."""
    torch.manual_seed(seed)
    return Network(MADE[kind](), N_OUT, layer_delay=0 if kind == "bias, subtract" else 1)


def spikes(steps: int = T, batch: int = 3, n_in: int = N_IN, *, rate: float = 0.2, seed: int = 1) -> Tensor:
    return (torch.rand(steps, batch, n_in, generator=torch.Generator().manual_seed(seed)) < rate).float()


def in_steps(w_in: float, w_rec: float, rest: float, bias: float = 0.0) -> Network:
    """An ALIF whose step of adaptation, before the decay, is 1: all numbers are in steps."""
    cell = alif().double()
    with torch.no_grad():
        cell.tau_theta = torch.full((WIDTH,), 20.0)
        cell.adaptation.copy_(cell.decay_theta)
        cell.theta_rest = rest
        cell.w_in.copy_(torch.linspace(-w_in, w_in / 2, WIDTH * N_IN).view(WIDTH, N_IN))
        cell.w_rec.copy_(torch.linspace(-w_rec, w_rec / 2, WIDTH * WIDTH).view(WIDTH, WIDTH))
        cell.b_v.fill_(bias)
    return Network([cell], N_OUT).double()
