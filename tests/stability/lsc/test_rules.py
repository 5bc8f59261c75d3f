"""Multiplier rules: ours scales the derivative by exactly kappa, the paper's moves what the paper
lists."""

import copy
import math

import pytest
import torch
from torch import Tensor

from neurolsc import LIF, ALIFPlus, ALIFPlusMinus, Cell, PaperRule, TransitionRule
from neurolsc.neurons.cell import ScaledParameter
from neurolsc.stability.lsc.rules import assign

pytestmark = pytest.mark.usefixtures("float64")

every_cell = pytest.mark.parametrize("kind", [LIF, ALIFPlus, ALIFPlusMinus])


def a_state(cell: Cell) -> tuple[Tensor, ...]:
    return type(cell.initial_state(3))(*(torch.randn(3, cell.n_hidden) for _ in cell.initial_state(3)))


def changes(cell: Cell, rule: object, *, time: float, depth: float) -> dict[str, Tensor]:
    """The factor by which each parameter moved, by name; untouched ones left out."""
    before = copy.deepcopy(cell)
    rule.apply(cell, time=time, depth=depth)
    names = [name.removeprefix("log_") for name, _ in cell.named_parameters()]
    factors = {name: (getattr(cell, name) / getattr(before, name)).detach() for name in names}
    return {name: factor for name, factor in factors.items() if not torch.equal(factor, torch.ones_like(factor))}


