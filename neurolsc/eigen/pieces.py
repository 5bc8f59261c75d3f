"""How many points are done at a time."""

from torch import Tensor

VECTORS = {"cpu": 2**15, "other": 2**20}
"""numbers that one vector of each point may hold together: on a CPU as many as stay in the cache,
on a GPU as many as keep it busy; a basis takes some 200 times as many"""
MATRICES = 2**23
"""numbers that the matrices may hold together"""


def with_bases(like: Tensor, size: int) -> int:
    """Points with vectors of so many numbers, on the device of a tensor."""
    return max(1, VECTORS.get(like.device.type, VECTORS["other"]) // size)


def with_matrices(size: int) -> int:
    """Points with matrices of so many rows."""
    return max(1, MATRICES // size**2)
