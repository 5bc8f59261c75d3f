"""The loop of the paper's released code, as far as it differs from the paper's text."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from neurolsc.stability.lsc.criteria import Criteria
from neurolsc.stability.lsc.rules import PaperRule

RELEASED: Mapping[str, Any] = MappingProxyType(
    {
        "rule": PaperRule(),
        "criteria": Criteria(tolerance=0.08, deviation=None, smoothed_deviation=None, hold=21),
        "shuffle": 0.34,
        "polish": False,
        "lr": 7.2e-3,
    }
)
"""Keywords of :func:`neurolsc.pretrain` for the released code's loop.

It stops when every mean has been within 0.08 of its target for more than 20 steps in a row. Its
third condition, on a running variance of the means among layers and directions, follows from that,
but for a network that is on target from the start: the variance starts at 1 and falls below 0.1 in
22 steps. It shuffles in one step of three, and its learning rate is 7.2e-3.

As it builds its model anew in every step, its optimizer begins anew as well, and Lookahead's slow
copy is never an old one; here multipliers and shuffle act on both copies, which comes closest.

What is left out: it takes the radius of the readout to 1 as well, and looks at all samples of a
batch at one time step after the other. Its weights are those of the best pooled mean, ours of the
smallest miss; that it returns to them after 40 steps without a better one has no effect there, as
the next line takes the newest weights again.

Source: the released code of arXiv:2308.12075 (LuCeHe/stable_drnn, neural_models/recLSC.py).

Example:
    >>> import torch
    >>> from neurolsc import RNN, Network, pretrain
    >>> _ = torch.manual_seed(0)
    >>> network = Network([RNN(9, 8)], 3)
    >>> result = pretrain(network, [torch.rand(12, 8, 9)], target=1.0, **RELEASED, progress=False)
    >>> result.converged, result.steps > 20
    (True, True)
"""
