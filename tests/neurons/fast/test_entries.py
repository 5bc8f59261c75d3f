"""Products by events: what they give, and when they are used."""

import multiprocessing
import warnings
import weakref

import numpy as np
import pytest
import torch
from torch import Tensor

from neurolsc import ALIFPlus, Network
from neurolsc.neurons.fast import chunks, compiled, function, reading
from neurolsc.neurons.fast import entries as products
from neurolsc.neurons.fast.entries import DENSITY, Entries, events_in, spikes_in, stacked
from neurolsc.neurons.fast.reading import Reading

pytestmark = pytest.mark.usefixtures("float64")


def transposed(events: Entries, g: Tensor, a: int, b: int) -> Tensor:
    """Rows a to b of the events, transposed, times g, beside what was there."""
    total = torch.ones(events.width, g.shape[1])
    events.add_transposed_times(g, a, b, total)
    return total - 1


def sparse(rows: int, width: int, density: float, *, ones: bool) -> Tensor:
    drawn = torch.rand(rows, width)
    return (drawn < density).double() * (1 if ones else drawn + 1)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.2, 1.0])
@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.float32, torch.float64])
def test_every_entry_that_is_not_zero_is_found(share, dtype):
    z = (torch.rand(40, 70) < share).to(dtype)
    events, (row, column) = spikes_in(z), z.nonzero(as_tuple=True)
    assert events.column.tolist() == column.tolist()
    assert events.start.tolist() == [0, *row.bincount(minlength=40).cumsum(0).tolist()]
    assert bool(z.any()) == (share > 0)


@pytest.mark.parametrize("ones", [True, False])
@pytest.mark.parametrize("convert", [Tensor.clone, Tensor.to_sparse, lambda x: x.to(torch.uint8), Tensor.bool])
def test_events_of_an_input_multiply_as_it_does(convert, ones):
    x = convert(sparse(5 * 4, 30, 0.2, ones=ones).view(5, 4, 30))
    dense = x.to_dense().double().view(20, 30)
    events, w, g = events_in(x, torch.float64), torch.randn(30, 6), torch.randn(9, 6)
    assert events is not None
    assert (events.values is None) == (len(dense.unique()) == 2 and dense.max() == 1)
    torch.testing.assert_close(events.times(w, 4, 13), dense[4:13] @ w)
    torch.testing.assert_close(transposed(events, g, 4, 13), dense[4:13].T @ g)
    assert dense[4:13].any()


@pytest.mark.parametrize("ones", [True, False])
def test_rows_of_a_very_wide_matrix_multiply_as_its_entries_say(ones):
    rows, width = 1025, 2**21  # the place of an entry by column and row does not fit in 32 bits
    row, column = torch.randint(rows, (50,)), torch.randint(width, (50,))
    column[:2] = torch.tensor([0, width - 1])
    values = torch.ones(50) if ones else torch.rand(50) + 1
    x = torch.sparse_coo_tensor(torch.stack([row, column]), values, (rows, width), check_invariants=True)
    events, g = events_in(x, torch.float64), torch.randn(rows, 2)
    assert events is not None
    torch.testing.assert_close(transposed(events, g, 0, rows), x.T @ g)
    assert len(events.column) == 50


def test_a_matrix_without_events():
    events = spikes_in(torch.zeros(4, 6))
    assert torch.equal(events.times(torch.randn(6, 3), 1, 3), torch.zeros(2, 3))
    assert torch.equal(transposed(events, torch.randn(2, 3), 1, 3), torch.zeros(6, 3))


def test_events_under_each_other():
    parts = [sparse(3, 8, 0.2, ones=True) for _ in range(4)]
    parts = [part * (part.cumsum(1) <= 1) for part in parts]  # few
    whole = stacked([spikes_in(part) for part in parts])
    w = torch.randn(8, 5)
    torch.testing.assert_close(whole.times(w, 0, 12), torch.cat(parts) @ w)


@pytest.mark.parametrize(("density", "by_events"), [(0.8 * DENSITY, True), (1.2 * DENSITY, False)])
@pytest.mark.parametrize("layer_delay", [0, 1])
def test_on_both_sides_of_the_density_a_run_is_that_of_sparse_input(density, by_events, layer_delay):
    x = sparse(6 * 40, 90, density, ones=False).view(6, 40, 90)
    torch.manual_seed(1)
    network = Network([ALIFPlus(90, 40), ALIFPlus(40, 8)], 3, layer_delay=layer_delay)
    assert (Reading(x, None, network.cells[0].w_in).events is not None) == by_events
    gradients = []
    for form in (x, x.to_sparse()):
        run = network.run(form)
        assert run.spikes[0].mean() > 0.01
        gradients.append(torch.autograd.grad(run.logits.square().sum(), list(network.parameters())))
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-14)


def test_small_products_are_dense():
    w = torch.randn(8, 10)
    assert Reading(torch.zeros(5, 2, 10), None, w).events is None
    assert Reading(torch.zeros(5, 2, 10).to_sparse(), None, w).events is None


