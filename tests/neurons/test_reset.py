"""Resets: what a spike does to the voltage, and the derivatives they state."""

import pytest
import torch

from neurolsc.neurons.reset import make_reset

pytestmark = pytest.mark.usefixtures("float64")

NAMES = ("subtract", "static", "zero")


def test_carry_written_out():
    leaked, z, theta = torch.tensor([[0.8, 0.8]]), torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.5]])
    for name, after_spike in {"subtract": 0.3, "static": 0.3, "zero": 0.0}.items():
        torch.testing.assert_close(make_reset(name, False).carry(leaked, z, theta), torch.tensor([[0.8, after_spike]]))


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_derivatives_are_those_of_carry(name, gradient):
    v, decay = torch.rand(3, 4, requires_grad=True), torch.rand(4)
    theta, z = torch.rand(3, 4, requires_grad=True), (torch.rand(3, 4) < 0.5).double().requires_grad_()
    reset = make_reset(name, gradient)
    # a static reset subtracts the resting threshold, which does not depend on the state
    carried = reset.carry(decay * v, z, theta.detach() if name == "static" else theta)
    by_v, by_theta, by_z = torch.autograd.grad(carried.sum(), (v, theta, z), allow_unused=True, materialize_grads=True)
    d, e, r = reset.derivatives(decay, v, z, theta)
    torch.testing.assert_close((d, e, -r), (by_v, by_theta, by_z))
    assert z.any()
    assert gradient == bool(r.any())


def test_unknown_name_is_answered_with_the_known_ones():
    with pytest.raises(ValueError, match=r"reset must be one of 'subtract', 'static', 'zero', got 'soft'"):
        make_reset("soft", False)
