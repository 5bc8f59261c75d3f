"""Kernels are compiled where their code can be kept on disk, and where it cannot."""

import pytest
from numba import njit
from numba.core import caching

from neurolsc.compiling import compiled


def test_kernels_compile_where_nothing_can_be_kept_on_disk(monkeypatch):
    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])  # what Numba asks for a folder
    double = compiled()(lambda x: 2 * x)
    assert double(21) == 42
    assert double.signatures
    with pytest.raises(RuntimeError, match="cannot cache function"):
        njit(lambda x: x, cache=True)
