"""The kernels of the loop on a CPU, and how large ones are spread over torch's threads."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import ModuleType

import torch

WORTH = 2**20
"""Additions below which a thread of its own costs more than it saves."""


@cache
def kernels() -> ModuleType:
    """The kernels, which a first call of each compiles, or finds compiled on disk."""
    from neurolsc.neurons.fast import compiled_kernels  # the import of Numba takes half a second

    return compiled_kernels


def in_parts(length: int, additions: int, do: Callable[[int, int], None]) -> None:
    """Do something for 0 to ``length``, in parts side by side where it is much.

    Args:
        length: how many there are.
        additions: what all of it takes.
        do: what is to be done from the first to before the second number, by a kernel, which leaves
            the interpreter to other threads. The parts do not meet.
    """
    parts = min(torch.get_num_threads(), additions // WORTH, length)
    if parts < 2:
        do(0, length)
        return
    edges = [length * i // parts for i in range(parts + 1)]
    list(_threads(parts).map(do, edges[:-1], edges[1:]))


@cache
def _threads(count: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(count, thread_name_prefix="neurolsc")


if hasattr(os, "register_at_fork"):  # a forked process has none of these threads
    os.register_at_fork(after_in_child=_threads.cache_clear)
