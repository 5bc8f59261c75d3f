"""Comparisons bit by bit."""

import math
from typing import Any

import torch
from torch import Tensor


def bits(t: Tensor) -> bytes:
    return t.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def assert_same_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert list(a) == list(b)
    for name in a:
        assert a[name].dtype == b[name].dtype, name
        assert a[name].shape == b[name].shape, name
        assert bits(a[name]) == bits(b[name]), name


def assert_same_tree(a: Any, b: Any) -> None:
    assert type(a) is type(b)
    if isinstance(a, Tensor):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert bits(a) == bits(b)
    elif isinstance(a, dict):
        assert list(a) == list(b)  # keys with their types, and the order
        assert [type(k) for k in a] == [type(k) for k in b]
        for key in a:
            assert_same_tree(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for left, right in zip(a, b, strict=True):
            assert_same_tree(left, right)
    elif isinstance(a, float):
        assert math.copysign(1, a) == math.copysign(1, b)
        assert a == b or (math.isnan(a) and math.isnan(b))
    else:
        assert a == b
