"""The way back through surrogates that are not ours: by their formula where it is what autograd
gives."""

import pytest
import torch
from torch import Tensor

from neurolsc.neurons.fast.slopes import StepByStep
from neurolsc.surrogate import FastSigmoid


class Tripled(FastSigmoid):
    """Whose formula is not the derivative of its spikes."""

    def shape(self, x: Tensor) -> Tensor:
        return 3 * super().shape(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("spike", "agrees"), [(FastSigmoid, True), (Tripled, False)])
def test_a_formula_that_agrees_with_autograd_is_taken_in_either_dtype(spike, agrees, dtype):
    way, distance = StepByStep(spike(), [], []), torch.linspace(-2, 2, 40, dtype=dtype).view(5, 2, 4)
    way.enter(distance)
    assert way.by_formula == agrees
    back = torch.linspace(1, 3, 8, dtype=dtype).view(2, 4)
    found = way.times_(3, back)
    assert found.dtype == dtype
    torch.testing.assert_close(found, FastSigmoid().derivative(distance[3]) * back)
