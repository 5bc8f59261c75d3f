"""Time constants of a cell: whether a gradient reaches them, and whether a step can move them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from neurolsc.neurons.cell import Cell
from neurolsc.positive import behind

STUCK = 1e-6
"""change of a decay per change of log tau below which float32 does not see the steps of an
optimizer: a hundred of 1e-3 move a decay near 1 by less than its resolution, 1.2e-7"""


@dataclass(frozen=True)
class TimeConstant:
    """A parameter of a cell that sets how long something is kept."""

    name: str
    """its name on the cell"""
    decay: float
    """share kept from step to step, mean over neurons"""
    given: bool
    """whether it is a parameter at all, and not a number that was given"""
    trained: bool
    """whether it is a parameter that takes a gradient"""
    stuck: float
    """share of the neurons of which no step of an optimizer moves the decay"""
    gradient: float | None
    """norm of the gradient of the loss by the stored parameter; None where there is none"""

    @property
    def steps(self) -> float:
        r"""In steps: :math:`-1 / \ln d` of the mean decay, 0 or infinite at the ends."""
        return -1 / math.log(self.decay) if 0 < self.decay < 1 else (math.inf if self.decay else 0.0)


def time_constants(cell: Cell, gradients: Mapping[str, Tensor] | None = None) -> tuple[TimeConstant, ...]:
    r"""Ask a cell's answers for its time constants.

    Of a time constant tau in steps the decay is :math:`d = e^{-1/\tau}`, and a step of the
    logarithm that is trained moves it by

    .. math:: \frac{\partial d}{\partial \log \tau} = \frac{e^{-1/\tau}}{\tau},

    which vanishes for very long ones (d is 1) and very short ones (d is 0). A decay that is kept
    as such moves freely.

    Args:
        cell: the cell, which names them among :attr:`neurolsc.Cell.answers`.
        gradients: those of the cell's parameters by name, as
            :func:`neurolsc.stability.parameter_gradients` gives them.

    Returns:
        Its time constants; none of cells that name none.
    """
    found = []
    for answer in cell.answers:
        if answer.through == "value":
            continue
        path, _, name = answer.parameter.rpartition(".")
        owner = cell.get_submodule(path)
        value = torch.as_tensor(getattr(owner, name)).detach().double()
        decay = torch.exp(-1 / value) if answer.through == "decay" else value
        moves = decay / value if answer.through == "decay" else torch.ones_like(value)
        parameter = behind(owner, name)
        stored = next((n for n, p in cell.named_parameters() if p is parameter), "")
        gradient = (gradients or {}).get(stored)
        found.append(
            TimeConstant(
                answer.parameter,
                decay.mean().item(),
                parameter is None,
                parameter is not None and parameter.requires_grad,
                (moves < STUCK).double().mean().item(),
                None if gradient is None else gradient.norm().item(),
            )
        )
    return tuple(found)
