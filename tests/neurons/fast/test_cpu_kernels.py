"""Products with the non-zero entries of a matrix are the dense ones."""

import multiprocessing
import warnings

import pytest
import torch
from torch import Tensor

from neurolsc.neurons.fast import cpu_kernels
from neurolsc.neurons.fast.cpu_kernels import CSR, add_transposed_times, nonzeros, times


def sparse(rows: int, width: int, density: float, dtype: torch.dtype = torch.float64) -> Tensor:
    drawn = torch.rand(rows, width)
    return ((drawn < density) * (drawn + 1)).to(dtype)


def transposed(entries: CSR, g: Tensor, width: int) -> Tensor:
    """The entries, transposed, times g, added to what was there."""
    total = torch.ones(width, g.shape[1], dtype=g.dtype)
    add_transposed_times(total, entries, g)
    return total - 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("density", [0.0, 0.02, 0.2])
def test_products(density, threads, dtype, monkeypatch):
    monkeypatch.setattr(cpu_kernels, "PER_THREAD", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    x, w, g = sparse(50, 70, density, dtype), torch.randn(70, 37, dtype=dtype), torch.randn(50, 37, dtype=dtype)
    entries = nonzeros(x)
    assert entries is not None
    assert len(entries.data) == x.count_nonzero()
    torch.testing.assert_close(times(entries, w), x @ w)
    torch.testing.assert_close(transposed(entries, g, 70), x.T @ g)


def test_many_entries_are_left_to_the_dense_product():
    assert nonzeros(sparse(50, 70, 0.2)) is not None
    assert nonzeros(sparse(50, 70, 0.3)) is None


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
