r"""The user's loss: a word, a task or a function; all become a function of outputs, targets and a mask.

With the network's output o[t, b] (C,) at step t of sample b, which lasts for T_b steps, and its class y_b,

.. math:: \text{count: } \mathrm{CE}\Big(\sum_t o[t, b],\, y_b\Big), \quad
    \text{membrane: } \mathrm{CE}\Big(\frac{1}{T_b} \sum_t o[t, b],\, y_b\Big), \quad
    \text{step: } \frac{1}{T_b} \sum_t \mathrm{CE}\big(o[t, b],\, y_b\big),

each a mean over samples b.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from neurolsc import tasks
from neurolsc.tasks import Classification, ClassPerStep, Task
from neurolsc.validation import one_of

Word = Literal["count", "membrane", "step"]
Loss = Word | Task | Callable[[Tensor, Tensor], Tensor]
WORDS: tuple[Word, ...] = get_args(Word)


def of_counts(out: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the cross-entropy of the sums over time of outputs (T, B, C), for classes (B,).

    The mask is not needed: a network's outputs after the end of a sample are 0.
    """
    return cross_entropy(out.sum(0), y.long())


def of_means(out: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the cross-entropy of the means of outputs (T, B, C) over the steps of each sample, for classes (B,).

    `mask` (T, B) is True at the steps of a sample; None: all samples last for T steps. Outputs after the end are 0.
    """
    if mask is None:
        return cross_entropy(out.mean(0), y.long())
    lengths = mask.sum(0).clamp(min=1)
    return cross_entropy(out.sum(0) / lengths.unsqueeze(1), y.long())


def of_steps(out: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the mean cross-entropy of outputs (T, B, C) at every step, for classes of samples (B,) or steps (T, B)."""
    if y.ndim == 2:
        return ClassPerStep().loss(out, y, mask)
    return tasks.cross_entropy(out, y, mask)


BY_WORD = {"count": of_counts, "membrane": of_means, "step": of_steps}


def output_of(loss: object) -> Literal["spikes", "membrane"] | None:
    """Return which output a loss reads of a last layer that has both: its spikes or its membrane.

    None: a loss that is neither "count" nor "membrane" does not say.
    """
    if loss == "count":
        return "spikes"
    if loss == "membrane":
        return "membrane"
    return None


@dataclass(frozen=True)
class OfUser:
    """A user's function of outputs and targets; the mask is not passed to it."""

    function: Callable[[Tensor, Tensor], Tensor]

    def __call__(self, out: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.function(out, y)


@dataclass(frozen=True)
class Objective:
    """A user's loss as a function of outputs, targets and a mask."""

    value: Callable[[Tensor, Tensor, Tensor | None], Tensor]  # of outputs (T, B, C), targets and a mask
    of_classes: bool  # True if targets are classes and the loss of guessing is ln(classes)

    def __call__(self, out: Tensor, y: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.value(out, y, mask)

    def guesses_among(self, out: Tensor, y: Tensor | None, mask: Tensor | None = None) -> int | None:
        """Return the number of classes C, if the loss of guessing among them is ln(C); else None.

        A user's function does not say so, but shows it: at outputs of 0 a cross-entropy has that loss.

        Args:
            out: outputs of 0 (T, B, C).
            y: the targets; None: there are none.
            mask: the steps of each sample (T, B); None: all.
        """
        classes = out.shape[2]
        if self.of_classes:
            return classes
        if classes == 1 or y is None or y.is_floating_point():
            return None
        with torch.no_grad():
            loss = self.value(out, y, mask).item()
        if math.isclose(loss, math.log(classes), rel_tol=1e-3):
            return classes
        return None


def objective(loss: object) -> Objective:
    """Make a function of outputs, targets and mask from a word, a task or a user's function.

    Raises:
        TypeError: if it is neither a word, a task nor a function.
        ValueError: if the word is unknown.
    """
    if isinstance(loss, str):
        one_of("loss", loss, WORDS)
        return Objective(BY_WORD[loss], of_classes=True)
    if isinstance(loss, type):
        raise TypeError(f"loss must be an object, got the class {loss.__name__}: give {loss.__name__}().")
    if hasattr(loss, "loss") and hasattr(loss, "measures"):  # a task, of neurolsc or a user's own
        return Objective(loss.loss, of_classes=isinstance(loss, Classification))  # type: ignore[attr-defined]
    if callable(loss):
        # a function does not tell whether its targets are classes
        return Objective(OfUser(loss), of_classes=False)  # type: ignore[arg-type]
    words = ", ".join(map(repr, WORDS))
    raise TypeError(f"loss must be {words}, a task or a function of (out, y), got {type(loss).__name__}.")


def check(loss: object, out: Tensor, y: Tensor, mask: Tensor | None = None) -> None:
    """Refuse targets that a loss cannot read, and a loss that is not one number with a gradient, by computing it once.

    Args:
        loss: the loss, as of :func:`objective`.
        out: outputs (T, B, C).
        y: targets, of the shape that the loss takes.
        mask: the steps of each sample (T, B); None: all.

    Raises:
        TypeError: if the loss returns no tensor, or is given by name and y holds other than whole numbers.
        ValueError: if the loss cannot read y, or returns more than one number or one without a gradient.
    """
    chosen = objective(loss)
    if isinstance(loss, str):
        check_classes(loss, out, y)
    leaf = out.detach().requires_grad_()
    shapes = f"out {tuple(out.shape)} and y {tuple(y.shape)}"
    try:
        with torch.enable_grad():
            value = chosen(leaf, y, mask)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ValueError(f"loss cannot read {shapes} of this network: {error}") from error
    if not isinstance(value, Tensor):
        raise TypeError(f"loss must return a tensor of one number, got {type(value).__name__}, from {shapes}.")
    if value.numel() != 1:
        raise ValueError(f"loss must return one number, got a tensor {tuple(value.shape)}, from {shapes}.")
    if not value.requires_grad:
        raise ValueError(f"loss must have a gradient by the output, got a number without one, from {shapes}.")


def check_classes(word: str, out: Tensor, y: Tensor) -> None:
    """Refuse targets that are no classes of outputs (T, B, C).

    Raises:
        TypeError: if y does not hold whole numbers.
        ValueError: if y has another shape, or a class is outside 0 to C - 1.
    """
    steps, samples, classes = out.shape
    shapes: list[tuple[int, ...]] = [(samples,)]
    if word == "step":
        shapes.append((steps, samples))
    if tuple(y.shape) not in shapes:
        wanted = " or ".join(map(str, shapes))
        raise ValueError(f'y must have the shape {wanted} for loss="{word}", got {tuple(y.shape)}.')
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise TypeError(f'y must be classes, whole numbers, for loss="{word}", got {y.dtype}.')
    low = y.min().item()
    high = y.max().item()
    if low < 0 or high >= classes:
        span = f"0 to {classes - 1}, as this network has {classes} outputs"
        raise ValueError(f"y must be classes from {span}, got {low} to {high}.")
