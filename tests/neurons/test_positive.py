"""Positive: a parameter that no optimizer can make zero, negative or infinite, and that can be
assigned."""

import copy
import math

import pytest
import torch
from torch import nn

from neurolsc.positive import Positive

pytestmark = pytest.mark.usefixtures("float64")


class Leak(nn.Module):
    tau = Positive()

    def __init__(self) -> None:
        super().__init__()
        self.tau = torch.tensor([1.0, 2.0, 30.0])


def test_reads_what_was_assigned():
    leak = Leak()
    torch.testing.assert_close(leak.tau, torch.tensor([1.0, 2.0, 30.0]))
    leak.tau = torch.tensor([0.5, 7.0, 1e4])
    torch.testing.assert_close(leak.tau, torch.tensor([0.5, 7.0, 1e4]))
    leak.tau = 3.0
    torch.testing.assert_close(leak.tau, torch.full((3,), 3.0))


def test_is_one_trainable_parameter_and_assigning_keeps_it():
    leak = Leak()
    (parameter,) = leak.parameters()
    leak.tau = 5.0
    assert list(leak.state_dict()) == ["log_tau"]
    assert next(leak.parameters()) is parameter
    (gradient,) = torch.autograd.grad((leak.tau**2).sum(), parameter)
    torch.testing.assert_close(gradient, torch.full((3,), 50.0))  # d tau² / d log tau = 2 tau²


def test_copies_are_independent():
    leak = Leak()
    other = copy.deepcopy(leak)
    other.tau = 9.0
    torch.testing.assert_close(leak.tau, torch.tensor([1.0, 2.0, 30.0]))


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, torch.tensor([1.0, -2.0, 1.0])], ids=str)
def test_refuses_what_is_not_positive_and_keeps_the_old_value(bad):
    leak = Leak()
    with pytest.raises(ValueError, match="tau must be positive and finite, got"):
        leak.tau = bad
    torch.testing.assert_close(leak.tau, torch.tensor([1.0, 2.0, 30.0]))


def test_refuses_a_wrong_shape():
    with pytest.raises(ValueError, match=r"tau has shape \(3,\), got \(2,\)"):
        Leak().tau = torch.ones(2)


@pytest.mark.parametrize("direction", [-1, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_stays_positive_and_finite_with_its_gradients_whatever_an_optimizer_does(direction, dtype):
    leak = Leak().to(dtype)
    optimizer = torch.optim.Adam(leak.parameters(), lr=1e3)
    for _ in range(3):
        optimizer.zero_grad()
        (direction * leak.tau).sum().backward()
        optimizer.step()
    assert ((leak.tau > 0) & leak.tau.isfinite()).all()
    for function in (lambda tau: torch.exp(-1 / tau), lambda tau: 1 / -torch.expm1(-1 / tau)):
        (gradient,) = torch.autograd.grad(function(leak.tau).sum(), leak.parameters())
        assert gradient.isfinite().all()
