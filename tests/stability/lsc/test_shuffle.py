"""The shuffle: another order of the entries, and no connection where there is none."""

import torch

from neurolsc.stability.lsc.shuffle import draw_orders, shuffled


def test_exact_zeros_stay_where_they_are():
    w = torch.randn(6, 6).fill_diagonal_(0)
    before = w.clone()
    w = shuffled(w, torch.randperm(36))
    assert not torch.equal(w, before)
    assert not w.diagonal().any()
    assert torch.equal(w.flatten().sort().values, before.flatten().sort().values)


def test_orders_are_permutations_and_those_of_the_generator():
    parameters = [torch.zeros(3, 4), torch.zeros(5)]
    orders, again = (draw_orders(parameters, torch.Generator().manual_seed(1)) for _ in range(2))
    assert [sorted(order.tolist()) for order in orders] == [list(range(12)), list(range(5))]
    assert all(map(torch.equal, orders, again))