@pytest.mark.parametrize(
    "take", [lambda x: x[:, :1], lambda x: x[:, 3:4], lambda x: x[::2], lambda x: x.transpose(0, 1)]
)
def test_inputs_of_any_layout_in_memory_have_the_same_events(take):
    x = take((torch.rand(6, 5, 40) < 0.1) * torch.rand(6, 5, 40))
    here, copied = events_in(x, torch.float32), events_in(x.contiguous(), torch.float32)
    assert here is not None
    assert copied is not None
    assert len(here.column) > 10
    for a, b in ((here.column, copied.column), (here.start, copied.start), (here.values, copied.values)):
        assert np.array_equal(a, b)


def test_what_a_layer_sends_is_not_searched_again(monkeypatch):
    monkeypatch.setattr(products, "SMALLEST", 1)
    searched, search = [], products.events_in
    monkeypatch.setattr(reading, "events_in", lambda x, dtype: (searched.append(x), search(x, dtype))[1])
    x, cells = sparse(60, 12, 0.2, ones=True).view(12, 5, 12), [ALIFPlus(12, 8), ALIFPlus(8, 6)]
    with torch.no_grad():
        cells[0].w_in.mul_(5)
    z, _ = cells[0].run(x, cells[0].initial_state(5))
    assert z.any()
    known, _ = cells[1].run(z, cells[1].initial_state(5))
    assert [each is x for each in searched] == [True]
    assert torch.equal(known, cells[1].run(z.clone(), cells[1].initial_state(5))[0])
    with torch.no_grad():
        z.mul_(torch.rand_like(z) < 0.5)
    changed, _ = cells[1].run(z, cells[1].initial_state(5))
    assert searched[-1] is z
    assert torch.equal(changed, cells[1].run(z.clone(), cells[1].initial_state(5))[0])


@pytest.mark.parametrize("gradient", [True, False])
def test_the_layer_above_knows_what_a_layer_sends_with_and_without_a_gradient(gradient, monkeypatch):
    monkeypatch.setattr(products, "SMALLEST", 1)
    searched, search = [], products.events_in
    monkeypatch.setattr(reading, "events_in", lambda x, dtype: (searched.append(x), search(x, dtype))[1])
    x = sparse(60, 12, 0.2, ones=True).view(12, 5, 12)
    network = Network([ALIFPlus(12, 8), ALIFPlus(8, 6)], 3, layer_delay=0)
    with torch.no_grad():
        network.cells[0].w_in.mul_(5)
    with torch.set_grad_enabled(gradient):
        spikes = network.run(x).spikes
    assert 0 < spikes[0].mean() < DENSITY
    assert [each is x for each in searched] == [True]


def test_what_is_known_of_spikes_goes_with_them():
    network = Network([ALIFPlus(700, 80), ALIFPlus(80, 80)], 3)
    with torch.no_grad():
        spikes = network.run((torch.rand(4, 100, 700) < 0.05).double()).spikes
    known = weakref.ref(function._SENT[spikes[0]])
    assert len(known().column) == spikes[0].sum() > 0
    del spikes
    assert known() is None


@pytest.mark.parametrize("tile", [1, 3, 64])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("ones", [True, False])
def test_products_in_tiles_and_by_threads_are_the_same(ones, threads, tile, monkeypatch):
    x, w, g = sparse(50, 30, 0.3, ones=ones), torch.randn(30, 7), torch.randn(50, 7)
    parts = []
    monkeypatch.setattr(products, "tile", lambda matrix: tile)
    monkeypatch.setattr(compiled, "WORTH", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(products, "DENSITY", 1.0)
    real = compiled.in_parts
    monkeypatch.setattr(
        products, "in_parts", lambda n, size, do: real(n, size, lambda a, b: (parts.append((a, b)), do(a, b))[1])
    )
    events = events_in(x, torch.float64)
    assert events is not None
    torch.testing.assert_close(events.times(w), x @ w)
    torch.testing.assert_close(transposed(events, g, 0, 50), x.T @ g)
    assert len(parts) == 2 * threads


def test_a_process_that_is_forked_has_threads_of_its_own(monkeypatch):
    monkeypatch.setattr(compiled, "WORTH", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    x, w = sparse(50, 30, 0.2, ones=True), torch.randn(30, 7)
    events = spikes_in(x)
    here, there = events.times(w), multiprocessing.get_context("fork").Queue()
    child = multiprocessing.get_context("fork").Process(target=lambda: there.put(events.times(w).tolist()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads are there at the fork: that is the point
        child.start()
    assert torch.tensor(there.get(timeout=30)).equal(here)
    child.join()
    assert here.any()


def test_an_input_of_several_chunks_has_its_events(monkeypatch):
    monkeypatch.setattr(chunks, "ENTRIES", 100)
    x, w = sparse(50, 9, 0.2, ones=False), torch.randn(9, 4)
    found = events_in(x, torch.float64)
    assert found is not None
    torch.testing.assert_close(found.times(w), x @ w)
    dense = torch.cat([x, torch.ones(20, 9)])
    assert events_in(dense, torch.float64) is None
