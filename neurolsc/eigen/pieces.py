"""How many points are done at a time."""

from torch import Tensor

VECTORS = {"cpu": 2**17, "other": 2**20}
"""numbers that one vector of each point may hold together; a basis takes up to 110 times as many"""
CACHE = 2**20
"""numbers that stay in the cache of a core of a CPU"""
MATRICES = 2**23
"""numbers that the matrices may hold together"""


def with_bases(like: Tensor, size: int) -> int:
    """Points with vectors of so many numbers, on the device of a tensor."""
    return max(1, VECTORS.get(like.device.type, VECTORS["other"]) // size)


def with_matrices(size: int) -> int:
    """Points with matrices of so many rows."""
    return max(1, MATRICES // size**2)


def in_cache(like: Tensor, numbers: int) -> int:
    """Points of so many numbers each that stay in the cache together, or all on a GPU."""
    return max(8, CACHE // numbers) if like.device.type == "cpu" else len(like)
