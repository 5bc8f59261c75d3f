"""Products with the non-zero entries of a matrix are the dense ones; kernels compile without a folder."""

import multiprocessing
import warnings

import pytest
import torch
from numba.core import caching
from torch import Tensor

from neurolsc.neurons.fast import cpu_kernels
from neurolsc.neurons.fast.cpu_kernels import add_transposed_times, compiled, nonzeros, times


def sparse(rows: int, width: int, density: float, dtype: torch.dtype = torch.float64) -> Tensor:
    drawn = torch.rand(rows, width)
    return ((drawn < density) * (drawn + 1)).to(dtype)


@pytest.mark.parametrize(
    ("density", "threads", "dtype"), [(0.0, 1, torch.float64), (0.02, 3, torch.float32), (0.2, 3, torch.float64)]
)
def test_products(density, threads, dtype, monkeypatch):
    monkeypatch.setattr(cpu_kernels, "PER_THREAD", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    x, w, g = sparse(50, 70, density, dtype), torch.randn(70, 37, dtype=dtype), torch.randn(50, 37, dtype=dtype)
    entries = nonzeros(x)
    assert entries is not None
    assert len(entries.data) == x.count_nonzero()
    torch.testing.assert_close(times(entries, w), x @ w)
    total = torch.ones(70, 37, dtype=dtype)
    add_transposed_times(total, entries, g)
    torch.testing.assert_close(total, 1 + x.T @ g)
    assert nonzeros(sparse(50, 70, 0.3)) is None, "left to the dense product"


def test_a_process_that_is_forked_has_threads_of_its_own(monkeypatch):
    monkeypatch.setattr(cpu_kernels, "PER_THREAD", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    entries, w = nonzeros(sparse(50, 30, 0.2)), torch.randn(30, 7, dtype=torch.float64)
    assert entries is not None
    here, fork = times(entries, w), multiprocessing.get_context("fork")
    there = fork.Queue()
    child = fork.Process(target=lambda: there.put(times(entries, w).tolist()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads are there at the fork: that is the point
        child.start()
    assert here.any()
    assert torch.tensor(there.get(timeout=30), dtype=here.dtype).equal(here)
    child.join()


def test_kernels_compile_where_nothing_can_be_kept_on_disk(monkeypatch):
    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])  # what Numba asks for a folder
    assert compiled()(lambda x: 2 * x)(21) == 42
