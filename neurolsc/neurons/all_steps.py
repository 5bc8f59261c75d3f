"""What runs over all steps at once share, and those by PyTorch's own recurrent kernels."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from neurolsc.frames import keep


def read_by(x: Tensor, first: Tensor | None, dtype: torch.dtype) -> Tensor:
    """What a layer reads, dense (T, B, n_in): x, or x one step late after `first`."""
    x = (x.to_dense() if x.is_sparse else x).to(dtype)
    return x if first is None else torch.cat([first.to(dtype).unsqueeze(0), x[:-1]])


def last_of(outputs: Tensor, start: Tensor, lengths: Tensor | None) -> Tensor:
    """The last of the values (T, B, ...) that each sample had; the start where it had none."""
    if lengths is None:
        return outputs[-1]
    last = outputs[(lengths - 1).clamp(min=0), torch.arange(len(start), device=start.device)]
    return keep(last, start, lengths > 0)


def one_by_one(
    advance: Callable[[Tensor, Tensor], Tensor], currents: Tensor, start: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The states of all steps (T, B, n), which are the outputs, and the last one.

    Args:
        advance: the next state, of what the input does in a step and the state.
        currents: what the input does at all steps (T, B, ...).
        start: the state before.
        lengths: as in :func:`by_kernel`.
    """
    h, states = start, []
    for current in currents.unbind(0):
        h = advance(current, h)
        states.append(h)
    outputs = torch.stack(states)
    return outputs, last_of(outputs, start, lengths)


def by_kernel(
    kernel: Callable[..., Any],
    x: Tensor,
    state: Sequence[Tensor],
    weights: Sequence[Tensor],
    lengths: Tensor | None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """The outputs of all steps, and the last state, by a kernel such as ``torch.lstm``.

    Args:
        kernel: ``torch.rnn_tanh``, ``rnn_relu``, ``gru`` or ``lstm``.
        x: what is read (T, B, n_in).
        state: its variables, each (B, n_hidden).
        weights: input weights, recurrent weights and their two biases, in PyTorch's order.
        lengths: steps after which each sample stands still (B,), or None.
    """
    starts = tuple(leaf.unsqueeze(0) for leaf in state)
    if lengths is None:
        outputs, *last = kernel(x, _as_given(starts), weights, True, 1, 0.0, True, False, False)
        return outputs, tuple(leaf.squeeze(0) for leaf in last)
    packed = pack_padded_sequence(x, lengths.clamp(min=1).cpu(), enforce_sorted=False)
    order, back = packed.sorted_indices, packed.unsorted_indices
    starts = tuple(leaf[:, order] for leaf in starts)
    data, *last = kernel(packed.data, packed.batch_sizes, _as_given(starts), weights, True, 1, 0.0, True, False)
    outputs, _ = pad_packed_sequence(packed._replace(data=data), total_length=len(x))
    after = (leaf.squeeze(0)[back] for leaf in last)
    return outputs, tuple(keep(new, old, lengths > 0) for new, old in zip(after, state, strict=True))


def _as_given(state: tuple[Tensor, ...]) -> Any:
    """A kernel takes one variable as it is, two as a tuple."""
    return state[0] if len(state) == 1 else state