@every_cell
@pytest.mark.parametrize("kappa", [0.85, 1.15, 0.3])
@pytest.mark.parametrize("hold_threshold", [False, True])
def test_transition_rule_multiplies_both_derivatives_by_exactly_kappa(kind, kappa, hold_threshold):
    cell = kind(6, 5, tau_v=2.0) if kind is LIF else kind(6, 5, tau_v=2.0, tau_theta=2.0)
    state = a_state(cell)
    before = sum(cell.derivatives().by_state(None, state).values())
    by_input = cell.derivatives().by_input(None, state).clone()
    TransitionRule(hold_threshold).apply(cell, time=kappa, depth=1 / kappa)
    after = sum(cell.derivatives().by_state(None, state).values())
    torch.testing.assert_close(after, kappa * before, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(cell.derivatives().by_input(None, state), by_input / kappa, rtol=1e-12, atol=0)


def test_transition_rule_moves_the_decays_and_not_the_time_constants():
    cell = ALIFPlus(6, 5, tau_v=2.0)
    decay_v, decay_theta = cell.decay_v, cell.decay_theta
    TransitionRule().apply(cell, time=0.9, depth=1.0)
    torch.testing.assert_close((cell.decay_v, cell.decay_theta), (0.9 * decay_v, 0.9 * decay_theta))


def test_decays_stay_below_one():
    cell = ALIFPlus(6, 5, tau_v=2.0)
    for _ in range(100):
        TransitionRule(longest=500).apply(cell, time=1.15, depth=1.0)
    torch.testing.assert_close((cell.tau_v, cell.tau_theta), (torch.full((5,), 500.0), torch.full((5,), 500.0)))
    assert (cell.decay_theta < 1).all()
    assert TransitionRule(longest=500).name == "transition, longest 500"  # told apart in logs and checkpoints


def test_held_threshold_stays_while_the_time_constants_move():
    held, free = ALIFPlus(6, 5), ALIFPlus(6, 5)
    before = held.theta_rest.clone(), free.theta_rest.clone()
    TransitionRule(hold_threshold=True).apply(held, time=0.85, depth=1.0)
    TransitionRule().apply(free, time=0.85, depth=1.0)
    torch.testing.assert_close(held.theta_rest, before[0])
    assert (free.theta_rest < before[1] / 2).all()
    assert held.tau_theta.max() < 10


def test_transition_rule_moves_what_stands_in_the_derivative():
    moved = changes(ALIFPlus(6, 5), TransitionRule(), time=0.9, depth=1.1)
    assert moved.keys() == {"w_in", "w_rec", "adaptation", "tau_v", "tau_theta"}
    assert changes(LIF(6, 5), TransitionRule(), time=0.9, depth=1.1).keys() == {"w_in", "w_rec", "tau_v"}


@pytest.mark.parametrize(
    ("kind", "depth_follows", "time_follows"),
    [
        (LIF, {"w_in"}, {"w_rec", "tau_v"}),
        (ALIFPlus, {"w_in", "b_theta", "adaptation"}, {"w_rec", "tau_v", "tau_theta"}),
        (ALIFPlusMinus, {"w_in", "b_theta", "adaptation"}, {"w_rec", "tau_v", "tau_theta"}),
    ],
)
def test_paper_rule_multiplies_exactly_what_the_paper_lists(kind, depth_follows, time_follows):
    moved = changes(kind(6, 5), PaperRule(), time=0.9, depth=1.1)
    assert moved.keys() == depth_follows | time_follows
    for name, factor in moved.items():
        torch.testing.assert_close(factor, torch.full_like(factor, 1.1 if name in depth_follows else 0.9))


@every_cell
@pytest.mark.parametrize("rule", [TransitionRule(), TransitionRule(hold_threshold=True), PaperRule()], ids=str)
def test_kappa_one_and_frozen_parameters_move_nothing(kind, rule):
    cell = kind(6, 5)
    before = copy.deepcopy(cell.state_dict())
    rule.apply(cell, time=1.0, depth=1.0)
    torch.testing.assert_close(cell.state_dict(), before)
    cell.w_rec.requires_grad_(False)
    cell.log_tau_v.requires_grad_(False)
    assert not changes(cell, rule, time=0.9, depth=1.1).keys() & {"w_rec", "tau_v"}


@pytest.mark.parametrize("rule", [TransitionRule(), PaperRule()], ids=str)
def test_rules_assign_in_place_so_that_an_optimizer_keeps_its_parameters(rule):
    cell = ALIFPlus(6, 5)
    parameters = dict(cell.named_parameters())
    rule.apply(cell, time=0.5, depth=2.0)
    assert all(parameter is parameters[name] for name, parameter in cell.named_parameters())
    assert all(parameter.requires_grad and parameter.grad_fn is None for parameter in cell.parameters())


@pytest.mark.parametrize("rule", [TransitionRule(), PaperRule()], ids=str)
@pytest.mark.parametrize("kappa", [0.85, 1.15])
def test_a_rule_that_runs_away_stays_finite(rule, kappa):
    torch.set_default_dtype(torch.float32)
    cell = ALIFPlus(6, 5)
    for _ in range(400):
        rule.apply(cell, time=kappa, depth=1.0)
    assert ((cell.tau_v > 0) & (cell.tau_theta > 0)).all()
    state = cell.initial_state(2)
    assert state.theta.isfinite().all()
    (cell.decay_v.sum() + cell.decay_theta.sum()).backward()
    assert cell.log_tau_v.grad.isfinite().all()
    assert cell.log_tau_theta.grad.isfinite().all()


def test_assign_goes_through_positive():
    cell = ALIFPlus(6, 5)
    assign(cell, "tau_theta", torch.full((5,), 7.0))
    torch.testing.assert_close(cell.tau_theta, torch.full((5,), 7.0))
    assign(cell, "b_theta", torch.full((5,), 0.3))
    assert (cell.b_theta == 0.3).all()
    with pytest.raises(ValueError, match="tau_theta must be positive"):
        assign(cell, "tau_theta", torch.zeros(5))


class Inner(LIF):
    """A cell whose decay is a number kept in a module of its own."""

    scaled_parameters = (
        ScaledParameter("memory.weight", "time"),
        ScaledParameter("memory.retention", "time", through="share"),
    )

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.memory = torch.nn.Linear(2, 2)
        self.memory.register_buffer("retention", torch.tensor([0.5, 0.99]))


def test_an_answer_reaches_into_modules_and_keeps_shares_below_one():
    cell = Inner()
    weight, kept = cell.memory.weight, cell.memory.retention
    before = weight.detach().clone()
    TransitionRule(longest=100).apply(cell, time=1.1, depth=2.0)
    assert cell.memory.weight is weight
    torch.testing.assert_close(weight.detach(), 1.1 * before)
    torch.testing.assert_close(cell.memory.retention, torch.tensor([0.55, math.exp(-1 / 100)]))
    torch.testing.assert_close(kept, torch.tensor([0.5, 0.99]))  # a buffer may be shared, so it is replaced
    weight.requires_grad_(False)
    TransitionRule().apply(cell, time=0.5, depth=2.0)
    torch.testing.assert_close(weight.detach(), 1.1 * before)
