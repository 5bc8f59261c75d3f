"""Healthy networks on the embedded data, and faults to plant in them."""

import copy
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from neurolsc import ALIFPlus, Network, match_firing_rates
from neurolsc.datasets import SHD, SpikeLatencyMNIST, collate
from neurolsc.datasets.batches import fetch
from neurolsc.surrogate import FastSigmoid

Batch = tuple[Tensor, Tensor]


@cache
def batch(data: str, count: int = 40) -> Batch:
    """Samples drawn from the training split: images as latencies, or spoken digits."""
    whole = SpikeLatencyMNIST.embedded("train")
    if data == "digits":
        whole = SHD.embedded("train", dt=0.02, channels=140, repeat=1, window=1.0)
    drawn = torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))[:count]
    x, labels = collate(fetch(whole, drawn.tolist()))
    return x, labels


def healthy(data: str, layers: int, cell: type = ALIFPlus, **settings: Any) -> tuple[Network, Batch]:
    """Layers that fire at 0.15 and, above the first, read with four times the usual weights."""
    return copy.deepcopy(_rate_matched(data, layers, cell, **settings)), batch(data)


@cache
def _rate_matched(data: str, layers: int, cell: type, **settings: Any) -> Network:
    x, _ = batch(data)
    torch.manual_seed(0)
    widths = [x.shape[2], *[64] * layers]
    network = Network([cell(below, 64, **settings) for below in widths[:-1]], 20 if data == "digits" else 10)
    with torch.no_grad():
        for deeper in network.cells[1:]:
            deeper.w_in.mul_(4)
    match_firing_rates(network, x, [0.15] * layers, tolerance=math.inf)
    return network


def dead(network: Network) -> None:
    """Thresholds that nothing reaches."""
    network.cells[1].theta_rest = 1e3


def saturated(network: Network) -> None:
    """Weights that only excite, and hardly a threshold."""
    cell = network.cells[1]
    with torch.no_grad():
        cell.w_in.abs_()
        cell.w_rec.abs_()
    cell.thresholds().scale(1e-3)


def frozen(network: Network) -> None:
    """A time constant that the optimizer does not get."""
    network.cells[0].log_tau_theta.requires_grad_(False)


def stuck(network: Network) -> None:
    """A time constant so long that its decay is 1 in float32; the thresholds stay."""
    cell = network.cells[0]
    rest = cell.theta_rest.detach()
    cell.tau_v = torch.full((64,), 1e-3)
    cell.theta_rest = rest


PLANTS: dict[str, tuple[Callable[[Network], None], int, str]] = {
    "dead": (dead, 2, "dead layer"),
    "saturated": (saturated, 2, "saturated layer"),
    "frozen": (frozen, 1, "frozen time constant"),
    "stuck": (stuck, 1, "stuck time constant"),
}
"""what is planted, in which layer it is to be named, and how"""


def exploding() -> tuple[Network, Batch]:
    """A reset by large thresholds that lets gradients through."""
    return healthy("digits", 2, reset_gradient=True, b_theta=1.0, spike=FastSigmoid(0.7, 1e-2))


HEALTHY = {
    "images, 2 layers": ("mnist", 2, ALIFPlus),
    "digits, 5 layers": ("digits", 5, ALIFPlus),
}
