"""Activations of cells that send numbers: each a function of one number, with its derivative."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import silu

from neurolsc.validation import one_of


@dataclass(frozen=True)
class Activation:
    """A function of one number, and its derivative.

    Attributes:
        value: the function, of a tensor of any shape.
        slope: its derivative, likewise.
    """

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]


def _sigmoid_slope(a: Tensor) -> Tensor:
    s = torch.sigmoid(a)
    return s * (1 - s)


def _swish_slope(a: Tensor) -> Tensor:
    s = torch.sigmoid(a)
    return s * (1 + a * (1 - s))


ACTIVATIONS: dict[str, Activation] = {
    "relu": Activation(torch.relu, lambda a: (a > 0).to(a.dtype)),
    "sigmoid": Activation(torch.sigmoid, _sigmoid_slope),
    "tanh": Activation(torch.tanh, lambda a: 1 - torch.tanh(a).square()),
    "swish": Activation(silu, _swish_slope),
    "sine": Activation(torch.sin, torch.cos),
    "cosine": Activation(torch.cos, lambda a: -torch.sin(a)),
    "linear": Activation(lambda a: a, torch.ones_like),
}
"""The activations that a cell can be told by name. Of the paper: relu, sine and cosine in
feed-forward networks, sigmoid, relu and swish, x sigmoid(x), in recurrent ones."""


def activation(name: str) -> Activation:
    """The activation of a name.

    Raises:
        ValueError: if there is none; the message lists the known ones.
    """
    return ACTIVATIONS[one_of("activation", name, tuple(ACTIVATIONS))]
