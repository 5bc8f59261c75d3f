"""Wrapped layers over all steps at once: as in plain steps, and in plain steps where they have to be."""

import copy
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from neurolsc import wrap
from neurolsc.interop.wrapped import WrappedCell
from neurolsc.neurons.cell import Cell
from tests.interop.layers import EVERY, N
from tests.interop.test_wrap_spikingjelly import NODES, RESETS

pytestmark = pytest.mark.filterwarnings("ignore::neurolsc.WrappedNeuronWarning")

PLAIN = ("ALIF", "LIF-zero", "SLSTM", "IAF", "LIBox", "RLeaky-conv", "LIFBoxRecurrent")  # no kernel knows them
JELLY = [f"{kind} {reset}" for kind in NODES for reset in RESETS]
LIBRARIES = [name for name in EVERY if name.startswith(("snn.", "norse."))]
STEPS, BATCH = 12, 3


def cell_of(name: str) -> WrappedCell:
    """A layer with a Linear or a convolution below it, in float64."""
    torch.manual_seed(0)
    if name in EVERY:
        make, shape = EVERY[name]
    else:
        kind, reset = name.split()
        make, shape = (lambda: [nn.Linear(7, N), NODES[kind](v_reset=RESETS[reset])]), (7,)
    cell: Any = wrap([module.double() for module in make()], input_shape=shape).cells[0]
    return cell


def run_and_gradients(cell: WrappedCell, x: Tensor, state: Any, lengths: Tensor | None) -> tuple[Any, list[Tensor]]:
    """Outputs and the last state; and gradients of a random sum of both by parameters, input and first state."""
    leaves = [leaf.clone().requires_grad_() for leaf in state]
    x = x.clone().requires_grad_()
    out, last = cell.run(x, type(state)(*leaves), lengths=lengths)
    alive = torch.ones(STEPS, BATCH, 1, dtype=x.dtype)
    if lengths is not None:
        alive = (torch.arange(STEPS)[:, None] < lengths).to(x.dtype).unsqueeze(-1)  # outputs mean nothing later
    sent = [out * alive, *last]
    draw = torch.Generator().manual_seed(1)
    value = sum((each * torch.randn(each.shape, generator=draw, dtype=x.dtype)).sum() for each in sent)
    by = [*cell.parameters(), x, *leaves]
    return sent, torch.autograd.grad(value, by, materialize_grads=True, allow_unused=True)


@pytest.mark.parametrize("lengths", [None, (12, 5, 0)])
@pytest.mark.parametrize("name", [*LIBRARIES, *JELLY])
def test_outputs_states_and_gradients_are_those_of_plain_steps(name: str, lengths: tuple[int, ...] | None):
    cell = cell_of(name)
    x = 20 * torch.rand(STEPS, BATCH, cell.n_in, dtype=torch.float64)
    _, state = cell.run(x[:4], cell.initial_state(BATCH))
    state = type(state)(*(leaf.detach() for leaf in state))
    ends = None if lengths is None else torch.tensor(lengths)
    at_once = run_and_gradients(cell, x, state, ends)
    with patch.object(type(cell), "run_at_once", Cell.run_at_once):
        stepped = run_and_gradients(cell, x, state, ends)
    assert at_once[0][0].any()
    tolerance = 1e-6 if name.startswith("snn.") else 1e-10  # a gradient passes float32 in snnTorch's own surrogates
    assert_close(at_once, stepped, rtol=tolerance, atol=tolerance)
    known = not any(part in name for part in PLAIN)
    assert (cell.run_at_once(x, state, ends, None) is not None) is known


@pytest.mark.parametrize("decays", [True, False])
@pytest.mark.parametrize("reset", [None, 0.0])
def test_a_time_constant_that_a_user_made_a_parameter_has_its_own_gradient(decays: bool, reset: float | None):
    node = NODES["LIF" if decays else "LIF-input-whole"](v_reset=reset)
    node.tau = nn.Parameter(torch.tensor(3.0, dtype=torch.float64))
    cell: Any = wrap([nn.Linear(7, N).double(), node], input_shape=(7,)).cells[0]
    x = 20 * torch.rand(STEPS, BATCH, 7, dtype=torch.float64)
    state = cell.initial_state(BATCH)
    at_once = run_and_gradients(cell, x, state, None)
    assert cell.run_at_once(x, state, None, None) is not None
    with patch.object(type(cell), "run_at_once", Cell.run_at_once):
        stepped = run_and_gradients(cell, x, state, None)
    assert at_once[0][0].any()
    assert_close(at_once, stepped, rtol=1e-10, atol=1e-10)


def leaky(*before: nn.Module) -> WrappedCell:
    cell: Any = wrap([*before, copy.deepcopy(EVERY["snn.Leaky-hidden"][0]()[1])], input_shape=7).cells[0]
    return cell


def runs_at_once(cell: WrappedCell) -> bool:
    x = torch.rand(5, 4, 7)
    return cell.run_at_once(x, cell.initial_state(4), None, None) is not None


def test_batch_norms_and_dropout_run_at_once_in_evaluation_alone():
    for between in (nn.BatchNorm1d(6), nn.Dropout(0.5)):
        cell = leaky(nn.Linear(7, 6), between)
        assert not runs_at_once(cell)
        assert runs_at_once(cell.eval())


class Shift(nn.Module):
    """A module of a user's own, which may know more than one sample."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean()


def test_modules_that_are_not_known_and_hooks_take_plain_steps():
    assert not runs_at_once(leaky(nn.Linear(7, 6), Shift()))
    linear = nn.Linear(7, 6)
    cell = leaky(nn.Sequential(linear, nn.ReLU()))
    assert runs_at_once(cell)
    handle = linear.register_forward_hook(lambda module, args, out: None)
    assert not runs_at_once(cell)
    handle.remove()
    cell.layer.register_forward_hook(lambda module, args, out: None)
    assert not runs_at_once(cell)


def test_an_input_that_is_the_same_in_every_step_is_projected_once():
    cell = leaky(nn.Linear(7, 6))
    seen: list[tuple[int, ...]] = []

    def linear(x: Tensor, *rest: Tensor) -> Tensor:
        seen.append(tuple(x.shape))
        return nn.functional.linear(x, *rest)

    constant = torch.rand(4, 7).expand(9, 4, 7)
    with patch("neurolsc.interop.at_once.linear", linear):
        out, _ = cell.run(constant, cell.initial_state(4))
    assert seen == [(4, 7)]
    assert_close(out, cell.run(constant.contiguous(), cell.initial_state(4))[0])


def test_half_precision_takes_plain_steps():
    cell = leaky(nn.Linear(7, 6)).bfloat16()
    assert cell.run_at_once(torch.rand(5, 4, 7).bfloat16(), cell.initial_state(4), None, None) is None


def test_autocast_takes_plain_steps_from_a_state_of_full_precision_too():
    cell = leaky(nn.Linear(7, 6))
    state = cell.initial_state(4)
    with torch.autocast("cpu", torch.bfloat16):
        assert cell.run_at_once(torch.rand(5, 4, 7), state, None, None) is None
